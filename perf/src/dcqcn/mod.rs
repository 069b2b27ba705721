//! `perf dcqcn`: the loop from the switch's marks over notifications to the senders' rates, beside TCP, in simulation:
//! the token buckets are the switch's own code, senders and receivers are models, the clock is virtual.
//!
//! Every figure is the same on every machine.

pub mod cli;
pub mod reaction;
pub mod sim;
pub mod spread;
pub mod tcp;

use std::path::Path;

use pipelines::qos::{Class, NodeLimits};
use serde::Serialize;

use crate::Result;
use crate::options::word;
use crate::report::plot::{Panel, Series, draw};
use crate::report::table::{Table, column, number};
use sim::{Flow, Limit, SenderKind, SimSetup, Trace};

/// Rate of the link.
const LINK: u64 = 10_000_000_000;
/// When the senders have found their rates, in seconds.
const SETTLED: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SimScenario {
    /// Queue pairs under a ceiling.
    Alone,
    /// RDMA against TCP of one vNIC, weights 1:1.
    Even,
    /// RDMA against TCP of one vNIC, weights 3:1.
    ThreeToOne,
    /// A tenant's queue pairs that ignore marks against another's assured rate.
    Storm,
}

impl SimScenario {
    pub const fn about(self) -> &'static str {
        match self {
            Self::Alone => "4 queue pairs under a ceiling of 5 Gbit/s",
            Self::Even => "RDMA and TCP of one vNIC, weights 1:1, 10 Gbit/s",
            Self::ThreeToOne => "RDMA and TCP of one vNIC, weights 3:1, 10 Gbit/s",
            Self::Storm => "tenant A ignores marks at 20 Gbit/s; tenant B is assured 4 of 10 Gbit/s",
        }
    }

    /// What all of it together may not exceed, Gbit/s.
    fn ceil_gbit(self) -> f64 {
        let ceil = if self == Self::Alone { LINK / 2 } else { LINK };
        ceil as f64 / 1e9
    }

    /// RDMA's part of everything by weight, where it has to share.
    fn rdma_share(self) -> Option<f64> {
        match self {
            Self::Even => Some(0.5),
            Self::ThreeToOne => Some(0.75),
            Self::Alone | Self::Storm => None,
        }
    }

    /// The sender that keeps within its assured rate, if there is one.
    fn assured_sender(self) -> Option<usize> {
        (self == Self::Storm).then_some(4)
    }

    fn setup(self, seed: u64) -> SimSetup {
        let flow = |vnic, source| Flow { vnic, source, from_ns: 0 };
        let free = NodeLimits::FREE;
        // One after the other, so that each has to make room, as the NIC behind them would make them.
        let late = |n: u64| Flow { from_ns: n * 10_000_000, ..flow(0, SenderKind::Rdma) };
        let link = Limit::Link(NodeLimits { ceil: LINK, ..free });
        let (limits, flows) = match self {
            Self::Alone => {
                let ceil = NodeLimits { ceil: LINK / 2, ..free };
                (vec![link, Limit::Tenant(0, ceil)], (0..4).map(late).collect())
            }
            Self::Even | Self::ThreeToOne => {
                let weight = if self == Self::Even { 1 } else { 3 };
                let mut flows: Vec<Flow> = (0..4).map(late).collect();
                flows.extend((0..4).map(|_| flow(0, SenderKind::Tcp)));
                (vec![link, Limit::Class(0, Class::Rdma, NodeLimits { weight, ..free })], flows)
            }
            Self::Storm => {
                let assured = NodeLimits { assured: 4 * LINK / 10, ..free };
                let limits = vec![link, Limit::Tenant(1, assured), Limit::Class(1, Class::Rdma, assured)];
                let mut flows: Vec<Flow> = (0..4).map(|_| flow(0, SenderKind::Blind(5e9))).collect();
                // B sends less than it is assured.
                flows.push(flow(1, SenderKind::Blind(3.9e9)));
                (limits, flows)
            }
        };
        SimSetup { limits, flows, seed }
    }
}

/// What came out of a scenario.
#[derive(Debug, Serialize)]
pub struct SimOutcome {
    pub scenario: String,
    pub about: &'static str,
    pub flows: Vec<FlowOutcome>,
    /// RDMA in all, Gbit/s, of tenant A.
    pub rdma_gbit: f64,
    /// TCP in all, Gbit/s.
    pub tcp_gbit: f64,
    /// Everything, Gbit/s.
    pub total_gbit: f64,
    /// Jain's index of the queue pairs that obey (Jain, Chiu, Hawe 1984): 1 is fair.
    pub jain_rdma: Option<f64>,
    pub jain_tcp: Option<f64>,
    /// RDMA packets of senders that obey that were dropped.
    pub rdma_lost: u64,
    #[serde(skip)]
    traces: Vec<Trace>,
}

