//! What `perf setup` found.

use serde::Serialize;

use super::miss::Misses;
use crate::live::beside::Beside;
use crate::live::capacity::Capacity;
use crate::report::stats::median;
use crate::report::table::{Table, by_name, column, number};

/// What the project wants a worker to set up in a second.
const TARGET: f64 = 1e6;

/// All flows of a round, twice.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SetupRound {
    pub flows: u64,
    /// Flows set up per second of CPU time with packets.
    pub set_ups_per_second: f64,
    /// Packets of the second pass that found no flow.
    pub misses_again: u64,
    /// Packets of the second pass per second of CPU time with packets.
    pub hits_per_second: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct SetupReport {
    pub misses: Misses,
    pub rounds: Vec<SetupRound>,
    /// What the worker can do with the neighbour's packets.
    pub capacity: Capacity,
    pub neighbour_rate: f64,
    pub beside: Vec<Beside>,
}

/// A trial on a line.
const BESIDE: Table<Beside> = Table(&[
    column("scanner", -8, |trial| if trial.disturbed { "with" } else { "without" }.into()),
    column("sent", 10, |trial| trial.steady().sent.to_string()),
    column("lost", 6, |trial| trial.steady().lost.to_string()),
    column("not taken", 9, |trial| trial.steady().refused.to_string()),
    column("late", 9, |trial| trial.steady().late.to_string()),
    column("scanned/s", 11, |trial| number(trial.other().sent as f64 / trial.outcome.seconds, 0)),
    column("set up/s", 10, |trial| {
        number((trial.other().sent - trial.other().lost) as f64 / trial.outcome.seconds, 0)
    }),
    column("p50 us", 8, |trial| number(trial.steady().delay.map(|delay| delay.p50), 1)),
    column("p99 us", 9, |trial| number(trial.steady().delay.map(|delay| delay.p99), 1)),
    column(" drops", 0, |trial| format!(" {}", by_name(&trial.drops))),
]);

impl SetupReport {
    /// Packets of the neighbour that were lost beside a scanner.
    pub fn lost_beside_a_scanner(&self) -> u64 {
        let beside_it = self.beside.iter().filter(|trial| trial.disturbed);
        beside_it.map(|trial| trial.steady().lost + trial.steady_drops).sum()
    }

    pub fn text(&self) -> String {
        let mut lines = vec![self.misses.text()];
        for round in &self.rounds {
            lines.push(format!(
                "{} flows set up at {:.3} million per second of CPU time with packets; found again, but for {}, at {:.2} \
                 million",
                round.flows,
                round.set_ups_per_second / 1e6,
                round.misses_again,
                round.hits_per_second / 1e6
            ));
        }
        let rates: Vec<f64> = self.rounds.iter().map(|round| round.set_ups_per_second).collect();
        if let Some(median) = median(&rates) {
            let word = if median >= TARGET { "met" } else { "missed" };
            lines.push(format!(
                "median {:.3} million, target {:.0} million: {word}",
                median / 1e6,
                TARGET / 1e6
            ));
        }
        lines.push(self.capacity.to_string());
        lines.push(format!("neighbour at {:.2} million a second", self.neighbour_rate / 1e6));
        lines.push(BESIDE.text(&self.beside).trim_end().to_owned());
        lines.push(format!("lost by the neighbour beside a scanner: {}", self.lost_beside_a_scanner()));
        lines.join("\n") + "\n"
    }
}
