//! Who takes part: switches with their lanes, frozen between their turns.

use std::time::Duration;

use serde_json::Value;

use super::ScaleError;
use super::config::{Identity, WorkerSetup, config};
use super::lane::Lane;
use crate::compare::board::Board;
use crate::compare::cases::{Case, Job};
use crate::compare::ours::paid;
use crate::compare::peer::Contender;
use crate::compare::sample::{Moment, Sample, WARM_UP};
use crate::compare::{CompareError, samples};
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::process::Process;
use crate::host::threads::forwarding;
use crate::host::{HostError, interrupt};

/// How long a switch may take to open its ports, and the first rounds over all flows.
const PATIENCE: Duration = Duration::from_secs(60);
/// As many packets as keep samples for the check.
const CHECKED: u64 = 2_000_000;

/// A lane of a running switch.
struct Place {
    worker: WorkerSetup,
    thread: u32,
    boards: [Board; 2],
}

impl Place {
    fn sum(&self, count: impl Fn(&Board) -> Result<u64, HostError>) -> Result<u64, HostError> {
        Ok(count(&self.boards[0])? + count(&self.boards[1])?)
    }
}

/// A running switch with a worker for each of its lanes.
pub struct Switch {
    daemon: Daemon,
    places: Vec<Place>,
}

/// Bytes that all classes have drawn, and packets that have left, since the start.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    /// Bytes.
    pub bytes: u64,
    pub packets: u64,
}

impl Switch {
    /// Starts one, sees that each lane is its worker's alone and that what comes out is right, and freezes it.
    pub fn start(
        job: &Job,
        workers: Vec<WorkerSetup>,
        lanes: u32,
        setup: &DaemonSetup<'_>,
        identity: Identity<'_>,
    ) -> Result<Self, ScaleError> {
        let daemon = Daemon::start(setup, &config(job, &workers, lanes, identity))?;
        let mut switch = Self { daemon, places: Vec::new() };
        switch.process().favour();
        switch.check_ports(&workers)?;
        for worker in workers {
            let mut boards = None;
            let devices = [&worker.inside, &worker.outside];
            switch.process().await_that("its ports", PATIENCE, || {
                boards = devices
                    .iter()
                    .map(|device| Board::open(&device.board))
                    .collect::<Result<Vec<_>, _>>()
                    .ok();
                Ok(boards.is_some())
            })?;
            let Some(Ok(boards)) = boards.map(<[Board; 2]>::try_from) else { continue };
            // Two rounds over all flows: none is new any more.
            let packets = CHECKED.max(2 * (job.flows.count * job.case.ways().len()) as u64);
            let swallowed = || Ok(boards[0].swallowed()? + boards[1].swallowed()? >= packets);
            switch.process().await_that("its flows to be installed", PATIENCE, || {
                interrupt::pause(Duration::from_millis(20))?;
                swallowed()
            })?;
            let thread = forwarding(switch.process(), "vswitch", worker.core)?;
            let place = Place { worker, thread, boards };
            check_frames(job, &place)?;
            switch.places.push(place);
        }
        switch.check_rates(job)?;
        switch.process().freeze()?;
        Ok(switch)
    }

    fn process(&mut self) -> &mut Process {
        self.daemon.process()
    }

    /// Both ports of a lane are polled by its worker, and every worker has a queue to send by.
    fn check_ports(&mut self, workers: &[WorkerSetup]) -> Result<(), ScaleError> {
        let answer = self.daemon.ask("port list")?;
        for (number, worker) in workers.iter().enumerate() {
            for name in worker.ports() {
                let ports = answer.as_array().into_iter().flatten();
                let port = ports.into_iter().find(|port| port["name"] == name.as_str());
                let polled = port.is_some_and(|port| port["rx-workers"] == Value::from(vec![number]));
                let senders = port.and_then(|port| port["tx-workers"].as_array()).map_or(0, Vec::len);
                if !polled || senders != workers.len() {
                    let words =
                        format!("port {name} is to be worker {number}'s, but `port list` says {answer}");
                    return Err(HostError::Refused(words).into());
                }
            }
        }
        Ok(())
    }

    /// Packets pay where they are to, and none waits.
    fn check_rates(&mut self, job: &Job) -> Result<(), ScaleError> {
        if !job.qos {
            return Ok(());
        }
        let answer = self.daemon.ask("show qos")?;
        match paid(&answer) {
            Some((bytes, 0)) if bytes > 0 => Ok(()),
            _ => {
                let words = format!("packets are to pay and not to wait, but `show qos` says {answer}");
                Err(HostError::Refused(words).into())
            }
        }
    }

    pub fn drawn(&mut self) -> Result<Drawn, ScaleError> {
        self.process().thaw()?;
        let answer = self.daemon.ask("show qos");
        self.process().freeze()?;
        let bytes = paid(&answer?).map_or(0, |(bytes, _)| bytes);
        let packets = self.places.iter().map(|place| place.sum(Board::swallowed)).sum::<Result<u64, _>>()?;
        Ok(Drawn { bytes, packets })
    }

    fn moments(&mut self) -> Result<Vec<Moment>, ScaleError> {
        let pid = self.process().pid();
        let moment = |place: &Place| {
            let count = || Ok((place.sum(Board::swallowed)?, Some(place.sum(Board::made)?)));
            Moment::of(pid, place.thread, count)
        };
        self.places.iter().map(moment).collect()
    }
}

/// Lets switches run at the same time, and measures each lane of each of them.
pub fn sample(switches: &mut [&mut Switch], seconds: f64) -> Result<Vec<Sample>, ScaleError> {
    for switch in switches.iter_mut() {
        switch.process().thaw()?;
    }
    let samples = measure(switches, seconds);
    for switch in switches.iter_mut() {
        switch.process().freeze()?;
    }
    let samples = samples?;
    for sample in &samples {
        let (lost, made) = (sample.lost(), sample.made.unwrap_or(0));
        if lost * 1000 > made {
            return Err(CompareError::Lossy { switch: Contender::Ours, lost, made }.into());
        }
        if sample.packets == 0 {
            return Err(CompareError::Silent { switch: Contender::Ours, seconds }.into());
        }
    }
    Ok(samples)
}

fn measure(switches: &mut [&mut Switch], seconds: f64) -> Result<Vec<Sample>, ScaleError> {
    interrupt::pause(WARM_UP)?;
    let mut all = || -> Result<Vec<Moment>, ScaleError> {
        let each = switches.iter_mut().map(|switch| switch.moments()).collect::<Result<Vec<_>, _>>()?;
        Ok(each.concat())
    };
    let first = all()?;
    interrupt::pause(Duration::from_secs_f64(seconds))?;
    let last = all()?;
    Ok(first.iter().zip(&last).map(|(first, last)| first.until(last)).collect())
}

/// What the devices of a lane kept must be that lane's.
fn check_frames(job: &Job, place: &Place) -> Result<(), ScaleError> {
    for &way in job.case.ways() {
        // Into the tunnel means out of the uplink.
        let board = &place.boards[usize::from(way == Case::Encap)];
        let lane = place.worker.lane;
        let kept = board.samples()?.into_iter();
        let kept: Vec<_> =
            kept.map(|kept| if way == Case::Encap { lane.as_first(kept) } else { kept }).collect();
        let program = Lane(0).program(job, way);
        samples::check(job, way, false, &program, &kept).map_err(|wrong| CompareError::Output {
            switch: Contender::Ours,
            case: way,
            flows: job.flows.given.clone(),
            wrong: wrong.into(),
        })?;
    }
    Ok(())
}
