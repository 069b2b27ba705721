//! Outer source ports that the device chooses itself, as NICs do.

use wire::{L3, protocol};

use super::layers::Layers;
use rules::{InnerProtocol, InnerTuple};

/// Where the outer UDP source port of a packet comes from that the device puts into a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncapHashKind {
    /// From the header in the rule.
    #[default]
    None,
    /// A CRC of the inner headers, whatever the rule says: the kind of hash that the driver of mlx5 tells of. Not with the
    /// polynomial of mlx5: nothing may hang on that.
    Crc,
    /// A hash of the inner headers that is not affine, which software cannot follow.
    Product,
}

impl EncapHashKind {
    /// The port of a packet with these inner headers; `None` for that of the rule.
    pub(super) fn source_port(self, tuple: &InnerTuple) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Crc => Some(DYNAMIC | crc(tuple)),
            Self::Product => Some(DYNAMIC | (u32::from(crc(tuple)).wrapping_mul(0x9e37_79b1) >> 16) as u16),
        }
    }
}

/// The first of the dynamic ports (RFC 6335), from which RFC 7348 section 5 has the source port chosen.
const DYNAMIC: u16 = 0xc000;

/// CRC-16 with the polynomial of CRC-16-CCITT, bit by bit.
fn crc(tuple: &InnerTuple) -> u16 {
    let address = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => u128::from(u32::from(address)),
        std::net::IpAddr::V6(address) => address.into(),
    };
    let protocol = match tuple.protocol {
        InnerProtocol::Tcp => protocol::TCP,
        InnerProtocol::Udp => protocol::UDP,
    };
    let mut crc = 0xffff;
    let mut eat = |bytes: &[u8]| {
        for byte in bytes {
            crc ^= u16::from(*byte) << 8;
            for _ in 0..8 {
                crc = crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 };
            }
        }
    };
    eat(&address(tuple.destination).to_be_bytes());
    eat(&address(tuple.source).to_be_bytes());
    eat(&[protocol]);
    eat(&tuple.destination_port.to_be_bytes());
    eat(&tuple.source_port.to_be_bytes());
    crc
}

/// What the device hashes of a packet: nothing where it is neither TCP nor UDP.
pub(super) fn tuple_of(layers: &Layers, head: &[u8]) -> Option<InnerTuple> {
    let headers = layers.outer();
    let (source, destination) = match headers.l3 {
        L3::Ipv4 => headers.ipv4(head).map(|ip| (ip.src().into(), ip.dst().into()))?,
        L3::Ipv6 => headers.ipv6(head).map(|ip| (ip.src().into(), ip.dst().into()))?,
        L3::None | L3::Arp => return None,
    };
    let protocol = match headers {
        tcp if tcp.is_tcp() => InnerProtocol::Tcp,
        udp if udp.is_udp() => InnerProtocol::Udp,
        _ => return None,
    };
    let (source_port, destination_port) = (headers.sport, headers.dport);
    Some(InnerTuple { source, destination, protocol, source_port, destination_port })
}
