//! What a vNIC may not send, attack by attack, by the name under which it is dropped; and what it may where it is allowed more.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use pipelines::event::{Binding, Floating};
use pipelines::snapshot::{AllowedPair, Destination, Location, Prefix, Vnic};
use wire::arp::ArpPacket;
use wire::build::Path;
use wire::build::control::{arp_reply, arp_request, neighbour_announcement, neighbour_solicitation};
use wire::icmpv6::NeighbourHeader;
use wire::{HeapBuf, MacAddr, View, Vni};

use testkit::*;

const MAC: [(&str, u64); 1] = [("guard-mac", 1)];
const VIP: [(&str, u64); 1] = [("guard-vip", 1)];
/// An address that floats, the MAC that it may have, and one of the addresses of a nested prefix.
const FLOAT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
const VIRTUAL: MacAddr = MacAddr([0, 0, 0x5e, 0, 1, 51]);
const NESTED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 203);

/// Changes what a vNIC may send, as control does.
pub(super) fn change(world: &mut World, index: u32, allowed: &[(&str, u8, MacAddr)], guarded: bool) {
    let at = index as usize;
    let pair =
        |&(text, len, mac): &(&str, u8, MacAddr)| AllowedPair { prefix: Prefix::new(ip(text), len), mac };
    let old = world.snapshot.vnics[at].as_deref().unwrap().clone();
    let vnic = Vnic { allowed: allowed.iter().map(pair).collect(), guarded, ..old };
    world.snapshot.vnic_rows[at].guard = vnic.guard_bits();
    world.snapshot.vnics[at] = Some(Arc::new(vnic));
}

/// A world in which A and B are allowed the same: an address that floats, with a MAC of its own or theirs, and a prefix.
fn floating() -> World {
    let mut world = plain();
    for (index, station) in [(0, A), (1, B)] {
        let pairs = [
            ("10.0.0.100", 32, station.mac),
            ("10.0.0.100", 32, VIRTUAL),
            ("10.0.0.200", 29, station.mac),
            ("fd00:1::100", 128, station.mac),
        ];
        change(&mut world, index, &pairs, true);
    }
    world
}

/// What control makes of an announcement.
fn place(world: &mut World, vnic: u32, address: IpAddr, mac: MacAddr) {
    let own = world.snapshot.vnic(vnic).unwrap().mac;
    let slot = world.snapshot.location(0, Destination::Mac(own)).unwrap().slot;
    world.snapshot.locations.insert((0, Destination::Ip(address)), Location { slot, mac, groups: 0 });
    if mac != own {
        world.snapshot.locations.insert((0, Destination::Mac(mac)), Location { slot, mac, groups: 0 });
    }
    world.snapshot.touch_vpc(0);
}

fn from(mac: MacAddr, address: Ipv4Addr) -> Path {
    Path::v4((mac, address), (R.mac, R.v4))
}

/// An announcement (RFC 5227 section 3): a request for the sender's own address.
fn gratuitous(mac: MacAddr, address: Ipv4Addr) -> Vec<u8> {
    arp_request((mac, address), address)
}

fn reply(mac: MacAddr, address: Ipv4Addr, to: Station) -> Vec<u8> {
    let question = arp_request((to.mac, to.v4), address);
    arp_reply(&wire::parse::parse(&question, question.len()).unwrap(), &question, mac).unwrap()
}

fn floated(world: &World) -> Vec<(u32, IpAddr, MacAddr, bool)> {
    let all = std::iter::from_fn(|| world.shared.events.floated());
    let told =
        all.map(|Floating { vnic, binding: Binding { address, mac }, here }| (vnic, address, mac, here));
    let mut told: Vec<_> = told.collect();
    // From the source of a packet and from what it says.
    told.dedup();
    told
}

#[test]
fn guard_macs_of_others_are_no_source() {
    let mut world = plain();
    for mac in
        [B.mac, R.mac, ROUTER, host_mac(1), MacAddr([2, 9, 9, 9, 9, 9]), MacAddr::BROADCAST, MacAddr::ZERO]
    {
        world.expect(1, &[from(mac, A.v4).udp(1, 2, b"x")], &MAC);
        world.expect(1, &[Path::v6((mac, A.v6), (B.mac, B.v6)).tcp(1, 2, 2, b"x")], &MAC);
        world.expect(1, &[from(mac, A.v4).ethernet(0x88b5, &[0; 46])], &MAC);
    }
}

