//! IPv6 header and extension headers (RFC 8200 sections 3 and 4; flow label: RFC 6437).
//!
//! Layouts and accessors. Walking the chain of extension headers is the parser's work.

use crate::protocol;
use crate::types::Ecn;
use std::net::Ipv6Addr;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = 40;
/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;
/// Smallest MTU of a link that carries IPv6 (RFC 8200 section 5).
pub const MIN_MTU: usize = 1280;
/// The group of all nodes on a link (RFC 4291 section 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The fixed header (RFC 8200 section 3), 40 bytes; extension headers follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub version_class_flow: U32,
    /// Bytes behind this header, extension headers included.
    pub payload_len: U16,
    /// Type of the header that follows.
    pub next_header: u8,
    /// Routers that the packet may still pass.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Header {
    /// A header with hop limit 64, traffic class and flow label 0.
    pub fn new(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, payload_len: u16) -> Self {
        Self {
            version_class_flow: U32::new(6 << 28),
            payload_len: U16::new(payload_len),
            next_header,
            hop_limit: 64,
            src: src.octets(),
            dst: dst.octets(),
        }
    }

    /// The version field: 6 when this is IPv6.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// Traffic class: DSCP and ECN, laid out as IPv4's TOS byte.
    #[inline(always)]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Replaces the traffic class.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        let rest = self.version_class_flow.get() & !(0xff << 20);
        self.version_class_flow = U32::new(rest | u32::from(class) << 20);
    }

    /// ECN codepoint: the low two bits of the traffic class (RFC 3168 section 5).
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.traffic_class())
    }

    /// Replaces the ECN codepoint.
    #[inline]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        self.set_traffic_class(ecn.into_tos(self.traffic_class()));
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0xf_ffff
    }

    /// Replaces the flow label by the low 20 bits of `label`.
    #[inline]
    pub fn set_flow_label(&mut self, label: u32) {
        let rest = self.version_class_flow.get() & !0xf_ffff;
        self.version_class_flow = U32::new(rest | label & 0xf_ffff);
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.src)
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.dst)
    }

    /// Takes one hop off. `false` (and no change) when none is left.
    #[inline]
    pub fn decrement_hop_limit(&mut self) -> bool {
        match self.hop_limit.checked_sub(1) {
            Some(left) => {
                self.hop_limit = left;
                true
            }
            None => false,
        }
    }
}

/// The first eight bytes that extension headers have in common (RFC 8200 section 4; the routing header's
/// fourth byte is its segments left, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Extension {
    /// Type of the header that follows this one.
    pub next_header: u8,
    /// Length; its unit depends on the type, see [`extension_len`].
    pub len: u8,
    /// Type-specific: in a routing header, the routing type.
    pub kind: u8,
    /// Type-specific: in a routing header, segments left.
    pub segments_left: u8,
    /// Rest of the first eight bytes; what it means depends on the type.
    pub data: [u8; 4],
}

/// Fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Fragment {
    /// Type of the first header of the fragmentable part.
    pub next_header: u8,
    /// Zero on transmission, ignored on reception.
    pub reserved: u8,
    /// Offset in units of 8 bytes (13 bits), reserved (2), more fragments (1).
    pub offset_more: U16,
    /// Identification of the packet, unique for its source and destination.
    pub id: U32,
}

impl Fragment {
    /// A fragment header; `offset` in bytes, rounded down to a multiple of 8.
    pub fn new(next_header: u8, offset: u16, more: bool, id: u32) -> Self {
        let offset_more = U16::new(offset & !7 | u16::from(more));
        Self { next_header, reserved: 0, offset_more, id: U32::new(id) }
    }

    /// Offset of this fragment in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        usize::from(self.offset_more.get() & !7)
    }

    /// True for all fragments but the last.
    #[inline]
    pub fn more(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }
}

/// Length in bytes of the extension header of type `kind` whose length field is `len`, or `None` when `kind`
/// is not an extension header that is walked over. (ESP is none: what follows it cannot be read.)
#[inline]
pub const fn extension_len(kind: u8, len: u8) -> Option<usize> {
    match kind {
        protocol::HOP_BY_HOP
        | protocol::ROUTING
        | protocol::DESTINATION_OPTIONS
        | protocol::MOBILITY
        | protocol::HIP
        | protocol::SHIM6 => Some((len as usize + 1) * 8),
        protocol::FRAGMENT => Some(FRAGMENT_LEN),
        // RFC 4302 section 2.2: in units of 4 bytes, minus 2.
        protocol::AH => Some((len as usize + 2) * 4),
        _ => None,
    }
}

/// True for the types that [`extension_len`] knows.
#[inline]
pub const fn is_extension(kind: u8) -> bool {
    extension_len(kind, 0).is_some()
}

/// Solicited-node multicast address of `addr` (RFC 4291 section 2.7.1).
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let a = addr.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a[13]), u16::from(a[14]) << 8 | u16::from(a[15]))
}

/// Ethernet address of an IPv6 multicast group (RFC 2464 section 7).
pub fn multicast_mac(group: Ipv6Addr) -> crate::MacAddr {
    let g = group.octets();
    crate::MacAddr([0x33, 0x33, g[12], g[13], g[14], g[15]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let mut bytes = [0u8; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf1, 0x01, 0x02, 17, 64]);
        bytes[8..24].copy_from_slice(&[0x20; 16]);
        bytes[24..].copy_from_slice(&[0x30; 16]);
        let mut header: Header = check::layout(&bytes);
        assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0xab, 0xcdef1));
        assert_eq!(header.ecn(), Ecn::Ce);
        header.set_ecn(Ecn::Ect1);
        assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0xa9, 0xcdef1));
        header.set_flow_label(0xfff1_2345);
        assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0xa9, 0x12345));
        let plain = Header::new(header.src(), header.dst(), 17, 0x102);
        header.set_traffic_class(0);
        header.set_flow_label(0);
        assert_eq!(header, plain);
        header.hop_limit = 1;
        assert!(header.decrement_hop_limit() && !header.decrement_hop_limit());
    }

    #[test]
    fn extensions() {
        let fragment: Fragment = check::layout(&[17, 0, 0x05, 0xa9, 1, 2, 3, 4]);
        assert_eq!((fragment.offset(), fragment.more(), fragment.id.get()), (1448, true, 0x0102_0304));
        assert_eq!(fragment, Fragment::new(17, 1448, true, 0x0102_0304));
        let routing: Extension = check::layout(&[6, 2, 0, 1, 0, 0, 0, 0]);
        assert_eq!((routing.next_header, routing.segments_left), (6, 1));
        assert_eq!(extension_len(protocol::ROUTING, 2), Some(24));
        assert_eq!(extension_len(protocol::FRAGMENT, 200), Some(8));
        assert_eq!(extension_len(protocol::AH, 4), Some(24));
        for last in [protocol::TCP, protocol::ESP, protocol::NO_NEXT_HEADER, protocol::ICMPV6] {
            assert_eq!(extension_len(last, 1), None);
        }
    }

    #[test]
    fn multicast_addresses() {
        let group = solicited_node("fe80::1:2aa:bbcc".parse().unwrap());
        assert_eq!(group, "ff02::1:ffaa:bbcc".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(group).to_string(), "33:33:ff:aa:bb:cc");
    }
}
