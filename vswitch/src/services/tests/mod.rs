//! Clients made with `dhcproto` ask; what comes back is read with it, and with the parser of frames.

mod advertise;
mod dhcp4;
mod dhcp6;

use wire::Headers;

/// The headers and the UDP payload of a frame whose lengths and checksums are right.
fn sound(frame: &[u8]) -> (Headers, &[u8]) {
    let headers = wire::parse::parse(frame, frame.len()).expect("a frame that parses");
    assert!(headers.l3 != wire::L3::Ipv4 || headers.ipv4_checksum_ok(frame), "IPv4 checksum");
    assert_eq!(wire::l4::verify(&headers, [frame]), wire::l4::ChecksumVerdict::Good);
    (headers, &frame[usize::from(headers.l4_offset) + wire::udp::HEADER_LEN..])
}
