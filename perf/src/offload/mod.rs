//! `perf offload`: what the worker still has to do when flows are in the simulated e-switch, how long it takes until
//! they are, and whether flows that come and go leave anything behind.
//!
//! ```text
//!   perf: few fast flows, many slow ones --memif--> [simulated e-switch] --> vswitch --VxLAN, memif--> perf: counts
//! ```
//! The e-switch is a lab device in front of the worker, on the worker's core: its cycles are counted apart, and say
//! nothing of a NIC.

pub mod report;

use std::time::Duration;

use serde_json::json;

use crate::generator::observer::Every;
use crate::generator::ports;
use crate::generator::rig::Demand;
use crate::generator::scenario::check::StreamPlan;
use crate::generator::units::Range;
use crate::host::daemon::Daemon;
use crate::host::interrupt;
use crate::live::config::{Counted, number};
use crate::live::testbed::{PreparedHost, REMOTE, SwitchSpec, TestBed, station, stream};
use crate::options::{Common, OneCore, Plot, within};
use crate::{Error, Result};

use report::{Churn, Look, OffloadReport, OffloadTrial};

/// Flows in the simulated e-switch: what is left for the worker, how soon they are there, and 10,000 new ones a second.
#[derive(Debug, Clone, clap::Args)]
pub struct OffloadOptions {
    /// Trials of each share (0, 50 and 99 %).
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of a trial in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = within::<f64>(0.1, 3600.0))]
    seconds: f64,
    /// Packets a second; less than 100000, and fast flows are not faster than slow ones.
    #[arg(long, default_value_t = 200_000, value_parser = within::<u64>(100_000, 10_000_000))]
    rate: u64,
    /// New flows a second of the churn; 0: none.
    #[arg(long, default_value_t = 10_000, value_parser = within::<u32>(0, 100_000))]
    churn: u32,
    /// How long the churn goes on, in seconds.
    #[arg(long, default_value_t = 60.0, value_parser = within::<f64>(0.1, 3600.0))]
    churn_seconds: f64,
    #[command(flatten)]
    on: OneCore,
    #[command(flatten)]
    plot: Plot,
    #[command(flatten)]
    common: Common,
}

/// Packets between two looks of the manager from which flows are hot: in the trials the fast ones, in the churn all that are
/// seen twice.
const HOT: [u64; 2] = [4000, 5];
/// Shares of the traffic that are offloaded, in percent.
const SHARES: [u64; 3] = [0, 50, 99];
const MBUFS: u32 = 16_383;
/// Flows that carry the offloaded share, the others, and those of the churn, by their source ports.
const FAST: Range = Range { first: 1000, count: 8 };
const SLOW: Range = Range { first: 2000, count: 2048 };
const CHURN: Range = Range { first: 8000, count: 57_535 };
/// Packets of a flow of the churn, and the seconds between them: it is seen in some looks of the manager, and gone.
const PACKETS: f64 = 12.0;
const GAP: f64 = 0.04;
/// How long flows have to find their places.
const SETTLE: Duration = Duration::from_secs(15);

pub fn run(options: &OffloadOptions) -> anyhow::Result<()> {
    anyhow::ensure!(options.rounds > 0 || options.churn > 0, "--rounds 0 and --churn 0 measure nothing");
    let vswitch = options.common.vswitch()?;
    interrupt::install()?;
    println!(
        "the e-switch is simulated, on the worker's core: its cycles (sim) are apart, and say nothing of a NIC"
    );
    println!("{}", report::TABLE.head());
    let bench = PreparedHost::prepare(options.on.core, 512, options.common.keep)?;
    let shared = [flows("fast", FAST, FAST.count), flows("slow", SLOW, SLOW.count)];
    let runtime = ports::runtime(&ports::plan_of(&shared), bench.cores.housekeeping, MBUFS)?;
    let start = |name: &str, hot: u64, streams: &[StreamPlan]| {
        let sections = json!({ "offload": {
            "hot-packets": hot,
            "hot-rate": "1Gbit",
            "cool-after": "300ms",
            "idle-timeout": "2s",
            "rules-per-second": 1_000_000,
            "simulated": { "refresh": "100ms" },
        } });
        let offload = json!({ "offload": "simulated" });
        let vnics = [("sender".to_owned(), offload.clone())];
        let spec = SwitchSpec { sections, ..SwitchSpec::new(name, bench.cores, &vnics).with_uplink(offload) };
        TestBed::start(&vswitch, &bench, &runtime, &spec, streams)
    };
    let mut bed = start("trials", HOT[0], &shared)?;
    let mut trials = Vec::new();
    for round in 0..options.rounds {
        for turn in 0..SHARES.len() {
            // Who goes first changes from round to round.
            let trial = trial(&mut bed, options, SHARES[(turn + round) % SHARES.len()])?;
            println!("{}", report::TABLE.row(&trial));
            trials.push(trial);
        }
    }
    drop(bed);
    let mut churn = None;
    if options.churn > 0 {
        // As many places as flows live at a time, each taken by a new flow when its own has had its packets.
        let places = (f64::from(options.churn) * PACKETS * GAP).ceil() as u32;
        let stream = StreamPlan { churn: options.churn.into(), ..flows("churn", CHURN, places) };
        churn = Some(run_churn(start("churn", HOT[1], &[stream])?, options, places)?);
    }
    let report = OffloadReport { rate: options.rate, trials, churn };
    println!("{}", report.verdict());
    options.common.write(&report)?;
    options.plot.draw(|stem| report.plot(stem))?;
    anyhow::ensure!(report.is_clean(), "packets were lost, or something was left behind");
    Ok(())
}

