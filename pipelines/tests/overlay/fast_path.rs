//! What `fast_inner` reads is what `parse`, `guard`, `outer` and `key` find out step by step.

use pipelines::burst::{Burst, Meta, NO_INDEX};
use pipelines::counters::PipelineCounters;
use pipelines::event::Events;
use pipelines::fragments::Fragments;
use pipelines::nft::{Nft, NftParams};
use pipelines::snapshot::Snapshot;
use pipelines::stage::key::RoceMasks;
use pipelines::stage::{Cx, fast_inner, guard, key, outer, parse};
use proptest::prelude::*;
use wire::build::Path;
use wire::{ChecksumState, HeapBuf, MacAddr, PacketBuf, Psn, Qpn, RxFacts, roce};

use testkit::*;

/// Where a packet comes from, as far as the stages know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Vnic,
    /// With this outer ECN field.
    Tunnel(u8),
}

/// One packet in front of the stages.
struct One {
    burst: Burst<HeapBuf>,
    counters: PipelineCounters,
}

impl One {
    fn new(packet: &HeapBuf, from: From) -> Self {
        let mut burst = Burst::default();
        burst.fill([packet.try_clone().unwrap()]);
        let meta = &mut burst.metas[0];
        (meta.vnic, meta.vpc) = (0, 0);
        if let From::Tunnel(ecn) = from {
            (meta.vnic, meta.entropy_port) = (NO_INDEX, u16::from(ecn));
        }
        Self { burst, counters: PipelineCounters::new(4) }
    }

    fn run(
        &mut self,
        snapshot: &Snapshot,
        stages: impl FnOnce(&Cx, &mut Burst<HeapBuf>) -> (u64, RoceMasks),
    ) -> (u64, RoceMasks) {
        let now = pipelines::Now::from_ns(1);
        let events = Events::new(1, 1);
        let cx = Cx { snapshot, counters: &self.counters, events: &events, now, port: 1 };
        stages(&cx, &mut self.burst)
    }

    /// All that later stages go by.
    fn known(&self) -> impl PartialEq + std::fmt::Debug {
        let Meta { key, hash, headers, vnic, vpc, entropy_port, .. } = self.burst.metas[0];
        let bytes = self.burst.packets[0].as_ref().map(HeapBuf::to_vec);
        let vnics = format!("{:?}", self.counters.vnic(0));
        (bytes, key, hash, headers, vnic, vpc, entropy_port, self.counters.scalars(), vnics)
    }
}

/// True when the packet was taken by the fast path, and then like that.
fn agrees(world: &World, packet: &HeapBuf, from: From) -> bool {
    let nft = Nft::new(NftParams { entries: 16, idle_ticks: 10, seed: 99 }, &|_, _| {});
    let fragments = Fragments::new(4, 5);
    let mut fast = One::new(packet, from);
    let (taken, roce) = fast.run(&world.snapshot, |cx, burst| {
        let read = match from {
            From::Vnic => fast_inner::from_vnics(cx, burst, &nft),
            From::Tunnel(_) => fast_inner::from_tunnels(cx, burst, &nft),
        };
        (read.taken, read.roce)
    });
    assert_eq!(fast.burst.pending, 1, "nothing is refused on the fast path");
    if taken == 0 {
        let untouched = One::new(packet, from);
        assert_eq!(format!("{:?}", fast.counters.vnic(0)), format!("{:?}", untouched.counters.vnic(0)));
        return false;
    }
    let mut closely = One::new(packet, from);
    let found = closely.run(&world.snapshot, |cx, burst| {
        let neighbours = parse::run(cx, burst, 1, false);
        assert_eq!(neighbours, 0);
        match from {
            From::Vnic => guard::run(cx, burst, 1),
            From::Tunnel(_) => outer::finish(cx, burst, 1),
        }
        (burst.pending, key::run(cx, burst, 1, &fragments, &nft))
    });
    assert_eq!((found, closely.burst.pending), ((1, roce), 1));
    assert_eq!(format!("{:?}", fast.known()), format!("{:?}", closely.known()));
    true
}