#[test]
fn guard_addresses_of_others_are_no_source() {
    let mut world = plain();
    let others =
        ["10.0.0.2", "10.0.0.9", "10.0.0.254", "10.0.0.77", "172.16.0.1", "8.8.8.8", "127.0.0.1", "0.0.0.0"];
    for source in others {
        let path = from(A.mac, source.parse().unwrap());
        world.expect(
            1,
            &[path.udp(1, 2, b"x"), path.udp(9, 4791, &[4; 24]), path.echo_request(1, 1, b"x")],
            &[("guard-vip", 3)],
        );
    }
    for source in ["fd00:1::2", "fd00:1::9", "fd00:1::fe", "fd16::1", "::1", "::ffff:10.0.0.1", "2001:db8::1"]
    {
        let path = Path::v6((A.mac, source.parse().unwrap()), (R.mac, R.v6));
        world.expect(1, &[path.udp(1, 2, b"x"), path.echo_request(1, 1, b"x")], &[("guard-vip", 2)]);
    }
}

#[test]
fn guard_arp_claims_nothing_of_others() {
    for flood in [false, true] {
        let mut world = plain();
        if flood {
            world.flood(0, &[2]);
        }
        for victim in [B.v4, R.v4, Ipv4Addr::new(10, 0, 0, 254), FLOAT] {
            world.expect(1, &[gratuitous(A.mac, victim)], &VIP);
            world.expect(1, &[arp_request((A.mac, victim), B.v4)], &VIP);
            world.expect(1, &[reply(A.mac, victim, B)], &VIP);
        }
        // The frame is its own, and what is in it names another's MAC.
        let mut lie = arp_request((A.mac, A.v4), B.v4);
        lie[22..28].copy_from_slice(&R.mac.0);
        world.expect(1, &[lie], &MAC);
        assert_eq!(floated(&world), []);
    }
}

/// Reverse ARP of A's: an operation, whose addresses it names, and the address that it gives them.
fn reverse_arp(operation: u16, sender: MacAddr, target: MacAddr, address: Ipv4Addr) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED;
    let packet = ArpPacket::new(operation, (sender, none), (target, address));
    let mut path = from(A.mac, none);
    path.dst_mac = MacAddr::BROADCAST;
    let mut frame = path.ethernet(0x8035, packet.bytes());
    frame.resize(60, 0);
    frame
}

#[test]
fn guard_reverse_arp_claims_nothing_of_others() {
    let none = Ipv4Addr::UNSPECIFIED;
    let own = reverse_arp(3, A.mac, A.mac, none);
    let mut world = plain();
    world.expect(1, std::slice::from_ref(&own), &[("nft-misses", 1), ("bum-disabled", 1)]);
    // Where unknown stations are looked for, all bridges hear of it.
    world.flood(0, &[2]);
    let moved = [("nft-stale", 1), ("copies", 2), ("local", 2), ("encapsulated", 1)];
    let out = world.expect(1, std::slice::from_ref(&own), &moved);
    assert!(out.iter().any(|(port, frame)| (*port, frame) == (2, &own)));
    for lie in [reverse_arp(3, B.mac, A.mac, none), reverse_arp(3, A.mac, R.mac, none)] {
        world.expect(1, &[lie], &MAC);
    }
    // Only servers answer, and there are none.
    world.expect(
        1,
        &[reverse_arp(4, A.mac, B.mac, FLOAT), reverse_arp(4, A.mac, A.mac, A.v4)],
        &[("guard-vip", 2)],
    );
    for length in 14..own.len() {
        let cut = world.run(1, vec![HeapBuf::new(&own[..length])]);
        assert_eq!(cut.is_empty(), length < 42, "{length} bytes");
    }
    for at in [14, 16, 18, 19] {
        let mut other = own.clone();
        other[at] ^= 2;
        world.expect(1, &[other], &[("arp-format", 1)]);
    }
    // Another MAC that it may have asks for itself; and who is not guarded does as he likes.
    change(&mut world, 0, &[("10.0.0.100", 32, VIRTUAL)], true);
    let mut nested = reverse_arp(3, VIRTUAL, VIRTUAL, none);
    nested[6..12].copy_from_slice(&VIRTUAL.0);
    assert!(!world.run(1, vec![HeapBuf::new(&nested)]).is_empty());
    nested[22..28].copy_from_slice(&A.mac.0);
    world.expect(1, &[nested], &MAC);
    change(&mut world, 0, &[], false);
    assert!(!world.run(1, vec![HeapBuf::new(&reverse_arp(4, A.mac, B.mac, FLOAT))]).is_empty());
}

