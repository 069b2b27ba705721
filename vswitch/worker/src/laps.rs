//! Where a worker's cycles go, stage by stage, while somebody asks.

use pipelines::counters::Counter;
use pipelines::watch::{Stage, StageWatch};
use pmd::rdtsc;

/// What the stages of one worker took. Written by that worker alone.
pub type StageCounters = [StageCounter; Stage::ALL.len()];

/// What one stage took.
#[derive(Debug, Default)]
pub struct StageCounter {
    /// TSC cycles, those of reading the clock included.
    pub cycles: Counter,
    /// Packets that it began with.
    pub packets: Counter,
    /// Laps: bursts in which it had something to do.
    pub laps: Counter,
}

/// A clock that runs through the stages of a burst.
pub(super) struct Laps<'a> {
    stages: &'a StageCounters,
    last: u64,
}

impl<'a> Laps<'a> {
    /// Starts now.
    #[inline(always)]
    pub(super) fn new(stages: &'a StageCounters) -> Self {
        Self { stages, last: rdtsc() }
    }

    /// All counters at zero. The worker's own call.
    pub(super) fn clear(stages: &StageCounters) {
        for stage in stages {
            stage.cycles.set(0);
            stage.packets.set(0);
            stage.laps.set(0);
        }
    }
}

impl StageWatch for Laps<'_> {
    #[inline(always)]
    fn start(&mut self) {
        self.last = rdtsc();
    }

    #[inline(always)]
    fn lap(&mut self, stage: Stage, packets: u32) {
        let now = rdtsc();
        let counter = &self.stages[stage as usize];
        counter.cycles.add(now.wrapping_sub(self.last));
        counter.packets.add(u64::from(packets));
        counter.laps.add(1);
        self.last = now;
    }
}

/// TSC cycles that one lap takes by itself here and now: the median of some.
pub fn own_cycles() -> u64 {
    let stages = StageCounters::default();
    let mut laps = Laps::new(&stages);
    let mut took: Vec<u64> = (0..1001)
        .map(|_| {
            let before = stages[0].cycles.get();
            laps.lap(Stage::ALL[0], 0);
            stages[0].cycles.get() - before
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_add_up() {
        let stages = StageCounters::default();
        let mut laps = Laps::new(&stages);
        laps.start();
        let begin = laps.last;
        for n in [32, 1] {
            laps.lap(Stage::Lookup, n);
            laps.lap(Stage::Forward, n);
        }
        let sum: u64 = stages.iter().map(|stage| stage.cycles.get()).sum();
        assert_eq!(sum, laps.last - begin, "no cycle is lost between laps");
        let lookup = &stages[Stage::Lookup as usize];
        assert_eq!((lookup.packets.get(), lookup.laps.get()), (33, 2));
        Laps::clear(&stages);
        assert!(stages.iter().all(|stage| stage.cycles.get() + stage.packets.get() + stage.laps.get() == 0));
        assert!((1..100_000).contains(&own_cycles()));
    }
}
