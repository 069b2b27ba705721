//! Topology: from the config to the snapshot that workers read.
//!
//! Holds what must stay the same from snapshot to snapshot: indices of VPCs and vNICs, VLT slots, generation
//! cells. A change bumps the cells of the decisions it could change, and no others; a location that moves changes
//! its VLT slot in place and bumps nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use pipelines::ecn::EcnEncap;
use pipelines::flat::FlatMap;
use pipelines::snapshot::{
    Destination, DscpPolicy, Location, NO_PORT, PortIndex, PortRole, PortRow, Prefix, RouteTarget, Settings,
    Snapshot, Subnet, Uplink, Vnic, VnicRow, Vpc, ip_key,
};
use pipelines::stage::tunnel::{self, Ends, TemplateSpec};
use pipelines::vlt::{Place, SlotRef, Vlt, VltWriter};
use wire::{MacAddr, Vni};

use super::underlay::{self, Neighbours, NextHop};
use crate::config::{self, Config, InnerVlan, LocationConfig, VnicPort};

/// What the topology needs to know of the ports.
pub trait Ports {
    /// Index and MAC of the port with this name, when it is attached.
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)>;
    /// True when the port may deliver unfinished checksums.
    fn partial_checksums(&self, port: PortIndex) -> bool;
    /// Partner of a port in the `io` and `mac` modes.
    fn partner(&self, port: PortIndex) -> PortIndex;
    /// One more than the largest index in use.
    fn count(&self) -> usize;
    /// MAC of a port.
    fn mac(&self, port: PortIndex) -> MacAddr;
}

/// Why a topology cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The VLT has no free slot.
    #[error("the VLT is full ({0} entries); raise `[vlt] entries` and restart")]
    VltFull(usize),
    /// A location for a network that is not there.
    #[error("location {vip}: no VPC has VNI {vni}; add it with `vpc add` or choose another VNI")]
    UnknownVni {
        /// The location.
        vip: IpAddr,
        /// Its VNI.
        vni: Vni,
    },
    /// The address belongs to a vNIC of this host.
    #[error("{vip} in VNI {vni} is an address of vNIC {vnic} on this host; remove the vNIC first")]
    LocalVip {
        /// The address.
        vip: IpAddr,
        /// The network.
        vni: Vni,
        /// The vNIC.
        vnic: String,
    },
    /// The VTEP is this host.
    #[error("VTEP {0} is an address of this host's uplink; a location is on another host")]
    OwnVtep(IpAddr),
    /// The VTEP is no host address.
    #[error("VTEP {0} is not a unicast address")]
    NotUnicast(IpAddr),
    /// No uplink reaches the VTEP.
    #[error("no uplink has a route to VTEP {0}; add a gateway or a route to an `[[uplink]]`")]
    NoRoute(IpAddr),
}

/// A destination behind a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remote {
    vtep: IpAddr,
    vpc: u32,
}

/// The state behind the snapshots.
pub struct Topology {
    writer: VltWriter,
    current: Arc<Snapshot>,
    next: Snapshot,
    version: u32,
    vpc_index: HashMap<String, u32>,
    vnic_index: HashMap<String, u32>,
    vnic_slots: HashMap<u32, SlotRef>,
    /// Slots behind VTEPs, by slot.
    remotes: HashMap<u32, Remote>,
    /// Slots of VTEPs themselves (flooding, gateways), by VPC and VTEP.
    vtep_slots: HashMap<(u32, IpAddr), SlotRef>,
    /// Locations as configured.
    locations: BTreeMap<(u32, IpAddr), LocationConfig>,
    /// Freed by the change in progress; really freed after every worker left the old snapshot.
    to_free: Vec<u32>,
    /// Generation cells of what is gone, for what comes.
    free_cells: Vec<u32>,
    uplinks: Vec<config::UplinkConfig>,
    tunnel: (u16, u8),
    /// Next hops of slots.
    hops: HashMap<(u16, IpAddr), HashSet<u32>>,
}

