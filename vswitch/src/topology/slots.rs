//! VLT slots behind VTEPs, and the next hops that their headers need.
//!
//! Slots are written in place here and nowhere else, once every worker has the snapshot that goes with the new content;
//! a slot that was given up keeps its content until no worker's snapshot refers to it any more.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use imbl::OrdSet;
use pipelines::snapshot::{Snapshot, mac_from};
use pipelines::stage::tunnel::{self, TemplateSpec, TunnelEnds};
use pipelines::vlt::{Place, SlotRef};
use pipelines::vtep::Vtep;
use wire::MacAddr;

use super::uplinks::is_configured;
use super::{Draft, Topology, TopologyError};
use crate::topology::underlay::{Neighbours, NextHop};

/// The first of all addresses in order.
pub(super) const LOWEST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A destination behind a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    /// The tunnel end point.
    pub vtep: IpAddr,
    /// Index of the VPC.
    pub vpc: u32,
    /// It is a location's; otherwise the slot is the VTEP's own, for flooding or as a gateway.
    pub is_location: bool,
    /// Uplink and address of the next hop that the slot was last written for.
    pub hop: Option<(u16, IpAddr)>,
}

impl Remote {
    pub fn new(vpc: u32, vtep: IpAddr, is_location: bool) -> Self {
        Self { vtep, vpc, is_location, hop: None }
    }
}

/// How much of a VPC is behind a VTEP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Behind {
    pub slots: u32,
    /// Those of them that are locations'.
    pub locations: u32,
}

impl Topology {
    pub(super) fn allocate(&mut self, place: Place) -> Result<SlotRef, TopologyError> {
        let full = TopologyError::VltFull(self.writer.table().capacity());
        let slot = self.writer.allocate(place).ok_or(full)?;
        self.fresh.push(slot.slot);
        Ok(slot)
    }

    /// Gives a slot up; it is freed when the change is [settled](Self::settle).
    pub(super) fn drop_slot(&mut self, slot: u32) {
        self.unplace(slot);
        self.draft.to_free.push(slot);
    }

    /// Puts a slot behind a VTEP, wherever it was before. It is written when the change is settled. True when that changes
    /// behind which VTEPs the locations of its VPC are.
    pub(super) fn place_behind(&mut self, slot: u32, remote: Remote) -> bool {
        let left = self.unplace(slot);
        let behind = self.draft.behind.entry((remote.vpc, remote.vtep)).or_default();
        behind.slots += 1;
        behind.locations += u32::from(remote.is_location);
        let came = remote.is_location && behind.locations == 1;
        self.draft.vteps_stale |= behind.slots == 1;
        self.draft.remotes.insert(slot, remote);
        self.draft.stale.push(slot);
        left || came
    }

    /// Takes a slot from its VTEP. True when no location of its VPC is behind that any more.
    fn unplace(&mut self, slot: u32) -> bool {
        self.unhop(slot);
        let Some(remote) = self.draft.remotes.remove(&slot) else { return false };
        let key = (remote.vpc, remote.vtep);
        let Some(behind) = self.draft.behind.get_mut(&key) else { return false };
        behind.slots -= 1;
        behind.locations -= u32::from(remote.is_location);
        let left = remote.is_location && behind.locations == 0;
        if behind.slots == 0 {
            self.draft.behind.remove(&key);
            self.draft.vteps_stale = true;
        }
        left
    }

    /// The VTEPs behind which a VPC has locations, in order.
    pub(super) fn vteps_of(&self, vpc: u32) -> impl Iterator<Item = IpAddr> {
        let of_vpc = self.draft.behind.range((vpc, LOWEST)..).take_while(move |((of, _), _)| *of == vpc);
        of_vpc.filter(|(_, behind)| behind.locations > 0).map(|((_, vtep), _)| *vtep)
    }

