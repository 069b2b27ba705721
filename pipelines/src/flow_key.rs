//! The key of the NFT: what makes two packets one flow.
//!
//! 56 bytes, seven words, no padding, so that comparing and hashing are straight-line code:
//!
//! | word | content |
//! |---|---|
//! | 0 | IPv4: source, destination; IPv6: source, first half; non-IP: source MAC |
//! | 1..=3 | IPv6: rest of source, destination |
//! | 4 | scope (direction and vNIC, or VPC) in the high half, ports in the low half |
//! | 5 | destination MAC when bridged (48 bits), inner VLAN id with a presence bit (16 bits) |
//! | 6 | protocol, RoCE class, layer 3 kind, routed flag, EtherType, second VLAN id |
//!
//! ECN, DSCP, TTL, TCP flags, QPNs and RoCE source ports are not part of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::MacAddr;
use wire::{Headers, L3};

use crate::direction::Direction;

/// Who the packet came from, as the key sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// From a vNIC of this host (index).
    Vnic(u32),
    /// Out of the tunnel, for a VPC (index).
    Vpc(u32),
}

impl Scope {
    const TUNNEL: u32 = 1 << 31;

    /// The scope as the key stores it.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        match self {
            Self::Vnic(index) => index,
            Self::Vpc(index) => index | Self::TUNNEL,
        }
    }

    pub(crate) const fn from_raw(raw: u32) -> Self {
        if raw & Self::TUNNEL == 0 { Self::Vnic(raw) } else { Self::Vpc(raw & !Self::TUNNEL) }
    }
}

/// Transport class of a RoCEv2 packet in the key; 0 for everything that is not RoCEv2.
pub type RoceClassCode = u8;

/// Where a packet comes from and goes to at layer 4, as [`FlowKey`] has it: ports of TCP and UDP, or of ICMP type and code
/// (source) and identifier (destination); zero for other protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowPorts {
    /// Source port of TCP and UDP, or type and code of ICMP; zero where the key leaves it out.
    pub source: u16,
    /// Destination port of TCP and UDP, or identifier of ICMP; zero where the key leaves it out.
    pub destination: u16,
}

/// Where an IP packet comes from and goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowAddresses {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
}

/// The exact-match key of a flow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, zerocopy::FromZeros)]
#[repr(transparent)]
pub struct FlowKey {
    words: [u64; 7],
}

const VLAN_PRESENT: u64 = 0x1000;
/// Above an IPv4 address in its IPv4-mapped IPv6 form (RFC 4291 section 2.5.5.2).
const V4_MAPPED: u64 = 0xffff_0000_0000;
const ROUTED: u64 = 1 << 24;

impl FlowKey {
    /// Builds the key of the packet whose (inner) Ethernet header starts at `frame[0]`.
    ///
    /// `ports` are the packet's own, or those that its first fragment had; `class` is non-zero for RoCEv2,
    /// whose UDP source port is left out; `routed` says that the destination MAC is the virtual router's.
    #[inline(always)]
    pub fn build(
        frame: &[u8],
        headers: &Headers,
        scope: Scope,
        ports: FlowPorts,
        class: RoceClassCode,
        routed: bool,
    ) -> Self {
        let mut words = [0u64; 7];
        let l3 = usize::from(headers.l3_offset);
        match headers.l3 {
            L3::Ipv4 => words[0] = be64(frame, l3 + 12),
            L3::Ipv6 => {
                words[0] = be64(frame, l3 + 8);
                words[1] = be64(frame, l3 + 16);
                words[2] = be64(frame, l3 + 24);
                words[3] = be64(frame, l3 + 32);
            }
            L3::None | L3::Arp => words[0] = be64(frame, 4) & 0xffff_ffff_ffff,
        }
        let sport = if class == 0 { ports.source } else { 0 };
        words[4] = u64::from(scope.raw()) << 32 | u64::from(sport) << 16 | u64::from(ports.destination);
        let mac = if routed { 0 } else { be64(frame, 0) & !0xffff };
        let (mut outer, mut second) = (0, 0);
        if headers.vlan_count > 0 {
            outer = VLAN_PRESENT | u64::from(headers.vlan_tci[0] & 0xfff);
            if headers.vlan_count > 1 {
                second = VLAN_PRESENT | u64::from(headers.vlan_tci[1] & 0xfff);
            }
        }
        words[5] = mac | outer;
        let ethertype = if matches!(headers.l3, L3::None) { u64::from(headers.ethertype) } else { 0 };
        words[6] = u64::from(headers.proto)
            | u64::from(class) << 8
            | (headers.l3 as u64) << 16
            | if routed { ROUTED } else { 0 }
            | ethertype << 32
            | second << 48;
        Self { words }
    }