#[test]
fn guard_neighbour_discovery_claims_nothing_of_others() {
    for flood in [false, true] {
        let mut world = plain();
        if flood {
            world.flood(0, &[2]);
        }
        for victim in
            [B.v6, R.v6, "fd00:1::fe".parse().unwrap(), "fd00:1::100".parse().unwrap(), B.mac.link_local()]
        {
            world.expect(1, &[neighbour_announcement(A.mac, victim)], &VIP);
            world.expect(1, &[neighbour_solicitation((A.mac, victim), B.v6, None)], &VIP);
            let says = NeighbourHeader::advertisement(victim, NeighbourHeader::OVERRIDE);
            world.expect(1, &[v6(A, B).with_ttl(255).ip(58, says.bytes())], &VIP);
        }
        assert_eq!(floated(&world), []);
    }
}

#[test]
fn guard_no_vnic_speaks_to_the_underlay() {
    // The VPC's default route leads to a gateway behind a VTEP: that is where a tenant's packets to strangers go.
    for route in [false, true] {
        let mut world = plain();
        if route {
            let gateway = world.gateways(0, &[4]);
            world.route(0, &[("0.0.0.0/0", gateway.clone()), ("::/0", gateway)]);
        }
        let mut refused = |path: &Path, reason: &'static str| {
            let forged = path.vxlan(50_000, Vni::new(200).unwrap(), &v4(A, B).udp(1, 2, b"x"));
            // The router says so where it has no route.
            let told = if reason == "no-route" { vec![("originated", 1)] } else { Vec::new() };
            let moved = |counter| [vec![(counter, 1), (reason, 1)], told.clone()].concat();
            // A known flow is refused, too.
            world.expect(1, std::slice::from_ref(&forged), &moved("nft-misses"));
            world.expect(1, &[forged], &moved("nft-hits"));
            world.expect(1, &[path.tcp(1, 22, 2, b"")], &moved("nft-misses"));
        };
        // To the machine itself, by MAC and by way of the router: VxLAN, with another network's VNI, and all else.
        refused(&Path::v4((A.mac, A.v4), (host_mac(1), host_v4(1))), "no-location");
        refused(&Path::v6((A.mac, A.v6), (host_mac(2), host_v6(2))), "no-location");
        let by_router = if route { "martian" } else { "no-route" };
        refused(&Path::v4((A.mac, A.v4), (ROUTER, host_v4(1))), by_router);
        refused(&Path::v6((A.mac, A.v6), (ROUTER, host_v6(1))), by_router);
        if !route {
            refused(&Path::v4((A.mac, A.v4), (ROUTER, host_v4(2))), "no-route");
        }
        // Nor does it ask for stations there.
        world.expect(1, &[arp_request((A.mac, A.v4), host_v4(2))], &[("neighbour-unknown", 1)]);
        // What leaves goes to the gateway's VTEP inside of the tunnel of its own network.
        if route {
            let path = Path::v4((A.mac, A.v4), (ROUTER, host_v4(2)));
            let forged = path.vxlan(50_000, Vni::new(200).unwrap(), &v4(A, B).udp(1, 2, b"x"));
            let (port, frame) = world.one(1, &forged, &ENCAP);
            let opened = testkit::open::open(&frame);
            assert_eq!((port, opened.dst, opened.vni), (UPLINK, host_v4(4).into(), 100));
        }
    }
}

#[test]
fn guard_frames_that_no_station_sends_go_nowhere() {
    let mut world = plain();
    let mut path = v4(A, R);
    path.dst_mac = MacAddr([1, 0x80, 0xc2, 0, 0, 2]);
    world.expect(1, &[path.ethernet(0x8809, &[0; 46])], &[("nft-misses", 1), ("reserved-mac", 1)]);
    world.expect(1, &[v4(A, R).tagged(5).udp(1, 2, b"x")], &[("inner-vlan", 1)]);
    world.expect(
        1,
        &[routed(Path::v4((A.mac, A.v4), (ROUTER, Ipv4Addr::LOCALHOST))).udp(1, 2, b"x")],
        &[("nft-misses", 1), ("martian", 1)],
    );
    world.expect(1, &[v4(A, R).ethernet(0x8915, &[0; 46])], &[("nft-misses", 1), ("roce-v1", 1)]);
}

