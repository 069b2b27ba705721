//! Between subnets, between VPCs, out of a gateway; and what the virtual router says when it cannot.

use std::net::IpAddr;

use pipelines::snapshot::{Destination, Prefix, RouteTarget, Services, Subnet};
use pipelines::vlt::Place;
use wire::build::Path;
use wire::{HeapBuf, MacAddr, Vni};

use testkit::open::open;
use testkit::*;

const COMPLAINT: [(&str, u64); 2] = [("nft-misses", 1), ("originated", 1)];

fn with(base: &[(&'static str, u64)], more: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
    [base, more].concat()
}

/// What moves when the first packet of a flow is dropped for a reason and its sender told.
fn told(reason: &'static str) -> Vec<(&'static str, u64)> {
    with(&COMPLAINT, &[(reason, 1)])
}

/// The same path one hop on.
fn hop(path: Path, to: MacAddr) -> Path {
    let ttl = path.ttl - 1;
    Path { src_mac: ROUTER, dst_mac: to, ..path }.with_ttl(ttl)
}

#[test]
fn subnets_of_a_vpc_reach_each_other_through_the_router() {
    let mut world = plain();
    for path in [v4(A, C), v6(A, C)] {
        let out = world.one(1, &routed(path.clone()).tcp(1, 2, 2, b"x"), &LOCAL);
        assert_eq!(out, (3, hop(path, C.mac).tcp(1, 2, 2, b"x")));
        sound(&out.1);
    }
    for path in [v4(A, S), v6(A, S)] {
        let out = world.one(1, &routed(path.clone()).with_tos(0x2a).udp(1, 2, b"x"), &ENCAP);
        assert_eq!(open(&out.1).inner, hop(path, S.mac).with_tos(0x2a).udp(1, 2, b"x"));
    }
    // Within the subnet, but sent to the router: routed all the same.
    let out = world.one(1, &routed(v4(A, B)).udp(1, 2, b"x"), &LOCAL);
    assert_eq!(out, (2, hop(v4(A, B), B.mac).udp(1, 2, b"x")));
    // The router of the other host has done its work: what arrives is bridged.
    let arriving = hop(v4(S, A), A.mac).udp(1, 2, b"x");
    assert_eq!(world.one(UPLINK, &tunnelled(&arriving), &DECAP), (1, arriving));
    // Routed and bridged packets between the same addresses are two flows.
    world.one(1, &v4(A, B).udp(1, 2, b"x"), &LOCAL);
}

#[test]
fn destinations_without_a_way() {
    let mut world = plain();
    let to = |address: &str| match ip(address) {
        IpAddr::V4(address) => Path::v4((A.mac, A.v4), (ROUTER, address)).udp(1, 2, b"x"),
        IpAddr::V6(address) => Path::v6((A.mac, A.v6), (ROUTER, address)).udp(1, 2, b"x"),
    };
    world.expect(1, &[to("10.0.1.77")], &told("no-location"));
    world.expect(1, &[to("fd00:2::77")], &told("no-location"));
    world.expect(1, &[to("8.8.8.8")], &told("no-route"));
    world.expect(1, &[to("2001:db8::1")], &told("no-route"));
    // A location comes: the flow follows.
    let place = world.tunnel(0, 2);
    world.locate(0, Destination::Ip(ip("10.0.1.77")), S.mac, place);
    world.one(1, &to("10.0.1.77"), &[("nft-stale", 1), ("encapsulated", 1)]);
    world.expect(1, &[to("8.8.8.8")], &[("nft-hits", 1), ("no-route", 1), ("originated", 1)]);
}

#[test]
fn time_exceeded_goes_back_to_the_sender() {
    for ttl in [0, 1] {
        let mut world = plain();
        let original = routed(v4(A, C)).with_ttl(ttl).udp(1, 2, &[6; 900]);
        let (port, frame) = world.one(1, &original, &with(&COMPLAINT, &[("ttl-expired", 1)]));
        let headers = sound(&frame);
        let (eth, ip) = (headers.ethernet(&frame).unwrap(), headers.ipv4(&frame).unwrap());
        assert_eq!((port, eth.dst, eth.src), (1, A.mac, ROUTER));
        assert_eq!((ip.src(), ip.dst(), headers.sport), ("10.0.0.254".parse().unwrap(), A.v4, 11 << 8));
        assert_eq!(frame.len(), 14 + 576);
        assert_eq!(headers.payload(&frame), &original[14..14 + 548]);
        let original = routed(v6(A, C)).with_ttl(ttl).udp(1, 2, &[6; 1300]);
        let (_, frame) = world.one(1, &original, &with(&COMPLAINT, &[("ttl-expired", 1)]));
        let headers = sound(&frame);
        let ip = headers.ipv6(&frame).unwrap();
        assert_eq!((ip.src(), ip.dst(), headers.sport), ("fd00:1::fe".parse().unwrap(), A.v6, 3 << 8));
        assert_eq!(frame.len(), 14 + 1280);
        assert_eq!(headers.payload(&frame), &original[14..14 + 1232]);
        // Bridged packets have no hop to lose.
        world.one(1, &v4(A, B).with_ttl(ttl).udp(1, 2, b"x"), &LOCAL);
    }
}

/// Whoever traces the way from another host has its packets routed here last, and hears of it through the tunnel.
#[test]
fn repair_time_exceeded_goes_back_into_the_tunnel() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let wrap = |inner: &[u8]| outer(2, 1, underlay).vxlan(50_000, Vni::new(100).unwrap(), inner);
        for (path, kind) in [(routed(v4(R, C)), 11u16), (routed(v6(R, C)), 3)] {
            let inner = path.with_ttl(1).udp(1, 2, b"x");
            let moved = [
                ("nft-misses", 1),
                ("decapsulated", 1),
                ("ttl-expired", 1),
                ("originated", 1),
                ("encapsulated", 1),
            ];
            let (port, frame) = world.one(UPLINK, &wrap(&inner), &moved);
            let opened = open(&frame);
            assert_eq!((port, opened.vni, opened.dst_mac), (UPLINK, 100, host_mac(2).0));
            let headers = sound(&opened.inner);
            assert_eq!((headers.ethernet(&opened.inner).unwrap().dst, headers.sport), (R.mac, kind << 8));
            assert!(headers.payload(&opened.inner).starts_with(&inner[14..]), "the packet is quoted");
        }
        // What says it is from a vNIC of this host is not answered.
        let ours = routed(v4(B, C)).with_ttl(1).udp(1, 2, b"x");
        assert!(world.pass(UPLINK, &wrap(&ours)).is_empty());
    }
}