    /// [`build`](Self::build) of an untagged IPv4 packet from its fields as they stand in it: both addresses, both
    /// ports, protocol and class, and the destination MAC of a bridged packet.
    #[inline(always)]
    pub(crate) const fn v4(
        addresses: u64,
        scope: Scope,
        ports: u32,
        proto: u8,
        class: RoceClassCode,
        target: Option<u64>,
    ) -> Self {
        let ports = if class == 0 { ports } else { ports & 0xffff };
        let (mac, routed) = match target {
            Some(mac) => (mac << 16, 0),
            None => (0, ROUTED),
        };
        let kind = proto as u64 | (class as u64) << 8 | (L3::Ipv4 as u64) << 16 | routed;
        Self { words: [addresses, 0, 0, 0, (scope.raw() as u64) << 32 | ports as u64, mac, kind] }
    }

    /// The words, for display and persistence.
    pub const fn words(&self) -> &[u64; 7] {
        &self.words
    }

    /// A key from its words.
    pub const fn from_words(words: [u64; 7]) -> Self {
        Self { words }
    }

    /// Hash of the key under `seed`. IPv4 keys skip the three words that are zero.
    #[inline(always)]
    pub fn hash(&self, seed: u64) -> u64 {
        let w = &self.words;
        let mut hash = mix(w[0] ^ seed, w[4] ^ K0) ^ mix(w[5] ^ K1, w[6] ^ seed.rotate_left(32));
        if w[1] | w[2] | w[3] != 0 {
            hash ^= mix(w[1] ^ K2, w[2] ^ seed) ^ mix(w[3] ^ K0, seed ^ K1);
        }
        mix(hash, K2)
    }

    /// What [`outer_source_port`] needs of a flow: a hash of addresses, protocol and ports, and of nothing that one
    /// host knows and another does not.
    #[inline]
    pub fn entropy(&self) -> u16 {
        let w = &self.words;
        let ports = w[4] & 0xffff_ffff;
        let mut hash = mix(w[0] ^ K0, ports ^ (w[6] & 0xff) << 32 ^ K1);
        if w[1] | w[2] | w[3] != 0 {
            hash ^= mix(w[1] ^ K2, w[2] ^ K0) ^ mix(w[3] ^ K1, K2);
        }
        (hash >> 48) as u16
    }

    /// Which way its packets go.
    #[inline(always)]
    pub fn direction(&self) -> Direction {
        match self.scope() {
            Scope::Vnic(_) => Direction::Out,
            Scope::Vpc(_) => Direction::In,
        }
    }

    /// Who sent the packet.
    pub const fn scope(&self) -> Scope {
        Scope::from_raw((self.words[4] >> 32) as u32)
    }

    /// Its ports; the source port of RoCEv2 is 0 here.
    pub const fn ports(&self) -> FlowPorts {
        FlowPorts { source: (self.words[4] >> 16) as u16, destination: self.words[4] as u16 }
    }

    /// IP protocol.
    pub const fn proto(&self) -> u8 {
        self.words[6] as u8
    }

    /// RoCE class code, 0 for other traffic.
    pub const fn class(&self) -> RoceClassCode {
        (self.words[6] >> 8) as u8
    }

    /// Layer 3 kind.
    pub const fn l3(&self) -> L3 {
        match (self.words[6] >> 16) as u8 {
            x if x == L3::Ipv4 as u8 => L3::Ipv4,
            x if x == L3::Ipv6 as u8 => L3::Ipv6,
            x if x == L3::Arp as u8 => L3::Arp,
            _ => L3::None,
        }
    }

    /// True for an error of ICMP (RFC 1122 section 3.2.2) or ICMPv6 (RFC 4443 section 2.1).
    pub fn is_icmp_error(&self) -> bool {
        let kind = (self.ports().source >> 8) as u8;
        match (self.l3(), self.proto()) {
            (L3::Ipv4, wire::protocol::ICMP) => wire::icmp::is_error(kind),
            (L3::Ipv6, wire::protocol::ICMPV6) => kind < wire::icmpv6::kind::ECHO_REQUEST,
            _ => false,
        }
    }

    /// True when the packet was sent to the MAC address of its VPC's virtual router. Those to the Router's MAC address of this host
    /// ([`router_mac`](crate::vtep::router_mac)) are routed, too.
    pub const fn routed(&self) -> bool {
        self.words[6] & ROUTED != 0
    }

    /// Source MAC of a packet that is not IP.
    pub const fn src_mac(&self) -> MacAddr {
        crate::snapshot::mac_from(self.words[0] & 0xffff_ffff_ffff)
    }

    /// Destination MAC of a bridged packet.
    pub const fn dst_mac(&self) -> MacAddr {
        let b = self.words[5].to_be_bytes();
        MacAddr([b[0], b[1], b[2], b[3], b[4], b[5]])
    }

    /// Inner VLAN id, outermost tag.
    pub const fn vlan(&self) -> Option<u16> {
        if self.words[5] & VLAN_PRESENT == 0 { None } else { Some((self.words[5] & 0xfff) as u16) }
    }

