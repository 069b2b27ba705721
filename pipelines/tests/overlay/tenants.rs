//! What a vNIC may send, and delivery on the host itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use pipelines::snapshot::{NO_PORT, PortRole};
use wire::build::Path;
use wire::{HeapBuf, MacAddr};

use testkit::open::open;
use testkit::*;

const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 1, 77]);

#[test]
fn vnics_of_a_host_reach_each_other_without_a_tunnel() {
    let mut world = plain();
    for frame in [v4(A, B).tcp(1, 2, 2, b""), v6(A, B).udp(1, 2, b"x"), v4(A, B).ethernet(0x88b5, &[1; 46])] {
        assert_eq!(world.one(1, &frame, &LOCAL), (2, frame.clone()));
    }
    let long = v4(A, B).udp(5, 5, &[0; 1472]);
    assert_eq!(world.one(1, &long, &LOCAL), (2, long));
    let longer = v4(A, B).ip(47, &[0; 1481]);
    world.one(1, &longer, &[("mtu-exceeded", 1), ("originated", 1)]);
}

#[test]
fn the_guard_knows_mac_and_addresses() {
    let mut world = plain();
    let path = |mac, ip: Ipv4Addr| Path::v4((mac, ip), (R.mac, R.v4)).udp(1, 2, b"x");
    let path6 = |mac, ip: Ipv6Addr| Path::v6((mac, ip), (R.mac, R.v6)).udp(1, 2, b"x");
    world.one(1, &path(A.mac, A.v4), &ENCAP);
    world.one(1, &path6(A.mac, A.v6), &ENCAP);
    for (frame, reason) in [
        (path(OTHER_MAC, A.v4), "guard-mac"),
        (path(B.mac, A.v4), "guard-mac"),
        (path(A.mac, B.v4), "guard-vip"),
        (path(A.mac, Ipv4Addr::UNSPECIFIED), "guard-vip"),
        (path(A.mac, Ipv4Addr::BROADCAST), "guard-vip"),
        (path6(B.mac, A.v6), "guard-mac"),
        (path6(A.mac, B.v6), "guard-vip"),
        (path6(A.mac, Ipv6Addr::UNSPECIFIED), "guard-vip"),
        (path6(A.mac, "fe80::1".parse().unwrap()), "guard-vip"),
        (Path::v4((OTHER_MAC, A.v4), (R.mac, R.v4)).ethernet(0x88b5, &[0; 46]), "guard-mac"),
    ] {
        assert!(world.expect(1, &[frame], &[(reason, 1)]).is_empty());
    }
    assert_eq!(world.worker.counters.vnic(0).drops.get(), 10);
    // A vNIC without IPv6 does not own the unspecified address.
    world.snapshot.vnic_rows[0].v6 = 0;
    world.snapshot.vnic_rows[0].v4 = 0;
    world.expect(1, &[path6(A.mac, Ipv6Addr::UNSPECIFIED)], &[("guard-vip", 1)]);
    world.expect(1, &[path(A.mac, Ipv4Addr::UNSPECIFIED)], &[("guard-vip", 1)]);
}

#[test]
fn further_vips_are_the_vnics_own() {
    let mut world = plain();
    let extra: [IpAddr; 3] = [ip("10.0.0.101"), ip("10.0.0.102"), ip("fd00:1::101")];
    Arc::make_mut(world.snapshot.vnics[0].as_mut().unwrap()).vips.extend(extra);
    let frame = |source: IpAddr| match source {
        IpAddr::V4(source) => Path::v4((A.mac, source), (R.mac, R.v4)).udp(1, 2, b"x"),
        IpAddr::V6(source) => Path::v6((A.mac, source), (R.mac, R.v6)).udp(1, 2, b"x"),
    };
    world.expect(1, &[frame(extra[0])], &[("guard-vip", 1)]);
    world.snapshot.vnic_rows[0].more_vips = 1;
    for address in extra {
        world.one(1, &frame(address), &ENCAP);
    }
    world.expect(1, &[frame(ip("10.0.0.103"))], &[("guard-vip", 1)]);
}

