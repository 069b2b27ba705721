//! Which route wins, what its targets do, and what the router says of packets that it has no way for.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use pipelines::snapshot::{Destination, RouteTarget};
use pipelines::vlt::Place;
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{HeapBuf, Psn, Qpn, Vni};

use testkit::open::open;
use testkit::*;

const REFUSED: [(&str, u64); 2] = [("decapsulated", 1), ("inner-source", 1)];

/// What moves when the first packet of a flow is dropped for a reason and its sender told.
fn told(reason: &'static str) -> [(&'static str, u64); 3] {
    [("nft-misses", 1), ("originated", 1), (reason, 1)]
}

/// From A, by way of the virtual router.
fn to(address: &str) -> Path {
    match ip(address) {
        IpAddr::V4(address) => Path::v4((A.mac, A.v4), (ROUTER, address)),
        IpAddr::V6(address) => Path::v6((A.mac, A.v6), (ROUTER, address)),
    }
}

fn sent(host: u8, inner: &[u8]) -> Vec<u8> {
    outer(host, 1, Underlay::default()).vxlan(50_000, Vni::new(100).unwrap(), inner)
}

/// The VTEP that a packet of A's leaves to.
fn vtep_of(world: &mut World, frame: &[u8]) -> IpAddr {
    let out = world.pass(1, frame);
    assert_eq!(out.len(), 1);
    open(&out[0].1).dst
}

#[test]
fn routing_takes_the_longest_match_of_subnets_and_routes() {
    let mut world = plain();
    let (wide, narrow) = (world.gateways(0, &[4]), world.gateways(0, &[5]));
    // Shorter than the subnet of C, as long as it, and longer.
    world.route(0, &[("10.0.0.0/8", wide.clone()), ("10.0.1.0/24", wide.clone())]);
    world.one(1, &to("10.0.1.3").udp(1, 2, b"x"), &LOCAL);
    assert_eq!(vtep_of(&mut world, &to("10.1.1.3").udp(1, 2, b"x")), IpAddr::from(host_v4(4)));
    world.route(0, &[("10.0.0.0/8", wide), ("10.0.1.0/29", narrow), ("10.0.1.4/32", RouteTarget::Blackhole)]);
    assert_eq!(vtep_of(&mut world, &to("10.0.1.3").udp(1, 2, b"x")), IpAddr::from(host_v4(5)));
    world.expect(1, &[to("10.0.1.4").udp(1, 2, b"x")], &told("blackhole"));
    world.expect(1, &[to("10.0.1.9").udp(1, 2, b"x")], &told("no-location"));
    // The router's own address in a subnet stays its own.
    let ping = to("10.0.1.254");
    let reply = world.one(1, &ping.echo_request(1, 1, b"x"), &[("nft-misses", 1)]);
    assert_eq!(reply, (1, ping.reversed().echo_reply(1, 1, b"x")));
}

#[test]
fn routing_says_why_a_destination_is_unreachable() {
    let mut world = plain();
    world.route(0, &[("10.66.0.0/16", RouteTarget::Blackhole), ("fd66::/16", RouteTarget::Blackhole)]);
    let cases = [
        ("8.8.8.8", "no-route", 3u16 << 8),
        ("10.0.1.77", "no-location", 3 << 8 | 1),
        ("10.66.1.1", "blackhole", 3 << 8 | 13),
        ("2001:db8::1", "no-route", 1 << 8),
        ("fd00:2::77", "no-location", 1 << 8 | 3),
        ("fd66::1", "blackhole", 1 << 8 | 1),
    ];
    for (address, reason, kind_and_code) in cases {
        let original = to(address).udp(1, 2, &[7; 64]);
        let (port, frame) = world.one(1, &original, &told(reason));
        let headers = sound(&frame);
        let eth = headers.ethernet(&frame).unwrap();
        assert_eq!((port, eth.dst, eth.src, headers.sport), (1, A.mac, ROUTER, kind_and_code), "{address}");
        let ends = match (headers.ipv4(&frame), headers.ipv6(&frame)) {
            (Some(ip), _) => (IpAddr::from(ip.src()), IpAddr::from(ip.dst())),
            (_, Some(ip)) => (IpAddr::from(ip.src()), IpAddr::from(ip.dst())),
            _ => panic!("neither IPv4 nor IPv6"),
        };
        let v4 = ip(address).is_ipv4();
        let wanted = if v4 { (ip("10.0.0.254"), A.v4.into()) } else { (ip("fd00:1::fe"), A.v6.into()) };
        assert_eq!(ends, wanted);
        // The packet as it came is quoted: it has lost no hop here.
        assert_eq!(headers.payload(&frame), &original[14..]);
        // Each packet of the flow that follows is told of, too.
        world.one(1, &original, &[("nft-hits", 1), ("originated", 1), (reason, 1)]);
    }
}

