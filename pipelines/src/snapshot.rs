//! The compiled configuration that workers read: ports, vNICs, VPCs, uplinks, locations, settings.
//!
//! Control builds a new [`Snapshot`] for every change of policy or topology and hands it to each worker; a worker
//! uses one for the whole of a burst. Nothing in it changes after it was handed out; what changes in place is the
//! VLT that it refers to. Rows that the fast path reads for each packet are flat and cache-aligned.
//!
//! NFT entries remember decisions made from a snapshot; generation cells tell them when to ask again. A decision
//! hangs on the cell of its source ([`Vnic::cell`], or [`Vpc::cell`] out of the tunnel); one that rests on a
//! location being absent, as of the source in another VPC that the packet is for, hangs on [`Vpc::topology_cell`]. So, whoever
//! builds the next snapshot:
//!
//! | change | what to do besides |
//! |---|---|
//! | a location moves (VTEP, next hop, this host) | nothing: update its VLT slot in place |
//! | a location comes | [`Snapshot::touch_topology`] of its VPC |
//! | a location goes | [`Snapshot::touch_sources`] of its VPC; publish the snapshot without it, then free the slot |
//! | a location changes its MAC | [`Snapshot::touch_vpc`] of its VPC and of those that route to it |
//! | a floating address moves to another vNIC | `touch_vpc` of its VPC and of those that route to it |
//! | what a vNIC is allowed, and whether it is guarded | `bump` its cell: rules in hardware were made of it |
//! | a vNIC comes | its VIPs and MAC are locations that come |
//! | a vNIC goes | [`Snapshot::bump`] its cell and `touch_vpc`: its index may be used again, by another VPC even; its locations go |
//! | flooding, VLAN policy of a VPC | `touch_vpc` |
//! | subnets, routes, peers of a VPC | `touch_vpc` of it and of those that route to it; with groups a new [`Security::epoch`]: whose address it is follows from them |
//! | router MAC of a VPC | `touch_vpc` of it and of those that route to it |
//! | a VPC comes or goes | `touch_vpc` of it (before it goes) and of those that have a route to it |
//! | flood list of a VPC, VTEPs that the config lists | [`Snapshot::touch_strangers`] of the VPCs |
//! | addresses of uplinks | `touch_vpc` of all: gateways do not lead to them, and routers elsewhere send to MACs that follow from them |
//! | what security groups allow becomes less, or a station leaves one | a new [`Security::epoch`], and `touch_vpc` of all |
//! | it becomes more, or a station joins one | `touch_vpc` of all |
//! | the NIC's hash of encapsulation | `touch_vpc` of all: entries remember what it makes of the flow |
//! | settings, other facts of uplinks, ports, MTUs | nothing: never remembered |
//!
//! The count of a cell is never set back while workers run.

mod allowed;
mod locations;
mod routes;
mod services;
mod uplink;
mod vpc;

pub use allowed::{AllowedPair, GUARD_OFF, GUARD_PAIRS};
pub use locations::{Destination, Location, Locations};
pub use routes::{Gateway, Prefix, Route, RouteTable, RouteTarget, Subnet};
pub use services::Services;
pub use uplink::Uplink;
pub use vpc::Vpc;

use std::net::IpAddr;
use std::sync::Arc;

use wire::{MacAddr, TunnelTso};

use crate::bfd::BfdSessions;
use crate::ecn::EcnEncap;
use crate::encap_hash::EncapHash;
use crate::flat::FlatMap;
use crate::flow_key::{FlowKey, PortMix};
use crate::qos::{QueueLimits, RedProfile};
use crate::security::{Security, SetId};
use crate::stage::key::RoceClasses;
use crate::vlt::{Place, Vlt};
use crate::vtep::Vteps;

/// Dense index of a port within the switch (not the DPDK port id).
pub type PortIndex = u16;

/// A MAC address from the number that rows keep it as.
#[inline]
pub const fn mac_from(number: u64) -> MacAddr {
    let b = number.to_be_bytes();
    MacAddr([b[2], b[3], b[4], b[5], b[6], b[7]])
}

/// No port: the index that none has.
pub const NO_PORT: PortIndex = u16::MAX;

/// What a port is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortRole {
    /// Nothing: its packets are dropped as `port-unbound`.
    #[default]
    Unbound,
    /// One vNIC (index).
    Vnic(u32),
    /// Many vNICs by VLAN id: index into [`Snapshot::trunks`].
    Trunk(u32),
    /// The underlay: index into [`Snapshot::uplinks`].
    Uplink(u16),
    /// The host's share of an uplink: non-VTEP traffic goes and comes here.
    Punt(u16),
}

