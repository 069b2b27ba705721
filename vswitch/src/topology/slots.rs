//! VLT slots behind VTEPs, and the next hops that their headers need.
//!
//! Slots are written in place here and nowhere else, once every worker has the snapshot that goes with the new content;
//! a slot that was given up keeps its content until no worker's snapshot refers to it any more.

use std::net::IpAddr;

use pipelines::snapshot::mac_from;
use pipelines::stage::tunnel::{self, Ends, TemplateSpec};
use pipelines::vlt::{Place, SlotRef};
use pipelines::vtep::Vtep;
use wire::MacAddr;

use super::uplinks::is_configured;
use super::{Draft, Topology, TopologyError};
use crate::topology::underlay::{Neighbours, NextHop};

/// A destination behind a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    /// The tunnel end point.
    pub vtep: IpAddr,
    /// Index of the VPC.
    pub vpc: u32,
    /// Uplink and address of the next hop that the slot was last written for.
    pub hop: Option<(u16, IpAddr)>,
}

impl Topology {
    pub(super) fn allocate(&mut self, place: Place) -> Result<SlotRef, TopologyError> {
        let full = TopologyError::VltFull(self.writer.table().capacity());
        let slot = self.writer.allocate(place).ok_or(full)?;
        self.fresh.push(slot.slot);
        Ok(slot)
    }

    /// Gives a slot up; it is freed by [`release`](Self::release).
    pub(super) fn drop_slot(&mut self, slot: u32) {
        self.unhop(slot);
        self.draft.remotes.remove(&slot);
        self.draft.to_free.push(slot);
    }

    /// Takes a slot from the next hop it was written for.
    pub(super) fn unhop(&mut self, slot: u32) {
        let Some(hop) = self.draft.remotes.get_mut(&slot).and_then(|remote| remote.hop.take()) else {
            return;
        };
        if let Some(slots) = self.draft.hops.get_mut(&hop) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.draft.hops.remove(&hop);
            }
        }
    }

    /// Writes the slots that the change in progress took: no worker knows them yet, and each must lead somewhere when the
    /// first one does.
    pub(super) fn write_fresh(&mut self, neighbours: &Neighbours) {
        for slot in self.fresh.clone() {
            let Some(&remote) = self.draft.remotes.get(&slot) else { continue };
            let vtep = self.vtep_number(remote.vtep);
            let place = match self.route(remote.vtep) {
                Some(hop) => self.place(hop, (remote, vtep), self.mac_of(hop, neighbours)),
                None => Place::Empty,
            };
            self.writer.update(slot, place);
        }
    }

    /// The MAC address of a next hop as far as it is known now.
    fn mac_of(&self, hop: NextHop, neighbours: &Neighbours) -> Option<MacAddr> {
        let (_, uplink) = self.draft.uplinks.iter().find(|(index, _)| *index == hop.uplink)?;
        let configured = uplink.neighbours.iter().find(|neighbour| neighbour.ip == hop.address);
        configured.map(|neighbour| neighbour.mac).or_else(|| neighbours.mac(hop))
    }

    /// Writes the slots that a change concerns, and forgets neighbours that no slot needs. Only when every worker has the
    /// change.
    pub(super) fn write_stale(&mut self, neighbours: &mut Neighbours) {
        for slot in std::mem::take(&mut self.draft.stale) {
            self.refresh(slot, neighbours);
        }
        let Draft { hops, uplinks, .. } = &self.draft;
        neighbours.retain(|uplink, address| {
            hops.contains_key(&(uplink, address)) || is_configured(uplinks, uplink, address)
        });
    }

    /// The number of a VTEP. A change that fails gives it back; no slot was written and no worker has seen it then.
    pub(super) fn vtep_number(&mut self, vtep: IpAddr) -> u32 {
        let Draft { vteps, last_vtep, .. } = &mut self.draft;
        *vteps.entry(vtep).or_insert_with(|| {
            *last_vtep = (*last_vtep % Vtep::MAX) + 1;
            *last_vtep
        })
    }

    /// Writes the present way to a slot's VTEP into it.
    fn refresh(&mut self, slot: u32, neighbours: &mut Neighbours) {
        self.unhop(slot);
        let Some(&remote) = self.draft.remotes.get(&slot) else { return };
        let vtep = self.vtep_number(remote.vtep);
        let place = match self.route(remote.vtep) {
            Some(hop) => {
                let key = (hop.uplink, hop.address);
                self.draft.hops.entry(key).or_default().insert(slot);
                self.draft.remotes.insert(slot, Remote { hop: Some(key), ..remote });
                self.place(hop, (remote, vtep), neighbours.want(hop))
            }
            None => Place::Empty,
        };
        if self.writer.table().read(slot).place != place {
            self.writer.update(slot, place);
        }
    }

    fn place(&self, hop: NextHop, (remote, vtep): (Remote, u32), next_hop: Option<MacAddr>) -> Place {
        let unresolved = Place::Unresolved { uplink: hop.uplink, vtep };
        let Some(next_hop) = next_hop else { return unresolved };
        let Some(ends) = Ends::new(hop.source, remote.vtep) else { return unresolved };
        let Some(uplink) = self.draft.next.uplink(hop.uplink) else { return unresolved };
        let Some(vpc) = self.draft.next.vpc(remote.vpc) else { return Place::Empty };
        Place::Remote(tunnel::template(&TemplateSpec {
            uplink: hop.uplink,
            src_mac: mac_from(uplink.mac),
            next_hop,
            vlan: uplink.vlan,
            ends,
            ttl: self.draft.tunnel.1,
            udp_port: self.draft.tunnel.0,
            vni: vpc.vni,
            vtep,
        }))
    }

    /// Takes in that a next hop has a new MAC, or none any more: changes slots in place.
    pub fn next_hop_changed(&mut self, uplink: u16, address: IpAddr, neighbours: &mut Neighbours) {
        let slots: Vec<u32> =
            self.draft.hops.get(&(uplink, address)).into_iter().flatten().copied().collect();
        for slot in slots {
            self.refresh(slot, neighbours);
        }
    }
}
