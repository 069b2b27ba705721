//! lookup: the burst against the NFT; what hits and is up to date goes on, the rest takes the slow path.

use super::Cx;
use crate::burst::Burst;
use crate::nft::Nft;

/// Looks up the pending packets and returns the bits of those that need the slow path.
#[inline]
pub fn run<P>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft) -> u64 {
    let hits = nft.lookup_burst_if(&mut burst.metas[..], burst.pending, |action| {
        cx.snapshot.vlt.prefetch(action.slot);
        action.generation == cx.snapshot.generation(action.cell)
    });
    cx.counters.nft_hits.add(u64::from(hits.count_ones()));
    burst.pending & !hits
}
