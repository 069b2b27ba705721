//! Services of a VPC: what is told from everything else and handed to control, and what vNICs may not say.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pipelines::service::MOST_OF_ONE;
use pipelines::snapshot::Services;
use wire::build::Path;
use wire::build::router::router_solicitation;
use wire::{MacAddr, dhcp, dhcpv6, ipv6, udp};

use testkit::*;

const TAKEN: [(&str, u64); 3] = [("nft-hits", 1), ("consumed", 1), ("service-requests", 1)];
const NEW: [(&str, u64); 3] = [("nft-misses", 1), ("consumed", 1), ("service-requests", 1)];
const BROADCAST: (MacAddr, Ipv4Addr) = (MacAddr([0xff; 6]), Ipv4Addr::BROADCAST);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

/// A message of a DHCPv4 client.
fn message(mac: MacAddr, kind: u8) -> Vec<u8> {
    let mut bytes = vec![0; dhcp::HEADER_LEN];
    bytes[..3].copy_from_slice(&[dhcp::REQUEST, dhcp::ETHERNET, 6]);
    bytes[28..34].copy_from_slice(&mac.0);
    bytes[236..].copy_from_slice(&dhcp::COOKIE);
    bytes.extend([dhcp::option::MESSAGE_TYPE, 1, kind, dhcp::option::END]);
    bytes
}

fn discover(mac: MacAddr) -> Vec<u8> {
    let path = Path::v4((mac, Ipv4Addr::UNSPECIFIED), BROADCAST);
    path.udp(udp::port::DHCP_CLIENT, udp::port::DHCP_SERVER, &message(mac, dhcp::kind::DISCOVER))
}

/// Of a client that has its address, to the server or to all.
fn renew(from: Station, to: (MacAddr, Ipv4Addr)) -> Vec<u8> {
    let path = Path::v4((from.mac, from.v4), to);
    path.udp(udp::port::DHCP_CLIENT, udp::port::DHCP_SERVER, &message(from.mac, dhcp::kind::REQUEST))
}

fn solicit(from: (MacAddr, Ipv6Addr)) -> Vec<u8> {
    let group = dhcpv6::ALL_SERVERS;
    let path = Path::v6(from, (ipv6::multicast_mac(group), group)).with_ttl(1);
    path.udp(udp::port::DHCPV6_CLIENT, udp::port::DHCPV6_SERVER, &[1, 0, 0, 1, 0, 1, 0, 2, 0, 3])
}

/// Has the first subnet of each family offer DHCP, or nobody.
fn offer(world: &mut World, on: bool) {
    let mut subnets = world.vpc(0).subnets().to_vec();
    for subnet in [0, 2] {
        subnets[subnet].services = if on { Services::DHCP } else { Services::NONE };
    }
    world.vpc(0).set_subnets(subnets);
    world.snapshot.touch_vpc(0);
}

fn serving() -> World {
    let mut world = plain();
    offer(&mut world, true);
    world
}

#[test]
fn services_that_are_off_change_nothing() {
    let mut world = plain();
    world.expect(1, &[discover(A.mac)], &[("guard-vip", 1)]);
    world.expect(1, &[renew(Station { v4: B.v4, ..A }, BROADCAST)], &[("guard-vip", 1)]);
    world.expect(1, &[renew(A, BROADCAST)], &[("nft-misses", 1), ("bum-disabled", 1)]);
    world.expect(1, &[renew(A, (ROUTER, GATEWAY))], &[("nft-misses", 1), ("to-router", 1)]);
    world.expect(1, &[solicit((A.mac, A.mac.link_local()))], &[("nft-misses", 1), ("bum-disabled", 1)]);
    // A relay, or somebody who plays with ports.
    let reply = Path::v4((A.mac, A.v4), (B.mac, B.v4)).udp(67, 68, &[0; 300]);
    assert_eq!(world.expect(1, &[reply], &LOCAL)[0].0, 2);
    assert!(world.shared.events.asked().is_none());
}

