//! ICMP errors to vNICs in security groups: about what, and from whom.

use std::net::IpAddr;

use pipelines::drops::DropReason;
use pipelines::snapshot::RouteTarget;
use wire::MacAddr;
use wire::build::Path;
use wire::build::control::{IcmpError, icmp_error};

use testkit::*;

use super::security::{group, passes, secure};

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

fn own(station: Station, like: IpAddr) -> (MacAddr, IpAddr) {
    (station.mac, if like.is_ipv4() { station.v4.into() } else { station.v6.into() })
}

/// A asks an address beyond the virtual router.
fn beyond(address: IpAddr) -> Vec<u8> {
    let path = match address {
        IpAddr::V4(address) => Path::v4((A.mac, A.v4), (ROUTER, address)),
        IpAddr::V6(address) => Path::v6((A.mac, A.v6), (ROUTER, address)),
    };
    path.udp(9, 7, b"mine")
}

#[test]
fn security_an_icmp_error_is_judged_by_what_it_quotes() {
    let out = v4(A, R);
    let mut world = closed();
    let question = out.udp(9, 7, b"mine");
    let error = |about: &[u8]| tunnelled(&error(about, own(R, R.v4.into())));
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
            assert!(passes(&mut world, UPLINK, &tunnelled(&error(&question, own(R, gateway)))), "its peer");
            assert!(
                passes(&mut world, UPLINK, &tunnelled(&error(&question, (ROUTER, gateway)))),
                "the router"
            );
            let refused = world.worker.counters.drops(DropReason::SECURITY_IN);
            assert!(!passes(&mut world, 2, &error(&question, own(B, gateway))), "a vNIC here");
            assert!(
                !passes(&mut world, UPLINK, &tunnelled(&error(&question, own(S, gateway)))),
                "a vNIC there"
            );
            assert_eq!(world.worker.counters.drops(DropReason::SECURITY_IN), refused + 2);
        }
    }
}

#[test]
fn security_an_icmp_error_of_a_router_on_the_way_comes_in() {
    for (there, router) in [(ip("8.8.8.8"), ip("9.9.9.9")), (ip("2001:db8::8"), ip("2001:db8::9"))] {
        let everywhere = if there.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        let question = beyond(there);
        // A vNIC that routes.
        let mut world = closed();
        world.route(0, &[(everywhere, RouteTarget::Station(B.mac))]);
        assert!(passes(&mut world, 1, &question));
        assert!(passes(&mut world, 2, &error(&question, own(B, there))));
        assert!(!passes(&mut world, UPLINK, &tunnelled(&error(&question, own(R, there)))));
        // A gateway: what is behind its VTEP may be on the way, stations elsewhere are not.
        let mut world = closed();
        let gateways = world.gateways(0, &[2]);
        world.route(0, &[(everywhere, gateways)]);
        assert!(passes(&mut world, 1, &question));
        for from in
            [own(R, there), (MacAddr([2, 0, 0, 0, 8, 2]), router), (MacAddr([2, 0, 0, 0, 8, 2]), there)]
        {
            assert!(passes(&mut world, UPLINK, &tunnelled(&error(&question, from))), "{from:?}");
        }
        assert!(!passes(&mut world, 2, &error(&question, own(B, there))));
    }
}
