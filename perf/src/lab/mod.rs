//! `perf lab`: the cases of `perf compare` over ports that have somebody at their other ends: NICs, or any device of DPDK.
//!
//! ```text
//!   perf gen (here, or over ssh)                 this machine
//!   near ===== cable, memif, ... ===== near [ vswitch | testpmd | OVS ] far
//!   far  =============================================================> far
//! ```
//! First the machine is looked at, then a probe shows that frames come through, then each measurement is taken of each forwarder
//! by turns: RFC 2544 throughput, and delays at shares of the first forwarder's throughput, at the same rates for all.
//! `perf compare` starts the switches, `perf gen` makes and judges the frames; here is what lies between them.

pub mod checks;
pub mod cli;
pub mod file;
pub mod generator;
pub mod report;
pub mod traffic;

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::compare;
use crate::compare::cases::{Case, Job, Peer, Traffic};
use crate::compare::ovs::ExactMatchCache;
use crate::compare::peer::{self, Attached, Contender, FramePort, Switch, SwitchSetup};
use crate::generator::outcome::rate_text;
use crate::generator::rfc2544::Findings;
use crate::generator::scenario::{self, Scenario};
use crate::host::hugepages::HugePages;
use crate::host::interrupt;
use crate::host::scratch::{self, Scratch};
use crate::{Error, Result};

use file::Lab;
use generator::Running;
use report::{LabReport, LabRow};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasurementKind {
    Rate,
    Scaling(usize),
    /// Throughput where every packet is of a new flow.
    SetUp,
}

/// A job, and what is taken of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    pub job: Job,
    pub kind: MeasurementKind,
}

impl Measurement {
    fn workers(&self) -> usize {
        match self.kind {
            MeasurementKind::Scaling(workers) => workers,
            MeasurementKind::Rate | MeasurementKind::SetUp => 1,
        }
    }

    pub fn label(&self) -> String {
        let Job { case, flows, inner_bytes, traffic, .. } = &self.job;
        match self.kind {
            MeasurementKind::Rate => format!("{case}, {flows} flows, {inner_bytes} bytes, {traffic}"),
            MeasurementKind::Scaling(workers) => {
                format!("{case}, {flows} flows, {inner_bytes} bytes, {traffic}, {workers} workers")
            }
            MeasurementKind::SetUp => format!("{case}, new flows only, {inner_bytes} bytes"),
        }
    }
}

/// Everything a lab file asks for, in order.
pub fn measurements(lab: &Lab) -> Vec<Measurement> {
    let jobs = &lab.run.jobs;
    let mut all: Vec<Measurement> =
        jobs.iter().map(|job| Measurement { job: job.clone(), kind: MeasurementKind::Rate }).collect();
    let Some(first) = jobs.first() else { return all };
    // A port with flows of one kind only would leave workers without packets.
    let spread = jobs.iter().find(|job| job.flows.count >= 1000).unwrap_or(first);
    if lab.run.scaling && lab.device.cores.get_ref().len() > 1 {
        all.extend(
            (1..=lab.device.cores.get_ref().len())
                .map(|workers| Measurement { job: spread.clone(), kind: MeasurementKind::Scaling(workers) }),
        );
    }
    if lab.run.setup {
        let flows = jobs.iter().max_by_key(|job| job.flows.count).unwrap_or(first).flows.clone();
        for case in [Case::Encap, Case::Decap] {
            let job = Job { case, traffic: Traffic::Udp, flows: flows.clone(), ..first.clone() };
            all.push(Measurement { job, kind: MeasurementKind::SetUp });
        }
    }
    all
}

/// A lab with what it needs of the machine.
pub struct LabBench<'a> {
    lab: &'a Lab,
    vswitch: &'a Path,
    // Given back before the folder goes, because its note is in there.
    _hugepages: HugePages,
    scratch: Scratch,
    serial: usize,
}

/// A forwarder on its turn: whoever forwards goes after the generator.
struct Turn {
    generator: Running,
    switch: Box<dyn Switch>,
}

impl Turn {
    /// Waits for the steady state; what is not there yet may come until `end`.
    fn settle(&mut self, end: Instant) -> Result<()> {
        loop {
            match self.switch.settle() {
                Ok(()) => return Ok(()),
                Err(Error::Refused { .. }) if Instant::now() < end => {
                    interrupt::pause(Duration::from_millis(100))?;
                }
                Err(error) => {
                    // Whoever is to forward has the better explanation, if it has ended.
                    self.switch.process().check_alive()?;
                    return Err(error);
                }
            }
        }
    }
}

