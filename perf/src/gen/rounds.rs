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
                tallies.iter_mut().for_each(|tally| tally.write_off(now));
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
    use super::super::ledger::Arrival;
    use super::super::rig::Demand;
    use super::super::scenario::Generator;
    use super::super::stream::Stream;
    use super::super::tally::Time;
    use super::*;
    use crate::group::traffic;

    const HERTZ: u64 = 1_000_000_000;

    /// The counts of the group's rounds, which begin at tick 0, and how many flows there are.
    fn tally() -> (Tally, u64) {
        let plan = &traffic::streams(1, 32)[0];
        let stream = Stream::new(plan, 0, &Generator::default()).unwrap();
        let demand = Demand { rounds: Some(1000.0), ..Demand::default() };
        let mut tally = Tally::new(&stream, &demand);
        tally.begin(None, 1, Time { hertz: HERTZ, start: 0 });
        (tally, plan.flows.into())
    }

    /// So many frames come that were made at a tick.
    fn arrive(tally: &mut Tally, frames: u64, made: u64, now: u64) {
        for _ in 0..frames {
            tally.ledger.received.frames += 1;
            tally.take_delay(Arrival::First, now - made, now);
        }
    }

    #[test]
    fn a_round_begins_when_it_is_due_and_all_of_the_last_has_come() {
        let (tally, flows) = tally();
        let mut tallies = [tally];
        let mut rounds = Rounds::new(1000.0, &Clock::from_hz(HERTZ), 0);
        // A thousand a second: the first is due after a millisecond, and lets every flow send a frame.
        for (now, due) in [(0, 0), (999_999, 0), (1_000_000, flows)] {
            rounds.turn(now, true, &mut tallies);
            assert_eq!((rounds.is_open(), tallies[0].due(now)), (due > 0, due), "at {now}");
        }
        tallies[0].take(flows);
        arrive(&mut tallies[0], flows - 1, 1_000_000, 1_500_000);
        tallies[0].answers.send(0, 7);
        // The second is due, but a frame is missing and an answer, and then the answer alone.
        rounds.turn(2_500_000, true, &mut tallies);
        assert_eq!((tallies[0].missing(), tallies[0].due(2_500_000)), (2, 0));
        arrive(&mut tallies[0], 1, 1_000_000, 2_500_000);
        rounds.turn(2_500_000, true, &mut tallies);
        assert_eq!((tallies[0].missing(), tallies[0].due(2_500_000)), (1, 0));
        tallies[0].answers.take(0, 7, 62);
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

    #[test]
    fn a_frame_that_comes_after_its_round_does_not_stand_for_one_that_is_missing() {
        let (tally, flows) = tally();
        let mut tallies = [tally];
        let mut rounds = Rounds::new(1000.0, &Clock::from_hz(HERTZ), 0);
        rounds.turn(1_000_000, true, &mut tallies);
        tallies[0].take(flows);
        arrive(&mut tallies[0], flows - 2, 1_000_000, 1_500_000);
        // Two frames are late: that round is given up, and the next one begins.
        let second = 1_002_000_000;
        rounds.turn(second, true, &mut tallies);
        assert_eq!((rounds.begun, tallies[0].due(second)), (2, flows));
        tallies[0].take(flows);
        // The late ones come, and all of the second round but one.
        arrive(&mut tallies[0], 2, 1_000_000, second + 1000);
        arrive(&mut tallies[0], flows - 1, second, second + 2000);
        rounds.turn(second + 2_000_000, true, &mut tallies);
        assert_eq!((rounds.begun, tallies[0].missing()), (2, 1), "one is missing still");
        arrive(&mut tallies[0], 1, second + 1, second + 3_000_000);
        rounds.turn(second + 3_000_000, true, &mut tallies);
        assert_eq!((rounds.begun, tallies[0].missing()), (3, flows));
    }

    #[test]
    fn frames_that_come_after_the_window_opened_do_not_open_it_further() {
        let (mut tally, _) = tally();
        let patience = 1_000_000;
        tally.take(64);
        assert_eq!((tally.open(64, 10, patience), tally.open(96, 10, patience)), (0, 32));
        // Nothing comes for long: all are written off, and as many may follow.
        let later = 2_000_000;
        assert_eq!(tally.open(64, later, patience), 64);
        tally.take(64);
        assert_eq!(tally.open(64, later, patience), 0);
        // They come all the same. The others are on their way still.
        arrive(&mut tally, 64, 10, later + 1000);
        assert_eq!(tally.open(64, later + 1000, patience), 0);
        arrive(&mut tally, 64, later, later + 2000);
        assert_eq!(tally.open(64, later + 2000, patience), 64);
    }
}