    /// Which slots must be written anew after a change of the config as a whole: those whose way or header it may have
    /// changed, besides those that it put somewhere else.
    pub(super) fn note_stale(&mut self, before: &Draft) {
        let Draft { next, remotes, stale, uplinks, tunnel, .. } = &mut self.draft;
        let all =
            *uplinks != before.uplinks || *tunnel != before.tunnel || next.uplinks != before.next.uplinks;
        let renumbered = |vpc: u32| {
            let vni = |snapshot: &Snapshot| snapshot.vpc(vpc).map(|vpc| vpc.vni);
            vni(next) != vni(&before.next)
        };
        let changed: HashSet<u32> = match all {
            true => HashSet::new(),
            false => next.vpcs.iter().flatten().map(|vpc| vpc.index).filter(|&vpc| renumbered(vpc)).collect(),
        };
        if all || !changed.is_empty() {
            let concerned = remotes.iter().filter(|(_, remote)| all || changed.contains(&remote.vpc));
            stale.extend(concerned.map(|(&slot, _)| slot));
        }
    }

    /// Takes a slot from the next hop it was written for.
    pub(super) fn unhop(&mut self, slot: u32) {
        let Some((uplink, address)) = self.draft.remotes.get(&slot).and_then(|remote| remote.hop) else {
            return;
        };
        if let Some(remote) = self.draft.remotes.get_mut(&slot) {
            remote.hop = None;
        }
        self.draft.hops.remove(&(uplink, address, slot));
        self.draft.hops_left |= slots_of(&self.draft.hops, uplink, address).next().is_none();
    }

    /// Writes the slots that the change in progress took: no worker knows them yet, and each must lead somewhere when the
    /// first one does.
    pub(super) fn write_fresh(&mut self, neighbours: &Neighbours) {
        for slot in self.fresh.clone() {
            let Some(&remote) = self.draft.remotes.get(&slot) else { continue };
            let vtep = self.vtep_number(remote.vtep);
            let place = match self.route(remote.vtep) {
                Some(hop) => self.place(hop, remote, vtep, self.mac_of(hop, neighbours)),
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
        if !std::mem::take(&mut self.draft.hops_left) {
            return;
        }
        let Draft { hops, uplinks, .. } = &self.draft;
        neighbours.retain(|uplink, address| {
            slots_of(hops, uplink, address).next().is_some() || is_configured(uplinks, uplink, address)
        });
    }

    /// The number of a VTEP. A change that fails gives it back; no slot was written and no worker has seen it then.
    pub(super) fn vtep_number(&mut self, vtep: IpAddr) -> u32 {
        let Draft { vteps, last_vtep, .. } = &mut self.draft;
        if let Some(&number) = vteps.get(&vtep) {
            return number;
        }
        *last_vtep = (*last_vtep % Vtep::MAX) + 1;
        vteps.insert(vtep, *last_vtep);
        *last_vtep
    }

    /// Writes the present way to a slot's VTEP into it.
    fn refresh(&mut self, slot: u32, neighbours: &mut Neighbours) {
        self.unhop(slot);
        let Some(&remote) = self.draft.remotes.get(&slot) else { return };
        let vtep = self.vtep_number(remote.vtep);
        let place = match self.route(remote.vtep) {
            Some(hop) => {
                let key = (hop.uplink, hop.address);
                self.draft.hops.insert((hop.uplink, hop.address, slot));
                self.draft.remotes.insert(slot, Remote { hop: Some(key), ..remote });
                self.place(hop, remote, vtep, neighbours.want(hop))
            }
            None => Place::Empty,
        };
        if self.writer.table().read(slot).place != place {
            self.writer.update(slot, place);
        }
    }

    fn place(&self, hop: NextHop, remote: Remote, vtep: u32, next_hop: Option<MacAddr>) -> Place {
        let unresolved = Place::Unresolved { uplink: hop.uplink, vtep };
        let Some(next_hop) = next_hop else { return unresolved };
        let Some(ends) = TunnelEnds::new(hop.source, remote.vtep) else { return unresolved };
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
        let slots: Vec<u32> = slots_of(&self.draft.hops, uplink, address).collect();
        for slot in slots {
            self.refresh(slot, neighbours);
        }
    }
}

/// The slots that are written for a next hop.
fn slots_of(hops: &OrdSet<(u16, IpAddr, u32)>, uplink: u16, address: IpAddr) -> impl Iterator<Item = u32> {
    hops.range((uplink, address, 0)..=(uplink, address, u32::MAX)).map(|&(_, _, slot)| slot)
}
