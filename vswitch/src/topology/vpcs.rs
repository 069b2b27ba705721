//! VPCs in the snapshot: their indices, cells, subnets, routes and flood lists.
//!
//! A VPC keeps its index and its cells while its name is in the config. Locations and vNICs in it are their own files'.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use pipelines::flat::FlatMap;
use pipelines::snapshot::{Gateway, Prefix, RouteTable, RouteTarget, Services, Subnet, Vpc};
use pipelines::vlt::{Place, SlotRef};
use wire::MacAddr;

use super::slots::{LOWEST, Remote};
use super::{Topology, TopologyError, free_index, has, put};
use crate::config::objects::route_id;
use crate::config::{
    Config, GatewayConfig, GuardConfig, InnerVlan, Name, RouteTargetConfig, SubnetConfig, VnicConfig,
    VpcConfig, VpcRoute, path,
};

/// For each VPC that floods to more places than a burst may make copies: that nothing of it is flooded, and what to set.
pub fn flood_notes(config: &Config) -> Vec<String> {
    let peers = || config.uplinks.iter().flat_map(|uplink| uplink.peers.iter());
    let flooding = config.vpcs.iter().filter(|vpc| vpc.flood);
    let copies = flooding.map(|vpc| {
        let located = config.locations.iter().filter(|location| location.vni == vpc.vni);
        let located = located.map(|location| &location.vtep);
        let vteps: BTreeSet<&IpAddr> = located.chain(peers()).chain(&vpc.vteps).collect();
        (&vpc.name, vteps.len() + config.vnics.iter().filter(|vnic| vnic.vpc == vpc.name).count())
    });
    let budget = config.nft.flood_budget;
    let over = copies.filter(|(_, copies)| *copies > usize::from(budget));
    let note = |(name, copies)| {
        format!(
            "VPC {name} floods to {copies} vNICs and VTEPs, more than a burst may make copies: it drops what is to be flooded as \
             flood-budget; set [nft] flood-budget, which is {budget}, to {copies} at least"
        )
    };
    over.map(note).collect()
}

/// For each route to a vNIC that may not answer from all of its addresses: what to allow it.
pub fn route_notes(config: &Config) -> Vec<String> {
    let vnics: HashMap<&Name, &VnicConfig> =
        config.vnics.iter().map(|vnic| (&vnic.name, vnic.as_ref())).collect();
    let routes = config.vpcs.iter().flat_map(|vpc| vpc.routes.iter().map(move |route| (vpc, route)));
    let muted = routes.filter_map(|(vpc, route)| {
        let RouteTargetConfig::Vnic { vnic } = &route.target else { return None };
        let vnic = *vnics.get(vnic)?;
        let to = route.to;
        let allowed = vnic.allowed.iter().any(|pair| pair.mac.is_none() && pair.ip.contains(&to));
        let own = vnic.vips.iter().any(|&vip| to == vip.into());
        (vnic.guard == GuardConfig::On && !allowed && !own).then(|| {
            format!(
                "VPC {} leads to {to} by vNIC {}, whose answers from there are dropped as guard-vip: add {{ ip = \"{to}\" }} to its \
                 allowed, or set its guard to \"off\"",
                vpc.name, vnic.name
            )
        })
    });
    muted.collect()
}

/// For each VPC that leads to another one, which does not lead back: that nobody hears it there, and what to add.
pub fn peering_notes(config: &Config) -> Vec<String> {
    let peers_of = |vpc: &VpcConfig| -> BTreeSet<Name> {
        let peers = vpc.routes.iter().filter_map(|route| match &route.target {
            RouteTargetConfig::Peer { vpc } => Some(vpc.clone()),
            _ => None,
        });
        peers.collect()
    };
    let peers: HashMap<&Name, BTreeSet<Name>> =
        config.vpcs.iter().map(|vpc| (&vpc.name, peers_of(vpc))).collect();
    let pairs = config.vpcs.iter().flat_map(|vpc| peers[&vpc.name].iter().map(move |peer| (&vpc.name, peer)));
    let one_way = pairs.filter(|&(vpc, peer)| !peers.get(peer).is_some_and(|back| back.contains(vpc)));
    let note = |(vpc, peer): (&Name, &Name)| {
        format!(
            "VPC {vpc} leads to VPC {peer}, which has no route back: what goes there is dropped as inner-source; add \
             {{ to = ..., vpc = \"{vpc}\" }} with the addresses of {vpc} to the routes of {peer}"
        )
    };
    one_way.map(note).collect()
}