#[test]
fn link_local_traffic_stays_in_its_scope() {
    let mut world = plain();
    let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
    let all_routers: Ipv6Addr = "ff02::16".parse().unwrap();
    let to_group = |source| Path::v6((A.mac, source), (wire::ipv6::multicast_mac(all_routers), all_routers));
    for source in [link_local, Ipv6Addr::UNSPECIFIED] {
        // A listener report passes the guard; the VPC does not flood.
        world.expect(
            1,
            &[to_group(source).ip(58, &[143, 0, 0, 0, 0, 0, 0, 0])],
            &[("nft-misses", 1), ("bum-disabled", 1)],
        );
    }
    world.expect(1, &[to_group(B.v6).ip(58, &[143, 0, 0, 0, 0, 0, 0, 0])], &[("guard-vip", 1)]);
}

#[test]
fn a_trunk_carries_many_vnics() {
    let mut world = World::new(1, Underlay::default());
    let vpc = world.add_vpc(100);
    let trunk = world.add_trunk();
    world.add_vnic(vpc, A, Some(trunk));
    world.add_vnic(vpc, B, Some(trunk));
    let (_, c_port) = world.add_vnic(vpc, C, None);
    let place = world.tunnel(vpc, 2);
    world.locate_station(vpc, R, place);
    let plain_frame = v4(A, R).udp(1, 2, b"x");
    let tagged = v4(A, R).tagged(100).udp(1, 2, b"x");
    assert_eq!(open(&world.one(trunk, &tagged, &ENCAP).1).inner, plain_frame);
    // Priority bits do not matter.
    let with_priority = v4(A, R).tagged(0xe000 | 100).udp(1, 2, b"x");
    assert_eq!(
        open(&world.one(trunk, &with_priority, &[("nft-hits", 1), ("encapsulated", 1)]).1).inner,
        plain_frame
    );
    // Between two vNICs of the trunk: one tag for the other.
    let between = world.one(trunk, &v4(A, B).tagged(100).udp(1, 2, b"x"), &LOCAL);
    assert_eq!(between, (trunk, v4(A, B).tagged(101).udp(1, 2, b"x")));
    // To and from a port of its own, by the router.
    let to_c = world.one(trunk, &routed(v4(A, C)).tagged(100).udp(1, 2, b"x"), &LOCAL);
    let mut expected = v4(A, C).with_ttl(63);
    expected.src_mac = ROUTER;
    assert_eq!(to_c, (c_port, expected.udp(1, 2, b"x")));
    // Answers of the switch carry the tag as well.
    let arp = wire::build::control::arp_request((A.mac, A.v4), R.v4);
    let tagged_arp = [&arp[..12], &[0x81, 0, 0, 100], &arp[12..]].concat();
    let (port, reply) = world.one(trunk, &tagged_arp, &[("neighbours-answered", 1)]);
    assert_eq!((port, &reply[12..18]), (trunk, &[0x81, 0, 0, 100, 0x08, 0x06][..]));
    for frame in [plain_frame.clone(), v4(A, R).tagged(300).udp(1, 2, b"x"), vec![0; 14], vec![0x81; 3]] {
        world.expect(trunk, &[frame], &[("vlan-unbound", 1)]);
    }
    world.expect(trunk, &[v4(A, R).tagged(101).udp(1, 2, b"x")], &[("guard-mac", 1)]);
    // The tag of the trunk off, a tag of the tenant left: dropped as such.
    world.expect(trunk, &[v4(A, R).tagged(100).tagged(5).udp(1, 2, b"x")], &[("inner-vlan", 1)]);
    let mut shared = HeapBuf::new(&tagged);
    shared.set_shared(true);
    world.expect_packets(trunk, vec![shared], &[("no-buffer", 1)]);
}

#[test]
fn tags_inside_the_tunnel_are_dropped_or_kept() {
    let tagged = v4(A, R).tagged(5).udp(1, 2, b"x");
    let twice = v4(A, R).tagged(5).tagged(6).udp(1, 2, b"x");
    let inward = v4(R, A).tagged(5).udp(1, 2, b"x");
    let mut world = plain();
    world.expect(1, &[tagged.clone(), twice.clone()], &[("inner-vlan", 2)]);
    world.expect(UPLINK, &[tunnelled(&inward)], &[("decapsulated", 1), ("inner-vlan", 1)]);
    world.keep_vlan(0);
    assert_eq!(open(&world.one(1, &tagged, &ENCAP).1).inner, tagged);
    assert_eq!(open(&world.one(1, &twice, &ENCAP).1).inner, twice);
    assert_eq!(world.one(UPLINK, &tunnelled(&inward), &DECAP), (1, inward));
    // The tag is part of the flow.
    world.one(1, &v4(A, R).udp(1, 2, b"x"), &ENCAP);
    world.one(1, &v4(A, R).tagged(6).udp(1, 2, b"x"), &ENCAP);
    world.one(1, &v4(A, R).tagged(0xe005).udp(1, 2, b"x"), &[("nft-hits", 1), ("encapsulated", 1)]);
    world.expect(1, &[v4(A, R).tagged(5).tagged(6).tagged(7).udp(1, 2, b"x")], &[("vlan-too-deep", 1)]);
}

