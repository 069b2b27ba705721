//! Replies made in place of their questions: ARP, neighbour advertisement, ICMP echo.
//!
//! Each function either turns the whole packet into the reply or leaves it to be dropped; none allocates.

use std::net::IpAddr;

use crate::event::{Binding, Claim};
use wire::checksum;
use wire::icmpv6::{self, NeighbourHeader};
use wire::{Flags, Headers, L3, MacAddr, PacketBuf, View, arp, icmp, ipv4, ipv6, protocol};

/// An ARP request or a neighbour solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// The address asked for.
    pub target: IpAddr,
    /// Who asks; unspecified in duplicate address detection.
    pub asker: IpAddr,
    /// The MAC that the asker names as its own.
    pub asker_mac: MacAddr,
    /// What that is worth to who knew another MAC; a solicitation without the option says nothing.
    pub claim: Claim,
}

impl Solicitation {
    /// The sender's address and MAC.
    pub fn asker(&self) -> Binding {
        Binding { address: self.asker, mac: self.asker_mac }
    }
}

/// An ARP reply or a neighbour advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The address and its MAC.
    pub binding: Binding,
    /// What that is worth to who knew another MAC.
    pub claim: Claim,
}

/// What an ARP or neighbour discovery packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourMessage {
    /// Who has this address?
    Solicitation(Solicitation),
    /// This address has that MAC.
    Advertisement(Advertisement),
    /// Is there a router? From this address and MAC.
    Routers(Binding),
    /// A router advertisement or a redirect, from this address.
    Route(IpAddr),
    /// ARP of another operation than request and reply.
    Other,
    /// A packet that its receiver must discard (RFC 4861 sections 6.1, 7.1; RFC 6980), or cannot read.
    Unsound,
}

/// Reads an ARP or neighbour discovery packet.
pub fn read(head: &[u8], headers: &Headers) -> NeighbourMessage {
    match headers.l3 {
        L3::Arp => read_arp(head, headers),
        L3::Ipv6 => read_nd(head, headers).unwrap_or(NeighbourMessage::Unsound),
        L3::Ipv4 | L3::None => NeighbourMessage::Other,
    }
}

/// Any ARP packet updates an entry that is there (RFC 826, "Packet Reception"). Only a reply to one station shows that its sender
/// hears that station: who asks or announces may do so because it does not, and the way there is dead in one direction.
fn read_arp(head: &[u8], headers: &Headers) -> NeighbourMessage {
    let (Some(packet), Some(ethernet)) =
        (arp::ArpPacket::view_at(head, usize::from(headers.l3_offset)), headers.ethernet(head))
    else {
        return NeighbourMessage::Other;
    };
    match packet.operation.get() {
        arp::REQUEST => NeighbourMessage::Solicitation(Solicitation {
            target: packet.target().into(),
            asker: packet.sender().into(),
            asker_mac: packet.sender_mac,
            claim: Claim { overrides: true, confirms: false },
        }),
        arp::REPLY => {
            let binding = Binding { address: packet.sender().into(), mac: packet.sender_mac };
            let claim = Claim { overrides: true, confirms: !ethernet.dst.is_group() };
            NeighbourMessage::Advertisement(Advertisement { binding, claim })
        }
        _ => NeighbourMessage::Other,
    }
}