#[test]
fn services_take_what_is_asked_of_them() {
    let mut world = serving();
    let mut ask = |frame: Vec<u8>, source: IpAddr, destination: IpAddr, payload: &[u8]| {
        world.expect(1, &[frame], &NEW);
        let asked = world.shared.events.asked().unwrap();
        assert_eq!((asked.vnic, asked.mac), (0, A.mac));
        assert_eq!((asked.source, asked.destination), (source, destination));
        assert_eq!(asked.payload(), payload);
        assert!(world.shared.events.asked().is_none());
    };
    let (nobody, all) = (Ipv4Addr::UNSPECIFIED.into(), IpAddr::V4(Ipv4Addr::BROADCAST));
    ask(discover(A.mac), nobody, all, &message(A.mac, dhcp::kind::DISCOVER));
    let request = message(A.mac, dhcp::kind::REQUEST);
    ask(renew(A, BROADCAST), A.v4.into(), all, &request);
    ask(renew(A, (ROUTER, GATEWAY)), A.v4.into(), GATEWAY.into(), &request);
    // Of a client that holds another address than the vNIC's, which was renumbered: one that nobody has now, and one that is
    // somebody else's. It hears that the address is not its own.
    for v4 in [Ipv4Addr::new(10, 0, 0, 77), B.v4] {
        let renumbered = Station { v4, ..A };
        ask(renew(renumbered, BROADCAST), v4.into(), all, &request);
        ask(renew(renumbered, (ROUTER, GATEWAY)), v4.into(), GATEWAY.into(), &request);
    }
    let solicitation = [1, 0, 0, 1, 0, 1, 0, 2, 0, 3];
    let own = A.mac.link_local();
    ask(solicit((A.mac, own)), own.into(), dhcpv6::ALL_SERVERS.into(), &solicitation);
    // An address that the kernel made up and that control has not learned yet.
    let random = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x8d3c, 1, 2, 3);
    ask(solicit((A.mac, random)), random.into(), dhcpv6::ALL_SERVERS.into(), &solicitation);
}

#[test]
fn services_are_for_vnics_with_an_address_in_the_subnet() {
    let mut world = serving();
    // The second vNIC of the lab is in the other subnets.
    let mut subnets = world.vpc(0).subnets().to_vec();
    for subnet in [0, 2] {
        subnets[subnet].services = Services::NONE;
        subnets[subnet + 1].services = Services::DHCP;
    }
    world.vpc(0).set_subnets(subnets);
    world.snapshot.touch_vpc(0);
    world.expect(1, &[discover(A.mac)], &[("guard-vip", 1)]);
    world.expect(1, &[solicit((A.mac, A.mac.link_local()))], &[("nft-misses", 1), ("bum-disabled", 1)]);
}

#[test]
fn services_that_come_and_go_hold_for_known_flows() {
    let mut world = plain();
    let question = [renew(A, (ROUTER, GATEWAY))];
    let reply = [Path::v4((A.mac, A.v4), (B.mac, B.v4)).udp(67, 68, &[0; 300])];
    world.expect(1, &question, &[("nft-misses", 1), ("to-router", 1)]);
    world.expect(1, &reply, &LOCAL);
    offer(&mut world, true);
    world.expect(1, &question, &[&TAKEN[1..], &[("nft-stale", 1)]].concat());
    world.expect(1, &reply, &[("nft-stale", 1), ("guard-dhcp", 1)]);
    world.expect(1, &question, &TAKEN);
    offer(&mut world, false);
    world.expect(1, &question, &[("nft-stale", 1), ("to-router", 1)]);
    world.expect(1, &reply, &[("nft-stale", 1), ("local", 1)]);
}

