//! `perf compare`: this switch and its peers on the same frames, ports and core, by turns.
//!
//! For each case and flow count ours and each peer run frozen and thawed by turns, one pair of samples after the other,
//! so that a drift of the machine's speed hits both. Only whole pairs of quiet samples count, and the ratio is taken
//! within a pair. The frames are made and swallowed by template devices, which keep samples of what comes out; those
//! are checked before a row counts. Or they are replayed from a file, and each switch first plays it once into another.

pub mod board;
pub mod cases;
pub mod check;
pub mod cli;
pub mod frames;
pub mod ours;
pub mod ovs;
pub mod peer;
pub mod plugin;
pub mod program;
pub mod record;
pub mod report;
pub mod results;
pub mod runner;
pub mod sample;
pub mod template;
pub mod testpmd;

use std::path::{Path, PathBuf};
use std::time::Duration;

use board::Kept;
use cases::{Case, Job, Peer};
use check::Input;
use cli::CompareOptions;
use peer::{Contender, FramePort, Switch, SwitchSetup};
use plugin::TemplateDevice;
use report::{CompareRow, Measured, Pair};
use runner::{Runner, check_kept};
use sample::Counter;
use template::Program;

use crate::host::cores::{self, Cores};
use crate::host::hugepages::HugePages;
use crate::host::scratch::{self, Scratch};
use crate::host::tsc;
use crate::pcap::{self, PcapError};
use crate::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Supply {
    /// Template devices, of a plugin driver that is built first.
    Template,
    /// A pcap file for each flow count. Needs no plugin, holds 200,000 flows, one way and no trunk, and costs more cycles itself.
    Pcap,
}

impl Supply {
    /// Why a job cannot have its frames from here; nothing if it can.
    pub fn objection(self, job: &Job) -> Option<&'static str> {
        match self {
            Self::Template => None,
            Self::Pcap if job.flows.count > cases::MOST_REPLAYED => {
                Some("a pcap port holds at most 200k flows")
            }
            Self::Pcap if job.case == Case::Both => Some("pcap ports play one way only"),
            Self::Pcap if job.tenants.is_some() => Some("pcap ports play frames without tags only"),
            Self::Pcap if job.mix.zipf || job.mix.churn > 0 => {
                Some("pcap ports play the same frames by turns")
            }
            Self::Pcap => None,
        }
    }
}

/// Why nothing could be measured of a job and a peer.
#[derive(Debug, Clone)]
pub struct Skipped {
    pub job: Job,
    pub peer: Peer,
    pub reason: String,
}

/// What a job and a peer came to.
#[derive(Debug, Clone)]
pub enum RowOutcome {
    Measured(Box<CompareRow>),
    Skipped(Skipped),
}

/// Runs the comparison; each finished row is handed to `finished` at once.
pub fn run(
    options: &CompareOptions,
    vswitch: Option<PathBuf>,
    mut finished: impl FnMut(RowOutcome),
) -> Result<()> {
    let jobs = options.jobs();
    let bench = Bench::prepare(options, vswitch, &jobs)?;
    for (number, job) in jobs.iter().enumerate() {
        for &peer in options.peers.iter().flatten() {
            let objection = bench.objection(job, peer);
            if let Some(reason) = objection {
                finished(RowOutcome::Skipped(Skipped { job: job.clone(), peer, reason }));
                continue;
            }
            let measured = bench.measured(number, job, peer)?;
            if let Some(row) = CompareRow::new(job, peer, measured, bench.hertz) {
                finished(RowOutcome::Measured(Box::new(row)));
            }
        }
    }
    Ok(())
}

struct Bench<'a> {
    options: &'a CompareOptions,
    /// The daemon; without one the peers are measured alone.
    vswitch: Option<PathBuf>,
    /// The plugin driver, or why there is none; `None` where none is needed.
    plugin: Option<Result<PathBuf, String>>,
    core: usize,
    housekeeping: usize,
    hertz: f64,
    // Given back before the folder goes, because its note is in there.
    _hugepages: HugePages,
    scratch: Scratch,
    serial: std::cell::Cell<usize>,
}

