//! neighbour: ARP and neighbour discovery of tenants, answered from the locations of their VPC.
//!
//! A vNIC learns the MAC of every known destination and of its virtual router without a packet leaving the
//! host; a question that comes out of the tunnel is answered for vNICs of this host.

use std::net::IpAddr;

use wire::{Flags, Headers, L3, MacAddr, PacketBuf, icmpv6, protocol};

use super::forward::{self, Origin};
use super::reply::{self, NeighbourMessage, Solicitation};
use super::tunnel::EncapInput;
use super::{Cx, service};
use crate::Sink;
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::event::{Binding, may_be_learned};
use crate::flow_key::outer_source_port;
use crate::nft::Bits;
use crate::reverse_path::{self, is_link_local};
use crate::snapshot::{Destination, Vpc};
use crate::vlt::Place;

/// True for ARP, and for neighbour and router discovery.
#[inline(always)]
pub fn is_neighbour_protocol(headers: &Headers) -> bool {
    match headers.l3 {
        L3::Arp => true,
        L3::Ipv6 => {
            headers.proto == protocol::ICMPV6
                && headers.is(Flags::L4)
                && icmpv6::is_neighbour_discovery((headers.sport >> 8) as u8)
        }
        L3::Ipv4 | L3::None => false,
    }
}

/// Answers questions; takes in or passes on the rest. `neighbours`: the bits that parsing found.
#[inline]
pub fn run<P: PacketBuf, S: Sink<P>>(cx: &Cx, burst: &mut Burst<P>, neighbours: u64, sink: &mut S) {
    for i in Bits(neighbours & burst.pending) {
        one(cx, burst, i, sink);
    }
}

enum NeighbourOutcome {
    Reply(MacAddr, bool),
    Consume,
    Flood,
    Drop(DropReason),
}

#[cold]
#[inline(never)]
fn one<P: PacketBuf, S: Sink<P>>(cx: &Cx, burst: &mut Burst<P>, i: usize, sink: &mut S) {
    let meta = burst.metas[i];
    let Some(packet) = burst.packets[i].as_mut() else { return };
    let asker = meta.headers.ethernet(packet.head()).map_or(MacAddr::ZERO, |ethernet| ethernet.src);
    let message = reply::read(packet.head(), &meta.headers);
    match outcome(cx, &meta, message) {
        NeighbourOutcome::Flood => {}
        NeighbourOutcome::Consume => {
            burst.take(i);
            cx.counters.consumed.add(1);
        }
        NeighbourOutcome::Drop(reason) => burst.drop(i, reason, cx.counters),
        NeighbourOutcome::Reply(mac, router) => {
            if !reply::answer(packet, &meta.headers, mac, router) {
                burst.drop(i, DropReason::NO_BUFFER, cx.counters);
                return;
            }
            cx.counters.neighbours_answered.add(1);
            match meta.direction() {
                Direction::Out => send_back(cx, burst, i, sink),
                Direction::In => send_into_tunnel(cx, burst, i, asker, sink),
            }
        }
    }
}

/// Sends a reply to the vNIC that its question came from.
pub(super) fn send_back<P: PacketBuf, S: Sink<P>>(cx: &Cx, burst: &mut Burst<P>, i: usize, sink: &mut S) {
    let vnic = burst.metas[i].vnic;
    let Some(packet) = burst.take(i) else { return };
    service::deliver(cx.snapshot, cx.counters, vnic, packet, sink);
}

/// Sends a reply to where the station with a MAC is, from which its question came through the tunnel.
fn send_into_tunnel<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    asker: MacAddr,
    sink: &mut S,
) {
    let vpc = burst.metas[i].vpc;
    let Some(packet) = burst.take(i) else { return };
    let place = match cx.snapshot.location(vpc, Destination::Mac(asker)) {
        Some(location) => cx.snapshot.vlt.read(location.slot.slot).place,
        None => Place::Empty,
    };
    if matches!(place, Place::Local { .. }) {
        // Somebody out there uses the MAC of a vNIC of this host.
        cx.counters.drop(DropReason::ARP_UNKNOWN);
        return;
    }
    let origin = Origin { vnic: NO_INDEX, direction: Direction::Out };
    let flow = EncapInput { tos: 0, source_port: outer_source_port(vpc as u16, 0), roce: false };
    if let Err((reason, _)) = forward::to_place(cx, sink, packet, place, origin, flow) {
        cx.counters.drop(reason);
    }
}