impl<'a> LabBench<'a> {
    pub fn prepare(lab: &'a Lab, vswitch: &'a Path, keep: bool) -> Result<Self> {
        core_affinity::set_for_current(core_affinity::CoreId { id: lab.device.control_core });
        let scratch = Scratch::create(keep)?;
        let hugepages = HugePages::reserve(memory(lab), &scratch)?;
        Ok(Self { lab, vswitch, _hugepages: hugepages, scratch, serial: 0 })
    }

    /// Starts a forwarder, and the generator at its other side.
    fn turn(&mut self, forwarder: Contender, measurement: &Measurement, scenario: &str) -> Result<Turn> {
        let device = &self.lab.device;
        let serial = self.serial;
        self.serial += 1;
        let (near, far) = (device.near.clone(), device.far.clone());
        // What comes in at the source leaves at the sink, and the other way round.
        let (source, sink) = if measurement.job.case == Case::Decap { (far, near) } else { (near, far) };
        let setup = SwitchSetup {
            job: &measurement.job,
            source: FramePort::Attached(source),
            sink: FramePort::Attached(sink),
            plugin: None,
            cores: &device.cores.get_ref()[..measurement.workers()],
            offload: device
                .offload
                .as_ref()
                .map(|device| device.get_ref().as_str())
                .filter(|_| forwarder == Contender::Offloaded),
            housekeeping: device.control_core,
            folder: self.scratch.folder(&format!("turn-{serial}"))?,
            prefix: scratch::file_prefix(serial),
            exact_match_cache: ExactMatchCache::Auto,
            vswitch: self.vswitch,
        };
        remove_sockets([&device.near, &device.far]);
        let switch = peer::start(forwarder, &setup)?;
        let generator = Running::start(&self.lab.generator, scenario)?;
        Ok(Turn { generator, switch })
    }

    /// Sends a few frames through testpmd, both ways: whether the ports are joined as the file says.
    pub fn probe(&mut self) -> Result<()> {
        let job = Job { case: Case::L2, qos: false, ..self.lab.run.jobs[0].clone() };
        let measurement = Measurement { job, kind: MeasurementKind::Rate };
        let mut turn = self.turn(Contender::Peer(Peer::Testpmd), &measurement, &traffic::probe(self.lab))?;
        let answer = turn.generator.answer(Duration::from_secs(60))?;
        let streams = answer.traffic.map(|outcome| outcome.streams).unwrap_or_default();
        for stream in streams {
            let (sent, frames) = (stream.sent, stream.received.frames);
            if frames * 2 < sent || frames == 0 {
                return Err(Error::Failed(format!(
                    "{}: {sent} frames were sent and {frames} came out at the other port; look at the cables: near to near, far \
                     to far",
                    stream.name
                )));
            }
        }
        Ok(())
    }

    /// Takes a measurement of a forwarder; `loads` are rates at which delays are taken.
    fn measure(
        &mut self,
        forwarder: Contender,
        measurement: &Measurement,
        loads: &[String],
    ) -> Result<(Findings, bool)> {
        let run = &self.lab.run;
        let scenario = traffic::scenario(self.lab, forwarder, measurement, loads);
        let warm = Duration::from_secs_f64(run.warm_up);
        // A search has at most so many trials, each tried again as often as the file says.
        let trials = (100.0 / run.resolution).log2().ceil() + 2.0;
        let seconds = (trials * f64::from(run.retries + 1) + loads.len() as f64 + 1.0) * (run.trial + 1.0);
        let limit = Duration::from_secs_f64(seconds * 2.0 + 120.0) + warm;
        let mut turn = self.turn(forwarder, measurement, &scenario)?;
        let start = Instant::now();
        if measurement.kind != MeasurementKind::SetUp {
            // While the generator warms it up; new flows only never settle.
            turn.settle(start + warm)?;
        }
        let settled = start.elapsed() <= warm + Duration::from_secs(2);
        let mut answer = match turn.generator.answer(limit) {
            Ok(answer) => answer,
            Err(error) => {
                turn.switch.process().check_alive()?;
                return Err(error);
            }
        };
        let found = answer.findings.pop().ok_or_else(|| generator::not_understood("it has no findings"))?;
        let damaged: u64 = found.loads.iter().map(|loaded| loaded.outcome.damaged).sum();
        let wrong = if damaged > 0 {
            Some(format!("{damaged} frames have a wrong checksum or ICRC"))
        } else {
            let mut streams = found.loads.iter().flat_map(|loaded| &loaded.outcome.streams);
            streams.find_map(|stream| generator::wrong_length(stream, forwarder))
        };
        match wrong {
            Some(wrong) => {
                let what = measurement.label();
                Err(Error::Failed(format!("{forwarder}, {what}: {wrong}; its output is not comparable")))
            }
            None => Ok((found, settled)),
        }
    }

