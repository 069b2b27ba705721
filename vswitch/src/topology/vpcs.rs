//! VPCs in the snapshot: their indices, cells, subnets, routes and flood lists.
//!
//! A VPC keeps its index and its cells while its name is in the config. Locations and vNICs in it are their own files'.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use pipelines::flat::FlatMap;
use pipelines::snapshot::{Prefix, RouteTarget, Subnet, Vpc};
use pipelines::vlt::{Place, SlotRef};

use super::slots::Remote;
use super::{Topology, TopologyError, free_index, has, put};
use crate::config::{self, Config, InnerVlan};

impl Topology {
    pub(super) fn rebuild_vpcs(&mut self, config: &Config) {
        let wanted: HashSet<&str> = config.vpcs.iter().map(|vpc| vpc.name.as_str()).collect();
        let gone: Vec<String> =
            self.draft.vpc_index.keys().filter(|name| !wanted.contains(name.as_str())).cloned().collect();
        for name in gone {
            if let Some(index) = self.draft.vpc_index.remove(&name) {
                self.forget_vpc(index);
            }
        }
        for vpc in &config.vpcs {
            if !self.draft.vpc_index.contains_key(vpc.name.as_str()) {
                let index = free_index(&self.draft.vpc_index, &BTreeSet::new(), |index| {
                    self.in_use().any(|snapshot| has(&snapshot.vpcs, index))
                });
                self.draft.vpc_index.insert(vpc.name.to_string(), index);
                put(&mut self.draft.next.vpcs, index, None);
            }
        }
        for vpc in &config.vpcs {
            let index = self.draft.vpc_index[vpc.name.as_str()];
            let old = self.draft.next.vpcs[index as usize].clone();
            let (cell, topology_cell) = match &old {
                Some(old) => (old.cell, old.topology_cell),
                None => (self.new_cell(), self.new_cell()),
            };
            let subnets = config.subnets.iter().filter(|subnet| subnet.vpc == vpc.name);
            let new = Vpc {
                name: vpc.name.to_string(),
                index,
                vni: vpc.vni,
                router_mac: vpc.router_mac(),
                flood: vpc.flood,
                keep_vlan: vpc.inner_vlan == InnerVlan::Keep,
                subnets: subnets
                    .map(|subnet| Subnet {
                        prefix: Prefix::new(subnet.prefix.addr(), subnet.prefix.prefix_len()),
                        gateway: subnet.gateway,
                    })
                    .collect(),
                routes: old.as_ref().map(|old| old.routes.clone()).unwrap_or_default(),
                vnics: old.as_ref().map(|old| old.vnics.clone()).unwrap_or_default(),
                flood_slots: old.as_ref().map(|old| old.flood_slots.clone()).unwrap_or_default(),
                cell,
                topology_cell,
            };
            // No decision remembers the VNI; the slots' headers are written anew.
            let same = |old: &Vpc| Vpc { vni: new.vni, ..old.clone() } == new;
            let changed = !old.as_deref().is_some_and(same);
            let router_changed = old.as_ref().is_none_or(|old| old.router_mac != new.router_mac);
            self.draft.next.vpcs[index as usize] = Some(Arc::new(new));
            if router_changed {
                self.touch_related(index);
            } else if changed {
                self.draft.next.touch_vpc(index);
            }
        }
        let vnis = self.draft.next.vpcs.iter().flatten().map(|vpc| (u128::from(vpc.vni.get()), vpc.index));
        self.draft.next.vnis = FlatMap::new(vnis);
    }

    fn forget_vpc(&mut self, index: u32) {
        let locations: Vec<IpAddr> =
            self.draft.locations.keys().filter(|(vpc, _)| *vpc == index).map(|&(_, vip)| vip).collect();
        for vip in locations {
            self.drop_location(index, vip);
        }
        let vteps: Vec<_> = self.draft.vtep_slots.keys().filter(|(vpc, _)| *vpc == index).copied().collect();
        for key in vteps {
            if let Some(slot) = self.draft.vtep_slots.remove(&key) {
                self.drop_slot(slot.slot);
            }
        }
        // Before it goes: its index is another VPC's one day.
        self.touch_related(index);
        if let Some(vpc) = self.draft.next.vpcs[index as usize].take() {
            self.draft.free_cells.extend([vpc.cell, vpc.topology_cell]);
        }
    }

    /// Routes of VPCs, and the slots that they and flooding need.
    pub(super) fn rebuild_routes(&mut self, config: &Config) -> Result<(), TopologyError> {
        let mut used: HashSet<(u32, IpAddr)> = HashSet::new();
        for vpc in &config.vpcs {
            let index = self.draft.vpc_index[vpc.name.as_str()];
            let mut routes = Vec::new();
            for route in &vpc.routes {
                let prefix = Prefix::new(route.to.addr(), route.to.prefix_len());
                let target = match &route.target {
                    config::RouteTarget::Peer { vpc } => {
                        RouteTarget::Peer(self.draft.vpc_index[vpc.as_str()])
                    }
                    config::RouteTarget::Gateway { vtep, mac } => {
                        used.insert((index, *vtep));
                        let slot = self.vtep_slot(index, *vtep)?;
                        RouteTarget::Gateway { slot, mac: *mac }
                    }
                };
                routes.push((prefix, target));
            }
            routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
            let mut flood_slots = Vec::new();
            if vpc.flood {
                let of_vpc = self.draft.locations.range((index, IpAddr::from([0, 0, 0, 0]))..);
                let vteps: HashSet<IpAddr> = of_vpc
                    .take_while(|((vpc, _), _)| *vpc == index)
                    .map(|(_, location)| location.vtep)
                    .chain(config.uplinks.iter().flat_map(|uplink| uplink.peers.iter().copied()))
                    .collect();
                let mut vteps: Vec<_> = vteps.into_iter().collect();
                vteps.sort();
                for vtep in vteps {
                    used.insert((index, vtep));
                    flood_slots.push(self.vtep_slot(index, vtep)?);
                }
            }
            let Some(current) = self.draft.next.vpcs[index as usize].as_mut() else { continue };
            let new_routes = current.routes != routes;
            let new_list = current.flood_slots != flood_slots;
            if new_routes || new_list {
                let vpc = Arc::make_mut(current);
                (vpc.routes, vpc.flood_slots) = (routes, flood_slots);
            }
            if new_routes {
                self.draft.next.touch_vpc(index);
            } else if new_list {
                self.draft.next.touch_strangers(index);
            }
        }
        let unused: Vec<_> =
            self.draft.vtep_slots.keys().filter(|key| !used.contains(key)).copied().collect();
        for key in unused {
            if let Some(slot) = self.draft.vtep_slots.remove(&key) {
                self.drop_slot(slot.slot);
            }
        }
        Ok(())
    }

    fn vtep_slot(&mut self, vpc: u32, vtep: IpAddr) -> Result<SlotRef, TopologyError> {
        if let Some(&slot) = self.draft.vtep_slots.get(&(vpc, vtep)) {
            return Ok(slot);
        }
        let slot = self.allocate(Place::Empty)?;
        self.draft.remotes.insert(slot.slot, Remote { vtep, vpc, hop: None });
        self.draft.stale.push(slot.slot);
        self.draft.vtep_slots.insert((vpc, vtep), slot);
        Ok(slot)
    }
}
