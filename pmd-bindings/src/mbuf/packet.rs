//! [`wire::PacketBuf`] for [`Mbuf`]: what the pipeline may do with a packet.

use std::ptr::NonNull;

use dpdk_sys as sys;
use wire::packet::L4Checksum;
use wire::{ChecksumState, OuterHeaders, PacketBuf, RxFacts, TxRequest};

use super::{Mbuf, Segment};
use crate::flags;

impl PacketBuf for Mbuf {
    #[inline]
    fn head(&self) -> &[u8] {
        // SAFETY: `self` owns the packet and is borrowed as long as the slice.
        unsafe { self.segment().bytes() }
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        let head = self.segment();
        if !head.is_writable() {
            return &mut [];
        }
        // SAFETY: writable, and `self` is borrowed exclusively as long as the slice.
        unsafe { head.bytes_mut() }
    }

    #[inline]
    fn len(&self) -> usize {
        self.segment().pkt_len() as usize
    }

    #[inline]
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let head = self.segment();
        let bytes = u16::try_from(n).ok()?;
        let offset = head.data_off().checked_sub(bytes)?;
        let length = head.data_len().checked_add(bytes)?;
        let total = head.pkt_len().checked_add(n as u32)?;
        if !head.is_writable() {
            return None;
        }
        head.set_data_off(offset);
        head.set_data_len(length);
        head.set_pkt_len(total);
        // SAFETY: writable, the headroom belongs to the segment, and `self` is borrowed exclusively.
        Some(unsafe { head.bytes_mut() })
    }

    #[inline]
    fn trim_front(&mut self, n: usize) -> bool {
        let head = self.segment();
        let Ok(bytes) = u16::try_from(n) else { return false };
        let Some(length) = head.data_len().checked_sub(bytes) else { return false };
        head.set_data_off(head.data_off() + bytes);
        head.set_data_len(length);
        head.set_pkt_len(head.pkt_len() - u32::from(bytes));
        true
    }

    #[inline]
    fn trim_back(&mut self, n: usize) -> bool {
        let head = self.segment();
        let keep = u32::try_from(n).ok().and_then(|n| head.pkt_len().checked_sub(n));
        keep.is_some_and(|keep| self.cut_to(keep))
    }

    #[inline]
    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let (head, last) = (self.segment(), self.segment().last());
        let length = last.data_len().checked_add(u16::try_from(n).ok()?)?;
        let total = head.pkt_len().checked_add(n as u32)?;
        if n > last.tailroom() || !last.is_writable() {
            return None;
        }
        let old = usize::from(last.data_len());
        last.set_data_len(length);
        head.set_pkt_len(total);
        // SAFETY: writable, the tailroom belongs to the segment, and `self` is borrowed exclusively.
        let bytes = unsafe { last.bytes_mut() };
        Some(&mut bytes[old..])
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: every segment belongs to the packet, which is borrowed as long as the slices.
        std::iter::successors(Some(self.segment()), |segment| segment.next()).map(|s| unsafe { s.bytes() })
    }

    #[inline]
    fn is_shared(&self) -> bool {
        !self.segment().is_writable()
    }

    #[inline]
    fn rx_facts(&self) -> RxFacts {
        facts(self.segment())
    }

    #[inline]
    fn is_unfinished(&self) -> bool {
        let bits = self.segment().flags();
        bits & flags::RX_LRO != 0 || bits & flags::RX_L4_MASK == flags::RX_L4_NONE
    }

    #[inline]
    fn request_tx(&mut self, request: TxRequest) {
        let segment = self.segment();
        let (flags, lengths) = encode(request);
        // The lengths of a super-frame that was received lie where those of the request do.
        const LEFT_TO_DO: u64 = flags::RX_LRO | flags::RX_L4_MASK;
        segment.set_flags(segment.flags() & !(flags::TX_MASK | LEFT_TO_DO) | flags);
        segment.set_tx_offload(lengths);
    }

    fn try_clone(&self) -> Option<Self> {
        self.deep_copy()
    }

    fn gather<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        self.chain_like(parts)
    }

    #[inline]
    fn prefetch(&self) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(self.segment().data().cast()) };
    }
}

impl Mbuf {
    /// True when the transmitting device is asked to cut it: then it may be longer than the device's MTU.
    #[inline]
    pub fn is_cut_by_device(&self) -> bool {
        self.segment().flags() & flags::TX_TCP_SEG != 0
    }

    /// A packet with the same bytes and facts in usual buffers of the same pool, or `None` when that is exhausted.
    pub(crate) fn deep_copy(&self) -> Option<Self> {
        let segment = self.segment();
        // SAFETY: a valid packet and its live pool; the copy reads the packet only.
        let raw = unsafe { sys::rte_pktmbuf_copy(segment.as_ptr(), segment.pool_of_copies(), 0, u32::MAX) };
        // SAFETY: a fresh packet that nobody else has.
        NonNull::new(raw).map(|raw| unsafe { Self::from_raw(raw) })
    }
}

