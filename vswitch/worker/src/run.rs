//! The loop of a worker. Between rx and tx there is no lock, allocation, system call or log.

use std::sync::Arc;
use std::time::Duration;

use pipelines::burst::Burst;
use pipelines::overlay::Overlay;
use pipelines::snapshot::{PortIndex, Snapshot};
use pipelines::watch::{Stage, StageWatch};
use pipelines::{Now, io};
use pmd::{Clock, Mbuf, Moment, rdtsc};

use super::laps::Laps;
use super::mailbox::{Mailbox, Mode};
use super::repeat::Repeats;
use super::rx::RxPaths;
use super::stats::WorkerStats;
use super::tx::TxPaths;

/// Turns without a packet before a worker in sleep mode sleeps for the first time.
const SPIN: u32 = 64;
/// Longest sleep.
const MAX_SLEEP: Duration = Duration::from_micros(200);

pub(super) struct Worker {
    pub(super) mailbox: Mailbox,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) overlay: Overlay<Mbuf>,
    pub(super) stats: Arc<WorkerStats>,
    pub(super) tx: TxPaths,
    pub(super) rx: RxPaths,
    pub(super) burst: Burst<Mbuf>,
    pub(super) burst_size: usize,
    pub(super) clock: Clock,
    /// When time began, for all workers.
    pub(super) began: Moment,
    /// The TSC then, of the worker's core.
    pub(super) epoch: u64,
    /// What control sent last of what must not cease.
    pub(super) repeats: Repeats<Mbuf>,
    pub(super) mode: Mode,
    pub(super) forwarding: bool,
    pub(super) may_sleep: bool,
    /// Somebody asks where the cycles go.
    pub(super) watching: bool,
}

impl Worker {
    /// Runs until told to exit.
    pub(super) fn run(mut self) {
        // On its own core: counters of cores may differ.
        self.epoch = self.clock.tsc_at(self.began);
        let mut last = rdtsc();
        let mut quiet = 0u32;
        loop {
            if self.mailbox.is_marked() && !self.obey() {
                break;
            }
            let now = self.now(last);
            self.tx.begin(now);
            if self.forwarding && self.repeats.is_due(now) {
                self.repeat(now);
            }
            let received = if self.forwarding { self.poll(now) } else { 0 };
            let more = self.overlay.release(&self.snapshot, now, &mut self.tx);
            let taken_over = self.tx.take_over();
            self.tx.flush();
            self.overlay.idle(now);
            let end = rdtsc();
            let worked = received + taken_over != 0;
            let cycles = end.wrapping_sub(last);
            self.account(worked, cycles);
            if self.watching {
                self.stats.watch_turn(cycles, self.clock.nanos(cycles));
            }
            last = end;
            quiet = if worked || more { 0 } else { quiet.saturating_add(1) };
            if self.may_sleep && quiet > SPIN && !self.tx.is_waiting() && !self.rx.is_busy() {
                self.stats.sleeps.add(1);
                // Longer and longer: 10, 20, ... 200 microseconds.
                let steps = (quiet - SPIN).min(20);
                let sleep = (Duration::from_micros(10) * steps).min(MAX_SLEEP);
                // Not past what waits for tokens.
                let due =
                    self.overlay.next_due_ns().map(|due| Duration::from_nanos(due.saturating_sub(now.ns)));
                std::thread::sleep(due.map_or(sleep, |due| due.min(sleep)));
            }
        }
        self.drain();
    }

    #[inline(always)]
    pub(super) fn now(&self, cycles: u64) -> Now {
        Now::from_ns(self.clock.nanos(cycles.saturating_sub(self.epoch)))
    }

    /// One burst from each queue whose turn it is.
    #[inline]
    fn poll(&mut self, now: Now) -> usize {
        let mut received = 0;
        for turn in 0..self.rx.begin(now) {
            let watched = self.watching.then(|| Laps::new(&self.stats.stages));
            let packets = &mut self.burst.packets[..self.burst_size];
            let (port, n) = self.rx.receive(turn, packets, watched, now, &mut self.tx);
            if n > 0 {
                received += n;
                self.forward(now, port, n);
            }
        }
        received
    }

    /// Sends the first `n` packets of the burst through the pipeline.
    #[inline(always)]
    pub(super) fn forward(&mut self, now: Now, port: PortIndex, n: usize) {
        self.stats.bursts[WorkerStats::burst_class(n)].add(1);
        self.burst.begin(n);
        match self.mode {
            Mode::Overlay if self.watching => return self.forward_watched(now, port, n),
            Mode::Overlay => {
                self.overlay.run(&self.snapshot, now, port, &mut self.burst, &mut self.tx);
            }
            mode => {
                let mac = mode == Mode::Mac;
                io::run(&self.snapshot, &self.stats.pipeline, port, mac, &mut self.burst, &mut self.tx);
            }
        }
        self.tx.flush();
    }

    /// [`forward`](Self::forward) of the overlay, with the time that each stage takes.
    #[inline(never)]
    fn forward_watched(&mut self, now: Now, port: PortIndex, n: usize) {
        let mut laps = Laps::new(&self.stats.stages);
        self.overlay.run_watched(&self.snapshot, now, port, &mut self.burst, &mut self.tx, &mut laps);
        self.tx.flush();
        laps.lap(Stage::Tx, n as u32);
    }

    /// Speaks for control, which is late.
    #[cold]
    fn repeat(&mut self, now: Now) {
        let Self { repeats, tx, stats, .. } = self;
        repeats.send(now, |port, packet| {
            stats.pipeline.originated.add(1);
            stats.pipeline.bfd_repeated.add(1);
            tx.send_ahead(port, packet);
        });
    }

    #[inline(always)]
    fn account(&mut self, worked: bool, cycles: u64) {
        let cycles = cycles.saturating_sub(self.rx.take_apart());
        self.stats.polls.add(1);
        if worked {
            self.stats.busy_cycles.add(cycles);
        } else {
            self.stats.idle_cycles.add(cycles);
        }
    }

    /// The last packets go out as far as their queues take them within a bounded number of attempts.
    fn drain(&mut self) {
        let now = self.now(rdtsc());
        self.tx.begin(now);
        self.overlay.flush(&self.snapshot, now, &mut self.tx);
        for _ in 0..64 {
            self.tx.take_over();
            self.tx.flush();
            if !self.tx.is_waiting() {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
