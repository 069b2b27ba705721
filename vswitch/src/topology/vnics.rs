//! vNICs in the snapshot: their indices, cells and rows, and their addresses as locations of this host.
//!
//! A vNIC keeps its index, its cell and its VLT slot while its name is in the config.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use pipelines::snapshot::{Destination, Location, NO_PORT, Snapshot, Vnic, VnicRow, Vpc};
use pipelines::vlt::Place;
use worker::MAX_VNICS;

use super::link_local::ConfiguredLinkLocals;
use super::{Ports, Topology, TopologyError, floating, has, put};
use crate::config::{Config, Difference, GuardConfig, VnicConfig, VnicPort, path};

/// What the vNICs of one change share.
struct NewVnics {
    given: ConfiguredLinkLocals,
    /// No index below it is free.
    lowest: u32,
}

impl Topology {
    pub(super) fn rebuild_vnics(&mut self, config: &Config, ports: &dyn Ports) -> Result<(), TopologyError> {
        let wanted: HashSet<&str> = config.vnics.iter().map(|vnic| vnic.name.as_str()).collect();
        let gone: Vec<String> =
            self.draft.vnic_index.keys().filter(|name| !wanted.contains(name.as_str())).cloned().collect();
        for name in gone {
            if let Some(index) = self.draft.vnic_index.remove(&name) {
                self.forget_vnic(index);
            }
        }
        let mut new = NewVnics { given: ConfiguredLinkLocals::of(config), lowest: 0 };
        for vnic in &config.vnics {
            self.put_vnic(vnic, ports, &mut new)?;
        }
        self.rebuild_rows();
        Ok(())
    }

    /// As [`rebuild_vnics`](Self::rebuild_vnics), where a change concerns few of them.
    pub(super) fn change_vnics(
        &mut self,
        difference: &Difference<'_>,
        ports: &dyn Ports,
    ) -> Result<(), TopologyError> {
        for name in difference.gone() {
            if let Some(index) = self.draft.vnic_index.remove(name.as_str()) {
                self.forget_vnic(index);
                self.renew_row(index);
            }
        }
        let mut new = NewVnics { given: ConfiguredLinkLocals::default(), lowest: 0 };
        for vnic in &difference.after {
            let vpc = self.draft.vpc_index[vnic.vpc.as_str()];
            // Those were somebody else's by learning, and are given to this one.
            vnic.vips.iter().for_each(|&vip| self.unlearn(vpc, vip));
            let index = self.put_vnic(vnic, ports, &mut new)?;
            self.renew_row(index);
        }
        Ok(())
    }

    /// Takes over what VPCs have otherwise into the rows of their vNICs.
    pub(super) fn renew_rows_of(&mut self, vpcs: &[u32]) {
        let members = |vpc: &u32| self.draft.next.vpc(*vpc).map(|vpc| vpc.vnics.clone()).unwrap_or_default();
        let members: Vec<u32> = vpcs.iter().flat_map(members).collect();
        members.into_iter().for_each(|index| self.renew_row(index));
    }

    /// The lowest index, from one on, that no vNIC of the draft has, that is not held, and that no worker knows as
    /// somebody's.
    fn free_vnic_index(&self, from: u32) -> Option<u32> {
        let is_free = |index: usize| {
            !has(&self.draft.next.vnics, index)
                && !self.draft.held.contains(&(index as u32))
                && !self.in_use().any(|snapshot| has(&snapshot.vnics, index))
        };
        let free = (from as usize..MAX_VNICS).find(|&index| is_free(index));
        free.map(|index| index as u32)
    }

