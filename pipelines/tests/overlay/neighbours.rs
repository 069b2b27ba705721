//! ARP and neighbour discovery, of tenants and of the underlay, and ping to the addresses of the switch.

use std::net::{Ipv4Addr, Ipv6Addr};

use pipelines::event::{Binding, Claim, Event};
use wire::build::Path;
use wire::build::control::{
    arp_reply, arp_request, neighbour_advertisement, neighbour_announcement, neighbour_solicitation,
};
use wire::icmpv6::NeighbourHeader;
use wire::{MacAddr, Vni, arp};

use testkit::open::open;
use testkit::*;

/// What an answer is worth: an ARP reply, a solicited advertisement with the override flag.
const ANSWER: Claim = Claim { overrides: true, confirms: true };

const ANSWERED: [(&str, u64); 1] = [("neighbours-answered", 1)];

/// A probe (RFC 5227 section 2.1.1).
fn probe(mac: MacAddr, target: Ipv4Addr) -> Vec<u8> {
    arp_request((mac, Ipv4Addr::UNSPECIFIED), target)
}

/// Duplicate address detection (RFC 4862 section 5.4.2).
fn detection(mac: MacAddr, target: Ipv6Addr) -> Vec<u8> {
    let group = wire::ipv6::solicited_node(target);
    Path::v6((mac, Ipv6Addr::UNSPECIFIED), (wire::ipv6::multicast_mac(group), group))
        .with_ttl(255)
        .ip(58, wire::View::bytes(&NeighbourHeader::solicitation(target)))
}

/// What defends an address against a probe of `asker`.
#[track_caller]
fn defends_v4(frame: &[u8], (mac, address): (MacAddr, Ipv4Addr), asker: MacAddr) {
    let (to, reply) = reply_of(frame);
    assert_eq!((to, reply.operation.get()), (asker, arp::REPLY));
    assert_eq!((reply.sender_mac, reply.sender()), (mac, address));
    assert_eq!((reply.target_mac, reply.target()), (asker, Ipv4Addr::UNSPECIFIED));
}

/// What defends an address against duplicate address detection: to all nodes, and solicited by nobody (RFC 4861 section 7.2.4).
#[track_caller]
fn defends_v6(frame: &[u8], (mac, address): (MacAddr, Ipv6Addr), router: bool) {
    let headers = sound(frame);
    let (message, link) = wire::build::control::advertised(&headers, frame).unwrap();
    assert_eq!((message.target(), link), (address, Some(mac)));
    assert!(message.has(NeighbourHeader::OVERRIDE) && !message.has(NeighbourHeader::SOLICITED));
    assert_eq!(message.has(NeighbourHeader::ROUTER), router);
    let (ip, ethernet) = (headers.ipv6(frame).unwrap(), headers.ethernet(frame).unwrap());
    assert_eq!((ip.src(), ip.dst(), ip.hop_limit), (address, wire::ipv6::ALL_NODES, 255));
    assert_eq!((ethernet.src, ethernet.dst), (mac, wire::ipv6::multicast_mac(wire::ipv6::ALL_NODES)));
}

fn reply_of(frame: &[u8]) -> (MacAddr, arp::ArpPacket) {
    let headers = sound(frame);
    (headers.ethernet(frame).unwrap().dst, *headers.arp(frame).unwrap())
}

#[test]
fn arp_of_a_vnic_is_answered_from_locations() {
    let mut world = plain();
    for (target, mac) in
        [(R.v4, R.mac), (B.v4, B.mac), (C.v4, C.mac), ("10.0.0.254".parse().unwrap(), ROUTER)]
    {
        let (port, frame) = world.one(1, &arp_request((A.mac, A.v4), target), &ANSWERED);
        let (to, reply) = reply_of(&frame);
        assert_eq!((port, to), (1, A.mac));
        assert_eq!((reply.operation.get(), reply.sender_mac, reply.sender()), (arp::REPLY, mac, target));
        assert_eq!((reply.target_mac, reply.target()), (A.mac, A.v4));
        assert_eq!(wire::parse::parse(&frame, frame.len()).unwrap().ethernet(&frame).unwrap().src, mac);
    }
    // Nobody there; a probe and an announcement (RFC 5227); somebody else's name.
    world.expect(1, &[arp_request((A.mac, A.v4), "10.0.0.77".parse().unwrap())], &[("neighbour-unknown", 1)]);
    world.expect(1, &[probe(A.mac, A.v4)], &[("consumed", 1)]);
    world.expect(1, &[arp_request((A.mac, A.v4), A.v4)], &[("consumed", 1)]);
    world.expect(1, &[arp_request((A.mac, B.v4), R.v4)], &[("guard-vip", 1)]);
    world.expect(1, &[arp_request((B.mac, B.v4), R.v4)], &[("guard-mac", 1)]);
    let mut forged = arp_request((A.mac, A.v4), R.v4);
    forged[22..28].copy_from_slice(&B.mac.0);
    world.expect(1, &[forged], &[("guard-mac", 1)]);
    let question = arp_request((B.mac, B.v4), A.v4);
    let headers = wire::parse::parse(&question, question.len()).unwrap();
    world.expect(1, &[arp_reply(&headers, &question, A.mac).unwrap()], &[("consumed", 1)]);
    // An operation that nobody knows is not passed on either.
    let mut strange = arp_request((A.mac, A.v4), R.v4);
    strange[21] = 9;
    world.expect(1, std::slice::from_ref(&strange), &[("bum-disabled", 1)]);
    world.flood(0, &[]);
    world.expect(1, &[strange], &[("bum-disabled", 1)]);
}

