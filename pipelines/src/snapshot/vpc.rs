//! A tenant network in the snapshot: its subnets, and where its routes lead.

use std::net::IpAddr;

use wire::{MacAddr, Vni};

use super::follows_from;
use crate::vlt::SlotRef;

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// The prefix of `len` bits that holds `addr`; longer lengths are cut to the address size.
    pub fn new(addr: IpAddr, len: u8) -> Self {
        Self { addr, len: len.min(if addr.is_ipv4() { 32 } else { 128 }) }
    }

    /// Prefix length in bits.
    pub const fn len(self) -> u8 {
        self.len
    }

    /// True for the prefix that holds every address of its family.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// True when the address is of the same family and inside.
    pub fn contains(self, other: IpAddr) -> bool {
        let (a, b, width) = match (self.addr, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(u32::from(a)), u128::from(u32::from(b)), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
            _ => return false,
        };
        let host_bits = width - u32::from(self.len);
        a.checked_shr(host_bits).unwrap_or(0) == b.checked_shr(host_bits).unwrap_or(0)
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// A subnet of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Addresses that are on link: a vNIC of the VPC, or nobody, has them.
    pub prefix: Prefix,
    /// Address of the virtual router in it.
    pub gateway: Option<IpAddr>,
}

/// Where a route of a VPC leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// A gateway VTEP: its slot, and the inner destination MAC.
    Gateway {
        /// VLT slot of the gateway.
        slot: SlotRef,
        /// Inner destination MAC.
        mac: MacAddr,
    },
    /// Another VPC of this snapshot (index), whose locations are used.
    Peer(u32),
}

/// A tenant network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vpc {
    /// Name in config, console and metrics.
    pub name: String,
    /// Index, stable while the VPC exists.
    pub index: u32,
    /// VNI, 24 bits, unique among the VPCs of a snapshot.
    pub vni: Vni,
    /// MAC of the virtual router.
    pub router_mac: MacAddr,
    /// Replicate broadcast, unknown unicast and multicast.
    pub flood: bool,
    /// Keep VLAN tags inside the tunnel (otherwise drop such frames).
    pub keep_vlan: bool,
    /// Subnets; they do not overlap.
    pub subnets: Vec<Subnet>,
    /// Routes beyond the subnets, longest prefix first.
    pub routes: Vec<(Prefix, RouteTarget)>,
    /// vNICs of this host in the VPC.
    pub vnics: Vec<u32>,
    /// One slot per remote VTEP, for flooding.
    pub flood_slots: Vec<SlotRef>,
    /// Generation cell of decisions for packets out of the tunnel.
    pub cell: u32,
    /// Generation cell of decisions that a new location could change.
    pub topology_cell: u32,
}

impl Vpc {
    /// The subnet that holds an address.
    pub fn subnet_of(&self, address: IpAddr) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.prefix.contains(address))
    }

    /// The longest route that holds an address. Subnets come before routes.
    pub fn route_to(&self, address: IpAddr) -> Option<RouteTarget> {
        self.routes.iter().find(|(prefix, _)| prefix.contains(address)).map(|&(_, target)| target)
    }

    /// True when the virtual router has this address: that of a subnet, or the link-local one of its MAC.
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        self.subnets.iter().any(|subnet| subnet.gateway == Some(address))
            || follows_from(self.router_mac, address)
    }
}
