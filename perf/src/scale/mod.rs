//! `perf scale`: two workers of one switch, each with its own generator and sink, against one worker alone.
//!
//! ```text
//!   alone     core 0: switch A        |  core 1: idle            (and the other way round)
//!   apart     core 0: switch A        |  core 1: switch B        what cores take from each other
//!   together  core 0, core 1: both workers of switch C           what the switch shares besides
//! ```
//! All three run by turns, frozen in between; ratios are within a round, of packets per CPU-second of each worker's
//! thread. A model takes it from there to more workers than the machine has cores for, and says so.

pub mod bounce;
pub mod cli;
pub mod config;
pub mod field;
pub mod lane;
pub mod model;
pub mod report;

use std::path::{Path, PathBuf};

use crate::compare::CompareError;
use crate::compare::cases::{Case, Job};
use crate::compare::plugin::{self, Device};
use crate::compare::sample::Sample;
use crate::host::daemon::DaemonSetup;
use crate::host::hugepages::HugePages;
use crate::host::scratch::{self, Scratch};
use crate::host::{HostError, cores, io, tsc};
use config::{Identity, Seat};
use field::Switch;
use lane::Lane;
use report::{Report, Round, Row};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// The machine around it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A switch does not what it should.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// Too few quiet rounds.
    #[error(
        "only {kept} of {wanted} rounds were quiet: in the others a worker had less than 97 % of its core, at worst \
         {worst:.0} %; stop what else runs on cores {cores:?}"
    )]
    Noisy {
        /// Quiet rounds.
        kept: usize,
        /// Rounds asked for.
        wanted: usize,
        /// The cores.
        cores: [usize; 2],
        /// The smallest share seen, in percent.
        worst: f64,
    },
    /// One core is not enough.
    #[error(
        "cores {0:?}: two different ones of those that this process may use are needed; name them with --cores"
    )]
    Cores(Vec<usize>),
}

/// What to measure and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Cases and flow counts, each of one tenant.
    pub jobs: Vec<Job>,
    /// Rounds of each.
    pub rounds: usize,
    /// Length of a sample.
    pub seconds: f64,
    /// The daemon's binary.
    pub vswitch: PathBuf,
    /// The workers' cores; the first two if not given.
    pub cores: Option<[usize; 2]>,
    /// Keep the private folder.
    pub keep: bool,
}

/// Noisy rounds are taken again, up to this many tries per round asked for.
const TRIES: usize = 4;
/// Workers.
const WORKERS: u8 = 2;

/// Measures; each row is handed to `finished` at once.
pub fn run(options: &Options, mut finished: impl FnMut(&Row)) -> Result<Report, ScaleError> {
    let usable = cores::available();
    let chosen = options.cores.or_else(|| Some([*usable.first()?, *usable.get(1)?]));
    let chosen =
        chosen.filter(|[first, second]| first != second && usable.contains(first) && usable.contains(second));
    let cores = chosen.ok_or_else(|| ScaleError::Cores(options.cores.map_or(usable, Vec::from)))?;
    let hertz = tsc::hertz()?;
    let line = bounce::ticks(cores).ok_or_else(|| ScaleError::Cores(cores.into()))?;
    let mut report =
        Report { hertz, line_cycles: line, seconds: options.seconds, rows: Vec::new(), skipped: None };
    let scratch = Scratch::create(options.keep)?;
    let plugin = match plugin::build(scratch.path()) {
        Ok(plugin) => plugin,
        Err(error) => {
            report.skipped = Some(format!("the template device could not be built: {error}"));
            return Ok(report);
        }
    };
    let memory = |job: &Job| 2 * config::memory(job, 1) + config::memory(job, usize::from(WORKERS));
    let _hugepages = HugePages::reserve(options.jobs.iter().map(memory).max().unwrap_or(0), &scratch)?;
    let mut bench = Bench { options, scratch, plugin, cores, serial: 0 };
    for job in &options.jobs {
        let (rounds, draws) = bench.rounds(job)?;
        if let Some(row) = Row::new(job, cores, &rounds, draws, line, hertz) {
            finished(&row);
            report.rows.push(row);
        }
    }
    Ok(report)
}

