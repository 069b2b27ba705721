//! [`VnetHeader`]: `struct virtio_net_hdr` (VIRTIO 1.2 section 5.1.6), which the kernel puts in front of a frame, and expects
//! there, once a packet socket has `PACKET_VNET_HDR`: which checksum is unfinished, and into what segments a frame is cut.

use wire::{PacketBuf, checksum};

use crate::flags;
use crate::mbuf::{Mbuf, Segment};

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Offset of the checksum within the TCP header (RFC 9293 section 3.1), and within the UDP header (RFC 768).
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
/// Byte 13 of the TCP header holds the flags; CWR is its highest bit (RFC 3168 section 6.1).
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

/// The header, fields in the byte order of the host: the legacy form, which packet sockets speak on x86.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    /// Bytes of all headers of a frame that is cut, else 0.
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

/// Bytes of the header in memory.
pub(crate) const VNET_BYTES: usize = size_of::<VnetHeader>();

impl VnetHeader {
    /// Reads a header.
    pub(crate) fn read(bytes: [u8; VNET_BYTES]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    /// Completes a checksum that is not the outermost one: a tunnel device of the kernel leaves that of the tenant's packet
    /// unfinished, and has computed the outer one as if it were there. Returns what is still to be said of the packet. Super-frames
    /// stay as they are, since their outer checksum, too, is left to whoever cuts them.
    pub(crate) fn complete_inner(self, packet: &mut Mbuf) -> Self {
        const UDP: u8 = 17;
        let (start, field) = (usize::from(self.checksum_start), usize::from(self.checksum_offset));
        let l4 = match packet.head().get(12..24) {
            Some([0x08, 0x00, version, .., UDP]) => 14 + usize::from(version & 0x0f) * 4,
            Some([0x86, 0xdd, _, _, _, _, _, _, UDP, ..]) => 14 + 40,
            _ => return self,
        };
        if self.flags & NEEDS_CSUM == 0 || self.gso_type != GSO_NONE || start <= l4 {
            return self;
        }
        let len = packet.len().saturating_sub(start);
        // The field holds the pseudo-header sum: summing everything as it is gives the whole.
        let Some(sum) = checksum::sum_range(packet.segments(), start, len) else { return self };
        let Some(place) = packet.head_mut().get_mut(start + field..start + field + 2) else { return self };
        // A datagram's checksum of 0 would mean that it has none (RFC 768).
        let value =
            if field == usize::from(UDP_CHECKSUM) && sum.checksum() == 0 { 0xffff } else { sum.checksum() };
        place.copy_from_slice(&value.to_be_bytes());
        Self { flags: self.flags & !NEEDS_CSUM, ..self }
    }

    /// Tells the pipeline, by the flags of the packet's first segment, what the header says. A frame to be cut into anything but TCP
    /// segments says so too: what becomes of it is the pipeline's business, not to be lost here.
    pub(crate) fn tell(self, head: Segment) {
        let checksum = match self.flags & (NEEDS_CSUM | DATA_VALID) {
            0 => 0,
            DATA_VALID => flags::RX_L4_GOOD,
            _ => flags::RX_L4_NONE,
        };
        let is_cut = self.gso_type & !GSO_ECN != GSO_NONE;
        if is_cut {
            // A size of 0 would read as "not to be cut".
            head.set_tx_offload(u64::from(self.gso_size.max(1)) << flags::TSO_SEGSZ_SHIFT);
        }
        head.set_flags(head.flags() | checksum | if is_cut { flags::RX_LRO } else { 0 });
    }

    /// Of frames that go as one: TCP segments, or datagrams.
    pub(super) fn of_run(is_ipv6: bool, is_tcp: bool, header_len: u16, gso_size: u16, l4: u16) -> Self {
        Self {
            flags: NEEDS_CSUM,
            gso_type: match (is_tcp, is_ipv6) {
                (true, false) => GSO_TCPV4,
                (true, true) => GSO_TCPV6,
                (false, _) => GSO_UDP_L4,
            },
            header_len,
            gso_size,
            checksum_start: l4,
            checksum_offset: if is_tcp { TCP_CHECKSUM } else { UDP_CHECKSUM },
        }
    }

    /// Of a frame whose checksum is to be completed.
    pub(super) fn partial() -> Self {
        Self { flags: NEEDS_CSUM, ..Self::default() }
    }

    /// The size of the datagrams that a frame is to be cut into, where it is to be cut into datagrams.
    pub(super) fn datagrams(self) -> Option<u16> {
        (self.gso_type == GSO_UDP_L4 && self.gso_size > 0).then_some(self.gso_size)
    }

    /// Whether the checksum that is to be completed is that of a datagram whose header begins there.
    pub(super) fn is_datagram_at(self, l4: usize) -> bool {
        let is_there = usize::from(self.checksum_start) == l4 && self.checksum_offset == UDP_CHECKSUM;
        is_there && self.flags & NEEDS_CSUM != 0
    }

    /// What a packet asks its device for.
    pub(crate) fn of(head: Segment) -> Self {
        let bits = head.flags();
        if bits & (flags::TX_L4_MASK | flags::TX_TCP_SEG) == 0 {
            return Self::default();
        }
        let lengths = head.tx_offload();
        let l2 = (lengths & flags::L2_LEN_MASK) as u16;
        let l3 = (lengths >> flags::L3_LEN_SHIFT & flags::L3_LEN_MASK) as u16;
        let start = l2 + l3;
        let is_udp = bits & flags::TX_L4_MASK == flags::TX_UDP_CKSUM;
        let mut header = Self {
            flags: NEEDS_CSUM,
            checksum_start: start,
            checksum_offset: if is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM },
            ..Self::default()
        };
        if bits & flags::TX_TCP_SEG != 0 {
            // SAFETY: the segment belongs to the packet that the caller has, and nobody writes it now.
            let bytes = unsafe { head.bytes() };
            let has_cwr = bytes.get(usize::from(start) + TCP_FLAGS).is_some_and(|flags| flags & CWR != 0);
            header.gso_type = if bits & flags::TX_IPV6 != 0 { GSO_TCPV6 } else { GSO_TCPV4 };
            header.gso_type |= if has_cwr { GSO_ECN } else { 0 };
            header.gso_size = (lengths >> flags::TSO_SEGSZ_SHIFT) as u16;
            header.header_len = start + (lengths >> flags::L4_LEN_SHIFT & flags::L4_LEN_MASK) as u16;
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use wire::packet::L4Checksum;
    use wire::{ChecksumState, TxRequest};

    use super::*;
    use crate::testing::pool;

    fn bytes(flags: u8, gso_type: u8, gso_size: u16) -> [u8; VNET_BYTES] {
        let [low, high] = gso_size.to_ne_bytes();
        [flags, gso_type, 0, 0, low, high, 34, 0, 16, 0]
    }

    #[test]
    fn what_the_kernel_says_becomes_facts() {
        let pool = pool("vnet_rx");
        let facts = |flags, gso_type, gso_size| {
            let packet = pool.alloc_from(&[0; 60]).unwrap();
            VnetHeader::read(bytes(flags, gso_type, gso_size)).tell(packet.segment());
            (packet.rx_facts().l4_checksum, packet.rx_facts().gso_size)
        };
        assert_eq!(facts(0, 0, 0), (ChecksumState::Unknown, 0));
        assert_eq!(facts(DATA_VALID, 0, 0), (ChecksumState::Good, 0));
        assert_eq!(facts(NEEDS_CSUM, 0, 1448), (ChecksumState::Partial, 0));
        assert_eq!(facts(NEEDS_CSUM, GSO_TCPV4, 1448), (ChecksumState::Partial, 1448));
        assert_eq!(facts(NEEDS_CSUM, GSO_TCPV6 | GSO_ECN, 1428), (ChecksumState::Partial, 1428));
        assert_eq!(
            facts(NEEDS_CSUM, 5, 1400),
            (ChecksumState::Partial, 1400),
            "UDP is for the pipeline to refuse"
        );
        assert_eq!(facts(0, GSO_TCPV4, 0), (ChecksumState::Unknown, 1), "never mistaken for a whole packet");
    }

    #[test]
    fn an_inner_checksum_is_completed_and_an_outer_one_is_left() {
        let pool = pool("vnet_inner");
        let mut frame = vec![7u8; 14 + 20 + 8 + 8 + 14 + 20 + 20 + 5];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23]) = (0x45, 17);
        let inner = 14 + 20 + 8 + 8 + 14 + 20;
        let complete = |flags, start: usize, gso_type| {
            let mut packet = pool.alloc_from(&frame).unwrap();
            let header = VnetHeader {
                flags,
                gso_type,
                checksum_start: start as u16,
                checksum_offset: TCP_CHECKSUM,
                ..VnetHeader::default()
            };
            let left = header.complete_inner(&mut packet);
            (left.flags, packet.to_vec())
        };
        let (flags, bytes) = complete(NEEDS_CSUM, inner, GSO_NONE);
        assert_eq!(
            (flags, wire::checksum::sum(&frame[inner..]).checksum()),
            (0, u16::from_be_bytes([bytes[inner + 16], bytes[inner + 17]]))
        );
        assert_eq!(
            (&bytes[..inner + 16], &bytes[inner + 18..]),
            (&frame[..inner + 16], &frame[inner + 18..])
        );
        assert_eq!(complete(NEEDS_CSUM, 34, GSO_NONE), (NEEDS_CSUM, frame.clone()), "the outermost one");
        assert_eq!(complete(NEEDS_CSUM, inner, GSO_TCPV4), (NEEDS_CSUM, frame.clone()), "of a super-frame");
        assert_eq!(complete(0, inner, GSO_NONE), (0, frame.clone()), "nothing is unfinished");
        for start in [frame.len() - 17, frame.len(), 60_000] {
            assert_eq!(
                complete(NEEDS_CSUM, start, GSO_NONE),
                (NEEDS_CSUM, frame.clone()),
                "outside at {start}"
            );
        }
    }

