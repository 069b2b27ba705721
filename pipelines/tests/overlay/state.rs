//! Flow state under pressure: limits, a table that is too small, aging, hash collisions.

use pipelines::Now;
use pipelines::decide::decide_from;
use pipelines::flow_key::{FlowPorts, Scope};
use pipelines::vtep::SourceVtep;
use wire::HeapBuf;

use testkit::open::open;
use testkit::*;

#[test]
fn new_flows_are_limited_per_burst_and_known_ones_are_not() {
    let mut world = plain();
    world.snapshot.settings.miss_budget = 4;
    let frames: Vec<_> = (0..10).map(|n| v4(A, R).udp(n, 2, b"x")).collect();
    world.expect(1, &frames, &[("nft-misses", 4), ("miss-limit", 6), ("encapsulated", 4)]);
    world.expect(1, &frames, &[("nft-hits", 4), ("nft-misses", 4), ("miss-limit", 2), ("encapsulated", 8)]);
    world.expect(1, &frames, &[("nft-hits", 8), ("nft-misses", 2), ("encapsulated", 10)]);
    // A change of policy costs no packet of a known flow.
    world.snapshot.touch_vpc(0);
    world.expect(1, &frames, &[("nft-stale", 10), ("encapsulated", 10)]);
}

#[test]
fn a_scanner_starves_only_itself() {
    let mut world = plain();
    world.snapshot.settings.miss_rate = 1000;
    let mut missed = 0;
    for round in 0..10u16 {
        let frames: Vec<_> = (0..60).map(|n| HeapBuf::new(&v4(A, R).udp(round * 60 + n, 2, b"x"))).collect();
        missed += 60 - world.run(1, frames).len();
    }
    // 50 ms of tolerance at 1000 per second, and the first one.
    assert_eq!(missed, 600 - 51);
    world.one(2, &v4(B, R).udp(1, 2, b"x"), &ENCAP);
    world.one(UPLINK, &tunnelled(&v4(R, A).udp(1, 2, b"x")), &DECAP);
    world.one(1, &v4(A, R).udp(0, 2, b"x"), &[("nft-hits", 1), ("encapsulated", 1)]);
    world.now = Now::from_ns(world.now.ns + 10_000_000);
    let frames: Vec<_> = (0..60).map(|n| HeapBuf::new(&v4(A, R).tcp(n, 2, 2, b"x"))).collect();
    assert_eq!(world.run(1, frames).len(), 10);
}

/// A burst with more flows than the table has entries: each packet still gets the decision of its own flow.
#[test]
fn a_table_smaller_than_a_burst_confuses_no_flows() {
    for entries in [1, 2, 3, 16] {
        let mut world = plain();
        world.worker = TestWorker::new(entries, world.shared.clone(), 0);
        let frames: Vec<_> = (0..60u16)
            .map(|n| match n % 4 {
                0 => v4(A, R).udp(n, 2, b"x"),
                1 => v4(A, B).udp(n, 2, b"x"),
                2 => routed(v4(A, S)).udp(n, 2, b"x"),
                _ => routed(v4(A, C)).udp(n, 2, b"x"),
            })
            .collect();
        for round in 0..3 {
            let out = world.run(1, frames.iter().map(|frame| HeapBuf::new(frame)).collect());
            assert_eq!(out.len(), 60);
            for (n, ((port, bytes), frame)) in out.iter().zip(&frames).enumerate() {
                let expected = [UPLINK, 2, UPLINK, 3][n % 4];
                assert_eq!(*port, expected, "{entries} entries, round {round}, packet {n}");
                let inner = if *port == UPLINK { open(bytes).inner } else { bytes.clone() };
                assert_ne!(inner[0..6], ROUTER.0);
                assert_eq!(inner[26..], frame[26..], "addresses and payload");
            }
        }
    }
}

