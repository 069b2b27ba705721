//! forward: what the NFT entry says is done: rewrite, encapsulate or deliver, flood, answer for the router, drop.
//!
//! Facts of the single packet are checked here and never cached: TTL, length, ECN, whether source and
//! destination are the same vNIC.

use wire::{L3, PacketBuf, View, ipv4, ipv6};

use super::icmp_error::{Complaint, complain, drop_and_tell};
use super::neighbour::send_back;
use super::tunnel::{self, EncapInput, OuterTos, Patch};
use super::{Cx, bind, flood, reply, service, super_frame};
use crate::Sink;
use crate::burst::{Burst, Meta, NO_INDEX};
use crate::decide::{decide, decide_from};
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::flow_key::FlowKey;
use crate::miss::MissLimits;
use crate::nft::{Bits, FlowAction, FlowVerdict, Nft, NftEntry};
use crate::snapshot::{NO_PORT, PortIndex, Uplink};
use crate::vlt::{Header4, Hot, Place};

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Source vNIC, or [`NO_INDEX`].
    pub vnic: u32,
    /// It came out of a tunnel and must not go back into one.
    pub direction: Direction,
}

/// Counters of the common ways, added once a burst, those of a vNIC once for each run of packets to it.
struct BurstTally {
    encapsulated: u64,
    local: u64,
    vnic: u32,
    packets: u64,
    bytes: u64,
}

impl BurstTally {
    #[inline(always)]
    fn delivered(&mut self, cx: &Cx, vnic: u32, bytes: u64) {
        if vnic != self.vnic {
            self.flush_vnic(cx);
            self.vnic = vnic;
        }
        self.packets += 1;
        self.bytes += bytes;
    }

    #[inline(always)]
    fn flush_vnic(&mut self, cx: &Cx) {
        if self.packets > 0 {
            let counters = cx.counters.vnic(self.vnic as usize);
            counters.tx_packets.add(self.packets);
            counters.tx_bytes.add(self.bytes);
            (self.packets, self.bytes) = (0, 0);
        }
    }

    #[inline(always)]
    fn flush(mut self, cx: &Cx) {
        self.flush_vnic(cx);
        cx.counters.encapsulated.add(self.encapsulated);
        cx.counters.local.add(self.local);
    }
}

/// Sends every pending packet on its way.
#[inline]
pub fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    nft: &mut Nft,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    if let Some(hash) = &cx.snapshot.encap_hash {
        hash.prepare(burst);
    }
    if burst.has_super_frames() {
        in_turn(cx, burst, nft, limits, sink);
    } else {
        ordinary(cx, burst, burst.pending, nft, limits, sink);
    }
}

/// A burst with super-frames: no packet overtakes another.
#[cold]
#[inline(never)]
fn in_turn<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    nft: &mut Nft,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let mut rest = burst.pending;
    for i in Bits(burst.super_frames & burst.pending) {
        let before = rest & ((1 << i) - 1);
        ordinary(cx, burst, before, nft, limits, sink);
        super_frame::run(cx, burst, i, nft, limits, sink);
        rest &= !(before | 1 << i);
    }
    ordinary(cx, burst, rest, nft, limits, sink);
}