impl Topology {
    /// An empty topology with a VLT of `entries` slots.
    pub fn new(entries: u32) -> Self {
        let (vlt, writer) = Vlt::new(entries);
        let empty = Snapshot::empty(vlt);
        Self {
            writer,
            current: Arc::new(empty.clone()),
            next: empty,
            version: 0,
            vpc_index: HashMap::new(),
            vnic_index: HashMap::new(),
            vnic_slots: HashMap::new(),
            remotes: HashMap::new(),
            vtep_slots: HashMap::new(),
            locations: BTreeMap::new(),
            to_free: Vec::new(),
            free_cells: Vec::new(),
            uplinks: Vec::new(),
            tunnel: (4789, 64),
            hops: HashMap::new(),
        }
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.current
    }

    /// Locations on other hosts, by VNI and address.
    pub fn locations(&self) -> impl Iterator<Item = &LocationConfig> {
        self.locations.values()
    }

    /// Slots of the VLT: used and in all.
    pub fn vlt_usage(&self) -> (usize, usize) {
        (self.writer.used(), self.writer.table().capacity())
    }

    /// Ends the change in progress: the snapshot to publish.
    pub fn commit(&mut self) -> Arc<Snapshot> {
        self.next.version = self.version;
        self.current = Arc::new(self.next.clone());
        self.current.clone()
    }

    /// Frees the slots that no worker's snapshot refers to any more. Call after every worker has the snapshot of
    /// the last [`commit`](Self::commit).
    pub fn release(&mut self) {
        for slot in std::mem::take(&mut self.to_free) {
            self.writer.free(slot);
        }
    }

    /// Rebuilds ports, uplinks, VPCs, vNICs and settings from a config (which was validated).
    ///
    /// # Errors
    /// [`TopologyError`]; the snapshot in force is as before, and the next rebuild starts anew.
    pub fn rebuild(
        &mut self,
        config: &Config,
        ports: &dyn Ports,
        neighbours: &mut Neighbours,
    ) -> Result<(), TopologyError> {
        self.version += 1;
        self.next.settings = settings(config);
        self.tunnel = (config.vxlan.udp_port, config.vxlan.ttl);
        self.uplinks.clone_from(&config.uplinks);
        self.rebuild_uplinks(config, ports, neighbours);
        self.rebuild_vpcs(config)?;
        self.rebuild_vnics(config, ports)?;
        self.rebuild_ports(config, ports);
        self.rebuild_locations(config, neighbours)?;
        self.rebuild_routes(config, neighbours)?;
        self.rebuild_vteps(config);
        let slots: Vec<u32> = self.remotes.keys().copied().collect();
        self.hops.clear();
        for slot in slots {
            self.refresh(slot, neighbours);
        }
        let hops = &self.hops;
        let wanted = |uplink: u16, address: IpAddr| hops.contains_key(&(uplink, address));
        let fixed = |uplink: u16, address: IpAddr| {
            config
                .uplinks
                .get(usize::from(uplink))
                .is_some_and(|up| up.neighbours.iter().any(|n| n.ip == address))
        };
        neighbours.retain(|uplink, address| wanted(uplink, address) || fixed(uplink, address));
        Ok(())
    }

    fn rebuild_uplinks(&mut self, config: &Config, ports: &dyn Ports, neighbours: &mut Neighbours) {
        self.next.uplinks.clear();
        for (index, uplink) in config.uplinks.iter().enumerate() {
            let (port, own) = ports.find(&uplink.name).unwrap_or((NO_PORT, MacAddr::ZERO));
            let mac = uplink.mac.unwrap_or(own);
            let mut v6: Vec<Ipv6Addr> = vec![link_local(mac)];
            let mut v4 = Vec::new();
            for net in &uplink.addresses {
                match net.addr() {
                    IpAddr::V4(address) => v4.push(address),
                    IpAddr::V6(address) => v6.push(address),
                }
            }
            for neighbour in &uplink.neighbours {
                neighbours.set_static(index as u16, neighbour.ip, neighbour.mac);
            }
            self.next.uplinks.push(Arc::new(Uplink {
                name: uplink.name.to_string(),
                port,
                mac: mac.to_u64(),
                v4,
                v6,
                mtu: uplink.mtu,
                vlan: uplink.vlan,
                udp6_zero_checksum: uplink.udp6_zero_checksum,
                punt: ports.find(&punt_name(&uplink.name)).map_or(NO_PORT, |(port, _)| port),
                punt_mtu: punt_mtu(uplink.mtu),
            }));
        }
    }

