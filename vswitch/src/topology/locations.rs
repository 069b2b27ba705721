//! Locations on other hosts: entered, moved in place, and removed, alone or with a whole config.
//!
//! A location that moves changes its VLT slot and makes no decision stale. Where several destinations of a VPC have
//! one MAC address, bridged packets to it go to the vNIC of this host, else to the location with the lowest address:
//! what is decided follows from the config, not from the order in which it came about.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use pipelines::snapshot::{Destination, Location};
use pipelines::vlt::Place;
use wire::{MacAddr, Vni};

use super::slots::{LOWEST, Remote};
use super::{Topology, TopologyError};
use crate::config::objects::location_id;
use crate::config::{Config, LocationConfig, Relocation, path, validate};
use crate::topology::underlay::Neighbours;

impl Topology {
    /// Makes the locations those of a config.
    pub(super) fn rebuild_locations(&mut self, config: &Config) -> Result<(), TopologyError> {
        let mut wanted: BTreeMap<(u32, IpAddr), &LocationConfig> = BTreeMap::new();
        let mut checked: HashSet<IpAddr> = HashSet::new();
        for location in &config.locations {
            // Also of those that stay: the uplinks may be others now.
            if checked.insert(location.vtep) {
                self.check_location(location)?;
            }
            wanted.insert((self.vpc_of(location)?, location.vip), location);
        }
        let locations = &self.draft.locations;
        let gone: Vec<_> = locations.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        for (vpc, vip) in gone {
            self.drop_location(vpc, vip);
        }
        for (key, location) in wanted {
            if self.draft.locations.get(&key) != Some(location) {
                self.put_location(location)?;
            }
        }
        Ok(())
    }

    /// Takes locations out, adds others or moves them, and leaves all others alone.
    pub(super) fn relocate(&mut self, relocation: &Relocation) -> Result<(), TopologyError> {
        for &(vni, vip) in &relocation.gone {
            let vpc = self.draft.next.vnis.get(u128::from(vni.get()));
            // One whose address a vNIC of this host got is gone already, and the address is the vNIC's.
            if let Some(vpc) = vpc.filter(|&vpc| self.draft.locations.contains_key(&(vpc, vip))) {
                self.drop_location(vpc, vip);
            }
        }
        self.bring_locations(&relocation.come)
    }

    /// Adds locations, or moves them, and leaves the others alone.
    fn bring_locations(&mut self, locations: &[LocationConfig]) -> Result<(), TopologyError> {
        for location in locations {
            self.check_location(location)?;
            let vpc = self.vpc_of(location)?;
            self.unlearn(vpc, location.vip);
            self.put_location(location)?;
        }
        Ok(())
    }

    /// Adds, changes or moves one location, ready to [`commit`](Self::commit). One that moves does so when the change is
    /// [settled](Self::settle).
    ///
    /// # Errors
    /// [`TopologyError`], with nothing changed.
    pub fn set_location(
        &mut self,
        config: &Config,
        location: &LocationConfig,
        neighbours: &Neighbours,
    ) -> Result<(), TopologyError> {
        validate::location(config, location)?;
        self.check_location(location)?;
        let vpc = self.vpc_of(location)?;
        // What it may need is looked for first, so that nothing is half done when the table is full.
        self.refuse_crowded(vpc, location)?;
        self.unlearn(vpc, location.vip);
        if self.put_location(location)? && self.floods(vpc) {
            self.rebuild_routes_of(config, vpc)?;
        }
        self.rebuild_vteps(config);
        self.write_fresh(neighbours);
        Ok(())
    }

    /// Moves several locations at once.
    ///
    /// # Errors
    /// [`TopologyError`], with nothing changed.
    pub fn move_locations(
        &mut self,
        config: &Config,
        locations: &[LocationConfig],
        neighbours: &Neighbours,
    ) -> Result<(), TopologyError> {
        locations.iter().try_for_each(|location| validate::location(config, location))?;
        self.redraft(neighbours, |topology| {
            topology.bring_locations(locations)?;
            topology.rebuild_routes(config)?;
            topology.rebuild_vteps(config);
            Ok(())
        })
    }

