//! The parser's slow twin: the same questions asked in the plainest way, one byte after another.

use wire::{Flags, Headers, L3, Malformed};

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn has(&self, at: usize, len: usize) -> bool {
        at + len <= self.0.len()
    }

    fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from(self.0[at]) * 256 + u16::from(self.0[at + 1])
    }
}

pub fn parse(head: &[u8], frame_len: usize) -> Result<Headers, Malformed> {
    let b = Bytes(head);
    if !b.has(0, 14) {
        return Err(Malformed::EthernetTruncated);
    }
    let mut at = 12;
    let mut tags = Vec::new();
    while b.u16(at) == 0x8100 || b.u16(at) == 0x88a8 {
        if tags.len() == 2 {
            return Err(Malformed::VlanTooDeep);
        }
        if !b.has(at + 2, 4) {
            return Err(Malformed::VlanTruncated);
        }
        tags.push(b.u16(at + 2));
        at += 4;
    }
    let ethertype = b.u16(at);
    at += 2;
    let mut h = Headers { l3_offset: at as u8, l4_offset: at as u16, ethertype, ..Headers::default() };
    h.vlan_count = tags.len() as u8;
    h.vlan_tci[..tags.len()].copy_from_slice(&tags);
    let left = frame_len.saturating_sub(at);
    match ethertype {
        0x0800 => v4(&b, at, left, h),
        0x86dd => v6(&b, at, left, h),
        0x0806 if !b.has(at, 28) => Err(Malformed::ArpTruncated),
        0x0806 if head[at..at + 6] != [0, 1, 8, 0, 6, 4] => Err(Malformed::ArpFormat),
        0x0806 => {
            let flags = if left > 28 { Flags::PADDED } else { Flags::NONE };
            Ok(Headers { l3: L3::Arp, l3_len: 28, flags, ..h })
        }
        _ => Ok(Headers { l3_len: left.min(65535) as u16, ..h }),
    }
}

fn v4(b: &Bytes, at: usize, left: usize, mut h: Headers) -> Result<Headers, Malformed> {
    if !b.has(at, 20) {
        return Err(Malformed::Ipv4Truncated);
    }
    if b.u8(at) / 16 != 4 {
        return Err(Malformed::Ipv4Version);
    }
    let ihl = usize::from(b.u8(at) % 16) * 4;
    if ihl < 20 {
        return Err(Malformed::Ipv4HeaderLength);
    }
    if !b.has(at, ihl) {
        return Err(Malformed::Ipv4Truncated);
    }
    let total = usize::from(b.u16(at + 2));
    if total < ihl || total > left {
        return Err(Malformed::Ipv4TotalLength);
    }
    h.l3 = L3::Ipv4;
    h.tos = b.u8(at + 1);
    h.l3_len = total as u16;
    h.ip_id = b.u16(at + 4).into();
    h.ttl = b.u8(at + 8);
    h.proto = b.u8(at + 9);
    h.l4_offset = (at + ihl) as u16;
    let word = b.u16(at + 6);
    let (df, more, offset) = (word >> 14 & 1 == 1, word >> 13 & 1 == 1, usize::from(word % 0x2000) * 8);
    set(&mut h, Flags::IP_OPTIONS, ihl > 20);
    set(&mut h, Flags::DF, df);
    set(&mut h, Flags::PADDED, left > total);
    let whole = if more || offset > 0 {
        let data = total - ihl;
        if data == 0 || more && !data.is_multiple_of(8) {
            return Err(Malformed::FragmentLength);
        }
        if offset + total > 65535 {
            return Err(Malformed::FragmentOverlong);
        }
        set(&mut h, Flags::FRAGMENT, true);
        set(&mut h, Flags::MORE_FRAGMENTS, more);
        set(&mut h, Flags::FRAGMENT_LATER, offset > 0);
        if h.proto == 6 && (offset == 8 || offset == 16) {
            return Err(Malformed::FragmentTiny);
        }
        if offset > 0 {
            return Ok(h);
        }
        false
    } else {
        true
    };
    l4(b, at + total, whole, h)
}

