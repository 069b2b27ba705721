//! The daemon's config for some lanes: each has a vNIC in a network of its own, and an uplink.

use std::fmt::Write as _;
use std::path::Path;

use super::lane::Lane;
use crate::compare::cases::Job;
use crate::compare::frames::{TENANT_IP, TENANT_MAC, peer_ip, peer_mac, peers};
use crate::compare::ours::{LINK_RATE, VnicLines, entries, network, queue_pairs, vnic};
use crate::compare::peer::mbufs;
use crate::compare::plugin::Device;

/// A lane of a switch, with its worker's core and its devices.
#[derive(Debug, Clone)]
pub struct WorkerSetup {
    pub lane: Lane,
    pub core: usize,
    pub inside: Device,
    pub outside: Device,
}

impl WorkerSetup {
    /// Names of its ports. In their order they go to workers in theirs.
    pub fn ports(&self) -> [String; 2] {
        ["in", "out"].map(|side| format!("{side}{}", self.lane.0))
    }
}

/// How the daemon is told apart from others.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    pub prefix: &'a str,
    pub socket: &'a Path,
    pub plugin: &'a Path,
}

/// Huge-page memory of a daemon, in MiB.
pub fn memory(job: &Job, workers: usize) -> u64 {
    128 + workers as u64 * (64 + mbufs(job, false) as u64 * 2560 / (1024 * 1024))
}

/// The config. `lanes` there are in all, also if they are not all of this switch: rates are shared out the same way.
pub fn config(job: &Job, workers: &[WorkerSetup], lanes: u32, identity: Identity<'_>) -> String {
    let cores: Vec<String> = workers.iter().map(|worker| worker.core.to_string()).collect();
    // Writing into a String cannot fail; the results are dropped for that reason.
    let mut text = format!(
        "[eal]\nhuge-pages = \"require\"\nmemory = \"{}MiB\"\nfile-prefix = \"{}\"\nmbufs = {}\nplugins = [\"{}\"]\n\n\
         [workers]\ncores = [{}]\n\n[nft]\nentries = {}\nmiss-rate = 0\n\n{}[api]\nsocket = \"{}\"\n\n{}",
        memory(job, workers.len()),
        identity.prefix,
        workers.len() * mbufs(job, false),
        identity.plugin.display(),
        cores.join(", "),
        entries(job),
        queue_pairs(job),
        identity.socket.display(),
        if job.qos { LINK_RATE } else { "" },
    );
    let shared = Job { tenants: Some(lanes), ..job.clone() };
    for worker in workers {
        let (lane, [inside, outside]) = (worker.lane, worker.ports());
        network(&mut text, &shared, lane.tenant());
        let port = format!("port = {}", raw(&worker.inside, 2 * usize::from(lane.0)));
        let vips = format!("\"{TENANT_IP}\"");
        let (tenant, mac) = (lane.tenant(), TENANT_MAC);
        vnic(&mut text, &VnicLines { name: &inside, tenant, mac, vips: &vips, port: &port }, &shared);
        let (near, far) = (lane.near(), lane.far());
        let _ = write!(
            text,
            "[[uplink]]\nname = \"{outside}\"\nport = {}\naddresses = [\"{}/24\"]\nmac = \"{}\"\nmtu = 1600\n\
             neighbours = [{{ ip = \"{}\", mac = \"{}\" }}]\n\n",
            raw(&worker.outside, 2 * usize::from(lane.0) + 1),
            near.1,
            near.0,
            far.1,
            far.0
        );
        for index in 0..peers(job.flows.count) {
            let _ = write!(
                text,
                "[[location]]\nvni = {}\nvip = \"{}\"\nmac = \"{}\"\nvtep = \"{}\"\n\n",
                lane.tenant().vni().get(),
                peer_ip(index),
                peer_mac(index),
                far.1
            );
        }
    }
    text
}

fn raw(device: &Device, number: usize) -> String {
    format!("{{ kind = \"raw\", vdev = \"{}\" }}", device.text(number))
}
