//! Link-local addresses that vNICs ask for besides the one that follows from their MAC (RFC 7217, RFC 8981): a few of each
//! vNIC, never one that somebody else in the VPC has, and only while the config does not give it to another.
//!
//! They live in the topology alone: a switch that was started anew learns them again with the next question of the guest.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use pipelines::event::may_be_learned;
use pipelines::snapshot::{Destination, Location, Vnic};
use wire::Vni;

use super::Topology;
use crate::config::{Config, VnicConfig};

/// Addresses that are learned of one vNIC; the oldest gives way.
pub const MOST: usize = 4;

impl Topology {
    /// Makes a link-local address that a vNIC asked for its own, ready to [`commit`](Self::commit). `false`, with nothing
    /// changed, when it may not have it, or has it.
    pub fn learn(&mut self, vnic: u32, address: Ipv6Addr) -> bool {
        let Some(known) = self.draft.next.vnic(vnic).cloned() else { return false };
        let Some(vpc) = self.draft.next.vpc(known.vpc) else { return false };
        let Some(&slot) = self.draft.vnic_slots.get(&vnic) else { return false };
        if !known.learns || !may_be_learned(address) || self.draft.next.is_held(vpc, address.into()) {
            return false;
        }
        // What is accepted out of the tunnel from an address that nobody is known to have rests on this cell.
        let cell = vpc.topology_cell;
        self.draft.next.bump(cell);
        let mut learned = self.draft.learned.get(&vnic).cloned().unwrap_or_default();
        let gone = if learned.len() < MOST { None } else { Some(learned.remove(0)) };
        learned.push(address);
        self.draft.learned.insert(vnic, learned);
        let key = |address: Ipv6Addr| (known.vpc, Destination::Ip(address.into()));
        if gone.is_some_and(|gone| self.draft.next.locations.remove(&key(gone)).is_some()) {
            self.changes_hands(&known);
        }
        self.draft
            .next
            .locations
            .insert(key(address), Location { slot, mac: known.mac, groups: known.group_set });
        let kept = known.vips.iter().copied().filter(|&vip| gone.is_none_or(|gone| vip != gone));
        let vips = kept.chain([address.into()]).collect();
        self.renew(Vnic { vips, ..known });
        true
    }

    /// Takes an address from the vNIC that learned it, if one did: it is given to somebody else.
    pub(super) fn unlearn(&mut self, vpc: u32, address: IpAddr) {
        let Some(vnic) = self.learner(vpc, address) else { return };
        let Some(known) = self.draft.next.vnic(vnic).cloned() else { return };
        if let Some(learned) = self.draft.learned.get_mut(&vnic) {
            learned.retain(|&learned| learned != address);
        }
        self.draft.next.locations.remove(&(vpc, Destination::Ip(address)));
        self.changes_hands(&known);
        let vips = known.vips.iter().copied().filter(|&vip| vip != address).collect();
        self.renew(Vnic { vips, ..known });
    }

    /// An address of a vNIC may be somebody else's now, who has not its groups. No router sends to it: its VPC alone has to do
    /// with it.
    fn changes_hands(&mut self, holder: &Vnic) {
        if holder.group_set != 0 {
            self.left_groups(holder.group_set);
            self.draft.next.touch_vpc(holder.vpc);
        }
    }

    /// The vNIC that learned an address of a VPC.
    pub(super) fn learner(&self, vpc: u32, address: IpAddr) -> Option<u32> {
        let learned = self.draft.learned.iter();
        let owners = learned.filter(|(_, learned)| learned.iter().any(|&learned| learned == address));
        let mut owners = owners.map(|(&vnic, _)| vnic);
        owners.find(|&vnic| self.draft.next.vnic(vnic).is_some_and(|vnic| vnic.vpc == vpc))
    }

    fn renew(&mut self, vnic: Vnic) {
        let index = vnic.index as usize;
        self.draft.next.vnics[index] = Some(Arc::new(vnic));
        self.renew_row(index as u32);
    }

    /// The addresses that a vNIC of the config keeps of those it learned, where it is the one that it was.
    pub(super) fn still_learned(
        &mut self,
        vnic: &VnicConfig,
        index: u32,
        given: &ConfiguredLinkLocals,
    ) -> Vec<IpAddr> {
        let vpc = self.draft.vpc_index.get(vnic.vpc.as_str()).copied();
        let same = self
            .draft
            .next
            .vnic(index)
            .is_some_and(|old| Some(old.vpc) == vpc && old.mac == vnic.mac && vnic.link_local.learns());
        let vni = vpc.and_then(|vpc| self.draft.next.vpc(vpc)).map(|vpc| vpc.vni);
        let Some(learned) = self.draft.learned.get_mut(&index) else { return Vec::new() };
        learned.retain(|&address| same && vni.is_some_and(|vni| !given.0.contains(&(vni, address))));
        learned.iter().map(|&address| address.into()).collect()
    }
}

/// The link-local addresses that a config gives to somebody.
#[derive(Default)]
pub(super) struct ConfiguredLinkLocals(HashSet<(Vni, Ipv6Addr)>);

impl ConfiguredLinkLocals {
    pub(super) fn of(config: &Config) -> Self {
        let vnis: HashMap<&str, Vni> = config.vpcs.iter().map(|vpc| (vpc.name.as_str(), vpc.vni)).collect();
        let vni = |vnic: &VnicConfig| vnis.get(vnic.vpc.as_str()).copied();
        let here = config.vnics.iter().flat_map(|vnic| vnic.vips.iter().map(move |&vip| (vnic, vip)));
        let here = here.filter_map(|(vnic, vip)| Some((vni(vnic)?, link_local(vip)?)));
        let there = config.locations.iter();
        let there = there.filter_map(|location| Some((location.vni, link_local(location.vip)?)));
        Self(here.chain(there).collect())
    }
}

fn link_local(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => Some(address),
        _ => None,
    }
}
