//! `perf setup`: how fast new flows are set up, and what a scanner costs its neighbour.
//!
//! ```text
//!   perf: scanner (each packet a new flow)  --memif--+
//!                                                    +--> vswitch --VxLAN, memif--> perf: counts
//!   perf: neighbour (flows that are known)  --memif--+
//! ```
//! Before anything else the slow path by itself, in this process and without ports: how long one new flow takes.
//! Then the scanner alone with the limit of misses off: every packet takes the slow path and leaves a flow, which a second
//! pass over the same flows proves, for it finds them all. Last the neighbour at a share of the worker's capacity, with and
//! without a scanner at full rate beside it, and the limit as it is by default.

pub mod miss;
pub mod report;
pub mod world;

use serde_json::{Value, json};

use crate::generator::ports;
use crate::generator::rig::Demand;
use crate::generator::scenario::Distribution;
use crate::generator::scenario::check::StreamPlan;
use crate::generator::units::Range;
use crate::host::interrupt;
use crate::live::config::Counted;
use crate::live::testbed::{PreparedHost, REMOTE, SwitchSpec, TestBed, station, stream};
use crate::options::{Common, OneCore, within};
use crate::{Error, Result};

use miss::Misses;
use report::{SetupReport, SetupRound};

/// New flows per second, and established traffic beside a scanner.
#[derive(Debug, Clone, clap::Args)]
pub struct SetupOptions {
    #[command(flatten)]
    on: OneCore,
    /// New flows of a round.
    #[arg(long, default_value_t = 1_000_000, value_parser = within::<u32>(1000, 8_000_000))]
    flows: u32,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Pairs of trials, with and without the scanner.
    #[arg(long, default_value_t = 3)]
    pairs: usize,
    /// Length of a trial in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = within::<f64>(0.1, 600.0))]
    seconds: f64,
    /// The neighbour's rate in percent of the worker's capacity.
    #[arg(long, default_value_t = 50.0, value_parser = within::<f64>(1.0, 100.0))]
    share: f64,
    #[command(flatten)]
    common: Common,
}

/// A round takes no longer than that.
const ROUND: f64 = 20.0;
/// Packets of each kind that are timed on the slow path, at most.
const TIMED: u32 = 200_000;
const MBUFS: u32 = 32_767;
/// The vNIC of the established traffic.
const NEIGHBOUR: &str = "neighbour";
const KNOWN: u32 = 1000;
/// Ports of either side that flows have.
const PORTS: u32 = 60_000;

pub fn run(options: &SetupOptions) -> anyhow::Result<()> {
    let vswitch = options.common.vswitch()?;
    interrupt::install()?;
    let bench = PreparedHost::prepare(options.on.core, 768, options.common.keep)?;
    // All flows of a round, one after the other; and beside the neighbour, one that cares for nothing.
    let scanner = plan("scanner", 1, options.flows, Distribution::InTurn);
    let careless = StreamPlan { window: Some(0), ..plan("scanner", 1, 1, Distribution::New) };
    let both = [plan(NEIGHBOUR, 0, KNOWN, Distribution::Uniform), careless];
    let runtime = ports::runtime(&ports::plan_of(&both), bench.cores.housekeeping, MBUFS)?;
    let timed = options.flows.min(TIMED);
    let misses = on_core(bench.cores.forwarding, || Misses::measure(timed, &runtime.clock))?;
    let vnics = [NEIGHBOUR, "scanner"].map(|name| (name.to_owned(), json!({})));
    let start = |name: &str, nft: Value, streams: &[StreamPlan]| {
        let spec = SwitchSpec { nft, ..SwitchSpec::new(name, bench.cores, &vnics).with_uplink(json!({})) };
        TestBed::start(&vswitch, &bench, &runtime, &spec, streams)
    };
    // Room for all of a round, so that no flow has to go.
    let entries = options.flows.next_power_of_two().saturating_mul(2);
    let mut bed = start("rounds", json!({ "miss-rate": 0, "entries": entries }), &[scanner])?;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        rounds.push(round(&mut bed, options)?);
    }
    drop(bed);
    let mut bed = start("beside", json!({}), &both)?;
    let (capacity, _) = bed.capacity_of_first()?;
    let rate = capacity.packets_per_second * options.share / 100.0;
    let demand =
        |scanner| Demand::new(vec![Some(rate), if scanner { None } else { Some(0.0) }], options.seconds);
    let beside = bed.beside(options.pairs, NEIGHBOUR, demand, |_| {})?;
    drop(bed);
    let report = SetupReport { misses, rounds, capacity, neighbour_rate: rate, beside };
    print!("{}", report.text());
    options.common.write(&report)?;
    anyhow::ensure!(report.lost_beside_a_scanner() == 0, "the scanner cost its neighbour packets");
    Ok(())
}

/// UDP from a vNIC to the station behind the tunnel.
fn plan(name: &str, vnic: usize, flows: u32, distribution: Distribution) -> StreamPlan {
    let stream = stream(name, vnic, 2, station(vnic as u8 + 1), REMOTE).with_flows(flows, |_, tuples| {
        tuples.src_port = Some(Range { first: 1024, count: PORTS });
        tuples.dst_port = Range { first: 7, count: PORTS };
    });
    StreamPlan { distribution, ..stream }
}

/// Does something on a thread of its own that stays on a core.
fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let pinned = || {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
        work()
    };
    std::thread::scope(|scope| scope.spawn(pinned).join())
        .unwrap_or_else(|_| Err(Error::Failed("the measurement of the slow path came to a bad end".into())))
}

/// All flows of the scanner, once as strangers and once as acquaintances.
fn round(bed: &mut TestBed<'_>, options: &SetupOptions) -> Result<SetupRound> {
    let demand = Demand { frames: Some(options.flows.into()), ..Demand::new(vec![None], ROUND) };
    bed.daemon.ask("clear nft")?;
    let mut passes = Vec::new();
    for _ in 0..2 {
        let before = Counted::at_rest(&mut bed.daemon)?;
        let (speed, outcome) = bed.capacity(&demand)?;
        let after = Counted::at_rest(&mut bed.daemon)?;
        let misses = after.worker("nft-misses")? - before.worker("nft-misses")?;
        passes.push((outcome.sent(), misses, speed));
    }
    match passes[..] {
        [(sent, misses, first), (_, again, second)] if misses == sent && sent == u64::from(options.flows) => {
            Ok(SetupRound {
                flows: sent,
                set_ups_per_second: first.packets_per_second,
                misses_again: again,
                hits_per_second: second.packets_per_second,
            })
        }
        _ => Err(Error::refused(format!(
            "not every packet of the scanner was a new flow (packets, misses, speed by pass: {passes:?})"
        ))),
    }
}