#[test]
fn guard_accepts_pairs_and_no_other_combination() {
    let mut world = floating();
    for mac in [A.mac, VIRTUAL] {
        world.one(
            1,
            &from(mac, FLOAT).udp(1, 2, b"x"),
            if mac == A.mac { &ENCAP } else { &[("nft-hits", 1), ("encapsulated", 1)] },
        );
    }
    world.one(1, &from(A.mac, NESTED).udp(1, 2, b"x"), &ENCAP);
    world.one(1, &Path::v6((A.mac, "fd00:1::100".parse().unwrap()), (R.mac, R.v6)).udp(1, 2, b"x"), &ENCAP);
    // The pair counts, not its parts: the MAC with the vNIC's own address, the prefix with the other MAC, one beyond the prefix.
    world.expect(1, &[from(VIRTUAL, A.v4).udp(1, 2, b"x")], &VIP);
    world.expect(1, &[from(VIRTUAL, NESTED).udp(1, 2, b"x")], &VIP);
    world.expect(1, &[from(A.mac, Ipv4Addr::new(10, 0, 0, 208)).udp(1, 2, b"x")], &VIP);
    world.expect(1, &[from(B.mac, FLOAT).udp(1, 2, b"x")], &MAC);
    // The station with the virtual MAC has the link-local address that follows from it, and detects duplicates.
    let local = Path::v6((VIRTUAL, VIRTUAL.link_local()), (R.mac, R.mac.link_local()));
    world.one(1, &local.echo_request(1, 1, b"x"), &ENCAP);
    world.expect(1, &[Path::v6((VIRTUAL, A.v6), (R.mac, R.v6)).udp(1, 2, b"x")], &VIP);
    // A third vNIC is allowed nothing.
    world.expect(3, &[Path::v4((C.mac, FLOAT), (ROUTER, R.v4)).udp(1, 2, b"x")], &VIP);
    world.expect(3, &[gratuitous(C.mac, FLOAT)], &VIP);
}

#[test]
fn guard_a_floating_address_is_where_it_was_announced_last() {
    let mut world = floating();
    let consumed = [("consumed", 1)];
    // Nobody has it, and it is not answered for.
    world.expect(3, &[arp_request((C.mac, C.v4), FLOAT)], &[("neighbour-unknown", 1)]);
    world.expect(1, &[gratuitous(A.mac, FLOAT)], &consumed);
    assert_eq!(floated(&world), [(0, FLOAT.into(), A.mac, true)]);
    place(&mut world, 0, FLOAT.into(), A.mac);
    // It is reached, bridged and routed, here and out of the tunnel; said again it is no news.
    let (port, _) = world.one(2, &Path::v4((B.mac, B.v4), (A.mac, FLOAT)).udp(1, 2, b"x"), &LOCAL);
    assert_eq!(port, 1);
    let (port, frame) = world.one(3, &Path::v4((C.mac, C.v4), (ROUTER, FLOAT)).udp(1, 2, b"x"), &LOCAL);
    assert_eq!((port, &frame[..6]), (1, &A.mac.0[..]));
    let inbound = tunnelled(&Path::v4((R.mac, R.v4), (A.mac, FLOAT)).udp(1, 2, b"x"));
    assert_eq!(world.one(UPLINK, &inbound, &DECAP).0, 1);
    world.one(2, &arp_request((B.mac, B.v4), FLOAT), &[("neighbours-answered", 1)]);
    world.expect(1, &[gratuitous(A.mac, FLOAT), reply(A.mac, FLOAT, B)], &[("consumed", 2)]);
    assert_eq!(floated(&world), []);
    // The other one takes over, by any word of ARP, with the virtual MAC or its own.
    world.expect(2, &[reply(B.mac, FLOAT, A)], &consumed);
    world.one(2, &arp_request((VIRTUAL, FLOAT), A.v4), &[("neighbours-answered", 1)]);
    assert_eq!(floated(&world), [(1, FLOAT.into(), B.mac, true), (1, FLOAT.into(), VIRTUAL, true)]);
    place(&mut world, 1, FLOAT.into(), VIRTUAL);
    let routed = Path::v4((C.mac, C.v4), (ROUTER, FLOAT)).udp(1, 2, b"x");
    let (port, frame) = world.one(3, &routed, &[("nft-stale", 1), ("local", 1)]);
    assert_eq!((port, &frame[..6]), (2, &VIRTUAL.0[..]));
    let (port, _) = world.one(1, &Path::v4((A.mac, A.v4), (VIRTUAL, FLOAT)).udp(1, 2, b"x"), &LOCAL);
    assert_eq!(port, 2);
    // IPv6: unsolicited advertisements.
    let target = "fd00:1::100".parse().unwrap();
    world.expect(1, &[neighbour_announcement(A.mac, target)], &consumed);
    assert_eq!(floated(&world), [(0, target.into(), A.mac, true)]);
}