impl<'a> Bench<'a> {
    fn prepare(options: &'a CompareOptions, vswitch: Option<PathBuf>, jobs: &[Job]) -> Result<Self> {
        let Cores { forwarding: core, housekeeping } = cores::choose(&cores::available(), options.on.core)?;
        // Children inherit it, so that all but the forwarding thread stays off its core.
        core_affinity::set_for_current(core_affinity::CoreId { id: housekeeping });
        let hertz = tsc::hertz()?;
        let scratch = Scratch::create(options.common.keep)?;
        let replayed = options.frames == Supply::Pcap;
        let plugin = (!replayed).then(|| plugin::build(scratch.path()).map_err(|error| error.to_string()));
        let most = jobs.iter().map(|job| memory(job, replayed)).max().unwrap_or(0);
        let hugepages = HugePages::reserve(most, &scratch)?;
        Ok(Self {
            options,
            vswitch,
            plugin,
            core,
            housekeeping,
            hertz,
            _hugepages: hugepages,
            scratch,
            serial: 0.into(),
        })
    }

    fn start(
        &self,
        contender: Contender,
        job: &Job,
        source: FramePort,
        sink: FramePort,
    ) -> Result<Box<dyn Switch>> {
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        let build = match contender {
            Contender::Peer(Peer::Before) => self.options.before.as_deref(),
            _ => self.vswitch.as_deref(),
        };
        let setup = SwitchSetup {
            job,
            source,
            sink,
            plugin: self.plugin.as_ref().and_then(|plugin| plugin.clone().ok()),
            cores: std::slice::from_ref(&self.core),
            offload: None,
            housekeeping: self.housekeeping,
            folder: self.scratch.folder(&format!("run-{serial}"))?,
            prefix: scratch::file_prefix(serial),
            exact_match_cache: self.options.ovs_emc,
            vswitch: build.unwrap_or(Path::new("vswitch")),
        };
        peer::start(contender, &setup)
    }

    /// Why a job cannot be measured against a peer here.
    fn objection(&self, job: &Job, peer: Peer) -> Option<String> {
        if let Some(Err(reason)) = &self.plugin {
            return Some(format!("the template device could not be built: {reason}"));
        }
        let unnamed = (peer == Peer::Before && self.options.before.is_none())
            .then_some("name the other build with --before");
        let objection = unnamed
            .or_else(|| peer.objection(job))
            .or_else(|| self.options.frames.objection(job))
            .or_else(|| job.objection());
        objection.map(str::to_owned)
    }

    /// The pairs of a row, after a check of what comes out.
    fn measured(&self, number: usize, job: &Job, peer: Peer) -> Result<Measured> {
        let runner = |contender, job: &Job| match self.options.frames {
            Supply::Template => self.template_runner(contender, number, job),
            Supply::Pcap => self.replay_runner(contender, number, job),
        };
        let theirs = runner(Contender::Peer(peer), &peer.job(job))?;
        let ours = self.vswitch.as_ref().map(|_| runner(Contender::Ours, job)).transpose()?;
        self.pairs(ours, theirs)
    }

    /// Writes the frames of a job into a file.
    fn replay_file(&self, number: usize, job: &Job) -> Result<PathBuf> {
        let Job { flows, traffic, inner_bytes, .. } = job;
        let name = format!("{number}-{}-{flows}-{traffic}-{inner_bytes}.pcap", job.label());
        let path = self.scratch.path().join(name);
        let frames = frames::replayed(job);
        pcap::write(&path, frames.iter().map(Vec::as_slice)).map_err(at(&path))?;
        Ok(path)
    }

    /// Plays the frames once and checks what comes out.
    fn check_output(&self, contender: Contender, job: &Job, file: &Path) -> Result<()> {
        let out = file.with_extension(format!("{contender}.out.pcap"));
        let source = FramePort::Replayed { path: file.into(), endless: false };
        let mut switch = self.start(contender, job, source, FramePort::File(out.clone()))?;
        let mut last = (0, std::time::Instant::now());
        loop {
            let sent = switch.forwarded()?;
            if sent != last.0 {
                last = (sent, std::time::Instant::now());
            }
            if sent >= job.flows.count as u64 || last.1.elapsed() > Duration::from_secs(3) {
                break;
            }
            crate::host::interrupt::pause(Duration::from_millis(50))?;
        }
        drop(switch);
        let output = pcap::read(&out).map_err(at(&out))?;
        let output: Vec<Kept> = output.into_iter().map(Kept::whole).collect();
        check_kept(contender, job, job.case, Input::Replayed(&frames::replayed(job)), &output)?;
        if !self.options.common.keep {
            let _ = std::fs::remove_file(&out);
        }
        Ok(())
    }

