//! The rows of `perf latency`, and what they say together.

use serde::Serialize;

use super::interference::Interference;
use super::stalls::StallFigures;
use super::testbed::LatencyForwarder::{self, EmptyLoop, Ours, Testpmd};
use crate::live::capacity::Capacity;
use crate::live::testbed::Ports;
use crate::options::word;
use crate::report::delay::Quantiles;
use crate::report::table::{Table, column, number, percent};

/// What the project wants to add at the median at 10 % load, in microseconds.
const ADDED: f64 = 1.28;
/// What the project wants the 99.9th percentile to be below at 50 % load, in microseconds.
const TAIL: f64 = 20.0;
/// A rate is told as not reached when the generator was late for more than this share.
const LATE: f64 = 0.01;

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LatencyRow {
    pub forwarder: LatencyForwarder,
    /// Share of the switch's capacity.
    pub load: f64,
    pub turn: usize,
    /// Frames per second asked for.
    pub asked: f64,
    /// Frames per second offered.
    pub offered: f64,
    pub lost: u64,
    /// Frames that the port had no room for.
    pub refused: u64,
    /// Share of the frames that the generator was late for.
    pub late: f64,
    /// The share of its core that the forwarding thread had.
    pub core_share: f64,
    /// What the kernel and the host took from the thread and its core.
    pub interference: Interference,
    /// The stalls of the core, of the empty loop alone.
    pub stalls: Option<StallFigures>,
    /// The 99.9th percentile that those stalls alone make at this load, in microseconds.
    pub stalls_p999: Option<f64>,
    /// From making a frame to reading it, in microseconds.
    pub delay: Quantiles,
}

/// The forwarders at a load together: medians over the turns, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LatencySummary {
    /// Share of the switch's capacity.
    pub load: f64,
    /// Median delay through the switch.
    pub ours_p50: f64,
    pub testpmd_p50: f64,
    pub empty_p50: f64,
    /// What the switch adds to testpmd: the median of the differences within the turns.
    pub added_p50: f64,
    /// The 99.9th percentile through the switch.
    pub ours_p999: f64,
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

#[derive(Debug, Clone, Serialize)]
pub struct LatencyReport {
    pub ports: Ports,
    /// Frame size, frame check sequence included.
    pub size: u32,
    pub capacity: Capacity,
    pub rows: Vec<LatencyRow>,
    pub summary: Vec<LatencySummary>,
}

impl LatencyReport {
    pub fn new(ports: Ports, size: u32, loads: &[f64], capacity: Capacity, rows: Vec<LatencyRow>) -> Self {
        let summary = loads.iter().map(|&load| summary(&rows, load)).collect();
        Self { ports, size, capacity, rows, summary }
    }

