//! What a worker counts beside the pipeline: bursts, busy cycles, what it sent to each port.

use std::sync::Arc;

use pipelines::counters;
use pipelines::counters::{Counter, PipelineCounters};
use pipelines::drops::DropReason;
use pipelines::snapshot::PortIndex;

use super::MAX_PORTS;
use super::laps::StageCounters;

/// Classes of the burst-size histogram: 1, 2..=3, 4..=7, 8..=15, 16..=31, 32 and more.
pub const BURST_CLASSES: usize = 6;

/// A turn that takes longer than this is counted: at 10 Gbit/s, 1,488 of the smallest packets come meanwhile.
pub const LONG_TURN_NS: u64 = 100_000;

counters! {
    /// Traffic of one port on one worker.
    #[derive(Debug, Default)]
    #[repr(C, align(64))]
    block PortCounters {}
    /// [`PortCounters`] summed over workers.
    totals PortTotals
    /// Packets received.
    sum rx_packets = "rx-packets",
    /// Bytes received.
    sum rx_bytes = "rx-bytes",
    /// Packets accepted by the tx queue.
    sum tx_packets = "tx-packets",
    /// Bytes accepted by the tx queue.
    sum tx_bytes = "tx-bytes",
    /// Packets dropped because the tx queue (or the hand-over ring) was full, or the port was leaving.
    sum tx_drops = "tx-drops",
}

counters! {
    /// What the simulated e-switch did in front of one worker. Written by that worker alone.
    #[derive(Debug, Default)]
    #[repr(C, align(64))]
    block EswitchCounters {}
    /// [`EswitchCounters`] summed over workers.
    totals EswitchTotals
    /// Packets that it sent out of ports.
    sum sent = "sent",
    /// Packets that found the ring to the worker full.
    sum ring_full = "ring-full",
    /// Packets of rules that lead to a port that is not there.
    sum lost = "lost",
    /// TSC cycles that it took; they are not among the worker's.
    sum cycles = "cycles",
}

/// All counters of one worker. Written by it alone.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct WorkerStats {
    /// The pipeline's.
    pub pipeline: Arc<PipelineCounters>,
    /// Turns of the loop; the watchdog looks whether they go on.
    pub polls: Counter,
    /// TSC cycles of turns in which something came in.
    pub busy_cycles: Counter,
    /// TSC cycles of the other turns, sleep included.
    pub idle_cycles: Counter,
    /// Times the worker went to sleep.
    pub sleeps: Counter,
    /// Bursts received, by size class.
    pub bursts: [Counter; BURST_CLASSES],
    /// The simulated e-switch.
    pub eswitch: EswitchCounters,
    /// What stages took, while that is watched.
    pub stages: StageCounters,
    /// TSC cycles of the longest turn, and turns of more than [`LONG_TURN_NS`], since that is watched.
    pub longest_turn: Counter,
    /// See [`Self::longest_turn`].
    pub long_turns: Counter,
    /// By port.
    pub ports: Box<[PortCounters]>,
}

impl WorkerStats {
    /// Zeroed counters.
    pub fn new(pipeline: Arc<PipelineCounters>) -> Self {
        Self {
            pipeline,
            polls: Counter::default(),
            busy_cycles: Counter::default(),
            idle_cycles: Counter::default(),
            sleeps: Counter::default(),
            bursts: Default::default(),
            eswitch: EswitchCounters::default(),
            stages: StageCounters::default(),
            longest_turn: Counter::default(),
            long_turns: Counter::default(),
            ports: (0..MAX_PORTS).map(|_| PortCounters::default()).collect(),
        }
    }

    /// Packets that a receive queue dropped because their headers could not be gathered: they came, and did not get
    /// as far as the pipeline.
    #[cold]
    pub(super) fn dropped_on_receive(&self, port: PortIndex, packets: u64) {
        self.pipeline.received.add(packets);
        self.pipeline.drop_many(DropReason::HEADER_SPLIT, packets);
        self.ports[usize::from(port)].rx_packets.add(packets);
    }

    /// A turn of the loop took so long, while that is watched.
    pub(super) fn watch_turn(&self, cycles: u64, nanos: u64) {
        if cycles > self.longest_turn.get() {
            self.longest_turn.set(cycles);
        }
        if nanos > LONG_TURN_NS {
            self.long_turns.add(1);
        }
    }

    /// What is watched begins at zero. The worker's own call.
    pub(super) fn watch_anew(&self) {
        super::laps::Laps::clear(&self.stages);
        self.longest_turn.set(0);
        self.long_turns.set(0);
    }

    /// The histogram class of a burst size above zero.
    #[inline(always)]
    pub fn burst_class(size: usize) -> usize {
        (size.max(1).ilog2() as usize).min(BURST_CLASSES - 1)
    }

    /// Names of the classes.
    pub const BURST_NAMES: [&str; BURST_CLASSES] = ["1", "2-3", "4-7", "8-15", "16-31", "32+"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_sizes() {
        let classes: Vec<_> = [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 64].map(WorkerStats::burst_class).into();
        assert_eq!(classes, [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }
}
