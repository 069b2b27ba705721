//! TCP super-frames over their rate: they wait in pieces, which are dropped one by one.

use pipelines::Direction;
use pipelines::drops::DropReason;
use pipelines::qos::{Class, NodeLimits, QueueLimits};
use proptest::prelude::*;
use wire::segment::Segmentation;
use wire::tcp::flags::{ACK, PSH};
use wire::{ChecksumState, HeapBuf, PacketBuf, RxFacts, View, tcp};

use testkit::*;

use super::{MBIT, later, limit, released};

/// A super-frame of A to R with `data` bytes from `seq` on, in segments of `size`.
fn super_frame(seq: u32, data: usize, size: u16) -> HeapBuf {
    let header = tcp::Header::new(1000, 80, seq, 7, ACK | PSH);
    let data: Vec<u8> = (0..data).map(|at| (at as u32).wrapping_add(seq) as u8).collect();
    let frame = v4(A, R).ip_unfilled(6, &[header.bytes(), &data].concat());
    let facts = RxFacts { gso_size: size, l4_checksum: ChecksumState::Partial, ..RxFacts::default() };
    let mut parts = frame.chunks(2048);
    HeapBuf::segmented(parts.next().unwrap(), &parts.collect::<Vec<_>>()).with_facts(facts)
}

/// What a super-frame is cut into, as it is to arrive.
fn pieces(packet: &HeapBuf) -> Vec<Vec<u8>> {
    let headers = wire::parse::parse(packet.head(), packet.len()).unwrap();
    match Segmentation::of(&headers, packet.head(), packet.len(), &packet.rx_facts()) {
        Segmentation::Several(frame) => frame.cut(packet).map(|piece| piece.unwrap().to_vec()).collect(),
        other => panic!("{other:?}"),
    }
}

fn inner(outer: &[u8]) -> Vec<u8> {
    open::open(outer).inner
}

fn sequence(frame: &[u8]) -> u32 {
    sound(frame).tcp(frame).unwrap().seq.get()
}

/// Sends a packet and returns what leaves at once.
fn send(world: &mut World, packet: HeapBuf) -> Vec<Vec<u8>> {
    world.run(1, vec![packet]).into_iter().map(|(_, frame)| inner(&frame)).collect()
}

#[test]
fn shaper_a_super_frame_that_has_to_wait_does_so_in_pieces() {
    let mut world = plain();
    limit(&world, Direction::Out, 0, 10 * MBIT);
    // A full bucket lets the first one go.
    let opener = send(&mut world, super_frame(1, 40_000, 1400));
    assert_eq!(opener.len(), 29);
    let packet = super_frame(40_001, 40_000, 1400);
    let wanted = pieces(&packet);
    let mut out = send(&mut world, packet);
    assert_eq!((out.len(), world.worker.counters.waiting.get()), (0, wanted.len() as u64));
    assert_eq!(world.worker.counters.copies.get(), 2 * (wanted.len() as u64 - 1));
    let mut took = 0u64;
    while out.len() < wanted.len() {
        out.extend(released(&mut world).iter().map(|frame| inner(frame)));
        later(&mut world, 100_000);
        took += 100;
        assert!(took < 100_000, "{} came", out.len());
    }
    assert_eq!(out, wanted, "byte by byte, in order");
    // 16 KiB were saved up; the rest comes at 10 Mbit/s, with the wire's overhead of each packet.
    let bytes: usize = wanted.iter().chain(&opener).map(|frame| frame.len() + 24).sum();
    let expected = (bytes as u64 - (16 << 10)) * 8 / 10;
    assert!(took.abs_diff(expected) < expected / 10, "{took} us, wanted {expected}");
    assert_eq!(
        (world.worker.counters.waited.get(), world.worker.counters.dropped()),
        (wanted.len() as u64, 0)
    );
}

#[test]
fn shaper_a_super_frame_with_tokens_at_hand_is_not_cut_before_its_time() {
    let mut world = plain();
    let tree = world.worker.overlay.dhtb().tree();
    let node = tree.vnic_node(Direction::Out, 0);
    tree.set(node, &NodeLimits { ceil: 1000 * MBIT, burst: 256 << 10, ..NodeLimits::FREE }, world.now.ns);
    for n in 0..4 {
        let packet = super_frame(n * 40_000, 40_000, 1400);
        let wanted = pieces(&packet);
        assert_eq!(send(&mut world, packet), wanted, "at once");
    }
    assert_eq!(world.worker.counters.waited.get(), 0);
}

