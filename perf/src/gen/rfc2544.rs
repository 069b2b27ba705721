//! The tests of RFC 2544 over a rig: throughput, latency, frame loss, back-to-back frames.
//!
//! Their rates are those of all streams together, which keep their ratio. Deviations from the RFC are told in the
//! report: trials are shorter than its 60 seconds unless the scenario says otherwise, and every frame carries a time
//! stamp, not one frame in the middle of a stream.

use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, rate_text};
use super::rig::{Demand, Rig};
use super::scenario::{Load, Run};
use super::screen::Screen;
use super::search::{self, TrialVerdict};
use super::units::Rate;
use crate::live::ports::Runtime;
use crate::report::delay::Quantiles;
use crate::{Error, Result};

/// A generator that was late for more than this share of the frames did not bring forth the rate.
const LATE: f64 = 0.01;
/// How often the latency and the burst are measured.
const REPEATS: usize = 3;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Trial {
    /// Frames per second asked for.
    pub asked: f64,
    /// Frames per second offered.
    pub offered: f64,
    /// Frames per second received.
    pub received: f64,
    /// The share that did not arrive.
    pub loss: f64,
    /// The share of what was due that the generator was late for.
    pub late: f64,
}

/// What the tests of one frame size found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Findings {
    /// Frame size, frame check sequence included; 0 for each stream's own.
    pub size: u32,
    /// Section 26.1.
    pub throughput: Option<Throughput>,
    /// Section 26.2.
    pub latency: Option<Latency>,
    pub loads: Vec<Loaded>,
    /// Section 26.3.
    pub frame_loss: Option<Vec<Trial>>,
    /// Section 26.4.
    pub back_to_back: Option<BackToBack>,
}

/// RFC 2544 section 26.1.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Throughput {
    /// Frames per second.
    pub rate: f64,
    /// The generator, not the device under test, set the limit.
    pub generator_is_the_limit: bool,
    pub trials: Vec<Trial>,
}

/// RFC 2544 section 26.2.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    /// Frames per second: the throughput.
    pub rate: f64,
    /// Microseconds from making a frame to reading it, of each stream, run by run.
    pub runs: Vec<Vec<(String, Option<Quantiles>)>>,
}

/// A trial at a load, in full.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Loaded {
    /// Frames per second asked for.
    pub rate: f64,
    pub outcome: Outcome,
}

/// RFC 2544 section 26.4.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BackToBack {
    /// Frames in the longest burst without loss, per stream, run by run.
    pub frames: Vec<u64>,
    pub mean: f64,
}

pub struct Rfc2544<'a> {
    pub rig: &'a mut Rig,
    pub runtime: &'a Runtime,
    pub screen: &'a mut Screen,
    pub run: &'a Run,
    /// The share of each stream.
    pub shares: Vec<f64>,
    pub most: f64,
    /// What the generator can do against itself.
    pub ceiling: Option<f64>,
}

impl Rfc2544<'_> {
    fn demand(&self, rate: f64) -> Demand {
        let rates = self.shares.iter().map(|share| Some(rate * share)).collect();
        Demand::new(rates, self.run.trial)
    }

    /// Runs a trial; `Err` when the user ended it.
    fn trial(&mut self, rate: f64) -> Result<(Trial, Outcome)> {
        let demand = self.demand(rate);
        self.screen.begin(&format!("trial at {}", rate_text(rate)));
        let outcome = self.rig.run_through(self.runtime, &demand, self.screen)?;
        let trial = Trial {
            asked: rate,
            offered: outcome.offered_rate(),
            received: outcome.arrived_rate(),
            loss: outcome.loss(),
            late: outcome.lateness(),
        };
        Ok((trial, outcome))
    }

    fn verdict(&self, trial: &Trial) -> TrialVerdict {
        if trial.loss > self.run.loss / 100.0 {
            TrialVerdict::Failed
        } else if trial.late > LATE {
            TrialVerdict::Unfair
        } else {
            TrialVerdict::Passed
        }
    }

    /// Section 26.1: the highest rate at which no more is lost than may be.
    pub fn throughput(&mut self) -> Result<Throughput> {
        let mut trials = Vec::new();
        let step = self.most * self.run.resolution / 100.0;
        let found = search::highest(self.most, step, |rate| {
            let mut verdict = TrialVerdict::Failed;
            for _ in 0..=self.run.retries {
                let (trial, _) = self.trial(rate)?;
                trials.push(trial);
                verdict = self.verdict(&trial);
                if verdict == TrialVerdict::Passed {
                    break;
                }
            }
            Ok::<_, Error>(verdict)
        })?;
        let near = self.ceiling.is_some_and(|ceiling| found.value > ceiling * 0.9);
        Ok(Throughput { rate: found.value, generator_is_the_limit: found.limited || near, trials })
    }

    /// Section 26.2: delays at the throughput.
    pub fn latency(&mut self, rate: f64) -> Result<Latency> {
        let mut runs = Vec::new();
        for _ in 0..REPEATS {
            let (_, outcome) = self.trial(rate)?;
            runs.push(outcome.streams.into_iter().map(|stream| (stream.name, stream.delay)).collect());
        }
        Ok(Latency { rate, runs })
    }

    /// Delays at each load, where the throughput is known to be `rate`.
    pub fn loads(&mut self, rate: f64) -> Result<Vec<Loaded>> {
        let loads = self.run.loads.clone();
        let rates = loads.into_iter().filter_map(|load| match load {
            Load::Share(percent) => Some(rate * percent / 100.0).filter(|rate| *rate > 0.0),
            Load::Rate(Rate::Packets(packets)) => Some(packets),
            Load::Rate(_) => None,
        });
        rates.map(|rate| Ok(Loaded { rate, outcome: self.trial(rate)?.1 })).collect()
    }

    /// Section 26.3: what is lost at each rate from the highest down.
    pub fn frame_loss(&mut self) -> Result<Vec<Trial>> {
        let most = self.most;
        search::loss_curve(|share| self.trial(most * share).map(|row| row.0), |trial| trial.loss == 0.0)
    }

    /// Section 26.4: the longest burst, as fast as frames go, of which nothing is lost.
    pub fn back_to_back(&mut self) -> Result<BackToBack> {
        // Longer than a trial it is no burst.
        let most = (self.most * self.run.trial).max(2.0);
        let mut frames = Vec::new();
        for _ in 0..REPEATS {
            let found = search::highest(most, (most / 1000.0).max(1.0), |length| {
                self.screen.begin(&format!("burst of {length:.0} frames"));
                let mut demand = self.demand(self.most);
                demand.frames = Some(length as u64);
                demand.seconds *= 2.0;
                let outcome = self.rig.run_through(self.runtime, &demand, self.screen)?;
                Ok::<_, Error>(match outcome.lost() + outcome.refused() {
                    0 if outcome.lateness() > LATE => TrialVerdict::Unfair,
                    0 => TrialVerdict::Passed,
                    _ => TrialVerdict::Failed,
                })
            })?;
            frames.push(found.value as u64);
        }
        let mean = frames.iter().sum::<u64>() as f64 / frames.len() as f64;
        Ok(BackToBack { frames, mean })
    }
}
