//! Checks of the tenants' networks: VPCs, subnets, vNICs, locations.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use wire::{MacAddr, Vni};

use super::super::Config;
use super::super::error::quote;
use super::super::network::{LocationConfig, VnicConfig, VnicPort, VpcConfig};
use super::underlay::own_addresses;
use super::{Checker, guard, is_reserved_in, is_unicast, is_vlan, routes};

pub(super) fn check(checker: &mut Checker<'_>) {
    let vpcs = checker.config.vpcs.iter().map(|vpc| (vpc.name.as_str(), vpc)).collect();
    check_vpcs(checker, &vpcs);
    check_subnets(checker, &vpcs);
    check_vnics(checker, &vpcs);
    check_locations(checker, &vpcs);
}

pub(super) type Vpcs<'c> = HashMap<&'c str, &'c VpcConfig>;

pub(super) fn unknown_vpc(name: &str, vpcs: &Vpcs<'_>) -> String {
    let mut known: Vec<&str> = vpcs.keys().copied().collect();
    known.sort_unstable();
    known.truncate(8);
    let known = if known.is_empty() { "there are none".into() } else { known.join(", ") };
    format!("there is no VPC {}; add a [[vpc]] of that name, or use a known one ({known})", quote(name))
}

pub(super) fn check_vtep(checker: &mut Checker<'_>, path: &str, who: &str, vtep: IpAddr) {
    let own = own_addresses(checker.config);
    if let Some(uplink) = own.get(&vtep) {
        let message = format!(
            "{who}: VTEP {vtep} is our own (uplink {uplink}); a VM of this host is a [[vnic]], else give the other \
             host's VTEP"
        );
        checker.fail(path, message);
    } else if !is_unicast(vtep) {
        checker
            .fail(path, format!("{who}: VTEP {vtep} is not a unicast address; give the address of one host"));
    } else if !own.keys().any(|ip| ip.is_ipv4() == vtep.is_ipv4()) {
        let family = if vtep.is_ipv4() { "IPv4" } else { "IPv6" };
        let message = format!("{who}: no uplink has an {family} address to reach VTEP {vtep} from; add one");
        checker.fail(path, message);
    }
}

/// Which router has a MAC address that a station of a VPC cannot have therefore.
pub(super) fn router_with(config: &Config, vpc: Option<&VpcConfig>, mac: MacAddr) -> Option<String> {
    if let Some(vpc) = vpc.filter(|vpc| vpc.router_mac() == mac) {
        return Some(format!("the virtual router of VPC {}", vpc.name));
    }
    let own = config.uplinks.iter().flat_map(|uplink| uplink.addresses.iter().map(|net| net.addr()));
    pipelines::vtep::is_router_mac(mac, own).then(|| {
        "this host's virtual routers as other hosts know them (it follows from an uplink's address)"
            .to_owned()
    })
}

fn check_vpcs(checker: &mut Checker<'_>, vpcs: &Vpcs<'_>) {
    let vnics = checker.config.vnics.iter().map(|vnic| (&vnic.name, vnic.as_ref())).collect();
    for (index, vpc) in checker.config.vpcs.iter().enumerate() {
        let path = format!("vpc[{index}]");
        let who = format!("vpc {}", vpc.name);
        if !vpc.router_mac().is_station() {
            let message = format!(
                "{who}: {} is not the address of one station; write one like 52:54:00:00:00:01",
                vpc.router_mac()
            );
            checker.fail(format!("{path}.router-mac"), message);
        }
        let mut vteps = HashSet::new();
        for (index, &vtep) in vpc.vteps.iter().enumerate() {
            let path = format!("{path}.vteps[{index}]");
            check_vtep(checker, &path, &who, vtep);
            if !vteps.insert(vtep) {
                checker.fail(path, format!("{who}: VTEP {vtep} is listed twice; keep one"));
            }
        }
        routes::check(checker, &path, vpc, vpcs, &vnics);
    }
}

