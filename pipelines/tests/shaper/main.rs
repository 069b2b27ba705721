//! The token buckets through the whole overlay: marks in the packets, order within a queue pair, what waits and what
//! is dropped, and that nothing is lost on the way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

mod super_frames;

use pipelines::Direction;
use pipelines::Now;
use pipelines::drops::DropReason;
use pipelines::qos::{Class, Depth, NodeLimits, QueueLimits};
use wire::roce::{Aeth, Bth, opcode};
use wire::{HeapBuf, PacketBuf, Psn, Qpn, View};

use testkit::*;

const MBIT: u64 = 1_000_000;

fn limit(world: &World, direction: Direction, vnic: u32, ceil: u64) {
    let tree = world.worker.overlay.dhtb().tree();
    tree.set(
        tree.vnic_node(direction, vnic),
        &NodeLimits { ceil, burst: 16 << 10, ..NodeLimits::FREE },
        world.now.ns,
    );
}

fn later(world: &mut World, ns: u64) {
    world.now = Now::from_ns(world.now.ns + ns);
}

/// Whatever has its tokens by now.
fn released(world: &mut World) -> Vec<Vec<u8>> {
    let worker = &mut world.worker;
    while worker.overlay.release(&world.snapshot, world.now, &mut worker.out) {}
    worker.overlay.idle(world.now);
    worker.divider.tick(world.now.ns);
    assert_eq!(worker.counters.imbalance(), 0, "conservation");
    std::mem::take(&mut worker.out.sent).into_iter().map(|(_, packet)| packet.to_vec()).collect()
}

fn rdma(opcode: u8, psn: u32, tos: u8, body: &[u8]) -> Vec<u8> {
    v4(A, R).with_tos(tos).roce(7, Bth::new(opcode, Qpn::truncated(0x50), Psn::truncated(psn)), body)
}

fn psn(outer: &[u8]) -> (u8, u32) {
    let inner = open::open(outer).inner;
    let bth = *Bth::view(&inner[42..]).unwrap().0;
    (bth.opcode, bth.psn().get())
}

#[test]
fn shaper_tcp_over_its_rate_waits_and_keeps_its_order() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 10 * MBIT);
    let mut out = Vec::new();
    // 60 packets of 1 kB at once: 16 KiB pass, the rest comes at 10 Mbit/s.
    for n in 0..60u16 {
        let sent = world.run(1, vec![HeapBuf::new(&v4(A, R).tcp(1, 2, 0x10, &[n as u8; 946]))]);
        out.extend(sent.into_iter().map(|(_, packet)| packet));
    }
    let at_once = out.len();
    assert!((14..=17).contains(&at_once), "{at_once}");
    assert_eq!(world.worker.counters.waiting.get(), 60 - at_once as u64);
    assert_eq!(world.worker.counters.waited.get(), 60 - at_once as u64);
    let mut took = 0u64;
    while out.len() < 60 {
        later(&mut world, 100_000);
        took += 100;
        out.extend(released(&mut world));
        assert!(took < 100_000, "{} came", out.len());
    }
    // 44 packets of 1024 bytes: 36 ms at 10 Mbit/s.
    let expected = (60 - at_once) as u64 * 1024 * 8 / 10;
    assert!(took.abs_diff(expected) < expected / 10, "{took} us, wanted {expected}");
    let order: Vec<u8> = out.iter().map(|outer| open::open(outer).inner[60]).collect();
    assert!(order.is_sorted() && order.len() == 60);
    assert_eq!(world.worker.counters.waiting.get(), 0);
}

#[test]
fn shaper_a_full_queue_drops_by_name() {
    let mut world = plain();
    world.snapshot.settings.queues = QueueLimits { packets: 10, ..QueueLimits::default() };
    limit(&world, Direction::Out, 0, MBIT);
    for _ in 0..100 {
        world.run(1, vec![HeapBuf::new(&v4(A, R).tcp(1, 2, 0x10, &[0; 946]))]);
    }
    let counters = &world.worker.counters;
    assert_eq!(counters.waiting.get(), 10);
    let dropped = counters.drops(DropReason::TCP_SHAPED);
    assert_eq!(counters.sent.get() + 10 + dropped, 100);
    // Another tenant's traffic does not wait for it, nor does what stays on the host.
    assert_eq!(world.pass(2, &v4(B, R).tcp(1, 2, 0x10, &[0; 946])).len(), 1);
    assert_eq!(world.pass(1, &v4(A, B).tcp(1, 2, 0x10, &[0; 946])).len(), 1);
}

