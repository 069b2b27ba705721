//! Composing frames from the inside out, with right lengths and checksums.
//!
//! For tests, generators and the control plane's own packets; the fast path patches templates instead. Every
//! function returns a fresh `Vec`, but for [`cm_reject`], which the packet path uses. A payload that is too long
//! for a length field saturates the field.

pub mod control;
mod reject;
pub mod router;

pub use reject::{MAX_REJECT_LEN, Reject, cm_reject, cm_reject_in_place};

use crate::types::{MacAddr, Psn, Qpn, Vni};
use crate::view::View;
use crate::{cm, ethernet, icmp, icmpv6, icrc, ipv4, ipv6, l4, parse, protocol, roce, tcp, udp, vlan, vxlan};
use ethernet::ethertype;
use std::net::{Ipv4Addr, Ipv6Addr};
use zerocopy::big_endian::U16;

/// Source and destination address of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// IPv4.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

/// Everything below L4 of the frames from one station to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source station.
    pub src_mac: MacAddr,
    /// Destination station.
    pub dst_mac: MacAddr,
    /// EtherType and control information of each VLAN tag, outermost first.
    pub tags: Vec<(u16, u16)>,
    /// IP addresses.
    pub ip: Pair,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4's "don't fragment".
    pub dont_fragment: bool,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// IPv4 options, padded with zeros to a multiple of 4 bytes; at most 40 are used.
    pub options: Vec<u8>,
    /// Type and content of each IPv6 extension header. The content starts behind the length byte and is padded
    /// with zeros as the type asks for.
    pub extensions: Vec<(u8, Vec<u8>)>,
}

impl Path {
    /// An IPv4 path without tags: TOS 0, TTL 64, DF.
    pub fn v4(src: (MacAddr, Ipv4Addr), dst: (MacAddr, Ipv4Addr)) -> Self {
        Self::new(src.0, dst.0, Pair::V4(src.1, dst.1))
    }

    /// An IPv6 path without tags: traffic class 0, hop limit 64.
    pub fn v6(src: (MacAddr, Ipv6Addr), dst: (MacAddr, Ipv6Addr)) -> Self {
        Self::new(src.0, dst.0, Pair::V6(src.1, dst.1))
    }