fn outcome(cx: &Cx, meta: &Meta, message: NeighbourMessage) -> NeighbourOutcome {
    let Some(vpc) = cx.snapshot.vpc(meta.vpc) else {
        return NeighbourOutcome::Drop(DropReason::PORT_UNBOUND);
    };
    let claim = match message {
        NeighbourMessage::Solicitation(q) => Some(q.asker()),
        NeighbourMessage::Advertisement(answer) => Some(answer.binding),
        NeighbourMessage::Routers(asker) => Some(asker),
        NeighbourMessage::Route(_) | NeighbourMessage::Other | NeighbourMessage::Unsound => None,
    };
    if let Some(claim) = claim {
        if meta.direction() == Direction::In {
            if !reverse_path::may_claim(cx.snapshot, vpc, claim, meta.vtep)
                && !floats_away(cx, meta, vpc, claim)
            {
                return NeighbourOutcome::Drop(DropReason::INNER_SOURCE);
            }
        } else if let Err(reason) =
            own(cx, meta, vpc, claim, !matches!(message, NeighbourMessage::Advertisement(_)))
        {
            return NeighbourOutcome::Drop(reason);
        }
    }
    match message {
        NeighbourMessage::Solicitation(q) if q.asker == q.target || q.asker.is_unspecified() => {
            // Announcements, and duplicate address detection where nobody else has the address: the answer is silence.
            if let Some((mac, router)) = defender(cx, vpc, meta, &q) {
                return NeighbourOutcome::Reply(mac, router);
            }
            wish(cx, meta, vpc, Binding { address: q.target, mac: q.asker_mac });
            // What is announced may be in others' caches, with the MAC that it had before; so may an address that floats.
            let floats = float(cx, meta, vpc, q.asker());
            let is_news = floats || !q.asker.is_unspecified();
            if is_news && vpc.flood { NeighbourOutcome::Flood } else { NeighbourOutcome::Consume }
        }
        NeighbourMessage::Solicitation(q) => {
            wish(cx, meta, vpc, q.asker());
            float(cx, meta, vpc, q.asker());
            match find(cx, vpc, meta, &q) {
                Some((mac, router)) => NeighbourOutcome::Reply(mac, router),
                None if vpc.flood => NeighbourOutcome::Flood,
                None => NeighbourOutcome::Drop(DropReason::ARP_UNKNOWN),
            }
        }
        NeighbourMessage::Advertisement(answer) => {
            float(cx, meta, vpc, answer.binding);
            if vpc.flood { NeighbourOutcome::Flood } else { NeighbourOutcome::Consume }
        }
        NeighbourMessage::Unsound => NeighbourOutcome::Drop(DropReason::NEIGHBOUR_UNSOUND),
        NeighbourMessage::Route(source) if is_of_a_station(cx, meta, vpc, source) => {
            NeighbourOutcome::Drop(DropReason::GUARD_RA)
        }
        NeighbourMessage::Routers(asker) if service::has_router_for(cx, meta, asker.address) => {
            cx.counters.service_requests.add(1);
            cx.events.solicit(meta.vnic);
            NeighbourOutcome::Consume
        }
        NeighbourMessage::Routers(_) | NeighbourMessage::Route(_) if vpc.flood => NeighbourOutcome::Flood,
        NeighbourMessage::Routers(_) | NeighbourMessage::Route(_) | NeighbourMessage::Other => {
            NeighbourOutcome::Drop(DropReason::BUM)
        }
    }
}

/// A vNIC speaks for its own addresses, and for those that it is allowed and nobody else was given. It may ask from a
/// link-local address that nobody has.
fn own(cx: &Cx, meta: &Meta, vpc: &Vpc, claim: Binding, asks: bool) -> Result<(), DropReason> {
    let Binding { address, mac } = claim;
    let Some(vnic) = cx.snapshot.vnic(meta.vnic) else { return Err(DropReason::PORT_UNBOUND) };
    if !vnic.guarded || cx.snapshot.may_float(vpc, vnic, claim) {
        return Ok(());
    }
    if mac != vnic.mac {
        // Duplicate address detection of what is nested in the vNIC, and its link-local address.
        let nested = address.is_unspecified() || address == IpAddr::from(mac.link_local());
        let allowed = nested && vnic.allows_mac(mac);
        return if allowed { Ok(()) } else { Err(DropReason::GUARD_MAC) };
    }
    let owned = address.is_unspecified()
        || vnic.has(address)
        || asks && is_link_local(address) && !cx.snapshot.is_held(vpc, address);
    if owned { Ok(()) } else { Err(DropReason::GUARD_VIP) }
}