/// A port as the pipeline sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRow {
    /// Whose packets it brings: decides with which stage they begin.
    pub role: PortRole,
    /// The port may deliver packets whose TCP or UDP checksum field holds the pseudo-header sum only, without
    /// saying so (af_packet on a veth).
    pub partial_checksums: bool,
    /// Its device takes TCP super-frames and cuts them, or hands them whole to a kernel or guest that does: what is for it is
    /// not cut in software.
    pub takes_super_frames: bool,
    /// What its device does with TCP super-frames inside VxLAN: where it cuts them, they leave whole.
    pub tunnel_tso: Option<TunnelTso>,
    /// Partner in the `io` and `mac` forwarding modes, or [`NO_PORT`].
    pub partner: PortIndex,
    /// The port's own MAC address, for `mac` forwarding.
    pub mac: MacAddr,
}

/// What the fast path needs of a vNIC, in one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct VnicRow {
    /// First IPv6 VIP, or zero.
    pub v6: u128,
    /// MAC, as [`MacAddr::to_u64`].
    pub mac: u64,
    /// MAC of the VPC's virtual router, as [`MacAddr::to_u64`].
    pub router_mac: u64,
    /// First IPv4 VIP, or zero.
    pub v4: u32,
    /// Index of the VPC; `u32::MAX` marks a free row.
    pub vpc: u32,
    /// Port, or [`NO_PORT`] while it has none.
    pub port: PortIndex,
    /// VLAN id on a trunk port, or 0.
    pub vlan: u16,
    /// Largest IP packet.
    pub mtu: u16,
    /// 1 when inner VLAN tags are kept.
    pub keep_vlan: u8,
    /// 1 when the vNIC has more VIPs than the two in this row.
    pub more_vips: u8,
    /// What it may send from besides its own addresses: [`GUARD_PAIRS`], [`GUARD_OFF`].
    pub guard: u8,
    /// The security groups that it is in; 0: none, and everything may come and go.
    pub group_set: SetId,
}

impl VnicRow {
    /// A free row.
    pub const FREE: Self = Self {
        v6: 0,
        mac: 0,
        router_mac: 0,
        v4: 0,
        vpc: u32::MAX,
        port: NO_PORT,
        vlan: 0,
        mtu: 0,
        keep_vlan: 0,
        more_vips: 0,
        guard: 0,
        group_set: 0,
    };
}

/// A vNIC of this host, as the slow path and control need it; the fast path has its [`VnicRow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vnic {
    /// Name in config, console and metrics.
    pub name: String,
    /// Index, stable while the vNIC exists.
    pub index: u32,
    /// Index of its VPC.
    pub vpc: u32,
    /// MAC that it sends from, and under which it is known.
    pub mac: MacAddr,
    /// Virtual IP addresses, and link-local addresses that were learned; see [`Vnic::addresses`].
    pub vips: Vec<IpAddr>,
    /// Link-local addresses that it asks for become its own.
    pub learns: bool,
    /// What it may have besides.
    pub allowed: Vec<AllowedPair>,
    /// It may send from its own and its allowed addresses only; otherwise from all.
    pub guarded: bool,
    /// Largest IP packet.
    pub mtu: u16,
    /// Port, or [`NO_PORT`].
    pub port: PortIndex,
    /// VLAN id on a trunk port.
    pub vlan: Option<u16>,
    /// The security groups that it is in.
    pub group_set: SetId,
    /// Generation cell of decisions for packets from this vNIC.
    pub cell: u32,
}

impl Vnic {
    /// Every address that is its own: the VIPs, and the link-local address that follows from its MAC.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.vips.iter().copied().chain([self.mac.link_local().into()])
    }

    /// True when the address is its own.
    pub fn has(&self, address: IpAddr) -> bool {
        self.vips.contains(&address) || follows_from(self.mac, address)
    }
}

/// True for the link-local address of a MAC.
#[inline]
fn follows_from(mac: MacAddr, address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address == mac.link_local())
}

/// The outer DSCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DscpPolicy {
    /// That of the inner packet.
    #[default]
    Copy,
    /// The same DSCP in all outer headers.
    Fixed(u8),
}

