//! Frames: a template of each length and kind, copied and patched for every packet.
//!
//! A patch sets what belongs to the flow and the packet, and puts checksums and the ICRC right. Everything else stands
//! in the template, which `wire` composed.

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::build::Path;
use wire::checksum::{self, Sum};
use wire::roce::{self, Bth};
use wire::{Headers, MacAddr, Psn, Qpn, View, Vni, icrc, l4, tcp};

use super::mark;
use super::scenario::Protocol;
use super::tuple::Tuple;

/// Bytes of the tunnel's headers: Ethernet, IPv4, UDP, VxLAN.
pub const TUNNEL: usize = 50;
/// Bytes of the frame check sequence, which no buffer holds.
pub const FCS: usize = 4;
const IPV4: usize = 20;
const QKEY: u32 = 0x1111_1111;
/// The opcode of acknowledgements.
pub(super) const ACK: u8 = roce::opcode::RC_ACK;

/// What the frames of a stream have in common.
#[derive(Debug, Clone)]
pub struct Shape {
    /// What they are; not a capture.
    pub protocol: Protocol,
    pub v6: bool,
    pub tos: u8,
    pub vlan: Option<u16>,
    /// TCP: SYN.
    pub syn: bool,
    pub tunnel: Option<Outer>,
}

/// The outer headers of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct Outer {
    pub src: (MacAddr, Ipv4Addr),
    pub dst: (MacAddr, Ipv4Addr),
}

impl Shape {
    /// IPv4 frames without VLAN tag or tunnel.
    pub const fn plain(protocol: Protocol, tos: u8) -> Self {
        Self { protocol, v6: false, tos, vlan: None, syn: false, tunnel: None }
    }

    /// Bytes in front of the payload, in memory and without the tunnel.
    pub fn headers_len(&self, opcode: u8) -> usize {
        let below = 14 + if self.vlan.is_some() { 4 } else { 0 } + if self.v6 { 40 } else { IPV4 };
        below
            + match self.protocol {
                Protocol::Tcp => tcp::HEADER_LEN,
                Protocol::RoceRc | Protocol::RoceUd => {
                    wire::udp::HEADER_LEN
                        + roce::BTH_LEN
                        + roce::opcode::extended_len(opcode).unwrap_or_default()
                }
                Protocol::Udp | Protocol::Pcap => wire::udp::HEADER_LEN,
            }
    }

    /// The least length of a frame with its signature, frame check sequence included.
    pub fn least(&self, opcode: u8) -> usize {
        let icrc = if self.protocol.is_roce() { mark::ICRC } else { 0 };
        (self.headers_len(opcode) + mark::LEN + icrc + FCS).max(64)
    }

    fn path(&self) -> Path {
        let nobody = MacAddr::ZERO;
        let path = if self.v6 {
            Path::v6((nobody, Ipv6Addr::UNSPECIFIED), (nobody, Ipv6Addr::UNSPECIFIED))
        } else {
            Path::v4((nobody, Ipv4Addr::UNSPECIFIED), (nobody, Ipv4Addr::UNSPECIFIED))
        };
        let path = path.with_tos(self.tos);
        match self.vlan {
            Some(id) => path.tagged(id),
            None => path,
        }
    }

    /// The frame without tunnel, all that changes being zero. `size` includes the frame check sequence.
    fn inner(&self, size: usize, opcode: u8, packets: usize) -> Vec<u8> {
        let icrc = if self.protocol.is_roce() { mark::ICRC } else { 0 };
        let payload = vec![0; (size - FCS).saturating_sub(self.headers_len(opcode) + icrc)];
        let path = self.path();
        match self.protocol {
            Protocol::Tcp => {
                let flags = if self.syn { tcp::flags::SYN } else { tcp::flags::ACK | tcp::flags::PSH };
                path.tcp_segment(&tcp::Header::new(0, 0, 0, u32::from(!self.syn), flags), &payload)
            }
            Protocol::Udp | Protocol::Pcap => path.udp(0, 0, &payload),
            Protocol::RoceRc | Protocol::RoceUd => {
                let mut bth = Bth::new(opcode, Qpn::default(), Psn::default());
                bth.set_ack_requested(self.protocol == Protocol::RoceRc && opcode != ACK);
                path.roce(0, bth, &[extended(opcode, payload.len() * packets), payload].concat())
            }
        }
    }
}

