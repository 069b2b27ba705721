//! `virtio-user`: the switch is the virtio-net driver at the other end of a vhost-user socket.
//!
//! As a server it waits in `open` until its peer comes (see [`may_block`](super::may_block)).

use super::devargs::Devargs;
use super::{DevicePlan, MtuControl, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::VirtioUserPort;

/// Descriptors of a virtqueue.
pub(super) const RING: u16 = 512;

pub(super) fn plan(spec: &VirtioUserPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let args = args(spec)?;
    let end = if spec.server { "server" } else { "client" };
    opening.take(format!("socket {} ({end})", spec.path.display()))?;
    if spec.server {
        preflight::socket_to_serve(&spec.path)?;
    } else {
        preflight::socket_to_join(&spec.path)?;
    }
    let traits = Traits {
        rx_desc: RING,
        tx_desc: RING,
        mtu: MtuControl::Device,
        tells_link: true,
        ..Traits::exactly(spec.queues)
    };
    let mut plan = DevicePlan::virtual_device("virtio_user", args, traits);
    plan.socket = spec.server.then(|| spec.path.clone());
    Ok(plan)
}

fn args(spec: &VirtioUserPort) -> Result<Devargs, OpenError> {
    Ok(Devargs::default()
        .path("path", "path", &spec.path)?
        .number("server", u8::from(spec.server))
        .number("queues", spec.queues)
        .number("queue_size", RING))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let spec =
            VirtioUserPort { path: "/run/v.sock".into(), server: false, queues: 1, trusted_peer: true };
        assert_eq!(args(&spec).unwrap().finish(), "path=/run/v.sock,server=0,queues=1,queue_size=512");
    }
}