/// However slow, a few packets may wait; more only as long as they do not wait for longer than is set.
#[test]
fn shaper_queues_are_bounded_in_time() {
    for (ceil, held) in [(MBIT / 10, 16), (10 * MBIT, 122), (1000 * MBIT, 512)] {
        let mut world = plain();
        limit(&world, Direction::Out, 0, ceil);
        for _ in 0..1016 {
            world.run(1, vec![HeapBuf::new(&v4(A, R).tcp(1, 2, 0x10, &[0; 946]))]);
        }
        // 100 ms of frames of 1024 bytes, and never more than is left of the worker's room.
        let waiting = world.worker.counters.waiting.get();
        assert!(waiting.abs_diff(held) <= 1, "{waiting} wait at {ceil}");
        let counters = &world.worker.counters;
        let [late, no_room] =
            [DropReason::TCP_SHAPED, DropReason::SHAPER_FULL].map(|why| counters.drops(why));
        assert_eq!(counters.sent.get() + waiting + late + no_room, 1016);
        assert_eq!(late == 0, held == 512);
    }
}

/// Packets that come after the last limit was taken away stay behind those that wait.
#[test]
fn shaper_order_outlives_the_last_limit() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 10 * MBIT);
    let send = |world: &mut World, n: u8| {
        let sent = world.run(1, vec![HeapBuf::new(&v4(A, R).tcp(1, 2, 0x10, &[n; 946]))]);
        sent.into_iter().map(|(_, packet)| packet).collect::<Vec<_>>()
    };
    let mut out: Vec<Vec<u8>> = (0..40).flat_map(|n| send(&mut world, n)).collect();
    assert!(out.len() < 25, "{}", out.len());
    let tree = world.worker.overlay.dhtb().tree();
    tree.set(tree.vnic_node(Direction::Out, 0), &NodeLimits::FREE, world.now.ns);
    assert!(tree.is_free());
    assert!(send(&mut world, 40).is_empty(), "it waits behind the others");
    later(&mut world, 1_000_000);
    out.extend(released(&mut world));
    out.extend(send(&mut world, 41));
    let order: Vec<u8> = out.iter().map(|outer| open::open(outer).inner[60]).collect();
    assert_eq!(order, (0..42).collect::<Vec<u8>>());
}

#[test]
fn shaper_rdma_over_its_rate_is_marked_then_waits() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 100 * MBIT);
    let mut marked_from = None;
    let (mut sent, mut last) = (0, None);
    for n in 0..600u32 {
        let tos = [0x02, 0x01][n as usize % 2];
        for (_, outer) in world.run(1, vec![HeapBuf::new(&rdma(opcode::RC_WRITE_MIDDLE, n, tos, &[0; 1024]))])
        {
            sent += 1;
            let inner = open::open(&outer).inner;
            // RFC 6040, normal mode: what is marked in here is marked outside.
            assert_eq!(outer[15] & 3, inner[15] & 3, "{n}");
            if inner[15] & 3 == 3 && n > 250 {
                marked_from.get_or_insert(n);
            }
            // A mark leaves the ICRC as it was.
            let headers = sound(&inner);
            assert_eq!(wire::icrc::verify(&headers, [inner.as_slice()]), Some(true));
            last = Some(psn(&outer).1);
        }
    }
    // 16 KiB of tokens and 256 KiB of debt pass at once; from 200 kB of debt all are marked.
    assert!((240..=290).contains(&sent), "{sent}");
    let counters = world.worker.counters.clone();
    assert!(counters.rdma_marked.get() > 40, "{}", counters.rdma_marked.get());
    assert_eq!(counters.waiting.get(), 600 - sent);
    // What waited comes in order, marked, and only when the debt is paid.
    later(&mut world, 1_000_000);
    assert!(released(&mut world).is_empty());
    for _ in 0..200 {
        later(&mut world, 1_000_000);
        for outer in released(&mut world) {
            assert_eq!(open::open(&outer).inner[15] & 3, 3);
            assert!(Some(psn(&outer).1) > last);
            last = Some(psn(&outer).1);
        }
    }
    assert_eq!((last, counters.waiting.get()), (Some(599), 0));
    // The class's own count is that of all.
    let tree = world.worker.overlay.dhtb().tree();
    assert_eq!(tree.fate(tree.leaf(Direction::Out, 0, Class::Rdma)), (counters.rdma_marked.get(), 0));
    assert_eq!(tree.fate(tree.leaf(Direction::Out, 0, Class::Tcp)), (0, 0));
}

