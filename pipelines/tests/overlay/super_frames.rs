//! Super-frames: whole to ports that take them, in pieces to all others and across the tunnel, or refused by name.

use pipelines::Direction;
use pipelines::Now;
use pipelines::drops::DropReason;
use pipelines::qos::NodeLimits;
use pipelines::snapshot::PortIndex;
use wire::build::Path;
use wire::tcp::flags::{ACK, CWR, FIN, PSH, SYN};
use wire::{ChecksumState, HeapBuf, PacketBuf, RxFacts, View, tcp};

use testkit::open::open;
use testkit::*;

/// What IPv6 with timestamps leaves of an MTU of 1500.
pub(crate) const SIZE: u16 = 1428;

/// A TCP segment with timestamps, as long as it likes, and a checksum that is left to others.
pub(crate) fn segment(seq: u32, flags: u8, data: usize) -> Vec<u8> {
    let mut header = tcp::Header::new(1000, 80, seq, 7, flags);
    header.data_offset = 8 << 4;
    let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let data: Vec<u8> = (0..data).map(|at| (at % 251) as u8).collect();
    [header.bytes(), &options, &data].concat()
}

pub(crate) fn facts(gso_size: u16) -> RxFacts {
    RxFacts { gso_size, l4_checksum: ChecksumState::Partial, ..RxFacts::default() }
}

/// In segments of 2 KiB, as buffers are.
pub(crate) fn packet(frame: &[u8], facts: RxFacts) -> HeapBuf {
    let mut parts = frame.chunks(2048);
    let head = parts.next().unwrap_or_default();
    HeapBuf::segmented(head, &parts.collect::<Vec<_>>()).with_facts(facts)
}

pub(crate) fn super_frame(path: &Path, data: usize) -> HeapBuf {
    packet(&path.ip_unfilled(6, &segment(100, ACK | PSH | FIN | CWR, data)), facts(SIZE))
}

/// Checks pieces of [`super_frame`] and returns their data.
#[track_caller]
fn joined(pieces: &[Vec<u8>]) -> Vec<u8> {
    let (mut data, mut id) = (Vec::new(), None);
    for (n, piece) in pieces.iter().enumerate() {
        let headers = sound(piece);
        let tcp = headers.tcp(piece).unwrap();
        assert_eq!(tcp.seq.get(), 100 + data.len() as u32, "piece {n}");
        let last = if n + 1 == pieces.len() { PSH | FIN } else { 0 };
        assert_eq!(tcp.flags, ACK | last | if n == 0 { CWR } else { 0 }, "piece {n}");
        if let Some(before) = id.filter(|_| headers.ipv4(piece).is_some()) {
            assert_eq!(headers.ip_id, before + 1);
        }
        id = Some(headers.ip_id);
        data.extend_from_slice(headers.payload(piece));
    }
    data
}

fn data(len: usize) -> Vec<u8> {
    segment(0, 0, len)[32..].to_vec()
}

#[track_caller]
pub(crate) fn all_to(port: PortIndex, out: Vec<(PortIndex, Vec<u8>)>) -> Vec<Vec<u8>> {
    assert!(out.iter().all(|sent| sent.0 == port));
    out.into_iter().map(|sent| sent.1).collect()
}

fn vnic(world: &World, index: usize) -> (u64, u64, u64) {
    let counters = world.worker.counters.vnic(index);
    (counters.rx_packets.get(), counters.tx_packets.get(), counters.drops.get())
}

