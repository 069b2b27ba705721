//! `af-xdp`: an existing kernel interface through AF_XDP sockets. For containers (veth) and hosts whose NIC
//! driver has XDP.
//!
//! As with packet sockets, what the other end of a veth leaves to its device comes unfinished. The driver of
//! DPDK 22.11 does not close its socket with the port: an interface serves one af-xdp port in a process's life.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::devargs::Devargs;
use super::{DevicePlan, MtuControl, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::AfXdpPort;

/// Interfaces, by index, that were af-xdp ports of this process.
static USED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Entries of the driver's fill ring and of its completion ring. The driver of DPDK 22.11 frees the buffers in
/// neither when a queue is closed.
pub(super) const RING: u16 = 2048;

pub(super) fn plan(spec: &AfXdpPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    preflight::capable("af-xdp", preflight::NET_RAW)?;
    preflight::capable("af-xdp", preflight::NET_ADMIN)?;
    let interface = preflight::own_interface(&spec.iface, opening)?;
    warn_about_reuse(&spec.iface);
    let traits = Traits {
        partial_checksums: true,
        mtu: MtuControl::Device,
        kept_buffers: (2 * RING).saturating_mul(spec.queues),
        ..Traits::exactly(spec.queues)
    };
    let mut plan = DevicePlan::virtual_device("af_xdp", args(spec)?, traits);
    plan.calm.extend(preflight::calm_interface(interface));
    Ok(plan)
}

/// Whether the driver let go of an interface shows only when the port is started, and then without a reason.
fn warn_about_reuse(iface: &str) {
    let Ok(index) = pmd::interface::index(iface) else { return };
    if !USED.lock().unwrap_or_else(PoisonError::into_inner).insert(index) {
        tracing::warn!(
            iface,
            "the interface was an af-xdp port of this process before, and DPDK 22.11's driver keeps it until the process ends: if the port does not start, make the interface anew or restart vswitch"
        );
    }
}

fn args(spec: &AfXdpPort) -> Result<Devargs, OpenError> {
    let args = Devargs::default()
        .text("iface", "iface", &spec.iface)?
        .number("start_queue", spec.start_queue)
        .number("queue_count", spec.queues);
    Ok(match spec.busy_poll {
        Some(budget) => args.number("busy_budget", budget),
        None => args,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let mut spec = AfXdpPort { iface: "v0".into(), queues: 1, start_queue: 0, busy_poll: None };
        assert_eq!(args(&spec).unwrap().finish(), "iface=v0,start_queue=0,queue_count=1");
        spec.busy_poll = Some(0);
        assert_eq!(args(&spec).unwrap().finish(), "iface=v0,start_queue=0,queue_count=1,busy_budget=0");
    }
}
