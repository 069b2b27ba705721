//! What other hosts said gives way to what the operator of this host says.
//!
//! Locations and routes that came through etcd or from a BGP speaker are saved, so that a restart keeps them while nobody can be asked.
//! Meanwhile the config may have changed: a machine has come here, an uplink leads somewhere else. While the switch runs, what
//! cannot be is refused alone; so it is here left out alone, and whoever said it says it again.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use wire::Vni;

use super::paths::paths;
use crate::config::objects::{location_id, route_id};
use crate::config::{Config, LocationConfig, Name, RouteTargetConfig, UplinkConfig, validate};
use crate::state::owners::{Owner, Owners};

/// Takes out of a config which locations and routes of other hosts cannot be in it; what that is, in words.
pub fn give_way(config: &mut Config, owners: &Owners) -> Vec<String> {
    let mut left_out = Vec::new();
    if owners.iter().next().is_none() {
        return left_out;
    }
    let is_heard =
        |section: &str, id: &str| matches!(owners.at_run_time(section, id), Owner::Etcd | Owner::Evpn);
    let mut reach = Reach::new(&config.uplinks);
    for vpc in &mut config.vpcs {
        let mut routes = std::mem::take(&mut vpc.routes);
        routes.retain(|route| {
            let RouteTargetConfig::Gateways(gateways) = &route.target else { return true };
            let Some(fault) = gateways.iter().find_map(|gateway| reach.fault(gateway.vtep)) else {
                return true;
            };
            let id = route_id(vpc, route);
            let stays = !is_heard("route", &id);
            left_out.extend((!stays).then(|| format!("route {id}: {fault}")));
            stays
        });
        vpc.routes = routes;
    }
    let rules = Rules::of(config);
    let mut locations = std::mem::take(&mut config.locations);
    locations.retain_mut(|location| {
        let id = location_id(location);
        if !is_heard("location", &id) {
            return true;
        }
        // Of groups it is known here that there are those that are left; asking so of each location costs what there is of groups.
        let groups = rules.known_groups(location);
        let fault = rules.fault(location).or_else(|| reach.fault(location.vtep).map(str::to_owned));
        let fault = fault.or_else(|| Some(validate::location(config, location).err()?.to_string()));
        location.groups = groups;
        left_out.extend(fault.iter().map(|fault| format!("location {id}: {fault}")));
        fault.is_none()
    });
    // Those of others have their places first.
    let room = (config.vlt.entries as usize).saturating_sub(config.vnics.len());
    for at in (0..locations.len()).rev() {
        if locations.len() <= room {
            break;
        }
        let id = location_id(&locations[at]);
        if is_heard("location", &id) {
            locations.remove(at);
            left_out.push(format!("location {id}: `[vlt] entries` is too small for it"));
        }
    }
    config.locations = locations;
    left_out
}

/// Which VTEPs the uplinks lead to.
struct Reach {
    uplinks: Vec<(u16, UplinkConfig)>,
    known: HashMap<IpAddr, Option<&'static str>>,
}

impl Reach {
    fn new(uplinks: &[UplinkConfig]) -> Self {
        Self { uplinks: (0..).zip(uplinks.iter().cloned()).collect(), known: HashMap::new() }
    }

    fn fault(&mut self, vtep: IpAddr) -> Option<&'static str> {
        let Self { uplinks, known } = self;
        *known.entry(vtep).or_insert_with(|| {
            let is_own =
                |(_, uplink): &(u16, UplinkConfig)| uplink.addresses.iter().any(|net| net.addr() == vtep);
            if uplinks.iter().any(is_own) {
                Some("its VTEP is an address of this switch")
            } else if paths(uplinks, vtep).is_none() {
                Some("no uplink leads to its VTEP")
            } else {
                None
            }
        })
    }
}

/// What locations may be at odds with.
struct Rules {
    vnis: HashSet<Vni>,
    local: HashSet<(Vni, IpAddr)>,
    groups: HashSet<(Vni, Name)>,
}

impl Rules {
    fn of(config: &Config) -> Self {
        let vnis: HashMap<&Name, Vni> = config.vpcs.iter().map(|vpc| (&vpc.name, vpc.vni)).collect();
        let local = config.vnics.iter().flat_map(|vnic| {
            let vni = vnis.get(&vnic.vpc).copied();
            vnic.vips.iter().filter_map(move |vip| Some((vni?, *vip)))
        });
        let groups = config.security_groups.iter();
        let groups = groups.filter_map(|group| Some((*vnis.get(&group.vpc)?, group.name.clone())));
        Self { vnis: vnis.values().copied().collect(), local: local.collect(), groups: groups.collect() }
    }

    /// Takes the groups out of a location: those that its network has here. Others say nothing.
    fn known_groups(&self, location: &mut LocationConfig) -> Vec<Name> {
        let mut groups = std::mem::take(&mut location.groups);
        groups.retain(|group| self.groups.contains(&(location.vni, group.clone())));
        groups
    }

