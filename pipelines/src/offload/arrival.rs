//! Flows as the e-switch tells them apart, and how many of their packets went to software.
//!
//! Whoever opens the gate of a flow has to know that none of its packets is on its way through software. So the
//! e-switch counts what it sends there by a hash of the packet's flow, and software counts by the same hash what has
//! left it. Flows that share a slot wait for each other: coarser than a flow is safe, finer would not be.

use std::sync::atomic::{AtomicU64, Ordering};

use super::translate::{FlowSelector, Tables};
use crate::flow_key::{FlowKey, FlowPorts, Scope, mix};
use crate::stage::key::is_reliable;

/// Slots that arrivals are counted in.
pub const ARRIVAL_SLOTS: usize = 1 << 16;

/// The slot of a flow.
pub const fn arrival_slot(flow: u64) -> usize {
    flow as usize & (ARRIVAL_SLOTS - 1)
}

/// Where the packets of a flow come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowOrigin {
    /// What this DPDK port stands for.
    Port(u16),
    /// A tunnel of this network, whatever the port.
    Vni(u32),
}

impl FlowOrigin {
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

/// The flow that the gate of `selector` matches. The same number as that of its packets: [`super::sim::Fate::Software`].
pub fn flow_of(selector: &FlowSelector, origin: FlowOrigin) -> u64 {
    let words = selector.key.words();
    let addresses = [words[0], words[1], words[2], words[3]];
    let FlowPorts { source: sport, destination: dport } = selector.key.ports();
    let layer4 = match selector.key.class() {
        0 => u32::from(sport) << 16 | u32::from(dport),
        class if is_reliable(class) => selector.qpn.map_or(0, |qpn| qpn.get()),
        _ => 0,
    };
    hash(origin, addresses, selector.key.proto(), layer4)
}

/// The number of a flow: the same from its key and from its packets.
pub(super) fn hash(origin: FlowOrigin, addresses: [u64; 4], proto: u8, layer4: u32) -> u64 {
    const K: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f];
    let origin = match origin {
        FlowOrigin::Port(port) => u64::from(port),
        FlowOrigin::Vni(vni) => 1 << 32 | u64::from(vni),
    };
    let [a, b, c, d] = addresses;
    let mut hash = mix(a ^ K[0], u64::from(proto) << 32 ^ u64::from(layer4) ^ K[1]);
    if b | c | d != 0 {
        hash ^= mix(b ^ K[2], c ^ K[0]) ^ mix(d ^ K[1], K[2]);
    }
    mix(hash ^ K[2], origin ^ K[1])
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
