//! ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861 sections 4.1 to 4.6).
//!
//! Layouts and the walk over neighbour discovery options. The hop-limit-255 rule and who answers whom are
//! decided above.

use crate::types::MacAddr;
use crate::view::View;
use std::net::Ipv6Addr;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = 2;
/// Hop limit of every neighbour discovery message: proof that no router passed it on (RFC 4861 section 6.1).
pub const ND_HOP_LIMIT: u8 = 255;

/// Message types (RFC 4443, RFC 4861, and the IANA registry). Types below 128 are errors.
pub mod kind {
    /// Destination unreachable (RFC 4443 section 3.1).
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big, with the MTU of the next link (RFC 4443 section 3.2).
    pub const TOO_BIG: u8 = 2;
    /// Time exceeded: the hop limit, or the time to reassemble (RFC 4443 section 3.3).
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem: a header that cannot be understood (RFC 4443 section 3.4).
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request: ping (RFC 4443 section 4.1).
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply: the answer to a ping (RFC 4443 section 4.2).
    pub const ECHO_REPLY: u8 = 129;
    /// Report of a multicast listener (RFC 2710).
    pub const LISTENER_REPORT: u8 = 131;
    /// The last listener of a multicast group leaves (RFC 2710).
    pub const LISTENER_DONE: u8 = 132;
    /// Router solicitation: is there a router? (RFC 4861 section 4.1)
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement: there is one, with its prefixes (RFC 4861 section 4.2).
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation: who has this address? (RFC 4861 section 4.3)
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement: this address has that MAC (RFC 4861 section 4.4).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect: another first hop is better (RFC 4861 section 4.5).
    pub const REDIRECT: u8 = 137;
    /// Report of a multicast listener, version 2 (RFC 3810).
    pub const LISTENER_REPORT_V2: u8 = 143;
}

/// Code of [`kind::UNREACHABLE`]: no route leads to the destination.
pub const CODE_NO_ROUTE: u8 = 0;
/// Code of [`kind::UNREACHABLE`]: communication with the destination is administratively prohibited.
pub const CODE_PROHIBITED: u8 = 1;
/// Code of [`kind::UNREACHABLE`]: the address is not reached on its link.
pub const CODE_ADDRESS: u8 = 3;

/// Types of neighbour discovery options.
pub mod option {
    /// Link-layer address of the sender.
    pub const SOURCE_LINK_ADDRESS: u8 = 1;
    /// Link-layer address of the target.
    pub const TARGET_LINK_ADDRESS: u8 = 2;
    /// A prefix that is on link, or that hosts form addresses in (RFC 4861 section 4.6.2).
    pub const PREFIX_INFORMATION: u8 = 3;
    /// MTU of the link.
    pub const MTU: u8 = 5;
    /// Name servers (RFC 8106 section 5.1).
    pub const RDNSS: u8 = 25;
}

/// The first eight bytes of every message (RFC 4443 section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Message type, see [`kind`].
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
    /// Checksum over pseudo header, header and body.
    pub checksum: U16,
    /// Echo: identifier and sequence number. Too big: MTU. Others: flags or unused.
    pub body: U32,
}

impl Header {
    /// A header with checksum 0.
    pub const fn new(kind: u8, code: u8, body: u32) -> Self {
        Self { kind, code, checksum: U16::ZERO, body: U32::new(body) }
    }

    /// Identifier of an echo message.
    #[inline]
    pub fn echo_id(&self) -> u16 {
        (self.body.get() >> 16) as u16
    }

    /// Sequence number of an echo message.
    #[inline]
    pub fn echo_seq(&self) -> u16 {
        self.body.get() as u16
    }
}

/// Neighbour solicitation and advertisement (RFC 4861 sections 4.3, 4.4), without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NeighbourHeader {
    /// The common header. Its body holds the flags of an advertisement.
    pub header: Header,
    /// The address asked for, or advertised.
    pub target: [u8; 16],
}

impl NeighbourHeader {
    /// Flag in the body of an advertisement: the sender is a router.
    pub const ROUTER: u32 = 1 << 31;
    /// Flag in the body of an advertisement: answer to a solicitation.
    pub const SOLICITED: u32 = 1 << 30;
    /// Flag in the body of an advertisement: replaces what was known.
    pub const OVERRIDE: u32 = 1 << 29;

    /// A neighbour solicitation for an address, without its checksum.
    pub fn solicitation(target: Ipv6Addr) -> Self {
        Self { header: Header::new(kind::NEIGHBOUR_SOLICITATION, 0, 0), target: target.octets() }
    }

    /// An advertisement with some of [`ROUTER`](Self::ROUTER), [`SOLICITED`](Self::SOLICITED),
    /// [`OVERRIDE`](Self::OVERRIDE).
    pub fn advertisement(target: Ipv6Addr, flags: u32) -> Self {
        Self { header: Header::new(kind::NEIGHBOUR_ADVERTISEMENT, 0, flags), target: target.octets() }
    }