/// Silence is what lets a vNIC take over an address that it is allowed; who is not allowed it hears whose it is.
#[test]
fn guard_a_floating_address_is_defended_against_those_who_may_not_have_it() {
    let mut world = floating();
    let probe = |mac: MacAddr, address| arp_request((mac, Ipv4Addr::UNSPECIFIED), address);
    place(&mut world, 0, FLOAT.into(), A.mac);
    for (port, mac) in [(1, A.mac), (2, B.mac), (2, VIRTUAL)] {
        world.expect(port, &[probe(mac, FLOAT)], &[("consumed", 1)]);
    }
    let (_, frame) = world.one(3, &probe(C.mac, FLOAT), &[("neighbours-answered", 1)]);
    assert_eq!((&frame[..6], &frame[6..12]), (&C.mac.0[..], &A.mac.0[..]));
    // What the config gives to somebody does not float, whoever is allowed it.
    change(&mut world, 0, &[("10.0.0.0", 24, A.mac)], true);
    world.one(1, &probe(A.mac, B.v4), &[("neighbours-answered", 1)]);
    // Nobody is told of a vNIC's own stations by the vNIC's own.
    place(&mut world, 0, FLOAT.into(), VIRTUAL);
    change(&mut world, 0, &[("10.0.0.100", 32, VIRTUAL)], true);
    world.expect(1, &[probe(A.mac, FLOAT)], &[("consumed", 1)]);
}

#[test]
fn guard_the_station_of_a_floating_address_hears_of_its_errors() {
    let mut world = floating();
    place(&mut world, 0, FLOAT.into(), VIRTUAL);
    for (mac, address) in [(VIRTUAL, FLOAT), (A.mac, A.v4)] {
        let strange = Path::v4((mac, address), (ROUTER, Ipv4Addr::new(8, 8, 8, 8))).udp(1, 2, b"x");
        let told = [("nft-misses", 1), ("originated", 1), ("no-route", 1)];
        let (port, frame) = world.one(1, &strange, &told);
        assert_eq!((port, &frame[..6]), (1, &mac.0[..]));
    }
}

#[test]
fn guard_what_speaks_from_a_floating_address_that_nobody_has_is_found() {
    let mut world = floating();
    world.one(1, &from(A.mac, FLOAT).udp(1, 2, b"x"), &ENCAP);
    assert_eq!(floated(&world), [(0, FLOAT.into(), A.mac, true)]);
    place(&mut world, 0, FLOAT.into(), A.mac);
    // Data is no announcement: who had the address before may still have connections from it.
    world.one(2, &Path::v4((B.mac, FLOAT), (R.mac, R.v4)).udp(1, 2, b"x"), &ENCAP);
    assert_eq!(floated(&world), []);
}

#[test]
fn guard_an_address_that_the_config_gives_to_somebody_does_not_float() {
    let mut world = plain();
    change(&mut world, 0, &[("10.0.0.0", 24, A.mac), ("fd00:1::", 64, A.mac)], true);
    for address in [B.v4, R.v4, Ipv4Addr::new(10, 0, 0, 254)] {
        world.expect(1, &[gratuitous(A.mac, address)], &VIP);
        world.expect(1, &[reply(A.mac, address, B)], &VIP);
        // As the operator says, packets may come from it: that is what a prefix is for.
        world.pass(1, &from(A.mac, address).udp(1, 2, b"x"));
    }
    world.expect(1, &[neighbour_announcement(A.mac, B.v6)], &VIP);
    world.expect(1, &[gratuitous(A.mac, A.v4)], &[("consumed", 1)]);
    assert_eq!(floated(&world), []);
}