#[test]
fn to_a_port_that_takes_them_they_go_whole() {
    for (path, to, hops) in
        [(v4(A, B), 2, 0), (v6(A, B), 2, 0), (routed(v4(A, C)), 3, 1), (routed(v6(A, C)), 3, 1)]
    {
        let mut world = plain();
        world.snapshot.ports[to].takes_super_frames = true;
        let sent = super_frame(&path, 60_000);
        let out = world.worker.run(&world.snapshot, world.now, 1, vec![sent.clone(), sent.clone()]);
        for (port, whole) in &out {
            assert_eq!((usize::from(*port), whole.len()), (to, sent.len()));
            let (before, after) = (sent.to_vec(), whole.to_vec());
            let headers = wire::parse::parse(&after, after.len()).unwrap();
            let request = whole.tx_request();
            let lengths = (u16::from(request.l2_len), request.l3_len, request.l4_len);
            assert_eq!(lengths, (14, headers.l4_offset - 14, 32));
            assert_eq!((request.tso_size, request.ipv6), (SIZE, matches!(headers.l3, wire::L3::Ipv6)));
            assert_eq!(request.l4_checksum, Some(wire::packet::L4Checksum::Tcp));
            let pseudo = wire::l4::pseudo_header(&headers, &after, headers.l4_total_len()).unwrap().fold();
            assert_eq!(headers.tcp(&after).unwrap().checksum.get(), pseudo);
            assert!(headers.ipv4_checksum_ok(&after) && headers.ttl == 64 - hops);
            let l4 = usize::from(headers.l4_offset);
            assert_eq!(after[l4 + 18..], before[l4 + 18..]);
            assert!(!whole.is_unfinished());
        }
        assert_eq!(out.len(), 2);
        let counters = &world.worker.counters;
        assert_eq!((counters.local.get(), counters.copies.get(), counters.dropped()), (2, 0, 0));
        assert_eq!((vnic(&world, 0), vnic(&world, to - 1)), ((2, 0, 0), (0, 2, 0)));
        // The flow's entry counts what came.
        let entries = world.worker.overlay.nft().scan(0, 256).0;
        let counted: Vec<_> = entries.iter().map(|entry| (entry.packets, entry.bytes)).collect();
        assert_eq!(counted, [(2, 2 * sent.len() as u64)]);
    }
}

#[test]
fn on_a_trunk_the_tag_is_counted_in() {
    let mut world = lab_on(1, Underlay::default(), true);
    world.snapshot.ports[1].takes_super_frames = true;
    let mut tagged = v4(A, B).tagged(100).ip_unfilled(6, &segment(100, ACK | PSH | FIN | CWR, 9000));
    let out = world.worker.run(&world.snapshot, world.now, 1, vec![packet(&tagged, facts(SIZE))]);
    tagged[14..16].copy_from_slice(&101u16.to_be_bytes());
    let (_, whole) = &out[0];
    assert_eq!((whole.tx_request().l2_len, whole.tx_request().tso_size), (18, SIZE));
    assert_eq!(whole.to_vec()[..36], tagged[..36]);
    world.snapshot.ports[1].takes_super_frames = false;
    tagged[14..16].copy_from_slice(&100u16.to_be_bytes());
    let out = world.expect_packets(
        1,
        vec![packet(&tagged, facts(SIZE))],
        &[("nft-hits", 1), ("local", 7), ("copies", 6)],
    );
    assert!(out.iter().all(|(port, piece)| *port == 1 && piece[12..16] == [0x81, 0, 0, 101]));
    assert_eq!(joined(&all_to(1, out)), data(9000));
}

#[test]
fn to_other_ports_they_go_in_pieces() {
    for (path, to) in [(v4(A, B), 2), (v6(A, B), 2), (routed(v4(A, C)), 3), (routed(v6(A, C)), 3)] {
        let mut world = plain();
        for (n, size) in [1429u64, 19_990, 65_000].into_iter().enumerate() {
            let pieces = size.div_ceil(1428);
            let nft = if n == 0 { "nft-misses" } else { "nft-hits" };
            let moved = [(nft, 1), ("local", pieces), ("copies", pieces - 1)];
            let out = world.expect_packets(1, vec![super_frame(&path, size as usize)], &moved);
            assert_eq!(joined(&all_to(to, out)), data(size as usize));
        }
        let pieces = 2 + 14 + 46;
        assert_eq!((vnic(&world, 0), vnic(&world, usize::from(to) - 1)), ((3, 0, 0), (0, pieces, 0)));
    }
}

