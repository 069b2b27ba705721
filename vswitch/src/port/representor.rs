//! `representor`: the switch's end of a virtual function, on a NIC with an e-switch. Unconfirmed: no such
//! device was at hand.
//!
//! Probing the physical function with `representor=vfN` makes the port; a driver that has probed the function
//! already (mlx5) adds it.

use super::pci;
use super::{DevicePlan, DeviceSpec, OpenError, Opening};
use crate::config::port_spec::RepresentorPort;

pub(super) fn plan(spec: &RepresentorPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let pf = pci::full_address(&spec.pf)?;
    opening.take(format!("VF {} of PCI device {pf}", spec.vf))?;
    pci::check_bound(&pf)?;
    Ok(DevicePlan::new(DeviceSpec::Pci(devargs(&pf, spec.vf)), pci::traits()))
}

fn devargs(pf: &str, vf: u16) -> String {
    format!("{pf},representor=vf{vf}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        assert_eq!(devargs("0000:3b:00.0", 3), "0000:3b:00.0,representor=vf3");
    }
}
