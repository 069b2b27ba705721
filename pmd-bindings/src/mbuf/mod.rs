//! [`Mbuf`]: one packet, owned.
//!
//! `segment.rs` reads and writes the C structure, `packet.rs` is the [`wire::PacketBuf`] that the pipeline sees,
//! `chain.rs` gathers headers that arrive in pieces. An `Mbuf` is the only owner of its `rte_mbuf` header (the
//! data may be shared, see [`wire::PacketBuf::is_shared`]); dropping it gives the buffer back to its pool.

mod chain;
mod packet;
mod segment;

use std::fmt;
use std::ptr::NonNull;

use dpdk_sys as sys;
use wire::PacketBuf;

pub(crate) use chain::HEAD_BYTES;
pub(crate) use segment::{BUF_LEN, DATA_LEN, DATA_OFF, NB_SEGS, PKT_LEN, REFCNT, Segment};

use crate::port::PortId;

/// Frees the first `count` packets of an array; how many bytes they had.
///
/// # Safety
/// `slots` holds so many packets of the caller, which nobody uses any more.
pub(crate) unsafe fn free_counted(slots: *mut *mut sys::rte_mbuf, count: usize) -> u64 {
    let sizes = (0..count).map(|at| {
        // SAFETY: the caller's promise.
        unsafe { Segment::at(slots.wrapping_add(at)) }.map_or(0, |head| u64::from(head.pkt_len()))
    });
    let bytes = sizes.sum();
    // No more packets than a burst has.
    // SAFETY: the caller's promise.
    unsafe { sys::rte_pktmbuf_free_bulk(slots, count as u32) };
    bytes
}

/// One packet, owned. `Option<Mbuf>` is as large as a pointer.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf belongs to whoever holds the `Mbuf`; nothing in it is bound to a thread, and its pool takes it
// back from any thread.
unsafe impl Send for Mbuf {}
// SAFETY: through a shared reference an mbuf is only read.
unsafe impl Sync for Mbuf {}

impl Mbuf {
    /// Takes ownership of an mbuf.
    ///
    /// # Safety
    /// `raw` is a valid mbuf (the first of its chain) whose header nobody else uses from here on, and whose pool
    /// outlives it.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// An empty packet of a pool; `None` when that is exhausted.
    ///
    /// # Safety
    /// The pool is live, and outlives the packet.
    #[inline]
    pub(crate) unsafe fn alloc_in(pool: *mut sys::rte_mempool) -> Option<Self> {
        // SAFETY: the caller's promise.
        let raw = unsafe { sys::dpdk_sys_mbuf_alloc(pool) };
        // SAFETY: a fresh mbuf that nobody else has.
        NonNull::new(raw).map(|raw| unsafe { Self::from_raw(raw) })
    }

    /// Gives ownership away.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// A handle on the first segment, good while `self` is.
    #[inline]
    pub(crate) fn segment(&self) -> Segment {
        // SAFETY: `self` owns a valid chain; the callers in this crate drop the handle before the packet.
        unsafe { Segment::new(self.0) }
    }

    /// Gives ownership away, as a segment to be linked into another packet.
    pub(crate) fn into_segment(self) -> Segment {
        // SAFETY: the mbuf is valid, and ownership passes to the chain that the caller links it into.
        unsafe { Segment::new(self.into_raw()) }
    }

    /// The port that received the packet; meaningless for a packet made here.
    #[inline]
    pub fn rx_port(&self) -> PortId {
        PortId::new(self.segment().port())
    }

    /// Number of segments.
    #[inline]
    pub fn segment_count(&self) -> usize {
        usize::from(self.segment().nb_segs())
    }

    /// Free bytes in front of the first segment.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.segment().data_off())
    }

    /// Free bytes behind the last segment.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.segment().last().tailroom()
    }

    /// All bytes of the packet in one vector; for tests and control code.
    pub fn to_vec(&self) -> Vec<u8> {
        self.segments().flatten().copied().collect()
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `self` owns the chain and gives it up here.
        unsafe { sys::dpdk_sys_mbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mbuf({} bytes, {} segments)", self.len(), self.segment_count())
    }
}

const _: () = assert!(size_of::<Option<Mbuf>>() == size_of::<*mut sys::rte_mbuf>());

#[cfg(test)]
mod tests {
    use wire::packet::L4Checksum;
    use wire::{ChecksumState, RxFacts, TxRequest};

    use super::*;
    use crate::flags;
    use crate::mempool::Mempool;
    use crate::testing::pool;

    /// An indirect clone, as some drivers make them: another header, the same data.
    fn indirect(packet: &Mbuf, pool: &Mempool) -> Mbuf {
        // SAFETY: a valid packet and a live pool.
        let raw = unsafe { sys::dpdk_sys_mbuf_clone(packet.0.as_ptr(), pool.raw()) };
        // SAFETY: a fresh header that nobody else has.
        unsafe { Mbuf::from_raw(NonNull::new(raw).unwrap()) }
    }