/// Tells control of a floating address that a vNIC of this host announces, where that is news. True when it is such an
/// address, or came through the tunnel and may be one.
fn float(cx: &Cx, meta: &Meta, vpc: &Vpc, claim: Binding) -> bool {
    if meta.direction() == Direction::In {
        return !cx.snapshot.is_held(vpc, claim.address)
            || cx.snapshot.floats_at(vpc.index, claim.address).is_some();
    }
    let Some(vnic) = cx.snapshot.vnic(meta.vnic) else { return false };
    if !cx.snapshot.may_float(vpc, vnic, claim) || vnic.has(claim.address) {
        return false;
    }
    if !cx.snapshot.is_at(vnic, claim) {
        cx.events.float(meta.vnic, claim, true);
    }
    true
}

/// True when a station on another host may have an address that floats and is known to be here: control hears that it moved.
fn floats_away(cx: &Cx, meta: &Meta, vpc: &Vpc, claim: Binding) -> bool {
    let Some(vnic) = cx.snapshot.floats_at(vpc.index, claim.address) else { return false };
    let may = reverse_path::may_be_stranger(cx.snapshot, vpc, meta.vtep);
    if may {
        cx.events.float(vnic.index, claim, false);
    }
    may
}

/// Tells control of a link-local address that a vNIC would have as its own, and that nobody has. One that is asked for with
/// another MAC is that of a station nested in it.
fn wish(cx: &Cx, meta: &Meta, vpc: &Vpc, Binding { address, mac }: Binding) {
    if let IpAddr::V6(wished) = address
        && may_be_learned(wished)
        && mac.to_u64() == cx.snapshot.row(meta.vnic).mac
        && cx.snapshot.vnic(meta.vnic).is_some_and(|vnic| vnic.learns)
        && !cx.snapshot.is_held(vpc, address)
    {
        cx.events.wish(meta.vnic, wished);
    }
}

/// True when a router advertisement or a redirect comes from a vNIC, of this host or of another one. A router is a station
/// without a location, behind a VTEP that may have such.
fn is_of_a_station(cx: &Cx, meta: &Meta, vpc: &Vpc, source: IpAddr) -> bool {
    meta.direction() == Direction::Out
        || reverse_path::of_address(cx.snapshot, vpc, source, meta.vtep)
            .is_none_or(|source| source.has_location())
}

/// Who has the address that a station looks for before it takes it up (RFC 4862 section 5.4.3, RFC 5227 section 2.1.1), as [`find`]
/// says it; `None` where the station itself has it, or may take it over.
fn defender(cx: &Cx, vpc: &Vpc, meta: &Meta, question: &Solicitation) -> Option<(MacAddr, bool)> {
    if !question.asker.is_unspecified() {
        return None;
    }
    let found = find(cx, vpc, meta, question)?;
    let wished = Binding { address: question.target, mac: question.asker_mac };
    let may_have = match meta.direction() {
        Direction::Out => cx.snapshot.vnic(meta.vnic).is_none_or(|vnic| {
            cx.snapshot.local_vnic(vpc.index, wished.address) == Some(vnic.index)
                || cx.snapshot.may_float(vpc, vnic, wished)
        }),
        // What others are allowed, their hosts know.
        Direction::In => cx.snapshot.floats_at(vpc.index, wished.address).is_some(),
    };
    (!may_have).then_some(found)
}

/// The MAC of an address of the VPC, and whether it is the virtual router's.
fn find(cx: &Cx, vpc: &Vpc, meta: &Meta, question: &Solicitation) -> Option<(MacAddr, bool)> {
    let direction = meta.direction();
    if vpc.is_gateway(question.target) {
        // Every host has the virtual router: it is never asked for through the tunnel.
        return (direction == Direction::Out).then_some((vpc.router_mac, true));
    }
    let location = cx.snapshot.location(vpc.index, Destination::Ip(question.target))?;
    let local = matches!(cx.snapshot.vlt.read(location.slot.slot).place, Place::Local { .. });
    (local || direction == Direction::Out).then_some((location.mac, false))
}
