//! What a NIC makes of a packet that asks it to cut a super-frame inside VxLAN ([`wire::TxRequest`]), by the RFCs and nothing of the code under
//! test.

use wire::packet::OuterHeaders;
use wire::{HeapBuf, PacketBuf, TxRequest};

const FIN_PSH: u8 = 1 | 8;
const CWR: u8 = 0x80;

/// Where the headers begin.
struct At {
    outer: usize,
    udp: usize,
    inner: usize,
    tcp: usize,
    data: usize,
}

/// The frames that leave. A packet without a request leaves as it is.
///
/// # Panics
/// On what DPDK's drivers do not take: fields that they fill and that hold something else, lengths that are not those of the headers.
pub fn wire_frames(packet: &HeapBuf) -> Vec<Vec<u8>> {
    let (bytes, request) = (packet.to_vec(), packet.tx_request());
    let Some(outer) = request.outer else {
        assert_eq!(request, TxRequest::default(), "this NIC cuts in tunnels only");
        return vec![bytes];
    };
    let at = judge(&bytes, request, outer);
    assert!(packet.head().len() >= at.data, "headers lie in one piece");
    let (header, data) = bytes.split_at(at.data);
    let pieces: Vec<&[u8]> = data.chunks(request.tso_size.into()).collect();
    let piece = |(n, data): (usize, &&[u8])| {
        let mut frame = [header, *data].concat();
        let last = n + 1 == pieces.len();
        cut(&mut frame, &at, n, last, request);
        close_outer(&mut frame, &at, outer);
        frame
    };
    pieces.iter().enumerate().map(piece).collect()
}

fn judge(bytes: &[u8], request: TxRequest, outer: OuterHeaders) -> At {
    let udp = usize::from(outer.l2_len) + usize::from(outer.l3_len);
    let inner = udp + usize::from(request.l2_len);
    let tcp = inner + usize::from(request.l3_len);
    let at = At { outer: outer.l2_len.into(), udp, inner, tcp, data: tcp + usize::from(request.l4_len) };
    assert_eq!(bytes[at.outer] >> 4, if outer.ipv6 { 6 } else { 4 });
    assert_eq!(bytes[inner] >> 4, if request.ipv6 { 6 } else { 4 });
    assert_eq!(be(bytes, udp + 2), 4789);
    assert_eq!(be(bytes, udp + 6), 0, "the outer UDP checksum is the device's");
    assert_eq!(usize::from(bytes[tcp + 12] >> 4) * 4, usize::from(request.l4_len));
    if !outer.ipv6 {
        assert_eq!(be(bytes, at.outer + 10), 0, "the outer header's checksum is the device's");
    }
    if !request.ipv6 {
        assert!(request.ipv4_checksum && be(bytes, inner + 10) == 0, "the inner one, too");
    }
    assert_eq!(be(bytes, tcp + 16), fold(&[addresses(bytes, inner), &[0, 6]]), "no length in it");
    at
}

fn cut(frame: &mut [u8], at: &At, n: usize, last: bool, request: TxRequest) {
    let ip_len = frame.len() - at.inner;
    if request.ipv6 {
        put(frame, at.inner + 4, ip_len - 40);
    } else {
        put(frame, at.inner + 2, ip_len);
        let id = be(frame, at.inner + 4).wrapping_add(n as u16);
        put(frame, at.inner + 4, id.into());
        let sum = fold(&[&frame[at.inner..at.tcp]]);
        put(frame, at.inner + 10, (!sum).into());
    }
    let seq = u32::from_be_bytes([4, 5, 6, 7].map(|byte| frame[at.tcp + byte]));
    let seq = seq.wrapping_add((n * usize::from(request.tso_size)) as u32);
    frame[at.tcp + 4..at.tcp + 8].copy_from_slice(&seq.to_be_bytes());
    frame[at.tcp + 13] &= match (n, last) {
        (0, false) => !FIN_PSH,
        (0, true) => !0,
        (_, false) => !(FIN_PSH | CWR),
        (_, true) => !CWR,
    };
    // The field holds the pseudo header's sum but for the length.
    let length = ((frame.len() - at.tcp) as u16).to_be_bytes();
    let sum = fold(&[&frame[at.tcp..], &[0; 1][..(frame.len() - at.tcp) % 2], &length]);
    put(frame, at.tcp + 16, (!sum).into());
}

fn close_outer(frame: &mut [u8], at: &At, outer: OuterHeaders) {
    let udp_len = frame.len() - at.udp;
    put(frame, at.udp + 4, udp_len);
    if outer.ipv6 {
        put(frame, at.outer + 4, udp_len);
    } else {
        put(frame, at.outer + 2, frame.len() - at.outer);
        let sum = fold(&[&frame[at.outer..at.udp]]);
        put(frame, at.outer + 10, (!sum).into());
    }
    if outer.udp_checksum {
        let length = (udp_len as u16).to_be_bytes();
        let odd = &[0; 1][..udp_len % 2];
        let sum = !fold(&[addresses(frame, at.outer), &[0, 17], &length, &frame[at.udp..], odd]);
        put(frame, at.udp + 6, if sum == 0 { 0xffff } else { sum.into() });
    }
}

fn addresses(frame: &[u8], l3: usize) -> &[u8] {
    match frame[l3] >> 4 {
        4 => &frame[l3 + 12..l3 + 20],
        _ => &frame[l3 + 8..l3 + 40],
    }
}

/// RFC 1071, word by word; every part but the last has an even length.
fn fold(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn be(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn put(frame: &mut [u8], at: usize, value: usize) {
    frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}
