//! What soft-RoCE itself sent, against the parser and the ICRC: every capture of `rxe/`, every packet of it.
//!
//! Those files come from the Linux kernel's rdma_rxe (see `rxe/README.md`), so nothing of this project had a hand in them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests throughout")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use wire::cm::{Cm, CmMessage};
use wire::parse::parse;
use wire::roce::{QP_GSI, RoceClass, RocePacket};
use wire::{Headers, L3, icrc};

/// The frames of a little-endian pcap file of Ethernet.
fn frames(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1), "{}: a pcap file of Ethernet", path.display());
    let (mut frames, mut at) = (Vec::new(), 24);
    while at < bytes.len() {
        let (kept, sent) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(kept, sent, "{}: whole packets", path.display());
        frames.push(bytes[at + 16..at + 16 + kept].to_vec());
        at += 16 + kept;
    }
    frames
}

/// Name and frames of every file.
fn captures() -> BTreeMap<String, Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rxe");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pcaps = files.filter(|path| path.extension().is_some_and(|e| e == "pcap"));
    pcaps.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), frames(&path))).collect()
}

fn read(name: &str, frame: &[u8]) -> Headers {
    let h = parse(frame, frame.len()).unwrap_or_else(|malformed| panic!("{name}: {malformed}"));
    assert!(h.is_udp_to(4791), "{name}: to the RoCEv2 port");
    h
}

/// What a packet is in the words of the parser: "rc write-first", "cm req".
fn kind(name: &str, h: &Headers, frame: &[u8]) -> String {
    let packet = RocePacket::of(h, frame).unwrap().unwrap_or_else(|malformed| panic!("{name}: {malformed}"));
    if packet.class() == RoceClass::Cm {
        assert_eq!(packet.bth.dest_qp(), QP_GSI, "{name}");
        let cm = Cm::of(h, frame).unwrap_or_else(|malformed| panic!("{name}: {malformed}"));
        return format!("cm {}", cm.message.name());
    }
    let operation = packet.operation.unwrap_or_else(|| panic!("{name}: opcode {:#x}", packet.bth.opcode));
    format!("{} {}", packet.class(), operation.name())
}

/// What each capture must hold, by the end of its name.
const KINDS: [(&str, &[&str]); 9] = [
    ("rc-send", &["rc send-first", "rc send-middle", "rc send-last", "rc send-only", "rc ack"]),
    ("rc-write", &["rc write-first", "rc write-middle", "rc write-last", "rc write-only"]),
    (
        "rc-read",
        &[
            "rc read-request",
            "rc read-response-first",
            "rc read-response-middle",
            "rc read-response-last",
            "rc read-response-only",
        ],
    ),
    ("rc-atomic", &["rc fetch-add", "rc compare-swap", "rc atomic-ack"]),
    ("uc-send", &["uc send-first", "uc send-middle", "uc send-last", "uc send-only"]),
    ("ud-send", &["ud send-only"]),
    ("cm-connect", &["cm req", "cm rep", "cm rtu", "cm dreq", "cm drep"]),
    ("cm-resolve", &["cm sidr-req", "cm sidr-rep"]),
    ("cm-reject", &["cm req", "cm rej"]),
];

#[test]
fn every_packet_is_what_its_capture_says() {
    let captures = captures();
    assert!(captures.len() >= 4 * 8, "{} captures", captures.len());
    for (name, frames) in &captures {
        let (_, wanted) = KINDS.iter().find(|(end, _)| name.ends_with(end)).unwrap();
        let seen: Vec<String> = frames.iter().map(|f| kind(name, &read(name, f), f)).collect();
        for kind in *wanted {
            assert!(seen.iter().any(|s| s == kind), "{name} has no {kind}: {seen:?}");
        }
        for kind in &seen {
            assert!(wanted.contains(&kind.as_str()), "{name} has {kind}");
        }
        for frame in frames {
            let h = read(name, frame);
            assert_eq!(h.l3 == L3::Ipv6, name.contains("v6"), "{name}");
            assert_eq!(h.l3_offset == 18, name.starts_with("vlan-"), "{name}: a tag of four bytes");
        }
    }
}

#[test]
fn every_icrc_is_right_and_covers_what_it_should() {
    let mut packets = 0;
    for (name, frames) in captures() {
        for frame in frames {
            let h = read(&name, &frame);
            assert_eq!(icrc::verify(&h, [&frame[..]]), Some(true), "{name}");
            let mut again = frame.clone();
            let end = icrc::offset(&h, &frame).unwrap();
            again[end..end + 4].fill(0);
            assert!(icrc::fill(&h, &mut again) && again == frame, "{name}: computed anew");
            // Every byte from the BTH to the padding is covered, but for the one with FECN and BECN.
            let bth = usize::from(h.l4_offset) + 8;
            for at in (bth..end).filter(|at| *at != bth + 4) {
                let mut flipped = frame.clone();
                flipped[at] ^= 1;
                assert_eq!(icrc::verify(&h, [&flipped[..]]), Some(false), "{name}: byte {at}");
            }
            packets += 1;
        }
    }
    assert!(packets >= 100, "{packets} packets");
}

#[test]
fn a_write_bears_ect_and_dscp_which_the_icrc_leaves_out() {
    for (name, frames) in captures().into_iter().filter(|(name, _)| name.ends_with("rc-write")) {
        for frame in frames {
            let h = read(&name, &frame);
            // The traffic class 106 that perftest was told: DSCP 26, ECT(0).
            let l3 = usize::from(h.l3_offset);
            let class = if h.l3 == L3::Ipv6 { frame[l3] << 4 | frame[l3 + 1] >> 4 } else { frame[l3 + 1] };
            assert_eq!(class, 106, "{name}");
            let mut marked = frame.clone();
            marked[l3 + 1] |= if h.l3 == L3::Ipv6 { 0x30 } else { 0x03 };
            assert_eq!(icrc::verify(&h, [&marked[..]]), Some(true), "{name}: with CE");
        }
    }
}

#[test]
fn connection_managers_name_the_queue_pairs_they_set_up() {
    for (name, frames) in captures().into_iter().filter(|(name, _)| name.ends_with("cm-connect")) {
        let messages: Vec<CmMessage> =
            frames.iter().map(|f| Cm::of(&read(&name, f), f).unwrap().message).collect();
        let message = |wanted: &str| messages.iter().find(|m| m.name() == wanted).unwrap();
        let (CmMessage::Req(req), CmMessage::Rep { local_qpn, .. }) = (message("req"), message("rep")) else {
            panic!("{name}: {messages:?}")
        };
        assert!(req.transport.is_reliable_connection(), "{name}");
        assert!(req.local_qpn.get() > 1 && local_qpn.get() > 1, "{name}");
        // The disconnect names the queue pair of the side that it goes to.
        let CmMessage::Dreq { remote_qpn, .. } = message("dreq") else { panic!("{name}: {messages:?}") };
        assert!(*remote_qpn == req.local_qpn || remote_qpn == local_qpn, "{name}");
        // GIDs are the addresses that the packets bear.
        let h = read(&name, &frames[0]);
        assert_eq!(req.local_gid.ip().is_ipv6(), h.l3 == L3::Ipv6, "{name}");
    }
}
