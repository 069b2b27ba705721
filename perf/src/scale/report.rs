//! What `perf scale` found: a row per case and number of flows, a verdict, and the curve beyond what was measured.

use serde::Serialize;

use super::model::{self, Inputs, Point};
use crate::compare::cases::Job;
use crate::compare::sample::Sample;
use crate::report::parts::{self, Part};
use crate::report::stats::{Spread, median};
use crate::report::table::{Table, column, number};

/// What each of two workers must keep of what it does alone.
pub const TARGET: f64 = 0.95;

/// The samples of one round, by worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleRound {
    /// Its switch alone on the machine, the other core idle.
    pub alone: [Sample; 2],
    /// Two switches at a time, with one worker each: they share the machine and nothing else.
    pub apart: [Sample; 2],
    pub together: [Sample; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScaleWorker {
    pub core: usize,
    /// Median millions of packets per CPU-second of its thread, alone.
    pub alone_mpps: f64,
    /// Median ticks of the time stamp counter a packet, alone.
    pub alone_cycles: f64,
    pub together_mpps: f64,
    pub together_cycles: f64,
    /// What is left beside the other worker of the same switch, of what there was alone.
    pub together_to_alone: Spread,
    /// What is left beside another switch: what cores take from each other.
    pub apart_to_alone: Spread,
    /// What is left beside the other worker, of what there was beside another switch: what the switch itself shares.
    pub together_to_apart: Spread,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScaleRow {
    pub case: String,
    /// Flows of each worker, as on the command line.
    pub flows: String,
    /// Length of the inner frame.
    pub inner_bytes: usize,
    pub traffic: String,
    /// Whether all packets pay.
    pub qos: bool,
    pub rounds: usize,
    pub workers: Vec<ScaleWorker>,
    /// Whether each kept its part.
    pub met: bool,
    pub draws_per_packet: f64,
    /// Of both workers, a second.
    pub draws_per_second: f64,
    pub extrapolated: Extrapolated,
}

/// The curve for tenants of their own on each worker, whose draws meet at the link, and for one vNIC whose flows are on all
/// of them: they meet at its class, itself, its VPC and the link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Extrapolated {
    pub label: &'static str,
    pub inputs: Inputs,
    pub own_tenants: Vec<Point>,
    /// All have the same vNIC.
    pub one_vnic: Vec<Point>,
}

const LABEL: &str = "extrapolated, not measured: arithmetic on the inputs; clock, caches, memory and NIC are taken as \
                     enough for all";

impl ScaleRow {
    /// Sums up the rounds of a job; `None` without any. `draws` are those of a packet, `line` is what it costs in ticks
    /// that a line moves.
    pub fn new(
        job: &Job,
        cores: [usize; 2],
        rounds: &[ScaleRound],
        draws: f64,
        line: f64,
        hertz: f64,
    ) -> Option<Self> {
        let workers = [0, 1].map(|worker| worker_of(rounds, worker, cores[worker], hertz));
        let workers = workers.into_iter().collect::<Option<Vec<_>>>()?;
        let alone = workers.iter().map(|worker| worker.alone_cycles).sum::<f64>() / workers.len() as f64;
        let rate: f64 = workers.iter().map(|worker| worker.together_mpps).sum();
        let inputs = Inputs { alone, draws, line, hertz };
        Some(Self {
            case: job.label(),
            flows: job.flows.given.clone(),
            inner_bytes: job.inner_bytes,
            traffic: job.traffic.to_string(),
            qos: job.qos,
            rounds: rounds.len(),
            met: workers.iter().all(|worker| worker.together_to_alone.median >= TARGET),
            workers,
            draws_per_packet: draws,
            draws_per_second: draws * rate * 1e6,
            extrapolated: Extrapolated {
                label: LABEL,
                inputs,
                own_tenants: model::curve(&inputs, 1.0),
                one_vnic: model::curve(&inputs, 4.0),
            },
        })
    }

    /// Its lines of the table, one a worker.
    pub fn lines(&self) -> Vec<String> {
        self.workers.iter().map(|worker| TABLE.row(&(self.clone(), *worker))).collect()
    }

    /// Whether the target is met, and if not, who takes what is missing.
    pub fn verdict(&self) -> String {
        let least = |value: &dyn Fn(&ScaleWorker) -> f64| {
            self.workers.iter().map(value).fold(f64::INFINITY, f64::min) * 100.0
        };
        let [kept, machine, switch] = [
            least(&|worker| worker.together_to_alone.median),
            least(&|worker| worker.apart_to_alone.median),
            least(&|worker| worker.together_to_apart.median),
        ];
        format!(
            "{} {}: {kept:.1} % each at least, target {:.0} %: {}; two switches that share nothing keep {machine:.1} %, the \
             switch's own sharing leaves {switch:.1} % of that; {:.0} draws from shared buckets a second ({:.5} a packet)",
            self.case,
            self.flows,
            TARGET * 100.0,
            if self.met { "met" } else { "missed" },
            self.draws_per_second,
            self.draws_per_packet
        )
    }

    pub fn curve(&self) -> String {
        let Extrapolated { inputs, own_tenants, one_vnic, .. } = &self.extrapolated;
        let words = format!(
            "{} {}, EXTRAPOLATED from {:.0} cycles a packet alone, {:.5} draws a packet, {:.0} cycles a line:",
            self.case, self.flows, inputs.alone, inputs.draws, inputs.line
        );
        let point = |point: &Point| format!("{:.1} Mpps ({:.2} %)", point.all_mpps, point.share * 100.0);
        let rows = own_tenants.iter().zip(one_vnic).filter(|(own, _)| own.workers.is_power_of_two());
        let rows = rows.map(|(own, one)| vec![own.workers.to_string(), point(own), point(one)]).collect();
        let titles = vec!["workers", "tenants of their own", "one vNIC on all"];
        parts::text(&[Part::Words(words), Part::Rows { titles, rows }])
    }
}

fn worker_of(rounds: &[ScaleRound], worker: usize, core: usize, hertz: f64) -> Option<ScaleWorker> {
    let each = |value: &dyn Fn(&ScaleRound) -> f64| rounds.iter().map(value).collect::<Vec<f64>>();
    let ratio = |one: fn(&ScaleRound) -> &[Sample; 2], other: fn(&ScaleRound) -> &[Sample; 2]| {
        Spread::of(&each(&|round| one(round)[worker].mpps() / other(round)[worker].mpps()))
    };
    Some(ScaleWorker {
        core,
        alone_mpps: median(&each(&|round| round.alone[worker].mpps()))?,
        alone_cycles: median(&each(&|round| round.alone[worker].cycles(hertz)))?,
        together_mpps: median(&each(&|round| round.together[worker].mpps()))?,
        together_cycles: median(&each(&|round| round.together[worker].cycles(hertz)))?,
        together_to_alone: ratio(|round| &round.together, |round| &round.alone)?,
        apart_to_alone: ratio(|round| &round.apart, |round| &round.alone)?,
        together_to_apart: ratio(|round| &round.together, |round| &round.apart)?,
    })
}

/// A row's worker on a line.
pub const TABLE: Table<(ScaleRow, ScaleWorker)> = Table(&[
    column("case", -6, |(row, _)| row.case.clone()),
    column("flows", 6, |(row, _)| row.flows.clone()),
    column("traffic", -7, |(row, _)| row.traffic.clone()),
    column("core", 4, |(_, worker)| worker.core.to_string()),
    column("alone Mpps", 11, |(_, worker)| number(worker.alone_mpps, 2)),
    column("cyc", 6, |(_, worker)| number(worker.alone_cycles, 0)),
    column("together Mpps", 14, |(_, worker)| number(worker.together_mpps, 2)),
    column("cyc", 6, |(_, worker)| number(worker.together_cycles, 0)),
    column("together/alone %", 20, |(_, worker)| worker.together_to_alone.percent()),
    column("apart/alone %", 20, |(_, worker)| worker.apart_to_alone.percent()),
    column("together/apart %", 20, |(_, worker)| worker.together_to_apart.percent()),
    column("rounds", 6, |(row, _)| row.rounds.to_string()),
]);

#[derive(Debug, Clone, Serialize)]
pub struct ScaleReport {
    /// Ticks of the time stamp counter a second.
    pub hertz: f64,
    /// Ticks until a line that the other core has is here.
    pub line_cycles: f64,
    /// Length of a sample in seconds.
    pub seconds: f64,
    pub rows: Vec<ScaleRow>,
    /// Why nothing was measured, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::Case;

    fn sample(packets: u64) -> Sample {
        Sample { packets, made: None, cpu: 1.0, wall: 1.0 }
    }

    fn row(together: u64) -> ScaleRow {
        let job = Job { qos: true, ..Job::plain(Case::Encap, "1k") };
        let round = |drift: u64| ScaleRound {
            alone: [sample(10_000_000 * drift), sample(20_000_000 * drift)],
            apart: [sample(9_800_000 * drift), sample(20_000_000 * drift)],
            together: [sample(together * drift), sample(20_000_000 * drift)],
        };
        // The machine's speed doubles: ratios are within a round.
        ScaleRow::new(&job, [0, 1], &[round(1), round(2), round(2)], 1e-3, 150.0, 2e9).unwrap()
    }

    #[test]
    fn each_worker_is_held_against_itself_alone() {
        let met = row(9_600_000);
        assert!(met.met && (met.workers[0].together_to_alone.median - 0.96).abs() < 1e-9);
        assert!((met.workers[1].together_to_alone.min - 1.0).abs() < 1e-9);
        assert!((met.workers[0].together_to_apart.max - 96.0 / 98.0).abs() < 1e-9);
        assert!((met.workers[0].alone_cycles - 100.0).abs() < 1e-9);
        let missed = row(9_400_000);
        assert!(!missed.met && missed.verdict().contains("94.0 %") && missed.verdict().contains("missed"));
        assert!(
            (missed.draws_per_packet - 1e-3).abs() < 1e-12
                && (missed.draws_per_second - 58_800.0).abs() < 1e-6
        );
    }

    #[test]
    fn the_curve_says_that_it_is_extrapolated() {
        let row = row(9_600_000);
        assert!(row.curve().contains("EXTRAPOLATED") && row.extrapolated.label.starts_with("extrapolated"));
        assert_eq!((row.curve().lines().count(), row.extrapolated.one_vnic.len()), (2 + 5, 16));
    }
}
