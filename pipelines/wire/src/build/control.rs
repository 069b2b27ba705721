//! Frames that the switch itself sends: ARP, neighbour discovery, echo replies, ICMP errors.
//!
//! Answers are made from the frame they answer and go back the way it came, VLAN tags included. Whether and how
//! often to answer (rate limits, ownership of addresses) is decided above.

use super::Path;
use crate::headers::{Flags, Headers, L3};
use crate::icmpv6::{LinkAddress, NdOptions, NeighbourHeader, option};
use crate::types::MacAddr;
use crate::view::View;
use crate::{arp, ethernet, icmp, icmpv6, ipv6, protocol, vlan};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest ICMP error over IPv4, bytes (RFC 1812 section 4.3.2.3).
const MAX_ICMP_ERROR: usize = 576;

/// An ARP request for `target`, broadcast.
pub fn arp_request(sender: (MacAddr, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let packet = arp::ArpPacket::new(arp::REQUEST, sender, (MacAddr::ZERO, target));
    let path = Path::v4(sender, (MacAddr::BROADCAST, target));
    padded(path.ethernet(ethernet::ethertype::ARP, packet.bytes()))
}

/// The reply "`mac` has the target address" to an ARP request; `None` when the frame is none.
pub fn arp_reply(h: &Headers, request: &[u8], mac: MacAddr) -> Option<Vec<u8>> {
    let asked = h.arp(request).filter(|packet| packet.operation.get() == arp::REQUEST)?;
    let asker = (asked.sender_mac, asked.sender());
    let answer = arp::ArpPacket::new(arp::REPLY, (mac, asked.target()), asker);
    let path = Path { tags: tags(h, request), ..Path::v4((mac, asked.target()), asker) };
    Some(padded(path.ethernet(ethernet::ethertype::ARP, answer.bytes())))
}

/// A neighbour solicitation for `target`: to its solicited-node group, or as a probe to the station `known`.
pub fn neighbour_solicitation(
    sender: (MacAddr, Ipv6Addr),
    target: Ipv6Addr,
    known: Option<MacAddr>,
) -> Vec<u8> {
    let group = ipv6::solicited_node(target);
    let to = known.map_or((ipv6::multicast_mac(group), group), |mac| (mac, target));
    let path = Path::v6(sender, to).with_ttl(icmpv6::ND_HOP_LIMIT);
    let link = LinkAddress::new(option::SOURCE_LINK_ADDRESS, sender.0);
    path.ip(protocol::ICMPV6, &[NeighbourHeader::solicitation(target).bytes(), link.bytes()].concat())
}

/// The advertisement "`mac` has the target address" that answers a neighbour solicitation; `None` when the frame
/// is no solicitation that RFC 4861 section 7.1.1 lets pass. Who solicits from the unspecified address (duplicate
/// address detection) is answered through the all-nodes group.
pub fn neighbour_advertisement(
    h: &Headers,
    solicitation: &[u8],
    mac: MacAddr,
    router: bool,
) -> Option<Vec<u8>> {
    let asked = solicited(h, solicitation)?;
    let target = asked.target();
    let (ip, eth) = (h.ipv6(solicitation)?, h.ethernet(solicitation)?);
    let role = if router { NeighbourHeader::ROUTER } else { 0 };
    let (to, flags) = if ip.src().is_unspecified() {
        ((ipv6::multicast_mac(ipv6::ALL_NODES), ipv6::ALL_NODES), NeighbourHeader::OVERRIDE)
    } else {
        ((eth.src, ip.src()), NeighbourHeader::SOLICITED | NeighbourHeader::OVERRIDE)
    };
    let path = Path { tags: tags(h, solicitation), ..Path::v6((mac, target), to) };
    let link = LinkAddress::new(option::TARGET_LINK_ADDRESS, mac);
    let message = [NeighbourHeader::advertisement(target, flags | role).bytes(), link.bytes()].concat();
    Some(path.with_ttl(icmpv6::ND_HOP_LIMIT).ip(protocol::ICMPV6, &message))
}

/// The advertisement "`mac` has the address" that nobody asked for, to all nodes (RFC 4861 section 7.2.6).
pub fn neighbour_announcement(mac: MacAddr, address: Ipv6Addr) -> Vec<u8> {
    let to = (ipv6::multicast_mac(ipv6::ALL_NODES), ipv6::ALL_NODES);
    let path = Path::v6((mac, address), to).with_ttl(icmpv6::ND_HOP_LIMIT);
    let link = LinkAddress::new(option::TARGET_LINK_ADDRESS, mac);
    let message = NeighbourHeader::advertisement(address, NeighbourHeader::OVERRIDE);
    path.ip(protocol::ICMPV6, &[message.bytes(), link.bytes()].concat())
}

/// The neighbour solicitation in a frame, checked as RFC 4861 section 7.1.1 asks (the checksum apart).
pub fn solicited<'a>(h: &Headers, frame: &'a [u8]) -> Option<&'a NeighbourHeader> {
    neighbour(h, frame, icmpv6::kind::NEIGHBOUR_SOLICITATION).map(|(message, _)| message)
}

