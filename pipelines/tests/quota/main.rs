//! Queue pairs through the whole overlay: quotas, what counts as a queue pair, connection requests, what is said of
//! each queue pair, and one tenant's storm beside another's established traffic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

mod cm;
mod hot;
mod lines;
mod roce;
mod storm;

use std::sync::Arc;

use pipelines::rcft::{Keeper, Ledger, LedgerLimits};
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{Psn, Qpn};

use testkit::*;

/// A WRITE Only of 16 bytes to queue pair `qpn`.
pub fn write(path: Path, qpn: u32, psn: u32) -> Vec<u8> {
    rc(path, opcode::RC_WRITE_ONLY, qpn, psn, &[0; 32])
}

/// A packet of a reliable connection with this body behind the BTH.
pub fn rc(path: Path, opcode: u8, qpn: u32, psn: u32, body: &[u8]) -> Vec<u8> {
    path.roce(1000 + qpn as u16, Bth::new(opcode, Qpn::truncated(qpn), Psn::truncated(psn)), body)
}

/// Control of a world's ledger.
pub fn keeper(world: &World) -> Keeper<Arc<Ledger>> {
    Keeper::new(world.shared.rcft.ledger.clone())
}

/// Sets the quota of a vNIC.
pub fn quota(world: &World, vnic: u32, quota: u32) {
    keeper(world).set_limits(vnic, LedgerLimits { quota, ..LedgerLimits::NONE });
}

/// Lets the worker attend and control go on until nothing is leaving.
pub fn settle(world: &mut World, keeper: &mut Keeper<Arc<Ledger>>) {
    while keeper.is_busy() {
        keeper.advance(|_| {});
        world.worker.overlay.idle(world.now);
    }
}

/// Counters of a new flow and queue pair; of a known flow.
const FIRST: [(&str, u64); 2] = ENCAP;
const NEXT: [(&str, u64); 2] = [("nft-hits", 1), ("encapsulated", 1)];
const REFUSED: [(&str, u64); 2] = [("nft-hits", 1), ("qp-quota", 1)];

#[test]
fn quota_over_both_families_and_vlan() {
    for v6_peer in [false, true] {
        for tag in [None, Some(5)] {
            let mut world = plain();
            world.keep_vlan(0);
            quota(&world, 0, 2);
            let path = || {
                let path = if v6_peer { v6(A, R) } else { v4(A, R) };
                match tag {
                    Some(tci) => path.tagged(tci),
                    None => path,
                }
            };
            world.one(1, &write(path(), 10, 0), &FIRST);
            world.one(1, &write(path(), 11, 0), &NEXT);
            world.expect(1, &[write(path(), 12, 0)], &REFUSED);
            // The same again: remembered as refused, the admitted ones unharmed.
            world.expect(1, &[write(path(), 12, 1)], &REFUSED);
            world.one(1, &write(path(), 10, 1), &NEXT);
            // Another family is another peer address: another queue pair.
            let other = if v6_peer { v4(A, R) } else { v6(A, R) };
            world.expect(1, &[write(other, 10, 0)], &[("nft-misses", 1), ("qp-quota", 1)]);
            let counters = world.worker.counters.vnic(0);
            assert_eq!(
                (counters.qps_opened.get(), counters.qps_refused.get(), counters.qp_drops.get()),
                (2, 2, 3)
            );
        }
    }
}

#[test]
fn quota_is_of_the_sender_alone() {
    let mut world = plain();
    quota(&world, 0, 1);
    quota(&world, 1, 1);
    // A and B each to R, and to each other: the receiver's quota does not matter.
    world.one(1, &write(v4(A, R), 10, 0), &FIRST);
    world.one(2, &write(v4(B, R), 10, 0), &FIRST);
    world.expect(1, &[write(v4(A, B), 10, 0)], &[("nft-misses", 1), ("qp-quota", 1)]);
    quota(&world, 0, 2);
    world.one(1, &write(v4(A, B), 10, 0), &[("nft-hits", 1), ("local", 1)]);
    // What comes out of the tunnel is never refused.
    for qpn in 2..50 {
        assert_eq!(world.pass(UPLINK, &tunnelled(&write(v4(R, A), qpn, 0))).len(), 1);
    }
    assert_eq!(world.shared.rcft.ledger.count(0), 2);
}

#[test]
fn quota_one_queue_pair_by_two_ways_counts_once() {
    let mut world = plain();
    quota(&world, 0, 1);
    // Bridged, routed, with another UDP source port: the same peer and number.
    world.one(1, &write(v4(A, R), 10, 0), &FIRST);
    let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(10), Psn::truncated(1));
    world.one(1, &routed(v4(A, R)).roce(77, bth, b"abcd"), &FIRST);
    assert_eq!(world.shared.rcft.ledger.count(0), 1);
}

#[test]
fn quota_a_queue_pair_number_that_two_peers_use_counts_twice() {
    let mut world = plain();
    quota(&world, 0, 1);
    world.one(1, &write(v4(A, R), 10, 0), &FIRST);
    world.expect(1, &[write(routed(v4(A, S)), 10, 0)], &[("nft-misses", 1), ("qp-quota", 1)]);
}

