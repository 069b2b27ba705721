//! Floods: one copy for each VTEP and vNIC, and bounded work however many there are and however much is flooded.

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
fn each_vtep_and_vnic_gets_one_copy() {
    let mut world = wide(8);
    world.snapshot.settings.flood_rate = 100_000;
    let out = run(&mut world, 1, vec![broadcast(1)]);
    let mut copies = HashMap::new();
    for (port, frame) in &out {
        let to = if *port == UPLINK { open(frame).dst.to_string() } else { port.to_string() };
        *copies.entry(to).or_insert(0) += 1;
    }
    assert_eq!(copies.len(), 2 + 8, "two other vNICs and eight VTEPs: {copies:?}");
    assert!(copies.values().all(|&n| n == 1), "{copies:?}");
}

#[test]
fn a_burst_makes_a_bounded_number_of_copies() {
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
fn a_storm_starves_nobody_but_itself() {
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
