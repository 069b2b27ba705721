//! `perf latency`: what the switch adds to a packet's way, beside `testpmd io` and an empty loop.
//!
//! ```text
//!   one core: perf                      the other core, by turns (the others are frozen)
//!   streams -> port a ==> memif or virtio ==> vswitch (vNIC a -> vNIC b) | testpmd io | nothing but a copy of pointers
//!   delays  <- port b <==                <==
//! ```
//! All three carry the same frames at the same rates, which are shares of what the switch can do. Every frame bears the
//! time of its making. The empty loop shows what the machine itself does to such a measurement, and counts how often and for
//! how long it was kept from its core.

pub mod empty;
pub mod interference;
pub mod report;
pub mod stalls;
pub mod testbed;

use std::time::Instant;

use clap::ValueEnum as _;

use crate::generator::outcome::Outcome;
use crate::generator::rig::Demand;
use crate::host::interrupt;
use crate::live::capacity::{self, Capacity};
use crate::live::testbed::{Ports, PreparedHost};
use crate::options::{Common, OneCore, within, word};
use crate::{Error, Result};

use report::{LatencyReport, LatencyRow};
use testbed::{LatencyForwarder, LatencyTestBed};

/// The switch's own delay at shares of its capacity, beside testpmd and an empty loop.
#[derive(Debug, Clone, clap::Args)]
pub struct LatencyOptions {
    #[command(flatten)]
    on: OneCore,
    /// memif to memif, or vhost-user to virtio-user.
    #[arg(long, value_enum, default_value = "memif")]
    ports: Ports,
    /// Loads, in percent of the switch's capacity.
    #[arg(long, value_delimiter = ',', default_value = "10,50,90", value_parser = within::<f64>(0.1, 100.0))]
    loads: Vec<f64>,
    /// Turns at each load.
    #[arg(long, default_value_t = 5, value_parser = within::<usize>(1, 1000))]
    turns: usize,
    /// Length of a turn in seconds.
    #[arg(long, default_value_t = 1.0, value_parser = within::<f64>(0.1, 600.0))]
    seconds: f64,
    /// Frame size, frame check sequence included.
    #[arg(long, default_value_t = 64, value_parser = within::<u32>(64, 1518))]
    size: u32,
    #[command(flatten)]
    common: Common,
}

/// A forwarding thread must have had this share of its core.
const QUIET: f64 = 0.97;
/// How often a turn is taken again when it had not.
const AGAIN: usize = 3;
const WARM_UP: f64 = 0.1;

pub fn run(options: &LatencyOptions) -> anyhow::Result<()> {
    let vswitch = options.common.vswitch()?;
    interrupt::install()?;
    println!("{}", report::TABLE.head());
    let bench = PreparedHost::prepare(options.on.core, 768, options.common.keep)?;
    let mut testbed = LatencyTestBed::start(options, &vswitch, &bench)?;
    let capacity = measure(&mut testbed)?;
    let loads: Vec<f64> = options.loads.iter().map(|load| load / 100.0).collect();
    let mut rows = Vec::new();
    for &load in &loads {
        for turn in 0..options.turns {
            // Who goes first changes from turn to turn.
            let mut forwarders = LatencyForwarder::value_variants().to_vec();
            let turned = turn % forwarders.len();
            forwarders.rotate_left(turned);
            for forwarder in forwarders {
                let rate = capacity.packets_per_second * load;
                let row = row(&mut testbed, Turn { forwarder, load, turn, rate, seconds: options.seconds })?;
                println!("{}", report::TABLE.row(&row));
                rows.push(row);
            }
        }
    }
    drop(testbed);
    let report = LatencyReport::new(options.ports, options.size, &loads, capacity, rows);
    print!("{}", report.text());
    options.common.write(&report)
}

/// A forwarder's turn at a load, which is so many packets a second.
#[derive(Debug, Clone, Copy)]
struct Turn {
    forwarder: LatencyForwarder,
    load: f64,
    turn: usize,
    rate: f64,
    seconds: f64,
}

/// Measures what the worker can do.
fn measure(testbed: &mut LatencyTestBed) -> Result<Capacity> {
    testbed.wake(LatencyForwarder::Ours)?;
    run_at(testbed, LatencyForwarder::Ours, None, capacity::SETTLE)?;
    let LatencyTestBed { rigs, runtime, ours, ours_thread, .. } = testbed;
    let demand = Demand::new(vec![None], capacity::SECONDS);
    let run = || rigs[LatencyForwarder::Ours as usize].run_through(runtime, &demand, &mut ());
    let (capacity, _) = capacity::of(ours, *ours_thread, run)?;
    testbed.rest(LatencyForwarder::Ours)?;
    Ok(capacity)
}

fn run_at(
    testbed: &mut LatencyTestBed,
    forwarder: LatencyForwarder,
    rate: Option<f64>,
    seconds: f64,
) -> Result<Outcome> {
    let demand = Demand::new(vec![rate], seconds);
    testbed.rigs[forwarder as usize].run_through(&testbed.runtime, &demand, &mut ())
}

fn row(testbed: &mut LatencyTestBed, at: Turn) -> Result<LatencyRow> {
    let Turn { forwarder, load, turn, rate, seconds } = at;
    let mut tries = 0;
    loop {
        testbed.wake(forwarder)?;
        run_at(testbed, forwarder, Some(rate), WARM_UP)?;
        // Those of the warm-up are of no interest.
        testbed.take_stalls(WARM_UP);
        let (before, cpu_before, start) =
            (testbed.interference(forwarder)?, testbed.cpu_seconds(forwarder)?, Instant::now());
        let outcome = run_at(testbed, forwarder, Some(rate), seconds)?;
        let (cpu, wall) = (testbed.cpu_seconds(forwarder)? - cpu_before, start.elapsed().as_secs_f64());
        let interference = testbed.interference(forwarder)?.since(before);
        let stalls = (forwarder == LatencyForwarder::EmptyLoop).then(|| testbed.take_stalls(wall));
        testbed.rest(forwarder)?;
        let share = cpu / wall;
        tries += 1;
        if share < QUIET && tries <= AGAIN {
            continue;
        }
        let stream = outcome.streams.first();
        let delay = stream
            .and_then(|stream| stream.delay)
            .ok_or_else(|| Error::refused(format!("no packet came back from {}", word(&forwarder))))?;
        return Ok(LatencyRow {
            forwarder,
            load,
            turn,
            asked: rate,
            offered: outcome.offered_rate(),
            lost: outcome.lost(),
            refused: outcome.refused(),
            late: outcome.lateness(),
            core_share: share,
            interference,
            stalls: stalls.as_ref().map(stalls::Stalls::figures),
            stalls_p999: stalls.map(|stalls| stalls.p999(load)),
            delay,
        });
    }
}
