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

#[cfg(test)]
mod tests {
    use super::super::rig::Demand;
    use super::super::scenario::Generator;
    use super::super::stream::Stream;
    use super::super::tally::Time;
    use super::*;
    use crate::group::traffic;

    const HERTZ: u64 = 1_000_000_000;

    fn arrives(tally: &mut Tally, frames: u64) {
        tally.ledger.received.frames += frames;
    }

    #[test]
    fn a_round_begins_when_it_is_due_and_all_of_the_last_has_come() {
        let plan = &traffic::streams(1, 32)[0];
        let flows = u64::from(plan.flows);
        let stream = Stream::new(plan, 0, &Generator::default()).unwrap();
        let demand = Demand { rounds: Some(1000.0), ..Demand::default() };
        let mut tallies = [Tally::new(&stream, None, &demand, 1, Time { hertz: HERTZ, start: 0 })];
        let mut rounds = Rounds::new(1000.0, &Clock::from_hz(HERTZ), 0);
        // A thousand a second: the first is due after a millisecond, and lets every flow send a frame.
        for (now, due) in [(0, 0), (999_999, 0), (1_000_000, flows)] {
            rounds.turn(now, true, &mut tallies);
            assert_eq!((rounds.is_open(), tallies[0].due(now)), (due > 0, due), "at {now}");
        }
        tallies[0].take(flows);
        arrives(&mut tallies[0], flows - 1);
        tallies[0].answers_sent = 1;
        // The second is due, but a frame is missing and an answer, and then the answer alone.
        rounds.turn(2_500_000, true, &mut tallies);
        assert_eq!((tallies[0].missing(), tallies[0].due(2_500_000)), (2, 0));
        arrives(&mut tallies[0], 1);
        rounds.turn(2_500_000, true, &mut tallies);
        assert_eq!((tallies[0].missing(), tallies[0].due(2_500_000)), (1, 0));
        tallies[0].answers.received.frames += 1;
        rounds.turn(2_600_000, true, &mut tallies);
        assert_eq!((rounds.begun, tallies[0].due(2_600_000)), (2, flows));
        // Nothing of that one comes: after a second nobody waits any more, and there is to be no other.
        tallies[0].take(flows);
        rounds.turn(900_000_000, false, &mut tallies);
        assert!(rounds.is_open());
        rounds.turn(1_002_700_000, false, &mut tallies);
        assert!(!rounds.is_open() && tallies[0].missing() == 0);
        let outcome = rounds.outcome(HERTZ);
        assert_eq!((outcome.begun, outcome.time.unwrap().packets), (2, 1));
    }
}
