//! The report of `perf gen` as a page.

use maud::{Markup, html};

use super::outcome::{Bin, Outcome, rate_text};
use super::report::{GenReport, STREAMS, size_text};
use super::rfc2544::{Findings, Trial};
use crate::report::delay::Quantiles;
use crate::report::page;
use crate::report::plot::{Panel, Series};
use crate::report::table::number;
use crate::{Error, Result};

pub fn page(report: &GenReport) -> Result<String> {
    let mhz = report.hertz as f64 / 1e6;
    let about = format!(
        "{}, core {}, TSC {mhz:.0} MHz; {}; perf {}",
        report.processor, report.core, report.dpdk, report.version
    );
    let traffic = report.traffic.as_ref().map(traffic).transpose()?;
    let findings = report.findings.iter().map(findings).collect::<Result<Vec<_>, _>>()?;
    let by_size = if findings.len() > 1 { Some(by_size(&report.findings)?) } else { None };
    let body = html! {
        @if report.interrupted { (page::limit("Ended by the user: this is what was done until then.")) }
        @if let Some(why) = &report.generator_is_the_limit {
            (page::limit(&format!("The generator is the limit, not the device under test: {why}.")))
        }
        @for ceiling in &report.ceilings {
            p { "Calibration, frames of size " (size_text(ceiling.size)) ": " (rate_text(ceiling.rate)) " against itself." }
        }
        @if let Some(traffic) = traffic { (traffic) }
        @for findings in findings { (findings) }
        @if let Some(by_size) = by_size { (by_size) }
    };
    Ok(page::document(&report.scenario, &about, &body))
}

fn traffic(traffic: &Outcome) -> Result<Markup> {
    let rows = traffic.streams.iter().map(|stream| STREAMS.cells(stream));
    let line =
        |name: &str, of: fn(&Bin) -> f64| Series::new(name, traffic.bins.iter().map(|bin| (bin.at, of(bin))));
    let panels = [
        Panel::new(
            "frames a second, millions",
            false,
            vec![line("sent", |bin| bin.sent / 1e6), line("received", |bin| bin.received / 1e6)],
        ),
        Panel::new(
            "delay, microseconds",
            true,
            vec![line("mean", |bin| bin.delay_mean), line("longest", |bin| bin.delay_max)],
        ),
    ];
    let plot = page::svg("traffic over time", "seconds", &panels)?;
    Ok(html! { h2 { "Traffic" } (page::table(&STREAMS.titles(), rows)) (plot) })
}

fn findings(findings: &Findings) -> Result<Markup> {
    let curve = findings.frame_loss.as_ref().map(|curve| {
        let points = curve.iter().rev().map(|trial| (trial.offered / 1e6, trial.loss * 100.0));
        let series = vec![Series::new("lost", points)];
        let panels = [Panel::new("frames lost, percent", false, series)];
        Ok::<_, Error>((trials(curve), page::svg("frame loss rate", "offered, millions a second", &panels)?))
    });
    let curve = curve.transpose()?;
    Ok(html! {
        h2 { "RFC 2544, frames of size " (size_text(findings.size)) }
        @if let Some(throughput) = &findings.throughput {
            h3 {
                "Throughput, section 26.1: " (rate_text(throughput.rate))
                @if throughput.generator_is_the_limit { " (the generator is the limit)" }
            }
            (trials(&throughput.trials))
        }
        @if let Some(latency) = &findings.latency {
            h3 { "Latency at " (rate_text(latency.rate)) ", section 26.2" }
            (delays(latency.runs.iter().enumerate().flat_map(|(run, streams)| {
                streams.iter().map(move |(name, delay)| (format!("{name}, run {}", run + 1), *delay))
            })))
        }
        @if !findings.loads.is_empty() {
            h3 { "Delay by load" }
            (delays(findings.loads.iter().flat_map(|loaded| {
                let at = rate_text(loaded.rate);
                loaded.outcome.streams.iter().map(move |stream| (format!("{} at {at}", stream.name), stream.delay))
            })))
        }
        @if let Some((table, plot)) = curve { h3 { "Frame loss rate, section 26.3" } (table) (plot) }
        @if let Some(bursts) = &findings.back_to_back {
            h3 { "Back-to-back frames, section 26.4" }
            p { (format!("{:.0} frames per stream on average of {:?}", bursts.mean, bursts.frames)) }
        }
    })
}

fn by_size(findings: &[Findings]) -> Result<Markup> {
    let points = findings
        .iter()
        .filter_map(|found| Some((f64::from(found.size), found.throughput.as_ref()?.rate / 1e6)));
    let series = vec![Series::new("throughput", points)];
    let panels = [Panel::new("frames a second, millions", false, series)];
    let plot = page::svg("throughput", "bytes of a frame", &panels)?;
    Ok(html! { h2 { "Throughput by frame size" } (plot) })
}

fn delays(rows: impl Iterator<Item = (String, Option<Quantiles>)>) -> Markup {
    let rows = rows.map(|(label, delay)| {
        let delay = delay.map_or([f64::NAN; 5], |d| [d.p50, d.p90, d.p99, d.p999, d.max]);
        std::iter::once(label).chain(delay.map(|value| number(value, 2))).collect()
    });
    page::table(&["stream", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us"], rows)
}

fn trials(trials: &[Trial]) -> Markup {
    let rows = trials.iter().map(|trial| {
        let rates = [trial.asked, trial.offered, trial.received].map(rate_text);
        let shares = [number(trial.loss * 100.0, 4), number(trial.late * 100.0, 2)];
        rates.into_iter().chain(shares).collect()
    });
    page::table(&["asked for", "offered", "received", "lost %", "generator late %"], rows)
}
