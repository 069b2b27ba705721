//! Single changes, as the console and the API make them: each is a small edit of the running config, checked and
//! applied whole. Locations, of which there may be many, change the topology directly.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::json;
use wire::{Qpn, Vni};

use super::saving::Saving;
use super::{Missing, PortsError, Switch, SwitchError, object_ids};
use crate::config::merge::{Occasion, Source, merge};
use crate::config::objects::{ObjectId, location_id};
use crate::config::others::{self, Overlap};
use crate::config::{Config, Difference, LocationConfig, Relocation, path};
use crate::state::change::Change;
use crate::state::owners::{Owner, Owners};
use crate::topology::{Extent, give_way, keeps_locations};

impl Switch {
    /// Changes the config by a function and goes over to the result.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was.
    pub fn edit(
        &mut self,
        change: impl FnOnce(&mut Config) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        self.edit_and_place(Relocation::NONE, Missing::Refused, Vec::new(), change)
    }

    /// As [`edit`](Self::edit), with locations that come, move or go: also of addresses of vNICs that go. `missing` says what becomes of
    /// ports that cannot be opened, and `made` whose objects are from now on; what nobody names in it is the API's.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless [it is in force](SwitchError::is_in_force).
    pub fn edit_and_place(
        &mut self,
        relocation: Relocation,
        missing: Missing,
        made: Vec<(ObjectId, Owner)>,
        change: impl FnOnce(&mut Config) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        self.withdrawing(|switch| switch.change(relocation, missing, made, Saving::Now, change))
    }

    /// As [`edit`](Self::edit), of what other hosts say: `made` says whose objects are from now on, and it is saved by the way.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless [it is in force](SwitchError::is_in_force).
    pub fn edit_heard(
        &mut self,
        made: Vec<(ObjectId, Owner)>,
        change: impl FnOnce(&mut Config) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        self.change(Relocation::NONE, Missing::Awaited, made, Saving::Later, change)
    }

    fn change(
        &mut self,
        relocation: Relocation,
        missing: Missing,
        made: Vec<(ObjectId, Owner)>,
        saving: Saving,
        change: impl FnOnce(&mut Config) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        let old = self.config.clone();
        let mut new = (*old).clone();
        change(&mut new)?;
        let vnis: HashSet<Vni> = new.vpcs.iter().map(|vpc| vpc.vni).collect();
        let gone: Vec<Vni> = old.vpcs.iter().map(|vpc| vpc.vni).filter(|vni| !vnis.contains(vni)).collect();
        if !keeps_locations(&old, &new) {
            let kept = self.topology.locations().filter(|location| !gone.contains(&location.vni));
            let moved = relocation.addresses();
            let kept = kept.filter(|location| !moved.contains(&(location.vni, location.vip))).cloned();
            new.locations = kept.chain(relocation.come.iter().cloned()).collect();
            let left_out = give_way(&mut new, &self.owners);
            let before = self.before_a_change();
            self.apply(new, missing)?;
            self.owners.keep_only(object_ids(&self.config, &self.topology));
            made.into_iter().for_each(|(object, owner)| self.owners.set(object, owner));
            self.tell_left_out(&left_out);
            let told = self.tell_since(before);
            return self.save_whole().and(told);
        }
        // Those of a VPC go with it.
        let mut ended: Vec<LocationConfig> =
            gone.iter().flat_map(|&vni| self.topology.locations_of(vni)).cloned().collect();
        let new = Arc::new(new);
        let leave = relocation.gone.iter().filter(|(vni, _)| !gone.contains(vni));
        ended.extend(leave.filter_map(|&(vni, vip)| self.topology.location(vni, vip).cloned()));
        let difference = Difference::between(&old, &new).and_relocation(relocation);
        ended.extend(difference.moved_here(|vni, vip| self.topology.location(vni, vip).cloned()));
        self.go_over(&new, new.clone(), &difference, missing, Extent::of(&difference))?;
        self.owners.forget(&difference.old, &difference.new);
        let ended_ids =
            ended.iter().map(|location| (("location".to_owned(), location_id(location)), Owner::Api));
        ended_ids.chain(made).for_each(|(object, owner)| self.owners.set(object, owner));
        let told = || {
            let change = Change::between(&difference.old, &difference.new)?;
            Ok(change.and_without(ended).and_with(&difference.relocation.come)?)
        };
        match saving {
            Saving::Now => self.save_change(told),
            Saving::Later => self.save_later(told),
        }
    }