    #[test]
    fn shared_data_is_never_written() {
        let pool = pool("shared");
        let mut packet = pool.alloc_from(b"both read this").unwrap();
        assert!(!packet.is_shared());
        let mut other = indirect(&packet, &pool);
        for side in [&mut packet, &mut other] {
            assert!(side.is_shared() && side.head_mut().is_empty());
            assert!(side.prepend(1).is_none() && side.append(1).is_none());
            assert_eq!(side.head(), b"both read this");
        }
        assert!(other.trim_front(5), "what each sees is its own");
        assert_eq!((packet.head(), other.head()), (&b"both read this"[..], &b"read this"[..]));
        let mut copy = other.try_clone().unwrap();
        assert!(!copy.is_shared());
        copy.head_mut()[0] = b'R';
        assert_eq!((copy.head(), other.head()), (&b"Read this"[..], &b"read this"[..]));
        drop(other);
        assert!(!packet.is_shared() && packet.head_mut().len() == 14);
        drop((packet, copy));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn facts_are_read_from_the_flags() {
        let pool = pool("facts");
        let packet = pool.alloc_from(b"x").unwrap();
        let facts = |bits: u64, lengths: u64| {
            packet.segment().set_flags(bits);
            packet.segment().set_tx_offload(lengths);
            packet.rx_facts()
        };
        assert_eq!(facts(0, u64::MAX), RxFacts::default());
        let good = facts(flags::RX_IP_GOOD | flags::RX_L4_GOOD, 0);
        assert_eq!((good.l3_checksum, good.l4_checksum), (ChecksumState::Good, ChecksumState::Good));
        let bad = facts(flags::RX_IP_BAD | flags::RX_L4_BAD, 0);
        assert_eq!((bad.l3_checksum, bad.l4_checksum), (ChecksumState::Bad, ChecksumState::Bad));
        let partial = facts(flags::RX_L4_NONE | flags::RX_LRO, 1448 << 24);
        assert_eq!((partial.l4_checksum, partial.gso_size), (ChecksumState::Partial, 1448));
        assert_eq!(facts(flags::RX_L4_NONE, 1448 << 24).gso_size, 0);
        assert_eq!(facts(flags::RX_RSS_HASH | flags::RX_VLAN_STRIPPED, 0).rss_hash, Some(0));
        assert_eq!(facts(flags::RX_VLAN_STRIPPED, 0).vlan_tci, Some(0));
    }

    #[test]
    fn unfinished_is_what_the_facts_say() {
        let pool = pool("unfinished");
        let packet = pool.alloc_from(b"x").unwrap();
        packet.segment().set_tx_offload(1448 << 24);
        let sums = [0, flags::RX_L4_GOOD, flags::RX_L4_BAD, flags::RX_L4_NONE];
        for bits in sums.into_iter().flat_map(|sum| [sum, sum | flags::RX_LRO, sum | flags::RX_RSS_HASH]) {
            packet.segment().set_flags(bits);
            let facts = packet.rx_facts();
            let wanted = facts.gso_size != 0 || facts.l4_checksum == ChecksumState::Partial;
            assert_eq!(packet.is_unfinished(), wanted, "{bits:#x}");
        }
    }

    #[test]
    fn a_request_replaces_the_one_before() {
        let pool = pool("request");
        let mut packet = pool.alloc_from(b"x").unwrap();
        packet.segment().set_flags(flags::RX_RSS_HASH);
        let udp =
            TxRequest { l2_len: 14, l3_len: 20, l4_checksum: Some(L4Checksum::Udp), ..TxRequest::default() };
        packet.request_tx(udp);
        let bits = packet.segment().flags();
        assert_eq!(bits, flags::RX_RSS_HASH | flags::TX_UDP_CKSUM | flags::TX_IPV4);
        assert_eq!(packet.segment().tx_offload(), 14 | 20 << 7);
        packet.request_tx(TxRequest::default());
        assert_eq!((packet.segment().flags(), packet.segment().tx_offload()), (flags::RX_RSS_HASH, 0));
    }

    #[test]
    fn a_super_frame_that_is_sent_on_is_a_request_and_no_fact_any_more() {
        let pool = pool("tso");
        let mut packet = pool.alloc_from(b"x").unwrap();
        packet.segment().set_flags(flags::RX_LRO | flags::RX_L4_NONE | flags::RX_IP_GOOD);
        packet.segment().set_tx_offload(1448 << 24);
        let request = TxRequest {
            l2_len: 18,
            l3_len: 20,
            l4_len: 32,
            tso_size: 1448,
            l4_checksum: Some(L4Checksum::Tcp),
            ..TxRequest::default()
        };
        packet.request_tx(request);
        let tso = flags::TX_TCP_SEG | flags::TX_TCP_CKSUM | flags::TX_IPV4;
        assert_eq!(packet.segment().flags(), flags::RX_IP_GOOD | tso);
        assert_eq!(packet.segment().tx_offload(), 18 | 20 << 7 | 32 << 16 | 1448 << 24);
        assert!(!packet.is_unfinished() && packet.rx_facts().gso_size == 0);
        // Nothing is asked: nothing is left, be it of what was received.
        packet.segment().set_flags(flags::RX_LRO | flags::RX_L4_NONE);
        packet.request_tx(TxRequest::default());
        assert_eq!((packet.segment().flags(), packet.is_unfinished()), (0, false));
    }

    #[test]
    fn gathered_packets_have_their_own_memory_over_as_many_segments_as_it_takes() {
        let pool = pool("gather");
        let bytes: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
        let source = pool.alloc_from(&bytes).unwrap();
        source.segment().set_flags(flags::RX_LRO | flags::RX_L4_NONE);
        source.segment().set_tx_offload(1448 << 24);
        assert!(source.segment_count() > 3);
        let kept = pool.in_use();
        for (from, len) in [(0, 0), (100, 1), (54, 1448), (2_000, 4_000), (100, 9_900)] {
            let data: Vec<&[u8]> = source
                .segments()
                .scan(0, |at, segment| {
                    let first = *at;
                    *at += segment.len();
                    let clip = |offset: usize| offset.saturating_sub(first).min(segment.len());
                    Some(&segment[clip(from)..clip(from + len)])
                })
                .collect();
            let packet = source.gather(std::iter::once(&bytes[..54]).chain(data)).unwrap();
            assert_eq!(packet.to_vec(), [&bytes[..54], &bytes[from..from + len]].concat());
            assert_eq!((packet.len(), packet.is_sound()), (54 + len, true));
            assert_eq!((packet.rx_facts(), packet.is_unfinished()), (RxFacts::default(), false));
            assert!(!packet.is_shared() && packet.headroom() == 128);
        }
        assert_eq!(pool.in_use(), kept, "every buffer came back");
        // Headers that one buffer does not hold, and a pool that has no more: nothing, and nothing lost.
        assert!(source.gather([&bytes[..4_000], &bytes[..10]]).is_none());
        let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).take(255 - kept - 1).collect();
        assert!(source.gather([&bytes[..54], &bytes[..]]).is_none());
        assert!(source.gather([&bytes[..54], &bytes[..100]]).is_some());
        drop((all, source));
        assert_eq!(pool.in_use(), 0);
    }

