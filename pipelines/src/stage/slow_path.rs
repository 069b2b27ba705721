//! slow path: decides for flows that the NFT does not know (or knows from an older configuration), and installs.
//!
//! What comes out of the tunnel is judged by its source first ([`crate::reverse_path`]), packet by packet: the entry of a
//! flow is its owner's, whoever else sends under its name. New flows are bounded per burst and rate-limited per source, so that a scanner starves only itself.

use wire::PacketBuf;

use super::Cx;
use crate::burst::Burst;
use crate::decide::decide_from;
use crate::drops::DropReason;
use crate::miss::MissLimits;
use crate::nft::{Bits, NONE, Nft};
use crate::reverse_path;

/// Resolves the packets in `misses`; drops those for which there is no budget. Afterwards each pending packet has
/// its own flow's entry, or none where the table is too small to hold them all: such a packet is decided alone.
#[cold]
#[inline(never)]
pub fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, nft: &mut Nft, limits: &mut MissLimits, misses: u64) {
    let mut budget = cx.snapshot.settings.miss_budget;
    limits.set_rate(cx.snapshot.settings.miss_rate);
    for i in Bits(misses) {
        let meta = &mut burst.metas[i];
        let Some(source) = reverse_path::of_packet(cx.snapshot, meta) else {
            burst.drop(i, DropReason::INNER_SOURCE, cx.counters);
            continue;
        };
        // An earlier packet of the same burst may have installed the flow.
        let slot = nft.find(&meta.key, meta.hash);
        if slot != NONE {
            let action = &nft.entry(slot).action;
            if action.generation == cx.snapshot.generation(action.cell) && action.source == source {
                meta.entry = slot;
                cx.counters.nft_hits.add(1);
                continue;
            }
        }
        // A flow that is known already costs no more than the burst is long, and no source can cause it: a
        // change of configuration must not cost it packets.
        if slot != NONE {
            cx.counters.nft_stale.add(1);
            meta.entry = slot;
            if let Some(entry) = nft.entry_mut(slot) {
                entry.action = decide_from(cx.snapshot, &meta.key, source);
            }
            continue;
        }
        if budget == 0 || !limits.admit(meta.key.scope(), cx.now.ns) {
            burst.drop(i, DropReason::MISS_LIMIT, cx.counters);
            continue;
        }
        budget -= 1;
        let action = decide_from(cx.snapshot, &meta.key, source);
        cx.counters.nft_misses.add(1);
        if meta.vnic != crate::burst::NO_INDEX {
            cx.counters.vnic(meta.vnic as usize).misses.add(1);
        }
        meta.entry = nft.insert(meta.key, meta.hash, action, cx.now.tick);
    }
    // Room for new flows may have been made by removing entries that other packets of this burst have hit.
    for i in burst.pending() {
        let meta = &mut burst.metas[i];
        if meta.entry != NONE && nft.entry(meta.entry).key != meta.key {
            meta.entry = NONE;
        }
    }
}
