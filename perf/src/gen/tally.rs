//! The counts of a stream while it runs: sent, late, on its way, arrived, answered; its delays and its series.

use super::ledger::Ledger;
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
#[derive(Debug)]
pub struct Tally {
    pub ledger: Ledger,
    /// Acknowledgements that came back to it.
    pub answers: Ledger,
    pub answers_sent: u64,
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
    /// When something of it came last, and the frames that nobody waits for any more: they leave the window.
    pub arrival: u64,
    written_off: u64,
    answers_written_off: u64,
    /// What came of a capture: its frames have no signature.
    pub unmarked: (u64, u64),
    pub delays: Delays,
    /// The step under way of the series, and the steps before it; nothing where it is not asked for.
    pub step: Option<Step>,
    series: Vec<StreamBin>,
}

/// A step of a series: what there was at its beginning, and the delays in it.
#[derive(Debug, Default)]
pub struct Step {
    sent: u64,
    arrived: u64,
    pub delays: Delays,
}

impl Tally {
    pub fn new(stream: &Stream, rate: Option<f64>, demand: &Demand, backlog: u64, time: Time) -> Self {
        let Time { hertz, start } = time;
        // In thousandths of a frame, so that slow rates are exact.
        let pace =
            rate.map(|rate| Pace::new((rate * 1000.0) as u64, hertz.saturating_mul(1000), start, backlog));
        let ledger = || Ledger::new(stream.sender.first_flow, stream.sender.numbers());
        Self {
            ledger: ledger(),
            answers: ledger(),
            answers_sent: 0,
            flows: stream.sender.numbers().len() as u64,
            granted: demand.rounds.map(|_| 0),
            pace,
            skipped: 0,
            blocked: false,
            sent: 0,
            sent_bytes: 0,
            made: 0,
            refused: 0,
            late: 0,
            arrival: start,
            written_off: 0,
            answers_written_off: 0,
            unmarked: (0, 0),
            delays: Delays::new(),
            step: demand.series.map(|_| Step::default()),
            series: Vec::new(),
        }
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
            answers_sent: self.answers_sent,
            answers: self.answers.received,
            series: self.series.clone(),
        }
    }

    pub fn arrived(&self) -> u64 {
        self.ledger.distinct() + self.unmarked.0
    }

    /// Frames and answers that are still awaited.
    pub fn missing(&self) -> u64 {
        let frames = self.made.saturating_sub(self.arrived() + self.written_off);
        let answers = self.answers.received.frames + self.answers_written_off;
        frames + self.granted.unwrap_or(0) + self.answers_sent.saturating_sub(answers)
    }

    /// Waits no longer for what is missing.
    pub fn write_off(&mut self) {
        self.granted = Some(0);
        self.written_off += self.made.saturating_sub(self.arrived() + self.written_off);
        self.answers_written_off = self.answers_sent - self.answers.received.frames.min(self.answers_sent);
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
        let on_their_way = self.sent.saturating_sub(self.arrived() + self.written_off);
        if on_their_way >= window && now.saturating_sub(self.arrival) > patience {
            self.written_off += on_their_way;
            return window;
        }
        window.saturating_sub(on_their_way)
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