    /// The address asked for, or advertised.
    #[inline]
    pub fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.target)
    }

    /// True when all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: u32) -> bool {
        self.header.body.get() & flags == flags
    }
}

/// Router advertisement (RFC 4861 section 4.2), without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RouterAdvertisement {
    /// Message type 134.
    pub kind: u8,
    /// 0; receivers discard others (RFC 4861 section 6.1.2).
    pub code: u8,
    /// Checksum over the pseudo-header and the message (RFC 4443 section 2.3).
    pub checksum: U16,
    /// Hop limit that hosts should use, 0 for no advice.
    pub hop_limit: u8,
    /// [`MANAGED`](Self::MANAGED), [`OTHER`](Self::OTHER) and reserved bits.
    pub flags: u8,
    /// Seconds for which the sender is a default router, 0 for never.
    pub lifetime: U16,
    /// Milliseconds for which a neighbour counts as reachable, 0 for no advice.
    pub reachable_time: U32,
    /// Milliseconds between solicitations, 0 for no advice.
    pub retransmit_timer: U32,
}

impl RouterAdvertisement {
    /// Flag: addresses come from DHCPv6.
    pub const MANAGED: u8 = 0x80;
    /// Flag: other configuration comes from DHCPv6.
    pub const OTHER: u8 = 0x40;

    /// An advertisement without advice besides what is given.
    pub const fn new(flags: u8, lifetime: u16) -> Self {
        Self {
            kind: kind::ROUTER_ADVERTISEMENT,
            code: 0,
            checksum: U16::ZERO,
            hop_limit: 64,
            flags,
            lifetime: U16::new(lifetime),
            reachable_time: U32::ZERO,
            retransmit_timer: U32::ZERO,
        }
    }
}

/// Source or target link-layer address option (RFC 4861 section 4.6.1) for Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LinkAddress {
    /// [`option::SOURCE_LINK_ADDRESS`] or [`option::TARGET_LINK_ADDRESS`].
    pub kind: u8,
    /// Length in units of 8 bytes: 1.
    pub len: u8,
    /// The MAC address: Ethernet needs one unit of eight bytes for the option (RFC 2464 section 6).
    pub mac: MacAddr,
}

impl LinkAddress {
    /// An option of type `kind`.
    pub const fn new(kind: u8, mac: MacAddr) -> Self {
        Self { kind, len: 1, mac }
    }
}

/// Prefix information option (RFC 4861 section 4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PrefixInformation {
    /// [`option::PREFIX_INFORMATION`].
    pub kind: u8,
    /// Length in units of 8 bytes: 4.
    pub len: u8,
    /// Bits of the prefix that count.
    pub prefix_len: u8,
    /// [`ON_LINK`](Self::ON_LINK), [`AUTONOMOUS`](Self::AUTONOMOUS) and reserved bits.
    pub flags: u8,
    /// Seconds for which the prefix is on link.
    pub valid: U32,
    /// Seconds for which addresses made from it are preferred.
    pub preferred: U32,
    /// 0; ignored by receivers (RFC 4861 section 4.6.2).
    pub reserved: U32,
    /// The prefix in network order; bits past its length are 0.
    pub prefix: [u8; 16],
}

impl PrefixInformation {
    /// Flag: addresses of the prefix are neighbours.
    pub const ON_LINK: u8 = 0x80;
    /// Flag: hosts may make addresses of the prefix.
    pub const AUTONOMOUS: u8 = 0x40;
}

/// One neighbour discovery option as it lies in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdOption<'a> {
    /// Type, see [`option`].
    pub kind: u8,
    /// The whole option, type and length included: a multiple of 8 bytes, at least 8.
    pub bytes: &'a [u8],
}

/// The options of a neighbour discovery message, in order.
///
/// Ends for good at the first option that is not sound (length 0, or longer than what is left): RFC 4861
/// section 6.1 has such a message discarded whole, which [`is_sound`](NdOptions::is_sound) tells beforehand.
#[derive(Clone, Copy, Debug)]
pub struct NdOptions<'a> {
    left: &'a [u8],
}

impl<'a> NdOptions<'a> {
    /// The options in `bytes`, which is what follows the fixed part of the message, padding excluded.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// True when the options fill their space exactly.
    pub fn is_sound(mut self) -> bool {
        while self.next().is_some() {}
        self.left.is_empty()
    }

    /// The Ethernet address in the first link-layer address option of type `kind`.
    pub fn link_address(self, kind: u8) -> Option<MacAddr> {
        let mut same = self.filter(|option| option.kind == kind && option.bytes.len() == LinkAddress::LEN);
        same.find_map(|option| Some(LinkAddress::view(option.bytes)?.0.mac))
    }

