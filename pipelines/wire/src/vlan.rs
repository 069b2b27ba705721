//! VLAN tag (IEEE 802.1Q-2018 section 9.6).
//!
//! The part of a tag that follows its EtherType: control information, then the EtherType of what is tagged.

use crate::ethernet::ethertype;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes that one tag adds to a frame.
pub const TAG_LEN: usize = 4;

/// Bits of the tag control information that hold the VLAN identifier.
pub const VID_MASK: u16 = 0x0fff;

/// Tag control information and the EtherType behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Tag {
    /// Priority (3 bits), drop eligible (1), VLAN identifier (12).
    pub tci: U16,
    /// EtherType of what follows.
    pub ethertype: U16,
}

impl Tag {
    /// A tag from its control information and the EtherType behind it.
    #[inline]
    pub const fn new(tci: u16, ethertype: u16) -> Self {
        Self { tci: U16::new(tci), ethertype: U16::new(ethertype) }
    }

    /// VLAN identifier, 12 bits: 0 for a priority tag, 4095 is reserved.
    #[inline]
    pub fn vid(&self) -> u16 {
        vid(self.tci.get())
    }

    /// Priority code point, 0 to 7.
    #[inline]
    pub fn pcp(&self) -> u8 {
        (self.tci.get() >> 13) as u8
    }

    /// Drop eligible indicator: dropped before others under congestion.
    #[inline]
    pub fn dei(&self) -> bool {
        self.tci.get() & 0x1000 != 0
    }
}

/// True for the EtherTypes that announce a tag.
#[inline(always)]
pub const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ethertype::VLAN | ethertype::QINQ)
}

/// VLAN identifier of a tag control information.
#[inline(always)]
pub const fn vid(tci: u16) -> u16 {
    tci & VID_MASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let tag: Tag = check::layout(&[0xb0, 0x64, 0x08, 0x00]);
        assert_eq!((tag.pcp(), tag.dei(), tag.vid()), (5, true, 100));
        assert_eq!(tag, Tag::new(0xb064, ethertype::IPV4));
        assert!(is_tag(ethertype::VLAN) && is_tag(ethertype::QINQ) && !is_tag(ethertype::IPV4));
    }
}
