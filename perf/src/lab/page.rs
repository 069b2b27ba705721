//! The report as one page, in the manner of `perf gen`'s: tables, and plots as SVG in the page itself.

use std::fmt::Write as _;

use super::checks::{Check, Verdict};
use super::rate_or_none;
use super::report::{Report, Summary};
use crate::generator::html::{STYLE, escape, micros, table};
use crate::live::LiveError;
use crate::live::plot::{self, Panel, Series};

/// The page.
pub fn page(report: &Report) -> Result<String, LiveError> {
    let machine = &report.machine;
    // Writing into a String cannot fail; the results are dropped for that reason.
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\">\
         <title>{0}</title><style>{STYLE}</style></head>\n<body><h1>{0}</h1>\n\
         <p>{1}, {2} cores, TSC {3:.0} MHz, {4}; DPDK {5}, {6}; {7}; {8}</p>\n",
        escape(&report.lab),
        escape(&machine.processor),
        machine.cores,
        machine.hertz / 1e6,
        escape(&machine.kernel),
        escape(&machine.dpdk),
        escape(&machine.ovs),
        escape(&machine.vswitch),
        escape(&machine.date)
    );
    checks(&mut page, &report.checks);
    page.push_str("<h2>Throughput, medians over the rounds</h2>\n");
    let rows = report.summary.iter().map(|summary| {
        let (middle, least, most) = summary.throughput;
        vec![
            summary.what.clone(),
            summary.arm.clone(),
            summary.workers.to_string(),
            rate_or_none(middle),
            format!("{} to {}", rate_or_none(least), rate_or_none(most)),
            summary.first_to_this.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            summary.doubtful.unwrap_or_default().to_owned(),
        ]
    });
    table(
        &mut page,
        &["measurement", "arm", "workers", "throughput", "spread", "first arm to it", "doubt"],
        rows,
    );
    delays(&mut page, &report.summary)?;
    scaling(&mut page, &report.summary)?;
    if !report.skipped.is_empty() {
        page.push_str("<h2>Left out</h2>\n");
        let rows = report.skipped.iter().map(|(what, arm, why)| vec![what.clone(), arm.clone(), why.clone()]);
        table(&mut page, &["measurement", "arm", "why"], rows);
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn checks(page: &mut String, checks: &[Check]) {
    let poor = checks.iter().filter(|check| check.verdict != Verdict::Good).count();
    if poor > 0 {
        let _ = writeln!(
            page,
            "<p class=\"limit\">{poor} checks of the machine are poor: the figures are worse for it.</p>"
        );
    }
    let rows = checks.iter().map(|check| {
        let word = if check.verdict == Verdict::Good { "ok" } else { "poor" };
        vec![check.what.clone(), word.into(), check.found.clone()]
    });
    table(page, &["check", "", "found"], rows);
}

fn delays(page: &mut String, summary: &[Summary]) -> Result<(), LiveError> {
    let measured = || summary.iter().filter(|summary| !summary.delays.is_empty());
    if measured().next().is_none() {
        return Ok(());
    }
    page.push_str("<h2>Delay by load</h2>\n");
    let rows = measured().flat_map(|summary| {
        summary.delays.iter().map(|(rate, p50, p999)| {
            vec![summary.what.clone(), summary.arm.clone(), rate_or_none(*rate), micros(*p50), micros(*p999)]
        })
    });
    table(page, &["measurement", "arm", "load", "p50 us", "p99.9 us"], rows);
    let mut seen: Vec<&str> = Vec::new();
    for what in measured().map(|summary| summary.what.as_str()) {
        if seen.contains(&what) {
            continue;
        }
        seen.push(what);
        let lines = |of: fn(&(f64, f64, f64)) -> f64| -> Vec<Series> {
            measured()
                .filter(|summary| summary.what == what)
                .map(|summary| Series {
                    name: summary.arm.clone(),
                    points: summary.delays.iter().map(|delay| (delay.0 / 1e6, of(delay))).collect(),
                })
                .collect()
        };
        let panels = [
            Panel {
                title: "median delay, microseconds".into(),
                series: lines(|delay| delay.1),
                logarithmic: true,
            },
            Panel {
                title: "99.9th percentile, microseconds".into(),
                series: lines(|delay| delay.2),
                logarithmic: true,
            },
        ];
        page.push_str(&plot::svg(what, "frames a second, millions", &panels)?);
    }
    Ok(())
}

fn scaling(page: &mut String, summary: &[Summary]) -> Result<(), LiveError> {
    let mut series: Vec<Series> = Vec::new();
    for one in summary.iter().filter(|one| one.kind == "scaling") {
        let point = (one.workers as f64, one.throughput.0 / 1e6);
        match series.iter_mut().find(|line| line.name == one.arm) {
            Some(line) => line.points.push(point),
            None => series.push(Series { name: one.arm.clone(), points: vec![point] }),
        }
    }
    if series.is_empty() {
        return Ok(());
    }
    page.push_str("<h2>Scaling</h2>\n");
    let panel = Panel { title: "frames a second, millions".into(), series, logarithmic: false };
    page.push_str(&plot::svg("throughput by workers", "workers", &[panel])?);
    Ok(())
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
