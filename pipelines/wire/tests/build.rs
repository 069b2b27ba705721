//! The frame builders: what they compose parses back to what was asked for, with right checksums.

#![allow(clippy::unwrap_used)] // helpers of tests, outside of test functions

mod common;

use common::{A, B, v4, v6};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::build::control::{self, IcmpError};
use wire::build::{Pair, Path, udp_datagram};
use wire::l4::{self, ChecksumVerdict};
use wire::parse::parse;
use wire::{Flags, Headers, L3, MacAddr, Psn, Qpn, View, Vni, icmpv6, icrc, protocol, quoted, roce, vxlan};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn parsed(frame: &[u8]) -> Headers {
    let h = parse(frame, frame.len()).unwrap();
    assert!(h.ipv4_checksum_ok(frame));
    assert!(!matches!(l4::verify(&h, [frame]), ChecksumVerdict::Bad));
    h
}

#[test]
fn every_kind_of_path_and_payload() {
    for path in [v4(), v6(), v4().tagged(7), v6().tagged(7).tagged(8)] {
        let path = path.with_tos(0x6a).with_ttl(9);
        let frames = [path.udp(5, 6, b"abc"), path.tcp(5, 6, 0x12, b"abc"), path.echo_request(6, 1, b"abc")];
        for frame in frames {
            let h = parsed(&frame);
            assert_eq!((h.tos, h.ttl, usize::from(h.vlan_count)), (0x6a, 9, path.tags.len()));
            assert_eq!(h.dport, 6);
            assert_eq!(h.payload(&frame), b"abc");
            assert_eq!(l4::verify(&h, [&frame[..]]), ChecksumVerdict::Good);
        }
        let without = path.udp_without_checksum(5, 6, b"abc");
        assert_eq!(l4::verify(&parsed(&without), [&without[..]]), ChecksumVerdict::Zero);
    }
}

#[test]
fn roce_packets_carry_padding_and_icrc() {
    for path in [v4(), v6()] {
        for len in 0..9 {
            let bth = roce::Bth::new(roce::opcode::RC_SEND_ONLY, Qpn::truncated(9), Psn::truncated(3));
            let frame = path.roce(0xc001, bth, &vec![7; len]);
            let h = parsed(&frame);
            let payload = h.payload(&frame);
            let bth = roce::Bth::parse(payload).unwrap();
            assert_eq!(usize::from(bth.pad_count()), (4 - len % 4) % 4);
            assert_eq!(payload.len(), 12 + len.next_multiple_of(4) + 4);
            assert_eq!(icrc::verify(&h, [&frame[..]]), Some(true));
        }
        let cnp = path.cnp(1, Qpn::truncated(0x77));
        let h = parsed(&cnp);
        let bth = roce::Bth::parse(h.payload(&cnp)).unwrap();
        assert!(bth.becn() && bth.class() == roce::RoceClass::Cnp && bth.dest_qp().get() == 0x77);
        assert_eq!(bth.congestion, 0x40);
        assert_eq!(Some(h.payload(&cnp).len()), roce::opcode::control_len(bth.opcode, bth.dest_qp()));
    }
}

#[test]
fn vxlan_wraps_a_frame() {
    let inner = v6().tcp(1, 2, 0, b"inner");
    for path in [v4(), v6()] {
        let frame = path.vxlan(0xc123, Vni::truncated(0xabcdef), &inner);
        let h = parsed(&frame);
        assert!(h.is_udp_to(4789));
        let expected = if h.l3 == L3::Ipv4 { ChecksumVerdict::Zero } else { ChecksumVerdict::Good };
        assert_eq!(l4::verify(&h, [&frame[..]]), expected);
        let header = vxlan::Header::parse(h.payload(&frame)).unwrap();
        assert!(header.has_vni() && header.reserved_clear() && header.vni().get() == 0xabcdef);
        assert_eq!(&frame[h.payload_offset() + 8..], inner);
    }
}

#[test]
fn fragments_reassemble() {
    let data = udp_datagram(1, 2, &(0..=255).collect::<Vec<u8>>());
    for path in [v4().tagged(4), v6()] {
        let mut whole = Vec::new();
        let pieces = path.fragments(protocol::UDP, &data, 0x1234, 100);
        assert!(pieces.len() > 3);
        for (at, piece) in pieces.iter().enumerate() {
            let h = parsed(piece);
            assert!(
                h.l3_len <= 100 && h.is(Flags::FRAGMENT) && h.ip_id == 0x1234 && h.proto == protocol::UDP
            );
            assert_eq!(h.is(Flags::FRAGMENT_LATER), at > 0);
            assert_eq!(h.is(Flags::L4), at == 0);
            assert_eq!((h.sport, h.dport), if at == 0 { (1, 2) } else { (0, 0) });
            assert_eq!(h.is(Flags::MORE_FRAGMENTS), at + 1 < pieces.len());
            whole.extend_from_slice(&piece[usize::from(h.l4_offset)..]);
        }
        assert_eq!(whole, data);
    }
}