#[test]
fn no_errors_about_errors_fragments_and_strangers() {
    let mut world = plain();
    let dead = |path: Path| routed(path).with_ttl(1);
    let error = dead(v4(A, C))
        .ip(1, &[[3, 1, 0, 0, 0, 0, 0, 0].as_slice(), &v4(C, A).udp(1, 2, b"x")[14..]].concat());
    world.expect(1, &[error], &[("nft-misses", 1), ("ttl-expired", 1)]);
    let error = dead(v6(A, C))
        .ip(58, &[[1, 0, 0, 0, 0, 0, 0, 0].as_slice(), &v6(C, A).udp(1, 2, b"x")[14..]].concat());
    world.expect(1, &[error], &[("nft-misses", 1), ("ttl-expired", 1)]);
    let mut path = dead(v4(A, C));
    path.dont_fragment = false;
    let fragments = path.fragments(47, &[0; 800], 5, 420);
    let moved = [("nft-misses", 1), ("nft-hits", 1), ("fragments", 1), ("ttl-expired", 2), ("originated", 1)];
    assert_eq!(world.expect(1, &fragments, &moved).len(), 1);
    // Errors are limited: 1,000 a second, 50 at once.
    world.snapshot.settings.error_rate = 1000;
    world.now = pipelines::Now::from_ns(60_000_000_000);
    let mut errors = 0;
    for _ in 0..10 {
        let frames = vec![dead(v4(A, C)).udp(7, 7, b"x"); 64];
        errors += world.run(1, frames.iter().map(|frame| HeapBuf::new(frame)).collect()).len();
    }
    assert!((50..=51).contains(&errors), "{errors} errors");
}

