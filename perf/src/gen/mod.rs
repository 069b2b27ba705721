//! `perf gen`: a generator and receiver of frames on any DPDK port, after a scenario file.
//!
//! ```text
//!   scenario -> plan -> rig:  streams (pace, flow, length, template, signature) -> port ==> device under test
//!                             ledgers (loss, order, repetition, PSNs, delay)    <- port <==
//!   tests: plain traffic; RFC 2544 throughput, latency, frame loss, back-to-back  ->  text, JSON, page
//! ```
//! Before anything else the same streams run through a ring inside this process, which tells what the generator itself can
//! do; what comes near that is told to be the generator's limit, not the device's.

mod answers;
pub mod choice;
pub mod cli;
pub mod frame;
pub mod ledger;
pub mod mark;
pub mod observer;
pub mod outcome;
pub mod parse;
pub mod ports;
pub mod report;
pub mod rfc2544;
pub mod rig;
mod rounds;
pub mod scenario;
pub mod screen;
pub mod search;
pub mod sender;
mod stream;
mod tally;
pub mod tuple;
pub mod units;

use crate::host::scratch::{self, Scratch};
use crate::host::{cores, hugepages, interrupt, process};
use crate::live::ports::Runtime;
use crate::{Error, Result};

use outcome::Outcome;
use ports::Lane;
use report::{Ceiling, GenReport};
use rfc2544::{Findings, Rfc2544};
use rig::{Demand, Rig};
use scenario::check::{Plan, PortPlan, StreamPlan};
use scenario::{Attachment, Generator, Scenario, Test};
use screen::Screen;

/// Packets that the loopback of the calibration holds.
const LOOPBACK: u16 = 4096;

/// Huge pages of a generator, in MiB.
pub fn memory(generator: &Generator) -> u64 {
    96 + u64::from(generator.mbufs) * 2600 / (1 << 20)
}

/// Runs the tests of a scenario. What was done before the user ended it is in the report.
pub fn run(name: &str, scenario: &Scenario, plan: &Plan, quiet: bool) -> Result<GenReport> {
    let available = cores::available();
    let remedy = "write another one into [generator] core";
    let core = cores::pick(&available, scenario.generator.core, available.first(), remedy)?;
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
    process::favour_this();
    let scratch = Scratch::create(false)?;
    let _hugepages = hugepages::reserve_or_say(memory(&scenario.generator), &scratch);
    let _run_folder = scratch::RunFolder(scratch::file_prefix(0));
    let runtime = ports::runtime(plan, core, scenario.generator.mbufs)?;
    let screen = Screen::new(quiet, runtime.clock.hz());
    let report = GenReport::new(name, core, runtime.clock.hz());
    let mut session = Session { scenario, plan, runtime: &runtime, screen, report };
    match session.all() {
        Err(Error::Interrupted) => session.report.interrupted = true,
        other => other?,
    }
    Ok(session.report)
}

struct Session<'a> {
    scenario: &'a Scenario,
    plan: &'a Plan,
    runtime: &'a Runtime,
    screen: Screen,
    report: GenReport,
}

