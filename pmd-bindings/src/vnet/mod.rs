//! [`VnetHeader`]: `struct virtio_net_hdr` (VIRTIO 1.2 section 5.1.6), which the kernel puts in front of a frame, and expects
//! there, once a packet socket has `PACKET_VNET_HDR`, or a tap `IFF_VNET_HDR`: which checksum is unfinished, and into what segments a
//! frame is cut. What goes there with such headers is sent here, too ([`Sender`]).

pub(crate) mod buffers;
pub(crate) mod coalesce;
pub(crate) mod nested;
mod send;
mod tunnel;

pub(crate) use send::{Outlet, Sender};
use wire::segment::MAX_PIECES;
use wire::{PacketBuf, checksum, sctp};

use crate::flags;
use crate::mbuf::{Mbuf, Segment};

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// Super-frames inside a tunnel of UDP (VIRTIO 1.4 section 5.1.6, `VIRTIO_NET_F_HOST_UDP_TUNNEL_GSO`; Linux 6.17): the version of IP
/// outside, and whether the outer UDP checksum is to be completed, too.
const GSO_UDP_TUNNEL_IPV4: u8 = 0x20;
const GSO_UDP_TUNNEL_IPV6: u8 = 0x40;
const UDP_TUNNEL_CSUM: u8 = 8;

/// Offset of the checksum within the TCP header (RFC 9293 section 3.1), and within the UDP header (RFC 768).
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
/// Offset of the CRC32c within the SCTP header (RFC 9260 section 3.1).
const SCTP_CHECKSUM: usize = 8;
const PROTO_TCP: u8 = 6;
const PROTO_UDP: u8 = 17;
const PROTO_SCTP: u8 = 132;
const ETHERNET: usize = 14;
const IPV6: usize = 40;
/// Byte 13 of the TCP header holds the flags; CWR is its highest bit (RFC 3168 section 6.1).
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

/// The header, fields in the byte order of the host: the legacy form, which packet sockets and taps speak on x86.
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
    /// From here on it goes with frames only where both sides know of tunnels (`struct virtio_net_hdr_v1_hash_tunnel`): the number of
    /// buffers, a hash and what kind of hash, none of which is said.
    unsaid: [u16; 5],
    /// Of a super-frame in a tunnel: where its outer UDP header begins, and its inner IP header.
    outer_transport: u16,
    inner_network: u16,
}

/// The longest frame that is an IP packet: 65,535 bytes, an Ethernet header and two tags.
pub(crate) const LONGEST: usize = 65_535 + 22;

/// Bytes of frames after which a burst from the kernel ends: super-frames of one container do not hold up the ports of others.
pub(crate) const RECEIVED_AT_ONCE: usize = 128 << 10;

/// Bytes of the header as packet sockets have it, and taps that are told nothing of tunnels.
pub(crate) const VNET_BYTES: usize = 10;
/// Bytes of the header where both sides know of tunnels.
pub(crate) const VNET_TUNNEL_BYTES: usize = size_of::<VnetHeader>();