#[test]
fn routing_errors_are_not_for_rdma_bridged_packets_errors_and_tunnels() {
    let mut world = plain();
    let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(9), Psn::truncated(1));
    for path in [to("8.8.8.8"), to("2001:db8::1")] {
        world.expect(1, &[path.roce(7, bth, b"x")], &[("nft-misses", 1), ("no-route", 1)]);
    }
    let unreliable = Bth::new(opcode::UC_SEND_ONLY, Qpn::truncated(9), Psn::truncated(1));
    let dying = routed(v4(A, C)).with_ttl(1).roce(7, unreliable, b"x");
    world.expect(1, &[dying], &[("nft-misses", 1), ("ttl-expired", 1)]);
    // A bridge says nothing.
    let strange = Path::v4((A.mac, A.v4), (S.mac, "10.0.0.99".parse().unwrap()));
    let strange = Path { dst_mac: wire::MacAddr([2, 0, 0, 0, 5, 5]), ..strange }.udp(1, 2, b"x");
    world.expect(1, &[strange], &[("nft-misses", 1), ("no-location", 1)]);
    let error = [[3, 1, 0, 0, 0, 0, 0, 0].as_slice(), &v4(C, A).udp(1, 2, b"x")[14..]].concat();
    world.expect(1, &[to("8.8.8.8").ip(1, &error)], &[("nft-misses", 1), ("no-route", 1)]);
    // Who sends through the tunnel has a router of its own, which knows better.
    let inner = routed(v4(R, C));
    let inner = Path::v4((R.mac, R.v4), (inner.dst_mac, "10.0.1.77".parse().unwrap())).udp(1, 2, b"x");
    let moved = [("decapsulated", 1), ("nft-misses", 1), ("no-location", 1)];
    world.expect(UPLINK, &[sent(2, &inner)], &moved);
}

#[test]
fn routing_errors_are_limited_and_the_drops_are_counted_all_the_same() {
    let mut world = plain();
    world.snapshot.settings.error_rate = 1000;
    world.now = pipelines::Now::from_ns(60_000_000_000);
    let mut errors = 0;
    for _ in 0..10 {
        let frames = vec![to("8.8.8.8").udp(7, 7, b"x"); 64];
        errors += world.run(1, frames.iter().map(|frame| HeapBuf::new(frame)).collect()).len();
    }
    assert!((50..=51).contains(&errors), "{errors} errors");
    let counted = world.worker.all_counters().into_iter().collect::<HashMap<_, _>>();
    assert_eq!((counted["no-route"], counted["originated"]), (640, errors as u64));
}

