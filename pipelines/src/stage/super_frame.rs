//! super_frame: TCP super-frames. They go through the other stages as one packet and are cut at the very end, so that a flow is
//! looked up, and its packet paid for, once; to a port that takes them, and into a tunnel by an uplink whose device cuts them
//! there, they go whole.
//!
//! What is a super-frame and how it is cut, [`wire::segment`] knows. Here are the two ways out: to a place, as
//! [`forward`] sends packets, and to a port, for what no stage reads. Pieces are packets like any other: each
//! has its own tunnel header, and counts.

use wire::parse::parse_into;
use wire::segment::{Segmentation, SuperFrame};
use wire::{ChecksumState, Headers, OuterHeaders, PacketBuf, TxRequest, View, ipv4};

use super::forward::{self, Origin, Refused};
use super::parse::{Completed, complete_checksum};
use super::tunnel::{self, EncapInput, Patch};
use super::{Cx, bind};
use crate::Sink;
use crate::burst::Burst;
use crate::counters::PipelineCounters;
use crate::decide::decide;
use crate::direction::Direction;
use crate::drops::DropReason;
use crate::miss::MissLimits;
use crate::nft::Nft;
use crate::snapshot::{PortIndex, Snapshot};
use crate::vlt::{Place, Tunnel};

/// Judges a packet with a segment size: a super-frame, or an ordinary packet of one segment, whose checksum is completed.
///
/// # Errors
/// Why it is to be dropped.
pub(super) fn admit<P: PacketBuf>(
    counters: &PipelineCounters,
    packet: &mut P,
    headers: &Headers,
) -> Result<Option<SuperFrame>, DropReason> {
    let facts = packet.rx_facts();
    match Segmentation::of(headers, packet.head(), packet.len(), &facts) {
        Segmentation::Several(frame) => return Ok(Some(frame)),
        Segmentation::Unsound => return Err(DropReason::GSO),
        Segmentation::One => packet.request_tx(TxRequest::default()),
    }
    if facts.l4_checksum == ChecksumState::Partial {
        complete(counters, packet, headers)?;
    }
    Ok(None)
}

fn complete<P: PacketBuf>(
    counters: &PipelineCounters,
    packet: &mut P,
    headers: &Headers,
) -> Result<(), DropReason> {
    match complete_checksum(packet, headers) {
        Completed::Written => counters.checksums_filled.add(1),
        Completed::Nothing => {}
        Completed::ReadOnly => return Err(DropReason::NO_BUFFER),
    }
    Ok(())
}

/// The super-frame that a packet is, if it is one.
#[inline]
pub(crate) fn of<P: PacketBuf>(packet: &P, headers: &Headers) -> Option<SuperFrame> {
    if !packet.is_unfinished() {
        return None;
    }
    let facts = packet.rx_facts();
    if facts.gso_size == 0 {
        return None;
    }
    match Segmentation::of(headers, packet.head(), packet.len(), &facts) {
        Segmentation::Several(frame) => Some(frame),
        Segmentation::One | Segmentation::Unsound => None,
    }
}

/// Sends a super-frame of a burst on its way. Its flow's entry counts it as the one packet that came.
#[inline(never)]
pub(super) fn run<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    burst: &mut Burst<P>,
    i: usize,
    nft: &mut Nft,
    limits: &mut MissLimits,
    sink: &mut S,
) {
    let meta = burst.metas[i];
    let Some(bytes) = burst.packets[i].as_ref().map(PacketBuf::len) else { return };
    let action = match nft.entry_mut(meta.entry) {
        Some(entry) => {
            entry.packets += 1;
            entry.bytes += bytes as u64;
            entry.last_seen = cx.now.tick;
            forward::current_action(cx, entry, &meta.key)
        }
        None => decide(cx.snapshot, &meta.key),
    };
    let Some(place) = forward::ready(cx, burst, i, action, limits, sink) else { return };
    let Some(packet) = burst.take(i) else { return };
    let origin = Origin { vnic: meta.vnic, direction: meta.direction() };
    let flow = EncapInput::of(cx, &meta, action.entropy);
    let result = match of(&packet, &meta.headers) {
        Some(frame) => to_place(cx, sink, packet, &frame, place, origin, flow),
        None => Err((DropReason::GSO, packet)),
    };
    if let Err((reason, packet)) = result {
        forward::refused(cx, burst, i, Refused { reason, packet, place }, limits, sink);
    }
}