impl VnetHeader {
    /// Reads a header, as far as packet sockets have it: what only longer ones have says where the headers of a tunnel are, which the frame
    /// says as well.
    pub(crate) fn read<const N: usize>(bytes: [u8; N]) -> Self {
        const { assert!(N >= VNET_BYTES) };
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
            ..Self::default()
        }
    }

    /// Completes a checksum that is not that of the packet's own TCP or UDP, which the pipeline completes: of a packet in a tunnel, whose
    /// device in the container has computed the outer one as if it were there; of a tunnel's own header; of SCTP, for whose CRC the header
    /// has no word. Returns what is still to be said of the packet; `None` of one that nobody could complete. Super-frames stay as they
    /// are: the pipeline cuts the outermost TCP, and what is in a tunnel is cut before it gets there ([`Nested`](nested::Nested)).
    pub(crate) fn complete(self, packet: &mut Mbuf) -> Option<Self> {
        let (start, field) = (usize::from(self.checksum_start), usize::from(self.checksum_offset));
        if self.flags & NEEDS_CSUM == 0
            || self.gso_type != GSO_NONE
            || is_outermost(packet.head(), start, field)
        {
            return Some(self);
        }
        let done = Self { flags: self.flags & !NEEDS_CSUM, ..self };
        if field == SCTP_CHECKSUM {
            // Behind options or extension headers it is not to be told from a sum at this place.
            let is_told = is_sctp_in(packet.head(), start);
            let crc = sctp::checksum(packet.segments(), start).filter(|_| is_told)?;
            return put(packet, start + field, crc.to_le_bytes()).then_some(done);
        }
        // The field holds the pseudo-header sum, if there is to be one: summing everything as it is gives the whole.
        let sum = checksum::sum_range(packet.segments(), start, packet.len().checked_sub(start)?)?.checksum();
        let value = if field == usize::from(UDP_CHECKSUM) { checksum::udp(sum) } else { sum };
        put(packet, start + field, value.to_be_bytes()).then_some(done)
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
    pub(crate) fn of_run(is_ipv6: bool, is_tcp: bool, header_len: u16, gso_size: u16, l4: u16) -> Self {
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
            ..Self::default()
        }
    }

    /// Of a frame whose checksum is to be completed.
    pub(crate) fn partial() -> Self {
        Self { flags: NEEDS_CSUM, ..Self::default() }
    }

    /// What a frame of so many bytes counts for where bytes end a burst: as much as its pieces would, of which its sender may want many
    /// small ones.
    pub(crate) fn weight(self, len: usize) -> usize {
        const PIECE: usize = 1024;
        match self.gso_type {
            GSO_NONE => len,
            _ => len.max(len.div_ceil(usize::from(self.gso_size).max(1)).min(MAX_PIECES) * PIECE),
        }
    }

    /// The size of the datagrams that a frame is to be cut into, where it is to be cut into datagrams.
    pub(crate) fn datagrams(self) -> Option<u16> {
        (self.gso_type == GSO_UDP_L4 && self.gso_size > 0).then_some(self.gso_size)
    }

    /// Whether the checksum that is to be completed is that of a datagram whose header begins there.
    pub(crate) fn is_datagram_at(self, l4: usize) -> bool {
        let is_there = usize::from(self.checksum_start) == l4 && self.checksum_offset == UDP_CHECKSUM;
        is_there && self.flags & NEEDS_CSUM != 0
    }

    /// What a packet asks its device for.
    pub(crate) fn of(head: Segment) -> Self {
        let bits = head.flags();
        if bits & (flags::TX_L4_MASK | flags::TX_TCP_SEG) == 0 {
            return Self::default();
        }
        if bits & flags::TX_TUNNEL_VXLAN != 0 {
            return tunnel::header(head);
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
            header.cut_tcp(head, start);
        }
        header
    }

    /// Has a packet cut into TCP segments, as it asks; its TCP header begins at `start`.
    fn cut_tcp(&mut self, head: Segment, start: u16) {
        let lengths = head.tx_offload();
        // SAFETY: the segment belongs to the packet that the caller has, and nobody writes it now.
        let bytes = unsafe { head.bytes() };
        let has_cwr = bytes.get(usize::from(start) + TCP_FLAGS).is_some_and(|flags| flags & CWR != 0);
        self.gso_type = if head.flags() & flags::TX_IPV6 != 0 { GSO_TCPV6 } else { GSO_TCPV4 };
        self.gso_type |= if has_cwr { GSO_ECN } else { 0 };
        self.gso_size = (lengths >> flags::TSO_SEGSZ_SHIFT) as u16;
        self.header_len = start + (lengths >> flags::L4_LEN_SHIFT & flags::L4_LEN_MASK) as u16;
    }
}

