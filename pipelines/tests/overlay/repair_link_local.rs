//! Link-local addresses of IPv6: whose they are, who may speak from them, and who may not play the router.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use pipelines::snapshot::{Destination, Location, Vnic};
use pipelines::vlt::Place;
use wire::build::Path;
use wire::build::control::{neighbour_advertisement, neighbour_solicitation};
use wire::icmpv6::{LinkAddress, NeighbourHeader, kind, option};
use wire::{MacAddr, View, ipv6};

use testkit::*;

const ANSWERED: [(&str, u64); 1] = [("neighbours-answered", 1)];

/// An address that follows from nobody's MAC.
fn random(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x8d3c, 0x1234, 0x5678, n)
}

/// A path between link-local addresses.
fn between(from: (MacAddr, Ipv6Addr), to: (MacAddr, Ipv6Addr)) -> Path {
    Path::v6(from, to)
}

fn own(station: Station) -> (MacAddr, Ipv6Addr) {
    (station.mac, station.mac.link_local())
}

/// Duplicate address detection (RFC 4862 section 5.4.2).
fn detection(mac: MacAddr, target: Ipv6Addr) -> Vec<u8> {
    let group = ipv6::solicited_node(target);
    Path::v6((mac, Ipv6Addr::UNSPECIFIED), (ipv6::multicast_mac(group), group))
        .with_ttl(255)
        .ip(58, View::bytes(&NeighbourHeader::solicitation(target)))
}

/// Neighbour discovery of any kind, to all nodes.
fn message(from: (MacAddr, Ipv6Addr), bytes: &[u8]) -> Vec<u8> {
    Path::v6(from, (ipv6::multicast_mac(ipv6::ALL_NODES), ipv6::ALL_NODES)).with_ttl(255).ip(58, bytes)
}

fn router_advertisement() -> [u8; 16] {
    [kind::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]
}

fn redirect(target: Ipv6Addr) -> Vec<u8> {
    [&[kind::REDIRECT, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..], &S.v6.octets()[..]].concat()
}

fn learns(world: &mut World, index: usize, learned: &[Ipv6Addr]) {
    let old = world.snapshot.vnics[index].as_deref().unwrap().clone();
    let slot = world.snapshot.location(old.vpc, Destination::Mac(old.mac)).unwrap().slot;
    for &address in learned {
        let key = (old.vpc, Destination::Ip(address.into()));
        world.snapshot.locations.insert(key, Location { slot, mac: old.mac, groups: 0 });
    }
    let vips = old.vips.iter().copied().chain(learned.iter().map(|&address| IpAddr::V6(address))).collect();
    world.snapshot.vnics[index] = Some(Arc::new(Vnic { vips, ..old }));
    world.snapshot.vnic_rows[index].more_vips = 1;
}

#[test]
fn repair_link_local_addresses_that_follow_from_macs_are_known_everywhere() {
    for (from, ports) in [(A, (1, 2)), (B, (2, 1))] {
        let to = if from.mac == A.mac { B } else { A };
        let mut world = plain();
        // Asked for from either address; those of this host, of others, of the router.
        for target in [own(to), own(R), own(S), (ROUTER, ROUTER.link_local())] {
            for source in [from.v6, from.mac.link_local()] {
                let question = neighbour_solicitation((from.mac, source), target.1, None);
                let (port, frame) = world.one(ports.0, &question, &ANSWERED);
                let headers = sound(&frame);
                let (said, mac) = wire::build::control::advertised(&headers, &frame).unwrap();
                assert_eq!((port, said.target(), mac), (ports.0, target.1, Some(target.0)));
                assert_eq!(said.has(NeighbourHeader::ROUTER), target.0 == ROUTER);
            }
        }
        // What follows from a MAC that is nowhere is nobody's.
        let nowhere = MacAddr([2, 0, 0, 0, 9, 9]).link_local();
        let question = neighbour_solicitation(own(from), nowhere, None);
        world.expect(ports.0, &[question], &[("neighbour-unknown", 1)]);
        // RDMA between two vNICs and into the tunnel, as with the first GID.
        let path = between(own(from), own(to));
        assert_eq!(world.one(ports.0, &path.udp(50_000, 4791, &[4; 24]), &LOCAL).0, ports.1);
        world.one(ports.0, &between(own(from), own(R)).udp(50_000, 4791, &[4; 24]), &ENCAP);
        world.one(UPLINK, &tunnelled(&between(own(R), own(from)).udp(50_000, 4791, &[4; 24])), &DECAP);
        // The router answers from its own.
        let ping = between(own(from), (ROUTER, ROUTER.link_local())).echo_request(1, 1, b"x");
        let (port, frame) = world.pass(ports.0, &ping).remove(0);
        let headers = sound(&frame);
        let ip = headers.ipv6(&frame).unwrap();
        assert_eq!((port, ip.src(), ip.dst()), (ports.0, ROUTER.link_local(), from.mac.link_local()));
    }
}