/// The smallest segment size that is left to a device inside a tunnel. The sender chooses it, and what is smaller than i40e takes
/// (`I40E_MIN_TSO_MSS`) its hardware may hold against the whole port.
const MIN_DEVICE_SEGMENT: u16 = 256;

/// [`forward::to_place`] for a super-frame: whole to a vNIC whose port takes it and into a tunnel whose uplink cuts it, else in
/// pieces.
///
/// # Errors
/// As there, before anything was sent. Pieces that come to nothing later are dropped by name.
#[inline(never)]
pub(super) fn to_place<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    sink: &mut S,
    mut packet: P,
    frame: &SuperFrame,
    place: Place,
    origin: Origin,
    flow: EncapInput,
) -> Result<(), (DropReason, P)> {
    if let Place::Local { vnic } = place
        && vnic != origin.vnic
    {
        let row = cx.snapshot.row(vnic);
        if takes(cx.snapshot, row.port) && frame.ip_len() <= usize::from(row.mtu) {
            let tag = if row.vlan == 0 { 0 } else { 4 };
            if !frame.request(&mut packet, tag) || tag > 0 && !bind::push_tag(&mut packet, row.vlan) {
                return Err((DropReason::NO_BUFFER, packet));
            }
            forward::count_delivered(cx, vnic, origin, flow, packet.len());
            sink.send(row.port, packet);
            return Ok(());
        }
    }
    if let Place::Remote(tunnel) = place
        && origin.direction == Direction::Out
    {
        match whole_into_tunnel(cx, sink, packet, frame, &tunnel, flow) {
            Ok(()) => return Ok(()),
            Err(back) => packet = back,
        }
    }
    // The first piece is as long as any: where it goes, all go.
    let (mut made, mut refusal) = (0, Some(DropReason::NO_BUFFER));
    for piece in frame.cut(&packet).map_while(|piece| piece) {
        let result = forward::to_place(cx, sink, piece, place, origin, flow).map_err(|(reason, _)| reason);
        match result {
            Err(reason) if made == 0 => {
                refusal = Some(reason);
                break;
            }
            Err(reason) => lost(cx, origin, reason, 1),
            Ok(()) => refusal = None,
        }
        made += 1;
    }
    if let Some(reason) = refusal {
        return Err((reason, packet));
    }
    cx.counters.copies.add(frame.pieces() as u64 - 1);
    lost(cx, origin, DropReason::NO_BUFFER, (frame.pieces() - made) as u64);
    Ok(())
}