    fn fault(&self, location: &LocationConfig) -> Option<String> {
        if !self.vnis.contains(&location.vni) {
            Some("there is no VPC with its VNI".to_owned())
        } else if self.local.contains(&(location.vni, location.vip)) {
            Some("its address is that of a vNIC of this host".to_owned())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
[vlt]
entries = 64
[[uplink]]
name = "up0"
addresses = ["172.16.0.1/24"]
port = { kind = "null" }
[[vpc]]
name = "red"
vni = 100
routes = [{ to = "10.9.0.0/16", vtep = "172.16.0.2", mac = "02:00:00:00:09:01" }]
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[security-group]]
name = "web"
vpc = "red"
[[vnic]]
name = "a"
vpc = "red"
mac = "02:00:00:00:00:01"
vips = ["10.0.0.1"]
port = { kind = "null" }
"#;

    /// The config with locations `10.0.0.N` behind these VTEPs, all of one owner.
    fn with(owner: Owner, text: &str, locations: &[(u8, &str)]) -> (Config, Owners) {
        let mut text = text.to_owned();
        for (n, vtep) in locations {
            text += &format!(
                "[[location]]\nvni = 100\nvip = \"10.0.0.{n}\"\nmac = \"02:00:00:00:01:{n:02x}\"\nvtep = \"{vtep}\"\ngroups = [\"web\"]\n"
            );
        }
        let config =
            crate::config::Document::read(&text, "test").unwrap_or_else(|errors| panic!("{errors}")).config;
        let mut owners = Owners::default();
        for location in &config.locations {
            owners.set(("location".to_owned(), location_id(location)), owner);
        }
        for vpc in &config.vpcs {
            vpc.routes.iter().for_each(|route| owners.set(("route".to_owned(), route_id(vpc, route)), owner));
        }
        (config, owners)
    }

    fn left(owner: Owner, text: &str, locations: &[(u8, &str)]) -> (Config, Vec<String>) {
        let (mut config, owners) = with(owner, text, locations);
        let told = give_way(&mut config, &owners);
        (config, told)
    }

    #[test]
    fn what_goes_together_stays_as_it_is() {
        let (before, owners) = with(Owner::Etcd, CONFIG, &[(7, "172.16.0.2"), (8, "172.16.0.3")]);
        let mut after = before.clone();
        assert_eq!(give_way(&mut after, &owners), Vec::<String>::new());
        assert_eq!(after, before);
        assert!(after.validate().is_ok());
    }

    #[test]
    fn what_other_hosts_said_and_cannot_be_is_left_out_alone() {
        for owner in [Owner::Etcd, Owner::Evpn] {
            let (config, told) = left(
                owner,
                CONFIG,
                &[(1, "172.16.0.2"), (7, "172.16.0.2"), (8, "192.168.1.1"), (9, "172.16.0.1")],
            );
            assert_eq!(config.locations.len(), 1, "{told:?}");
            for wanted in [
                "100 10.0.0.1: its address is that of a vNIC",
                "10.0.0.8: no uplink leads",
                "10.0.0.9: its VTEP is an address of this",
            ] {
                assert!(told.iter().any(|line| line.contains(wanted)), "{wanted}: {told:?}");
            }
            assert!(config.validate().is_ok(), "{:?}", config.validate());
        }
        // The operator renumbers the uplink.
        let moved = CONFIG.replace("172.16.0.1/24", "172.20.0.1/24");
        let (config, told) = left(Owner::Evpn, &moved, &[(7, "172.16.0.2")]);
        assert!(config.locations.is_empty() && config.vpcs[0].routes.is_empty(), "{told:?}");
        // Or the group goes, or the network.
        let (config, told) =
            left(Owner::Etcd, &CONFIG.replace("\"web\"\nvpc", "\"other\"\nvpc"), &[(7, "172.16.0.2")]);
        assert!(told.is_empty() && config.locations[0].groups.is_empty(), "{told:?}");
        let (config, told) =
            left(Owner::Etcd, &CONFIG.replace("vni = 100", "vni = 101"), &[(7, "172.16.0.2")]);
        assert!(config.locations.is_empty() && told[0].contains("no VPC"), "{told:?}");
    }

    #[test]
    fn what_the_operator_said_is_refused_with_the_reason_as_before() {
        let (before, owners) = with(Owner::Api, CONFIG, &[(1, "172.16.0.2"), (8, "192.168.1.1")]);
        let mut after = before.clone();
        assert!(give_way(&mut after, &owners).is_empty());
        assert_eq!(after, before);
        assert!(after.validate().is_err());
    }

    #[test]
    fn a_table_that_is_too_small_has_what_others_said_last() {
        let places: Vec<(u8, &str)> = (2..102).map(|n| (n, "172.16.0.2")).collect();
        let (config, told) = left(Owner::Etcd, CONFIG, &places);
        assert_eq!((config.locations.len(), told.len()), (63, 37));
    }
}
