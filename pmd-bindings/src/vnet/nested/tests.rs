use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use wire::build::Path;
use wire::l4::{ChecksumVerdict, verify};
use wire::segment::Segmentation;
use wire::{ChecksumState, HeapBuf, MacAddr, RxFacts, View, tcp};

use super::*;
use crate::testing::pool;

/// What a frame is in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tunnel {
    Vxlan,
    /// With so many words of options.
    Geneve(u8),
    Gre {
        has_key: bool,
        ethernet: bool,
    },
    Ip,
}

const TUNNELS: [Tunnel; 8] = [
    Tunnel::Vxlan,
    Tunnel::Geneve(0),
    Tunnel::Geneve(3),
    Tunnel::Gre { has_key: false, ethernet: false },
    Tunnel::Gre { has_key: true, ethernet: false },
    Tunnel::Gre { has_key: false, ethernet: true },
    Tunnel::Gre { has_key: true, ethernet: true },
    Tunnel::Ip,
];

fn path(is_ipv6: bool, network: u8) -> Path {
    let mac = |last| MacAddr([2, 0, 0, 0, network, last]);
    if is_ipv6 {
        let end = |last: u8| (mac(last), Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0, 0, 0, last.into()));
        Path { flow_label: 7, ..Path::v6(end(1), end(2)) }
    } else {
        let end = |last: u8| (mac(last), Ipv4Addr::new(172, network, 0, last));
        Path { id: 0xfffe, ..Path::v4(end(1), end(2)) }
    }
}

/// A frame inside a tunnel, by builders that know nothing of cutting.
fn wrap(tunnel: Tunnel, outer: &Path, has_checksum: bool, inner: &[u8]) -> Vec<u8> {
    let (ip, kind) = (&inner[14..], u16::from_be_bytes([inner[12], inner[13]]));
    let udp = |port, payload: &[u8]| match has_checksum {
        true => outer.udp(50_000, port, payload),
        false => outer.udp_without_checksum(50_000, port, payload),
    };
    match tunnel {
        Tunnel::Vxlan => udp(8472, &[&[8, 0, 0, 0, 0, 0, 9, 0], inner].concat()),
        Tunnel::Geneve(words) => {
            let options = vec![0; usize::from(words) * 4];
            udp(6081, &[&[words, 0, 0x65, 0x58, 0, 0, 9, 0], &options[..], inner].concat())
        }
        Tunnel::Gre { has_key, ethernet } => {
            let (kind, inside) = if ethernet { (BRIDGED, inner) } else { (kind, ip) };
            let flags: u16 = if has_key { GRE_KEY } else { 0 };
            let mut bytes = [flags.to_be_bytes(), kind.to_be_bytes()].concat();
            bytes.extend(if has_key { &[0, 0, 0, 5][..] } else { &[] });
            bytes.extend(inside);
            outer.ip(protocol::GRE, &bytes)
        }
        Tunnel::Ip => outer.ip(if kind == ethertype::IPV4 { protocol::IPV4 } else { protocol::IPV6 }, ip),
    }
}

/// A TCP super-frame without a tunnel, and the frames it stands for, as the pipeline cuts them.
fn super_frame(inner: &Path, data: usize, size: u16, flags: u8) -> (Vec<u8>, Vec<Vec<u8>>) {
    let header = tcp::Header::new(1000, 80, u32::MAX - 700, 7, flags);
    let data: Vec<u8> = (0..data).map(|at| (at % 251) as u8).collect();
    let frame = inner.ip_unfilled(6, &[View::bytes(&header), &data].concat());
    let facts = RxFacts { gso_size: size, l4_checksum: ChecksumState::Partial, ..RxFacts::default() };
    let heap = HeapBuf::new(&frame).with_facts(facts);
    let headers = wire::parse::parse(&frame, frame.len()).unwrap();
    let Segmentation::Several(whole) = Segmentation::of(&headers, &frame, frame.len(), &facts) else {
        panic!("it is no super-frame");
    };
    let pieces = whole.cut(&heap).map(|piece| piece.unwrap().to_vec()).collect();
    (frame, pieces)
}

