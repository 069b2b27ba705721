//! rcft: admission of reliable-connection queue pairs, and what each of them does.
//!
//! Packets from a vNIC are admitted or refused; packets out of the tunnel are counted. What is admitted here opens the way
//! back through the vNIC's security groups. Connection manager messages are in [`super::cm`].

use wire::{L3, PacketBuf, Qpn};

use super::key::RoceMasks;
use super::{Cx, cm, security};
use crate::Sink;
use crate::burst::{Burst, MAX_BURST, Meta};
use crate::connections::Connections;
use crate::decide::decide;
use crate::direction::Direction;
use crate::event::Event;
use crate::nft::{Bits, FlowVerdict, NONE, Nft};
use crate::rcft::{QpKey, QpOutcome, QpProbe, Rcft, RocePacketFacts};

/// What the packets of a burst say to their queue pairs, each read once.
pub struct RoceBurst {
    packets: Box<[RocePacket; MAX_BURST]>,
}

impl Default for RoceBurst {
    fn default() -> Self {
        Self { packets: Box::new([RocePacket::default(); MAX_BURST]) }
    }
}

/// What a packet says to its queue pair.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct RocePacket {
    probe: QpProbe,
    facts: RocePacketFacts,
}

const _: () = assert!(size_of::<RocePacket>() == 64);

/// Looks at the RoCEv2 packets of a burst, which all go the same direction.
#[inline(never)]
pub fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    RoceTables { rcft, said, nft, connections }: RoceTables<'_>,
    direction: Direction,
    roce: RoceMasks,
    sink: &mut S,
) {
    let looked_at = (roce.reliable | roce.cnp) & burst.pending;
    let mut readable = looked_at;
    for i in Bits(looked_at) {
        let meta = &burst.metas[i];
        let read = burst.packets[i].as_ref().and_then(|packet| {
            RocePacketFacts::read(&meta.headers, meta.key.class(), packet.head(), packet.len())
        });
        let Some((qpn, facts)) = read else {
            readable &= !(1 << i);
            continue;
        };
        let key = key_of(meta, qpn);
        let hash = rcft.prefetch(direction, &key);
        said.packets[i] = RocePacket { probe: QpProbe { key, hash, slot: 0 }, facts };
    }
    let unknown = looked_at & !readable & roce.reliable;
    if unknown != 0 {
        cx.counters.roce_unknown.add(u64::from(unknown.count_ones()));
    }
    for i in Bits(readable) {
        let probe = &mut said.packets[i].probe;
        probe.slot = rcft.prefetch_line(direction, probe.hash);
    }
    let mut opened = 0;
    for i in Bits(readable & roce.reliable) {
        let RocePacket { probe, facts } = &said.packets[i];
        let meta = &burst.metas[i];
        if !goes_on(cx, meta, nft) {
            continue;
        }
        if direction == Direction::In {
            let vnic = || cx.snapshot.local_vnic(meta.vpc, probe.key.address());
            rcft.received(probe, facts, cx.now, vnic);
            continue;
        }
        // What the NFT remembers may rest on a location that is gone, which only the VLT knows.
        let goes_on = || reaches_somewhere(decide(cx.snapshot, &meta.key).verdict);
        let outcome = rcft.sent_if(meta.vnic, probe, facts, cx.now, goes_on);
        if outcome != QpOutcome::Pass {
            changed(cx, burst, i, Admission { outcome, key: probe.key }, rcft);
            opened |= 1 << i;
        }
    }
    for i in Bits(readable & roce.cnp) {
        rcft.notified(direction, &said.packets[i].probe);
    }
    if roce.cm & burst.pending != 0 {
        opened |= cm::run(cx, burst, rcft, nft, roce.cm, sink);
    }
    // What was refused is pending no more.
    let opening = (roce.opening & readable & roce.reliable | opened) & burst.pending;
    if opening != 0 && !cx.snapshot.security.is_off() {
        security::open(cx, burst, nft, connections, opening);
    }
}

/// What RoCEv2 packets are looked up in.
pub struct RoceTables<'a> {
    /// Their queue pairs.
    pub rcft: &'a mut Rcft,
    /// Room for what they say.
    pub said: &'a mut RoceBurst,
    /// Their flows.
    pub nft: &'a mut Nft,
    /// The connections of security groups.
    pub connections: &'a Connections,
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
fn key_of(meta: &Meta, qpn: Qpn) -> QpKey {
    let words = meta.key.words();
    let [high, low] = match meta.key.l3() {
        L3::Ipv6 => [words[2], words[3]],
        _ => QpKey::v4_words(words[0] as u32),
    };
    QpKey::from_words([high, low, words[4] & 0xffff_ffff_0000_0000 | u64::from(qpn.get()) << 8])
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
                cx.events.push(Event::QpRefused { vnic, peer: key.address(), qpn: key.qpn(), reason });
            }
            reason
        }
    };
    counters.qp_drops.add(1);
    burst.drop(i, reason, cx.counters);
}