impl Session<'_> {
    fn all(&mut self) -> Result<()> {
        let mut lanes = Vec::new();
        for (index, port) in self.plan.ports.iter().enumerate() {
            lanes.push(Lane::open(self.runtime, port, index)?);
        }
        for lane in &lanes {
            lane.await_link()?;
        }
        let has = |test| self.scenario.run.tests.contains(&test);
        if has(Test::Traffic) {
            lanes = self.traffic(lanes)?;
        }
        if [Test::Throughput, Test::Latency, Test::FrameLoss, Test::BackToBack].into_iter().any(has) {
            let sizes: Vec<u32> = match self.scenario.run.sizes.iter().map(|size| *size.get_ref()).collect() {
                sizes if Vec::is_empty(&sizes) => vec![0],
                sizes => sizes,
            };
            for size in sizes {
                lanes = self.rfc2544(lanes, size)?;
            }
        }
        Ok(())
    }

    /// What generator and receiver can do without anything in between.
    fn calibrate(&mut self, streams: &[StreamPlan], size: u32) -> Result<Option<f64>> {
        let seconds = self.scenario.generator.calibrate;
        if seconds == 0.0 {
            return Ok(None);
        }
        self.screen.begin("calibration against a loopback");
        let outcome = calibrate(self.runtime, streams, &self.scenario.generator, seconds, &mut self.screen)?;
        let ceiling = outcome.arrived_rate();
        if outcome.lost() > 0 || outcome.damaged > 0 {
            return Err(Error::Failed(format!(
                "{} frames were lost and {} damaged in a ring inside this process; nothing measured like that counts",
                outcome.lost(),
                outcome.damaged
            )));
        }
        self.report.ceilings.push(Ceiling { size, rate: ceiling });
        Ok(Some(ceiling))
    }

    fn rig(&self, lanes: Vec<Lane>, streams: &[StreamPlan]) -> Result<Rig> {
        Rig::new(lanes, streams, &self.scenario.generator).ok_or_else(unmade)
    }

    fn traffic(&mut self, lanes: Vec<Lane>) -> Result<Vec<Lane>> {
        let streams = &self.plan.streams;
        let ceiling = self.calibrate(streams, 0)?;
        let rates: Vec<Option<f64>> = streams
            .iter()
            .map(|stream| stream.rate.packets(stream.mean_bytes(), lanes[stream.from].line()))
            .collect();
        let mut rig = self.rig(lanes, streams)?;
        self.warm_up(&mut rig, rates.clone())?;
        self.screen.begin("traffic");
        let demand = Demand::new(rates, self.scenario.run.seconds);
        let outcome = rig.run(self.runtime, &demand, &mut self.screen)?;
        self.report.interrupted |= outcome.interrupted;
        self.report.judge_traffic(outcome, ceiling);
        interrupt::check()?;
        Ok(rig.into_lanes())
    }

    fn warm_up(&mut self, rig: &mut Rig, rates: Vec<Option<f64>>) -> Result<()> {
        let seconds = self.scenario.run.warm_up;
        if seconds > 0.0 {
            self.screen.begin("warm-up");
            rig.run_through(self.runtime, &Demand::new(rates, seconds), &mut self.screen)?;
        }
        Ok(())
    }

    fn rfc2544(&mut self, lanes: Vec<Lane>, size: u32) -> Result<Vec<Lane>> {
        let mut streams = self.plan.streams.clone();
        if size > 0 {
            for stream in &mut streams {
                *stream = stream.with_size(size).map_err(|least| {
                    Error::Failed(format!(
                        "[run] sizes: stream {} has no frames of {size} bytes; it begins with {least}{}",
                        stream.name, "; RoCEv2 goes in steps of 4"
                    ))
                })?;
            }
        }
        let ceiling = self.calibrate(&streams, size)?;
        let line = |stream: &StreamPlan| lanes[stream.from].line();
        let weights: Vec<f64> = streams
            .iter()
            .map(|stream| stream.rate.packets(stream.mean_bytes(), line(stream)).unwrap_or(1e6))
            .collect();
        let total: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        let bytes: f64 = streams.iter().zip(&shares).map(|(stream, share)| stream.mean_bytes() * share).sum();
        let line: Option<f64> = {
            let mut from: Vec<usize> = streams.iter().map(|stream| stream.from).collect();
            from.sort_unstable();
            from.dedup();
            from.into_iter().map(|port| lanes[port].line()).sum()
        };
        let wanted = self.scenario.run.max_rate.and_then(|rate| rate.packets(bytes, line));
        let all_of_it = units::Rate::Line(1.0).packets(bytes, line);
        let most = wanted.or(all_of_it).or(ceiling).ok_or_else(|| {
            Error::Failed("[run] max-rate is needed where neither a line nor a calibration gives one".into())
        })?;
        let mut rig = self.rig(lanes, &streams)?;
        self.warm_up(&mut rig, shares.iter().map(|share| Some(share * most * 0.1)).collect())?;
        let mut bench = Rfc2544 {
            rig: &mut rig,
            runtime: self.runtime,
            screen: &mut self.screen,
            run: &self.scenario.run,
            shares,
            most,
            ceiling,
        };
        let mut findings = Findings { size, ..Findings::default() };
        let result = tests(&mut bench, &mut findings);
        self.report.findings.push(findings);
        result.map(|()| rig.into_lanes())
    }
}

/// The tests of RFC 2544 that the scenario asks for.
fn tests(bench: &mut Rfc2544<'_>, findings: &mut Findings) -> Result<()> {
    let wanted = bench.run.tests.clone();
    if wanted.contains(&Test::Throughput) || wanted.contains(&Test::Latency) {
        findings.throughput = Some(bench.throughput()?);
    }
    let rate = findings.throughput.as_ref().map_or(0.0, |throughput| throughput.rate);
    if wanted.contains(&Test::Latency) && rate > 0.0 {
        findings.latency = Some(bench.latency(rate)?);
    }
    findings.loads = bench.loads(rate)?;
    if wanted.contains(&Test::FrameLoss) {
        findings.frame_loss = Some(bench.frame_loss()?);
    }
    if wanted.contains(&Test::BackToBack) {
        findings.back_to_back = Some(bench.back_to_back()?);
    }
    Ok(())
}

/// What is said where the frames of a plan cannot be made, which a check should have told.
pub fn unmade() -> Error {
    Error::Failed("the frames of this program are not what it expects".into())
}

/// Runs streams, as fast as they go, through a ring inside this process.
pub fn calibrate(
    runtime: &Runtime,
    streams: &[StreamPlan],
    generator: &Generator,
    seconds: f64,
    screen: &mut Screen,
) -> Result<Outcome> {
    let port = PortPlan {
        name: "loopback".into(),
        attachment: Attachment::Loopback,
        descriptors: LOOPBACK,
        rx_queues: 1,
    };
    // Rings of ports are numbered from 0 on.
    let lane = Lane::open(runtime, &port, usize::from(u16::MAX))?;
    let streams: Vec<StreamPlan> =
        streams.iter().map(|stream| StreamPlan { from: 0, to: 0, ..stream.clone() }).collect();
    let mut rig = Rig::new(vec![lane], &streams, generator).ok_or_else(unmade)?;
    let demand = Demand::new(vec![None; streams.len()], seconds);
    rig.run_through(runtime, &demand, screen)
}
