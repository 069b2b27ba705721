//! The parser: one look at the start of a packet gives [`Headers`], or the name of what is wrong with it.
//!
//! Runs for every packet of every burst, twice for tunnelled ones. It reads only bytes that are there, believes
//! no length before it is checked, never panics, allocates or writes, and judges form only: checksums,
//! addresses and policy are for the stages behind it.

use crate::ethernet::{self, ethertype};
use crate::headers::{Flags, Headers, L3};
use crate::malformed::Malformed;
use crate::view::View;
use crate::{arp, icmp, icmpv6, ipv4, ipv6, protocol, sctp, tcp, udp, vlan};

/// Extension headers that the parser walks before it gives up on an IPv6 packet.
pub const MAX_EXTENSIONS: usize = 8;
/// VLAN tags that the parser reads.
pub const MAX_TAGS: usize = 2;

type Parsed = Result<(), Malformed>;

/// Parses an Ethernet frame of `frame_len` bytes, of which `head` is the first segment (and never longer).
///
/// # Errors
/// The first thing found wrong, outermost header first.
#[inline]
pub fn parse(head: &[u8], frame_len: usize) -> Result<Headers, Malformed> {
    let mut headers = Headers::default();
    parse_into(head, frame_len, &mut headers)?;
    Ok(headers)
}

/// [`parse`] into a place of the caller's: for arrays of metadata, and less than half the cost, for the result
/// is not copied right after it was written. After an error `headers` is unspecified.
///
/// # Errors
/// As [`parse`].
#[inline]
pub fn parse_into(head: &[u8], frame_len: usize, headers: &mut Headers) -> Parsed {
    let Some((eth, _)) = ethernet::Header::view(head) else { return Err(Malformed::EthernetTruncated) };
    let ethertype = eth.ethertype.get();
    *headers = Headers { l3_offset: ethernet::HEADER_LEN as u8, ethertype, ..Headers::default() };
    if vlan::is_tag(ethertype) {
        return tagged(head, frame_len, headers);
    }
    l3(head, frame_len, headers)
}

/// Parses a packet from its L3 header on: for what a tunnel or a raw IP device delivers without Ethernet.
/// Offsets in the result count from the start of `head`.
///
/// # Errors
/// As [`parse`].
#[inline]
pub fn parse_ip(head: &[u8], l3_offset: u8, frame_len: usize, ethertype: u16) -> Result<Headers, Malformed> {
    let mut headers = Headers { l3_offset, ethertype, ..Headers::default() };
    l3(head, frame_len, &mut headers)?;
    Ok(headers)
}

#[inline(never)]
fn tagged(head: &[u8], frame_len: usize, h: &mut Headers) -> Parsed {
    for at in 0..MAX_TAGS {
        let Some(tag) = vlan::Tag::view_at(head, usize::from(h.l3_offset)) else {
            return Err(Malformed::VlanTruncated);
        };
        h.vlan_tci[at] = tag.tci.get();
        h.vlan_count += 1;
        h.l3_offset += vlan::TAG_LEN as u8;
        h.ethertype = tag.ethertype.get();
        if !vlan::is_tag(h.ethertype) {
            return l3(head, frame_len, h);
        }
    }
    Err(Malformed::VlanTooDeep)
}

/// Reads from the L3 header on. `h` holds the L3 offset, EtherType and tags, and zeros.
#[inline(always)]
fn l3(head: &[u8], frame_len: usize, h: &mut Headers) -> Parsed {
    match h.ethertype {
        ethertype::IPV4 => ipv4(head, frame_len, h),
        ethertype::IPV6 => ipv6(head, frame_len, h),
        _ => other(head, frame_len, h),
    }
}

#[inline(never)]
fn other(head: &[u8], frame_len: usize, h: &mut Headers) -> Parsed {
    let left = frame_len.saturating_sub(usize::from(h.l3_offset));
    h.l4_offset = u16::from(h.l3_offset);
    h.l3_len = u16::try_from(left).unwrap_or(u16::MAX);
    if h.ethertype != ethertype::ARP {
        return Ok(());
    }
    let Some(packet) = arp::ArpPacket::view_at(head, usize::from(h.l3_offset)) else {
        return Err(Malformed::ArpTruncated);
    };
    if !packet.is_ipv4_over_ethernet() {
        return Err(Malformed::ArpFormat);
    }
    h.l3 = L3::Arp;
    h.l3_len = arp::PACKET_LEN as u16;
    if left > arp::PACKET_LEN {
        h.flags |= Flags::PADDED;
    }
    Ok(())
}

