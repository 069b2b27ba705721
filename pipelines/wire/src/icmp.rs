//! ICMP for IPv4 (RFC 792; too-big: RFC 1191 section 4).
//!
//! Every message starts with the same eight bytes; the last four mean different things by type.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = 2;

/// Message types (RFC 792, and the IANA registry).
pub mod kind {
    /// Echo reply: the answer to a ping.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable; its code 4 bears the path MTU (RFC 1191).
    pub const UNREACHABLE: u8 = 3;
    /// Source quench (deprecated by RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect: another router is nearer. No tenant may be told so by another.
    pub const REDIRECT: u8 = 5;
    /// Echo request: ping.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded: the TTL, or the time to reassemble.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem: a header that cannot be understood.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Code of [`kind::UNREACHABLE`]: no route leads to the network.
pub const CODE_NETWORK: u8 = 0;
/// Code of [`kind::UNREACHABLE`]: the network is reached, the host is not.
pub const CODE_HOST: u8 = 1;
/// Code of [`kind::UNREACHABLE`]: fragmentation needed and DF set.
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;
/// Code of [`kind::UNREACHABLE`]: communication administratively prohibited (RFC 1812 section 5.2.7.1).
pub const CODE_PROHIBITED: u8 = 13;

/// The first eight bytes of every message (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Message type, see [`kind`].
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
    /// Checksum over header and body.
    pub checksum: U16,
    /// Echo: identifier. Others: unused.
    pub id: U16,
    /// Echo: sequence number. Fragmentation needed: MTU of the next hop.
    pub seq_or_mtu: U16,
}

impl Header {
    /// A header with checksum 0.
    pub const fn new(kind: u8, code: u8, id: u16, seq_or_mtu: u16) -> Self {
        Self { kind, code, checksum: U16::ZERO, id: U16::new(id), seq_or_mtu: U16::new(seq_or_mtu) }
    }
}

/// True for echo request and reply.
#[inline(always)]
pub const fn is_echo(kind: u8) -> bool {
    matches!(kind, kind::ECHO_REQUEST | kind::ECHO_REPLY)
}

/// True for the messages that carry the start of the packet that caused them.
#[inline]
pub const fn is_error(kind: u8) -> bool {
    matches!(
        kind,
        kind::UNREACHABLE
            | kind::SOURCE_QUENCH
            | kind::REDIRECT
            | kind::TIME_EXCEEDED
            | kind::PARAMETER_PROBLEM
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let header: Header = check::layout(&[3, 4, 0, 0, 0, 0, 0x05, 0xaa]);
        assert_eq!(header, Header::new(kind::UNREACHABLE, CODE_FRAGMENTATION_NEEDED, 0, 1450));
        assert_eq!(std::mem::offset_of!(Header, checksum), CHECKSUM_OFFSET);
    }

    #[test]
    fn classes_are_disjoint() {
        for kind in 0..=255 {
            assert!(!(is_echo(kind) && is_error(kind)), "type {kind}");
        }
        assert!(is_echo(0) && is_echo(8) && is_error(3) && is_error(11) && !is_error(13));
    }
}