#[derive(Debug, Serialize)]
pub struct FlowOutcome {
    pub kind: &'static str,
    pub vnic: u32,
    /// Its mean rate once settled, Gbit/s.
    pub gbit: f64,
    pub dropped: u64,
    pub waited: u64,
    pub notified: u64,
    /// Packets marked, per second, once settled.
    pub marks: f64,
}

fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (rates.len() > 1 && squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

/// Runs a scenario; `seed` is of [`SimSetup::seed`].
pub fn run(scenario: SimScenario, seed: u64) -> SimOutcome {
    let setup = scenario.setup(seed);
    let traces = sim::run(&setup);
    let gbit = |trace: &Trace| trace.mean_from(SETTLED) / 1e9;
    let pairs = || setup.flows.iter().zip(&traces);
    let of = |wanted: fn(&Flow) -> bool| -> Vec<f64> {
        pairs().filter(|(flow, _)| wanted(flow)).map(|(_, trace)| gbit(trace)).collect()
    };
    let obeys = |flow: &Flow| flow.source == SenderKind::Rdma;
    let tcp = of(|flow| flow.source == SenderKind::Tcp);
    let flows = pairs().map(|(flow, trace)| {
        let late = trace.marks.iter().filter(|point| point.0 >= SETTLED);
        let (sum, count) = late.fold((0.0, 0), |(sum, count), point| (sum + point.1, count + 1));
        FlowOutcome {
            kind: match flow.source {
                SenderKind::Rdma => "rdma",
                SenderKind::Blind(_) => "rdma-blind",
                SenderKind::Tcp => "tcp",
            },
            vnic: flow.vnic,
            gbit: gbit(trace),
            dropped: trace.dropped,
            waited: trace.waited,
            notified: trace.notified,
            marks: sum / f64::from(count.max(1)),
        }
    });
    let flows = flows.collect();
    SimOutcome {
        scenario: word(&scenario),
        about: scenario.about(),
        flows,
        rdma_gbit: of(|flow| flow.vnic == 0 && flow.source != SenderKind::Tcp).iter().sum(),
        tcp_gbit: tcp.iter().fold(0.0, |sum, rate| sum + rate),
        total_gbit: traces.iter().map(gbit).sum(),
        jain_rdma: jain(&of(|flow| flow.source == SenderKind::Rdma)),
        jain_tcp: jain(&tcp),
        rdma_lost: pairs().filter(|(flow, _)| obeys(flow)).map(|(_, trace)| trace.dropped).sum(),
        traces,
    }
}

/// What came out of a scenario on a line.
pub const TABLE: Table<SimOutcome> = Table(&[
    column("scenario", -13, |outcome| outcome.scenario.clone()),
    column("rdma Gb/s", 9, |outcome| number(outcome.rdma_gbit, 2)),
    column("tcp Gb/s", 8, |outcome| number(outcome.tcp_gbit, 2)),
    column("all Gb/s", 9, |outcome| number(outcome.total_gbit, 2)),
    column("jain rdma", 10, |outcome| number(outcome.jain_rdma, 3)),
    column("jain tcp", 9, |outcome| number(outcome.jain_tcp, 3)),
    column("rdma lost", 9, |outcome| outcome.rdma_lost.to_string()),
    column("", 0, |outcome| format!("  {}", outcome.about)),
]);

impl SimOutcome {
    /// Draws rates of classes and of senders, what is held or owed, and marks over time into `stem.svg` and
    /// `stem.png`.
    ///
    /// # Errors
    /// [`Error::Failed`](crate::Error::Failed).
    pub fn plot(&self, stem: &Path) -> Result<()> {
        let panel = |title: &str, points: fn(&Trace) -> &Vec<(f64, f64)>, scale: f64| {
            let series = self.flows.iter().zip(&self.traces).enumerate().map(|(n, (flow, trace))| {
                let name = format!("{} {} (vNIC {})", flow.kind, n + 1, flow.vnic);
                Series::new(name, points(trace).iter().map(|&(x, y)| (x * 1e3, y * scale)))
            });
            Panel::new(title, false, series.collect())
        };
        let panels = [
            Panel::new("rate by class, Gbit/s", false, self.sums()),
            panel("rate by sender, Gbit/s", |trace| &trace.rate, 1e-9),
            panel("waiting or owed by the class, kB", |trace| &trace.held, 1e-3),
            panel("marks, thousand per second", |trace| &trace.marks, 1e-3),
        ];
        draw(stem, self.about, "milliseconds", &panels, &[])
    }

    /// Rates of all senders of a kind and vNIC together, and of all.
    fn sums(&self) -> Vec<Series> {
        let mut kinds: Vec<(&str, u32)> = self.flows.iter().map(|flow| (flow.kind, flow.vnic)).collect();
        kinds.dedup();
        let sum = |name: String, of: &dyn Fn(&FlowOutcome) -> bool| {
            let mut points: Vec<(f64, f64)> = Vec::new();
            for (_, trace) in self.flows.iter().zip(&self.traces).filter(|(flow, _)| of(flow)) {
                points.resize(trace.rate.len(), (0.0, 0.0));
                for (point, &(x, y)) in points.iter_mut().zip(&trace.rate) {
                    *point = (x * 1e3, point.1 + y * 1e-9);
                }
            }
            Series { name, points }
        };
        let mut series: Vec<Series> = kinds
            .iter()
            .map(|&(kind, vnic)| {
                sum(format!("{kind}, all of vNIC {vnic}"), &|flow| (flow.kind, flow.vnic) == (kind, vnic))
            })
            .collect();
        series.push(sum("everything".into(), &|_| true));
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(what: f64, wanted: f64, percent: f64) {
        assert!((what / wanted - 1.0).abs() * 100.0 <= percent, "{what:.3}, wanted {wanted:.3}");
    }

    #[test]
    fn dcqcn_alone_converges_under_its_ceiling_without_loss() {
        let outcome = run(SimScenario::Alone, 0);
        assert_eq!(outcome.rdma_lost, 0);
        assert!((4.0..=5.05).contains(&outcome.rdma_gbit), "{outcome:?}");
        assert!(outcome.jain_rdma.is_some_and(|jain| jain > 0.9), "{outcome:?}");
        assert!(outcome.flows.iter().all(|flow| flow.notified > 10));
    }

    #[test]
    fn dcqcn_rdma_and_tcp_share_by_weight() {
        for (scenario, rdma) in [(SimScenario::Even, 5.0), (SimScenario::ThreeToOne, 7.5)] {
            let outcome = run(scenario, 0);
            println!("{}", TABLE.row(&outcome));
            assert_eq!(outcome.rdma_lost, 0);
            near(outcome.total_gbit, 10.0, 3.0);
            // Senders that obey stay a little under their share; TCP takes what they leave.
            assert!(outcome.rdma_gbit <= rdma * 1.02 && outcome.rdma_gbit >= rdma * 0.8, "{outcome:?}");
            assert!(outcome.tcp_gbit >= (10.0 - rdma) * 0.97, "{outcome:?}");
            assert!(outcome.jain_tcp.is_some_and(|jain| jain > 0.9));
        }
    }

    #[test]
    fn dcqcn_sums_by_class_are_drawn_of_all_their_senders() {
        let outcome = run(SimScenario::Even, 0);
        let sums = outcome.sums();
        let names: Vec<&str> = sums.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["rdma, all of vNIC 0", "tcp, all of vNIC 0", "everything"]);
        let late = |series: &Series| {
            let late: Vec<f64> =
                series.points.iter().filter(|point| point.0 >= SETTLED * 1e3).map(|point| point.1).collect();
            late.iter().sum::<f64>() / late.len() as f64
        };
        near(late(&sums[0]), outcome.rdma_gbit, 0.1);
        near(late(&sums[1]), outcome.tcp_gbit, 0.1);
        near(late(&sums[2]), outcome.total_gbit, 0.1);
    }

    #[test]
    fn dcqcn_a_storm_leaves_what_is_assured() {
        let outcome = run(SimScenario::Storm, 0);
        let victim = outcome.flows.last().unwrap();
        // On the wire its packets are a little longer.
        near(victim.gbit, 3.9 * 1106.0 / 1082.0, 1.0);
        assert_eq!((victim.dropped, victim.waited, victim.marks), (0, 0, 0.0));
        near(outcome.total_gbit, 10.0, 2.0);
    }
}