#[test]
fn across_the_tunnel_each_piece_has_its_own() {
    for underlay in UNDERLAYS {
        for path in [v4(A, R), v6(A, R), routed(v4(A, S)), v4(A, R).with_tos(0x2a + 1)] {
            let mut world = lab(1, underlay);
            // What the uplink takes does not matter.
            world.snapshot.ports[0].takes_super_frames = true;
            let moved = [("nft-misses", 1), ("encapsulated", 21), ("copies", 20)];
            let out = world.expect_packets(1, vec![super_frame(&path, 29_980)], &moved);
            let opened: Vec<_> = all_to(UPLINK, out).iter().map(|frame| open(frame)).collect();
            assert!(opened.iter().all(|piece| piece.source_port == opened[0].source_port));
            assert!(
                opened
                    .iter()
                    .all(|piece| (piece.tos, piece.vlan, piece.vni) == (path.tos, underlay.vlan, 100))
            );
            let pieces: Vec<_> = opened.into_iter().map(|piece| piece.inner).collect();
            assert!(pieces.iter().all(|piece| sound(piece).tos == path.tos));
            assert_eq!(joined(&pieces), data(29_980));
        }
    }
}

#[test]
fn no_packet_of_a_burst_overtakes_another() {
    for (to, path) in [(UPLINK, v4(A, R)), (2, v4(A, B))] {
        for takes in [false, true] {
            let mut world = plain();
            world.snapshot.ports[2].takes_super_frames = takes;
            let small = |seq| HeapBuf::new(&path.ip(6, &segment(seq, ACK, 10)));
            let large = |seq| packet(&path.ip_unfilled(6, &segment(seq, ACK, 3000)), facts(SIZE));
            let burst = || vec![small(0), large(10), large(3010), small(6010), large(6020), small(9020)];
            for _ in 0..2 {
                let out = world.run(1, burst());
                let seqs: Vec<u32> = out
                    .iter()
                    .map(|(port, frame)| {
                        assert_eq!(*port, to);
                        let frame = if to == UPLINK { open(frame).inner } else { frame.clone() };
                        let headers = wire::parse::parse(&frame, frame.len()).unwrap();
                        headers.tcp(&frame).unwrap().seq.get()
                    })
                    .collect();
                assert!(seqs.is_sorted(), "{seqs:?}");
                assert_eq!(seqs.len(), if takes && to == 2 { 6 } else { 12 });
            }
        }
    }
}

#[test]
fn the_mtu_bounds_the_pieces_and_the_sender_is_told() {
    let of = |size: u16| packet(&v4(A, B).ip_unfilled(6, &segment(100, ACK, 10_000)), facts(size));
    let far = |size: u16| packet(&v4(A, R).ip_unfilled(6, &segment(100, ACK, 10_000)), facts(size));
    // 52 bytes of headers. The sender's own MTU, the receiver's, that of the underlay (1600 less 50 less 36 with Ethernet).
    for takes in [false, true] {
        let mut world = plain();
        world.snapshot.ports[2].takes_super_frames = takes;
        assert!(!world.worker.run(&world.snapshot, world.now, 1, vec![of(1448)]).is_empty());
        let told = [("mtu-exceeded", 1), ("originated", 1)];
        let too_big = |world: &mut World, packet: HeapBuf, moved: &[(&str, u64)], mtu: u16| {
            let out = world.expect_packets(1, vec![packet], moved);
            let (port, error) = &out[0];
            let headers = sound(error);
            let l4 = usize::from(headers.l4_offset);
            assert_eq!(
                (*port, &error[l4..l4 + 2], &error[l4 + 6..l4 + 8]),
                (1, &[3, 4][..], &mtu.to_be_bytes()[..])
            );
        };
        too_big(&mut world, of(1449), &told, 1500);
        world.snapshot.vnic_rows[0].mtu = 9000;
        world.snapshot.vnic_rows[1].mtu = 1300;
        too_big(&mut world, of(1249), &[("nft-hits", 1), told[0], told[1]], 1300);
        assert!(!world.worker.run(&world.snapshot, world.now, 1, vec![of(1248)]).is_empty());
        // 1600 - 36 of outer headers behind Ethernet - 14 of the inner Ethernet header.
        too_big(&mut world, far(1499), &[("nft-misses", 1), told[0], told[1]], 1550);
        assert!(!world.worker.run(&world.snapshot, world.now, 1, vec![far(1498)]).is_empty());
        assert_eq!(vnic(&world, 0).2, 3);
    }
    // An error in place of a super-frame leaves nothing to do.
    let mut world = plain();
    let out = world.worker.run(&world.snapshot, world.now, 1, vec![of(1449)]);
    assert!(out.len() == 1 && !out[0].1.is_unfinished());
}

