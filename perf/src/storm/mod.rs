//! `perf storm`: a vNIC that opens queue pairs without end, and what becomes of its neighbour's packets.
//!
//! ```text
//!   perf: victim (64 admitted queue pairs, writes) --memif--+
//!                                                           +--> vswitch --VxLAN, memif--> perf: counts and times
//!   perf: storm (each packet a new queue pair)     --memif--+
//! ```
//! The worker's capacity is measured first; the victim then sends at a share of it, with and without the storm by
//! turns. Loss is what the switch received of the victim and did not send.

pub mod field;
pub mod report;
pub mod run;

use std::path::PathBuf;
use std::time::Duration;

use crate::host::scratch::Scratch;
use crate::host::{cores, hugepages, process};
use crate::live::LiveError;

use field::Field;
use report::{Arm, Capacity, Report};

/// What to measure and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The daemon's binary.
    pub vswitch: PathBuf,
    /// The worker's core; the last one if not given.
    pub core: Option<usize>,
    /// Pairs of arms, with and without the storm.
    pub pairs: usize,
    /// Length of an arm in seconds.
    pub seconds: f64,
    /// New queue pairs per second of the storm.
    pub storm_rate: u64,
    /// Queue pairs that the storm may have at a time.
    pub storm_quota: u32,
    /// Queue pairs of the victim.
    pub victim_qps: u32,
    /// The victim's rate as a share of the worker's capacity.
    pub share: f64,
    /// Keep the private folder.
    pub keep: bool,
}

/// Packets on their way at a time, at most: half of what the rings hold, so that no stop of ours can fill one.
pub const WINDOW: u64 = 2048;

/// Runs it; each finished arm is handed to `finished` at once.
pub fn run(options: &Options, mut finished: impl FnMut(&Arm)) -> Result<Report, LiveError> {
    let (core, housekeeping) = cores::choose(&cores::available(), options.core)?;
    core_affinity::set_for_current(core_affinity::CoreId { id: housekeeping });
    process::favour_this();
    let scratch = Scratch::create(options.keep)?;
    let _hugepages = hugepages::reserve_or_say(512, &scratch);
    let mut field = Field::start(options, &scratch, (core, housekeeping))?;
    let capacity = run::capacity(&mut field)?;
    let rate = (capacity.packets_per_cpu_second * options.share) as u64;
    let mut arms = Vec::new();
    for pair in 0..options.pairs {
        // Who goes first changes from pair to pair.
        for storm in if pair % 2 == 0 { [false, true] } else { [true, false] } {
            let arm = run::arm(&mut field, options, pair, rate, storm)?;
            finished(&arm);
            arms.push(arm);
        }
    }
    Ok(Report::new(options, capacity, rate, arms))
}

impl Options {
    fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// The head of the report, before the first arm.
pub fn intention(options: &Options) -> String {
    format!(
        "victim: {} queue pairs at {:.0} % of the worker's capacity; storm: {} new queue pairs a second, quota {}; \
         {} pairs of {} s",
        options.victim_qps,
        options.share * 100.0,
        options.storm_rate,
        options.storm_quota,
        options.pairs,
        options.seconds
    )
}

/// A capacity in one line.
pub fn capacity_line(capacity: &Capacity, rate: u64) -> String {
    format!(
        "capacity of the worker: {:.2} million packets per CPU-second ({} packets at {:.0} % of its time busy); the \
         victim sends {:.2} million a second",
        capacity.packets_per_cpu_second / 1e6,
        capacity.packets,
        capacity.busy_share * 100.0,
        rate as f64 / 1e6
    )
}
