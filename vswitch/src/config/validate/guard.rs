//! Checks of what vNICs are allowed besides their own addresses.

use std::collections::HashMap;

use wire::MacAddr;

use super::super::network::{VnicConfig, VpcConfig};
use super::networks::router_with;
use super::{Checker, is_unicast};

/// Pairs of one vNIC: each is looked at for packets that come from none before it.
const MOST: usize = 64;

/// Checks the pairs of all vNICs; `macs`: whose each MAC address of a VPC is, by place in the config.
pub(super) fn check(
    checker: &mut Checker<'_>,
    vpcs: &HashMap<&str, &VpcConfig>,
    macs: &HashMap<(&str, MacAddr), usize>,
) {
    for (index, vnic) in checker.config.vnics.iter().enumerate() {
        let path = format!("vnic[{index}].allowed");
        if vnic.allowed.len() > MOST {
            let message = format!(
                "vnic {}: {} allowed pairs are more than {MOST}; put addresses together into prefixes",
                vnic.name,
                vnic.allowed.len()
            );
            checker.fail(&path, message);
        }
        check_pairs(checker, &path, vnic, vpcs.get(vnic.vpc.as_str()).copied());
        for (position, pair) in vnic.allowed.iter().enumerate() {
            let other = pair.mac.and_then(|mac| macs.get(&(vnic.vpc.as_str(), mac))).copied();
            let Some((other, mac)) = other.filter(|&other| other != index).zip(pair.mac) else { continue };
            let message = format!(
                "vnic {}: allowed MAC {mac} is that of vnic {}{} in the same VPC {}; what floats or is nested has a MAC of its own, so give that",
                vnic.name,
                checker.config.vnics[other].name,
                checker.line(&format!("vnic[{other}].mac")),
                vnic.vpc
            );
            checker.fail(format!("{path}[{position}].mac"), message);
        }
    }
}

fn check_pairs(checker: &mut Checker<'_>, path: &str, vnic: &VnicConfig, vpc: Option<&VpcConfig>) {
    let who = format!("vnic {}", vnic.name);
    let gateways = checker.config.subnets.iter().filter(|subnet| subnet.vpc == vnic.vpc);
    let gateways: Vec<_> = gateways.filter_map(|subnet| subnet.gateway).collect();
    for (position, pair) in vnic.allowed.iter().enumerate() {
        let path = format!("{path}[{position}]");
        let (ip, one) = (pair.ip, pair.ip.prefix_len() == pair.ip.max_prefix_len());
        if ip != ip.trunc() {
            let message = format!("{who}: {ip} is not a prefix; write {}", ip.trunc());
            checker.fail(format!("{path}.ip"), message);
        } else if ip.prefix_len() == 0 {
            let message = format!("{who}: {ip} allows every address; say so with guard = \"off\"");
            checker.fail(format!("{path}.ip"), message);
        } else if one && !is_unicast(ip.addr()) || ip.addr().is_multicast() || ip.addr().is_loopback() {
            let message = format!(
                "{who}: {ip} is not of stations' addresses; a vNIC sends from those only, so give such"
            );
            checker.fail(format!("{path}.ip"), message);
        } else if one && gateways.contains(&ip.addr()) {
            let message = format!("{who}: {} is the virtual router's address; allow another one", ip.addr());
            checker.fail(format!("{path}.ip"), message);
        }
        let Some(mac) = pair.mac else { continue };
        if !mac.is_station() {
            let message = format!(
                "{who}: allowed MAC {mac} is not the address of one station; write one like 52:54:00:00:00:01"
            );
            checker.fail(format!("{path}.mac"), message);
        } else if let Some(router) = router_with(checker.config, vpc, mac) {
            checker.fail(
                format!("{path}.mac"),
                format!("{who}: allowed MAC {mac} is that of {router}; choose another"),
            );
        }
    }
}