    #[test]
    fn what_a_packet_asks_for_becomes_a_header() {
        let pool = pool("vnet_tx");
        let header = |request: TxRequest, tcp_flags: u8| {
            let mut bytes = [0; 66];
            bytes[14 + 20 + TCP_FLAGS] = tcp_flags;
            let mut packet = pool.alloc_from(&bytes).unwrap();
            packet.request_tx(request);
            VnetHeader::of(packet.segment())
        };
        assert_eq!(header(TxRequest::default(), 0), VnetHeader::default());
        let udp =
            TxRequest { l2_len: 14, l3_len: 20, l4_checksum: Some(L4Checksum::Udp), ..TxRequest::default() };
        let wanted = VnetHeader { flags: 1, checksum_start: 34, checksum_offset: 6, ..VnetHeader::default() };
        assert_eq!(header(udp, 0), wanted);
        let tso = TxRequest { l4_checksum: Some(L4Checksum::Tcp), l4_len: 32, tso_size: 1448, ..udp };
        let wanted = VnetHeader {
            flags: 1,
            gso_type: 1,
            header_len: 66,
            gso_size: 1448,
            checksum_start: 34,
            checksum_offset: 16,
        };
        assert_eq!(header(tso, 0x10), wanted);
        assert_eq!(header(tso, 0x90), VnetHeader { gso_type: 0x81, ..wanted });
        assert_eq!(header(TxRequest { ipv6: true, ..tso }, 0), VnetHeader { gso_type: 4, ..wanted });
    }
}
