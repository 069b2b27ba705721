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
pub mod lane;
pub mod model;
pub mod report;
pub mod testbed;

use std::path::{Path, PathBuf};

use clap::ValueEnum as _;

use crate::compare::cases::{Case, FlowCount, Job};
use crate::compare::plugin::{self, TemplateDevice};
use crate::compare::runner::{Runner, quiet, sample};
use crate::compare::sample::Sample;
use crate::host::cores::{self, Cores};
use crate::host::daemon::DaemonSetup;
use crate::host::hugepages::HugePages;
use crate::host::scratch::{self, Scratch};
use crate::host::{interrupt, process, tsc};
use crate::options::{Common, within};
use crate::{Error, Result};
use lane::WorkerLane;
use report::{ScaleReport, ScaleRound, ScaleRow};
use testbed::WorkerSetup;

/// Two workers of one switch, each with its own generator, against one alone; and the curve beyond.
#[derive(Debug, Clone, clap::Args)]
pub struct ScaleOptions {
    /// What to do: encap, decap, both (encap and decap at the same time).
    #[arg(long, value_delimiter = ',', default_value = "encap,decap,both", value_parser = with_lanes)]
    cases: Vec<Case>,
    /// Numbers of flows of each worker.
    #[arg(long, value_delimiter = ',', default_value = "1k,100k")]
    flows: Vec<FlowCount>,
    #[command(flatten)]
    job: Job,
    /// Rounds of each case.
    #[arg(long, default_value_t = 5, value_parser = within::<usize>(1, 1000))]
    rounds: usize,
    /// Length of a sample in seconds; a round has four.
    #[arg(long, default_value_t = 1.0, value_parser = within::<f64>(0.1, 60.0))]
    seconds: f64,
    /// The workers' cores, as in 0,1 [default: the first two].
    #[arg(long, value_delimiter = ',', num_args = 2)]
    cores: Option<Vec<usize>>,
    #[command(flatten)]
    common: Common,
}

/// A case with a lane for each worker.
fn with_lanes(word: &str) -> Result<Case, String> {
    match Case::from_str(word, false) {
        Ok(case) if case != Case::L2 => Ok(case),
        _ => Err(format!("{word} has no lane for each worker; choose of encap, decap, both")),
    }
}

const WORKERS: u8 = 2;
/// The share of its core that each worker must have had. Where both cores have one, the switches' other threads take some of
/// it: two to four parts of a hundred were seen, most by the thread that divides rates each millisecond.
const QUIET_SHARE: f64 = 0.93;

pub fn run(options: &ScaleOptions) -> anyhow::Result<()> {
    let vswitch = options.common.vswitch()?;
    interrupt::install()?;
    // Both cores have workers that never sleep and win over everything else: this process would wait for each of its turns.
    process::favour_this();
    println!(
        "rates are per CPU-second of a worker's thread; alone: the other core idle; apart: beside another switch"
    );
    println!("{}", report::TABLE.head());
    let report = measure(options, &vswitch)?;
    if let Some(reason) = &report.skipped {
        println!("skipped: {reason}");
    }
    println!("a line that the other core has costs {:.0} cycles", report.line_cycles);
    report.rows.iter().for_each(|row| println!("{}", row.verdict()));
    report.rows.iter().for_each(|row| print!("{}", row.curve()));
    options.common.write(&report)
}

fn measure(options: &ScaleOptions, vswitch: &Path) -> Result<ScaleReport> {
    let usable = cores::available();
    let cores = match options.cores.as_deref() {
        None => usable.get(..2).map(|two| [two[0], two[1]]),
        Some(&[first, second]) => Some([first, second]),
        Some(_) => None,
    };
    let chosen =
        cores.filter(|[first, second]| first != second && usable.contains(first) && usable.contains(second));
    let unfit = |cores: &[usize]| {
        let what =
            format!("cores {cores:?}: two different ones of those that this process may use are needed");
        Error::missing(what, "name them with --cores")
    };
    let cores = chosen.ok_or_else(|| unfit(options.cores.as_deref().unwrap_or(&usable)))?;
    let hertz = tsc::hertz()?;
    let line = bounce::ticks(cores).ok_or_else(|| unfit(&cores))?;
    let mut report =
        ScaleReport { hertz, line_cycles: line, seconds: options.seconds, rows: Vec::new(), skipped: None };
    let scratch = Scratch::create(options.common.keep)?;
    let plugin = match plugin::build(scratch.path()) {
        Ok(plugin) => plugin,
        Err(error) => {
            report.skipped = Some(format!("the template device could not be built: {error}"));
            return Ok(report);
        }
    };
    let works = options.cases.iter().map(|&case| (case, None));
    let jobs = options.job.each(works, &options.flows);
    let memory = |job: &Job| 2 * testbed::memory(job, 1) + testbed::memory(job, usize::from(WORKERS));
    let _hugepages = HugePages::reserve(jobs.iter().map(memory).max().unwrap_or(0), &scratch)?;
    let mut bench = Bench { options, vswitch, scratch, plugin, cores, serial: 0 };
    for job in &jobs {
        let (rounds, draws) = bench.rounds(job)?;
        if let Some(row) = ScaleRow::new(job, cores, &rounds, draws, line, hertz) {
            row.lines().iter().for_each(|line| println!("{line}"));
            report.rows.push(row);
        }
    }
    Ok(report)
}