/// The extended headers of an opcode: filled where a receiver would look, else zero.
fn extended(opcode: u8, message: usize) -> Vec<u8> {
    let Some(layout) = roce::Extended::of(opcode) else { return Vec::new() };
    let mut bytes = vec![0; layout.len()];
    let mut put = |header: &[u8], at: u8| {
        let at = usize::from(at).checked_sub(roce::BTH_LEN);
        if let Some(place) = at.and_then(|at| bytes.get_mut(at..at + header.len())) {
            place.copy_from_slice(header);
        }
    };
    put(roce::Deth::new(QKEY, Qpn::truncated(0x11)).bytes(), layout.deth);
    put(roce::Reth::new(0x1000, 0x77, message as u32).bytes(), layout.reth);
    put(roce::Aeth::new(0x1f, 0).bytes(), layout.aeth);
    bytes
}

/// A frame of one length and kind.
#[derive(Debug, Clone)]
pub struct Template {
    bytes: Vec<u8>,
    headers: Headers,
    protocol: Protocol,
    v6: bool,
    tunnel: bool,
    /// Where the frame proper begins.
    inner: usize,
    l3: usize,
    l4: usize,
    /// Where the signature is; an acknowledgement has no room for one.
    mark: Option<usize>,
    ip_sum: u16,
    l4_sum: u16,
    /// The signature begins at an odd distance from the L4 header.
    odd: bool,
    step: u32,
}

/// What a packet has for itself.
#[derive(Debug, Clone, Copy)]
pub struct Serial {
    pub number: u32,
    pub psn: u32,
}

impl Template {
    /// The template of frames of `size` bytes, frame check sequence included and without the tunnel; an RDMA write
    /// that begins with one has so many packets. `None` for what [`Shape::least`] does not allow.
    pub fn new(shape: &Shape, size: usize, opcode: u8, packets: usize) -> Option<Self> {
        if size < shape.least(opcode) {
            return None;
        }
        Self::of(shape, size, opcode, packets, true)
    }

    /// The template of acknowledgements of a reliable connection, which are not signed.
    pub fn acknowledgement(shape: &Shape) -> Option<Self> {
        let size = shape.headers_len(ACK) + mark::ICRC + FCS;
        Self::of(shape, size, ACK, 1, false)
    }

    fn of(shape: &Shape, size: usize, opcode: u8, packets: usize, signed: bool) -> Option<Self> {
        let mut frame = shape.inner(size, opcode, packets);
        let headers = wire::parse::parse(&frame, frame.len()).ok()?;
        let (l3, l4_at) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
        let icrc = if shape.protocol.is_roce() { mark::ICRC } else { 0 };
        let end = frame.len();
        if end + FCS != size || headers.l3_end() != end {
            return None;
        }
        let ip_sum = if shape.v6 {
            0
        } else {
            frame[l3 + 10..l3 + 12].fill(0);
            checksum::fold(checksum::sum(&frame[l3..l3 + IPV4]))
        };
        let l4_sum = match l4::field_offset(&headers) {
            Some(field) if !shape.protocol.is_roce() => {
                frame[field..field + 2].fill(0);
                let mut sum = l4::pseudo_header(&headers, &frame, end - l4_at)?;
                sum.add(&frame[l4_at..]);
                checksum::fold(sum)
            }
            _ => 0,
        };
        let mark = if signed { Some(end - icrc - mark::LEN) } else { None };
        let step = (end - headers.payload_offset()) as u32;
        let bytes = match shape.tunnel {
            Some(outer) => Path::v4(outer.src, outer.dst).vxlan(0, Vni::default(), &frame),
            None => frame,
        };
        let inner = bytes.len() - end;
        Some(Self {
            bytes,
            headers,
            protocol: shape.protocol,
            v6: shape.v6,
            tunnel: shape.tunnel.is_some(),
            inner,
            l3: inner + l3,
            l4: inner + l4_at,
            mark: mark.map(|mark| inner + mark),
            ip_sum,
            l4_sum,
            odd: mark.is_some_and(|mark| (mark - l4_at) % 2 == 1),
            step,
        })
    }

