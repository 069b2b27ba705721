//! tunnel: the outer header. [`template`] makes it once for a location, [`encapsulate`] copies and patches it, and puts the
//! MAC addresses of the packet's next hop and uplink in front.
//!
//! The IPv4 checksum field of a template holds the folded sum of the header without length and TOS, so that
//! patching costs two additions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{Ecn, PacketBuf, Vni, checksum, protocol};

use super::Cx;
use crate::burst::Meta;
use crate::next_hop::{HopWord, LinkHeader};
use crate::snapshot::{DscpPolicy, Settings, Uplink};
use crate::vlt::{Header4, TEMPLATE_BYTES, Tunnel};

/// Bytes of UDP and VxLAN.
const UDP_VXLAN: usize = 16;
/// Bytes of outer headers over IPv4, without VLAN tag.
const V4_LEN: usize = 14 + 20 + UDP_VXLAN;

/// The two ends of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEnds {
    /// Over IPv4: own address, remote address.
    V4(Ipv4Addr, Ipv4Addr),
    /// Over IPv6: own address, remote address.
    V6(Ipv6Addr, Ipv6Addr),
}

impl TunnelEnds {
    /// Two addresses of the same family.
    pub fn new(local: IpAddr, remote: IpAddr) -> Option<Self> {
        match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => Some(Self::V4(local, remote)),
            (IpAddr::V6(local), IpAddr::V6(remote)) => Some(Self::V6(local, remote)),
            _ => None,
        }
    }
}

/// What a template is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateSpec {
    /// Index of the next-hop group.
    pub group: u16,
    /// VLAN of the underlay.
    pub vlan: Option<u16>,
    /// Own VTEP and the one at the other end: both IPv4 or both IPv6.
    pub ends: TunnelEnds,
    /// TTL or hop limit.
    pub ttl: u8,
    /// UDP port of VxLAN.
    pub udp_port: u16,
    /// VNI of the VPC.
    pub vni: Vni,
    /// Number of the VTEP at the other end.
    pub vtep: u32,
}

/// Bytes that a tunnel adds in front of a frame.
pub const fn overhead(ipv6: bool, vlan: bool) -> usize {
    let ip = if ipv6 { 40 } else { 20 };
    14 + ip + UDP_VXLAN + if vlan { 4 } else { 0 }
}

/// Makes the ready outer header for a location.
pub fn template(spec: &TemplateSpec) -> Tunnel {
    let mut header = [0u8; TEMPLATE_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&[0; 12]);
    if let Some(vlan) = spec.vlan {
        put(&[0x81, 0]);
        put(&vlan.to_be_bytes());
    }
    match spec.ends {
        TunnelEnds::V4(local, remote) => {
            put(&[0x08, 0x00]);
            // Version and length, TOS, length, id 0, DF, TTL, UDP (RFC 791; id 0 with DF: RFC 6864).
            let mut ip =
                [0x45, 0, 0, 0, 0, 0, 0x40, 0, spec.ttl, protocol::UDP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            ip[12..16].copy_from_slice(&local.octets());
            ip[16..20].copy_from_slice(&remote.octets());
            let sum = checksum::sum(&ip).fold();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            put(&ip);
        }
        TunnelEnds::V6(local, remote) => {
            put(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol::UDP, spec.ttl]);
            put(&local.octets());
            put(&remote.octets());
        }
    }
    put(&[0, 0]);
    put(&spec.udp_port.to_be_bytes());
    put(&[0, 0, 0, 0]);
    put(&[0x08, 0, 0, 0]);
    put(&(spec.vni.get() << 8).to_be_bytes());
    Tunnel { group: spec.group, len: at as u8, vtep: spec.vtep, header }
}

/// What the outer header is derived from.
#[derive(Clone, Copy, Debug)]
pub struct EncapInput {
    /// Inner TOS byte.
    pub tos: u8,
    /// Outer source port.
    pub source_port: u16,
    /// The packet is RoCEv2.
    pub roce: bool,
}

impl EncapInput {
    /// Of a packet that is forwarded; `entropy` is its flow's ([`FlowAction::entropy`](crate::nft::FlowAction::entropy)).
    pub(super) fn of(cx: &Cx, meta: &Meta, entropy: u16) -> Self {
        Self {
            tos: meta.headers.tos,
            source_port: cx.snapshot.port_mix().port(entropy, meta.entropy_port),
            roce: meta.key.class() != 0,
        }
    }

    /// What its tunnel header has of its own, by this way.
    #[inline(always)]
    pub(super) fn patch(self, cx: &Cx, uplink: &Uplink, hop: HopWord) -> Patch {
        Patch {
            tos: outer_tos(&cx.snapshot.settings, self.tos),
            source_port: self.source_port,
            zero_checksum6: uplink.udp6_zero_checksum,
            link: hop.link_header(uplink.source),
        }
    }
}