    /// Enters a vNIC of the config, or what is new of it. Its index.
    fn put_vnic(
        &mut self,
        vnic: &VnicConfig,
        ports: &dyn Ports,
        new: &mut NewVnics,
    ) -> Result<u32, TopologyError> {
        let vpc = self.draft.vpc_index[vnic.vpc.as_str()];
        let index = match self.draft.vnic_index.get(vnic.name.as_str()) {
            Some(&index) => index,
            None => {
                let free = self.free_vnic_index(new.lowest);
                let index =
                    free.ok_or_else(|| TopologyError::TooManyVnics { path: path::of("vnic", &vnic.name) })?;
                new.lowest = index + 1;
                put(&mut self.draft.next.vnics, index, None);
                self.draft.vnic_index.insert(vnic.name.to_string(), index);
                index
            }
        };
        let old = self.draft.next.vnics[index as usize].clone();
        let port_name = match &vnic.port {
            VnicPort::Trunk(trunk) => trunk.as_str(),
            VnicPort::Own(_) => vnic.name.as_str(),
        };
        let cell = match &old {
            Some(old) => old.cell,
            None => self.new_cell(),
        };
        let group_set = self.group_set(&vnic.security_groups, true);
        let learned = self.still_learned(vnic, index, &new.given);
        let new = Vnic {
            name: vnic.name.to_string(),
            index,
            vpc,
            mac: vnic.mac,
            vips: vnic.vips.iter().copied().chain(learned).collect(),
            learns: vnic.link_local.learns(),
            allowed: floating::pairs(vnic),
            guarded: vnic.guard == GuardConfig::On,
            mtu: vnic.mtu,
            port: ports.find(port_name).map_or(NO_PORT, |(port, _)| port),
            vlan: vnic.vlan,
            group_set,
            cell,
        };
        if old.as_deref() == Some(&new) {
            return Ok(index);
        }
        // One that it is not allowed any more, or is its own now.
        self.drop_floating(index, |floating| {
            let same = old.as_ref().is_some_and(|old| old.vpc == vpc);
            same && new.allows(*floating) && !new.has(floating.address)
        });
        if old.as_ref().is_some_and(|old| (&old.allowed, old.guarded) != (&new.allowed, new.guarded)) {
            self.draft.next.bump(cell);
        }
        let addresses = |vnic: &Vnic| (vnic.vpc, vnic.mac, vnic.vips.clone(), vnic.group_set);
        // Its port, VLAN and MTU are never remembered by a decision.
        if old.as_deref().map(addresses) != Some(addresses(&new)) {
            if let Some(old) = &old {
                self.unplace_vnic(old);
            }
            self.place_vnic(&new, old.is_some())?;
            self.draft.next.bump(cell);
            if old.as_ref().is_some_and(|old| old.group_set != new.group_set) {
                self.regroup_floating(&new);
                self.groups_changed();
            }
        }
        self.draft.next.vnics[index as usize] = Some(Arc::new(new));
        Ok(index)
    }

    /// Enters a vNIC's addresses as locations of this host.
    fn place_vnic(&mut self, vnic: &Vnic, keep_slot: bool) -> Result<(), TopologyError> {
        let place = Place::Local { vnic: vnic.index };
        let slot = match self.draft.vnic_slots.get(&vnic.index) {
            Some(&slot) if keep_slot => slot,
            _ => self.allocate(place, || path::of("vnic", &vnic.name))?,
        };
        self.draft.vnic_slots.insert(vnic.index, slot);
        let location = Location { slot, mac: vnic.mac, groups: vnic.group_set };
        for &vip in &vnic.vips {
            // A VM that moved here: what was a remote location is ours now.
            if self.draft.locations.contains_key(&(vnic.vpc, vip)) {
                self.drop_location(vnic.vpc, vip);
            }
            self.unfloat(vnic.vpc, vip);
            self.draft.next.locations.insert((vnic.vpc, Destination::Ip(vip)), location);
        }
        self.draft.next.touch_topology(vnic.vpc);
        let key = (vnic.vpc, Destination::Mac(vnic.mac));
        if self.draft.next.locations.insert(key, location).is_some() {
            // The MAC address was someone else's, whose slot may stay.
            self.touch_related(vnic.vpc);
        }
        Ok(())
    }

    fn unplace_vnic(&mut self, vnic: &Vnic) {
        let slot = self.draft.vnic_slots.get(&vnic.index).copied();
        let keys = vnic.vips.iter().map(|&vip| Destination::Ip(vip)).chain([Destination::Mac(vnic.mac)]);
        for key in keys {
            let ours = self.draft.next.locations.get(&(vnic.vpc, key)).map(|location| location.slot) == slot;
            if ours {
                self.draft.next.locations.remove(&(vnic.vpc, key));
            }
        }
        self.settle_mac(vnic.vpc, vnic.mac);
        self.left_groups(vnic.group_set);
        // Addresses went away while the slot stays, or its index may be another vNIC's at once: decisions about them
        // must not outlive them.
        self.touch_related(vnic.vpc);
    }