    /// Bytes of its frames in memory, tunnel included.
    #[allow(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes a packet into `frame`, which is as long as the template. Always inlined, so that tuple and signature stay in
    /// registers.
    #[inline(always)]
    pub fn write(&self, frame: &mut [u8], tuple: &Tuple, serial: Serial, signature: &mark::Mark) {
        frame.copy_from_slice(&self.bytes);
        if self.tunnel {
            self.write_outer(frame, tuple);
        }
        put(frame, self.inner, &tuple.dst_mac);
        put(frame, self.inner + 6, &tuple.src_mac);
        let mut ports = [0; 4];
        ports[..2].copy_from_slice(&tuple.src_port.to_be_bytes());
        ports[2..].copy_from_slice(&tuple.dst_port.to_be_bytes());
        put(frame, self.l4, &ports);
        let mut changes = Sum::ZERO;
        if self.v6 {
            let (src, dst) = (tuple.src_ip.to_be_bytes(), tuple.dst_ip.to_be_bytes());
            put(frame, self.l3 + 8, &src);
            put(frame, self.l3 + 24, &dst);
            changes.add(&src);
            changes.add(&dst);
        } else {
            let mut pair = [0; 8];
            pair[..4].copy_from_slice(&(tuple.src_ip as u32).to_be_bytes());
            pair[4..].copy_from_slice(&(tuple.dst_ip as u32).to_be_bytes());
            put(frame, self.l3 + 12, &pair);
            changes.add(&pair);
            let mut sum = changes;
            sum.add_u16(self.ip_sum);
            put(frame, self.l3 + 10, &sum.checksum().to_be_bytes());
        }
        let signature = signature.bytes();
        if let Some(mark) = self.mark {
            put(frame, mark, &signature);
        }
        if self.protocol.is_roce() {
            self.finish_roce(frame, tuple, serial);
            return;
        }
        changes.add(&ports);
        changes.add_u16(self.l4_sum);
        if self.protocol == Protocol::Tcp {
            let sequence = serial.number.wrapping_mul(self.step).to_be_bytes();
            put(frame, self.l4 + 4, &sequence);
            changes.add(&sequence);
        }
        if self.odd {
            changes.add(&[0]);
        }
        changes.add(&signature);
        let sum = changes.checksum();
        match self.protocol {
            Protocol::Tcp => put(frame, self.l4 + tcp::CHECKSUM_OFFSET, &sum.to_be_bytes()),
            _ => put(frame, self.l4 + wire::udp::CHECKSUM_OFFSET, &checksum::udp(sum).to_be_bytes()),
        }
    }

    #[inline]
    fn finish_roce(&self, frame: &mut [u8], tuple: &Tuple, serial: Serial) {
        let bth = self.l4 + wire::udp::HEADER_LEN;
        let [_, qp @ ..] = tuple.qp.to_be_bytes();
        let [_, psn @ ..] = serial.psn.to_be_bytes();
        put(frame, bth + 5, &qp);
        put(frame, bth + 9, &psn);
        let inner = &mut frame[self.inner..];
        icrc::fill(&self.headers, inner);
        if self.v6 {
            // Here the UDP checksum is not optional, and it is over the ICRC too.
            l4::fill(&self.headers, inner);
        }
    }

    #[inline]
    fn write_outer(&self, frame: &mut [u8], tuple: &Tuple) {
        put(frame, 34, &(0xc000 | tuple.entropy & 0x3fff).to_be_bytes());
        let [_, vni @ ..] = tuple.vni.to_be_bytes();
        put(frame, 46, &vni);
    }
}