    /// What each link-layer address option says, of either type; `None` for one that is not as long as Ethernet's.
    /// Receivers differ in which of several they believe.
    pub fn link_addresses(self) -> impl Iterator<Item = Option<MacAddr>> {
        let link_layer = |option: &NdOption<'_>| {
            matches!(option.kind, option::SOURCE_LINK_ADDRESS | option::TARGET_LINK_ADDRESS)
        };
        self.filter(link_layer).map(|option| {
            let (address, behind) = LinkAddress::view(option.bytes)?;
            behind.is_empty().then_some(address.mac)
        })
    }
}

impl<'a> Iterator for NdOptions<'a> {
    type Item = NdOption<'a>;

    fn next(&mut self) -> Option<NdOption<'a>> {
        let (kind, len) = (*self.left.first()?, usize::from(*self.left.get(1)?) * 8);
        if len == 0 {
            return None;
        }
        let (bytes, left) = self.left.split_at_checked(len)?;
        self.left = left;
        Some(NdOption { kind, bytes })
    }
}

/// True for echo request and reply.
#[inline(always)]
pub const fn is_echo(kind: u8) -> bool {
    matches!(kind, kind::ECHO_REQUEST | kind::ECHO_REPLY)
}

/// True for the messages that carry the start of the packet that caused them (RFC 4443 section 2.1).
#[inline]
pub const fn is_error(kind: u8) -> bool {
    kind < 128
}

/// True for the messages of neighbour and router discovery.
#[inline]
pub const fn is_neighbour_discovery(kind: u8) -> bool {
    matches!(kind, kind::ROUTER_SOLICITATION..=kind::REDIRECT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;

    #[test]
    fn headers() {
        let echo: Header = check::layout(&[128, 0, 0, 0, 0x12, 0x34, 0, 7]);
        assert_eq!((echo.echo_id(), echo.echo_seq()), (0x1234, 7));
        assert_eq!(echo, Header::new(kind::ECHO_REQUEST, 0, 0x1234_0007));
        assert_eq!(std::mem::offset_of!(Header, checksum), CHECKSUM_OFFSET);
        assert!(is_echo(129) && !is_error(128) && is_error(2));
        assert!(is_neighbour_discovery(135) && !is_neighbour_discovery(132) && !is_neighbour_discovery(138));
    }

    #[test]
    fn neighbour_messages() {
        let mut bytes = [0u8; 24];
        bytes[0] = 136;
        bytes[4] = 0x60;
        bytes[8] = 0xfe;
        bytes[9] = 0x80;
        bytes[23] = 1;
        let message: NeighbourHeader = check::layout(&bytes);
        let target = "fe80::1".parse().unwrap();
        assert_eq!(
            message,
            NeighbourHeader::advertisement(target, NeighbourHeader::SOLICITED | NeighbourHeader::OVERRIDE)
        );
        assert!(
            message.has(NeighbourHeader::OVERRIDE)
                && !message.has(NeighbourHeader::ROUTER | NeighbourHeader::OVERRIDE)
        );
        bytes[0] = 135;
        bytes[4] = 0;
        assert_eq!(check::layout::<NeighbourHeader>(&bytes), NeighbourHeader::solicitation(target));
    }

    #[test]
    fn router_messages() {
        let advertisement: RouterAdvertisement =
            check::layout(&[134, 0, 0, 0, 64, 0x80, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(advertisement, RouterAdvertisement::new(RouterAdvertisement::MANAGED, 1800));
        let mut bytes = [0u8; 32];
        bytes[..8].copy_from_slice(&[3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10]);
        let prefix: PrefixInformation = check::layout(&bytes);
        assert_eq!((prefix.valid.get(), prefix.prefix_len), (3600, 64));
        assert_eq!(prefix.flags, PrefixInformation::ON_LINK | PrefixInformation::AUTONOMOUS);
    }

    #[test]
    fn options() {
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let link: LinkAddress = check::layout(&[1, 1, 2, 0, 0, 0, 0, 9]);
        assert_eq!(link, LinkAddress::new(option::SOURCE_LINK_ADDRESS, mac));
        let bytes =
            [[14, 1, 1, 2, 3, 4, 5, 6].as_slice(), link.bytes(), &[5, 1, 0, 0, 0, 0, 5, 220]].concat();
        let options = NdOptions::new(&bytes);
        assert_eq!(options.map(|o| o.kind).collect::<Vec<_>>(), [14, 1, 5]);
        assert!(options.is_sound());
        assert_eq!(options.link_address(option::SOURCE_LINK_ADDRESS), Some(mac));
        assert_eq!(options.link_address(option::TARGET_LINK_ADDRESS), None);
        assert_eq!(options.link_addresses().collect::<Vec<_>>(), [Some(mac)]);
        for cut in 0..bytes.len() {
            assert_eq!(NdOptions::new(&bytes[..cut]).count(), cut / 8);
            assert_eq!(NdOptions::new(&bytes[..cut]).is_sound(), cut % 8 == 0);
        }
        let endless = [1, 0, 0, 0, 0, 0, 0, 0];
        assert!(NdOptions::new(&endless).next().is_none() && !NdOptions::new(&endless).is_sound());
    }
}