/// What a packet socket says of a frame whose last header is at `l4`.
fn vnet(gso_type: u8, size: u16, l4: usize) -> VnetHeader {
    let checksum_offset = if gso_type == GSO_UDP_L4 { UDP_CHECKSUM } else { TCP_CHECKSUM };
    VnetHeader {
        flags: NEEDS_CSUM,
        gso_type,
        gso_size: size,
        checksum_start: l4 as u16,
        checksum_offset,
        ..VnetHeader::default()
    }
}

fn l4_of(frame: &[u8], behind: usize) -> usize {
    frame.len() - behind
}

fn cut(frame: &[u8], vnet: VnetHeader) -> Option<Vec<Vec<u8>>> {
    let pool = pool("nested");
    let packet = pool.alloc_from(frame).unwrap();
    let plan = Nested::of(vnet, packet.head(), packet.len())?;
    Some(plan.cut(&packet).map(|piece| piece.unwrap().to_vec()).collect())
}

fn numbered(path: &Path, number: usize) -> Path {
    Path { id: path.id.wrapping_add(number as u16), ..path.clone() }
}

#[test]
fn what_is_cut_in_a_tunnel_is_what_was_cut_before_it() {
    for tunnel in TUNNELS {
        for (outer_v6, inner_v6, has_checksum) in
            [(false, false, false), (false, true, true), (true, false, true), (true, true, true)]
        {
            let outer = path(outer_v6, 16).with_tos(3);
            let flags = tcp::flags::ACK | tcp::flags::CWR | tcp::flags::PSH | tcp::flags::FIN;
            let (whole, pieces) = super_frame(&path(inner_v6, 20).with_tos(1), 10_000, 1_398, flags);
            let frame = wrap(tunnel, &outer, has_checksum, &whole);
            let gso = GSO_ECN | if inner_v6 { GSO_TCPV6 } else { GSO_TCPV4 };
            let asked = vnet(gso, 1_398, l4_of(&frame, 10_020));
            let wanted: Vec<Vec<u8>> = pieces
                .iter()
                .enumerate()
                .map(|(number, piece)| wrap(tunnel, &numbered(&outer, number), has_checksum, piece))
                .collect();
            assert_eq!(cut(&frame, asked).unwrap(), wanted, "{tunnel:?} {outer_v6} {inner_v6}");
        }
    }
}

#[test]
fn a_tunnel_in_a_tunnel_with_tags_is_cut_too() {
    let (whole, pieces) = super_frame(&path(false, 20), 5_000, 1_000, tcp::flags::ACK);
    let (first, second) = (path(false, 18), path(true, 16).tagged(5));
    let both = |number: usize, piece: &[u8]| {
        let inside = wrap(Tunnel::Vxlan, &numbered(&first, number), true, piece);
        wrap(Tunnel::Geneve(1), &second, true, &inside)
    };
    let frame = both(0, &whole);
    let wanted: Vec<_> = pieces.iter().enumerate().map(|(number, piece)| both(number, piece)).collect();
    assert_eq!(cut(&frame, vnet(GSO_TCPV4, 1_000, l4_of(&frame, 5_020))).unwrap(), wanted);
}

#[test]
fn datagrams_in_a_tunnel_are_cut() {
    let inner = path(true, 20);
    let data: Vec<u8> = (0..5_000).map(|at| (at % 251) as u8).collect();
    let whole = inner.udp(1, 2, &data);
    let outer = path(false, 16);
    let frame = wrap(Tunnel::Vxlan, &outer, false, &whole);
    let wanted: Vec<Vec<u8>> = data
        .chunks(1_200)
        .enumerate()
        .map(|(number, part)| wrap(Tunnel::Vxlan, &numbered(&outer, number), false, &inner.udp(1, 2, part)))
        .collect();
    assert_eq!(cut(&frame, vnet(GSO_UDP_L4, 1_200, l4_of(&frame, 5_008))).unwrap(), wanted);
}

#[test]
fn datagrams_behind_tags_and_options_and_long_ones_are_cut() {
    let data: Vec<u8> = (0..20_000).map(|at| (at % 251) as u8).collect();
    let with_options = Path { options: vec![1; 8], ..path(false, 20) };
    for (path, size) in [(path(false, 20).tagged(5), 1_200), (with_options, 1_200), (path(true, 20), 8_900)] {
        let frame = path.udp(1, 2, &data);
        let parts = data.chunks(size).enumerate();
        let wanted: Vec<_> = parts.map(|(number, part)| numbered(&path, number).udp(1, 2, part)).collect();
        assert_eq!(cut(&frame, vnet(GSO_UDP_L4, size as u16, l4_of(&frame, 20_008))).unwrap(), wanted);
    }
}

