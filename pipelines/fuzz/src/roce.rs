//! A whole frame: what the parser found is inside of it, RoCEv2 headers follow one another without a gap, and
//! neither they nor the ICRC depend on how the frame is cut into segments. And, since few inputs are whole frames,
//! the same of the input as the UDP payload of one.

use wire::build::Path;
use wire::parse::parse;
use wire::roce::{self, Operation, RoceClass, RoceMalformed, RocePacket, opcode};
use wire::{Flags, Headers, MacAddr, View, cm, icrc, l4};

/// The input is a frame; and the UDP payload of another, over the path that its first byte chooses.
pub fn run(data: &[u8]) {
    frame(data);
    let Some(choice) = data.first() else { return };
    let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let v6 = |last| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    let path = match choice & 1 {
        0 => Path::v4((a, [10, 0, 0, 1].into()), (b, [10, 0, 0, 2].into())),
        _ => Path::v6((a, v6(1)), (b, v6(2))),
    };
    let path = if choice & 2 == 0 { path } else { path.tagged(5) };
    frame(&path.udp(0xc000, 4791, data));
}

fn frame(frame: &[u8]) {
    let Ok(h) = parse(frame, frame.len()) else { return };
    assert!(h.l3_end() <= frame.len());
    assert!(h.payload(frame).len() <= frame.len());
    checksums(&h, frame);
    let Some((bytes, len)) = roce::udp_payload(&h, frame) else {
        assert!(RocePacket::of(&h, frame).is_none() && cm::Cm::of(&h, frame).is_err());
        return;
    };
    assert!(h.is_udp() && !h.flags.intersects(Flags::FRAGMENT));
    assert_eq!(bytes.len(), len, "the whole frame is at hand");
    let parsed = RocePacket::parse(bytes, len);
    match &parsed {
        Ok(packet) => read(packet, bytes),
        Err(malformed) => {
            assert_ne!(*malformed, RoceMalformed::HeaderSplit);
            assert!(len < 16 || *malformed != RoceMalformed::BthTruncated);
        }
    }
    if cm::Cm::of(&h, frame).is_ok() {
        let packet = parsed.as_ref().expect("a connection manager's message is a RoCEv2 packet");
        assert_eq!((packet.class(), packet.payload_len()), (RoceClass::Cm, opcode::MAD_LEN));
    }
    let icrc = icrc::verify(&h, [frame]);
    assert_eq!(icrc.is_some(), len >= roce::BTH_LEN + roce::ICRC_LEN);
    filled(&h, frame);
    for cut in [h.payload_offset(), h.payload_offset() + 12, h.payload_offset() + len / 2, frame.len()] {
        let (head, tail) = frame.split_at(cut.min(frame.len()));
        if head.len() >= h.payload_offset() + roce::BTH_LEN {
            assert_eq!(icrc::verify(&h, [head, tail]), icrc);
        }
        match (RocePacket::of(&h, head), &parsed) {
            (Some(Ok(part)), Ok(whole)) => {
                assert_eq!((part.operation, part.payload_len()), (whole.operation, whole.payload_len()));
                assert!(whole.payload().starts_with(part.payload()));
            }
            (Some(Err(split)), Ok(_)) => assert_eq!(split, RoceMalformed::HeaderSplit),
            (Some(Ok(_)), Err(malformed)) => panic!("half of it was read, the whole is {malformed}"),
            (Some(Err(_)), Err(_)) => {}
            (None, _) => panic!("no UDP in the first segment"),
        }
    }
}

/// Headers and payload cover the UDP payload exactly.
fn read(packet: &RocePacket, bytes: &[u8]) {
    let operation = Operation::of(bytes[0]);
    assert_eq!(packet.operation, operation);
    let len = |header: Option<&[u8]>| header.map_or(0, <[u8]>::len);
    let headers = len(packet.rdeth().map(View::bytes))
        + len(packet.deth().map(View::bytes))
        + len(packet.xrceth().map(View::bytes))
        + len(packet.feth().map(View::bytes))
        + len(packet.reth().map(View::bytes))
        + len(packet.atomic().map(View::bytes))
        + len(packet.aeth().map(View::bytes))
        + len(packet.atomic_ack().map(View::bytes))
        + len(packet.immediate().map(View::bytes))
        + len(packet.ieth().map(View::bytes))
        + if operation == Some(Operation::Cnp) { 16 } else { 0 };
    assert_eq!(headers, opcode::extended_len(bytes[0]).unwrap_or(0));
    let pad = usize::from(packet.bth.pad_count());
    assert_eq!(roce::BTH_LEN + headers + packet.payload_len() + pad + roce::ICRC_LEN, bytes.len());
    assert_eq!(packet.payload().len(), packet.payload_len());
    let psns = packet.psns(1024);
    assert_eq!(psns == 0, !operation.is_some_and(Operation::is_request));
    assert!(psns <= 1 || operation == Some(Operation::ReadRequest));
    if let Some(legal) = opcode::control_len(bytes[0], packet.bth.dest_qp()) {
        assert_eq!(
            legal == bytes.len() && pad == 0,
            match packet.class() {
                RoceClass::Cm => packet.payload_len() == opcode::MAD_LEN && pad == 0,
                _ => packet.payload_len() == 0 && pad == 0,
            }
        );
    }
}

/// A filled ICRC is right, and nothing else changed.
fn filled(h: &Headers, frame: &[u8]) {
    let mut copy = frame.to_vec();
    let Some(at) = icrc::offset(h, frame) else {
        assert!(!icrc::fill(h, &mut copy));
        return;
    };
    assert!(icrc::fill(h, &mut copy));
    assert_eq!(icrc::verify(h, [&copy[..]]), Some(true));
    copy[at..at + roce::ICRC_LEN].copy_from_slice(&frame[at..at + roce::ICRC_LEN]);
    assert_eq!(copy, frame);
}

fn checksums(h: &Headers, frame: &[u8]) {
    let _ = h.ipv4_checksum_ok(frame);
    let mut copy = frame.to_vec();
    if l4::fill(h, &mut copy) {
        assert_eq!(l4::verify(h, [&copy[..]]), l4::ChecksumVerdict::Good);
    }
}
