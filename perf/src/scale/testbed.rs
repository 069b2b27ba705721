//! Who takes part: switches with a worker for each of their lanes, of which each has a vNIC in a network of its own, and an uplink.

use std::path::Path;

use serde_json::{Value, json};

use super::lane::WorkerLane;
use crate::compare::cases::{Case, Job};
use crate::compare::check::Input;
use crate::compare::frames::{TENANT, peers};
use crate::compare::ours::{self, Ours};
use crate::compare::peer::{Contender, FramePort, mbufs};
use crate::compare::plugin::TemplateDevice;
use crate::compare::runner::{Runner, check_kept};
use crate::compare::sample::Counter;
use crate::host::daemon::DaemonSetup;
use crate::{Error, Result};

/// A lane of a switch, with its worker's core and its devices.
#[derive(Debug, Clone)]
pub struct WorkerSetup {
    pub lane: WorkerLane,
    pub core: usize,
    pub inside: TemplateDevice,
    pub outside: TemplateDevice,
}

impl WorkerSetup {
    /// Names of its ports. In their order they go to workers in theirs.
    pub fn ports(&self) -> [String; 2] {
        ["in", "out"].map(|side| format!("{side}{}", self.lane.0))
    }
}

/// Huge-page memory of a daemon, in MiB.
pub fn memory(job: &Job, workers: usize) -> u64 {
    128 + workers as u64 * (64 + mbufs(job, false) as u64 * 2560 / (1024 * 1024))
}

/// The config. `lanes` there are in all, also if they are not all of this switch: rates are shared out the same way.
fn config(job: &Job, workers: &[WorkerSetup], lanes: u32, daemon: &DaemonSetup<'_>, plugin: &Path) -> String {
    let cores: Vec<usize> = workers.iter().map(|worker| worker.core).collect();
    let (memory, mbufs) = (memory(job, workers.len()), workers.len() * mbufs(job, false));
    let mut config = ours::begin(job, daemon, &cores, memory, mbufs, Some(plugin));
    let shared = Job { tenants: Some(lanes), ..job.clone() };
    for worker in workers {
        let (lane, tenant, [inside, outside]) = (worker.lane, worker.lane.tenant(), worker.ports());
        ours::network(&mut config, &shared, tenant);
        let port = |device: &TemplateDevice, side: usize| {
            let device = FramePort::Template(device.clone());
            json!({ "port": ours::port_value(&device, 2 * usize::from(lane.0) + side) })
        };
        ours::vnic(
            &mut config,
            &shared,
            tenant,
            (&inside, &port(&worker.inside, 0)),
            (TENANT.0, &[TENANT.1]),
        );
        config.uplink(&outside, lane.near(), &[lane.far()], 1600, &port(&worker.outside, 1));
        ours::locations(&mut config, tenant, peers(job), |_| lane.far());
    }
    config.text()
}

/// Starts a switch, sees that each lane is its worker's alone and that what comes out is right, and freezes it.
pub fn start(
    job: &Job,
    workers: &[WorkerSetup],
    lanes: u32,
    setup: &DaemonSetup<'_>,
    plugin: &Path,
) -> Result<Runner> {
    let mut switch = Ours::start_with(setup, &config(job, workers, lanes, setup, plugin), job)?;
    check_ports(&switch.daemon().ask("port list")?, workers)?;
    let cores: Vec<usize> = workers.iter().map(|worker| worker.core).collect();
    Runner::settle(Contender::Ours, Box::new(switch), &cores, |switch, worker| {
        let WorkerSetup { lane, inside, outside, .. } = &workers[worker];
        let counter = Counter::open(switch, &[inside.board.clone(), outside.board.clone()], job)?;
        for &way in job.case.ways() {
            // Into the tunnel means out of the uplink.
            let kept = counter.boards[usize::from(way == Case::Encap)].samples()?.into_iter();
            let kept: Vec<_> =
                kept.map(|kept| if way == Case::Encap { lane.as_first(kept) } else { kept }).collect();
            let program = WorkerLane(0).program(job, way);
            check_kept(Contender::Ours, job, way, Input::Made { program: &program, made: 0 }, &kept)?;
        }
        Ok(counter)
    })
}

/// Both ports of a lane are polled by its worker, and every worker has a queue to send by.
fn check_ports(answer: &Value, workers: &[WorkerSetup]) -> Result<()> {
    for (number, worker) in workers.iter().enumerate() {
        for name in worker.ports() {
            let mut ports = answer.as_array().into_iter().flatten();
            let port = ports.find(|port| port["name"] == name.as_str());
            let polled = port.is_some_and(|port| port["rx-workers"] == Value::from(vec![number]));
            let senders = port.and_then(|port| port["tx-workers"].as_array()).map_or(0, Vec::len);
            if !polled || senders != workers.len() {
                let words = format!("port {name} is to be worker {number}'s, but `port list` says {answer}");
                return Err(Error::refused(words));
            }
        }
    }
    Ok(())
}