    /// Goes over to the config of a file, whole: what the API or the console made goes, what others own stays.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless [it is in force](SwitchError::is_in_force).
    pub fn load_file(&mut self, file: Source) -> Result<(), SwitchError> {
        let (overlap, owners) = self.owners_with(&file)?;
        let running = self.config();
        let (config, left_out) = self.beside(|| {
            let mut left_out = Vec::new();
            let yields = |config: &mut Config| left_out = give_way(config, &owners);
            let loaded = others::load(&running, &file, &owners, &overlap, yields);
            loaded.map(|config| (config, left_out))
        })?;
        self.withdrawing(|switch| switch.go_over_to_file(config, file, owners, &left_out))
    }

    /// Applies a config file again: what it names is as it says, what was made at run time stays.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless [it is in force](SwitchError::is_in_force).
    pub fn reload_file(&mut self, file: Source) -> Result<(), SwitchError> {
        let (config, owners, left_out) = self.merged(&self.config(), &file)?;
        self.withdrawing(|switch| switch.go_over_to_file(config, file, owners, &left_out))
    }

    /// What a file names and other hosts brought, and who owns what when the file counts.
    fn owners_with(&self, file: &Source) -> Result<(Overlap, Owners), SwitchError> {
        let overlap = Overlap::of(file, self.file.as_deref(), &self.owners)?;
        overlap.refuse_news(file, &self.owners)?;
        let mut owners = self.owners.clone();
        owners.leave_to(file, &overlap);
        Ok((overlap, owners))
    }

    /// Tells what other hosts said and cannot be any more.
    fn tell_left_out(&mut self, left_out: &[String]) {
        const TOLD: usize = 16;
        let more = left_out.len().saturating_sub(TOLD);
        let rest = (more > 0).then(|| format!("{more} more locations and routes"));
        for what in left_out.iter().take(TOLD).chain(&rest) {
            let text = format!("what another host said is left out until it says so again: {what}");
            tracing::warn!("{text}");
            self.events.add("left-out", text, json!({ "object": what }));
        }
    }

    /// What [`reload_file`](Self::reload_file) would change.
    ///
    /// # Errors
    /// [`SwitchError`] where the file and what was made at run time do not go together.
    pub fn difference_of_reload(&mut self, file: &Source) -> Result<Change, SwitchError> {
        let running = self.config();
        let (merged, ..) = self.merged(&running, file)?;
        Ok(Change::between(&running, &merged)?)
    }

    /// What a reload of a file makes of the running config, who owns what then, and what of other hosts' is left out.
    fn merged(
        &mut self,
        running: &Config,
        file: &Source,
    ) -> Result<(Config, Owners, Vec<String>), SwitchError> {
        let (overlap, owners) = self.owners_with(file)?;
        let before = self.file.clone();
        let (config, left_out) = self.beside(|| {
            let mut left_out = Vec::new();
            let yields = |config: &mut Config| left_out = give_way(config, &owners);
            let merged = merge(running, before.as_deref(), file, Occasion::Reload, &overlap, yields);
            merged.map(|config| (config, left_out))
        })?;
        Ok((config, owners, left_out))
    }