#[test]
fn routing_shares_flows_among_gateways_and_hears_all_of_them() {
    let mut world = plain();
    let three = world.gateways(0, &[4, 5, 6]);
    world.route(0, &[("0.0.0.0/0", three), ("::/0", RouteTarget::Blackhole)]);
    let mut counts: HashMap<IpAddr, u32> = HashMap::new();
    for port in 0..300 {
        let frame = to("8.8.8.8").udp(port, 53, b"x");
        let first = vtep_of(&mut world, &frame);
        assert_eq!(vtep_of(&mut world, &frame), first, "a flow keeps its way");
        *counts.entry(first).or_default() += 1;
    }
    assert!(counts.len() == 3 && counts.values().all(|&n| n > 50), "{counts:?}");
    // All queue pairs between two addresses take one way, with what sets them up; other pairs of addresses take others.
    let mut ways = HashSet::new();
    for last in 1..=40 {
        let path = to(&format!("8.8.4.{last}"));
        let mut of_pair = HashSet::new();
        for (n, code) in [opcode::RC_SEND_ONLY, opcode::RC_ACK, opcode::UD_SEND_ONLY].iter().enumerate() {
            // Queue pair 1 is the connection manager's.
            let qpn = if *code == opcode::UD_SEND_ONLY { 1 } else { 20 + n as u32 };
            let bth = Bth::new(*code, Qpn::truncated(qpn), Psn::truncated(1));
            of_pair.insert(vtep_of(&mut world, &path.roce(1000 + n as u16, bth, &[0; 24])));
        }
        assert_eq!(of_pair.len(), 1, "{of_pair:?}");
        ways.extend(of_pair);
    }
    assert_eq!(ways.len(), 3);
    // What comes back is accepted from each of them, and from nobody else.
    let back = |host: u8, port| {
        let mac = wire::MacAddr([2, 0, 0, 0, 8, host]);
        Path::v4((mac, "8.8.8.8".parse().unwrap()), (A.mac, A.v4)).udp(53, port, b"x")
    };
    for host in [4, 5, 6] {
        world.one(UPLINK, &sent(host, &back(host, u16::from(host))), &DECAP);
    }
    // Of one flow, too: each gateway may have sent it on.
    world.one(UPLINK, &sent(4, &back(4, 9)), &DECAP);
    world.one(UPLINK, &sent(5, &back(5, 9)), &[("decapsulated", 1), ("nft-stale", 1)]);
    world.expect(UPLINK, &[sent(7, &back(7, 9))], &REFUSED);
    // Nothing comes from where the route says that there is nobody.
    let path = Path::v6((R.mac, "2001:db8::1".parse().unwrap()), (A.mac, A.v6));
    world.expect(UPLINK, &[sent(4, &path.udp(1, 2, b"x"))], &REFUSED);
    // One goes: its flows take other ways, what it sends is refused.
    let two = world.gateways(0, &[4, 5]);
    world.route(0, &[("0.0.0.0/0", two)]);
    for port in 0..300 {
        let way = vtep_of(&mut world, &to("8.8.8.8").udp(port, 53, b"x"));
        assert_ne!(way, IpAddr::from(host_v4(6)));
    }
    world.expect(UPLINK, &[sent(6, &back(6, 6))], &REFUSED);
}

/// The reverse path goes by the same longest match: a route within a subnet says who speaks for those addresses.
#[test]
fn routing_by_a_longer_route_is_heard_from_where_it_leads() {
    let mut world = plain();
    let appliance = world.gateways(0, &[4]);
    let from = |address: &str| {
        Path::v4((wire::MacAddr([2, 0, 0, 0, 8, 4]), address.parse().unwrap()), (C.mac, C.v4)).udp(1, 2, b"x")
    };
    world.expect(UPLINK, &[sent(4, &from("10.0.0.9"))], &REFUSED);
    world.expect(UPLINK, &[sent(4, &from("10.0.0.10"))], &REFUSED);
    world.route(0, &[("10.0.0.8/29", appliance.clone())]);
    // R has a location, the other address has none.
    world.one(UPLINK, &sent(4, &from("10.0.0.9")), &DECAP);
    world.one(UPLINK, &sent(4, &from("10.0.0.10")), &DECAP);
    world.one(UPLINK, &sent(2, &v4(R, A).udp(5, 6, b"x")), &DECAP);
    world.expect(UPLINK, &[sent(4, &from("10.0.0.77"))], &REFUSED);
    // The gateway of another prefix does not speak for this one.
    let other = world.gateways(0, &[5]);
    world.route(0, &[("10.0.0.8/29", appliance.clone()), ("0.0.0.0/0", other)]);
    world.expect(UPLINK, &[sent(5, &from("10.0.0.10"))], &REFUSED);
    // Nobody speaks for a vNIC of this host.
    world.route(0, &[("10.0.0.1/32", appliance)]);
    world.expect(UPLINK, &[sent(4, &from("10.0.0.1"))], &REFUSED);
    let slot = world.snapshot.location(0, Destination::Ip(A.v4.into())).unwrap().slot.slot;
    assert!(matches!(world.snapshot.vlt.read(slot).place, Place::Local { .. }));
}