fn paths() -> impl Strategy<Value = Path> {
    prop_oneof![
        8 => Just(v4(A, R)),
        2 => Just(routed(v4(A, R))),
        1 => Just(v4(B, R)),
        1 => Just(v6(A, R)),
        1 => Just(v4(A, R).tagged(5)),
    ]
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 0..40);
    let shape = (0u8..5, any::<u16>(), any::<u8>(), any::<u8>(), payload);
    (paths(), shape).prop_map(|(path, (kind, port, opcode, tos, payload))| {
        let path = path.with_tos(tos);
        let bth = roce::Bth::new(opcode, Qpn::truncated(u32::from(port & 3)), Psn::truncated(1));
        match kind {
            0 | 1 => path.tcp(port, 80, opcode, &payload),
            2 => path.udp(port, 4791, &payload),
            3 => path.udp(port, 53, &payload),
            _ => path.roce(port, bth, &payload),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn the_fast_path_reads_what_the_parser_reads(
        mut frame in frames(),
        changes in prop::collection::vec((0usize..64, any::<u8>()), 0..3),
        trailer in 0usize..8,
        cut in 0usize..200,
        state in 0usize..12,
        tunnel in prop::option::of(0u8..4),
    ) {
        frame.resize(frame.len() + trailer.saturating_sub(3), 0);
        // Half of them as they were.
        let damaged = cut < 100;
        for (at, value) in changes.into_iter().filter(|_| damaged) {
            let at = at % frame.len();
            frame[at] = value;
        }
        let packet = match cut {
            1..80 if cut < frame.len() => HeapBuf::segmented(&frame[..cut], &[&frame[cut..]]),
            _ => HeapBuf::new(&frame),
        };
        let states = [ChecksumState::Good, ChecksumState::Bad, ChecksumState::Partial];
        let facts = states.get(state).map_or_else(RxFacts::default, |&l4_checksum| RxFacts {
            l4_checksum,
            gso_size: if state == 1 { 1400 } else { 0 },
            ..RxFacts::default()
        });
        agrees(&testkit::plain(), &packet.with_facts(facts), tunnel.map_or(From::Vnic, From::Tunnel));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Runs of vNICs, and RoCEv2 among other packets: a burst is read as its packets are one by one.
    #[test]
    fn a_burst_on_the_fast_path_reads_what_single_packets_do(
        packets in prop::collection::vec((frames(), 0u32..2), 1..64),
        tunnel in prop::option::of(0u8..4),
    ) {
        let world = testkit::plain();
        let nft = Nft::new(NftParams { entries: 16, idle_ticks: 10, seed: 99 }, &|_, _| {});
        let from = tunnel.map_or(From::Vnic, From::Tunnel);
        let read = |cx: &Cx, burst: &mut Burst<HeapBuf>| {
            let read = match from {
                From::Vnic => fast_inner::from_vnics(cx, burst, &nft),
                From::Tunnel(_) => fast_inner::from_tunnels(cx, burst, &nft),
            };
            (read.taken, read.roce)
        };
        let bound = |one: &mut One, i: usize, index: u32| {
            let meta = &mut one.burst.metas[i];
            (meta.vnic, meta.vpc) = if from == From::Vnic { (index, 0) } else { (NO_INDEX, index) };
            meta.entropy_port = u16::from(tunnel.unwrap_or_default());
        };
        let of = |frame: &Vec<u8>| HeapBuf::new(frame);
        let mut many = One::new(&of(&packets[0].0), from);
        many.burst.fill(packets.iter().map(|(frame, _)| of(frame)));
        packets.iter().enumerate().for_each(|(i, (_, index))| bound(&mut many, i, *index));
        let (taken, roce) = many.run(&world.snapshot, read);

        let mut sum = One::new(&of(&packets[0].0), from);
        let (mut each_taken, mut each_roce) = (0, RoceMasks::default());
        for (i, (frame, index)) in packets.iter().enumerate() {
            sum.burst.fill([of(frame)]);
            sum.burst.metas[0] = Meta::default();
            bound(&mut sum, 0, *index);
            let (taken, roce) = sum.run(&world.snapshot, read);
            each_taken |= taken << i;
            let RoceMasks { reliable, cnp, cm, opening } = roce;
            each_roce = each_roce.with(RoceMasks { reliable: reliable << i, cnp: cnp << i, cm: cm << i, opening: opening << i });
            if taken != 0 {
                let (one, among) = (&sum.burst.metas[0], &many.burst.metas[i]);
                let all = |meta: &Meta| (meta.key, meta.hash, meta.headers, meta.vnic, meta.vpc, meta.entropy_port);
                prop_assert_eq!(all(one), all(among));
            }
        }
        prop_assert_eq!((taken, roce), (each_taken, each_roce));
        prop_assert_eq!(many.counters.scalars(), sum.counters.scalars());
        for vnic in 0..2 {
            let of = |one: &One| format!("{:?}", one.counters.vnic(vnic));
            prop_assert_eq!(of(&many), of(&sum));
        }
    }
}

#[test]
fn plain_frames_are_taken_fast_path() {
    let world = testkit::plain();
    let bth = roce::Bth::new(0x04, Qpn::truncated(5), Psn::truncated(1));
    let mut router = routed(v4(A, S));
    router.dont_fragment = false;
    for path in [v4(A, R), v4(A, R).with_tos(2), router] {
        for frame in [path.tcp(1, 2, 0x18, b"abc"), path.udp(1, 2, &[0; 20]), path.roce(9, bth, &[1; 64])] {
            assert!(agrees(&world, &HeapBuf::new(&frame), From::Vnic), "{frame:02x?}");
            let mut inward = frame;
            inward[6..12].copy_from_slice(&R.mac.0);
            assert!(agrees(&world, &HeapBuf::new(&inward), From::Tunnel(0)), "{inward:02x?}");
            // A source MAC that nobody out there has is for a close look.
            for mac in [B.mac, MacAddr([3, 0, 0, 0, 1, 9])] {
                inward[6..12].copy_from_slice(&mac.0);
                assert!(!agrees(&world, &HeapBuf::new(&inward), From::Tunnel(0)), "{inward:02x?}");
            }
        }
    }
    let strange = [
        v4(B, R).tcp(1, 2, 2, b"of another vNIC"),
        v6(A, R).tcp(1, 2, 2, b"IPv6"),
        v4(A, R).tagged(5).tcp(1, 2, 2, b"tagged"),
        v4(A, R).echo_request(1, 2, &[0; 20]),
        v4(A, R).udp(1, 4791, &[0x9f; 40]),
    ];
    for frame in strange {
        assert!(!agrees(&world, &HeapBuf::new(&frame), From::Vnic), "{frame:02x?}");
    }
    let marked = HeapBuf::new(&v4(A, R).with_tos(2).tcp(1, 2, 2, b"ECT(0)"));
    assert!(!agrees(&world, &marked, From::Tunnel(3)), "the mark is for a close look");
}
