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

pub mod capacity;
pub mod cli;
pub mod empty;
pub mod field;
pub mod report;
pub mod stalls;
pub mod testpmd;
pub mod witness;

use std::path::PathBuf;
use std::time::Instant;

use crate::generator::outcome::Outcome;
use crate::generator::rig::Demand;
use crate::generator::screen::Screen;
use crate::host::scratch::Scratch;
use crate::host::{HostError, cores, hugepages, interrupt, process};
use crate::live::LiveError;

use capacity::Capacity;
use field::{Arm, Field};
use report::{Report, Row};

/// What lies between the switch and `perf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// memif to memif.
    Memif,
    /// vhost-user to virtio-user.
    Vhost,
}

/// What to measure and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The daemon's binary.
    pub vswitch: PathBuf,
    /// The forwarding core; the last one if not given.
    pub core: Option<usize>,
    /// The ports.
    pub ports: Ports,
    /// Loads, as shares of the switch's capacity.
    pub loads: Vec<f64>,
    /// Turns at each load.
    pub turns: usize,
    /// Length of a turn in seconds.
    pub seconds: f64,
    /// Frame size, frame check sequence included.
    pub size: u32,
    /// Keep the private folder.
    pub keep: bool,
}

/// A forwarding thread must have had this share of its core.
const QUIET: f64 = 0.97;
/// How often a turn is taken again when it had not.
const AGAIN: usize = 3;
const WARM_UP: f64 = 0.1;

/// Runs it; each finished row is handed to `finished` at once.
pub fn run(options: &Options, mut finished: impl FnMut(&Row)) -> Result<Report, LiveError> {
    let (core, housekeeping) = cores::choose(&cores::available(), options.core)?;
    core_affinity::set_for_current(core_affinity::CoreId { id: housekeeping });
    process::favour_this();
    let scratch = Scratch::create(options.keep)?;
    let _hugepages = hugepages::reserve_or_say(768, &scratch);
    let mut field = Field::start(options, &scratch, (core, housekeeping))?;
    let capacity = measure(&mut field)?;
    let mut rows = Vec::new();
    for &load in &options.loads {
        let rate = capacity.packets_per_second * load;
        for turn in 0..options.turns {
            // Who goes first changes from turn to turn.
            let mut arms = Arm::ALL;
            arms.rotate_left(turn % Arm::ALL.len());
            for arm in arms {
                let row = row(&mut field, arm, (load, rate), turn, options.seconds)?;
                finished(&row);
                rows.push(row);
            }
        }
    }
    Ok(Report::new(options, capacity, rows))
}

/// Measures what the worker can do.
fn measure(field: &mut Field) -> Result<Capacity, LiveError> {
    let mut screen = Screen::new(true, field.runtime.clock.hz());
    field.wake(Arm::Ours)?;
    run_at(field, Arm::Ours, None, capacity::SETTLE, &mut screen)?;
    let Field { rigs, runtime, ours, ours_thread, .. } = field;
    let demand = Demand { rates: vec![None], seconds: capacity::SECONDS, frames: None };
    let (capacity, _) =
        capacity::of(ours, *ours_thread, || rigs[Arm::Ours as usize].run(runtime, &demand, &mut screen))?;
    field.rest(Arm::Ours)?;
    Ok(capacity)
}

fn run_at(
    field: &mut Field,
    arm: Arm,
    rate: Option<f64>,
    seconds: f64,
    screen: &mut Screen,
) -> Result<Outcome, LiveError> {
    let demand = Demand { rates: vec![rate], seconds, frames: None };
    let outcome = field.rigs[arm as usize].run(&field.runtime, &demand, screen)?;
    interrupt::check()?;
    Ok(outcome)
}

fn row(
    field: &mut Field,
    arm: Arm,
    (load, rate): (f64, f64),
    turn: usize,
    seconds: f64,
) -> Result<Row, LiveError> {
    let mut screen = Screen::new(true, field.runtime.clock.hz());
    let mut tries = 0;
    loop {
        field.wake(arm)?;
        run_at(field, arm, Some(rate), WARM_UP, &mut screen)?;
        // Those of the warm-up are of no interest.
        field.take_stalls(WARM_UP);
        let (before, cpu_before, start) = (field.witness(arm)?, field.cpu_seconds(arm)?, Instant::now());
        let outcome = run_at(field, arm, Some(rate), seconds, &mut screen)?;
        let (cpu, wall) = (field.cpu_seconds(arm)? - cpu_before, start.elapsed().as_secs_f64());
        let witness = field.witness(arm)?.since(before);
        let stalls = (arm == Arm::Empty).then(|| field.take_stalls(wall));
        field.rest(arm)?;
        let share = cpu / wall;
        tries += 1;
        if share < QUIET && tries <= AGAIN {
            continue;
        }
        let stream = outcome.streams.first();
        let delay = stream.and_then(|stream| stream.delay).ok_or_else(|| {
            LiveError::Host(HostError::Refused(format!("no packet came back from {}", arm.name())))
        })?;
        return Ok(Row {
            arm: arm.name(),
            load,
            turn,
            asked: rate,
            offered: outcome.offered_rate(),
            lost: outcome.lost(),
            refused: outcome.refused(),
            late: outcome.lateness(),
            core_share: share,
            witness,
            stalls: stalls.as_ref().map(stalls::Stalls::figures),
            stalls_p999: stalls.map(|stalls| stalls.p999(load)),
            delay,
        });
    }
}
