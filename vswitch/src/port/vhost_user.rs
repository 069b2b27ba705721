//! `vhost-user`: the switch is the device behind a virtual machine's virtio-net, or behind a virtio-user.
//!
//! Segmentation is not negotiated, so a guest sends no super-frames; checksums that a guest leaves to its device
//! are completed by the driver, which does so when the port is started without receive checksum offloads.

use super::devargs::Devargs;
use super::{OpenError, Plan, Traits, preflight};
use crate::config::port_spec::VhostUserPort;

pub(super) fn plan(spec: &VhostUserPort) -> Result<Plan, OpenError> {
    let args = args(spec)?;
    let end = if spec.server { "server" } else { "client" };
    if spec.server {
        preflight::socket_to_serve(&spec.path)?;
    } else {
        preflight::socket_to_await(&spec.path)?;
    }
    let plan = Plan::virtual_device("vhost", args, Traits::exactly(spec.queues));
    let plan = plan.taking(format!("socket {} ({end})", spec.path.display()));
    Ok(if spec.server { plan.making_socket(spec.path.clone()) } else { plan })
}

fn args(spec: &VhostUserPort) -> Result<Devargs, OpenError> {
    Ok(Devargs::default()
        .path("iface", "path", &spec.path)?
        .number("queues", spec.queues)
        .number("client", u8::from(!spec.server))
        .number("tso", 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let mut spec = VhostUserPort { path: "/run/v.sock".into(), server: true, queues: 2 };
        assert_eq!(args(&spec).unwrap().finish(), "iface=/run/v.sock,queues=2,client=0,tso=0");
        spec.server = false;
        assert_eq!(args(&spec).unwrap().finish(), "iface=/run/v.sock,queues=2,client=1,tso=0");
    }
}
