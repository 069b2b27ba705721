//! `perf compare`: this switch and its peers on the same frames, ports and core, by turns.
//!
//! For each case and flow count every switch first plays the frames once into a file, which is checked; then ours and
//! each peer run frozen and thawed by turns, one pair of samples after the other, so that a drift of the machine's
//! speed hits both. Only whole pairs of quiet samples count, and the ratio is taken within a pair.

pub mod cases;
pub mod check;
pub mod frames;
pub mod ours;
pub mod ovs;
pub mod peer;
pub mod report;
pub mod sample;
pub mod testpmd;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cases::{Job, Peer};
use frames::Frames;
use peer::{Contender, Setup, Sink, Source, Switch};
use report::{Pair, Row};

use crate::host::hugepages::HugePages;
use crate::host::scratch::{self, Scratch};
use crate::host::{HostError, cores, threads, tsc};
use crate::pcap::{self, PcapError};

/// What can go wrong in a comparison.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The machine around it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A frame file.
    #[error("{path}: {reason}")]
    Pcap {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: PcapError,
    },
    /// A switch did not take its set-up.
    #[error("{switch} does not do what it was set up for: {words}")]
    Refused {
        /// The switch.
        switch: &'static str,
        /// What it said or shows.
        words: String,
    },
    /// The frames that came out are wrong.
    #[error("{switch}, {case} with {flows} flows: {wrong}; its output is not comparable")]
    Output {
        /// The switch.
        switch: Contender,
        /// The case.
        case: cases::Case,
        /// Flows as given.
        flows: String,
        /// What is wrong.
        wrong: Box<check::Wrong>,
    },
    /// Too few quiet samples.
    #[error(
        "only {kept} of {wanted} pairs were quiet: in the others a forwarding thread had less than 97 % of core {core}, \
         at worst {worst:.0} %; stop what else runs on that core, or choose another with --core"
    )]
    Noisy {
        /// Quiet pairs.
        kept: usize,
        /// Pairs asked for.
        wanted: usize,
        /// The core.
        core: usize,
        /// The smallest share seen, in percent.
        worst: f64,
    },
    /// A switch that should forward does not.
    #[error("{switch} forwarded nothing in {seconds} s, although its output was right before")]
    Silent {
        /// The switch.
        switch: Contender,
        /// Length of the sample.
        seconds: f64,
    },
}

/// What to compare and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The rows' cases, flow counts, lengths and traffic.
    pub jobs: Vec<Job>,
    /// The other switches.
    pub peers: Vec<Peer>,
    /// Pairs of samples per row.
    pub pairs: usize,
    /// Length of a sample.
    pub seconds: f64,
    /// The daemon's binary; `None` measures the peers alone.
    pub vswitch: Option<PathBuf>,
    /// The core that forwards; the last one if not given.
    pub core: Option<usize>,
    /// Whether OVS uses its exact-match cache.
    pub exact_match_cache: ovs::ExactMatchCache,
    /// Keep the private folder for inspection.
    pub keep: bool,
}

/// Noisy pairs are taken again, up to this many tries per pair asked for.
const TRIES: usize = 4;

/// Runs the comparison; each finished row is handed to `finished` at once.
pub fn run(options: &Options, mut finished: impl FnMut(Row)) -> Result<(), CompareError> {
    let bench = Bench::prepare(options)?;
    for (number, job) in options.jobs.iter().enumerate() {
        let files = Files::write(&bench.scratch, number, job)?;
        if options.vswitch.is_some() {
            bench.check_output(Contender::Ours, job, &files)?;
        }
        for &peer in &options.peers {
            let their_job = peer.job(job);
            let their_files = if their_job.traffic == job.traffic {
                files.clone()
            } else {
                Files::write(&bench.scratch, number, &their_job)?
            };
            bench.check_output(Contender::Peer(peer), &their_job, &their_files)?;
            let pairs = bench.pairs(peer, (job, &files), (&their_job, &their_files))?;
            if let Some(row) = Row::new(job, peer, &pairs, bench.hertz) {
                finished(row);
            }
        }
    }
    Ok(())
}

/// The frames of a job and the file they are replayed from.
#[derive(Clone)]
struct Files {
    frames: std::rc::Rc<Frames>,
    path: PathBuf,
}

impl Files {
    fn write(scratch: &Scratch, number: usize, job: &Job) -> Result<Self, CompareError> {
        let frames = frames::frames(job);
        let path = scratch.path().join(format!("{number}-{}-{}-{}.pcap", job.case, job.flows, job.traffic));
        pcap::write(&path, frames.input.iter().map(Vec::as_slice)).map_err(at(&path))?;
        Ok(Self { frames: frames.into(), path })
    }
}

/// The machine, made ready.
struct Bench<'a> {
    options: &'a Options,
    core: usize,
    housekeeping: usize,
    hertz: f64,
    // Given back before the folder goes, because its note is in there.
    _hugepages: HugePages,
    scratch: Scratch,
    serial: std::cell::Cell<usize>,
}

impl<'a> Bench<'a> {
    fn prepare(options: &'a Options) -> Result<Self, CompareError> {
        let (core, housekeeping) = cores::choose(&cores::available(), options.core)?;
        // Children inherit it, so that all but the forwarding thread stays off its core.
        core_affinity::set_for_current(core_affinity::CoreId { id: housekeeping });
        let hertz = tsc::hertz()?;
        let scratch = Scratch::create(options.keep)?;
        let most = options.jobs.iter().map(memory).max().unwrap_or(0);
        let hugepages = HugePages::reserve(most, &scratch)?;
        Ok(Self { options, core, housekeeping, hertz, _hugepages: hugepages, scratch, serial: 0.into() })
    }

