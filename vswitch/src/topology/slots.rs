//! VLT slots behind VTEPs, and the next hops that their headers need.
//!
//! Slots and groups are written in place here and nowhere else, once every worker has the snapshot that goes with the new content;
//! a slot that was given up keeps its content until no worker's snapshot refers to it any more.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use pipelines::snapshot::Snapshot;
use pipelines::stage::tunnel::{self, TemplateSpec, TunnelEnds};
use pipelines::vlt::{Place, SlotRef};
use pipelines::vtep::Vtep;
use wire::MacAddr;

use super::paths::{NextHop, TunnelPaths};
use super::uplinks::is_configured;
use super::{Draft, Topology, TopologyError};
use crate::topology::underlay::Neighbours;

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
}

impl Remote {
    pub fn new(vpc: u32, vtep: IpAddr, is_location: bool) -> Self {
        Self { vtep, vpc, is_location }
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
    /// A slot; `path` says for what, should there be none.
    pub(super) fn allocate(
        &mut self,
        place: Place,
        path: impl FnOnce() -> String,
    ) -> Result<SlotRef, TopologyError> {
        let entries = self.writer.table().capacity();
        let full = || TopologyError::VltFull { entries, path: path() };
        let slot = self.writer.allocate(place).ok_or_else(full)?;
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
        let all = *uplinks != before.uplinks || *tunnel != before.tunnel;
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

    /// Writes the slots that the change in progress took: no worker knows them yet, and each must lead somewhere when the
    /// first one does.
    pub(super) fn write_fresh(&mut self, neighbours: &Neighbours) {
        for slot in self.fresh.clone() {
            let Some(&remote) = self.draft.remotes.get(&slot) else { continue };
            let (place, new) = self.place(remote);
            if let Some(group) = new {
                let buckets = self.ways.buckets(group, |hop| self.mac_of(hop, neighbours));
                self.writer.set_group(group, &buckets);
            }
            self.writer.update(slot, place);
        }
    }

    /// The MAC address of a next hop as far as it is known now.
    fn mac_of(&self, hop: NextHop, neighbours: &Neighbours) -> Option<MacAddr> {
        let (_, uplink) = self.draft.uplinks.iter().find(|(index, _)| *index == hop.uplink)?;
        let configured = uplink.neighbours.iter().find(|neighbour| neighbour.ip == hop.address);
        configured.map(|neighbour| neighbour.mac).or_else(|| neighbours.mac(hop))
    }

    /// Writes the slots that a change concerns. Only when every worker has the change.
    pub(super) fn write_stale(&mut self, neighbours: &mut Neighbours) {
        for slot in std::mem::take(&mut self.draft.stale) {
            self.refresh(slot, neighbours);
        }
    }

    /// Forgets neighbours that no group has.
    pub fn forget_neighbours(&self, neighbours: &mut Neighbours) {
        neighbours.retain(|uplink, address| {
            self.ways.through(uplink, address).next().is_some()
                || self.asks(uplink, address)
                || is_configured(&self.draft.uplinks, uplink, address)
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
        let Some(&remote) = self.draft.remotes.get(&slot) else { return };
        let (place, _) = self.place(remote);
        let group = match place {
            Place::Remote(tunnel) => tunnel.group,
            Place::Empty | Place::Local { .. } => 0,
        };
        if group == 0 && place != Place::Empty {
            self.starved.push(slot);
        }
        if self.ways.give(slot, group) {
            self.renew_group(group, neighbours);
        }
        if self.writer.table().read(slot).place != place {
            self.writer.update(slot, place);
        }
    }

    /// What a slot is to say, and its next-hop group when that is new.
    fn place(&mut self, remote: Remote) -> (Place, Option<u16>) {
        let Some(TunnelPaths { source, paths }) = self.paths(remote.vtep) else {
            return (Place::Empty, None);
        };
        let vtep = self.vtep_number(remote.vtep);
        let Some(ends) = TunnelEnds::new(source, remote.vtep) else { return (Place::Empty, None) };
        let Some(vpc) = self.draft.next.vpc(remote.vpc) else { return (Place::Empty, None) };
        let groups = self.writer.table().next_hops().capacity();
        let (group, is_new) = self.ways.group(&paths, groups).unwrap_or_default();
        // All uplinks of a VTEP address are of one VLAN.
        let uplink = paths.first().and_then(|path| self.draft.next.uplink(path.hop.uplink));
        let place = Place::Remote(tunnel::template(&TemplateSpec {
            group,
            vlan: uplink.and_then(|uplink| uplink.vlan),
            ends,
            ttl: self.draft.tunnel.1,
            udp_port: self.draft.tunnel.0,
            vni: vpc.vni,
            vtep,
        }));
        (place, is_new.then_some(group))
    }

    /// Has the next hops of a group resolved, and writes what is known of them.
    pub(super) fn renew_group(&mut self, group: u16, neighbours: &mut Neighbours) {
        for hop in self.ways.hops(group) {
            neighbours.want(hop);
        }
        let buckets = self.ways.buckets(group, |hop| neighbours.mac(hop));
        self.writer.set_group(group, &buckets);
    }

    /// Takes in that a next hop has a new MAC, or none any more: changes the groups that it is in.
    pub fn next_hop_changed(&mut self, uplink: u16, address: IpAddr, neighbours: &mut Neighbours) {
        let groups: Vec<u16> = self.ways.through(uplink, address).collect();
        groups.into_iter().for_each(|group| self.renew_group(group, neighbours));
    }

    /// Takes in whether an uplink can send. True when that is news: then the flows that had it took another way, or have theirs
    /// back, and others may answer for its addresses.
    pub fn set_uplink(&mut self, uplink: u16, up: bool, neighbours: &mut Neighbours) -> bool {
        if self.ways.is_up(uplink) == up {
            return false;
        }
        for group in self.ways.set_up(uplink, up) {
            self.renew_group(group, neighbours);
        }
        true
    }
}
