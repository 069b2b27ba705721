//! The result of a storm: a table for people, JSON for scripts, and a plot over time.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::Options;
use crate::compare::report::median;
use crate::live::LiveError;
use crate::live::delay::Quantiles;
use crate::live::plot::{self, Panel, Series};

/// What the worker can do.
#[derive(Debug, Clone, Serialize)]
pub struct Capacity {
    /// Packets forwarded.
    pub packets: u64,
    /// Share of the worker's time in which it had packets.
    pub busy_share: f64,
    /// Share of the core that the worker had.
    pub core_share: f64,
    /// Packets per second of CPU time with packets.
    pub packets_per_cpu_second: f64,
}

/// A step of the time series.
#[derive(Debug, Clone, Serialize)]
pub struct Bin {
    /// Seconds since the arm began, at its end.
    pub at: f64,
    /// The victim's packets per second: sent to the switch.
    pub victim_offered: f64,
    /// And come through.
    pub victim_served: f64,
    /// The storm's new queue pairs per second: sent.
    pub storm_offered: f64,
    /// And admitted.
    pub storm_admitted: f64,
    /// The victim's delays.
    pub delay: Option<Quantiles>,
}

impl Bin {
    /// From the packets of a stretch of `seconds`: victim sent, served, storm sent, served.
    pub fn new(at: f64, seconds: f64, packets: [u64; 4], delay: Option<Quantiles>) -> Self {
        let [victim_offered, victim_served, storm_offered, storm_admitted] =
            packets.map(|count| count as f64 / seconds);
        Self { at, victim_offered, victim_served, storm_offered, storm_admitted, delay }
    }
}

/// One stretch with or without the storm.
#[derive(Debug, Clone, Serialize)]
pub struct Arm {
    /// Number of its pair.
    pub pair: usize,
    /// With the storm.
    pub storm: bool,
    /// Length.
    pub seconds: f64,
    /// Share of the core that the worker had.
    pub core_share: f64,
    /// The victim's packets that the rings took.
    pub victim_sent: u64,
    /// Those that the switch counted as received.
    pub victim_received_by_switch: u64,
    /// Those that came out of the tunnel.
    pub victim_served: u64,
    /// Received by the switch and not sent.
    pub victim_lost: u64,
    /// Times a queue pair's sequence did not go on where it was.
    pub victim_gaps: u64,
    /// Drops that the switch counted against the victim.
    pub victim_drops: u64,
    /// The victim's delays.
    pub delay: Option<Quantiles>,
    /// Packets that `perf` was too late to send, and gave up.
    pub late: u64,
    /// Turns in which the victim could not send because too much was on its way.
    pub held: u64,
    /// The storm's packets, each a new queue pair.
    pub storm_sent: u64,
    /// Those that came through.
    pub storm_admitted: u64,
    /// Those that did not.
    pub storm_refused: u64,
    /// Frames out of the tunnel that nobody sent.
    pub odd: u64,
    /// Drops of the switch, by name.
    pub drops: BTreeMap<String, u64>,
    /// Over time.
    pub bins: Vec<Bin>,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Queue pairs of the victim.
    pub victim_qps: u32,
    /// The victim's packets per second.
    pub victim_rate: u64,
    /// New queue pairs per second.
    pub storm_rate: u64,
    /// Queue pairs that the storm may have.
    pub storm_quota: u32,
    /// What the worker can do.
    pub capacity: Capacity,
    /// With the storm: the victim's packets lost.
    pub lost_with: u64,
    /// Without.
    pub lost_without: u64,
    /// The median over pairs of the p99 with the storm, over the one without.
    pub p99_ratio: Option<f64>,
    /// The stretches, in the order they were run.
    pub arms: Vec<Arm>,
}

