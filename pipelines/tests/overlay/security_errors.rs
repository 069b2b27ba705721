//! ICMP errors to vNICs in security groups: about what, and from whom.

use std::net::IpAddr;

use pipelines::Direction;
use pipelines::drops::DropReason;
use pipelines::security::{Group, Peer, Traffic};
use pipelines::snapshot::{Prefix, RouteTarget};
use wire::MacAddr;
use wire::build::Path;
use wire::build::control::{IcmpError, icmp_error};

use testkit::*;

use super::guard::change;
use super::routing_stations::{own, question};
use super::security::{group, passes, rule, secure};

/// A's VPC, A in a group that lets nothing in.
fn closed() -> World {
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    world
}

/// An error that says of a frame what a router says.
fn error(about: &[u8], from: (MacAddr, IpAddr)) -> Vec<u8> {
    let headers = wire::parse::parse(about, about.len()).unwrap();
    icmp_error(&headers, about, IcmpError::NoRoute, from).unwrap()
}

/// A station by the address of its own that is like another one.
fn by(station: Station, like: IpAddr) -> (MacAddr, IpAddr) {
    (station.mac, own(station, like))
}

#[test]
fn security_an_icmp_error_is_judged_by_what_it_quotes() {
    let out = v4(A, R);
    let mut world = closed();
    let question = out.udp(9, 7, b"mine");
    let error = |about: &[u8]| tunnelled(&error(about, by(R, R.v4.into())));
    assert!(!passes(&mut world, UPLINK, &error(&question)), "nothing was asked");
    assert!(passes(&mut world, 1, &question));
    assert!(passes(&mut world, UPLINK, &error(&question)));
    assert!(!passes(&mut world, UPLINK, &error(&out.udp(10, 7, b"not mine"))));
    assert!(passes(&mut world, UPLINK, &error(&question)), "what others quote changes nothing");
}

#[test]
fn security_an_icmp_error_of_a_neighbour_who_is_on_no_way_stays_out() {
    for (path, address) in [(v4(A, R), A.v4.into()), (v6(A, R), A.v6.into())] {
        let mut world = closed();
        let gateway: IpAddr = world.vpc(0).subnet_of(address).unwrap().gateway.unwrap();
        let question = path.udp(9, 7, b"mine");
        assert!(passes(&mut world, 1, &question));
        for _ in 0..2 {
            assert!(passes(&mut world, UPLINK, &tunnelled(&error(&question, by(R, gateway)))), "its peer");
            assert!(
                passes(&mut world, UPLINK, &tunnelled(&error(&question, (ROUTER, gateway)))),
                "the router"
            );
            let refused = world.worker.counters.drops(DropReason::SECURITY_IN);
            assert!(!passes(&mut world, 2, &error(&question, by(B, gateway))), "a vNIC here");
            assert!(
                !passes(&mut world, UPLINK, &tunnelled(&error(&question, by(S, gateway)))),
                "a vNIC there"
            );
            assert_eq!(world.worker.counters.drops(DropReason::SECURITY_IN), refused + 2);
        }
    }
}

#[test]
fn security_an_icmp_error_of_a_router_on_the_way_comes_in() {
    for (everywhere, there, router) in
        [("0.0.0.0/0", "8.8.8.8", "9.9.9.9"), ("::/0", "2001:db8::8", "2001:db8::9")]
    {
        let question = question(A, there).udp(9, 7, b"mine");
        let (there, router) = (ip(there), ip(router));
        // A vNIC that routes.
        let mut world = closed();
        world.route(0, &[(everywhere, RouteTarget::Station(B.mac))]);
        assert!(passes(&mut world, 1, &question));
        assert!(passes(&mut world, 2, &error(&question, by(B, there))));
        assert!(!passes(&mut world, UPLINK, &tunnelled(&error(&question, by(R, there)))));
        // A gateway: what is behind its VTEP may be on the way, stations elsewhere are not.
        let mut world = closed();
        let gateways = world.gateways(0, &[2]);
        world.route(0, &[(everywhere, gateways)]);
        assert!(passes(&mut world, 1, &question));
        for from in
            [by(R, there), (MacAddr([2, 0, 0, 0, 8, 2]), router), (MacAddr([2, 0, 0, 0, 8, 2]), there)]
        {
            assert!(passes(&mut world, UPLINK, &tunnelled(&error(&question, from))), "{from:?}");
        }
        assert!(!passes(&mut world, 2, &error(&question, by(B, there))));
    }
}