/// Sends the packets whose bits are in `mask`, none of them a super-frame.
#[inline(never)]
fn ordinary<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    mask: u64,
    nft: &mut Nft,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let (ports, toses) = (cx.snapshot.port_mix(), OuterTos::new(&cx.snapshot.settings));
    let mut tally = BurstTally { encapsulated: 0, local: 0, vnic: NO_INDEX, packets: 0, bytes: 0 };
    let mut sent = 0;
    for i in Bits(mask) {
        let Some(mut packet) = burst.packets[i].take() else { continue };
        let meta = &burst.metas[i];
        let Some(entry) = nft.entry_mut(meta.entry) else {
            let action = decide(cx.snapshot, &meta.key);
            burst.packets[i] = Some(packet);
            by_decision(cx, burst, i, action, limits, sink);
            continue;
        };
        entry.packets += 1;
        entry.bytes += packet.len() as u64;
        entry.last_seen = cx.now.tick;
        let action = &entry.action;
        let way = if action.verdict == FlowVerdict::Forward && action.rewrite == 0 {
            match cx.snapshot.vlt.read_hot(action.slot, action.slot_generation) {
                Hot::Tunnel4(header) if meta.direction() == Direction::Out => {
                    let source_port = ports.port(action.entropy, meta.entropy_port);
                    let way = encapsulate(cx, &mut packet, meta, source_port, &toses, header);
                    tally.encapsulated += u64::from(way.is_some());
                    way
                }
                Hot::Local { vnic } if vnic != meta.vnic => {
                    let way = deliver(cx, &mut packet, meta, vnic, &mut tally);
                    tally.local += u64::from(way.is_some() && meta.direction() == Direction::Out);
                    way
                }
                _ => None,
            }
        } else {
            None
        };
        match way {
            Some(port) => {
                sent |= 1 << i;
                sink.send(port, packet);
            }
            None => {
                burst.packets[i] = Some(packet);
                uncommon(cx, burst, i, nft, limits, sink);
            }
        }
    }
    burst.pending &= !sent;
    tally.flush(cx);
}

/// Puts an untagged IPv4 header in front; `None` (and no change) when the packet is not for the common way.
#[inline(always)]
fn encapsulate<P: PacketBuf>(
    cx: &Cx,
    packet: &mut P,
    meta: &Meta,
    source_port: u16,
    toses: &OuterTos,
    header: Header4,
) -> Option<PortIndex> {
    let (uplink, hop) = cx.snapshot.way(header.group(), source_port)?;
    if packet.len() + (20 + 8 + 8) > usize::from(uplink.mtu) {
        return None;
    }
    let link = hop.link_header(uplink.source);
    let patch = Patch { tos: toses.of(meta.headers.tos), source_port, zero_checksum6: false, link };
    tunnel::encapsulate_v4(packet, header, patch).then_some(uplink.port)
}

/// Readies a packet for a vNIC of this host; `None` (and no change) when the packet is not for the common way.
#[inline(always)]
fn deliver<P: PacketBuf>(
    cx: &Cx,
    packet: &mut P,
    meta: &Meta,
    vnic: u32,
    tally: &mut BurstTally,
) -> Option<PortIndex> {
    let row = cx.snapshot.row(vnic);
    if row.port == NO_PORT || packet.len() > usize::from(row.mtu) + usize::from(meta.headers.l3_offset) {
        return None;
    }
    if row.vlan != 0 && !bind::push_tag(packet, row.vlan) {
        return None;
    }
    tally.delivered(cx, vnic, packet.len() as u64);
    if meta.key.class() != 0 {
        cx.counters.vnic(vnic as usize).rdma_tx_packets.add(1);
    }
    Some(row.port)
}

/// Every other packet of a known flow: routed, over IPv6 or a VLAN, to a place that changed, not to be sent.
#[inline(never)]
fn uncommon<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    nft: &mut Nft,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let meta = &burst.metas[i];
    let Some(entry) = nft.entry_mut(meta.entry) else { return };
    let action = current_action(cx, entry, &meta.key);
    by_decision(cx, burst, i, action, limits, sink);
}

/// What an entry says, decided again where the location went away after the decision.
#[inline(always)]
pub(super) fn current_action(cx: &Cx, entry: &mut NftEntry, key: &FlowKey) -> FlowAction {
    if entry.action.verdict == FlowVerdict::Forward
        && cx.snapshot.vlt.read(entry.action.slot).generation != entry.action.slot_generation
    {
        if !cx.snapshot.security.is_off() {
            // Nobody has judged where it would go now. Its next packet is decided anew.
            entry.action.generation = entry.action.generation.wrapping_sub(1);
            return FlowAction::drop(DropReason::NO_LOCATION);
        }
        entry.action = decide_from(cx.snapshot, key, entry.action.source);
        cx.counters.nft_stale.add(1);
    }
    entry.action
}