    /// Takes the pairs of a row, by turns and in turning order, and then the account of our stages.
    fn pairs(&self, mut ours: Option<Runner>, mut theirs: Runner) -> Result<Measured> {
        let (wanted, seconds) = (self.options.pairs, self.options.seconds);
        let pair = |turn: usize| {
            let mut ours = || ours.as_mut().map(|ours| ours.sample(seconds)).transpose();
            let early = if turn.is_multiple_of(2) { ours()? } else { None };
            let peer = theirs.sample(seconds)?;
            let ours = if turn.is_multiple_of(2) { early } else { ours()? };
            Ok((Pair { ours, peer }, ours.into_iter().chain([peer]).collect()))
        };
        let core = self.core;
        let noisy = |kept, worst| {
            Error::Failed(format!(
                "only {kept} of {wanted} pairs were quiet: in the others a forwarding thread had less than 97 % of core {core}, \
                 at worst {worst:.0} %; stop what else runs on that core, or choose another with --core"
            ))
        };
        let pairs = runner::quiet(wanted, sample::QUIET_SHARE, pair, noisy)?;
        for runner in ours.iter_mut().chain([&mut theirs]) {
            runner.paid()?;
        }
        let stages = match &mut ours {
            Some(ours) if self.options.account => ours.account(self.options.seconds)?,
            _ => Vec::new(),
        };
        Ok(Measured { pairs, stages })
    }

    /// A switch to which a file is replayed without end, after it has played it once.
    fn replay_runner(&self, contender: Contender, number: usize, job: &Job) -> Result<Runner> {
        let file = self.replay_file(number, job)?;
        self.check_output(contender, job, &file)?;
        let source = FramePort::Replayed { path: file, endless: true };
        let switch = self.start(contender, job, source, FramePort::Drop)?;
        Runner::settle(contender, switch, &[self.core], |_, _| Ok(Counter::default()))
    }

    /// What template devices make for a job, by way, and the files that say so.
    fn programs(&self, number: usize, job: &Job) -> Result<Vec<(Case, Program, PathBuf)>> {
        let one = |&way: &Case| {
            let program = program::program(job, way);
            let name = format!("{number}-{}-{way}-{}-{}.frames", job.label(), job.flows, job.traffic);
            let path = self.scratch.path().join(name);
            let write = std::fs::write(&path, program.text());
            write.map_err(Error::io(format!("write {}", path.display())))?;
            Ok((way, program, path))
        };
        job.case.ways().iter().map(one).collect()
    }

    fn template_runner(&self, contender: Contender, number: usize, job: &Job) -> Result<Runner> {
        let programs = self.programs(number, job)?;
        let board = |port: usize| self.scratch.path().join(format!("run-{}.board{port}", self.serial.get()));
        let boards = [board(0), board(1)];
        let [source, sink] = [0, 1].map(|port| {
            // Frames come in at the first port, and at the second too if both ways are measured.
            let frames = programs.get(port).map(|(_, _, path)| path.clone());
            FramePort::Template(TemplateDevice { frames, board: boards[port].clone() })
        });
        let switch = self.start(contender, job, source, sink)?;
        Runner::settle(contender, switch, &[self.core], |switch, _| {
            let counter = Counter::open(switch, &boards, job)?;
            for (port, (way, program, _)) in programs.iter().enumerate() {
                // What comes in at one port leaves at the other.
                let kept = counter.boards[1 - port].samples()?;
                let made = counter.boards[port].made()?;
                check_kept(contender, job, *way, Input::Made { program, made }, &kept)?;
            }
            Ok(counter)
        })
    }
}

/// Huge-page memory for a peer and ours at the same time, in MiB.
pub(crate) fn memory(job: &Job, replayed: bool) -> u64 {
    let buffers = peer::mbufs(job, replayed) as u64 * 2560 / (1024 * 1024);
    let small = buffers + 128;
    let peer = small.max(ovs::memory(job, replayed) + 64).max(ours::memory(job, replayed));
    peer + ours::memory(job, replayed)
}

fn at(path: &Path) -> impl FnOnce(PcapError) -> Error {
    let path = path.display().to_string();
    move |reason| Error::Failed(format!("{path}: {reason}"))
}