/// The machine, made ready.
struct Bench<'a> {
    options: &'a Options,
    scratch: Scratch,
    plugin: PathBuf,
    cores: [usize; 2],
    serial: usize,
}

impl Bench<'_> {
    /// A switch with these lanes.
    fn start(&mut self, job: &Job, lanes: &[u8]) -> Result<Switch, ScaleError> {
        let folder = self.scratch.folder(&format!("run-{}", self.serial))?;
        let prefix = scratch::file_prefix(self.serial);
        self.serial += 1;
        let setup = DaemonSetup {
            program: &self.options.vswitch,
            folder: &folder,
            prefix: &prefix,
            cores: (self.cores[0], self.cores[1]),
        };
        let seats =
            lanes.iter().map(|&lane| self.seat(job, Lane(lane), &folder)).collect::<Result<_, _>>()?;
        let socket = setup.socket();
        let identity = Identity { prefix: &prefix, socket: &socket, plugin: &self.plugin };
        Switch::start(job, seats, u32::from(WORKERS), &setup, identity)
    }

    fn seat(&self, job: &Job, lane: Lane, folder: &Path) -> Result<Seat, ScaleError> {
        let mut devices = Vec::new();
        for way in [Case::Encap, Case::Decap] {
            let name = |kind: &str| folder.join(format!("{}-{way}.{kind}", lane.0));
            let frames = job.case.ways().contains(&way).then(|| name("frames"));
            if let Some(path) = &frames {
                let text = lane.program(job, way).text();
                std::fs::write(path, text).map_err(io(format!("write {}", path.display())))?;
            }
            devices.push(Device { frames, board: name("board") });
        }
        let [inside, outside] = [devices.remove(0), devices.remove(0)];
        Ok(Seat { lane, core: self.cores[usize::from(lane.0)], inside, outside })
    }

    /// The rounds of a job, and draws a packet of the switch with both workers.
    fn rounds(&mut self, job: &Job) -> Result<(Vec<Round>, f64), ScaleError> {
        let mut first = self.start(job, &[0])?;
        let mut second = self.start(job, &[1])?;
        let mut both = self.start(job, &[0, 1])?;
        let (wanted, seconds) = (self.options.rounds, self.options.seconds);
        let (mut rounds, mut worst) = (Vec::new(), 1.0f64);
        let begin = both.drawn()?;
        for turn in 0..wanted * TRIES {
            if rounds.len() == wanted {
                break;
            }
            let mut parts: [Vec<Sample>; 4] = Default::default();
            // Forwards and backwards by turns: a drift of the machine's speed is nobody's.
            let order = if turn % 2 == 0 { [0, 1, 2, 3] } else { [3, 2, 1, 0] };
            for part in order {
                parts[part] = match part {
                    0 => field::sample(&mut [&mut first], seconds)?,
                    1 => field::sample(&mut [&mut first, &mut second], seconds)?,
                    2 => field::sample(&mut [&mut both], seconds)?,
                    _ => field::sample(&mut [&mut second], seconds)?,
                };
            }
            let [left, apart, together, right] = parts.each_ref().map(Vec::as_slice);
            if let (&[left], &[a, b], &[c, d], &[right]) = (left, apart, together, right) {
                let round = Round { alone: [left, right], apart: [a, b], together: [c, d] };
                worst = round.samples().map(Sample::share).fold(worst, f64::min);
                if round.samples().all(Sample::is_quiet) {
                    rounds.push(round);
                }
            }
        }
        if rounds.len() < wanted {
            let (kept, worst) = (rounds.len(), worst * 100.0);
            return Err(ScaleError::Noisy { kept, wanted, cores: self.cores, worst });
        }
        let end = both.drawn()?;
        let draws = (end.bytes - begin.bytes) as f64 / pipelines::qos::QUANTUM_MAX as f64;
        Ok((rounds, draws / (end.packets - begin.packets).max(1) as f64))
    }
}
