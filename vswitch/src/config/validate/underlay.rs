//! Checks of uplinks: addresses, routers, routes, neighbours, and room for every vNIC's packets in the
//! tunnel.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::super::Config;
use super::super::network::{HostTraffic, InnerVlan, UplinkConfig};

use super::super::process::ForwardMode;
use super::ports::check_iface;
use super::{Checker, is_reserved_in, is_unicast, is_vlan};

/// Inner Ethernet, VxLAN and UDP headers, and the outer IPv4 header.
const OVERHEAD_V4: u16 = 14 + 8 + 8 + 20;
/// The same with an IPv6 header.
const OVERHEAD_V6: u16 = 14 + 8 + 8 + 40;
/// A VLAN tag of the inner frame.
const VLAN_TAG: u16 = 4;

/// The switch's own tunnel addresses, each with its uplink's name.
pub(super) fn own_addresses(config: &Config) -> HashMap<IpAddr, &str> {
    let each = |uplink: &'_ UplinkConfig| uplink.addresses.iter().map(IpNet::addr).collect::<Vec<_>>();
    let pairs = config.uplinks.iter().map(|uplink| (each(uplink), uplink.name.as_str()));
    pairs.flat_map(|(addresses, name)| addresses.into_iter().map(move |ip| (ip, name))).collect()
}

pub(super) fn check(checker: &mut Checker<'_>) {
    let mut seen = HashMap::new();
    for (index, uplink) in checker.config.uplinks.iter().enumerate() {
        let path = format!("uplink[{index}]");
        addresses(checker, &path, uplink, &mut seen);
        gateways(checker, &path, uplink);
        neighbours(checker, &path, uplink);
        host(checker, &path, uplink);
        if let Some(vlan) = uplink.vlan.filter(|vlan| !is_vlan(*vlan)) {
            let message =
                format!("uplink {}: VLAN {vlan} is not in 1..=4094; choose one that is", uplink.name);
            checker.fail(format!("{path}.vlan"), message);
        }
        if let Some(mac) = uplink.mac.filter(|mac| !mac.is_station()) {
            let message = format!(
                "uplink {}: {mac} is not the address of one station; write one like 52:54:00:00:00:01",
                uplink.name
            );
            checker.fail(format!("{path}.mac"), message);
        }
        mtu(checker, &path, uplink);
    }
}

fn addresses<'c>(
    checker: &mut Checker<'c>,
    path: &str,
    uplink: &'c UplinkConfig,
    seen: &mut HashMap<IpAddr, &'c UplinkConfig>,
) {
    let name = &uplink.name;
    if uplink.addresses.is_empty() && checker.config.forward.mode == ForwardMode::Overlay {
        let message = format!("uplink {name} has no address; write addresses = [\"172.16.0.1/24\"]");
        checker.fail(path, message);
    }
    for (index, address) in uplink.addresses.iter().enumerate() {
        let path = format!("{path}.addresses[{index}]");
        let ip = address.addr();
        if !is_unicast(ip) || is_reserved_in(ip, *address) {
            let message = format!(
                "uplink {name}: {ip} is not an address that a host of {address} can have; choose one that is"
            );
            checker.fail(&path, message);
        }
        let own = || uplink.addresses[..index].iter();
        if own().any(|earlier| earlier.addr() == ip) {
            checker.fail(&path, format!("uplink {name}: the address {ip} is given twice; remove one"));
        } else if let Some(&other) = seen.get(&ip) {
            alike(checker, &path, uplink, other, *address);
        } else {
            seen.insert(ip, uplink);
        }
    }
}

/// Two uplinks have one address: what goes by the one must be able to go by the other.
fn alike(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig, other: &UplinkConfig, address: IpNet) {
    let differs = [
        ("the length of its prefix", !other.addresses.contains(&address)),
        ("mtu", uplink.mtu != other.mtu),
        ("vlan", uplink.vlan != other.vlan),
        ("udp6-zero-checksum", uplink.udp6_zero_checksum != other.udp6_zero_checksum),
    ];
    for (what, _) in differs.into_iter().filter(|(_, differs)| *differs) {
        let message = format!(
            "uplink {}: the address {} is uplink {}'s too, and {what} is not the same; make it so, for that one's \
             packets to go by this one when it fails, or give it another address",
            uplink.name,
            address.addr(),
            other.name
        );
        checker.fail(path, message);
    }
}

/// True where the uplink reaches `ip` without a router.
fn on_link(uplink: &UplinkConfig, ip: IpAddr) -> bool {
    let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    link_local || uplink.addresses.iter().any(|address| address.contains(&ip))
}

pub(super) fn next_hop(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig, what: &str, ip: IpAddr) {
    let name = &uplink.name;
    if !is_unicast(ip) {
        checker.fail(
            path,
            format!("uplink {name}: {what} {ip} is not a unicast address; give the address of one host"),
        );
    } else if uplink.addresses.iter().any(|address| address.addr() == ip) {
        checker.fail(
            path,
            format!("uplink {name}: {what} {ip} is the uplink's own address; give the other side's"),
        );
    } else if !on_link(uplink, ip) {
        let list = uplink.addresses.iter().map(|address| address.trunc().to_string()).collect::<Vec<_>>();
        let message = format!(
            "uplink {name}: {what} {ip} is outside the uplink's networks ({}); give one inside, or an address in \
             its network",
            list.join(", ")
        );
        checker.fail(path, message);
    }
}