struct Bench<'a> {
    options: &'a ScaleOptions,
    vswitch: &'a Path,
    scratch: Scratch,
    plugin: PathBuf,
    cores: [usize; 2],
    serial: usize,
}

impl Bench<'_> {
    fn start(&mut self, job: &Job, lanes: &[u8]) -> Result<Runner> {
        let folder = self.scratch.folder(&format!("run-{}", self.serial))?;
        let prefix = scratch::file_prefix(self.serial);
        self.serial += 1;
        let setup = DaemonSetup {
            program: self.vswitch,
            folder: &folder,
            prefix: &prefix,
            cores: Cores { forwarding: self.cores[1], housekeeping: self.cores[0] },
            netns: None,
        };
        let workers: Vec<WorkerSetup> = lanes
            .iter()
            .map(|&lane| self.worker(job, WorkerLane(lane), &folder))
            .collect::<Result<_, _>>()?;
        testbed::start(job, &workers, u32::from(WORKERS), &setup, &self.plugin)
    }

    fn worker(&self, job: &Job, lane: WorkerLane, folder: &Path) -> Result<WorkerSetup> {
        let mut devices = Vec::new();
        for way in [Case::Encap, Case::Decap] {
            let name = |kind: &str| folder.join(format!("{}-{way}.{kind}", lane.0));
            let frames = job.case.ways().contains(&way).then(|| name("frames"));
            if let Some(path) = &frames {
                let text = lane.program(job, way).text();
                std::fs::write(path, text).map_err(Error::io(format!("write {}", path.display())))?;
            }
            devices.push(TemplateDevice { frames, board: name("board") });
        }
        let [inside, outside] = [devices.remove(0), devices.remove(0)];
        Ok(WorkerSetup { lane, core: self.cores[usize::from(lane.0)], inside, outside })
    }

    /// The rounds of a job, and draws a packet of the switch with both workers.
    fn rounds(&mut self, job: &Job) -> Result<(Vec<ScaleRound>, f64)> {
        let mut first = self.start(job, &[0])?;
        let mut second = self.start(job, &[1])?;
        let mut both = self.start(job, &[0, 1])?;
        let (wanted, seconds) = (self.options.rounds, self.options.seconds);
        let begin = both.drawn()?;
        let round = |turn: usize| {
            let mut parts: [Vec<Sample>; 4] = Default::default();
            // Forwards and backwards by turns: a drift of the machine's speed is nobody's.
            let order = if turn.is_multiple_of(2) { [0, 1, 2, 3] } else { [3, 2, 1, 0] };
            for part in order {
                parts[part] = match part {
                    0 => sample(&mut [&mut first], seconds)?,
                    1 => sample(&mut [&mut first, &mut second], seconds)?,
                    2 => sample(&mut [&mut both], seconds)?,
                    _ => sample(&mut [&mut second], seconds)?,
                };
            }
            let [left, apart, together, right] = &parts;
            let round = ScaleRound {
                alone: [left[0], right[0]],
                apart: [apart[0], apart[1]],
                together: [together[0], together[1]],
            };
            Ok((round, parts.concat()))
        };
        let cores = self.cores;
        let noisy = |kept, worst| {
            let share = QUIET_SHARE * 100.0;
            Error::Failed(format!(
                "only {kept} of {wanted} rounds were quiet: in the others a worker had less than {share:.0} % of its core, at worst \
                 {worst:.0} %; stop what else runs on cores {cores:?}"
            ))
        };
        let rounds = quiet(wanted, QUIET_SHARE, round, noisy)?;
        let end = both.drawn()?;
        let draws = (end.0 - begin.0) as f64 / pipelines::qos::QUANTUM_MAX as f64;
        Ok((rounds, draws / (end.1 - begin.1).max(1) as f64))
    }
}
