//! Logical link control (IEEE 802.2, ISO/IEC 8802-2) and its SubNetwork Access Protocol (IEEE 802-2014 section 9.2.3): what follows
//! the length field of an Ethernet frame.
//!
//! Layout and constants only. A frame that carries an EtherType this way says the same as an Ethernet II frame does, and there are
//! stations that read it so (RFC 1042).

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::ethertype;
use crate::view::View;

/// The service access point of SNAP.
pub const SNAP: u8 = 0xaa;
/// The control field of unnumbered information.
pub const UNNUMBERED_INFORMATION: u8 = 3;

/// Organization codes under which a protocol identifier is an EtherType.
pub mod oui {
    /// Encapsulated Ethernet (RFC 1042).
    pub const ETHERNET: [u8; 3] = [0, 0, 0];
    /// Bridge tunnel encapsulation (IEEE 802.1H).
    pub const BRIDGE_TUNNEL: [u8; 3] = [0, 0, 0xf8];
}

/// LLC and SNAP in one: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SnapHeader {
    /// Destination service access point; its lowest bit says that it is a group of them.
    pub dsap: u8,
    /// Source service access point; its lowest bit says that this is a response.
    pub ssap: u8,
    /// Control field.
    pub control: u8,
    /// Whose protocol identifiers these are.
    pub oui: [u8; 3],
    /// Protocol identifier.
    pub protocol: U16,
}

impl SnapHeader {
    /// The header in front of what has an EtherType.
    #[inline]
    pub const fn new(oui: [u8; 3], ethertype: u16) -> Self {
        Self { dsap: SNAP, ssap: SNAP, control: UNNUMBERED_INFORMATION, oui, protocol: U16::new(ethertype) }
    }

    /// The EtherType of what follows, where it has one. Only what every receiver must look at counts, the destination: some do
    /// without the rest.
    #[inline]
    pub fn ethertype(&self) -> Option<u16> {
        let is_ethertype =
            self.dsap | 1 == SNAP | 1 && matches!(self.oui, oui::ETHERNET | oui::BRIDGE_TUNNEL);
        is_ethertype.then_some(self.protocol.get())
    }
}

/// The EtherType of what is inside of LLC and SNAP at an offset of a frame, behind a field that may be an EtherType or a length:
/// how long it says the frame is does not matter.
pub fn encapsulated(head: &[u8], at: usize, field: u16) -> Option<u16> {
    if field >= ethertype::FIRST {
        return None;
    }
    SnapHeader::view_at(head, at)?.ethertype()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let header: SnapHeader = check::layout(&[0xaa, 0xaa, 3, 0, 0, 0xf8, 0x86, 0xdd]);
        assert_eq!(header, SnapHeader::new(oui::BRIDGE_TUNNEL, ethertype::IPV6));
        assert_eq!(header.ethertype(), Some(ethertype::IPV6));
    }

    #[test]
    fn an_ethertype_is_found_behind_any_length() {
        let arp = SnapHeader::new(oui::ETHERNET, ethertype::ARP);
        let frame = [&[0; 14], arp.bytes()].concat();
        for length in [0, 3, 8, 46, 1500, 0x5ff] {
            assert_eq!(encapsulated(&frame, 14, length), Some(ethertype::ARP), "{length}");
        }
        assert_eq!(encapsulated(&frame, 14, 0x600), None, "an EtherType");
        assert_eq!(encapsulated(&frame[..21], 14, 8), None, "cut short");
        for (dsap, ssap, control, oui, is_ethertype) in [
            (0xab, 0xaa, 3, oui::ETHERNET, true),
            (0xaa, 0xab, 3, oui::BRIDGE_TUNNEL, true),
            (0xaa, 0, 0xf3, oui::ETHERNET, true),
            // Spanning tree (IEEE 802.1D), and the protocols of a vendor.
            (0x42, 0x42, 3, oui::ETHERNET, false),
            (0xaa, 0xaa, 3, [0, 0, 0xc], false),
        ] {
            let header = SnapHeader { dsap, ssap, control, oui, ..arp };
            assert_eq!(header.ethertype().is_some(), is_ethertype, "{header:x?}");
        }
    }
}
