//! Checks of what virtual routers tell vNICs: DHCP and router advertisements.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::network::SubnetConfig;
use super::super::services::{DhcpConfig, DhcpRoute, RaConfig};
use super::super::units::show_duration;
use super::{Checker, is_unicast};

pub(super) fn check(checker: &mut Checker<'_>) {
    for (index, subnet) in checker.config.subnets.iter().enumerate() {
        if let Some(dhcp) = &subnet.dhcp {
            check_dhcp(checker, &format!("subnet[{index}].dhcp"), subnet, dhcp);
        }
        if let Some(ra) = &subnet.ra {
            check_ra(checker, &format!("subnet[{index}].ra"), subnet, ra);
        }
    }
}

fn check_dhcp(checker: &mut Checker<'_>, path: &str, subnet: &SubnetConfig, dhcp: &DhcpConfig) {
    let who = format!("subnet {}: dhcp", subnet.prefix);
    let is_v4 = subnet.prefix.addr().is_ipv4();
    if is_v4 && subnet.gateway.is_none() {
        let message = format!("{who} needs a gateway, whose address is the server's; give the subnet one");
        checker.fail(path, message);
    }
    let lease = dhcp.lease;
    if !(DhcpConfig::MIN_LEASE..=DhcpConfig::MAX_LEASE).contains(&lease) || lease.subsec_nanos() != 0 {
        let message = format!(
            "{who}: lease {} is not in whole seconds between {} and {}; choose one that is",
            show_duration(lease),
            show_duration(DhcpConfig::MIN_LEASE),
            show_duration(DhcpConfig::MAX_LEASE)
        );
        checker.fail(format!("{path}.lease"), message);
    }
    check_dns(checker, &format!("{path}.dns"), &who, subnet.prefix, &dhcp.dns);
    if let Some(mtu) = dhcp.mtu {
        if !is_v4 {
            let message = format!("{who}: DHCPv6 tells no MTU, router advertisements do; remove mtu");
            checker.fail(format!("{path}.mtu"), message);
        } else if mtu < 68 {
            let message = format!("{who}: mtu {mtu} is less than IPv4's least, 68; raise it");
            checker.fail(format!("{path}.mtu"), message);
        }
    }
    if dhcp.routes.len() > DhcpConfig::MAX_ROUTES {
        let message = format!(
            "{who}: {} routes are more than the {} that fit; keep so many",
            dhcp.routes.len(),
            DhcpConfig::MAX_ROUTES
        );
        checker.fail(format!("{path}.routes"), message);
    }
    for (index, route) in dhcp.routes.iter().enumerate() {
        check_route(checker, &format!("{path}.routes[{index}]"), &who, subnet.prefix, route);
    }
}

fn check_ra(checker: &mut Checker<'_>, path: &str, subnet: &SubnetConfig, ra: &RaConfig) {
    let who = format!("subnet {}: ra", subnet.prefix);
    if subnet.prefix.addr().is_ipv4() {
        checker.fail(path, format!("{who}: router advertisements are of IPv6; IPv4 has dhcp, so remove ra"));
        return;
    }
    let [least, most] = RaConfig::LIFETIMES;
    let lifetime = ra.lifetime;
    if !lifetime.is_zero() && !(least..=most).contains(&lifetime) || lifetime.subsec_nanos() != 0 {
        let message = format!(
            "{who}: lifetime {} is neither 0s nor in whole seconds between {} and {}; choose one that is",
            show_duration(lifetime),
            show_duration(least),
            show_duration(most)
        );
        checker.fail(format!("{path}.lifetime"), message);
    }
    check_dns(checker, &format!("{path}.dns"), &who, subnet.prefix, &ra.dns);
}

/// Name servers of the family of a prefix, not too many.
fn check_dns(checker: &mut Checker<'_>, path: &str, who: &str, prefix: IpNet, dns: &[IpAddr]) {
    let family = if prefix.addr().is_ipv4() { "IPv4" } else { "IPv6" };
    for (index, &server) in dns.iter().enumerate() {
        if server.is_ipv4() != prefix.addr().is_ipv4() || !is_unicast(server) {
            let message =
                format!("{who}: {server} is not the {family} address of one name server; give one that is");
            checker.fail(format!("{path}[{index}]"), message);
        }
    }
    if dns.len() > DhcpConfig::MAX_DNS {
        let message = format!(
            "{who}: {} name servers are more than the {} that fit; keep so many",
            dns.len(),
            DhcpConfig::MAX_DNS
        );
        checker.fail(path, message);
    }
}

fn check_route(checker: &mut Checker<'_>, path: &str, who: &str, prefix: IpNet, route: &DhcpRoute) {
    if prefix.addr().is_ipv6() {
        checker.fail(path, format!("{who}: DHCPv6 tells no routes, router advertisements do; remove routes"));
        return;
    }
    if route.to.addr().is_ipv6() || route.to != route.to.trunc() {
        let message = format!("{who}: {} is not a prefix of IPv4; write for example 10.0.0.0/8", route.to);
        checker.fail(format!("{path}.to"), message);
    }
    if let Some(via) = route.via.filter(|via| !prefix.contains(via) || !is_unicast(*via)) {
        let message = format!(
            "{who}: router {via} is not in the subnet, where vNICs could reach it; give a router in it"
        );
        checker.fail(format!("{path}.via"), message);
    }
}