impl Report {
    /// Sums up.
    pub fn new(options: &Options, capacity: Capacity, rate: u64, arms: Vec<Arm>) -> Self {
        let lost = |storm| arms.iter().filter(|arm| arm.storm == storm).map(|arm| arm.victim_lost).sum();
        let p99 = |pair, storm| {
            let arm = arms.iter().find(|arm: &&Arm| arm.pair == pair && arm.storm == storm)?;
            Some(arm.delay?.p99)
        };
        let ratios: Vec<f64> =
            (0..options.pairs).filter_map(|pair| Some(p99(pair, true)? / p99(pair, false)?)).collect();
        Self {
            victim_qps: options.victim_qps,
            victim_rate: rate,
            storm_rate: options.storm_rate,
            storm_quota: options.storm_quota,
            capacity,
            lost_with: lost(true),
            lost_without: lost(false),
            p99_ratio: median(&ratios),
            arms,
        }
    }

    /// The last lines.
    pub fn verdict(&self) -> String {
        let ratio = self.p99_ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let blame = match (self.lost_with, self.lost_without) {
            (0, _) => "the storm cost the victim no packet",
            (_, 0) => "the storm cost the victim packets",
            _ => "packets were lost in both arms: look at the machine before the storm",
        };
        format!(
            "lost: {} with the storm, {} without; p99 with the storm over without, median of the pairs: {ratio}\n{blame}",
            self.lost_with, self.lost_without
        )
    }

    /// Draws it over time: `stem.svg` and `stem.png`.
    pub fn plot(&self, stem: &Path) -> Result<(), LiveError> {
        let (mut shaded, mut start) = (Vec::new(), 0.0);
        let mut points: [Vec<(f64, f64)>; 7] = Default::default();
        for arm in &self.arms {
            for bin in &arm.bins {
                let at = start + bin.at;
                let delay = bin.delay.map_or([f64::NAN; 3], |delay| [delay.p50, delay.p99, delay.p999]);
                let admitted = bin.storm_admitted / 1e3;
                let values = [
                    bin.victim_offered / 1e6,
                    bin.victim_served / 1e6,
                    admitted,
                    bin.storm_offered / 1e3 - admitted,
                ];
                for (series, value) in points.iter_mut().zip(values.into_iter().chain(delay)) {
                    series.push((at, value));
                }
            }
            if arm.storm {
                shaded.push((start, start + arm.seconds));
            }
            start += arm.seconds;
            points.iter_mut().for_each(|series| series.push((start, f64::NAN)));
        }
        let mut points = points.into_iter();
        let mut panel = |title: &str, names: &[&str], logarithmic| Panel {
            title: title.into(),
            series: names
                .iter()
                .map(|name| Series { name: (*name).into(), points: points.next().unwrap_or_default() })
                .collect(),
            logarithmic,
        };
        let panels = [
            panel("victim, million packets a second", &["offered", "served"], false),
            panel("storm, thousand new queue pairs a second", &["admitted", "refused"], false),
            panel("delay of the victim's packets, microseconds", &["p50", "p99", "p99.9"], true),
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

/// The head of the table.
pub fn table_head() -> String {
    format!(
        "{:>4} {:<7} {:>10} {:>10} {:>6} {:>6} {:>8} {:>8} {:>9} {:>9} {:>8} {:>9} {:>8} {:>5}  {}",
        "pair",
        "storm",
        "received",
        "served",
        "lost",
        "drops",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "new QPs",
        "admitted",
        "refused",
        "late",
        "core",
        "drops of the switch by name"
    )
}

/// A row of the table.
pub fn table_row(arm: &Arm) -> String {
    let delay = arm.delay.map_or_else(|| format!("{:>27}", "-"), |delay| delay.to_string());
    let drops: Vec<String> = arm.drops.iter().map(|(name, count)| format!("{name} {count}")).collect();
    format!(
        "{:>4} {:<7} {:>10} {:>10} {:>6} {:>6} {delay} {:>9} {:>8} {:>9} {:>8} {:>4.0}%  {}",
        arm.pair,
        if arm.storm { "with" } else { "without" },
        arm.victim_received_by_switch,
        arm.victim_served,
        arm.victim_lost,
        arm.victim_drops,
        arm.storm_sent,
        arm.storm_admitted,
        arm.storm_refused,
        arm.late,
        arm.core_share * 100.0,
        if drops.is_empty() { "none".into() } else { drops.join(", ") }
    )
}