#[test]
fn super_frames_that_fit_the_mtu_as_they_are_are_cut_all_the_same() {
    for path in [v4(A, B), v4(A, R)] {
        let mut world = plain();
        world.snapshot.vnic_rows.iter_mut().for_each(|row| row.mtu = 9000);
        world.uplink().mtu = 9100;
        for n in 0..2 {
            let out = world.run(1, vec![packet(&path.ip_unfilled(6, &segment(1, ACK, 1300)), facts(500))]);
            assert_eq!(out.len(), 3, "burst {n}");
        }
    }
}

#[test]
fn routed_super_frames_lose_a_hop_or_end() {
    let mut world = plain();
    let dying = packet(&routed(v4(A, C)).with_ttl(1).ip_unfilled(6, &segment(1, ACK, 5000)), facts(SIZE));
    let moved = [("nft-misses", 1), ("ttl-expired", 1), ("originated", 1)];
    let (port, error) = world.expect_packets(1, vec![dying], &moved).remove(0);
    assert_eq!((port, error[34]), (1, 11));
    let out = world.run(1, vec![super_frame(&routed(v4(A, C)), 5000)]);
    assert!(out.iter().all(|(_, piece)| sound(piece).ttl == 63) && out.len() == 4);
}

#[test]
fn memory_that_ends_in_the_middle_drops_the_rest_by_name() {
    for path in [v4(A, B), v4(A, R)] {
        let mut world = plain();
        world.run(1, vec![super_frame(&path, 2000)]);
        let way = if path == v4(A, R) { "encapsulated" } else { "local" };
        for memory in 1..7 {
            let moved = [("nft-hits", 1), (way, memory), ("copies", 6), ("no-buffer", 7 - memory)];
            let scarce = super_frame(&path, 9_990).with_memory(memory as usize);
            world.expect_packets(1, vec![scarce], &moved);
        }
        let dropped = vnic(&world, 0).2;
        assert_eq!(dropped, (1..7).sum::<u64>());
        let none = super_frame(&path, 9_990).with_memory(0);
        world.expect_packets(1, vec![none], &[("nft-hits", 1), ("no-buffer", 1)]);
        // Read-only, it can still be cut, but not be sent whole.
        let mut shared = super_frame(&path, 9_990);
        shared.set_shared(true);
        world.expect_packets(1, vec![shared.clone()], &[("nft-hits", 1), (way, 7), ("copies", 6)]);
        if way == "local" {
            world.snapshot.ports[2].takes_super_frames = true;
            world.expect_packets(1, vec![shared], &[("nft-hits", 1), ("no-buffer", 1)]);
        }
    }
}

