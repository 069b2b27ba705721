//! Who takes part: switches with a worker for each of their lanes.

use std::path::Path;

use serde_json::Value;

use super::config::{WorkerSetup, config};
use super::lane::WorkerLane;
use crate::compare::cases::{Case, Job};
use crate::compare::check::Input;
use crate::compare::ours::Ours;
use crate::compare::peer::Contender;
use crate::compare::runner::{Runner, check_kept};
use crate::compare::sample::Counter;
use crate::host::daemon::DaemonSetup;
use crate::{Error, Result};

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
            check_kept(Contender::Ours, job, way, Input::Made(&program), &kept)?;
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
