//! The rows of `perf latency`, and what they say together.

use serde::Serialize;

use super::capacity::Capacity;
use super::{Options, Ports};
use crate::live::delay::Quantiles;

/// What the project wants to add at the median at 10 % load, in microseconds.
const ADDED: f64 = 1.28;
/// What the project wants the 99.9th percentile to be below at 50 % load, in microseconds.
const TAIL: f64 = 20.0;

/// An arm at a load.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Row {
    /// Who forwarded.
    pub arm: &'static str,
    /// Share of the switch's capacity.
    pub load: f64,
    /// Which turn.
    pub turn: usize,
    /// Frames per second asked for.
    pub asked: f64,
    /// Frames per second offered.
    pub offered: f64,
    /// Frames lost.
    pub lost: u64,
    /// Frames that the port had no room for.
    pub refused: u64,
    /// Share of the frames that the generator was late for.
    pub late: f64,
    /// The share of its core that the forwarding thread had.
    pub core_share: f64,
    /// From making a frame to reading it, in microseconds.
    pub delay: Quantiles,
}

/// The arms at a load together: medians over the turns, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Summary {
    /// Share of the switch's capacity.
    pub load: f64,
    /// Median delay through the switch.
    pub ours_p50: f64,
    /// Through testpmd.
    pub testpmd_p50: f64,
    /// Through the empty loop.
    pub empty_p50: f64,
    /// What the switch adds to testpmd: the median of the differences within the turns.
    pub added_p50: f64,
    /// The 99.9th percentile through the switch.
    pub ours_p999: f64,
    /// Through testpmd.
    pub testpmd_p999: f64,
    /// Through the empty loop: the machine's own doing.
    pub empty_p999: f64,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The ports.
    pub ports: Ports,
    /// Frame size, frame check sequence included.
    pub size: u32,
    /// What the worker can do.
    pub capacity: Capacity,
    /// The rows.
    pub rows: Vec<Row>,
    /// By load.
    pub summary: Vec<Summary>,
}

impl Report {
    /// Puts the rows together.
    pub fn new(options: &Options, capacity: Capacity, rows: Vec<Row>) -> Self {
        let summary = options.loads.iter().map(|&load| summary(&rows, load)).collect();
        Self { ports: options.ports, size: options.size, capacity, rows, summary }
    }

    /// The summary in lines.
    pub fn text(&self) -> String {
        let mut lines = vec![
            self.capacity.to_string(),
            format!(
                "medians, us: {:>5} {:>9} {:>9} {:>9} {:>9} | p99.9 {:>9} {:>9} {:>9}",
                "load", "ours", "testpmd", "empty", "added", "ours", "testpmd", "empty"
            ),
        ];
        for row in &self.summary {
            lines.push(format!(
                "             {:>4.0}% {:>9.2} {:>9.2} {:>9.2} {:>9.2} |       {:>9.1} {:>9.1} {:>9.1}",
                row.load * 100.0,
                row.ours_p50,
                row.testpmd_p50,
                row.empty_p50,
                row.added_p50,
                row.ours_p999,
                row.testpmd_p999,
                row.empty_p999
            ));
        }
        let word = |met: bool| if met { "met" } else { "missed" };
        for row in &self.summary {
            if (row.load - 0.1).abs() < 1e-9 {
                lines.push(format!(
                    "added at the median at 10 % load: {:.2} us, target {ADDED}: {}",
                    row.added_p50,
                    word(row.added_p50 <= ADDED)
                ));
            }
            if (row.load - 0.5).abs() < 1e-9 {
                lines.push(format!(
                    "p99.9 at 50 % load: {:.1} us, target {TAIL}: {}; the empty loop has {:.1}",
                    row.ours_p999,
                    word(row.ours_p999 < TAIL),
                    row.empty_p999
                ));
            }
        }
        lines.join("\n") + "\n"
    }
}

fn summary(rows: &[Row], load: f64) -> Summary {
    let of = |arm: &str, value: fn(&Quantiles) -> f64| -> Vec<f64> {
        let own = rows.iter().filter(|row| row.arm == arm && row.load.total_cmp(&load).is_eq());
        own.map(|row| value(&row.delay)).collect()
    };
    let p50 = |delay: &Quantiles| delay.p50;
    let p999 = |delay: &Quantiles| delay.p999;
    // Both have a row in each turn, in the order of turns.
    let added = of("ours", p50).iter().zip(of("testpmd", p50)).map(|(ours, floor)| ours - floor).collect();
    Summary {
        load,
        ours_p50: median(of("ours", p50)),
        testpmd_p50: median(of("testpmd", p50)),
        empty_p50: median(of("empty-loop", p50)),
        added_p50: median(added),
        ours_p999: median(of("ours", p999)),
        testpmd_p999: median(of("testpmd", p999)),
        empty_p999: median(of("empty-loop", p999)),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// The head of the rows.
pub fn table_head() -> String {
    format!(
        "{:<10} {:>5} {:>4} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7} {:>9} {:>6} {:>6}",
        "arm",
        "load",
        "turn",
        "Mpps",
        "p50 us",
        "p90 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "lost",
        "not taken",
        "late %",
        "core %"
    )
}

/// A row.
pub fn table_row(row: &Row) -> String {
    format!(
        "{:<10} {:>4.0}% {:>4} {:>8.3} {:>8.2} {:>8.2} {:>8.2} {:>9.1} {:>9.1} {:>7} {:>9} {:>6.1} {:>6.1}",
        row.arm,
        row.load * 100.0,
        row.turn,
        row.offered / 1e6,
        row.delay.p50,
        row.delay.p90,
        row.delay.p99,
        row.delay.p999,
        row.delay.max,
        row.lost,
        row.refused,
        row.late * 100.0,
        row.core_share * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(arm: &'static str, turn: usize, p50: f64) -> Row {
        let delay = Quantiles { packets: 1, p50, p90: p50, p99: p50, p999: p50 * 10.0, max: p50 * 20.0 };
        Row {
            arm,
            load: 0.1,
            turn,
            asked: 1.0,
            offered: 1.0,
            lost: 0,
            refused: 0,
            late: 0.0,
            core_share: 1.0,
            delay,
        }
    }

    #[test]
    fn what_is_added_is_the_median_of_the_differences_within_turns() {
        let rows = [
            row("ours", 0, 3.0),
            row("testpmd", 0, 2.0),
            row("testpmd", 1, 12.0),
            row("ours", 1, 12.5),
            row("ours", 2, 5.0),
            row("testpmd", 2, 1.0),
            row("empty-loop", 0, 0.5),
        ];
        let found = summary(&rows, 0.1);
        assert!((found.added_p50 - 1.0).abs() < 1e-9 && (found.ours_p50 - 5.0).abs() < 1e-9, "{found:?}");
        assert!((found.empty_p999 - 5.0).abs() < 1e-9);
        assert!(summary(&rows, 0.5).ours_p50.is_nan());
    }

    #[test]
    fn targets_are_told_as_met_or_missed() {
        let options = Options {
            vswitch: "x".into(),
            core: None,
            ports: Ports::Memif,
            loads: vec![0.1],
            turns: 1,
            seconds: 1.0,
            size: 64,
            keep: false,
        };
        let capacity = Capacity { packets_per_second: 1.0, packets: 1, busy_share: 1.0 };
        let text = |ours: f64| {
            let rows = vec![row("ours", 0, ours), row("testpmd", 0, 1.0)];
            Report::new(&options, capacity, rows).text()
        };
        assert!(text(2.2).contains("target 1.28: met") && text(2.3).contains("target 1.28: missed"));
    }
}
