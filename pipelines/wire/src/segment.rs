//! Super-frames: one TCP packet that stands for many, of so many bytes of data each, and how it is cut into them.
//!
//! A sender that leaves segmentation to its device (TSO; virtio `VIRTIO_NET_HDR_GSO_TCPV4` and `_TCPV6`) makes one header and up to
//! 64 KB of data. The header of each piece follows from it: sequence numbers count on (RFC 9293 section 3.4), lengths are the
//! piece's own (RFC 791, RFC 8200), IPv4's identification counts up by one as Linux has it, CWR is on the first piece alone so
//! that the receiver hears of one reduction (RFC 3168 section 6.1.2), FIN and PSH are on the last alone, which ends the data. All
//! else is every piece's: ECN field, ECE, acknowledgement, window, options.
//!
//! Whoever sends a super-frame chooses every number in it, the segment size included: [`Segmentation::of`] refuses what cannot
//! be cut right, or would become too many packets.

use crate::checksum::Sum;
use crate::headers::{Flags, Headers, L3};
use crate::packet::{ChecksumState, L4Checksum, OuterHeaders, PacketBuf, RxFacts, TxRequest};
use crate::view::View;
use crate::{ipv4, ipv6, l4, tcp};

/// Most packets that one may become: 64 KB in segments of 512 bytes, which is less than what TCP begins with (536, RFC 9293
/// section 3.7.1).
pub const MAX_PIECES: usize = 128;
/// Smallest segment size: what the smallest MSS that Linux sends by (48 bytes, `tcp_min_snd_mss`) leaves behind 40 bytes of
/// options.
pub const MIN_SEGMENT: u16 = 8;
/// Most bytes of headers from Ethernet to TCP, options and extension headers included.
pub const MAX_HEADERS: usize = 256;
/// Bytes of an untagged Ethernet header.
const ETHERNET: u8 = 14;
/// Bytes of UDP (RFC 768) and VxLAN (RFC 7348 section 5).
const UDP_VXLAN: u8 = 16;

/// What a packet with a segment size is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// Its data is one segment, be it short: an ordinary packet, whose checksum may be unfinished.
    One,
    /// It stands for several packets.
    Several(SuperFrame),
    /// It cannot be cut: not TCP or not whole, lengths or flags that no piece could have, data of which a device says that they
    /// are damaged or says nothing, too many pieces.
    Unsound,
}

/// A TCP packet that stands for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperFrame {
    headers: Headers,
    /// Bytes of data in each piece but the last.
    size: u16,
    /// Bytes of data in all.
    data: u16,
}

/// Packets that share out the `data` bytes behind the first `header_len` of a packet, `size` to each but the last, in order; each has a copy
/// of the headers, which are still those of the whole, and memory of its own. `None` in place of one for which there is none. The data are
/// copied once.
pub fn share_out<P: PacketBuf>(
    packet: &P,
    header_len: usize,
    data: usize,
    size: usize,
) -> impl Iterator<Item = Option<P>> {
    let (header, first) = packet.head().split_at_checked(header_len).unwrap_or_default();
    // What is left of the segment where the next piece begins, and the segments behind it.
    let (mut here, mut segments) = (first, packet.segments().skip(1));
    (0..data.div_ceil(size)).map(move |n| {
        let mut left = size.min(data - n * size);
        let data = std::iter::from_fn(|| {
            while left > 0 && here.is_empty() {
                here = segments.next()?;
            }
            let (part, rest) = here.split_at(left.min(here.len()));
            left -= part.len();
            here = rest;
            (!part.is_empty()).then_some(part)
        });
        packet.gather(std::iter::once(header).chain(data))
    })
}

impl Segmentation {
    /// Judges a frame of `len` bytes, of which `head` is the first segment and `facts` says what the receiver knows. `h` is
    /// what the parser found.
    pub fn of(h: &Headers, head: &[u8], len: usize, facts: &RxFacts) -> Self {
        let whole = h.is_ip() && !h.flags.intersects(Flags::FRAGMENT);
        if !whole || !h.is_tcp() && !h.is_udp() {
            return Self::Unsound;
        }
        let Some(data) = h.l3_end().checked_sub(h.payload_offset()) else { return Self::Unsound };
        if data <= usize::from(facts.gso_size) {
            return Self::One;
        }
        match SuperFrame::new(h, head, len, facts, data) {
            Some(frame) => Self::Several(frame),
            None => Self::Unsound,
        }
    }
}