#[test]
fn repair_link_local_addresses_of_others_are_refused() {
    for flood in [false, true] {
        let mut world = plain();
        if flood {
            world.flood(0, &[2]);
        }
        world.locate_station(0, Station { v6: random(7), ..R }, world.tunnel(0, 2));
        let victims =
            [B.mac.link_local(), R.mac.link_local(), S.mac.link_local(), ROUTER.link_local(), random(7)];
        for victim in victims {
            let guarded = [("guard-vip", 1)];
            let pose = (A.mac, victim);
            world.expect(1, &[neighbour_solicitation(pose, B.v6, None)], &guarded);
            world.expect(1, &[between(pose, own(B)).udp(1, 2, b"x")], &guarded);
            world.expect(1, &[between(pose, own(R)).udp(1, 2, b"x")], &guarded);
            world.expect(1, &[message(pose, &[kind::LISTENER_REPORT_V2, 0, 0, 0, 0, 0, 0, 0])], &guarded);
            world.expect(1, &[message(pose, &[kind::ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0])], &guarded);
            // An advertisement says who has it, whatever it comes from.
            for source in [A.v6, A.mac.link_local()] {
                let says = NeighbourHeader::advertisement(victim, NeighbourHeader::OVERRIDE);
                world.expect(1, &[message((A.mac, source), says.bytes())], &guarded);
            }
            // Out of the tunnel: behind its own VTEP only, and never for a vNIC of this host.
            if victim != R.mac.link_local() && victim != S.mac.link_local() && victim != random(7) {
                let refused = [("decapsulated", 1), ("inner-source", 1)];
                let frame = tunnelled(&between((R.mac, victim), own(A)).udp(1, 2, b"x"));
                world.expect(UPLINK, &[frame], &refused);
                let frame = tunnelled(&neighbour_solicitation((R.mac, victim), A.v6, None));
                world.expect(UPLINK, &[frame], &refused);
            }
        }
    }
}

#[test]
fn repair_from_a_link_local_address_of_nobody_a_vnic_may_only_ask() {
    let mut world = plain();
    let stranger = (A.mac, random(1));
    world.one(1, &neighbour_solicitation(stranger, B.v6, None), &ANSWERED);
    world.expect(
        1,
        &[message(stranger, &[kind::LISTENER_REPORT_V2, 0, 0, 0, 0, 0, 0, 0])],
        &[("nft-misses", 1), ("bum-disabled", 1)],
    );
    world.expect(
        1,
        &[message(stranger, &[kind::ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0])],
        &[("bum-disabled", 1)],
    );
    let guarded = [("guard-vip", 1)];
    world.expect(1, &[between(stranger, own(B)).udp(1, 2, b"x")], &guarded);
    world.expect(1, &[between(stranger, own(B)).echo_request(1, 1, b"x")], &guarded);
    let says = NeighbourHeader::advertisement(random(1), NeighbourHeader::OVERRIDE);
    world.expect(1, &[message(stranger, says.bytes())], &guarded);
    let nameless = Path::v6((A.mac, Ipv6Addr::UNSPECIFIED), (B.mac, B.v6));
    world.expect(1, &[nameless.udp(1, 2, b"x")], &guarded);
    world.expect(1, &[nameless.echo_request(1, 1, b"x")], &guarded);
    // Learned, it is as good as a VIP, and others find it.
    learns(&mut world, 0, &[random(1)]);
    world.one(1, &between(stranger, own(B)).udp(1, 2, b"x"), &LOCAL);
    world.expect(1, &[message(stranger, says.bytes())], &[("consumed", 1)]);
    world.one(2, &neighbour_solicitation(own(B), random(1), None), &ANSWERED);
    world.expect(2, &[between((B.mac, random(1)), own(A)).udp(1, 2, b"x")], &guarded);
    let refused = [("decapsulated", 1), ("inner-source", 1)];
    world.expect(UPLINK, &[tunnelled(&between((R.mac, random(1)), own(A)).udp(1, 2, b"x"))], &refused);
}

