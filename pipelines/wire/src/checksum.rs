//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! Sums over byte slices only; which bytes of a packet count as whose checksum is in [`crate::l4`]. A checksum
//! value is the `u16` that the header's big-endian field shows. Never allocates.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A running ones' complement sum. Add slices of any length in packet order, then [`fold`](Sum::fold).
///
/// Words are added as the CPU loads them, and swapped once at the end (RFC 1071 section 2(B)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    native: u64,
    odd: bool,
}

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Self = Self { native: 0, odd: false };

    /// Adds bytes. A slice of odd length shifts what comes after it by one byte, so that adding a packet in
    /// pieces gives what adding it whole gives.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let part = native_sum(bytes);
        self.native += if self.odd { u64::from(fold_native(part).swap_bytes()) } else { part };
        self.odd ^= bytes.len() & 1 != 0;
    }

    /// Adds `len` bytes, `start` bytes into a packet of several segments. `None` when the packet ends earlier;
    /// the sum then is of no use.
    #[inline]
    pub fn add_range<'a>(
        &mut self,
        segments: impl IntoIterator<Item = &'a [u8]>,
        start: usize,
        len: usize,
    ) -> Option<()> {
        let (mut skip, mut left) = (start, len);
        for segment in segments {
            let here = &segment[skip.min(segment.len())..];
            skip -= segment.len() - here.len();
            let here = &here[..left.min(here.len())];
            self.add(here);
            left -= here.len();
            if left == 0 {
                break;
            }
        }
        (left == 0).then_some(())
    }

    /// Adds one 16-bit field, as if its two bytes were added next.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        let native = if self.odd { value.swap_bytes() } else { value }.to_be();
        self.native += u64::from(native);
    }

    /// Takes out one 16-bit field that was added, or will be, from where the sum is now: at an odd position
    /// after an odd number of bytes.
    #[inline]
    pub fn subtract_u16(&mut self, value: u16) {
        self.add_u16(!value);
    }

    /// The 16-bit ones' complement sum, not inverted.
    #[inline]
    pub fn fold(self) -> u16 {
        u16::from_be(fold_native(self.native))
    }

    /// The checksum to write: the inverted sum.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }
}

#[inline(always)]
fn native_sum(bytes: &[u8]) -> u64 {
    // 32-bit words in a 64-bit sum: no carry is lost before 2^32 words, and the loop vectorises.
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum = words.iter().fold(0u64, |sum, word| sum + u64::from(u32::from_ne_bytes(*word)));
    let (halves, last) = rest.as_chunks::<2>();
    for half in halves {
        sum += u64::from(u16::from_ne_bytes(*half));
    }
    if let [byte] = last {
        sum += u64::from(u16::from_ne_bytes([*byte, 0]));
    }
    sum
}

#[inline(always)]
const fn fold_native(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The sum over one slice.
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum { native: native_sum(bytes), odd: bytes.len() & 1 != 0 }
}

/// The 16-bit ones' complement sum, not inverted: `0xffff` over data that holds its own right checksum.
#[inline]
pub fn fold(sum: Sum) -> u16 {
    sum.fold()
}

/// The checksum of one slice whose checksum field is zero.
#[inline]
pub fn of(bytes: &[u8]) -> u16 {
    sum(bytes).checksum()
}

/// The sum over `len` bytes, `start` bytes into a packet of several segments; `None` when the packet ends
/// earlier.
pub fn sum_range<'a>(segments: impl IntoIterator<Item = &'a [u8]>, start: usize, len: usize) -> Option<Sum> {
    let mut sum = Sum::ZERO;
    sum.add_range(segments, start, len)?;
    Some(sum)
}

/// Sum of the pseudo header of TCP and UDP over IPv4 (RFC 9293 section 3.1, RFC 768).
#[inline]
pub fn pseudo_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: u16) -> Sum {
    let mut sum = sum(&src);
    sum.add(&dst);
    sum.add_u16(u16::from(protocol));
    sum.add_u16(len);
    sum
}

/// Sum of the pseudo header of TCP, UDP and ICMPv6 over IPv6 (RFC 8200 section 8.1).
#[inline]
pub fn pseudo_v6(src: &[u8; 16], dst: &[u8; 16], next_header: u8, len: u32) -> Sum {
    let mut sum = sum(src);
    sum.add(dst);
    sum.add(&len.to_be_bytes());
    sum.add_u16(u16::from(next_header));
    sum
}

