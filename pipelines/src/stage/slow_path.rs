//! slow path: decides for flows that the NFT does not know (or knows from an older configuration), and installs.
//!
//! What comes out of the tunnel is judged by its source first ([`crate::reverse_path`]), packet by packet: the entry of a
//! flow is its owner's, whoever else sends under its name. New flows, and copies of flooded packets, are bounded per burst and
//! rate-limited per source, so that a scanner or a storm starves only itself.

use wire::PacketBuf;

use super::{Cx, security};
use crate::burst::{Burst, Meta};
use crate::connections::{Connections, Watch};
use crate::decide::decide_from;
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::miss::MissLimits;
use crate::nft::{Bits, FlowAction, FlowVerdict, NONE, Nft};
use crate::reverse_path;
use crate::vtep::SourceVtep;

/// What the slow path writes to.
pub struct SlowTables<'a> {
    /// The worker's flow table.
    pub nft: &'a mut Nft,
    /// How much of the slow path each source may use.
    pub limits: &'a mut MissLimits,
    /// The connections of security groups.
    pub connections: &'a Connections,
}

/// Resolves the packets in `misses`; drops those for which there is no budget. Afterwards each pending packet has
/// its own flow's entry, or none where the table is too small to hold them all: such a packet is decided alone.
/// `waited`: they have been here before, and wait no more. Returns the bits of packets whose connection opens once the
/// RCFT has admitted their queue pairs.
#[cold]
#[inline(never)]
pub fn run<P: PacketBuf>(
    cx: &Cx,
    burst: &mut Burst<P>,
    tables: SlowTables,
    misses: u64,
    waited: bool,
) -> u64 {
    let SlowTables { nft, limits, connections } = tables;
    let mut budget = cx.snapshot.settings.miss_budget;
    let mut copies = Copies::default();
    let mut opening = 0;
    limits.set_rate(cx.snapshot.settings.miss_rate);
    if !cx.snapshot.security.is_off() {
        security::prefetch(cx, burst, connections, misses, budget);
    }
    for i in Bits(misses) {
        let head = burst.packets[i].as_ref().map_or(&[][..], P::head);
        let tables = SlowTables { nft, limits, connections };
        let resolved = one(cx, &mut burst.metas[i], head, tables, &mut budget);
        let admitted = resolved.and_then(|Resolved { verdict, opens }| {
            opening |= u64::from(opens) << i;
            match verdict {
                FlowVerdict::Flood if !waited => copies.admit(cx, &burst.metas[i], limits),
                _ => Ok(()),
            }
        });
        if let Err(reason) = admitted {
            burst.drop(i, reason, cx.counters);
        }
    }
    // Room for new flows may have been made by removing entries that other packets of this burst have hit.
    for i in burst.pending() {
        let meta = &mut burst.metas[i];
        if meta.entry != NONE && nft.entry(meta.entry).key != meta.key {
            meta.entry = NONE;
            if !cx.snapshot.security.is_off() {
                // What security groups said of it went with its entry.
                burst.drop(i, DropReason::MISS_LIMIT, cx.counters);
            }
        }
    }
    opening & burst.pending
}

/// What became of a packet that gets on.
struct Resolved {
    verdict: FlowVerdict,
    /// As [`security::Judgement::opens`].
    opens: bool,
}

