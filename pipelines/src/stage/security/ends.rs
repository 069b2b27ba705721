//! The ends of a packet's way that are vNICs of this host: which of them are judged, and what judging them will read of memory.

use crate::burst::{Burst, MAX_BURST, Meta};
use crate::connections::{ConnectionKey, Connections};
use crate::flow_key::{FlowKey, Scope};
use crate::nft::{Bits, FlowAction, FlowVerdict};
use crate::snapshot::Snapshot;
use crate::stage::Cx;
use crate::vlt::{Hot, Place, VltReading};

/// An end of a packet's way that is a vNIC of this host: it sends the packet (`out`), or gets it.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) vnic: u32,
    pub(super) out: bool,
}

/// Has memory loaded that judging the first `most` of these packets will read, of all of them at the same time: by itself
/// each look into the connection table waits for main memory.
pub(in crate::stage) fn prefetch<P>(
    cx: &Cx,
    burst: &Burst<P>,
    connections: &Connections,
    packets: u64,
    most: u32,
) {
    let mut chains = [None; MAX_BURST];
    let mut known = 0;
    for meta in Bits(packets).take(most as usize).map(|i| &burst.metas[i]) {
        let Some(side) = first_side(cx.snapshot, meta) else { continue };
        let key = ConnectionKey::of(side.vnic, &meta.key, side.out);
        if let (Some(key), Some(place)) = (key, chains.get_mut(known)) {
            let chain = connections.chain(&key);
            connections.prefetch(chain);
            *place = Some(chain);
            known += 1;
        }
    }
    connections.prefetch_free(known);
    chains[..known].iter().flatten().for_each(|&chain| connections.prefetch_first(chain));
}

/// The end of a packet's way that is judged first, when that is one in security groups. The receiver of what comes out of a tunnel is guessed, by
/// the MAC address of its frame or by its address, and a wrong guess costs time and nothing else.
#[inline]
fn first_side(snapshot: &Snapshot, meta: &Meta) -> Option<Side> {
    let side = match meta.key.scope() {
        Scope::Vnic(vnic) => Side { vnic, out: true },
        Scope::Vpc(vpc) => {
            let mac = Snapshot::local_mac(vpc, meta.key.dst_mac().to_u64());
            let by_address = || snapshot.local_vnic(vpc, meta.key.addresses()?.destination);
            let vnic = snapshot.local_macs.get(mac).or_else(by_address)?;
            Side { vnic, out: false }
        }
    };
    (snapshot.row(side.vnic).group_set != 0).then_some(side)
}

/// The ends of a flow that are vNICs of this host in security groups.
pub(super) fn sides(snapshot: &Snapshot, key: &FlowKey, action: &FlowAction) -> impl Iterator<Item = Side> {
    let sender = match key.scope() {
        Scope::Vnic(vnic) => Some(Side { vnic, out: true }),
        Scope::Vpc(_) => None,
    };
    let receiver = receiver_of(snapshot, action).map(|vnic| Side { vnic, out: false });
    sender.into_iter().chain(receiver).filter(|side| snapshot.row(side.vnic).group_set != 0)
}

/// The vNIC of this host to which packets of a flow go.
#[inline]
pub(super) fn receiver_of(snapshot: &Snapshot, action: &FlowAction) -> Option<u32> {
    if action.verdict != FlowVerdict::Forward {
        return None;
    }
    let (slot, generation) = (action.slot, action.slot_generation);
    match snapshot.vlt.read_hot(slot, generation) {
        Hot::Local { vnic } => return Some(vnic),
        Hot::Tunnel4(_) => return None,
        // Another tunnel, or in the midst of a change.
        Hot::Other => {}
    }
    match snapshot.vlt.read(slot) {
        VltReading { generation: found, place: Place::Local { vnic } } if found == generation => Some(vnic),
        _ => None,
    }
}