/// Whether a checksum is that of the TCP or UDP of an IP packet which is not in a tunnel, behind no extension header, and no fragment.
fn is_outermost(head: &[u8], start: usize, field: usize) -> bool {
    let (l4, protocol) = match head.get(12..24) {
        Some([0x08, 0x00, version, _, _, _, _, _, flags, 0, _, protocol]) if flags & 0x3f == 0 => {
            (ETHERNET + usize::from(version & 0x0f) * 4, *protocol)
        }
        Some([0x86, 0xdd, _, _, _, _, _, _, next_header, ..]) => (ETHERNET + IPV6, *next_header),
        _ => return false,
    };
    let own = match protocol {
        PROTO_TCP => TCP_CHECKSUM,
        PROTO_UDP => UDP_CHECKSUM,
        _ => return false,
    };
    (start, field) == (l4, own.into())
}

/// Whether an IP header in front of `start` says that SCTP comes there: IPv4 with or without options, or IPv6.
fn is_sctp_in(head: &[u8], start: usize) -> bool {
    let byte = |back: usize, at: usize| start.checked_sub(back).and_then(|ip| head.get(ip + at)).copied();
    let in_v4 = (5..=15u8).any(|words| {
        let back = usize::from(words) * 4;
        byte(back, 0) == Some(0x40 | words) && byte(back, 9) == Some(PROTO_SCTP)
    });
    in_v4 || byte(IPV6, 0).is_some_and(|first| first >> 4 == 6) && byte(IPV6, 6) == Some(PROTO_SCTP)
}

/// The folded sum of the pseudo header of TCP or UDP (RFC 9293 section 3.1, RFC 768, RFC 8200 section 8.1), over so many bytes from its
/// header on, behind the IP header with which `ip` begins.
pub(crate) fn pseudo_header(ip: &[u8], protocol: u8, length: usize) -> Option<u16> {
    let sum = if ip.first()? >> 4 == 6 {
        let (src, dst) = (ip.get(8..24)?.try_into().ok()?, ip.get(24..40)?.try_into().ok()?);
        checksum::pseudo_v6(src, dst, protocol, u32::try_from(length).ok()?)
    } else {
        let (src, dst) = (ip.get(12..16)?.try_into().ok()?, ip.get(16..20)?.try_into().ok()?);
        checksum::pseudo_v4(src, dst, protocol, u16::try_from(length).ok()?)
    };
    Some(sum.fold())
}

/// Writes a field of two bytes of a header; `None` where there is none.
fn put_word(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}

