//! rcft: admission of reliable-connection queue pairs, and what each of them does.
//!
//! Packets from a vNIC are admitted or refused; packets out of the tunnel are counted. Connection manager messages
//! are in [`super::cm`].

use wire::roce::opcode::Operation;
use wire::roce::{Aeth, Bth};
use wire::{L3, PacketBuf, View};

use super::key::{CLASS_XRC, RoceMasks};
use super::{Cx, cm};
use crate::Sink;
use crate::burst::{Burst, Meta};
use crate::decide::decide;
use crate::direction::Direction;
use crate::event::{Event, Events};
use crate::nft::{Bits, FlowVerdict, NONE, Nft};
use crate::rcft::{QpKey, QpOutcome, Rcft, RocePacketFacts};

/// Looks at the RoCEv2 packets of a burst.
#[inline(never)]
pub fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    rcft: &mut Rcft,
    nft: &Nft,
    roce: RoceMasks,
    events: &Events,
    sink: &mut S,
) {
    let known = (roce.reliable | roce.cnp) & burst.pending;
    for i in Bits(known) {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &mut burst.metas[i];
        meta.qp_hash = rcft.prefetch(meta.direction(), &key_of(meta, packet.head()));
    }
    for i in Bits(known) {
        let meta = &burst.metas[i];
        rcft.prefetch_line(meta.direction(), meta.qp_hash);
    }
    for i in Bits(known & roce.reliable) {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &burst.metas[i];
        let head = packet.head();
        let (key, hash) = (key_of(meta, head), meta.qp_hash);
        let Some(facts) = read(meta, head, packet.len()).filter(|_| key.qpn().get() > 1) else {
            cx.counters.roce_unknown.add(1);
            continue;
        };
        if !goes_on(cx, meta, nft) {
            continue;
        }
        if meta.direction() == Direction::In {
            let (vpc, address) = (meta.vpc, key.address());
            rcft.received(&key, hash, &facts, cx.now, || cx.snapshot.local_vnic(vpc, address));
            continue;
        }
        // What the NFT remembers may rest on a location that is gone, which only the VLT knows.
        let goes_on = || reaches_somewhere(decide(cx.snapshot, &meta.key).verdict);
        let outcome = rcft.sent_if(meta.vnic, &key, hash, &facts, cx.now, goes_on);
        if outcome != QpOutcome::Pass {
            changed(cx, burst, i, Admission { outcome, key }, rcft, events);
        }
    }
    for i in Bits(known & roce.cnp) {
        let Some(packet) = burst.packets[i].as_ref() else { continue };
        let meta = &burst.metas[i];
        rcft.notified(meta.direction(), &key_of(meta, packet.head()), meta.qp_hash);
    }
    if roce.cm & burst.pending != 0 {
        cm::run(cx, burst, rcft, nft, roce.cm, events, sink);
    }
}

/// True when the packet is not about to be dropped: only then does it matter to whom it is.
#[inline(always)]
pub(super) fn goes_on(cx: &Cx, meta: &Meta, nft: &Nft) -> bool {
    reaches_somewhere(match meta.entry {
        NONE => decide(cx.snapshot, &meta.key).verdict,
        entry => nft.entry(entry).action.verdict,
    })
}

#[inline(always)]
const fn reaches_somewhere(verdict: FlowVerdict) -> bool {
    matches!(verdict, FlowVerdict::Forward | FlowVerdict::Flood)
}

/// The queue pair that a packet is for.
#[inline(always)]
fn key_of(meta: &Meta, head: &[u8]) -> QpKey {
    let words = meta.key.words();
    let [high, low] = match meta.key.l3() {
        L3::Ipv6 => [words[2], words[3]],
        _ => QpKey::v4_words(words[0] as u32),
    };
    let qpn = Bth::view(meta.headers.payload(head)).map_or(0, |(bth, _)| bth.dest_qp().get());
    QpKey::from_words([high, low, words[4] & 0xffff_ffff_0000_0000 | u64::from(qpn) << 8])
}

/// What the view needs of a packet; `None` for opcodes that mean nothing.
#[inline(always)]
fn read(meta: &Meta, head: &[u8], len: usize) -> Option<RocePacketFacts> {
    let payload = meta.headers.payload(head);
    let (bth, rest) = Bth::view(payload)?;
    let detail = match Operation::of(bth.opcode)? {
        Operation::Ack => Aeth::view(rest).map_or(0, |(aeth, _)| u32::from(aeth.syndrome)),
        Operation::ReadRequest => {
            let skip = if meta.key.class() == CLASS_XRC { 4 } else { 0 };
            wire::roce::Reth::view_at(rest, skip).map_or(0, |reth| reth.len.get())
        }
        _ => 0,
    };
    Some(RocePacketFacts {
        opcode: bth.opcode,
        psn: bth.psn().get(),
        bytes: len as u32,
        // The head may end before the packet does.
        payload: meta.headers.l4_total_len().saturating_sub(usize::from(meta.headers.l4_len)) as u32,
        detail,
        ce: meta.headers.tos & 3 == 3,
    })
}

/// What became of a packet of a queue pair that was not known.
struct Admission {
    outcome: QpOutcome,
    key: QpKey,
}

/// A queue pair was opened or refused.
#[cold]
#[inline(never)]
fn changed<P>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    Admission { outcome, key }: Admission,
    rcft: &mut Rcft,
    events: &Events,
) {
    let vnic = burst.metas[i].vnic;
    let counters = cx.counters.vnic(vnic as usize);
    let reason = match outcome {
        QpOutcome::Pass => return,
        QpOutcome::Opened => {
            counters.qps_opened.add(1);
            return;
        }
        QpOutcome::Refused(reason) => reason,
        QpOutcome::RefusedNew(reason) => {
            counters.qps_refused.add(1);
            if rcft.may_report(vnic, cx.now.tick) {
                events.push(Event::QpRefused { vnic, peer: key.address(), qpn: key.qpn(), reason });
            }
            reason
        }
    };
    counters.qp_drops.add(1);
    burst.drop(i, reason, cx.counters);
}
