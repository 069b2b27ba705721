//! Where the addresses of a VPC are routed to: one longest-prefix match over its subnets and routes (RFC 1812 section 5.2.4.3).
//!
//! Built by control, read by the slow path. A route that is longer than a subnet wins over it; of the same length, the subnet
//! does, as what is on link does in any router.

use std::net::IpAddr;

use prefix_trie::PrefixMap;
use wire::MacAddr;

use crate::flow_key::mix;
use crate::vlt::SlotRef;

use super::{Services, ip_key};

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// The prefix of `len` bits that holds `addr`; longer lengths are cut to the address size.
    pub fn new(addr: IpAddr, len: u8) -> Self {
        Self { addr, len: len.min(width(addr)) }
    }

    /// An address in it.
    pub const fn address(self) -> IpAddr {
        self.addr
    }

    /// Prefix length in bits.
    pub const fn len(self) -> u8 {
        self.len
    }

    /// True for the prefix that holds every address of its family.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// True for the prefix of one address alone.
    pub const fn is_host(self) -> bool {
        self.len == width(self.addr)
    }

    /// True when the address is of the same family and inside.
    pub fn contains(self, other: IpAddr) -> bool {
        let (a, b, width) = match (self.addr, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(u32::from(a)), u128::from(u32::from(b)), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
            _ => return false,
        };
        let host_bits = width - u32::from(self.len);
        a.checked_shr(host_bits).unwrap_or(0) == b.checked_shr(host_bits).unwrap_or(0)
    }
}

const fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// A subnet of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Addresses that are on link: a vNIC of the VPC, or nobody, has them.
    pub prefix: Prefix,
    /// Address of the virtual router in it.
    pub gateway: Option<IpAddr>,
    /// What the virtual router offers in it.
    pub services: Services,
}

/// A router behind a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The VTEP, which the choice among several goes by.
    pub vtep: IpAddr,
    /// The VLT slot that leads there.
    pub slot: SlotRef,
    /// Inner destination MAC.
    pub mac: MacAddr,
}

/// Where a route of a VPC leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// One gateway, or several that share the flows.
    Gateways(Vec<Gateway>),
    /// Another VPC of this snapshot (index), whose locations are used.
    Peer(u32),
    /// The station of the VPC with this MAC address, on whichever host that is: an appliance, or a server that has an address
    /// of no subnet.
    Station(MacAddr),
    /// Nowhere.
    Blackhole,
}

impl RouteTarget {
    /// The gateway that a flow takes, by its [`entropy`](crate::flow_key::FlowKey::entropy): the one with the highest random
    /// weight (Thaler and Ravishankar, 1998; RFC 2992 compares it), so that a gateway that goes or comes moves its own flows
    /// only. `None` where no gateway is the target.
    pub fn gateway(&self, entropy: u16) -> Option<&Gateway> {
        let Self::Gateways(gateways) = self else { return None };
        gateways.iter().max_by_key(|gateway| weight(gateway, entropy))
    }
}

fn weight(gateway: &Gateway, entropy: u16) -> u64 {
    let vtep = ip_key(gateway.vtep);
    let hop =
        mix(vtep as u64 ^ 0x9e37_79b9_7f4a_7c15, (vtep >> 64) as u64 ^ gateway.mac.to_u64().rotate_left(16));
    mix(hop, mix(u64::from(entropy) ^ 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f))
}

/// What the longest match for an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// On link.
    Subnet(&'a Subnet),
    /// By a route, which has this prefix.
    Via(Prefix, &'a RouteTarget),
}

/// The subnets and routes of a VPC, ready to be searched.
#[derive(Clone, Default)]
pub struct RouteTable {
    subnets: Vec<Subnet>,
    routes: Vec<(Prefix, RouteTarget)>,
    v4: PrefixMap<(u32, u8), Entry>,
    v6: PrefixMap<(u128, u8), Entry>,
}

/// Position in one of the lists.
#[derive(Clone, Copy)]
enum Entry {
    Subnet(usize),
    Route(usize),
}

/// Equal when they have the same subnets and routes: all else follows from these.
impl PartialEq for RouteTable {
    fn eq(&self, other: &Self) -> bool {
        self.subnets == other.subnets && self.routes == other.routes
    }
}

impl Eq for RouteTable {}

impl std::fmt::Debug for RouteTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteTable").field("subnets", &self.subnets).field("routes", &self.routes).finish()
    }
}