#[test]
fn packets_to_oneself_are_dropped() {
    let mut world = plain();
    world.expect(1, &[v4(A, A).udp(1, 2, b"x")], &[("nft-misses", 1), ("hairpin", 1)]);
    world.expect(1, &[routed(v4(A, A)).udp(1, 2, b"x")], &[("nft-misses", 1), ("hairpin", 1)]);
    world.expect(1, &[v6(A, A).udp(1, 2, b"x")], &[("nft-misses", 1), ("hairpin", 1)]);
    // Own VIP, but the MAC of somebody else: bridged by MAC, as a switch does.
    let mut path = v4(A, A);
    path.dst_mac = B.mac;
    world.one(1, &path.udp(1, 2, b"x"), &LOCAL);
}

#[test]
fn what_has_no_place_is_dropped_by_name() {
    let mut world = plain();
    let mut path = v4(A, R);
    path.dst_mac = OTHER_MAC;
    world.expect(1, &[path.udp(1, 2, b"x")], &[("nft-misses", 1), ("no-location", 1)]);
    world.expect(1, &[path.udp(1, 2, b"x")], &[("nft-hits", 1), ("no-location", 1)]);
    path.dst_mac = MacAddr::BROADCAST;
    world.expect(1, &[path.udp(1, 2, b"x")], &[("nft-misses", 1), ("bum-disabled", 1)]);
    // A frame that is not IP has nothing to ask of the router.
    path.dst_mac = ROUTER;
    world.expect(1, &[path.ethernet(0x88b5, &[0; 46])], &[("nft-misses", 1), ("to-router", 1)]);
    // The next hop is not resolved yet; then it is, and the flow follows.
    let slot = world.snapshot.locations[&(0, pipelines::snapshot::Destination::Mac(R.mac))].slot.slot;
    let unresolved = world.unresolved(0, 2);
    world.writer.update(slot, unresolved);
    let frame = v4(A, R).udp(1, 2, b"x");
    world.expect(1, std::slice::from_ref(&frame), &[("nft-misses", 1), ("no-neighbour", 1)]);
    let place = world.tunnel(0, 3);
    world.writer.update(slot, place);
    let wire = world.one(1, &frame, &[("nft-hits", 1), ("encapsulated", 1)]).1;
    assert_eq!(open(&wire).dst, IpAddr::from(host_v4(3)));
    // The vNIC's port is gone.
    world.snapshot.vnic_rows[1].port = NO_PORT;
    world.expect(1, &[v4(A, B).udp(1, 2, b"x")], &[("nft-misses", 1), ("port-down", 1)]);
}

#[test]
fn unbound_ports_forward_nothing() {
    let mut world = plain();
    let frame = v4(A, R).udp(1, 2, b"x");
    world.expect(99, std::slice::from_ref(&frame), &[("port-unbound", 1)]);
    world.snapshot.ports[1].role = PortRole::Unbound;
    world.expect(1, std::slice::from_ref(&frame), &[("port-unbound", 1)]);
    for role in [PortRole::Vnic(40), PortRole::Trunk(3), PortRole::Uplink(4), PortRole::Punt(4)] {
        world.snapshot.ports[1].role = role;
        world.expect(1, std::slice::from_ref(&frame), &[("port-unbound", 1)]);
    }
    // A frame from MAC zero does not match a row that is free.
    world.snapshot.ports[1].role = PortRole::Vnic(40);
    let zero = Path::v4((MacAddr::ZERO, A.v4), (MacAddr::ZERO, R.v4));
    world.expect(1, &[zero.ethernet(0x88b5, &[0; 46])], &[("port-unbound", 1)]);
}

