//! The result of a storm: a table for people, JSON for scripts, and a plot over time.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::StormOptions;
use crate::Result;
use crate::live::capacity::Capacity;
use crate::report::delay::Quantiles;
use crate::report::plot::{self, Panel, Series};
use crate::report::stats::median;
use crate::report::table::{Table, by_name, column, number, percent};

/// A step of the time series.
#[derive(Debug, Clone, Serialize)]
pub struct StormBin {
    /// Seconds since the trial began, at its end.
    pub at: f64,
    /// The victim's packets per second: sent to the switch.
    pub victim_offered: f64,
    pub victim_served: f64,
    /// The storm's new queue pairs per second: sent.
    pub storm_offered: f64,
    pub storm_admitted: f64,
    pub delay: Option<Quantiles>,
}

/// One stretch with or without the storm.
#[derive(Debug, Clone, Serialize)]
pub struct StormTrial {
    pub pair: usize,
    pub storm: bool,
    pub seconds: f64,
    /// Share of the core that the worker had.
    pub core_share: f64,
    pub victim_sent: u64,
    /// Those that the switch counted as received.
    pub victim_received_by_switch: u64,
    pub victim_served: u64,
    /// Received by the switch and not sent.
    pub victim_lost: u64,
    /// Times a queue pair's sequence did not go on where it was.
    pub victim_gaps: u64,
    pub victim_drops: u64,
    pub delay: Option<Quantiles>,
    /// Packets that `perf` was too late to send, and gave up.
    pub late: u64,
    /// Packets that were due while too much of the victim was on its way, or its port had no room.
    pub held: u64,
    /// The storm's packets, each a new queue pair.
    pub storm_sent: u64,
    pub storm_admitted: u64,
    pub storm_refused: u64,
    /// Frames out of the tunnel that nobody sent.
    pub odd: u64,
    pub drops: BTreeMap<String, u64>,
    pub bins: Vec<StormBin>,
}

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
    pub trials: Vec<StormTrial>,
}

impl StormReport {
    pub fn new(options: &StormOptions, capacity: Capacity, rate: u64, trials: Vec<StormTrial>) -> Self {
        let lost =
            |storm| trials.iter().filter(|trial| trial.storm == storm).map(|trial| trial.victim_lost).sum();
        let p99 = |pair, storm| {
            let trial =
                trials.iter().find(|trial: &&StormTrial| trial.pair == pair && trial.storm == storm)?;
            Some(trial.delay?.p99)
        };
        let ratios: Vec<f64> =
            (0..options.pairs).filter_map(|pair| Some(p99(pair, true)? / p99(pair, false)?)).collect();
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
            bins.extend(trial.bins.iter().map(|bin| (start + bin.at, Some(bin))));
            if trial.storm {
                shaded.push((start, start + trial.seconds));
            }
            start += trial.seconds;
            // A gap between trials.
            bins.push((start, None));
        }
        let line = |name: &str, of: fn(&StormBin) -> f64| {
            Series::new(name, bins.iter().map(|(at, bin)| (*at, bin.map_or(f64::NAN, of))))
        };
        let victim =
            [line("offered", |bin| bin.victim_offered / 1e6), line("served", |bin| bin.victim_served / 1e6)];
        let storm = [
            line("admitted", |bin| bin.storm_admitted / 1e3),
            line("refused", |bin| (bin.storm_offered - bin.storm_admitted) / 1e3),
        ];
        let delays = Series::percentiles(bins.iter().map(|(at, bin)| (*at, bin.and_then(|bin| bin.delay))));
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
pub const TABLE: Table<StormTrial> = Table(&[
    column("pair", 4, |trial| trial.pair.to_string()),
    column("storm", -7, |trial| if trial.storm { "with" } else { "without" }.into()),
    column("received", 10, |trial| trial.victim_received_by_switch.to_string()),
    column("served", 10, |trial| trial.victim_served.to_string()),
    column("lost", 6, |trial| trial.victim_lost.to_string()),
    column("drops", 6, |trial| trial.victim_drops.to_string()),
    column("p50 us", 8, |trial| number(trial.delay.map(|delay| delay.p50), 1)),
    column("p99 us", 8, |trial| number(trial.delay.map(|delay| delay.p99), 1)),
    column("p99.9 us", 9, |trial| number(trial.delay.map(|delay| delay.p999), 1)),
    column("new QPs", 9, |trial| trial.storm_sent.to_string()),
    column("admitted", 8, |trial| trial.storm_admitted.to_string()),
    column("refused", 9, |trial| trial.storm_refused.to_string()),
    column("late", 8, |trial| trial.late.to_string()),
    column("core", 5, |trial| percent(trial.core_share, 0)),
    column(" drops of the switch by name", 0, |trial| format!(" {}", by_name(&trial.drops))),
]);