#[test]
fn neighbour_solicitations_are_answered_from_locations() {
    let mut world = plain();
    let gateway: Ipv6Addr = "fd00:1::fe".parse().unwrap();
    for (target, mac, router) in [(R.v6, R.mac, false), (B.v6, B.mac, false), (gateway, ROUTER, true)] {
        for known in [None, Some(mac)] {
            let (port, frame) =
                world.one(1, &neighbour_solicitation((A.mac, A.v6), target, known), &ANSWERED);
            let headers = sound(&frame);
            let (message, link) = wire::build::control::advertised(&headers, &frame).unwrap();
            assert_eq!((port, message.target(), link), (1, target, Some(mac)));
            assert!(message.has(NeighbourHeader::SOLICITED | NeighbourHeader::OVERRIDE));
            assert_eq!(message.has(NeighbourHeader::ROUTER), router);
            let ip = headers.ipv6(&frame).unwrap();
            assert_eq!((ip.src(), ip.dst(), ip.hop_limit), (target, A.v6, 255));
            assert_eq!(headers.ethernet(&frame).unwrap().dst, A.mac);
        }
    }
    let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
    world.one(1, &neighbour_solicitation((A.mac, link_local), R.v6, None), &ANSWERED);
    world.expect(
        1,
        &[neighbour_solicitation((A.mac, A.v6), "fd00:1::77".parse().unwrap(), None)],
        &[("neighbour-unknown", 1)],
    );
    world.expect(1, &[neighbour_solicitation((A.mac, B.v6), R.v6, None)], &[("guard-vip", 1)]);
    world.expect(1, &[neighbour_solicitation((B.mac, B.v6), R.v6, None)], &[("guard-mac", 1)]);
    world.expect(1, &[detection(A.mac, A.v6)], &[("consumed", 1)]);
    // Without its option a solicitation is shorter than the answer.
    let short = v6(A, R).with_ttl(255).ip(58, wire::View::bytes(&NeighbourHeader::solicitation(R.v6)));
    let (_, frame) = world.one(1, &short, &ANSWERED);
    sound(&frame);
    // Wrong hop limit or checksum: not neighbour discovery, and not passed on.
    let wrong = v6(A, R).with_ttl(254).ip(58, wire::View::bytes(&NeighbourHeader::solicitation(R.v6)));
    world.expect(1, &[wrong], &[("neighbour-unsound", 1)]);
    let mut wrong = short.clone();
    wrong[14 + 40 + 2] ^= 1;
    world.expect(1, &[wrong], &[("neighbour-unsound", 1)]);
    // An advertisement for oneself is taken in, one for another is refused.
    let question = neighbour_solicitation((B.mac, B.v6), A.v6, None);
    let headers = wire::parse::parse(&question, question.len()).unwrap();
    let answer = neighbour_advertisement(&headers, &question, A.mac, false).unwrap();
    world.expect(1, &[answer], &[("consumed", 1)]);
    let forged = v6(A, B)
        .with_ttl(255)
        .ip(58, wire::View::bytes(&NeighbourHeader::advertisement(R.v6, NeighbourHeader::OVERRIDE)));
    world.expect(1, &[forged], &[("guard-vip", 1)]);
    // Nor may a router be played under a foreign address, flooding or not.
    let mut path = v6(B, A).with_ttl(255);
    path.src_mac = A.mac;
    let advertisement = path.ip(58, &[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    world.flood(0, &[]);
    world.expect(1, &[advertisement], &[("guard-vip", 1)]);
    let advertisement = v6(A, B).with_ttl(255).ip(58, &[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    world.expect(1, &[advertisement], &[("guard-ra", 1)]);
}

/// Stations on other hosts, and those here, may know the address by the MAC that it had: an announcement reaches them in whichever
/// way it is made, and where nothing floods nobody.
#[test]
fn what_a_vnic_announces_is_heard_wherever_its_vpc_floods() {
    let request = |station: Station| arp_request((station.mac, station.v4), station.v4);
    let reply = |station: Station| {
        let request = request(station);
        let headers = wire::parse::parse(&request, request.len()).unwrap();
        let mut reply = arp_reply(&headers, &request, station.mac).unwrap();
        reply[..6].fill(0xff);
        reply
    };
    let mut world = plain();
    for frame in [request(A), reply(A), neighbour_announcement(A.mac, A.v6)] {
        world.expect(1, &[frame], &[("consumed", 1)]);
    }
    world.flood(0, &[2]);
    for frame in [request(A), reply(A), neighbour_announcement(A.mac, A.v6)] {
        let out = world.pass(1, &frame);
        assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [2, 3, UPLINK]);
        assert_eq!((&out[0].1, &open(&out[2].1).inner), (&frame, &frame));
    }
    // That of another host's station, which is known to be there, reaches those here.
    for frame in [request(R), reply(R)] {
        let out = world.pass(UPLINK, &tunnelled(&frame));
        assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 2, 3]);
    }
    // Nobody announces another's address, and what looks for a free one is no announcement.
    world.expect(1, &[arp_request((A.mac, B.v4), B.v4)], &[("guard-vip", 1)]);
    world.expect(1, &[probe(A.mac, A.v4)], &[("consumed", 1)]);
}

/// Whoever looks whether an address is free before it takes it hears of the station that has it, on whichever host, and of nobody
/// where it is free or its own.
#[test]
fn addresses_that_somebody_has_are_defended_against_who_would_take_them() {
    for flood in [false, true] {
        let mut world = plain();
        if flood {
            world.flood(0, &[2]);
        }
        let gateway: Ipv4Addr = "10.0.0.254".parse().unwrap();
        for (mac, address) in [(B.mac, B.v4), (C.mac, C.v4), (R.mac, R.v4), (ROUTER, gateway)] {
            let (port, frame) = world.one(1, &probe(A.mac, address), &ANSWERED);
            assert_eq!(port, 1);
            defends_v4(&frame, (mac, address), A.mac);
        }
        let router = ROUTER.link_local();
        for (mac, address) in [
            (B.mac, B.v6),
            (R.mac, R.v6),
            (B.mac, B.mac.link_local()),
            (S.mac, S.mac.link_local()),
            (ROUTER, "fd00:1::fe".parse().unwrap()),
            (ROUTER, router),
        ] {
            let (port, frame) = world.one(1, &detection(A.mac, address), &ANSWERED);
            assert_eq!(port, 1);
            defends_v6(&frame, (mac, address), mac == ROUTER);
        }
        for address in [A.v4, "10.0.0.77".parse().unwrap()] {
            world.expect(1, &[probe(A.mac, address)], &[("consumed", 1)]);
        }
        for address in [A.v6, A.mac.link_local(), "fd00:1::77".parse().unwrap(), "fe80::77".parse().unwrap()]
        {
            world.expect(1, &[detection(A.mac, address)], &[("consumed", 1)]);
        }
        // Another's MAC is refused as ever.
        world.expect(1, &[probe(B.mac, R.v4)], &[("guard-mac", 1)]);
        // What takes an address through the tunnel hears of the vNICs here; of others their hosts tell it, as of the router.
        let moved = [("decapsulated", 1), ("neighbours-answered", 1), ("encapsulated", 1)];
        let (port, frame) = world.one(UPLINK, &tunnelled(&probe(R.mac, A.v4)), &moved);
        assert_eq!(port, UPLINK);
        defends_v4(&open(&frame).inner, (A.mac, A.v4), R.mac);
        let (_, frame) = world.one(UPLINK, &tunnelled(&detection(R.mac, A.v6)), &moved);
        defends_v6(&open(&frame).inner, (A.mac, A.v6), false);
        if !flood {
            for address in [S.v4, gateway] {
                let moved = [("decapsulated", 1), ("consumed", 1)];
                world.expect(UPLINK, &[tunnelled(&probe(R.mac, address))], &moved);
            }
        }
    }
}

#[test]
fn questions_out_of_the_tunnel_are_answered_for_local_vnics() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let wrap = |inner: &[u8]| outer(2, 1, underlay).vxlan(50_000, Vni::new(100).unwrap(), inner);
        let moved = [("decapsulated", 1), ("neighbours-answered", 1), ("encapsulated", 1)];
        let (port, frame) = world.one(UPLINK, &wrap(&arp_request((R.mac, R.v4), A.v4)), &moved);
        let opened = open(&frame);
        let (to, reply) = reply_of(&opened.inner);
        assert_eq!((port, to, reply.sender_mac, reply.sender()), (UPLINK, R.mac, A.mac, A.v4));
        let (_, frame) = world.one(UPLINK, &wrap(&neighbour_solicitation((R.mac, R.v6), A.v6, None)), &moved);
        sound(&open(&frame).inner);
        // What is not here is for others to answer; the router is everywhere.
        for target in [S.v4, "10.0.0.254".parse().unwrap()] {
            let question = wrap(&arp_request((R.mac, R.v4), target));
            world.expect(UPLINK, &[question], &[("decapsulated", 1), ("neighbour-unknown", 1)]);
        }
        // Nobody out there has the MAC of a vNIC of ours.
        let forged = wrap(&arp_request((B.mac, B.v4), A.v4));
        world.expect(UPLINK, &[forged], &[("decapsulated", 1), ("inner-source", 1)]);
    }
}

