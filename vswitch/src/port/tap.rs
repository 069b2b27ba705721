//! `tap`: a kernel interface of our own making, for containers and the host itself. No ethdev, so that there may be as many as a host
//! has containers, and with the kernel's offloads both ways: what it leaves to "its device" (checksums, segmentation) is told with
//! each frame.

use std::path::Path;

use pmd::{Namespace, TapConfig};

use super::{DevicePlan, DeviceSpec, MtuControl, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::TapPort;

/// Buffers that a queue has at hand while it reads long frames: for 64 KiB, of the usual size.
pub(super) const AT_HAND: u16 = 33;

pub(super) fn plan(spec: &TapPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    preflight::capable("tap", preflight::NET_ADMIN)?;
    if !Path::new("/dev/net/tun").exists() {
        let remedy = "load the module (`modprobe tun`)";
        return Err(OpenError::NoDeviceFile { path: "/dev/net/tun".into(), remedy });
    }
    let namespace = spec.namespace();
    match &namespace {
        Some(path) => {
            preflight::capable("tap", preflight::SYS_ADMIN)?;
            opening.take(format!("interface {} in {}", spec.iface, path.display()))?;
            let refused = |source| OpenError::Namespace { path: path.clone(), source };
            let there = Namespace::open(path).map_err(refused)?;
            there.within(|| check_free(&spec.iface)).map_err(refused)??;
        }
        None => {
            opening.take(format!("interface {}", spec.iface))?;
            check_free(&spec.iface)?;
        }
    }
    let config = TapConfig {
        iface: spec.iface.clone(),
        namespace,
        queues: spec.queues,
        mac: spec.mac,
        persist: spec.persist,
        offloads: !opening.request.before_device,
    };
    let traits = Traits { mtu: MtuControl::Device, ..Traits::without_ethdev(spec.queues) };
    Ok(DevicePlan::new(DeviceSpec::Tap(config), traits))
}

/// Removes a tap that was made to stay, unless it is gone.
pub(super) fn remove(iface: &str) -> Result<(), OpenError> {
    if pmd::interface::index(iface).is_err() {
        return Ok(());
    }
    check_free(iface)?;
    let left = |source| OpenError::LeftBehind { what: format!("interface {iface}"), source };
    pmd::interface::remove_tap(iface).map_err(left)
}

/// Where an interface of this name exists it must be a tap of several queues, which is how it is opened, and nobody may have it open.
/// The kernel would let us in beside its holder, and each would get half the packets.
fn check_free(iface: &str) -> Result<(), OpenError> {
    if pmd::interface::index(iface).is_err() {
        return Ok(());
    }
    let driver = pmd::process::interface_driver(iface).unwrap_or_else(|_| "no driver".into());
    if driver != "tun" {
        return refuse(iface, format!("its driver is {driver}"));
    }
    // The kernel knows whether somebody has it open.
    let queues = pmd::interface::tap_queues(iface);
    if queues.as_ref().is_ok_and(|queues| *queues == 0) {
        return probe(iface);
    }
    // /proc knows who, as far as it shows processes and as they do not hide it among many files; and by names alone, which interfaces
    // of several network namespaces share.
    match (queues, pmd::interface::tap_holder(iface)) {
        (Err(_), None) => probe(iface),
        (_, Some(pid)) if pid != std::process::id() => refuse(iface, format!("process {pid} has it open")),
        _ => refuse(iface, "another process has it open".into()),
    }
}

fn refuse(iface: &str, why: String) -> Result<(), OpenError> {
    Err(OpenError::NoTap { iface: iface.into(), why })
}

fn probe(iface: &str) -> Result<(), OpenError> {
    pmd::interface::probe_tap(iface)
        .or_else(|error| refuse(iface, format!("it does not open as a tap of several queues: {error}")))
}
