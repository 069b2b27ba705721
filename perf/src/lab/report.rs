//! What a lab found: rows as they were taken, medians over the rounds, and what the forwarders are to each other.

use std::path::Path;

use serde::Serialize;

use super::checks::{Check, CheckVerdict};
use super::generator;
use super::{Measurement, MeasurementKind, rate_or_none};
use crate::compare::peer::Contender;
use crate::compare::record::Machine;
use crate::generator::outcome::StreamOutcome;
use crate::generator::rfc2544::Findings;
use crate::report::delay::Quantiles;
use crate::report::parts::Part;
use crate::report::plot::{Panel, Series};
use crate::report::stats::{Spread, median};
use crate::report::table::{Table, column, number};

#[derive(Debug, Clone, Default, Serialize)]
pub struct LabReport {
    pub lab: String,
    pub machine: Machine,
    pub checks: Vec<Check>,
    pub rows: Vec<LabRow>,
    /// Medians over the rounds.
    pub summary: Vec<LabSummary>,
    /// What could not be taken: measurement, forwarder, reason.
    pub skipped: Vec<(String, String, String)>,
}

/// A forwarder's turn at a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct LabRow {
    pub what: String,
    pub kind: &'static str,
    pub workers: usize,
    pub forwarder: String,
    pub round: usize,
    /// Frames per second without more loss than is allowed (RFC 2544 section 26.1), of all streams.
    pub throughput: f64,
    pub generator_is_the_limit: bool,
    /// The forwarder was in its steady state before the first trial; otherwise `warm-up` is too short for it.
    pub settled: bool,
    pub loads: Vec<LoadRow>,
}

/// What became of a stream at a load.
#[derive(Debug, Clone, Serialize)]
pub struct LoadRow {
    /// Frames per second of all streams together.
    pub rate: f64,
    /// Bytes that a frame has more than when it was sent.
    pub growth: Option<f64>,
    #[serde(flatten)]
    pub stream: StreamOutcome,
}

/// A forwarder at a measurement, over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabSummary {
    pub what: String,
    pub kind: &'static str,
    pub workers: usize,
    pub forwarder: String,
    pub rounds: usize,
    /// Median, least and highest throughput, in frames per second.
    pub throughput: (f64, f64, f64),
    /// The first forwarder's throughput as a multiple of this one's: median over the rounds.
    pub first_to_this: Option<f64>,
    /// Throughput per worker beside that with one; only of scaling.
    pub efficiency: Option<f64>,
    /// In some round the generator was the limit, or the forwarder was not settled.
    pub doubtful: Option<&'static str>,
    /// Rate in frames per second, medians of p50 and p99.9 in microseconds over rounds and streams; by load.
    pub delays: Vec<(f64, f64, f64)>,
}

impl LabRow {
    pub fn new(
        measurement: &Measurement,
        forwarder: Contender,
        round: usize,
        found: &Findings,
        settled: bool,
    ) -> Self {
        let loads = found.loads.iter().flat_map(|loaded| {
            let row = move |stream: &StreamOutcome| LoadRow {
                rate: loaded.rate,
                growth: generator::growth(stream),
                stream: stream.clone(),
            };
            loaded.outcome.streams.iter().map(row)
        });
        let throughput = found.throughput.as_ref();
        Self {
            what: measurement.label(),
            kind: match measurement.kind {
                MeasurementKind::Rate => "rate",
                MeasurementKind::Scaling(_) => "scaling",
                MeasurementKind::SetUp => "setup",
            },
            workers: measurement.workers(),
            forwarder: forwarder.to_string(),
            round,
            throughput: throughput.map_or(0.0, |throughput| throughput.rate),
            generator_is_the_limit: throughput.is_some_and(|throughput| throughput.generator_is_the_limit),
            settled,
            loads: loads.collect(),
        }
    }
}

impl LabReport {
    /// A report with nothing measured yet.
    pub fn new(lab: &str, vswitch: &Path, checks: Vec<Check>) -> Self {
        Self { lab: lab.into(), machine: Machine::here(Some(vswitch)), checks, ..Self::default() }
    }

    /// Notes what could not be taken.
    pub fn skip(&mut self, measurement: &Measurement, forwarder: Contender, reason: &str) {
        self.skipped.push((measurement.label(), forwarder.to_string(), reason.into()));
    }

