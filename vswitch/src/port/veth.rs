//! `veth`: one end of a veth, whose other end is a container's, through packet sockets of our own. No ethdev, so that there may be
//! as many as a host has containers, and with the kernel's offloads both ways: what the container leaves to "its device" (checksums,
//! segmentation) is told with each frame, and nobody need run `ethtool`.

use super::{DevicePlan, DeviceSpec, MtuControl, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::VethPort;

pub(super) fn plan(spec: &VethPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let interface = preflight::packet_socket("veth", &spec.iface, spec.queues, opening)?;
    let driver = pmd::process::interface_driver(&spec.iface).unwrap_or_else(|_| "no driver".into());
    if driver != "veth" {
        return Err(OpenError::NoVeth { iface: spec.iface.clone(), driver });
    }
    let mtu = MtuControl::Interfaces(vec![interface]);
    let traits = Traits { mtu, ..Traits::without_ethdev(spec.queues) };
    Ok(DevicePlan::new(DeviceSpec::Interface(spec.iface.clone()), traits))
}
