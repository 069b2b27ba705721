//! What a worker tells of its flows to whoever decides which of them go into hardware, and what it is told of those
//! that are there.
//!
//! ```text
//!   burst --one packet--> hints --> control: which flows? --> usage: how much of each? --> hot ones into hardware
//!                                   NFT, RCFT, vNIC counters <-- account <-- what hardware did of a flow
//! ```
//! A flow with a share of the traffic has that share of the hints: no table is searched for hot flows.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use wire::roce::Bth;
use wire::{PacketBuf, Qpn, View};

use crate::Now;
use crate::burst::{Burst, Meta};
use crate::counters::PipelineCounters;
use crate::direction::Direction;
use crate::flow_key::{FlowKey, Scope};
use crate::nft::{Bits, FlowVerdict, NONE, Nft};
use crate::offload::translate::FlowSelector;
use crate::rcft::{QpKey, Rcft};
use crate::snapshot::Snapshot;
use crate::stage::key::{CLASS_CM, CLASS_CNP, CLASS_OTHER, is_reliable};
use crate::vlt::Place;
use rules::Usage;

/// Where hints of one worker go. What finds it full is not told.
pub type HintQueue = Arc<ArrayQueue<FlowSelector>>;

/// Picks a packet of each burst.
pub struct Hints {
    queue: HintQueue,
    /// Chance: traffic that comes in a rhythm must not hide from it. Knuth's linear congruential generator.
    chance: u64,
}

impl Hints {
    /// Hints for `queue`.
    pub fn new(queue: HintQueue) -> Self {
        Self { queue, chance: 1 }
    }

    /// Tells of one of the packets that go on.
    #[inline(never)]
    pub(crate) fn pick<P: PacketBuf>(&mut self, burst: &Burst<P>, nft: &Nft) {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let one = ((self.chance >> 32) * u64::from(burst.pending.count_ones())) >> 32;
        let Some(i) = Bits(burst.pending).nth(one as usize) else { return };
        let meta = &burst.metas[i];
        let goes_on = meta.entry != NONE && nft.entry(meta.entry).action.verdict == FlowVerdict::Forward;
        let Some(packet) = burst.packets[i].as_ref().filter(|_| goes_on) else { return };
        if let Some(selector) = ask_of(meta, packet.head()) {
            // Full: control has enough to look at.
            let _ = self.queue.push(selector);
        }
    }
}

/// The flow of a packet, as offload knows flows; `None` where software wants to see every packet.
fn ask_of(meta: &Meta, head: &[u8]) -> Option<FlowSelector> {
    let key = meta.key;
    if key.class() == 0 {
        return Some(FlowSelector { key, qpn: None, source_port: None });
    }
    let source_port = meta.headers.udp(head).map(|udp| udp.src_port.get());
    let qpn = if is_reliable(key.class()) {
        Some(Bth::view(meta.headers.payload(head)).map(|(bth, _)| bth.dest_qp())?)
    } else {
        None
    };
    (!matches!(key.class(), CLASS_CNP | CLASS_CM | CLASS_OTHER)).then_some(FlowSelector {
        key,
        qpn,
        source_port,
    })
}

/// The queue pair of a flow of a reliable connection, as RCFT knows it.
pub fn queue_pair(key: &FlowKey, qpn: Qpn) -> Option<(Direction, QpKey)> {
    let receiver = key.addresses()?.destination;
    Some((key.direction(), QpKey::new(key.scope(), receiver, qpn)))
}

/// What a worker has counted of a flow in all; `None` when it does not know the flow.
pub(crate) fn usage(nft: &Nft, rcft: &Rcft, selector: &FlowSelector) -> Option<Usage> {
    // The flow of a queue pair is in the NFT, too, as `account` wants it.
    let slot = match nft.find(&selector.key, selector.key.hash(nft.seed())) {
        NONE => return None,
        slot => slot,
    };
    if let Some(qpn) = selector.qpn {
        let (direction, key) = queue_pair(&selector.key, qpn)?;
        return rcft.view(direction, &key).map(|pair| Usage { packets: pair.packets, bytes: pair.bytes });
    }
    let entry = nft.entry(slot);
    Some(Usage { packets: entry.packets, bytes: entry.bytes })
}

/// Adds what hardware did of a flow to what the worker has counted. `false` when the worker does not know the flow.
pub(crate) fn account(
    nft: &mut Nft,
    rcft: &mut Rcft,
    counters: &PipelineCounters,
    snapshot: &Snapshot,
    selector: &FlowSelector,
    Usage { packets, bytes }: Usage,
    now: Now,
) -> bool {
    if let Some((direction, key)) = selector.qpn.and_then(|qpn| queue_pair(&selector.key, qpn)) {
        rcft.account(direction, &key, packets, bytes, now.tick);
    }
    let slot = nft.find(&selector.key, selector.key.hash(nft.seed()));
    let Some(entry) = nft.entry_mut(slot) else { return false };
    entry.packets = entry.packets.wrapping_add(packets);
    entry.bytes = entry.bytes.wrapping_add(bytes);
    entry.last_seen = now.tick;
    let rdma = if selector.key.class() == 0 { 0 } else { packets };
    if let Scope::Vnic(vnic) = selector.key.scope() {
        let row = counters.vnic(vnic as usize);
        row.rx_packets.add(packets);
        row.rx_bytes.add(bytes);
        row.rdma_rx_packets.add(rdma);
    }
    if let Place::Local { vnic } = snapshot.vlt.read(entry.action.slot).place {
        let row = counters.vnic(vnic as usize);
        row.tx_packets.add(packets);
        row.tx_bytes.add(bytes);
        row.rdma_tx_packets.add(rdma);
    }
    true
}