#[test]
fn quota_raised_lowered_and_evicted() {
    let mut world = plain();
    let mut control = keeper(&world);
    quota(&world, 0, 2);
    world.one(1, &write(v4(A, R), 10, 0), &FIRST);
    world.one(1, &write(v4(A, R), 11, 0), &NEXT);
    world.expect(1, &[write(v4(A, R), 12, 0)], &REFUSED);
    // Raised while they wait: the next packet passes, at once.
    quota(&world, 0, 3);
    world.one(1, &write(v4(A, R), 12, 1), &NEXT);
    // Lowered below what is in use.
    quota(&world, 0, 1);
    for qpn in 10..13 {
        world.one(1, &write(v4(A, R), qpn, 5), &NEXT);
    }
    world.expect(1, &[write(v4(A, R), 13, 0)], &REFUSED);
    let key = |qpn| {
        pipelines::rcft::QpKey::new(pipelines::flow_key::Scope::Vnic(0), R.v4.into(), Qpn::truncated(qpn))
    };
    for qpn in 10..13 {
        assert!(control.remove(key(qpn).words()));
        // On its way out it may still send, and still counts.
        world.one(1, &write(v4(A, R), qpn, 6), &NEXT);
    }
    assert_eq!(world.shared.rcft.ledger.count(0), 3);
    settle(&mut world, &mut control);
    assert_eq!(world.shared.rcft.ledger.count(0), 0);
    world.one(1, &write(v4(A, R), 13, 0), &NEXT);
    world.expect(1, &[write(v4(A, R), 10, 7)], &REFUSED);
}

#[test]
fn quota_idle_queue_pairs_leave_and_busy_ones_stay() {
    let mut world = plain();
    let mut control = keeper(&world);
    let (idle, shift) = (50, pipelines::rcft::RcftShared::sync_shift(50));
    control.set_sync_shift(shift);
    for qpn in [10, 11] {
        world.pass(1, &write(v4(A, R), qpn, 0));
    }
    let start = world.now.tick;
    for tick in 1..=60 {
        world.now = pipelines::Now::from_ns(u64::from(start + tick) * 100_000_000);
        world.pass(1, &write(v4(A, R), 10, tick));
        let now = world.now.tick;
        control.sweep(u32::MAX, |seen| now.wrapping_sub(seen.seen) > idle + (1 << shift));
        settle(&mut world, &mut control);
        assert_eq!(world.shared.rcft.ledger.count(0), if tick <= idle + (1 << shift) { 2 } else { 1 });
    }
}

#[test]
fn quota_admits_nothing_for_a_flow_that_goes_nowhere() {
    let mut world = plain();
    let nobody = Station { v4: std::net::Ipv4Addr::new(10, 0, 0, 77), ..R };
    for qpn in 10..20 {
        world.expect(
            1,
            &[write(routed(v4(A, nobody)), qpn, 0)],
            &match qpn {
                10 => [("nft-misses", 1), ("no-location", 1)],
                _ => [("nft-hits", 1), ("no-location", 1)],
            },
        );
    }
    assert_eq!(world.shared.rcft.ledger.count(0), 0);
}

/// Flooded packets are sent, too: they count like any others.
#[test]
fn quota_holds_for_flooded_packets() {
    for mac in [wire::MacAddr::BROADCAST, wire::MacAddr([2, 9, 9, 9, 9, 9])] {
        let mut world = plain();
        world.flood(0, &[2]);
        quota(&world, 0, 0);
        for qpn in 10..20 {
            let mut path = v4(A, R);
            path.dst_mac = mac;
            assert!(world.pass(1, &write(path, qpn, 0)).is_empty(), "{mac}");
        }
    }
}

/// A first fragment that ends before the queue pair's number, and RoCE v1, slip past no quota.
#[test]
fn quota_nothing_hides_a_queue_pair() {
    let mut world = plain();
    quota(&world, 0, 0);
    let mut path = v4(A, R);
    path.dont_fragment = false;
    let whole = write(v4(A, R), 10, 0);
    let pieces = path.fragments(17, &whole[34..], 3, 28);
    assert!(pieces.len() > 2);
    let rest = pieces.len() as u64 - 1;
    world.expect(1, &pieces, &[("roce-fragment", 1), ("fragment-unknown", rest), ("roce-unknown", 1)]);
    let v1 = v4(A, R).ethernet(0x8915, &[0; 80]);
    world.expect(1, &[v1], &[("nft-misses", 1), ("roce-v1", 1)]);
}

#[test]
fn quota_two_workers_share_the_count() {
    let mut world = plain();
    let config = pipelines::rcft::RcftParams { entries: 1024, vnics: 64, workers: 2, seed: 1 };
    let shared = pipelines::rcft::RcftShared::new(config, &|_, _| {});
    let mut workers: Vec<TestWorker> = (0..2)
        .map(|n| TestWorker::new(64, SharedTables { rcft: shared.clone(), ..world.shared.clone() }, n))
        .collect();
    world.shared.rcft = shared;
    quota(&world, 0, 5);
    let mut passed = 0;
    for qpn in 10..20 {
        for worker in &mut workers {
            let packet = wire::HeapBuf::new(&write(v4(A, R), qpn, 0));
            passed += worker.run(&world.snapshot, world.now, 1, vec![packet]).len();
        }
    }
    assert_eq!((passed, world.shared.rcft.ledger.count(0)), (10, 5));
}
