//! cm: the connection manager's messages (IBTA vol. 1 chapter 12): control hears of them, and a request that would
//! go over a quota is answered with a reject where that is wished for.
//!
//! Messages are claims of guests. Nothing is admitted or taken out here.

use std::net::IpAddr;

use wire::build::{Reject, cm_reject_in_place};
use wire::cm::{Cm, CmMessage};
use wire::{PacketBuf, Psn};

use super::forward::{self, Origin};
use super::rcft::goes_on;
use super::tunnel::EncapInput;
use super::{Cx, neighbour};
use crate::Sink;
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::event::Event;
use crate::flow_key::{FlowAddresses, outer_source_port};
use crate::nft::{Bits, Nft};
use crate::rcft::Rcft;
use crate::snapshot::Destination;

/// Reads the messages in `bits`. Returns those by which a vNIC says that it is ready for a connection that it has a place for: its
/// peer may be the first to send.
#[cold]
#[inline(never)]
pub fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    rcft: &mut Rcft,
    nft: &Nft,
    bits: u64,
    sink: &mut S,
) -> u64 {
    let mut ready = 0;
    for i in Bits(bits & burst.pending) {
        let meta = burst.metas[i];
        let Some(packet) = burst.packets[i].as_mut().filter(|_| goes_on(cx, &meta, nft)) else { continue };
        let (message, addresses) = match (Cm::of(&meta.headers, packet.head()), meta.key.addresses()) {
            (Ok(cm), Some(addresses)) => (cm.message, addresses),
            _ => {
                // Some other management class, or nonsense: the receiver's business.
                cx.counters.cm_unknown.add(1);
                continue;
            }
        };
        let ends = ends(cx, &meta, addresses);
        if let CmMessage::Req(req) = &message
            && req.transport.is_reliable_connection()
            && let Some(full) = ends.iter().flatten().find(|end| wants_reject(rcft, end.vnic))
            && cm_reject_in_place(
                packet,
                &meta.headers,
                Reject { psn: Psn::truncated(0), ..Reject::default() },
            )
        {
            // The packet is dropped by name; what takes its place is a new one.
            let counters = cx.counters.vnic(full.vnic as usize);
            counters.qps_rejected.add(1);
            counters.qps_refused.add(1);
            counters.drops.add(1);
            cx.counters.drop(DropReason::QP_QUOTA);
            cx.counters.originated.add(1);
            if rcft.may_report(full.vnic, cx.now.tick) {
                let CmEnd { vnic, peer, sends: asked } = *full;
                cx.events.push(Event::ConnectionRejected { vnic, peer, asked, qpn: req.local_qpn });
            }
            if meta.direction() == Direction::In {
                return_to(cx, burst, i, addresses.source, sink);
            } else {
                neighbour::send_back(cx, burst, i, sink);
            }
            continue;
        }
        for end in ends.into_iter().flatten() {
            let CmEnd { vnic, peer, sends } = end;
            let counters = cx.counters.vnic(vnic as usize);
            counters.cm_messages.add(1);
            let event = Event::Cm { vnic, peer, sends, message };
            if !cx.events.push_message(event, vnic, sends, cx.now.ns) {
                counters.cm_unheard.add(1);
            }
            if sends && matches!(message, CmMessage::Rtu { .. }) && has_room(rcft, vnic) {
                ready |= 1 << i;
            }
        }
    }
    ready
}

/// A vNIC of this host at one end of a message.
#[derive(Clone, Copy)]
struct CmEnd {
    vnic: u32,
    peer: IpAddr,
    sends: bool,
}

fn ends(cx: &Cx, meta: &Meta, addresses: FlowAddresses) -> [Option<CmEnd>; 2] {
    let FlowAddresses { source, destination } = addresses;
    let sender = (meta.direction() == Direction::Out).then_some(CmEnd {
        vnic: meta.vnic,
        peer: destination,
        sends: true,
    });
    let receiver =
        cx.snapshot.local_vnic(meta.vpc, destination).map(|vnic| CmEnd { vnic, peer: source, sends: false });
    [sender, receiver]
}

/// True when a vNIC has no place left, nor can have one, and wants requests answered. Where silent queue pairs would
/// give way the request passes: the data packets that follow, which are the vNIC's own, make the room.
fn wants_reject(rcft: &Rcft, vnic: u32) -> bool {
    rcft.shared().ledger.limits(vnic).reject && !has_room(rcft, vnic)
}

/// True when a vNIC has a place left for a queue pair, or can have one.
fn has_room(rcft: &Rcft, vnic: u32) -> bool {
    let ledger = &rcft.shared().ledger;
    ledger.staying(vnic) < ledger.limits(vnic).quota || ledger.makes_room(vnic)
}

/// Sends a reject through the tunnel to the station that asked.
fn return_to<P: PacketBuf, S: Sink<P>>(cx: &Cx, burst: &mut Burst<P>, i: usize, asker: IpAddr, sink: &mut S) {
    let meta = burst.metas[i];
    let Some(mut packet) = burst.take(i) else { return };
    let Some(location) = cx.snapshot.location(meta.vpc, Destination::Ip(asker)) else {
        cx.counters.drop(DropReason::NO_LOCATION);
        return;
    };
    // It may have come by way of the virtual router: it goes back directly.
    if let Some(macs) = packet.head_mut().first_chunk_mut::<6>() {
        *macs = location.mac.0;
    }
    let place = cx.snapshot.vlt.read(location.slot.slot).place;
    let origin = Origin { vnic: NO_INDEX, direction: Direction::Out };
    let flow = EncapInput {
        tos: meta.headers.tos,
        source_port: outer_source_port(meta.key.entropy(), meta.entropy_port),
        roce: meta.key.class() != 0,
    };
    if let Err((reason, _)) = forward::to_place(cx, sink, packet, place, origin, flow) {
        cx.counters.drop(reason);
    }
}