fn check_subnets(checker: &mut Checker<'_>, vpcs: &Vpcs<'_>) {
    let config = checker.config;
    for (index, subnet) in config.subnets.iter().enumerate() {
        let path = format!("subnet[{index}]");
        let prefix = subnet.prefix;
        if !vpcs.contains_key(subnet.vpc.as_str()) {
            let message = format!("subnet {prefix}: {}", unknown_vpc(&subnet.vpc, vpcs));
            checker.fail(format!("{path}.vpc"), message);
        }
        if prefix != prefix.trunc() {
            let message = format!("subnet {prefix} has host bits; write {}", prefix.trunc());
            checker.fail(format!("{path}.prefix"), message);
        }
        if prefix.addr().is_multicast() {
            checker.fail(
                format!("{path}.prefix"),
                format!("subnet {prefix} is multicast; no VM can be in it, so write a unicast prefix"),
            );
        }
        if let Some(gateway) = subnet.gateway
            && (!prefix.contains(&gateway) || is_reserved_in(gateway, prefix) || !is_unicast(gateway))
        {
            let message = format!(
                "subnet {prefix}: gateway {gateway} is not a host's address in it; choose one that is"
            );
            checker.fail(format!("{path}.gateway"), message);
        }
    }
    // Prefixes nest or are apart, so in sorted order each needs a look at the last outermost one only.
    let mut sorted: Vec<_> = config.subnets.iter().enumerate().collect();
    sorted.sort_by_key(|(_, s)| (&s.vpc, s.prefix.network(), s.prefix.prefix_len()));
    let mut outer: Option<(usize, &str, IpNet)> = None;
    for (index, subnet) in sorted {
        let (vpc, prefix) = (subnet.vpc.as_str(), subnet.prefix);
        match outer {
            Some((other, other_vpc, other_prefix))
                if other_vpc == vpc && other_prefix.contains(&prefix.network()) =>
            {
                let (late, early) = (index.max(other), index.min(other));
                let message = format!(
                    "subnet {} overlaps {}{} in VPC {vpc}; the subnets of a VPC are apart, so choose another prefix",
                    config.subnets[late].prefix,
                    config.subnets[early].prefix,
                    checker.line(&format!("subnet[{early}].prefix"))
                );
                checker.fail(format!("subnet[{late}].prefix"), message);
            }
            _ => outer = Some((index, vpc, prefix)),
        }
    }
}

fn check_vnics(checker: &mut Checker<'_>, vpcs: &Vpcs<'_>) {
    let config = checker.config;
    let trunks: HashSet<&str> = config.trunks.iter().map(|trunk| trunk.name.as_str()).collect();
    let mut macs: HashMap<(&str, MacAddr), usize> = HashMap::new();
    let mut vips: HashMap<(&str, IpAddr), usize> = HashMap::new();
    let mut vlans: HashMap<(&str, u16), usize> = HashMap::new();
    for (index, vnic) in config.vnics.iter().enumerate() {
        let path = format!("vnic[{index}]");
        let who = format!("vnic {}", vnic.name);
        let vpc = vpcs.get(vnic.vpc.as_str());
        if vpc.is_none() {
            let message = format!("{who}: {}", unknown_vpc(&vnic.vpc, vpcs));
            checker.fail(format!("{path}.vpc"), message);
        }
        if !vnic.mac.is_station() {
            let what = if vnic.mac.is_group() { "a group address" } else { "zero" };
            let message =
                format!("{who}: MAC {} is {what}; give the vNIC the address of one station", vnic.mac);
            checker.fail(format!("{path}.mac"), message);
        } else if let Some(router) = router_with(checker.config, vpc.copied(), vnic.mac) {
            let message = format!("{who}: MAC {} is that of {router}; choose another", vnic.mac);
            checker.fail(format!("{path}.mac"), message);
        }
        if let Some(other) = macs.insert((&vnic.vpc, vnic.mac), index) {
            let message = format!(
                "{who}: MAC {} is that of vnic {}{} in the same VPC {}; each vNIC of a VPC has its own, so choose another",
                vnic.mac,
                config.vnics[other].name,
                checker.line(&format!("vnic[{other}].mac")),
                vnic.vpc
            );
            checker.fail(format!("{path}.mac"), message);
        }
        check_mtu(checker, &path, vnic);
        for (position, vip) in vnic.vips.iter().enumerate() {
            let path = format!("{path}.vips[{position}]");
            if vpc.is_some() {
                check_vip(checker, &path, vnic, *vip);
            }
            if let Some(other) = vips.insert((&vnic.vpc, *vip), index) {
                let message = format!(
                    "{who}: VIP {vip} is that of vnic {}{} in the same VPC {}; an address has one owner, so choose another",
                    config.vnics[other].name,
                    checker.line(&format!("vnic[{other}].vips")),
                    vnic.vpc
                );
                checker.fail(&path, message);
            }
        }
        check_binding(checker, &path, vnic, &trunks, &mut vlans, index);
    }
    guard::check(checker, vpcs, &macs);
}

