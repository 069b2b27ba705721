//! RoCEv2 packets of every opcode, against a table of their own; cut and changed at every byte.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, outside of test functions

mod common;

use common::{v4, v6};
use proptest::prelude::*;
use wire::build::Path;
use wire::parse::parse;
use wire::roce::opcode::{self, Operation, OperationKind, Position, RoceClass, extended_len, read_psns};
use wire::roce::{self, Bth, RoceMalformed, RocePacket};
use wire::{Flags, Headers, Psn, Qpn, View, icrc};

/// Low five bits of the opcode, name, extended headers without those of the transport, transports (RC, UC, RD, UD,
/// XRC), kind (request, response, ack), payload, position. Written down from the standard's table 38 and annexes A14
/// and A19, as Linux's headers assign them, not from the code under test.
const ROWS: &[(u8, &str, &str, &str, char, bool, Position)] = &[
    (0b00000, "send-first", "", "RC UC RD XRC", 'q', true, Position::First),
    (0b00001, "send-middle", "", "RC UC RD XRC", 'q', true, Position::Middle),
    (0b00010, "send-last", "", "RC UC RD XRC", 'q', true, Position::Last),
    (0b00011, "send-last-imm", "ImmDt", "RC UC RD XRC", 'q', true, Position::Last),
    (0b00100, "send-only", "", "RC UC RD UD XRC", 'q', true, Position::Only),
    (0b00101, "send-only-imm", "ImmDt", "RC UC RD UD XRC", 'q', true, Position::Only),
    (0b00110, "write-first", "RETH", "RC UC RD XRC", 'q', true, Position::First),
    (0b00111, "write-middle", "", "RC UC RD XRC", 'q', true, Position::Middle),
    (0b01000, "write-last", "", "RC UC RD XRC", 'q', true, Position::Last),
    (0b01001, "write-last-imm", "ImmDt", "RC UC RD XRC", 'q', true, Position::Last),
    (0b01010, "write-only", "RETH", "RC UC RD XRC", 'q', true, Position::Only),
    (0b01011, "write-only-imm", "RETH ImmDt", "RC UC RD XRC", 'q', true, Position::Only),
    (0b01100, "read-request", "RETH", "RC RD XRC", 'q', false, Position::Only),
    (0b01101, "read-response-first", "AETH", "RC RD XRC", 'p', true, Position::First),
    (0b01110, "read-response-middle", "", "RC RD XRC", 'p', true, Position::Middle),
    (0b01111, "read-response-last", "AETH", "RC RD XRC", 'p', true, Position::Last),
    (0b10000, "read-response-only", "AETH", "RC RD XRC", 'p', true, Position::Only),
    (0b10001, "ack", "AETH", "RC RD XRC", 'a', false, Position::Only),
    (0b10010, "atomic-ack", "AETH AtomicAckETH", "RC RD XRC", 'p', false, Position::Only),
    (0b10011, "compare-swap", "AtomicETH", "RC RD XRC", 'q', false, Position::Only),
    (0b10100, "fetch-add", "AtomicETH", "RC RD XRC", 'q', false, Position::Only),
    (0b10101, "resync", "", "RD", 'q', false, Position::Only),
    (0b10110, "send-last-invalidate", "IETH", "RC XRC", 'q', true, Position::Last),
    (0b10111, "send-only-invalidate", "IETH", "RC XRC", 'q', true, Position::Only),
    (0b11100, "flush", "FETH RETH", "RC RD", 'q', false, Position::Only),
    (0b11101, "atomic-write", "RETH", "RC", 'q', true, Position::Only),
];

const TRANSPORTS: [(&str, u8, RoceClass); 5] = [
    ("RC", 0b000, RoceClass::Rc),
    ("UC", 0b001, RoceClass::Uc),
    ("RD", 0b010, RoceClass::Rd),
    ("UD", 0b011, RoceClass::Ud),
    ("XRC", 0b101, RoceClass::Xrc),
];