/// The checksum after one 16-bit word of the data changed from `old` to `new` (RFC 1624, equation 3).
///
/// For UDP the caller keeps the zero rule: a field of 0 means "no checksum" and is not updated, a result of 0
/// is written as `0xffff` ([`udp`] does that).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = !checksum as u32 + !old as u32 + new as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// [`update`] for bytes that start at an even offset of the data. `old` and `new` are equally long and of even
/// length (an address, a port); where they are not, the surplus counts as changed from or to zero.
#[inline]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    update(checksum, sum(old).fold(), sum(new).fold())
}

/// [`update_bytes`] for an IPv4 address.
#[inline]
pub fn update_ipv4(checksum: u16, old: Ipv4Addr, new: Ipv4Addr) -> u16 {
    update_bytes(checksum, &old.octets(), &new.octets())
}

/// [`update_bytes`] for an IPv6 address.
#[inline]
pub fn update_ipv6(checksum: u16, old: Ipv6Addr, new: Ipv6Addr) -> u16 {
    update_bytes(checksum, &old.octets(), &new.octets())
}

/// `checksum` as UDP transmits it: a computed 0 is sent as `0xffff` (RFC 768).
#[inline]
pub const fn udp(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn example_of_rfc_1071() {
        // Section 3: the sum over these bytes is ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes).fold(), 0xddf2);
        assert_eq!(of(&bytes), !0xddf2);
    }

    #[test]
    fn example_of_rfc_1624() {
        // Section 4: checksum dd2f, field 5555 becomes 3285, the checksum becomes 0 (not ffff).
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn long_runs_of_ones_do_not_lose_carries() {
        let bytes = vec![0xffu8; 70_001];
        assert_eq!(sum(&bytes).fold(), slow(&bytes));
        assert_eq!(fold_native(u64::MAX), 0xffff);
        assert_eq!(fold_native(0xffff_0001_ffff_ffff) as u64, 0xffff_0001_ffff_ffff % 0xffff);
    }

    #[test]
    fn a_range_past_the_end_is_none() {
        let segments: [&[u8]; 3] = [&[1, 2, 3], &[], &[4, 5]];
        assert!(sum_range(segments, 1, 5).is_none());
        assert!(sum_range(segments, 6, 0).is_some());
        assert!(sum_range(segments, 9, 1).is_none());
        assert_eq!(sum_range(segments, 1, 4).unwrap().fold(), slow(&[2, 3, 4, 5]));
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(sum(&bytes).fold(), slow(&bytes));
        }

        #[test]
        fn pieces_add_up(bytes in prop::collection::vec(any::<u8>(), 1..200),
                         cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let mut from = 0;
            let mut pieces = Vec::new();
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            let mut sum = Sum::ZERO;
            pieces.iter().for_each(|piece| sum.add(piece));
            prop_assert_eq!(sum.fold(), slow(&bytes));
            let (start, len) = (bytes.len() / 3, bytes.len() / 2);
            prop_assert_eq!(sum_range(pieces, start, len).unwrap().fold(), slow(&bytes[start..start + len]));
        }

        #[test]
        fn update_is_recompute(mut bytes in prop::collection::vec(any::<u8>(), 1..40)
                                   .prop_map(|half| [half.clone(), half].concat()),
                               at in any::<prop::sample::Index>(), new in any::<u16>()) {
            // A first word that is not zero, as every header has: the sum of all-zero data is the one case
            // in which the two zeros of ones' complement differ.
            bytes.splice(0..0, [0x45, 0x00]);
            let at = 2 + at.index(bytes.len() / 2 - 1) * 2;
            let before = of(&bytes);
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), of(&bytes));
            prop_assert_eq!(update_bytes(before, &old.to_be_bytes(), &new.to_be_bytes()), of(&bytes));
        }

        #[test]
        fn fields_add_and_subtract(bytes in prop::collection::vec(any::<u8>(), 1..40), field in any::<u16>()) {
            let mut sum = sum(&bytes);
            sum.add(&[1]);
            let before = sum.fold();
            sum.add_u16(field);
            sum.subtract_u16(field);
            prop_assert_eq!(sum.fold(), before);
            let mut by_bytes = super::sum(&bytes);
            let mut by_field = by_bytes;
            by_bytes.add(&field.to_be_bytes());
            by_field.add_u16(field);
            prop_assert_eq!(by_field.fold(), by_bytes.fold());
        }
    }
}
