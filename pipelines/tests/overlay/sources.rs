//! Who may send what through the tunnel: VTEPs by network, inner sources by VTEP.

use std::net::Ipv4Addr;

use pipelines::drops::DropReason;
use pipelines::snapshot::{Destination, RouteTarget};
use pipelines::vlt::Place;
use pipelines::vtep::{Vtep, Vteps};
use wire::build::Path;
use wire::build::control::{arp_request, neighbour_solicitation};
use wire::{MacAddr, Vni};

use testkit::*;

const REFUSED: [(&str, u64); 2] = [("decapsulated", 1), ("inner-source", 1)];
const HIT: [(&str, u64); 2] = [("nft-hits", 1), ("decapsulated", 1)];

/// What host `from` sends to host 1 under a VNI.
fn sent(from: u8, vni: u32, inner: &[u8]) -> Vec<u8> {
    outer(from, 1, Underlay::default()).vxlan(50_000, Vni::new(vni).unwrap(), inner)
}

/// The same over every underlay, to host 1 of a lab on it.
fn everywhere(try_it: impl Fn(&mut World, &dyn Fn(u8, &[u8]) -> Vec<u8>)) {
    for underlay in UNDERLAYS {
        let wrap =
            |from: u8, inner: &[u8]| outer(from, 1, underlay).vxlan(50_000, Vni::new(100).unwrap(), inner);
        try_it(&mut lab(1, underlay), &wrap);
    }
}

#[test]
fn repair_a_vtep_of_one_vpc_is_not_heard_in_another() {
    let mut world = plain();
    let blue = world.add_vpc(200);
    let (_, port) = world.add_vnic(blue, B, None);
    let place = world.tunnel(blue, 3);
    world.locate_station(blue, S, place);
    // Host 2 has stations of VNI 100, host 3 of VNI 200.
    let vteps = [2, 3].map(|host| (host_v4(host).into(), Vtep::new(u32::from(host), false).unwrap()));
    world.snapshot.vteps = Vteps::new(vteps, [(2, 100, 0), (3, 200, blue)]);
    let (red, of_blue) = (v4(R, A).udp(1, 2, b"x"), v4(S, B).udp(1, 2, b"x"));
    world.one(UPLINK, &sent(2, 100, &red), &DECAP);
    assert_eq!(world.one(UPLINK, &sent(3, 200, &of_blue), &DECAP).0, port);
    for (from, vni, inner) in [(3, 100, &red), (2, 200, &of_blue), (4, 100, &red)] {
        world.expect(UPLINK, &[sent(from, vni, inner)], &[("unknown-vtep", 1)]);
        // A known VTEP before it in the burst lends it nothing.
        let right = if vni == 100 { sent(2, 100, &red) } else { sent(3, 200, &of_blue) };
        let moved = [("nft-hits", 1), ("decapsulated", 1), ("unknown-vtep", 1)];
        world.expect(UPLINK, &[right, sent(from, vni, inner)], &moved);
    }
    world.expect(UPLINK, &[sent(2, 300, &red)], &[("unknown-vni", 1)]);
    // One that the config lists is heard in both.
    let listed = [(host_v4(4).into(), Vtep::new(4, true).unwrap())];
    world.snapshot.vteps = Vteps::new(listed, []);
    let stranger = Station { mac: MacAddr([2, 0, 0, 0, 9, 9]), v4: Ipv4Addr::new(10, 0, 0, 99), ..R };
    world.one(UPLINK, &sent(4, 100, &v4(stranger, A).udp(1, 2, b"x")), &DECAP);
    world.one(UPLINK, &sent(4, 200, &v4(stranger, B).udp(1, 2, b"x")), &DECAP);
    world.expect(UPLINK, &[sent(4, 300, &red)], &[("unknown-vni", 1)]);
}

#[test]
fn repair_a_source_is_behind_the_vtep_it_comes_from() {
    everywhere(|world, wrap| {
        for path in [v4(R, A), v6(R, A)] {
            let frame = path.tcp(1, 2, 0x10, b"x");
            world.expect(UPLINK, &[wrap(3, &frame)], &REFUSED);
            world.one(UPLINK, &wrap(2, &frame), &DECAP);
            // Nor on a flow that is known, nor beside its own packets.
            world.expect(UPLINK, &[wrap(3, &frame)], &REFUSED);
            let moved = [("nft-hits", 2), ("decapsulated", 3), ("inner-source", 1)];
            let out = world.expect(UPLINK, &[wrap(2, &frame), wrap(3, &frame), wrap(2, &frame)], &moved);
            assert_eq!(out.len(), 2);
        }
        // What is not IP has its MAC.
        let frame = v4(R, A).ethernet(0x88b5, &[1; 46]);
        world.expect(UPLINK, &[wrap(3, &frame)], &REFUSED);
        world.one(UPLINK, &wrap(2, &frame), &DECAP);
    });
}