/// Writes into the first segment; `false` where it does not reach so far.
fn put<const N: usize>(packet: &mut Mbuf, at: usize, value: [u8; N]) -> bool {
    let place = packet.head_mut().get_mut(at..at + N);
    place.map(|place| place.copy_from_slice(&value)).is_some()
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
    fn a_checksum_that_is_not_the_outermost_one_is_completed() {
        let pool = pool("vnet_inner");
        let mut frame = vec![7u8; 14 + 20 + 8 + 8 + 14 + 20 + 20 + 5];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[20], frame[21], frame[23]) = (0x45, 0x40, 0, 17);
        let inner = 14 + 20 + 8 + 8 + 14 + 20;
        let complete = |frame: &[u8], flags, start: usize, offset, gso_type| {
            let mut packet = pool.alloc_from(frame).unwrap();
            let header = VnetHeader {
                flags,
                gso_type,
                checksum_start: start as u16,
                checksum_offset: offset,
                ..VnetHeader::default()
            };
            let left = header.complete(&mut packet)?;
            Some((left.flags, packet.to_vec()))
        };
        // In a tunnel of any kind, the tunnel's own (GRE), of ICMPv6 and whatever else.
        for (start, offset) in [(inner, 16), (inner, 6), (34, 4), (34, 2), (34, 16), (21, 33), (0, 60)] {
            let (flags, bytes) = complete(&frame, NEEDS_CSUM, start, offset, GSO_NONE).unwrap();
            let at = start + usize::from(offset);
            let wanted = checksum::sum(&frame[start..]).checksum();
            assert_eq!((flags, u16::from_be_bytes([bytes[at], bytes[at + 1]])), (0, wanted));
            assert_eq!((&bytes[..at], &bytes[at + 2..]), (&frame[..at], &frame[at + 2..]));
        }
        let left = Some((NEEDS_CSUM, frame.clone()));
        assert_eq!(complete(&frame, NEEDS_CSUM, 34, 6, GSO_NONE), left, "the outermost one");
        assert_eq!(complete(&frame, NEEDS_CSUM, inner, 16, GSO_TCPV4), left, "of a super-frame");
        assert_eq!(
            complete(&frame, 0, inner, 16, GSO_NONE),
            Some((0, frame.clone())),
            "nothing is unfinished"
        );
        for start in [frame.len() - 17, frame.len(), 60_000] {
            assert_eq!(complete(&frame, NEEDS_CSUM, start, 16, GSO_NONE), None, "outside at {start}");
        }
        // Of a fragment nobody else would complete it.
        let mut fragment = frame.clone();
        fragment[20] = 0x20;
        assert_eq!(complete(&fragment, NEEDS_CSUM, 34, 6, GSO_NONE).unwrap().0, 0);
    }

    #[test]
    fn a_crc_of_sctp_is_completed_where_it_can_be_told() {
        let pool = pool("vnet_sctp");
        let complete = |ip: &[u8], start: usize| {
            let mut frame = vec![2u8; start + 12 + 40];
            frame[start + 8..start + 12].fill(0);
            let at = start.saturating_sub(ip.len());
            frame[at..start].copy_from_slice(ip);
            let mut packet = pool.alloc_from(&frame).unwrap();
            let header = VnetHeader {
                checksum_start: start as u16,
                checksum_offset: SCTP_CHECKSUM as u16,
                ..VnetHeader::partial()
            };
            header.complete(&mut packet)?;
            let bytes = packet.to_vec();
            let crc = sctp::checksum([&frame[..]], start).unwrap();
            assert_eq!(bytes[start + 8..start + 12], crc.to_le_bytes());
            assert_eq!(
                (&bytes[..start + 8], &bytes[start + 12..]),
                (&frame[..start + 8], &frame[start + 12..])
            );
            Some(())
        };
        let v4 = |words: u8, protocol| {
            let mut ip = vec![0; usize::from(words) * 4];
            (ip[0], ip[9]) = (0x40 | words, protocol);
            ip
        };
        let v6 = |next_header| {
            let mut ip = vec![0; 40];
            (ip[0], ip[6]) = (0x60, next_header);
            ip
        };
        for (ip, start, is_told) in [
            (v4(5, 132), 34, true),
            (v4(7, 132), 42, true),
            (v4(5, 132), 84, true),
            (v6(132), 54, true),
            (v6(132), 130, true),
            (v4(5, 47), 34, false),
            (v6(60), 62, false),
            (vec![], 3, false),
        ] {
            assert_eq!(complete(&ip, start).is_some(), is_told, "{ip:?} at {start}");
        }
    }

    #[test]
    fn a_frame_counts_for_its_pieces() {
        let weight = |gso_type, gso_size, len| VnetHeader::read(bytes(0, gso_type, gso_size)).weight(len);
        assert_eq!((weight(GSO_NONE, 8, 1514), weight(GSO_TCPV4, 1448, 60_000)), (1514, 60_000));
        assert_eq!(
            (weight(GSO_TCPV4 | GSO_ECN, 100, 1000), weight(GSO_UDP_L4, 500, 1400)),
            (10 << 10, 3 << 10)
        );
        assert_eq!((weight(GSO_TCPV6, 8, 65_535), weight(GSO_TCPV6, 0, 60)), (MAX_PIECES << 10, 60 << 10));
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
            ..VnetHeader::default()
        };
        assert_eq!(header(tso, 0x10), wanted);
        assert_eq!(header(tso, 0x90), VnetHeader { gso_type: 0x81, ..wanted });
        assert_eq!(header(TxRequest { ipv6: true, ..tso }, 0), VnetHeader { gso_type: 4, ..wanted });
    }
}