impl Topology {
    /// Which VPCs have something otherwise now that is in the rows of their vNICs.
    pub(super) fn rebuild_vpcs(&mut self, config: &Config) -> Vec<u32> {
        let mut rows = Vec::new();
        let mut subnets: HashMap<&str, Vec<Subnet>> = HashMap::new();
        for subnet in &config.subnets {
            subnets.entry(subnet.vpc.as_str()).or_default().push(Subnet {
                prefix: Prefix::new(subnet.prefix.addr(), subnet.prefix.prefix_len()),
                gateway: subnet.gateway,
                services: services_of(subnet),
            });
        }
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
            if old.as_ref().is_some_and(|old| old.vni != vpc.vni) {
                self.drop_stations(index);
            }
            let (cell, topology_cell) = match &old {
                Some(old) => (old.cell, old.topology_cell),
                None => (self.new_cell(), self.new_cell()),
            };
            let subnets = subnets.remove(vpc.name.as_str()).unwrap_or_default();
            let table = match &old {
                Some(old) if old.subnets() == subnets => old.table.clone(),
                Some(old) => Arc::new(RouteTable::new(subnets, old.routes().to_vec())),
                None => Arc::new(RouteTable::new(subnets, Vec::new())),
            };
            let new = Vpc {
                name: vpc.name.to_string(),
                index,
                vni: vpc.vni,
                router_mac: vpc.router_mac(),
                flood: vpc.flood,
                keep_vlan: vpc.inner_vlan == InnerVlan::Keep,
                table,
                vnics: old.as_ref().map(|old| old.vnics.clone()).unwrap_or_default(),
                flood_slots: old.as_ref().map(|old| old.flood_slots.clone()).unwrap_or_default(),
                cell,
                topology_cell,
            };
            // Which VTEPs are heard goes by the VNI. One that comes has none yet.
            self.draft.vteps_stale |= old.as_ref().is_some_and(|old| old.vni != new.vni);
            // No decision remembers the VNI; the slots' headers are written anew.
            let same = |old: &Vpc| Vpc { vni: new.vni, ..old.clone() } == new;
            let changed = !old.as_deref().is_some_and(same);
            let subnets_changed = old.as_ref().is_some_and(|old| old.subnets() != new.subnets());
            let router_changed = old.as_ref().is_none_or(|old| old.router_mac != new.router_mac);
            if router_changed || old.is_some_and(|old| old.keep_vlan != new.keep_vlan) {
                rows.push(index);
            }
            self.draft.next.vpcs[index as usize] = Some(Arc::new(new));
            if subnets_changed {
                self.routed_otherwise(index);
            } else if router_changed {
                self.touch_related(index);
            } else if changed {
                self.draft.next.touch_vpc(index);
            }
        }
        let vnis = self.draft.next.vpcs.iter().flatten().map(|vpc| (u128::from(vpc.vni.get()), vpc.index));
        let vnis = FlatMap::new(vnis);
        if self.draft.next.vnis != vnis {
            self.draft.next.vnis = vnis;
        }
        rows
    }

    fn forget_vpc(&mut self, index: u32) {
        let of_vpc = self.draft.locations.range((index, LOWEST)..).take_while(|((of, _), _)| *of == index);
        let locations: Vec<IpAddr> = of_vpc.map(|(&(_, vip), _)| vip).collect();
        for vip in locations {
            self.drop_location(index, vip);
        }
        self.drop_stations(index);
        self.drop_vtep_slots(index, |_| true);
        self.draft.unplaced.remove(&index);
        // Before it goes: its index is another VPC's one day.
        self.touch_related(index);
        if let Some(vpc) = self.draft.next.vpcs[index as usize].take() {
            self.draft.free_cells.extend([vpc.cell, vpc.topology_cell]);
            // VTEPs of its peers were heard in it.
            self.draft.vteps_stale |= !vpc.routes().is_empty();
        }
    }

    /// Routes of VPCs, and the slots that they and flooding need. What other hosts take part has a slot where there is one left.
    pub(super) fn rebuild_routes(&mut self, config: &Config) -> Result<(), TopologyError> {
        config.vpcs.iter().try_for_each(|vpc| self.rebuild_vpc_routes(config, vpc))
    }

    /// As [`rebuild_routes`](Self::rebuild_routes), of one VPC.
    pub(super) fn rebuild_routes_of(&mut self, config: &Config, index: u32) -> Result<(), TopologyError> {
        let Some(known) = self.draft.next.vpc(index) else { return Ok(()) };
        match config.vpcs.iter().find(|vpc| vpc.vni == known.vni) {
            Some(vpc) => self.rebuild_vpc_routes(config, vpc),
            None => Ok(()),
        }
    }

    fn rebuild_vpc_routes(&mut self, config: &Config, vpc: &VpcConfig) -> Result<(), TopologyError> {
        let index = self.draft.vpc_index[vpc.name.as_str()];
        let mut used: HashSet<IpAddr> = HashSet::new();
        let mut routes = Vec::new();
        for route in &vpc.routes {
            let prefix = Prefix::new(route.to.addr(), route.to.prefix_len());
            let target = match &route.target {
                RouteTargetConfig::Peer { vpc } => RouteTarget::Peer(self.draft.vpc_index[vpc.as_str()]),
                RouteTargetConfig::Gateways(gateways) => {
                    used.extend(gateways.iter().map(|gateway| gateway.vtep));
                    let gateways = gateways.iter().map(|&GatewayConfig { vtep, mac }| {
                        Ok(Gateway { vtep, slot: self.vtep_slot(index, vtep, || path_of(vpc, route))?, mac })
                    });
                    RouteTarget::Gateways(gateways.collect::<Result<_, TopologyError>>()?)
                }
                RouteTargetConfig::Vnic { vnic } => {
                    RouteTarget::Station(self.station_of(vnic, || format!("{}.vnic", path_of(vpc, route)))?)
                }
                RouteTargetConfig::Station { mac } => RouteTarget::Station(*mac),
                RouteTargetConfig::Blackhole => RouteTarget::Blackhole,
            };
            routes.push((prefix, target));
        }
        // A slot of its own is what a VTEP is heard by where no location is behind it. One copy each, in however many lists it is.
        let mut vteps: BTreeSet<IpAddr> = vpc.vteps.iter().copied().collect();
        if vpc.flood {
            vteps.extend(config.uplinks.iter().flat_map(|uplink| uplink.peers.iter()));
            vteps.extend(self.vteps_of(index));
        }
        for &vtep in &vteps {
            let field = if vpc.vteps.contains(&vtep) { "vteps" } else { "flood" };
            self.vtep_slot(index, vtep, || format!("{}.{field}", path::of("vpc", &vpc.name)))?;
        }
        vteps.extend(self.place_members(index, vpc.vni));
        used.extend(&vteps);
        let flooded = vteps.iter().filter(|_| vpc.flood);
        let flood_slots: Vec<SlotRef> =
            flooded.filter_map(|&vtep| self.draft.vtep_slots.get(&(index, vtep)).copied()).collect();
        let Some(current) = self.draft.next.vpcs[index as usize].as_mut() else { return Ok(()) };
        let new_routes = current.routes() != routes;
        let new_list = current.flood_slots != flood_slots;
        if new_routes || new_list {
            let vpc = Arc::make_mut(current);
            vpc.flood_slots = flood_slots;
            if new_routes {
                vpc.set_routes(routes);
            }
        }
        if new_routes {
            // Those of a peer are heard here, too.
            self.draft.vteps_stale = true;
            self.routed_otherwise(index);
        } else if new_list {
            self.draft.next.touch_strangers(index);
        }
        self.drop_vtep_slots(index, |vtep| !used.contains(&vtep));
        Ok(())
    }

    /// The MAC address of a vNIC by its name.
    fn station_of(&self, vnic: &Name, path: impl FnOnce() -> String) -> Result<MacAddr, TopologyError> {
        let index = self.draft.vnic_index.get(vnic.as_str());
        let known = index.and_then(|&index| self.draft.next.vnic(index));
        known
            .map(|known| known.mac)
            .ok_or_else(|| TopologyError::UnknownVnic { vnic: vnic.to_string(), path: path() })
    }

    /// Gives up the slots of a VPC's VTEPs that are needed no more.
    fn drop_vtep_slots(&mut self, vpc: u32, is_unused: impl Fn(IpAddr) -> bool) {
        let of_vpc = self.draft.vtep_slots.range((vpc, LOWEST)..).take_while(|((of, _), _)| *of == vpc);
        let unused = of_vpc.filter(|((_, vtep), _)| is_unused(*vtep));
        let unused: Vec<_> = unused.map(|(&key, &slot)| (key, slot)).collect();
        for (key, slot) in unused {
            self.draft.vtep_slots.remove(&key);
            self.drop_slot(slot.slot);
        }
    }

    pub(super) fn vtep_slot(
        &mut self,
        vpc: u32,
        vtep: IpAddr,
        path: impl FnOnce() -> String,
    ) -> Result<SlotRef, TopologyError> {
        if let Some(&slot) = self.draft.vtep_slots.get(&(vpc, vtep)) {
            return Ok(slot);
        }
        let slot = self.allocate(Place::Empty, path)?;
        self.place_behind(slot.slot, Remote::new(vpc, vtep, false));
        self.draft.vtep_slots.insert((vpc, vtep), slot);
        Ok(slot)
    }
}

fn path_of(vpc: &VpcConfig, route: &VpcRoute) -> String {
    path::of("route", &route_id(vpc, route))
}

/// What the virtual router offers in a subnet.
fn services_of(subnet: &SubnetConfig) -> Services {
    let some = |there: bool, service| if there { service } else { Services::NONE };
    some(subnet.dhcp.is_some(), Services::DHCP).with(some(subnet.ra.is_some(), Services::ADVERTISEMENTS))
}