#[test]
fn repair_link_local_addresses_that_another_host_learned_are_heard_until_somebody_is_known_to_have_them() {
    let mut world = plain();
    let known = (R.mac, random(3));
    let frame = between(known, own(A)).udp(1, 2, b"x");
    world.one(UPLINK, &tunnelled(&frame), &DECAP);
    world.one(UPLINK, &tunnelled(&frame), &[("nft-hits", 1), ("decapsulated", 1)]);
    // Claims come with a MAC that is behind the VTEP.
    let question = |from| tunnelled(&neighbour_solicitation(from, A.v6, None));
    let answered = [("decapsulated", 1), ("neighbours-answered", 1), ("encapsulated", 1)];
    world.one(UPLINK, &question(known), &answered);
    let refused = [("decapsulated", 1), ("inner-source", 1)];
    world.expect(UPLINK, &[question((MacAddr([2, 0, 0, 0, 9, 9]), random(3)))], &refused);
    // The flow ends when somebody here is found to have the address.
    learns(&mut world, 1, &[random(3)]);
    world.snapshot.touch_topology(0);
    world.expect(UPLINK, &[tunnelled(&frame)], &refused);
}

#[test]
fn repair_no_vnic_plays_the_router() {
    for flood in [false, true] {
        let mut world = plain();
        if flood {
            world.flood(0, &[2]);
        }
        let guarded = [("guard-ra", 1)];
        for bytes in [router_advertisement().to_vec(), redirect(B.v6)] {
            for source in [A.mac.link_local(), A.v6] {
                world.expect(1, &[message((A.mac, source), &bytes)], &guarded);
                let direct = Path::v6((A.mac, source), (B.mac, B.v6)).with_ttl(255).ip(58, &bytes);
                world.expect(1, &[direct], &guarded);
                // Nor behind extension headers, nor with a fragment header around the whole.
                for frame in behind_headers(&Path::v6((A.mac, source), (B.mac, B.v6)), &bytes) {
                    world.expect(1, &[frame], &guarded);
                }
            }
            let refused = [("decapsulated", 1), ("guard-ra", 1)];
            world.expect(UPLINK, &[tunnelled(&message(own(R), &bytes))], &refused);
        }
    }
    // A router out there is a station without a location, behind a VTEP that may have such.
    let mut world = plain();
    world.flood(0, &[2]);
    let router = (MacAddr([2, 0, 0, 0, 9, 9]), MacAddr([2, 0, 0, 0, 9, 9]).link_local());
    let out = world.pass(UPLINK, &tunnelled(&message(router, &router_advertisement())));
    assert_eq!(out.len(), 3, "to each vNIC of the VPC");
}

/// The message behind a destination options header, and behind a fragment header around the whole of it (RFC 6946).
fn behind_headers(path: &Path, bytes: &[u8]) -> [Vec<u8>; 2] {
    let plain = path.clone().with_ttl(255).ip(58, bytes);
    let message = &plain[14 + 40..];
    let with = |kind: u8, header: [u8; 8]| {
        path.clone().with_ttl(255).ip_unfilled(kind, &[&header[..], message].concat())
    };
    [with(60, [58, 0, 1, 4, 0, 0, 0, 0]), with(44, [58, 0, 0, 0, 0, 0, 0, 9])]
}

#[test]
fn repair_fragmented_neighbour_discovery_goes_nowhere() {
    for flood in [false, true] {
        let mut world = plain();
        if flood {
            world.flood(0, &[2]);
        }
        let says =
            NeighbourHeader::advertisement(B.v6, NeighbourHeader::OVERRIDE | NeighbourHeader::SOLICITED);
        let link = LinkAddress::new(option::TARGET_LINK_ADDRESS, A.mac);
        let bytes = [says.bytes(), link.bytes(), &[14, 12], &[0; 94][..]].concat();
        for to in [(B.mac, B.v6), (R.mac, R.v6)] {
            let path = Path::v6((A.mac, A.v6), to).with_ttl(255);
            let [_, atomic] = behind_headers(&path, &bytes);
            world.expect(1, &[atomic], &[("neighbour-unsound", 1)]);
            let frames = path.fragments(58, &bytes, 77, 100);
            assert!(frames.len() > 1);
            let later = frames.len() as u64 - 1;
            world.expect(1, &frames, &[("neighbour-unsound", 1), ("fragment-unknown", later)]);
        }
        // Its own address is no excuse.
        let question = neighbour_solicitation((B.mac, B.v6), A.v6, None);
        let headers = wire::parse::parse(&question, question.len()).unwrap();
        let answer = neighbour_advertisement(&headers, &question, A.mac, false).unwrap();
        let [options, atomic] = behind_headers(&v6(A, B), &answer[14 + 40..]);
        world.expect(1, &[atomic], &[("neighbour-unsound", 1)]);
        if !flood {
            world.expect(1, &[options], &[("consumed", 1)]);
        }
    }
}