fn check_mtu(checker: &mut Checker<'_>, path: &str, vnic: &VnicConfig) {
    let has_v6 = vnic.vips.iter().any(IpAddr::is_ipv6);
    let (family, least) = if has_v6 { ("IPv6", 1280) } else { ("IPv4", 68) };
    if vnic.mtu < least {
        let message =
            format!("vnic {}: mtu {} is less than {family}'s least, {least}; raise it", vnic.name, vnic.mtu);
        checker.fail(format!("{path}.mtu"), message);
    }
}

fn check_vip(checker: &mut Checker<'_>, path: &str, vnic: &VnicConfig, vip: IpAddr) {
    let config = checker.config;
    let who = format!("vnic {}", vnic.name);
    if is_link_local(vip) {
        check_link_local(checker, path, &who, vip, vnic.mac);
        return;
    }
    let mut subnets = config.subnets.iter().filter(|subnet| subnet.vpc == vnic.vpc);
    let Some(subnet) = subnets.clone().find(|subnet| subnet.prefix.contains(&vip)) else {
        let known = subnets.by_ref().take(8).map(|subnet| subnet.prefix.to_string()).collect::<Vec<_>>();
        let known = if known.is_empty() { "it has none".into() } else { known.join(", ") };
        let message = format!(
            "{who}: VIP {vip} is outside the subnets of VPC {} ({known}); choose one inside, or add a [[subnet]]",
            vnic.vpc
        );
        checker.fail(path, message);
        return;
    };
    if subnet.gateway == Some(vip) {
        let message = format!("{who}: VIP {vip} is the gateway of subnet {}; choose another", subnet.prefix);
        checker.fail(path, message);
    } else if !is_unicast(vip) || is_reserved_in(vip, subnet.prefix) {
        let message = format!(
            "{who}: VIP {vip} is not a host's address in subnet {}; choose one that is",
            subnet.prefix
        );
        checker.fail(path, message);
    }
}

/// A link-local address that follows from a MAC is that station's, here and on every other host.
fn check_link_local(checker: &mut Checker<'_>, path: &str, who: &str, vip: IpAddr, own: MacAddr) {
    let IpAddr::V6(address) = vip else { return };
    if let Some(mac) = MacAddr::of_link_local(address).filter(|&mac| mac != own) {
        let message = format!(
            "{who}: VIP {vip} is the link-local address that follows from MAC {mac}; the one of MAC {own} is {}, and is known \
             without configuration: remove this",
            own.link_local()
        );
        checker.fail(path, message);
    }
}