#[inline]
fn put<const N: usize>(frame: &mut [u8], at: usize, bytes: &[u8; N]) {
    frame[at..at + N].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::super::mark::Mark;
    use super::super::parse::{acknowledged, bth_offset, checksums_right, innermost};
    use super::*;
    use wire::roce::opcode;

    const TUPLE: Tuple = Tuple {
        src_mac: [2, 0, 0, 0, 1, 1],
        dst_mac: [2, 0, 0, 0, 1, 2],
        src_ip: 0x0a00_0001,
        dst_ip: 0x0a00_01ff,
        src_port: 0xc123,
        dst_port: 5001,
        qp: 0xab_cdef,
        vni: 0x12_3456,
        entropy: 0x7fff,
    };

    const OUTER: Outer = Outer {
        src: (MacAddr([2, 0, 0, 0, 9, 1]), Ipv4Addr::new(172, 16, 0, 1)),
        dst: (MacAddr([2, 0, 0, 0, 9, 2]), Ipv4Addr::new(172, 16, 0, 2)),
    };

    fn shape(protocol: Protocol, v6: bool) -> Shape {
        Shape { v6, ..Shape::plain(protocol, 0x6a) }
    }

    fn written(shape: &Shape, size: usize, opcode: u8) -> Vec<u8> {
        let template = Template::new(shape, size, opcode, 3).unwrap();
        let mut frame = vec![0xee; template.len()];
        let roce = shape.protocol.is_roce();
        let tuple = Tuple { dst_port: if roce { 4791 } else { TUPLE.dst_port }, ..TUPLE };
        // Twice, so that nothing of one packet is left in the next.
        for (number, psn, stamp) in [(0xffff_ffff, 0, u64::MAX >> 16), (77, 0xff_fffe, 0x1234)] {
            let mark = Mark { roce, run: 3, flow: 0x01_0203, number, stamp };
            template.write(&mut frame, &tuple, Serial { number, psn }, &mark);
            assert_eq!(Mark::of(&frame), Some(mark));
            assert!(checksums_right(&frame), "{shape:?} {size} {number}");
        }
        frame
    }

    #[test]
    fn every_kind_is_parsed_back_with_right_checksums() {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            for (v6, vlan, tunnel) in [
                (false, None, None),
                (true, None, None),
                (false, Some(7), None),
                (true, Some(7), Some(OUTER)),
            ] {
                let shape = Shape { vlan, tunnel, ..shape(protocol, v6) };
                for size in [shape.least(0), 101, 128, 1518] {
                    let frame = written(&shape, size, 0);
                    let (at, headers) = innermost(&frame).unwrap();
                    assert_eq!(at, if tunnel.is_some() { TUNNEL } else { 0 });
                    assert_eq!(frame.len(), at + size - FCS);
                    let inner = &frame[at..];
                    assert_eq!((headers.sport, headers.dport, headers.tos), (0xc123, 5001, 0x6a));
                    assert_eq!(headers.vlan_count, u8::from(vlan.is_some()));
                    assert_eq!(inner[..12], [TUPLE.dst_mac, TUPLE.src_mac].concat());
                    assert_eq!(l4::verify(&headers, [inner]), l4::ChecksumVerdict::Good);
                    if v6 {
                        let ip = headers.ipv6(inner).unwrap();
                        assert_eq!(u128::from_be_bytes(ip.src), TUPLE.src_ip);
                        assert_eq!(u128::from_be_bytes(ip.dst), TUPLE.dst_ip);
                    } else {
                        let ip = headers.ipv4(inner).unwrap();
                        assert_eq!((ip.src, ip.dst), ([10, 0, 0, 1], [10, 0, 1, 255]));
                    }
                    if at > 0 {
                        let outer = wire::parse::parse(&frame, frame.len()).unwrap();
                        assert!(outer.ipv4_checksum_ok(&frame));
                        assert_eq!(outer.sport, 0xffff);
                        let vxlan = wire::vxlan::Header::parse(outer.payload(&frame)).unwrap();
                        assert_eq!(vxlan.vni().get(), TUPLE.vni);
                    }
                }
            }
        }
    }

    #[test]
    fn roce_packets_have_a_right_icrc_queue_pair_and_sequence_number() {
        let rc = [
            opcode::RC_SEND_ONLY,
            opcode::RC_WRITE_FIRST,
            opcode::RC_WRITE_MIDDLE,
            opcode::RC_WRITE_LAST,
            opcode::RC_WRITE_ONLY,
        ];
        let kinds = rc
            .map(|code| (Protocol::RoceRc, code))
            .into_iter()
            .chain([(Protocol::RoceUd, opcode::UD_SEND_ONLY), (Protocol::RoceUd, opcode::UD_SEND_ONLY_IMM)]);
        for (protocol, code) in kinds {
            for (v6, tunnel) in [(false, None), (true, None), (false, Some(OUTER)), (true, Some(OUTER))] {
                let shape = Shape { tunnel, ..shape(protocol, v6) };
                for size in [shape.least(code), shape.least(code) + 1024] {
                    let frame = written(&shape, size, code);
                    let (at, headers) = innermost(&frame).unwrap();
                    let inner = &frame[at..];
                    assert_eq!(icrc::verify(&headers, [inner]), Some(true));
                    let packet = roce::RocePacket::of(&headers, inner).unwrap().unwrap();
                    assert_eq!((packet.bth.opcode, packet.bth.pad_count()), (code, 0));
                    assert_eq!(packet.bth.dest_qp().get(), TUPLE.qp);
                    assert_eq!(packet.bth.psn().get(), 0xff_fffe);
                    assert_eq!(bth_offset(&frame), Some(at + headers.payload_offset()));
                    if let Some(reth) = packet.reth() {
                        assert_eq!(reth.len.get() as usize, 3 * packet.payload_len());
                    }
                    assert_eq!(packet.deth().is_some(), protocol == Protocol::RoceUd);
                }
            }
        }
    }

    #[test]
    fn damage_anywhere_behind_the_addresses_is_seen() {
        for (protocol, code) in
            [(Protocol::Udp, 0), (Protocol::Tcp, 0), (Protocol::RoceRc, opcode::RC_WRITE_ONLY)]
        {
            let shape = shape(protocol, false);
            let frame = written(&shape, shape.least(code) + 64, code);
            for at in 44..frame.len() {
                let mut damaged = frame.clone();
                damaged[at] ^= 0x10;
                // The BTH's own congestion bits may change on the way.
                let may_change = protocol == Protocol::RoceRc && at == 42 + 4;
                // A changed UDP length or TCP header length may leave nothing to judge, but never something right.
                assert_eq!(checksums_right(&damaged), may_change, "{protocol:?} {at}");
            }
        }
    }

    #[test]
    fn acknowledgements_are_told_by_their_queue_pair_and_nothing_else_is_one() {
        let roce = shape(Protocol::RoceRc, false);
        let template = Template::acknowledgement(&roce).unwrap();
        let mut frame = vec![0xee; template.len()];
        for (qp, psn) in [(0x2, 0), (0xab_cdef, 0xff_ffff)] {
            let tuple = Tuple { qp, dst_port: 4791, ..TUPLE };
            template.write(&mut frame, &tuple, Serial { number: 0, psn }, &Mark::default());
            let headers = wire::parse::parse(&frame, frame.len()).unwrap();
            assert_eq!(icrc::verify(&headers, [&frame[..]]), Some(true));
            let packet = roce::RocePacket::of(&headers, &frame).unwrap().unwrap();
            assert_eq!((packet.bth.opcode, packet.payload_len(), packet.bth.psn().get()), (ACK, 0, psn));
            assert_eq!((acknowledged(&frame), Mark::of(&frame)), (Some((qp, psn)), None));
        }
        let write = written(&roce, 94, opcode::RC_WRITE_ONLY);
        let mut other = frame.clone();
        other[37] = 0xb8;
        for frame in [&frame[..50], &other, &write, &[]] {
            assert_eq!(acknowledged(frame), None, "{frame:?}");
        }
    }

    #[test]
    fn a_frame_too_short_for_its_signature_is_refused() {
        for (protocol, least) in [(Protocol::Udp, 64), (Protocol::Tcp, 74), (Protocol::RoceRc, 94)] {
            let shape = shape(protocol, false);
            assert_eq!(shape.least(opcode::RC_WRITE_ONLY), least);
            assert!(Template::new(&shape, least - 1, opcode::RC_WRITE_ONLY, 1).is_none());
        }
    }
}
