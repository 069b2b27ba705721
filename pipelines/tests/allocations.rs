//! The fast path allocates nothing: a counting allocator around bursts of known flows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

use std::sync::Arc;

use allocation_counter::measure;
use pipelines::Direction;
use pipelines::Sink;
use pipelines::burst::Burst;
use pipelines::counters::PipelineCounters;
use pipelines::qos::{Class, NodeLimits};
use pipelines::snapshot::PortIndex;
use testkit::fixture::{BURST, FixtureWorker, SINGLE, WHOLE, Whole};
use testkit::*;
use wire::roce::{Bth, opcode};
use wire::{HeapBuf, PacketBuf, Psn, Qpn, Vni};

/// Keeps what is sent in places made beforehand.
struct Kept {
    packets: Vec<HeapBuf>,
    counters: Arc<PipelineCounters>,
}

impl Sink<HeapBuf> for Kept {
    fn send(&mut self, _: PortIndex, packet: HeapBuf) {
        assert!(self.packets.len() < self.packets.capacity());
        self.counters.sent.add(1);
        self.packets.push(packet);
    }
}

/// Runs a burst of 32 new and the same 32 known flows; how often the allocator was called for the known ones.
fn calls_for_hits(underlay: Underlay, port: PortIndex, frames: &[Vec<u8>]) -> u64 {
    let mut world = lab(1, underlay);
    let mut burst: Burst<HeapBuf> = Burst::default();
    let counters = world.worker.counters.clone();
    let mut sink = Kept { packets: Vec::with_capacity(64), counters: counters.clone() };
    let mut calls = 0;
    for round in 0..4 {
        burst.fill(frames.iter().map(|frame| HeapBuf::new(frame)));
        let seen = measure(|| {
            world.worker.overlay.run(&world.snapshot, world.now, port, &mut burst, &mut sink);
            world.worker.overlay.idle(world.now);
        });
        if round > 0 {
            calls += seen.count_total + seen.count_current.unsigned_abs();
        }
        assert_eq!(sink.packets.len(), frames.len());
        sink.packets.clear();
    }
    // Queue pairs of two machines share an entry.
    assert!(counters.nft_hits.get() >= 3 * frames.len() as u64);
    calls
}

fn write(n: u16) -> Bth {
    Bth::new(opcode::RC_WRITE_MIDDLE, Qpn::truncated(u32::from(n) + 16), Psn::truncated(1))
}

/// The n-th inner frame of a way.
type Frames = fn(u16) -> Vec<u8>;

#[test]
fn known_flows_are_forwarded_without_an_allocation() {
    let seen = measure(|| drop(std::hint::black_box(Box::new(HeapBuf::new(b"x")))));
    assert!(seen.count_total > 0, "the counter counts");
    let vni = Vni::new(100).unwrap();
    for underlay in UNDERLAYS {
        let ways: [(PortIndex, Frames); 8] = [
            (1, |n| v4(A, R).udp(n, 2, b"x")),
            (1, |n| v6(A, R).tcp(n, 2, 2, b"x")),
            (1, |n| v4(A, B).udp(n, 2, b"x")),
            (1, |n| routed(v4(A, S)).udp(n, 2, b"x")),
            (1, |n| v4(A, R).with_tos(2).roce(n, write(n), &[0; 64])),
            (UPLINK, |n| v4(R, A).with_tos(2).roce(n, write(n), &[0; 64])),
            (UPLINK, |n| v4(R, A).with_tos(2).udp(n, 2, b"x")),
            (UPLINK, |n| v6(R, A).with_tos(2).tcp(n, 2, 2, b"x")),
        ];
        for (way, (port, make)) in ways.into_iter().enumerate() {
            let frames: Vec<_> = (0..32)
                .map(|n| match port {
                    UPLINK => outer(2, 1, underlay).with_tos(3).vxlan(50_000 + n, vni, &make(n)),
                    _ => make(n),
                })
                .collect();
            assert!(HeapBuf::new(&frames[0]).len() > 40);
            assert_eq!(calls_for_hits(underlay, port, &frames), 0, "{underlay:?}, way {way}");
        }
    }
}

/// What pays, is marked, waits, is dropped and goes on later needs no memory either.
#[test]
fn dhtb_packets_are_held_back_without_an_allocation() {
    let mut world = lab(1, UNDERLAYS[0]);
    let tree = world.worker.overlay.dhtb().tree();
    let slow = NodeLimits { ceil: 50_000_000, burst: 16 << 10, ..NodeLimits::FREE };
    tree.set(tree.vnic_node(Direction::Out, 0), &slow, world.now.ns);
    let counters = world.worker.counters.clone();
    let frames: Vec<Vec<u8>> = (0..32)
        .map(|n| match n % 2 {
            0 => v4(A, R).tcp(n, 2, 0x10, &[0; 1000]),
            _ => v4(A, R).with_tos(2).roce(n, write(n), &[0; 1024]),
        })
        .collect();
    let mut burst: Burst<HeapBuf> = Burst::default();
    let mut sink = Kept { packets: Vec::with_capacity(4096), counters: counters.clone() };
    let (mut calls, mut freed) = (0, 0);
    for round in 0..100 {
        world.now = pipelines::Now::from_ns(world.now.ns + 1_000_000);
        burst.fill(frames.iter().map(|frame| HeapBuf::new(frame)));
        let dropped = counters.dropped();
        let seen = measure(|| {
            let overlay = &mut world.worker.overlay;
            overlay.run(&world.snapshot, world.now, 1, &mut burst, &mut sink);
            while overlay.release(&world.snapshot, world.now, &mut sink) {}
            overlay.idle(world.now);
            world.worker.divider.tick(world.now.ns);
        });
        if round > 0 {
            calls += seen.count_total;
            // A dropped packet gives its own memory back.
            freed += seen.count_current + (counters.dropped() - dropped) as i64;
        }
        sink.packets.clear();
    }
    assert_eq!((calls, freed), (0, 0));
    let tree = world.worker.overlay.dhtb().tree();
    assert!(tree.fate(tree.leaf(Direction::Out, 0, Class::Rdma)).0 > 0, "marked");
    assert!(counters.waited.get() > 0 && counters.waiting.get() > 0 && counters.dropped() > 0);
}

/// Neither do new flows and queue pairs, refusals, answers, errors, tokens, marks, waiting and hints.
#[test]
fn nothing_that_is_benched_allocates() {
    const BURSTS: usize = 8;
    let cases = WHOLE.into_iter().chain(SINGLE.into_iter().map(|(name, _, case)| (name, case)));
    for (name, case) in cases {
        let mut worker = Whole::busy(case);
        let mut lanes = worker.lanes(BURSTS);
        let before = worker.seen();
        let given_back = worker.given_back();
        let seen = measure(|| {
            for lane in &mut lanes {
                worker.pass(lane);
                worker.rest();
            }
        });
        worker.check(&before, (BURSTS * BURST) as u64);
        let freed = (worker.given_back() - given_back) as i64;
        assert_eq!((seen.count_total, -seen.count_current), (0, freed), "{name}: {case:?}");
    }
}
