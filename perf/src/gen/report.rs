//! The report of `perf gen`: what was measured, on what, and whether the generator was the limit.

use serde::Serialize;

use super::outcome::{Bin, Outcome, StreamOutcome, rate_text};
use super::rfc2544::{BackToBack, Findings, Trial};
use crate::report::delay::Quantiles;
use crate::report::parts::Part;
use crate::report::plot::{Panel, Series};
use crate::report::table::{Table, column, number};

/// From this share of its own ceiling on, the generator is taken for the limit.
const NEAR: f64 = 0.9;
/// A generator that is late for more than this share is the limit.
const LATE: f64 = 0.01;

#[derive(Debug, Clone, Default, Serialize)]
pub struct GenReport {
    pub scenario: String,
    pub version: &'static str,
    pub dpdk: String,
    pub processor: String,
    pub core: usize,
    /// Ticks of the time stamp counter per second.
    pub hertz: u64,
    /// What the generator can do against itself, by frame size (0: the streams' own).
    pub ceilings: Vec<Ceiling>,
    pub traffic: Option<Outcome>,
    /// RFC 2544, by frame size.
    pub findings: Vec<Findings>,
    /// Why plain traffic says nothing of the device under test.
    pub generator_is_the_limit: Option<String>,
    pub interrupted: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ceiling {
    /// Frame size, 0 for the streams' own.
    pub size: u32,
    /// Frames per second.
    pub rate: f64,
}

impl GenReport {
    /// A report with nothing measured yet.
    pub fn new(scenario: &str, core: usize, hertz: u64) -> Self {
        Self {
            scenario: scenario.into(),
            version: env!("CARGO_PKG_VERSION"),
            dpdk: pmd::Eal::dpdk_version(),
            processor: crate::host::tsc::processor(),
            core,
            hertz,
            ..Self::default()
        }
    }

    /// Takes in plain traffic, and says whether the generator was its limit.
    pub fn judge_traffic(&mut self, outcome: Outcome, ceiling: Option<f64>) {
        let arrived = outcome.arrived_rate();
        let late = outcome.lateness();
        self.generator_is_the_limit = if late > LATE {
            Some(format!("it was late for {:.1} % of the frames that were due", late * 100.0))
        } else {
            ceiling.filter(|ceiling| arrived > ceiling * NEAR).map(|ceiling| {
                format!(
                    "{} arrived, and against itself it reaches no more than {}",
                    rate_text(arrived),
                    rate_text(ceiling)
                )
            })
        };
        self.traffic = Some(outcome);
    }
}

pub fn size_text(size: u32) -> String {
    if size == 0 { "own".into() } else { size.to_string() }
}

/// What came of a stream, on a line.
const STREAMS: Table<StreamOutcome> = Table(&[
    column("stream", 0, |stream| stream.name.clone()),
    column("sent", 0, |stream| stream.sent.to_string()),
    column("received", 0, |stream| stream.received.frames.to_string()),
    column("lost", 0, |stream| stream.lost.to_string()),
    column("not taken", 0, |stream| stream.refused.to_string()),
    column("twice", 0, |stream| stream.received.duplicates.to_string()),
    column("reordered", 0, |stream| stream.received.reordered.to_string()),
    column("PSN gaps", 0, |stream| (stream.received.psn_gaps + stream.received.psn_back).to_string()),
    column("p50 us", 0, |stream| number(stream.delay.map(|delay| delay.p50), 2)),
    column("p99 us", 0, |stream| number(stream.delay.map(|delay| delay.p99), 2)),
    column("p99.9 us", 0, |stream| number(stream.delay.map(|delay| delay.p999), 2)),
    column("max us", 0, |stream| number(stream.delay.map(|delay| delay.max), 2)),
]);

impl GenReport {
    /// What the figures are of.
    pub fn about(&self) -> String {
        let Self { processor, core, dpdk, version, .. } = self;
        format!("{processor}, core {core}, TSC {:.0} MHz; {dpdk}; perf {version}", self.hertz as f64 / 1e6)
    }