#[test]
fn arp_question_and_answer() {
    let (asker, target) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let request = control::arp_request((A, asker), target);
    assert_eq!(request.len(), 60);
    let h = parsed(&request);
    let reply = control::arp_reply(&h, &request, B).unwrap();
    let packet = *parsed(&reply).arp(&reply).unwrap();
    assert_eq!((packet.operation.get(), packet.sender_mac, packet.sender()), (2, B, target));
    assert_eq!((packet.target_mac, packet.target()), (A, asker));
    assert_eq!(parsed(&reply).ethernet(&reply).map(|eth| (eth.src, eth.dst)), Some((B, A)));
    assert!(control::arp_reply(&parsed(&reply), &reply, A).is_none(), "a reply is not answered");

    let tagged = v4().tagged(0x2005).tagged(6).ethernet(0x0806, &request[14..42]);
    let reply = control::arp_reply(&parsed(&tagged), &tagged, B).unwrap();
    assert_eq!(parsed(&reply).vlan_tci, [0x2005, 6]);
}

#[test]
fn neighbour_question_and_answer() {
    let (asker, target): (Ipv6Addr, Ipv6Addr) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    let scapy = common::vector("neighbour-solicitation");
    assert_eq!(control::neighbour_solicitation((A, asker), target, None), scapy);
    let h = parsed(&scapy);
    let answer = control::neighbour_advertisement(&h, &scapy, B, true).unwrap();
    let a = parsed(&answer);
    assert_eq!(l4::verify(&a, [&answer[..]]), ChecksumVerdict::Good);
    let (message, mac) = control::advertised(&a, &answer).unwrap();
    assert!(message.has(
        icmpv6::NeighbourHeader::SOLICITED
            | icmpv6::NeighbourHeader::OVERRIDE
            | icmpv6::NeighbourHeader::ROUTER
    ));
    assert_eq!((message.target(), mac), (target, Some(B)));
    assert_eq!(a.ipv6(&answer).map(|ip| (ip.src(), ip.dst())), Some((target, asker)));
    assert!(control::solicited(&a, &answer).is_none());

    let probe = control::neighbour_solicitation((A, asker), target, Some(B));
    assert_eq!(parsed(&probe).ethernet(&probe).map(|eth| eth.dst), Some(B));
}

#[test]
fn duplicate_address_detection_is_answered_to_all() {
    let target: Ipv6Addr = "fd00::2".parse().unwrap();
    let group = wire::ipv6::solicited_node(target);
    let path = Path::v6((A, Ipv6Addr::UNSPECIFIED), (wire::ipv6::multicast_mac(group), group)).with_ttl(255);
    let message = icmpv6::NeighbourHeader::solicitation(target);
    let frame = path.ip(protocol::ICMPV6, message.bytes());
    let answer = control::neighbour_advertisement(&parsed(&frame), &frame, B, false).unwrap();
    let a = parsed(&answer);
    let (message, _) = control::advertised(&a, &answer).unwrap();
    assert!(!message.has(icmpv6::NeighbourHeader::SOLICITED));
    assert_eq!(a.ipv6(&answer).unwrap().dst(), "ff02::1".parse::<Ipv6Addr>().unwrap());

    let link = icmpv6::LinkAddress::new(icmpv6::option::SOURCE_LINK_ADDRESS, A);
    let with_link = path.ip(protocol::ICMPV6, &[message.bytes(), link.bytes()].concat());
    assert!(control::solicited(&parsed(&with_link), &with_link).is_none(), "RFC 4861 section 7.1.1");
}

#[test]
fn unsound_neighbour_messages_are_not_believed() {
    let good = common::vector("neighbour-solicitation");
    let changes: [(usize, u8, &str); 5] = [
        (21, 254, "hop limit"),
        (55, 1, "code"),
        (62, 0xff, "group target"),
        (79, 0, "option length"),
        (79, 2, "option past the end"),
    ];
    for (at, value, what) in changes {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(control::solicited(&parse(&bad, bad.len()).unwrap(), &bad).is_none(), "{what}");
    }
    assert!(control::solicited(&parsed(&good), &good).is_some());
}