    fn forget_vnic(&mut self, index: u32) {
        self.draft.held.insert(index);
        self.drop_floating(index, |_| false);
        if let Some(vnic) = self.draft.next.vnics[index as usize].take() {
            self.unplace_vnic(&vnic);
            self.draft.next.bump(vnic.cell);
            self.draft.free_cells.push(vnic.cell);
        }
        self.draft.learned.remove(&index);
        if let Some(slot) = self.draft.vnic_slots.remove(&index) {
            self.drop_slot(slot.slot);
        }
    }

    /// Takes over one vNIC that came, changed or went into what is told of all of them.
    pub(super) fn renew_row(&mut self, index: u32) {
        let next = &mut *self.draft.next;
        let at = index as usize;
        if next.vnic_rows.len() <= at {
            next.vnic_rows.resize(at + 1, VnicRow::FREE);
        }
        let old = next.vnic_rows[at];
        let vnic = next.vnics[at].clone();
        let vpc = vnic.as_ref().and_then(|vnic| next.vpcs[vnic.vpc as usize].clone());
        let new = vnic.as_ref().map_or(VnicRow::FREE, |vnic| row(vnic, vpc.as_deref()));
        next.vnic_rows[at] = new;
        if (old.vpc, old.mac) != (new.vpc, new.mac) {
            let key = Snapshot::local_mac(old.vpc, old.mac);
            if next.local_macs.get(key) == Some(index) {
                next.local_macs.remove(key);
            }
            if vnic.is_some() {
                next.local_macs.insert(Snapshot::local_mac(new.vpc, new.mac), index);
            }
        }
        if old.vpc != new.vpc {
            for (vpc, comes) in [(old.vpc, false), (new.vpc, true)] {
                let Some(Some(vpc)) = next.vpcs.get_mut(vpc as usize) else { continue };
                match (vpc.vnics.binary_search(&index), comes) {
                    (Err(place), true) => Arc::make_mut(vpc).vnics.insert(place, index),
                    (Ok(place), false) => drop(Arc::make_mut(vpc).vnics.remove(place)),
                    _ => {}
                }
            }
        }
    }

    pub(super) fn rebuild_rows(&mut self) {
        let mut members: HashMap<u32, Vec<u32>> = HashMap::new();
        let rows = self.draft.next.vnics.iter().map(|vnic| match vnic {
            Some(vnic) => {
                members.entry(vnic.vpc).or_default().push(vnic.index);
                row(vnic, self.draft.next.vpcs[vnic.vpc as usize].as_deref())
            }
            None => VnicRow::FREE,
        });
        self.draft.next.vnic_rows = rows.collect();
        self.draft.next.index_local_macs();
        for vpc in self.draft.next.vpcs.iter_mut().flatten() {
            let vnics = members.remove(&vpc.index).unwrap_or_default();
            if vpc.vnics != vnics {
                Arc::make_mut(vpc).vnics = vnics;
            }
        }
    }
}

fn row(vnic: &Vnic, vpc: Option<&Vpc>) -> VnicRow {
    let first_v4 = vnic.vips.iter().find_map(|vip| match vip {
        IpAddr::V4(address) => Some(u32::from(*address)),
        IpAddr::V6(_) => None,
    });
    let first_v6 = vnic.vips.iter().find_map(|vip| match vip {
        IpAddr::V6(address) => Some(u128::from(*address)),
        IpAddr::V4(_) => None,
    });
    let inline = usize::from(first_v4.is_some()) + usize::from(first_v6.is_some());
    VnicRow {
        v6: first_v6.unwrap_or(0),
        mac: vnic.mac.to_u64(),
        router_mac: vpc.map_or(0, |vpc| vpc.router_mac.to_u64()),
        v4: first_v4.unwrap_or(0),
        vpc: vnic.vpc,
        port: vnic.port,
        vlan: vnic.vlan.unwrap_or(0),
        mtu: vnic.mtu,
        keep_vlan: u8::from(vpc.is_some_and(|vpc| vpc.keep_vlan)),
        more_vips: u8::from(vnic.vips.len() > inline),
        guard: vnic.guard_bits(),
        group_set: vnic.group_set,
    }
}