#[test]
fn tenants_with_the_same_addresses_never_meet() {
    let mut world = plain();
    let other = world.add_vpc(200);
    let (_, port) = world.add_vnic(other, A, None);
    let (_, port_b) = world.add_vnic(other, B, None);
    let place = world.tunnel(other, 2);
    world.locate_station(other, R, place);
    let frame = v4(A, R).udp(1, 2, b"x");
    assert_eq!(open(&world.one(1, &frame, &ENCAP).1).vni, 100);
    assert_eq!(open(&world.one(port, &frame, &ENCAP).1).vni, 200);
    let local = v4(A, B).udp(1, 2, b"x");
    assert_eq!(world.one(1, &local, &LOCAL).0, 2);
    assert_eq!(world.one(port, &local, &LOCAL).0, port_b);
    // C is in the first VPC only.
    let moved = [("nft-misses", 1), ("no-location", 1), ("originated", 1)];
    world.expect(port, &[routed(v4(A, C)).udp(1, 2, b"x")], &moved);
    let inward = v4(R, A).udp(1, 2, b"x");
    let to = |vni| outer(2, 1, Underlay::default()).vxlan(50_000, wire::Vni::new(vni).unwrap(), &inward);
    assert_eq!(world.one(UPLINK, &to(100), &DECAP).0, 1);
    assert_eq!(world.one(UPLINK, &to(200), &DECAP).0, port);
}

#[test]
fn flooding_reaches_every_other_one_once() {
    let mut world = plain();
    world.flood(0, &[2, 3]);
    let mut path = v4(A, R);
    path.dst_mac = MacAddr::BROADCAST;
    let frame = path.ethernet(0x88b5, &[1; 46]);
    // B, C, two hosts: three copies and the packet itself.
    let moved = [("nft-misses", 1), ("copies", 3), ("local", 2), ("encapsulated", 2)];
    let out = world.expect(1, std::slice::from_ref(&frame), &moved);
    let ports: Vec<_> = out.iter().map(|(port, _)| *port).collect();
    assert_eq!(ports, [2, 3, UPLINK, UPLINK]);
    assert!(out[..2].iter().all(|(_, bytes)| *bytes == frame));
    let hosts: Vec<_> = out[2..].iter().map(|(_, bytes)| open(bytes)).collect();
    assert!(hosts.iter().all(|opened| opened.inner == frame));
    assert_eq!([hosts[0].dst, hosts[1].dst], [IpAddr::from(host_v4(2)), IpAddr::from(host_v4(3))]);
    // Out of the tunnel: to the vNICs only, never back.
    let mut path = v4(R, A);
    path.dst_mac = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let frame = path.ethernet(0x88b5, &[1; 46]);
    let moved = [("nft-misses", 1), ("decapsulated", 1), ("copies", 2)];
    let out = world.expect(UPLINK, &[tunnelled(&frame)], &moved);
    assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 2, 3]);
    // Unknown unicast from a vNIC floods, out of the tunnel it does not.
    let mut path = v4(A, R);
    path.dst_mac = OTHER_MAC;
    let moved = [("nft-misses", 1), ("copies", 3), ("local", 2), ("encapsulated", 2)];
    world.expect(1, &[path.udp(1, 2, b"x")], &moved);
    let mut path = v4(R, A);
    path.dst_mac = OTHER_MAC;
    world.expect(
        UPLINK,
        &[tunnelled(&path.udp(1, 2, b"x"))],
        &[("nft-misses", 1), ("decapsulated", 1), ("not-local", 1)],
    );
    // Targets that refuse are counted one by one.
    world.snapshot.vnic_rows[1].port = NO_PORT;
    let moved = [("nft-hits", 1), ("copies", 3), ("port-down", 1), ("local", 1), ("encapsulated", 2)];
    let mut path = v4(A, R);
    path.dst_mac = MacAddr::BROADCAST;
    world.expect(1, &[path.ethernet(0x88b5, &[1; 46])], &moved);
}

#[test]
fn alone_in_a_flooding_vpc() {
    let mut world = World::new(1, Underlay::default());
    let vpc = world.add_vpc(100);
    world.add_vnic(vpc, A, None);
    world.flood(vpc, &[]);
    let mut path = v4(A, R);
    path.dst_mac = MacAddr::BROADCAST;
    world.expect(1, &[path.udp(1, 2, b"x")], &[("nft-misses", 1), ("bum-disabled", 1)]);
}
