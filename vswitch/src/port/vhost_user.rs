//! `vhost-user`: the switch is the device behind a virtual machine's virtio-net, or behind a virtio-user, by librte_vhost and without
//! an ethdev: as many as the library holds.
//!
//! Checksums and segmentation are negotiated: a guest that leaves them to its device is told so, and its super-frames go whole
//! to whoever takes them. What the guest takes itself is known when it is there ([`pmd::StartedPort::peer_takes_super_frames`]).

use super::{DevicePlan, DeviceSpec, OpenError, Opening, SocketAccess, Traits, preflight};
use crate::config::port_spec::VhostUserPort;
use pmd::VhostConfig;

pub(super) fn plan(spec: &VhostUserPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let end = if spec.server { "server" } else { "client" };
    opening.take(format!("socket {} ({end})", spec.path.display()))?;
    if spec.server {
        preflight::socket_to_serve(&spec.path)?;
    } else {
        preflight::socket_to_await(&spec.path)?;
    }
    let config = VhostConfig {
        path: spec.path.clone(),
        is_server: spec.server,
        queues: spec.queues,
        offloads: !opening.request.before_device,
    };
    let mut plan = DevicePlan::new(DeviceSpec::VhostUser(config), Traits::without_ethdev(spec.queues));
    plan.socket = spec.server.then(|| spec.path.clone());
    plan.access = SocketAccess::of(spec)?;
    Ok(plan)
}
