//! Checks of the routes of VPCs.

use std::collections::{HashMap, HashSet};

use pipelines::martian::{is_link_scoped, is_martian};

use super::super::error::quote;
use super::super::routes::{GatewayConfig, MOST_GATEWAYS, RouteTargetConfig, VpcRoute};
use super::Checker;
use super::networks::{Vpcs, check_vtep, unknown_vpc};
use crate::config::{Name, VnicConfig, VpcConfig};

pub(super) fn check(
    checker: &mut Checker<'_>,
    path: &str,
    vpc: &VpcConfig,
    vpcs: &Vpcs<'_>,
    vnics: &HashMap<&Name, &VnicConfig>,
) {
    let who = format!("vpc {}", vpc.name);
    let mut targets = HashSet::new();
    for (index, route) in vpc.routes.iter().enumerate() {
        let path = format!("{path}.routes[{index}]");
        if let Some(message) = check_prefix(route) {
            checker.fail(format!("{path}.to"), format!("{who}: {message}"));
        }
        if !targets.insert(route.to) {
            let message = format!("{who}: there are two routes to {}; keep one", route.to);
            checker.fail(format!("{path}.to"), message);
        }
        match &route.target {
            RouteTargetConfig::Gateways(gateways) => check_gateways(checker, &path, &who, route, gateways),
            RouteTargetConfig::Peer { vpc: peer } if *peer == vpc.name => {
                let message = format!(
                    "{who}: the route to {} leads to the VPC itself; name another one, or remove the route",
                    route.to
                );
                checker.fail(format!("{path}.vpc"), message);
            }
            RouteTargetConfig::Peer { vpc: peer } if !vpcs.contains_key(peer.as_str()) => {
                let message = format!("{who}: {}", unknown_vpc(peer, vpcs));
                checker.fail(format!("{path}.vpc"), message);
            }
            RouteTargetConfig::Vnic { vnic } => {
                if let Some(message) = check_vnic(vnics, vpc, route, vnic) {
                    checker.fail(format!("{path}.vnic"), format!("{who}: {message}"));
                }
            }
            RouteTargetConfig::Station { mac } if !mac.is_station() => {
                let message = format!(
                    "{who}: {mac} is not the address of one station; write one like 52:54:00:00:00:01"
                );
                checker.fail(format!("{path}.mac"), message);
            }
            RouteTargetConfig::Station { mac } if *mac == vpc.router_mac() => {
                let message = format!("{who}: {mac} is the virtual router itself; give the MAC of a station");
                checker.fail(format!("{path}.mac"), message);
            }
            RouteTargetConfig::Peer { .. }
            | RouteTargetConfig::Station { .. }
            | RouteTargetConfig::Blackhole => {}
        }
    }
}

/// What is wrong with a route's destinations.
fn check_prefix(route: &VpcRoute) -> Option<String> {
    let to = route.to;
    if to != to.trunc() {
        return Some(format!("{to} is not a prefix; write {}", to.trunc()));
    }
    // All of the prefix, when its first and its last address are, unless it is so short that it spans several such ranges:
    // the shortest is 224.0.0.0/3.
    let (first, last) = (to.network(), to.broadcast());
    let never = |address| is_martian(address) && !is_link_scoped(address);
    if to.prefix_len() >= 3 && never(first) && never(last) {
        return Some(format!(
            "no router forwards packets to {to} (loopback, multicast or reserved); remove the route"
        ));
    }
    if first != last && is_link_scoped(first) && is_link_scoped(last) {
        return Some(format!(
            "{to} is link-local, which no router forwards but to single addresses that have a route of their own; write \
             for example {first}/{}",
            to.max_prefix_len()
        ));
    }
    None
}

/// What is wrong with a route to a vNIC.
fn check_vnic(
    vnics: &HashMap<&Name, &VnicConfig>,
    vpc: &VpcConfig,
    route: &VpcRoute,
    name: &Name,
) -> Option<String> {
    let to = route.to;
    let Some(vnic) = vnics.get(name) else {
        return Some(format!(
            "the route to {to} leads to vNIC {}, which this host does not have; add a [[vnic]] of that name, or give \
             the MAC address alone of a station on another host",
            quote(name)
        ));
    };
    (vnic.vpc != vpc.name).then(|| {
        format!(
            "the route to {to} leads to vNIC {name}, which is in VPC {}; name a vNIC of VPC {}, or lead to the other VPC with \
             vpc = \"{}\"",
            vnic.vpc, vpc.name, vnic.vpc
        )
    })
}

fn check_gateways(
    checker: &mut Checker<'_>,
    path: &str,
    who: &str,
    route: &VpcRoute,
    gateways: &[GatewayConfig],
) {
    if gateways.len() > MOST_GATEWAYS {
        let message = format!(
            "{who}: the route to {} has {} next hops; keep {MOST_GATEWAYS} at most",
            route.to,
            gateways.len()
        );
        checker.fail(format!("{path}.next-hops"), message);
    }
    for (index, gateway) in gateways.iter().enumerate() {
        let path = if gateways.len() == 1 { path.to_owned() } else { format!("{path}.next-hops[{index}]") };
        check_vtep(checker, &format!("{path}.vtep"), who, gateway.vtep);
        if !gateway.mac.is_station() {
            let message = format!(
                "{who}: {} is not the address of one station; write one like 52:54:00:00:00:01",
                gateway.mac
            );
            checker.fail(format!("{path}.mac"), message);
        }
        if gateways[..index].contains(gateway) {
            let message = format!(
                "{who}: {} behind {} is given twice as a next hop to {}; keep one",
                gateway.mac, gateway.vtep, route.to
            );
            checker.fail(format!("{path}.vtep"), message);
        }
    }
}