    fn rebuild_vpcs(&mut self, config: &Config) -> Result<(), TopologyError> {
        let wanted: HashSet<&str> = config.vpcs.iter().map(|vpc| vpc.name.as_str()).collect();
        let gone: Vec<String> =
            self.vpc_index.keys().filter(|name| !wanted.contains(name.as_str())).cloned().collect();
        for name in gone {
            if let Some(index) = self.vpc_index.remove(&name) {
                self.forget_vpc(index);
            }
        }
        for vpc in &config.vpcs {
            if !self.vpc_index.contains_key(vpc.name.as_str()) {
                let index = free_index(&self.vpc_index);
                self.vpc_index.insert(vpc.name.to_string(), index);
                put(&mut self.next.vpcs, index, None);
            }
        }
        for vpc in &config.vpcs {
            let index = self.vpc_index[vpc.name.as_str()];
            let old = self.next.vpcs[index as usize].clone();
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
            let changed = old.as_deref() != Some(&new);
            self.next.vpcs[index as usize] = Some(Arc::new(new));
            if changed {
                self.bump_policy(index);
            }
        }
        let vnis = self.next.vpcs.iter().flatten().map(|vpc| (u128::from(vpc.vni.get()), vpc.index));
        self.next.vnis = FlatMap::new(vnis);
        Ok(())
    }

    fn forget_vpc(&mut self, index: u32) {
        let locations: Vec<IpAddr> =
            self.locations.keys().filter(|(vpc, _)| *vpc == index).map(|&(_, vip)| vip).collect();
        for vip in locations {
            self.drop_location(index, vip);
        }
        let vteps: Vec<_> = self.vtep_slots.keys().filter(|(vpc, _)| *vpc == index).copied().collect();
        for key in vteps {
            if let Some(slot) = self.vtep_slots.remove(&key) {
                self.drop_slot(slot.slot);
            }
        }
        self.bump_policy(index);
        if let Some(vpc) = self.next.vpcs[index as usize].take() {
            self.free_cells.extend([vpc.cell, vpc.topology_cell]);
        }
    }

    fn rebuild_vnics(&mut self, config: &Config, ports: &dyn Ports) -> Result<(), TopologyError> {
        let wanted: HashMap<&str, &config::VnicConfig> =
            config.vnics.iter().map(|vnic| (vnic.name.as_str(), vnic)).collect();
        let gone: Vec<String> =
            self.vnic_index.keys().filter(|name| !wanted.contains_key(name.as_str())).cloned().collect();
        for name in gone {
            if let Some(index) = self.vnic_index.remove(&name) {
                self.forget_vnic(index);
            }
        }
        for vnic in &config.vnics {
            let vpc = self.vpc_index[vnic.vpc.as_str()];
            let index = match self.vnic_index.get(vnic.name.as_str()) {
                Some(&index) => index,
                None => {
                    let index = free_index(&self.vnic_index);
                    put(&mut self.next.vnics, index, None);
                    self.vnic_index.insert(vnic.name.to_string(), index);
                    index
                }
            };
            let old = self.next.vnics[index as usize].clone();
            let port_name = match &vnic.port {
                VnicPort::Trunk(trunk) => trunk.as_str(),
                VnicPort::Own(_) => vnic.name.as_str(),
            };
            let cell = match &old {
                Some(old) => old.cell,
                None => self.new_cell(),
            };
            let new = Vnic {
                name: vnic.name.to_string(),
                index,
                vpc,
                mac: vnic.mac,
                vips: vnic.vips.clone(),
                mtu: vnic.mtu,
                port: ports.find(port_name).map_or(NO_PORT, |(port, _)| port),
                vlan: vnic.vlan,
                cell,
            };
            if old.as_deref() == Some(&new) {
                continue;
            }
            if let Some(old) = &old {
                self.unplace_vnic(old);
            }
            self.place_vnic(&new, old.is_some())?;
            self.bump(cell);
            self.next.vnics[index as usize] = Some(Arc::new(new));
        }
        self.rebuild_rows();
        Ok(())
    }

