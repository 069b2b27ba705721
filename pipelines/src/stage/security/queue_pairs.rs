//! The way in for a peer of a vNIC's queue pairs: open while the RCFT has one of them.
//!
//! What a vNIC sends to a queue pair is judged by rules before the RCFT is asked, and opens nothing there: the RCFT may refuse it.
//! [`open`] makes the connection of what that has let pass. From then on control keeps it alive for as long as one
//! of the vNIC's queue pairs with the peer has its place ([`ConnectionKeeper::set_held_since`]); packets do not.
//!
//! [`ConnectionKeeper::set_held_since`]: crate::connections::ConnectionKeeper::set_held_since

use wire::{Flags, PacketBuf};

use super::{ATTEMPTS, End, Judgement, PER_PACKET, Side};
use crate::burst::Burst;
use crate::connections::{ConnectionKey, Connections, Made, Phase, Record};
use crate::drops::DropReason;
use crate::flow_key::Scope;
use crate::nft::{Bits, Nft};
use crate::stage::Cx;
use crate::stage::key::{CLASS_CM, CLASS_CNP, is_reliable};

/// Opens the way in for whom these packets of vNICs go to: their queue pairs are admitted, or about to be.
#[cold]
#[inline(never)]
pub(crate) fn open<P: PacketBuf>(
    cx: &Cx,
    burst: &mut Burst<P>,
    nft: &mut Nft,
    connections: &Connections,
    packets: u64,
) {
    for i in Bits(packets) {
        let meta = burst.metas[i];
        let (Scope::Vnic(vnic), Some(ip)) = (meta.key.scope(), meta.key.addresses()) else { continue };
        let row = cx.snapshot.row(vnic);
        let Some(policy) = cx.snapshot.security.policy(row.group_set) else { continue };
        let side = Side { vnic, out: true };
        let end = End { cx, connections, meta: &meta, head: &[], side, vpc: row.vpc, policy };
        let made = end.open(&ConnectionKey::queue_pairs(vnic, ip.destination));
        if matches!(made, Made::In(_)) || meta.key.class() == CLASS_CM {
            continue;
        }
        // The next packet tries again.
        if let Some(entry) = nft.entry_mut(meta.entry).filter(|entry| entry.key == meta.key) {
            entry.action.generation = cx.snapshot.generation(entry.action.cell).wrapping_sub(PER_PACKET);
        }
        if made == Made::Refused {
            burst.drop(i, DropReason::CONNECTION_LIMIT, cx.counters);
        }
    }
}

impl End<'_> {
    /// True for what this end sends to a queue pair of a kind that the RCFT admits or refuses.
    pub(super) fn waits_for_its_queue_pair(&self) -> bool {
        self.side.out && is_reliable(self.meta.key.class())
    }

    /// It may go on to the RCFT; what is admitted there opens the connection. A later fragment does not say of which queue pair it is.
    pub(super) fn opens_later(&self) -> Judgement {
        Judgement { opens: !self.meta.headers.is(Flags::FRAGMENT_LATER), ..Judgement::PASSES }
    }

    /// True for a congestion notification that may be about UC or UD between both ends.
    pub(super) fn notifies_of_congestion(&self) -> bool {
        let Some(ip) = self.meta.key.addresses().filter(|_| self.meta.key.class() == CLASS_CNP) else {
            return false;
        };
        let Side { vnic, out } = self.side;
        let addresses = if out { [ip.source, ip.destination] } else { [ip.destination, ip.source] };
        let known = self.connections.find(&ConnectionKey::unreliable(vnic, addresses));
        known.is_some_and(|found| {
            let Record { state, .. } = found.record;
            state.phase() != Phase::Reset && self.allows(state.is_out(), Some(state.note()))
        })
    }

    /// Opens the connection, or goes on with it.
    fn open(&self, key: &ConnectionKey) -> Made {
        let Cx { snapshot, now, .. } = *self.cx;
        let anew = Record { state: self.opened(), epoch: snapshot.security.epoch };
        for _ in 0..ATTEMPTS {
            let found = self.connections.find(key);
            let known = match found {
                Some(found) => match self.up_to_date(found.slot, found.record) {
                    Some(record) => Some((found, record)),
                    None => continue,
                },
                None => None,
            };
            if let Some((found, record)) = known
                && !record.state.is_over()
            {
                self.connections.touch(found.slot, now.tick);
                return Made::In(found.watch);
            }
            if !self.allows(true, None) {
                return Made::Leaving;
            }
            let Some((found, record)) = known else { return self.connections.make(key, anew, now) };
            if self.connections.change(found.slot, record, anew) {
                self.connections.opened(self.side.vnic);
                self.connections.touch(found.slot, now.tick);
                return Made::In(found.watch);
            }
        }
        Made::Leaving
    }
}
