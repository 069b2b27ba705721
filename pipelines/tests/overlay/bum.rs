//! Broadcast, unknown unicast and multicast (BUM): one copy for each VTEP and vNIC, and bounded work however many there are and
//! however much is flooded.

use std::collections::HashMap;

use pipelines::Now;
use pipelines::snapshot::PortIndex;
use wire::{HeapBuf, MacAddr};

use testkit::open::open;
use testkit::*;

fn broadcast(n: u8) -> Vec<u8> {
    let mut path = v4(A, R);
    path.dst_mac = MacAddr::BROADCAST;
    path.ethernet(0x88b5, &[n; 46])
}

/// A VPC that floods to so many VTEPs; the tunnels to eight hosts stand for them, over and over.
fn wide(vteps: usize) -> World {
    let mut world = plain();
    world.flood(0, &[2, 3, 4, 5, 6, 7, 8, 9]);
    let slots = world.vpc(0).flood_slots.clone();
    world.vpc(0).flood_slots = slots.iter().copied().cycle().take(vteps).collect();
    world
}

fn run(world: &mut World, port: PortIndex, frames: Vec<Vec<u8>>) -> Vec<(PortIndex, Vec<u8>)> {
    world.run(port, frames.iter().map(|frame| HeapBuf::new(frame)).collect())
}

#[test]
fn bum_each_vtep_and_vnic_gets_one_copy() {
    let nobody = MacAddr([2, 9, 9, 9, 9, 9]);
    let group = |mac: [u8; 6], path: wire::build::Path| wire::build::Path { dst_mac: MacAddr(mac), ..path };
    let frames = [
        broadcast(1),
        group([0x33, 0x33, 0, 0, 0, 0xfb], v6(A, R)).udp(5353, 5353, b"who"),
        group([1, 0, 0x5e, 0, 0, 0xfb], v4(A, R)).udp(5353, 5353, b"who"),
        group(nobody.0, v4(A, R)).udp(1, 2, b"where"),
        group(nobody.0, v6(A, R)).tcp(1, 2, 2, b"where"),
        // A question that nobody answers.
        wire::build::control::arp_request((A.mac, A.v4), std::net::Ipv4Addr::new(10, 0, 0, 77)),
    ];
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        world.flood(0, &[2, 3, 4, 5, 6, 7, 8, 9]);
        world.snapshot.settings.flood_rate = 100_000;
        for frame in &frames {
            let moved = [("nft-misses", 1), ("copies", 9), ("local", 2), ("encapsulated", 8)];
            let out = world.expect(1, std::slice::from_ref(frame), &moved);
            let mut copies = HashMap::new();
            for (port, copy) in &out {
                let (to, inner) = match *port {
                    UPLINK => (open(copy).dst.to_string(), open(copy).inner),
                    port => (port.to_string(), copy.clone()),
                };
                assert_eq!(&inner, frame, "nothing is changed in it");
                *copies.entry(to).or_insert(0) += 1;
            }
            assert_eq!(copies.len(), 2 + 8, "two other vNICs and eight VTEPs: {copies:?}");
            assert!(copies.values().all(|&n| n == 1), "{copies:?}");
        }
    }
}

#[test]
fn bum_what_comes_out_of_a_tunnel_goes_back_into_none() {
    let mut world = wide(8);
    let mut path = v4(R, A);
    path.dst_mac = MacAddr::BROADCAST;
    let moved = [("nft-misses", 1), ("decapsulated", 1), ("copies", 2)];
    let out = world.expect(UPLINK, &[tunnelled(&path.udp(1, 2, b"all"))], &moved);
    assert_eq!(out.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 2, 3]);
    // Of an unknown station it is not even for this host.
    path.dst_mac = MacAddr([2, 9, 9, 9, 9, 9]);
    world.expect(
        UPLINK,
        &[tunnelled(&path.udp(1, 2, b"x"))],
        &[("nft-misses", 1), ("decapsulated", 1), ("not-local", 1)],
    );
}

#[test]
fn bum_of_a_vpc_that_does_not_flood_is_dropped_by_name() {
    let mut world = plain();
    world.expect(1, &[broadcast(1)], &[("nft-misses", 1), ("bum-disabled", 1)]);
    let path = wire::build::Path { dst_mac: MacAddr([2, 9, 9, 9, 9, 9]), ..v4(A, R) };
    world.expect(1, &[path.udp(1, 2, b"x")], &[("nft-misses", 1), ("no-location", 1)]);
}

#[test]
fn bum_a_burst_makes_a_bounded_number_of_copies() {
    for (vteps, budget) in
        [(8, 256), (100, 256), (253, 256), (254, 256), (1000, 256), (1000, 1003), (1000, 3000)]
    {
        let mut world = wide(vteps);
        world.snapshot.settings.flood_budget = budget;
        // For each vNIC of the host, the sender among them, and each VTEP.
        let takes = vteps as u32 + 3;
        for _ in 0..4 {
            let before = world.worker.counters.copies.get();
            let dropped = world.worker.all_counters();
            let out = run(&mut world, 1, (0..63).map(broadcast).chain([v4(A, B).udp(1, 2, b"x")]).collect());
            let copies = world.worker.counters.copies.get() - before;
            assert!(copies <= u64::from(budget), "{copies} copies for {vteps} VTEPs");
            assert_eq!(out.len() > vteps, takes <= budget, "the first one goes to all, or to nobody");
            assert!(
                out.iter().any(|(port, frame)| *port == 2 && frame[14] == 0x45),
                "what is no flood goes on"
            );
            let refused = world
                .worker
                .all_counters()
                .iter()
                .zip(dropped)
                .find(|c| c.0.0 == "flood-budget")
                .map(|c| c.0.1 - c.1.1);
            let flooded = copies / (vteps as u64 + 1);
            assert!(refused.is_some_and(|n| n > 0 && n + flooded == 63), "{refused:?} refused");
        }
    }
}

#[test]
fn bum_a_storm_into_a_thousand_vteps_starves_nobody_but_itself() {
    let mut world = wide(1000);
    (world.snapshot.settings.flood_rate, world.snapshot.settings.flood_budget) = (100_000, 1003);
    let mut copies = 0;
    for burst in 0..1000u64 {
        world.now = Now::from_ns(10_000_000_000 + burst * 1_000_000);
        let before = world.worker.counters.copies.get();
        run(&mut world, 1, (0..64).map(broadcast).collect());
        copies += world.worker.counters.copies.get() - before;
        // Another vNIC's packets of the next burst, its own broadcast among them.
        let mut path = v4(B, R);
        path.dst_mac = MacAddr::BROADCAST;
        let mut frames = vec![v4(B, R).udp(1, 2, b"x"); 8];
        if burst % 50 == 0 {
            frames.push(path.ethernet(0x88b5, &[9; 46]));
        }
        let (due, flooded) = (8, usize::from(burst % 50 == 0) * 1002);
        assert_eq!(run(&mut world, 2, frames).len(), due + flooded, "burst {burst}");
    }
    // A second's worth, and what may be saved up.
    assert!((100_000..=108_000).contains(&copies), "{copies} copies in a second");
    let limited = world.worker.all_counters().into_iter().find(|counter| counter.0 == "flood-limit");
    assert!(limited.is_some_and(|(_, n)| n > 1000), "{limited:?}");
}