    /// Enters a vNIC's addresses as locations of this host.
    fn place_vnic(&mut self, vnic: &Vnic, keep_slot: bool) -> Result<(), TopologyError> {
        let place = Place::Local { vnic: vnic.index };
        let slot = match self.vnic_slots.get(&vnic.index) {
            Some(&slot) if keep_slot => slot,
            _ => self.allocate(place)?,
        };
        self.vnic_slots.insert(vnic.index, slot);
        let location = Location { slot, mac: vnic.mac };
        for &vip in &vnic.vips {
            // A VM that moved here: what was a remote location is ours now.
            if self.locations.contains_key(&(vnic.vpc, vip)) {
                self.drop_location(vnic.vpc, vip);
            }
            self.next.locations.insert((vnic.vpc, Destination::Ip(vip)), location);
        }
        self.next.locations.insert((vnic.vpc, Destination::Mac(vnic.mac)), location);
        self.bump_topology(vnic.vpc);
        Ok(())
    }

    fn unplace_vnic(&mut self, vnic: &Vnic) {
        let slot = self.vnic_slots.get(&vnic.index).copied();
        let keys = vnic.vips.iter().map(|&vip| Destination::Ip(vip)).chain([Destination::Mac(vnic.mac)]);
        for key in keys {
            let ours = self.next.locations.get(&(vnic.vpc, key)).map(|location| location.slot) == slot;
            if ours {
                self.next.locations.remove(&(vnic.vpc, key));
            }
        }
        // Addresses went away while the slot stays: decisions about them must not outlive them.
        self.bump_policy(vnic.vpc);
    }

    fn forget_vnic(&mut self, index: u32) {
        if let Some(vnic) = self.next.vnics[index as usize].take() {
            self.unplace_vnic(&vnic);
            self.bump(vnic.cell);
            self.free_cells.push(vnic.cell);
        }
        if let Some(slot) = self.vnic_slots.remove(&index) {
            self.drop_slot(slot.slot);
        }
    }

    fn rebuild_rows(&mut self) {
        let mut members: HashMap<u32, Vec<u32>> = HashMap::new();
        let rows = self.next.vnics.iter().map(|vnic| match vnic {
            Some(vnic) => {
                members.entry(vnic.vpc).or_default().push(vnic.index);
                row(vnic, self.next.vpcs[vnic.vpc as usize].as_deref())
            }
            None => VnicRow::FREE,
        });
        self.next.vnic_rows = rows.collect();
        for vpc in self.next.vpcs.iter_mut().flatten() {
            let vnics = members.remove(&vpc.index).unwrap_or_default();
            if vpc.vnics != vnics {
                Arc::make_mut(vpc).vnics = vnics;
            }
        }
    }

