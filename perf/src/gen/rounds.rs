//! Rounds of a run: when one begins and when it is over.

use std::time::Duration;

use pmd::Clock;

use super::outcome;
use super::tally::Tally;
use crate::live::pace::Pace;
use crate::report::delay::Delays;

/// How long a round may take before nobody waits for what is missing.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Rounds {
    pace: Pace,
    patience: u64,
    /// When the one under way began.
    began: Option<u64>,
    begun: u64,
    times: Delays,
}

impl Rounds {
    /// So many a second, from tick `start` on.
    pub(super) fn new(rate: f64, clock: &Clock, start: u64) -> Self {
        let pace = Pace::new((rate * 1000.0) as u64, clock.hz().saturating_mul(1000), start, 1);
        Self { pace, patience: clock.cycles(PATIENCE), began: None, begun: 0, times: Delays::new() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.began.is_some()
    }

    /// Begins a round when the last is over and the next is due, if there is to be one.
    pub(super) fn turn(&mut self, now: u64, wanted: bool, tallies: &mut [Tally]) {
        if let Some(began) = self.began {
            let late = now.saturating_sub(began) > self.patience;
            if late {
                tallies.iter_mut().for_each(Tally::write_off);
            } else if tallies.iter().any(|tally| tally.missing() > 0) {
                return;
            } else {
                self.times.record(now.saturating_sub(began));
            }
            self.began = None;
        }
        if wanted && self.pace.due(now) > 0 {
            self.pace.take(1);
            self.begun += 1;
            self.began = Some(now);
            tallies.iter_mut().for_each(Tally::grant);
        }
    }

    pub(super) fn outcome(self, hertz: u64) -> outcome::RoundsOutcome {
        let Self { pace, begun, times, .. } = self;
        outcome::RoundsOutcome { begun, late: pace.skipped(), time: times.quantiles(hertz) }
    }
}