    /// Removes a location. False when there is none.
    pub fn remove_location(
        &mut self,
        config: &Config,
        vni: Vni,
        vip: IpAddr,
        neighbours: &Neighbours,
    ) -> Result<bool, TopologyError> {
        let Some(vpc) = self.draft.next.vnis.get(u128::from(vni.get())) else { return Ok(false) };
        if !self.draft.locations.contains_key(&(vpc, vip)) {
            return Ok(false);
        }
        self.fresh.clear();
        self.drop_location(vpc, vip);
        if self.draft.next.vpc(vpc).is_some_and(|vpc| vpc.flood) {
            self.rebuild_routes_of(config, vpc)?;
        }
        self.rebuild_vteps(config);
        self.write_fresh(neighbours);
        Ok(true)
    }

    /// Refuses a location for which the table has no room: a slot of its own where its address is new, and one for its VTEP where the network
    /// floods and does not do so to that yet.
    pub(super) fn refuse_crowded(&self, vpc: u32, location: &LocationConfig) -> Result<(), TopologyError> {
        if self.refuse_full(2, String::new).is_ok() {
            return Ok(());
        }
        let learned = self.learner(vpc, location.vip).is_some()
            || self.draft.next.floats_at(vpc, location.vip).is_some();
        let known = !learned && self.draft.next.locations.contains_key(&(vpc, Destination::Ip(location.vip)));
        let slots = usize::from(!known) + usize::from(self.needs_list_slot(vpc, location.vtep));
        self.refuse_full(slots, || path_of(location))
    }

    /// True for a VTEP that its network is to flood to once something is behind it, and that has no slot for that.
    pub(super) fn needs_list_slot(&self, vpc: u32, vtep: IpAddr) -> bool {
        self.floods(vpc) && !self.draft.vtep_slots.contains_key(&(vpc, vtep))
    }

    pub(super) fn floods(&self, vpc: u32) -> bool {
        self.draft.next.vpc(vpc).is_some_and(|vpc| vpc.flood)
    }

    /// Refuses what needs more slots than are free; `path` says for what.
    pub(super) fn refuse_full(
        &self,
        slots: usize,
        path: impl FnOnce() -> String,
    ) -> Result<(), TopologyError> {
        if slots <= self.vlt_room() {
            return Ok(());
        }
        let (_, entries) = self.vlt_usage();
        Err(TopologyError::VltFull { entries, path: path() })
    }

    pub(super) fn vpc_of(&self, location: &LocationConfig) -> Result<u32, TopologyError> {
        let unknown = TopologyError::UnknownVni { vip: location.vip, vni: location.vni };
        self.draft.next.vnis.get(u128::from(location.vni.get())).ok_or(unknown)
    }

    /// Enters a location whose VTEP was checked. Changes nothing when it fails. True when its VPC has locations behind
    /// other VTEPs now.
    pub(super) fn put_location(&mut self, location: &LocationConfig) -> Result<bool, TopologyError> {
        let vpc = self.vpc_of(location)?;
        self.unfloat(vpc, location.vip);
        self.refuse_local(vpc, location)?;
        let key = (vpc, Destination::Ip(location.vip));
        let existing = self.draft.next.locations.get(&key).copied();
        let slot = match existing {
            Some(found) => found.slot,
            None => self.allocate(Place::Empty, || path_of(location))?,
        };
        let vteps_changed = self.place_behind(slot.slot, Remote::new(vpc, location.vtep, true));
        let groups = self.group_set(&location.groups, false);
        self.draft.next.locations.insert(key, Location { slot, mac: location.mac, groups });
        if existing.is_some_and(|found| found.groups != groups) {
            self.groups_changed();
        }
        match existing {
            // Moved: the slot is changed in place, flows follow on their next packet.
            Some(found) if found.mac == location.mac => {}
            Some(found) => {
                self.forget_mac(vpc, location.vip, found);
                self.touch_related(vpc);
            }
            None => self.draft.next.touch_topology(vpc),
        }
        self.draft.macs.insert((vpc, location.mac, location.vip));
        self.settle_mac(vpc, location.mac);
        self.draft.locations.insert((vpc, location.vip), location.clone());
        Ok(vteps_changed)
    }

