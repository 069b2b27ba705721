//! Cutting super-frames, against an oracle that cuts plain vectors, and under damage of every byte.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

use proptest::prelude::*;
use wire::build::Path;
use wire::parse::parse;
use wire::segment::{MAX_HEADERS, MAX_PIECES, MIN_SEGMENT, Segmentation, SuperFrame};
use wire::tcp::flags::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};
use wire::{ChecksumState, HeapBuf, MacAddr, PacketBuf, RxFacts};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn path(v6: bool) -> Path {
    if v6 {
        Path::v6((A, "fd00::1".parse().unwrap()), (B, "fd00::2".parse().unwrap()))
    } else {
        Path { id: 0xfffe, ..Path::v4((A, [10, 0, 0, 1].into()), (B, [10, 0, 0, 2].into())) }
    }
}

/// A TCP segment without a checksum: timestamps (or any options), window and all.
fn tcp(seq: u32, flags: u8, options: &[u8], data: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let offset = (((20 + options.len()) / 4) << 4) as u8;
    let mut segment = vec![0x12, 0x34, 0, 80];
    segment.extend(seq.to_be_bytes());
    segment.extend([9, 8, 7, 6, offset, flags, 0x20, 0x21, 0, 0, 0, 0]);
    segment.extend(options);
    segment.extend(data);
    segment
}

fn facts(gso_size: u16) -> RxFacts {
    RxFacts { gso_size, l4_checksum: ChecksumState::Partial, ..RxFacts::default() }
}

fn found(frame: &[u8], facts: &RxFacts) -> Segmentation {
    match parse(frame, frame.len()) {
        Ok(headers) => Segmentation::of(&headers, frame, frame.len(), facts),
        Err(_) => Segmentation::Unsound,
    }
}

#[track_caller]
fn several(frame: &[u8], size: u16) -> SuperFrame {
    match found(frame, &facts(size)) {
        Segmentation::Several(frame) => frame,
        other => panic!("{other:?}"),
    }
}

fn cut(frame: &SuperFrame, packet: &HeapBuf) -> Vec<Vec<u8>> {
    frame.cut(packet).map(|piece| piece.unwrap().to_vec()).collect()
}

