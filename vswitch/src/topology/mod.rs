//! Topology: from the config to the snapshot that workers read.
//!
//! Holds what must stay the same from snapshot to snapshot: indices of VPCs and vNICs, VLT slots, generation
//! cells. A change bumps the cells of the decisions it could change, and no others; a location that moves changes
//! its VLT slot in place and bumps nothing. A change that fails leaves everything as it was: it is drafted whole
//! before the first slot is written.
//!
//! Workers adopt a snapshot one after another, so for a while two are in use. Two rules keep them apart. An index (of a
//! VPC, a vNIC, an uplink, a slot) that the snapshot in force uses is given to nobody else by the next one. And nothing
//! that workers read beside the snapshot (slots in use, the neighbours behind them) is written before every worker has
//! the snapshot that goes with it: [`Topology::settle`] does so, after the publishing.
//!
//! This file has the order of a change; each kind of thing in it has its own.

mod bfd;
mod cells;
mod error;
mod floating;
mod following;
mod link_local;
mod locations;
pub mod paths;
mod ports;
mod security;
mod settings;
mod slots;
pub mod stations;
pub mod underlay;
mod uplinks;
mod vnics;
mod vpcs;
mod ways;
mod yielding;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use pipelines::event::Binding;
use pipelines::snapshot::{PortIndex, Snapshot, Vnic};
use pipelines::vlt::{SlotRef, Vlt, VltWriter};
use wire::{MacAddr, Vni};

pub use error::TopologyError;
pub use ports::Ports;
use security::SecurityDraft;
use slots::{Behind, Remote};
pub use uplinks::{punt_mtu, punt_name, punting_uplink};
pub use vpcs::{flood_notes, peering_notes, route_notes};
pub use yielding::give_way;

use crate::config::{self, Config, Difference, LocationConfig, Relocation, VpcConfig};
use underlay::Neighbours;
use ways::Ways;

/// The next snapshot, which the one in force is until it is first changed: only then is it copied. A change that fails, and a
/// look at what was before, cost no copy.
#[derive(Clone)]
struct NextSnapshot(Arc<Snapshot>);

