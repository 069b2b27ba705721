//! Checksums of TCP, UDP, ICMP and ICMPv6 in whole packets: compute, fill, verify.
//!
//! Joins what the parser found with the sums of [`crate::checksum`]; works on a frame in one piece or in
//! segments. Fragments have no checksum of their own that could be judged here, nor has a packet with IPv6
//! segments left, whose pseudo header names an address yet to come (RFC 8200 section 8.1): for both the answer
//! is [`ChecksumVerdict::None`], and nothing is written. SCTP's CRC32c is end to end and left alone.

use crate::checksum::{self, Sum};
use crate::headers::{Flags, Headers, L3};
use crate::packet::PacketBuf;
use crate::{icmp, protocol, tcp, udp};

/// What a look at an L4 checksum says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumVerdict {
    /// The checksum is that of the packet.
    Good,
    /// It is not: some byte was changed on the way.
    Bad,
    /// A UDP datagram that carries none. Always legal over IPv4; over IPv6 only for tunnels (RFC 6935).
    Zero,
    /// Nothing to judge: no L4 header, a fragment, or a protocol without an Internet checksum.
    None,
}

/// Offset of the checksum field in the frame; `None` where there is none to fill.
#[inline]
pub fn field_offset(h: &Headers) -> Option<usize> {
    if !h.is(Flags::L4) || h.flags.intersects(Flags::FRAGMENT | Flags::SOURCE_ROUTED) {
        return None;
    }
    let within = match h.proto {
        protocol::TCP => tcp::CHECKSUM_OFFSET,
        protocol::UDP => udp::CHECKSUM_OFFSET,
        protocol::ICMP | protocol::ICMPV6 => icmp::CHECKSUM_OFFSET,
        _ => return None,
    };
    Some(usize::from(h.l4_offset) + within)
}

/// Sum of the pseudo header for `len` bytes of L4: what a field with a partial checksum holds once folded.
/// Zero for ICMP over IPv4, which has none; `None` when this is not IP.
#[inline]
pub fn pseudo_header(h: &Headers, head: &[u8], len: usize) -> Option<Sum> {
    match h.l3 {
        L3::Ipv4 if h.proto == protocol::ICMP => Some(Sum::ZERO),
        L3::Ipv4 => {
            let ip = h.ipv4(head)?;
            Some(checksum::pseudo_v4(ip.src, ip.dst, h.proto, len as u16))
        }
        L3::Ipv6 => {
            let ip = h.ipv6(head)?;
            Some(checksum::pseudo_v6(&ip.src, &ip.dst, h.proto, len as u32))
        }
        L3::None | L3::Arp => None,
    }
}

/// Bytes that the checksum covers: UDP's own length, else all behind the IP headers.
fn covered(h: &Headers, head: &[u8]) -> Option<usize> {
    match h.udp(head) {
        Some(header) => Some(usize::from(header.len.get())),
        None if h.proto == protocol::UDP => None,
        None => Some(h.l4_total_len()),
    }
}

fn field(head: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*head.get(at..)?.first_chunk()?))
}

/// The checksum field, and the sum over pseudo header and covered bytes: with the field as it is, or without.
fn field_and_sum<'a>(
    h: &Headers,
    segments: impl IntoIterator<Item = &'a [u8]>,
    with_field: bool,
) -> Option<(u16, Sum)> {
    let at = field_offset(h)?;
    let mut segments = segments.into_iter();
    let head = segments.next()?;
    let (len, field) = (covered(h, head)?, field(head, at)?);
    let mut sum = pseudo_header(h, head, len)?;
    let l4 = usize::from(h.l4_offset);
    if with_field {
        sum.add_range(std::iter::once(head).chain(segments), l4, len)?;
    } else {
        // Left out rather than subtracted: ones' complement has two zeros, and of an ICMP message that is zero
        // throughout only the other one is right.
        let around = [head.get(l4..at)?, head.get(at + 2..)?];
        sum.add_range(around.into_iter().chain(segments), 0, len.checked_sub(2)?)?;
    }
    Some((field, sum))
}

/// The checksum that the packet should carry, whatever its field holds now. `segments` are all of the packet's,
/// the first one holding the headers. `None` where there is none to fill, or the packet ends early.
#[inline]
pub fn compute<'a>(h: &Headers, segments: impl IntoIterator<Item = &'a [u8]>) -> Option<u16> {
    let right = field_and_sum(h, segments, false)?.1.checksum();
    Some(if h.proto == protocol::UDP { checksum::udp(right) } else { right })
}

/// Writes `value` into the checksum field. `false` where there is none.
#[inline]
pub fn write(h: &Headers, head: &mut [u8], value: u16) -> bool {
    let field = field_offset(h).and_then(|at| head.get_mut(at..)?.first_chunk_mut());
    match field {
        Some(field) => {
            *field = value.to_be_bytes();
            true
        }
        None => false,
    }
}

/// Fills the checksum of a frame that lies in one piece. `false` (and no change) where there is none to fill.
#[inline]
pub fn fill(h: &Headers, frame: &mut [u8]) -> bool {
    compute(h, [&*frame]).is_some_and(|right| write(h, frame, right))
}

/// [`fill`] for a packet in segments.
#[inline]
pub fn fill_packet(h: &Headers, packet: &mut impl PacketBuf) -> bool {
    compute(h, packet.segments()).is_some_and(|right| write(h, packet.head_mut(), right))
}

/// Judges the checksum of a packet. A packet that ends before its L4 data does is [`ChecksumVerdict::Bad`].
#[inline]
pub fn verify<'a>(h: &Headers, segments: impl IntoIterator<Item = &'a [u8]>) -> ChecksumVerdict {
    if field_offset(h).is_none() {
        return ChecksumVerdict::None;
    }
    match field_and_sum(h, segments, true) {
        Some((0, _)) if h.proto == protocol::UDP => ChecksumVerdict::Zero,
        Some((_, sum)) if sum.fold() == 0xffff => ChecksumVerdict::Good,
        _ => ChecksumVerdict::Bad,
    }
}
