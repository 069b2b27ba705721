//! Frame bytes: Ethernet, IPv4, TCP, RoCEv2 and VxLAN as the comparison needs them.

use std::net::Ipv4Addr;

type End = ([u8; 6], Ipv4Addr);

const ROCE_PORT: u16 = 4791;

/// A TCP segment (ACK, PSH) of exactly `length` bytes of Ethernet frame.
pub(crate) fn tcp(source: End, destination: End, ports: (u16, u16), length: usize) -> Vec<u8> {
    let mut frame = ethernet_ipv4(source, destination, 6, length - 14, length);
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0x20, 0, 0, 0, 0, 0]);
    frame.resize(length, 0);
    let mut pseudo = Vec::new();
    pseudo.extend(source.1.octets());
    pseudo.extend(destination.1.octets());
    pseudo.extend([0, 6]);
    pseudo.extend(((length - 34) as u16).to_be_bytes());
    pseudo.extend(&frame[34..]);
    let sum = checksum(&pseudo);
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A RoCEv2 RC SEND_ONLY; Ethernet padding fills what is not a whole word.
pub(crate) fn rocev2_send(
    source: End,
    destination: End,
    source_port: u16,
    queue_pair: u32,
    length: usize,
) -> Vec<u8> {
    let payload = (length - 58) / 4 * 4;
    let mut frame = ethernet_ipv4(source, destination, 17, 20 + 8 + 12 + payload + 4, length);
    frame.extend(source_port.to_be_bytes());
    frame.extend(ROCE_PORT.to_be_bytes());
    frame.extend(((8 + 12 + payload + 4) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend([0x04, 0, 0xff, 0xff]);
    frame.extend(queue_pair.to_be_bytes());
    frame.extend([0, 0, 0, 1]);
    frame.resize(54 + payload, 0);
    let crc = icrc(&frame[14..]);
    frame.extend(crc.to_le_bytes());
    frame.resize(length, 0);
    frame
}

/// Puts a frame into a VxLAN tunnel.
pub(crate) fn vxlan(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    source: Ipv4Addr,
    destination: Ipv4Addr,
    source_port: u16,
    vni: u32,
    inner: &[u8],
) -> Vec<u8> {
    let ends = ((source_mac, source), (destination_mac, destination));
    let mut frame = ethernet_ipv4(ends.0, ends.1, 17, 20 + 16 + inner.len(), 50 + inner.len());
    frame.extend(source_port.to_be_bytes());
    frame.extend(4789_u16.to_be_bytes());
    frame.extend(((16 + inner.len()) as u16).to_be_bytes());
    frame.extend([0, 0, 0x08, 0, 0, 0]);
    frame.extend((vni << 8).to_be_bytes());
    frame.extend(inner);
    frame
}

fn ethernet_ipv4(source: End, destination: End, protocol: u8, total: usize, capacity: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(capacity);
    frame.extend(destination.0);
    frame.extend(source.0);
    frame.extend([0x08, 0x00, 0x45, 0x00]);
    frame.extend((total as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(source.1.octets());
    frame.extend(destination.1.octets());
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// RFC 1071.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The invariant CRC of the packet from its IPv4 header on.
fn icrc(packet: &[u8]) -> u32 {
    let mut masked = packet.to_vec();
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[at] = 0xff;
    }
    let mut crc = 0xdebb_20e3_u32;
    for byte in masked {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}