#[test]
fn a_hit_and_the_miss_that_takes_its_entry_in_one_burst() {
    let mut world = plain();
    world.worker = TestWorker::new(1, world.shared.clone(), 0);
    let (to_r, to_b) = (v4(A, R).udp(1, 2, b"x"), v4(A, B).udp(1, 2, b"x"));
    world.one(1, &to_r, &ENCAP);
    let moved = [("nft-hits", 1), ("nft-misses", 1), ("encapsulated", 1), ("local", 1)];
    let out = world.expect(1, &[to_r.clone(), to_b.clone()], &moved);
    assert_eq!(open(&out[0].1).inner, to_r);
    assert_eq!(out[1], (2, to_b));
}

#[test]
fn idle_flows_go_and_busy_ones_stay() {
    let mut world = plain();
    let (busy, idle) = (v4(A, R).udp(1, 2, b"x"), v4(A, R).udp(9, 2, b"x"));
    world.pass(1, &idle);
    for _ in 0..70 {
        world.now = Now::from_ns(world.now.ns + 500_000_000);
        world.pass(1, &busy);
        (0..4).for_each(|_| world.worker.overlay.idle(world.now));
    }
    assert_eq!(world.worker.overlay.nft().stats().entries, 1);
    world.one(1, &busy, &[("nft-hits", 1), ("encapsulated", 1)]);
    world.one(1, &idle, &ENCAP);
}

#[test]
fn entries_hold_what_the_slow_path_decides() {
    let mut world = plain();
    for n in 0..30 {
        for frame in [v4(A, R).udp(n, 1, b""), v6(A, B).tcp(n, 1, 2, b""), routed(v4(A, S)).udp(n, 1, b"")] {
            world.pass(1, &frame);
        }
        world.pass(UPLINK, &tunnelled(&v4(R, A).udp(n, 1, b"")));
    }
    let (entries, end) = world.worker.overlay.nft().scan(0, 1000);
    assert_eq!((entries.len(), end), (120, None));
    for entry in entries {
        assert_eq!(entry.action, decide_from(&world.snapshot, &entry.key, entry.action.source));
        let inward = matches!(entry.key.scope(), Scope::Vpc(_));
        assert_eq!(entry.action.source != SourceVtep::default(), inward);
        assert_eq!((entry.packets, entry.last_seen), (1, world.now.tick));
    }
}

/// Two keys that the table cannot tell apart by hash: told apart by the keys.
#[test]
fn flows_that_collide_are_told_apart() {
    let seed = 0x5eed;
    let mut world = plain();
    // With 16 entries there are four buckets; find two flows with the same tag and bucket, one local, one remote.
    world.worker = TestWorker::new(16, world.shared.clone(), 0);
    let key = |frame: &[u8]| {
        let headers = wire::parse::parse(frame, frame.len()).unwrap();
        let scope = pipelines::flow_key::Scope::Vnic(0);
        let key = pipelines::flow_key::FlowKey::build(
            frame,
            &headers,
            scope,
            FlowPorts { source: headers.sport, destination: headers.dport },
            0,
            false,
        );
        let hash = key.hash(seed);
        (hash >> 48, hash & 3)
    };
    let mut seen = std::collections::HashMap::new();
    for port in 0..=u16::MAX {
        let frame = v4(A, R).udp(port, 2, b"x");
        seen.insert(key(&frame), frame);
    }
    let (to_b, to_r) = (0..=u16::MAX)
        .map(|port| v4(A, B).udp(port, 2, b"x"))
        .find_map(|frame| seen.get(&key(&frame)).map(|other| (frame, other.clone())))
        .expect("a collision among 65536 x 65536");
    world.one(1, &to_r, &ENCAP);
    world.one(1, &to_b, &LOCAL);
    let out = world.expect(1, &[to_b, to_r], &[("nft-hits", 2), ("local", 1), ("encapsulated", 1)]);
    assert_eq!((out[0].0, out[1].0), (2, UPLINK));
}