#[test]
fn echo_is_answered() {
    for path in [v4().tagged(3), v6()] {
        let request = path.echo_request(0x77, 5, b"payload");
        let reply = control::echo_reply(&parsed(&request), &request).unwrap();
        assert_eq!(reply, path.clone().reversed().echo_reply(0x77, 5, b"payload"));
        assert!(control::echo_reply(&parsed(&reply), &reply).is_none());
        let to_group = Path { dst_mac: MacAddr::BROADCAST, ..path }.echo_request(1, 1, b"");
        assert!(control::echo_reply(&parsed(&to_group), &to_group).is_none());
    }
}

#[test]
fn too_big_tells_the_mtu_and_quotes_the_packet() {
    let (r4, r6) = (Ipv4Addr::new(10, 0, 0, 254), "fd00::fe".parse::<Ipv6Addr>().unwrap());
    let error = IcmpError::TooBig { mtu: 1450 };
    let original = v4().tagged(3).tcp(1234, 80, 0, &[9; 1600]);
    let h = parsed(&original);
    let answer = control::icmp_error(&h, &original, error, (OWN, r4.into())).unwrap();
    let a = parsed(&answer);
    assert_eq!((a.l3_len, a.sport, a.vlan_tci[0]), (576, 0x0304, 3));
    assert_eq!(answer[usize::from(a.l4_offset) + 6..][..2], 1450u16.to_be_bytes());
    assert_eq!(a.ethernet(&answer).map(|eth| (eth.src, eth.dst)), Some((OWN, A)));
    assert_eq!(a.ipv4(&answer).map(|ip| (ip.src(), ip.dst())), Some((r4, Ipv4Addr::new(10, 0, 0, 1))));
    let q = quoted::parse(&a, &answer).unwrap();
    assert_eq!((q.sport, q.dport, q.l3_len, q.proto), (1234, 80, h.l3_len, protocol::TCP));
    assert_eq!(q.ipv4(&answer), h.ipv4(&original));
    assert!(control::icmp_error(&a, &answer, error, (OWN, r4.into())).is_none(), "no error about an error");
    assert!(control::icmp_error(&h, &original, error, (OWN, r6.into())).is_none(), "other IP version");

    let original = v6().udp(1234, 80, &[9; 1600]);
    let h = parsed(&original);
    let answer = control::icmp_error(&h, &original, error, (OWN, r6.into())).unwrap();
    let a = parsed(&answer);
    assert_eq!((a.l3_len, a.sport), (1280, 0x0200));
    assert_eq!(answer[usize::from(a.l4_offset) + 4..][..4], 1450u32.to_be_bytes());
    let q = quoted::parse(&a, &answer).unwrap();
    assert_eq!((q.sport, q.dport, q.proto), (1234, 80, protocol::UDP));
    assert_eq!(q.ipv6(&answer), h.ipv6(&original));
    assert!(control::icmp_error(&a, &answer, error, (OWN, r6.into())).is_none());
}

#[test]
fn no_errors_about_what_must_not_cause_them() {
    let from: (MacAddr, IpAddr) = (OWN, Ipv4Addr::new(10, 0, 0, 254).into());
    let refused = |frame: Vec<u8>| {
        control::icmp_error(&parsed(&frame), &frame, IcmpError::TimeExceeded, from).is_none()
    };
    let with_ip =
        |src: [u8; 4], dst: [u8; 4]| Path { ip: Pair::V4(src.into(), dst.into()), ..v4() }.udp(1, 2, b"");
    assert!(!refused(with_ip([10, 0, 0, 1], [10, 0, 0, 2])));
    assert!(!refused(v4().echo_request(1, 1, b"")));
    assert!(refused(with_ip([0, 0, 0, 0], [10, 0, 0, 2])));
    assert!(refused(with_ip([224, 0, 0, 1], [10, 0, 0, 2])));
    assert!(refused(with_ip([10, 0, 0, 1], [239, 0, 0, 2])));
    assert!(refused(with_ip([10, 0, 0, 1], [255, 255, 255, 255])));
    assert!(refused(Path { dst_mac: MacAddr::BROADCAST, ..v4() }.udp(1, 2, b"")));
    let pieces = v4().fragments(protocol::UDP, &udp_datagram(1, 2, &[0; 60]), 1, 60);
    assert!(!refused(pieces[0].clone()) && refused(pieces[1].clone()));

    let router: (MacAddr, IpAddr) = (OWN, "fd00::fe".parse::<Ipv6Addr>().unwrap().into());
    let to_group = Path::v6(
        (A, "fd00::1".parse().unwrap()),
        (MacAddr([0x33, 0x33, 0, 0, 0, 5]), "ff0e::5".parse().unwrap()),
    );
    let frame = to_group.udp(1, 2, b"");
    let ask = |error| control::icmp_error(&parsed(&frame), &frame, error, router).is_some();
    assert!(
        ask(IcmpError::TooBig { mtu: 1280 }) && !ask(IcmpError::TimeExceeded) && !ask(IcmpError::NoRoute)
    );
}

