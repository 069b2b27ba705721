//! What a received frame says of itself: its innermost headers, its queue pair, whose it is, whether its checksums are right.

use wire::roce::Bth;
use wire::{Headers, View, icrc, l4};

use super::frame::{ACK, TUNNEL};
use super::tuple::Tuple;

/// Where the BTH of a RoCEv2 frame begins, whether or not it lies in a tunnel.
#[inline(always)]
pub fn bth_offset(frame: &[u8]) -> Option<usize> {
    let plain = |at: usize| {
        let ip = frame.get(at..at + 42)?;
        let is = ip[12..15] == [0x08, 0x00, 0x45] && ip[23] == 17;
        is.then(|| (u16::from_be_bytes([ip[36], ip[37]]), at + 42))
    };
    match plain(0) {
        Some((wire::udp::port::ROCEV2, bth)) => Some(bth),
        Some((wire::udp::port::VXLAN, _)) => match plain(TUNNEL) {
            Some((wire::udp::port::ROCEV2, bth)) => Some(bth),
            _ => parsed_bth_offset(frame),
        },
        _ => parsed_bth_offset(frame),
    }
}

#[cold]
fn parsed_bth_offset(frame: &[u8]) -> Option<usize> {
    let (at, headers) = innermost(frame)?;
    headers.is_udp_to(wire::udp::port::ROCEV2).then(|| at + headers.payload_offset())
}

/// The BTH of a RoCEv2 frame.
#[inline(always)]
pub fn bth(frame: &[u8]) -> Option<&Bth> {
    Some(Bth::view(frame.get(bth_offset(frame)?..)?)?.0)
}

/// The queue pair that an acknowledgement is to, and its sequence number; nothing of other frames.
pub fn acknowledged(frame: &[u8]) -> Option<(u32, u32)> {
    bth(frame).filter(|bth| bth.opcode == ACK).map(|bth| (bth.dest_qp().get(), bth.psn().get()))
}

/// The headers of a frame, or of the one in its tunnel, and where that begins.
pub fn innermost(frame: &[u8]) -> Option<(usize, Headers)> {
    let headers = wire::parse::parse(frame, frame.len()).ok()?;
    if !headers.is_udp_to(wire::udp::port::VXLAN) {
        return Some((0, headers));
    }
    let at = headers.payload_offset() + wire::vxlan::HEADER_LEN;
    let inner = frame.get(at..)?;
    Some((at, wire::parse::parse(inner, inner.len()).ok()?))
}

/// Whether the checksums that a frame has, or the one in its tunnel, are right: IPv4's, and L4's or the ICRC.
pub fn checksums_right(frame: &[u8]) -> bool {
    let Some((at, headers)) = innermost(frame) else { return false };
    let inner = &frame[at..];
    let l4_right = || !matches!(l4::verify(&headers, [inner]), l4::ChecksumVerdict::Bad);
    let icrc_right = || icrc::verify(&headers, [inner]) != Some(false);
    headers.ipv4_checksum_ok(inner)
        && l4_right()
        && (!headers.is_udp_to(wire::udp::port::ROCEV2) || icrc_right())
}

/// Whether a RoCEv2 frame, or the one in its tunnel, goes from and to the addresses and to the queue pair of a tuple.
pub fn is_between(frame: &[u8], tuple: &Tuple) -> bool {
    let addresses = || {
        let (at, headers) = innermost(frame)?;
        let inner = &frame[at..];
        let v4 = |ip: &wire::ipv4::Header| [ip.src, ip.dst].map(|ip| u128::from(u32::from_be_bytes(ip)));
        let v6 = |ip: &wire::ipv6::Header| [ip.src, ip.dst].map(u128::from_be_bytes);
        headers.ipv4(inner).map(v4).or_else(|| headers.ipv6(inner).map(v6))
    };
    bth(frame).is_some_and(|bth| bth.dest_qp().get() == tuple.qp)
        && addresses() == Some([tuple.src_ip, tuple.dst_ip])
}
