//! [`Headers`]: what the parser found in a packet, small enough to keep beside every packet of a burst.
//!
//! Offsets and key fields only; addresses stay in the packet and are read through the accessors here, which
//! need the same bytes that were parsed.

use crate::view::View;
use crate::{arp, ethernet, ipv4, ipv6, protocol, tcp, udp};
use std::ops::{BitOr, BitOrAssign};

/// What kind of packet follows the Ethernet header and its tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum L3 {
    /// An EtherType that the parser does not go into.
    #[default]
    None,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// ARP for IPv4 over Ethernet.
    Arp,
}

/// Facts about a packet that are not fields, as a bit set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Flags(pub u16);

impl Flags {
    /// Nothing is known of the packet: no flag is set.
    pub const NONE: Self = Self(0);
    /// The IPv4 header has options.
    pub const IP_OPTIONS: Self = Self(1);
    /// There are IPv6 extension headers.
    pub const EXT_HEADERS: Self = Self(1 << 1);
    /// Any fragment, the first one included. An IPv6 fragment header around a whole packet (RFC 6946) is none.
    pub const FRAGMENT: Self = Self(1 << 2);
    /// A fragment whose offset is not zero: it has no L4 header.
    pub const FRAGMENT_LATER: Self = Self(1 << 3);
    /// A fragment that is not the last.
    pub const MORE_FRAGMENTS: Self = Self(1 << 4);
    /// IPv4's "don't fragment".
    pub const DF: Self = Self(1 << 5);
    /// A TCP, UDP, ICMP, ICMPv6 or SCTP header is present and complete.
    pub const L4: Self = Self(1 << 6);
    /// The frame goes on behind the L3 packet.
    pub const PADDED: Self = Self(1 << 7);
    /// An IPv6 routing header with segments left: the destination address is not yet the final one.
    pub const SOURCE_ROUTED: Self = Self(1 << 8);
    /// IPv6 hop-by-hop options are present.
    pub const HOP_BY_HOP: Self = Self(1 << 9);
    /// An IPv6 fragment header is present, be it around a whole packet (RFC 6946).
    pub const FRAGMENT_HEADER: Self = Self(1 << 10);

    const NAMES: [&'static str; 11] = [
        "ip-options",
        "ext-headers",
        "fragment",
        "fragment-later",
        "more-fragments",
        "df",
        "l4",
        "padded",
        "source-routed",
        "hop-by-hop",
        "fragment-header",
    ];

    /// True when all of `other` are set.
    #[inline(always)]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when any of `other` is set.
    #[inline(always)]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets all of `other`.
    #[inline(always)]
    pub const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline(always)]
    fn bitor_assign(&mut self, other: Self) {
        self.insert(other);
    }
}

impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = (0..).zip(Self::NAMES).filter(|(bit, _)| self.0 & 1 << bit != 0);
        f.debug_set().entries(names.map(|(_, name)| name)).finish()
    }
}

/// What the parser found. All offsets count from the byte at which parsing began, the frame's first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Headers {
    /// Offset of the L3 header: 14, 18 or 22 in an Ethernet frame.
    pub l3_offset: u8,
    /// VLAN tags, 0 to 2.
    pub vlan_count: u8,
    /// Kind of L3 packet.
    pub l3: L3,
    /// IPv4 protocol, or the last next header that the walk over the extension headers reached.
    pub proto: u8,
    /// Offset of the L4 header, or of the first byte behind the IP headers. For ARP and unknown EtherTypes
    /// the L3 offset.
    pub l4_offset: u16,
    /// Bytes of the L3 packet: IPv4 total length, IPv6 40 + payload length, ARP 28; for unknown EtherTypes
    /// what the frame holds, at most 65535.
    pub l3_len: u16,
    /// EtherType behind the last tag.
    pub ethertype: u16,
    /// Tag control information, outermost first.
    pub vlan_tci: [u16; 2],
    /// TCP, UDP, SCTP: source port. ICMP, ICMPv6: `type << 8 | code`. Else, and in later fragments, 0.
    pub sport: u16,
    /// TCP, UDP, SCTP: destination port. Echo request and reply: identifier. Else, and in later fragments, 0.
    pub dport: u16,
    /// IPv4 TOS, IPv6 traffic class.
    pub tos: u8,
    /// IPv4 TTL, IPv6 hop limit.
    pub ttl: u8,
    /// Facts that are not fields.
    pub flags: Flags,
    /// Bytes of the L4 header with its options, where [`Flags::L4`] is set.
    pub l4_len: u8,
    /// TCP control bits, else 0.
    pub tcp_flags: u8,
    /// Identification: IPv4's field, or that of the IPv6 fragment header (else 0).
    ///
    /// The IPv4 identification is unique per source, destination *and* protocol, the IPv6 one per source and
    /// destination: `proto` of a later IPv6 fragment is that of the fragment header, which differs from the
    /// first fragment's where extension headers follow it.
    pub ip_id: u32,
}

const _: () = assert!(size_of::<Headers>() <= 32);