    fn rebuild_ports(&mut self, config: &Config, ports: &dyn Ports) {
        let mut rows = vec![PortRow { partner: NO_PORT, ..PortRow::default() }; ports.count()];
        for (index, row) in rows.iter_mut().enumerate() {
            let port = index as PortIndex;
            row.partial_checksums = ports.partial_checksums(port);
            row.partner = ports.partner(port);
            row.mac = ports.mac(port);
        }
        let mut assign = |name: &str, role: PortRole| {
            if let Some((port, _)) = ports.find(name)
                && let Some(row) = rows.get_mut(usize::from(port))
            {
                row.role = role;
            }
        };
        for (index, uplink) in config.uplinks.iter().enumerate() {
            assign(&uplink.name, PortRole::Uplink(index as u16));
            assign(&punt_name(&uplink.name), PortRole::Punt(index as u16));
        }
        self.next.trunks.clear();
        for (index, trunk) in config.trunks.iter().enumerate() {
            assign(&trunk.name, PortRole::Trunk(index as u32));
            let vlans =
                config.vnics.iter().filter(|v| v.port == VnicPort::Trunk(trunk.name.clone())).filter_map(
                    |vnic| Some((u128::from(vnic.vlan?), *self.vnic_index.get(vnic.name.as_str())?)),
                );
            self.next.trunks.push(Arc::new(FlatMap::new(vlans)));
        }
        for vnic in &config.vnics {
            if let (VnicPort::Own(_), Some(&index)) = (&vnic.port, self.vnic_index.get(vnic.name.as_str())) {
                assign(&vnic.name, PortRole::Vnic(index));
            }
        }
        self.next.ports = rows;
    }

    fn rebuild_locations(
        &mut self,
        config: &Config,
        neighbours: &mut Neighbours,
    ) -> Result<(), TopologyError> {
        let mut wanted: BTreeMap<(u32, IpAddr), &LocationConfig> = BTreeMap::new();
        for location in &config.locations {
            wanted.insert((self.vpc_of(location)?, location.vip), location);
        }
        let gone: Vec<_> = self.locations.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        for (vpc, vip) in gone {
            self.drop_location(vpc, vip);
        }
        for (key, location) in wanted {
            if self.locations.get(&key) != Some(location) {
                self.put_location(location, neighbours)?;
            }
        }
        Ok(())
    }

    /// Routes of VPCs, and the slots that they and flooding need.
    fn rebuild_routes(&mut self, config: &Config, neighbours: &mut Neighbours) -> Result<(), TopologyError> {
        let mut used: HashSet<(u32, IpAddr)> = HashSet::new();
        for vpc in &config.vpcs {
            let index = self.vpc_index[vpc.name.as_str()];
            let mut routes = Vec::new();
            for route in &vpc.routes {
                let prefix = Prefix::new(route.to.addr(), route.to.prefix_len());
                let target = match &route.target {
                    config::RouteTarget::Peer { vpc } => RouteTarget::Peer(self.vpc_index[vpc.as_str()]),
                    config::RouteTarget::Gateway { vtep, mac } => {
                        used.insert((index, *vtep));
                        let slot = self.vtep_slot(index, *vtep, neighbours)?;
                        RouteTarget::Gateway { slot, mac: *mac }
                    }
                };
                routes.push((prefix, target));
            }
            routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
            let mut flood_slots = Vec::new();
            if vpc.flood {
                let of_vpc = self.locations.range((index, IpAddr::from([0, 0, 0, 0]))..);
                let vteps: HashSet<IpAddr> = of_vpc
                    .take_while(|((vpc, _), _)| *vpc == index)
                    .map(|(_, location)| location.vtep)
                    .chain(config.uplinks.iter().flat_map(|uplink| uplink.peers.iter().copied()))
                    .collect();
                let mut vteps: Vec<_> = vteps.into_iter().collect();
                vteps.sort();
                for vtep in vteps {
                    used.insert((index, vtep));
                    flood_slots.push(self.vtep_slot(index, vtep, neighbours)?);
                }
            }
            let Some(current) = self.next.vpcs[index as usize].as_mut() else { continue };
            let new_routes = current.routes != routes;
            if new_routes || current.flood_slots != flood_slots {
                let vpc = Arc::make_mut(current);
                (vpc.routes, vpc.flood_slots) = (routes, flood_slots);
            }
            if new_routes {
                self.bump_policy(index);
            }
        }
        let unused: Vec<_> = self.vtep_slots.keys().filter(|key| !used.contains(key)).copied().collect();
        for key in unused {
            if let Some(slot) = self.vtep_slots.remove(&key) {
                self.drop_slot(slot.slot);
            }
        }
        Ok(())
    }

