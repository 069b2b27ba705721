//! The corpus that the tests of this folder share: frames of every shape the parser knows.

#![allow(dead_code)] // each test binary uses its part
#![allow(clippy::unwrap_used)] // helpers of tests, outside of test functions

use std::net::{Ipv4Addr, Ipv6Addr};
use wire::build::{Path, udp_datagram};
use wire::{MacAddr, Psn, Qpn, View, Vni, protocol, roce, tcp};

pub const A: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
pub const B: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);

pub fn v4() -> Path {
    Path::v4((A, Ipv4Addr::new(10, 0, 0, 1)), (B, Ipv4Addr::new(10, 0, 0, 2)))
}

pub fn v6() -> Path {
    let ip = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    Path::v6((A, ip(1)), (B, ip(2)))
}

/// Frames composed by scapy, see `vectors/make.py`.
pub fn vectors() -> Vec<(&'static str, Vec<u8>)> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let line = |line: &'static str| {
        let (name, hex) = line.split_once(' ').unwrap();
        (name, hex.as_bytes().chunks(2).map(byte).collect())
    };
    include_str!("../vectors/frames.txt").lines().map(line).collect()
}

pub fn vector(name: &str) -> Vec<u8> {
    vectors().into_iter().find(|(other, _)| *other == name).unwrap().1
}

/// Extension header chains worth trying in front of any L4.
fn chains() -> Vec<Vec<(u8, Vec<u8>)>> {
    let hop = (protocol::HOP_BY_HOP, vec![1, 4, 0, 0, 0, 0]);
    let dest = (protocol::DESTINATION_OPTIONS, vec![1, 4, 0, 0, 0, 0]);
    let routing = |left| (protocol::ROUTING, [vec![0, left], vec![0; 20]].concat());
    let ah = (protocol::AH, vec![0; 22]);
    let atomic = (protocol::FRAGMENT, vec![0, 0, 1, 2, 3, 4]);
    vec![
        vec![hop.clone()],
        vec![hop.clone(), dest.clone(), routing(0), atomic.clone(), ah],
        vec![routing(1)],
        vec![dest.clone(), hop],
        vec![atomic.clone(), atomic],
        vec![dest.clone(); 8],
        vec![dest; 9],
        vec![(protocol::MOBILITY, vec![0; 6]), (protocol::HIP, vec![0; 6]), (protocol::SHIM6, vec![0; 6])],
    ]
}

/// Every shape: IP version, tags, options and extension headers, fragments, every L4, tunnels, RoCE.
pub fn corpus() -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = vectors().into_iter().map(|(_, frame)| frame).collect();
    let mut paths = Vec::new();
    for base in [v4(), v6()] {
        paths.extend([base.clone(), base.clone().tagged(0x2064), base.tagged(5).tagged(6)]);
    }
    paths.push(Path { options: vec![0x94, 4, 0, 0], ..v4() });
    paths.push(Path { options: vec![1; 40], ..v4() }.tagged(9));
    paths.extend(chains().into_iter().map(|extensions| Path { extensions, ..v6() }));
    for path in &paths {
        frames.push(path.tcp(1, 2, tcp::flags::SYN, b"data"));
        let mut with_options = tcp::Header::new(3, 4, 5, 6, tcp::flags::ACK);
        with_options.data_offset = 8 << 4;
        frames.push(path.tcp_segment(&with_options, &[1; 12]));
        frames.push(path.udp(7, 8, b"odd"));
        frames.push(path.echo_request(9, 10, b"ping"));
        frames.push(path.ip(protocol::SCTP, &[1; 16]));
        frames.push(path.ip(protocol::GRE, &[2; 8]));
        frames.push(path.ip(protocol::ESP, &[3; 8]));
        frames.push(path.ip(protocol::NO_NEXT_HEADER, &[]));
        frames.extend(path.fragments(protocol::UDP, &udp_datagram(1, 2, &[0; 60]), 0x77, 72));
        frames.extend(path.fragments(protocol::TCP, &[0x55; 60], 0x78, 68));
        let bth = roce::Bth::new(roce::opcode::RC_SEND_ONLY, Qpn::truncated(17), Psn::truncated(5));
        frames.push(path.roce(0xc000, bth, b"rdma!"));
        let mut padded = path.udp(1, 2, b"");
        padded.resize(64, 0);
        frames.push(padded);
    }
    frames.push(v4().vxlan(0xc000, Vni::truncated(7), &v6().tcp(1, 2, 0, b"")));
    frames.push(v6().vxlan(0xc000, Vni::truncated(7), &v4().udp(1, 2, b"")));
    let arp = wire::build::control::arp_request((A, Ipv4Addr::LOCALHOST), Ipv4Addr::new(10, 0, 0, 3));
    frames.push(v4().tagged(3).ethernet(0x0806, &arp[14..]));
    frames.push(arp);
    frames.push(v4().tagged(1).tagged(2).tagged(3).udp(1, 2, b""));
    frames.push(v4().ethernet(0x88cc, b"lldp"));
    frames.push(wire::ethernet::Header::new(A, B, 38).bytes().to_vec());
    frames
}