impl Headers {
    /// True when all of `flags` are set.
    #[inline(always)]
    pub const fn is(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// True for IPv4 and IPv6.
    #[inline(always)]
    pub const fn is_ip(&self) -> bool {
        matches!(self.l3, L3::Ipv4 | L3::Ipv6)
    }

    /// True for a whole or first-fragment TCP segment.
    #[inline(always)]
    pub const fn is_tcp(&self) -> bool {
        self.proto == protocol::TCP && self.is(Flags::L4)
    }

    /// True for a whole or first-fragment UDP datagram.
    #[inline(always)]
    pub const fn is_udp(&self) -> bool {
        self.proto == protocol::UDP && self.is(Flags::L4)
    }

    /// True for a UDP datagram to `port` that is no fragment: the only kind that tunnels and RoCE are read from.
    #[inline(always)]
    pub const fn is_udp_to(&self, port: u16) -> bool {
        self.is_udp() && self.dport == port && !self.flags.intersects(Flags::FRAGMENT)
    }

    /// Offset of the first byte behind the L3 packet.
    #[inline(always)]
    pub const fn l3_end(&self) -> usize {
        self.l3_offset as usize + self.l3_len as usize
    }

    /// Offset of the L4 payload, where [`Flags::L4`] is set.
    #[inline(always)]
    pub const fn payload_offset(&self) -> usize {
        self.l4_offset as usize + self.l4_len as usize
    }

    /// Bytes of the L4 header and payload, as the IP header says.
    #[inline(always)]
    pub const fn l4_total_len(&self) -> usize {
        self.l3_end().saturating_sub(self.l4_offset as usize)
    }

    /// The Ethernet header; `None` when the first segment is shorter.
    #[inline(always)]
    pub fn ethernet<'a>(&self, head: &'a [u8]) -> Option<&'a ethernet::Header> {
        Some(ethernet::Header::view(head)?.0)
    }

    /// The IPv4 header, when it is one.
    #[inline(always)]
    pub fn ipv4<'a>(&self, head: &'a [u8]) -> Option<&'a ipv4::Header> {
        if self.l3 == L3::Ipv4 { View::view_at(head, usize::from(self.l3_offset)) } else { None }
    }

    /// The IPv4 header, writable, when it is one.
    #[inline(always)]
    pub fn ipv4_mut<'a>(&self, head: &'a mut [u8]) -> Option<&'a mut ipv4::Header> {
        if self.l3 == L3::Ipv4 { View::view_mut_at(head, usize::from(self.l3_offset)) } else { None }
    }

    /// The IPv6 header, when it is one.
    #[inline(always)]
    pub fn ipv6<'a>(&self, head: &'a [u8]) -> Option<&'a ipv6::Header> {
        if self.l3 == L3::Ipv6 { View::view_at(head, usize::from(self.l3_offset)) } else { None }
    }

    /// The IPv6 header, writable, when it is one.
    #[inline(always)]
    pub fn ipv6_mut<'a>(&self, head: &'a mut [u8]) -> Option<&'a mut ipv6::Header> {
        if self.l3 == L3::Ipv6 { View::view_mut_at(head, usize::from(self.l3_offset)) } else { None }
    }

    /// The ARP packet, when it is one.
    #[inline]
    pub fn arp<'a>(&self, head: &'a [u8]) -> Option<&'a arp::ArpPacket> {
        if self.l3 == L3::Arp { View::view_at(head, usize::from(self.l3_offset)) } else { None }
    }

    /// The TCP header, when it is one.
    #[inline]
    pub fn tcp<'a>(&self, head: &'a [u8]) -> Option<&'a tcp::Header> {
        if self.is_tcp() { View::view_at(head, usize::from(self.l4_offset)) } else { None }
    }

    /// The UDP header, when it is one.
    #[inline]
    pub fn udp<'a>(&self, head: &'a [u8]) -> Option<&'a udp::Header> {
        if self.is_udp() { View::view_at(head, usize::from(self.l4_offset)) } else { None }
    }

    /// The IP header with its options or extension headers; empty when it is not IP.
    #[inline]
    pub fn ip_header<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        let end = if self.is_ip() { usize::from(self.l4_offset) } else { usize::from(self.l3_offset) };
        head.get(usize::from(self.l3_offset)..end).unwrap_or_default()
    }

    /// The bytes of `head` behind the L4 header, up to the end of the L3 packet; empty without an L4 header.
    #[inline]
    pub fn payload<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        if !self.is(Flags::L4) {
            return &[];
        }
        head.get(self.payload_offset()..self.l3_end().min(head.len())).unwrap_or_default()
    }

    /// True unless this is IPv4 with a wrong header checksum.
    #[inline(always)]
    pub fn ipv4_checksum_ok(&self, head: &[u8]) -> bool {
        self.l3 != L3::Ipv4 || ipv4::checksum_ok(self.ip_header(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_distinct_bits_with_names() {
        let all = [
            Flags::IP_OPTIONS,
            Flags::EXT_HEADERS,
            Flags::FRAGMENT,
            Flags::FRAGMENT_LATER,
            Flags::MORE_FRAGMENTS,
            Flags::DF,
            Flags::L4,
            Flags::PADDED,
            Flags::SOURCE_ROUTED,
            Flags::HOP_BY_HOP,
            Flags::FRAGMENT_HEADER,
        ];
        for (bit, flag) in all.into_iter().enumerate() {
            assert_eq!(flag.0, 1 << bit);
        }
        let mut flags = Flags::DF | Flags::L4;
        assert!(flags.contains(Flags::DF) && !flags.contains(Flags::DF | Flags::PADDED));
        assert!(flags.intersects(Flags::DF | Flags::PADDED) && !flags.intersects(Flags::PADDED));
        flags |= Flags::PADDED;
        assert_eq!(format!("{flags:?}"), r#"{"df", "l4", "padded"}"#);
    }
}