/// What changes from packet to packet.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// Outer TOS or traffic class.
    pub tos: u8,
    /// Outer UDP source port.
    pub source_port: u16,
    /// Leave the UDP checksum over IPv6 zero (RFC 6935).
    pub zero_checksum6: bool,
    /// MAC addresses of next hop and uplink.
    pub link: LinkHeader,
}

/// Puts the outer header in front of a frame. `false` (and no change) when there is no headroom.
#[inline]
pub fn encapsulate<P: PacketBuf>(packet: &mut P, tunnel: &Tunnel, patch: Patch) -> bool {
    let inner = packet.len();
    let len = usize::from(tunnel.len);
    let Some(head) = packet.prepend(len) else { return false };
    head[..len].copy_from_slice(&tunnel.header[..len]);
    patch.link.write(head);
    let ip = if tunnel.header[12..14] == [0x81, 0] { 18 } else { 14 };
    if tunnel.header[ip] >> 4 == 4 {
        patch_v4(&mut head[..len], ip, inner, patch);
        true
    } else {
        patch_v6(packet, ip, len, inner, patch)
    }
}

/// [`encapsulate`] for an untagged IPv4 header: read, patched and stored word by word. `false` (and no change) also when
/// the header was written meanwhile.
#[inline(always)]
pub fn encapsulate_v4<P: PacketBuf>(packet: &mut P, header: Header4, patch: Patch) -> bool {
    let inner = packet.len();
    let Some(head) = packet.prepend(V4_LEN) else { return false };
    let Some((outer, _)) = head.split_first_chunk_mut::<V4_LEN>() else { return false };
    // Bytes 14..34 are IP, 34..42 UDP; what is patched is zero in the template, but for the checksum's base. The words are read
    // with the first byte as the least significant one, in which fields of two bytes stand swapped. The sum of the checksum may be
    // taken either way (RFC 1071 section 2(B)).
    let word = |n| u64::from_le(header.word(n));
    let total = ((inner + 20 + UDP_VXLAN) as u16).swap_bytes();
    let udp_len = ((inner + UDP_VXLAN) as u16).swap_bytes();
    let checksum_word = word(3);
    let checksum = header_checksum(checksum_word as u16, total, u16::from(patch.tos) << 8);
    let [link0, link1] = patch.link.0;
    let (words, rest) = outer.as_chunks_mut::<8>();
    let [w0, w1, w2, w3, w4, w5] = words else { return false };
    *w0 = link0.to_ne_bytes();
    *w1 = (word(1) | u64::from_le(link1) | u64::from(patch.tos) << 56).to_le_bytes();
    *w2 = (word(2) | u64::from(total)).to_le_bytes();
    *w3 = (checksum_word & !0xffff | u64::from(checksum)).to_le_bytes();
    *w4 =
        (word(4) | u64::from(patch.source_port.swap_bytes()) << 16 | u64::from(udp_len) << 48).to_le_bytes();
    *w5 = word(5).to_le_bytes();
    rest.copy_from_slice(&word(6).to_le_bytes()[..V4_LEN % 8]);
    header.is_still() || {
        packet.trim_front(V4_LEN);
        false
    }
}