fn is_link_local(vip: IpAddr) -> bool {
    matches!(vip, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn check_binding<'c>(
    checker: &mut Checker<'_>,
    path: &str,
    vnic: &'c VnicConfig,
    trunks: &HashSet<&str>,
    vlans: &mut HashMap<(&'c str, u16), usize>,
    index: usize,
) {
    let who = format!("vnic {}", vnic.name);
    let trunk = match &vnic.port {
        VnicPort::Trunk(trunk) => trunk,
        VnicPort::Own(_) => {
            if let Some(vlan) = vnic.vlan {
                let message = format!(
                    "{who}: vlan = {vlan} is for a trunk, and this vNIC has a port of its own; remove it"
                );
                checker.fail(format!("{path}.vlan"), message);
            }
            return;
        }
    };
    if !trunks.contains(trunk.as_str()) {
        let message = format!(
            "{who}: there is no trunk {}; add a [[trunk]] of that name, or write port = {{ kind = ... }}",
            quote(trunk)
        );
        checker.fail(format!("{path}.port"), message);
    }
    if vnic.offload.is_some() {
        let message = format!(
            "{who}: flows of VLANs of trunk {trunk} stay in software; remove offload, or give the vNIC a port of its own"
        );
        checker.fail(format!("{path}.offload"), message);
    }
    if vnic.queues.is_some() {
        let message = format!("{who}: queues belong to trunk {trunk}; set rx-queues and tx-queues there");
        checker.fail(format!("{path}.queues"), message);
    }
    match vnic.vlan {
        None => {
            let message = format!("{who}: a vNIC on a trunk needs its VLAN; write for example vlan = 100");
            checker.fail(format!("{path}.port"), message);
        }
        Some(vlan) if !is_vlan(vlan) => {
            checker.fail(
                format!("{path}.vlan"),
                format!("{who}: VLAN {vlan} is not in 1..=4094; choose one that is"),
            );
        }
        Some(vlan) => {
            let Some(other) = vlans.insert((trunk, vlan), index) else { return };
            let message = format!(
                "{who}: VLAN {vlan} of trunk {trunk} is taken by vnic {}{}; choose another",
                checker.config.vnics[other].name,
                checker.line(&format!("vnic[{other}].vlan"))
            );
            checker.fail(format!("{path}.vlan"), message);
        }
    }
}

fn check_locations(checker: &mut Checker<'_>, vpcs: &Vpcs<'_>) {
    let config = checker.config;
    let names: HashMap<Vni, &str> = config.vpcs.iter().map(|vpc| (vpc.vni, vpc.name.as_str())).collect();
    let local: HashMap<(Vni, IpAddr), &str> = config
        .vnics
        .iter()
        .filter_map(|vnic| Some((vpcs.get(vnic.vpc.as_str())?.vni, vnic)))
        .flat_map(|(vni, vnic)| vnic.vips.iter().map(move |vip| ((vni, *vip), vnic.name.as_str())))
        .collect();
    let mut seen: HashMap<(Vni, IpAddr), usize> = HashMap::new();
    for (index, location) in config.locations.iter().enumerate() {
        let path = format!("location[{index}]");
        let who = format!("location {} of VNI {}", location.vip, location.vni);
        if !names.contains_key(&location.vni) {
            let message =
                format!("{who}: there is no VPC with VNI {}; add a [[vpc]] that has it", location.vni);
            checker.fail(format!("{path}.vni"), message);
        }
        check_location(checker, &path, location);
        let key = (location.vni, location.vip);
        if let Some(vnic) = local.get(&key) {
            let message = format!(
                "{who}: the VIP is that of vnic {vnic} on this host; remove one of the two, with `vlt del` or `vnic del`"
            );
            checker.fail(format!("{path}.vip"), message);
        }
        if let Some(other) = seen.insert(key, index) {
            let line = checker.line(&format!("location[{other}].vip"));
            checker.fail(
                format!("{path}.vip"),
                format!("{who} is given twice{line}; an address is in one place, so remove one"),
            );
        }
    }
}

/// What must hold of a location whatever else there is.
pub(super) fn check_location(checker: &mut Checker<'_>, path: &str, location: &LocationConfig) {
    let who = format!("location {} of VNI {}", location.vip, location.vni);
    if !is_unicast(location.vip) {
        checker.fail(
            format!("{path}.vip"),
            format!("{who}: the VIP is not a unicast address; give the address of one machine"),
        );
    }
    check_link_local(checker, &format!("{path}.vip"), &who, location.vip, location.mac);
    if !location.mac.is_station() {
        let message = format!(
            "{who}: {} is not the address of one station; write one like 52:54:00:00:00:01",
            location.mac
        );
        checker.fail(format!("{path}.mac"), message);
    }
    check_vtep(checker, &format!("{path}.vtep"), &who, location.vtep);
}