#[test]
fn repair_every_link_layer_option_is_the_vnics_own() {
    let mut world = plain();
    world.flood(0, &[2]);
    let mine = |kind| LinkAddress::new(kind, A.mac);
    let other = |kind| LinkAddress::new(kind, B.mac);
    let source = option::SOURCE_LINK_ADDRESS;
    let target = option::TARGET_LINK_ADDRESS;
    for (fixed, kinds) in [
        (NeighbourHeader::advertisement(A.v6, NeighbourHeader::OVERRIDE), [target, source]),
        (NeighbourHeader::solicitation(R.v6), [source, target]),
    ] {
        for kinds in [kinds, [kinds[0]; 2]] {
            for (first, second, reason) in [
                (mine(kinds[0]), other(kinds[1]), "neighbour-unsound"),
                (other(kinds[0]), mine(kinds[1]), "neighbour-unsound"),
                (other(kinds[0]), other(kinds[1]), "guard-mac"),
            ] {
                let bytes = [fixed.bytes(), first.bytes(), second.bytes()].concat();
                world.expect(1, &[v6(A, B).with_ttl(255).ip(58, &bytes)], &[(reason, 1)]);
            }
        }
        // Longer than Ethernet's: some take the first six bytes.
        let long = [&[kinds[0], 2][..], &B.mac.0, &[0; 8]].concat();
        let bytes = [fixed.bytes(), &long].concat();
        world.expect(1, &[v6(A, B).with_ttl(255).ip(58, &bytes)], &[("neighbour-unsound", 1)]);
    }
    let asks = [&[kind::ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..], other(source).bytes()].concat();
    world.expect(1, &[message(own(A), &asks)], &[("guard-mac", 1)]);
}

#[test]
fn repair_wishes_for_link_local_addresses_reach_control() {
    let mut world = plain();
    world.expect(1, &[detection(A.mac, random(1))], &[("consumed", 1)]);
    assert_eq!((world.shared.events.wished(0), world.shared.events.wished(0)), (Some(random(1)), None));
    // A switch that was started anew hears of it with the next question.
    world.one(1, &neighbour_solicitation((A.mac, random(2)), B.v6, None), &ANSWERED);
    assert_eq!(world.shared.events.wished(0), Some(random(2)));
    // Never somebody else's, one that is known, one that follows from a MAC, or a global one.
    learns(&mut world, 1, &[random(3)]);
    world.locate_station(0, Station { v6: random(4), ..R }, Place::Empty);
    let taken = [random(3), random(4), R.mac.link_local(), B.mac.link_local(), ROUTER.link_local()];
    let odd = [A.mac.link_local(), MacAddr([2, 0, 0, 0, 9, 9]).link_local(), "fd00:1::77".parse().unwrap()];
    let asked = taken.map(|target| (target, ANSWERED)).into_iter();
    for (target, moved) in asked.chain(odd.map(|target| (target, [("consumed", 1)]))) {
        world.expect(1, &[detection(A.mac, target)], &moved);
        assert_eq!(world.shared.events.wished(0), None, "{target}");
    }
    // Nor where the config has it off, nor out of the tunnel, nor under a foreign MAC.
    world.expect(1, &[detection(B.mac, random(5))], &[("guard-mac", 1)]);
    world.pass(UPLINK, &tunnelled(&detection(R.mac, random(5))));
    let old = world.snapshot.vnics[0].as_deref().unwrap().clone();
    world.snapshot.vnics[0] = Some(Arc::new(Vnic { learns: false, ..old }));
    world.expect(1, &[detection(A.mac, random(5))], &[("consumed", 1)]);
    assert_eq!((0..8).filter_map(|vnic| world.shared.events.wished(vnic)).count(), 0);
}
