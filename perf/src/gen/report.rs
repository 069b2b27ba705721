//! The report of `perf gen`: what was measured, on what, and whether the generator was the limit.

use std::fmt::Write as _;

use serde::Serialize;

use super::outcome::{Outcome, StreamOutcome, rate_text};
use super::rfc2544::Findings;
use crate::report::delay::Quantiles;
use crate::report::table::{Table, column, number};

/// From this share of its own ceiling on, the generator is taken for the limit.
const NEAR: f64 = 0.9;
/// A generator that is late for more than this share is the limit.
const LATE: f64 = 0.01;

#[derive(Debug, Clone, Serialize)]
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
            ceilings: Vec::new(),
            traffic: None,
            findings: Vec::new(),
            generator_is_the_limit: None,
            interrupted: false,
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

pub fn text(report: &GenReport) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = write_text(report, &mut out);
    out
}

fn write_text(report: &GenReport, out: &mut String) -> std::fmt::Result {
    for ceiling in &report.ceilings {
        writeln!(
            out,
            "calibration, frames of size {}: generator and receiver do {} against themselves",
            size_text(ceiling.size),
            rate_text(ceiling.rate)
        )?;
    }
    if let Some(traffic) = &report.traffic {
        traffic_text(traffic, out)?;
    }
    if let Some(why) = &report.generator_is_the_limit {
        writeln!(out, "THE GENERATOR IS THE LIMIT, not the device under test: {why}")?;
    }
    for findings in &report.findings {
        findings_text(findings, out)?;
    }
    Ok(())
}

/// What came of a stream, on a line or in a page.
pub const STREAMS: Table<StreamOutcome> = Table(&[
    column("stream", -16, |stream| stream.name.clone()),
    column("sent", 12, |stream| stream.sent.to_string()),
    column("received", 12, |stream| stream.received.frames.to_string()),
    column("lost", 8, |stream| stream.lost.to_string()),
    column("not taken", 9, |stream| stream.refused.to_string()),
    column("twice", 6, |stream| stream.received.duplicates.to_string()),
    column("reordered", 9, |stream| stream.received.reordered.to_string()),
    column("PSN gaps", 9, |stream| (stream.received.psn_gaps + stream.received.psn_back).to_string()),
    column("p50 us", 8, |stream| number(stream.delay.map(|delay| delay.p50), 2)),
    column("p99 us", 8, |stream| number(stream.delay.map(|delay| delay.p99), 2)),
    column("p99.9 us", 9, |stream| number(stream.delay.map(|delay| delay.p999), 2)),
    column("max us", 9, |stream| number(stream.delay.map(|delay| delay.max), 2)),
]);

fn traffic_text(traffic: &Outcome, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\n{}", STREAMS.head())?;
    for stream in &traffic.streams {
        writeln!(out, "{}", STREAMS.row(stream))?;
        if stream.new_flows > 0 {
            let rate = stream.new_flows as f64 / traffic.seconds;
            writeln!(out, "{:<16} {} new flows, {rate:.0} a second", "", stream.new_flows)?;
        }
    }
    writeln!(
        out,
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
    )
}

fn in_words(delay: Option<Quantiles>) -> String {
    delay.map_or_else(
        || "nothing arrived".into(),
        |Quantiles { p50, p90, p99, p999, max, .. }| {
            format!("p50 {p50:.2} p90 {p90:.2} p99 {p99:.2} p99.9 {p999:.2} max {max:.1} us")
        },
    )
}

fn findings_text(findings: &Findings, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nframes of size {}", size_text(findings.size))?;
    if let Some(throughput) = &findings.throughput {
        writeln!(
            out,
            "  throughput (RFC 2544, 26.1): {} after {} trials{}",
            rate_text(throughput.rate),
            throughput.trials.len(),
            if throughput.generator_is_the_limit { "; THE GENERATOR IS THE LIMIT" } else { "" }
        )?;
    }
    for run in findings.latency.iter().flat_map(|latency| &latency.runs) {
        for (name, delay) in run {
            writeln!(out, "  latency at the throughput (26.2), {name}: {}", in_words(*delay))?;
        }
    }
    for loaded in &findings.loads {
        let rate = rate_text(loaded.rate);
        for stream in &loaded.outcome.streams {
            let (name, lost) = (&stream.name, stream.lost);
            writeln!(out, "  at {rate}, {name}: {}; lost {lost}", in_words(stream.delay))?;
        }
    }
    for trial in findings.frame_loss.iter().flatten() {
        writeln!(
            out,
            "  frame loss (26.3) at {}: {:.4} % (offered {}, late {:.2} %)",
            rate_text(trial.asked),
            trial.loss * 100.0,
            rate_text(trial.offered),
            trial.late * 100.0
        )?;
    }
    if let Some(bursts) = &findings.back_to_back {
        writeln!(out, "  back-to-back (26.4): {:.0} frames on average of {:?}", bursts.mean, bursts.frames)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(sent: u64, refused: u64, late: u64) -> Outcome {
        let stream = super::super::outcome::StreamOutcome {
            name: "one".into(),
            sent,
            refused,
            late,
            received: super::super::ledger::Received { frames: sent, ..Default::default() },
            ..Default::default()
        };
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