/// Whose packet it is counts, not the address that it bears.
#[test]
fn security_an_icmp_error_of_a_vnic_here_does_not_pass_under_another_address() {
    let cases = [(v4(A, R), ip("10.0.0.77"), "10.0.0.8/29"), (v6(A, R), ip("fd00:1::77"), "fd00:1::8/125")];
    for (path, strange, around_peer) in cases {
        let question = path.udp(9, 7, b"mine");
        let mut world = closed();
        // B may send from whatever address it likes.
        change(&mut world, 1, &[], false);
        let gateway = world.vpc(0).subnet_of(strange).unwrap().gateway.unwrap();
        assert!(passes(&mut world, 1, &question));
        let addresses = [strange, gateway, own(R, strange), own(B, strange)];
        for address in addresses {
            assert!(!passes(&mut world, 2, &error(&question, (B.mac, address))), "{address}");
        }
        // It is on the way once the VPC routes the peer's address to it.
        world.route(0, &[(around_peer, RouteTarget::Station(B.mac))]);
        assert!(passes(&mut world, 1, &question));
        for address in addresses {
            assert!(passes(&mut world, 2, &error(&question, (B.mac, address))), "{address}");
        }
    }
}

#[test]
fn security_an_icmp_error_of_a_station_elsewhere_is_known_by_its_mac() {
    let question = v6(A, R).udp(9, 7, b"mine");
    let mut world = closed();
    assert!(passes(&mut world, 1, &question));
    // A link-local address that does not follow from the MAC is known on its own host alone.
    let address = ip("fe80::8d3c:1");
    assert!(!passes(&mut world, UPLINK, &tunnelled(&error(&question, (S.mac, address)))));
    assert!(passes(&mut world, UPLINK, &tunnelled(&error(&question, (R.mac, address)))), "the peer");
}

/// A vNIC of a VPC that has a route here, where this VPC has none back.
#[test]
fn security_an_icmp_error_from_a_vpc_that_nobody_here_sends_to_stays_out() {
    let mut world = closed();
    let other = world.add_vpc(200);
    let stranger = Station { mac: MacAddr([2, 0, 0, 0, 7, 1]), v4: [10, 9, 0, 1].into(), ..C };
    let (_, port) = world.add_vnic(other, stranger, None);
    world.route(other, &[("10.0.0.0/28", RouteTarget::Peer(0))]);
    let question = v4(A, R).udp(9, 7, b"mine");
    assert!(passes(&mut world, 1, &question));
    let mut frame = error(&question, (stranger.mac, stranger.v4.into()));
    frame[..6].copy_from_slice(&ROUTER.0);
    let refused = world.worker.counters.drops(DropReason::INNER_SOURCE);
    assert!(!passes(&mut world, port, &frame));
    assert_eq!(world.worker.counters.drops(DropReason::INNER_SOURCE), refused + 1);
}

/// An error goes to whoever sent the packet that it is about: no letter to others, whatever it quotes.
#[test]
fn security_an_icmp_error_to_somebody_else_than_the_sender_of_what_it_quotes_goes_by_rules() {
    let quoted = [(v4(R, A), v4(A, R), S.v4.into()), (v6(R, A), v6(A, R), S.v6.into())];
    for (back, out, other) in quoted {
        let mut world = plain();
        let r = Prefix::new(own(R, other), if other.is_ipv4() { 32 } else { 128 });
        let asks_r = rule(Direction::Out, Traffic::Udp(7, 7), Peer::Prefix(r));
        secure(&mut world, &[Group { allows_out: false, ..group(&[asks_r]) }], &[(A, &[0])]);
        assert!(passes(&mut world, 1, &out.udp(9, 7, b"question")));
        let answer = back.udp(7, 9, b"answer");
        assert!(passes(&mut world, UPLINK, &tunnelled(&answer)));
        let about = error(&answer, by(A, other));
        assert!(passes(&mut world, 1, &about), "A tells R what became of R's packet");
        // The same words to S: only the address differs.
        let headers = wire::parse::parse(&about, about.len()).unwrap();
        let source = own(A, other);
        let path = match (source, other) {
            (IpAddr::V4(source), IpAddr::V4(other)) => Path::v4((A.mac, source), (ROUTER, other)),
            (IpAddr::V6(source), IpAddr::V6(other)) => Path::v6((A.mac, source), (ROUTER, other)),
            _ => unreachable!(),
        };
        let letter = path.ip(headers.proto, &about[usize::from(headers.l4_offset)..]);
        let refused = world.worker.counters.drops(DropReason::SECURITY_OUT);
        assert!(!passes(&mut world, 1, &letter));
        assert_eq!(world.worker.counters.drops(DropReason::SECURITY_OUT), refused + 1);
    }
}

/// A connection that stands under newer rules is one, also before a packet of its own has been held against them.
#[test]
fn security_an_icmp_error_holds_its_connection_against_the_newest_rules() {
    let mut world = closed();
    let question = v4(A, R).udp(9, 7, b"mine");
    assert!(passes(&mut world, 1, &question));
    let told = tunnelled(&error(&question, by(R, R.v4.into())));
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    assert!(passes(&mut world, UPLINK, &told));
    secure(&mut world, &[Group { allows_out: false, ..group(&[]) }], &[(A, &[0])]);
    assert!(!passes(&mut world, UPLINK, &told));
}
