//! A tenant network in the snapshot: its subnets, and where its routes lead.

use std::net::IpAddr;
use std::sync::Arc;

use wire::{MacAddr, Vni};

use super::follows_from;
use super::routes::{Prefix, Route, RouteTable, RouteTarget, Subnet};
use crate::vlt::SlotRef;

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
    /// Its subnets, which do not overlap, and its routes.
    pub table: Arc<RouteTable>,
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
    /// Its subnets.
    pub fn subnets(&self) -> &[Subnet] {
        self.table.subnets()
    }

    /// Its routes.
    pub fn routes(&self) -> &[(Prefix, RouteTarget)] {
        self.table.routes()
    }

    /// Gives it other subnets.
    pub fn set_subnets(&mut self, subnets: Vec<Subnet>) {
        self.table = Arc::new(RouteTable::new(subnets, self.routes().to_vec()));
    }

    /// Gives it other routes.
    pub fn set_routes(&mut self, routes: Vec<(Prefix, RouteTarget)>) {
        self.table = Arc::new(RouteTable::new(self.subnets().to_vec(), routes));
    }

    /// Where packets to an address go, and those from it come from: the longest match among subnets and routes.
    pub fn route(&self, address: IpAddr) -> Option<Route<'_>> {
        self.table.find(address)
    }

    /// The subnet that holds an address, wherever that is routed to.
    pub fn subnet_of(&self, address: IpAddr) -> Option<&Subnet> {
        self.subnets().iter().find(|subnet| subnet.prefix.contains(address))
    }

    /// True when it has a route to another VPC.
    pub fn leads_to(&self, peer: u32) -> bool {
        self.routes().iter().any(|(_, target)| *target == RouteTarget::Peer(peer))
    }

    /// True when the virtual router has this address: that of a subnet, or the link-local one of its MAC.
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        self.subnets().iter().any(|subnet| subnet.gateway == Some(address))
            || follows_from(self.router_mac, address)
    }
}
