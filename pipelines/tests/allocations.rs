//! The fast path allocates nothing: a counting allocator around bursts of known flows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

#[path = "support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pipelines::Sink;
use pipelines::burst::Burst;
use pipelines::counters::PipelineCounters;
use pipelines::snapshot::PortIndex;
use support::*;
use wire::{HeapBuf, PacketBuf, Vni};

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
        let before = CALLS.load(Relaxed);
        world.worker.overlay.run(&world.snapshot, world.now, port, &mut burst, &mut sink);
        world.worker.overlay.idle(world.now);
        if round > 0 {
            calls += CALLS.load(Relaxed) - before;
        }
        assert_eq!(sink.packets.len(), frames.len());
        sink.packets.clear();
    }
    assert_eq!(counters.nft_hits.get(), 3 * frames.len() as u64);
    calls
}

/// The n-th inner frame of a way.
type Frames = fn(u16) -> Vec<u8>;

// One test only: the counter belongs to the whole process.
#[test]
fn known_flows_are_forwarded_without_an_allocation() {
    let before = CALLS.load(Relaxed);
    drop(std::hint::black_box(Box::new(HeapBuf::new(b"x"))));
    assert!(CALLS.load(Relaxed) > before, "the counter counts");
    let vni = Vni::new(100).unwrap();
    for underlay in UNDERLAYS {
        let ways: [(PortIndex, Frames); 6] = [
            (1, |n| v4(A, R).udp(n, 2, b"x")),
            (1, |n| v6(A, R).tcp(n, 2, 2, b"x")),
            (1, |n| v4(A, B).udp(n, 2, b"x")),
            (1, |n| routed(v4(A, S)).udp(n, 2, b"x")),
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
