//! Router advertisements (RFC 4861) to one vNIC: about the subnets of IPv6 that its addresses are in.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use pipelines::snapshot::{Vnic, Vpc};
use wire::build::router::RouterAdvertisement;

use crate::config::{Config, RaConfig, SubnetConfig};

/// The shortest and the longest time between two that nobody asked for (RFC 4861 section 6.2.1), seconds.
const INTERVALS: [u64; 2] = [200, 600];
/// How long name servers hold: three times the longest time between two advertisements (RFC 8106 section 5.1), seconds.
const DNS_LIFETIME: u32 = 3 * INTERVALS[1] as u32;

/// How long after its `n`th advertisement a vNIC is sent the next one: any time between the two, so that they do not come at once.
pub fn interval(vnic: u32, n: u64) -> Duration {
    let [least, most] = INTERVALS;
    let mixed = (u64::from(vnic) << 32 | n & 0xffff_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Duration::from_secs(least + mixed % (most - least + 1))
}

/// The frame for a vNIC; `None` when it has no address in a subnet with advertisements.
pub fn advertisement(config: &Config, vpc: &Vpc, vnic: &Vnic) -> Option<Vec<u8>> {
    let of_vnic = |subnet: &&SubnetConfig| {
        subnet.vpc.as_str() == vpc.name && vnic.vips.iter().any(|vip| subnet.prefix.contains(vip))
    };
    let subnets = config.subnets.iter().filter(of_vnic);
    let told: Vec<(&SubnetConfig, &RaConfig)> =
        subnets.filter_map(|subnet| Some((subnet, subnet.ra.as_ref()?))).collect();
    let lifetime = told.iter().map(|(_, ra)| ra.lifetime.as_secs()).max()?;
    let dns = told.iter().flat_map(|(subnet, ra)| match (&ra.dns, &subnet.dhcp) {
        (dns, Some(dhcp)) if dns.is_empty() => &dhcp.dns,
        (dns, _) => dns,
    });
    let mut servers: Vec<Ipv6Addr> = Vec::new();
    for server in dns {
        if let IpAddr::V6(server) = server
            && !servers.contains(server)
        {
            servers.push(*server);
        }
    }
    let prefixes = told.iter().filter_map(|(subnet, _)| match subnet.prefix {
        IpNet::V6(prefix) => Some((prefix.network(), prefix.prefix_len())),
        IpNet::V4(_) => None,
    });
    let said = RouterAdvertisement {
        managed: told.iter().any(|(subnet, _)| subnet.dhcp.is_some()),
        lifetime: u16::try_from(lifetime).unwrap_or(u16::MAX),
        mtu: vnic.mtu,
        prefixes: prefixes.collect(),
        dns: (servers, DNS_LIFETIME),
    };
    Some(said.frame(vpc.router_mac))
}