    /// What the tail at a load is worth.
    fn verdict(&self, row: &LatencySummary) -> String {
        let turns = self.rows.iter().filter(|other| is_at(other, Ours, row.load)).count();
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

    pub fn text(&self) -> String {
        let mut lines = vec![self.capacity.to_string(), SUMMARY.text(&self.summary).trim_end().to_owned()];
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

fn is_at(row: &LatencyRow, forwarder: LatencyForwarder, load: f64) -> bool {
    row.forwarder == forwarder && row.load.total_cmp(&load).is_eq()
}

/// The tails of the switch in undisturbed turns: the stalls that the empty loop saw in the turn do not by themselves
/// exceed the target, and neither thread was put off the core, nor was time stolen. What the switch's own packets saw is
/// no part of the rule.
fn undisturbed(rows: &[LatencyRow], load: f64) -> Vec<f64> {
    let is_quiet = |turn: usize| {
        let empty = rows.iter().find(|row| is_at(row, EmptyLoop, load) && row.turn == turn);
        empty
            .is_some_and(|row| row.interference.is_quiet() && row.stalls_p999.is_some_and(|tail| tail < TAIL))
    };
    let ours = rows.iter().filter(|row| is_at(row, Ours, load));
    ours.filter(|row| row.interference.is_quiet() && is_quiet(row.turn)).map(|row| row.delay.p999).collect()
}

fn summary(rows: &[LatencyRow], load: f64) -> LatencySummary {
    let of = |forwarder: LatencyForwarder, value: fn(&LatencyRow) -> f64| -> Vec<f64> {
        rows.iter().filter(|row| is_at(row, forwarder, load)).map(value).collect()
    };
    let p50 = |row: &LatencyRow| row.delay.p50;
    let p999 = |row: &LatencyRow| row.delay.p999;
    let stalls = |value: fn(&StallFigures) -> f64| {
        let empty = rows.iter().filter(|row| is_at(row, EmptyLoop, load));
        median(empty.filter_map(|row| row.stalls.as_ref()).map(value).collect())
    };
    // Both have a row in each turn, in the order of turns.
    let added = of(Ours, p50).iter().zip(of(Testpmd, p50)).map(|(ours, floor)| ours - floor).collect();
    let quiet = undisturbed(rows, load);
    LatencySummary {
        load,
        ours_p50: median(of(Ours, p50)),
        testpmd_p50: median(of(Testpmd, p50)),
        empty_p50: median(of(EmptyLoop, p50)),
        added_p50: median(added),
        ours_p999: median(of(Ours, p999)),
        testpmd_p999: median(of(Testpmd, p999)),
        empty_p999: median(of(EmptyLoop, p999)),
        stalls_p999: median(of(EmptyLoop, |row| row.stalls_p999.unwrap_or(f64::NAN))),
        stalls_over_20: stalls(|stalls| stalls.over_20),
        stalled: stalls(|stalls| stalls.share),
        undisturbed: quiet.len(),
        undisturbed_p999: Some(quiet).filter(|tails| !tails.is_empty()).map(median),
        late: of(Ours, |row| row.late).into_iter().fold(0.0, f64::max),
    }
}

/// Of nothing it is not a number.
fn median(values: Vec<f64>) -> f64 {
    crate::report::stats::median(&values).unwrap_or(f64::NAN)
}

/// The medians over the turns at a load on a line.
const SUMMARY: Table<LatencySummary> = Table(&[
    column("medians, us:", -12, |_| String::new()),
    column("load", 5, |row| percent(row.load, 0)),
    column("ours", 9, |row| number(row.ours_p50, 2)),
    column("testpmd", 9, |row| number(row.testpmd_p50, 2)),
    column("empty", 9, |row| number(row.empty_p50, 2)),
    column("added", 9, |row| number(row.added_p50, 2)),
    column("| p99.9", 7, |_| "|".into()),
    column("ours", 9, |row| number(row.ours_p999, 1)),
    column("testpmd", 9, |row| number(row.testpmd_p999, 1)),
    column("empty", 9, |row| number(row.empty_p999, 1)),
    column("stalls", 9, |row| number(row.stalls_p999, 1)),
]);

/// A row on a line.
pub const TABLE: Table<LatencyRow> = Table(&[
    column("forwarder", -10, |row| word(&row.forwarder)),
    column("load", 5, |row| percent(row.load, 0)),
    column("turn", 4, |row| row.turn.to_string()),
    column("Mpps", 8, |row| number(row.offered / 1e6, 3)),
    column("p50 us", 8, |row| number(row.delay.p50, 2)),
    column("p90 us", 8, |row| number(row.delay.p90, 2)),
    column("p99 us", 8, |row| number(row.delay.p99, 2)),
    column("p99.9 us", 9, |row| number(row.delay.p999, 1)),
    column("max us", 9, |row| number(row.delay.max, 1)),
    column("lost", 7, |row| row.lost.to_string()),
    column("not taken", 9, |row| row.refused.to_string()),
    column("late %", 6, |row| number(row.late * 100.0, 1)),
    column("core %", 6, |row| number(row.core_share * 100.0, 1)),
    column("put off", 8, |row| row.interference.preempted.to_string()),
    column("stolen ms", 9, |row| row.interference.stolen_ms.to_string()),
    column("stalls>20/s", 11, |row| number(row.stalls.map(|stalls| stalls.over_20), 0)),
]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::stalls::Stalls;

    fn row(forwarder: LatencyForwarder, turn: usize, p50: f64) -> LatencyRow {
        let delay = Quantiles { packets: 1, p50, p90: p50, p99: p50, p999: p50 * 10.0, max: p50 * 20.0 };
        LatencyRow { forwarder, load: 0.1, turn, delay, ..LatencyRow::default() }
    }

    const CAPACITY: Capacity = Capacity { packets_per_second: 1.0, packets: 1, busy_share: 1.0 };

    #[test]
    fn undisturbed_turns_are_told_by_the_empty_loop_and_the_kernel_alone() {
        let half = |forwarder, turn, p50, stalls: Option<Stalls>| LatencyRow {
            load: 0.5,
            stalls: stalls.as_ref().map(Stalls::figures),
            stalls_p999: stalls.map(|stalls| stalls.p999(0.5)),
            ..row(forwarder, turn, p50)
        };
        let quiet = || Some(Stalls::new(vec![8.0; 10], 1.0));
        let noisy = || Some(Stalls::new(vec![50.0; 400], 1.0));
        let stolen = Interference { preempted: 0, stolen_ms: 10 };
        let mut rows = vec![
            half(Ours, 0, 1.5, None),
            half(EmptyLoop, 0, 0.3, quiet()),
            half(Ours, 1, 90.0, None),
            half(EmptyLoop, 1, 0.3, noisy()),
            LatencyRow { interference: stolen, ..half(Ours, 2, 70.0, None) },
            half(EmptyLoop, 2, 0.3, quiet()),
        ];
        let text = |rows: &[LatencyRow]| {
            LatencyReport::new(Ports::Memif, 64, &[0.5], CAPACITY, rows.to_vec()).text()
        };
        assert!(text(&rows).contains("met with 15.0 in the 1 of 3 turns"), "{}", text(&rows));
        // A bad tail in a quiet turn is the switch's.
        rows.push(half(Ours, 3, 9.0, None));
        rows.push(half(EmptyLoop, 3, 0.3, quiet()));
        assert!(text(&rows).contains("missed with 52.5 in the 2 of 4 turns"), "{}", text(&rows));
        rows.retain(|row| row.turn == 1);
        assert!(text(&rows).contains("no turn of 1 was undisturbed"), "{}", text(&rows));
    }

    #[test]
    fn what_is_added_is_the_median_of_the_differences_within_turns() {
        let rows = [
            row(Ours, 0, 3.0),
            row(Testpmd, 0, 2.0),
            row(Testpmd, 1, 12.0),
            row(Ours, 1, 12.5),
            row(Ours, 2, 5.0),
            row(Testpmd, 2, 1.0),
            row(EmptyLoop, 0, 0.5),
        ];
        let found = summary(&rows, 0.1);
        assert!((found.added_p50 - 1.0).abs() < 1e-9 && (found.ours_p50 - 5.0).abs() < 1e-9, "{found:?}");
        assert!((found.empty_p999 - 5.0).abs() < 1e-9);
        assert!(summary(&rows, 0.5).ours_p50.is_nan());
    }

    #[test]
    fn targets_are_told_as_met_or_missed() {
        let text = |ours: f64| {
            let rows = vec![row(Ours, 0, ours), row(Testpmd, 0, 1.0)];
            LatencyReport::new(Ports::Memif, 64, &[0.1], CAPACITY, rows).text()
        };
        assert!(text(2.2).contains("target 1.28: met") && text(2.3).contains("target 1.28: missed"));
    }
}
