//! The invariant CRC of RoCEv2 (IBTA vol. 1 sections 7.8.1 and annex A17.3.3).
//!
//! CRC-32 of Ethernet over everything that no switch may change: eight bytes of ones in place of the InfiniBand
//! local route header, then the packet from its IP header to the end of the padding, with the fields that do
//! change on the way taken as ones. The four bytes go out least significant first. ECN, DSCP and TTL rewrites
//! and tunnels therefore need nothing of this file; whoever makes or checks a RoCE packet does.

use crate::crc;
use crate::headers::{Headers, L3};
use crate::roce::{BTH_LEN, ICRC_LEN};
use crate::{ipv4, ipv6, udp};

/// State of the CRC after the eight bytes of ones in place of the local route header.
const START: u32 = 0xdebb_20e3;

/// Offset of the ICRC in the frame: the last four bytes of the UDP payload. `None` when this is not a whole UDP
/// datagram that could hold a BTH and an ICRC.
#[inline]
pub fn offset(h: &Headers, head: &[u8]) -> Option<usize> {
    if h.flags.intersects(crate::Flags::FRAGMENT) {
        return None;
    }
    let len = usize::from(h.udp(head)?.len.get());
    (len >= udp::HEADER_LEN + BTH_LEN + ICRC_LEN).then(|| usize::from(h.l4_offset) + len - ICRC_LEN)
}

/// The CRC state after the headers up to and with the BTH, changing fields taken as ones.
fn after_headers(h: &Headers, head: &[u8]) -> Option<u32> {
    let ip = h.ip_header(head);
    let mut state = START;
    let options = match h.l3 {
        L3::Ipv4 => {
            let (mut fixed, options) =
                ip.split_first_chunk::<{ ipv4::HEADER_LEN }>().map(|(f, o)| (*f, o))?;
            // TOS, TTL, header checksum.
            (fixed[1], fixed[8], fixed[10], fixed[11]) = (0xff, 0xff, 0xff, 0xff);
            state = crc::ieee(state, &fixed);
            options
        }
        L3::Ipv6 => {
            let (mut fixed, extensions) =
                ip.split_first_chunk::<{ ipv6::HEADER_LEN }>().map(|(f, e)| (*f, e))?;
            // Traffic class and flow label, hop limit.
            fixed[0] |= 0x0f;
            (fixed[1], fixed[2], fixed[3], fixed[7]) = (0xff, 0xff, 0xff, 0xff);
            state = crc::ieee(state, &fixed);
            extensions
        }
        L3::None | L3::Arp => return None,
    };
    state = crc::ieee(state, options);
    let l4 = head.get(usize::from(h.l4_offset)..)?;
    let mut udp_bth = *l4.first_chunk::<{ udp::HEADER_LEN + BTH_LEN }>()?;
    // UDP checksum; the BTH's FECN, BECN and reserved bits.
    (udp_bth[6], udp_bth[7], udp_bth[12]) = (0xff, 0xff, 0xff);
    Some(crc::ieee(state, &udp_bth))
}

/// The ICRC that the packet should carry, as the number whose little-endian bytes are sent. `segments` are all
/// of the packet's, the first one holding the headers to the end of the BTH. `None` when this is not a RoCE
/// packet or ends early.
pub fn compute<'a>(h: &Headers, segments: impl IntoIterator<Item = &'a [u8]>) -> Option<u32> {
    Some(walk(h, segments)?.0)
}

/// True when the packet's ICRC is right, `None` when this is not a RoCE packet or ends early.
pub fn verify<'a>(h: &Headers, segments: impl IntoIterator<Item = &'a [u8]>) -> Option<bool> {
    let (right, carried) = walk(h, segments)?;
    Some(u32::from_le_bytes(carried) == right)
}

/// Writes the ICRC into the last four bytes of the UDP payload of a frame in one piece. `false` (and no change)
/// when there is no place for it.
pub fn fill(h: &Headers, frame: &mut [u8]) -> bool {
    let right = compute(h, [&*frame]);
    let place = offset(h, frame).and_then(|at| frame.get_mut(at..)?.first_chunk_mut::<ICRC_LEN>());
    match (right, place) {
        (Some(right), Some(place)) => {
            *place = right.to_le_bytes();
            true
        }
        _ => false,
    }
}

/// The right ICRC and the four bytes that are there.
fn walk<'a>(h: &Headers, segments: impl IntoIterator<Item = &'a [u8]>) -> Option<(u32, [u8; ICRC_LEN])> {
    let mut segments = segments.into_iter();
    let head = segments.next()?;
    let end = offset(h, head)?;
    let mut state = after_headers(h, head)?;
    let mut at = usize::from(h.l4_offset) + udp::HEADER_LEN + BTH_LEN;
    let mut carried = ([0u8; ICRC_LEN], 0);
    // `after_headers` saw that the first segment reaches this far.
    for segment in std::iter::once(&head[at..]).chain(segments) {
        let (body, tail) = segment.split_at(segment.len().min(end.saturating_sub(at)));
        state = crc::ieee(state, body);
        for byte in tail.iter().take(ICRC_LEN - carried.1) {
            carried.0[carried.1] = *byte;
            carried.1 += 1;
        }
        at += segment.len();
    }
    (carried.1 == ICRC_LEN).then_some((!state, carried.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_the_state_after_eight_bytes_of_ones() {
        assert_eq!(crc::ieee(!0, &[0xff; 8]), START);
    }
}
