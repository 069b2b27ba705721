//! The ways to a VTEP: which uplinks and next hops lead there, and which of them are preferred.
//!
//! As in any router the longest prefix wins, among connected networks, static routes and gateways of all uplinks. Among
//! equally long ones the lowest `metric` of an uplink does, and those with the same one share the flows. The others are
//! kept: they take over when no better one is left.

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::UplinkConfig;

/// A station on the link of an uplink that takes packets for a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop {
    /// Index of the uplink.
    pub uplink: u16,
    /// Address to resolve: the VTEP itself or a router.
    pub address: IpAddr,
    /// Own address to ask for it from.
    pub source: IpAddr,
}

/// One of the ways to a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RankedHop {
    /// 0 for those that are used while they can be, 1 for those that come next, and so on.
    pub rank: u8,
    /// Where it begins.
    pub hop: NextHop,
    /// The VTEP behind it that is asked by BFD whether it is reached this way.
    pub beyond: Option<IpAddr>,
}

/// All ways to a VTEP, the preferred ones first; never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelPaths {
    /// The own address that tunnels to the VTEP have, whichever way they take.
    pub source: IpAddr,
    /// The ways.
    pub paths: Vec<RankedHop>,
}

/// True for an address that a second uplink has, too: their common VTEP address.
pub fn is_shared<'u>(uplinks: impl IntoIterator<Item = &'u UplinkConfig>, address: IpAddr) -> bool {
    let has = |uplink: &&UplinkConfig| uplink.addresses.iter().any(|net| net.addr() == address);
    uplinks.into_iter().filter(has).nth(1).is_some()
}

/// The addresses that tunnels of these uplinks come from, the preferred ones first: those that several have, else the first one of each
/// uplink; of IPv4 before those of IPv6. Where a config does not say it, this is what other hosts are told.
pub fn tunnel_sources(uplinks: &[UplinkConfig]) -> Vec<IpAddr> {
    let mut sources = Vec::new();
    for is_v4 in [true, false] {
        let of = |uplink: &UplinkConfig| {
            uplink
                .addresses
                .iter()
                .map(ipnet::IpNet::addr)
                .filter(|a| a.is_ipv4() == is_v4)
                .collect::<Vec<_>>()
        };
        let lists: Vec<Vec<IpAddr>> = uplinks.iter().map(of).collect();
        let all = lists.iter().flatten().copied();
        let mut found: Vec<IpAddr> = all.filter(|&address| is_shared(uplinks, address)).collect();
        if found.is_empty() {
            found = lists.iter().filter_map(|list| list.first().copied()).collect();
        }
        for address in found {
            if !sources.contains(&address) {
                sources.push(address);
            }
        }
    }
    sources
}

/// What a route says, before routes are compared.
struct Candidate {
    /// Bits of its prefix, and the uplink's metric: the least is the best.
    order: (Reverse<u8>, u32),
    hop: NextHop,
    /// Own address of tunnels that take it.
    source: IpAddr,
    beyond: Option<IpAddr>,
}