impl SuperFrame {
    fn new(h: &Headers, head: &[u8], len: usize, facts: &RxFacts, data: usize) -> Option<Self> {
        // A destination yet to come is not in the pseudo header (RFC 8200 section 8.1); an atomic fragment's header would give
        // all pieces one identification.
        const NOT_CUT: Flags = Flags(Flags::SOURCE_ROUTED.0 | Flags::FRAGMENT_HEADER.0);
        // No piece but one could have them, and a device is not told which.
        const ALONE: u8 = tcp::flags::SYN | tcp::flags::RST | tcp::flags::URG;
        let vouched = matches!(facts.l4_checksum, ChecksumState::Partial | ChecksumState::Good);
        // What the device said may be of an outer header that is gone.
        let header_ok = facts.l3_checksum == ChecksumState::Partial || h.ipv4_checksum_ok(head);
        let sound = h.is_tcp()
            && vouched
            && header_ok
            && len == h.l3_end()
            && !h.flags.intersects(NOT_CUT)
            && h.tcp_flags & ALONE == 0
            && facts.gso_size >= MIN_SEGMENT
            && data.div_ceil(usize::from(facts.gso_size)) <= MAX_PIECES
            && h.payload_offset() <= MAX_HEADERS.min(head.len());
        let data = u16::try_from(data).ok()?;
        sound.then_some(Self { headers: *h, size: facts.gso_size, data })
    }

    /// Packets that it stands for, 2 to [`MAX_PIECES`].
    pub fn pieces(&self) -> usize {
        usize::from(self.data).div_ceil(usize::from(self.size))
    }

    /// Bytes of headers in front of the data, from Ethernet on: each piece has its own.
    pub fn header_len(&self) -> usize {
        self.headers.payload_offset()
    }

    /// True without VLAN tags, options of IPv4 and extension headers of IPv6: what a device's parser finds its way through, too.
    pub fn has_plain_headers(&self) -> bool {
        let h = &self.headers;
        let ip_len = match h.l3 {
            L3::Ipv6 => ipv6::HEADER_LEN,
            L3::Ipv4 | L3::None | L3::Arp => ipv4::HEADER_LEN,
        };
        h.l3_offset == ETHERNET && usize::from(h.l4_offset) == usize::from(h.l3_offset) + ip_len
    }

    /// Bytes of the longest piece as a frame.
    pub fn frame_len(&self) -> usize {
        self.header_len() + usize::from(self.size)
    }

    /// Bytes of the longest piece as an IP packet: what an MTU bounds.
    pub fn ip_len(&self) -> usize {
        self.frame_len() - usize::from(self.headers.l3_offset)
    }

    /// Bytes of all pieces as frames, with `each` more for every one.
    pub fn total_len(&self, each: usize) -> usize {
        usize::from(self.data) + self.pieces() * (self.header_len() + each)
    }

    /// Bytes of data in piece `n`, counted from 0; 0 behind the last.
    fn data_len(&self, n: usize) -> usize {
        let size = usize::from(self.size);
        usize::from(self.data).saturating_sub(n * size).min(size)
    }

    /// Makes a copy of the super-frame's headers those of piece `n`, but for the TCP checksum. Returns what the parser would find
    /// in the piece; `None` where `head` does not hold the headers, or there is no such piece.
    pub fn write_headers(&self, n: usize, head: &mut [u8]) -> Option<Headers> {
        let (data, mut h) = (self.data_len(n), self.headers);
        if data == 0 || head.len() < self.header_len() {
            return None;
        }
        h.l3_len = u16::try_from(self.header_len() + data - usize::from(h.l3_offset)).ok()?;
        let l3 = usize::from(h.l3_offset);
        match h.l3 {
            L3::Ipv4 => {
                let ip = ipv4::Header::view_mut_at(head, l3)?;
                ip.total_len.set(h.l3_len);
                ip.id.set(ip.id.get().wrapping_add(n as u16));
                h.ip_id = u32::from(ip.id.get());
                ipv4::fill_checksum(head.get_mut(l3..usize::from(h.l4_offset))?).then_some(())?;
            }
            L3::Ipv6 => {
                let ip = ipv6::Header::view_mut_at(head, l3)?;
                ip.payload_len.set(h.l3_len.checked_sub(ipv6::HEADER_LEN as u16)?);
            }
            L3::None | L3::Arp => return None,
        }
        let (first, last) = (n == 0, n + 1 == self.pieces());
        let tcp = tcp::Header::view_mut_at(head, usize::from(h.l4_offset))?;
        tcp.seq.set(tcp.seq.get().wrapping_add((n * usize::from(self.size)) as u32));
        if !first {
            tcp.flags &= !tcp::flags::CWR;
        }
        if !last {
            tcp.flags &= !(tcp::flags::FIN | tcp::flags::PSH);
        }
        h.tcp_flags = tcp.flags;
        Some(h)
    }