/// Settings of the whole switch that the fast path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// UDP port of VxLAN.
    pub vxlan_port: u16,
    /// UDP port of RoCEv2.
    pub rdma_port: u16,
    /// What opcodes of RoCEv2 mean.
    pub roce_classes: RoceClasses,
    /// Drop VxLAN packets with a reserved bit set.
    pub vxlan_strict: bool,
    /// ECN at encapsulation.
    pub ecn_encap: EcnEncap,
    /// DSCP at encapsulation.
    pub dscp: DscpPolicy,
    /// Slow-path packets per burst.
    pub miss_budget: u32,
    /// Slow-path packets per second and vNIC (or VPC, for what comes out of the tunnel); 0: no limit.
    pub miss_rate: u32,
    /// ICMP errors per second, of each worker, about what a vNIC sends, and as many about what comes for it (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)); 0: no limit.
    pub error_rate: u32,
    /// Copies of flooded packets per burst; a packet that needs more is not flooded at all.
    pub flood_budget: u32,
    /// Copies of flooded packets per second and vNIC (or VPC, for what comes out of the tunnel); 0: no limit.
    pub flood_rate: u32,
    /// How RDMA over its rates is marked and bounded.
    pub red: RedProfile,
    /// How much of a class may wait on a worker.
    pub queues: QueueLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            vxlan_port: 4789,
            rdma_port: 4791,
            roce_classes: RoceClasses::STANDARD,
            vxlan_strict: false,
            ecn_encap: EcnEncap::default(),
            dscp: DscpPolicy::default(),
            miss_budget: 32,
            miss_rate: 100_000,
            error_rate: 1000,
            flood_budget: 256,
            flood_rate: 100_000,
            red: RedProfile::default(),
            queues: QueueLimits::default(),
        }
    }
}

/// The configuration that workers use for a burst.
#[derive(Clone)]
pub struct Snapshot {
    /// Counts up with every change.
    pub version: u32,
    /// Settings that hold for all VPCs.
    pub settings: Settings,
    /// Ports by index.
    pub ports: Vec<PortRow>,
    /// Fast-path rows of vNICs, by index.
    pub vnic_rows: Vec<VnicRow>,
    /// vNICs by index.
    pub vnics: Vec<Option<Arc<Vnic>>>,
    /// VPCs by index.
    pub vpcs: Vec<Option<Arc<Vpc>>>,
    /// VNI -> VPC index.
    pub vnis: FlatMap,
    /// Uplinks by index; an index stays with its uplink, so there may be gaps.
    pub uplinks: Vec<Option<Arc<Uplink>>>,
    /// Known remote VTEPs.
    pub vteps: Vteps,
    /// MAC addresses of this host's vNICs ([`Snapshot::local_mac`]): to their indices.
    pub local_macs: FlatMap,
    /// Trunk ports: VLAN id -> vNIC index.
    pub trunks: Vec<Arc<FlatMap>>,
    /// Where destinations are.
    pub locations: Locations,
    /// Sessions of bidirectional forwarding detection.
    pub bfd: Arc<BfdSessions>,
    /// Security groups.
    pub security: Arc<Security>,
    /// Generations of decisions, by cell.
    pub cells: Vec<u32>,
    /// The table that slots of locations refer to.
    pub vlt: Arc<Vlt>,
    /// The NIC's choice of outer source ports, where software follows it; else software's own
    /// ([`PortMix::OWN`]).
    pub encap_hash: Option<Arc<EncapHash>>,
}

