//! Single changes, as the console and the API make them: each is a small edit of the running config, checked and
//! applied whole. Locations, of which there may be many, change the topology directly.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use wire::{Qpn, Vni};

use super::{Missing, Switch, SwitchError};
use crate::config::merge::{Occasion, Source, merge, refuse_others};
use crate::config::objects::{ObjectId, location_id};
use crate::config::{
    Config, Difference, LocationConfig, Name, PortConfig, SecurityGroupConfig, SecurityRule, SubnetConfig,
    TrunkConfig, UplinkConfig, VnicConfig, VnicPort, VpcConfig, VpcRoute,
};
use crate::state::change::Change;
use crate::state::files::write_whole;
use crate::state::owners::Owner;
use crate::topology::{Extent, keeps_locations};

impl Switch {
    /// Changes the config by a function and goes over to the result.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was.
    pub fn edit(
        &mut self,
        change: impl FnOnce(&mut Config) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        self.edit_and_place(Vec::new(), Missing::Refused, Vec::new(), change)
    }

    /// As [`edit`](Self::edit), with locations that come or move: also of addresses of vNICs that go. `missing` says what becomes of
    /// ports that cannot be opened, and `made` whose objects are from now on; what nobody names in it is the API's.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn edit_and_place(
        &mut self,
        elsewhere: Vec<LocationConfig>,
        missing: Missing,
        made: Vec<(ObjectId, Owner)>,
        change: impl FnOnce(&mut Config) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        let old = self.config.clone();
        let mut new = (*old).clone();
        change(&mut new)?;
        let vnis: HashSet<Vni> = new.vpcs.iter().map(|vpc| vpc.vni).collect();
        let gone: Vec<Vni> = old.vpcs.iter().map(|vpc| vpc.vni).filter(|vni| !vnis.contains(vni)).collect();
        if !keeps_locations(&old, &new) {
            let kept = self.topology.locations().filter(|location| !gone.contains(&location.vni));
            new.locations = kept.cloned().chain(elsewhere).collect();
            let before = self.before_a_change();
            self.apply(new, missing)?;
            self.owners.keep_only(&self.config());
            made.into_iter().for_each(|(object, owner)| self.owners.set(object, owner));
            self.tell_since(before)?;
            return self.save_whole();
        }
        // Those of a VPC go with it.
        let mut ended: Vec<LocationConfig> =
            gone.iter().flat_map(|&vni| self.topology.locations_of(vni)).cloned().collect();
        let new = Arc::new(new);
        let difference = Difference::between(&old, &new).and_elsewhere(elsewhere);
        ended.extend(difference.moved_here(|vni, vip| self.topology.location(vni, vip).cloned()));
        self.go_over(&new, new.clone(), &difference, missing, Extent::of(&difference))?;
        self.owners.forget(&difference.old, &difference.new);
        let ended_ids =
            ended.iter().map(|location| (("location".to_owned(), location_id(location)), Owner::Api));
        ended_ids.chain(made).for_each(|(object, owner)| self.owners.set(object, owner));
        self.save_change(|| {
            let change = Change::between(&difference.old, &difference.new)?;
            Ok(change.and_without(ended).and_with(&difference.elsewhere)?)
        })
    }

    /// Adds a vNIC. One whose port is named like itself takes over the plain port of that name, device and peer included: a
    /// virtual machine that migrates here is behind it before its vNIC is.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn add_vnic(&mut self, mut vnic: VnicConfig) -> Result<(), SwitchError> {
        if self.topology.vnic(&vnic.name).is_some() {
            return Err(SwitchError::Duplicate { what: "vNIC", name: vnic.name.to_string() });
        }
        let named = |port: &&PortConfig| matches!(&vnic.port, VnicPort::Trunk(name) if *name == port.name);
        let plain = self.config.ports.iter().find(named).cloned();
        if let Some(plain) = &plain {
            if plain.name != vnic.name {
                let (port, vnic) = (plain.name.to_string(), vnic.name.to_string());
                return Err(SwitchError::OtherName { port, vnic });
            }
            vnic.port = VnicPort::Own(plain.port.clone());
            vnic.queues = plain.rx_queues;
        }
        self.edit(|config| {
            config.ports.retain(|port| plain.as_ref().is_none_or(|plain| plain.name != port.name));
            config.vnics.push_back(Arc::new(vnic));
            Ok(())
        })
    }

    /// Removes a vNIC. Routes that lead to it lead to its MAC address from then on: to nobody, until a station of the VPC has
    /// that again, here or on another host.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn remove_vnic(&mut self, name: &str) -> Result<(), SwitchError> {
        let unknown = || SwitchError::Unknown { what: "vNIC", name: name.into(), list: "show vnic" };
        self.edit(|config| {
            let at = config.vnics.iter().position(|vnic| vnic.name.as_str() == name).ok_or_else(unknown)?;
            let gone = config.vnics.remove(at);
            config.lead_to_station(&gone);
            Ok(())
        })
    }

    /// Goes over to the config of a file, whole: what was made at run time goes, whoever made it.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn load_file(&mut self, file: Source) -> Result<(), SwitchError> {
        self.go_over_to_file(file.config.clone(), file)
    }

    /// Applies a config file again: what it names is as it says, what was made at run time stays.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn reload_file(&mut self, file: Source) -> Result<(), SwitchError> {
        let config = self.merged(&self.config(), &file)?;
        self.go_over_to_file(config, file)
    }

    /// What [`reload_file`](Self::reload_file) would change.
    ///
    /// # Errors
    /// [`SwitchError`] where the file and what was made at run time do not go together.
    pub fn difference_of_reload(&self, file: &Source) -> Result<Change, SwitchError> {
        let running = self.config();
        Ok(Change::between(&running, &self.merged(&running, file)?)?)
    }

    /// What a reload of a file makes of the running config.
    fn merged(&self, running: &Config, file: &Source) -> Result<Config, SwitchError> {
        refuse_others(file, &self.owners)?;
        Ok(merge(running, self.file.as_deref(), file, Occasion::Reload)?)
    }

    fn go_over_to_file(&mut self, config: Config, file: Source) -> Result<(), SwitchError> {
        let before = self.before_a_change();
        self.apply(config, Missing::Awaited)?;
        self.owners.keep_only(&self.config());
        self.owners.leave_to(&file);
        self.file = Some(Arc::new(file));
        self.tell_since(before)?;
        self.save_whole()
    }

    /// Adds a plain port.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_port(&mut self, port: PortConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.ports.push(port);
            Ok(())
        })
    }

    /// Adds a trunk port.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_trunk(&mut self, trunk: TrunkConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.trunks.push(trunk);
            Ok(())
        })
    }

    /// Adds an uplink.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_uplink(&mut self, uplink: UplinkConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.uplinks.push(uplink);
            Ok(())
        })
    }

    /// Removes a port of any role by name: plain port, trunk without vNICs, vNIC, uplink.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let unknown = SwitchError::Unknown { what: "port", name: name.into(), list: "port list" };
        if self.config.vnics.iter().any(|vnic| vnic.name.as_str() == name) {
            return self.remove_vnic(name);
        }
        self.edit(|config| {
            let punting = |uplink: &&UplinkConfig| crate::topology::punt_name(&uplink.name) == name;
            if let Some(uplink) = config.uplinks.iter().find(punting) {
                let by = format!("uplink {} (host = \"punt\")", uplink.name);
                return Err(SwitchError::InUse { what: "port", name: name.into(), by });
            }
            let user = config
                .vnics
                .iter()
                .find(|vnic| matches!(&vnic.port, VnicPort::Trunk(trunk) if trunk.as_str() == name));
            if let Some(vnic) = user {
                let by = format!("vNIC {}", vnic.name);
                return Err(SwitchError::InUse { what: "trunk", name: name.into(), by });
            }
            let count = |config: &Config| config.ports.len() + config.trunks.len() + config.uplinks.len();
            let before = count(config);
            config.ports.retain(|port| port.name.as_str() != name);
            config.trunks.retain(|trunk| trunk.name.as_str() != name);
            config.uplinks.retain(|uplink| uplink.name.as_str() != name);
            if count(config) == before { Err(unknown) } else { Ok(()) }
        })
    }

    /// Adds a VPC.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_vpc(&mut self, vpc: VpcConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.vpcs.push(vpc);
            Ok(())
        })
    }

    /// Removes a VPC that has no vNICs, with its subnets and locations.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_vpc(&mut self, name: &str) -> Result<(), SwitchError> {
        let unknown = SwitchError::Unknown { what: "VPC", name: name.into(), list: "show vpc" };
        self.edit(|config| {
            if !config.vpcs.iter().any(|vpc| vpc.name.as_str() == name) {
                return Err(unknown);
            }
            if let Some(vnic) = config.vnics.iter().find(|vnic| vnic.vpc.as_str() == name) {
                let by = format!("vNIC {}", vnic.name);
                return Err(SwitchError::InUse { what: "VPC", name: name.into(), by });
            }
            config.subnets.retain(|subnet| subnet.vpc.as_str() != name);
            config.vpcs.retain(|vpc| vpc.name.as_str() != name);
            Ok(())
        })
    }

    /// Adds a subnet.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_subnet(&mut self, subnet: SubnetConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.subnets.push(subnet);
            Ok(())
        })
    }

    /// Removes a subnet.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_subnet(&mut self, vpc: &str, prefix: ipnet::IpNet) -> Result<(), SwitchError> {
        let name = format!("{prefix} of VPC {vpc}");
        self.edit(|config| {
            let before = config.subnets.len();
            config.subnets.retain(|subnet| subnet.vpc.as_str() != vpc || subnet.prefix != prefix);
            if config.subnets.len() == before {
                return Err(SwitchError::Unknown { what: "subnet", name, list: "show vpc" });
            }
            Ok(())
        })
    }

    /// Adds a route to a VPC.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_route(&mut self, vpc: &str, route: VpcRoute) -> Result<(), SwitchError> {
        self.edit_vpc(vpc, |vpc| {
            vpc.routes.push(route);
            Ok(())
        })
    }

    /// Gives a VPC a route, in place of the one that it has with this prefix, if any.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn set_route(&mut self, vpc: &str, route: VpcRoute) -> Result<(), SwitchError> {
        self.edit_vpc(vpc, |vpc| {
            match vpc.routes.iter_mut().find(|other| other.to == route.to) {
                Some(other) => *other = route,
                None => vpc.routes.push(route),
            }
            Ok(())
        })
    }

    /// Removes a route of a VPC.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_route(&mut self, vpc: &str, to: ipnet::IpNet) -> Result<(), SwitchError> {
        self.edit_vpc(vpc, |vpc| {
            let at = vpc.routes.iter().position(|route| route.to == to).ok_or_else(|| {
                let name = format!("{to} of VPC {}", vpc.name);
                SwitchError::Unknown { what: "route", name, list: "show route" }
            })?;
            vpc.routes.remove(at);
            Ok(())
        })
    }

    fn edit_vpc(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut VpcConfig) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        let unknown = || SwitchError::Unknown { what: "VPC", name: name.into(), list: "show vpc" };
        self.edit(|config| {
            change(config.vpcs.iter_mut().find(|vpc| vpc.name.as_str() == name).ok_or_else(unknown)?)
        })
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
    /// [`SwitchError`].
    pub fn set_location_of(&mut self, location: &LocationConfig, owner: Owner) -> Result<(), SwitchError> {
        self.topology.set_location(&self.config, location, &self.neighbours)?;
        self.publish_locations()?;
        self.owners.set(("location".to_owned(), location_id(location)), owner);
        self.save_change(|| Ok(Change::default().and_with(std::slice::from_ref(location))?))
    }

    /// Removes a destination.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_location(&mut self, vni: Vni, vip: IpAddr) -> Result<(), SwitchError> {
        let unknown =
            || SwitchError::Unknown { what: "location", name: format!("{vni} {vip}"), list: "show vlt" };
        let location = self.topology.location(vni, vip).cloned().ok_or_else(unknown)?;
        self.topology.remove_location(&self.config, vni, vip, &self.neighbours)?;
        self.publish_locations()?;
        self.owners.set(("location".to_owned(), location_id(&location)), Owner::Api);
        self.save_change(|| Ok(Change::default().and_without([location])))
    }

    pub(super) fn publish_locations(&mut self) -> Result<(), SwitchError> {
        let before = self.snapshot().clone();
        let snapshot = self.topology.commit();
        self.hand_out(&before, &snapshot)
    }

    /// Adds a security group.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn add_security_group(&mut self, group: SecurityGroupConfig) -> Result<(), SwitchError> {
        if self.config.security_groups.iter().any(|known| known.name == group.name) {
            return Err(SwitchError::Duplicate { what: "security group", name: group.name.to_string() });
        }
        self.edit(|config| {
            config.security_groups.push(group);
            Ok(())
        })
    }

    /// Removes a security group that nothing names any more.
    ///
    /// # Errors
    /// As [`add_security_group`](Self::add_security_group).
    pub fn remove_security_group(&mut self, name: &str) -> Result<(), SwitchError> {
        let located =
            self.topology.locations().any(|location| location.groups.iter().any(|group| group == name));
        if located {
            return Err(SwitchError::InUse {
                what: "security group",
                name: name.into(),
                by: "a location".into(),
            });
        }
        self.edit(|config| {
            let before = config.security_groups.len();
            config.security_groups.retain(|group| group.name.as_str() != name);
            if config.security_groups.len() == before { Err(no_group(name)) } else { Ok(()) }
        })
    }

    /// Adds a rule to a security group.
    ///
    /// # Errors
    /// As [`add_security_group`](Self::add_security_group).
    pub fn allow(&mut self, group: &str, rule: SecurityRule) -> Result<(), SwitchError> {
        self.edit(|config| {
            let rules = rules_of(config, group)?;
            if !rules.contains(&rule) {
                rules.push(rule);
            }
            Ok(())
        })
    }

    /// Takes a rule out of a security group. When this returns, nothing that only it admitted passes any more.
    ///
    /// # Errors
    /// As [`add_security_group`](Self::add_security_group).
    pub fn revoke(&mut self, group: &str, rule: &SecurityRule) -> Result<(), SwitchError> {
        self.edit(|config| {
            let rules = rules_of(config, group)?;
            let before = rules.len();
            rules.retain(|known| known != rule);
            if rules.len() == before {
                let name = format!("{rule} in security group {group}");
                return Err(SwitchError::Unknown { what: "rule", name, list: "show security-group" });
            }
            Ok(())
        })
    }

    /// Puts a vNIC into security groups.
    ///
    /// # Errors
    /// As [`add_security_group`](Self::add_security_group).
    pub fn set_security_groups(&mut self, vnic: &str, groups: Vec<Name>) -> Result<(), SwitchError> {
        self.edit(|config| {
            let known = config.vnics.iter_mut().find(|known| known.name.as_str() == vnic);
            let known = known.ok_or_else(|| SwitchError::Unknown {
                what: "vNIC",
                name: vnic.into(),
                list: "show vnic",
            })?;
            Arc::make_mut(known).security_groups = groups;
            Ok(())
        })
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
    /// [`SwitchError`].
    pub fn start_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let index = self.ports.resolve(name)?;
        if self.ports.get(index).is_some_and(|port| port.running) {
            return Err(super::error::PortsError::AlreadySo(name.into(), "started").into());
        }
        Ok(self.ports.poll(&self.pool, index)?)
    }

    /// Stops polling a port.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn stop_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let index = self.ports.resolve(name)?;
        if self.ports.get(index).is_some_and(|port| !port.running) {
            return Err(super::error::PortsError::AlreadySo(name.into(), "stopped").into());
        }
        Ok(self.ports.park(&self.pool, index)?)
    }

    /// Writes the running config to a file: written beside it, synced, renamed.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn save(&self, path: &std::path::Path) -> Result<(), SwitchError> {
        let text = self.config().to_toml()?;
        write_whole(path, &text)
            .map_err(|source| SwitchError::File { path: path.display().to_string(), source })
    }
}

fn no_group(name: &str) -> SwitchError {
    SwitchError::Unknown { what: "security group", name: name.into(), list: "show security-group" }
}

fn rules_of<'c>(config: &'c mut Config, group: &str) -> Result<&'c mut Vec<SecurityRule>, SwitchError> {
    let known = config.security_groups.iter_mut().find(|known| known.name.as_str() == group);
    known.map(|known| &mut known.rules).ok_or_else(|| no_group(group))
}