/// `None` for what fails RFC 4861 sections 6.1.1 and 7.1 (hop limit 255, code 0, right checksum, sound options), for what
/// has a fragment header (RFC 6980), and for link-layer addresses that contradict each other, of which receivers would
/// believe the one or the other.
fn read_nd(head: &[u8], headers: &Headers) -> Option<NeighbourMessage> {
    let ip = ipv6::Header::view_at(head, usize::from(headers.l3_offset))?;
    let packet = head.get(usize::from(headers.l4_offset)..headers.l3_end())?;
    let (header, _) = icmpv6::Header::view(packet)?;
    if matches!(header.kind, icmpv6::kind::ROUTER_ADVERTISEMENT | icmpv6::kind::REDIRECT) {
        return Some(NeighbourMessage::Route(ip.src().into()));
    }
    let mut sum =
        checksum::pseudo_v6(&ip.src().octets(), &ip.dst().octets(), protocol::ICMPV6, packet.len() as u32);
    sum.add(packet);
    let whole = !headers.is(Flags::FRAGMENT_HEADER);
    if !whole || headers.ttl != icmpv6::ND_HOP_LIMIT || header.code != 0 || sum.fold() != 0xffff {
        return None;
    }
    let fixed = match header.kind {
        icmpv6::kind::ROUTER_SOLICITATION => icmpv6::HEADER_LEN,
        _ => size_of::<NeighbourHeader>(),
    };
    let options = icmpv6::NdOptions::new(packet.get(fixed..)?);
    let ethernet_source = headers.ethernet(head)?.src;
    let link_address = options.link_address(match header.kind {
        icmpv6::kind::NEIGHBOUR_ADVERTISEMENT => icmpv6::option::TARGET_LINK_ADDRESS,
        _ => icmpv6::option::SOURCE_LINK_ADDRESS,
    });
    let mac = link_address.unwrap_or(ethernet_source);
    if !options.is_sound() || options.link_addresses().any(|other| other != Some(mac)) {
        return None;
    }
    if header.kind == icmpv6::kind::ROUTER_SOLICITATION {
        return Some(NeighbourMessage::Routers(Binding { address: ip.src().into(), mac }));
    }
    let (message, _) = NeighbourHeader::view(packet)?;
    // What nobody asked for does not answer anybody (section 7.1.2).
    let solicited =
        header.kind == icmpv6::kind::NEIGHBOUR_ADVERTISEMENT && message.has(NeighbourHeader::SOLICITED);
    if solicited && ip.dst().is_multicast() {
        return None;
    }
    let overrides = link_address.is_some();
    match header.kind {
        icmpv6::kind::NEIGHBOUR_SOLICITATION => Some(NeighbourMessage::Solicitation(Solicitation {
            target: message.target().into(),
            asker: ip.src().into(),
            asker_mac: mac,
            claim: Claim { overrides, confirms: false },
        })),
        icmpv6::kind::NEIGHBOUR_ADVERTISEMENT => Some(NeighbourMessage::Advertisement(Advertisement {
            binding: Binding { address: message.target().into(), mac },
            claim: Claim {
                overrides: overrides && message.has(NeighbourHeader::OVERRIDE),
                confirms: message.has(NeighbourHeader::SOLICITED),
            },
        })),
        _ => None,
    }
}

/// Turns a question into its answer: the target has `mac`. `false` when the packet cannot carry it.
pub fn answer<P: PacketBuf>(packet: &mut P, headers: &Headers, mac: MacAddr, router: bool) -> bool {
    match headers.l3 {
        L3::Arp => arp_reply(packet, headers, mac).is_some(),
        L3::Ipv6 => advertisement(packet, headers, mac, router).is_some(),
        L3::Ipv4 | L3::None => false,
    }
}

/// Addresses the frame to where it came from.
fn swap_macs(head: &mut [u8], source: MacAddr) -> Option<()> {
    let macs = head.first_chunk_mut::<12>()?;
    macs.copy_within(6..12, 0);
    macs[6..12].copy_from_slice(&source.0);
    Some(())
}

fn arp_reply<P: PacketBuf>(packet: &mut P, headers: &Headers, mac: MacAddr) -> Option<()> {
    let head = packet.head_mut();
    let request = arp::ArpPacket::view_mut_at(head, usize::from(headers.l3_offset))?;
    let (asker, target) = ((request.sender_mac, request.sender()), request.target());
    *request = arp::ArpPacket::new(arp::REPLY, (mac, target), asker);
    swap_macs(head, mac)
}

