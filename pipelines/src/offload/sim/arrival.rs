//! Flows as the e-switch tells them apart, and how many of their packets went to software.
//!
//! Whoever opens the gate of a flow has to know that none of its packets is on its way through software. So the
//! e-switch counts what it sends there by a hash of the packet's flow, and software counts by the same hash what has
//! left it. Flows that share a slot wait for each other: coarser than a flow is safe, finer would not be.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::roce::{BTH_LEN, Bth, Class};
use wire::{Headers, L3, View, protocol};

use super::layers::{Layers, Registers};
use crate::flow_key::{FlowKey, Scope, be64, mix};
use crate::offload::translate::{Ask, Tables};
use crate::stage::key::is_reliable;

/// Slots that arrivals are counted in.
pub const ARRIVAL_SLOTS: usize = 1 << 16;

/// The slot of a flow.
pub const fn arrival_slot(flow: u64) -> usize {
    flow as usize & (ARRIVAL_SLOTS - 1)
}

/// Where the packets of a flow come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// What this DPDK port stands for.
    Port(u16),
    /// A tunnel of this network, whatever the port.
    Vni(u32),
}

impl Side {
    /// Where the packets of a flow come from; `None` when the tables do not know it, or when the port is not on the
    /// e-switch.
    pub fn of(tables: &Tables, key: &FlowKey) -> Option<Self> {
        match key.scope() {
            Scope::Vnic(index) => {
                let port = tables.snapshot.row(index).port;
                tables.ports.get(usize::from(port)).copied().flatten().map(Self::Port)
            }
            Scope::Vpc(index) => tables.snapshot.vpc(index).map(|vpc| Self::Vni(vpc.vni.get())),
        }
    }
}

/// The flow that the gate of `ask` matches. The same number as that of its packets: [`super::Fate::Software`].
pub fn flow_of(ask: &Ask, side: Side) -> u64 {
    let words = ask.key.words();
    let addresses = [words[0], words[1], words[2], words[3]];
    let (sport, dport) = ask.key.ports();
    let layer4 = match ask.key.class() {
        0 => u32::from(sport) << 16 | u32::from(dport),
        class if is_reliable(class) => ask.qpn.map_or(0, |qpn| qpn.get()),
        _ => 0,
    };
    hash(side, addresses, ask.key.proto(), layer4)
}

/// The flow of a packet as it was received.
pub(super) fn flow_of_packet(layers: &Layers, head: &[u8], registers: &Registers) -> u64 {
    let (side, frame, headers) = match layers.inner() {
        Some((at, vni, headers)) => (Side::Vni(vni), head.get(at..).unwrap_or_default(), headers),
        None => (Side::Port(registers.port), head, layers.outer()),
    };
    let l3 = usize::from(headers.l3_offset);
    let addresses = match headers.l3 {
        L3::Ipv4 => [be64(frame, l3 + 12), 0, 0, 0],
        L3::Ipv6 => [8, 16, 24, 32].map(|at| be64(frame, l3 + at)),
        L3::None | L3::Arp => return hash(side, [0; 4], 0, 0),
    };
    let layer4 = match headers.proto {
        protocol::TCP => ports(headers),
        protocol::UDP if headers.is_udp_to(layers.rdma_port()) => queue_pair(headers, frame),
        protocol::UDP => ports(headers),
        _ => 0,
    };
    hash(side, addresses, headers.proto, layer4)
}

fn ports(headers: &Headers) -> u32 {
    u32::from(headers.sport) << 16 | u32::from(headers.dport)
}

/// The destination of a reliable connection. The gates of other classes match no queue pair.
fn queue_pair(headers: &Headers, frame: &[u8]) -> u32 {
    let bth = Bth::view(headers.payload(frame)).filter(|_| headers.l4_total_len() >= 8 + BTH_LEN);
    bth.map_or(0, |(bth, _)| match Class::of(bth.opcode, bth.dest_qp()) {
        Class::Rc | Class::Xrc => bth.dest_qp().get(),
        _ => 0,
    })
}

fn hash(side: Side, addresses: [u64; 4], proto: u8, layer4: u32) -> u64 {
    const K: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f];
    let side = match side {
        Side::Port(port) => u64::from(port),
        Side::Vni(vni) => 1 << 32 | u64::from(vni),
    };
    let [a, b, c, d] = addresses;
    let mut hash = mix(a ^ K[0], u64::from(proto) << 32 ^ u64::from(layer4) ^ K[1]);
    if b | c | d != 0 {
        hash ^= mix(b ^ K[2], c ^ K[0]) ^ mix(d ^ K[1], K[2]);
    }
    mix(hash ^ K[2], side ^ K[1])
}

/// Counts packets by flow: those that went to software, or those that have left it. Written by one, read by anybody.
#[derive(Debug)]
pub struct Arrivals(Box<[AtomicU64]>);

impl Default for Arrivals {
    fn default() -> Self {
        Self((0..ARRIVAL_SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Arrivals {
    /// Counts a packet; for one writer.
    #[inline]
    pub fn add(&self, flow: u64) {
        if let Some(count) = self.0.get(arrival_slot(flow)) {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }

    /// Packets of this flow, and of those that share its slot.
    pub fn of(&self, flow: u64) -> u64 {
        self.0.get(arrival_slot(flow)).map_or(0, |count| count.load(Ordering::Acquire))
    }
}