#[test]
fn services_are_nobody_elses_to_give() {
    let mut world = serving();
    let rogue = [("nft-misses", 1), ("guard-dhcp", 1)];
    // To one client, to all, and from another port: clients look at their own only.
    for (to, port) in [((B.mac, B.v4), 67), (BROADCAST, 67), (BROADCAST, 4000)] {
        world.expect(1, &[Path::v4((A.mac, A.v4), to).udp(port, 68, &[0; 300])], &rogue);
    }
    let path = Path::v6((A.mac, A.mac.link_local()), (B.mac, B.mac.link_local()));
    world.expect(1, &[path.udp(547, 546, &[2; 40])], &rogue);
    world.expect(1, &[Path::v6((A.mac, A.v6), (B.mac, B.v6)).udp(547, 546, &[7; 40])], &rogue);
}

#[test]
fn services_hear_a_vnic_for_itself_only() {
    let mut world = serving();
    world.expect(1, &[discover(B.mac)], &[("guard-mac", 1)]);
    let path = Path::v4((A.mac, Ipv4Addr::UNSPECIFIED), BROADCAST);
    let others = path.udp(68, 67, &message(B.mac, dhcp::kind::RELEASE));
    world.expect(1, &[others], &[("nft-misses", 1), ("guard-dhcp", 1)]);
    // To another server, to the gateway of none of its subnets, in a tagged frame, and what is no DHCP: from no address, and from
    // another's.
    for from in [Ipv4Addr::UNSPECIFIED, B.v4] {
        let path = |to: (MacAddr, Ipv4Addr)| Path::v4((A.mac, from), to);
        let request = message(A.mac, dhcp::kind::REQUEST);
        for frame in [
            path((B.mac, B.v4)).udp(68, 67, &request),
            path((ROUTER, "8.8.8.8".parse().unwrap())).udp(68, 67, &request),
            path(BROADCAST).udp(68, 69, &request),
            path((ROUTER, GATEWAY)).udp(68, 69, &request),
            path(BROADCAST).tcp(68, 67, 2, &request),
        ] {
            world.expect(1, &[frame], &[("guard-vip", 1)]);
        }
    }
    // Another vNIC's request, from whatever address.
    let request = Path::v4((A.mac, B.v4), BROADCAST).udp(68, 67, &message(B.mac, dhcp::kind::REQUEST));
    world.expect(1, &[request], &[("nft-misses", 1), ("guard-dhcp", 1)]);
    let held = solicit((A.mac, B.mac.link_local()));
    world.expect(1, &[held], &[("guard-vip", 1)]);
    assert!(world.shared.events.asked().is_none());
}

#[test]
fn services_drop_by_name_what_they_cannot_read() {
    let mut world = serving();
    let path = Path::v4((A.mac, Ipv4Addr::UNSPECIFIED), BROADCAST);
    let whole = message(A.mac, dhcp::kind::DISCOVER);
    let short = path.udp(68, 67, &whole[..200]);
    world.expect(1, &[short], &[("nft-misses", 1), ("dhcp-malformed", 1)]);
    let mut wrong_sum = discover(A.mac);
    wrong_sum[60] ^= 1;
    world.expect(1, &[wrong_sum], &[("nft-hits", 1), ("dhcp-malformed", 1)]);
    let datagram = udp_in(&discover(A.mac));
    let pieces = Path { dont_fragment: false, ..path.clone() }.fragments(17, &datagram, 7, 200);
    let n = pieces.len() as u64;
    assert!(n > 1);
    world.expect(1, &pieces, &[("nft-hits", 1), ("dhcp-malformed", 1), ("guard-vip", n - 1)]);
    let group = (ipv6::multicast_mac(dhcpv6::ALL_SERVERS), dhcpv6::ALL_SERVERS);
    let unread = Path::v6((A.mac, A.mac.link_local()), group).udp(546, 547, &[1, 0, 0, 1, 0, 1, 0, 9, 0, 3]);
    world.expect(1, &[unread], &[("nft-misses", 1), ("dhcp-malformed", 1)]);
    assert!(world.shared.events.asked().is_none());
}

