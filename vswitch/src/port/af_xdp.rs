//! `af-xdp`: an existing kernel interface through AF_XDP sockets. For containers (veth) and hosts whose NIC
//! driver has XDP.
//!
//! As with packet sockets, what the other end of a veth leaves to its device comes unfinished.

use super::devargs::Devargs;
use super::{MtuControl, OpenError, Plan, Traits, preflight};
use crate::config::port_spec::AfXdpPort;

pub(super) fn plan(spec: &AfXdpPort) -> Result<Plan, OpenError> {
    preflight::capable("af-xdp", preflight::NET_RAW)?;
    preflight::capable("af-xdp", preflight::NET_ADMIN)?;
    preflight::interface_up(&spec.iface)?;
    let traits = Traits { partial_checksums: true, mtu: MtuControl::Device, ..Traits::exactly(spec.queues) };
    let plan = Plan::virtual_device("af_xdp", args(spec)?, traits);
    Ok(plan.taking(format!("interface {}", spec.iface)))
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
