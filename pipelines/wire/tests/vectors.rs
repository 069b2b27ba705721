//! Checksums and the ICRC against frames that another implementation composed (see `vectors/make.py`), over
//! segments, and against every single-bit error.

mod common;

use wire::l4::{self, ChecksumVerdict};
use wire::parse::parse;
use wire::{Flags, HeapBuf, L3, PacketBuf, icrc, protocol};

#[test]
fn l4_checksums_are_right_and_recomputed() {
    let (mut good, mut zero) = (0, 0);
    for (name, frame) in common::vectors() {
        let h = parse(&frame, frame.len()).unwrap_or_else(|malformed| panic!("{name}: {malformed}"));
        assert!(h.ipv4_checksum_ok(&frame), "{name}");
        let verdict = l4::verify(&h, [&frame[..]]);
        if name.starts_with("fragment") || h.proto == protocol::SCTP {
            assert_eq!(verdict, ChecksumVerdict::None, "{name}");
            let mut same = frame.clone();
            assert!(!l4::fill(&h, &mut same) && same == frame, "{name}");
            continue;
        }
        if verdict == ChecksumVerdict::Zero {
            zero += 1;
            continue;
        }
        assert_eq!(verdict, ChecksumVerdict::Good, "{name}");
        good += 1;
        for junk in [0, 0xffff, 0x1234] {
            let mut filled = frame.clone();
            assert!(l4::write(&h, &mut filled, junk) && l4::fill(&h, &mut filled), "{name}");
            assert_eq!(filled, frame, "{name}");
        }
    }
    assert_eq!((good, zero), (14, 4));
}

#[test]
fn a_computed_zero_is_sent_as_ones() {
    let frame = common::vector("udp4-zero");
    let h = parse(&frame, frame.len()).unwrap();
    assert_eq!(h.udp(&frame).unwrap().checksum.get(), 0xffff);
    assert_eq!(l4::compute(&h, [&frame[..]]), Some(0xffff));
}

#[test]
fn an_icmp_message_of_zeros_sums_to_ones() {
    for data in 8..20 {
        let frame = common::v4().ip(protocol::ICMP, &vec![0; data]);
        let h = parse(&frame, frame.len()).unwrap();
        assert_eq!(l4::compute(&h, [&frame[..]]), Some(0xffff), "{data} bytes");
        assert_eq!(l4::verify(&h, [&frame[..]]), ChecksumVerdict::Good, "{data} bytes");
    }
}

#[test]
fn udp_is_as_long_as_it_says() {
    for path in [common::v4(), common::v6()] {
        let plain = path.udp(1, 2, b"datagram");
        let surplus = [&wire::build::udp_datagram(1, 2, b"datagram"), &b"surplus"[..]].concat();
        let frame = path.ip(protocol::UDP, &surplus);
        let h = parse(&frame, frame.len()).unwrap();
        let checksum = |frame: &[u8]| h.udp(frame).unwrap().checksum.get();
        assert_eq!(checksum(&frame), checksum(&plain), "the surplus is not summed, nor in the pseudo header");
        assert_eq!(l4::verify(&h, [&frame[..]]), ChecksumVerdict::Good);
    }
}

#[test]
fn single_bit_errors_are_seen() {
    for (name, frame) in common::vectors() {
        let h = parse(&frame, frame.len()).unwrap();
        if l4::verify(&h, [&frame[..]]) != ChecksumVerdict::Good {
            continue;
        }
        for bit in usize::from(h.l4_offset) * 8..h.l3_end() * 8 {
            let mut wrong = frame.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let Ok(h) = parse(&wrong, wrong.len()) else { continue };
            assert_ne!(l4::verify(&h, [&wrong[..]]), ChecksumVerdict::Good, "{name} bit {bit}");
        }
    }
}

