//! Floating addresses: of those that several vNICs are allowed, which vNIC of this host has each now.
//!
//! A vNIC that announces an address it is allowed (ARP, neighbour discovery) has it, until another one announces it, here or
//! through the tunnel, or the config gives it to somebody. They live in the topology alone: a switch that was started anew
//! learns them again from the next announcement, or the next packet that comes from one.

use std::net::IpAddr;

use pipelines::event::{Binding, Floating};
use pipelines::snapshot::{AllowedPair, Destination, Location, Prefix, Vnic};
use pipelines::vlt::Place;

use super::Topology;
use crate::config::VnicConfig;

/// Addresses that float at one vNIC; the oldest gives way.
pub const MOST: usize = 256;

/// What a vNIC is allowed, with MAC addresses.
pub(super) fn pairs(vnic: &VnicConfig) -> Vec<AllowedPair> {
    let prefix = |pair: &crate::config::AllowedConfig| Prefix::new(pair.ip.addr(), pair.ip.prefix_len());
    let pairs = vnic.allowed.iter();
    pairs.map(|pair| AllowedPair { prefix: prefix(pair), mac: pair.mac.unwrap_or(vnic.mac) }).collect()
}

impl Topology {
    /// Takes in where a floating address is now, ready to [`commit`](Self::commit). `false`, with nothing changed, when the
    /// vNIC may not have it, or that is known.
    pub fn float(&mut self, floating: &Floating) -> bool {
        let &Floating { vnic, binding, here } = floating;
        let Some(known) = self.draft.next.vnic(vnic).cloned() else { return false };
        if !here {
            return self.has_floating(vnic, binding.address) && self.unfloat(known.vpc, binding.address);
        }
        let Some(vpc) = self.draft.next.vpc(known.vpc) else { return false };
        let Some(&slot) = self.draft.vnic_slots.get(&vnic) else { return false };
        let may = self.draft.next.may_float(vpc, &known, binding) && !known.has(binding.address);
        if !may || self.draft.next.is_at(&known, binding) {
            return false;
        }
        let held = self.draft.next.is_held(vpc, binding.address);
        // An address that follows from a floating MAC is where the MAC is.
        if held && !self.unfloat(known.vpc, binding.address) {
            return false;
        }
        let list = self.draft.floating.get(&vnic).cloned().unwrap_or_default();
        if list.len() >= MOST {
            self.unfloat(known.vpc, list[0].address);
        }
        self.draft.floating.entry(vnic).or_default().push(binding);
        let location = Location { slot, mac: binding.mac, groups: known.group_set };
        self.draft.next.locations.insert((known.vpc, Destination::Ip(binding.address)), location);
        let mac = (known.vpc, Destination::Mac(binding.mac));
        let moved =
            self.floats_by_mac(&known, binding).then(|| self.draft.next.locations.insert(mac, location));
        if moved.flatten().is_some_and(|before| before.slot != slot) {
            self.touch_related(known.vpc);
        }
        self.draft.next.touch_topology(known.vpc);
        true
    }

    /// The addresses that float at the vNICs of this host.
    pub fn floating(&self) -> impl Iterator<Item = (&Vnic, Binding)> {
        let all = self.draft.floating.iter();
        let of = |(&vnic, list): (&u32, &Vec<Binding>)| Some((self.current.vnic(vnic)?, list.clone()));
        all.filter_map(of).flat_map(|(vnic, list)| list.into_iter().map(move |binding| (vnic, binding)))
    }

    fn has_floating(&self, vnic: u32, address: IpAddr) -> bool {
        self.draft.floating.get(&vnic).is_some_and(|list| list.iter().any(|known| known.address == address))
    }

    /// True when the MAC of a floating address is another one than its vNIC's own, and nobody's but of vNICs at which
    /// addresses float with it.
    fn floats_by_mac(&self, vnic: &Vnic, Binding { mac, .. }: Binding) -> bool {
        let next = &self.draft.next;
        let held = next.locations.get(&(vnic.vpc, Destination::Mac(mac)));
        let owner = held.map(|held| match next.vlt.read(held.slot.slot).place {
            Place::Local { vnic } => next.vnic(vnic),
            Place::Remote(_) | Place::Empty => None,
        });
        mac != vnic.mac && owner.is_none_or(|owner| owner.is_some_and(|owner| owner.mac != mac))
    }

    /// Takes a floating address from the vNIC that has it, if one does. True when one did.
    pub(super) fn unfloat(&mut self, vpc: u32, address: IpAddr) -> bool {
        let holder = self.draft.next.floats_at(vpc, address).map(|vnic| vnic.index);
        let Some(vnic) = holder.filter(|&vnic| self.has_floating(vnic, address)) else { return false };
        self.drop_floating(vnic, |known| known.address != address);
        true
    }

    /// Takes from a vNIC of the draft the floating addresses that it does not keep.
    pub(super) fn drop_floating(&mut self, index: u32, keeps: impl Fn(&Binding) -> bool) {
        let Some(list) = self.draft.floating.get(&index).cloned() else { return };
        let (kept, gone): (Vec<_>, Vec<_>) = list.into_iter().partition(keeps);
        let (Some(vnic), false) = (self.draft.next.vnic(index).cloned(), gone.is_empty()) else { return };
        let slot = self.draft.vnic_slots.get(&index).copied();
        for Binding { address, mac } in gone {
            let macs = kept.iter().all(|kept| kept.mac != mac) && mac != vnic.mac;
            let keys = macs.then_some(Destination::Mac(mac)).into_iter().chain([Destination::Ip(address)]);
            for key in keys.map(|key| (vnic.vpc, key)) {
                if self.draft.next.locations.get(&key).map(|location| location.slot) == slot {
                    self.draft.next.locations.remove(&key);
                }
            }
            self.settle_mac(vnic.vpc, mac);
        }
        match kept.is_empty() {
            true => drop(self.draft.floating.remove(&index)),
            false => drop(self.draft.floating.insert(index, kept)),
        }
        // The slot stays: nothing else would make decisions stale.
        self.touch_related(vnic.vpc);
        self.left_groups(vnic.group_set);
    }

    /// Puts the addresses that float at a vNIC into its groups.
    pub(super) fn regroup_floating(&mut self, vnic: &Vnic) {
        for Binding { address, .. } in self.draft.floating.get(&vnic.index).cloned().unwrap_or_default() {
            let key = (vnic.vpc, Destination::Ip(address));
            if let Some(location) = self.draft.next.locations.get_mut(&key) {
                location.groups = vnic.group_set;
            }
        }
    }
}