impl Deref for NextSnapshot {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

impl DerefMut for NextSnapshot {
    fn deref_mut(&mut self) -> &mut Snapshot {
        Arc::make_mut(&mut self.0)
    }
}

/// The state behind the next snapshot. A change works on it and puts the one of before back when it fails: what else may be
/// large is in persistent maps, of which a copy shares everything that did not change.
#[derive(Clone)]
struct Draft {
    next: NextSnapshot,
    vpc_index: HashMap<String, u32>,
    vnic_index: OrdMap<String, u32>,
    /// Indices of vNICs that are gone, whose traces elsewhere have not been cleared yet.
    held: BTreeSet<u32>,
    vnic_slots: OrdMap<u32, SlotRef>,
    /// Link-local addresses that vNICs asked for, oldest first.
    learned: OrdMap<u32, Vec<Ipv6Addr>>,
    /// Floating addresses that vNICs have, oldest first.
    floating: OrdMap<u32, Vec<Binding>>,
    /// Slots behind VTEPs, by slot.
    remotes: OrdMap<u32, Remote>,
    /// How many slots lead to a VTEP, by VPC and VTEP; none is zero.
    behind: OrdMap<(u32, IpAddr), Behind>,
    /// VTEPs came or went since it was last told which are heard.
    vteps_stale: bool,
    /// Slots of VTEPs themselves (flooding, gateways), by VPC and VTEP.
    vtep_slots: OrdMap<(u32, IpAddr), SlotRef>,
    /// Locations as configured.
    locations: OrdMap<(u32, IpAddr), LocationConfig>,
    /// Addresses of the locations that have a MAC address.
    macs: OrdSet<(u32, MacAddr, IpAddr)>,
    /// Stations that are known by their MAC addresses alone.
    stations: OrdMap<(u32, MacAddr), stations::Station>,
    /// Given up; really freed after every worker left the old snapshot.
    to_free: Vec<u32>,
    /// Slots whose way must be written anew.
    stale: Vec<u32>,
    /// Generation cells of what is gone, for what comes.
    free_cells: Vec<u32>,
    uplink_index: HashMap<String, u32>,
    /// In the order of the config, with their indices.
    uplinks: Vec<(u16, config::UplinkConfig)>,
    /// Names of the trunks that the snapshot has, in its order.
    trunks: Vec<config::Name>,
    tunnel: (u16, u8),
    /// Numbers of the VTEPs that are known, by address. A number is never given to another address.
    vteps: OrdMap<IpAddr, u32>,
    last_vtep: u32,
    /// VTEPs that the config lists.
    listed: BTreeSet<IpAddr>,
    /// VTEPs that take part in networks, as other hosts say.
    followed: OrdMap<Vni, BTreeSet<IpAddr>>,
    /// Those of them for which the VLT had no slot, by VPC; no set is empty.
    unplaced: OrdMap<u32, BTreeSet<IpAddr>>,
    /// Security groups.
    security: SecurityDraft,
}

/// How much of a config a change has to look at.
pub enum Extent<'d> {
    /// All of it.
    Everything,
    /// All but the locations: those there are stay while their VPC does, but for these, which come and go. For when ports came or went, and for
    /// changes for which [`keeps_locations`] holds.
    AllButLocations(&'d Relocation),
    /// As that with the locations to which vNICs move, and what the change does not concern is left alone, too. The ports are those of before, and some that came or
    /// went with it.
    Part(&'d Difference<'d>),
}

impl<'d> Extent<'d> {
    /// That of a change for which [`keeps_locations`] holds.
    pub fn of(difference: &'d Difference<'d>) -> Self {
        if difference.is_whole {
            Self::AllButLocations(&difference.relocation)
        } else {
            Self::Part(difference)
        }
    }
}

/// The state behind the snapshots.
pub struct Topology {
    writer: VltWriter,
    current: Arc<Snapshot>,
    draft: Draft,
    /// Snapshots committed so far.
    version: u32,
    /// Slots taken by the change in progress, which no worker has seen.
    fresh: Vec<u32>,
    /// Snapshots before the one in force that some worker may still have.
    unsettled: Vec<Arc<Snapshot>>,
    /// The uplinks whose neighbours are in the table, until the change in progress is settled.
    settled_uplinks: Vec<(u16, config::UplinkConfig)>,
    /// What slots behind VTEPs lead by.
    ways: Ways,
    /// Slots for which there was no next-hop group left.
    starved: Vec<u32>,
}

impl Topology {
    /// An empty topology with a VLT of `entries` slots.
    pub fn new(entries: u32) -> Self {
        let (vlt, writer) = Vlt::new(entries);
        let empty = Snapshot::empty(vlt);
        let draft = Draft {
            next: NextSnapshot(Arc::new(empty)),
            vpc_index: HashMap::new(),
            vnic_index: OrdMap::new(),
            held: BTreeSet::new(),
            vnic_slots: OrdMap::new(),
            learned: OrdMap::new(),
            floating: OrdMap::new(),
            remotes: OrdMap::new(),
            behind: OrdMap::new(),
            vteps_stale: false,
            vtep_slots: OrdMap::new(),
            locations: OrdMap::new(),
            macs: OrdSet::new(),
            stations: OrdMap::new(),
            to_free: Vec::new(),
            stale: Vec::new(),
            free_cells: Vec::new(),
            uplink_index: HashMap::new(),
            uplinks: Vec::new(),
            trunks: Vec::new(),
            tunnel: (4789, 64),
            vteps: OrdMap::new(),
            last_vtep: 0,
            listed: BTreeSet::new(),
            followed: OrdMap::new(),
            unplaced: OrdMap::new(),
            security: SecurityDraft::default(),
        };
        Self {
            writer,
            current: draft.next.0.clone(),
            draft,
            version: 0,
            fresh: Vec::new(),
            unsettled: Vec::new(),
            settled_uplinks: Vec::new(),
            ways: Ways::default(),
            starved: Vec::new(),
        }
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.current
    }

    /// Locations on other hosts, by VNI and address.
    pub fn locations(&self) -> impl Iterator<Item = &LocationConfig> {
        self.draft.locations.values()
    }

    /// Those of a VPC.
    pub fn locations_of(&self, vni: Vni) -> impl Iterator<Item = &LocationConfig> {
        let vpc = self.draft.next.vnis.get(u128::from(vni.get()));
        let from = vpc.map(|vpc| self.draft.locations.range((vpc, slots::LOWEST)..));
        let of_vpc = from.into_iter().flatten().take_while(move |((of, _), _)| Some(*of) == vpc);
        of_vpc.map(|(_, location)| location)
    }