#[inline(always)]
fn ipv4(head: &[u8], frame_len: usize, h: &mut Headers) -> Parsed {
    let at = usize::from(h.l3_offset);
    let Some(ip) = ipv4::Header::view_at(head, at) else { return Err(Malformed::Ipv4Truncated) };
    let (total, left) = (ip.total_len.get(), frame_len.saturating_sub(at));
    let mut len = ipv4::HEADER_LEN;
    if ip.version_ihl != 0x45 {
        len = ipv4_header_len(ip)?;
        h.flags |= if len > ipv4::HEADER_LEN { Flags::IP_OPTIONS } else { Flags::NONE };
        if head.len() - at < len {
            return Err(Malformed::Ipv4Truncated);
        }
    }
    if usize::from(total) < len || usize::from(total) > left {
        return Err(Malformed::Ipv4TotalLength);
    }
    h.l3 = L3::Ipv4;
    h.proto = ip.protocol;
    h.l4_offset = (at + len) as u16;
    h.l3_len = total;
    h.tos = ip.tos;
    h.ttl = ip.ttl;
    h.ip_id = u32::from(ip.id.get());
    let fragment = ip.fragment.get();
    if fragment & ipv4::DONT_FRAGMENT != 0 {
        h.flags |= Flags::DF;
    }
    if left > usize::from(total) {
        h.flags |= Flags::PADDED;
    }
    if fragment & (ipv4::MORE_FRAGMENTS | ipv4::OFFSET_MASK) != 0 {
        let more = fragment & ipv4::MORE_FRAGMENTS != 0;
        return self::fragment(head, h, ip.fragment_offset(), more, usize::from(total));
    }
    l4(head, h)
}

#[cold]
fn ipv4_header_len(ip: &ipv4::Header) -> Result<usize, Malformed> {
    if ip.version() != 4 {
        return Err(Malformed::Ipv4Version);
    }
    if ip.header_len() < ipv4::HEADER_LEN {
        return Err(Malformed::Ipv4HeaderLength);
    }
    Ok(ip.header_len())
}

#[inline]
fn ipv6(head: &[u8], frame_len: usize, h: &mut Headers) -> Parsed {
    let at = usize::from(h.l3_offset);
    let Some(ip) = ipv6::Header::view_at(head, at) else { return Err(Malformed::Ipv6Truncated) };
    if ip.version() != 6 {
        return Err(Malformed::Ipv6Version);
    }
    let (total, left) = (usize::from(ip.payload_len.get()) + ipv6::HEADER_LEN, frame_len.saturating_sub(at));
    if total > left.min(usize::from(u16::MAX)) {
        return Err(Malformed::Ipv6PayloadLength);
    }
    h.l3 = L3::Ipv6;
    h.proto = ip.next_header;
    h.l4_offset = (at + ipv6::HEADER_LEN) as u16;
    h.l3_len = total as u16;
    h.tos = ip.traffic_class();
    h.ttl = ip.hop_limit;
    if left > total {
        h.flags |= Flags::PADDED;
    }
    if matches!(h.proto, protocol::TCP | protocol::UDP | protocol::ICMPV6) {
        return l4(head, h);
    }
    extensions(head, h)
}

/// Walks the extension headers (RFC 8200 section 4), then reads L4.
#[inline(never)]
fn extensions(head: &[u8], h: &mut Headers) -> Parsed {
    let mut fragment_seen = false;
    for position in 0..=MAX_EXTENSIONS {
        let at = usize::from(h.l4_offset);
        let seen = seen(head, h);
        if !ipv6::is_extension(h.proto) {
            return l4(head, h);
        }
        if position == MAX_EXTENSIONS {
            return Err(Malformed::Ipv6ExtensionTooMany);
        }
        // In a first fragment a chain that goes on in the next one is the fragmenter's fault.
        let short =
            if h.is(Flags::FRAGMENT) { Malformed::FragmentTiny } else { Malformed::Ipv6ExtensionTruncated };
        let Some(extension) = ipv6::Extension::view_at(seen, at) else { return Err(short) };
        let len = ipv6::extension_len(h.proto, extension.len).filter(|len| *len <= seen.len() - at);
        let Some(len) = len else { return Err(short) };
        h.flags |= Flags::EXT_HEADERS;
        h.l4_offset = (at + len) as u16;
        match h.proto {
            protocol::HOP_BY_HOP if position > 0 => return Err(Malformed::Ipv6ExtensionOrder),
            protocol::HOP_BY_HOP => h.flags |= Flags::HOP_BY_HOP,
            protocol::ROUTING if extension.segments_left > 0 => h.flags |= Flags::SOURCE_ROUTED,
            protocol::FRAGMENT if fragment_seen => return Err(Malformed::Ipv6ExtensionOrder),
            protocol::FRAGMENT => {
                fragment_seen = true;
                h.flags |= Flags::FRAGMENT_HEADER;
                let Some(header) = ipv6::Fragment::view_at(seen, at) else { return Err(short) };
                h.ip_id = header.id.get();
                let (offset, more) = (header.offset(), header.more());
                if offset != 0 || more {
                    h.proto = header.next_header;
                    // The reassembled payload: everything behind the fixed header, minus this header.
                    let grown = usize::from(h.l3_len) - ipv6::HEADER_LEN - ipv6::FRAGMENT_LEN;
                    mark_fragment(h, offset, more, grown)?;
                    if offset != 0 {
                        return later_fragment(h, offset);
                    }
                    continue;
                }
            }
            _ => {}
        }
        h.proto = extension.next_header;
    }
    Err(Malformed::Ipv6ExtensionTooMany)
}