#[test]
fn unknown_questions_flood_where_the_vpc_does() {
    let mut world = plain();
    world.flood(0, &[2]);
    let question = arp_request((A.mac, A.v4), "10.0.0.77".parse().unwrap());
    let moved = [("nft-misses", 1), ("copies", 2), ("local", 2), ("encapsulated", 1)];
    let out = world.expect(1, std::slice::from_ref(&question), &moved);
    assert_eq!(open(&out[2].1).inner, question);
    world.one(1, &arp_request((A.mac, A.v4), R.v4), &ANSWERED);
    let question = arp_request((R.mac, R.v4), "10.0.0.77".parse().unwrap());
    world.expect(UPLINK, &[tunnelled(&question)], &[("nft-misses", 1), ("decapsulated", 1), ("copies", 2)]);
}

#[test]
fn the_vtep_answers_for_its_addresses_and_tells_what_it_hears() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let tag = |frame: Vec<u8>| match underlay.vlan {
            Some(vlan) => [&frame[..12], &[0x81, 0], &vlan.to_be_bytes(), &frame[12..]].concat(),
            None => frame,
        };
        let asker = (host_mac(2), host_v4(2));
        let (port, frame) = world.one(UPLINK, &tag(arp_request(asker, host_v4(1))), &[]);
        let (to, reply) = reply_of(&frame);
        assert_eq!(
            (port, to, reply.sender_mac, reply.sender()),
            (UPLINK, host_mac(2), host_mac(1), host_v4(1))
        );
        let told = |address, claim| {
            let binding = Binding { address, mac: host_mac(2) };
            Some(Event::Neighbour { uplink: 0, binding, claim })
        };
        let learnt = |address| told(address, ANSWER);
        let asks = Claim { overrides: true, confirms: false };
        assert_eq!(world.shared.events.pop(), told(host_v4(2).into(), asks));
        let (_, frame) =
            world.one(UPLINK, &tag(neighbour_solicitation((host_mac(2), host_v6(2)), host_v6(1), None)), &[]);
        let headers = sound(&frame);
        let (message, link) = wire::build::control::advertised(&headers, &frame).unwrap();
        assert_eq!(
            (message.target(), link, message.has(NeighbourHeader::ROUTER)),
            (host_v6(1), Some(host_mac(1)), false)
        );
        assert_eq!(world.shared.events.pop(), told(host_v6(2).into(), asks));
        // Answers are taken in and reported.
        let question = arp_request((host_mac(1), host_v4(1)), host_v4(2));
        let headers = wire::parse::parse(&question, question.len()).unwrap();
        let answer = tag(arp_reply(&headers, &question, host_mac(2)).unwrap());
        world.expect(UPLINK, std::slice::from_ref(&answer), &[("consumed", 1)]);
        assert_eq!(world.shared.events.pop(), learnt(host_v4(2).into()));
        let question = neighbour_solicitation((host_mac(1), host_v6(1)), host_v6(2), None);
        let headers = wire::parse::parse(&question, question.len()).unwrap();
        let solicited = tag(neighbour_advertisement(&headers, &question, host_mac(2), false).unwrap());
        world.expect(UPLINK, &[solicited], &[("consumed", 1)]);
        assert_eq!(world.shared.events.pop(), learnt(host_v6(2).into()));
        // Questions for others are not ours, and say where the asker is; in another VLAN nothing is ours.
        world.expect(UPLINK, &[tag(arp_request(asker, host_v4(3)))], &[("underlay-other", 1)]);
        assert_eq!(world.shared.events.pop(), told(host_v4(2).into(), asks));
        let strange =
            [&arp_request(asker, host_v4(1))[..12], &[0x81, 0, 0, 99], &arp_request(asker, host_v4(1))[12..]]
                .concat();
        world.expect(UPLINK, &[strange], &[("underlay-other", 1)]);
        assert_eq!(world.shared.events.pop(), None);
        // The host behind a punt port sees answers too.
        let punt = world.add_punt();
        assert_eq!(world.one(UPLINK, &answer, &[]), (punt, answer));
        assert_eq!(world.shared.events.pop(), learnt(host_v4(2).into()));
    }
}