#[test]
fn shaper_rdma_that_cannot_be_marked_waits() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 100 * MBIT);
    for n in 0..100 {
        for (_, outer) in world.run(1, vec![HeapBuf::new(&rdma(opcode::RC_WRITE_MIDDLE, n, 0, &[0; 1024]))]) {
            assert_eq!(open::open(&outer).inner[15] & 3, 0);
        }
    }
    let counters = &world.worker.counters;
    assert!(counters.waiting.get() > 80 && counters.rdma_marked.get() == 0);
}

/// A READ response waits, then an ACK of the same queue pair comes: it does not pass it.
#[test]
fn shaper_an_ack_does_not_pass_a_waiting_read_response() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 100 * MBIT);
    let mut out = Vec::new();
    let mut send = |world: &mut World, frame: Vec<u8>| {
        out.extend(world.run(1, vec![HeapBuf::new(&frame)]).into_iter().map(|(_, outer)| psn(&outer)));
        out.len()
    };
    let mut n = 0;
    while world.worker.counters.waiting.get() == 0 {
        send(&mut world, rdma(0x0e, n, 0, &[0; 1024]));
        n += 1;
    }
    send(&mut world, rdma(opcode::RC_ACK, n, 2, Aeth::new(0x1f, 1).bytes()));
    assert_eq!(world.worker.counters.waiting.get(), 2);
    for _ in 0..100 {
        later(&mut world, 1_000_000);
        let more: Vec<_> = released(&mut world).iter().map(|outer| psn(outer)).collect();
        out.extend(more);
    }
    let expected: Vec<_> = (0..n).map(|n| (0x0e, n)).chain([(opcode::RC_ACK, n)]).collect();
    assert_eq!(out, expected);
}

/// A notification is worth something only when it is early: it passes what waits, up to the rate of such packets.
#[test]
fn shaper_a_notification_does_not_wait() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 100 * MBIT);
    world.worker.overlay.dhtb().tree().set_control_rate(Direction::Out, 0, MBIT / 5, world.now.ns);
    let mut n = 0;
    while world.worker.counters.waiting.get() < 10 {
        world.run(1, vec![HeapBuf::new(&rdma(0x0e, n, 0, &[0; 1024]))]);
        n += 1;
    }
    let cnp = v4(A, R).with_tos(2).cnp(9, Qpn::truncated(0x50));
    let passed = (0..400).filter(|_| !world.run(1, vec![HeapBuf::new(&cnp)]).is_empty()).count();
    // 16 KiB of frames of 74 and 24 bytes: what control packets may save up.
    assert!((160..=168).contains(&passed), "{passed}");
    assert_eq!(world.worker.counters.waiting.get(), 10 + 400 - passed as u64);
}

/// A tenant that sends nothing but ACKs and CNPs gets what `control-rate` gives it, and no more than its ceiling.
#[test]
fn shaper_opcodes_buy_no_bandwidth() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 10 * MBIT);
    world.worker.overlay.dhtb().tree().set_control_rate(Direction::Out, 0, MBIT / 5, world.now.ns);
    let mut bytes = 0;
    let frames = [
        rdma(opcode::RC_ACK, 1, 2, Aeth::new(0x1f, 1).bytes()),
        v4(A, R).with_tos(2).cnp(9, Qpn::truncated(0x50)),
        // Longer than the opcode allows: data.
        rdma(opcode::RC_ACK, 1, 2, &[0; 900]),
    ];
    let start = world.now.ns;
    for n in 0..200_000usize {
        later(&mut world, 10_000);
        for (_, packet) in world.run(1, vec![HeapBuf::new(&frames[n % 3])]) {
            bytes += packet.len() as u64 - 50 + 24;
        }
        bytes += released(&mut world).iter().map(|packet| packet.len() as u64 - 50 + 24).sum::<u64>();
    }
    let seconds = (world.now.ns - start) as f64 / 1e9;
    let rate = bytes as f64 * 8.0 / seconds / MBIT as f64;
    // Debts and bursts are a part of two seconds' worth.
    assert!((9.5..=11.5).contains(&rate), "{rate:.2} Mbit/s");
}

