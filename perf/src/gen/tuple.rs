//! From the number of a flow to its addresses, ports, queue pair and tenant network.
//!
//! Flows are numbered so that no two within [`capacity`](Tuples::capacity) are alike: addresses change first, then
//! ports, then queue pairs, then tenant networks.

use std::net::Ipv4Addr;

use wire::MacAddr;

use super::units::{Macs, Range};

/// What the flows of a stream are made of.
#[derive(Debug, Clone, Copy)]
pub struct Tuples {
    pub src_mac: Macs,
    pub dst_mac: Macs,
    pub src_ip: Range,
    pub dst_ip: Range,
    /// Source ports; `None` for those of RoCEv2, which follow from queue pairs.
    pub src_port: Option<Range>,
    pub dst_port: Range,
    pub qp: Range,
    pub vni: Range,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tuple {
    pub src_mac: [u8; 6],
    pub dst_mac: [u8; 6],
    pub src_ip: u128,
    pub dst_ip: u128,
    pub src_port: u16,
    pub dst_port: u16,
    pub qp: u32,
    pub vni: u32,
    pub entropy: u16,
}

impl Tuple {
    /// From a machine to a queue pair of another, by IPv4.
    pub fn to_queue_pair(src: (MacAddr, Ipv4Addr), dst: (MacAddr, Ipv4Addr), qp: u32) -> Self {
        Self {
            src_mac: src.0.0,
            dst_mac: dst.0.0,
            src_ip: src.1.to_bits().into(),
            dst_ip: dst.1.to_bits().into(),
            src_port: roce_source_port(qp),
            dst_port: wire::udp::port::ROCEV2,
            qp,
            vni: 0,
            entropy: 0,
        }
    }
}

/// Each queue pair has a UDP source port of its own, as with real adapters.
#[inline]
const fn roce_source_port(qp: u32) -> u16 {
    0xc000 | qp as u16 & 0x3fff
}

impl Tuples {
    pub fn capacity(&self) -> u64 {
        let ranges = [Some(self.src_ip), Some(self.dst_ip), self.src_port, Some(self.dst_port)];
        let ranges = ranges.into_iter().flatten().chain([self.qp, self.vni]);
        ranges.fold(1, |product: u64, range| product.saturating_mul(range.count.into()))
    }

    #[inline]
    pub fn at(&self, number: u32) -> Tuple {
        let mut rest = number;
        let mut digit = |range: Range| {
            if range.count == 1 {
                return 0;
            }
            let digit = rest % range.count;
            rest /= range.count;
            digit
        };
        let (src, dst) = (digit(self.src_ip), digit(self.dst_ip));
        let src_port = self.src_port.map(|range| range.at(digit(range)) as u16);
        let dst_port = self.dst_port.at(digit(self.dst_port)) as u16;
        let qp = self.qp.at(digit(self.qp)) as u32;
        let vni = self.vni.at(digit(self.vni)) as u32;
        let mac =
            |macs: Macs, index: u32| macs.at(if macs.0.count == 1 { 0 } else { index % macs.0.count }).0;
        Tuple {
            src_mac: mac(self.src_mac, src),
            dst_mac: mac(self.dst_mac, dst),
            src_ip: self.src_ip.at(src),
            dst_ip: self.dst_ip.at(dst),
            src_port: src_port.unwrap_or(roce_source_port(qp)),
            dst_port,
            qp,
            vni,
            entropy: (number.wrapping_mul(0x9e37_79b1) >> 16) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn tuples() -> Tuples {
        Tuples {
            src_mac: Macs(Range { first: 0x0200_0000_0001, count: 3 }),
            dst_mac: Macs::one(MacAddr([2, 0, 0, 0, 0, 9])),
            src_ip: Range { first: 0x0a00_0001, count: 3 },
            dst_ip: Range { first: 0x0a00_0101, count: 2 },
            src_port: Some(Range { first: 1000, count: 5 }),
            dst_port: Range::one(80),
            qp: Range { first: 16, count: 2 },
            vni: Range { first: 5001, count: 2 },
        }
    }

    #[test]
    fn no_two_within_the_capacity_are_alike_and_the_next_begins_again() {
        let tuples = tuples();
        assert_eq!(tuples.capacity(), 3 * 2 * 5 * 2 * 2);
        let keys = (0..120).map(|number| {
            let tuple = tuples.at(number);
            (tuple.src_ip, tuple.dst_ip, tuple.src_port, tuple.qp, tuple.vni)
        });
        assert_eq!(keys.collect::<HashSet<_>>().len(), 120);
        assert_eq!(Tuple { entropy: 0, ..tuples.at(120) }, Tuple { entropy: 0, ..tuples.at(0) });
    }

    #[test]
    fn a_station_keeps_its_mac_address() {
        for number in 0..120 {
            let tuple = tuples().at(number);
            assert_eq!(u128::from(tuple.src_mac[5]), tuple.src_ip & 0xff);
            assert_eq!(tuple.dst_mac, [2, 0, 0, 0, 0, 9]);
        }
    }

    #[test]
    fn source_ports_of_roce_follow_from_queue_pairs() {
        let tuples = Tuples { src_port: None, ..tuples() };
        let tuple = tuples.at(6);
        assert_eq!((tuple.qp, tuple.src_port), (17, 0xc011));
    }
}
