//! The rows of `perf latency`, and what they say together.

use serde::Serialize;

use super::capacity::Capacity;
use super::stalls::Figures;
use super::witness::Witness;
use super::{Options, Ports};
use crate::live::delay::Quantiles;

/// What the project wants to add at the median at 10 % load, in microseconds.
const ADDED: f64 = 1.28;
/// What the project wants the 99.9th percentile to be below at 50 % load, in microseconds.
const TAIL: f64 = 20.0;
/// A rate is told as not reached when the generator was late for more than this share.
const LATE: f64 = 0.01;

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
    /// What the kernel and the host took from the thread and its core.
    pub witness: Witness,
    /// The stalls of the core, of the empty loop alone.
    pub stalls: Option<Figures>,
    /// The 99.9th percentile that those stalls alone make at this load, in microseconds.
    pub stalls_p999: Option<f64>,
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
    /// What the stalls that the empty loop saw on the core make of the 99.9th percentile of any switch at this load.
    pub stalls_p999: f64,
    /// Stalls of over 20 microseconds a second.
    pub stalls_over_20: f64,
    /// The share of the time that stalls took.
    pub stalled: f64,
    /// Turns in which the core was undisturbed.
    pub undisturbed: usize,
    /// The 99.9th percentile through the switch in those turns; none without any.
    pub undisturbed_p999: Option<f64>,
    /// The largest share of its frames that the generator was late for in any turn of the switch.
    pub late: f64,
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

    /// What the tail at a load is worth.
    fn verdict(&self, row: &Summary) -> String {
        let turns = self.rows.iter().filter(|other| is_at(other, "ours", row.load)).count();
        let disturbance = format!(
            "the empty loop was kept from the core for over 20 us {:.0} times a second and for {:.2} % of the time in all",
            row.stalls_over_20,
            row.stalled * 100.0
        );
        match row.undisturbed_p999 {
            Some(tail) => {
                let word = if tail < TAIL { "met" } else { "missed" };
                format!(
                    "{word} with {tail:.1} in the {} of {turns} turns that were undisturbed; {disturbance}",
                    row.undisturbed
                )
            }
            None => format!("not to be told here, for no turn of {turns} was undisturbed: {disturbance}"),
        }
    }

    /// The summary in lines.
    pub fn text(&self) -> String {
        let mut lines = vec![
            self.capacity.to_string(),
            format!(
                "medians, us: {:>5} {:>9} {:>9} {:>9} {:>9} | p99.9 {:>9} {:>9} {:>9} {:>9}",
                "load", "ours", "testpmd", "empty", "added", "ours", "testpmd", "empty", "stalls"
            ),
        ];
        for row in &self.summary {
            lines.push(format!(
                "             {:>4.0}% {:>9.2} {:>9.2} {:>9.2} {:>9.2} |       {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
                row.load * 100.0,
                row.ours_p50,
                row.testpmd_p50,
                row.empty_p50,
                row.added_p50,
                row.ours_p999,
                row.testpmd_p999,
                row.empty_p999,
                row.stalls_p999
            ));
        }
        lines.push(
            "(stalls: the p99.9 of a switch that is at once with every packet, on a core with the stalls that the empty loop saw)"
                .into(),
        );
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
                    "p99.9 at 50 % load: {:.1} us, target {TAIL} on an undisturbed core: {}",
                    row.ours_p999,
                    self.verdict(row)
                ));
            }
            if row.late > LATE {
                lines.push(format!(
                    "at {:.0} % load the generator was late for up to {:.1} % of its frames: the load was less, and came in bursts",
                    row.load * 100.0,
                    row.late * 100.0
                ));
            }
        }
        lines.join("\n") + "\n"
    }
}

fn is_at(row: &Row, arm: &str, load: f64) -> bool {
    row.arm == arm && row.load.total_cmp(&load).is_eq()
}

/// The tails of the switch in undisturbed turns: the stalls that the empty loop saw in the turn do not by themselves
/// exceed the target, and neither thread was put off the core, nor was time stolen. What the switch's own packets saw is
/// no part of the rule.
fn undisturbed(rows: &[Row], load: f64) -> Vec<f64> {
    let is_quiet = |turn: usize| {
        let empty = rows.iter().find(|row| is_at(row, "empty-loop", load) && row.turn == turn);
        empty.is_some_and(|row| row.witness.is_quiet() && row.stalls_p999.is_some_and(|tail| tail < TAIL))
    };
    let ours = rows.iter().filter(|row| is_at(row, "ours", load));
    ours.filter(|row| row.witness.is_quiet() && is_quiet(row.turn)).map(|row| row.delay.p999).collect()
}