/// A machine that takes up an address of the switch hears that it is in use, and is not learnt of: it has none yet.
#[test]
fn the_vtep_defends_its_addresses() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let tag = |frame: Vec<u8>| match underlay.vlan {
            Some(vlan) => [&frame[..12], &[0x81, 0], &vlan.to_be_bytes(), &frame[12..]].concat(),
            None => frame,
        };
        let other = MacAddr([2, 0, 0, 0, 0x77, 7]);
        let (port, frame) = world.one(UPLINK, &tag(probe(other, host_v4(1))), &[]);
        assert_eq!(port, UPLINK);
        defends_v4(&frame, (host_mac(1), host_v4(1)), other);
        world.uplink().v6.push(host_mac(1).link_local());
        for address in [host_v6(1), host_mac(1).link_local()] {
            let (port, frame) = world.one(UPLINK, &tag(detection(other, address)), &[]);
            assert_eq!(
                (port, wire::parse::parse(&frame, frame.len()).unwrap().vlan_tci[0]),
                (UPLINK, underlay.vlan.unwrap_or(0))
            );
            defends_v6(&frame, (host_mac(1), address), false);
        }
        for strange in [detection(other, host_v6(2)), probe(other, host_v4(2))] {
            world.expect(UPLINK, &[tag(strange)], &[("underlay-other", 1)]);
        }
        assert_eq!(world.shared.events.pop(), None);
    }
}

