//! The loop of a worker. Between rx and tx there is no lock, allocation, system call or log.

use std::sync::Arc;
use std::time::Duration;

use pipelines::burst::Burst;
use pipelines::hot::Hints;
use pipelines::overlay::Overlay;
use pipelines::snapshot::{PortIndex, Snapshot};
use pipelines::watch::{Stage, Watch};
use pipelines::{Now, Sink, io};
use pmd::{Clock, Mbuf, Moment, RxQueue, rdtsc};
use wire::PacketBuf;

use super::eswitch::Front;
use super::laps::Laps;
use super::mailbox::{Command, Mailbox, Mode, NftPage, QpCounts, QpPage, RemovedPort};
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
    pub(super) rx: Vec<Rx>,
    pub(super) burst: Burst<Mbuf>,
    pub(super) burst_size: usize,
    pub(super) clock: Clock,
    /// When time began, for all workers.
    pub(super) began: Moment,
    /// The TSC then, of the worker's core.
    pub(super) epoch: u64,
    pub(super) mode: Mode,
    pub(super) forwarding: bool,
    pub(super) may_sleep: bool,
    /// Somebody asks where the cycles go.
    pub(super) watching: bool,
    /// Cycles of this turn that are not the worker's own.
    pub(super) apart: u64,
}

