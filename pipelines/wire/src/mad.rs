//! Management datagrams: the header that all of them share (IBTA vol. 1 section 13.4.3).
//!
//! Layout and numbers. Over RoCEv2 they travel in UD SEND Only packets to queue pair 1; the only class that a
//! switch has reason to read is the connection manager's, in [`crate::cm`].

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a management datagram, header included.
pub const MAD_LEN: usize = 256;
/// Bytes of the header.
pub const HEADER_LEN: usize = 24;
/// Bytes behind the header.
pub const BODY_LEN: usize = MAD_LEN - HEADER_LEN;

/// Version of the header itself.
pub const BASE_VERSION: u8 = 1;
/// Management class of the connection manager.
pub const CLASS_CM: u8 = 0x07;
/// Version of the connection manager's class (IBTA release 1.2 and later).
pub const CLASS_VERSION_CM: u8 = 2;
/// Method Send: a message that has no response of its own.
pub const METHOD_SEND: u8 = 0x03;

/// Common MAD header (IBTA vol. 1 section 13.4.3), 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version of the header, 1.
    pub base_version: u8,
    /// Management class: 7 for the connection manager's.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Response bit and method.
    pub method: u8,
    /// Status of a response.
    pub status: U16,
    /// Meaning depends on the class.
    pub class_specific: U16,
    /// Transaction id, which a reply takes over from its request.
    pub transaction: U64,
    /// Attribute id: which message of the class this is.
    pub attribute: U16,
    /// Reserved: sent as zero, ignored when received.
    pub reserved: U16,
    /// Attribute modifier: zero in all of the connection manager's.
    pub modifier: U32,
}

impl Header {
    /// The header of a connection manager's message.
    pub const fn cm(attribute: u16, transaction: u64) -> Self {
        Self {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CLASS_VERSION_CM,
            method: METHOD_SEND,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            transaction: U64::new(transaction),
            attribute: U16::new(attribute),
            reserved: U16::ZERO,
            modifier: U32::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{View, check};

    #[test]
    fn layout() {
        assert_eq!(Header::LEN, HEADER_LEN);
        let header: Header = check::layout(&[
            1, 7, 2, 3, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0x10, 0, 0, 0, 0, 0, 0,
        ]);
        assert_eq!(header, Header::cm(0x10, 0x1122_3344_5566_7788));
    }
}