#[test]
fn too_big_names_the_mtu_and_reaches_the_sender_bridged_or_routed() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let mtu: u16 = 1600 - 14 - if underlay.v6 { 56 } else { 36 };
        // Larger than the uplink's and the other vNIC's allow: the sender's own MTU is not what refuses.
        world.snapshot.vnic_rows[0].mtu = 9000;
        for (path, local) in [(v4(A, R), false), (routed(v4(A, S)), false), (routed(v4(A, C)), true)] {
            let expected = if local { 1500 } else { mtu };
            let original = path.tcp(1, 2, 0x10, &vec![0; usize::from(expected) - 39]);
            let (port, frame) = world.one(1, &original, &with(&COMPLAINT, &[("mtu-exceeded", 1)]));
            let headers = sound(&frame);
            let (eth, ip) = (headers.ethernet(&frame).unwrap(), headers.ipv4(&frame).unwrap());
            assert_eq!((port, eth.dst, eth.src), (1, A.mac, ROUTER));
            assert_eq!(
                (ip.src(), ip.dst(), headers.sport),
                ("10.0.0.254".parse().unwrap(), A.v4, 3 << 8 | 4)
            );
            assert_eq!(&frame[14 + 24..14 + 28], &[[0, 0], expected.to_be_bytes()].concat()[..]);
            assert_eq!(
                &headers.payload(&frame)[9..20],
                &original[23..34]
                    .iter()
                    .enumerate()
                    .map(|(i, b)| if i == 1 || i == 2 { headers.payload(&frame)[9 + i] } else { *b })
                    .collect::<Vec<_>>()[..]
            );
            let quoted = headers.payload(&frame);
            assert!(wire::ipv4::checksum_ok(&quoted[..20]));
            assert_eq!(quoted[20..28], original[34..42]);
            // Exactly the MTU fits.
            let fits = path.tcp(1, 2, 0x10, &vec![0; usize::from(expected) - 40]);
            world.one(1, &fits, &[("nft-hits", 1), (if local { "local" } else { "encapsulated" }, 1)]);
        }
        let original = v6(A, R).udp(1, 2, &vec![0; usize::from(mtu) - 47]);
        let (_, frame) = world.one(1, &original, &with(&COMPLAINT, &[("mtu-exceeded", 1)]));
        let headers = sound(&frame);
        assert_eq!((headers.sport, headers.ethernet(&frame).unwrap().dst), (2 << 8, A.mac));
        assert_eq!(frame[14 + 44..14 + 48], u32::from(mtu).to_be_bytes());
        // RoCE senders do not listen: dropped under a name of its own.
        let bth = wire::roce::Bth::new(0x0a, wire::Qpn::truncated(0x11), wire::Psn::truncated(1));
        let roce = v4(A, R).roce(1, bth, &[0; 1600]);
        world.expect(1, &[roce], &[("nft-misses", 1), ("mtu-roce", 1)]);
    }
}