    /// EtherType of a packet that is not IP.
    pub const fn ethertype(&self) -> u16 {
        (self.words[6] >> 32) as u16
    }

    /// Source and destination address of an IP packet, each as [`ip_key`](crate::snapshot::ip_key) has it; `None` for others.
    #[inline]
    pub fn ip_keys(&self) -> Option<[u128; 2]> {
        let w = &self.words;
        match self.l3() {
            L3::Ipv4 => Some([w[0] >> 32, w[0] & 0xffff_ffff].map(|v4| u128::from(V4_MAPPED | v4))),
            L3::Ipv6 => Some([[w[0], w[1]], [w[2], w[3]]].map(|[a, b]| u128::from(a) << 64 | u128::from(b))),
            L3::None | L3::Arp => None,
        }
    }

    /// The addresses of an IP packet; `None` for others.
    pub fn addresses(&self) -> Option<FlowAddresses> {
        let w = &self.words;
        match self.l3() {
            L3::Ipv4 => Some(FlowAddresses {
                source: Ipv4Addr::from((w[0] >> 32) as u32).into(),
                destination: Ipv4Addr::from(w[0] as u32).into(),
            }),
            L3::Ipv6 => Some(FlowAddresses {
                source: Ipv6Addr::from(u128::from(w[0]) << 64 | u128::from(w[1])).into(),
                destination: Ipv6Addr::from(u128::from(w[2]) << 64 | u128::from(w[3])).into(),
            }),
            L3::None | L3::Arp => None,
        }
    }
}

impl std::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} ", self.scope())?;
        match self.addresses() {
            Some(FlowAddresses { source, destination }) => {
                let ports = self.ports();
                write!(f, "{source}:{} > {destination}:{}", ports.source, ports.destination)?;
                write!(f, " proto {}", self.proto())?;
            }
            None => write!(f, "ethertype {:#06x}", self.ethertype())?,
        }
        if self.class() != 0 {
            write!(f, " roce-class {}", self.class())?;
        }
        if let Some(vlan) = self.vlan() {
            write!(f, " vlan {vlan}")?;
        }
        if self.routed() { write!(f, " routed") } else { write!(f, " to {}", self.dst_mac()) }
    }
}

/// Identity of a fragmented datagram: addresses, protocol (IPv4 only: in IPv6 the protocol of a later fragment
/// may differ from its first one's), VLAN and id under a scope; the id stands where ports stand.
#[inline]
pub fn fragment_key(frame: &[u8], headers: &Headers, scope: Scope) -> FlowKey {
    let mut probe = *headers;
    if probe.l3 == L3::Ipv6 {
        probe.proto = 0;
    }
    let id = FlowPorts { source: (probe.ip_id >> 16) as u16, destination: probe.ip_id as u16 };
    FlowKey::build(frame, &probe, scope, id, 0, true)
}

/// The outer UDP source port: 49152..=65535 (RFC 7348 section 5, RFC 6335 dynamic range). Of a flow's
/// [`entropy`](FlowKey::entropy) and the inner source port, which the key of RoCEv2 leaves out: queue pairs between the
/// same two hosts differ in it alone.
#[inline(always)]
pub const fn outer_source_port(entropy: u16, sport: u16) -> u16 {
    PortMix::OWN.port(entropy, sport)
}

/// How an outer source port comes of a flow's share and a packet's: in numbers, so that software's own choice and a NIC's
/// take the same instructions, and no packet asks whose it is.
#[derive(Clone, Copy, Debug)]
pub struct PortMix {
    /// The packet's share times this, less the lower half, ...
    multiplier: u32,
    /// ... exclusive-or the flow's share, in these bits ...
    kept: u16,
    /// ... and with these set.
    set: u16,
}

impl PortMix {
    /// [`outer_source_port`]: of [`FlowKey::entropy`] and the inner source port.
    pub const OWN: Self = Self { multiplier: K0 as u32, kept: 0x3fff, set: 0xc000 };

    /// A NIC's: of [`EncapHash::entropy`](crate::encap_hash::EncapHash::entropy) and what the inner source port toggles.
    pub const NIC: Self = Self { multiplier: 1 << 16, kept: 0xffff, set: 0 };

    /// The outer source port.
    #[inline(always)]
    pub const fn port(self, flow: u16, packet: u16) -> u16 {
        let spread = (packet as u32).wrapping_mul(self.multiplier) >> 16;
        self.set | (flow ^ spread as u16) & self.kept
    }
}

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd6e8_feb8_6659_fd93;
const K2: u64 = 0xa076_1d64_78bd_642f;

/// Folded 64x64 multiplication.
#[inline(always)]
pub(crate) const fn mix(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Eight bytes, most significant first; zero past the end (the caller's parser has checked the length).
#[inline(always)]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..at + 8).and_then(|b| b.try_into().ok()) {
        Some(b) => u64::from_be_bytes(b),
        None => 0,
    }
}
