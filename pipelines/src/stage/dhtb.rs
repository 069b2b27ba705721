//! dhtb: each packet across the tunnel pays its class, vNIC, tenant and link; RDMA over its rates is marked, other
//! traffic waits.
//!
//! What goes from vNIC to vNIC on one host crosses no link and pays nothing.

use wire::roce::opcode::Operation;
use wire::roce::{Bth, opcode};
use wire::{Ecn, PacketBuf, View, udp};

use super::Cx;
use super::outer::set_ecn;
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::drops::DropReason;
use crate::nft::{NONE, Nft, Verdict as Decision};
use crate::qos::{Class, Dhtb, Direction, Kind, Leaf, Offer, Tree, Verdict};
use crate::vlt::{Hot, Place, Tunnel};

/// A packet that waits for tokens.
pub struct Parked<P> {
    /// The packet.
    pub packet: P,
    /// What is known of it.
    pub meta: Meta,
}

/// Lets the packets of a burst pay.
#[inline(always)]
pub fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, dhtb: &mut Dhtb<Parked<P>>, nft: &Nft) {
    // What waits goes first, even when the last limit is gone.
    if !dhtb.tree().is_free() || dhtb.waiting() > 0 {
        pay(cx, burst, dhtb, nft);
    }
}

#[inline(never)]
fn pay<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, dhtb: &mut Dhtb<Parked<P>>, nft: &Nft) {
    let law = &cx.snapshot.settings.law;
    for i in burst.pending() {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &burst.metas[i];
        let Some((direction, vnic, tunnel)) = across(cx, meta, nft) else { continue };
        let class = if meta.key.class() != 0 { Class::Rdma } else { Class::Tcp };
        let leaf = dhtb.tree().leaf(direction, vnic, class);
        let bytes = packet.len() as u32 + law.overhead;
        if !dhtb.pays(leaf, bytes) {
            over(cx, burst, i, dhtb, (leaf, bytes, tunnel));
        }
    }
}

/// Which way a packet crosses the tunnel, whose it is there, and the bytes of the tunnel's headers.
#[inline(always)]
fn across(cx: &Cx, meta: &Meta, nft: &Nft) -> Option<(Direction, u32, u32)> {
    if meta.entry == NONE {
        return (meta.vnic != NO_INDEX).then_some((Direction::Out, meta.vnic, 0));
    }
    let action = &nft.entry(meta.entry).action;
    match action.verdict {
        Decision::Forward => {}
        Decision::Flood if meta.vnic != NO_INDEX => return Some((Direction::Out, meta.vnic, 0)),
        _ => return None,
    }
    let local = match cx.snapshot.vlt.read_hot(action.slot, action.slot_generation) {
        Hot::Tunnel4 { .. } => {
            return (meta.vnic != NO_INDEX).then_some((Direction::Out, meta.vnic, V4_TUNNEL));
        }
        Hot::Local { vnic } => Some(vnic),
        Hot::Other => match cx.snapshot.vlt.read(action.slot).place {
            Place::Local { vnic } => Some(vnic),
            Place::Remote(tunnel) => return remote(meta, &tunnel),
            Place::Unresolved { .. } | Place::Empty => None,
        },
    };
    match local {
        Some(vnic) if meta.vnic == NO_INDEX => Some((Direction::In, vnic, V4_TUNNEL)),
        _ => None,
    }
}

/// Outer headers over untagged IPv4.
const V4_TUNNEL: u32 = 50;

fn remote(meta: &Meta, tunnel: &Tunnel) -> Option<(Direction, u32, u32)> {
    (meta.vnic != NO_INDEX).then_some((Direction::Out, meta.vnic, u32::from(tunnel.len)))
}

/// A packet for which no tokens were at hand.
#[inline(never)]
fn over<P: PacketBuf>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    dhtb: &mut Dhtb<Parked<P>>,
    (leaf, bytes, tunnel): (Leaf, u32, u32),
) {
    let meta = burst.metas[i];
    let Some(packet) = burst.take(i) else { return };
    let kind = kind(cx, &meta, packet.head(), dhtb.tree(), (leaf, bytes));
    let settings = &cx.snapshot.settings;
    let rules = (&settings.law, settings.queues);
    let verdict = dhtb.offer(leaf, Parked { packet, meta }, Offer { bytes, tunnel, kind }, rules, cx.now.ns);
    let (parked, reason) = match verdict {
        Verdict::Send(parked) => (parked, None),
        Verdict::Mark(mut parked) => {
            mark(cx, &mut parked, dhtb.tree(), leaf);
            (parked, None)
        }
        Verdict::Kept => {
            cx.counters.waited.add(1);
            cx.counters.waiting.set(u64::from(dhtb.waiting()));
            return;
        }
        Verdict::ClassFull(parked) if kind == Kind::Tcp => (parked, Some(DropReason::TCP_SHAPED)),
        Verdict::ClassFull(parked) => (parked, Some(DropReason::RDMA_OVERRUN)),
        Verdict::WorkerFull(parked) => (parked, Some(DropReason::SHAPER_FULL)),
    };
    burst.packets[i] = Some(parked.packet);
    burst.pending |= 1 << i;
    if let Some(reason) = reason {
        dhtb.tree().count_drop(leaf);
        burst.drop(i, reason, cx.counters);
    }
}

/// Sets congestion experienced in a packet that listens to it.
pub(crate) fn mark<P: PacketBuf>(cx: &Cx, parked: &mut Parked<P>, tree: &Tree, leaf: Leaf) {
    let rdma = parked.meta.key.class() != 0;
    let headers = &mut parked.meta.headers;
    if headers.is_ip() && matches!(headers.tos & 3, 1 | 2) && set_ecn(&mut parked.packet, headers, Ecn::Ce) {
        headers.tos = Ecn::Ce.into_tos(headers.tos);
        let marked = if rdma { &cx.counters.rdma_marked } else { &cx.counters.tcp_marked };
        marked.add(1);
        tree.count_mark(leaf);
    }
}

fn kind(cx: &Cx, meta: &Meta, head: &[u8], tree: &Tree, (leaf, bytes): (Leaf, u32)) -> Kind {
    if meta.key.class() == 0 {
        return Kind::Tcp;
    }
    let headers = &meta.headers;
    if let Some((bth, _)) = Bth::view(headers.payload(head)) {
        let len = headers.l4_total_len().saturating_sub(udp::HEADER_LEN);
        // Opcodes are the guest's choice: beyond their legal length and their rate, packets are data.
        if opcode::control_len(bth.opcode, bth.dest_qp()) == Some(len)
            && tree.may_control(leaf, bytes, cx.now.ns)
        {
            let cnp = Operation::of(bth.opcode) == Some(Operation::Cnp);
            return if cnp { Kind::Notice } else { Kind::Control };
        }
    }
    if headers.tos & 3 == 0 { Kind::RdmaUnmarkable } else { Kind::Rdma }
}
