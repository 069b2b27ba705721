//! lookup: the burst against the NFT; what hits and is up to date goes on, the rest takes the slow path.
//!
//! So does one whose connection changed or changes ([`crate::security`]), and a packet out of the tunnel whose VTEP is not the one behind which the flow's source is now.

use super::{Cx, security};
use crate::burst::{Burst, Meta};
use crate::connections::Connections;
use crate::direction::Direction;
use crate::nft::{Bits, Nft, NftEntry};

/// Looks up the pending packets and returns the bits of those that need the slow path. `tunnels`: some of them may have
/// come out of a tunnel.
#[inline]
pub fn run<P>(cx: &Cx, burst: &mut Burst<P>, nft: &Nft, connections: &Connections, tunnels: bool) -> u64 {
    // Bits of packets whose connection is to be looked at closely: hardly any. Where there are no security groups nobody asks.
    let mut doubtful = 0;
    let mut hits = if cx.snapshot.security.is_off() {
        look_up(cx, burst, nft, tunnels, |_, _, _| {})
    } else {
        let (versions, due_before) = (connections.versions(), security::due_before(cx.now.tick));
        look_up(cx, burst, nft, tunnels, |i, meta, entry| {
            if !security::is_settled(versions, due_before, meta, entry) {
                doubtful |= 1 << i;
            }
        })
    };
    if tunnels {
        let vlt = &cx.snapshot.vlt;
        for i in Bits(hits) {
            let meta = &burst.metas[i];
            if meta.direction() == Direction::In
                && !nft.entry(meta.entry).action.source.admits(vlt, meta.vtep)
            {
                hits &= !(1 << i);
            }
        }
    }
    // Not before its source was judged: a connection is kept alive by its own packets only.
    if hits & doubtful != 0 {
        hits &= !security::unsettled(cx, burst, nft, connections, hits & doubtful);
    }
    cx.counters.nft_hits.add(u64::from(hits.count_ones()));
    burst.pending & !hits
}

/// Bits of the pending packets whose flows are known and up to date; `found` sees each flow that is known.
#[inline(always)]
fn look_up<P>(
    cx: &Cx,
    burst: &mut Burst<P>,
    nft: &Nft,
    tunnels: bool,
    mut found: impl FnMut(usize, &Meta, &NftEntry),
) -> u64 {
    let vlt = &cx.snapshot.vlt;
    nft.lookup_burst_if(&mut burst.metas[..], burst.pending, |i, meta, entry| {
        let action = &entry.action;
        vlt.prefetch(action.slot);
        if tunnels {
            action.source.prefetch(vlt);
        }
        found(i, meta, entry);
        action.generation == cx.snapshot.generation(action.cell)
    })
}