    /// The report for people.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        if self.interrupted {
            parts.push(Part::Limit("Ended by the user: this is what was done until then.".into()));
        }
        if let Some(why) = &self.generator_is_the_limit {
            let words = format!("THE GENERATOR IS THE LIMIT, not the device under test: {why}");
            parts.push(Part::Limit(words));
        }
        for Ceiling { size, rate } in &self.ceilings {
            parts.push(Part::Words(format!(
                "calibration, frames of size {}: generator and receiver do {} against themselves",
                size_text(*size),
                rate_text(*rate)
            )));
        }
        self.traffic.iter().for_each(|traffic| add_traffic(&mut parts, traffic));
        self.findings.iter().for_each(|findings| add_findings(&mut parts, findings));
        if self.findings.len() > 1 {
            let rate =
                |found: &Findings| Some((f64::from(found.size), found.throughput.as_ref()?.rate / 1e6));
            let series = vec![Series::new("throughput", self.findings.iter().filter_map(rate))];
            let panel = Panel::new("frames a second, millions", false, series);
            parts.push(Part::plot("throughput by frame size", "bytes of a frame", [panel]));
        }
        parts
    }
}

fn add_traffic(parts: &mut Vec<Part>, traffic: &Outcome) {
    parts.push(Part::Heading("traffic".into()));
    parts.push(Part::table(&STREAMS, &traffic.streams));
    for StreamOutcome { name, new_flows, .. } in traffic.streams.iter().filter(|stream| stream.new_flows > 0)
    {
        let rate = *new_flows as f64 / traffic.seconds;
        parts.push(Part::Words(format!("{name}: {new_flows} new flows, {rate:.0} a second")));
    }
    parts.push(Part::Words(format!(
        "{:.2} s: offered {}, received {}, late {}; foreign {}, misplaced {}, stale {}; {} of {} frames looked at have a \
         wrong checksum or ICRC; lost by drivers {}",
        traffic.seconds,
        rate_text(traffic.offered_rate()),
        rate_text(traffic.arrived_rate()),
        traffic.late(),
        traffic.foreign,
        traffic.misplaced,
        traffic.stale,
        traffic.damaged,
        traffic.verified,
        traffic.driver_losses
    )));
    let line =
        |name: &str, of: fn(&Bin) -> f64| Series::new(name, traffic.bins.iter().map(|bin| (bin.at, of(bin))));
    let rates = vec![line("sent", |bin| bin.sent / 1e6), line("received", |bin| bin.received / 1e6)];
    let delays = vec![line("mean", |bin| bin.delay_mean), line("longest", |bin| bin.delay_max)];
    let panels = [
        Panel::new("frames a second, millions", false, rates),
        Panel::new("delay, microseconds", true, delays),
    ];
    parts.push(Part::plot("traffic over time", "seconds", panels));
}

