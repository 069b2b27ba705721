//! The parser against its slow twin: on every frame of the corpus whole, cut at every byte, with every byte
//! changed to every value, and on random bytes.

mod common;
#[path = "common/twin.rs"]
mod twin;

use common::{v4, v6};
use proptest::prelude::*;
use std::collections::HashSet;
use wire::build::{Pair, Path, udp_datagram};
use wire::parse::{parse, parse_ip};
use wire::{Flags, L3, Malformed, View, ipv6, protocol};

fn agree(head: &[u8], frame_len: usize) -> Result<wire::Headers, Malformed> {
    let got = parse(head, frame_len);
    assert_eq!(got, twin::parse(head, frame_len), "frame length {frame_len}, head {head:02x?}");
    if let Ok(headers) = got {
        assert!(usize::from(headers.l4_offset) <= head.len() && headers.l3_end() <= frame_len);
        if headers.is(Flags::L4) {
            assert!(headers.payload_offset() <= head.len().min(headers.l3_end()));
        }
    }
    got
}

#[test]
fn whole_frames() {
    let frames = common::corpus();
    let good = frames.iter().filter(|frame| agree(frame, frame.len()).is_ok()).count();
    // Bad by intent: two chains in the wrong order, one too long, and three tags.
    assert!(good > frames.len() * 3 / 4, "{good} of {} frames parse", frames.len());
}

#[test]
fn every_truncation() {
    let mut seen = HashSet::new();
    for frame in common::corpus() {
        for cut in 0..=frame.len() {
            // The frame ends there; and the first segment ends there while the frame goes on.
            seen.extend(agree(&frame[..cut], cut).err());
            seen.extend(agree(&frame[..cut], frame.len()).err());
        }
        seen.extend(agree(&frame, frame.len() + 100).err());
        seen.extend(agree(&frame, 100_000).err());
    }
    for truncated in Malformed::ALL.iter().filter(|malformed| malformed.name().ends_with("truncated")) {
        assert!(seen.contains(truncated), "{truncated} was never met");
    }
}

#[test]
fn every_byte_changed() {
    let mut seen = HashSet::new();
    for frame in common::corpus() {
        let mut changed = frame.clone();
        for at in 0..frame.len().min(150) {
            for value in 0..=255 {
                changed[at] = value;
                seen.extend(agree(&changed, changed.len()).err());
            }
            changed[at] = frame[at];
        }
    }
    for malformed in Malformed::ALL {
        // Truncations are met above, the checksum is the caller's.
        let expected = !malformed.name().ends_with("truncated") && malformed != Malformed::Ipv4Checksum;
        assert!(!expected || seen.contains(&malformed), "{malformed} was never met");
    }
}

#[test]
fn offset_parsing_is_the_same_packet_further_on() {
    for frame in common::corpus() {
        let Ok(headers) = parse(&frame, frame.len()) else { continue };
        let at = headers.l3_offset;
        let further = parse_ip(&frame, at, frame.len(), headers.ethertype).unwrap();
        let expected = wire::Headers { vlan_count: 0, vlan_tci: [0; 2], ..headers };
        assert_eq!(further, expected);
        let alone = parse_ip(&frame[usize::from(at)..], 0, frame.len() - usize::from(at), headers.ethertype);
        assert_eq!(alone.unwrap().sport, headers.sport);
        assert!(parse_ip(&frame, 255, frame.len(), headers.ethertype).is_err() || headers.l3 == L3::None);
    }
}