#[test]
fn a_quoted_header_that_is_cut_off_is_not_read() {
    let original = Path { options: vec![1; 8], ..v4() }.udp(1, 2, b"");
    for cut in 0..=original.len() - 14 {
        let frame = v4().ip(protocol::ICMP, &[&[3, 1, 0, 0, 0, 0, 0, 0], &original[14..14 + cut]].concat());
        assert_eq!(quoted::parse(&parsed(&frame), &frame).is_some(), cut >= 28, "{cut} bytes");
    }
}

#[test]
fn quotations_cut_anywhere_do_no_harm() {
    for original in common::corpus() {
        let Ok(h) = parse(&original, original.len()) else { continue };
        let l3 = &original[usize::from(h.l3_offset)..h.l3_end()];
        let (path, proto, kind) = match h.l3 {
            L3::Ipv4 => (v4(), protocol::ICMP, 3),
            L3::Ipv6 => (v6(), protocol::ICMPV6, 1),
            _ => continue,
        };
        for cut in 0..=l3.len().min(140) {
            let message = [&[kind, 0, 0, 0, 0, 0, 0, 0], &l3[..cut]].concat();
            let frame = path.ip(proto, &message);
            let outer = parsed(&frame);
            let Some(q) = quoted::parse(&outer, &frame) else {
                assert!(cut < usize::from(h.l4_offset), "nothing read out of {cut} bytes");
                continue;
            };
            assert_eq!((q.proto, q.l3_len, q.ip_id, q.tos), (h.proto, h.l3_len, h.ip_id, h.tos));
            // The quotation may end inside the last extension header: then the protocol is known, no more.
            let l4_bytes = (cut + usize::from(h.l3_offset)).saturating_sub(usize::from(h.l4_offset));
            if h.is(Flags::L4) && l4_bytes >= 8 {
                assert_eq!((q.sport, q.dport), (h.sport, h.dport), "{l4_bytes} bytes of L4");
                assert!(q.is(Flags::L4));
            }
            if h.is(Flags::FRAGMENT_LATER) {
                assert!(q.is(Flags::FRAGMENT_LATER) && !q.is(Flags::L4));
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_built_parses_back(six in any::<bool>(), tags in prop::collection::vec(any::<u16>(), 0..3),
            addresses in any::<[u128; 2]>(), tos in any::<u8>(), ttl in any::<u8>(), ports in any::<[u16; 2]>(),
            payload in prop::collection::vec(any::<u8>(), 0..200), tcp in any::<bool>()) {
        let mut path = if six { v6() } else { v4() }.with_tos(tos).with_ttl(ttl);
        path.ip = match six {
            true => Pair::V6(addresses[0].into(), addresses[1].into()),
            false => Pair::V4((addresses[0] as u32).into(), (addresses[1] as u32).into()),
        };
        path.tags = tags.iter().map(|tci| (0x8100, *tci)).collect();
        let frame = match tcp {
            true => path.tcp(ports[0], ports[1], 0x18, &payload),
            false => path.udp(ports[0], ports[1], &payload),
        };
        let h = parse(&frame, frame.len()).unwrap();
        prop_assert_eq!((h.tos, h.ttl, h.sport, h.dport), (tos, ttl, ports[0], ports[1]));
        prop_assert_eq!(&h.vlan_tci[..tags.len()], &tags[..]);
        prop_assert_eq!(h.payload(&frame), &payload[..]);
        prop_assert!(h.ipv4_checksum_ok(&frame));
        prop_assert_eq!(l4::verify(&h, [&frame[..]]), ChecksumVerdict::Good);
        match h.ipv4(&frame) {
            Some(ip) => prop_assert_eq!(Pair::V4(ip.src(), ip.dst()), path.ip),
            None => {
                let ip = h.ipv6(&frame).unwrap();
                prop_assert_eq!(Pair::V6(ip.src(), ip.dst()), path.ip);
            }
        }
    }
}