impl RouteTable {
    /// A table of these. Of two routes with the same prefix, and of two such subnets, the first counts.
    pub fn new(subnets: Vec<Subnet>, routes: Vec<(Prefix, RouteTarget)>) -> Self {
        let (mut v4, mut v6) = (PrefixMap::default(), PrefixMap::default());
        let mut enter = |prefix: Prefix, entry| match prefix.addr {
            IpAddr::V4(addr) => {
                let bits = u32::from(addr) & u32::MAX.checked_shl(32 - u32::from(prefix.len)).unwrap_or(0);
                v4.insert((bits, prefix.len), entry);
            }
            IpAddr::V6(addr) => {
                let bits = u128::from(addr) & u128::MAX.checked_shl(128 - u32::from(prefix.len)).unwrap_or(0);
                v6.insert((bits, prefix.len), entry);
            }
        };
        // What is entered later takes the place of what was there.
        for (at, (prefix, _)) in routes.iter().enumerate().rev() {
            enter(*prefix, Entry::Route(at));
        }
        for (at, subnet) in subnets.iter().enumerate().rev() {
            enter(subnet.prefix, Entry::Subnet(at));
        }
        Self { subnets, routes, v4, v6 }
    }

    /// The subnets, in the order in which they were given.
    pub fn subnets(&self) -> &[Subnet] {
        &self.subnets
    }

    /// The routes, in the order in which they were given.
    pub fn routes(&self) -> &[(Prefix, RouteTarget)] {
        &self.routes
    }

