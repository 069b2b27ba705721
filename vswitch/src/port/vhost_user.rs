//! `vhost-user`: the switch is the device behind a virtual machine's virtio-net, or behind a virtio-user.
//!
//! Segmentation is not negotiated, so a guest sends no super-frames; checksums that a guest leaves to its device
//! are completed by the driver, which does so when the port is started without receive checksum offloads.

use super::devargs::Devargs;
use super::{DevicePlan, OpenError, Opening, SocketAccess, Traits, preflight};
use crate::config::port_spec::VhostUserPort;

pub(super) fn plan(spec: &VhostUserPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let args = args(spec)?;
    let end = if spec.server { "server" } else { "client" };
    opening.take(format!("socket {} ({end})", spec.path.display()))?;
    if spec.server {
        preflight::socket_to_serve(&spec.path)?;
    } else {
        preflight::socket_to_await(&spec.path)?;
    }
    let traits = Traits { tells_link: true, ..Traits::exactly(spec.queues) };
    let mut plan = DevicePlan::virtual_device("vhost", args, traits);
    plan.socket = spec.server.then(|| spec.path.clone());
    plan.access = SocketAccess::of(spec)?;
    Ok(plan)
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
        let mut spec = VhostUserPort {
            path: "/run/v.sock".into(),
            server: true,
            queues: 2,
            owner: None,
            group: None,
            mode: None,
        };
        assert_eq!(args(&spec).unwrap().finish(), "iface=/run/v.sock,queues=2,client=0,tso=0");
        spec.server = false;
        assert_eq!(args(&spec).unwrap().finish(), "iface=/run/v.sock,queues=2,client=1,tso=0");
    }
}