fn gateways(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig) {
    let name = &uplink.name;
    for (index, gateway) in uplink.gateway.iter().enumerate() {
        let path = format!("{path}.gateway[{index}]");
        next_hop(checker, &path, uplink, "gateway", *gateway);
        if uplink.gateway[..index].contains(gateway) {
            checker.fail(&path, format!("uplink {name}: gateway {gateway} is listed twice; keep one"));
        }
    }
    let mut routes = HashSet::new();
    for (index, route) in uplink.routes.iter().enumerate() {
        let path = format!("{path}.routes[{index}]");
        next_hop(checker, &format!("{path}.via"), uplink, "next hop", route.via);
        if route.to != route.to.trunc() {
            let message = format!("uplink {name}: {} is not a prefix; write {}", route.to, route.to.trunc());
            checker.fail(format!("{path}.to"), message);
        }
        if route.to.addr().is_ipv4() != route.via.is_ipv4() {
            let message = format!(
                "uplink {name}: {} and {} are of two families; give a next hop of the family of the prefix",
                route.to, route.via
            );
            checker.fail(format!("{path}.via"), message);
        }
        if !routes.insert((route.to, route.via)) {
            let message = format!(
                "uplink {name}: the route to {} via {} is listed twice; keep one",
                route.to, route.via
            );
            checker.fail(format!("{path}.to"), message);
        }
    }
}

fn neighbours(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig) {
    let name = &uplink.name;
    let own = own_addresses(checker.config);
    for (index, peer) in uplink.peers.iter().enumerate() {
        if !is_unicast(*peer) || own.contains_key(peer) {
            let what = if own.contains_key(peer) { "one of our own" } else { "not a unicast address" };
            let message = format!("uplink {name}: peer {peer} is {what}; list the VTEPs of other hosts");
            checker.fail(format!("{path}.peers[{index}]"), message);
        }
    }
    let mut seen = HashSet::new();
    for (index, neighbour) in uplink.neighbours.iter().enumerate() {
        let path = format!("{path}.neighbours[{index}]");
        next_hop(checker, &format!("{path}.ip"), uplink, "neighbour", neighbour.ip);
        if !neighbour.mac.is_station() {
            let message = format!(
                "uplink {name}: {} is not the address of one station; write one like 52:54:00:00:00:01",
                neighbour.mac
            );
            checker.fail(format!("{path}.mac"), message);
        }
        if !seen.insert(neighbour.ip) {
            let message = format!("uplink {name}: neighbour {} is listed twice; keep one", neighbour.ip);
            checker.fail(format!("{path}.ip"), message);
        }
    }
}

fn host(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig) {
    let name = &uplink.name;
    if uplink.host == Some(HostTraffic::Isolate) {
        let message = format!(
            "uplink {name}: host = \"isolate\" needs rules in the NIC, which this version does not install; use \
             \"punt\", or leave it out"
        );
        checker.fail(format!("{path}.host"), message);
    }
    let problem = uplink.punt_tap().and_then(|tap| check_iface(&tap.iface).err());
    match (&uplink.host_tap, problem) {
        (Some(_), _) if uplink.host != Some(HostTraffic::Punt) => {
            let message = format!("uplink {name}: host-tap is for host = \"punt\"; add that or remove this");
            checker.fail(format!("{path}.host-tap"), message);
        }
        (Some(_), Some(problem)) => {
            checker.fail(format!("{path}.host-tap"), format!("uplink {name}: host-tap {problem}"));
        }
        (None, Some(problem)) => {
            let message = format!(
                "uplink {name}: without host-tap, the tap of host = \"punt\" is named after the uplink: {problem}, and \
                 write it as host-tap"
            );
            checker.fail(format!("{path}.host"), message);
        }
        (_, None) => {}
    }
}

fn mtu(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig) {
    let has_v6 = uplink.addresses.iter().any(|address| address.addr().is_ipv6());
    let (family, overhead, least) =
        if has_v6 { ("IPv6", OVERHEAD_V6, 1280) } else { ("IPv4", OVERHEAD_V4, 576) };
    if uplink.mtu < least {
        let message = format!(
            "uplink {}: mtu {} is less than {family}'s least, {least}; raise it",
            uplink.name, uplink.mtu
        );
        checker.fail(format!("{path}.mtu"), message);
        return;
    }
    for (index, vnic) in checker.config.vnics.iter().enumerate() {
        let vpc = checker.config.vpcs.iter().find(|vpc| vpc.name == vnic.vpc);
        let tagged = vpc.is_some_and(|vpc| vpc.inner_vlan == InnerVlan::Keep);
        let overhead = overhead + if tagged { VLAN_TAG } else { 0 };
        let needed = u32::from(vnic.mtu) + u32::from(overhead);
        if needed > u32::from(uplink.mtu) {
            let tag = if tagged { " with an inner VLAN tag" } else { "" };
            let message = format!(
                "vnic {}: mtu {} and {overhead} bytes of tunnel over {family}{tag} make {needed}, but uplink {} has \
                 mtu {}; raise that to {needed}, or lower the vNIC's to {}",
                vnic.name,
                vnic.mtu,
                uplink.name,
                uplink.mtu,
                uplink.mtu - overhead
            );
            checker.fail(format!("vnic[{index}].mtu"), message);
        }
    }
}