    pub fn sum_up(&mut self) {
        let mut keys: Vec<(&str, &str)> = Vec::new();
        for row in &self.rows {
            if !keys.contains(&(&row.what, &row.forwarder)) {
                keys.push((&row.what, &row.forwarder));
            }
        }
        self.summary = keys.iter().filter_map(|(what, forwarder)| self.summary_of(what, forwarder)).collect();
        let alone: Vec<(String, f64)> = self
            .summary
            .iter()
            .filter(|summary| summary.kind == "scaling" && summary.workers == 1)
            .map(|summary| (summary.forwarder.clone(), summary.throughput.0))
            .collect();
        for summary in self.summary.iter_mut().filter(|summary| summary.kind == "scaling") {
            let one =
                alone.iter().find(|(forwarder, _)| *forwarder == summary.forwarder).map(|(_, rate)| *rate);
            summary.efficiency = one
                .filter(|rate| *rate > 0.0)
                .map(|rate| summary.throughput.0 / rate / summary.workers as f64);
        }
    }

    fn summary_of(&self, what: &str, forwarder: &str) -> Option<LabSummary> {
        let of = |forwarder: &str| -> Vec<&LabRow> {
            self.rows.iter().filter(|row| row.what == what && row.forwarder == forwarder).collect()
        };
        let own = of(forwarder);
        let first = own.first()?;
        let rates = Spread::of(&own.iter().map(|row| row.throughput).collect::<Vec<_>>())?;
        // The first forwarder of the file; in later rounds others begin.
        let leader = self.rows.iter().find(|row| row.what == what && row.round == 0)?;
        let ratios: Vec<f64> = of(&leader.forwarder)
            .iter()
            .filter_map(|ours| {
                let theirs = own.iter().find(|row| row.round == ours.round)?;
                Some(ours.throughput / theirs.throughput).filter(|ratio| ratio.is_finite())
            })
            .collect();
        let mut loads: Vec<f64> = own.iter().flat_map(|row| &row.loads).map(|load| load.rate).collect();
        loads.sort_by(f64::total_cmp);
        // Rates of the first round are shares of a throughput, those of the others the same, rounded.
        loads.dedup_by(|one, other| (*one - *other).abs() < 1.0);
        let delay = |rate: f64, value: fn(&Quantiles) -> f64| {
            let near = own.iter().flat_map(|row| &row.loads).filter(|load| (load.rate - rate).abs() < 1.0);
            median(&near.filter_map(|load| load.stream.delay.as_ref().map(value)).collect::<Vec<_>>())
        };
        let delays = loads.into_iter().filter_map(|rate| {
            Some((rate, delay(rate, |delay| delay.p50)?, delay(rate, |delay| delay.p999)?))
        });
        Some(LabSummary {
            what: what.into(),
            kind: first.kind,
            workers: first.workers,
            forwarder: forwarder.into(),
            rounds: own.len(),
            throughput: (rates.median, rates.min, rates.max),
            first_to_this: if leader.forwarder == forwarder { None } else { median(&ratios) },
            efficiency: None,
            doubtful: if own.iter().any(|row| row.generator_is_the_limit) {
                Some("the generator is the limit")
            } else if own.iter().any(|row| !row.settled) {
                Some("not settled: raise warm-up")
            } else {
                None
            },
            delays: delays.collect(),
        })
    }

    /// What the figures are of.
    pub fn about(&self) -> String {
        let Machine { processor, cores, hertz, kernel, dpdk, ovs, vswitch, date } = &self.machine;
        let mhz = hertz / 1e6;
        format!(
            "{processor}, {cores} cores, TSC {mhz:.0} MHz, {kernel}; DPDK {dpdk}, {ovs}; {vswitch}; {date}"
        )
    }

