//! Addresses out of a subnet. The switch is the store: an address is taken when a vNIC has it.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Addresses of a subnet that pods may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    is_ipv4: bool,
    first: u128,
    last: u128,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl Range {
    /// The addresses of hosts in a subnet, from `start` to `end` where they are given.
    pub fn of(subnet: IpNet, start: Option<IpAddr>, end: Option<IpAddr>) -> Self {
        let (network, broadcast) = (number(subnet.network()), number(subnet.broadcast()));
        let is_ipv4 = subnet.addr().is_ipv4();
        // The address of the network, which is that of all routers in IPv6, and the broadcast address of IPv4.
        let has_hosts = subnet.max_prefix_len() - subnet.prefix_len() > 1;
        let first = network + u128::from(has_hosts);
        let last = broadcast - u128::from(has_hosts && is_ipv4);
        let (start, end) = (start.map_or(first, number), end.map_or(last, number));
        Self { is_ipv4, first: first.max(start), last: last.min(end) }
    }

    /// The first free address at or after a place in the range that `seed` chooses, and on from its beginning: those who choose at
    /// the same time hardly ever choose the same one.
    pub fn choose(self, seed: u64, taken: &HashSet<IpAddr>) -> Option<IpAddr> {
        let size = self.last.checked_sub(self.first)?.saturating_add(1);
        let start = u128::from(seed) % size;
        // Among so many there is a free one, or there is none.
        let tries = size.min(taken.len() as u128 + 1);
        (0..tries).map(|step| self.ip(self.first + (start + step) % size)).find(|ip| !taken.contains(ip))
    }

    fn ip(self, number: u128) -> IpAddr {
        match u32::try_from(number) {
            Ok(number) if self.is_ipv4 => Ipv4Addr::from_bits(number).into(),
            _ => Ipv6Addr::from_bits(number).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_has_the_addresses_of_hosts() {
        for (subnet, start, end, first, last) in [
            ("10.0.0.0/24", None, None, "10.0.0.1", "10.0.0.254"),
            ("10.0.0.0/24", Some("10.0.0.0"), Some("10.0.0.255"), "10.0.0.1", "10.0.0.254"),
            ("10.0.0.0/24", Some("10.0.0.9"), Some("10.0.0.20"), "10.0.0.9", "10.0.0.20"),
            ("10.0.0.0/31", None, None, "10.0.0.0", "10.0.0.1"),
            ("10.0.0.7/32", None, None, "10.0.0.7", "10.0.0.7"),
            ("fd00::/64", None, None, "fd00::1", "fd00::ffff:ffff:ffff:ffff"),
            ("::/0", None, None, "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let range = Range::of(subnet.parse().unwrap(), start.map(ip), end.map(ip));
            assert_eq!((range.ip(range.first), range.ip(range.last)), (ip(first), ip(last)), "{subnet}");
        }
        let empty = Range::of("10.0.0.0/24".parse().unwrap(), Some(ip("10.0.0.9")), Some(ip("10.0.0.8")));
        assert_eq!(empty.choose(5, &HashSet::new()), None);
    }

    proptest! {
        /// As a list of all addresses would choose.
        #[test]
        fn the_choice_is_that_of_a_list(
            length in 24u8..=32,
            bounds in prop::option::of((0u8..=255, 0u8..=255)),
            taken in prop::collection::hash_set(0u8..=255, 0..256),
            seed in any::<u64>(),
        ) {
            let subnet: IpNet = format!("10.0.0.0/{length}").parse().unwrap();
            let at = |last: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
            let taken: HashSet<_> = taken.into_iter().map(at).collect();
            let (start, end) = (bounds.map(|(start, _)| at(start)), bounds.map(|(_, end)| at(end)));
            let mut list: Vec<IpAddr> = subnet.hosts().collect();
            list.retain(|ip| start.is_none_or(|start| *ip >= start) && end.is_none_or(|end| *ip <= end));
            if !list.is_empty() {
                let turn = (seed % list.len() as u64) as usize;
                list.rotate_left(turn);
            }
            let want = list.into_iter().find(|ip| !taken.contains(ip));
            prop_assert_eq!(Range::of(subnet, start, end).choose(seed, &taken), want);
        }
    }
}
