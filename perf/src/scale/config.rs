//! The daemon's config for some lanes: each has a vNIC in a network of its own, and an uplink.

use std::path::Path;

use serde_json::json;

use super::lane::WorkerLane;
use crate::compare::cases::Job;
use crate::compare::frames::{TENANT, peers};
use crate::compare::ours::{begin, locations, network, port_value, vnic};
use crate::compare::peer::{FramePort, mbufs};
use crate::compare::plugin::TemplateDevice;
use crate::host::daemon::DaemonSetup;

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
pub fn config(
    job: &Job,
    workers: &[WorkerSetup],
    lanes: u32,
    daemon: &DaemonSetup<'_>,
    plugin: &Path,
) -> String {
    let cores: Vec<usize> = workers.iter().map(|worker| worker.core).collect();
    let (memory, mbufs) = (memory(job, workers.len()), workers.len() * mbufs(job, false));
    let mut config = begin(job, daemon, &cores, memory, mbufs, Some(plugin));
    let shared = Job { tenants: Some(lanes), ..job.clone() };
    for worker in workers {
        let (lane, tenant, [inside, outside]) = (worker.lane, worker.lane.tenant(), worker.ports());
        network(&mut config, &shared, tenant);
        let port = |device: &TemplateDevice, side: usize| {
            let device = FramePort::Template(device.clone());
            json!({ "port": port_value(&device, 2 * usize::from(lane.0) + side) })
        };
        vnic(&mut config, &shared, tenant, (&inside, &port(&worker.inside, 0)), (TENANT.0, &[TENANT.1]));
        config.uplink(&outside, lane.near(), &[lane.far()], 1600, &port(&worker.outside, 1));
        locations(&mut config, tenant, lane.far(), peers(job.flows.count));
    }
    config.text()
}
