//! The counts of a stream while it runs: sent, late, on its way, arrived, answered; its delays and its series.

use super::answers::AnswerTally;
use super::ledger::{Arrival, Ledger};
use super::outcome::{StreamBin, StreamOutcome};
use super::rig::Demand;
use super::stream::Stream;
use crate::live::pace::Pace;
use crate::report::delay::Delays;

/// The counter of a run: its ticks a second, and where the run began.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    pub hertz: u64,
    pub start: u64,
}

/// Ticks from one end of a bin to the other.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    pub from: u64,
    pub to: u64,
}

/// The counts of a stream while it runs.
#[derive(Debug, Default)]
pub struct Tally {
    pub ledger: Ledger,
    pub answers: AnswerTally,
    /// Frames that a round lets it send; any number without rounds.
    granted: Option<u64>,
    flows: u64,
    pace: Option<Pace>,
    skipped: u64,
    pub blocked: bool,
    pub sent: u64,
    pub sent_bytes: u64,
    pub made: u64,
    pub refused: u64,
    late: u64,
    /// When something of it came last.
    pub arrival: u64,
    /// Frames that have not come and that nobody waits for any more, and when that was decided: older ones were among them.
    written_off: u64,
    written_off_at: u64,
    /// What came of a capture: its frames have no signature.
    pub unmarked: (u64, u64),
    delays: Delays,
    /// The step under way of the series, and the steps before it; nothing where it is not asked for.
    step: Option<Step>,
    series: Vec<StreamBin>,
}

/// A step of a series: what there was at its beginning, and the delays in it.
#[derive(Debug, Default)]
struct Step {
    sent: u64,
    arrived: u64,
    delays: Delays,
}

impl Tally {
    /// The counts of a run that has not begun.
    pub fn new(stream: &Stream, demand: &Demand) -> Self {
        let numbers = stream.sender.numbers();
        Self {
            ledger: Ledger::new(stream.sender.first_flow, numbers),
            answers: AnswerTally::new(stream.answers.as_ref(), numbers.len()),
            flows: numbers.len() as u64,
            granted: demand.rounds.map(|_| 0),
            step: demand.series.map(|_| Step::default()),
            ..Self::default()
        }
    }

    /// The run begins, with so many frames a second.
    pub fn begin(&mut self, rate: Option<f64>, backlog: u64, time: Time) {
        let Time { hertz, start } = time;
        // In thousandths of a frame, so that slow rates are exact.
        let pace = |rate: f64| Pace::new((rate * 1000.0) as u64, hertz.saturating_mul(1000), start, backlog);
        self.pace = rate.map(pace);
        (self.arrival, self.written_off_at) = (start, start);
    }

    pub fn outcome(&self, stream: &Stream, hertz: u64) -> StreamOutcome {
        let mut received = self.ledger.received;
        received.frames += self.unmarked.0;
        received.bytes += self.unmarked.1;
        StreamOutcome {
            name: stream.name.clone(),
            sent: self.sent,
            refused: self.refused,
            late: self.late,
            lost: self.sent.saturating_sub(self.arrived()),
            new_flows: stream.sender.begun,
            received,
            sent_bytes: self.sent_bytes,
            delay: self.delays.quantiles(hertz),
            answers_sent: self.answers.sent,
            answers: self.answers.received,
            series: self.series.clone(),
        }
    }

    pub fn arrived(&self) -> u64 {
        self.ledger.received.distinct() + self.unmarked.0
    }

    /// Frames that were made and are still waited for.
    #[inline]
    fn awaited(&self) -> u64 {
        self.made.saturating_sub(self.arrived() + self.written_off)
    }

    /// What a round still waits for: frames, made or to be made, and answers.
    pub fn missing(&self) -> u64 {
        self.awaited() + self.granted.unwrap_or(0) + self.answers.awaited
    }

    /// Waits no longer for frames that are missing.
    fn write_off_frames(&mut self, now: u64) {
        self.written_off += self.awaited();
        self.written_off_at = now;
    }

    /// The round under way is given up.
    pub fn write_off(&mut self, now: u64) {
        self.granted = Some(0);
        self.write_off_frames(now);
        self.answers.write_off();
    }

    /// Notes a frame's delay. One from before something was written off was among that; it must not stand for another one.
    #[inline]
    pub fn take_delay(&mut self, arrival: Arrival, delay: u64, now: u64) {
        self.arrival = now;
        if delay > now.saturating_sub(self.written_off_at) && arrival == Arrival::First {
            self.written_off = self.written_off.saturating_sub(1);
        }
        self.delays.record(delay);
        if let Some(step) = &mut self.step {
            step.delays.record(delay);
        }
    }

    /// A round begins, in which every flow sends a frame.
    pub fn grant(&mut self) {
        self.granted = Some(self.flows);
    }

    /// How many frames the window lets go. What does not arrive leaves it after a while.
    #[inline]
    pub fn open(&mut self, window: u64, now: u64, patience: u64) -> u64 {
        if window == 0 {
            return u64::MAX;
        }
        let awaited = self.awaited();
        if awaited >= window && now.saturating_sub(self.arrival.max(self.written_off_at)) > patience {
            self.write_off_frames(now);
            return window;
        }
        window.saturating_sub(awaited)
    }

    /// Frames due; what was given up since the last time is somebody's fault.
    #[inline]
    pub fn due(&mut self, now: u64) -> u64 {
        let Some(pace) = &mut self.pace else { return self.granted.unwrap_or(u64::MAX) };
        let due = pace.due(now);
        let given_up = pace.skipped() - self.skipped;
        if given_up > 0 {
            self.skipped = pace.skipped();
            if self.blocked {
                self.refused += given_up;
            } else {
                self.late += given_up;
            }
        }
        due
    }

    /// Ends a step of the series, if there is one.
    pub fn end_step(&mut self, time: Time, stretch: Stretch) {
        let (sent, arrived) = (self.sent, self.arrived());
        let Some(step) = &mut self.step else { return };
        let seconds = (stretch.to - stretch.from).max(1) as f64 / time.hertz as f64;
        self.series.push(StreamBin {
            at: (stretch.to - time.start) as f64 / time.hertz as f64,
            sent: (sent - step.sent) as f64 / seconds,
            received: (arrived - step.arrived) as f64 / seconds,
            delay: step.delays.quantiles(time.hertz),
        });
        (step.sent, step.arrived) = (sent, arrived);
        step.delays.clear();
    }

    #[inline]
    pub fn take(&mut self, made: u64) {
        self.made += made;
        self.granted = self.granted.map(|granted| granted.saturating_sub(made));
        if let Some(pace) = &mut self.pace {
            pace.take(made);
        }
    }
}