/// Does what a decision says, whatever it is.
#[inline(never)]
fn by_decision<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    action: FlowAction,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let Some(place) = ready(cx, burst, i, action, limits, sink) else { return };
    let meta = burst.metas[i];
    let origin = Origin { vnic: meta.vnic, direction: meta.direction() };
    let flow = EncapInput::of(cx, &meta, action.entropy);
    let Some(packet) = burst.take(i) else { return };
    if let Err((reason, packet)) = to_place(cx, sink, packet, place, origin, flow) {
        refused(cx, burst, i, Refused { reason, packet, place }, limits, sink);
    }
}

/// Rewrites what a decision forwards, and says where it goes; does all else that a decision says.
#[inline(always)]
pub(super) fn ready<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    action: FlowAction,
    limits: &mut MissLimits,
    sink: &mut S,
) -> Option<Place> {
    if action.verdict != FlowVerdict::Forward {
        special(cx, burst, i, action, limits, sink);
        return None;
    }
    let meta = &burst.metas[i];
    let reading = cx.snapshot.vlt.read(action.slot);
    if reading.generation != action.slot_generation {
        // The slot is gone, the snapshot without it not yet here.
        burst.drop(i, DropReason::NO_LOCATION, cx.counters);
        return None;
    }
    if action.rewrite != 0 {
        if meta.headers.ttl <= 1 {
            complain(cx, burst, i, Complaint::TimeExceeded, receiver_of(reading.place), limits, sink);
            return None;
        }
        let rewritten =
            burst.packets[i].as_mut().is_some_and(|packet| rewrite(packet, &action, &meta.headers));
        if !rewritten {
            burst.drop(i, DropReason::NO_BUFFER, cx.counters);
            return None;
        }
    }
    Some(reading.place)
}

/// Sends a packet to a place, or gives it back with the reason why not.
///
/// # Errors
/// The reason, with the unchanged packet.
#[inline]
pub fn to_place<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    sink: &mut S,
    mut packet: P,
    place: Place,
    origin: Origin,
    flow: EncapInput,
) -> Result<(), (DropReason, P)> {
    match place {
        Place::Remote(tunnel) => {
            if origin.direction == Direction::In {
                return Err((DropReason::NOT_LOCAL, packet));
            }
            let Some((uplink, hop)) = cx.snapshot.way(tunnel.group, flow.source_port) else {
                return Err((DropReason::NO_NEIGHBOUR, packet));
            };
            if packet.len() + usize::from(tunnel.len) > uplink.longest_frame() {
                let reason = if flow.roce { DropReason::MTU_ROCE } else { DropReason::MTU_EXCEEDED };
                return Err((reason, packet));
            }
            let patch = flow.patch(cx, uplink, hop);
            if !tunnel::encapsulate(&mut packet, &tunnel, patch) {
                return Err((DropReason::NO_BUFFER, packet));
            }
            cx.counters.encapsulated.add(1);
            sink.send(uplink.port, packet);
            Ok(())
        }
        Place::Local { vnic } => {
            if vnic == origin.vnic {
                return Err((DropReason::HAIRPIN, packet));
            }
            let row = cx.snapshot.row(vnic);
            if row.port == NO_PORT {
                return Err((DropReason::PORT_DOWN, packet));
            }
            if packet.len() > usize::from(row.mtu) + l2_len(packet.head()) {
                let reason = if flow.roce { DropReason::MTU_ROCE } else { DropReason::MTU_EXCEEDED };
                return Err((reason, packet));
            }
            if row.vlan != 0 && !bind::push_tag(&mut packet, row.vlan) {
                return Err((DropReason::NO_BUFFER, packet));
            }
            count_delivered(cx, vnic, origin, flow, packet.len());
            sink.send(row.port, packet);
            Ok(())
        }
        Place::Empty => Err((DropReason::NO_LOCATION, packet)),
    }
}

/// Counts a packet of so many bytes that a vNIC's port is handed.
#[inline(always)]
pub(super) fn count_delivered(cx: &Cx, vnic: u32, origin: Origin, flow: EncapInput, bytes: usize) {
    let counters = cx.counters.vnic(vnic as usize);
    counters.tx_packets.add(1);
    counters.tx_bytes.add(bytes as u64);
    counters.rdma_tx_packets.add(u64::from(flow.roce));
    cx.counters.local.add(u64::from(origin.direction == Direction::Out));
}

