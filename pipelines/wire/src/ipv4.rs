//! IPv4 header (RFC 791 section 3.1; DSCP and ECN: RFC 2474, RFC 3168).
//!
//! Layout, accessors and the header checksum. Lengths are judged by the parser, not here.

use crate::checksum;
use crate::types::Ecn;
use crate::view::View;
use std::net::Ipv4Addr;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 60;
/// Bit of [`Header::fragment`]: must not be fragmented.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Bit of [`Header::fragment`]: not the last fragment.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// Bits of [`Header::fragment`]: offset in units of 8 bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// The header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Version (4 bits), header length in units of 4 bytes (4).
    pub version_ihl: u8,
    /// DSCP (6 bits), ECN (2).
    pub tos: u8,
    /// Header and payload, bytes.
    pub total_len: U16,
    /// Identification of a fragmented packet.
    pub id: U16,
    /// Flags (3 bits), fragment offset (13).
    pub fragment: U16,
    /// Time to live: routers that the packet may still pass.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Ones' complement sum of the header with this field as zero.
    pub checksum: U16,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

impl Header {
    /// A header without options, TTL 64, DF set, checksum right.
    pub fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload_len: u16) -> Self {
        let mut header = Self {
            version_ihl: 0x45,
            tos: 0,
            total_len: U16::new(payload_len.saturating_add(HEADER_LEN as u16)),
            id: U16::ZERO,
            fragment: U16::new(DONT_FRAGMENT),
            ttl: 64,
            protocol,
            checksum: U16::ZERO,
            src: src.octets(),
            dst: dst.octets(),
        };
        header.fill_checksum();
        header
    }

    /// The version field: 4 when this is IPv4.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Length of the header with options, bytes, as the header says.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    /// ECN codepoint: the low two bits of the TOS byte (RFC 3168 section 5).
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos)
    }

    /// Fragment offset in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.fragment.get() & OFFSET_MASK) * 8
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.src)
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.dst)
    }

    /// Writes the checksum of a header without options. For one with options see [`fill_checksum`].
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.checksum = U16::ZERO;
        self.checksum = U16::new(checksum::of(self.bytes()));
    }

    /// Replaces the TOS byte and keeps the checksum right (RFC 1624).
    #[inline]
    pub fn set_tos(&mut self, tos: u8) {
        let (old, new) = (u16::from(self.tos), u16::from(tos));
        // The version byte is the same in both words and cancels out.
        self.checksum = U16::new(checksum::update(self.checksum.get(), old, new));
        self.tos = tos;
    }

    /// Replaces the ECN codepoint and keeps the checksum right.
    #[inline]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        self.set_tos(ecn.into_tos(self.tos));
    }

    /// Takes one hop off and keeps the checksum right. `false` (and no change) when none is left.
    #[inline]
    pub fn decrement_ttl(&mut self) -> bool {
        if self.ttl == 0 {
            return false;
        }
        let (old, new) = (u16::from(self.ttl) << 8, u16::from(self.ttl - 1) << 8);
        self.checksum = U16::new(checksum::update(self.checksum.get(), old, new));
        self.ttl -= 1;
        true
    }
}

/// True when the checksum of a whole header, options included, is right.
///
/// `header` is the header alone: the parser's `Headers::ip_header` cuts it out of a frame.
#[inline]
pub fn checksum_ok(header: &[u8]) -> bool {
    checksum::fold(checksum::sum(header)) == 0xffff
}

/// Writes the checksum of a whole header with its options. `false` (and no change) when `header` is shorter
/// than it says.
pub fn fill_checksum(header: &mut [u8]) -> bool {
    let Some((fixed, _)) = Header::view_mut(header) else { return false };
    let (len, old) = (fixed.header_len(), fixed.checksum);
    fixed.checksum = U16::ZERO;
    let right = header.get(..len).filter(|whole| whole.len() >= HEADER_LEN).map(checksum::of);
    if let Some((fixed, _)) = Header::view_mut(header) {
        fixed.checksum = right.map_or(old, U16::new);
    }
    right.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    /// Header of the worked example in RFC 1071's usual retelling, with its well-known checksum b861.
    const EXAMPLE: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn layout() {
        let header: Header = check::layout(&EXAMPLE);
        assert_eq!((header.version(), header.header_len(), header.fragment_offset()), (4, 20, 0));
        assert_eq!(header.src(), Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(header.dst(), Ipv4Addr::new(192, 168, 0, 199));
        assert_eq!(header, Header::new(header.src(), header.dst(), 17, 95));
    }

    #[test]
    fn checksum_of_the_example() {
        assert!(checksum_ok(&EXAMPLE));
        for at in 0..EXAMPLE.len() {
            for bit in 0..8 {
                let mut wrong = EXAMPLE;
                wrong[at] ^= 1 << bit;
                assert!(!checksum_ok(&wrong), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn rewrites_keep_the_checksum() {
        let mut header: Header = check::layout(&EXAMPLE);
        for tos in 0..=255 {
            header.set_tos(tos);
            assert!(checksum_ok(header.bytes()) && header.tos == tos);
        }
        header.set_ecn(Ecn::Ect0);
        assert_eq!((header.ecn(), header.tos), (Ecn::Ect0, 0xfe));
        for left in (0..64).rev() {
            assert!(header.decrement_ttl());
            assert!(checksum_ok(header.bytes()) && header.ttl == left);
        }
        assert!(!header.decrement_ttl());
    }

    #[test]
    fn fills_headers_with_options() {
        let mut header = [0u8; 24];
        header[..20].copy_from_slice(&EXAMPLE);
        header[0] = 0x46;
        header[20..].copy_from_slice(&[0x94, 0x04, 0x00, 0x00]);
        assert!(!checksum_ok(&header));
        assert!(fill_checksum(&mut header) && checksum_ok(&header));
        let before = header;
        assert!(!fill_checksum(&mut header[..20]));
        assert_eq!(header, before);
        assert!(!fill_checksum(&mut header[..19]));
    }
}