fn flows(name: &str, source_ports: Range, flows: u32) -> StreamPlan {
    let plan = stream(name, 0, 1, station(1), REMOTE);
    plan.with_flows(flows, |_, tuples| tuples.src_port = Some(source_ports))
}

/// What the switch has counted.
struct Counts {
    received: u64,
    offloaded: u64,
    busy: u64,
    eswitch: u64,
}

/// A figure of `show offload`.
fn shown(daemon: &mut Daemon, path: &str) -> Result<u64> {
    number(&daemon.ask("show offload")?, path, "show offload")
}

fn counts(bed: &mut TestBed<'_>) -> Result<Counts> {
    let counted = Counted::of(&mut bed.daemon)?;
    let fwd = |name: &str| number(&counted.fwd, &format!("/{name}"), "show fwd stats all");
    Ok(Counts {
        received: fwd("received")?,
        offloaded: fwd("offloaded")?,
        busy: counted.worker("busy-cycles")?,
        eswitch: shown(&mut bed.daemon, "/eswitch/cycles")?,
    })
}

/// Waits until a device has no rules; says how many are left where it does not come to that.
fn drained(bed: &mut TestBed<'_>, rules: &[&str]) -> Result<u64> {
    let mut left = 0;
    interrupt::until(SETTLE, || {
        left = rules.iter().map(|path| shown(&mut bed.daemon, path)).sum::<Result<u64, _>>()?;
        Ok((left == 0).then_some(()))
    })?;
    Ok(left)
}

/// So many percent of the packets are of flows fast enough for hardware.
fn trial(bed: &mut TestBed<'_>, options: &OffloadOptions, share: u64) -> Result<OffloadTrial> {
    let wanted = if share == 0 { 0 } else { u64::from(FAST.count) };
    let rate = |percent: u64| Some((options.rate * percent) as f64 / 100.0);
    let demand = |seconds| Demand::new(vec![rate(share), rate(100 - share)], seconds);
    let ticks = |length| bed.runtime.clock.cycles(length);
    // Until the fast flows are where they belong.
    let (mut settled, daemon) = (None, &mut bed.daemon);
    let mut watch = Every::new(ticks(Duration::from_millis(5)), |seconds| {
        interrupt::check()?;
        let there = shown(daemon, "/flows/hardware")? == wanted;
        settled = there.then_some(seconds);
        Ok(!there)
    });
    let first = bed.rig.run(bed.runtime, &demand(SETTLE.as_secs_f64()), &mut watch)?;
    let Some(settled) = settled else {
        let answer = bed.daemon.ask("show offload")?;
        return Err(Error::Failed(format!("{wanted} flows do not get into hardware: {answer}")));
    };
    let before = counts(bed)?;
    let second = bed.run(&demand(options.seconds))?;
    let after = counts(bed)?;
    let (software, hardware) = (after.received - before.received, after.offloaded - before.offloaded);
    let packets = software + hardware;
    if packets == 0 {
        return Err(Error::Failed("no packet came to the switch".into()));
    }
    // The fast flows of the next trial are to find an empty device.
    drained(bed, &["/rules"])?;
    let busy = (after.busy - before.busy) as f64;
    Ok(OffloadTrial {
        share,
        packets,
        offloaded: hardware as f64 / packets as f64,
        installed_after_ms: (share > 0).then_some(settled * 1e3),
        worker_cycles: busy / packets as f64,
        worker_cycles_per_own: (software > 0).then(|| busy / software as f64),
        eswitch_cycles: (after.eswitch - before.eswitch) as f64 / packets as f64,
        lost: first.lost() + second.lost(),
    })
}

/// New flows all the time; each sends for a while and is never seen again.
fn run_churn(mut bed: TestBed<'_>, options: &OffloadOptions, places: u32) -> Result<Churn> {
    let rates = vec![Some(f64::from(options.churn) * PACKETS)];
    let installed = shown(&mut bed.daemon, "/so-far/installed")?;
    let withdrawn = shown(&mut bed.daemon, "/so-far/withdrawn")?;
    let memory_before = memory(&mut bed.daemon);
    let (mut looks, daemon) = (Vec::new(), &mut bed.daemon);
    let mut watch = Every::new(bed.runtime.clock.cycles(Duration::from_millis(500)), |at| {
        interrupt::check()?;
        looks.push(Look {
            at,
            rules: shown(daemon, "/rules")?,
            flows: shown(daemon, "/flows/hardware")?,
            installed: shown(daemon, "/so-far/installed")? - installed,
            memory: memory(daemon),
        });
        Ok(true)
    });
    let outcome = bed.rig.run_through(bed.runtime, &Demand::new(rates, options.churn_seconds), &mut watch)?;
    let rules_left = drained(&mut bed, &["/rules", "/eswitch/rules"])?;
    Ok(Churn {
        seconds: options.churn_seconds,
        flows: u64::from(places) + outcome.streams.iter().map(|stream| stream.new_flows).sum::<u64>(),
        packets: outcome.sent(),
        lost: outcome.lost(),
        installed: shown(&mut bed.daemon, "/so-far/installed")? - installed,
        withdrawn: shown(&mut bed.daemon, "/so-far/withdrawn")? - withdrawn,
        rules_left,
        memory_before,
        memory_after: memory(&mut bed.daemon),
        looks,
    })
}

/// Resident memory of the daemon, bytes.
fn memory(daemon: &mut Daemon) -> u64 {
    let path = format!("/proc/{}/statm", daemon.process().pid());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
