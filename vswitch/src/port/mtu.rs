//! The MTU of a port: given when it is opened, changed while it runs, and set back at close.

use pmd::{PortInfo, StartedPort};

use super::cleanup::Cleanup;
use super::error::OpenError;
use super::interface::Interface;
use super::traits::{MtuControl, Traits};
use super::{af_packet, preflight, refused};
use crate::config::PortSpec;

/// Bytes that a buffer must have room for if a port that is made anew is to have this MTU, as far as that is known before.
pub fn min_segment(spec: &PortSpec, mtu: u16) -> u16 {
    let of = |part: &PortSpec| match part {
        PortSpec::AfPacket(_) => af_packet::min_segment(mtu),
        _ => 0,
    };
    spec.parts().iter().map(of).max().unwrap_or(0)
}

/// Gives a running port another MTU, wherever that is kept.
///
/// # Errors
/// The refusal of the driver or of the kernel; the port has the MTU of before.
pub fn change_mtu(
    spec: &PortSpec,
    name: &str,
    port: &StartedPort,
    traits: &Traits,
    cleanup: &mut Cleanup,
    wanted: u16,
) -> Result<(), OpenError> {
    let refuse = |source| refused(spec.kind(), name, source);
    match &traits.mtu {
        MtuControl::Nobody => Ok(()),
        MtuControl::Interfaces(_) => fit_interfaces(traits, cleanup, Some(wanted)),
        MtuControl::Device if port.mtu().is_ok_and(|now| now == wanted) => Ok(()),
        MtuControl::Device => {
            check_device(spec.kind(), name, wanted, &port.info().map_err(refuse)?)?;
            port.set_mtu(wanted).map_err(refuse)
        }
    }
}

/// Gives the interfaces of a port the MTU that is wanted, where there are some: when it is opened, and once more when it was started,
/// for the bonding driver sets those of its members then.
///
/// # Errors
/// The refusal of the kernel.
pub fn fit_interfaces(traits: &Traits, cleanup: &mut Cleanup, wanted: Option<u16>) -> Result<(), OpenError> {
    match (&traits.mtu, wanted) {
        (MtuControl::Interfaces(ifaces), Some(wanted)) => {
            ifaces.iter().try_for_each(|iface| fit_interface(iface, wanted.into(), cleanup))
        }
        _ => Ok(()),
    }
}

/// Gives an interface the MTU that is wanted, unless it had a larger one before it was a port's. It has that again at close.
fn fit_interface(interface: &Interface, wanted: u32, cleanup: &mut Cleanup) -> Result<(), OpenError> {
    let iface = interface.name_now().map_err(|source| OpenError::Interface {
        iface: interface.name().into(),
        operation: "find it".into(),
        source,
    })?;
    let now = preflight::interface_mtu(&iface)?;
    let own = cleanup.mtus.get(interface).copied().unwrap_or(now);
    let mtu = wanted.max(own);
    if mtu != now {
        pmd::process::set_interface_mtu(&iface, mtu).map_err(|source| OpenError::Interface {
            iface: iface.clone(),
            operation: format!("set its MTU to {mtu}"),
            source,
        })?;
        tracing::info!(iface, from = now, to = mtu, "changed the MTU of an interface");
    }
    if mtu == own && !cleanup.keeps_mtus {
        cleanup.mtus.remove(interface);
    } else {
        cleanup.mtus.insert(interface.clone(), own);
    }
    Ok(())
}

/// The device takes the MTU. DPDK knows two limits, and the tighter holds.
pub(super) fn check_device(
    kind: &'static str,
    port: &str,
    wanted: u16,
    info: &PortInfo,
) -> Result<(), OpenError> {
    /// Ethernet header and frame check sequence, as DPDK counts them where the driver does not say.
    const OVERHEAD: u32 = 18;
    let by_frame = u16::try_from(info.max_rx_frame.saturating_sub(OVERHEAD)).unwrap_or(u16::MAX);
    let max = by_frame.min(*info.mtu_range.end());
    if wanted <= max {
        return Ok(());
    }
    Err(OpenError::Mtu { kind, port: port.into(), wanted, max })
}