#[test]
fn peered_vpcs_and_gateways() {
    let mut world = plain();
    let blue = world.add_vpc(200);
    world.vpc(blue).set_subnets(vec![Subnet {
        prefix: Prefix::new(ip("10.9.0.0"), 24),
        gateway: Some(ip("10.9.0.254")),
        services: Services::NONE,
    }]);
    let far = Station {
        mac: MacAddr([2, 0, 0, 0, 9, 1]),
        v4: "10.9.0.1".parse().unwrap(),
        v6: "fd09::1".parse().unwrap(),
        host: 1,
    };
    let (_, port) = world.add_vnic(blue, far, None);
    let gateway = world.gateway(0, 4);
    let everything = RouteTarget::Gateways(vec![gateway]);
    world.route(0, &[("10.9.0.0/24", RouteTarget::Peer(blue)), ("0.0.0.0/0", everything)]);
    let path = routed(v4(A, far));
    // The peer has no route back: it does not hear who is not reached from it.
    world.expect(1, &[path.udp(1, 2, b"x")], &[("nft-misses", 1), ("inner-source", 1)]);
    world.route(blue, &[("10.0.0.0/24", RouteTarget::Peer(0))]);
    world.snapshot.touch_vpc(0);
    let found = [("nft-stale", 1), ("local", 1)];
    assert_eq!(world.one(1, &path.udp(1, 2, b"x"), &found), (port, hop(path, far.mac).udp(1, 2, b"x")));
    let outside = Path::v4((A.mac, A.v4), (ROUTER, "8.8.8.8".parse().unwrap()));
    let opened = open(&world.one(1, &outside.udp(1, 2, b"x"), &ENCAP).1);
    assert_eq!((opened.dst, opened.vni), (IpAddr::from(host_v4(4)), 100));
    assert_eq!(opened.inner, hop(outside, gateway.mac).udp(1, 2, b"x"));
    // A peer's absent address, until it comes; no way back without a route of its own.
    let late = Path::v4((A.mac, A.v4), (ROUTER, "10.9.0.2".parse().unwrap())).udp(1, 2, b"x");
    world.expect(1, std::slice::from_ref(&late), &told("no-location"));
    let place = world.tunnel(blue, 2);
    world.locate(blue, Destination::Ip(ip("10.9.0.2")), far.mac, place);
    let opened = open(&world.one(1, &late, &[("nft-stale", 1), ("encapsulated", 1)]).1);
    assert_eq!(opened.vni, 200, "the location's own VNI");
    let back = routed(v4(far, A)).udp(2, 1, b"x");
    world.route(blue, &[]);
    world.expect(port, &[back], &told("no-route"));
    // The peer goes.
    world.snapshot.vpcs[blue as usize] = None;
    world.snapshot.touch_vpc(0);
    world.expect(1, &[late], &[("nft-stale", 1), ("no-route", 1), ("originated", 1)]);
}

#[test]
fn a_location_that_goes_and_one_that_moves() {
    let mut world = plain();
    let frame = v4(A, R).udp(1, 2, b"x");
    world.one(1, &frame, &ENCAP);
    let slot = world.snapshot.locations[&(0, Destination::Mac(R.mac))].slot.slot;
    let place = world.tunnel(0, 5);
    world.writer.update(slot, place);
    let opened = open(&world.one(1, &frame, &[("nft-hits", 1), ("encapsulated", 1)]).1);
    assert_eq!(opened.dst, IpAddr::from(host_v4(5)));
    world.writer.update(slot, Place::Local { vnic: 1 });
    assert_eq!(world.one(1, &frame, &[("nft-hits", 1), ("local", 1)]).0, 2);
    // The slot is freed before the snapshot says so: dropped, not misled.
    world.writer.free(slot);
    world.expect(1, std::slice::from_ref(&frame), &[("nft-hits", 1), ("nft-stale", 1), ("no-location", 1)]);
    world.snapshot.locations.remove(&(0, Destination::Mac(R.mac)));
    world.expect(1, std::slice::from_ref(&frame), &[("nft-hits", 1), ("nft-stale", 1), ("no-location", 1)]);
    world.expect(1, std::slice::from_ref(&frame), &[("nft-hits", 1), ("no-location", 1)]);
    let place = world.tunnel(0, 6);
    world.locate(0, Destination::Mac(R.mac), R.mac, place);
    let opened = open(&world.one(1, &frame, &[("nft-stale", 1), ("encapsulated", 1)]).1);
    assert_eq!(opened.dst, IpAddr::from(host_v4(6)));
    // Where the VPC floods, a flow whose location went floods at once.
    world.flood(0, &[2]);
    world.pass(1, &frame);
    world.forget(0, Destination::Mac(R.mac));
    let moved = [("nft-hits", 1), ("nft-stale", 1), ("copies", 2), ("local", 2), ("encapsulated", 1)];
    assert_eq!(world.expect(1, &[frame], &moved).len(), 3);
}