/// Ethernet header with the tags of the frame.
#[inline(always)]
fn l2_len(head: &[u8]) -> usize {
    match head.get(12..14) {
        Some([0x81, 0x00] | [0x88, 0xa8]) => 18 + 4 * usize::from(head.get(16..18) == Some(&[0x81, 0x00])),
        _ => 14,
    }
}

#[inline(always)]
fn rewrite<P: PacketBuf>(packet: &mut P, action: &FlowAction, headers: &wire::Headers) -> bool {
    let l3 = usize::from(headers.l3_offset);
    let head = packet.head_mut();
    let Some(macs) = head.first_chunk_mut::<12>() else { return false };
    macs[..6].copy_from_slice(&action.dst_mac);
    macs[6..].copy_from_slice(&action.src_mac);
    match headers.l3 {
        L3::Ipv4 => ipv4::Header::view_mut_at(head, l3).is_some_and(ipv4::Header::decrement_ttl),
        L3::Ipv6 => ipv6::Header::view_mut_at(head, l3).is_some_and(ipv6::Header::decrement_hop_limit),
        L3::None | L3::Arp => false,
    }
}

/// A packet that could not be sent to a place, and why not.
pub(super) struct Refused<P> {
    pub reason: DropReason,
    pub packet: P,
    pub place: Place,
}

/// A packet that could not be sent: dropped by name, and its sender told where that helps, through the tunnel if it
/// came out of one: who sends does not know the MTU of a vNIC on another host.
#[cold]
#[inline(never)]
pub(super) fn refused<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    Refused { reason, packet, place }: Refused<P>,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    burst.put_back(i, packet);
    if reason != DropReason::MTU_EXCEEDED {
        burst.drop(i, reason, cx.counters);
        return;
    }
    let receiver = receiver_of(place);
    let mtu = match place {
        Place::Local { vnic } => cx.snapshot.row(vnic).mtu,
        Place::Remote(tunnel) => {
            let uplink = cx.snapshot.uplink_of(tunnel.group);
            let frame = uplink.map_or(0, Uplink::longest_frame);
            let around = usize::from(tunnel.len) + usize::from(burst.metas[i].headers.l3_offset);
            frame.saturating_sub(around) as u16
        }
        Place::Empty => 0,
    };
    complain(cx, burst, i, Complaint::TooBig(mtu), receiver, limits, sink);
}

/// The vNIC of this host that a packet was for.
fn receiver_of(place: Place) -> Option<u32> {
    match place {
        Place::Local { vnic } => Some(vnic),
        Place::Remote(_) | Place::Empty => None,
    }
}

/// Verdicts other than forwarding.
#[inline(never)]
fn special<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    action: FlowAction,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    match action.verdict {
        FlowVerdict::Drop => {
            let reason =
                DropReason::from_index(usize::from(action.reason)).unwrap_or(DropReason::NO_LOCATION);
            drop_and_tell(cx, burst, i, reason, limits, sink);
        }
        FlowVerdict::Flood => flood::run(cx, burst, i, action.entropy, sink),
        FlowVerdict::Router => router(cx, burst, i, sink),
        FlowVerdict::Service => service::run(cx, burst, i, limits),
        FlowVerdict::Forward => {}
    }
}

/// The virtual router answers echo requests from vNICs and nothing else.
fn router<P: PacketBuf, S: Sink<P>>(cx: &Cx, burst: &mut Burst<P>, i: usize, sink: &mut S) {
    let meta = burst.metas[i];
    let mac = cx.snapshot.vpc(meta.vpc).map(|vpc| vpc.router_mac).unwrap_or_default();
    let replied = meta.direction() == Direction::Out
        && reply::is_echo_request(&meta.headers)
        && burst.packets[i].as_mut().is_some_and(|packet| reply::echo(packet, &meta.headers, mac));
    if replied {
        send_back(cx, burst, i, sink);
    } else {
        burst.drop(i, DropReason::TO_ROUTER, cx.counters);
    }
}
