//! ARP for IPv4 over Ethernet (RFC 826), whose layout reverse ARP shares (RFC 903).
//!
//! Layout only; who answers what is decided above.

use crate::ethernet::ethertype;
use crate::types::MacAddr;
use std::net::Ipv4Addr;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the packet.
pub const PACKET_LEN: usize = 28;
/// Operation: who has the target address?
pub const REQUEST: u16 = 1;
/// Operation: the sender has the sender address.
pub const REPLY: u16 = 2;
/// Operation of reverse ARP: who knows the protocol address of the target hardware address?
pub const REVERSE_REQUEST: u16 = 3;
/// Operation of reverse ARP: the target hardware address has the target protocol address.
pub const REVERSE_REPLY: u16 = 4;

/// An ARP packet with 6-byte hardware and 4-byte protocol addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ArpPacket {
    /// Hardware type, 1 for Ethernet.
    pub hardware_type: U16,
    /// Protocol type, an EtherType.
    pub protocol_type: U16,
    /// Bytes of a hardware address.
    pub hardware_len: u8,
    /// Bytes of a protocol address.
    pub protocol_len: u8,
    /// [`REQUEST`] or [`REPLY`].
    pub operation: U16,
    /// Sender hardware address.
    pub sender_mac: MacAddr,
    /// Sender protocol address.
    pub sender_ip: [u8; 4],
    /// Target hardware address.
    pub target_mac: MacAddr,
    /// Target protocol address.
    pub target_ip: [u8; 4],
}

impl ArpPacket {
    /// A request or reply for IPv4 over Ethernet.
    pub fn new(operation: u16, sender: (MacAddr, Ipv4Addr), target: (MacAddr, Ipv4Addr)) -> Self {
        Self {
            hardware_type: U16::new(1),
            protocol_type: U16::new(ethertype::IPV4),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(operation),
            sender_mac: sender.0,
            sender_ip: sender.1.octets(),
            target_mac: target.0,
            target_ip: target.1.octets(),
        }
    }

    /// True when the types and lengths are those of IPv4 over Ethernet.
    #[inline]
    pub fn is_ipv4_over_ethernet(&self) -> bool {
        self.hardware_type.get() == 1
            && self.protocol_type.get() == ethertype::IPV4
            && self.hardware_len == 6
            && self.protocol_len == 4
    }

    /// Sender protocol address.
    #[inline]
    pub fn sender(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.sender_ip)
    }

    /// Target protocol address.
    #[inline]
    pub fn target(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.target_ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn layout() {
        let bytes = [
            0, 1, 8, 0, 6, 4, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 10, 0, 0, 1, 0x52, 0x54, 0, 0, 0, 2, 10, 0, 0, 2,
        ];
        let packet: ArpPacket = check::layout(&bytes);
        assert!(packet.is_ipv4_over_ethernet());
        assert_eq!(packet.operation.get(), REPLY);
        assert_eq!(packet.sender(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(packet.target(), Ipv4Addr::new(10, 0, 0, 2));
        let again = ArpPacket::new(
            REPLY,
            (MacAddr([0x52, 0x54, 0, 0, 0, 1]), packet.sender()),
            (MacAddr([0x52, 0x54, 0, 0, 0, 2]), packet.target()),
        );
        assert_eq!(packet, again);
        for at in [0, 1, 2, 3, 4, 5] {
            let mut other = bytes;
            other[at] ^= 2;
            assert!(!check::layout::<ArpPacket>(&other).is_ipv4_over_ethernet(), "byte {at}");
        }
    }
}