/// The neighbour advertisement in a frame and the target's link-layer address, if given; checked as RFC 4861
/// section 7.1.2 asks (the checksum apart).
pub fn advertised<'a>(h: &Headers, frame: &'a [u8]) -> Option<(&'a NeighbourHeader, Option<MacAddr>)> {
    let (message, options) = neighbour(h, frame, icmpv6::kind::NEIGHBOUR_ADVERTISEMENT)?;
    let to_group = h.ipv6(frame)?.dst().is_multicast();
    if to_group && message.has(NeighbourHeader::SOLICITED) {
        return None;
    }
    Some((message, options.link_address(option::TARGET_LINK_ADDRESS)))
}

fn neighbour<'a>(h: &Headers, frame: &'a [u8], kind: u8) -> Option<(&'a NeighbourHeader, NdOptions<'a>)> {
    let wanted = h.proto == protocol::ICMPV6
        && h.sport == u16::from(kind) << 8
        && h.ttl == icmpv6::ND_HOP_LIMIT
        && h.is(Flags::L4)
        && !h.flags.intersects(Flags::FRAGMENT);
    let message = frame.get(usize::from(h.l4_offset)..h.l3_end()).filter(|_| wanted)?;
    let (message, rest) = NeighbourHeader::view(message)?;
    let options = NdOptions::new(rest);
    let src = h.ipv6(frame)?.src();
    // Duplicate address detection carries no source link-layer address and goes to the solicited-node group.
    let detection_ok = !src.is_unspecified()
        || options.link_address(option::SOURCE_LINK_ADDRESS).is_none()
            && h.ipv6(frame)?.dst() == ipv6::solicited_node(message.target());
    (options.is_sound() && !message.target().is_multicast() && detection_ok).then_some((message, options))
}

/// The reply to an echo request that lies in one piece; `None` when the frame is none, a fragment of one, or was
/// sent to a group.
pub fn echo_reply(h: &Headers, request: &[u8]) -> Option<Vec<u8>> {
    let asked = match (h.l3, h.proto) {
        (L3::Ipv4, protocol::ICMP) => u16::from(icmp::kind::ECHO_REQUEST) << 8,
        (L3::Ipv6, protocol::ICMPV6) => u16::from(icmpv6::kind::ECHO_REQUEST) << 8,
        _ => return None,
    };
    let whole = h.is(Flags::L4) && !h.flags.intersects(Flags::FRAGMENT);
    if h.sport != asked || !whole || h.ethernet(request)?.dst.is_group() {
        return None;
    }
    let message = request.get(usize::from(h.l4_offset)..h.l3_end())?;
    let (header, payload) = icmp::Header::view(message)?;
    let back = path_back(h, request, h.ethernet(request)?.dst)?;
    Some(back.echo_reply(header.id.get(), header.seq_or_mtu.get(), payload))
}

/// Why a packet could not be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Longer than the next hop's MTU: IPv4 type 3 code 4 (RFC 1191), IPv6 packet too big (RFC 8201).
    TooBig {
        /// Longest packet that would pass, bytes from the IP header on.
        mtu: u16,
    },
    /// No hop left: IPv4 type 11 code 0, IPv6 type 3 code 0.
    TimeExceeded,
    /// Forbidden: IPv4 type 3 code 13, IPv6 type 1 code 1.
    Prohibited,
    /// No route: IPv4 type 3 code 0, IPv6 type 1 code 0.
    NoRoute,
}

impl IcmpError {
    fn v4(self) -> icmp::Header {
        match self {
            Self::TooBig { mtu } => {
                icmp::Header::new(icmp::kind::UNREACHABLE, icmp::CODE_FRAGMENTATION_NEEDED, 0, mtu)
            }
            Self::TimeExceeded => icmp::Header::new(icmp::kind::TIME_EXCEEDED, 0, 0, 0),
            Self::Prohibited => icmp::Header::new(icmp::kind::UNREACHABLE, icmp::CODE_PROHIBITED, 0, 0),
            Self::NoRoute => icmp::Header::new(icmp::kind::UNREACHABLE, 0, 0, 0),
        }
    }

