//! SCTP common header (RFC 9260 section 3.1).
//!
//! Only what a flow key needs; the CRC32c is end to end and passes through untouched.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let header: Header = check::layout(&[0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!((header.src_port.get(), header.dst_port.get()), (1, 2));
        assert_eq!((header.tag.get(), header.checksum.get()), (3, 4));
        assert_eq!(size_of::<Header>(), HEADER_LEN);
    }
}
