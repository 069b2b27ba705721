//! The receive queues of a worker: a burst comes in, is counted, and passes the lab e-switch where there is one.

use std::sync::Arc;

use pipelines::Now;
use pipelines::snapshot::PortIndex;
use pipelines::watch::{Stage, StageWatch as _};
use pmd::{Mbuf, Readiness, RxQueue};
use wire::PacketBuf;

use super::eswitch::Front;
use super::laps::Laps;
use super::mailbox::PortBuffers;
use super::stats::WorkerStats;
use super::turns::{Idle, Turns};
use super::tx::TxPaths;

/// All receive queues of a worker, in the order in which they are polled.
pub(super) struct RxPaths {
    paths: Vec<RxPath>,
    /// Which of them are polled.
    turns: Turns,
    /// Tells which idle ones have packets; none before one of them is idle, and where the kernel gives none.
    readiness: Option<Readiness>,
    /// How often the places of queues have changed: what is told of places before that is void.
    changes: u32,
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
        let (paths, turns) = (Vec::new(), Turns::default());
        Self { paths, turns, readiness: None, changes: 0, stats, apart: 0 }
    }

    pub fn add(&mut self, port: PortIndex, queue: RxQueue, front: Option<Box<Front>>, now: Now) {
        let split = queue.header_split_drops();
        self.paths.push(RxPath { port, queue, front, split });
        self.turns.add(now);
    }

    /// Takes a port's queues out.
    pub fn remove(&mut self, port: PortIndex, now: Now) -> Vec<RxPath> {
        let gone: Vec<RxPath> = self.paths.extract_if(.., |path| path.port == port).collect();
        if let Some(readiness) = &self.readiness {
            gone.iter().for_each(|path| readiness.forget(&path.queue));
        }
        self.changes = self.changes.wrapping_add(1);
        self.turns.reset(self.paths.len(), now);
        gone
    }

    /// A turn begins: how many queues are polled.
    #[inline(always)]
    pub fn begin(&mut self, now: Now) -> usize {
        let Self { paths, readiness, changes, .. } = self;
        self.turns.begin(now, IdlePaths { paths, readiness, changes: *changes });
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

/// What idle queues are asked by.
struct IdlePaths<'a> {
    paths: &'a [RxPath],
    readiness: &'a mut Option<Readiness>,
    changes: u32,
}

impl Idle for IdlePaths<'_> {
    fn arm(&mut self, place: usize) -> bool {
        let RxPath { queue, front: None, .. } = &self.paths[place] else { return false };
        if self.readiness.is_none() {
            *self.readiness = Readiness::new().ok();
        }
        let number = u64::from(self.changes) << 32 | place as u64;
        self.readiness.as_ref().is_some_and(|readiness| readiness.arm(queue, number))
    }

    fn take_ready(&mut self, mut ready: impl FnMut(usize)) {
        let Some(readiness) = self.readiness else { return };
        readiness.take(|number| {
            if number >> 32 == u64::from(self.changes) {
                ready(number as u32 as usize);
            }
        });
    }

    #[inline(always)]
    fn may_have_packets(&mut self, place: usize) -> bool {
        self.paths[place].may_have_packets()
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
