//! What a worker tells of its flows for offload, and what it is told of those in hardware.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use pipelines::Direction;
use pipelines::Now;
use pipelines::hot::Hints;
use pipelines::offload::translate::FlowSelector;
use pipelines::rcft::QpKey;
use rules::Usage;
use wire::{HeapBuf, Qpn};

use super::*;

/// A world whose worker tells of its flows, and what it tells.
fn telling(room: usize) -> (World, Arc<ArrayQueue<FlowSelector>>) {
    let mut world = plain();
    world.snapshot.settings.miss_rate = 0;
    let queue = Arc::new(ArrayQueue::new(room));
    world.worker.overlay.set_hints(Some(Hints::new(queue.clone())));
    (world, queue)
}

fn told(queue: &ArrayQueue<FlowSelector>) -> Vec<FlowSelector> {
    std::iter::from_fn(|| queue.pop()).collect()
}

#[test]
fn offload_hints_follow_the_shares_of_flows() {
    let (mut world, queue) = telling(10_000);
    // Of every 20 packets one is of another flow, each time in another place.
    for burst in 0..4000usize {
        let frame = |n: usize| v4(A, R).udp(if (burst * 7 + n).is_multiple_of(20) { 2 } else { 1 }, 9, b"x");
        world.run(1, (0..20).map(|n| HeapBuf::new(&frame(n))).collect());
    }
    let mut by_port: HashMap<u16, usize> = HashMap::new();
    for selector in told(&queue) {
        assert_eq!((selector.qpn, selector.source_port), (None, None));
        *by_port.entry(selector.key.ports().source).or_default() += 1;
    }
    assert_eq!(by_port.values().sum::<usize>(), 4000, "one a burst");
    let rare = by_port[&2];
    assert!((100..=300).contains(&rare), "a twentieth of 4000 is 200: {by_port:?}");
}

#[test]
fn offload_hints_name_queue_pairs_and_nothing_that_is_not_to_be_offloaded() {
    let (mut world, queue) = telling(100);
    world.pass(1, &write(v4(A, R), 0x1234, 7));
    let [selector] = told(&queue)[..] else { panic!("one flow") };
    assert_eq!(selector.qpn, Some(Qpn::truncated(0x1234)));
    assert!(selector.source_port.is_some());
    // A notification, a message of the connection manager; what is dropped.
    for (opcode, qpn) in [(0x81, 0x1234), (0x64, 1)] {
        world.pass(1, &rc(v4(A, R), opcode, qpn, 0, &[0; 40]));
    }
    assert_eq!(world.pass(1, &v4(B, R).udp(1, 2, b"x")), [], "spoofed");
    assert_eq!(told(&queue), []);
    // Whoever does not listen loses hints and nothing else; nobody listening costs nothing.
    let (mut world, queue) = telling(1);
    for port in 0..5 {
        assert_eq!(world.pass(1, &v4(A, R).udp(port, 2, b"x")).len(), 1);
    }
    assert_eq!(told(&queue).len(), 1);
    world.worker.overlay.set_hints(None);
    world.pass(1, &v4(A, R).udp(9, 2, b"x"));
    assert_eq!(told(&queue), []);
}

#[test]
fn offload_is_accounted_as_if_software_had_done_it() {
    let (mut world, queue) = telling(100);
    let frame = v4(A, R).udp(1, 2, b"x");
    for _ in 0..3 {
        world.pass(1, &frame);
    }
    let selector = told(&queue)[0];
    let len = frame.len() as u64;
    let usage = |packets| Some(Usage { packets, bytes: packets * len });
    assert_eq!(world.worker.overlay.usage(&selector), usage(3));
    let idle = world.worker.overlay.nft().config().idle_ticks;
    // A flow in hardware does not age in software while it is accounted for.
    for step in 1..=4u64 {
        world.now = Now::from_ns(world.now.ns + u64::from(idle) * u64::from(pipelines::TICK_MS) * 600_000);
        let World { worker, snapshot, now, .. } = &mut world;
        assert!(worker.overlay.account(snapshot, &selector, Usage { packets: 100, bytes: 100 * len }, *now));
        for _ in 0..1000 {
            worker.overlay.idle(*now);
        }
        assert_eq!(worker.overlay.usage(&selector), usage(3 + 100 * step));
    }
    let vnic = world.worker.counters.vnic(0);
    assert_eq!((vnic.rx_packets.get(), vnic.rx_bytes.get()), (403, 403 * len));
    // A flow that nobody knows.
    world.worker.overlay.nft_mut().clear();
    let World { worker, snapshot, now, .. } = &mut world;
    assert!(!worker.overlay.account(snapshot, &selector, Usage { packets: 1, bytes: 1 }, *now));
    assert_eq!(worker.overlay.usage(&selector), None);
}

#[test]
fn offload_of_a_queue_pair_leaves_no_gap_in_what_is_seen_of_it() {
    for accounted in [true, false] {
        let (mut world, queue) = telling(100);
        for psn in 0..3 {
            world.pass(1, &write(v4(A, R), 0x77, psn));
        }
        let selector = told(&queue)[0];
        if accounted {
            let World { worker, snapshot, now, .. } = &mut world;
            assert!(worker.overlay.account(snapshot, &selector, Usage { packets: 500, bytes: 50_000 }, *now));
        }
        // Hardware did 3 to 502.
        world.pass(1, &write(v4(A, R), 0x77, 503));
        world.pass(1, &write(v4(A, R), 0x77, 504));
        let key = QpKey::new(selector.key.scope(), R.v4.into(), Qpn::truncated(0x77));
        let pair = world.worker.overlay.rcft().view(Direction::Out, &key).expect("it is admitted");
        assert_eq!((pair.events.gaps, pair.events.retransmissions), (u32::from(!accounted), 0));
        assert_eq!(pair.packets, if accounted { 505 } else { 5 });
        assert_eq!(world.worker.overlay.usage(&selector).map(|usage| usage.packets), Some(pair.packets));
    }
}