/// Of a queue that is full the pieces that do not fit are lost, and no more: what a TCP takes for congestion, not for a timeout.
#[test]
fn shaper_a_full_queue_takes_what_fits_of_a_super_frame() {
    let mut world = plain();
    world.snapshot.settings.queues = QueueLimits { packets: 40, ..QueueLimits::default() };
    limit(&world, Direction::Out, 0, 10 * MBIT);
    send(&mut world, super_frame(0, 28_000, 1400));
    let frames: Vec<HeapBuf> = (1..4u32).map(|n| super_frame(n * 28_000, 28_000, 1400)).collect();
    let wanted: Vec<Vec<u8>> = frames.iter().flat_map(pieces).collect();
    assert_eq!(wanted.len(), 60);
    let before = world.worker.counters.vnic(0).drops.get();
    for frame in frames {
        send(&mut world, frame);
    }
    assert_eq!(world.worker.counters.waiting.get(), 40);
    assert_eq!(world.worker.counters.drops(DropReason::TCP_SHAPED), 20);
    assert_eq!(world.worker.counters.vnic(0).drops.get() - before, 20);
    let mut out = Vec::new();
    for _ in 0..1000 {
        out.extend(released(&mut world).iter().map(|frame| inner(frame)));
        later(&mut world, 100_000);
    }
    assert_eq!(out, wanted[..40], "those that came first");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the sizes, rates and limits: what leaves are pieces as cutting alone makes them, in their order, none twice; all
    /// else was dropped by name; no class holds more than it may, and none gets more than its rate.
    #[test]
    fn shaper_super_frames_in_pieces_are_all_accounted_for(
        ceil in 2u64..200,
        packets in 4u32..80,
        frames in prop::collection::vec((1usize..60_000, 536u16..1449, 0u64..4_000_000), 1..40),
    ) {
        let mut world = plain();
        world.snapshot.settings.queues = QueueLimits { packets, ..QueueLimits::default() };
        limit(&world, Direction::Out, 0, ceil * MBIT);
        let leaf = world.worker.overlay.dhtb().tree().leaf(Direction::Out, 0, Class::Tcp);
        let (mut wanted, mut out, mut seq) = (Vec::new(), Vec::new(), 0u32);
        let start = world.now.ns;
        for (data, size, pause) in frames {
            // One byte more than a segment at least.
            let data = data.max(usize::from(size) + 1);
            let packet = super_frame(seq, data, size);
            seq += data as u32;
            wanted.extend(pieces(&packet));
            out.extend(send(&mut world, packet));
            prop_assert!(world.worker.overlay.dhtb().depth(leaf).buffers <= packets);
            for _ in 0..4 {
                later(&mut world, pause / 4);
                out.extend(released(&mut world).iter().map(|frame| inner(frame)));
            }
        }
        let paid: u64 = out.iter().map(|frame| frame.len() as u64).sum();
        let let_go = (world.now.ns - start) * ceil / 8000 + (16 << 10);
        // What a token cache and an epoch are ahead of the clock, and a super-frame that a full bucket lets go.
        prop_assert!(paid <= let_go + let_go / 10 + 16_384 + 65_536, "{paid} of {let_go}");
        for _ in 0..20_000 {
            if world.worker.counters.waiting.get() == 0 {
                break;
            }
            later(&mut world, 1_000_000);
            out.extend(released(&mut world).iter().map(|frame| inner(frame)));
        }
        prop_assert_eq!(world.worker.counters.waiting.get(), 0);
        let sequences: Vec<u32> = out.iter().map(|frame| sequence(frame)).collect();
        prop_assert!(sequences.is_sorted_by(|a, b| a < b), "{:?}", sequences);
        let mut rest = wanted.iter();
        prop_assert!(out.iter().all(|frame| rest.any(|piece| piece == frame)), "each is a piece, and in order");
        prop_assert_eq!(out.len() as u64 + world.worker.counters.drops(DropReason::TCP_SHAPED), wanted.len() as u64);
        prop_assert_eq!(world.worker.counters.dropped(), world.worker.counters.drops(DropReason::TCP_SHAPED));
    }
}
