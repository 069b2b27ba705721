//! lookup: the burst against the NFT; what hits and is up to date goes on, the rest takes the slow path.

use super::Cx;
use crate::burst::Burst;
use crate::nft::{Bits, Nft};

/// Looks up the pending packets and returns the bits of those that need the slow path.
#[inline]
pub fn run<P>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft) -> u64 {
    let hits = nft.lookup_burst(&mut burst.metas, burst.pending);
    let mut stale = 0;
    for i in Bits(hits) {
        let action = &nft.entry(burst.metas[i].entry).action;
        cx.snapshot.vlt.prefetch(action.slot);
        stale |= u64::from(action.generation != cx.snapshot.generation(action.cell)) << i;
    }
    cx.counters.nft_hits.add(u64::from((hits & !stale).count_ones()));
    burst.pending & !(hits & !stale)
}
