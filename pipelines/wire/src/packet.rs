//! [`PacketBuf`]: the one trait that the header code, the pipeline and the DPDK layer agree on.
//!
//! `wire` brings a heap-backed implementation for tests, `pmd` implements it for a DPDK mbuf. The pipeline is
//! generic over it and therefore runs, fuzzes and is property-tested without DPDK.

/// What a receiver knows about one checksum of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumState {
    /// The device did not look at it: software has to.
    #[default]
    Unknown,
    /// Verified by the device.
    Good,
    /// Verified by the device and found wrong.
    Bad,
    /// The field holds the pseudo-header sum only: the sender asks whoever forwards the packet to a wire to
    /// complete it (virtio `NEEDS_CSUM`, Linux `CHECKSUM_PARTIAL`).
    Partial,
}

/// Facts that come with a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxFacts {
    /// State of the (outermost) IPv4 header checksum.
    pub l3_checksum: ChecksumState,
    /// State of the (outermost) TCP or UDP checksum.
    pub l4_checksum: ChecksumState,
    /// RSS hash, where the device computed one.
    pub rss_hash: Option<u32>,
    /// VLAN tag control information that the device removed from the frame.
    pub vlan_tci: Option<u16>,
    /// Segment size (bytes of L4 payload) of a super-frame that the sender wants cut, else 0. Like everything that a guest
    /// says, it may be nonsense: [`crate::segment`] judges it.
    pub gso_size: u16,
}

/// What the sender asks of the transmitting device. All lengths in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxRequest {
    /// Layer 2 header length.
    pub l2_len: u8,
    /// Layer 3 header length.
    pub l3_len: u16,
    /// Layer 4 header length (TSO only).
    pub l4_len: u8,
    /// Fill the IPv4 header checksum.
    pub ipv4_checksum: bool,
    /// Fill the TCP or UDP checksum, whose field holds the pseudo-header sum. Of a super-frame that sum covers the length of
    /// the super-frame, as virtio (`VIRTIO_NET_HDR_F_NEEDS_CSUM`) and Linux have it; of one inside a tunnel it covers no length,
    /// as DPDK's drivers want it (`rte_ipv4_phdr_cksum` with `RTE_MBUF_F_TX_TCP_SEG`).
    pub l4_checksum: Option<L4Checksum>,
    /// TSO segment size (bytes of payload per segment), 0 for none.
    pub tso_size: u16,
    /// The packet is IPv6 (otherwise IPv4).
    pub ipv6: bool,
    /// The packet is going to be inside a tunnel of VxLAN. All of the above is said of the packet inside, with UDP and VxLAN header
    /// counted to its layer 2.
    pub outer: Option<OuterHeaders>,
}

/// The headers of a tunnel around a super-frame, of which a transmitting device gives each piece its own: lengths and, over IPv4, the
/// header checksum. All lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeaders {
    /// Outer layer 2 header length, tags included.
    pub l2_len: u8,
    /// Outer layer 3 header length.
    pub l3_len: u16,
    /// The outer packet is IPv6 (otherwise IPv4).
    pub ipv6: bool,
    /// Fill the outer UDP checksum, too (otherwise it stays zero).
    pub udp_checksum: bool,
}

/// What a transmitting device does with TCP super-frames inside VxLAN that it cuts ([`TxRequest::outer`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelTso {
    /// It fills the outer UDP checksum of each piece; otherwise that is zero, which IPv6 forbids unless both ends have agreed (RFC
    /// 6935 section 5).
    pub outer_udp_checksum: bool,
    /// Most segments of memory that a super-frame may lie in.
    pub max_segments: u16,
}

/// Which L4 checksum a device is asked to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Checksum {
    /// TCP, RFC 9293 section 3.1.
    Tcp,
    /// That of UDP (RFC 768), which may be zero over IPv4.
    Udp,
}

/// A packet that can be read, rewritten, and grown or shrunk at both ends.
///
/// `head` is the first segment: every header that the switch parses lies in it (an implementation linearises
/// what it hands over, or drops it as `header-split` before the pipeline sees it).
#[allow(clippy::len_without_is_empty)] // a packet is never empty
pub trait PacketBuf: Sized {
    /// The first segment: all parsed headers are contiguous in it.
    fn head(&self) -> &[u8];

    /// The first segment, writable. For a buffer that [`is_shared`](Self::is_shared) the implementation
    /// returns an empty slice: headers are never written into shared memory.
    fn head_mut(&mut self) -> &mut [u8];

    /// Length of the whole packet in bytes, over all segments.
    fn len(&self) -> usize;

    /// Grows the packet by `n` bytes at the front and returns the whole first segment, or `None` (and no
    /// change) where there is no headroom or the buffer is shared. The new bytes are unspecified.
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Removes `n` bytes at the front. `false` (and no change) when the first segment is shorter.
    fn trim_front(&mut self, n: usize) -> bool;

    /// Removes `n` bytes at the end, and with them the segments that lie there as a whole. `false` (and no change)
    /// when the packet is shorter, or when the segment in which it would end has other owners.
    fn trim_back(&mut self, n: usize) -> bool;

    /// Grows the packet by `n` bytes at the end of its last segment and returns those bytes (unspecified
    /// content), or `None` (and no change) where there is no tailroom or the buffer is shared.
    fn append(&mut self, n: usize) -> Option<&mut [u8]>;

    /// All segments, in order.
    fn segments(&self) -> impl Iterator<Item = &[u8]>;

    /// True when other owners may read the same bytes.
    fn is_shared(&self) -> bool;

    /// What the receiving device said.
    fn rx_facts(&self) -> RxFacts;

    /// True when the receiver left something to do: fields of a checksum to fill in, or a segment of several packets.
    #[inline]
    fn is_unfinished(&self) -> bool {
        let facts = self.rx_facts();
        facts.gso_size != 0 || facts.l4_checksum == ChecksumState::Partial
    }

    /// Asks the transmitting device for checksums or segmentation, in place of what was asked before. What the receiver left
    /// to do is done by that, or by the caller: the packet [`is_unfinished`](Self::is_unfinished) no more.
    fn request_tx(&mut self, request: TxRequest);

    /// A second packet with its own headers and the same bytes, or `None` when there is no memory for it.
    /// Used for replication only.
    fn try_clone(&self) -> Option<Self>;

    /// A packet of these bytes, one part after another, in memory of its own from where this one's memory comes, with free
    /// bytes in front as a fresh packet has; the receiver said nothing of it. The first part is all in its first segment.
    /// `None` when there is no memory for it, or the first part is longer than a segment.
    fn gather<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Option<Self>;

    /// Hints the CPU to load the first bytes of the packet.
    fn prefetch(&self) {}
}