    /// The longest match for an address.
    pub fn find(&self, address: IpAddr) -> Option<Route<'_>> {
        let entry = match address {
            IpAddr::V4(address) => self.v4.get_lpm(&(u32::from(address), 32))?.1,
            IpAddr::V6(address) => self.v6.get_lpm(&(u128::from(address), 128))?.1,
        };
        match *entry {
            Entry::Subnet(at) => self.subnets.get(at).map(Route::Subnet),
            Entry::Route(at) => self.routes.get(at).map(|(prefix, target)| Route::Via(*prefix, target)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_hold_what_they_should() {
        let prefix = |text: &str, len| Prefix::new(text.parse().unwrap(), len);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(prefix("10.1.2.3", 24).contains(ip("10.1.2.255")));
        assert!(!prefix("10.1.2.3", 24).contains(ip("10.1.3.0")));
        assert!(prefix("0.0.0.0", 0).contains(ip("255.255.255.255")));
        assert!(!prefix("0.0.0.0", 0).contains(ip("::1")));
        assert!(prefix("fd00::", 64).contains(ip("fd00::ffff:ffff:ffff:ffff")));
        assert!(prefix("::", 0).contains(ip("fd00::1")) && prefix("::1", 128).contains(ip("::1")));
        assert!(!prefix("::1", 128).contains(ip("::2")));
        assert!(prefix("::1", 128).is_host() && prefix("10.0.0.1", 32).is_host());
        assert!(!prefix("::1", 32).is_host());
    }

    fn gateway(host: u8) -> Gateway {
        let slot = SlotRef { slot: u32::from(host), generation: 0 };
        Gateway { vtep: IpAddr::from([172, 16, 0, host]), slot, mac: MacAddr([2, 0, 0, 0, 8, host]) }
    }

    #[test]
    fn routing_over_several_gateways_shares_the_flows_and_moves_few() {
        let four = RouteTarget::Gateways((1..=4).map(gateway).collect());
        let three = RouteTarget::Gateways([4, 1, 3].map(gateway).to_vec());
        let chosen = |target: &RouteTarget, entropy| target.gateway(entropy).unwrap().vtep;
        let mut counts = std::collections::HashMap::new();
        for entropy in 0..=u16::MAX {
            let before = chosen(&four, entropy);
            *counts.entry(before).or_insert(0) += 1;
            let after = chosen(&three, entropy);
            assert!(before == after || before == gateway(2).vtep, "only flows of the one that went may move");
        }
        assert!(counts.len() == 4 && counts.values().all(|n| (15_000..18_000).contains(n)), "{counts:?}");
        assert_eq!(RouteTarget::Blackhole.gateway(0), None);
        // Gateways of one MAC at several VTEPs share as well.
        let anycast = [1, 2].map(|host| Gateway { mac: MacAddr([2; 6]), ..gateway(host) });
        let anycast = RouteTarget::Gateways(anycast.to_vec());
        let first = (0..1000).filter(|&n| chosen(&anycast, n) == gateway(1).vtep).count();
        assert!((350..650).contains(&first), "{first}");
    }

    /// The longest match as one finds it by looking at everything.
    fn linear<'a>(
        subnets: &'a [Subnet],
        routes: &'a [(Prefix, RouteTarget)],
        address: IpAddr,
    ) -> Option<Route<'a>> {
        let mut best: Option<(u8, Route<'a>)> = None;
        let all = subnets.iter().map(|subnet| (subnet.prefix, Route::Subnet(subnet)));
        let all = all.chain(routes.iter().map(|(prefix, target)| (*prefix, Route::Via(*prefix, target))));
        for (prefix, route) in all {
            // At the same length the first stays, and subnets come before routes.
            if prefix.contains(address) && best.is_none_or(|(len, _)| prefix.len() > len) {
                best = Some((prefix.len(), route));
            }
        }
        best.map(|(_, route)| route)
    }

    /// Few different bits, so that prefixes nest and addresses fall into them; both families and all lengths.
    fn address() -> impl Strategy<Value = IpAddr> {
        let bits = prop::sample::select(vec![
            0u128,
            1,
            2,
            3,
            0x80,
            0xff00,
            1 << 31,
            3 << 30,
            1 << 127,
            5 << 64,
            1 << 63,
        ]);
        (prop::collection::vec(bits, 1..4), any::<bool>()).prop_map(|(bits, v6)| {
            let bits = bits.into_iter().fold(0, |all, some| all ^ some);
            if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from((bits as u32).to_be_bytes()) }
        })
    }

    fn prefix() -> impl Strategy<Value = Prefix> {
        let len =
            prop_oneof![0u8..=128, Just(0), Just(1), Just(31), Just(32), Just(64), Just(127), Just(128)];
        (address(), len).prop_map(|(address, len)| Prefix::new(address, len))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn routing_finds_what_looking_at_everything_finds(
            subnets in prop::collection::vec(prefix(), 0..8),
            routes in prop::collection::vec((prefix(), 0u32..4), 0..16),
            asked in prop::collection::vec(address(), 1..32),
        ) {
            let subnets: Vec<_> = subnets.into_iter().map(|prefix| Subnet { prefix, gateway: None, services: Services::NONE }).collect();
            let target = |n: u32| match n {
                0 | 1 => RouteTarget::Peer(n),
                n => RouteTarget::Station(MacAddr([2, 0, 0, 0, 0, n as u8])),
            };
            let routes: Vec<_> = routes.into_iter().map(|(prefix, n)| (prefix, target(n))).collect();
            let table = RouteTable::new(subnets.clone(), routes.clone());
            for address in asked {
                let (found, wanted) = (table.find(address), linear(&subnets, &routes, address));
                // Prefixes that hold the same addresses are the same one, however their host bits are written.
                prop_assert_eq!(found, wanted, "{}", address);
            }
        }
    }
}