#[test]
fn segments_sum_to_the_same() {
    for (name, frame) in common::vectors() {
        let h = parse(&frame, frame.len()).unwrap();
        let (whole, crc) = (l4::compute(&h, [&frame[..]]), icrc::compute(&h, [&frame[..]]));
        let headers_end = if h.is(Flags::L4) { h.payload_offset() } else { usize::from(h.l4_offset) };
        for first in headers_end..=frame.len() {
            let (head, rest) = frame.split_at(first);
            let middle = rest.split_at(rest.len() / 3);
            let segments = [head, middle.0, &[], middle.1];
            assert_eq!(l4::compute(&h, segments), whole, "{name} cut at {first}");
            assert_eq!(l4::verify(&h, segments), l4::verify(&h, [&frame[..]]), "{name} cut at {first}");
            if first >= headers_end + 12 {
                assert_eq!(icrc::compute(&h, segments), crc, "{name} cut at {first}");
                assert_eq!(
                    icrc::verify(&h, segments),
                    icrc::verify(&h, [&frame[..]]),
                    "{name} cut at {first}"
                );
            }
            if first < h.l3_end() && whole.is_some() {
                assert_eq!(l4::verify(&h, [head]), ChecksumVerdict::Bad, "{name} ends at {first}");
            }
            let mut packet = HeapBuf::segmented(head, &[middle.0, middle.1]);
            if l4::write(&h, packet.head_mut(), 0x5555) {
                assert!(l4::fill_packet(&h, &mut packet));
                assert_eq!(l4::compute(&h, packet.segments()), whole);
                assert_eq!(l4::verify(&h, packet.segments()), ChecksumVerdict::Good);
            }
        }
    }
}

#[test]
fn icrc_is_right_and_refilled() {
    let mut count = 0;
    for (name, frame) in common::vectors().into_iter().filter(|(name, _)| name.starts_with("roce")) {
        let h = parse(&frame, frame.len()).unwrap();
        assert_eq!(icrc::verify(&h, [&frame[..]]), Some(true), "{name}");
        let mut filled = frame.clone();
        let at = icrc::offset(&h, &frame).unwrap();
        assert_eq!(at + 4, frame.len(), "{name}");
        filled[at..].fill(0xa5);
        assert_eq!(icrc::verify(&h, [&filled[..]]), Some(false), "{name}");
        assert!(icrc::fill(&h, &mut filled));
        assert_eq!(filled, frame, "{name}");
        filled.extend_from_slice(&[0; 9]);
        let h = parse(&filled, filled.len()).unwrap();
        assert_eq!(icrc::verify(&h, [&filled[..]]), Some(true), "{name} padded");
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn icrc_covers_all_but_the_fields_that_change_on_the_way() {
    for (name, frame) in common::vectors().into_iter().filter(|(name, _)| name.starts_with("roce")) {
        let h = parse(&frame, frame.len()).unwrap();
        let (l3, l4) = (usize::from(h.l3_offset), usize::from(h.l4_offset));
        for at in l3..frame.len() {
            for bit in 0..8 {
                let mut changed = frame.clone();
                changed[at] ^= 1 << bit;
                let Ok(h) = parse(&changed, changed.len()) else { continue };
                let may_change = match (h.l3, at - l3) {
                    (L3::Ipv4, 1 | 8 | 10 | 11) => true,
                    (L3::Ipv6, 0) => bit < 4,
                    (L3::Ipv6, 1..=3 | 7) => true,
                    _ => at == l4 + 6 || at == l4 + 7 || at == l4 + 12,
                };
                let right = icrc::verify(&h, [&changed[..]]) == Some(true);
                assert_eq!(right, may_change, "{name} byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn no_icrc_where_there_is_no_room() {
    let path = common::v4();
    for len in 0..40 {
        let frame = path.udp(1, 4791, &vec![7; len]);
        let h = parse(&frame, frame.len()).unwrap();
        assert_eq!(icrc::compute(&h, [&frame[..]]).is_some(), len >= 16, "{len} bytes");
        assert_eq!(icrc::verify(&h, [&frame[..42]]), None);
    }
    let tcp = path.tcp(1, 4791, 0, &[0; 40]);
    let h = parse(&tcp, tcp.len()).unwrap();
    assert!(icrc::compute(&h, [&tcp[..]]).is_none() && !icrc::fill(&h, &mut tcp.clone()));
}
