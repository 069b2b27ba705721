//! The report as one page: tables, and plots as SVG in the page itself. It loads nothing and runs nothing.

use std::fmt::Write as _;

use super::outcome::{Outcome, rate_text};
use super::report::{Report, size_text};
use super::rfc2544::{Findings, Trial};
use crate::live::LiveError;
use crate::live::plot::{self, Panel, Series};

pub(crate) const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}\
th{background:#f3f3f3}td:first-child,th:first-child{text-align:left}.limit{background:#ffe9c7;padding:.6em}\
svg{max-width:100%;height:auto}";

/// The page.
pub fn page(report: &Report) -> Result<String, LiveError> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\">\
         <title>{0}</title><style>{STYLE}</style></head>\n<body><h1>{0}</h1>\n<p>{1}, core {2}, TSC {3:.0} MHz; {4}; \
         perf {5}</p>\n",
        escape(&report.scenario),
        escape(&report.processor),
        report.core,
        report.hertz as f64 / 1e6,
        escape(&report.dpdk),
        report.version
    );
    if report.interrupted {
        page.push_str("<p class=\"limit\">Ended by the user: this is what was done until then.</p>\n");
    }
    if let Some(why) = &report.generator_is_the_limit {
        let why = escape(why);
        let _ = writeln!(
            page,
            "<p class=\"limit\">The generator is the limit, not the device under test: {why}.</p>"
        );
    }
    for ceiling in &report.ceilings {
        let (size, rate) = (size_text(ceiling.size), rate_text(ceiling.rate));
        let _ = writeln!(page, "<p>Calibration, frames of size {size}: {rate} against itself.</p>");
    }
    if let Some(traffic) = &report.traffic {
        traffic_section(traffic, &mut page)?;
    }
    for findings in &report.findings {
        findings_section(findings, &mut page)?;
    }
    if report.findings.len() > 1 {
        by_size(&report.findings, &mut page)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn traffic_section(traffic: &Outcome, page: &mut String) -> Result<(), LiveError> {
    page.push_str("<h2>Traffic</h2>\n");
    let head = [
        "stream",
        "sent",
        "received",
        "lost",
        "not taken",
        "twice",
        "reordered",
        "PSN gaps",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
    ];
    let rows = traffic.streams.iter().map(|stream| {
        let delay = stream.delay.map_or([f64::NAN; 4], |delay| [delay.p50, delay.p99, delay.p999, delay.max]);
        let counts = [
            stream.sent,
            stream.received.frames,
            stream.lost,
            stream.refused,
            stream.received.duplicates,
            stream.received.reordered,
            stream.received.psn_gaps + stream.received.psn_back,
        ];
        let numbers = counts.iter().map(u64::to_string).chain(delay.iter().map(|value| micros(*value)));
        std::iter::once(stream.name.clone()).chain(numbers).collect()
    });
    table(page, &head, rows);
    let line = |name: &str, of: fn(&super::outcome::Bin) -> f64| Series {
        name: name.into(),
        points: traffic.bins.iter().map(|bin| (bin.at, of(bin))).collect(),
    };
    let panel = |title: &str, logarithmic, series| Panel { title: title.into(), series, logarithmic };
    let panels = [
        panel(
            "frames a second, millions",
            false,
            vec![line("sent", |bin| bin.sent / 1e6), line("received", |bin| bin.received / 1e6)],
        ),
        panel(
            "delay, microseconds",
            true,
            vec![line("mean", |bin| bin.delay_mean), line("longest", |bin| bin.delay_max)],
        ),
    ];
    page.push_str(&plot::svg("traffic over time", "seconds", &panels)?);
    Ok(())
}

fn findings_section(findings: &Findings, page: &mut String) -> Result<(), LiveError> {
    let _ = writeln!(page, "<h2>RFC 2544, frames of size {}</h2>", size_text(findings.size));
    if let Some(throughput) = &findings.throughput {
        let limit = if throughput.generator_is_the_limit { " (the generator is the limit)" } else { "" };
        let rate = rate_text(throughput.rate);
        let _ = writeln!(page, "<h3>Throughput, section 26.1: {rate}{limit}</h3>");
        trials(page, &throughput.trials);
    }
    if let Some(latency) = &findings.latency {
        let _ = writeln!(page, "<h3>Latency at {}, section 26.2</h3>", rate_text(latency.rate));
        let rows = latency.runs.iter().enumerate().flat_map(|(run, streams)| {
            streams.iter().map(move |(name, delay)| {
                let delay = delay.map_or([f64::NAN; 5], |d| [d.p50, d.p90, d.p99, d.p999, d.max]);
                let label = format!("{name}, run {}", run + 1);
                std::iter::once(label).chain(delay.iter().map(|value| micros(*value))).collect()
            })
        });
        table(page, &["stream", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us"], rows);
    }
    if !findings.loads.is_empty() {
        page.push_str("<h3>Delay by load</h3>\n");
        let rows = findings.loads.iter().flat_map(|loaded| {
            loaded.outcome.streams.iter().map(move |stream| {
                let delay = stream.delay.map_or([f64::NAN; 5], |d| [d.p50, d.p90, d.p99, d.p999, d.max]);
                let label = format!("{} at {}", stream.name, rate_text(loaded.rate));
                std::iter::once(label).chain(delay.iter().map(|value| micros(*value))).collect()
            })
        });
        table(page, &["stream", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us"], rows);
    }
    if let Some(curve) = &findings.frame_loss {
        page.push_str("<h3>Frame loss rate, section 26.3</h3>\n");
        trials(page, curve);
        let points = curve.iter().rev().map(|trial| (trial.offered / 1e6, trial.loss * 100.0)).collect();
        let series = vec![Series { name: "lost".into(), points }];
        let panel = Panel { title: "frames lost, percent".into(), series, logarithmic: false };
        page.push_str(&plot::svg("frame loss rate", "offered, millions a second", &[panel])?);
    }
    if let Some(bursts) = &findings.back_to_back {
        let _ = writeln!(
            page,
            "<h3>Back-to-back frames, section 26.4</h3><p>{:.0} frames per stream on average of {:?}</p>",
            bursts.mean, bursts.frames
        );
    }
    Ok(())
}

fn by_size(findings: &[Findings], page: &mut String) -> Result<(), LiveError> {
    let points = findings
        .iter()
        .filter_map(|found| Some((f64::from(found.size), found.throughput.as_ref()?.rate / 1e6)))
        .collect();
    let series = vec![Series { name: "throughput".into(), points }];
    let panel = Panel { title: "frames a second, millions".into(), series, logarithmic: false };
    page.push_str("<h2>Throughput by frame size</h2>\n");
    page.push_str(&plot::svg("throughput", "bytes of a frame", &[panel])?);
    Ok(())
}

fn trials(page: &mut String, trials: &[Trial]) {
    let rows = trials.iter().map(|trial| {
        vec![
            rate_text(trial.asked),
            rate_text(trial.offered),
            rate_text(trial.received),
            format!("{:.4}", trial.loss * 100.0),
            format!("{:.2}", trial.late * 100.0),
        ]
    });
    table(page, &["asked for", "offered", "received", "lost %", "generator late %"], rows);
}

/// A table, its cells escaped.
pub(crate) fn table(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let cells = |cells: &mut dyn Iterator<Item = &str>, tag: &str| {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect::<String>()
    };
    let _ = writeln!(page, "<table><tr>{}</tr>", cells(&mut head.iter().copied(), "th"));
    for row in rows {
        let _ = writeln!(page, "<tr>{}</tr>", cells(&mut row.iter().map(String::as_str), "td"));
    }
    page.push_str("</table>\n");
}

/// Microseconds, or a dash for none.
pub(crate) fn micros(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "-".into() }
}

/// A text as HTML has it.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