/// The ways to an address, by uplinks with their indices. Those whose tunnels would have another own address than the best
/// one's are left out: nobody at the other end would know them.
pub fn paths(uplinks: &[(u16, UplinkConfig)], destination: IpAddr) -> Option<TunnelPaths> {
    let mut found: Vec<Candidate> = Vec::new();
    let all = || uplinks.iter().map(|(_, uplink)| uplink);
    for (index, uplink) in uplinks {
        let own = || uplink.addresses.iter().filter(|net| net.addr().is_ipv4() == destination.is_ipv4());
        let connected = |address: IpAddr| own().find(|net| net.contains(&address));
        // The same of all uplinks that have it, in whichever order they list theirs.
        let shared = own().map(IpNet::addr).filter(|&address| is_shared(all(), address)).min();
        let Some(first) = own().next().map(IpNet::addr) else { continue };
        let routes = uplink.routes.iter().map(|route| (route.to, route.via));
        let default = |via: &IpAddr| {
            let any = if via.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            any.parse::<IpNet>().ok().map(|net| (net, *via))
        };
        let gateways = uplink.gateway.iter().filter_map(default);
        let is_asked = uplink.bfd.as_ref().is_some_and(|bfd| bfd.vteps.contains(&destination));
        let direct = connected(destination).map(|net| (*net, destination));
        for (net, via) in direct.into_iter().chain(routes).chain(gateways) {
            if net.contains(&destination) {
                let asks = connected(via).map_or(first, IpNet::addr);
                found.push(Candidate {
                    order: (Reverse(net.prefix_len()), uplink.metric),
                    hop: NextHop { uplink: *index, address: via, source: asks },
                    source: shared.unwrap_or(asks),
                    beyond: is_asked.then_some(destination),
                });
            }
        }
    }
    found.sort_by_key(|candidate| candidate.order);
    let source = found.first()?.source;
    found.retain(|candidate| candidate.source == source);
    let mut orders: Vec<_> = found.iter().map(|candidate| candidate.order).collect();
    orders.dedup();
    let mut paths: Vec<RankedHop> = Vec::new();
    for candidate in &found {
        // A router may be the next hop of a route and of the default one: the better of them counts.
        if paths.iter().all(|path| path.hop != candidate.hop) {
            let rank = orders.iter().take_while(|&&order| order != candidate.order).count().min(255) as u8;
            paths.push(RankedHop { rank, hop: candidate.hop, beyond: candidate.beyond });
        }
    }
    Some(TunnelPaths { source, paths })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn uplinks(text: &str) -> Vec<(u16, UplinkConfig)> {
        #[derive(serde::Deserialize)]
        struct Holder {
            uplink: Vec<UplinkConfig>,
        }
        let uplinks = toml::from_str::<Holder>(text).unwrap().uplink;
        uplinks.into_iter().enumerate().map(|(index, uplink)| (index as u16, uplink)).collect()
    }

    #[test]
    fn the_longest_prefix_wins() {
        let uplinks = uplinks(
            r#"
            [[uplink]]
            name = "a"
            port = { kind = "null" }
            addresses = ["172.16.0.1/24", "fd00:16::1/64"]
            gateway = ["172.16.0.254"]
            routes = [{ to = "10.0.0.0/8", via = "172.16.0.9" }]
            [[uplink]]
            name = "b"
            port = { kind = "null" }
            addresses = ["10.1.0.1/16"]
        "#,
        );
        let via = |to| {
            let found = paths(&uplinks, ip(to))?;
            let hop = found.paths[0].hop;
            Some((hop.uplink, hop.address, hop.source))
        };
        assert_eq!(via("172.16.0.2"), Some((0, ip("172.16.0.2"), ip("172.16.0.1"))));
        assert_eq!(via("10.9.0.1"), Some((0, ip("172.16.0.9"), ip("172.16.0.1"))));
        assert_eq!(via("10.1.2.3"), Some((1, ip("10.1.2.3"), ip("10.1.0.1"))));
        assert_eq!(via("192.0.2.1"), Some((0, ip("172.16.0.254"), ip("172.16.0.1"))));
        assert_eq!(via("fd00:16::2"), Some((0, ip("fd00:16::2"), ip("fd00:16::1"))));
        assert_eq!(via("fd00:17::2"), None);
        // The other uplink cannot speak for the address of this one.
        let all = paths(&uplinks, ip("10.1.2.3")).unwrap();
        assert_eq!((all.source, all.paths.len()), (ip("10.1.0.1"), 1));
    }

    fn told(uplinks: &[(u16, UplinkConfig)], to: &str) -> (IpAddr, Vec<(u8, u16, IpAddr, IpAddr)>) {
        let all = paths(uplinks, ip(to)).unwrap();
        let paths = all.paths.iter();
        (all.source, paths.map(|p| (p.rank, p.hop.uplink, p.hop.address, p.hop.source)).collect())
    }

    #[test]
    fn failover_uplinks_of_one_address_rank_by_their_metric() {
        let uplinks = uplinks(
            r#"
            [[uplink]]
            name = "backup"
            port = { kind = "null" }
            addresses = ["172.16.0.1/24"]
            metric = 10
            [[uplink]]
            name = "main"
            port = { kind = "null" }
            addresses = ["172.16.0.1/24"]
        "#,
        );
        let (peer, own) = (ip("172.16.0.2"), ip("172.16.0.1"));
        assert_eq!(told(&uplinks, "172.16.0.2"), (own, vec![(0, 1, peer, own), (1, 0, peer, own)]));
    }

    #[test]
    fn failover_uplinks_may_list_their_addresses_in_any_order() {
        let uplinks = uplinks(
            r#"
            [[uplink]]
            name = "one"
            port = { kind = "null" }
            addresses = ["172.16.0.1/24", "172.16.0.9/24"]
            [[uplink]]
            name = "other"
            port = { kind = "null" }
            addresses = ["172.16.0.9/24", "172.16.0.1/24"]
        "#,
        );
        let (source, paths) = told(&uplinks, "172.16.0.2");
        assert_eq!((source, paths.len()), (ip("172.16.0.1"), 2));
    }

    #[test]
    fn failover_next_hops_of_one_rank_share_an_address_of_the_host() {
        // Routed to the host: a /32 of its own, a network of its own on each link, and two routers on the second.
        let uplinks = uplinks(
            r#"
            [[uplink]]
            name = "left"
            port = { kind = "null" }
            addresses = ["192.168.1.1/29", "10.255.0.1/32"]
            gateway = ["192.168.1.2"]
            [[uplink]]
            name = "right"
            port = { kind = "null" }
            addresses = ["192.168.2.1/29", "10.255.0.1/32"]
            gateway = ["192.168.2.2", "192.168.2.3"]
            routes = [{ to = "10.255.9.0/24", via = "192.168.2.3" }]
        "#,
        );
        let [left, right, third] = ["192.168.1.2", "192.168.2.2", "192.168.2.3"].map(ip);
        let [from_left, from_right] = ["192.168.1.1", "192.168.2.1"].map(ip);
        let equal = vec![(0, 0, left, from_left), (0, 1, right, from_right), (0, 1, third, from_right)];
        assert_eq!(told(&uplinks, "10.255.0.2"), (ip("10.255.0.1"), equal));
        let longer = vec![(0, 1, third, from_right), (1, 0, left, from_left), (1, 1, right, from_right)];
        assert_eq!(told(&uplinks, "10.255.9.2"), (ip("10.255.0.1"), longer));
    }
}