    /// Takes all measurements; each row is handed to `finished` at once.
    pub fn run(&mut self, report: &mut LabReport, mut finished: impl FnMut(&LabRow)) -> Result<()> {
        let lab = self.lab;
        for measurement in measurements(lab) {
            // The rates of the delays are shares of what the first forwarder can do, and the same for all forwarders and rounds.
            let mut rates: Option<Vec<String>> = None;
            let mut gone = Vec::new();
            for round in 0..*lab.run.rounds.get_ref() {
                let mut forwarders = lab.device.forwarders.clone();
                let turned = round % forwarders.len();
                forwarders.rotate_left(turned);
                for forwarder in forwarders {
                    if gone.contains(&forwarder) {
                        continue;
                    }
                    let with_loads = measurement.kind == MeasurementKind::Rate;
                    let loads = match &rates {
                        _ if !with_loads => Vec::new(),
                        Some(rates) => rates.clone(),
                        None => lab.run.loads.iter().map(|load| format!("{load:?}")).collect(),
                    };
                    let (found, settled) = match self.measure(forwarder, &measurement, &loads) {
                        Ok(found) => found,
                        Err(error) => {
                            // Hours of other measurements are not to be lost for it.
                            interrupt::check()?;
                            report.skip(&measurement, forwarder, &error.to_string());
                            gone.push(forwarder);
                            continue;
                        }
                    };
                    if rates.is_none() && with_loads {
                        rates = Some(
                            found.loads.iter().map(|loaded| format!("\"{:.0}pps\"", loaded.rate)).collect(),
                        );
                    }
                    let row = LabRow::new(&measurement, forwarder, round, &found, settled);
                    finished(&row);
                    report.rows.push(row);
                }
            }
        }
        Ok(())
    }
}

/// Huge pages for whoever forwards, one at a time, and for a generator on this machine, in MiB.
pub fn memory(lab: &Lab) -> u64 {
    let jobs = measurements(lab);
    let device = jobs.iter().map(|measurement| compare::memory(&measurement.job, false)).max().unwrap_or(0);
    let is_here = lab.generator.via.is_empty();
    device + if is_here { crate::generator::memory(&scenario::Generator::default()) } else { 0 }
}

/// Takes away the sockets that a switch, or a guest, before left behind: the next one could not bind to them.
fn remove_sockets(ports: [&Attached; 2]) {
    for port in ports {
        let arguments = || port.text().split(',').skip(1);
        let path = match port {
            Attached::Guest(path) => Some(path.as_str()),
            _ if arguments().any(|argument| argument == "role=server") => {
                arguments().find_map(|argument| argument.strip_prefix("socket="))
            }
            _ => None,
        };
        let is_socket =
            |path: &&str| std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        // Whoever starts next says so if it could not be removed.
        path.filter(is_socket).into_iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Whether the generator can make all that a lab asks for.
pub fn check(lab: &Lab) -> Result<()> {
    for (measurement, forwarder) in measurements(lab)
        .iter()
        .flat_map(|one| lab.device.forwarders.iter().map(move |forwarder| (one, *forwarder)))
    {
        let name = format!("scenario of `{}`", measurement.label());
        let (scenario, source) = Scenario::parse(name, traffic::scenario(lab, forwarder, measurement, &[]))?;
        scenario.check(&source)?;
    }
    Ok(())
}

/// What will be run, for people.
pub fn intention(lab: &Lab) -> String {
    let (all, run, rounds) = (measurements(lab), &lab.run, *lab.run.rounds.get_ref());
    let forwarders: Vec<String> = lab.device.forwarders.iter().map(Contender::to_string).collect();
    let searches = (100.0 / run.resolution).log2().ceil() + 1.0;
    let each = (searches + run.loads.len() as f64) * run.trial + run.warm_up + 5.0;
    format!(
        "{} measurements of {} ({}), {} rounds: about {:.0} minutes at most",
        all.len(),
        forwarders.join(", "),
        if run.jobs.iter().any(|job| job.qos) { "with rates" } else { "without rates" },
        rounds,
        each * (all.len() * forwarders.len() * rounds) as f64 / 60.0
    )
}

pub(crate) fn rate_or_none(rate: f64) -> String {
    if rate > 0.0 { rate_text(rate) } else { "none".into() }
}