/// RFC 1071, word by word.
fn fold(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn be(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// The checksum that a TCP segment at `l4` should have; its field counts as zero.
fn tcp_checksum(frame: &[u8], l3: usize, l4: usize) -> u16 {
    let (addresses, len) = match frame[l3] >> 4 {
        4 => (&frame[l3 + 12..l3 + 20], frame.len() - l4),
        _ => (&frame[l3 + 8..l3 + 40], frame.len() - l4),
    };
    !fold(&[addresses, &(len as u32).to_be_bytes(), &[0, 6], &frame[l4..l4 + 16], &[0, 0], &frame[l4 + 18..]])
}

/// Cuts a frame whose IP header is at `l3` and whose TCP header is at `l4`, by what the RFCs say and nothing of `wire`.
fn oracle(frame: &[u8], l3: usize, l4: usize, size: usize) -> Vec<Vec<u8>> {
    let (header, data) = frame.split_at(l4 + usize::from(frame[l4 + 12] >> 4) * 4);
    let chunks: Vec<&[u8]> = data.chunks(size).collect();
    let mut pieces = Vec::new();
    for (n, chunk) in chunks.iter().enumerate() {
        let mut piece = [header, chunk].concat();
        let ip_len = piece.len() - l3;
        if piece[l3] >> 4 == 4 {
            put(&mut piece, l3 + 2, ip_len as u16);
            let id = be(frame, l3 + 4).wrapping_add(n as u16);
            put(&mut piece, l3 + 4, id);
            put(&mut piece, l3 + 10, 0);
            let end = l3 + usize::from(piece[l3] & 15) * 4;
            let sum = !fold(&[&piece[l3..end]]);
            put(&mut piece, l3 + 10, sum);
        } else {
            put(&mut piece, l3 + 4, (ip_len - 40) as u16);
        }
        let seq = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
        piece[l4 + 4..l4 + 8].copy_from_slice(&seq.wrapping_add((n * size) as u32).to_be_bytes());
        if n > 0 {
            piece[l4 + 13] &= !CWR;
        }
        if n + 1 < chunks.len() {
            piece[l4 + 13] &= !(FIN | PSH);
        }
        let sum = tcp_checksum(&piece, l3, l4);
        put(&mut piece, l4 + 16, sum);
        pieces.push(piece);
    }
    pieces
}

prop_compose! {
    /// A super-frame with the offsets of its headers, known from how it was made, and a segment size.
    fn any_super_frame()(
        v6: bool, tags in 0..3usize, df: bool, tos: u8, id: u16, ip_options in 0..10usize, extension: bool,
        tcp_options in 0..11usize, seq: u32, flags: u8, size in MIN_SEGMENT..2000, data in 0..9000usize, seed: u8,
    ) -> (Vec<u8>, usize, usize, u16) {
        let mut path = Path { dont_fragment: df, tos, id, ..path(v6) };
        for tag in 0..tags {
            path = path.tagged(100 + tag as u16);
        }
        // Padding (RFC 791: no operation) and destination options.
        path.options = if v6 { Vec::new() } else { vec![1; 4 * ip_options] };
        path.extensions = if v6 && extension { vec![(60, vec![1, 4, 0, 0, 0, 0])] } else { Vec::new() };
        let l3 = 14 + 4 * tags;
        let l4 = l3 + if v6 { 40 + 8 * path.extensions.len() } else { 20 + path.options.len() };
        let most = usize::from(size) * MAX_PIECES;
        let data = (usize::from(size) + 1 + data).min(most);
        let data: Vec<u8> = (0..data).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
        let segment = tcp(seq, flags & !(SYN | RST | URG), &vec![1; 4 * tcp_options], &data);
        (path.ip_unfilled(6, &segment), l3, l4, size)
    }
}

proptest! {
    #[test]
    fn pieces_are_what_the_oracle_cuts(
        (frame, l3, l4, size) in any_super_frame(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let whole = several(&frame, size);
        let expected = oracle(&frame, l3, l4, usize::from(size));
        prop_assert_eq!(whole.pieces(), expected.len());
        prop_assert_eq!(whole.frame_len(), expected[0].len());
        prop_assert_eq!(whole.ip_len(), expected[0].len() - l3);
        prop_assert_eq!(whole.total_len(24), expected.iter().map(|piece| piece.len() + 24).sum::<usize>());
        // Over segments that end anywhere behind the headers.
        let header = whole.header_len();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| header + cut.index(frame.len() - header + 1)).collect();
        cuts.sort_unstable();
        cuts.push(frame.len());
        let tail: Vec<&[u8]> = cuts.windows(2).map(|ends| &frame[ends[0]..ends[1]]).collect();
        let packet = HeapBuf::segmented(&frame[..cuts[0]], &tail).with_facts(facts(size));
        let pieces = cut(&whole, &packet);
        prop_assert_eq!(&pieces, &expected);
        prop_assert_eq!(packet.to_vec(), &frame[..], "the super-frame is as it was");
        let mut data = Vec::new();
        for piece in &pieces {
            let headers = parse(piece, piece.len()).unwrap();
            prop_assert!(headers.ipv4_checksum_ok(piece));
            prop_assert_eq!(wire::l4::verify(&headers, [&piece[..]]), wire::l4::ChecksumVerdict::Good);
            prop_assert_eq!(headers.tos, parse(&frame, frame.len()).unwrap().tos, "ECN field");
            data.extend_from_slice(headers.payload(piece));
        }
        prop_assert_eq!(&data[..], &frame[header..], "the data, whole and in order");
    }

    /// What is found in a piece is what the parser finds there.
    #[test]
    fn headers_that_are_written_are_those_that_the_parser_finds((frame, _, _, size) in any_super_frame()) {
        let whole = several(&frame, size);
        for (n, piece) in cut(&whole, &HeapBuf::new(&frame)).iter().enumerate() {
            let mut copy = frame[..whole.header_len()].to_vec();
            let written = whole.write_headers(n, &mut copy).unwrap();
            let parsed = parse(piece, piece.len()).unwrap();
            prop_assert_eq!(written, parsed);
        }
    }

    /// Whatever bytes, lengths and sizes: no panic, no piece longer than was announced, none more than the bound.
    #[test]
    fn damage_never_makes_a_piece_too_long_or_too_many(
        (mut frame, _, l4, size) in any_super_frame(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in prop::option::of(any::<prop::sample::Index>()),
        wrong_size in prop::option::of(any::<u16>()),
        (l3_state, l4_state) in (0..5u8, 0..5u8),
    ) {
        let headers = l4 + 20;
        for (at, value) in damage {
            let at = at.index(headers);
            frame[at] = value;
        }
        if let Some(keep) = keep {
            frame.truncate(keep.index(frame.len()) + 1);
        }
        let state = |n| match n {
            0 => ChecksumState::Unknown,
            1 => ChecksumState::Good,
            2 => ChecksumState::Bad,
            _ => ChecksumState::Partial,
        };
        let (l3_checksum, l4_checksum) = (state(l3_state), state(l4_state));
        let facts = RxFacts { gso_size: wrong_size.unwrap_or(size), l3_checksum, l4_checksum, ..RxFacts::default() };
        if let Segmentation::Several(whole) = found(&frame, &facts) {
            prop_assert!((2..=MAX_PIECES).contains(&whole.pieces()));
            let pieces = cut(&whole, &HeapBuf::new(&frame));
            prop_assert_eq!(pieces.len(), whole.pieces());
            for piece in &pieces {
                prop_assert!(piece.len() <= whole.frame_len());
                prop_assert!(whole.frame_len() <= whole.header_len() + usize::from(facts.gso_size));
                let headers = parse(piece, piece.len()).unwrap();
                prop_assert!(headers.ipv4_checksum_ok(piece));
                prop_assert_eq!(wire::l4::verify(&headers, [&piece[..]]), wire::l4::ChecksumVerdict::Good);
            }
        }
    }
}

#[test]
fn every_header_byte_damaged_or_missing_is_cut_right_or_refused() {
    for v6 in [false, true] {
        let frame = path(v6).ip_unfilled(6, &tcp(7, ACK, &[1; 12], &[5; 3000]));
        let header = several(&frame, 1000).header_len();
        for at in 0..header {
            assert_eq!(found(&frame[..at], &facts(1000)), Segmentation::Unsound, "cut at {at}");
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged[at] ^= 1 << bit;
                if let Segmentation::Several(whole) = found(&damaged, &facts(1000)) {
                    for piece in cut(&whole, &HeapBuf::new(&damaged)) {
                        let headers = parse(&piece, piece.len()).unwrap();
                        assert!(headers.ipv4_checksum_ok(&piece), "byte {at} bit {bit}");
                        assert!(piece.len() <= header + 1000 + 40);
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let data = [3; 4000];
    let good = path(false).ip_unfilled(6, &tcp(1, ACK | PSH, &[], &data));
    let is = |frame: &[u8], facts: RxFacts| found(frame, &facts);
    several(&good, 1448);
    for flag in [SYN, RST, URG] {
        let frame = path(false).ip_unfilled(6, &tcp(1, ACK | flag, &[], &data));
        assert_eq!(is(&frame, facts(1448)), Segmentation::Unsound, "flag {flag:#x}");
    }
    // UDP, other protocols, ARP, no IP; fragments of either version, also one around a whole packet.
    assert_eq!(is(&path(true).udp(1, 2, &data), facts(1448)), Segmentation::Unsound);
    assert_eq!(is(&path(true).ip(47, &data), facts(1448)), Segmentation::Unsound);
    assert_eq!(is(&path(true).ethernet(0x88b5, &data), facts(1448)), Segmentation::Unsound);
    let loose = Path { dont_fragment: false, ..path(false) };
    for fragment in loose.fragments(6, &tcp(1, ACK, &[], &data), 7, 2000) {
        assert_eq!(is(&fragment, facts(500)), Segmentation::Unsound);
    }
    let atomic = Path { extensions: vec![(44, vec![0, 0, 0, 0, 0, 1])], ..path(true) };
    assert_eq!(is(&atomic.ip_unfilled(6, &tcp(1, ACK, &[], &data)), facts(1448)), Segmentation::Unsound);
    let routing = Path { extensions: vec![(43, vec![2, 1, 0, 0, 0, 0, 1, 2, 3, 4])], ..path(true) };
    assert_eq!(is(&routing.ip_unfilled(6, &tcp(1, ACK, &[], &data)), facts(1448)), Segmentation::Unsound);
    // Bytes behind the IP packet, and headers longer than a piece may have.
    assert_eq!(is(&[&good[..], &[0]].concat(), facts(1448)), Segmentation::Unsound);
    let long = Path { extensions: vec![(60, vec![0; MAX_HEADERS]); 1], ..path(true) };
    assert_eq!(is(&long.ip_unfilled(6, &tcp(1, ACK, &[], &data)), facts(1448)), Segmentation::Unsound);
    // A first segment that ends within the headers.
    let headers = parse(&good, good.len()).unwrap();
    let short = Segmentation::of(&headers, &good[..40], good.len(), &facts(1448));
    assert_eq!(short, Segmentation::Unsound);
    // A wrong IPv4 checksum is not made right; one that is left to us is.
    let mut wrong = good.clone();
    wrong[24] ^= 1;
    assert_eq!(is(&wrong, facts(1448)), Segmentation::Unsound);
    let ours = RxFacts { l3_checksum: ChecksumState::Partial, ..facts(1448) };
    assert!(matches!(is(&wrong, ours), Segmentation::Several(_)));
    // Nor are data that a device found damaged, or nobody vouches for.
    for l4_checksum in [ChecksumState::Bad, ChecksumState::Unknown] {
        assert_eq!(is(&good, RxFacts { l4_checksum, ..facts(1448) }), Segmentation::Unsound);
    }
    let seen = RxFacts { l4_checksum: ChecksumState::Good, ..facts(1448) };
    assert!(matches!(is(&good, seen), Segmentation::Several(_)));
}

#[test]
fn the_number_of_pieces_is_bounded() {
    let frame = |data: usize| path(false).ip_unfilled(6, &tcp(1, ACK, &[], &vec![1; data]));
    for size in 1..MIN_SEGMENT {
        assert_eq!(found(&frame(60_000), &facts(size)), Segmentation::Unsound);
        assert_eq!(found(&frame(usize::from(size) + 1), &facts(size)), Segmentation::Unsound);
        assert_eq!(found(&frame(usize::from(size)), &facts(size)), Segmentation::One);
    }
    for size in [MIN_SEGMENT, 100, 511] {
        let most = usize::from(size) * MAX_PIECES;
        assert_eq!(several(&frame(most), size).pieces(), MAX_PIECES);
        assert_eq!(found(&frame(most + 1), &facts(size)), Segmentation::Unsound);
    }
    assert_eq!(several(&frame(65_495), 512).pieces(), 128);
    assert_eq!(several(&frame(65_495), 65_494).pieces(), 2);
}

#[test]
fn one_segment_is_an_ordinary_packet() {
    for frame in [
        path(false).tcp(1, 2, SYN, b"x"),
        path(true).tcp(1, 2, ACK, &[1; 1448]),
        path(true).tcp(1, 2, ACK, b""),
        path(false).udp(1, 2, &[1; 1448]),
        [path(false).tcp(1, 2, ACK, b""), vec![0; 6]].concat(),
    ] {
        assert_eq!(found(&frame, &facts(1448)), Segmentation::One);
    }
}

#[test]
fn memory_that_ends_is_none() {
    let frame = path(true).ip_unfilled(6, &tcp(1, ACK, &[], &[9; 1000]));
    let whole = several(&frame, 100);
    let packet = HeapBuf::new(&frame).with_memory(3);
    assert_eq!(
        whole.cut(&packet).map(|piece| piece.is_some()).collect::<Vec<_>>()[..4],
        [true, true, true, false]
    );
}

#[test]
fn a_request_says_where_the_headers_are() {
    for (v6, tags) in [(false, 0), (false, 2), (true, 0), (true, 1)] {
        let mut path = path(v6);
        for tag in 0..tags {
            path = path.tagged(tag);
        }
        let frame = path.ip_unfilled(6, &tcp(1, ACK | ECE, &[1; 12], &[7; 5000]));
        let whole = several(&frame, 1400);
        let mut packet = HeapBuf::new(&frame).with_facts(facts(1400));
        assert!(whole.request(&mut packet, 4));
        let (request, sent) = (packet.tx_request(), packet.to_vec());
        let l3_len = if v6 { 40 } else { 20 };
        assert_eq!(
            (usize::from(request.l2_len), request.l3_len, request.l4_len),
            (18 + 4 * usize::from(tags), l3_len, 32)
        );
        assert_eq!((request.tso_size, request.ipv6, request.ipv4_checksum), (1400, v6, false));
        assert_eq!(request.l4_checksum, Some(wire::packet::L4Checksum::Tcp));
        // The pseudo-header sum in the field; all else as it was.
        let l4 = 14 + 4 * usize::from(tags) + usize::from(l3_len);
        let (l3, len) = (14 + 4 * usize::from(tags), (frame.len() - l4) as u32);
        let addresses = if v6 { &frame[l3 + 8..l3 + 40] } else { &frame[l3 + 12..l3 + 20] };
        assert_eq!(be(&sent, l4 + 16), fold(&[addresses, &len.to_be_bytes(), &[0, 6]]));
        assert_eq!((&sent[..l4 + 16], &sent[l4 + 18..]), (&frame[..l4 + 16], &frame[l4 + 18..]));
        assert!(!packet.is_unfinished());
        let mut shared = HeapBuf::new(&frame).with_facts(facts(1400));
        shared.set_shared(true);
        assert!(!whole.request(&mut shared, 0) && shared.is_unfinished());
    }
}
