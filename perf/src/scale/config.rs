//! The daemon's config for some lanes: each has a vNIC in a network of its own, and an uplink.

use std::path::Path;

use super::lane::WorkerLane;
use crate::compare::cases::Job;
use crate::compare::frames::{TENANT, peers};
use crate::compare::ours::{begin, locations, network, vnic};
use crate::compare::peer::mbufs;
use crate::compare::plugin::TemplateDevice;
use crate::host::daemon::DaemonSetup;
use crate::live::config::{Head, UplinkLines};

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
    let head = Head { memory, mbufs, plugin: Some(plugin), cores: &cores, ..Head::new(daemon) };
    let mut config = begin(job, &head);
    let shared = Job { tenants: Some(lanes), ..job.clone() };
    for worker in workers {
        let (lane, tenant, [inside, outside]) = (worker.lane, worker.lane.tenant(), worker.ports());
        network(&mut config, &shared, tenant);
        let port = raw(&worker.inside, 2 * usize::from(lane.0));
        vnic(&mut config, &shared, tenant, (&inside, &port), (TENANT.0, &[TENANT.1]));
        let port = raw(&worker.outside, 2 * usize::from(lane.0) + 1);
        let (own, far) = (lane.near(), [lane.far()]);
        config.uplink(&UplinkLines { name: &outside, own, far: &far, mtu: 1600, port: &port });
        locations(&mut config, tenant, lane.far(), peers(job.flows.count));
    }
    config.text().to_owned()
}

fn raw(device: &TemplateDevice, number: usize) -> String {
    format!("{{ kind = \"raw\", vdev = \"{}\" }}", device.text(number))
}
