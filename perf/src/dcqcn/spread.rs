//! A scenario many times, each time with other chances: the worst of it.
//!
//! A seed moves the beginnings of the senders and the chances of marks; see [`SimSetup::seed`](super::sim::SimSetup::seed).

use serde::Serialize;

use super::{SimOutcome, SimScenario, run};
use crate::options::word;
use crate::report::table::{Table, column, number};

#[derive(Debug, Default, Serialize)]
pub struct SeedSpread {
    pub scenario: String,
    pub seeds: u64,
    /// How far everything together was over its ceiling, percent; negative: under it.
    pub over_ceil: Option<f64>,
    pub under_ceil: Option<f64>,
    /// How far RDMA was from its share by weight, percent, where there is one: over and under.
    pub share_error: Option<f64>,
    /// The lowest of Jain's indices of queue pairs that obey.
    pub jain_rdma: Option<f64>,
    /// The same of TCPs.
    pub jain_tcp: Option<f64>,
    /// RDMA packets of senders that obey that were dropped, the most of one seed.
    pub rdma_lost: u64,
    /// Packets of a sender within its assured rate that were marked, waited or were dropped, the most of one seed.
    pub assured_touched: Option<f64>,
}

/// The larger, where there are two.
fn worst(one: Option<f64>, other: Option<f64>, better: fn(f64, f64) -> f64) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(better(one, other)),
        (one, other) => one.or(other),
    }
}

impl SeedSpread {
    /// Runs a scenario with the seeds from 1 on.
    pub fn new(scenario: SimScenario, seeds: u64) -> Self {
        let none = Self { scenario: word(&scenario), ..Self::default() };
        (1..=seeds).fold(none, |spread, seed| spread.with(scenario, &run(scenario, seed)))
    }

    fn with(self, scenario: SimScenario, outcome: &SimOutcome) -> Self {
        let off = |rate: f64, wanted: f64| (rate / wanted - 1.0) * 100.0;
        let total = off(outcome.total_gbit, scenario.ceil_gbit());
        let share =
            scenario.rdma_share().map(|share| off(outcome.rdma_gbit, share * outcome.total_gbit).abs());
        let touched = scenario.assured_sender().and_then(|n| outcome.flows.get(n)).map(|flow| {
            // Per second while it was settled; one of them is enough to be seen.
            flow.marks + (flow.waited + flow.dropped) as f64
        });
        Self {
            scenario: self.scenario,
            seeds: self.seeds + 1,
            over_ceil: worst(self.over_ceil, Some(total), f64::max),
            under_ceil: worst(self.under_ceil, Some(-total), f64::max),
            share_error: worst(self.share_error, share, f64::max),
            jain_rdma: worst(self.jain_rdma, outcome.jain_rdma, f64::min),
            jain_tcp: worst(self.jain_tcp, outcome.jain_tcp, f64::min),
            rdma_lost: self.rdma_lost.max(outcome.rdma_lost),
            assured_touched: worst(self.assured_touched, touched, f64::max),
        }
    }
}

/// A scenario on a line.
pub const TABLE: Table<SeedSpread> = Table(&[
    column("scenario", -13, |spread| spread.scenario.clone()),
    column("seeds", 5, |spread| spread.seeds.to_string()),
    column("over ceil %", 11, |spread| number(spread.over_ceil, 2)),
    column("under ceil %", 12, |spread| number(spread.under_ceil, 2)),
    column("share error %", 13, |spread| number(spread.share_error, 2)),
    column("jain rdma", 10, |spread| number(spread.jain_rdma, 3)),
    column("jain tcp", 9, |spread| number(spread.jain_tcp, 3)),
    column("rdma lost", 9, |spread| spread.rdma_lost.to_string()),
    column("assured touched", 15, |spread| number(spread.assured_touched, 0)),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dcqcn_seeds_differ_and_none_of_them_breaks_a_promise() {
        let rates: Vec<f64> = (1..4).map(|seed| run(SimScenario::Even, seed).flows[0].gbit).collect();
        assert!(rates[0] != rates[1] && rates[1] != rates[2], "{rates:?}");
        for scenario in [SimScenario::ThreeToOne, SimScenario::Storm] {
            let spread = SeedSpread::new(scenario, 3);
            println!("{}", TABLE.row(&spread));
            assert_eq!((spread.seeds, spread.rdma_lost), (3, 0));
            assert!(spread.over_ceil.is_some_and(|error| error < 1.0), "{spread:?}");
            assert!(spread.assured_touched.is_none_or(|packets| packets == 0.0), "{spread:?}");
            assert_eq!(spread.share_error.is_some(), scenario == SimScenario::ThreeToOne);
            assert_eq!(spread.assured_touched.is_some(), scenario == SimScenario::Storm);
        }
    }
}
