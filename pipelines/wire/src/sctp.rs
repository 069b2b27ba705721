//! SCTP common header (RFC 9260 section 3.1), and the checksum of a packet.
//!
//! Only what a flow key needs; the CRC32c is end to end and passes through untouched. It is computed for a sender who left it to its
//! device.

use crate::crc;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the common header.
pub const HEADER_LEN: usize = 12;

/// Common header (RFC 9260 section 3.1), 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Verification tag: which association the packet is of.
    pub tag: U32,
    /// CRC32c of the packet.
    pub checksum: U32,
}

/// The CRC32c (RFC 9260 appendix A) of what begins `start` bytes into a packet of several segments and ends with it, whatever its
/// checksum field holds, as the number whose little-endian bytes are sent. `None` when the header is not there.
pub fn checksum<'a>(segments: impl IntoIterator<Item = &'a [u8]>, start: usize) -> Option<u32> {
    const FIELD: usize = 8;
    let (mut state, mut at) = (u32::MAX, 0);
    for segment in segments {
        // What lies before the packet, the field, and what lies behind it.
        let place = |end: usize| end.saturating_sub(at).min(segment.len());
        let (from, field, rest) = (place(start), place(start + FIELD), place(start + HEADER_LEN));
        state = crc::castagnoli(state, &segment[from..field]);
        state = crc::castagnoli(state, &[0; HEADER_LEN - FIELD][..rest - field]);
        state = crc::castagnoli(state, &segment[rest..]);
        at += segment.len();
    }
    (at >= start + HEADER_LEN).then_some(!state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_leaves_out_its_field() {
        // RFC 3720 appendix B.4: 32 bytes of zeros, and the numbers from 0 to 31.
        assert_eq!(checksum([&[0; 32][..]], 0), Some(0x8a91_36aa));
        let mut numbers: Vec<u8> = (0..32).collect();
        numbers[8..12].fill(0);
        let whole = !crc::castagnoli(u32::MAX, &numbers);
        numbers[8..12].copy_from_slice(&[9; 4]);
        let frame = [&[7; 34][..], &numbers].concat();
        for cut in 0..frame.len() {
            let (head, rest) = frame.split_at(cut);
            assert_eq!(checksum([head, rest], 34), Some(whole), "cut at {cut}");
        }
        assert_eq!(checksum([&frame[..]], 34 + 21), None);
    }
    use crate::view::check;

    #[test]
    fn layout() {
        let header: Header = check::layout(&[0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!((header.src_port.get(), header.dst_port.get()), (1, 2));
        assert_eq!((header.tag.get(), header.checksum.get()), (3, 4));
        assert_eq!(size_of::<Header>(), HEADER_LEN);
    }
}