fn v6(b: &Bytes, at: usize, left: usize, mut h: Headers) -> Result<Headers, Malformed> {
    if !b.has(at, 40) {
        return Err(Malformed::Ipv6Truncated);
    }
    if b.u8(at) / 16 != 6 {
        return Err(Malformed::Ipv6Version);
    }
    let total = 40 + usize::from(b.u16(at + 4));
    if total > left || total > 65535 {
        return Err(Malformed::Ipv6PayloadLength);
    }
    let end = at + total;
    h.l3 = L3::Ipv6;
    h.tos = (b.u16(at) / 16 % 256) as u8;
    h.l3_len = total as u16;
    h.ttl = b.u8(at + 7);
    set(&mut h, Flags::PADDED, left > total);
    let (mut next, mut here, mut walked) = (b.u8(at + 6), at + 40, Vec::new());
    let mut first_fragment = false;
    while matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140) {
        if walked.len() == 8 {
            return Err(Malformed::Ipv6ExtensionTooMany);
        }
        let short = if first_fragment { Malformed::FragmentTiny } else { Malformed::Ipv6ExtensionTruncated };
        if here + 8 > end || !b.has(here, 8) {
            return Err(short);
        }
        let len = match next {
            44 => 8,
            51 => 8 + 4 * usize::from(b.u8(here + 1)),
            _ => 8 + 8 * usize::from(b.u8(here + 1)),
        };
        if here + len > end || !b.has(here, len) {
            return Err(short);
        }
        if next == 0 && !walked.is_empty() || next == 44 && walked.contains(&44) {
            return Err(Malformed::Ipv6ExtensionOrder);
        }
        set(&mut h, Flags::EXT_HEADERS, true);
        set(&mut h, Flags::HOP_BY_HOP, next == 0);
        set(&mut h, Flags::SOURCE_ROUTED, next == 43 && b.u8(here + 3) > 0);
        walked.push(next);
        set(&mut h, Flags::FRAGMENT_HEADER, next == 44);
        let kind = next;
        next = b.u8(here);
        here += len;
        if kind != 44 {
            continue;
        }
        let word = b.u16(here - 6);
        let (offset, more) = (usize::from(word / 8) * 8, word % 2 == 1);
        h.ip_id = u32::from(b.u16(here - 4)) * 65536 + u32::from(b.u16(here - 2));
        if offset == 0 && !more {
            continue;
        }
        let data = end - here;
        if data == 0 || more && !data.is_multiple_of(8) {
            return Err(Malformed::FragmentLength);
        }
        if total - 40 - 8 + offset > 65535 {
            return Err(Malformed::FragmentOverlong);
        }
        set(&mut h, Flags::FRAGMENT, true);
        set(&mut h, Flags::MORE_FRAGMENTS, more);
        if offset > 0 {
            set(&mut h, Flags::FRAGMENT_LATER, true);
            if next == 6 && offset < 20 {
                return Err(Malformed::FragmentTiny);
            }
            return Ok(Headers { proto: next, l4_offset: here as u16, ..h });
        }
        first_fragment = true;
    }
    h.proto = next;
    h.l4_offset = here as u16;
    l4(b, end, !first_fragment, h)
}

fn l4(b: &Bytes, end: usize, whole: bool, mut h: Headers) -> Result<Headers, Malformed> {
    let at = usize::from(h.l4_offset);
    let fits = |len: usize| at + len <= end && b.has(at, len);
    let short = |named: Malformed| if whole { named } else { Malformed::FragmentTiny };
    let icmp = h.proto == 1 && h.l3 == L3::Ipv4;
    let icmpv6 = h.proto == 58 && h.l3 == L3::Ipv6;
    if h.proto == 6 {
        if !fits(20) {
            return Err(short(Malformed::TcpTruncated));
        }
        let len = b.u8(at + 12) / 16 * 4;
        if len < 20 {
            return Err(Malformed::TcpHeaderLength);
        }
        if !fits(len.into()) {
            return Err(short(Malformed::TcpTruncated));
        }
        h.tcp_flags = b.u8(at + 13);
        h.l4_len = len;
    } else if h.proto == 17 {
        if !fits(8) {
            return Err(short(Malformed::UdpTruncated));
        }
        let len = usize::from(b.u16(at + 4));
        if len < 8 || whole && at + len > end {
            return Err(Malformed::UdpLength);
        }
        h.l4_len = 8;
    } else if icmp || icmpv6 {
        if !fits(8) {
            return Err(short(Malformed::IcmpTruncated));
        }
        h.l4_len = 8;
    } else if h.proto == 132 {
        if !fits(12) {
            return Err(short(Malformed::SctpTruncated));
        }
        h.l4_len = 12;
    } else {
        return Ok(h);
    }
    set(&mut h, Flags::L4, true);
    h.sport = b.u16(at);
    h.dport = b.u16(at + 2);
    if icmp || icmpv6 {
        let echo: &[u8] = if icmp { &[0, 8] } else { &[128, 129] };
        h.dport = if echo.contains(&b.u8(at)) { b.u16(at + 4) } else { 0 };
    }
    Ok(h)
}

fn set(h: &mut Headers, flag: Flags, on: bool) {
    if on {
        h.flags |= flag;
    }
}