/// Out of the tunnel, the receiver's tree counts.
#[test]
fn shaper_ingress_is_limited_at_the_receiver() {
    let mut world = plain();
    limit(&world, Direction::In, 0, 10 * MBIT);
    for n in 0..40u8 {
        world.run(UPLINK, vec![HeapBuf::new(&tunnelled(&v4(R, A).tcp(1, 2, 0x10, &[n; 946])))]);
    }
    let waiting = world.worker.counters.waiting.get();
    assert!((22..=27).contains(&waiting), "{waiting}");
    // B's is its own.
    assert_eq!(world.pass(UPLINK, &tunnelled(&v4(R, B).tcp(1, 2, 0x10, &[0; 946]))).len(), 1);
    let mut came = 0;
    for _ in 0..50 {
        later(&mut world, 1_000_000);
        came += released(&mut world).len();
    }
    assert_eq!(came as u64, waiting);
}

/// Packets wait for a vNIC or a place that goes away: dropped by name when their turn comes, never leaked.
#[test]
fn shaper_waiting_packets_of_what_goes_away_end_by_name() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, MBIT);
    for _ in 0..30 {
        world.run(1, vec![HeapBuf::new(&v4(A, R).tcp(1, 2, 0x10, &[0; 946]))]);
    }
    let waiting = world.worker.counters.waiting.get();
    assert!(waiting > 10);
    world.forget(0, pipelines::snapshot::Destination::Mac(R.mac));
    world.snapshot.touch_vpc(0);
    for _ in 0..500 {
        later(&mut world, 1_000_000);
        assert!(released(&mut world).is_empty());
    }
    let dropped = world.worker.counters.drops(DropReason::NO_LOCATION);
    assert_eq!((dropped, world.worker.counters.waiting.get()), (waiting, 0));
}

/// Indices are given anew: what waits of a tenant that is gone is not another's.
#[test]
fn shaper_waiting_packets_stay_with_their_tenant() {
    for way in [Direction::Out, Direction::In] {
        for change in ["the VPC is another", "the vNIC is another's"] {
            let mut world = plain();
            let other = world.add_vpc(4242);
            limit(&world, way, 0, MBIT);
            for _ in 0..30 {
                let (port, frame) = match way {
                    Direction::Out => (1, v4(A, R).tcp(1, 2, 0x10, &[0; 946])),
                    Direction::In => (UPLINK, tunnelled(&v4(R, A).tcp(1, 2, 0x10, &[0; 946]))),
                };
                world.run(port, vec![HeapBuf::new(&frame)]);
            }
            let waiting = world.worker.counters.waiting.get();
            assert!(waiting > 10, "{waiting}");
            let expect = match change {
                "the VPC is another" => {
                    world.vpc(0).vni = wire::Vni::new(4343).unwrap();
                    waiting
                }
                // Packets out of the tunnel are of their VPC, whoever has the index of a vNIC.
                _ => {
                    let mut vnic = pipelines::snapshot::Vnic::clone(world.snapshot.vnic(0).unwrap());
                    vnic.vpc = other;
                    world.snapshot.vnics[0] = Some(std::sync::Arc::new(vnic));
                    if way == Direction::Out { waiting } else { 0 }
                }
            };
            for _ in 0..500 {
                later(&mut world, 1_000_000);
                let sent = released(&mut world);
                assert!(expect == 0 || sent.is_empty(), "{way:?}: {change}");
            }
            let counters = &world.worker.counters;
            assert_eq!((counters.drops(DropReason::PORT_UNBOUND), counters.waiting.get()), (expect, 0));
        }
    }
}