    fn go_over_to_file(
        &mut self,
        config: Config,
        file: Source,
        owners: Owners,
        left_out: &[String],
    ) -> Result<(), SwitchError> {
        let before = self.before_a_change();
        self.apply(config, Missing::Awaited)?;
        self.owners = owners;
        self.owners.keep_only(object_ids(&self.config, &self.topology));
        self.file = Some(Arc::new(file));
        self.tell_left_out(left_out);
        let told = self.tell_since(before);
        self.save_whole().and(told)
    }

    /// Places a destination behind a VTEP, or moves it there; it keeps its owner.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn set_location(&mut self, location: &LocationConfig) -> Result<(), SwitchError> {
        let owner = self.owners.at_run_time("location", &location_id(location));
        self.set_location_of(location, owner)
    }

    /// As [`set_location`](Self::set_location), of an owner.
    ///
    /// # Errors
    /// [`SwitchError`]; where a worker does not answer, the location is in force for the others, noted and saved.
    pub fn set_location_of(&mut self, location: &LocationConfig, owner: Owner) -> Result<(), SwitchError> {
        self.withdrawing(|switch| {
            switch.topology.set_location(&switch.config, location, &switch.neighbours)?;
            let published = switch.publish_locations();
            switch.owners.set(("location".to_owned(), location_id(location)), owner);
            let come = std::slice::from_ref(location);
            published.and(switch.save_change(|| Ok(Change::default().and_with(come)?)))
        })
    }

    /// Removes a destination.
    ///
    /// # Errors
    /// [`SwitchError`]; where a worker does not answer, it is gone all the same.
    pub fn remove_location(&mut self, vni: Vni, vip: IpAddr) -> Result<(), SwitchError> {
        let unknown = || {
            let name = format!("{vni} {vip}");
            let path = path::of("location", &name);
            SwitchError::Unknown { what: "location", name, list: "show vlt", path }
        };
        let location = self.topology.location(vni, vip).cloned().ok_or_else(unknown)?;
        self.withdrawing(|switch| {
            switch.topology.remove_location(&switch.config, vni, vip, &switch.neighbours)?;
            let published = switch.publish_locations();
            switch.owners.set(("location".to_owned(), location_id(&location)), Owner::Api);
            published.and(switch.save_change(|| Ok(Change::default().and_without([location]))))
        })
    }

    pub(super) fn publish_locations(&mut self) -> Result<(), SwitchError> {
        self.topology.commit();
        self.hand_out()
    }

    /// Takes the place of a queue pair back. `false` when it has none.
    pub fn evict(&mut self, vnic: u32, peer: IpAddr, qpn: Qpn) -> bool {
        self.rcft.evict(vnic, peer, qpn)
    }

    /// Takes the places of all queue pairs of a vNIC back; how many there are.
    pub fn evict_all(&mut self, vnic: u32) -> u32 {
        self.rcft.evict_all(vnic, self.topology.snapshot(), self.pool.now(), &mut self.events)
    }

    /// Polls a port again that `port stop` stopped.
    ///
    /// # Errors
    /// [`SwitchError`]; where a worker does not take a queue, the next call goes on with it.
    pub fn start_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let index = self.ports.resolve(name)?;
        if self.ports.get(index).is_some_and(|port| port.running) {
            let name = name.into();
            return Err(PortsError::AlreadySo { name, state: "started", command: "stop" }.into());
        }
        self.ports.poll(&self.pool, index)?;
        self.offload.start_port(index);
        Ok(())
    }

    /// Stops polling a port; hardware takes nothing from it any more either.
    ///
    /// # Errors
    /// [`SwitchError`]; a worker that does not answer may still poll it, and is asked again by the next call.
    pub fn stop_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let index = self.ports.resolve(name)?;
        if self.ports.get(index).is_some_and(|port| port.is_stopped() && port.is_parked()) {
            let name = name.into();
            return Err(PortsError::AlreadySo { name, state: "stopped", command: "start" }.into());
        }
        self.withdrawing(|switch| {
            switch.offload.stop_port(&switch.pool, switch.topology.snapshot(), index);
            Ok(switch.ports.park(&switch.pool, index)?)
        })
    }
}