    fn new(src_mac: MacAddr, dst_mac: MacAddr, ip: Pair) -> Self {
        Self {
            src_mac,
            dst_mac,
            tags: Vec::new(),
            ip,
            tos: 0,
            ttl: 64,
            id: 0,
            dont_fragment: true,
            flow_label: 0,
            options: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// The path with one more VLAN tag, innermost so far.
    pub fn tagged(mut self, tci: u16) -> Self {
        self.tags.push((ethertype::VLAN, tci));
        self
    }

    /// The path with another TOS or traffic class.
    pub fn with_tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// The path with another TTL or hop limit.
    pub fn with_ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// The way back: addresses swapped, all else the same.
    pub fn reversed(mut self) -> Self {
        std::mem::swap(&mut self.src_mac, &mut self.dst_mac);
        self.ip = match self.ip {
            Pair::V4(src, dst) => Pair::V4(dst, src),
            Pair::V6(src, dst) => Pair::V6(dst, src),
        };
        self
    }

    /// An Ethernet frame around any payload.
    pub fn ethernet(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let first = self.tags.first().map_or(ethertype, |tag| tag.0);
        let mut frame = ethernet::Header::new(self.dst_mac, self.src_mac, first).bytes().to_vec();
        for (at, (_, tci)) in self.tags.iter().enumerate() {
            let next = self.tags.get(at + 1).map_or(ethertype, |tag| tag.0);
            frame.extend_from_slice(vlan::Tag::new(*tci, next).bytes());
        }
        frame.extend_from_slice(payload);
        frame
    }

    /// An IP packet in an Ethernet frame. Of TCP, UDP, ICMP and ICMPv6 the checksum is filled.
    pub fn ip(&self, proto: u8, l4: &[u8]) -> Vec<u8> {
        let mut frame = self.ip_unfilled(proto, l4);
        if let Ok(headers) = parse::parse(&frame, frame.len()) {
            l4::fill(&headers, &mut frame);
        }
        frame
    }

    /// [`ip`](Self::ip) with the L4 bytes just as they are.
    pub fn ip_unfilled(&self, proto: u8, l4: &[u8]) -> Vec<u8> {
        match self.ip {
            Pair::V4(src, dst) => {
                let fragment = if self.dont_fragment { ipv4::DONT_FRAGMENT } else { 0 };
                self.ipv4(src, dst, proto, fragment, l4)
            }
            Pair::V6(src, dst) => {
                let (first, chain) = self.extension_chain(proto);
                self.ipv6(src, dst, first, &[&chain, l4])
            }
        }
    }

    fn ipv4(&self, src: Ipv4Addr, dst: Ipv4Addr, proto: u8, fragment: u16, l4: &[u8]) -> Vec<u8> {
        let mut options = self.options.clone();
        options.truncate(ipv4::MAX_HEADER_LEN - ipv4::HEADER_LEN);
        options.resize(options.len().next_multiple_of(4), 0);
        let mut header = ipv4::Header::new(src, dst, proto, saturated(options.len() + l4.len()));
        header.version_ihl += (options.len() / 4) as u8;
        header.tos = self.tos;
        header.ttl = self.ttl;
        header.id = U16::new(self.id);
        header.fragment = U16::new(fragment);
        let mut packet = [header.bytes(), &options].concat();
        ipv4::fill_checksum(&mut packet);
        packet.extend_from_slice(l4);
        self.ethernet(ethertype::IPV4, &packet)
    }

    fn ipv6(&self, src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, parts: &[&[u8]]) -> Vec<u8> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut header = ipv6::Header::new(src, dst, next_header, saturated(len));
        header.set_traffic_class(self.tos);
        header.set_flow_label(self.flow_label);
        header.hop_limit = self.ttl;
        self.ethernet(ethertype::IPV6, &[header.bytes(), &parts.concat()].concat())
    }

    /// The type of the first header behind the fixed one, and the extension headers.
    fn extension_chain(&self, proto: u8) -> (u8, Vec<u8>) {
        let mut chain = Vec::new();
        for (at, (kind, content)) in self.extensions.iter().enumerate() {
            let next = self.extensions.get(at + 1).map_or(proto, |extension| extension.0);
            let len = (content.len() + 2).next_multiple_of(8);
            let field = match *kind {
                protocol::FRAGMENT => 0,
                protocol::AH => len / 4 - 2,
                _ => len / 8 - 1,
            };
            let end = chain.len() + len;
            chain.extend_from_slice(&[next, field as u8]);
            chain.extend_from_slice(content);
            chain.resize(end, 0);
        }
        (self.extensions.first().map_or(proto, |extension| extension.0), chain)
    }

    /// A frame with a UDP datagram, lengths and checksums right.
    pub fn udp(&self, src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        self.ip(protocol::UDP, &udp_datagram(src_port, dst_port, payload))
    }

    /// A UDP datagram with checksum 0, which is "none".
    pub fn udp_without_checksum(&self, src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        self.ip_unfilled(protocol::UDP, &udp_datagram(src_port, dst_port, payload))
    }

    /// A TCP segment with the control bits of [`tcp::flags`].
    pub fn tcp(&self, src_port: u16, dst_port: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
        self.tcp_segment(&tcp::Header::new(src_port, dst_port, 1, 1, flags), payload)
    }

    /// A TCP segment with any header; its checksum is filled, and options, if it announces any, are the first
    /// bytes of `rest`.
    pub fn tcp_segment(&self, header: &tcp::Header, rest: &[u8]) -> Vec<u8> {
        self.ip(protocol::TCP, &[header.bytes(), rest].concat())
    }

    /// An echo request, ICMP or ICMPv6 as the addresses say.
    pub fn echo_request(&self, id: u16, seq: u16, payload: &[u8]) -> Vec<u8> {
        match self.ip {
            Pair::V4(..) => self.icmp(icmp::kind::ECHO_REQUEST, id, seq, payload),
            Pair::V6(..) => self.icmp(icmpv6::kind::ECHO_REQUEST, id, seq, payload),
        }
    }

    /// An echo reply, ICMP or ICMPv6 as the addresses say.
    pub fn echo_reply(&self, id: u16, seq: u16, payload: &[u8]) -> Vec<u8> {
        match self.ip {
            Pair::V4(..) => self.icmp(icmp::kind::ECHO_REPLY, id, seq, payload),
            Pair::V6(..) => self.icmp(icmpv6::kind::ECHO_REPLY, id, seq, payload),
        }
    }

    fn icmp(&self, kind: u8, id: u16, seq: u16, payload: &[u8]) -> Vec<u8> {
        let proto = if matches!(self.ip, Pair::V4(..)) { protocol::ICMP } else { protocol::ICMPV6 };
        // ICMPv6's echo header has the same layout.
        self.ip(proto, &[icmp::Header::new(kind, 0, id, seq).bytes(), payload].concat())
    }

    /// A RoCEv2 packet: padded, with a right ICRC and, as adapters send it, UDP checksum 0 over IPv4; over IPv6
    /// a real one. `body` holds the extended headers and the payload. Pad count is set, all else of `bth` kept.
    pub fn roce(&self, src_port: u16, bth: roce::Bth, body: &[u8]) -> Vec<u8> {
        let mut bth = bth;
        let padded = body.len().next_multiple_of(4);
        bth.set_pad_count((padded - body.len()) as u8);
        let mut payload = [bth.bytes(), body].concat();
        payload.resize(roce::BTH_LEN + padded + roce::ICRC_LEN, 0);
        let mut frame = self.udp_without_checksum(src_port, udp::port::ROCEV2, &payload);
        if let Ok(headers) = parse::parse(&frame, frame.len()) {
            icrc::fill(&headers, &mut frame);
            if matches!(self.ip, Pair::V6(..)) {
                l4::fill(&headers, &mut frame);
            }
        }
        frame
    }

    /// A connection manager's message, from queue pair 1 to queue pair 1.
    pub fn cm(&self, src_port: u16, message: &cm::Cm) -> Vec<u8> {
        let (bth, deth) = message.headers();
        self.roce(src_port, bth, &[deth.bytes(), &message.mad()].concat())
    }

    /// A RoCEv2 congestion notification for queue pair `dest_qp` at the sender of the marked packet.
    pub fn cnp(&self, src_port: u16, dest_qp: Qpn) -> Vec<u8> {
        let mut bth = roce::Bth::new(roce::opcode::CNP, dest_qp, Psn::default());
        bth.set_becn(true);
        self.roce(src_port, bth, &[0; 16])
    }

    /// `inner` in VxLAN: UDP checksum 0 over IPv4, a real one over IPv6.
    pub fn vxlan(&self, src_port: u16, vni: Vni, inner: &[u8]) -> Vec<u8> {
        self.vxlan_with(src_port, vxlan::Header::new(vni), matches!(self.ip, Pair::V6(..)), inner)
    }

    /// `inner` in VxLAN with any header, with or without UDP checksum.
    pub fn vxlan_with(
        &self,
        src_port: u16,
        header: vxlan::Header,
        with_checksum: bool,
        inner: &[u8],
    ) -> Vec<u8> {
        let payload = [header.bytes(), inner].concat();
        if with_checksum {
            self.udp(src_port, udp::port::VXLAN, &payload)
        } else {
            self.udp_without_checksum(src_port, udp::port::VXLAN, &payload)
        }
    }

    /// The fragments of an IP packet with identification `id`, none longer than `mtu` bytes from its IP header
    /// on (but at least 8 bytes of data each). `l4` is cut as it is: have its checksum filled before.
    pub fn fragments(&self, proto: u8, l4: &[u8], id: u32, mtu: usize) -> Vec<Vec<u8>> {
        let (first, chain) = self.extension_chain(proto);
        let above = match self.ip {
            Pair::V4(..) => ipv4::HEADER_LEN + self.options.len().next_multiple_of(4),
            Pair::V6(..) => ipv6::HEADER_LEN + ipv6::FRAGMENT_LEN,
        };
        // All extension headers go into the fragmentable part.
        let data = if matches!(self.ip, Pair::V4(..)) { l4.to_vec() } else { [&chain, l4].concat() };
        let room = (mtu.saturating_sub(above) / 8 * 8).max(8);
        let count = data.len().div_ceil(room);
        let pieces = data.chunks(room).enumerate().map(|(at, piece)| {
            let (offset, more) = (saturated(at * room), at + 1 < count);
            match self.ip {
                Pair::V4(src, dst) => {
                    let more = if more { ipv4::MORE_FRAGMENTS } else { 0 };
                    let path = Self { id: id as u16, ..self.clone() };
                    path.ipv4(src, dst, proto, (offset / 8) | more, piece)
                }
                Pair::V6(src, dst) => {
                    let header = ipv6::Fragment::new(first, offset, more, id);
                    self.ipv6(src, dst, protocol::FRAGMENT, &[header.bytes(), piece])
                }
            }
        });
        pieces.collect()
    }
}

/// A UDP header with checksum 0 and its payload.
pub fn udp_datagram(src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
    [udp::Header::new(src_port, dst_port, saturated(payload.len())).bytes(), payload].concat()
}

fn saturated(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
