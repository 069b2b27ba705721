//! vNICs that move between hosts. On each side it is one change: no packet finds the vNIC in neither place or in both.
//!
//! The host that it comes to adds it, and forgets where it was. The host that it leaves removes it, and knows its
//! addresses at the other one from then on. All others are told where its addresses are.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::json;
use wire::{MacAddr, Vni};

use super::{Missing, Switch, SwitchError};
use crate::config::objects::location_id;
use crate::config::{LocationConfig, Relocation, path};
use crate::state::change::Change;
use crate::state::owners::Owner;

impl Switch {
    /// Removes a vNIC that goes to the host of a VTEP: its addresses are locations there from then on, of this owner, in its
    /// security groups. Those addresses.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless [it is in force](SwitchError::is_in_force).
    pub fn move_vnic(&mut self, name: &str, vtep: IpAddr, owner: Owner) -> Result<Vec<IpAddr>, SwitchError> {
        let path = || path::of("vnic", name);
        let unknown =
            || SwitchError::Unknown { what: "vNIC", name: name.into(), list: "show vnic", path: path() };
        let config = self.config.clone();
        let vnic = config.vnics.iter().find(|vnic| vnic.name.as_str() == name).ok_or_else(unknown)?;
        let vpc = config.vpcs.iter().find(|vpc| vpc.name == vnic.vpc).ok_or_else(unknown)?;
        if vnic.vips.is_empty() {
            return Err(SwitchError::Nowhere { name: name.into(), path: format!("{}.vips", path()) });
        }
        let at = |&vip: &IpAddr| LocationConfig {
            vni: vpc.vni,
            vip,
            mac: vnic.mac,
            vtep,
            groups: vnic.security_groups.clone(),
        };
        let come: Vec<_> = vnic.vips.iter().map(at).collect();
        let made = come.iter().map(|location| (("location".to_owned(), location_id(location)), owner));
        let made = made.collect();
        let relocation = Relocation { come, gone: Vec::new() };
        let moved = self.edit_and_place(relocation, Missing::Refused, made, |config| {
            config.vnics.retain(|known| !Arc::ptr_eq(known, vnic));
            config.lead_to_station(vnic);
            Ok(())
        });
        if moved.as_ref().err().is_none_or(SwitchError::is_in_force) {
            let text = format!("vNIC {name} moved to VTEP {vtep}");
            self.events.add("vnic-moved", text, json!({ "vnic": name, "vtep": vtep }));
        }
        moved?;
        Ok(vnic.vips.clone())
    }

    /// The locations of a machine, told by its MAC address.
    pub fn locations_of_machine(&self, vni: Vni, mac: MacAddr) -> impl Iterator<Item = &LocationConfig> {
        self.topology.locations_of(vni).filter(move |location| location.mac == mac)
    }

    /// Moves all locations of a machine behind another VTEP. How many there are.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless [it is in force](SwitchError::is_in_force) or it is [`SwitchError::Worker`].
    pub fn move_locations(&mut self, vni: Vni, mac: MacAddr, vtep: IpAddr) -> Result<usize, SwitchError> {
        let of_machine = self.locations_of_machine(vni, mac);
        let moved: Vec<_> = of_machine.map(|location| LocationConfig { vtep, ..location.clone() }).collect();
        if moved.is_empty() {
            let name = format!("{mac} in VNI {vni}");
            let path = format!("location[vni={vni},mac={mac}]");
            return Err(SwitchError::Unknown { what: "location", name, list: "show vlt", path });
        }
        self.withdrawing(|switch| {
            switch.topology.move_locations(&switch.config, &moved, &switch.neighbours)?;
            let published = switch.publish_locations();
            published.and(switch.save_change(|| Ok(Change::default().and_with(&moved)?)))?;
            Ok(moved.len())
        })
    }
}