fn facts(segment: Segment) -> RxFacts {
    let bits = segment.flags();
    if bits & RX_INTERESTING == 0 {
        return RxFacts::default();
    }
    let lro = bits & flags::RX_LRO != 0;
    RxFacts {
        l3_checksum: match bits & flags::RX_IP_MASK {
            flags::RX_IP_GOOD => ChecksumState::Good,
            flags::RX_IP_BAD => ChecksumState::Bad,
            flags::RX_IP_NONE => ChecksumState::Partial,
            _ => ChecksumState::Unknown,
        },
        // "None" is how virtio's NEEDS_CSUM arrives: data vouched for, field not filled.
        l4_checksum: match bits & flags::RX_L4_MASK {
            flags::RX_L4_GOOD => ChecksumState::Good,
            flags::RX_L4_BAD => ChecksumState::Bad,
            flags::RX_L4_NONE => ChecksumState::Partial,
            _ => ChecksumState::Unknown,
        },
        rss_hash: (bits & flags::RX_RSS_HASH != 0).then(|| segment.rss_hash()),
        vlan_tci: (bits & flags::RX_VLAN_STRIPPED != 0).then(|| segment.vlan_tci()),
        gso_size: if lro { (segment.tx_offload() >> flags::TSO_SEGSZ_SHIFT) as u16 } else { 0 },
    }
}

const RX_INTERESTING: u64 =
    flags::RX_IP_MASK | flags::RX_L4_MASK | flags::RX_RSS_HASH | flags::RX_VLAN_STRIPPED | flags::RX_LRO;

/// (`ol_flags`, `tx_offload`) of a request.
fn encode(request: TxRequest) -> (u64, u64) {
    let mut bits = 0;
    if request.ipv4_checksum {
        bits |= flags::TX_IP_CKSUM;
    }
    match request.l4_checksum {
        Some(L4Checksum::Tcp) => bits |= flags::TX_TCP_CKSUM,
        Some(L4Checksum::Udp) => bits |= flags::TX_UDP_CKSUM,
        None => {}
    }
    if request.tso_size > 0 {
        // TSO implies the TCP checksum.
        bits |= flags::TX_TCP_SEG | flags::TX_TCP_CKSUM;
    }
    if bits == 0 {
        return (0, 0);
    }
    bits |= if request.ipv6 { flags::TX_IPV6 } else { flags::TX_IPV4 };
    let lengths = u64::from(request.l2_len) & flags::L2_LEN_MASK
        | (u64::from(request.l3_len) & flags::L3_LEN_MASK) << flags::L3_LEN_SHIFT
        | (u64::from(request.l4_len) & flags::L4_LEN_MASK) << flags::L4_LEN_SHIFT
        | u64::from(request.tso_size) << flags::TSO_SEGSZ_SHIFT;
    let (outer_bits, outer_lengths) = request.outer.map_or((0, 0), encode_outer);
    (bits | outer_bits, lengths | outer_lengths)
}

/// What the headers of a tunnel add to them.
fn encode_outer(outer: OuterHeaders) -> (u64, u64) {
    let mut bits = flags::TX_TUNNEL_VXLAN;
    bits |= match outer.ipv6 {
        true => flags::TX_OUTER_IPV6,
        // An IPv4 header has a checksum.
        false => flags::TX_OUTER_IPV4 | flags::TX_OUTER_IP_CKSUM,
    };
    if outer.udp_checksum {
        bits |= flags::TX_OUTER_UDP_CKSUM;
    }
    let lengths = (u64::from(outer.l2_len) & flags::OUTER_L2_LEN_MASK) << flags::OUTER_L2_LEN_SHIFT
        | (u64::from(outer.l3_len) & flags::OUTER_L3_LEN_MASK) << flags::OUTER_L3_LEN_SHIFT;
    (bits, lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_becomes_flags_and_lengths() {
        assert_eq!(encode(TxRequest { l2_len: 14, ..TxRequest::default() }), (0, 0));
        let request = TxRequest {
            l2_len: 14,
            l3_len: 40,
            l4_len: 20,
            l4_checksum: Some(L4Checksum::Tcp),
            tso_size: 1448,
            ipv6: true,
            ..TxRequest::default()
        };
        let (bits, lengths) = encode(request);
        assert_eq!(bits, flags::TX_TCP_CKSUM | flags::TX_TCP_SEG | flags::TX_IPV6);
        assert_eq!(lengths, 14 | 40 << 7 | 20 << 16 | 1448 << 24);
        let udp =
            TxRequest { ipv4_checksum: true, l4_checksum: Some(L4Checksum::Udp), ..TxRequest::default() };
        assert_eq!(encode(udp).0, flags::TX_IP_CKSUM | flags::TX_UDP_CKSUM | flags::TX_IPV4);
    }

    #[test]
    fn a_request_inside_a_tunnel_names_the_outer_headers_too() {
        let inside = TxRequest {
            l2_len: 30,
            l3_len: 20,
            l4_len: 32,
            ipv4_checksum: true,
            l4_checksum: Some(L4Checksum::Tcp),
            tso_size: 1398,
            ..TxRequest::default()
        };
        let (plain, lengths) = encode(inside);
        let outer = OuterHeaders { l2_len: 18, l3_len: 20, ipv6: false, udp_checksum: false };
        let v4 = flags::TX_TUNNEL_VXLAN | flags::TX_OUTER_IPV4 | flags::TX_OUTER_IP_CKSUM;
        let with = |outer| encode(TxRequest { outer: Some(outer), ..inside });
        assert_eq!(with(outer), (plain | v4, lengths | 20 << 40 | 18 << 49));
        let outer = OuterHeaders { l2_len: 14, l3_len: 40, ipv6: true, udp_checksum: true };
        let v6 = flags::TX_TUNNEL_VXLAN | flags::TX_OUTER_IPV6 | flags::TX_OUTER_UDP_CKSUM;
        assert_eq!(with(outer), (plain | v6, lengths | 40 << 40 | 14 << 49));
        assert_eq!((plain | v4 | v6) & !flags::TX_MASK, 0, "a new request takes the place of all of them");
    }
}
