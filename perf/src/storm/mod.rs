//! `perf storm`: a vNIC that opens queue pairs without end, and what becomes of its neighbour's packets.
//!
//! ```text
//!   perf: victim (64 admitted queue pairs, writes) --memif--+
//!                                                           +--> vswitch --VxLAN, memif--> perf: counts and times
//!   perf: storm (each packet a new queue pair)     --memif--+
//! ```
//! The worker's capacity is measured first; the victim then sends at a share of it, with and without the storm by
//! turns. Loss is what the switch received of the victim and did not send.

pub mod report;

use serde_json::json;
use wire::roce::opcode::RC_WRITE_ONLY;

use crate::generator::ports;
use crate::generator::rig::Demand;
use crate::generator::scenario::check::{Content, StreamPlan};
use crate::generator::scenario::{Distribution, Protocol};
use crate::generator::units::Range;
use crate::host::interrupt;
use crate::live::beside::Beside;
use crate::live::capacity::Capacity;
use crate::live::testbed::{self, PreparedHost, REMOTE, Station, SwitchSpec, TestBed, station};
use crate::options::{Common, OneCore, Plot, within};
use crate::{Error, Result};

use report::StormReport;

/// Open queue pairs without end beside a steady neighbour, with and without by turns.
#[derive(Debug, Clone, clap::Args)]
pub struct StormOptions {
    /// Pairs of trials, with and without the storm.
    #[arg(long, default_value_t = 5, value_parser = within::<usize>(1, 1000))]
    pub pairs: usize,
    /// Length of a trial in seconds.
    #[arg(long, default_value_t = 5.0, value_parser = within::<f64>(0.1, 600.0))]
    seconds: f64,
    /// New queue pairs per second of the storm.
    #[arg(long, default_value_t = 100_000)]
    pub rate: u64,
    /// Queue pairs that the storm may have at a time.
    #[arg(long, default_value_t = 1000)]
    pub quota: u32,
    /// Queue pairs of the victim.
    #[arg(long, default_value_t = 64, value_parser = within::<u32>(1, 65_536))]
    pub victim_qps: u32,
    /// The victim's rate in percent of the worker's capacity.
    #[arg(long, default_value_t = 40.0, value_parser = within::<f64>(1.0, 100.0))]
    share: f64,
    #[command(flatten)]
    on: OneCore,
    #[command(flatten)]
    plot: Plot,
    #[command(flatten)]
    common: Common,
}

/// Bytes of a frame, frame check sequence included: a write of 32 bytes.
const SIZE: u32 = 110;
const MBUFS: u32 = 16_383;
/// Queue pairs of the victim, and those of the storm, which begin far above; after fifteen million they come again.
const VICTIM_QPS: u128 = 0x1000;
const STORM_QPS: Range = Range { first: 0x10_0000, count: 0xef_fff0 };
/// Seconds of a step of the time series.
const STEP: f64 = 0.05;

pub fn run(options: &StormOptions) -> anyhow::Result<()> {
    let vswitch = options.common.vswitch()?;
    interrupt::install()?;
    println!("{}", options.intention());
    println!("{}", report::TABLE.head());
    let bench = PreparedHost::prepare(options.on.core, 512, options.common.keep)?;
    let streams = [victim(options), storm()];
    let plan = ports::plan_of(&streams);
    let runtime = ports::runtime(&plan, bench.cores.housekeeping, MBUFS)?;
    let vnics = [("victim", options.victim_qps), ("storm", options.quota)]
        .map(|(name, quota)| (name.to_owned(), json!({ "qp-quota": quota })));
    let spec = SwitchSpec {
        // Queue pairs that the storm leaves give their places back, so that new ones are admitted all the time.
        sections: json!({ "rcft": { "idle-timeout": "1s", "grace": "0s" } }),
        ..SwitchSpec::new("storm", bench.cores, &vnics).with_uplink(json!({}))
    };
    let mut bed = TestBed::start(&vswitch, &bench, &runtime, &spec, &streams)?;
    let capacity = capacity(&mut bed)?;
    let rate = capacity.packets_per_second * options.share / 100.0;
    let demand = |storm| {
        let rates = vec![Some(rate), Some(if storm { options.rate as f64 } else { 0.0 })];
        Demand { series: Some(STEP), ..Demand::new(rates, options.seconds) }
    };
    let finished = |trial: &Beside| println!("{}", report::TABLE.row(trial));
    let trials = bed.beside(options.pairs, "victim", demand, finished)?;
    drop(bed);
    let report = StormReport::new(options, capacity, rate as u64, trials);
    println!("{capacity}; the victim sends {:.2} million a second", rate / 1e6);
    println!("{}", report.verdict());
    options.common.write(&report)?;
    options.plot.draw(|stem| report.plot(stem))?;
    anyhow::ensure!(report.lost_with == 0 || report.lost_without > 0, "the storm cost the victim packets");
    Ok(())
}

impl StormOptions {
    /// The head of the report, before the first trial.
    fn intention(&self) -> String {
        format!(
            "victim: {} queue pairs at {:.0} % of the worker's capacity; storm: {} new queue pairs a second, quota {}; \
             {} pairs of {} s",
            self.victim_qps, self.share, self.rate, self.quota, self.pairs, self.seconds
        )
    }
}

/// Writes of a reliable connection from a vNIC to the station behind the tunnel.
fn writes(name: &str, from: usize, station: Station, flows: u32, qp: Range) -> StreamPlan {
    let mut plan = testbed::stream(name, from, 2, station, REMOTE).with_flows(flows, |shape, tuples| {
        (shape.protocol, shape.tos) = (Protocol::RoceRc, 2);
        (tuples.src_port, tuples.dst_port, tuples.qp) = (None, Range::one(4791), qp);
    });
    plan.sizes = vec![(SIZE, 1)];
    if let Content::Made { opcodes, .. } = &mut plan.content {
        *opcodes = vec![RC_WRITE_ONLY];
    }
    plan
}

fn victim(options: &StormOptions) -> StreamPlan {
    let qp = Range { first: VICTIM_QPS, count: options.victim_qps };
    writes("victim", 0, station(1), options.victim_qps, qp)
}

fn storm() -> StreamPlan {
    let plan = writes("storm", 1, station(2), 1, STORM_QPS);
    StreamPlan { distribution: Distribution::New, window: Some(0), ..plan }
}

/// What the worker can do with the victim's traffic alone.
fn capacity(bed: &mut TestBed<'_>) -> Result<Capacity> {
    let (capacity, outcome) = bed.capacity_of_first()?;
    match outcome.streams[0].received.out_of_sequence() {
        0 => Ok(capacity),
        faults => {
            let what = format!(
                "{faults} packets of the victim were out of sequence before any storm; see to that first"
            );
            Err(Error::Failed(what))
        }
    }
}