#[test]
fn repair_a_local_vnic_is_never_out_there() {
    everywhere(|world, wrap| {
        for listed in [false, true] {
            world.listed = listed;
            world.index_vteps();
            for path in [v4(B, A), v6(B, A)] {
                // Its MAC and address, its address alone, its MAC alone.
                world.expect(UPLINK, &[wrap(2, &path.udp(1, 2, b"x"))], &REFUSED);
                let disguised = Path { src_mac: R.mac, ..path.clone() };
                world.expect(UPLINK, &[wrap(2, &disguised.udp(1, 2, b"x"))], &REFUSED);
            }
            for path in [v4(R, A), v6(R, A)] {
                let flow = path.udp(7, u16::from(listed), b"x");
                world.one(UPLINK, &wrap(2, &flow), &DECAP);
                let disguised = Path { src_mac: B.mac, ..path }.udp(7, u16::from(listed), b"x");
                world.expect(UPLINK, &[wrap(2, &disguised)], &REFUSED);
                let moved = [("nft-hits", 1), ("decapsulated", 2), ("inner-source", 1)];
                world.expect(UPLINK, &[wrap(2, &flow), wrap(2, &disguised)], &moved);
            }
            world.expect(UPLINK, &[wrap(2, &v4(B, A).ethernet(0x88b5, &[1; 46]))], &REFUSED);
            world.expect(UPLINK, &[wrap(2, &arp_request((B.mac, B.v4), A.v4))], &REFUSED);
            world.expect(UPLINK, &[wrap(2, &neighbour_solicitation((B.mac, B.v6), A.v6, None))], &REFUSED);
        }
    });
}

#[test]
fn repair_group_source_macs_are_dropped_by_name() {
    everywhere(|world, wrap| {
        world.flood(0, &[2]);
        for mac in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr([3, 0, 0, 0, 1, 9])] {
            let of = |path: Path| Path { src_mac: mac, ..path };
            for frame in [
                of(v4(R, A)).udp(1, 2, b"x"),
                of(v6(R, A)).udp(1, 2, b"x"),
                of(v4(R, A)).ethernet(0x88b5, &[1; 46]),
            ] {
                world.expect(UPLINK, &[wrap(2, &frame)], &[("decapsulated", 1), ("group-source-mac", 1)]);
            }
        }
    });
}

#[test]
fn repair_neighbours_claim_only_what_is_behind_their_vtep() {
    everywhere(|world, wrap| {
        let answered = [("decapsulated", 1), ("neighbours-answered", 1), ("encapsulated", 1)];
        world.one(UPLINK, &wrap(2, &arp_request((R.mac, R.v4), A.v4)), &answered);
        world.one(UPLINK, &wrap(2, &neighbour_solicitation((R.mac, R.v6), A.v6, None)), &answered);
        world.expect(UPLINK, &[wrap(3, &arp_request((R.mac, R.v4), A.v4))], &REFUSED);
        world.expect(UPLINK, &[wrap(3, &neighbour_solicitation((R.mac, R.v6), A.v6, None))], &REFUSED);
        // Behind the same VTEP, but another one's address.
        world.expect(UPLINK, &[wrap(2, &arp_request((R.mac, S.v4), A.v4))], &REFUSED);
        world.expect(
            UPLINK,
            &[wrap(2, &arp_request((R.mac, "10.0.0.254".parse().unwrap()), A.v4))],
            &REFUSED,
        );
    });
}

#[test]
fn repair_a_station_that_moves_is_heard_from_its_new_place_only() {
    let mut world = plain();
    let frame = v4(R, A).udp(1, 2, b"x");
    world.one(UPLINK, &sent(2, 100, &frame), &DECAP);
    let slot = world.snapshot.locations[&(0, Destination::Ip(R.v4.into()))].slot.slot;
    let place = world.tunnel(0, 5);
    world.writer.update(slot, place);
    world.expect(UPLINK, &[sent(2, 100, &frame)], &REFUSED);
    world.one(UPLINK, &sent(5, 100, &frame), &HIT);
    // Its next hop is lost for a while: it may speak all the same.
    let unresolved = world.unresolved(0, 5);
    world.writer.update(slot, unresolved);
    world.one(UPLINK, &sent(5, 100, &frame), &HIT);
    world.expect(UPLINK, &[sent(2, 100, &frame)], &REFUSED);
    // It comes to this host.
    world.writer.update(slot, Place::Local { vnic: 1 });
    world.expect(UPLINK, &[sent(5, 100, &frame)], &REFUSED);
    world.writer.update(slot, place);
    world.one(UPLINK, &sent(5, 100, &frame), &HIT);
    // It goes, and its slot becomes somebody else's behind the same VTEP.
    world.forget(0, Destination::Ip(R.v4.into()));
    world.writer.update(slot, place);
    world.expect(UPLINK, &[sent(5, 100, &frame)], &REFUSED);
}

