//! What came out, as a table, as JSON and as a plot.

use std::path::Path;

use serde::Serialize;

use crate::Result;
use crate::report::plot::{Panel, Series, draw};
use crate::report::table::{Table, column, number, percent};

#[derive(Debug, Clone, Serialize)]
pub struct OffloadTrial {
    /// Percent of the packets that are of fast flows.
    pub share: u64,
    pub packets: u64,
    /// Part of them that the e-switch sent on, 0 to 1.
    pub offloaded: f64,
    /// From the first packet until all fast flows were in hardware, milliseconds.
    pub installed_after_ms: Option<f64>,
    /// TSC cycles of the worker, over all packets; the simulator's own are not among them.
    pub worker_cycles: f64,
    /// The same over the packets that came to the worker.
    pub worker_cycles_per_own: Option<f64>,
    /// TSC cycles of the simulator, over all packets.
    pub eswitch_cycles: f64,
    /// Packets that did not come out.
    pub lost: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Look {
    /// Seconds since its beginning.
    pub at: f64,
    pub rules: u64,
    pub flows: u64,
    pub installed: u64,
    /// Memory of the daemon, bytes.
    pub memory: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Churn {
    /// How long it went on.
    pub seconds: f64,
    pub flows: u64,
    pub packets: u64,
    /// Packets that did not come out.
    pub lost: u64,
    pub installed: u64,
    pub withdrawn: u64,
    pub rules_left: u64,
    /// Memory of the daemon before, bytes.
    pub memory_before: u64,
    pub memory_after: u64,
    pub looks: Vec<Look>,
}

#[derive(Debug, Clone, Serialize)]
pub struct OffloadReport {
    /// Packets a second.
    pub rate: u64,
    /// The trials, in their order.
    pub trials: Vec<OffloadTrial>,
    pub churn: Option<Churn>,
}

/// A trial on a line.
pub const TABLE: Table<OffloadTrial> = Table(&[
    column("share %", 7, |trial| trial.share.to_string()),
    column("packets", 10, |trial| trial.packets.to_string()),
    column("offloaded", 10, |trial| percent(trial.offloaded, 1)),
    column("installed ms", 13, |trial| number(trial.installed_after_ms, 0)),
    column("worker cyc/pkt", 16, |trial| number(trial.worker_cycles, 0)),
    column("cyc/own pkt", 14, |trial| number(trial.worker_cycles_per_own, 0)),
    column("sim cyc/pkt", 12, |trial| number(trial.eswitch_cycles, 0)),
    column("lost", 6, |trial| trial.lost.to_string()),
]);

impl OffloadReport {
    pub fn verdict(&self) -> String {
        let Some(churn) = &self.churn else { return String::new() };
        let most = churn.looks.iter().map(|look| look.rules).max().unwrap_or(0);
        format!(
            "churn: {} flows in {} s, {} packets, {} lost; {} came into hardware, {} left it; {most} rules at most, {} in \
             the end; memory {} MiB before, {} MiB after",
            churn.flows,
            churn.seconds,
            churn.packets,
            churn.lost,
            churn.installed,
            churn.withdrawn,
            churn.rules_left,
            churn.memory_before >> 20,
            churn.memory_after >> 20
        )
    }

    /// True when nothing was lost and nothing left behind.
    pub fn is_clean(&self) -> bool {
        let churn = self.churn.as_ref();
        self.trials.iter().all(|trial| trial.lost == 0)
            && churn.is_none_or(|churn| {
                churn.lost == 0 && churn.rules_left == 0 && churn.installed == churn.withdrawn
            })
    }

    /// The course of the churn, into `stem.svg` and `stem.png`.
    pub fn plot(&self, stem: &Path) -> Result<()> {
        let Some(churn) = &self.churn else { return Ok(()) };
        let series = |name: &str, of: fn(&Look) -> f64| {
            Series::new(name, churn.looks.iter().map(|look| (look.at, of(look))))
        };
        let flows = [series("rules", |look| look.rules as f64), series("flows", |look| look.flows as f64)];
        let installed = series("installed", |look| look.installed as f64);
        let resident = series("resident", |look| look.memory as f64 / 1_048_576.0);
        let panels = [
            Panel::new("rules and flows in the simulated e-switch", false, flows.into()),
            Panel::new("flows that came into hardware so far", false, vec![installed]),
            Panel::new("memory of the daemon, MiB", false, vec![resident]),
        ];
        let title =
            format!("{} new flows a second for {} s", churn.flows as f64 / churn.seconds, churn.seconds);
        draw(stem, &title, "seconds", &panels, &[])
    }
}
