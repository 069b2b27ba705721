//! Routes to stations of the VPC: a metadata server that has an address of no subnet, and appliances that prefixes are routed to.

use std::net::IpAddr;
use std::sync::Arc;

use pipelines::Direction;
use pipelines::security::{Group, GroupSet, Peer, Policy, Rule, Security, Traffic};
use pipelines::snapshot::{AllowedPair, Destination, Location, Prefix, RouteTarget, Vnic};
use pipelines::vlt::Place;
use pipelines::vtep::router_mac;
use wire::build::Path;
use wire::{MacAddr, Vni};

use testkit::open::open;
use testkit::*;

const METADATA: [&str; 2] = ["169.254.169.254", "fd00:ec2::254"];

/// A path from or to an address that no station of the tests has.
fn path(from: (MacAddr, IpAddr), to: (MacAddr, IpAddr)) -> Path {
    match (from.1, to.1) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Path::v4((from.0, source), (to.0, destination)),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Path::v6((from.0, source), (to.0, destination)),
        _ => panic!("two families"),
    }
}

pub(super) fn own(station: Station, like: IpAddr) -> IpAddr {
    if like.is_ipv4() { station.v4.into() } else { station.v6.into() }
}

/// What a station asks of an address, by way of the virtual router.
pub(super) fn question(from: Station, address: &str) -> Path {
    path((from.mac, own(from, ip(address))), (ROUTER, ip(address)))
}

/// What a station answers with an address that is no VIP of its own, by way of the virtual router.
fn answer(from: Station, address: &str, to: Station) -> Path {
    path((from.mac, ip(address)), (ROUTER, own(to, ip(address))))
}

/// Lets a vNIC send from both addresses of the metadata service.
fn allow(world: &mut World, index: usize, station: Station) {
    let pair = |text: &&str| AllowedPair { prefix: Prefix::new(ip(text), 128), mac: station.mac };
    let old = world.snapshot.vnics[index].as_deref().unwrap().clone();
    let vnic = Vnic { allowed: METADATA.iter().map(pair).collect(), ..old };
    world.snapshot.vnic_rows[index].guard = vnic.guard_bits();
    world.snapshot.vnics[index] = Some(Arc::new(vnic));
}

/// The metadata service is at a station.
fn serve(world: &mut World, server: Station) {
    let to = RouteTarget::Station(server.mac);
    world.route(0, &[("169.254.169.254/32", to.clone()), ("fd00:ec2::254/128", to)]);
}

fn sent(host: u8, inner: &[u8]) -> Vec<u8> {
    outer(host, 1, Underlay::default()).vxlan(50_000, Vni::new(100).unwrap(), inner)
}

#[test]
fn routing_to_a_station_of_this_host_and_back() {
    for address in METADATA {
        let mut world = plain();
        serve(&mut world, B);
        for (port, client) in [(1, A), (3, C)] {
            let (to, frame) = world.one(port, &question(client, address).tcp(5000, 80, 2, b""), &LOCAL);
            let eth = sound(&frame).ethernet(&frame).unwrap();
            assert_eq!((to, eth.dst, eth.src), (2, B.mac, ROUTER));
            // The guard lets nobody speak for the service without being told so.
            let reply = answer(B, address, client).tcp(80, 5000, 0x12, b"");
            world.expect(2, &[reply], &[("guard-vip", 1)]);
        }
        allow(&mut world, 1, B);
        let (to, frame) = world.one(2, &answer(B, address, C).tcp(80, 5000, 0x12, b""), &LOCAL);
        assert_eq!((to, sound(&frame).ethernet(&frame).unwrap().dst), (3, C.mac));
        // Within the subnet without the router, too.
        let direct = Path { dst_mac: A.mac, ..answer(B, address, A) };
        world.one(2, &direct.tcp(80, 5000, 0x12, b""), &LOCAL);
    }
}

#[test]
fn routing_to_itself_is_a_hairpin_and_lets_others_pass() {
    let mut world = plain();
    world.route(0, &[("0.0.0.0/0", RouteTarget::Station(B.mac))]);
    let out = |from: Station| path((from.mac, from.v4.into()), (ROUTER, ip("8.8.8.8"))).udp(1, 2, b"x");
    world.expect(2, &[out(B)], &[("nft-misses", 1), ("hairpin", 1)]);
    world.one(1, &out(A), &LOCAL);
    // From a tunnel: the host that sent it routes it, and leads to the station by its MAC.
    let bridged = path((R.mac, R.v4.into()), (B.mac, ip("8.8.8.8"))).udp(1, 2, b"x");
    world.one(UPLINK, &sent(2, &bridged), &DECAP);
    // Subnets and longer routes win.
    world.one(1, &routed(v4(A, C)).udp(1, 2, b"x"), &LOCAL);
}