#[test]
fn accessors_answer_for_their_protocol_only() {
    for frame in common::corpus() {
        let Ok(h) = parse(&frame, frame.len()) else { continue };
        assert_eq!(h.ipv4(&frame).is_some(), h.l3 == L3::Ipv4);
        assert_eq!(h.ipv6(&frame).is_some(), h.l3 == L3::Ipv6);
        assert_eq!(h.arp(&frame).is_some(), h.l3 == L3::Arp);
        assert_eq!(h.tcp(&frame).is_some(), h.is_tcp());
        assert_eq!(h.udp(&frame).is_some(), h.is_udp());
        assert_eq!(h.tcp(&frame).map(|tcp| tcp.flags), h.is_tcp().then_some(h.tcp_flags));
        assert_eq!(h.ip_header(&frame).is_empty(), !h.is_ip());
        assert!(h.ipv4_checksum_ok(&frame));
        if h.is(Flags::L4) {
            let headers_len = h.ip_header(&frame).len() + usize::from(h.l4_len);
            assert_eq!(h.payload(&frame).len(), usize::from(h.l3_len) - headers_len);
        }
    }
}

/// The last fragment of a packet, `len` bytes at `offset`.
fn last_fragment(path: &Path, offset: u16, len: usize) -> Vec<u8> {
    match path.ip {
        Pair::V4(..) => {
            let mut frame = path.ip_unfilled(protocol::UDP, &vec![0; len]);
            frame[20..22].copy_from_slice(&(offset / 8).to_be_bytes());
            frame
        }
        Pair::V6(..) => {
            let fragment = ipv6::Fragment::new(protocol::UDP, offset, false, 1);
            let mut path = path.clone();
            path.extensions.push((protocol::FRAGMENT, fragment.bytes()[2..].to_vec()));
            path.ip_unfilled(protocol::UDP, &vec![0; len])
        }
    }
}

#[test]
fn fragments_reach_to_the_last_byte_and_no_further() {
    let options = (protocol::DESTINATION_OPTIONS, vec![1, 4, 0, 0, 0, 0]);
    // Of the 65535 bytes: IPv4's total length counts the header, IPv6's payload length the extensions only.
    let paths = [(v4(), 65535 - 20), (v6(), 65535), (Path { extensions: vec![options], ..v6() }, 65535 - 8)];
    for (path, most) in paths {
        for offset in [65000u16, 65400, 65504] {
            let fits = most - usize::from(offset);
            let frame = last_fragment(&path, offset, fits);
            assert!(
                agree(&frame, frame.len()).is_ok_and(|h| h.is(Flags::FRAGMENT_LATER)),
                "{path:?} {offset}"
            );
            let frame = last_fragment(&path, offset, fits + 1);
            assert_eq!(agree(&frame, frame.len()), Err(Malformed::FragmentOverlong), "{path:?} {offset}");
        }
    }
}

#[test]
fn fragments_are_no_tunnel_packets() {
    let datagram = udp_datagram(1, 4789, &[0; 64]);
    let first = &v4().fragments(protocol::UDP, &datagram, 5, 60)[0];
    let h = agree(first, first.len()).unwrap();
    assert!(h.is_udp() && h.dport == 4789 && !h.is_udp_to(4789));
    let whole = v4().ip(protocol::UDP, &datagram);
    let h = agree(&whole, whole.len()).unwrap();
    assert!(h.is_udp_to(4789) && !h.is_udp_to(4791));
}

/// Frames whose bytes are random where it matters and right where nothing else would get past.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(vec![0x08, 0x00, 0x45]),
        Just(vec![0x08, 0x00, 0x48]),
        Just(vec![0x86, 0xdd, 0x60]),
        Just(vec![0x81, 0x00, 0x00, 0x07, 0x08, 0x00, 0x45]),
        Just(vec![0x88, 0xa8, 0, 1, 0x81, 0x00, 0x00, 0x07, 0x86, 0xdd, 0x6f]),
        prop::collection::vec(any::<u8>(), 2..12),
    ];
    let small = prop_oneof![3 => Just(0u8), 1 => 1u8..20, 1 => any::<u8>(), 1 => Just(44u8), 1 => Just(60u8)];
    (start, prop::collection::vec(small, 0..150))
        .prop_map(|(start, rest)| [vec![2; 12], start, rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn random_frames(frame in frame(), more in 0usize..4) {
        let _ = agree(&frame, frame.len() + more * 30);
    }

    #[test]
    fn random_bytes(frame in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = agree(&frame, frame.len());
    }
}
