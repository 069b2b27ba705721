//! fast_outer: the outer packet as nearly all of them are, read in one go: untagged IPv4 without options or fragment,
//! to a VTEP address of the uplink, UDP without checksum, VxLAN without anything reserved.
//!
//! It accepts and never refuses: what is different in any way, wrong or not, is for `outer`, which knows why.

use std::net::Ipv4Addr;

use wire::{ChecksumState, Ecn, protocol};

use crate::flow_key::be64;
use crate::snapshot::{Settings, Uplink};

/// Bytes in front of the inner frame.
pub const FRONT: usize = 50;
/// Where UDP begins.
const UDP: usize = 34;

/// What packets to an uplink look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastOuter {
    mac: u64,
    address: u32,
    vxlan_port: u16,
}

/// What is to be known of such a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterFacts {
    /// Address of the VTEP that sent it.
    pub source: Ipv4Addr,
    /// VNI of the VxLAN header.
    pub vni: u32,
    /// Bytes behind the inner frame.
    pub back: usize,
    /// ECN field of the outer header, for decapsulation (RFC 6040 section 4.2).
    pub ecn: Ecn,
}

impl FastOuter {
    /// Of an uplink; `None` where its packets are all tagged, or not over IPv4.
    #[inline]
    pub fn new(uplink: &Uplink, settings: &Settings) -> Option<Self> {
        if uplink.vlan.is_some() {
            return None;
        }
        let address = uplink.v4.first()?.to_bits();
        Some(Self { mac: uplink.mac, address, vxlan_port: settings.vxlan_port })
    }

    /// Reads a packet of `len` bytes that begins with `head`; `None`: look at it closely.
    #[inline(always)]
    pub fn read(&self, head: &[u8], len: usize, checksum: ChecksumState) -> Option<OuterFacts> {
        let head: &[u8; FRONT] = head.first_chunk()?;
        let total = usize::from(word(head, 16));
        let udp_len = usize::from(word(head, UDP + 4));
        let right = be64(head, 0) >> 16 == self.mac
            && word(head, 12) == 0x0800
            && head[14] == 0x45
            && total + 14 <= len
            && word(head, 20) & 0x3fff == 0
            && head[22] != 0
            && head[23] == protocol::UDP
            && long(head, 30) == self.address
            && word(head, UDP + 2) == self.vxlan_port
            && udp_len >= FRONT - UDP
            && udp_len + 20 <= total
            && word(head, UDP + 6) == 0
            && long(head, 42) == 0x0800_0000
            && head[49] == 0;
        if !right {
            return None;
        }
        // Checksum and source address.
        let middle = be64(head, 22);
        match checksum {
            ChecksumState::Good => {}
            ChecksumState::Bad => return None,
            _ if sums_up(be64(head, 14), middle, self.address) => {}
            _ => return None,
        }
        Some(OuterFacts {
            source: Ipv4Addr::from_bits(middle as u32),
            vni: long(head, 46) >> 8,
            back: len - UDP - udp_len,
            ecn: Ecn::from_tos(head[15]),
        })
    }
}

/// Two bytes of a head, most significant first.
#[inline(always)]
pub(super) fn word<const N: usize>(head: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

/// Four of them.
#[inline(always)]
pub(super) fn long<const N: usize>(head: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// True when the checksum of an IPv4 header is right: the words of the header, of any size, add up to a multiple of
/// 0xffff (RFC 1071 sections 1 and 2), and to more than nothing, for the first byte is 0x45.
#[inline(always)]
fn sums_up(front: u64, middle: u64, back: u32) -> bool {
    let halves = |word: u64| (word >> 32) + (word & 0xffff_ffff);
    let sum = halves(front) + halves(middle) + u64::from(back);
    sum.is_multiple_of(0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::build::Path;
    use wire::{L3, MacAddr, View, Vni, ipv4, parse::parse, protocol, udp, vxlan};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0x10, 1]);
    const HERE: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
    const FAST: FastOuter = FastOuter { mac: 0x0200_0000_1001, address: HERE.to_bits(), vxlan_port: 4789 };

    fn packet(tos: u8, inner: usize, trailer: usize) -> Vec<u8> {
        let there = (MacAddr([2, 0, 0, 0, 0x10, 2]), Ipv4Addr::new(172, 16, 0, 2));
        let path = Path::v4(there, (MAC, HERE)).with_tos(tos);
        let mut frame = path.vxlan(50_000, Vni::truncated(5001), &vec![7; inner]);
        frame.resize(frame.len() + trailer, 0);
        frame
    }

    /// The same with the house's parser and views, field by field.
    fn closely(frame: &[u8], checksum: ChecksumState) -> Option<OuterFacts> {
        let headers = parse(frame, frame.len()).ok()?;
        let ethernet = headers.ethernet(frame)?;
        let ip = ipv4::Header::view_at(frame, 14)?;
        if ethernet.dst != MAC || headers.vlan_count != 0 || headers.l3 != L3::Ipv4 || ip.dst() != HERE {
            return None;
        }
        let sum = match checksum {
            ChecksumState::Good => true,
            ChecksumState::Bad => false,
            _ => ipv4::checksum_ok(&frame[14..usize::from(headers.l4_offset)]),
        };
        let fragment = headers.ttl == 0 || headers.flags.intersects(wire::Flags::FRAGMENT);
        if !sum || fragment || headers.proto != protocol::UDP || headers.l4_offset != 34 {
            return None;
        }
        let (udp, vxlan) = (udp::Header::view_at(frame, 34)?, vxlan::Header::view_at(frame, 42)?);
        let end = 34 + usize::from(udp.len.get());
        let plain =
            headers.dport == 4789 && udp.checksum.get() == 0 && vxlan.has_vni() && vxlan.reserved_clear();
        (plain && end >= FRONT).then(|| OuterFacts {
            source: ip.src(),
            vni: vxlan.vni().get(),
            back: frame.len() - end,
            ecn: Ecn::from_tos(headers.tos),
        })
    }

    #[test]
    fn the_plain_packet_is_accepted_with_what_it_says() {
        let facts = FAST.read(&packet(2, 60, 3), 113, ChecksumState::Unknown);
        let source = Ipv4Addr::new(172, 16, 0, 2);
        assert_eq!(facts, Some(OuterFacts { source, vni: 5001, back: 3, ecn: Ecn::Ect0 }));
        assert_eq!(FAST.read(&packet(2, 60, 0), 110, ChecksumState::Bad), None);
        assert_eq!(FAST.read(&packet(2, 60, 0)[..49], 110, ChecksumState::Good), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn reads_what_a_close_look_reads(
            tos in any::<u8>(),
            inner in 14usize..100,
            trailer in 0usize..4,
            changes in prop::collection::vec((0usize..64, any::<u8>()), 0..3),
            cut in 0usize..120,
            good in any::<bool>(),
        ) {
            let mut frame = packet(tos, inner, trailer);
            for (at, value) in changes {
                frame[at] = value;
            }
            // Half of them whole.
            if cut >= 60 {
                frame.truncate(cut);
            }
            let checksum = if good { ChecksumState::Good } else { ChecksumState::Unknown };
            prop_assert_eq!(FAST.read(&frame, frame.len(), checksum), closely(&frame, checksum));
        }
    }
}