    /// As [`locations`](Self::locations), by VPC and address, to keep: a copy shares everything.
    pub fn all_locations(&self) -> OrdMap<(u32, IpAddr), LocationConfig> {
        self.draft.locations.clone()
    }

    /// A vNIC of the snapshot in force by name.
    pub fn vnic(&self, name: &str) -> Option<&Vnic> {
        self.draft.vnic_index.get(name).and_then(|&index| self.current.vnic(index))
    }

    /// The location on another host of an address.
    pub fn location(&self, vni: Vni, vip: IpAddr) -> Option<&LocationConfig> {
        let vpc = self.draft.next.vnis.get(u128::from(vni.get()))?;
        self.draft.locations.get(&(vpc, vip))
    }

    /// Slots of the VLT: used and in all.
    pub fn vlt_usage(&self) -> (usize, usize) {
        (self.writer.used(), self.writer.table().capacity())
    }

    /// Slots of the VLT that are free.
    pub fn vlt_room(&self) -> usize {
        let (used, entries) = self.vlt_usage();
        entries - used
    }

    /// Ends the change in progress: the snapshot to publish.
    pub fn commit(&mut self) -> Arc<Snapshot> {
        self.fresh.clear();
        self.version = self.version.wrapping_add(1);
        self.draft.next.version = self.version;
        self.unsettled.push(std::mem::replace(&mut self.current, self.draft.next.0.clone()));
        self.current.clone()
    }

    /// The snapshots that workers may have: the one in force, and others until a change is [settled](Self::settle).
    fn in_use(&self) -> impl Iterator<Item = &Snapshot> {
        std::iter::once(&self.current).chain(&self.unsettled).map(Arc::as_ref)
    }

    /// The snapshot that every worker had last: an older one than that in force until a change is [settled](Self::settle).
    pub fn settled(&self) -> &Arc<Snapshot> {
        self.unsettled.first().unwrap_or(&self.current)
    }

    /// True while not every worker is known to have the snapshot in force.
    pub fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// True while a worker may have a snapshot that leads to a port. No other port gets its index.
    pub fn uses_port(&self, port: PortIndex) -> bool {
        self.in_use().any(|snapshot| snapshot.uses_port(port))
    }

    /// The ways to a VTEP, if an uplink has one.
    pub fn paths(&self, vtep: IpAddr) -> Option<paths::TunnelPaths> {
        paths::paths(&self.draft.uplinks, vtep)
    }

    /// Ends a change that every worker has, in the snapshot of the last [`commit`](Self::commit), and none an older one:
    /// writes the slots whose way changed, makes the neighbours those of the uplinks, and frees what was given up.
    pub fn settle(&mut self, neighbours: &mut Neighbours) {
        if let Some(before) = self.unsettled.first() {
            uplinks::doubt_neighbours(&before.uplinks, &self.current.uplinks, neighbours);
        }
        if self.settled_uplinks != self.draft.uplinks {
            uplinks::renew_neighbours(&self.settled_uplinks, &self.draft.uplinks, neighbours);
            self.settled_uplinks.clone_from(&self.draft.uplinks);
            self.ways.keep_links(|index| self.draft.uplinks.iter().any(|(known, _)| *known == index));
            self.ways.all().into_iter().for_each(|group| self.renew_group(group, neighbours));
        }
        self.draft.stale.append(&mut self.starved);
        self.write_stale(neighbours);
        if !self.starved.is_empty() {
            let (slots, groups) = (self.starved.len(), self.writer.table().next_hops().capacity());
            tracing::error!(
                slots,
                groups,
                "the next-hop groups have run out: packets to these slots are dropped as no-neighbour until a later change finds \
                 free ones; reach VTEPs through routers, which need a group for each set of routers only"
            );
        }
        self.unsettled.clear();
        for slot in std::mem::take(&mut self.draft.to_free) {
            self.ways.give(slot, 0);
            self.writer.free(slot);
        }
        if self.ways.settle() {
            self.forget_neighbours(neighbours);
        }
    }

    /// Indices of gone vNICs, which no new vNIC gets before they are [let go](Self::let_go).
    pub fn held(&self) -> impl Iterator<Item = u32> {
        self.draft.held.iter().copied()
    }

    /// Allows an index to be used again: nothing anywhere is left of the vNIC that had it.
    pub fn let_go(&mut self, index: u32) {
        self.draft.held.remove(&index);
    }

