//! `perf offload`: what the worker still has to do when flows are in the simulated e-switch, how long it takes until
//! they are, and whether flows that come and go leave anything behind.
//!
//! ```text
//!   perf: few fast flows, many slow ones --memif--> [simulated e-switch] --> vswitch --VxLAN, memif--> perf: counts
//! ```
//! The e-switch is a lab device in front of the worker, on the worker's core: its cycles are counted apart, and say
//! nothing of a NIC.

pub mod field;
pub mod report;
pub mod run;

use std::path::PathBuf;
use std::time::Duration;

use crate::host::scratch::{self, Scratch};
use crate::host::{cores, hugepages, process};
use crate::live::LiveError;
use crate::live::ports::Runtime;

use field::Field;
use report::{Arm, Report};

/// What to measure and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The daemon's binary.
    pub vswitch: PathBuf,
    /// The worker's core; the last one if not given.
    pub core: Option<usize>,
    /// Length of an arm in seconds.
    pub seconds: f64,
    /// Arms of each share.
    pub rounds: usize,
    /// Packets a second.
    pub rate: u64,
    /// New flows per second of the churn; 0: none.
    pub churn: u64,
    /// How long the churn goes on, in seconds.
    pub churn_seconds: f64,
    /// Keep the private folder.
    pub keep: bool,
}

/// Packets a second from which flows are hot: in the arms the fast ones, in the churn all that are seen twice.
const FAST: u64 = 4000;
const SEEN: u64 = 5;

/// Shares of the traffic that are offloaded, in percent.
pub const SHARES: [u64; 3] = [0, 50, 99];

/// Runs it; each finished arm is handed to `finished` at once.
pub fn run(options: &Options, mut finished: impl FnMut(&Arm)) -> Result<Report, LiveError> {
    let (core, housekeeping) = cores::choose(&cores::available(), options.core)?;
    core_affinity::set_for_current(core_affinity::CoreId { id: housekeeping });
    process::favour_this();
    let scratch = Scratch::create(options.keep)?;
    let _hugepages = hugepages::reserve_or_say(512, &scratch);
    let runtime = Runtime::start(&scratch::file_prefix(0), housekeeping, 16_383)?;
    let mut field = Field::start(options, &scratch, (core, housekeeping), (runtime, 1, FAST))?;
    let mut arms = Vec::new();
    for round in 0..options.rounds {
        for turn in 0..SHARES.len() {
            // Who goes first changes from round to round.
            let arm = run::arm(&mut field, options, SHARES[(turn + round) % SHARES.len()])?;
            finished(&arm);
            arms.push(arm);
        }
    }
    let mut churn = None;
    if options.churn > 0 {
        let runtime = field.stop();
        let mut field = Field::start(options, &scratch, (core, housekeeping), (runtime, 2, SEEN))?;
        churn = Some(run::churn(&mut field, options)?);
    }
    Ok(Report { rate: options.rate, arms, churn })
}

impl Options {
    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}