#[test]
fn pings_to_the_vtep_and_to_the_router_are_answered() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let paths = [
            Path::v4((host_mac(2), host_v4(2)), (host_mac(1), host_v4(1))),
            Path::v6((host_mac(2), host_v6(2)), (host_mac(1), host_v6(1))),
        ];
        for path in paths {
            let path = if let Some(vlan) = underlay.vlan { path.tagged(vlan) } else { path };
            let reply = world.one(UPLINK, &path.clone().with_ttl(9).echo_request(7, 8, b"ping"), &[]);
            assert_eq!(reply, (UPLINK, path.reversed().echo_reply(7, 8, b"ping")));
        }
    }
    let mut world = plain();
    let v4_path = Path::v4((A.mac, A.v4), (ROUTER, "10.0.0.254".parse().unwrap()));
    let v6_path = Path::v6((A.mac, A.v6), (ROUTER, "fd00:1::fe".parse().unwrap()));
    for path in [v4_path.clone(), v6_path] {
        let reply = world.one(1, &path.clone().with_ttl(1).echo_request(7, 8, b"ping"), &[("nft-misses", 1)]);
        assert_eq!(reply, (1, path.clone().reversed().echo_reply(7, 8, b"ping")));
        world.expect(1, &[path.udp(1, 2, b"")], &[("nft-misses", 1), ("to-router", 1)]);
        world.expect(1, &[path.echo_reply(7, 8, b"")], &[("nft-misses", 1), ("to-router", 1)]);
    }
    // Out of the tunnel the router is not reached.
    let mut path = v4_path;
    (path.src_mac, path.ip) = (R.mac, wire::build::Pair::V4(R.v4, "10.0.0.254".parse().unwrap()));
    let inward = tunnelled(&path.echo_request(7, 8, b"ping"));
    world.expect(UPLINK, &[inward], &[("nft-misses", 1), ("decapsulated", 1), ("to-router", 1)]);
}

/// An echo request of zeros: its reply's checksum must not come out as zero.
#[test]
fn echo_of_zeros_is_answered_with_a_right_checksum() {
    for len in [0, 8, 56] {
        let mut world = plain();
        let to_router = Path::v4((A.mac, A.v4), (ROUTER, "10.0.0.254".parse().unwrap()));
        let (_, reply) = world.one(1, &to_router.echo_request(0, 0, &vec![0; len]), &[("nft-misses", 1)]);
        sound(&reply);
    }
}