    /// Rebuilds everything from a config (which was validated). What the workers use is left alone.
    ///
    /// # Errors
    /// [`TopologyError`], with nothing changed.
    pub fn rebuild(
        &mut self,
        config: &Config,
        ports: &dyn Ports,
        neighbours: &Neighbours,
    ) -> Result<(), TopologyError> {
        self.follow(config, &Extent::Everything, ports, neighbours)
    }

    /// As [`rebuild`](Self::rebuild), where only a part can be otherwise than it was.
    ///
    /// # Errors
    /// [`TopologyError`], with nothing changed.
    pub fn follow(
        &mut self,
        config: &Config,
        extent: &Extent<'_>,
        ports: &dyn Ports,
        neighbours: &Neighbours,
    ) -> Result<(), TopologyError> {
        self.redraft(neighbours, |topology| topology.draft_config(extent, config, ports, neighbours))
    }

    fn redraft(
        &mut self,
        neighbours: &Neighbours,
        change: impl FnOnce(&mut Self) -> Result<(), TopologyError>,
    ) -> Result<(), TopologyError> {
        self.fresh.clear();
        let before = self.draft.clone();
        if let Err(error) = change(self) {
            self.draft = before;
            // Freed at once: no snapshot with them was ever handed out.
            for slot in std::mem::take(&mut self.fresh) {
                self.writer.free(slot);
            }
            return Err(error);
        }
        self.note_stale(&before);
        self.write_fresh(neighbours);
        Ok(())
    }

    /// Everything of a change that may fail. No slot that a worker may read is written.
    fn draft_config(
        &mut self,
        extent: &Extent<'_>,
        config: &Config,
        ports: &dyn Ports,
        neighbours: &Neighbours,
    ) -> Result<(), TopologyError> {
        self.draft.next.settings = settings::settings(config);
        self.draft.tunnel = (config.vxlan.udp_port, config.vxlan.ttl);
        self.rebuild_uplinks(config, ports, neighbours);
        self.rebuild_bfd(config);
        let rows = self.rebuild_vpcs(config);
        self.rebuild_security(config);
        match extent {
            Extent::Part(difference) => {
                self.change_vnics(difference, ports)?;
                self.renew_rows_of(&rows);
                self.change_trunks(difference);
            }
            Extent::Everything | Extent::AllButLocations(_) => {
                self.rebuild_vnics(config, ports)?;
                self.rebuild_trunks(config);
            }
        }
        self.rebuild_port_rows(config, ports);
        match extent {
            Extent::Everything => self.rebuild_locations(config)?,
            Extent::AllButLocations(relocation) => self.relocate(relocation)?,
            Extent::Part(difference) => self.relocate(&difference.relocation)?,
        }
        self.rebuild_routes(config)?;
        self.rebuild_vteps(config);
        Ok(())
    }
}

/// True when the locations that go with a config go with another one, too: neither the uplinks that lead to them nor the
/// networks that they are in have changed.
pub fn keeps_locations(old: &Config, new: &Config) -> bool {
    let vpcs: HashMap<&str, Vni> = old.vpcs.iter().map(|vpc| (vpc.name.as_str(), vpc.vni)).collect();
    let vnis: HashSet<Vni> = vpcs.values().copied().collect();
    let stays = |vpc: &VpcConfig| match vpcs.get(vpc.name.as_str()) {
        Some(&vni) => vni == vpc.vni,
        None => !vnis.contains(&vpc.vni),
    };
    old.uplinks == new.uplinks && new.vpcs.iter().all(stays)
}

/// The lowest index that nothing of the draft has, that is not held, and that no worker knows as somebody's.
fn free_index(indices: &HashMap<String, u32>, held: &BTreeSet<u32>, is_known: impl Fn(usize) -> bool) -> u32 {
    let taken: HashSet<u32> = indices.values().chain(held).copied().collect();
    (0..).find(|&index| !taken.contains(&index) && !is_known(index as usize)).unwrap_or_default()
}

/// True for an index that has a row.
fn has<T>(rows: &[Option<T>], index: usize) -> bool {
    rows.get(index).is_some_and(Option::is_some)
}

fn put<T: Clone>(rows: &mut Vec<Option<T>>, index: u32, value: Option<T>) {
    if rows.len() <= index as usize {
        rows.resize(index as usize + 1, None);
    }
    rows[index as usize] = value;
}