/// The checksum of a header from the folded sum of its constant fields, its length, and the word that its TOS is part of, all in
/// the same byte order.
#[inline(always)]
fn header_checksum(base: u16, total: u16, tos: u16) -> u16 {
    let sum = u32::from(base) + u32::from(total) + u32::from(tos);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[inline(always)]
fn patch_v4(outer: &mut [u8], ip: usize, inner: usize, patch: Patch) {
    let total = inner + 20 + UDP_VXLAN;
    outer[ip + 1] = patch.tos;
    outer[ip + 2..ip + 4].copy_from_slice(&(total as u16).to_be_bytes());
    let base = u16::from_be_bytes([outer[ip + 10], outer[ip + 11]]);
    let checksum = header_checksum(base, total as u16, patch.tos.into());
    outer[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
    patch_udp(outer, ip + 20, inner, patch.source_port);
}

#[inline(always)]
fn patch_udp(outer: &mut [u8], udp: usize, inner: usize, source_port: u16) {
    outer[udp..udp + 2].copy_from_slice(&source_port.to_be_bytes());
    outer[udp + 4..udp + 6].copy_from_slice(&((inner + UDP_VXLAN) as u16).to_be_bytes());
}

fn patch_v6<P: PacketBuf>(packet: &mut P, ip: usize, len: usize, inner: usize, patch: Patch) -> bool {
    let payload = inner + UDP_VXLAN;
    let head = packet.head_mut();
    head[ip] = 0x60 | patch.tos >> 4;
    head[ip + 1] = patch.tos << 4;
    head[ip + 4..ip + 6].copy_from_slice(&(payload as u16).to_be_bytes());
    patch_udp(&mut head[..len], ip + 40, inner, patch.source_port);
    if patch.zero_checksum6 {
        return true;
    }
    let addresses = |at: usize| -> Option<[u8; 16]> { head.get(at..at + 16)?.try_into().ok() };
    let (Some(src), Some(dst)) = (addresses(ip + 8), addresses(ip + 24)) else { return false };
    let mut sum = checksum::pseudo_v6(&src, &dst, protocol::UDP, payload as u32);
    let Some(data) = checksum::sum_range(packet.segments(), ip + 40, payload) else { return false };
    sum.add_u16(data.fold());
    let value = checksum::udp(sum.checksum());
    packet.head_mut()[ip + 46..ip + 48].copy_from_slice(&value.to_be_bytes());
    true
}

/// The outer TOS byte for an inner one.
pub fn outer_tos(settings: &Settings, inner_tos: u8) -> u8 {
    let ecn = settings.ecn_encap.outer(Ecn::from_tos(inner_tos));
    let dscp = match settings.dscp {
        DscpPolicy::Copy => inner_tos & 0xfc,
        DscpPolicy::Fixed(dscp) => dscp << 2,
    };
    ecn.into_tos(dscp)
}

/// [`outer_tos`] for a burst of packets: what the settings say, made ready once.
#[derive(Clone, Copy, Debug)]
pub struct OuterTos {
    /// The outer byte without DSCP for each inner ECN field.
    ecn: [u8; 4],
    /// Bits of the inner byte that stay.
    keep: u8,
}

impl OuterTos {
    /// Of these settings.
    #[inline]
    pub fn new(settings: &Settings) -> Self {
        let (keep, dscp) = match settings.dscp {
            DscpPolicy::Copy => (0xfc, 0),
            DscpPolicy::Fixed(dscp) => (0, dscp << 2),
        };
        let ecn = [0, 1, 2, 3].map(|inner| settings.ecn_encap.outer(Ecn::from_tos(inner)).into_tos(dscp));
        Self { ecn, keep }
    }

    /// The outer TOS byte for an inner one.
    #[inline(always)]
    pub fn of(&self, inner_tos: u8) -> u8 {
        self.ecn[usize::from(inner_tos & 3)] | inner_tos & self.keep
    }
}

#[cfg(test)]
mod tests {
    use wire::HeapBuf;

    use super::*;
    use crate::ecn::EcnEncap;
    use crate::vlt::{Hot, Place, Vlt};

    #[test]
    fn a_header_that_was_written_meanwhile_is_not_used() {
        let (table, mut writer) = Vlt::new(1);
        let ends = TunnelEnds::V4(Ipv4Addr::new(172, 16, 0, 1), Ipv4Addr::new(172, 16, 0, 2));
        let spec = TemplateSpec {
            group: 3,
            vlan: None,
            ends,
            ttl: 64,
            udp_port: 4789,
            vni: Vni::truncated(7),
            vtep: 1,
        };
        let tunnel = template(&spec);
        let slot = writer.allocate(Place::Remote(tunnel)).unwrap();
        let patch = Patch {
            tos: 2,
            source_port: 50_000,
            zero_checksum6: false,
            link: LinkHeader([u64::MAX, u64::from(u32::MAX).to_le()]),
        };
        let inner: Vec<u8> = (0..70).collect();

        let mut whole = HeapBuf::new(&inner);
        assert!(encapsulate(&mut whole, &tunnel, patch));
        let Hot::Tunnel4(header) = table.read_hot(slot.slot, slot.generation) else { panic!("no tunnel") };
        let mut packet = HeapBuf::new(&inner);
        assert!(encapsulate_v4(&mut packet, header, patch));
        assert_eq!(packet.to_vec(), whole.to_vec());

        writer.update(slot.slot, Place::Remote(tunnel));
        let mut packet = HeapBuf::new(&inner);
        assert!(!encapsulate_v4(&mut packet, header, patch));
        assert_eq!(packet.to_vec(), inner);
    }

    #[test]
    fn a_burst_is_told_what_each_packet_would_be() {
        for ecn_encap in [EcnEncap::Rfc6040, EcnEncap::Rfc3168, EcnEncap::Rfc6040Compat] {
            for dscp in [DscpPolicy::Copy, DscpPolicy::Fixed(0), DscpPolicy::Fixed(46)] {
                let settings = Settings { ecn_encap, dscp, ..Settings::default() };
                let ready = OuterTos::new(&settings);
                for tos in 0..=u8::MAX {
                    assert_eq!(ready.of(tos), outer_tos(&settings, tos), "{settings:?}, {tos:#x}");
                }
            }
        }
    }
}