#[test]
fn what_is_not_in_a_tunnel_or_cannot_be_cut_is_left_alone() {
    let (whole, _) = super_frame(&path(false, 20), 5_000, 1_000, tcp::flags::ACK);
    let frame = wrap(Tunnel::Vxlan, &path(false, 16), false, &whole);
    let l4 = l4_of(&frame, 5_020);
    let right = vnet(GSO_TCPV4, 1_000, l4);
    assert!(cut(&frame, right).is_some());
    assert_eq!(cut(&whole, vnet(GSO_TCPV4, 1_000, l4_of(&whole, 5_020))), None, "no tunnel");
    for (what, asked) in [
        ("another place", vnet(GSO_TCPV4, 1_000, l4 - 4)),
        ("no place at all", vnet(GSO_TCPV4, 1_000, 60_000)),
        ("too many pieces", vnet(GSO_TCPV4, 20, l4)),
        ("no size", vnet(GSO_TCPV4, 0, l4)),
        ("datagrams of TCP", vnet(GSO_UDP_L4, 1_000, l4)),
        ("a finished checksum", VnetHeader { flags: 0, ..right }),
        ("another field", VnetHeader { checksum_offset: 8, ..right }),
    ] {
        assert_eq!(cut(&frame, asked), None, "{what}");
    }
    for (what, at, value) in [
        ("a fragment", 14 + 6, 0x20),
        ("no VNI", 14 + 20 + 8, 0),
        ("a SYN", l4 + TCP_FLAGS, 0x12),
        ("headers longer than the segment", l4 + 12, 0x10),
        ("another protocol", 14 + 20 + 8 + 8 + 14 + 9, 17),
    ] {
        let mut changed = frame.clone();
        changed[at] = value;
        assert_eq!(cut(&changed, right), None, "{what}");
    }
    let mut sequence = wrap(Tunnel::Gre { has_key: true, ethernet: false }, &path(false, 16), false, &whole);
    sequence[34] |= 0x10;
    assert_eq!(cut(&sequence, vnet(GSO_TCPV4, 1_000, l4_of(&sequence, 5_020))), None, "numbers of GRE");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever a container says of whatever it sends: nothing panics, and what is cut is as much as came, in pieces of sound headers.
    #[test]
    fn any_frame_in_a_tunnel_is_cut_or_left_alone(
        tunnel in 0..TUNNELS.len(), outer_v6: bool, inner_v6: bool, has_checksum: bool,
        size in prop_oneof![Just(1_398u16), any::<u16>()], back in 0usize..9_000,
        changes in prop::collection::vec((0usize..140, any::<u8>()), 0..4),
        cut_off in prop_oneof![Just(0usize), 0usize..9_000],
    ) {
        let (whole, _) = super_frame(&path(inner_v6, 20), 9_000, 1_000, tcp::flags::ACK);
        let mut frame = wrap(TUNNELS[tunnel], &path(outer_v6, 16), has_checksum, &whole);
        let l4 = frame.len() - 9_020 + back.saturating_sub(8_000);
        for (at, value) in changes {
            frame[at] = value;
        }
        frame.truncate(frame.len() - cut_off);
        let gso = if inner_v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        if let Some(pieces) = cut(&frame, vnet(gso, size, l4)) {
            let headers = l4 + usize::from(frame[l4 + 12] >> 4) * 4;
            let data: Vec<u8> = pieces.iter().flat_map(|piece| piece[headers..].to_vec()).collect();
            prop_assert_eq!(&data, &frame[headers..]);
            for piece in &pieces {
                // The outermost UDP, where there is one with a checksum.
                if let Ok(parsed) = wire::parse::parse(piece, piece.len())
                    && parsed.l3_end() == piece.len()
                {
                    prop_assert_ne!(verify(&parsed, [&piece[..]]), ChecksumVerdict::Bad);
                }
            }
        }
    }
}
