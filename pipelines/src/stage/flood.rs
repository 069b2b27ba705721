//! flood: broadcast, multicast and unknown destinations of a VPC that floods, to each of its places.

use wire::PacketBuf;

use super::forward::{Origin, to_place};
use super::tunnel::EncapInput;
use super::{Cx, security, super_frame};
use crate::Sink;
use crate::burst::Burst;
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::vlt::{Place, SlotRef};

/// Replicates to every other vNIC of the VPC on this host and, for packets of vNICs, to every VTEP of it. The last
/// target gets the packet itself. A super-frame goes whole or in pieces by what each target takes. `entropy` is the flow's.
pub(super) fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    entropy: u16,
    sink: &mut S,
) {
    let meta = burst.metas[i];
    let Some(vpc) = cx.snapshot.vpc(meta.vpc) else {
        burst.drop(i, DropReason::BUM, cx.counters);
        return;
    };
    let direction = meta.direction();
    let origin = Origin { vnic: meta.vnic, direction };
    let flow = EncapInput::of(cx, &meta, entropy);
    let remote: &[SlotRef] = if direction == Direction::In { &[] } else { &vpc.flood_slots };
    let local = vpc.vnics.iter().filter(|&&vnic| vnic != meta.vnic).map(|&vnic| Place::Local { vnic });
    let mut places = local.chain(remote.iter().map(|slot| cx.snapshot.vlt.read(slot.slot).place)).peekable();
    let Some(packet) = burst.take(i) else { return };
    if places.peek().is_none() {
        cx.counters.drop(DropReason::BUM);
        return;
    }
    let frame = super_frame::of(&packet, &meta.headers);
    let mut packet = Some(packet);
    while let Some(place) = places.next() {
        let copy = if places.peek().is_some() {
            cx.counters.copies.add(1);
            packet.as_ref().and_then(PacketBuf::try_clone)
        } else {
            packet.take()
        };
        let result = match copy {
            Some(_) if !security::admits_copy(cx, &meta, place) => Err(DropReason::SECURITY_IN),
            Some(copy) => match &frame {
                Some(frame) => super_frame::to_place(cx, sink, copy, frame, place, origin, flow),
                None => to_place(cx, sink, copy, place, origin, flow),
            }
            .map_err(|(reason, _)| reason),
            None => Err(DropReason::NO_BUFFER),
        };
        if let Err(reason) = result {
            cx.counters.drop(reason);
        }
    }
}
