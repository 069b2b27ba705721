//! `bond`: several NICs, or kernel interfaces, that are one port, by DPDK's bonding driver: LACP with the switch that they lead to
//! (IEEE 802.1AX), one as a backup of the other, or a spread by flow.
//!
//! What each member asks for before it is opened holds here too; the devices are the driver's, which starts and stops them.

use pmd::{BondHash, BondMode, Eal, Port, PortError};

use super::{DevicePlan, DeviceSpec, OpenError, Opening, Traits, attach};
use crate::config::port_spec::{BondHashConfig, BondModeConfig, BondPort};

/// The devices of a bond.
#[derive(Debug)]
pub(super) struct Members {
    mode: BondMode,
    hash: BondHash,
    devices: Vec<DeviceSpec>,
}

pub(super) fn plan(spec: &BondPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let (mut devices, mut calm, mut traits) = (Vec::new(), Vec::new(), None::<Traits>);
    for member in &spec.members {
        let plan = super::plan(member, opening)?;
        devices.push(plan.device);
        calm.extend(plan.calm);
        traits = Some(match traits {
            Some(all) => all.bonded_with(plan.traits),
            None => plan.traits,
        });
    }
    let members = Members { mode: mode(spec.mode), hash: hash(spec.hash), devices };
    // The link of a bond is up while that of a member is.
    let traits = Traits { tells_link: true, ..traits.unwrap_or_default() };
    Ok(DevicePlan { calm, ..DevicePlan::new(DeviceSpec::Bond(members), traits) })
}

fn mode(mode: BondModeConfig) -> BondMode {
    match mode {
        BondModeConfig::ActiveBackup => BondMode::ActiveBackup,
        BondModeConfig::BalanceXor => BondMode::BalanceXor,
        BondModeConfig::Lacp => BondMode::Lacp,
    }
}

fn hash(hash: BondHashConfig) -> BondHash {
    match hash {
        BondHashConfig::Layer2 => BondHash::Layer2,
        BondHashConfig::Layer23 => BondHash::Layer23,
        BondHashConfig::Layer34 => BondHash::Layer34,
    }
}

impl Members {
    /// Attaches all of them, and makes one port of them. Those that were attached before one fails are closed.
    pub(super) fn attach(self, eal: &Eal, unique: &str) -> Result<Port, (Option<&'static str>, PortError)> {
        let devices = self.devices.into_iter().enumerate();
        let members: Result<Vec<Port>, _> =
            devices.map(|(number, device)| attach(eal, device, &format!("{unique}_{number}"))).collect();
        let name = format!("net_bonding{unique}");
        Port::bond(eal, &name, self.mode, self.hash, members?).map_err(|error| (None, error))
    }
}