struct Row {
    opcode: u8,
    class: RoceClass,
    name: &'static str,
    /// Extended headers in order, those of the transport included.
    headers: Vec<&'static str>,
    kind: OperationKind,
    payload: bool,
    position: Position,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (transport, bits, class) in TRANSPORTS {
        for &(low, name, own, transports, kind, payload, position) in ROWS {
            if !transports.split(' ').any(|word| word == transport) {
                continue;
            }
            let mut headers: Vec<_> = match (transport, kind) {
                ("RD", 'q') => vec!["RDETH", "DETH"],
                ("RD", _) => vec!["RDETH"],
                ("UD", _) => vec!["DETH"],
                ("XRC", 'q') => vec!["XRCETH"],
                _ => vec![],
            };
            headers.extend(own.split_whitespace());
            let kind = match kind {
                'q' => OperationKind::Request,
                'p' => OperationKind::Response,
                _ => OperationKind::Ack,
            };
            rows.push(Row { opcode: bits << 5 | low, class, name, headers, kind, payload, position });
        }
    }
    rows.push(Row {
        opcode: 0x81,
        class: RoceClass::Cnp,
        name: "cnp",
        headers: vec!["reserved"],
        kind: OperationKind::Notification,
        payload: false,
        position: Position::Only,
    });
    rows
}

fn len_of(header: &str) -> usize {
    match header {
        "RDETH" | "AETH" | "ImmDt" | "IETH" | "XRCETH" | "FETH" => 4,
        "DETH" | "AtomicAckETH" => 8,
        "RETH" | "reserved" => 16,
        "AtomicETH" => 28,
        other => panic!("{other}"),
    }
}

/// Bytes of a packet's header of that name, if the packet has it.
fn found<'a>(packet: &RocePacket<'a>, name: &str) -> Option<&'a [u8]> {
    match name {
        "RDETH" => packet.rdeth().map(View::bytes),
        "DETH" => packet.deth().map(View::bytes),
        "XRCETH" => packet.xrceth().map(View::bytes),
        "FETH" => packet.feth().map(View::bytes),
        "RETH" => packet.reth().map(View::bytes),
        "AtomicETH" => packet.atomic().map(View::bytes),
        "AETH" => packet.aeth().map(View::bytes),
        "AtomicAckETH" => packet.atomic_ack().map(View::bytes),
        "ImmDt" => packet.immediate().map(View::bytes),
        "IETH" => packet.ieth().map(View::bytes),
        other => panic!("{other}"),
    }
}

const NAMES: [&str; 10] =
    ["RDETH", "DETH", "XRCETH", "FETH", "RETH", "AtomicETH", "AETH", "AtomicAckETH", "ImmDt", "IETH"];

fn paths() -> Vec<Path> {
    [v4(), v6()]
        .into_iter()
        .flat_map(|path| [path.clone(), path.clone().tagged(5), path.tagged(5).tagged(6)])
        .collect()
}

fn parsed(frame: &[u8]) -> Headers {
    parse(frame, frame.len()).unwrap()
}

/// A UDP payload: BTH, extended headers whose bytes count up, `payload` bytes of 0xda, padding of 0xee, ICRC.
fn udp_payload(opcode: u8, extended: usize, payload: usize) -> Vec<u8> {
    let mut bth = Bth::new(opcode, Qpn::truncated(0x123456), Psn::truncated(0xabcdef));
    let padded = payload.next_multiple_of(4);
    bth.set_pad_count((padded - payload) as u8);
    let mut bytes = bth.bytes().to_vec();
    bytes.extend((0..extended).map(|at| at as u8));
    bytes.resize(bytes.len() + payload, 0xda);
    bytes.resize(bytes.len() + padded - payload, 0xee);
    bytes.extend_from_slice(&[0xcc; 4]);
    bytes
}

