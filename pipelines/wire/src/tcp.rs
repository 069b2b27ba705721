//! TCP header (RFC 9293 section 3.1; ECN flags: RFC 3168 section 6.1).
//!
//! Layout and accessors; the checksum needs the pseudo header and is in [`crate::checksum`].

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = 16;

/// Bits of [`Header::flags`].
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Hand the data to the application now.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;
    /// A packet came with congestion experienced; in a SYN: ECN is understood (RFC 3168 section 6.1).
    pub const ECE: u8 = 0x40;
    /// The sender has slowed down on an echo (RFC 3168 section 6.1.2).
    pub const CWR: u8 = 0x80;
}

/// The header without options (RFC 9293 section 3.1), 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Sequence number of the first byte of data.
    pub seq: U32,
    /// Sequence number that is expected next, when ACK is set.
    pub ack: U32,
    /// Header length in units of 4 bytes (4 bits), reserved (4).
    pub data_offset: u8,
    /// Control bits, see [`flags`].
    pub flags: u8,
    /// Bytes that may be sent from there on, before the scaling that SYNs agreed on (RFC 7323).
    pub window: U16,
    /// Checksum of pseudo header, header and data; from a guest that leaves it to us, of the pseudo header alone.
    pub checksum: U16,
    /// Offset of the end of urgent data, when URG is set.
    pub urgent: U16,
}

impl Header {
    /// A header without options and with checksum 0.
    pub const fn new(src_port: u16, dst_port: u16, seq: u32, ack: u32, flags: u8) -> Self {
        Self {
            src_port: U16::new(src_port),
            dst_port: U16::new(dst_port),
            seq: U32::new(seq),
            ack: U32::new(ack),
            data_offset: 5 << 4,
            flags,
            window: U16::new(0xffff),
            checksum: U16::ZERO,
            urgent: U16::ZERO,
        }
    }

    /// Length of the header with options, bytes, as the header says.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        usize::from(self.data_offset >> 4) * 4
    }

    /// True when any bit of `mask` (see [`flags`]) is set.
    #[inline]
    pub fn has(&self, mask: u8) -> bool {
        self.flags & mask != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let header: Header = check::layout(&[
            0x04, 0xd2, 0x00, 0x50, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0,
        ]);
        assert_eq!(header, Header::new(1234, 80, 1, 2, flags::SYN | flags::ACK));
        assert_eq!(header.header_len(), HEADER_LEN);
        assert!(header.has(flags::SYN) && !header.has(flags::RST | flags::FIN));
        assert_eq!(std::mem::offset_of!(Header, checksum), CHECKSUM_OFFSET);
    }
}