    /// What `wire` cuts out of a heap buffer it cuts out of a chain of buffers, too, and each piece has room for a tunnel.
    #[test]
    fn a_super_frame_over_many_buffers_is_cut_as_one_in_a_single_piece_is() {
        let pool = pool("super");
        let a = (wire::MacAddr([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1].into());
        let b = (wire::MacAddr([2, 0, 0, 0, 0, 2]), [10, 0, 0, 2].into());
        let data: Vec<u8> = (0..60_000).map(|at| (at % 253) as u8).collect();
        let frame = wire::build::Path::v4(a, b).tcp(1, 2, 0x18, &data);
        let source = pool.alloc_from(&frame).unwrap();
        source.segment().set_flags(flags::RX_LRO | flags::RX_L4_NONE);
        source.segment().set_tx_offload(1448 << 24);
        let headers = wire::parse::parse(source.head(), source.len()).unwrap();
        let found =
            wire::segment::Segmentation::of(&headers, source.head(), source.len(), &source.rx_facts());
        let wire::segment::Segmentation::Several(cut) = found else { panic!("{found:?}") };
        let twin = wire::HeapBuf::new(&frame).with_facts(source.rx_facts());
        let twins: Vec<Vec<u8>> = cut.cut(&twin).map(|piece| piece.unwrap().to_vec()).collect();
        let pieces: Vec<Mbuf> = cut.cut(&source).map(Option::unwrap).collect();
        assert_eq!(pieces.iter().map(Mbuf::to_vec).collect::<Vec<_>>(), twins);
        assert!(pieces.iter().all(|piece| piece.segment_count() == 1 && piece.headroom() == 128));
        // 255 buffers: 42 pieces five times over, and no more than there are.
        let more: Vec<Option<Mbuf>> =
            (0..6).flat_map(|_| cut.cut(&source).take_while(Option::is_some)).collect();
        assert_eq!(more.len(), 255 - source.segment_count() - pieces.len());
        drop((pieces, more, source));
        assert_eq!(pool.in_use(), 0);
    }
}