#[test]
fn the_table_is_the_standard_s() {
    let rows = rows();
    assert_eq!(rows.len(), 25 + 12 + 23 + 2 + 23 + 1);
    for opcode in 0..=255u8 {
        let Some(row) = rows.iter().find(|row| row.opcode == opcode) else {
            assert_eq!((Operation::of(opcode), extended_len(opcode)), (None, None), "opcode {opcode:02x}");
            continue;
        };
        let operation = Operation::of(opcode).unwrap_or_else(|| panic!("opcode {opcode:02x}"));
        assert_eq!(operation.name(), row.name, "opcode {opcode:02x}");
        assert_eq!(RoceClass::of(opcode, Qpn::truncated(5)), row.class);
        let len = row.headers.iter().map(|name| len_of(name)).sum();
        assert_eq!(extended_len(opcode), Some(len), "opcode {opcode:02x}");
        assert_eq!((operation.kind(), operation.position()), (row.kind, row.position), "opcode {opcode:02x}");
        assert_eq!(operation.carries_payload(), row.payload, "opcode {opcode:02x}");
        assert_eq!(operation.is_request(), row.kind == OperationKind::Request);
        assert_eq!(operation.is_response(), row.kind == OperationKind::Response);
        assert_eq!(operation.is_ack(), row.kind == OperationKind::Ack);
        let full = matches!(row.position, Position::First | Position::Middle);
        assert_eq!(operation.is_full_mtu(), full, "opcode {opcode:02x}");
    }
}

#[test]
fn every_opcode_round_trips() {
    for row in rows() {
        let extended: usize = row.headers.iter().map(|name| len_of(name)).sum();
        for path in paths() {
            for payload in if row.payload { 0..9 } else { 0..1 } {
                let body: Vec<u8> = (0..extended + payload).map(|at| at as u8).collect();
                let (qpn, psn) = (Qpn::truncated(0xfedcba), Psn::truncated(0x010203));
                let mut frame = path.roce(0xc123, Bth::new(row.opcode, qpn, psn), &body);
                frame.extend_from_slice(&[0; 7]);
                let h = parsed(&frame);
                assert_eq!(icrc::verify(&h, [&frame[..]]), Some(true));
                let packet = RocePacket::of(&h, &frame).unwrap().unwrap();
                assert_eq!((packet.bth.dest_qp(), packet.bth.psn()), (qpn, psn));
                assert_eq!(packet.class(), row.class);
                assert_eq!(packet.operation, Operation::of(row.opcode));
                assert_eq!(packet.payload_len(), payload, "opcode {:02x}", row.opcode);
                assert_eq!(packet.payload(), &body[extended..]);
                let mut at = 0;
                for name in &row.headers {
                    let bytes = &body[at..at + len_of(name)];
                    at += len_of(name);
                    if *name != "reserved" {
                        assert_eq!(found(&packet, name), Some(bytes), "opcode {:02x}", row.opcode);
                    }
                }
                for name in NAMES.iter().filter(|name| !row.headers.contains(name)) {
                    assert_eq!(found(&packet, name), None, "opcode {:02x} has no {name}", row.opcode);
                }
            }
        }
    }
}

#[test]
fn cut_at_every_byte() {
    for row in rows() {
        let extended: usize = row.headers.iter().map(|name| len_of(name)).sum();
        let bytes = udp_payload(row.opcode, extended, 5);
        // The datagram itself is shorter.
        for len in 0..=bytes.len() {
            let expected = match len {
                0..16 => Err(RoceMalformed::BthTruncated),
                _ if len < 16 + extended => Err(RoceMalformed::ExtendedTruncated),
                _ if len < 16 + extended + 3 => Err(RoceMalformed::PadCount),
                _ => Ok(len - 16 - extended - 3),
            };
            for at_hand in [&bytes[..len], &bytes[..]] {
                let packet = RocePacket::parse(at_hand, len);
                assert_eq!(packet.map(|packet| packet.payload_len()), expected, "{:02x} {len}", row.opcode);
            }
        }
        // The datagram goes on in another segment.
        for at_hand in 0..=bytes.len() {
            let packet = RocePacket::parse(&bytes[..at_hand], bytes.len());
            if at_hand < 12 + extended {
                assert_eq!(packet.err(), Some(RoceMalformed::HeaderSplit));
                continue;
            }
            let packet = packet.unwrap();
            assert_eq!(packet.payload_len(), 5);
            assert_eq!(packet.payload().len(), (at_hand - 12 - extended).min(5));
            assert!(packet.payload().iter().all(|byte| *byte == 0xda));
        }
    }
}

