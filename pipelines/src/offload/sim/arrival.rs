//! The flow of a packet as the e-switch sees it: the same number as that of the gate that matches it.

use wire::roce::{BTH_LEN, Bth, RoceClass};
use wire::{Headers, L3, View, protocol};

use super::layers::{Layers, Registers};
use crate::flow_key::be64;
use crate::offload::arrival::{FlowOrigin, hash};

/// The flow of a packet as it was received.
pub(super) fn flow_of_packet(layers: &Layers, head: &[u8], registers: &Registers) -> u64 {
    let (origin, frame, headers) = match layers.inner() {
        Some((at, vni, headers)) => (FlowOrigin::Vni(vni), head.get(at..).unwrap_or_default(), headers),
        None => (FlowOrigin::Port(registers.port), head, layers.outer()),
    };
    let l3 = usize::from(headers.l3_offset);
    let addresses = match headers.l3 {
        L3::Ipv4 => [be64(frame, l3 + 12), 0, 0, 0],
        L3::Ipv6 => [8, 16, 24, 32].map(|at| be64(frame, l3 + at)),
        L3::None | L3::Arp => return hash(origin, [0; 4], 0, 0),
    };
    let layer4 = match headers.proto {
        protocol::TCP => ports(headers),
        protocol::UDP if headers.is_udp_to(layers.rdma_port()) => queue_pair(headers, frame),
        protocol::UDP => ports(headers),
        _ => 0,
    };
    hash(origin, addresses, headers.proto, layer4)
}

fn ports(headers: &Headers) -> u32 {
    u32::from(headers.sport) << 16 | u32::from(headers.dport)
}

/// The destination of a reliable connection. The gates of other classes match no queue pair.
fn queue_pair(headers: &Headers, frame: &[u8]) -> u32 {
    let bth = Bth::view(headers.payload(frame)).filter(|_| headers.l4_total_len() >= 8 + BTH_LEN);
    bth.map_or(0, |(bth, _)| match RoceClass::of(bth.opcode, bth.dest_qp()) {
        RoceClass::Rc | RoceClass::Xrc => bth.dest_qp().get(),
        _ => 0,
    })
}
