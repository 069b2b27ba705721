//! The answer "no resources" to a connection manager's REQ (IBTA vol. 1 section 12.6.7), in the receiver's place.
//!
//! Part of the packet path, unlike the rest of [`crate::build`]: it writes into memory of the caller's and never
//! allocates. Whether to answer, and how often, is decided above.

use crate::cm::{Answered, Cm, CmMessage, RejectReason, UDP_PAYLOAD_LEN};
use crate::headers::{Flags, Headers, L3};
use crate::packet::PacketBuf;
use crate::types::Psn;
use crate::view::View;
use crate::{icrc, ipv4, ipv6, l4, parse, protocol, roce, udp};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest frame of a REJ: Ethernet with two tags, IPv6, UDP, and the datagram around the MAD.
pub const MAX_REJECT_LEN: usize = 22 + ipv6::HEADER_LEN + udp::HEADER_LEN + UDP_PAYLOAD_LEN;

/// What a REJ says beyond what it takes from the REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Reason code (IBTA vol. 1 section 12.6.7.2).
    pub reason: RejectReason,
    /// PSN of the packet. Queue pair 1 is unreliable: any will do.
    pub psn: Psn,
    /// Communication id of the receiver; one that made no state for the REQ gives zero.
    pub local_comm_id: u32,
}

impl Default for Reject {
    fn default() -> Self {
        Self { reason: RejectReason::NO_RESOURCES, psn: Psn::default(), local_comm_id: 0 }
    }
}

/// Writes the REJ that answers the REQ in `request` to the start of `out` and returns its length.
///
/// It goes back the way the REQ came: MACs and addresses swapped, same tags, partition key and UDP ports, the
/// REQ's DSCP but no ECN, without IP options and extension headers. UDP checksum 0 over IPv4, a real one over
/// IPv6. `None` when the frame is no REQ in one piece between two single stations.
pub fn cm_reject(h: &Headers, request: &[u8], with: Reject, out: &mut [u8; MAX_REJECT_LEN]) -> Option<usize> {
    let asked = Cm::of(h, request).ok()?;
    let CmMessage::Req(req) = asked.message else { return None };
    let eth = h.ethernet(request)?;
    if !eth.src.is_station() || !eth.dst.is_station() || h.is(Flags::SOURCE_ROUTED) {
        return None;
    }
    let message = CmMessage::Rej {
        local_comm_id: with.local_comm_id,
        remote_comm_id: req.local_comm_id,
        answers: Answered::Req,
        reason: with.reason,
    };
    let rej = Cm { psn: with.psn, src_qp: roce::QP_GSI, message, ..asked };

    let mut frame = Writer { out, len: 0 };
    frame.put(&eth.src.0)?;
    frame.put(&eth.dst.0)?;
    // The tags and the EtherType.
    frame.put(request.get(12..usize::from(h.l3_offset))?)?;
    const L4_LEN: u16 = (udp::HEADER_LEN + UDP_PAYLOAD_LEN) as u16;
    match h.l3 {
        L3::Ipv4 => {
            let ip = h.ipv4(request).filter(|ip| is_station_v4(ip.src()) && is_station_v4(ip.dst()))?;
            let mut back = ipv4::Header::new(ip.dst(), ip.src(), protocol::UDP, L4_LEN);
            back.tos = h.tos & 0xfc;
            back.fill_checksum();
            frame.put(back.bytes())?;
        }
        L3::Ipv6 => {
            let ip = h.ipv6(request).filter(|ip| is_station_v6(ip.src()) && is_station_v6(ip.dst()))?;
            let mut back = ipv6::Header::new(ip.dst(), ip.src(), protocol::UDP, L4_LEN);
            back.set_traffic_class(h.tos & 0xfc);
            frame.put(back.bytes())?;
        }
        L3::None | L3::Arp => return None,
    }
    frame.put(udp::Header::new(h.sport, h.dport, UDP_PAYLOAD_LEN as u16).bytes())?;
    let (bth, deth) = rej.headers();
    frame.put(bth.bytes())?;
    frame.put(deth.bytes())?;
    frame.put(&rej.mad())?;
    frame.put(&[0; roce::ICRC_LEN])?;

    let len = frame.len;
    let frame = out.get_mut(..len)?;
    let headers = parse::parse(frame, len).ok()?;
    let filled = icrc::fill(&headers, frame) && (h.l3 == L3::Ipv4 || l4::fill(&headers, frame));
    filled.then_some(len)
}

/// Turns the packet with a REQ into its REJ, see [`cm_reject`]. `false` (and no change) when it is no REQ, does
/// not lie in one segment, or is shared.
pub fn cm_reject_in_place<P: PacketBuf>(packet: &mut P, h: &Headers, with: Reject) -> bool {
    in_place(packet, h, with).is_some()
}

fn in_place<P: PacketBuf>(packet: &mut P, h: &Headers, with: Reject) -> Option<()> {
    let have = packet.len();
    if packet.is_shared() || packet.head().len() != have {
        return None;
    }
    let mut frame = [0; MAX_REJECT_LEN];
    let len = cm_reject(h, packet.head(), with, &mut frame)?;
    // A REQ is never shorter than its REJ: that has the same headers less options, and no trailer.
    packet.trim_back(have.checked_sub(len)?).then_some(())?;
    packet.head_mut().get_mut(..len)?.copy_from_slice(frame.get(..len)?);
    Some(())
}

fn is_station_v4(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast() && !address.is_loopback()
}

fn is_station_v6(address: Ipv6Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

/// Fills a buffer from its start on.
struct Writer<'a> {
    out: &'a mut [u8; MAX_REJECT_LEN],
    len: usize,
}

impl Writer<'_> {
    /// Appends `bytes`; `None` when they do not fit.
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len + bytes.len();
        self.out.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        Some(())
    }
}
