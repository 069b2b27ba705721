//! Ethernet II header (IEEE 802.3-2018 section 3.1.1; EtherTypes: IEEE 802-2014 section 9.2).
//!
//! Layout and constants only. Frames with a length field (below 0x600) read the same way: the field is then a
//! length, and the parser reports it as an EtherType that is not IP; [`crate::llc`] reads what follows.

use crate::types::MacAddr;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = 14;
/// Shortest frame on the wire without its FCS, bytes.
pub const MIN_FRAME_LEN: usize = 60;

/// EtherType values, in the order of bytes of the host.
pub mod ethertype {
    /// The lowest one: below it the field is a length.
    pub const FIRST: u16 = 0x0600;
    /// IPv4 (RFC 894).
    pub const IPV4: u16 = 0x0800;
    /// ARP (RFC 826).
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP (RFC 903).
    pub const RARP: u16 = 0x8035;
    /// IPv6 (RFC 2464).
    pub const IPV6: u16 = 0x86dd;
    /// Customer VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// Service VLAN tag (IEEE 802.1ad).
    pub const QINQ: u16 = 0x88a8;
    /// Slow protocols (LACP; IEEE 802.3 annex 57A).
    pub const SLOW: u16 = 0x8809;
    /// LLDP (IEEE 802.1AB).
    pub const LLDP: u16 = 0x88cc;
}

/// Destination, source and EtherType: 14 bytes, without tags (IEEE 802.3 clause 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// EtherType of what follows.
    pub ethertype: U16,
}

impl Header {
    /// A header from its three fields.
    #[inline]
    pub const fn new(dst: MacAddr, src: MacAddr, ethertype: u16) -> Self {
        Self { dst, src, ethertype: U16::new(ethertype) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let header: Header = check::layout(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd]);
        assert_eq!(header.dst, MacAddr([1, 2, 3, 4, 5, 6]));
        assert_eq!(header.src, MacAddr([7, 8, 9, 10, 11, 12]));
        assert_eq!(header.ethertype.get(), ethertype::IPV6);
        assert_eq!(header, Header::new(header.dst, header.src, ethertype::IPV6));
        assert_eq!(size_of::<Header>(), HEADER_LEN);
    }
}