    fn vtep_slot(
        &mut self,
        vpc: u32,
        vtep: IpAddr,
        neighbours: &mut Neighbours,
    ) -> Result<SlotRef, TopologyError> {
        if let Some(&slot) = self.vtep_slots.get(&(vpc, vtep)) {
            return Ok(slot);
        }
        let slot = self.allocate(Place::Empty)?;
        self.remotes.insert(slot.slot, Remote { vtep, vpc });
        self.refresh(slot.slot, neighbours);
        self.vtep_slots.insert((vpc, vtep), slot);
        Ok(slot)
    }

    fn rebuild_vteps(&mut self, config: &Config) {
        let peers = config.uplinks.iter().flat_map(|uplink| uplink.peers.iter().copied());
        let remotes = self.remotes.values().map(|remote| remote.vtep);
        self.next.vteps = FlatMap::new(peers.chain(remotes).map(|vtep| (ip_key(vtep), 1)));
    }

    /// Adds, changes or moves one location, ready to [`commit`](Self::commit).
    ///
    /// # Errors
    /// [`TopologyError`], with nothing changed.
    pub fn set_location(
        &mut self,
        config: &Config,
        location: &LocationConfig,
        neighbours: &mut Neighbours,
    ) -> Result<(), TopologyError> {
        self.version += 1;
        self.put_location(location, neighbours)?;
        self.rebuild_routes(config, neighbours)?;
        self.rebuild_vteps(config);
        Ok(())
    }

    /// Removes a location. False when there is none.
    pub fn remove_location(
        &mut self,
        config: &Config,
        vni: Vni,
        vip: IpAddr,
        neighbours: &mut Neighbours,
    ) -> Result<bool, TopologyError> {
        let Some(vpc) = self.next.vnis.get(u128::from(vni.get())) else { return Ok(false) };
        if !self.locations.contains_key(&(vpc, vip)) {
            return Ok(false);
        }
        self.version += 1;
        self.drop_location(vpc, vip);
        self.rebuild_routes(config, neighbours)?;
        self.rebuild_vteps(config);
        Ok(true)
    }

    fn vpc_of(&self, location: &LocationConfig) -> Result<u32, TopologyError> {
        let unknown = TopologyError::UnknownVni { vip: location.vip, vni: location.vni };
        self.next.vnis.get(u128::from(location.vni.get())).ok_or(unknown)
    }

    fn put_location(
        &mut self,
        location: &LocationConfig,
        neighbours: &mut Neighbours,
    ) -> Result<(), TopologyError> {
        let vpc = self.vpc_of(location)?;
        self.check_vtep(location.vtep)?;
        let key = (vpc, Destination::Ip(location.vip));
        let existing = self.next.locations.get(&key).copied();
        if let Some(found) = existing
            && let Place::Local { vnic } = self.writer.table().read(found.slot.slot).place
        {
            let vnic = self.next.vnic(vnic).map(|vnic| vnic.name.clone()).unwrap_or_default();
            return Err(TopologyError::LocalVip { vip: location.vip, vni: location.vni, vnic });
        }
        let remote = Remote { vtep: location.vtep, vpc };
        let slot = match existing {
            Some(found) => found.slot,
            None => self.allocate(Place::Empty)?,
        };
        self.unhop(slot.slot);
        self.remotes.insert(slot.slot, remote);
        self.refresh(slot.slot, neighbours);
        let entry = Location { slot, mac: location.mac };
        match existing {
            // Moved: the slot was changed in place, flows follow on their next packet.
            Some(found) if found.mac == location.mac => {}
            Some(found) => {
                self.drop_mac(vpc, found);
                self.bump_policy(vpc);
            }
            None => self.bump_topology(vpc),
        }
        self.next.locations.insert(key, entry);
        self.next.locations.insert((vpc, Destination::Mac(location.mac)), entry);
        self.locations.insert((vpc, location.vip), location.clone());
        Ok(())
    }

    fn drop_location(&mut self, vpc: u32, vip: IpAddr) {
        self.locations.remove(&(vpc, vip));
        if let Some(found) = self.next.locations.remove(&(vpc, Destination::Ip(vip))) {
            self.drop_mac(vpc, found);
            self.drop_slot(found.slot.slot);
        }
    }