fn summary(rows: &[Row], load: f64) -> Summary {
    let of = |arm: &str, value: fn(&Row) -> f64| -> Vec<f64> {
        rows.iter().filter(|row| is_at(row, arm, load)).map(value).collect()
    };
    let p50 = |row: &Row| row.delay.p50;
    let p999 = |row: &Row| row.delay.p999;
    let stalls = |value: fn(&Figures) -> f64| {
        let empty = rows.iter().filter(|row| is_at(row, "empty-loop", load));
        median(empty.filter_map(|row| row.stalls.as_ref()).map(value).collect())
    };
    // Both have a row in each turn, in the order of turns.
    let added = of("ours", p50).iter().zip(of("testpmd", p50)).map(|(ours, floor)| ours - floor).collect();
    let quiet = undisturbed(rows, load);
    Summary {
        load,
        ours_p50: median(of("ours", p50)),
        testpmd_p50: median(of("testpmd", p50)),
        empty_p50: median(of("empty-loop", p50)),
        added_p50: median(added),
        ours_p999: median(of("ours", p999)),
        testpmd_p999: median(of("testpmd", p999)),
        empty_p999: median(of("empty-loop", p999)),
        stalls_p999: median(of("empty-loop", |row| row.stalls_p999.unwrap_or(f64::NAN))),
        stalls_over_20: stalls(|stalls| stalls.over_20),
        stalled: stalls(|stalls| stalls.share),
        undisturbed: quiet.len(),
        undisturbed_p999: Some(quiet).filter(|tails| !tails.is_empty()).map(median),
        late: of("ours", |row| row.late).into_iter().fold(0.0, f64::max),
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
        "{:<10} {:>5} {:>4} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7} {:>9} {:>6} {:>6} {:>8} {:>9} {:>11}",
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
        "core %",
        "put off",
        "stolen ms",
        "stalls>20/s"
    )
}

/// A row.
pub fn table_row(row: &Row) -> String {
    format!(
        "{:<10} {:>4.0}% {:>4} {:>8.3} {:>8.2} {:>8.2} {:>8.2} {:>9.1} {:>9.1} {:>7} {:>9} {:>6.1} {:>6.1} {:>8} {:>9} {:>11}",
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
        row.core_share * 100.0,
        row.witness.preempted,
        row.witness.stolen_ms,
        row.stalls.map_or("-".into(), |stalls| format!("{:.0}", stalls.over_20))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::stalls::Stalls;

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
            witness: Witness::default(),
            stalls: None,
            stalls_p999: None,
            delay,
        }
    }

    fn options(load: f64) -> Options {
        Options {
            vswitch: "x".into(),
            core: None,
            ports: Ports::Memif,
            loads: vec![load],
            turns: 1,
            seconds: 1.0,
            size: 64,
            keep: false,
        }
    }

    const CAPACITY: Capacity = Capacity { packets_per_second: 1.0, packets: 1, busy_share: 1.0 };

    #[test]
    fn undisturbed_turns_are_told_by_the_empty_loop_and_the_kernel_alone() {
        let half = |arm, turn, p50, stalls: Option<Stalls>| Row {
            load: 0.5,
            stalls: stalls.as_ref().map(Stalls::figures),
            stalls_p999: stalls.map(|stalls| stalls.p999(0.5)),
            ..row(arm, turn, p50)
        };
        let quiet = || Some(Stalls::new(vec![8.0; 10], 1.0));
        let noisy = || Some(Stalls::new(vec![50.0; 400], 1.0));
        let stolen = Witness { preempted: 0, stolen_ms: 10 };
        let mut rows = vec![
            half("ours", 0, 1.5, None),
            half("empty-loop", 0, 0.3, quiet()),
            half("ours", 1, 90.0, None),
            half("empty-loop", 1, 0.3, noisy()),
            Row { witness: stolen, ..half("ours", 2, 70.0, None) },
            half("empty-loop", 2, 0.3, quiet()),
        ];
        let text = |rows: &[Row]| Report::new(&options(0.5), CAPACITY, rows.to_vec()).text();
        assert!(text(&rows).contains("met with 15.0 in the 1 of 3 turns"), "{}", text(&rows));
        // A bad tail in a quiet turn is the switch's.
        rows.push(half("ours", 3, 9.0, None));
        rows.push(half("empty-loop", 3, 0.3, quiet()));
        assert!(text(&rows).contains("missed with 52.5 in the 2 of 4 turns"), "{}", text(&rows));
        rows.retain(|row| row.turn == 1);
        assert!(text(&rows).contains("no turn of 1 was undisturbed"), "{}", text(&rows));
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
        let text = |ours: f64| {
            let rows = vec![row("ours", 0, ours), row("testpmd", 0, 1.0)];
            Report::new(&options(0.1), CAPACITY, rows).text()
        };
        assert!(text(2.2).contains("target 1.28: met") && text(2.3).contains("target 1.28: missed"));
    }
}
