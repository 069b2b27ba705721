//! Routes of EVPN as the switch knows them: of types 2 (RFC 7432 section 7.2), 3 (section 7.3) and 5 (RFC 9136), for VxLAN (RFC 8365).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use wire::{MacAddr, Vni};

/// A route distinguisher (RFC 4364 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distinguisher {
    /// Type 0: an AS number of two octets.
    Asn2(u16, u32),
    /// Type 1: an IPv4 address.
    Address(Ipv4Addr, u16),
    /// Type 2: an AS number of four octets.
    Asn4(u32, u16),
}

impl fmt::Display for Distinguisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asn2(asn, number) => write!(f, "{asn}:{number}"),
            Self::Address(address, number) => write!(f, "{address}:{number}"),
            Self::Asn4(asn, number) => write!(f, "{asn}:{number}"),
        }
    }
}

/// What tells a route from all others: the key part of its NLRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Type 2: a station.
    Station { rd: Distinguisher, tag: u32, mac: MacAddr, ip: Option<IpAddr> },
    /// Type 3: a tunnel end point that wants what is flooded.
    Flood { rd: Distinguisher, tag: u32, originator: IpAddr },
    /// Type 5: a prefix.
    Prefix { rd: Distinguisher, tag: u32, to: IpNet },
}

impl Key {
    /// Its route distinguisher.
    pub fn rd(&self) -> Distinguisher {
        let (Self::Station { rd, .. } | Self::Flood { rd, .. } | Self::Prefix { rd, .. }) = self;
        *rd
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Station { rd, mac, ip: None, .. } => write!(f, "[2] {rd} {mac}"),
            Self::Station { rd, mac, ip: Some(ip), .. } => write!(f, "[2] {rd} {mac} {ip}"),
            Self::Flood { rd, originator, .. } => write!(f, "[3] {rd} {originator}"),
            Self::Prefix { rd, to, .. } => write!(f, "[5] {rd} {to}"),
        }
    }
}

/// A route: what it is about, and what is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub key: Key,
    /// Its network, by label and route target.
    pub vni: Vni,
    /// The tunnel end point that it is behind.
    pub vtep: IpAddr,
    /// How often a station has moved (RFC 7432 section 15).
    pub sequence: u32,
    /// A station that must not move (RFC 7432 section 15.2).
    pub sticky: bool,
    /// The MAC address of the router there (RFC 9135 section 8.1): of a prefix always, of a station where it is routed to.
    pub router_mac: Option<MacAddr>,
    /// Of a prefix: the address of its router, a station of the network (RFC 9136 section 4.1).
    pub gateway: Option<IpAddr>,
}

impl Route {
    /// A route of which nothing more is said.
    pub fn new(key: Key, vni: Vni, vtep: IpAddr) -> Self {
        Self { key, vni, vtep, sequence: 0, sticky: false, router_mac: None, gateway: None }
    }
}