    /// Refuses a location of an address that a vNIC of this host has for good: one that it asked for, or that floats, it lets go of.
    pub(super) fn refuse_local(&self, vpc: u32, location: &LocationConfig) -> Result<(), TopologyError> {
        let lent = self.learner(vpc, location.vip).is_some()
            || self.draft.next.floats_at(vpc, location.vip).is_some();
        let found = self.draft.next.locations.get(&(vpc, Destination::Ip(location.vip)));
        let Some(found) = found.filter(|_| !lent) else { return Ok(()) };
        let Place::Local { vnic } = self.writer.table().read(found.slot.slot).place else { return Ok(()) };
        let vnic = self.draft.next.vnic(vnic).map(|vnic| vnic.name.clone()).unwrap_or_default();
        Err(TopologyError::LocalVip { vip: location.vip, vni: location.vni, vnic })
    }

    /// Takes a location out.
    pub(super) fn drop_location(&mut self, vpc: u32, vip: IpAddr) {
        self.draft.locations.remove(&(vpc, vip));
        if let Some(found) = self.draft.next.locations.remove(&(vpc, Destination::Ip(vip))) {
            self.draft.next.touch_sources(vpc);
            self.left_groups(found.groups);
            self.forget_mac(vpc, vip, found);
            self.drop_slot(found.slot.slot);
        }
    }

    /// Takes a location's MAC address out, or gives it to another one of the VPC that has the same.
    fn forget_mac(&mut self, vpc: u32, vip: IpAddr, gone: Location) {
        self.draft.macs.remove(&(vpc, gone.mac, vip));
        let key = (vpc, Destination::Mac(gone.mac));
        match self.draft.next.locations.get(&key) {
            Some(owner) if owner.slot == gone.slot => drop(self.draft.next.locations.remove(&key)),
            // Flows bridged to the MAC rest on a slot that stays, and may be what the gone one's groups allowed.
            Some(_) if gone.groups != 0 => self.touch_related(vpc),
            Some(_) | None => {}
        }
        self.settle_mac(vpc, gone.mac);
    }

    /// Gives a MAC address to the location it belongs to, unless a vNIC of this host has it.
    pub(super) fn settle_mac(&mut self, vpc: u32, mac: MacAddr) {
        let key = (vpc, Destination::Mac(mac));
        let owner = self.draft.next.locations.get(&key).copied();
        if owner.is_some_and(|owner| !self.draft.remotes.contains_key(&owner.slot.slot)) {
            return;
        }
        let mut of_mac = self.draft.macs.range((vpc, mac, LOWEST)..);
        let first = of_mac.next().filter(|(of, known, _)| (*of, *known) == (vpc, mac)).map(|&(.., vip)| vip);
        let heir = first.and_then(|vip| self.draft.next.locations.get(&(vpc, Destination::Ip(vip))).copied());
        let heir = heir.or_else(|| self.bare_station(vpc, mac));
        let Some(heir) = heir else { return };
        if self.draft.next.locations.insert(key, heir).is_some_and(|owner| owner.slot != heir.slot) {
            // The slot it was decided for stays: nothing else would make the decision stale.
            self.touch_related(vpc);
        }
    }

    /// Refuses a location behind what is no VTEP of another host, or one that no uplink leads to.
    pub(super) fn check_location(&self, location: &LocationConfig) -> Result<(), TopologyError> {
        self.check_vtep(location.vtep, || format!("{}.vtep", path_of(location)))
    }

    /// The same of what is at this path.
    pub(super) fn check_vtep(
        &self,
        vtep: IpAddr,
        path: impl FnOnce() -> String,
    ) -> Result<(), TopologyError> {
        if vtep.is_multicast() || vtep.is_unspecified() || vtep.is_loopback() {
            return Err(TopologyError::NotUnicast { vtep, path: path() });
        }
        if self.draft.uplinks.iter().any(|(_, uplink)| uplink.addresses.iter().any(|net| net.addr() == vtep))
        {
            return Err(TopologyError::OwnVtep { vtep, path: path() });
        }
        match self.paths(vtep) {
            Some(_) => Ok(()),
            None => Err(TopologyError::NoRoute { vtep, path: path() }),
        }
    }
}

fn path_of(location: &LocationConfig) -> String {
    path::of("location", &location_id(location))
}