    /// The report for people, without the checks, which are told before anything is measured.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = vec![
            Part::Heading("Throughput, medians over the rounds".into()),
            Part::table(&SUMMARY, &self.summary),
        ];
        self.add_delays(&mut parts);
        self.add_scaling(&mut parts);
        if !self.skipped.is_empty() {
            parts.push(Part::Heading("Left out".into()));
            let rows = self.skipped.iter().cloned().map(|(what, forwarder, why)| vec![what, forwarder, why]);
            parts.push(Part::Rows { titles: vec!["measurement", "forwarder", "why"], rows: rows.collect() });
        }
        let poor = self.checks.iter().filter(|check| check.verdict == CheckVerdict::Poor).count();
        if poor > 0 {
            let words = format!("{poor} checks of the machine are poor: the figures are worse for it");
            parts.push(Part::Limit(words));
        }
        parts
    }

    /// The checks of the machine, for a page.
    pub fn checks(&self) -> Part {
        let row = |check: &Check| vec![check.what.clone(), check.word().into(), check.found.clone()];
        let rows = self.checks.iter().map(row).collect();
        Part::Rows { titles: vec!["check", "", "found"], rows }
    }

    fn add_delays(&self, parts: &mut Vec<Part>) {
        let measured = || self.summary.iter().filter(|summary| !summary.delays.is_empty());
        let rows = measured().flat_map(|summary| {
            summary.delays.iter().map(|(rate, p50, p999)| {
                let figures = [rate_or_none(*rate), number(*p50, 2), number(*p999, 2)];
                [summary.what.clone(), summary.forwarder.clone()].into_iter().chain(figures).collect()
            })
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if rows.is_empty() {
            return;
        }
        parts.push(Part::Heading("Delay by load".into()));
        let titles = vec!["measurement", "forwarder", "load", "p50 us", "p99.9 us"];
        parts.push(Part::Rows { titles, rows });
        let mut kinds: Vec<&str> = measured().map(|summary| summary.what.as_str()).collect();
        kinds.dedup();
        for what in kinds {
            let panel = |title: &str, of: fn(&(f64, f64, f64)) -> f64| {
                let lines = measured().filter(|summary| summary.what == what);
                let line = |summary: &LabSummary| {
                    let points = summary.delays.iter().map(|delay| (delay.0 / 1e6, of(delay)));
                    Series::new(&summary.forwarder, points)
                };
                Panel::new(title, true, lines.map(line).collect())
            };
            let panels = [
                panel("median delay, microseconds", |delay| delay.1),
                panel("99.9th percentile, microseconds", |delay| delay.2),
            ];
            parts.push(Part::plot(what, "frames a second, millions", panels));
        }
    }

    fn add_scaling(&self, parts: &mut Vec<Part>) {
        let mut series: Vec<Series> = Vec::new();
        for one in self.summary.iter().filter(|one| one.kind == "scaling") {
            let point = (one.workers as f64, one.throughput.0 / 1e6);
            match series.iter_mut().find(|line| line.name == one.forwarder) {
                Some(line) => line.points.push(point),
                None => series.push(Series::new(&one.forwarder, [point])),
            }
        }
        if !series.is_empty() {
            let panel = Panel::new("frames a second, millions", false, series);
            parts.push(Part::plot("Scaling: throughput by workers", "workers", [panel]));
        }
    }
}

/// The medians of a forwarder at a measurement on a line.
const SUMMARY: Table<LabSummary> = Table(&[
    column("measurement", 0, |summary| summary.what.clone()),
    column("forwarder", 0, |summary| summary.forwarder.clone()),
    column("workers", 0, |summary| summary.workers.to_string()),
    column("throughput", 0, |summary| rate_or_none(summary.throughput.0)),
    column("spread", 0, |LabSummary { throughput: (_, least, most), .. }| {
        format!("{} to {}", rate_or_none(*least), rate_or_none(*most))
    }),
    column("first forwarder to it", 0, |summary| number(summary.first_to_this, 2)),
    column("scaling", 0, |summary| {
        summary.efficiency.map_or_else(String::new, |share| format!("{:.0} % a worker", share * 100.0))
    }),
    column("doubt", 0, |summary| summary.doubtful.unwrap_or_default().to_owned()),
]);

/// A turn on a line.
pub const TABLE: Table<LabRow> = Table(&[
    column("measurement", -46, |row| row.what.clone()),
    column("forwarder", -16, |row| row.forwarder.clone()),
    column("round", 5, |row| row.round.to_string()),
    column("throughput", 12, |row| rate_or_none(row.throughput)),
    column(" notes", 0, |row| format!(" {}", notes(row))),
]);

fn notes(row: &LabRow) -> String {
    let mut notes = Vec::new();
    if row.generator_is_the_limit {
        notes.push("the generator is the limit".to_owned());
    }
    if !row.settled {
        notes.push("not settled: raise warm-up".to_owned());
    }
    let lost: u64 = row.loads.iter().map(|load| load.stream.lost).sum();
    if lost > 0 {
        let sent: u64 = row.loads.iter().map(|load| load.stream.sent).sum();
        notes.push(format!("lost {lost} of {sent} at the loads"));
    }
    notes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::parts;

    fn row(what: &str, forwarder: &str, round: usize, throughput: f64, workers: usize) -> LabRow {
        let delay =
            |p50: f64| Quantiles { packets: 9, p50, p90: p50, p99: p50, p999: 10.0 * p50, max: 20.0 * p50 };
        let load = |rate: f64, p50| {
            let stream = StreamOutcome { sent: 10, delay: Some(delay(p50)), ..StreamOutcome::default() };
            LoadRow { rate, growth: Some(50.0), stream }
        };
        LabRow {
            what: what.into(),
            kind: if what == "scaled" || what == "alone" { "scaling" } else { "rate" },
            workers,
            forwarder: forwarder.into(),
            round,
            throughput,
            generator_is_the_limit: false,
            settled: true,
            loads: vec![load(1e5 + 0.4 * (round % 2) as f64, 2.0 + round as f64), load(5e5, 5.0)],
        }
    }

    fn report() -> LabReport {
        let checks = vec![Check {
            what: "isolated cores".into(),
            verdict: CheckVerdict::Poor,
            found: "[1] <are> not".into(),
        }];
        let skipped = vec![("encap".into(), "vswitch-offload".into(), "no rules".into())];
        let mut report = LabReport { checks, skipped, ..LabReport::default() };
        report.rows = vec![
            row("encap", "vswitch", 0, 4e6, 1),
            row("encap", "testpmd", 0, 8e6, 1),
            row("encap", "testpmd", 1, 6e6, 1),
            row("encap", "vswitch", 1, 6e6, 1),
            row("encap", "vswitch", 2, 5e6, 1),
            row("encap", "testpmd", 2, 20e6, 1),
            row("alone", "vswitch", 0, 4e6, 1),
            row("scaled", "vswitch", 0, 6e6, 2),
        ];
        report.sum_up();
        report
    }

    #[test]
    fn rounds_come_down_to_medians_and_ratios_within_a_round() {
        let report = report();
        let of = |what: &str, forwarder: &str| {
            report
                .summary
                .iter()
                .find(|summary| summary.what == what && summary.forwarder == forwarder)
                .unwrap()
        };
        let (ours, testpmd) = (of("encap", "vswitch"), of("encap", "testpmd"));
        assert_eq!((ours.throughput, ours.first_to_this), ((5e6, 4e6, 6e6), None));
        // 0.5, 1.0 and 0.25.
        assert_eq!((testpmd.throughput.0, testpmd.first_to_this), (8e6, Some(0.5)));
        assert_eq!(ours.delays.len(), 2);
        assert!((ours.delays[0].1 - 3.0).abs() < 1e-9 && (ours.delays[1].2 - 50.0).abs() < 1e-9, "{ours:?}");
        assert_eq!(of("scaled", "vswitch").efficiency, Some(0.75));
        let text = parts::text(&report.parts());
        assert!(
            text.contains("75 % a worker") && text.contains("1 checks of the machine are poor"),
            "{text}"
        );
    }

    #[test]
    fn doubts_are_told() {
        let mut report = report();
        report.rows[0].generator_is_the_limit = true;
        report.rows[1].settled = false;
        report.sum_up();
        assert_eq!(report.summary[0].doubtful, Some("the generator is the limit"));
        assert!(report.summary[1].doubtful.unwrap().contains("warm-up"));
        assert!(TABLE.row(&report.rows[0]).contains("generator is the limit"));
    }

    #[test]
    fn everything_is_on_the_page_and_nothing_is_loaded() {
        let report = report();
        let page =
            match parts::page("lab", &report.about(), &[vec![report.checks()], report.parts()].concat()) {
                Ok(page) => page,
                Err(error) => {
                    eprintln!("no font on this machine: {error}");
                    return;
                }
            };
        for word in [
            "vswitch-offload",
            "no rules",
            "4.000 Mpps to 6.000 Mpps",
            "[1] &lt;are&gt; not",
            "Scaling",
            "0.50",
        ] {
            assert!(page.contains(word), "{word}");
        }
        // Delays of three measurements, and the workers.
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(!page.contains("<script") && !page.contains("https:"));
    }
}