#[test]
fn guard_announcements_reach_other_hosts_where_the_vpc_floods() {
    let mut world = floating();
    world.flood(0, &[2]);
    let flooded = [("nft-misses", 1), ("copies", 2), ("local", 2), ("encapsulated", 1)];
    let out = world.expect(1, &[gratuitous(A.mac, FLOAT)], &flooded);
    assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [2, 3, UPLINK]);
    assert_eq!(floated(&world), [(0, FLOAT.into(), A.mac, true)]);
    place(&mut world, 0, FLOAT.into(), A.mac);
    // Another host's vNIC takes over: it goes here, and the stations hear of it.
    let announcement = tunnelled(&gratuitous(R.mac, FLOAT));
    let out = world.expect(UPLINK, &[announcement], &[("decapsulated", 1), ("nft-misses", 1), ("copies", 2)]);
    assert_eq!(out.len(), 3);
    assert_eq!(floated(&world), [(0, FLOAT.into(), R.mac, false)]);
    // Not where the VPC has no strangers, and not of what is a VIP.
    world.expect(UPLINK, &[tunnelled(&gratuitous(R.mac, A.v4))], &[("decapsulated", 1), ("inner-source", 1)]);
    let mut world = floating();
    place(&mut world, 0, FLOAT.into(), A.mac);
    world.expect(
        UPLINK,
        &[tunnelled(&gratuitous(R.mac, FLOAT))],
        &[("decapsulated", 1), ("inner-source", 1)],
    );
    assert_eq!(floated(&world), []);
}

#[test]
fn guard_that_is_off_lets_a_vnic_be_anybody_in_its_vpc() {
    let mut world = plain();
    change(&mut world, 0, &[], false);
    let other = MacAddr([2, 9, 9, 9, 9, 9]);
    world.one(1, &Path::v4((other, Ipv4Addr::new(8, 8, 8, 8)), (B.mac, B.v4)).udp(1, 2, b"x"), &LOCAL);
    world.one(1, &Path::v4((R.mac, R.v4), (B.mac, B.v4)).udp(1, 2, b"x"), &LOCAL);
    world.one(1, &Path::v6((other, R.v6), (B.mac, B.v6)).udp(1, 2, b"x"), &LOCAL);
    world.expect(1, &[gratuitous(A.mac, B.v4)], &[("consumed", 1)]);
    // Not the router, no group, no other network, not the underlay, nothing that nobody forwards.
    let advertisement = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let router = Path::v6((ROUTER, ROUTER.link_local()), (B.mac, B.v6)).with_ttl(255).ip(58, &advertisement);
    world.expect(1, &[router], &[("guard-ra", 1)]);
    world.expect(1, &[from(MacAddr::BROADCAST, A.v4).udp(1, 2, b"x")], &[("group-source-mac", 1)]);
    world.expect(1, &[from(other, A.v4).tagged(5).udp(1, 2, b"x")], &[("inner-vlan", 1)]);
    let forged = Path::v4((other, host_v4(2)), (host_mac(1), host_v4(1)));
    let forged = forged.vxlan(50_000, Vni::new(100).unwrap(), &v4(A, B).udp(1, 2, b"x"));
    world.expect(1, &[forged], &[("nft-misses", 1), ("no-location", 1)]);
    let martian = Path::v4((other, Ipv4Addr::LOCALHOST), (ROUTER, C.v4)).udp(1, 2, b"x");
    world.expect(1, &[martian], &[("nft-misses", 1), ("martian", 1)]);
    // Nobody else is off.
    world.expect(2, &[Path::v4((B.mac, A.v4), (R.mac, R.v4)).udp(1, 2, b"x")], &VIP);
    // What is for any MAC that the config places at it is delivered.
    place(&mut world, 0, FLOAT.into(), other);
    assert_eq!(world.one(2, &Path::v4((B.mac, B.v4), (other, FLOAT)).udp(1, 2, b"x"), &LOCAL).0, 1);
}

#[test]
fn guard_changes_hold_from_the_next_packet_of_a_known_flow() {
    let mut world = floating();
    let frame = from(A.mac, FLOAT).udp(1, 2, b"x");
    world.one(1, &frame, &ENCAP);
    let hit = [("nft-hits", 1), ("encapsulated", 1)];
    world.one(1, &frame, &hit);
    change(&mut world, 0, &[], true);
    world.expect(1, std::slice::from_ref(&frame), &VIP);
    change(&mut world, 0, &[], false);
    world.one(1, &frame, &hit);
    change(&mut world, 0, &[], true);
    world.expect(1, &[frame], &VIP);
}
