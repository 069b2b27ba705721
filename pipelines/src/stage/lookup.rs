//! lookup: the burst against the NFT; what hits and is up to date goes on, the rest takes the slow path.
//!
//! So does one whose connection changed or changes ([`crate::security`]), and a packet out of the tunnel whose VTEP is not the one behind which the flow's source is now.

use super::{Cx, security};
use crate::burst::Burst;
use crate::connections::Connections;
use crate::direction::Direction;
use crate::nft::{Bits, Nft};

/// Looks up the pending packets and returns the bits of those that need the slow path. `tunnels`: some of them may have
/// come out of a tunnel.
#[inline]
pub fn run<P>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft, connections: &Connections, tunnels: bool) -> u64 {
    let vlt = &cx.snapshot.vlt;
    let mut hits = nft.lookup_burst_if(&mut burst.metas[..], burst.pending, |action| {
        vlt.prefetch(action.slot);
        if tunnels {
            action.source.prefetch(vlt);
        }
        action.generation == cx.snapshot.generation(action.cell)
    });
    if tunnels {
        for i in Bits(hits) {
            let meta = &burst.metas[i];
            if meta.direction() == Direction::In
                && !nft.entry(meta.entry).action.source.admits(vlt, meta.vtep)
            {
                hits &= !(1 << i);
            }
        }
    }
    if !cx.snapshot.security.is_off() {
        hits &= !security::unsettled(cx, burst, nft, connections, hits);
    }
    cx.counters.nft_hits.add(u64::from(hits.count_ones()));
    burst.pending & !hits
}