fn add_findings(parts: &mut Vec<Part>, findings: &Findings) {
    parts.push(Part::Heading(format!("RFC 2544, frames of size {}", size_text(findings.size))));
    if let Some(throughput) = &findings.throughput {
        let limit = if throughput.generator_is_the_limit { "; THE GENERATOR IS THE LIMIT" } else { "" };
        parts.push(Part::Words(format!("throughput (26.1): {}{limit}", rate_text(throughput.rate))));
        parts.push(Part::table(&TRIALS, &throughput.trials));
    }
    if let Some(latency) = &findings.latency {
        parts.push(Part::Words(format!("latency at the throughput, {} (26.2)", rate_text(latency.rate))));
        let runs = latency.runs.iter().zip(1..);
        let runs = runs.flat_map(|(run, number)| run.iter().map(move |(name, delay)| (name, number, delay)));
        let rows = runs.map(|(name, number, delay)| (format!("{name}, run {number}"), *delay));
        parts.push(Part::table(&DELAYS, &rows.collect::<Vec<_>>()));
    }
    if !findings.loads.is_empty() {
        parts.push(Part::Words("delay by load".into()));
        let streams = findings.loads.iter().flat_map(|loaded| {
            let at = rate_text(loaded.rate);
            let label =
                move |stream: &StreamOutcome| format!("{} at {at}, {} lost", stream.name, stream.lost);
            loaded.outcome.streams.iter().map(move |stream| (label(stream), stream.delay))
        });
        parts.push(Part::table(&DELAYS, &streams.collect::<Vec<_>>()));
    }
    if let Some(curve) = &findings.frame_loss {
        parts.push(Part::Words("frame loss rate (26.3)".into()));
        parts.push(Part::table(&TRIALS, curve));
        let points = curve.iter().rev().map(|trial| (trial.offered / 1e6, trial.loss * 100.0));
        let panel = Panel::new("frames lost, percent", false, vec![Series::new("lost", points)]);
        parts.push(Part::plot("frame loss rate", "offered, millions a second", [panel]));
    }
    if let Some(bursts) = &findings.back_to_back {
        let BackToBack { frames, mean } = bursts;
        let words = format!("back-to-back (26.4): {mean:.0} frames of a stream on average of {frames:?}");
        parts.push(Part::Words(words));
    }
}

/// A trial of RFC 2544 on a line.
const TRIALS: Table<Trial> = Table(&[
    column("asked for", 0, |trial| rate_text(trial.asked)),
    column("offered", 0, |trial| rate_text(trial.offered)),
    column("received", 0, |trial| rate_text(trial.received)),
    column("lost %", 0, |trial| number(trial.loss * 100.0, 4)),
    column("generator late %", 0, |trial| number(trial.late * 100.0, 2)),
]);

/// Delays of a stream on a line.
const DELAYS: Table<(String, Option<Quantiles>)> = Table(&[
    column("stream", 0, |(label, _)| label.clone()),
    column("p50 us", 0, |(_, delay)| number(delay.map(|delay| delay.p50), 2)),
    column("p90 us", 0, |(_, delay)| number(delay.map(|delay| delay.p90), 2)),
    column("p99 us", 0, |(_, delay)| number(delay.map(|delay| delay.p99), 2)),
    column("p99.9 us", 0, |(_, delay)| number(delay.map(|delay| delay.p999), 2)),
    column("max us", 0, |(_, delay)| number(delay.map(|delay| delay.max), 2)),
]);

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(sent: u64, refused: u64, late: u64) -> Outcome {
        let stream = StreamOutcome { sent, refused, late, ..StreamOutcome::default() };
        Outcome { seconds: 1.0, streams: vec![stream], ..Default::default() }
    }

    #[test]
    fn it_says_when_the_generator_is_the_limit() {
        let judged = |outcome: Outcome, ceiling: f64| {
            let mut report = GenReport::new("x.toml", 0, 1);
            report.judge_traffic(outcome, Some(ceiling));
            report.generator_is_the_limit
        };
        assert!(judged(outcome(1000, 0, 0), 2000.0).is_none());
        assert!(judged(outcome(1000, 500, 0), 2000.0).is_none());
        assert!(judged(outcome(1000, 0, 50), 2000.0).unwrap().contains("late"));
        assert!(judged(outcome(1000, 0, 0), 1050.0).unwrap().contains("against itself"));
    }

    #[test]
    fn what_a_port_did_not_take_is_loss_and_what_nobody_offered_is_not() {
        let outcome = outcome(900, 100, 1000);
        assert!((outcome.loss() - 0.1).abs() < 1e-9);
        assert!((outcome.lateness() - 0.5).abs() < 1e-9);
        assert!((outcome.offered_rate() - 1000.0).abs() < 1e-9);
    }
}