#[test]
fn changed_at_every_byte() {
    for row in rows() {
        let extended: usize = row.headers.iter().map(|name| len_of(name)).sum();
        for path in [v4(), v6().tagged(5)] {
            let body: Vec<u8> = (0..extended + 3).map(|at| at as u8).collect();
            let bth = Bth::new(row.opcode, Qpn::truncated(9), Psn::truncated(7));
            let frame = path.roce(0xc123, bth, &body);
            for at in 0..frame.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff, frame[at].wrapping_add(1), frame[at] ^ 0x10] {
                    let mut changed = frame.clone();
                    changed[at] = value;
                    let Ok(h) = parse(&changed, changed.len()) else { continue };
                    let Some(Ok(packet)) = RocePacket::of(&h, &changed) else { continue };
                    check_inside(&packet, &h, &changed);
                }
            }
        }
    }
}

/// What was read lies in the UDP payload, in order and without overlap, and adds up.
fn check_inside(packet: &RocePacket, h: &Headers, frame: &[u8]) {
    let (bytes, len) = roce::udp_payload(h, frame).unwrap();
    assert!(bytes.len() <= len);
    let operation = Operation::of(bytes[0]);
    assert_eq!(packet.operation, operation);
    let headers: usize = NAMES.iter().filter_map(|name| found(packet, name)).map(<[u8]>::len).sum();
    let reserved = if bytes[0] == opcode::CNP { 16 } else { 0 };
    let pad = usize::from(packet.bth.pad_count());
    assert_eq!(12 + headers + reserved + packet.payload_len() + pad + 4, len);
    assert_eq!(headers + reserved, extended_len(bytes[0]).unwrap_or(0));
    let start = 12 + headers + reserved;
    assert_eq!(packet.payload(), &bytes[start..(start + packet.payload_len()).min(bytes.len())]);
    assert!(operation.is_some() || packet.psns(1024) == 0);
}

#[test]
fn reserved_bits_versions_and_small_queue_pairs() {
    let plain = udp_payload(opcode::RC_SEND_ONLY, 0, 8);
    let changed = |at: usize, value: u8| {
        let mut bytes = plain.clone();
        bytes[at] = value;
        RocePacket::parse(&bytes, bytes.len())
            .map(|packet| (packet.bth.dest_qp().get(), packet.bth.psn().get()))
    };
    for version in 1..16 {
        assert_eq!(changed(1, version), Err(RoceMalformed::BthVersion));
    }
    // SE, MigReq, P_Key, FECN, BECN and all reserved bits say nothing about form.
    for (at, value) in [(1, 0xc0), (2, 0), (3, 0), (4, 0xff), (8, 0xff), (8, 0x7f)] {
        assert_eq!(changed(at, value), Ok((0x123456, 0xabcdef)), "byte {at}");
    }
    for pad in 0..4 {
        let mut bytes = plain.clone();
        bytes[1] = pad << 4;
        let packet = RocePacket::parse(&bytes, bytes.len()).unwrap();
        assert_eq!(packet.payload_len(), 8 - usize::from(pad));
    }
    for qpn in [0, 1, 0xff_ffff] {
        let bth = Bth::new(opcode::UD_SEND_ONLY, Qpn::truncated(qpn), Psn::truncated(0));
        let frame = v4().roce(1, bth, &[0; 8]);
        let packet = RocePacket::of(&parsed(&frame), &frame).unwrap().unwrap();
        assert_eq!(packet.class(), if qpn == 1 { RoceClass::Cm } else { RoceClass::Ud });
        let rc = v4().roce(1, Bth { opcode: opcode::RC_SEND_ONLY, ..bth }, &[0; 8]);
        assert_eq!(RocePacket::of(&parsed(&rc), &rc).unwrap().unwrap().class(), RoceClass::Rc);
    }
}

