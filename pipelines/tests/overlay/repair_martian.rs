//! What a router, a bridge and a tunnel end point must not pass on.

use pipelines::snapshot::{Prefix, RouteTarget};
use wire::build::Path;
use wire::{MacAddr, Vni};

use testkit::*;

const MARTIAN: [(&str, u64); 2] = [("nft-misses", 1), ("martian", 1)];

/// A lab whose VPC has a gateway for everything.
fn with_gateway() -> World {
    let mut world = plain();
    let gateway = world.gateways(0, &[4]);
    world.route(0, &[("0.0.0.0/0", gateway.clone()), ("::/0", gateway)]);
    world
}

fn to_v4(address: &str) -> Vec<u8> {
    Path::v4((A.mac, A.v4), (ROUTER, address.parse().unwrap())).udp(1, 2, b"x")
}

fn to_v6(address: &str) -> Vec<u8> {
    Path::v6((A.mac, A.v6), (ROUTER, address.parse().unwrap())).udp(1, 2, b"x")
}

#[test]
fn repair_the_virtual_router_forwards_no_martians() {
    let mut world = with_gateway();
    for address in ["0.0.0.1", "127.0.0.1", "169.254.169.254", "224.0.0.1", "240.0.0.1", "255.255.255.255"] {
        world.expect(1, &[to_v4(address)], &MARTIAN);
    }
    for address in ["::", "::1", "fe80::1", "ff02::1", "ff0e::1", "::ffff:8.8.8.8"] {
        world.expect(1, &[to_v6(address)], &MARTIAN);
    }
    world.one(1, &to_v4("8.8.8.8"), &ENCAP);
    world.one(1, &to_v6("2001:db8::1"), &ENCAP);
    // Nor are they a source, from wherever.
    for source in ["127.0.0.1", "169.254.1.1", "0.0.0.0", "240.0.0.1"] {
        let path = Path::v4((MacAddr([2, 0, 0, 0, 8, 8]), source.parse().unwrap()), (ROUTER, A.v4));
        let frame =
            outer(4, 1, Underlay::default()).vxlan(50_000, Vni::new(100).unwrap(), &path.udp(1, 2, b"x"));
        world.expect(UPLINK, &[frame], &[("decapsulated", 1), ("nft-misses", 1), ("martian", 1)]);
    }
}

#[test]
fn repair_a_host_route_to_the_metadata_service_means_what_it_says() {
    for (to, counted) in [("169.254.169.254/32", "encapsulated"), ("169.254.0.0/16", "martian")] {
        let mut world = with_gateway();
        let gateway = world.gateways(0, &[4]);
        world.route(0, &[("0.0.0.0/0", gateway.clone()), (to, gateway)]);
        world.expect(1, &[to_v4("169.254.169.254")], &[("nft-misses", 1), (counted, 1)]);
        world.expect(1, &[to_v4("169.254.169.253")], &MARTIAN);
    }
}

/// Not even a host route leads to what is no unicast address of any link.
#[test]
fn routing_to_loopback_and_groups_is_never_done() {
    for address in ["127.0.0.1", "0.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "169.254.1.1"] {
        let mut world = with_gateway();
        let gateway = world.gateways(0, &[4]);
        world.route(0, &[(&format!("{address}/32"), gateway)]);
        let counted = if address.starts_with("169") { "encapsulated" } else { "martian" };
        world.expect(1, &[to_v4(address)], &[("nft-misses", 1), (counted, 1)]);
    }
    for address in ["::", "::1", "ff02::1", "ff0e::1", "::ffff:8.8.8.8", "fe80::a9fe:a9fe"] {
        let mut world = with_gateway();
        let gateway = world.gateways(0, &[4]);
        world.route(0, &[(&format!("{address}/128"), gateway)]);
        let counted = if address.starts_with("fe80") { "encapsulated" } else { "martian" };
        world.expect(1, &[to_v6(address)], &[("nft-misses", 1), (counted, 1)]);
    }
    // A blackhole is one for link-local addresses, too; without it they are martians.
    let mut world = with_gateway();
    world.route(0, &[("169.254.169.254/32", RouteTarget::Blackhole)]);
    let moved = [("nft-misses", 1), ("blackhole", 1), ("originated", 1)];
    world.expect(1, &[to_v4("169.254.169.254")], &moved);
}

#[test]
fn repair_no_gateway_leads_to_the_switch_itself() {
    let mut world = with_gateway();
    world.expect(1, &[to_v4(&host_v4(1).to_string())], &MARTIAN);
    world.expect(1, &[to_v6(&host_v6(1).to_string())], &MARTIAN);
    // A tenant's own network may have the same addresses.
    let mut subnets = world.vpc(0).subnets().to_vec();
    subnets[1].prefix = Prefix::new(ip("172.16.0.0"), 24);
    world.vpc(0).set_subnets(subnets);
    world.snapshot.touch_vpc(0);
    let moved = [("nft-stale", 1), ("no-location", 1), ("originated", 1)];
    world.expect(1, &[to_v4(&host_v4(1).to_string())], &moved);
}

#[test]
fn repair_reserved_macs_pass_no_bridge() {
    for floods in [false, true] {
        let mut world = plain();
        if floods {
            world.flood(0, &[2]);
        }
        for last in [0, 2, 3, 0xe, 0xf] {
            let path = Path { dst_mac: MacAddr([1, 0x80, 0xc2, 0, 0, last]), ..v4(A, R) };
            world.expect(1, &[path.ethernet(0x88cc, &[0; 46])], &[("nft-misses", 1), ("reserved-mac", 1)]);
            let inward = Path { src_mac: R.mac, ..path }.ethernet(0x88cc, &[0; 46]);
            let moved = [("nft-misses", 1), ("decapsulated", 1), ("reserved-mac", 1)];
            world.expect(UPLINK, &[tunnelled(&inward)], &moved);
        }
        let next =
            Path { dst_mac: MacAddr([1, 0x80, 0xc2, 0, 0, 0x10]), ..v4(A, R) }.ethernet(0x88cc, &[0; 46]);
        assert_eq!(world.pass(1, &next).is_empty(), !floods);
    }
}

#[test]
fn repair_outer_ttl_and_options_are_refused_by_name() {
    let inner = v4(R, A).udp(1, 2, b"x");
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let dead = outer(2, 1, underlay).with_ttl(0).vxlan(50_000, Vni::new(100).unwrap(), &inner);
        world.expect(UPLINK, &[dead], &[("outer-ttl", 1)]);
        let last = outer(2, 1, underlay).with_ttl(1).vxlan(50_000, Vni::new(100).unwrap(), &inner);
        world.one(UPLINK, &last, &DECAP);
    }
    // A loose source route (RFC 791 section 3.1), and options that do nothing.
    for option in [[131, 7, 4, 10, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1, 0]] {
        let mut world = plain();
        let mut frame = tunnelled(&inner);
        frame.splice(34..34, option);
        let total = (frame.len() - 14) as u16;
        frame[14] = 0x47;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        assert!(wire::ipv4::fill_checksum(&mut frame[14..42]));
        world.expect(UPLINK, &[frame], &[("outer-options", 1)]);
    }
}