fn advertisement<P: PacketBuf>(packet: &mut P, headers: &Headers, mac: MacAddr, router: bool) -> Option<()> {
    const LEN: usize = size_of::<NeighbourHeader>() + size_of::<icmpv6::LinkAddress>();
    if headers.is(Flags::EXT_HEADERS) {
        return None;
    }
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    let (have, want) = (packet.len(), l4 + LEN);
    if have > want {
        packet.trim_back(have - want).then_some(())?;
    } else if have < want {
        packet.append(want - have)?;
    }
    let head = packet.head_mut();
    let target = NeighbourHeader::view_at(head, l4)?.target();
    let asker = ipv6::Header::view_at(head, l3)?.src();
    // Who asks from no address is told through the group of all nodes (RFC 4861 section 7.2.4).
    let (to, solicited) =
        if asker.is_unspecified() { (ipv6::ALL_NODES, 0) } else { (asker, NeighbourHeader::SOLICITED) };
    let mut ip = ipv6::Header::new(target, to, protocol::ICMPV6, LEN as u16);
    ip.hop_limit = icmpv6::ND_HOP_LIMIT;
    let flags = solicited | NeighbourHeader::OVERRIDE | if router { NeighbourHeader::ROUTER } else { 0 };
    let message = head.get_mut(l4..l4 + LEN)?;
    message[..size_of::<NeighbourHeader>()]
        .copy_from_slice(NeighbourHeader::advertisement(target, flags).bytes());
    let option = icmpv6::LinkAddress::new(icmpv6::option::TARGET_LINK_ADDRESS, mac);
    message[size_of::<NeighbourHeader>()..].copy_from_slice(option.bytes());
    let mut sum = checksum::pseudo_v6(&target.octets(), &to.octets(), protocol::ICMPV6, LEN as u32);
    sum.add(message);
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    head.get_mut(l3..l4)?.copy_from_slice(ip.bytes());
    swap_macs(head, mac)?;
    if to.is_multicast() {
        *head.first_chunk_mut()? = ipv6::multicast_mac(to).0;
    }
    Some(())
}

/// True for an ICMP or ICMPv6 echo request that is no fragment.
pub fn is_echo_request(headers: &Headers) -> bool {
    let kind = (headers.sport >> 8) as u8;
    headers.is(Flags::L4)
        && !headers.flags.intersects(Flags::FRAGMENT)
        && match (headers.l3, headers.proto) {
            (L3::Ipv4, protocol::ICMP) => kind == icmp::kind::ECHO_REQUEST,
            (L3::Ipv6, protocol::ICMPV6) => kind == icmpv6::kind::ECHO_REQUEST,
            _ => false,
        }
}

/// Turns an echo request into its reply from the same address (RFC 792, RFC 4443 section 4.2).
pub fn echo<P: PacketBuf>(packet: &mut P, headers: &Headers, mac: MacAddr) -> bool {
    echo_reply(packet, headers, mac).is_some()
}

fn echo_reply<P: PacketBuf>(packet: &mut P, headers: &Headers, mac: MacAddr) -> Option<()> {
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    let head = packet.head_mut();
    let reply = match headers.l3 {
        L3::Ipv4 => {
            let ip = ipv4::Header::view_mut_at(head, l3)?;
            std::mem::swap(&mut ip.src, &mut ip.dst);
            ip.ttl = 64;
            ipv4::fill_checksum(head.get_mut(l3..l4)?).then_some(icmp::kind::ECHO_REPLY)?
        }
        L3::Ipv6 => {
            let ip = ipv6::Header::view_mut_at(head, l3)?;
            std::mem::swap(&mut ip.src, &mut ip.dst);
            ip.hop_limit = 64;
            icmpv6::kind::ECHO_REPLY
        }
        L3::None | L3::Arp => return None,
    };
    // Swapped addresses leave the pseudo header's sum as it was: only the type changes.
    let message = icmp::Header::view_mut_at(head, l4)?;
    let (old, new) = (u16::from(message.kind) << 8, u16::from(reply) << 8);
    // A message of zeros sums to 0xffff, which the update cannot tell from 0; the other value is always right.
    message.checksum.set(checksum::udp(checksum::update(message.checksum.get(), old, new)));
    message.kind = reply;
    swap_macs(head, mac)
}