#[test]
fn routing_follows_a_station_to_other_hosts_and_knows_when_it_is_gone() {
    let mut world = plain();
    serve(&mut world, R);
    let asked = question(A, METADATA[0]).udp(7, 80, b"x");
    let way = |world: &mut World, moved: &[(&str, u64)]| {
        let out = world.one(1, &asked, moved).1;
        let open = open(&out);
        (open.dst, sound(&open.inner).ethernet(&open.inner).unwrap().dst)
    };
    assert_eq!(way(&mut world, &ENCAP), (IpAddr::from(host_v4(2)), R.mac));
    let known = [("nft-hits", 1), ("encapsulated", 1)];
    assert_eq!(way(&mut world, &known), (IpAddr::from(host_v4(2)), R.mac));
    // What it answers is heard from its VTEP, and from no other.
    let back = path((R.mac, ip(METADATA[0])), (A.mac, A.v4.into())).udp(80, 7, b"x");
    world.one(UPLINK, &sent(2, &back), &DECAP);
    let refused = [("decapsulated", 1), ("inner-source", 1)];
    world.expect(UPLINK, &[sent(3, &back)], &refused);
    let other = path((S.mac, ip("169.254.169.253")), (A.mac, A.v4.into())).udp(80, 7, b"x");
    world.expect(UPLINK, &[sent(2, &other)], &refused);
    // It moves: the slot changes in place, and both ways follow.
    let slot = world.snapshot.location(0, Destination::Mac(R.mac)).unwrap().slot;
    let there = world.tunnel(0, 3);
    world.writer.update(slot.slot, there);
    assert_eq!(way(&mut world, &known), (IpAddr::from(host_v4(3)), R.mac));
    world.expect(UPLINK, &[sent(2, &back)], &refused);
    assert_eq!(world.pass(UPLINK, &sent(3, &back)).len(), 1);
    // It goes: nobody uses the slot any more, whoever has it next.
    world.forget(0, Destination::Mac(R.mac));
    let again = world.tunnel(0, 5);
    world.writer.allocate(again).unwrap();
    let moved = [("nft-hits", 1), ("nft-stale", 1), ("originated", 1), ("no-location", 1)];
    let (port, frame) = world.one(1, &asked, &moved);
    assert_eq!((port, sound(&frame).sport), (1, 3 << 8 | 1), "host unreachable");
    let before = world.pass(UPLINK, &sent(3, &back));
    assert!(before.is_empty(), "nobody is there to have said it");
    // It comes back, on this host.
    let here = world.snapshot.location(0, Destination::Mac(B.mac)).unwrap().slot;
    let place = Place::Local { vnic: 1 };
    assert_eq!(world.snapshot.vlt.read(here.slot).place, place);
    let location = Location { slot: here, mac: R.mac, groups: 0 };
    world.snapshot.locations.insert((0, Destination::Mac(R.mac)), location);
    world.snapshot.touch_topology(0);
    let (port, frame) = world.one(1, &asked, &[("nft-stale", 1), ("local", 1)]);
    assert_eq!((port, sound(&frame).ethernet(&frame).unwrap().dst), (2, R.mac));
    // A station of this host speaks for the service; what comes out of a tunnel does not.
    world.expect(UPLINK, &[sent(3, &back)], &refused);
}

#[test]
fn routing_to_a_station_spares_no_martians() {
    let mut world = plain();
    let to = RouteTarget::Station(B.mac);
    for (prefix, address) in [
        ("169.254.0.0/16", "169.254.169.254"),
        ("127.0.0.1/32", "127.0.0.1"),
        ("224.0.0.0/4", "224.0.0.5"),
        ("240.0.0.1/32", "240.0.0.1"),
        ("::1/128", "::1"),
        ("ff0e::/16", "ff0e::1"),
    ] {
        world.route(0, &[(prefix, to.clone())]);
        world.expect(1, &[question(A, address).udp(1, 2, b"x")], &[("nft-misses", 1), ("martian", 1)]);
    }
}

