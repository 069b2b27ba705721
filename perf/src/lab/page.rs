//! The report of a lab as a page.

use maud::{Markup, html};

use super::checks::{Check, CheckVerdict};
use super::rate_or_none;
use super::report::{LabReport, LabSummary};
use crate::Result;
use crate::report::page;
use crate::report::plot::{Panel, Series};
use crate::report::table::number;

pub fn page(report: &LabReport) -> Result<String> {
    let machine = &report.machine;
    let mhz = machine.hertz / 1e6;
    let about = format!(
        "{}, {} cores, TSC {mhz:.0} MHz, {}; DPDK {}, {}; {}; {}",
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.dpdk,
        machine.ovs,
        machine.vswitch,
        machine.date
    );
    let rows = report.summary.iter().map(|summary| {
        let (middle, least, most) = summary.throughput;
        vec![
            summary.what.clone(),
            summary.forwarder.clone(),
            summary.workers.to_string(),
            rate_or_none(middle),
            format!("{} to {}", rate_or_none(least), rate_or_none(most)),
            number(summary.first_to_this, 2),
            summary.doubtful.unwrap_or_default().to_owned(),
        ]
    });
    let head =
        ["measurement", "forwarder", "workers", "throughput", "spread", "first forwarder to it", "doubt"];
    let skipped = report
        .skipped
        .iter()
        .map(|(what, forwarder, why)| vec![what.clone(), forwarder.clone(), why.clone()]);
    let body = html! {
        (checks(&report.checks))
        h2 { "Throughput, medians over the rounds" }
        (page::table(&head, rows))
        (delays(&report.summary)?)
        (scaling(&report.summary)?)
        @if !report.skipped.is_empty() {
            h2 { "Left out" }
            (page::table(&["measurement", "forwarder", "why"], skipped))
        }
    };
    Ok(page::document(&report.lab, &about, &body))
}

fn checks(checks: &[Check]) -> Markup {
    let poor = checks.iter().filter(|check| check.verdict != CheckVerdict::Good).count();
    let rows = checks.iter().map(|check| {
        let word = if check.verdict == CheckVerdict::Good { "ok" } else { "poor" };
        vec![check.what.clone(), word.into(), check.found.clone()]
    });
    html! {
        @if poor > 0 {
            (page::limit(&format!("{poor} checks of the machine are poor: the figures are worse for it.")))
        }
        (page::table(&["check", "", "found"], rows))
    }
}

fn delays(summary: &[LabSummary]) -> Result<Markup> {
    let measured = || summary.iter().filter(|summary| !summary.delays.is_empty());
    let rows = measured().flat_map(|summary| {
        summary.delays.iter().map(|(rate, p50, p999)| {
            let figures = [rate_or_none(*rate), number(*p50, 2), number(*p999, 2)];
            [summary.what.clone(), summary.forwarder.clone()].into_iter().chain(figures).collect()
        })
    });
    let mut kinds: Vec<&str> = Vec::new();
    let mut plots = Vec::new();
    for what in measured().map(|summary| summary.what.as_str()) {
        if kinds.contains(&what) {
            continue;
        }
        kinds.push(what);
        let panel = |title: &str, of: fn(&(f64, f64, f64)) -> f64| {
            let points = |summary: &LabSummary| -> Vec<_> {
                summary.delays.iter().map(|delay| (delay.0 / 1e6, of(delay))).collect()
            };
            let lines = measured().filter(|summary| summary.what == what);
            Panel::new(title, true, lines.map(|one| Series::new(&one.forwarder, points(one))).collect())
        };
        let panels = [
            panel("median delay, microseconds", |delay| delay.1),
            panel("99.9th percentile, microseconds", |delay| delay.2),
        ];
        plots.push(page::svg(what, "frames a second, millions", &panels)?);
    }
    Ok(html! {
        @if !plots.is_empty() {
            h2 { "Delay by load" }
            (page::table(&["measurement", "forwarder", "load", "p50 us", "p99.9 us"], rows))
            @for plot in plots { (plot) }
        }
    })
}

fn scaling(summary: &[LabSummary]) -> Result<Markup> {
    let mut series: Vec<Series> = Vec::new();
    for one in summary.iter().filter(|one| one.kind == "scaling") {
        let point = (one.workers as f64, one.throughput.0 / 1e6);
        match series.iter_mut().find(|line| line.name == one.forwarder) {
            Some(line) => line.points.push(point),
            None => series.push(Series::new(&one.forwarder, [point])),
        }
    }
    if series.is_empty() {
        return Ok(html! {});
    }
    let panel = Panel::new("frames a second, millions", false, series);
    let plot = page::svg("throughput by workers", "workers", &[panel])?;
    Ok(html! { h2 { "Scaling" } (plot) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_on_the_page_and_nothing_is_loaded() {
        let page = match page(&super::super::report::tests::report()) {
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
