//! VxLAN header (RFC 7348 section 5).
//!
//! Layout and the questions a receiver asks; whether set reserved bits matter is policy and decided above.

use crate::types::Vni;
use crate::view::{View, to_u24, u24};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The I flag: the VNI is valid.
pub const FLAG_VNI: u8 = 0x08;

/// VxLAN header (RFC 7348 section 5), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`FLAG_VNI`] and seven reserved bits.
    pub flags: u8,
    /// Reserved: sent as zero, ignored when received (RFC 7348 section 5).
    pub reserved: [u8; 3],
    /// VxLAN network identifier, 24 bits.
    pub vni: [u8; 3],
    /// Reserved: sent as zero, ignored when received (RFC 7348 section 5).
    pub reserved_last: u8,
}

impl Header {
    /// The header of a frame in network `vni`.
    #[inline]
    pub const fn new(vni: Vni) -> Self {
        Self { flags: FLAG_VNI, reserved: [0; 3], vni: to_u24(vni.get()), reserved_last: 0 }
    }

    /// The header at the start of a UDP payload; `None` when that is too short.
    #[inline]
    pub fn parse(payload: &[u8]) -> Option<&Self> {
        Some(Self::view(payload)?.0)
    }

    /// Network identifier; it counts only when [`has_vni`](Self::has_vni).
    #[inline]
    pub const fn vni(&self) -> Vni {
        Vni::truncated(u24(self.vni))
    }

    /// True when the I flag is set.
    #[inline]
    pub const fn has_vni(&self) -> bool {
        self.flags & FLAG_VNI != 0
    }

    /// True when all reserved bits are zero.
    #[inline]
    pub const fn reserved_clear(&self) -> bool {
        self.flags & !FLAG_VNI == 0
            && self.reserved[0] | self.reserved[1] | self.reserved[2] | self.reserved_last == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let header: Header = check::layout(&[8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(header, Header::new(Vni::new(0x12_3456).unwrap()));
        assert_eq!(header.vni().get(), 0x12_3456);
        assert!(header.has_vni() && header.reserved_clear());
        assert_eq!(Header::parse(header.bytes()), Some(&header));
        assert_eq!(Header::parse(&header.bytes()[..7]), None);
    }

    #[test]
    fn every_bit_outside_flag_and_vni_is_reserved() {
        for bit in 0..64 {
            let raw = (0x0800_0000_0000_0000u64 ^ 1 << bit).to_be_bytes();
            let header = Header::parse(&raw).unwrap();
            let is_vni = (8..32).contains(&bit);
            assert_eq!(header.has_vni(), bit != 59, "bit {bit}");
            assert_eq!(header.reserved_clear(), is_vni || bit == 59, "bit {bit}");
        }
    }
}
