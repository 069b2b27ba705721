//! `tap`: a kernel interface of our own making. For containers and the host itself.
//!
//! The kernel finishes checksums before a tap reads (no offload is offered to it), so packets come whole.

use std::path::Path;

use super::devargs::Devargs;
use super::{DevicePlan, MtuControl, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::TapPort;

/// The driver reads each packet into as many buffers as a queue has descriptors and hands all of them to the
/// kernel each time: enough for the longest frame, and no more.
pub(super) const RX_DESC: u16 = 48;

pub(super) fn plan(spec: &TapPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    preflight::capable("tap", preflight::NET_ADMIN)?;
    if !Path::new("/dev/net/tun").exists() {
        let remedy = "load the module (`modprobe tun`)";
        return Err(OpenError::NoDeviceFile { path: "/dev/net/tun".into(), remedy });
    }
    let args = args(spec)?;
    opening.take(format!("interface {}", spec.iface))?;
    let exists = pmd::interface::index(&spec.iface).is_ok();
    if exists {
        check_free(&spec.iface)?;
    }
    if spec.persist {
        pmd::interface::make_persistent_tap(&spec.iface).map_err(|source| OpenError::Interface {
            iface: spec.iface.clone(),
            operation: "make it a persistent tap".into(),
            source,
        })?;
    }
    let traits = Traits {
        equal_queues: true,
        min_tx_queues: spec.queues,
        rx_desc: RX_DESC,
        mtu: MtuControl::Device,
        ..Traits::exactly(spec.queues)
    };
    let mut plan = DevicePlan::virtual_device("tap", args, traits);
    plan.new_tap = (spec.persist && !exists).then(|| spec.iface.clone());
    Ok(plan)
}

/// An interface of this name exists: it must be a tap (of several queues, which is how the driver opens it)
/// that nobody has open. The kernel would let us in beside its holder, and each would get half the packets.
fn check_free(iface: &str) -> Result<(), OpenError> {
    let refuse = |why: String| Err(OpenError::NoTap { iface: iface.into(), why });
    let driver = pmd::process::interface_driver(iface).unwrap_or_else(|_| "no driver".into());
    if driver != "tun" {
        return refuse(format!("its driver is {driver}"));
    }
    if let Some(pid) = pmd::interface::tap_holder(iface) {
        return refuse(format!("process {pid} has it open"));
    }
    pmd::interface::probe_tap(iface)
        .or_else(|error| refuse(format!("it does not open as a tap of several queues: {error}")))
}

fn args(spec: &TapPort) -> Result<Devargs, OpenError> {
    let args = Devargs::default().text("iface", "iface", &spec.iface)?;
    Ok(match spec.mac {
        Some(mac) => args.number("mac", mac),
        None => args,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let spec = |mac: Option<&str>| TapPort {
            iface: "t0".into(),
            queues: 2,
            mac: mac.map(|mac| mac.parse().unwrap()),
            persist: false,
        };
        assert_eq!(args(&spec(None)).unwrap().finish(), "iface=t0");
        let golden = "iface=t0,mac=52:54:00:00:00:01";
        assert_eq!(args(&spec(Some("52:54:00:00:00:01"))).unwrap().finish(), golden);
    }
}
