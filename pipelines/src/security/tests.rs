//! Compiled rules against the oracle, and how long they take.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use wire::protocol;

use super::*;

fn address() -> impl Strategy<Value = IpAddr> {
    // Few bits differ, so that prefixes of every length meet addresses.
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(0x0a00_0000 | bits & 0x8101_0107).into()),
        any::<u64>().prop_map(|bits| {
            Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(bits & 0x8001_0000_0101_0003)).into()
        }),
    ]
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let range = || (0..6u16, 0..6u16);
    prop_oneof![
        Just(Traffic::Any),
        Just(Traffic::Rdma),
        prop_oneof![
            Just(47),
            Just(protocol::UDP),
            Just(protocol::TCP),
            Just(protocol::SCTP),
            Just(protocol::ICMP),
            Just(protocol::ICMPV6),
        ]
        .prop_map(Traffic::Protocol),
        range().prop_map(|(from, to)| Traffic::Tcp(from, to)),
        range().prop_map(|(from, to)| Traffic::Udp(from, to)),
        range().prop_map(|(from, to)| Traffic::Sctp(from, to)),
        range().prop_map(|(from, to)| Traffic::Icmp(from, to)),
        range().prop_map(|(from, to)| Traffic::Icmpv6(from, to)),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let peer = prop_oneof![
        Just(Peer::Any),
        (0..4u32).prop_map(Peer::Group),
        (address(), 0..=128u8).prop_map(|(address, len)| Peer::Prefix(Prefix::new(address, len))),
    ];
    let direction = prop_oneof![Just(Direction::In), Just(Direction::Out)];
    (direction, traffic(), peer).prop_map(|(direction, traffic, peer)| Rule { direction, traffic, peer })
}

fn group() -> impl Strategy<Value = Group> {
    let mostly_not = || prop::bool::weighted(0.2);
    (mostly_not(), mostly_not(), prop::collection::vec(rule(), 0..6))
        .prop_map(|(allows_in, allows_out, rules)| Group { allows_in, allows_out, rules })
}

proptest! {
    #[test]
    fn security_compiled_rules_say_what_the_oracle_says(
        groups in prop::collection::vec(group(), 1..4),
        peer in prop::option::weighted(0.95, address()),
        peer_groups in prop::collection::vec(0..4u32, 0..3),
        proto in prop_oneof![Just(6), Just(17), Just(132), Just(1), Just(58), Just(47), Just(50)],
        port in prop_oneof![9 => 0..7u16, 1 => Just(u16::MAX)],
        rdma in prop::bool::weighted(0.2),
    ) {
        let proto = if rdma { protocol::UDP } else { proto };
        let subject = Subject { peer, proto, port, rdma };
        let policy = Policy::compile(groups.iter());
        for direction in [Direction::In, Direction::Out] {
            let expected = oracle::allows(groups.iter(), direction, &subject, &peer_groups);
            prop_assert_eq!(policy.of(direction).allows(&subject, || &peer_groups), expected, "{:?}", direction);
        }
    }
}

/// Ten thousand rules in a thousand groups: what a flow costs does not grow with them.
#[test]
fn security_ten_thousand_rules_of_a_thousand_groups_are_a_few_lookups() {
    let groups: Vec<Group> = (0..1000u32)
        .map(|n| {
            let prefix =
                |i: u32| Prefix::new(Ipv4Addr::from_bits(n << 20 | i << 12).into(), 20 + (i % 5) as u8);
            let rule = |i: u32| Rule {
                direction: Direction::In,
                traffic: Traffic::Tcp((i * 1000) as u16, (i * 1000 + 500) as u16),
                peer: if i.is_multiple_of(2) { Peer::Group((n + i) % 1000) } else { Peer::Prefix(prefix(i)) },
            };
            Group { rules: (0..10).map(rule).collect(), ..Group::default() }
        })
        .collect();
    let policy = Policy::compile(groups.iter());
    for n in 0..2000u32 {
        let peer_groups = [n % 1000, (n * 7) % 1000];
        let subject = Subject {
            peer: Some(Ipv4Addr::from_bits(n.wrapping_mul(0x9e37_79b9)).into()),
            proto: protocol::TCP,
            port: (n * 37 % 10_000) as u16,
            rdma: false,
        };
        let expected = oracle::allows(groups.iter(), Direction::In, &subject, &peer_groups);
        assert_eq!(policy.of(Direction::In).allows(&subject, || &peer_groups), expected, "{subject:?}");
    }
}