    fn v6(self) -> icmpv6::Header {
        match self {
            Self::TooBig { mtu } => icmpv6::Header::new(icmpv6::kind::TOO_BIG, 0, u32::from(mtu)),
            Self::TimeExceeded => icmpv6::Header::new(icmpv6::kind::TIME_EXCEEDED, 0, 0),
            Self::Prohibited => icmpv6::Header::new(icmpv6::kind::UNREACHABLE, 1, 0),
            Self::NoRoute => icmpv6::Header::new(icmpv6::kind::UNREACHABLE, 0, 0),
        }
    }
}

/// The ICMP error that tells the sender of `frame` what became of it, sent by the router `from`; quoting as much as the
/// RFCs allow of what lies in `frame` (its first segment will do).
///
/// `None` where none may be sent (RFC 1122 section 3.2.2, RFC 4443 section 2.4(e)): about ICMP errors and
/// redirects, later fragments, groups and broadcasts, senders that are no single station; and when the packet is
/// not of `from`'s IP version.
pub fn icmp_error(h: &Headers, frame: &[u8], error: IcmpError, from: (MacAddr, IpAddr)) -> Option<Vec<u8>> {
    let may_be_group = h.l3 == L3::Ipv6 && matches!(error, IcmpError::TooBig { .. });
    if h.is(Flags::FRAGMENT_LATER) || !may_be_group && h.ethernet(frame)?.dst.is_group() {
        return None;
    }
    let kind = (h.sport >> 8) as u8;
    let original = frame.get(usize::from(h.l3_offset)..h.l3_end().min(frame.len()))?;
    match from.1 {
        IpAddr::V4(own) => {
            let ip = h.ipv4(frame)?;
            let src = ip.src();
            let about_error = h.proto == protocol::ICMP && (icmp::is_error(kind) || !h.is(Flags::L4));
            let no_station =
                src.is_unspecified() || src.is_multicast() || src.is_broadcast() || src.is_loopback();
            if about_error || no_station || ip.dst().is_multicast() || ip.dst().is_broadcast() {
                return None;
            }
            let mut back = path_back(h, frame, from.0)?;
            back.ip = super::Pair::V4(own, src);
            let quoted = &original[..original.len().min(MAX_ICMP_ERROR - 20 - icmp::HEADER_LEN)];
            Some(back.ip(protocol::ICMP, &[error.v4().bytes(), quoted].concat()))
        }
        IpAddr::V6(own) => {
            let ip = h.ipv6(frame)?;
            let about_error = h.proto == protocol::ICMPV6
                && (icmpv6::is_error(kind) || kind == icmpv6::kind::REDIRECT || !h.is(Flags::L4));
            let no_station = ip.src().is_unspecified() || ip.src().is_multicast();
            if about_error || no_station || !may_be_group && ip.dst().is_multicast() {
                return None;
            }
            let mut back = path_back(h, frame, from.0)?;
            back.ip = super::Pair::V6(own, ip.src());
            let room = ipv6::MIN_MTU - ipv6::HEADER_LEN - icmpv6::HEADER_LEN;
            let quoted = &original[..original.len().min(room)];
            Some(back.ip(protocol::ICMPV6, &[error.v6().bytes(), quoted].concat()))
        }
    }
}

/// The path of an answer: IP addresses swapped, same tags, TTL 64, from the station `own` to the sender.
fn path_back(h: &Headers, frame: &[u8], own: MacAddr) -> Option<Path> {
    let eth = h.ethernet(frame)?;
    let path = match h.l3 {
        L3::Ipv4 => {
            let ip = h.ipv4(frame)?;
            Path::v4((own, ip.dst()), (eth.src, ip.src()))
        }
        L3::Ipv6 => {
            let ip = h.ipv6(frame)?;
            Path::v6((own, ip.dst()), (eth.src, ip.src()))
        }
        L3::None | L3::Arp => return None,
    };
    Some(Path { tags: tags(h, frame), ..path })
}

/// EtherType and control information of the tags of `frame`.
fn tags(h: &Headers, frame: &[u8]) -> Vec<(u16, u16)> {
    let mut announced = h.ethernet(frame).map_or(0, |eth| eth.ethertype.get());
    let mut tags = Vec::new();
    for at in 0..usize::from(h.vlan_count) {
        let Some(tag) = vlan::Tag::view_at(frame, ethernet::HEADER_LEN + at * vlan::TAG_LEN) else { break };
        tags.push((announced, tag.tci.get()));
        announced = tag.ethertype.get();
    }
    tags
}

/// The frame, filled with zeros to the shortest length that Ethernet carries.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(ethernet::MIN_FRAME_LEN), 0);
    frame
}