#[test]
fn what_cannot_be_cut_is_refused_by_name() {
    let refused = [("gso-unsupported", 1)];
    let big = vec![0; 5000];
    let frames = [
        (v4(A, R).udp(1, 2, &big), SIZE),
        (v6(A, R).udp(1, 2, &big), SIZE),
        (v4(A, R).ip(47, &big), SIZE),
        (v4(A, R).ethernet(0x88b5, &big), SIZE),
        (v4(A, R).ip_unfilled(6, &segment(1, SYN, 5000)), SIZE),
        (v4(A, R).ip_unfilled(6, &segment(1, ACK, 60_000)), 1),
        (v4(A, R).ip_unfilled(6, &segment(1, ACK, 60_000)), 100),
        ([&v4(A, R).ip_unfilled(6, &segment(1, ACK, 5000))[..], &[0; 9]].concat(), SIZE),
        (wire::build::control::arp_request((A.mac, A.v4), B.v4), SIZE),
    ];
    for takes in [false, true] {
        let mut world = plain();
        world.snapshot.ports.iter_mut().for_each(|row| row.takes_super_frames = takes);
        for (frame, size) in &frames {
            world.expect_packets(1, vec![packet(frame, facts(*size))], &refused);
        }
        let loose = Path { dont_fragment: false, ..v4(A, R) };
        for fragment in loose.fragments(6, &segment(1, ACK, 5000), 7, 2000) {
            world.expect_packets(1, vec![packet(&fragment, facts(100))], &refused);
        }
        // Of its checksum nobody says anything, or that it is wrong.
        for l4_checksum in [ChecksumState::Unknown, ChecksumState::Bad] {
            let frame = v4(A, R).ip_unfilled(6, &segment(1, ACK, 5000));
            let packet = packet(&frame, RxFacts { l4_checksum, ..facts(SIZE) });
            world.expect_packets(1, vec![packet], &refused);
        }
        // A source that is not its own, before anything is cut.
        let spoofed = super_frame(&v4(B, R), 5000);
        let before = world.worker.counters.dropped();
        assert!(world.run(1, vec![spoofed]).is_empty());
        assert_eq!(world.worker.counters.dropped(), before + 1);
    }
}

#[test]
fn one_segment_is_an_ordinary_packet() {
    for path in [v4(A, R), v6(A, R)] {
        let mut world = plain();
        for (n, flags) in [ACK, SYN, ACK | PSH].into_iter().enumerate() {
            let whole = path.ip(6, &segment(1, flags, 1428));
            let headers = sound(&whole);
            let mut partial = whole.clone();
            let pseudo = wire::l4::pseudo_header(&headers, &whole, headers.l4_total_len()).unwrap().fold();
            assert!(wire::l4::write(&headers, &mut partial, pseudo));
            let nft = if n == 0 { "nft-misses" } else { "nft-hits" };
            let moved = [(nft, 1), ("encapsulated", 1), ("checksums-filled", 1)];
            let out = world.expect_packets(1, vec![packet(&partial, facts(SIZE))], &moved);
            assert_eq!(open(&out[0].1).inner, whole);
        }
    }
}

#[test]
fn floods_give_each_place_what_it_takes() {
    let mut world = plain();
    world.flood(0, &[2, 3]);
    world.snapshot.ports[2].takes_super_frames = true;
    let mut path = v4(A, R);
    path.dst_mac = wire::MacAddr([2, 0, 0, 9, 9, 9]);
    // Four places: B whole, C and two tunnels in four pieces each.
    let moved = [("nft-misses", 1), ("local", 1 + 4), ("encapsulated", 8), ("copies", 3 + 3 * 3)];
    let out = world.expect_packets(1, vec![super_frame(&path, 5000)], &moved);
    let of = |port| out.iter().filter(move |sent| sent.0 == port).map(|sent| sent.1.clone());
    assert_eq!(of(2).map(|whole| whole.len()).collect::<Vec<_>>(), [66 + 5000]);
    assert_eq!(joined(&of(3).collect::<Vec<_>>()), data(5000));
    let pieces: Vec<_> = of(UPLINK).map(|frame| open(&frame).inner).collect();
    assert_eq!((joined(&pieces[..4]), joined(&pieces[4..])), (data(5000), data(5000)));
}