#[test]
fn repair_strangers_are_accepted_where_the_vpc_floods_or_the_config_lists_their_vtep() {
    let stranger = Station { mac: MacAddr([2, 0, 0, 0, 9, 9]), v4: Ipv4Addr::new(10, 0, 0, 99), ..R };
    let frame = v4(stranger, A).udp(1, 2, b"x");
    let mut world = plain();
    world.expect(UPLINK, &[sent(2, 100, &frame)], &REFUSED);
    world.expect(UPLINK, &[sent(2, 100, &v4(stranger, A).ethernet(0x88b5, &[1; 46]))], &REFUSED);
    world.flood(0, &[2]);
    world.one(UPLINK, &sent(2, 100, &frame), &DECAP);
    world.one(UPLINK, &sent(2, 100, &frame), &HIT);
    world.expect(UPLINK, &[sent(3, 100, &frame)], &REFUSED);
    // Once it has a location, that counts.
    let place = world.tunnel(0, 3);
    world.locate_station(0, stranger, place);
    world.expect(UPLINK, &[sent(2, 100, &frame)], &REFUSED);
    world.one(UPLINK, &sent(3, 100, &frame), &[("nft-stale", 1), ("decapsulated", 1)]);
    // The virtual router's addresses are nobody's; its part on another host sends errors.
    let router = Path::v4((R.mac, "10.0.0.254".parse().unwrap()), (A.mac, A.v4));
    world.expect(UPLINK, &[sent(2, 100, &router.udp(1, 2, b"x"))], &REFUSED);
    world.expect(UPLINK, &[sent(2, 100, &router.echo_reply(1, 2, b"x"))], &REFUSED);
    let quoted = &v4(A, R).udp(1, 2, b"question")[14..];
    let error = router.ip(1, &[[3, 4, 0, 0, 0, 0, 5, 0].as_slice(), quoted].concat());
    world.one(UPLINK, &sent(2, 100, &error), &DECAP);
    world.one(UPLINK, &sent(2, 100, &error), &HIT);
    let mut world = plain();
    world.listed = true;
    world.index_vteps();
    world.one(UPLINK, &sent(7, 100, &frame), &DECAP);
    world.one(UPLINK, &sent(7, 100, &frame), &HIT);
    world.expect(UPLINK, &[sent(7, 100, &v4(R, A).udp(1, 2, b"x"))], &REFUSED);
}

#[test]
fn repair_gateways_send_for_the_outside_and_peers_for_their_own() {
    let mut world = plain();
    let blue = world.add_vpc(200);
    let gateway = world.gateways(0, &[4]);
    world.route(0, &[("10.9.0.0/24", RouteTarget::Peer(blue)), ("0.0.0.0/0", gateway)]);
    let far = Station { v4: "10.9.0.1".parse().unwrap(), ..S };
    let place = world.tunnel(blue, 3);
    world.locate(blue, Destination::Ip(far.v4.into()), far.mac, place);
    let from = |address: &str| {
        Path::v4((MacAddr([2, 0, 0, 0, 8, 8]), address.parse().unwrap()), (A.mac, A.v4)).udp(1, 2, b"x")
    };
    world.one(UPLINK, &sent(4, 100, &from("8.8.8.8")), &DECAP);
    world.one(UPLINK, &sent(4, 100, &from("8.8.8.8")), &HIT);
    world.expect(UPLINK, &[sent(2, 100, &from("8.8.8.8"))], &REFUSED);
    world.expect(UPLINK, &[sent(4, 100, &from("10.0.0.77"))], &REFUSED);
    // A location of the peered VPC, from its own VTEP; not one that has none there.
    world.one(UPLINK, &sent(3, 100, &from("10.9.0.1")), &DECAP);
    world.expect(UPLINK, &[sent(2, 100, &from("10.9.0.1"))], &REFUSED);
    world.expect(UPLINK, &[sent(4, 100, &from("10.9.0.1"))], &REFUSED);
    world.expect(UPLINK, &[sent(3, 100, &from("10.9.0.2"))], &REFUSED);
    world.route(0, &[]);
    world.expect(UPLINK, &[sent(4, 100, &from("8.8.8.8"))], &REFUSED);
    world.expect(UPLINK, &[sent(3, 100, &from("10.9.0.1"))], &REFUSED);
}