/// Rules are about addresses and members as for any other destination: an address behind the route is nobody's, unless it is
/// the station's own.
#[test]
fn routing_to_a_station_is_judged_by_security_groups() {
    let mut world = plain();
    let rule = |peer| Rule { direction: Direction::Out, traffic: Traffic::Tcp(80, 80), peer };
    // A may ask the address, or members of B's group, or nobody.
    for (peer, passes) in [
        (Some(Peer::Prefix(Prefix::new(ip(METADATA[0]), 32))), true),
        (Some(Peer::Group(1)), false),
        (None, false),
    ] {
        let groups = [
            Group { allows_in: true, allows_out: false, rules: peer.map(rule).into_iter().collect() },
            Group { allows_in: true, allows_out: true, rules: Vec::new() },
        ];
        let mut security = Security { epoch: world.snapshot.security.epoch + 1, sets: Vec::new() };
        for (number, station) in [(0u32, A), (1, B)] {
            let policy = Policy::compile(std::iter::once(&groups[number as usize]));
            security.sets.push(GroupSet { groups: [number].into(), policy: Some(Arc::new(policy)) });
            world.snapshot.vnic_rows[number as usize].group_set = number + 1;
            let keys = [Destination::Ip(station.v4.into()), Destination::Mac(station.mac)];
            for key in keys {
                world.snapshot.locations.get_mut(&(0, key)).unwrap().groups = number + 1;
            }
        }
        world.snapshot.security = Arc::new(security);
        serve(&mut world, B);
        let syn = question(A, METADATA[0]).tcp(6000, 80, 2, b"");
        assert_eq!(world.pass(1, &syn).len(), usize::from(passes), "{peer:?}");
        // B's own address, by a route to B.
        world.route(0, &[("10.0.0.2/32", RouteTarget::Station(B.mac))]);
        let own = routed(v4(A, B)).tcp(6001, 80, 2, b"");
        assert_eq!(world.pass(1, &own).len(), usize::from(peer == Some(Peer::Group(1))));
    }
}

/// From R to an address, as the router of R's host sends it to that of another host.
fn by_routers(host: u8, address: &str) -> Path {
    let router = router_mac(host_v4(host).into());
    path((MacAddr([2, 0, 0, 0, 8, 2]), own(R, ip(address))), (router, ip(address)))
}

#[test]
fn routing_what_another_router_sends_to_this_hosts_goes_to_who_has_the_address() {
    let mut world = plain();
    world.route(
        0,
        &[("10.9.0.0/24", RouteTarget::Station(B.mac)), ("fd09::/64", RouteTarget::Station(B.mac))],
    );
    let (v4, v6) = ([A.v4, C.v4].map(|a| a.to_string()), [A.v6, C.v6].map(|a| a.to_string()));
    for (address, port, mac) in [
        (v4[0].as_str(), 1, A.mac),
        (v4[1].as_str(), 3, C.mac),
        (v6[0].as_str(), 1, A.mac),
        (v6[1].as_str(), 3, C.mac),
        ("10.9.0.7", 2, B.mac),
        ("fd09::7", 2, B.mac),
    ] {
        for found in ["nft-misses", "nft-hits"] {
            let frame = by_routers(1, address).udp(1, 2, b"x");
            let ttl = sound(&frame).ttl;
            let (to, frame) = world.one(UPLINK, &sent(2, &frame), &[("decapsulated", 1), (found, 1)]);
            let eth = sound(&frame).ethernet(&frame).unwrap();
            assert_eq!((to, eth.dst, eth.src), (port, mac, ROUTER), "{address}");
            assert_eq!(sound(&frame).ttl, ttl - 1, "{address}");
        }
    }
    let refused = |reason| [("decapsulated", 1), ("nft-misses", 1), (reason, 1)];
    let nobody = by_routers(1, "10.0.0.77").udp(1, 2, b"x");
    world.expect(UPLINK, &[sent(2, &nobody)], &refused("no-location"));
    // Another host's router, and a vNIC that would speak as a router elsewhere.
    let elsewhere = by_routers(3, "10.0.0.1").udp(1, 2, b"x");
    world.expect(UPLINK, &[sent(2, &elsewhere)], &refused("not-local"));
    let own =
        Path { src_mac: A.mac, ..path((A.mac, A.v4.into()), (router_mac(host_v4(1).into()), C.v4.into())) };
    world.expect(1, &[own.udp(1, 2, b"x")], &[("nft-misses", 1), ("no-location", 1)]);
}