/// Sends a super-frame whole into a tunnel if the device of the uplink cuts it there.
///
/// # Errors
/// The packet, which is not for the device, or has no room for the headers of the tunnel. It can still be cut.
fn whole_into_tunnel<P: PacketBuf, S: Sink<P>>(
    cx: &Cx,
    sink: &mut S,
    mut packet: P,
    frame: &SuperFrame,
    tunnel: &Tunnel,
    flow: EncapInput,
) -> Result<(), P> {
    let Some((uplink, hop)) = cx.snapshot.way(tunnel.group, flow.source_port) else {
        return Err(packet);
    };
    let Some(tso) = cx.snapshot.ports.get(usize::from(uplink.port)).and_then(|row| row.tunnel_tso) else {
        return Err(packet);
    };
    let tunnel_len = usize::from(tunnel.len);
    let is_ipv6 = tunnel_len == tunnel::overhead(true, uplink.vlan.is_some());
    // The outer lengths have 16 bits. Headers that are plain are no more than 188 bytes, those of the tunnel included: mlx5 writes up
    // to 192 into a descriptor (`MLX5_MAX_TSO_HEADER` of DPDK 22.11.11).
    let taken = frame.has_plain_headers()
        && frame.segment_size() >= MIN_DEVICE_SEGMENT
        && frame.frame_len() + tunnel_len <= uplink.longest_frame()
        && packet.len() + tunnel_len <= usize::from(u16::MAX)
        && packet.segments().count() <= usize::from(tso.max_segments)
        && (!is_ipv6 || tso.outer_udp_checksum || uplink.udp6_zero_checksum);
    if !taken {
        return Err(packet);
    }
    let (l2_len, l3_len) = (uplink.link_header_len(), if is_ipv6 { 40 } else { 20 });
    let outer =
        OuterHeaders { l2_len, l3_len, ipv6: is_ipv6, udp_checksum: is_ipv6 && !uplink.udp6_zero_checksum };
    // Where the outer UDP checksum is not to be zero, the device fills it.
    let patch = Patch { zero_checksum6: true, ..flow.patch(cx, uplink, hop) };
    if !frame.request_in_tunnel(&mut packet, outer) || !tunnel::encapsulate(&mut packet, tunnel, patch) {
        return Err(packet);
    }
    if !is_ipv6 && let Some(ip) = ipv4::Header::view_mut_at(packet.head_mut(), usize::from(l2_len)) {
        ip.checksum.set(0);
    }
    cx.counters.encapsulated.add(1);
    sink.send(uplink.port, packet);
    Ok(())
}

/// Counts pieces that came to nothing.
pub(super) fn lost(cx: &Cx, origin: Origin, reason: DropReason, pieces: u64) {
    cx.counters.drop_many(reason, pieces);
    if origin.direction == Direction::Out {
        cx.counters.vnic(origin.vnic as usize).drops.add(pieces);
    }
}

fn takes(snapshot: &Snapshot, port: PortIndex) -> bool {
    snapshot.ports.get(usize::from(port)).is_some_and(|row| row.takes_super_frames)
}

/// Sends a packet that goes as it came, and finishes what its sender left to a device: checksums and super-frames.
#[inline(always)]
pub(crate) fn send_finished<P: PacketBuf, S: Sink<P>>(
    snapshot: &Snapshot,
    counters: &PipelineCounters,
    sink: &mut S,
    port: PortIndex,
    packet: P,
) {
    if packet.is_unfinished() {
        finish_and_send(snapshot, counters, sink, port, packet);
    } else {
        sink.send(port, packet);
    }
}

#[cold]
#[inline(never)]
fn finish_and_send<P: PacketBuf, S: Sink<P>>(
    snapshot: &Snapshot,
    counters: &PipelineCounters,
    sink: &mut S,
    port: PortIndex,
    mut packet: P,
) {
    let mut headers = Headers::default();
    let parsed = parse_into(packet.head(), packet.len(), &mut headers).is_ok();
    let result = match (parsed, packet.rx_facts().gso_size) {
        // Nothing is known of its checksum: it goes as it came.
        (false, 0) => Ok(None),
        (false, _) => Err(DropReason::GSO),
        (true, 0) => complete(counters, &mut packet, &headers).map(|()| None),
        (true, _) => admit(counters, &mut packet, &headers),
    };
    match result {
        Ok(None) => sink.send(port, packet),
        Ok(Some(frame)) if !takes(snapshot, port) => send_pieces(counters, sink, port, &packet, &frame),
        Ok(Some(frame)) if frame.request(&mut packet, 0) => sink.send(port, packet),
        Ok(Some(_)) => counters.drop(DropReason::NO_BUFFER),
        Err(reason) => counters.drop(reason),
    }
}

fn send_pieces<P: PacketBuf, S: Sink<P>>(
    counters: &PipelineCounters,
    sink: &mut S,
    port: PortIndex,
    packet: &P,
    frame: &SuperFrame,
) {
    let mut sent = 0;
    for piece in frame.cut(packet).map_while(|piece| piece) {
        sink.send(port, piece);
        sent += 1;
    }
    counters.copies.add(frame.pieces() as u64 - 1);
    counters.drop_many(DropReason::NO_BUFFER, frame.pieces() as u64 - sent);
}