#[test]
fn out_of_a_tunnel_they_go_on_as_from_a_vnic() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let inner = super_frame(&v4(R, A), 19_990).to_vec();
        let frame = outer(2, 1, underlay).vxlan(50_000, wire::Vni::new(100).unwrap(), &inner);
        let moved = [("nft-misses", 1), ("decapsulated", 1), ("copies", 13)];
        let out = world.expect_packets(UPLINK, vec![packet(&frame, facts(SIZE))], &moved);
        assert_eq!(joined(&all_to(1, out)), data(19_990));
        world.snapshot.ports[1].takes_super_frames = true;
        let moved = [("nft-hits", 1), ("decapsulated", 1)];
        let out = world.expect_packets(UPLINK, vec![packet(&frame, facts(SIZE))], &moved);
        assert_eq!((out.len(), out[0].1.len()), (1, inner.len()));
    }
}

#[test]
fn the_hosts_own_are_cut_for_ports_that_do_not_take_them() {
    let mut world = plain();
    let punt = world.add_punt();
    let underlay = Underlay::default();
    for (from, to, path) in [(UPLINK, punt, outer(2, 1, underlay)), (punt, UPLINK, outer(1, 2, underlay))] {
        let out = world.expect_packets(from, vec![super_frame(&path, 9_990)], &[("copies", 6)]);
        assert_eq!(joined(&all_to(to, out)), data(9_990));
        let scarce = super_frame(&path, 9_990).with_memory(2);
        world.expect_packets(from, vec![scarce], &[("copies", 6), ("no-buffer", 5)]);
        let other = packet(&path.udp(1, 2, &[1; 5000]), facts(SIZE));
        world.expect_packets(from, vec![other], &[("gso-unsupported", 1)]);
        world.snapshot.ports[usize::from(to)].takes_super_frames = true;
        let out = world.worker.run(&world.snapshot, world.now, from, vec![super_frame(&path, 9_990)]);
        assert_eq!((out.len(), out[0].0, out[0].1.tx_request().tso_size), (1, to, SIZE));
        world.snapshot.ports[usize::from(to)].takes_super_frames = false;
    }
    // What the host's port cannot take: the piece counts.
    let longer = packet(&outer(2, 1, underlay).ip_unfilled(6, &segment(1, ACK, 9000)), facts(1449));
    world.expect_packets(UPLINK, vec![longer], &[("mtu-exceeded", 1)]);
}

#[test]
fn forwarding_without_tables_sends_nothing_unfinished() {
    let path = v4(A, R);
    for mac in [false, true] {
        let mut world = plain();
        world.snapshot.ports[1].partner = 2;
        let forward = |world: &mut World, packet: HeapBuf| {
            assert!(world.worker.burst.fill([packet]).is_empty());
            let worker = &mut world.worker;
            pipelines::io::run(&world.snapshot, &worker.counters, 1, mac, &mut worker.burst, &mut worker.out);
            assert_eq!((worker.counters.imbalance(), worker.burst.pending), (0, 0));
            assert!(worker.out.sent.iter().all(|(port, packet)| *port == 2 && !packet.is_unfinished()));
            std::mem::take(&mut worker.out.sent)
        };
        let out = forward(&mut world, super_frame(&path, 9_990));
        assert!(out.iter().all(|sent| sent.1.to_vec()[5] == if mac { 2 } else { R.mac.0[5] }));
        assert_eq!(joined(&out.into_iter().map(|sent| sent.1.to_vec()).collect::<Vec<_>>()), data(9_990));
        assert_eq!(forward(&mut world, super_frame(&path, 9_990).with_memory(3)).len(), 3);
        assert_eq!(world.worker.counters.drops(DropReason::NO_BUFFER), 4);
        assert!(forward(&mut world, packet(&path.udp(1, 2, &[0; 5000]), facts(SIZE))).is_empty());
        assert!(forward(&mut world, packet(&[7; 5000], facts(SIZE))).is_empty());
        assert_eq!(world.worker.counters.drops(DropReason::GSO), 2);
        world.snapshot.ports[2].takes_super_frames = true;
        let out = forward(&mut world, super_frame(&path, 9_990));
        assert_eq!((out.len(), out[0].1.tx_request().tso_size), (1, SIZE));
    }
}