/// A VPC is reached by another one's vNICs of this host where it routes their addresses back, and never by an address of its own.
#[test]
fn vnics_of_a_peer_on_this_host_send_from_where_the_vpc_routes_back() {
    let mut world = plain();
    let blue = world.add_vpc(200);
    let guest = Station { mac: MacAddr([2, 0, 0, 0, 9, 1]), v4: "10.9.0.1".parse().unwrap(), ..C };
    let (_, port) = world.add_vnic(blue, guest, None);
    let host = |prefix: &'static str, vpc| [(prefix, RouteTarget::Peer(vpc))];
    world.route(blue, &host("10.0.0.0/28", 0));
    let frame = routed(v4(guest, A)).udp(1, 2, b"x");
    let refused = |world: &World| world.worker.counters.drops(DropReason::INNER_SOURCE);
    world.expect(port, std::slice::from_ref(&frame), &[("nft-misses", 1), ("inner-source", 1)]);
    world.route(0, &host("10.9.0.0/24", blue));
    world.snapshot.touch_vpc(blue);
    assert!(!world.pass(port, &frame).is_empty());
    // The way back goes: what was let in is no more.
    world.route(0, &[]);
    world.snapshot.touch_vpc(blue);
    assert!(world.pass(port, &frame).is_empty());
    assert_eq!(refused(&world), 2);
    // An address that a station here has: its groups are not a stranger's.
    let impostor = Station { mac: MacAddr([2, 0, 0, 0, 9, 2]), v4: R.v4, ..C };
    let (_, port) = world.add_vnic(blue, impostor, None);
    let frame = routed(v4(impostor, A)).udp(1, 2, b"x");
    world.route(0, &host("10.0.0.8/29", blue));
    assert!(world.pass(port, &frame).is_empty());
    assert_eq!(refused(&world), 3);
}

/// Nor is a VPC's station on another host, which could not tell: what comes from this host's VTEP under its VNI may well be from a
/// station of its own here.
#[test]
fn stations_of_a_peer_hear_on_whichever_host_only_whom_the_vpc_routes_back() {
    for (to, way) in [(A, "local"), (R, "encapsulated")] {
        let mut world = plain();
        let blue = world.add_vpc(200);
        let guest = Station { mac: MacAddr([2, 0, 0, 0, 9, 1]), v4: "10.9.0.1".parse().unwrap(), ..C };
        let (_, port) = world.add_vnic(blue, guest, None);
        let host = |prefix: &'static str, vpc| [(prefix, RouteTarget::Peer(vpc))];
        world.route(blue, &host("10.0.0.0/28", 0));
        let frame = [routed(v4(guest, to)).udp(1, 2, b"x")];
        let (refused, passed) = ([("nft-stale", 1), ("inner-source", 1)], [("nft-stale", 1), (way, 1)]);
        world.expect(port, &frame, &[("nft-misses", 1), ("inner-source", 1)]);
        world.route(0, &host("10.9.0.0/24", blue));
        world.snapshot.touch_vpc(blue);
        world.expect(port, &frame, &passed);
        // A station of the VPC comes that has the address, and goes again: what was let in is judged anew.
        let place = world.tunnel(0, 3);
        world.locate(0, Destination::Ip(guest.v4.into()), S.mac, place);
        world.expect(port, &frame, &refused);
        world.forget(0, Destination::Ip(guest.v4.into()));
        world.expect(port, &frame, &passed);
        world.route(0, &[]);
        world.snapshot.touch_vpc(blue);
        world.expect(port, &frame, &refused);
        // Who bears the address of a station, of this host or of another one.
        world.route(0, &host("10.0.0.0/16", blue));
        for (n, victim) in [(2, B), (3, S)] {
            let impostor = Station { mac: MacAddr([2, 0, 0, 0, 9, n]), ..victim };
            let (_, port) = world.add_vnic(blue, impostor, None);
            let frame = routed(v4(impostor, to)).udp(1, 2, b"x");
            world.expect(port, &[frame], &[("nft-misses", 1), ("inner-source", 1)]);
        }
    }
}