    fn start(
        &self,
        contender: Contender,
        job: &Job,
        source: Source,
        sink: Sink,
    ) -> Result<Box<dyn Switch>, CompareError> {
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        let setup = Setup {
            job,
            source,
            sink,
            core: self.core,
            housekeeping: self.housekeeping,
            folder: self.scratch.folder(&format!("run-{serial}"))?,
            prefix: scratch::file_prefix(serial),
            exact_match_cache: self.options.exact_match_cache,
            vswitch: self.options.vswitch.as_deref().unwrap_or(Path::new("vswitch")),
        };
        peer::start(contender, &setup)
    }

    /// Plays the frames once and checks what comes out.
    fn check_output(&self, contender: Contender, job: &Job, files: &Files) -> Result<(), CompareError> {
        let out = files.path.with_extension(format!("{contender}.out.pcap"));
        let source = Source::Once(files.path.clone());
        let mut switch = self.start(contender, job, source, Sink::File(out.clone()))?;
        let wanted = files.frames.input.len() as u64;
        let mut last = (0, std::time::Instant::now());
        loop {
            let sent = switch.forwarded()?;
            if sent != last.0 {
                last = (sent, std::time::Instant::now());
            }
            if sent >= wanted || last.1.elapsed() > Duration::from_secs(3) {
                break;
            }
            crate::host::interrupt::pause(Duration::from_millis(50))?;
        }
        drop(switch);
        let output = pcap::read(&out).map_err(at(&out))?;
        check::check(job, contender, &files.frames, &output).map_err(|wrong| CompareError::Output {
            switch: contender,
            case: job.case,
            flows: job.flows.given.clone(),
            wrong: wrong.into(),
        })?;
        if !self.options.keep {
            let _ = std::fs::remove_file(&out);
        }
        Ok(())
    }

    /// Takes the pairs of a row, by turns and in turning order.
    fn pairs(
        &self,
        peer: Peer,
        ours: (&Job, &Files),
        theirs: (&Job, &Files),
    ) -> Result<Vec<Pair>, CompareError> {
        let mut theirs = self.runner(Contender::Peer(peer), theirs.0, theirs.1)?;
        let mut ours = match self.options.vswitch {
            Some(_) => Some(self.runner(Contender::Ours, ours.0, ours.1)?),
            None => None,
        };
        let wanted = self.options.pairs;
        let mut pairs = Vec::new();
        let mut worst: f64 = 1.0;
        for turn in 0..wanted * TRIES {
            if pairs.len() == wanted {
                break;
            }
            let seconds = self.options.seconds;
            let early = if turn % 2 == 0 {
                ours.as_mut().map(|ours| ours.sample(seconds)).transpose()?
            } else {
                None
            };
            let peer = theirs.sample(seconds)?;
            let late = if turn % 2 == 1 {
                ours.as_mut().map(|ours| ours.sample(seconds)).transpose()?
            } else {
                None
            };
            let ours = early.or(late);
            worst = ours.iter().chain([&peer]).map(|sample| sample.share()).fold(worst, f64::min);
            if peer.is_quiet() && ours.is_none_or(|sample| sample.is_quiet()) {
                pairs.push(Pair { ours, peer });
            }
        }
        if pairs.len() < wanted {
            return Err(CompareError::Noisy {
                kept: pairs.len(),
                wanted,
                core: self.core,
                worst: worst * 100.0,
            });
        }
        Ok(pairs)
    }

    fn runner(&self, contender: Contender, job: &Job, files: &Files) -> Result<Runner, CompareError> {
        let mut switch = self.start(contender, job, Source::Endless(files.path.clone()), Sink::Drop)?;
        switch.process().favour();
        switch.settle()?;
        let name = switch.name().to_owned();
        let thread = threads::forwarding(switch.process(), &name, self.core)?;
        switch.process().freeze()?;
        Ok(Runner { contender, switch, thread })
    }
}

/// A settled switch, frozen between its samples.
struct Runner {
    contender: Contender,
    switch: Box<dyn Switch>,
    thread: u32,
}

impl Runner {
    fn sample(&mut self, seconds: f64) -> Result<sample::Sample, CompareError> {
        let sample = sample::take(self.switch.as_mut(), self.thread, seconds)?;
        if sample.packets == 0 {
            return Err(CompareError::Silent { switch: self.contender, seconds });
        }
        Ok(sample)
    }
}

/// Huge-page memory for a peer and ours at the same time, in MiB.
fn memory(job: &Job) -> u64 {
    let buffers = peer::mbufs(job) as u64 * 2560 / (1024 * 1024);
    let small = buffers + 128;
    let peer = small.max(ovs::memory(job) + 64).max(ours::memory(job));
    peer + ours::memory(job)
}

fn at(path: &Path) -> impl FnOnce(PcapError) -> CompareError {
    let path = path.display().to_string();
    |reason| CompareError::Pcap { path, reason }
}

/// Arguments as [`Process::start`](crate::host::process::Process::start) takes them.
fn arguments_of<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}