fn released(world: &mut World, ns: u64) -> Vec<Vec<u8>> {
    world.now = Now::from_ns(world.now.ns + ns);
    let worker = &mut world.worker;
    while worker.overlay.release(&world.snapshot, world.now, &mut worker.out) {}
    worker.overlay.idle(world.now);
    worker.divider.tick(world.now.ns);
    assert_eq!(worker.counters.imbalance(), 0, "conservation");
    let out = std::mem::take(&mut worker.out.sent);
    all_to(UPLINK, out.into_iter().map(|(port, packet)| (port, packet.to_vec())).collect())
}

/// Super-frames of 60 kB through a bucket of 16 KiB: each goes, in pieces and in their time, and pays for what is on the wire.
#[test]
fn rates_are_those_of_the_wire_and_no_super_frame_is_too_long() {
    const RATE: u64 = 100_000_000;
    for link in [false, true] {
        let mut world = plain();
        let tree = world.worker.overlay.dhtb().tree();
        let node = if link { tree.link_node(Direction::Out) } else { tree.vnic_node(Direction::Out, 0) };
        tree.set(node, &NodeLimits { ceil: RATE, burst: 16 << 10, ..NodeLimits::FREE }, world.now.ns);
        let first = all_to(UPLINK, world.run(1, vec![super_frame(&v4(A, R), 59_970)]));
        assert_eq!(first.len(), 42, "a full bucket lets it go");
        // Preamble, gap and FCS; of the vNIC the inner frames.
        let off = if link { 0 } else { 50 };
        let paid = |pieces: &[Vec<u8>]| pieces.iter().map(|piece| piece.len() as u64 + 24 - off).sum::<u64>();
        // What was saved up is gone.
        let (mut frames, mut wire_bytes, mut took) = (0u64, paid(&first) - (16 << 10), 0u64);
        for _ in 0..20 {
            assert!(world.run(1, vec![super_frame(&v4(A, R), 59_970)]).is_empty());
            assert_eq!(world.worker.counters.waiting.get(), 42);
            let mut pieces = Vec::new();
            while pieces.len() < 42 {
                pieces.extend(released(&mut world, 10_000));
                took += 10_000;
                assert!(took < 1_000_000_000, "stuck");
            }
            assert_eq!(
                joined(&pieces.iter().map(|piece| open(piece).inner).collect::<Vec<_>>()),
                data(59_970)
            );
            wire_bytes += paid(&pieces);
            frames += 1;
        }
        assert_eq!(frames, 20);
        let expected = wire_bytes * 8 * 1_000_000_000 / RATE;
        assert!(
            took.abs_diff(expected) < expected / 100,
            "{took} ns for {wire_bytes} bytes, wanted {expected}"
        );
        assert_eq!(world.worker.counters.dropped(), 0);
    }
}

/// RDMA in the same burst is neither held up nor looked at.
#[test]
fn rdma_goes_by() {
    use wire::roce::{Bth, opcode};
    let mut world = plain();
    let tree = world.worker.overlay.dhtb().tree();
    let leaf = tree.leaf(Direction::Out, 0, pipelines::qos::Class::Tcp);
    let node = tree.leaf_node(leaf);
    tree.set(node, &NodeLimits { ceil: 10_000_000, burst: 16 << 10, ..NodeLimits::FREE }, world.now.ns);
    let bth = Bth::new(opcode::RC_SEND_ONLY, wire::Qpn::truncated(5), wire::Psn::truncated(1));
    let rdma = || HeapBuf::new(&v4(A, R).roce(7, bth, &[1; 64]));
    let out =
        world.run(1, vec![super_frame(&v4(A, R), 59_970), rdma(), super_frame(&v4(A, R), 59_970), rdma()]);
    let rdma = out.iter().filter(|sent| open(&sent.1).inner[23] == 17).count();
    assert_eq!((rdma, out.len()), (2, 44), "the second super-frame waits");
}