#[test]
fn unassigned_opcodes_have_a_bth_and_nothing_else() {
    for opcode in (0..=255).filter(|opcode| Operation::of(*opcode).is_none()) {
        let bytes = udp_payload(opcode, 0, 5);
        let packet = RocePacket::parse(&bytes, bytes.len()).unwrap();
        assert_eq!((packet.operation, packet.payload_len(), packet.psns(256)), (None, 5, 0));
        assert!(NAMES.iter().all(|name| found(&packet, name).is_none()));
    }
}

#[test]
fn psns_of_requests() {
    for (len, mtu, psns) in [
        (0, 1024, 1),
        (1, 1024, 1),
        (1024, 1024, 1),
        (1025, 1024, 2),
        (1 << 31, 256, 1 << 23),
        (u32::MAX, 256, 1 << 24),
        (u32::MAX, 0, 1 << 24),
        (5000, 4096, 2),
    ] {
        assert_eq!(read_psns(len, mtu), psns, "{len} bytes, MTU {mtu}");
        for opcode in [0x0c, 0x4c, 0xac] {
            let mut bytes = udp_payload(opcode, extended_len(opcode).unwrap(), 0);
            let end = bytes.len() - 4;
            bytes[end - 4..end].copy_from_slice(&len.to_be_bytes());
            assert_eq!(
                RocePacket::parse(&bytes, bytes.len()).unwrap().psns(mtu),
                psns,
                "opcode {opcode:02x}"
            );
        }
    }
    for row in rows().into_iter().filter(|row| row.name != "read-request") {
        let bytes = udp_payload(row.opcode, extended_len(row.opcode).unwrap(), 0);
        let expected = u32::from(row.kind == OperationKind::Request);
        assert_eq!(RocePacket::parse(&bytes, bytes.len()).unwrap().psns(256), expected, "{:02x}", row.opcode);
    }
}

#[test]
fn only_whole_udp_datagrams_are_read() {
    let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(9), Psn::truncated(7));
    let body = udp_payload(opcode::RC_SEND_ONLY, 0, 100);
    for path in [v4(), v6()] {
        let tcp = path.tcp(1, 4791, 0, &body);
        assert!(RocePacket::of(&parsed(&tcp), &tcp).is_none());
        for piece in path.fragments(wire::protocol::UDP, &wire::build::udp_datagram(1, 4791, &body), 3, 104) {
            let h = parsed(&piece);
            assert!(h.is(Flags::FRAGMENT) && RocePacket::of(&h, &piece).is_none());
        }
        let frame = path.roce(1, bth, b"payload");
        let h = parsed(&frame);
        for cut in 0..frame.len() {
            // The first segment ends here.
            match RocePacket::of(&h, &frame[..cut]) {
                Some(Ok(packet)) => {
                    assert!(cut >= h.payload_offset() + 12);
                    assert_eq!(packet.payload_len(), 7);
                }
                Some(Err(malformed)) => assert_eq!(malformed, RoceMalformed::HeaderSplit),
                None => assert!(cut < h.payload_offset()),
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..120), cut in 0usize..120) {
        let frame = v4().udp(1, 4791, &bytes);
        let h = parsed(&frame);
        if let Some(Ok(packet)) = RocePacket::of(&h, &frame) {
            check_inside(&packet, &h, &frame);
        }
        let _ = RocePacket::parse(&bytes[..cut.min(bytes.len())], bytes.len());
    }
}
