//! The receive queues of a worker: a burst comes in, is counted, and passes the lab e-switch where there is one.

use std::sync::Arc;

use pipelines::Now;
use pipelines::snapshot::PortIndex;
use pipelines::watch::{Stage, StageWatch as _};
use pmd::{Mbuf, RxQueue};
use wire::PacketBuf;

use super::eswitch::Front;
use super::laps::Laps;
use super::stats::WorkerStats;
use super::tx::TxPaths;

/// All receive queues of a worker, in the order in which they are polled.
pub(super) struct RxPaths {
    paths: Vec<RxPath>,
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
        Self { paths: Vec::with_capacity(super::MAX_PORTS), stats, apart: 0 }
    }

    pub fn add(&mut self, port: PortIndex, queue: RxQueue, front: Option<Box<Front>>) {
        let split = queue.header_split_drops();
        self.paths.push(RxPath { port, queue, front, split });
    }

    /// Takes a port's queues out.
    pub fn remove(&mut self, port: PortIndex) -> Vec<RxPath> {
        self.paths.extract_if(.., |path| path.port == port).collect()
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Packets of the queue in a place into the first places of `packets`: of which port, and how many.
    #[inline(always)]
    pub fn receive(
        &mut self,
        place: usize,
        packets: &mut [Option<Mbuf>],
        watched: Option<Laps<'_>>,
        now: Now,
        tx: &mut TxPaths,
    ) -> (PortIndex, usize) {
        let RxPath { port, queue, front, split } = &mut self.paths[place];
        let n = queue.receive_into(packets);
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
    /// What waits in front of a queue that goes, into the first places of `packets`; how many.
    pub fn empty_front(&mut self, packets: &mut [Option<Mbuf>]) -> usize {
        self.front.as_mut().map_or(0, |front| front.empty(packets))
    }

    pub fn into_queue(self) -> RxQueue {
        self.queue
    }
}