/// A copy for each tunnel end point is paid for.
#[test]
fn shaper_floods_pay_for_their_copies() {
    let mut world = plain();
    world.flood(0, &[2, 3, 4, 5]);
    limit(&world, Direction::Out, 0, 2 * MBIT);
    let frame = v4(A, Station { mac: wire::MacAddr([0xff; 6]), ..R }).udp(1, 2, &[0; 958]);
    let mut sent = 0;
    for _ in 0..100 {
        later(&mut world, 10_000_000);
        let at_once = world.run(1, vec![HeapBuf::new(&frame)]).into_iter().map(|(_, packet)| packet);
        let copies = at_once.chain(released(&mut world));
        sent += copies.filter(|packet| packet.len() > frame.len()).count();
    }
    // 2 Mbit/s for a second and 16 KiB, in frames of 1024 bytes, four at a time.
    let paid = sent as u64 * 1024;
    assert!(paid.abs_diff(250_000 + (16 << 10)) < 2 * 4096, "{paid}");
    let tree = world.worker.overlay.dhtb().tree();
    let drawn = tree.view(tree.vnic_node(Direction::Out, 0), world.now.ns).drawn;
    assert!(drawn.abs_diff(sent as u64 * 1024) < 8192, "{drawn} for {sent}");
}

#[test]
fn shaper_flush_sends_what_waits() {
    let mut world = plain();
    world.snapshot.settings.queues.time_ns = u64::MAX;
    limit(&world, Direction::Out, 0, MBIT);
    for _ in 0..200 {
        world.run(1, vec![HeapBuf::new(&v4(A, R).tcp(1, 2, 0x10, &[0; 946]))]);
    }
    let worker = &mut world.worker;
    worker.overlay.flush(&world.snapshot, world.now, &mut worker.out);
    assert_eq!((worker.counters.waiting.get(), worker.counters.sent.get()), (0, 200));
    assert_eq!(worker.counters.imbalance(), 0);
    assert_eq!(
        world.worker.overlay.dhtb().depth(world.worker.overlay.dhtb().tree().leaf(
            Direction::Out,
            0,
            Class::Tcp
        )),
        Depth::default()
    );
    assert!(world.worker.out.sent.iter().all(|(_, packet)| packet.len() > 1000));
}

/// TCP that listens to ECN is marked when it waited for long, and only where that is wished for.
#[test]
fn shaper_tcp_is_marked_when_it_waited_long() {
    for (target, tos, expect) in [(0, 2, false), (1_000_000, 2, true), (1_000_000, 0, false)] {
        let mut world = plain();
        world.snapshot.settings.red.tcp_ecn_ns = target;
        limit(&world, Direction::Out, 0, 10 * MBIT);
        for _ in 0..40 {
            world.run(1, vec![HeapBuf::new(&v4(A, R).with_tos(tos).tcp(1, 2, 0x10, &[0; 946]))]);
        }
        let mut marked = 0;
        for _ in 0..50 {
            later(&mut world, 1_000_000);
            let out = released(&mut world);
            for outer in &out {
                let inner = open::open(outer).inner;
                sound(&inner);
                marked += u64::from(inner[15] & 3 == 3);
            }
        }
        assert_eq!(marked > 10, expect, "{target} {tos}: {marked}");
        assert_eq!(world.worker.counters.tcp_marked.get(), marked);
    }
}

/// A tenant with many classes full leaves room for the next.
#[test]
fn shaper_one_tenant_cannot_take_all_room() {
    let mut world = plain();
    world.snapshot.settings.queues.time_ns = u64::MAX;
    for vnic in 0..3 {
        limit(&world, Direction::In, vnic, MBIT);
    }
    limit(&world, Direction::Out, 1, MBIT);
    let inward = |to: Station, n: usize| -> Vec<Vec<u8>> {
        let kinds = [
            v4(R, to).tcp(1, 2, 0x10, &[0; 946]),
            v4(R, to).roce(7, Bth::new(7, Qpn::truncated(9), Psn::truncated(1)), &[0; 946]),
        ];
        (0..n).map(|n| tunnelled(&kinds[n % 2])).collect()
    };
    for _ in 0..60 {
        for to in [A, C] {
            let frames = inward(to, 32);
            world.run(UPLINK, frames.iter().map(|frame| HeapBuf::new(frame)).collect());
        }
    }
    let before = world.worker.counters.waiting.get();
    assert!(before > 700, "{before}");
    for _ in 0..60 {
        world.run(2, vec![HeapBuf::new(&v4(B, R).tcp(1, 2, 0x10, &[0; 946]))]);
    }
    assert!(world.worker.counters.waiting.get() >= before + 40, "{}", world.worker.counters.waiting.get());
}
