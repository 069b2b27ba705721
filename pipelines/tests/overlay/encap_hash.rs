//! Outer source ports that a NIC chooses and software follows: of every kind of packet, in bursts in which they are mixed.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use pipelines::encap_hash::EncapHash;
use pipelines::offload::sim::{EncapHashKind, Eswitch, EswitchConfig};
use rules::{BackEnd, InnerProtocol, InnerTuple};
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{ChecksumState, HeapBuf, MacAddr, Psn, Qpn, RxFacts, View, protocol, tcp};

use testkit::open::open;
use testkit::*;

fn eswitch() -> Eswitch {
    Eswitch::new(EswitchConfig { encap_hash: EncapHashKind::Crc, ..EswitchConfig::default() })
}

/// A host that follows the e-switch, of which it knows what it was told.
fn following() -> World {
    let mut world = plain();
    let mut eswitch = eswitch();
    let hash = EncapHash::learn(4791, 5, |inner| eswitch.encap_source_port(inner)).unwrap();
    world.snapshot.encap_hash = Some(Arc::new(hash));
    world
}

/// What the e-switch tells of an inner frame; `None` where it hashes nothing.
fn told(inner: &[u8]) -> Option<u16> {
    let headers = wire::parse::parse(inner, inner.len()).unwrap();
    let protocol = match headers.proto {
        protocol::TCP => InnerProtocol::Tcp,
        protocol::UDP => InnerProtocol::Udp,
        _ => return None,
    };
    let (source, destination): (IpAddr, IpAddr) = match (headers.ipv4(inner), headers.ipv6(inner)) {
        (Some(ip), _) => (ip.src().into(), ip.dst().into()),
        (None, ip) => ip.map(|ip| (ip.src().into(), ip.dst().into()))?,
    };
    let (source_port, destination_port) = (headers.sport, headers.dport);
    let tuple = InnerTuple { source, destination, protocol, source_port, destination_port };
    Some(eswitch().encap_source_port(&tuple).unwrap())
}

fn queue_pair(path: &Path, source_port: u16) -> HeapBuf {
    let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(0x11), Psn::truncated(7));
    HeapBuf::new(&path.roce(source_port, bth, &[9; 32]))
}

fn super_frame(path: &Path, source_port: u16) -> HeapBuf {
    let header = tcp::Header::new(source_port, 80, 1, 7, tcp::flags::ACK);
    let segment = [header.bytes(), &[7; 5000]].concat();
    let facts = RxFacts { gso_size: 1000, l4_checksum: ChecksumState::Partial, ..RxFacts::default() };
    HeapBuf::new(&path.ip_unfilled(protocol::TCP, &segment)).with_facts(facts)
}

/// Ordinary packets, queue pairs of one entry, and what is not hashed, among super-frames or without.
fn burst(with_super_frames: bool) -> Vec<HeapBuf> {
    let mut burst = Vec::new();
    for path in [v4(A, R), v6(A, R), routed(v4(A, S))] {
        for source_port in [1000, 0xc001, 0xffff] {
            burst.push(queue_pair(&path, source_port));
            if with_super_frames {
                burst.push(super_frame(&path, source_port));
            }
            burst.push(HeapBuf::new(&path.tcp(source_port, 80, 0x10, b"data")));
            burst.push(HeapBuf::new(&path.udp(source_port, 53, b"question")));
        }
        burst.push(HeapBuf::new(&path.ip(47, &[1; 40])));
    }
    burst.push(HeapBuf::new(&v4(A, R).ethernet(0x88b5, &[5; 46])));
    burst
}

#[test]
fn each_packet_of_a_burst_has_the_port_that_the_nic_would_choose() {
    for with_super_frames in [false, true] {
        let (mut world, mut own) = (following(), plain());
        // Misses first, then hits.
        for _ in 0..2 {
            let out = world.run(1, burst(with_super_frames));
            let same = own.run(1, burst(with_super_frames));
            assert!(out.len() == same.len() && out.len() >= 31 + if with_super_frames { 45 } else { 0 });
            let mut ports = HashSet::new();
            for ((port, frame), (_, same)) in out.iter().zip(&same) {
                assert_eq!(*port, UPLINK);
                let (packet, same) = (open(frame), open(same));
                assert_eq!(packet.inner, same.inner);
                // What no NIC has rules for goes as if there were none.
                let expected = told(&packet.inner).unwrap_or(same.source_port);
                assert_eq!(packet.source_port, expected, "{:?}", packet.inner);
                ports.insert(packet.source_port);
            }
            assert!(ports.len() > 20, "{ports:?}");
        }
    }
}

#[test]
fn floods_have_it_on_every_copy() {
    let mut world = following();
    world.flood(0, &[2, 3, 4]);
    let mut path = v4(A, R);
    path.dst_mac = MacAddr([2, 0, 0, 0, 0, 0xee]);
    let frames = vec![super_frame(&path, 1000), HeapBuf::new(&path.udp(7, 8, b"unknown"))];
    let out = world.run(1, frames);
    let tunnels: Vec<_> =
        out.iter().filter(|(port, _)| *port == UPLINK).map(|(_, frame)| open(frame)).collect();
    assert_eq!(tunnels.len(), 3 * (5 + 1));
    assert!(tunnels.iter().all(|packet| told(&packet.inner) == Some(packet.source_port)));
}
