//! What a NIC hashes of a packet that it puts into a tunnel, in order to choose the outer UDP source port.

use std::fmt;
use std::net::IpAddr;

use crate::{Item, items};

/// Protocol of the inner packet, as far as NICs hash ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InnerProtocol {
    /// IP protocol 6.
    Tcp,
    /// IP protocol 17; RoCEv2 is of it.
    Udp,
}

/// The inner headers behind an outer UDP source port: the 5-tuple of the tenant's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InnerTuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the source's family.
    pub destination: IpAddr,
    /// Protocol.
    pub protocol: InnerProtocol,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl InnerTuple {
    /// The tuple as the pattern that `rte_flow_calc_encap_hash` takes: an item for the addresses, one for the ports. Every
    /// item has a spec, also where all of it is zero: drivers read that and look at no mask.
    pub fn pattern(&self) -> Vec<Item> {
        let mut pattern = Vec::with_capacity(2);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => pattern.push(
                Item::with(items::ipv4::SRC, u32::from(source)).is(items::ipv4::DST, u32::from(destination)),
            ),
            (IpAddr::V6(source), IpAddr::V6(destination)) => pattern.push(
                Item::with(items::ipv6::SRC, u128::from(source))
                    .is(items::ipv6::DST, u128::from(destination)),
            ),
            // No packet has addresses of two families; a device that is asked says so.
            _ => {}
        }
        let (source, destination) = match self.protocol {
            InnerProtocol::Tcp => (items::tcp::SRC, items::tcp::DST),
            InnerProtocol::Udp => (items::udp::SRC, items::udp::DST),
        };
        pattern.push(Item::with(source, self.source_port).is(destination, self.destination_port));
        pattern
    }
}

impl fmt::Display for InnerTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, protocol, source_port, destination_port } = self;
        let protocol = match protocol {
            InnerProtocol::Tcp => "tcp",
            InnerProtocol::Udp => "udp",
        };
        write!(f, "{protocol} {source} {source_port} to {destination} {destination_port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_has_both_ends_and_a_spec_even_of_zeros() {
        let of = |source: &str, destination: &str, protocol| {
            let ends = (source.parse().unwrap(), destination.parse().unwrap());
            let tuple = InnerTuple {
                source: ends.0,
                destination: ends.1,
                protocol,
                source_port: 49_152,
                destination_port: 0,
            };
            let pattern = tuple.pattern();
            assert!(pattern.iter().all(|item| !item.is_any()));
            pattern.iter().map(ToString::to_string).collect::<Vec<_>>().join(" / ")
        };
        assert_eq!(
            of("10.0.0.1", "10.0.0.2", InnerProtocol::Udp),
            "ipv4 src is 10.0.0.1 dst is 10.0.0.2 / udp src is 49152 dst is 0"
        );
        assert_eq!(
            of("::", "fd00::2", InnerProtocol::Tcp),
            "ipv6 src is :: dst is fd00::2 / tcp src is 49152 dst is 0"
        );
    }
}
