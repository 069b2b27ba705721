//! The packet that an ICMP or ICMPv6 error quotes: read well enough to find the flow it belongs to.
//!
//! Slow path only. A quotation is cut off (RFC 792 promises eight bytes of L4, RFC 4443 as much as fits), so its
//! lengths say more than is there: this parser asks for what a flow key needs and nothing else.

use crate::headers::{Flags, Headers, L3};
use crate::parse::MAX_EXTENSIONS;
use crate::view::View;
use crate::{ethernet::ethertype, icmp, icmpv6, ipv4, ipv6, protocol};

/// The headers of the packet quoted by the ICMP error that `h` describes, with offsets from the start of `head`.
///
/// [`Flags::L4`] is set when ports (or ICMP type, code and identifier) could be read; `l4_len` is 0, for the L4
/// header need not be whole. `None` when the packet is no ICMP error or quotes nothing readable.
pub fn parse(h: &Headers, head: &[u8]) -> Option<Headers> {
    let kind = (h.sport >> 8) as u8;
    let is_error = match (h.l3, h.proto) {
        (L3::Ipv4, protocol::ICMP) => icmp::is_error(kind),
        (L3::Ipv6, protocol::ICMPV6) => icmpv6::is_error(kind),
        _ => false,
    };
    if !is_error || !h.is(Flags::L4) {
        return None;
    }
    let bytes = head.get(..h.l3_end().min(head.len()))?;
    let mut quoted =
        Headers { l3_offset: u8::try_from(h.payload_offset()).ok()?, l3: h.l3, ..Headers::default() };
    match h.l3 {
        L3::Ipv4 => ipv4(bytes, &mut quoted)?,
        _ => ipv6(bytes, &mut quoted)?,
    }
    if !quoted.is(Flags::FRAGMENT_LATER) {
        l4(bytes, &mut quoted);
    }
    Some(quoted)
}

fn ipv4(bytes: &[u8], q: &mut Headers) -> Option<()> {
    let at = usize::from(q.l3_offset);
    let ip = ipv4::Header::view_at(bytes, at)?;
    let len = ip.header_len();
    if ip.version() != 4 || len < ipv4::HEADER_LEN || bytes.len() - at < len {
        return None;
    }
    q.ethertype = ethertype::IPV4;
    q.proto = ip.protocol;
    q.l4_offset = (at + len) as u16;
    q.l3_len = ip.total_len.get();
    (q.tos, q.ttl, q.ip_id) = (ip.tos, ip.ttl, u32::from(ip.id.get()));
    if len > ipv4::HEADER_LEN {
        q.flags |= Flags::IP_OPTIONS;
    }
    if ip.fragment.get() & ipv4::DONT_FRAGMENT != 0 {
        q.flags |= Flags::DF;
    }
    mark_fragment(q, ip.fragment_offset(), ip.fragment.get() & ipv4::MORE_FRAGMENTS != 0);
    Some(())
}

fn ipv6(bytes: &[u8], q: &mut Headers) -> Option<()> {
    let at = usize::from(q.l3_offset);
    let ip = ipv6::Header::view_at(bytes, at)?;
    if ip.version() != 6 {
        return None;
    }
    q.ethertype = ethertype::IPV6;
    q.proto = ip.next_header;
    q.l4_offset = (at + ipv6::HEADER_LEN) as u16;
    q.l3_len = ip.payload_len.get().saturating_add(ipv6::HEADER_LEN as u16);
    (q.tos, q.ttl) = (ip.traffic_class(), ip.hop_limit);
    for _ in 0..MAX_EXTENSIONS {
        if !ipv6::is_extension(q.proto) || q.is(Flags::FRAGMENT_LATER) {
            break;
        }
        let at = usize::from(q.l4_offset);
        let extension = ipv6::Extension::view_at(bytes, at)?;
        let end = at + ipv6::extension_len(q.proto, extension.len)?;
        if let (protocol::FRAGMENT, Some(fragment)) = (q.proto, ipv6::Fragment::view_at(bytes, at)) {
            q.ip_id = fragment.id.get();
            mark_fragment(q, fragment.offset(), fragment.more());
        }
        q.flags |= Flags::EXT_HEADERS;
        q.l4_offset = u16::try_from(end).ok()?;
        q.proto = extension.next_header;
    }
    Some(())
}

fn mark_fragment(q: &mut Headers, offset: usize, more: bool) {
    if offset != 0 {
        q.flags |= Flags::FRAGMENT_LATER;
    }
    if more {
        q.flags |= Flags::MORE_FRAGMENTS;
    }
    if more || offset != 0 {
        q.flags |= Flags::FRAGMENT;
    }
}

fn l4(bytes: &[u8], q: &mut Headers) {
    let at = usize::from(q.l4_offset);
    match (q.proto, q.l3) {
        (protocol::TCP | protocol::UDP | protocol::SCTP, _) => {
            if let Some([a, b, c, d]) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
                q.sport = u16::from_be_bytes([*a, *b]);
                q.dport = u16::from_be_bytes([*c, *d]);
                q.flags |= Flags::L4;
            }
        }
        (protocol::ICMP, L3::Ipv4) | (protocol::ICMPV6, L3::Ipv6) => {
            if let Some(header) = icmp::Header::view_at(bytes, at) {
                let echo = if q.l3 == L3::Ipv4 { icmp::is_echo } else { icmpv6::is_echo };
                q.sport = u16::from_be_bytes([header.kind, header.code]);
                q.dport = if echo(header.kind) { header.id.get() } else { 0 };
                q.flags |= Flags::L4;
            }
        }
        _ => {}
    }
}
