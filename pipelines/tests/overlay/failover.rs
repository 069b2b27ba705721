//! Two uplinks with one VTEP address: which of them packets leave by, what they look like there, and who answers for it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use pipelines::next_hop::{BUCKETS, LinkSource, NextHops, ResolvedHop};
use pipelines::snapshot::{PortIndex, PortRole, PortRow, Uplink};
use wire::build::Path;
use wire::build::control::{arp_request, neighbour_solicitation};
use wire::{MacAddr, Vni};

use testkit::open::open;
use testkit::*;

const SECOND_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0x77, 1]);
const ROUTERS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0x88, 0]), MacAddr([2, 0, 0, 0, 0x88, 1])];

/// A world whose host has a second uplink with the addresses of the first, and the port of that.
fn two_uplinks(underlay: Underlay) -> (World, PortIndex) {
    let mut world = lab(1, underlay);
    let port = world.snapshot.ports.len() as PortIndex;
    world.snapshot.ports.push(PortRow { role: PortRole::Uplink(1), ..world.snapshot.ports[0] });
    let second = Uplink {
        name: "second".into(),
        port,
        mac: SECOND_MAC.to_u64(),
        source: LinkSource::new(SECOND_MAC),
        ..world.uplink().clone()
    };
    world.snapshot.uplinks.push(Some(Arc::new(second)));
    (world, port)
}

/// Which of the two next hops each bucket has.
fn spread(world: &mut World, buckets: [usize; BUCKETS]) {
    let hops = buckets.map(|n| Some(ResolvedHop { uplink: n as u16, mac: ROUTERS[n] }));
    world.writer.set_group(2, &hops);
}

#[test]
fn failover_packets_take_the_uplink_of_their_bucket_whichever_way_they_are_made() {
    for underlay in UNDERLAYS {
        let (mut world, second) = two_uplinks(underlay);
        let ports = [UPLINK, second];
        let sources = [host_mac(1), SECOND_MAC];
        spread(&mut world, std::array::from_fn(|n| n % 2));
        let mut seen = BTreeSet::new();
        for flow in 0..32 {
            let frame = v4(A, R).udp(1000 + flow, 7, b"x");
            // Decided by the slow path first, then found.
            let slow = world.one(1, &frame, &ENCAP);
            let again = world.one(1, &frame, &[("nft-hits", 1), ("encapsulated", 1)]);
            assert_eq!(slow, again, "a flow keeps its way");
            let outer = open(&again.1);
            let n = NextHops::bucket(outer.source_port) % 2;
            assert_eq!(again.0, ports[n]);
            assert_eq!(
                (again.1[..6].to_vec(), again.1[6..12].to_vec()),
                (ROUTERS[n].0.to_vec(), sources[n].0.to_vec())
            );
            seen.insert(n);
        }
        assert_eq!(seen.len(), 2, "32 flows take both");
        // One is lost: all take the other, and no entry of the NFT is touched for it.
        spread(&mut world, [1; BUCKETS]);
        for flow in 0..32 {
            let frame = v4(A, R).udp(1000 + flow, 7, b"x");
            assert_eq!(world.one(1, &frame, &[("nft-hits", 1), ("encapsulated", 1)]).0, second);
        }
        world.writer.set_group(2, &[None; BUCKETS]);
        world.expect(1, &[v4(A, R).udp(1000, 7, b"x")], &[("nft-hits", 1), ("no-neighbour", 1)]);
    }
}

#[test]
fn failover_tunnel_packets_are_taken_from_either_uplink() {
    for underlay in UNDERLAYS {
        let (mut world, second) = two_uplinks(underlay);
        let inner = v4(R, A).udp(7, 1000, b"x");
        let mut first = outer(2, 1, underlay);
        let frame = |path: &Path| path.vxlan(50_000, Vni::new(100).unwrap(), &inner);
        world.one(UPLINK, &frame(&first), &DECAP);
        first.dst_mac = SECOND_MAC;
        let out = world.one(second, &frame(&first), &[("nft-hits", 1), ("decapsulated", 1)]);
        assert_eq!(out, (1, inner));
    }
}

#[test]
fn failover_an_uplink_is_silent_about_addresses_that_another_one_answers_for() {
    let (mut world, second) = two_uplinks(UNDERLAYS[0]);
    let ask = arp_request((host_mac(2), host_v4(2)), host_v4(1));
    assert_eq!(world.one(second, &ask, &[]).0, second);
    Arc::make_mut(world.snapshot.uplinks[1].as_mut().unwrap()).silent = vec![host_v4(1).into()];
    world.expect(second, std::slice::from_ref(&ask), &[("underlay-other", 1)]);
    assert_eq!(world.one(UPLINK, &ask, &[]).0, UPLINK);
    // Nor does the host behind it hear the question, whose kernel would answer it; it hears those that are for others.
    let punt = world.add_punt();
    Arc::make_mut(world.snapshot.uplinks[1].as_mut().unwrap()).punt = punt;
    let solicit = |target| neighbour_solicitation((host_mac(2), host_v6(2)), target, None);
    Arc::make_mut(world.snapshot.uplinks[1].as_mut().unwrap()).silent.push(host_v6(1).into());
    let probe = arp_request((host_mac(2), Ipv4Addr::UNSPECIFIED), host_v4(1));
    let detection = neighbour_solicitation((host_mac(2), Ipv6Addr::UNSPECIFIED), host_v6(1), None);
    let questions = [ask.clone(), solicit(host_v6(1)), probe, detection];
    world.expect(second, &questions, &[("underlay-other", 4)]);
    let for_another = arp_request((host_mac(2), host_v4(2)), host_v4(3));
    assert_eq!(world.one(second, &for_another, &[]), (punt, for_another));
    assert_eq!(world.one(second, &solicit(host_v6(3)), &[]).0, punt);
    // A backup asks without saying where its address is, and is answered.
    let probe = arp_request((host_mac(2), Ipv4Addr::UNSPECIFIED), host_v4(1));
    let (port, answer) = world.one(UPLINK, &probe, &[]);
    assert_eq!(
        (port, &answer[..6], answer[28..32].to_vec()),
        (UPLINK, &host_mac(2).0[..], host_v4(1).octets().to_vec())
    );
}
