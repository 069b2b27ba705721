//! The invariant CRC of RoCEv2 (IBTA vol. 1 sections 7.8.1 and annex A17.3.3).
//!
//! CRC-32 of Ethernet over everything that no switch may change: eight bytes of ones in place of the InfiniBand
//! local route header, then the packet from its IP header to the end of the padding, with the fields that do
//! change on the way taken as ones. The four bytes go out least significant first. ECN, DSCP and TTL rewrites
//! and tunnels therefore need nothing of this file; whoever makes or checks a RoCE packet does.

use crate::headers::{Headers, L3};
use crate::roce::{BTH_LEN, ICRC_LEN};
use crate::{ipv4, ipv6, udp};

/// The polynomial of IEEE 802.3, bit-reversed.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// State of the CRC after the eight bytes of ones in place of the local route header.
const START: u32 = 0xdebb_20e3;

/// `TABLES[k][b]` is the effect of byte `b` on the state after `k` further zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut state, mut bit) = (byte as u32, 0);
        while bit < 8 {
            state = if state & 1 != 0 { state >> 1 ^ POLYNOMIAL } else { state >> 1 };
            bit += 1;
        }
        tables[0][byte] = state;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// Runs the CRC of IEEE 802.3 over `bytes`, from `state` to the state after them; neither is inverted.
pub fn crc32_update(mut state: u32, bytes: &[u8]) -> u32 {
    // Eight bytes a step: their effects are looked up side by side instead of one after another.
    let (blocks, rest) = bytes.as_chunks::<8>();
    for block in blocks {
        let [a, b, c, d, e, f, g, h] = (u64::from_le_bytes(*block) ^ u64::from(state)).to_le_bytes();
        state = TABLES[7][usize::from(a)]
            ^ TABLES[6][usize::from(b)]
            ^ TABLES[5][usize::from(c)]
            ^ TABLES[4][usize::from(d)]
            ^ TABLES[3][usize::from(e)]
            ^ TABLES[2][usize::from(f)]
            ^ TABLES[1][usize::from(g)]
            ^ TABLES[0][usize::from(h)];
    }
    for byte in rest {
        state = state >> 8 ^ TABLES[0][usize::from(state as u8 ^ byte)];
    }
    state
}

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
            state = crc32_update(state, &fixed);
            options
        }
        L3::Ipv6 => {
            let (mut fixed, extensions) =
                ip.split_first_chunk::<{ ipv6::HEADER_LEN }>().map(|(f, e)| (*f, e))?;
            // Traffic class and flow label, hop limit.
            fixed[0] |= 0x0f;
            (fixed[1], fixed[2], fixed[3], fixed[7]) = (0xff, 0xff, 0xff, 0xff);
            state = crc32_update(state, &fixed);
            extensions
        }
        L3::None | L3::Arp => return None,
    };
    state = crc32_update(state, options);
    let l4 = head.get(usize::from(h.l4_offset)..)?;
    let mut udp_bth = *l4.first_chunk::<{ udp::HEADER_LEN + BTH_LEN }>()?;
    // UDP checksum; the BTH's FECN, BECN and reserved bits.
    (udp_bth[6], udp_bth[7], udp_bth[12]) = (0xff, 0xff, 0xff);
    Some(crc32_update(state, &udp_bth))
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
        state = crc32_update(state, body);
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
    use proptest::prelude::*;

    /// The definition, bit by bit.
    fn slow(mut state: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            for bit in 0..8 {
                let one = (state ^ u32::from(byte >> bit)) & 1 != 0;
                state = if one { state >> 1 ^ POLYNOMIAL } else { state >> 1 };
            }
        }
        state
    }

    #[test]
    fn check_value_of_crc32() {
        assert_eq!(!crc32_update(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn start_is_the_state_after_eight_bytes_of_ones() {
        assert_eq!(crc32_update(!0, &[0xff; 8]), START);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(state in any::<u32>(), bytes in prop::collection::vec(any::<u8>(), 0..70)) {
            prop_assert_eq!(crc32_update(state, &bytes), slow(state, &bytes));
        }
    }
}
