//! parse: headers of the (inner) packet, and what the sender left to us: checksums, which are completed here, and super-frames,
//! which are told from what cannot be cut.

use wire::checksum;
use wire::parse::parse_into;
use wire::{ChecksumState, Flags, Headers, L3, PacketBuf, protocol};

use super::neighbour::is_neighbour_protocol;
use super::{Cx, super_frame};
use crate::burst::Burst;
use crate::drops::DropReason;
use crate::nft::Bits;

/// Parses the packets whose bits are in `mask`; `fill` says that the port may deliver unfinished checksums unmarked.
/// Returns the bits of ARP and neighbour discovery packets.
#[inline]
pub fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, mask: u64, fill: bool) -> u64 {
    let mut neighbours = 0;
    for i in Bits(mask & burst.pending) {
        let Some(packet) = burst.packets[i].as_mut() else { continue };
        let meta = &mut burst.metas[i];
        if let Err(malformed) = parse_into(packet.head(), packet.len(), &mut meta.headers) {
            burst.drop(i, malformed.into(), cx.counters);
            continue;
        }
        neighbours |= u64::from(is_neighbour_protocol(&meta.headers)) << i;
        let facts = packet.rx_facts();
        if facts.gso_size != 0 {
            judge(cx, burst, i);
            continue;
        }
        if fill || facts.l4_checksum == ChecksumState::Partial {
            match complete_checksum(packet, &meta.headers) {
                Completed::Written => cx.counters.checksums_filled.add(1),
                Completed::Nothing => {}
                Completed::ReadOnly => burst.drop(i, DropReason::NO_BUFFER, cx.counters),
            }
        }
    }
    neighbours
}

/// Tells whether a packet with a segment size is a super-frame, an ordinary packet, or nothing that could be cut.
#[cold]
#[inline(never)]
fn judge<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, i: usize) {
    let Some(packet) = burst.packets[i].as_mut() else { return };
    match super_frame::admit(cx.counters, packet, &burst.metas[i].headers) {
        Ok(None) => {}
        Ok(Some(_)) => burst.super_frames |= 1 << i,
        Err(reason) => burst.drop(i, reason, cx.counters),
    }
}

/// Offset of the checksum field within the L4 header.
const fn field(proto: u8) -> Option<usize> {
    match proto {
        protocol::TCP => Some(16),
        protocol::UDP => Some(6),
        _ => None,
    }
}

/// What became of a checksum that may be unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// It was none, or there is none.
    Nothing,
    /// It is right now.
    Written,
    /// It is unfinished and lies in a shared buffer.
    ReadOnly,
}

/// Completes a TCP or UDP checksum whose field holds the pseudo-header sum.
///
/// A finished checksum that happens to look like that is recomputed to the same value, so the test needs no
/// mark from the port.
#[inline(always)]
pub fn complete_checksum<P: PacketBuf>(packet: &mut P, headers: &Headers) -> Completed {
    let Some(field) = field(headers.proto) else { return Completed::Nothing };
    if !headers.is(Flags::L4) || headers.flags.intersects(Flags::FRAGMENT) {
        return Completed::Nothing;
    }
    let l4 = usize::from(headers.l4_offset);
    let len = headers.l4_total_len();
    let Some(pseudo) = pseudo_sum(packet.head(), headers, len) else { return Completed::Nothing };
    let at = l4 + field;
    let Some(stored) = packet.head().get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])) else {
        return Completed::Nothing;
    };
    if stored != pseudo || stored == 0 {
        return Completed::Nothing;
    }
    // The field itself holds the pseudo-header sum: summing everything as it is gives the whole.
    let Some(sum) = checksum::sum_range(packet.segments(), l4, len) else { return Completed::Nothing };
    let value = match sum.checksum() {
        0 if headers.proto == protocol::UDP => 0xffff,
        value => value,
    };
    if value == stored {
        return Completed::Nothing;
    }
    match packet.head_mut().get_mut(at..at + 2) {
        Some(bytes) => {
            bytes.copy_from_slice(&value.to_be_bytes());
            Completed::Written
        }
        None => Completed::ReadOnly,
    }
}

/// The folded pseudo-header sum of an L4 packet of `len` bytes.
pub fn pseudo_sum(head: &[u8], headers: &Headers, len: usize) -> Option<u16> {
    let l3 = usize::from(headers.l3_offset);
    Some(match headers.l3 {
        L3::Ipv4 => {
            let src = head.get(l3 + 12..l3 + 16)?.try_into().ok()?;
            let dst = head.get(l3 + 16..l3 + 20)?.try_into().ok()?;
            checksum::pseudo_v4(src, dst, headers.proto, u16::try_from(len).ok()?).fold()
        }
        L3::Ipv6 => {
            let src = head.get(l3 + 8..l3 + 24)?.try_into().ok()?;
            let dst = head.get(l3 + 24..l3 + 40)?.try_into().ok()?;
            checksum::pseudo_v6(src, dst, headers.proto, len as u32).fold()
        }
        L3::None | L3::Arp => return None,
    })
}