/// The UDP datagram of an untagged IPv4 frame.
fn udp_in(frame: &[u8]) -> Vec<u8> {
    frame[34..].to_vec()
}

#[test]
fn services_storms_are_their_senders_own() {
    let mut world = serving();
    let storm: Vec<_> = (0..60).map(|_| discover(A.mac)).collect();
    let most = u64::from(MOST_OF_ONE);
    let moved = [
        ("nft-misses", 1),
        ("nft-hits", 59),
        ("consumed", most),
        ("service-requests", most),
        ("service-limit", 60 - most),
    ];
    world.expect(1, &storm, &moved);
    // Another vNIC in the same burst of time: its traffic, and its own questions.
    world.expect(2, &[Path::v4((B.mac, B.v4), (A.mac, A.v4)).udp(1, 2, b"x")], &LOCAL);
    assert_eq!(std::iter::from_fn(|| world.shared.events.asked()).count(), usize::from(MOST_OF_ONE));
    world.expect(2, &[discover(B.mac)], &NEW);
    // Half a second later it is heard again.
    world.now = pipelines::Now::from_ns(world.now.ns + 550_000_000);
    world.expect(1, &[discover(A.mac)], &TAKEN);
}

#[test]
fn services_drop_by_name_what_control_has_no_time_for() {
    let mut world = serving();
    let mut subnets = world.vpc(0).subnets().to_vec();
    subnets[1].services = Services::DHCP;
    world.vpc(0).set_subnets(subnets);
    world.snapshot.touch_vpc(0);
    // Room for 16, of which two vNICs take all that one may have.
    let most = u64::from(MOST_OF_ONE);
    for (port, station) in [(1, A), (2, B)] {
        let questions: Vec<_> = (0..most).map(|_| discover(station.mac)).collect();
        let moved =
            [("nft-misses", 1), ("nft-hits", most - 1), ("consumed", most), ("service-requests", most)];
        world.expect(port, &questions, &moved);
    }
    world.expect(3, &[discover(C.mac)], &[("nft-misses", 1), ("service-queue-full", 1)]);
    world.expect(1, &[discover(A.mac)], &[("nft-hits", 1), ("service-limit", 1)]);
    assert!(world.shared.events.asked().is_some());
    world.expect(3, &[discover(C.mac)], &TAKEN);
}

#[test]
fn services_hear_who_looks_for_a_router() {
    let mut world = plain();
    let own = (A.mac, A.mac.link_local());
    let question = [router_solicitation(own)];
    world.expect(1, &question, &[("bum-disabled", 1)]);
    assert_eq!(world.shared.events.solicited(), None);
    let mut subnets = world.vpc(0).subnets().to_vec();
    subnets[2].services = Services::ADVERTISEMENTS;
    world.vpc(0).set_subnets(subnets);
    world.snapshot.touch_vpc(0);
    let heard = [("consumed", 1), ("service-requests", 1)];
    world.expect(1, &question, &heard);
    // Before it has an address at all, and as often as it likes: it waits once.
    world.expect(1, &[router_solicitation((A.mac, Ipv6Addr::UNSPECIFIED))], &heard);
    world.expect(2, &[router_solicitation((B.mac, B.mac.link_local()))], &heard);
    let solicited: Vec<u32> = std::iter::from_fn(|| world.shared.events.solicited()).collect();
    assert_eq!(solicited, [0, 1]);
    world.expect(1, &question, &heard);
    assert_eq!(world.shared.events.solicited(), Some(0));
    // For another, with a wrong hop limit, and from where no such subnet is.
    world.expect(1, &[router_solicitation((A.mac, B.mac.link_local()))], &[("guard-vip", 1)]);
    world.expect(3, &[router_solicitation((C.mac, C.mac.link_local()))], &[("bum-disabled", 1)]);
    assert_eq!(world.shared.events.solicited(), None);
}
