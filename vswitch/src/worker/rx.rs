//! The receive queues of a worker: a burst comes in, is counted, and passes the lab e-switch where there is one.

use std::sync::Arc;

use pipelines::Now;
use pipelines::snapshot::PortIndex;
use pipelines::watch::{Stage, StageWatch as _};
use pmd::{Mbuf, RxQueue};
use wire::PacketBuf;

use super::eswitch::Front;
use super::laps::Laps;
use super::mailbox::PortBuffers;
use super::stats::WorkerStats;
use super::turns::Turns;
use super::tx::TxPaths;

/// All receive queues of a worker, in the order in which they are polled.
pub(super) struct RxPaths {
    paths: Vec<RxPath>,
    /// Which of them are polled.
    turns: Turns,
    stats: Arc<WorkerStats>,
    /// TSC cycles of this turn that are not the worker's own.
    apart: u64,
}

/// One receive queue.
pub(super) struct RxPath {
    port: PortIndex,
    queue: RxQueue,
    /// What packets pass first.
    front: Option<Box<Front>>,
    /// Packets whose headers could not be gathered, as far as they are booked.
    split: u64,
}

impl RxPaths {
    pub fn new(stats: Arc<WorkerStats>) -> Self {
        Self { paths: Vec::new(), turns: Turns::default(), stats, apart: 0 }
    }

    pub fn add(&mut self, port: PortIndex, queue: RxQueue, front: Option<Box<Front>>, now: Now) {
        let split = queue.header_split_drops();
        self.paths.push(RxPath { port, queue, front, split });
        self.turns.reset(self.paths.len(), now);
    }

    /// Takes a port's queues out.
    pub fn remove(&mut self, port: PortIndex, now: Now) -> Vec<RxPath> {
        let gone: Vec<RxPath> = self.paths.extract_if(.., |path| path.port == port).collect();
        self.turns.reset(self.paths.len(), now);
        gone
    }

    /// A turn begins: how many queues are polled.
    #[inline(always)]
    pub fn begin(&mut self, now: Now) -> usize {
        let paths = &self.paths;
        self.turns.begin(now, |place| paths[place].may_have_packets());
        self.turns.len()
    }

    /// Packets of a queue into the first places of `packets`: of which port, and how many. `turn` is below what
    /// [`begin`](Self::begin) said.
    #[inline(always)]
    pub fn receive(
        &mut self,
        turn: usize,
        packets: &mut [Option<Mbuf>],
        watched: Option<Laps<'_>>,
        now: Now,
        tx: &mut TxPaths,
    ) -> (PortIndex, usize) {
        let place = self.turns.place(turn);
        let RxPath { port, queue, front, split } = &mut self.paths[place];
        let n = queue.receive_into(packets);
        if n > 0 {
            self.turns.used(place, now);
        }
        let dropped = queue.header_split_drops() - *split;
        if dropped > 0 {
            *split += dropped;
            self.stats.dropped_on_receive(*port, dropped);
        }
        if n > 0 {
            let counters = &self.stats.ports[usize::from(*port)];
            counters.rx_packets.add(n as u64);
            let bytes = packets[..n].iter().flatten().map(PacketBuf::len).sum::<usize>();
            counters.rx_bytes.add(bytes as u64);
            if let Some(mut laps) = watched {
                laps.lap(Stage::Rx, n as u32);
            }
        }
        let n = match front {
            Some(front) if n > 0 || front.is_busy() => {
                let (n, cycles) = front.pass(packets, n, now, tx, &self.stats);
                self.apart += cycles;
                n
            }
            _ => n,
        };
        (*port, n)
    }

    /// What waits in front of receive queues.
    pub fn buffers(&self) -> impl Iterator<Item = PortBuffers> {
        let in_front = |path: &RxPath| path.front.as_ref().map_or(0, |front| front.buffers());
        let of = move |path| PortBuffers { in_front: in_front(path), ..PortBuffers::of(path.port) };
        self.paths.iter().map(of)
    }

    /// True with packets in front of a queue.
    pub fn is_busy(&self) -> bool {
        self.paths.iter().any(|path| path.front.as_ref().is_some_and(|front| front.is_busy()))
    }

    /// TSC cycles since the last call that were the e-switch's.
    #[inline(always)]
    pub fn take_apart(&mut self) -> u64 {
        std::mem::take(&mut self.apart)
    }
}

impl RxPath {
    /// Whether it is worth polling: in the queue, or in front of it.
    #[inline(always)]
    fn may_have_packets(&self) -> bool {
        self.front.is_some() || self.queue.may_have_packets()
    }

    /// What waits in front of a queue that goes, into the first places of `packets`; how many.
    pub fn empty_front(&mut self, packets: &mut [Option<Mbuf>]) -> usize {
        self.front.as_mut().map_or(0, |front| front.empty(packets))
    }

    pub fn into_queue(self) -> RxQueue {
        self.queue
    }
}
