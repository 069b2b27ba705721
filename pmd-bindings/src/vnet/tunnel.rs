//! Super-frames inside VxLAN, of which the kernel, or a NIC behind it, gives each piece its own headers, those of the tunnel included.
//!
//! A packet asks for it as it does of DPDK's drivers, and they want checksum fields that suit their devices. The kernel may also hand
//! the whole to somebody who takes it as it is: every field is that of the whole then, and TCP's checksum is unfinished (Linux
//! `CHECKSUM_PARTIAL`), and so is the outer one of UDP if there is one.

use wire::{ipv4, protocol};

use super::{GSO_UDP_TUNNEL_IPV4, GSO_UDP_TUNNEL_IPV6, NEEDS_CSUM, TCP_CHECKSUM, UDP_CHECKSUM};
use super::{UDP_TUNNEL_CSUM, VnetHeader, pseudo_header, put_word};
use crate::flags;
use crate::mbuf::Segment;

/// Where the headers of such a packet begin, in bytes from its beginning.
#[derive(Clone, Copy)]
struct Layout {
    outer_ip: usize,
    outer_udp: usize,
    inner_ip: usize,
    tcp: usize,
}

impl Layout {
    fn of(head: Segment) -> Self {
        let lengths = head.tx_offload();
        // None has more than nine bits.
        let field = |shift: u32, mask: u64| (lengths >> shift & mask) as usize;
        let outer_ip = field(flags::OUTER_L2_LEN_SHIFT, flags::OUTER_L2_LEN_MASK);
        let outer_udp = outer_ip + field(flags::OUTER_L3_LEN_SHIFT, flags::OUTER_L3_LEN_MASK);
        // To DPDK, UDP and VxLAN are part of the inner layer 2.
        let inner_ip = outer_udp + field(0, flags::L2_LEN_MASK);
        let tcp = inner_ip + field(flags::L3_LEN_SHIFT, flags::L3_LEN_MASK);
        Self { outer_ip, outer_udp, inner_ip, tcp }
    }
}

/// What such a packet asks the kernel for.
pub(super) fn header(head: Segment) -> VnetHeader {
    let (bits, layout) = (head.flags(), Layout::of(head));
    let has_outer_sum = bits & flags::TX_OUTER_UDP_CKSUM != 0;
    // Sums of four fields of nine bits at most.
    let mut header = VnetHeader {
        flags: NEEDS_CSUM | if has_outer_sum { UDP_TUNNEL_CSUM } else { 0 },
        checksum_start: layout.tcp as u16,
        checksum_offset: TCP_CHECKSUM,
        outer_transport: layout.outer_udp as u16,
        inner_network: layout.inner_ip as u16,
        ..VnetHeader::default()
    };
    header.cut_tcp(head, header.checksum_start);
    header.gso_type |=
        if bits & flags::TX_OUTER_IPV6 != 0 { GSO_UDP_TUNNEL_IPV6 } else { GSO_UDP_TUNNEL_IPV4 };
    header
}

/// Writes the checksum fields of such a packet as the kernel wants them, also if that was done before. `None` where its headers are not
/// what it asks for, or not its own: the kernel is to judge it then.
pub(super) fn complete(head: Segment) -> Option<()> {
    if !head.is_writable() {
        return None;
    }
    let (bits, layout, whole) = (head.flags(), Layout::of(head), head.pkt_len() as usize);
    // SAFETY: the caller has the packet, whose first segment nobody else has.
    let bytes = unsafe { head.bytes_mut() };
    if bits & flags::TX_OUTER_IPV4 != 0 {
        ipv4::fill_checksum(bytes.get_mut(layout.outer_ip..layout.outer_udp)?).then_some(())?;
    }
    if bits & flags::TX_IPV4 != 0 {
        ipv4::fill_checksum(bytes.get_mut(layout.inner_ip..layout.tcp)?).then_some(())?;
    }
    let tcp = pseudo_header(bytes.get(layout.inner_ip..)?, protocol::TCP, whole.checked_sub(layout.tcp)?)?;
    put_word(bytes, layout.tcp + usize::from(TCP_CHECKSUM), tcp)?;
    let udp = match bits & flags::TX_OUTER_UDP_CKSUM {
        0 => 0,
        _ => {
            pseudo_header(bytes.get(layout.outer_ip..)?, protocol::UDP, whole.checked_sub(layout.outer_udp)?)?
        }
    };
    put_word(bytes, layout.outer_udp + usize::from(UDP_CHECKSUM), udp)
}