/// Finds, renews or makes the entry of a packet.
fn one(
    cx: &Cx,
    meta: &mut Meta,
    head: &[u8],
    tables: SlowTables,
    budget: &mut u32,
) -> Result<Resolved, DropReason> {
    let SlowTables { nft, limits, connections } = tables;
    let source = reverse_path::of_packet(cx.snapshot, meta).ok_or(DropReason::INNER_SOURCE)?;
    // An earlier packet of the same burst may have installed the flow.
    let slot = nft.find(&meta.key, meta.hash);
    if let Some(entry) = nft.entry_mut(slot) {
        meta.entry = slot;
        let current = entry.action.generation == cx.snapshot.generation(entry.action.cell);
        if current && entry.action.source == source && cx.snapshot.security.is_off() {
            cx.counters.nft_hits.add(1);
            return Ok(Resolved { verdict: entry.action.verdict, opens: false });
        }
        // A flow that is known already costs no more than the burst is long, and no source can cause it: a
        // change of configuration must not cost it packets.
        // What security groups look at packet by packet, a source can cause: SYNs, packets of what is not established, what
        // they refuse.
        let behind = cx.snapshot.generation(entry.action.cell).wrapping_sub(entry.action.generation);
        let caused = matches!(behind, 0 | security::PER_PACKET) && entry.action.source == source;
        if caused && !limits.admit(meta.key.scope(), cx.now.ns) {
            return Err(DropReason::MISS_LIMIT);
        }
        let Decision { action, watch, opens, .. } = decide(cx, meta, head, source, connections);
        // One that is decided for each packet, and still the same.
        let is_same = action == entry.action;
        let counter = if is_same { &cx.counters.nft_hits } else { &cx.counters.nft_stale };
        counter.add(1);
        entry.action = action;
        entry.set_watch(watch);
        return Ok(Resolved { verdict: action.verdict, opens });
    }
    if *budget == 0 || !limits.admit(meta.key.scope(), cx.now.ns) {
        return Err(DropReason::MISS_LIMIT);
    }
    *budget -= 1;
    let Decision { action, watch, refused, opens } = decide(cx, meta, head, source, connections);
    cx.counters.nft_misses.add(1);
    if meta.direction() == Direction::Out {
        cx.counters.vnic(meta.vnic as usize).nft_misses.add(1);
    }
    meta.entry = nft.insert(meta.key, meta.hash, action, cx.now.tick);
    match (nft.entry_mut(meta.entry), refused) {
        (Some(entry), _) => entry.set_watch(watch),
        // A packet without an entry is decided alone, and of connections nothing is asked then.
        (None, Some(reason)) => return Err(reason),
        (None, None) => {}
    }
    Ok(Resolved { verdict: action.verdict, opens })
}

/// What becomes of a flow, and what that rests on.
struct Decision {
    action: FlowAction,
    watch: Watch,
    /// Why security groups refuse it.
    refused: Option<DropReason>,
    /// As [`security::Judgement::opens`].
    opens: bool,
}

fn decide(cx: &Cx, meta: &Meta, head: &[u8], source: SourceVtep, connections: &Connections) -> Decision {
    let action = decide_from(cx.snapshot, &meta.key, source);
    if cx.snapshot.security.is_off() {
        return Decision { action, watch: Watch::NONE, refused: None, opens: false };
    }
    let judged = security::judge(cx, connections, meta, head, &action);
    let action = judged.applied(cx.snapshot, meta, action);
    Decision { action, watch: judged.watch, refused: judged.refused, opens: judged.opens }
}

/// Copies of flooded packets that a burst has made.
#[derive(Default)]
struct Copies(u32);

impl Copies {
    /// Lets a packet flood, or tells why not: a source that floods too much, or a burst that has. So a burst makes no more
    /// copies than its budget, and neither a storm nor one packet into many VTEPs takes queues, buffers and time from the
    /// packets of others. A packet gets all of its copies or none: whoever misses one must not depend on the order of a
    /// list.
    ///
    /// Nor do copies go on in later bursts, although a budget smaller than the list then served it too: the packet would wait on
    /// this worker while snapshots come, in which the list is another one, and behind packets of other vNICs, for whose
    /// sake the queue needed shares of its own; what the VPC floods next had to wait behind it to keep its order. A budget as large as the
    /// longest list is one number, which `check` tells, and the sender's rate bounds how often a burst is that long.
    fn admit(&mut self, cx: &Cx, meta: &Meta, limits: &mut MissLimits) -> Result<(), DropReason> {
        let settings = &cx.snapshot.settings;
        let Some(vpc) = cx.snapshot.vpc(meta.vpc) else { return Ok(()) };
        let remote = if meta.direction() == Direction::In { 0 } else { vpc.flood_slots.len() };
        let copies = u32::try_from(vpc.vnics.len() + remote).unwrap_or(u32::MAX);
        let all = self.0.saturating_add(copies);
        if all > settings.flood_budget {
            return Err(DropReason::FLOOD_BUDGET);
        }
        if !limits.admit_flood(meta.key.scope(), copies, settings.flood_rate, cx.now.ns) {
            return Err(DropReason::FLOOD_LIMIT);
        }
        self.0 = all;
        Ok(())
    }
}
