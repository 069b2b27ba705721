//! probe: what comes back of control's own echo requests to other VTEPs, checked and handed to control.

use wire::{Flags, Headers, L3, PacketBuf, View, checksum, icmp, icmpv6, ipv4, ipv6, protocol, quoted};

use super::Cx;
use super::outer::addresses;
use crate::drops::DropReason;
use crate::probe::{COOKIE_LEN, ProbeAnswer, ProbeHeard, ProbeMark};
use crate::snapshot::Uplink;

/// What an answer is, before it is looked at closely.
pub(super) enum Answer {
    /// An echo reply.
    Reply,
    /// An error about a request, with where in it the ICMP header of the request is.
    TooBig(Headers),
}

/// What a packet answers, if it is for an address of the uplink and has the mark of control's requests.
pub(super) fn find(head: &[u8], headers: &Headers, uplink: &Uplink, mark: ProbeMark) -> Option<Answer> {
    let (reply, too_big, request) = match (headers.l3, headers.proto) {
        (L3::Ipv4, protocol::ICMP) => (
            word(icmp::kind::ECHO_REPLY, 0),
            word(icmp::kind::UNREACHABLE, icmp::CODE_FRAGMENTATION_NEEDED),
            word(icmp::kind::ECHO_REQUEST, 0),
        ),
        (L3::Ipv6, protocol::ICMPV6) => (
            word(icmpv6::kind::ECHO_REPLY, 0),
            word(icmpv6::kind::TOO_BIG, 0),
            word(icmpv6::kind::ECHO_REQUEST, 0),
        ),
        _ => return None,
    };
    let is_ours = headers.is(Flags::L4)
        && !headers.flags.intersects(Flags::FRAGMENT)
        && headers.ethernet(head).is_some_and(|eth| eth.dst.to_u64() == uplink.mac)
        && uplink.owns(addresses(head, headers).1);
    if !is_ours {
        return None;
    }
    if headers.sport == reply {
        return (headers.dport == mark.id).then_some(Answer::Reply);
    }
    if headers.sport != too_big {
        return None;
    }
    let about = quoted::parse(headers, head)?;
    let same = about.proto == headers.proto && about.is(Flags::L4) && about.sport == request;
    (same && about.dport == mark.id && uplink.owns(addresses(head, &about).0))
        .then_some(Answer::TooBig(about))
}

/// Hands an answer to control.
///
/// # Errors
/// Why it is dropped.
pub(super) fn take<P: PacketBuf>(
    cx: &Cx,
    packet: &P,
    headers: &Headers,
    answer: &Answer,
    mark: ProbeMark,
) -> Result<(), DropReason> {
    let head = packet.head();
    let from = addresses(head, headers).0;
    if !sums_are_right(packet, headers) {
        return Err(DropReason::PROBE_UNKNOWN);
    }
    let heard = match answer {
        Answer::Reply => {
            let at = usize::from(headers.l4_offset);
            let sequence = icmp::Header::view_at(head, at).map(|header| header.seq_or_mtu.get());
            let cookie = bytes_at(packet, at + icmp::HEADER_LEN);
            let sequence = sequence.filter(|_| cookie == Some(mark.cookie.to_be_bytes()));
            let sequence = sequence.ok_or(DropReason::PROBE_UNKNOWN)?;
            ProbeHeard { from, sequence, answer: ProbeAnswer::Reply(headers.l3_len) }
        }
        Answer::TooBig(about) => {
            let mtu = match headers.l3 {
                L3::Ipv4 => icmp::Header::view_at(head, usize::from(headers.l4_offset))
                    .map(|header| u32::from(header.seq_or_mtu.get())),
                _ => icmpv6::Header::view_at(head, usize::from(headers.l4_offset))
                    .map(|header| header.body.get()),
            };
            let sequence = icmp::Header::view_at(head, usize::from(about.l4_offset));
            let sequence = sequence.map(|header| header.seq_or_mtu.get());
            let (mtu, sequence) = mtu.zip(sequence).ok_or(DropReason::PROBE_UNKNOWN)?;
            ProbeHeard { from, sequence, answer: ProbeAnswer::TooBig(addresses(head, about).1, mtu) }
        }
    };
    cx.events.probes.hear(heard)
}

/// Type and code as [`Headers::sport`] has them.
const fn word(kind: u8, code: u8) -> u16 {
    u16::from_be_bytes([kind, code])
}

/// The bytes of a cookie, which may begin in one buffer and end in the next.
fn bytes_at<P: PacketBuf>(packet: &P, at: usize) -> Option<[u8; COOKIE_LEN]> {
    let mut all = packet.segments().flatten().skip(at);
    let mut bytes = [0; COOKIE_LEN];
    for byte in &mut bytes {
        *byte = *all.next()?;
    }
    Some(bytes)
}

/// The checksum of the IPv4 header, and that of the message.
fn sums_are_right<P: PacketBuf>(packet: &P, headers: &Headers) -> bool {
    let (head, len) = (packet.head(), headers.l4_total_len());
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    let mut sum = match headers.l3 {
        L3::Ipv4 if head.get(l3..l4).is_some_and(ipv4::checksum_ok) => checksum::Sum::ZERO,
        L3::Ipv6 => match ipv6::Header::view_at(head, l3) {
            Some(ip) => {
                checksum::pseudo_v6(&ip.src().octets(), &ip.dst().octets(), protocol::ICMPV6, len as u32)
            }
            None => return false,
        },
        _ => return false,
    };
    sum.add_range(packet.segments(), l4, len).is_some() && sum.fold() == 0xffff
}