    /// Takes a location's MAC out, or gives it to another location of the VPC that has the same one.
    fn drop_mac(&mut self, vpc: u32, gone: Location) {
        let key = (vpc, Destination::Mac(gone.mac));
        if self.next.locations.get(&key).map(|location| location.slot) != Some(gone.slot) {
            return;
        }
        let same = self.locations.iter().find(|((v, _), other)| *v == vpc && other.mac == gone.mac);
        let other = same.and_then(|((_, vip), _)| self.next.locations.get(&(vpc, Destination::Ip(*vip))));
        match other.copied().filter(|other| other.slot != gone.slot) {
            Some(other) => {
                self.next.locations.insert(key, other);
            }
            None => {
                self.next.locations.remove(&key);
            }
        }
    }

    fn check_vtep(&self, vtep: IpAddr) -> Result<(), TopologyError> {
        if vtep.is_multicast() || vtep.is_unspecified() || vtep.is_loopback() {
            return Err(TopologyError::NotUnicast(vtep));
        }
        if self.uplinks.iter().any(|uplink| uplink.addresses.iter().any(|net| net.addr() == vtep)) {
            return Err(TopologyError::OwnVtep(vtep));
        }
        underlay::route(&self.uplinks, vtep).map(|_| ()).ok_or(TopologyError::NoRoute(vtep))
    }

    fn allocate(&mut self, place: Place) -> Result<SlotRef, TopologyError> {
        let full = TopologyError::VltFull(self.writer.table().capacity());
        self.writer.allocate(place).ok_or(full)
    }

    /// Gives a slot up; it is freed by [`release`](Self::release).
    fn drop_slot(&mut self, slot: u32) {
        self.unhop(slot);
        self.remotes.remove(&slot);
        self.to_free.push(slot);
    }

    fn unhop(&mut self, slot: u32) {
        for slots in self.hops.values_mut() {
            slots.remove(&slot);
        }
    }

    /// Writes the present way to a slot's VTEP into it.
    fn refresh(&mut self, slot: u32, neighbours: &mut Neighbours) {
        let Some(&remote) = self.remotes.get(&slot) else { return };
        let place = match underlay::route(&self.uplinks, remote.vtep) {
            Some(hop) => {
                self.hops.entry((hop.uplink, hop.address)).or_default().insert(slot);
                self.place(hop, remote, neighbours)
            }
            None => Place::Empty,
        };
        if self.writer.table().read(slot).place != place {
            self.writer.update(slot, place);
        }
    }

    fn place(&self, hop: NextHop, remote: Remote, neighbours: &mut Neighbours) -> Place {
        let unresolved = Place::Unresolved { uplink: hop.uplink };
        let Some(next_hop) = neighbours.want(hop) else { return unresolved };
        let Some(ends) = Ends::new(hop.source, remote.vtep) else { return unresolved };
        let Some(uplink) = self.next.uplinks.get(usize::from(hop.uplink)) else { return unresolved };
        let Some(vpc) = self.next.vpc(remote.vpc) else { return Place::Empty };
        let [_, _, a, b, c, d, e, f] = uplink.mac.to_be_bytes();
        Place::Remote(tunnel::template(&TemplateSpec {
            uplink: hop.uplink,
            src_mac: MacAddr([a, b, c, d, e, f]),
            next_hop,
            vlan: uplink.vlan,
            ends,
            ttl: self.tunnel.1,
            udp_port: self.tunnel.0,
            vni: vpc.vni,
        }))
    }

    /// Takes in that a next hop has a new MAC, or none any more: changes slots in place.
    pub fn next_hop_changed(&mut self, uplink: u16, address: IpAddr, neighbours: &mut Neighbours) {
        let slots: Vec<u32> = self.hops.get(&(uplink, address)).into_iter().flatten().copied().collect();
        for slot in slots {
            self.refresh(slot, neighbours);
        }
    }

