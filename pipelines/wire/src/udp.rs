//! UDP header (RFC 768; zero checksums over IPv6: RFC 6935, RFC 6936).
//!
//! Layout and port numbers; the checksum needs the pseudo header and is in [`crate::checksum`].

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = 6;

/// Well-known destination ports.
pub mod port {
    /// DHCPv4 server (RFC 2131).
    pub const DHCP_SERVER: u16 = 67;
    /// DHCPv4 client.
    pub const DHCP_CLIENT: u16 = 68;
    /// DHCPv6 client (RFC 8415).
    pub const DHCPV6_CLIENT: u16 = 546;
    /// DHCPv6 server.
    pub const DHCPV6_SERVER: u16 = 547;
    /// VxLAN (RFC 7348 section 5).
    pub const VXLAN: u16 = 4789;
    /// RoCEv2 (IBTA vol. 1 annex A17).
    pub const ROCEV2: u16 = 4791;
}

/// UDP header (RFC 768), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Header and payload, bytes.
    pub len: U16,
    /// Checksum, zero for none.
    pub checksum: U16,
}

impl Header {
    /// A header in front of `payload_len` bytes, with no checksum.
    pub const fn new(src_port: u16, dst_port: u16, payload_len: u16) -> Self {
        Self {
            src_port: U16::new(src_port),
            dst_port: U16::new(dst_port),
            len: U16::new(payload_len.saturating_add(HEADER_LEN as u16)),
            checksum: U16::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let header: Header = check::layout(&[0xc0, 0x01, 0x12, 0xb7, 0x00, 0x20, 0x00, 0x00]);
        assert_eq!(header, Header::new(0xc001, port::ROCEV2, 24));
        assert_eq!(std::mem::offset_of!(Header, checksum), CHECKSUM_OFFSET);
    }
}