/// A receive queue.
pub(super) struct Rx {
    port: PortIndex,
    queue: RxQueue,
    /// What packets pass first.
    front: Option<Box<Front>>,
    /// Packets whose headers could not be gathered, as far as they are booked.
    split: u64,
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
            let received = if self.forwarding { self.poll(now) } else { 0 };
            let more = self.overlay.release(&self.snapshot, now, &mut self.tx);
            let taken_over = self.tx.take_over();
            self.tx.flush();
            self.overlay.idle(now);
            let end = rdtsc();
            let worked = received + taken_over != 0;
            self.account(worked, end.wrapping_sub(last));
            last = end;
            quiet = if worked || more { 0 } else { quiet.saturating_add(1) };
            if self.may_sleep && quiet > SPIN && !self.tx.is_waiting() && !self.is_fronted() {
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
    fn now(&self, cycles: u64) -> Now {
        Now::from_ns(self.clock.nanos(cycles.saturating_sub(self.epoch)))
    }

    /// One burst from each queue.
    #[inline]
    fn poll(&mut self, now: Now) -> usize {
        let mut received = 0;
        for place in 0..self.rx.len() {
            let n = self.receive(place, now);
            if n > 0 {
                received += n;
                self.forward(now, self.rx[place].port, n);
            }
        }
        received
    }

    /// Packets from a queue into the first places of the burst.
    #[inline(always)]
    fn receive(&mut self, place: usize, now: Now) -> usize {
        let Rx { port, queue, front, split } = &mut self.rx[place];
        let laps = self.watching.then(|| Laps::new(&self.stats.stages));
        let n = queue.receive_into(&mut self.burst.packets[..self.burst_size]);
        let dropped = queue.header_split_drops() - *split;
        if dropped > 0 {
            *split += dropped;
            self.stats.dropped_on_receive(*port, dropped);
        }
        if n > 0 {
            let counters = &self.stats.ports[usize::from(*port)];
            counters.rx_packets.add(n as u64);
            let bytes = self.burst.packets[..n].iter().flatten().map(PacketBuf::len).sum::<usize>();
            counters.rx_bytes.add(bytes as u64);
            if let Some(mut laps) = laps {
                laps.lap(Stage::Rx, n as u32);
            }
        }
        match front {
            Some(front) if n > 0 || front.is_busy() => {
                let begin = rdtsc();
                let packets = &mut self.burst.packets[..self.burst_size];
                let counters = (&*self.stats.pipeline, &self.stats.eswitch);
                let n = front.pass(packets, n, now, &mut self.tx, counters);
                self.tx.flush();
                let cycles = rdtsc().wrapping_sub(begin);
                self.stats.eswitch.cycles.add(cycles);
                self.apart += cycles;
                n
            }
            _ => n,
        }
    }

    /// Sends the first `n` packets of the burst through the pipeline.
    #[inline(always)]
    fn forward(&mut self, now: Now, port: PortIndex, n: usize) {
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

    #[inline(always)]
    fn account(&mut self, worked: bool, cycles: u64) {
        let cycles = cycles.saturating_sub(std::mem::take(&mut self.apart));
        self.stats.polls.add(1);
        if worked {
            self.stats.busy_cycles.add(cycles);
        } else {
            self.stats.empty_polls.add(1);
            self.stats.idle_cycles.add(cycles);
        }
    }

    /// Does what control asks. `false`: exit.
    #[cold]
    fn obey(&mut self) -> bool {
        while let Some(command) = self.mailbox.next() {
            match command {
                Command::Snapshot(snapshot) => self.adopt(snapshot),
                Command::AddRx(port, queue, front) => {
                    let split = queue.header_split_drops();
                    self.rx.push(Rx { port, queue, front, split });
                }
                Command::AddTx(port, own) => self.tx.own(port, own),
                Command::AddHandOff(port, ring) => self.tx.hand_off(port, ring),
                Command::AddRing(port, ring) => self.tx.add_ring(port, ring),
                Command::Divert(port, to) => self.tx.divert(port, to),
                Command::RemoveRx(port, reply) => {
                    let _ = reply.send(RemovedPort { rx: self.remove_rx(port), tx: Vec::new() });
                }
                Command::RemovePort(port, reply) => {
                    let rx = self.remove_rx(port);
                    let tx = self.tx.remove(port).into_iter().collect();
                    let _ = reply.send(RemovedPort { rx, tx });
                }
                Command::Forward(on) => self.forwarding = on,
                Command::Mode(mode) => self.mode = mode,
                Command::Inject(port, packet) => {
                    self.stats.pipeline.originated.add(1);
                    self.tx.send(port, packet);
                }
                Command::Nft(from, limit, reply) => {
                    let (entries, next) = self.overlay.nft().scan(from, limit);
                    let tick = self.now(rdtsc()).tick;
                    let _ = reply.send(NftPage { entries, next, tick });
                }
                Command::Qps(way, from, limit, reply) => {
                    let (entries, next) = self.overlay.rcft().scan(way, from, limit);
                    let _ = reply.send(QpPage { entries, next });
                }
                Command::QpsOf(way, keys, reply) => {
                    let rcft = self.overlay.rcft();
                    let entries = keys.iter().filter_map(|key| rcft.view(way, key)).collect();
                    let _ = reply.send(QpPage { entries, next: None });
                }
                Command::QpCounts(reply) => {
                    let rcft = self.overlay.rcft();
                    let used = rcft.guests().iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
                    let guests = rcft.guests()[..used].to_vec();
                    let _ = reply.send(QpCounts { stats: rcft.stats(), guests });
                }
                Command::QpTidy(from, budget, reply) => {
                    let _ = reply.send(self.overlay.rcft_mut().tidy(&self.snapshot, from, budget));
                }
                Command::QpForget(keys) => keys.iter().for_each(|key| self.overlay.rcft_mut().forget(key)),
                Command::Depths(leaves, reply) => {
                    let dhtb = self.overlay.dhtb();
                    let _ = reply.send(leaves.iter().map(|leaf| dhtb.depth(*leaf)).collect());
                }
                Command::NftClear => self.overlay.nft_mut().clear(),
                Command::Hints(queue) => self.overlay.set_hints(queue.map(Hints::new)),
                Command::Usage(asks, reply) => {
                    let _ = reply.send(asks.iter().map(|ask| self.overlay.usage(ask)).collect());
                }
                Command::Account(done, reply) => {
                    let now = self.now(rdtsc());
                    let unknown = done
                        .iter()
                        .filter(|(ask, usage)| !self.overlay.account(&self.snapshot, ask, *usage, now));
                    let _ = reply.send(unknown.count());
                }
                Command::Watch(on) => {
                    self.watching = on;
                    if on {
                        Laps::clear(&self.stats.stages);
                    }
                }
                Command::Barrier(reply) => {
                    let _ = reply.send(());
                }
                Command::Exit => return false,
            }
        }
        true
    }

    /// Control frees the old snapshot: freeing never falls on a worker.
    fn adopt(&mut self, snapshot: Arc<Snapshot>) {
        let mut old = std::mem::replace(&mut self.snapshot, snapshot);
        while let Err(back) = self.mailbox.retired.push(old) {
            old = back;
            std::thread::yield_now();
        }
    }

    fn remove_rx(&mut self, port: PortIndex) -> Vec<RxQueue> {
        let (gone, kept): (Vec<Rx>, Vec<Rx>) =
            std::mem::take(&mut self.rx).into_iter().partition(|rx| rx.port == port);
        self.rx = kept;
        let mut queues = Vec::with_capacity(gone.len());
        for rx in gone {
            if let Some(mut front) = rx.front {
                self.empty(rx.port, &mut front);
            }
            queues.push(rx.queue);
        }
        queues
    }

    /// What waits in front of a queue that goes is not lost.
    fn empty(&mut self, port: PortIndex, front: &mut Front) {
        let now = self.now(rdtsc());
        loop {
            let n = front.empty(&mut self.burst.packets[..self.burst_size]);
            if n == 0 {
                return;
            }
            self.forward(now, port, n);
        }
    }

    /// True with packets in front of a queue.
    fn is_fronted(&self) -> bool {
        self.rx.iter().any(|rx| rx.front.as_ref().is_some_and(|front| front.is_busy()))
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