    fn new_cell(&mut self) -> u32 {
        if let Some(cell) = self.free_cells.pop() {
            self.bump(cell);
            return cell;
        }
        self.next.cells.push(self.version);
        (self.next.cells.len() - 1) as u32
    }

    fn bump(&mut self, cell: u32) {
        self.next.cells[cell as usize] = self.version;
    }

    /// Decisions that a new location in the VPC could change, in it and in those that route to it.
    fn bump_topology(&mut self, vpc: u32) {
        let cells: Vec<u32> = self.related(vpc).map(|vpc| vpc.topology_cell).collect();
        cells.into_iter().for_each(|cell| self.bump(cell));
    }

    /// Every decision in the VPC and in those that route to it.
    fn bump_policy(&mut self, vpc: u32) {
        let related: Vec<(u32, u32, u32)> =
            self.related(vpc).map(|vpc| (vpc.index, vpc.cell, vpc.topology_cell)).collect();
        for (index, cell, topology_cell) in related {
            self.bump(cell);
            self.bump(topology_cell);
            let cells: Vec<u32> = self
                .next
                .vnics
                .iter()
                .flatten()
                .filter(|vnic| vnic.vpc == index)
                .map(|vnic| vnic.cell)
                .collect();
            cells.into_iter().for_each(|cell| self.bump(cell));
        }
    }

    fn related(&self, vpc: u32) -> impl Iterator<Item = &Vpc> {
        let peers = move |other: &&Vpc| {
            other.index == vpc || other.routes.iter().any(|(_, target)| *target == RouteTarget::Peer(vpc))
        };
        self.next.vpcs.iter().flatten().map(Arc::as_ref).filter(peers)
    }
}

/// Name of the port that takes an uplink's non-VTEP traffic.
pub fn punt_name(uplink: &str) -> String {
    format!("{uplink}:punt")
}

/// Largest IP packet of an uplink's punt port: the tap driver of DPDK 22.11 takes no more than Ethernet's usual one. TCP
/// learns of it by the host's segment size.
pub fn punt_mtu(uplink: u16) -> u16 {
    uplink.min(1500)
}

fn link_local(mac: MacAddr) -> Ipv6Addr {
    let m = mac.0;
    let [a, b, c, d] = [
        u16::from_be_bytes([m[0] ^ 2, m[1]]),
        u16::from_be_bytes([m[2], 0xff]),
        u16::from_be_bytes([0xfe, m[3]]),
        u16::from_be_bytes([m[4], m[5]]),
    ];
    Ipv6Addr::new(0xfe80, 0, 0, 0, a, b, c, d)
}

/// The lowest index that is not taken.
fn free_index(indices: &HashMap<String, u32>) -> u32 {
    let taken: HashSet<u32> = indices.values().copied().collect();
    (0..).find(|index| !taken.contains(index)).unwrap_or_default()
}

fn put<T: Clone>(rows: &mut Vec<Option<T>>, index: u32, value: Option<T>) {
    if rows.len() <= index as usize {
        rows.resize(index as usize + 1, None);
    }
    rows[index as usize] = value;
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
    }
}

fn settings(config: &Config) -> Settings {
    Settings {
        vxlan_port: config.vxlan.udp_port,
        rdma_port: config.rdma.udp_port,
        vxlan_strict: config.vxlan.reserved == config::ReservedBits::Strict,
        ecn_encap: match config.vxlan.ecn_encap {
            config::EcnEncap::Rfc6040 => EcnEncap::Rfc6040,
            config::EcnEncap::Rfc3168 => EcnEncap::Rfc3168,
            config::EcnEncap::Rfc6040Compat => EcnEncap::Rfc6040Compat,
        },
        dscp: match config.vxlan.dscp {
            config::DscpPolicy::Copy => DscpPolicy::Copy,
            config::DscpPolicy::Fixed(dscp) => DscpPolicy::Fixed(dscp.get()),
        },
        miss_budget: u32::from(config.nft.miss_budget),
        miss_rate: config.nft.miss_rate,
    }
}
