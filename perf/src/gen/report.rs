//! The report of `perf gen`: what was measured, on what, and whether the generator was the limit.

use std::fmt::Write as _;

use serde::Serialize;

use super::outcome::{Outcome, rate_text};
use super::rfc2544::Findings;

/// From this share of its own ceiling on, the generator is taken for the limit.
const NEAR: f64 = 0.9;
/// A generator that is late for more than this share is the limit.
const LATE: f64 = 0.01;

#[derive(Debug, Clone, Serialize)]
pub struct Report {
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

impl Report {
    /// A report with nothing measured yet.
    pub fn new(scenario: &str, core: usize, hertz: u64) -> Self {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            scenario: scenario.into(),
            version: env!("CARGO_PKG_VERSION"),
            dpdk: pmd::Eal::dpdk_version(),
            processor: model.map_or("unknown", |model| model.1).to_owned(),
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

pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let _ = write_text(report, &mut out);
    out
}

fn write_text(report: &Report, out: &mut String) -> std::fmt::Result {
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

fn traffic_text(traffic: &Outcome, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<16} {:>12} {:>12} {:>8} {:>9} {:>6} {:>9} {:>9} {:>8} {:>8} {:>8} {:>9}",
        "stream",
        "sent",
        "received",
        "lost",
        "not taken",
        "dup",
        "reordered",
        "PSN gaps",
        "p50 us",
        "p99 us",
        "p99.9",
        "max"
    )?;
    for stream in &traffic.streams {
        write!(
            out,
            "{:<16} {:>12} {:>12} {:>8} {:>9} {:>6} {:>9} {:>9}",
            stream.name,
            stream.sent,
            stream.received.frames,
            stream.lost,
            stream.refused,
            stream.received.duplicates,
            stream.received.reordered,
            stream.received.psn_gaps + stream.received.psn_back
        )?;
        match &stream.delay {
            Some(delay) => writeln!(
                out,
                " {:>8.1} {:>8.1} {:>8.1} {:>9.1}",
                delay.p50, delay.p99, delay.p999, delay.max
            )?,
            None => writeln!(out, " {:>8} {:>8} {:>8} {:>9}", "-", "-", "-", "-")?,
        }
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
            match delay {
                Some(delay) => writeln!(
                    out,
                    "  latency at the throughput (26.2), {name}: p50 {:.2} p90 {:.2} p99 {:.2} p99.9 {:.2} max {:.1} us",
                    delay.p50, delay.p90, delay.p99, delay.p999, delay.max
                )?,
                None => writeln!(out, "  latency at the throughput (26.2), {name}: nothing arrived")?,
            }
        }
    }
    for loaded in &findings.loads {
        let rate = rate_text(loaded.rate);
        for stream in &loaded.outcome.streams {
            match &stream.delay {
                Some(delay) => writeln!(
                    out,
                    "  at {rate}, {}: p50 {:.2} p90 {:.2} p99 {:.2} p99.9 {:.2} max {:.1} us; lost {}",
                    stream.name, delay.p50, delay.p90, delay.p99, delay.p999, delay.max, stream.lost
                )?,
                None => writeln!(out, "  at {rate}, {}: nothing arrived", stream.name)?,
            }
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
            lost: 0,
            new_flows: 0,
            received: super::super::ledger::Received { frames: sent, ..Default::default() },
            sent_bytes: 0,
            delay: None,
            series: Vec::new(),
        };
        Outcome {
            seconds: 1.0,
            interrupted: false,
            streams: vec![stream],
            foreign: 0,
            misplaced: 0,
            stale: 0,
            verified: 0,
            damaged: 0,
            driver_losses: 0,
            bins: Vec::new(),
        }
    }

    #[test]
    fn it_says_when_the_generator_is_the_limit() {
        let judged = |outcome: Outcome, ceiling: f64| {
            let mut report = Report::new("x.toml", 0, 1);
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
