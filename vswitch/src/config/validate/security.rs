//! Checks of security groups: who has which, and what rules name.

use std::collections::HashMap;

use super::super::error::quote;
use super::super::security::{RulePeer, SecurityGroupConfig};
use super::super::{LocationConfig, Name};
use super::Checker;

/// Most connections that the table's words can name.
const MOST: u32 = 8_000_000;

type Groups<'c> = HashMap<&'c str, &'c SecurityGroupConfig>;

fn groups<'c>(checker: &Checker<'c>) -> Groups<'c> {
    checker.config.security_groups.iter().map(|group| (group.name.as_str(), group)).collect()
}

pub(super) fn check(checker: &mut Checker<'_>) {
    let (config, groups) = (checker.config, groups(checker));
    let table = &config.security;
    if !(1024..=MOST).contains(&table.connections) {
        let message = format!("connections = {} is not in 1024..={MOST}", table.connections);
        checker.fail("security.connections", message);
    }
    if table.connections_per_vnic == 0 || table.connections_per_vnic > table.connections {
        let message = format!(
            "connections-per-vnic = {} is not in 1..={}, which is what the table holds (connections)",
            table.connections_per_vnic, table.connections
        );
        checker.fail("security.connections-per-vnic", message);
    }
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, group) in config.security_groups.iter().enumerate() {
        let path = format!("security-group[{index}]");
        if let Some(other) = names.insert(&group.name, index) {
            let line = checker.line(&format!("security-group[{other}].name"));
            let message =
                format!("security group {}: another one{line} has this name; choose another", group.name);
            checker.fail(format!("{path}.name"), message);
        }
        if !config.vpcs.iter().any(|vpc| vpc.name == group.vpc) {
            let message = format!(
                "security group {}: there is no VPC {}; add a [[vpc]] of that name",
                group.name,
                quote(&group.vpc)
            );
            checker.fail(format!("{path}.vpc"), message);
        }
        for (at, rule) in group.rules.iter().enumerate() {
            let path = format!("{path}.rules[{at}]");
            match &rule.peer {
                RulePeer::Prefix(prefix) if *prefix != prefix.trunc() => {
                    let message = format!(
                        "security group {}: {prefix} has host bits; write {}",
                        group.name,
                        prefix.trunc()
                    );
                    checker.fail(format!("{path}.prefix"), message);
                }
                RulePeer::Group(name) if !groups.contains_key(name.as_str()) => {
                    let message = format!("security group {}: {}", group.name, unknown(name, &groups));
                    checker.fail(format!("{path}.group"), message);
                }
                RulePeer::Any | RulePeer::Prefix(_) | RulePeer::Group(_) => {}
            }
        }
    }
    for (index, vnic) in config.vnics.iter().enumerate() {
        for (at, name) in vnic.security_groups.iter().enumerate() {
            let path = format!("vnic[{index}].security-groups[{at}]");
            match groups.get(name.as_str()) {
                None => checker.fail(path, format!("vnic {}: {}", vnic.name, unknown(name, &groups))),
                Some(group) if group.vpc != vnic.vpc => {
                    let message = format!(
                        "vnic {}: security group {name} is of VPC {}, and the vNIC is in VPC {}",
                        vnic.name, group.vpc, vnic.vpc
                    );
                    checker.fail(path, message);
                }
                Some(_) if vnic.security_groups[..at].contains(name) => {
                    checker.fail(path, format!("vnic {}: security group {name} is named twice", vnic.name));
                }
                Some(_) => {}
            }
        }
    }
    for (index, location) in config.locations.iter().enumerate() {
        check_location(checker, &format!("location[{index}]"), location, &groups);
    }
}

fn unknown(name: &Name, groups: &Groups<'_>) -> String {
    let mut known: Vec<&str> = groups.keys().copied().collect();
    known.sort_unstable();
    known.truncate(8);
    let known = if known.is_empty() { "there are none".into() } else { known.join(", ") };
    format!(
        "there is no security group {}; add a [[security-group]], or use a known one ({known})",
        quote(name)
    )
}

fn check_location(checker: &mut Checker<'_>, path: &str, location: &LocationConfig, groups: &Groups<'_>) {
    for (at, name) in location.groups.iter().enumerate() {
        let vni = |group: &SecurityGroupConfig| {
            checker.config.vpcs.iter().find(|vpc| vpc.name == group.vpc).map(|vpc| vpc.vni)
        };
        let who = format!("location {} of VNI {}", location.vip, location.vni);
        let message = match groups.get(name.as_str()) {
            None => unknown(name, groups),
            Some(group) if vni(group) != Some(location.vni) => {
                format!("security group {name} is of VPC {}, which has another VNI", group.vpc)
            }
            Some(_) => continue,
        };
        checker.fail(format!("{path}.groups[{at}]"), format!("{who}: {message}"));
    }
}

/// The groups of one location that is not in the config yet.
pub(super) fn check_one_location(checker: &mut Checker<'_>, location: &LocationConfig) {
    if location.groups.is_empty() {
        return;
    }
    let groups = groups(checker);
    check_location(checker, "location", location, &groups);
}