/// An IP address as a key of a [`FlatMap`]: IPv4 in mapped form.
#[inline(always)]
pub fn ip_key(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => 0xffff_0000_0000 | u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl Snapshot {
    /// A snapshot with nothing in it.
    pub fn empty(vlt: Arc<Vlt>) -> Self {
        Self {
            version: 0,
            settings: Settings::default(),
            ports: Vec::new(),
            vnic_rows: Vec::new(),
            vnics: Vec::new(),
            vpcs: Vec::new(),
            vnis: FlatMap::default(),
            uplinks: Vec::new(),
            vteps: Vteps::default(),
            local_macs: FlatMap::default(),
            trunks: Vec::new(),
            locations: Locations::default(),
            bfd: Arc::default(),
            security: Arc::default(),
            cells: Vec::new(),
            vlt,
            encap_hash: None,
        }
    }

    /// The row of a vNIC; a free row for an index that is not in use.
    #[inline(always)]
    pub fn row(&self, vnic: u32) -> &VnicRow {
        self.vnic_rows.get(vnic as usize).unwrap_or(&VnicRow::FREE)
    }

    /// A vNIC by index.
    pub fn vnic(&self, index: u32) -> Option<&Vnic> {
        self.vnics.get(index as usize)?.as_deref()
    }

    /// A VPC by index.
    #[inline]
    pub fn vpc(&self, index: u32) -> Option<&Vpc> {
        self.vpcs.get(index as usize)?.as_deref()
    }

    /// True while a port is for something here, or something here leads to it. Its index must not be given to another
    /// port before every worker has left the snapshot.
    pub fn uses_port(&self, port: PortIndex) -> bool {
        self.ports.get(usize::from(port)).is_some_and(|row| row.role != PortRole::Unbound)
            || self.ports.iter().any(|row| row.partner == port)
            || self.vnic_rows.iter().any(|row| row.port == port)
            || self.uplinks.iter().flatten().any(|uplink| uplink.port == port || uplink.punt == port)
    }

    /// A MAC address within a VPC as a key of [`Snapshot::local_macs`].
    #[inline(always)]
    pub const fn local_mac(vpc: u32, mac: u64) -> u128 {
        (vpc as u128) << 48 | mac as u128
    }

    /// Enters the MAC addresses of this host's vNICs into [`Snapshot::local_macs`].
    pub fn index_local_macs(&mut self) {
        let vnics = self.vnics.iter().flatten();
        let macs = vnics.map(|vnic| (Self::local_mac(vnic.vpc, vnic.mac.to_u64()), vnic.index));
        self.local_macs = FlatMap::new(macs);
    }

    /// A location. The link-local address that follows from a MAC (RFC 4291 appendix A) is where the MAC is.
    pub fn location(&self, vpc: u32, destination: Destination) -> Option<&Location> {
        let found = self.locations.get(&(vpc, destination));
        if found.is_some() {
            return found;
        }
        let Destination::Ip(IpAddr::V6(address)) = destination else { return None };
        self.locations.get(&(vpc, Destination::Mac(MacAddr::of_link_local(address)?)))
    }

    /// True when the virtual router or a known station of the VPC has the address.
    pub fn is_held(&self, vpc: &Vpc, address: IpAddr) -> bool {
        vpc.is_gateway(address) || self.location(vpc.index, Destination::Ip(address)).is_some()
    }

    /// The vNIC of this host that has an address in a VPC.
    pub fn local_vnic(&self, vpc: u32, address: IpAddr) -> Option<u32> {
        let location = self.location(vpc, Destination::Ip(address))?;
        match self.vlt.read(location.slot.slot).place {
            Place::Local { vnic } => Some(vnic),
            _ => None,
        }
    }

    /// Makes decisions that hang on a cell stale.
    pub fn bump(&mut self, cell: u32) {
        let needed = cell as usize + 1;
        if self.cells.len() < needed {
            self.cells.resize(needed, 0);
        }
        self.cells[cell as usize] = self.cells[cell as usize].wrapping_add(1);
    }

    /// To be called when a location comes into a VPC: decisions that rested on its absence are stale, there and
    /// in the VPCs that have a route to it.
    pub fn touch_topology(&mut self, vpc: u32) {
        let peers = |other: &&Arc<Vpc>| other.index == vpc || other.leads_to(vpc);
        let cells: Vec<u32> = self.vpcs.iter().flatten().filter(peers).map(|vpc| vpc.topology_cell).collect();
        cells.into_iter().for_each(|cell| self.bump(cell));
    }

    /// To be called when a location goes out of a VPC: packets out of the tunnel were accepted for it, there and in the
    /// VPCs that have a route to it.
    pub fn touch_sources(&mut self, vpc: u32) {
        let related = |other: &&Arc<Vpc>| other.index == vpc || other.leads_to(vpc);
        let related: Vec<u32> =
            self.vpcs.iter().flatten().filter(related).map(|related| related.index).collect();
        related.into_iter().for_each(|vpc| self.touch_strangers(vpc));
    }

    /// To be called when other VTEPs may send into a VPC without a location of the sender.
    pub fn touch_strangers(&mut self, vpc: u32) {
        let cells = self.vpc(vpc).map(|vpc| [vpc.cell, vpc.topology_cell]);
        cells.into_iter().flatten().for_each(|cell| self.bump(cell));
    }

    /// To be called when the policy of a VPC changed: all decisions in it are stale.
    pub fn touch_vpc(&mut self, vpc: u32) {
        let own = self.vpc(vpc).map(|vpc| [vpc.cell, vpc.topology_cell]).into_iter().flatten();
        let members = self.vpc(vpc).map(|vpc| vpc.vnics.as_slice()).unwrap_or_default();
        let vnics = members.iter().filter_map(|&vnic| self.vnic(vnic)).map(|vnic| vnic.cell);
        let cells: Vec<u32> = own.chain(vnics).collect();
        cells.into_iter().for_each(|cell| self.bump(cell));
    }

    /// A flow's share of its outer source port: [`port_mix`](Self::port_mix) makes the port of it.
    #[inline]
    pub fn entropy(&self, key: &FlowKey) -> u16 {
        match &self.encap_hash {
            None => key.entropy(),
            Some(hash) => hash.entropy(key),
        }
    }

    /// How outer source ports come of the shares of flows and packets.
    #[inline(always)]
    pub const fn port_mix(&self) -> PortMix {
        if self.encap_hash.is_none() { PortMix::OWN } else { PortMix::NIC }
    }

    /// The generation of a cell.
    #[inline(always)]
    pub fn generation(&self, cell: u32) -> u32 {
        self.cells.get(cell as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_one_cache_line() {
        assert_eq!((size_of::<VnicRow>(), align_of::<VnicRow>()), (64, 64));
    }
}
