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

pub mod cli;
pub mod field;
pub mod miss;
pub mod report;
pub mod world;

use std::path::PathBuf;

use crate::generator::rig::Demand;
use crate::generator::screen::Screen;
use crate::host::scratch::Scratch;
use crate::host::{HostError, cores, hugepages, process};
use crate::latency::capacity;
use crate::live::LiveError;
use crate::live::config::Counted;

use field::{Field, NEIGHBOUR, Streams};
use miss::Misses;
use report::{Beside, Report, Round};

/// What to measure and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The daemon's binary.
    pub vswitch: PathBuf,
    /// The worker's core; the last one if not given.
    pub core: Option<usize>,
    /// New flows of a round.
    pub flows: u32,
    /// Rounds.
    pub rounds: usize,
    /// Pairs of arms with and without the scanner.
    pub pairs: usize,
    /// Length of an arm in seconds.
    pub seconds: f64,
    /// The neighbour's rate as a share of the worker's capacity.
    pub share: f64,
    /// Keep the private folder.
    pub keep: bool,
}

/// A round takes no longer than that.
const ROUND: f64 = 20.0;
/// Packets of each kind that are timed on the slow path, at most.
const TIMED: u32 = 200_000;

/// Runs it.
pub fn run(options: &Options) -> Result<Report, LiveError> {
    let (core, housekeeping) = cores::choose(&cores::available(), options.core)?;
    core_affinity::set_for_current(core_affinity::CoreId { id: housekeeping });
    process::favour_this();
    let scratch = Scratch::create(options.keep)?;
    let _hugepages = hugepages::reserve_or_say(768, &scratch);
    let runtime = field::runtime(options, housekeeping)?;
    let misses = on_core(core, || Misses::measure(options.flows.min(TIMED), &runtime.clock))?;
    let place = (core, housekeeping);
    // Room for all of a round, so that no flow has to go.
    let entries = options.flows.next_power_of_two().saturating_mul(2);
    let mut field = Field::start(
        options,
        &scratch,
        &runtime,
        place,
        ("rounds", &format!("miss-rate = 0\nentries = {entries}")),
        Streams::Scanner,
    )?;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        rounds.push(round(&mut field, &runtime, options)?);
    }
    drop(field);
    let mut field = Field::start(options, &scratch, &runtime, place, ("beside", ""), Streams::Both)?;
    let mut screen = Screen::new(true, runtime.clock.hz());
    let demand = |rates: [f64; 2], seconds| Demand {
        rates: rates.map(|rate| Some(rate).filter(|rate| rate.is_finite())).to_vec(),
        seconds,
        frames: None,
    };
    field.rig.run(&runtime, &demand([f64::INFINITY, 0.0], capacity::SETTLE), &mut screen)?;
    let flood = demand([f64::INFINITY, 0.0], capacity::SECONDS);
    let Field { rig, daemon, thread, .. } = &mut field;
    let (capacity, _) = capacity::of(daemon, *thread, || rig.run(&runtime, &flood, &mut screen))?;
    let rate = capacity.packets_per_second * options.share;
    let mut beside = Vec::new();
    for pair in 0..options.pairs {
        for scanner in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            let scanned = if scanner { f64::INFINITY } else { 0.0 };
            beside.push(arm(&mut field, &runtime, &demand([rate, scanned], options.seconds), scanner)?);
        }
    }
    Ok(Report { misses, rounds, capacity, neighbour_rate: rate, beside })
}

/// Does something on a thread of its own that stays on a core.
fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T, LiveError> + Send) -> Result<T, LiveError> {
    let pinned = || {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
        work()
    };
    std::thread::scope(|scope| scope.spawn(pinned).join()).unwrap_or_else(|_| {
        Err(LiveError::Silent("the measurement of the slow path came to a bad end".into()))
    })
}

/// All flows of the scanner, once as strangers and once as acquaintances.
fn round(
    field: &mut Field,
    runtime: &crate::live::ports::Runtime,
    options: &Options,
) -> Result<Round, LiveError> {
    let mut screen = Screen::new(true, runtime.clock.hz());
    let demand = Demand { rates: vec![None], seconds: ROUND, frames: Some(options.flows.into()) };
    field.daemon.ask("clear nft")?;
    let mut passes = Vec::new();
    for _ in 0..2 {
        let before = Counted::at_rest(&mut field.daemon)?;
        let Field { rig, daemon, thread, .. } = field;
        let (speed, outcome) = capacity::of(daemon, *thread, || rig.run(runtime, &demand, &mut screen))?;
        let after = Counted::at_rest(&mut field.daemon)?;
        let misses = after.worker("nft-misses")? - before.worker("nft-misses")?;
        passes.push((outcome.sent(), misses, speed));
    }
    match passes[..] {
        [(sent, misses, first), (_, again, second)] if misses == sent && sent == u64::from(options.flows) => {
            Ok(Round {
                flows: sent,
                set_ups_per_second: first.packets_per_second,
                misses_again: again,
                hits_per_second: second.packets_per_second,
            })
        }
        _ => Err(LiveError::Host(HostError::Refused(format!(
            "not every packet of the scanner was a new flow (packets, misses, speed by pass: {passes:?})"
        )))),
    }
}

fn arm(
    field: &mut Field,
    runtime: &crate::live::ports::Runtime,
    demand: &Demand,
    scanner: bool,
) -> Result<Beside, LiveError> {
    let mut screen = Screen::new(true, runtime.clock.hz());
    let before = Counted::at_rest(&mut field.daemon)?;
    let outcome = field.rig.run(runtime, demand, &mut screen)?;
    crate::host::interrupt::check()?;
    let after = Counted::at_rest(&mut field.daemon)?;
    let [neighbour, scanned] = outcome.streams.as_slice() else {
        return Err(LiveError::Silent("the two streams are not two".into()));
    };
    let misses = after.worker("nft-misses")? - before.worker("nft-misses")?;
    Ok(Beside {
        scanner,
        seconds: outcome.seconds,
        sent: neighbour.sent,
        lost: neighbour.lost,
        refused: neighbour.refused,
        late: neighbour.late,
        taken_by_switch: after.port(NEIGHBOUR, "rx-packets")? - before.port(NEIGHBOUR, "rx-packets")?,
        neighbour_drops: after.vnic(NEIGHBOUR, "drops")? - before.vnic(NEIGHBOUR, "drops")?,
        scanned: scanned.sent,
        set_up: scanned.sent - scanned.lost,
        misses,
        drops: after.drops_since(&before),
        delay: neighbour.delay,
    })
}
