//! The result of a storm: a table for people, JSON for scripts, and a plot over time.

use std::path::Path;

use serde::Serialize;

use super::StormOptions;
use crate::Result;
use crate::generator::outcome::StreamBin;
use crate::live::beside::Beside;
use crate::live::capacity::Capacity;
use crate::report::plot::{self, Panel, Series};
use crate::report::stats::median;
use crate::report::table::{Table, by_name, column, number, percent};

#[derive(Debug, Clone, Serialize)]
pub struct StormReport {
    pub victim_qps: u32,
    /// The victim's packets per second.
    pub victim_rate: u64,
    /// New queue pairs per second.
    pub storm_rate: u64,
    /// Queue pairs that the storm may have.
    pub storm_quota: u32,
    pub capacity: Capacity,
    /// With the storm: the victim's packets lost.
    pub lost_with: u64,
    pub lost_without: u64,
    /// The median over pairs of the p99 with the storm, over the one without.
    pub p99_ratio: Option<f64>,
    /// The stretches, in the order they were run.
    pub trials: Vec<Beside>,
}

impl StormReport {
    pub fn new(options: &StormOptions, capacity: Capacity, rate: u64, trials: Vec<Beside>) -> Self {
        let lost = |storm| {
            trials.iter().filter(|trial| trial.disturbed == storm).map(|trial| trial.lost_by_switch).sum()
        };
        let p99 = |pair: &[Beside], storm| pair.iter().find(|trial| trial.disturbed == storm)?.steady().delay;
        let ratios = trials.chunks(2).filter_map(|pair| Some(p99(pair, true)?.p99 / p99(pair, false)?.p99));
        let ratios: Vec<f64> = ratios.collect();
        Self {
            victim_qps: options.victim_qps,
            victim_rate: rate,
            storm_rate: options.rate,
            storm_quota: options.quota,
            capacity,
            lost_with: lost(true),
            lost_without: lost(false),
            p99_ratio: median(&ratios),
            trials,
        }
    }

    pub fn verdict(&self) -> String {
        let ratio = self.p99_ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let blame = match (self.lost_with, self.lost_without) {
            (0, _) => "the storm cost the victim no packet",
            (_, 0) => "the storm cost the victim packets",
            _ => "packets were lost in both trials: look at the machine before the storm",
        };
        format!(
            "lost: {} with the storm, {} without; p99 with the storm over without, median of the pairs: {ratio}\n{blame}",
            self.lost_with, self.lost_without
        )
    }

    /// Draws it over time: `stem.svg` and `stem.png`.
    pub fn plot(&self, stem: &Path) -> Result<()> {
        let (mut shaded, mut start, mut bins) = (Vec::new(), 0.0, Vec::new());
        for trial in &self.trials {
            let both = trial.steady().series.iter().zip(&trial.other().series);
            bins.extend(both.map(|both| (start + both.0.at, Some(both))));
            let seconds = trial.outcome.seconds;
            if trial.disturbed {
                shaded.push((start, start + seconds));
            }
            start += seconds;
            // A gap between trials.
            bins.push((start, None));
        }
        let line = |name: &str, of: fn((&StreamBin, &StreamBin)) -> f64| {
            Series::new(name, bins.iter().map(|(at, both)| (*at, both.map_or(f64::NAN, of))))
        };
        let victim =
            [line("offered", |both| both.0.sent / 1e6), line("served", |both| both.0.received / 1e6)];
        let storm = [
            line("admitted", |both| both.1.received / 1e3),
            line("refused", |both| (both.1.sent - both.1.received) / 1e3),
        ];
        let delays = bins.iter().map(|(at, both)| (*at, both.and_then(|both| both.0.delay)));
        let delays = Series::percentiles(delays);
        let panels = [
            Panel::new("victim, million packets a second", false, victim.into()),
            Panel::new("storm, thousand new queue pairs a second", false, storm.into()),
            Panel::new("delay of the victim's packets, microseconds", true, delays),
        ];
        let title = format!(
            "{} queue pairs at {:.2} Mpps; storm of {} new queue pairs a second (shaded)",
            self.victim_qps,
            self.victim_rate as f64 / 1e6,
            self.storm_rate
        );
        plot::draw(stem, &title, "seconds of measurement", &panels, &shaded)
    }
}

/// A trial on a line.
pub const TABLE: Table<Beside> = Table(&[
    column("pair", 4, |trial| trial.pair.to_string()),
    column("storm", -7, |trial| if trial.disturbed { "with" } else { "without" }.into()),
    column("received", 10, |trial| trial.received_by_switch.to_string()),
    column("served", 10, |trial| (trial.steady().sent - trial.steady().lost).to_string()),
    column("lost", 6, |trial| trial.lost_by_switch.to_string()),
    column("drops", 6, |trial| trial.steady_drops.to_string()),
    column("p50 us", 8, |trial| number(trial.steady().delay.map(|delay| delay.p50), 1)),
    column("p99 us", 8, |trial| number(trial.steady().delay.map(|delay| delay.p99), 1)),
    column("p99.9 us", 9, |trial| number(trial.steady().delay.map(|delay| delay.p999), 1)),
    column("new QPs", 9, |trial| trial.other().sent.to_string()),
    column("admitted", 8, |trial| (trial.other().sent - trial.other().lost).to_string()),
    column("refused", 9, |trial| trial.other().lost.to_string()),
    column("late", 8, |trial| trial.steady().late.to_string()),
    column("core", 5, |trial| percent(trial.core_share, 0)),
    column(" drops of the switch by name", 0, |trial| format!(" {}", by_name(&trial.drops))),
]);