/// Reads the rest of an IPv4 fragment. `len` is what the offset shifts: the packet length of the reassembled
/// packet is `offset + len`.
#[cold]
fn fragment(head: &[u8], h: &mut Headers, offset: usize, more: bool, len: usize) -> Parsed {
    mark_fragment(h, offset, more, len)?;
    if offset != 0 {
        return later_fragment(h, offset);
    }
    l4(head, h)
}

fn mark_fragment(h: &mut Headers, offset: usize, more: bool, len: usize) -> Parsed {
    let data = h.l4_total_len();
    if data == 0 || more && !data.is_multiple_of(8) {
        return Err(Malformed::FragmentLength);
    }
    if offset + len > usize::from(u16::MAX) {
        return Err(Malformed::FragmentOverlong);
    }
    h.flags |= Flags::FRAGMENT;
    if more {
        h.flags |= Flags::MORE_FRAGMENTS;
    }
    Ok(())
}

fn later_fragment(h: &mut Headers, offset: usize) -> Parsed {
    h.flags |= Flags::FRAGMENT_LATER;
    // The first fragment holds the TCP header whole, so data at this offset could only overwrite it.
    if h.proto == protocol::TCP && offset < tcp::HEADER_LEN {
        return Err(Malformed::FragmentTiny);
    }
    Ok(())
}

/// The bytes at hand that belong to the L3 packet.
#[inline(always)]
fn seen<'a>(head: &'a [u8], h: &Headers) -> &'a [u8] {
    &head[..h.l3_end().min(head.len())]
}

/// Reads the L4 header of a whole packet or of a first fragment.
#[inline(always)]
fn l4(head: &[u8], h: &mut Headers) -> Parsed {
    let (bytes, at) = (seen(head, h), usize::from(h.l4_offset));
    match (h.proto, h.l3) {
        (protocol::TCP, _) => {
            let Some(header) = tcp::Header::view_at(bytes, at) else {
                return Err(short(h, Malformed::TcpTruncated));
            };
            let len = header.header_len();
            if len < tcp::HEADER_LEN {
                return Err(Malformed::TcpHeaderLength);
            }
            if bytes.len() - at < len {
                return Err(short(h, Malformed::TcpTruncated));
            }
            h.tcp_flags = header.flags;
            found(h, header.src_port.get(), header.dst_port.get(), len);
        }
        (protocol::UDP, _) => {
            let Some(header) = udp::Header::view_at(bytes, at) else {
                return Err(short(h, Malformed::UdpTruncated));
            };
            let len = usize::from(header.len.get());
            // The first fragment carries the length of the whole datagram.
            if len < udp::HEADER_LEN || len > h.l4_total_len() && !h.is(Flags::FRAGMENT) {
                return Err(Malformed::UdpLength);
            }
            found(h, header.src_port.get(), header.dst_port.get(), udp::HEADER_LEN);
        }
        (protocol::ICMP, L3::Ipv4) | (protocol::ICMPV6, L3::Ipv6) => {
            // ICMPv6's eight common bytes have the same layout.
            let Some(header) = icmp::Header::view_at(bytes, at) else {
                return Err(short(h, Malformed::IcmpTruncated));
            };
            let echo = match h.l3 {
                L3::Ipv6 => icmpv6::is_echo(header.kind),
                _ => icmp::is_echo(header.kind),
            };
            let id = if echo { header.id.get() } else { 0 };
            found(h, u16::from_be_bytes([header.kind, header.code]), id, icmp::HEADER_LEN);
        }
        (protocol::SCTP, _) => {
            let Some(header) = sctp::Header::view_at(bytes, at) else {
                return Err(short(h, Malformed::SctpTruncated));
            };
            found(h, header.src_port.get(), header.dst_port.get(), sctp::HEADER_LEN);
        }
        _ => {}
    }
    Ok(())
}

#[inline(always)]
fn found(h: &mut Headers, sport: u16, dport: u16, len: usize) {
    h.sport = sport;
    h.dport = dport;
    h.l4_len = len as u8;
    h.flags |= Flags::L4;
}

#[cold]
fn short(h: &Headers, whole: Malformed) -> Malformed {
    if h.is(Flags::FRAGMENT) { Malformed::FragmentTiny } else { whole }
}
