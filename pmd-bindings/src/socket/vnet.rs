//! [`VnetHeader`]: `struct virtio_net_hdr` (VIRTIO 1.2 section 5.1.6), which the kernel puts in front of a frame, and expects
//! there, once a packet socket has `PACKET_VNET_HDR`: which checksum is unfinished, and into what segments a frame is cut.

use crate::flags;
use crate::mbuf::Segment;

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
    use wire::{ChecksumState, PacketBuf, TxRequest};

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