    /// The packets that `packet`, of which this was found, stands for, in order, each in memory of its own; `None` in place of
    /// one for which there is none. The data are copied once.
    pub fn cut<'a, P: PacketBuf>(&'a self, packet: &'a P) -> impl Iterator<Item = Option<P>> + 'a {
        let pieces = share_out(packet, self.header_len(), self.data.into(), self.size.into());
        pieces.enumerate().map(|(n, piece)| {
            let mut piece = piece?;
            let headers = self.write_headers(n, piece.head_mut())?;
            l4::fill_packet(&headers, &mut piece).then_some(piece)
        })
    }

    /// Readies the super-frame to be sent as it is, by a device that takes it: writes the pseudo-header sum into the checksum
    /// field and makes the request. `vlan`: bytes of a tag that is pushed afterwards. `false` (and no change) when the packet
    /// cannot be written.
    pub fn request<P: PacketBuf>(&self, packet: &mut P, vlan: u8) -> bool {
        let h = &self.headers;
        let sum = l4::pseudo_header(h, packet.head(), h.l4_total_len()).map(Sum::fold);
        if !sum.is_some_and(|sum| l4::write(h, packet.head_mut(), sum)) {
            return false;
        }
        if h.l3 == L3::Ipv4
            && packet.rx_facts().l3_checksum == ChecksumState::Partial
            && let Some(header) =
                packet.head_mut().get_mut(usize::from(h.l3_offset)..usize::from(h.l4_offset))
        {
            ipv4::fill_checksum(header);
        }
        packet.request_tx(TxRequest { l2_len: h.l3_offset + vlan, ..self.tx_request() });
        true
    }

    /// Readies the super-frame to be sent inside a tunnel of VxLAN by a device that cuts it there: makes the request, and leaves in
    /// the checksum fields what DPDK's drivers want of TSO, zero in IPv4's and the pseudo-header sum without a length in TCP's
    /// (`rte_ipv4_phdr_cksum`). The headers of the tunnel are put in front afterwards. `false` (and no change) when the packet
    /// cannot be written.
    pub fn request_in_tunnel<P: PacketBuf>(&self, packet: &mut P, outer: OuterHeaders) -> bool {
        let h = &self.headers;
        let sum = l4::pseudo_header(h, packet.head(), 0).map(Sum::fold);
        if !sum.is_some_and(|sum| l4::write(h, packet.head_mut(), sum)) {
            return false;
        }
        let is_ipv4 = h.l3 == L3::Ipv4;
        if is_ipv4 && let Some(ip) = ipv4::Header::view_mut_at(packet.head_mut(), usize::from(h.l3_offset)) {
            ip.checksum.set(0);
        }
        packet.request_tx(TxRequest {
            l2_len: UDP_VXLAN + h.l3_offset,
            ipv4_checksum: is_ipv4,
            outer: Some(outer),
            ..self.tx_request()
        });
        true
    }

    /// What is the same in every request.
    fn tx_request(&self) -> TxRequest {
        let h = &self.headers;
        TxRequest {
            l2_len: h.l3_offset,
            l3_len: h.l4_offset - u16::from(h.l3_offset),
            l4_len: h.l4_len,
            ipv4_checksum: false,
            l4_checksum: Some(L4Checksum::Tcp),
            tso_size: self.size,
            ipv6: h.l3 == L3::Ipv6,
            outer: None,
        }
    }

    /// Bytes of data in each piece but the last.
    pub fn segment_size(&self) -> u16 {
        self.size
    }
}
