//! The slow path's decision: from a flow key and the configuration to an [`FlowAction`].
//!
//! A pure function of its two arguments, so that an NFT entry can be checked against it at any time: facts of a
//! single packet (TTL, length, ECN) are not seen here and never cached.

use std::net::IpAddr;

use wire::{L3, MacAddr};

use crate::direction::Direction;
use crate::drops::DropReason;
use crate::flow_key::{FlowAddresses, FlowKey, Scope};
use crate::martian::{is_link_scoped, is_martian};
use crate::nft::{FlowAction, FlowVerdict};
use crate::reverse_path::{self, is_link_local};
use crate::security;
use crate::service;
use crate::snapshot::{Destination, Location, Route, RouteTarget, Snapshot, Vpc};
use crate::vlt::SlotRef;
use crate::vtep::{self, SourceVtep};

use crate::stage::key::is_reliable;

/// EtherType of RoCE v1 (IBTA annex A16), whose queue pairs no quota would see.
const ROCE_V1: u16 = 0x8915;

/// Decides what becomes of the packets of a flow.
pub fn decide(snapshot: &Snapshot, key: &FlowKey) -> FlowAction {
    let (vpc, own_cell) = match key.scope() {
        Scope::Vnic(index) => match snapshot.vnic(index) {
            Some(vnic) => (snapshot.vpc(vnic.vpc), vnic.cell),
            None => (None, 0),
        },
        Scope::Vpc(index) => {
            let vpc = snapshot.vpc(index);
            (vpc, vpc.map_or(0, |vpc| vpc.cell))
        }
    };
    let Some(vpc) = vpc else {
        // No cell stands for what does not exist: never up to date, decided for each packet.
        let generation = snapshot.generation(0).wrapping_sub(1);
        return FlowAction { generation, ..FlowAction::drop(DropReason::PORT_UNBOUND) };
    };
    if key.l3() == L3::None && key.ethertype() == ROCE_V1 && key.direction() == Direction::Out {
        let generation = snapshot.generation(own_cell);
        return FlowAction { cell: own_cell, generation, ..FlowAction::drop(DropReason::ROCE_V1) };
    }
    if let Some(action) = service::decide(snapshot, vpc, key) {
        let generation = snapshot.generation(own_cell);
        return FlowAction { cell: own_cell, generation, ..action };
    }
    let (mut action, fixed) = match (is_routed(snapshot, key), key.addresses()) {
        (true, Some(FlowAddresses { source, destination }))
            if is_martian(source)
                && !has_host_route(vpc, source)
                && !is_on_link(vpc, source, destination) =>
        {
            (FlowAction::drop(DropReason::MARTIAN), true)
        }
        (true, Some(ip)) => route(snapshot, vpc, Some(ip.source), ip.destination, key.entropy()),
        // The router speaks ARP and IP only; ARP was answered before.
        (true, None) => (FlowAction::drop(DropReason::TO_ROUTER), true),
        (false, _) => bridge(snapshot, vpc, key.dst_mac(), key.direction()),
    };
    // A decision that rests on something being absent may change when a location comes.
    action.cell = if fixed { own_cell } else { vpc.topology_cell };
    action.generation = generation(snapshot, &action);
    action.rcft = u8::from(is_reliable(key.class()));
    action.entropy = snapshot.entropy(key);
    action
}

/// True for frames to the virtual router of a VPC, and for those that a router on another host sent to the Router's MAC address of
/// this host ([`vtep::router_mac`]). Link-local addresses are no VTEPs of which other hosts hear.
fn is_routed(snapshot: &Snapshot, key: &FlowKey) -> bool {
    let addresses = || snapshot.uplinks.iter().flatten().flat_map(|uplink| uplink.addresses());
    let vteps = || addresses().filter(|address| !is_link_local(*address));
    key.routed() || key.direction() == Direction::In && vtep::is_router_mac(key.dst_mac(), vteps())
}

/// [`decide`] for a flow whose packets may come from `source`. That a source has no location may change with the next
/// one that comes.
pub fn decide_from(snapshot: &Snapshot, key: &FlowKey, source: SourceVtep) -> FlowAction {
    let mut action = FlowAction { source, ..decide(snapshot, key) };
    if let (false, Scope::Vpc(index)) = (source.has_location(), key.scope())
        && let Some(vpc) = snapshot.vpc(index)
    {
        action.cell = vpc.topology_cell;
        action.generation = generation(snapshot, &action);
    }
    action
}

/// The generation that a decision is of.
fn generation(snapshot: &Snapshot, action: &FlowAction) -> u32 {
    let now = snapshot.generation(action.cell);
    // Never up to date: each packet of a flood meets the slow path, which bounds its copies.
    if action.verdict == FlowVerdict::Flood { now.wrapping_sub(1) } else { now }
}

/// True when a vNIC's queue pairs may be with an address: its security groups allow them, and its packets to there go
/// somewhere: routed, or bridged to the station that has the address, or
/// flooded because nobody knows that.
pub fn reaches(snapshot: &Snapshot, vnic: u32, address: IpAddr) -> bool {
    if !security::may_have_queue_pairs(snapshot, vnic, address) {
        return false;
    }
    let Some(vpc) = snapshot.vnic(vnic).and_then(|vnic| snapshot.vpc(vnic.vpc)) else { return false };
    let bridged = || match snapshot.location(vpc.index, Destination::Ip(address)) {
        Some(location) => bridge(snapshot, vpc, location.mac, Direction::Out).0.verdict != FlowVerdict::Drop,
        None => vpc.flood,
    };
    route(snapshot, vpc, None, address, 0).0.verdict == FlowVerdict::Forward || bridged()
}

/// Where a VPC's virtual router sends packets to an address, and the MAC that they get; `None` when it does not. Of several
/// gateways, one of them.
pub fn way_to(snapshot: &Snapshot, vpc: &Vpc, address: IpAddr) -> Option<(SlotRef, MacAddr)> {
    let (action, _) = route(snapshot, vpc, None, address, 0);
    let slot = SlotRef { slot: action.slot, generation: action.slot_generation };
    (action.verdict == FlowVerdict::Forward).then_some((slot, MacAddr(action.dst_mac)))
}

/// The second value is false when a new location in the VPC could change the decision.
fn bridge(snapshot: &Snapshot, vpc: &Vpc, mac: MacAddr, direction: Direction) -> (FlowAction, bool) {
    let flood = FlowAction { verdict: FlowVerdict::Flood, ..FlowAction::default() };
    if is_reserved(mac) {
        return (FlowAction::drop(DropReason::RESERVED_MAC), true);
    }
    if mac.is_group() {
        return (if vpc.flood { flood } else { FlowAction::drop(DropReason::BUM) }, true);
    }
    match snapshot.location(vpc.index, Destination::Mac(mac)) {
        Some(location) => (forward(location.slot), true),
        None if direction == Direction::In => (FlowAction::drop(DropReason::NOT_LOCAL), false),
        None if vpc.flood => (flood, false),
        None => (FlowAction::drop(DropReason::NO_LOCATION), false),
    }
}

/// Addresses between a station and the bridge next to it, which no bridge forwards (IEEE 802.1Q section 8.6.3).
const fn is_reserved(mac: MacAddr) -> bool {
    matches!(mac.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}

/// True when the VPC has a route for this link-local address alone: such a route means what it says, as for a metadata
/// service. What else no router forwards, no route makes it forward.
fn has_host_route(vpc: &Vpc, address: IpAddr) -> bool {
    is_link_scoped(address) && matches!(vpc.route(address), Some(Route::Via(prefix, _)) if prefix.is_host())
}

/// True for what a station says to the virtual router from its link-local address: nothing to be routed.
fn is_on_link(vpc: &Vpc, source: IpAddr, destination: IpAddr) -> bool {
    is_link_local(source) && vpc.is_gateway(destination)
}

/// Routes to an address what comes from another one, or from anybody (`None`); of several gateways, the one of flows with this
/// `entropy`. RoCEv2 has the same for all that two addresses exchange, so queue pairs and what sets them up stay on one path.
fn route(
    snapshot: &Snapshot,
    vpc: &Vpc,
    source: Option<IpAddr>,
    destination: IpAddr,
    entropy: u16,
) -> (FlowAction, bool) {
    if vpc.is_gateway(destination) {
        return (FlowAction { verdict: FlowVerdict::Router, ..FlowAction::default() }, true);
    }
    if is_martian(destination) && !has_host_route(vpc, destination) {
        return (FlowAction::drop(DropReason::MARTIAN), true);
    }
    let target = match vpc.route(destination) {
        None => return (FlowAction::drop(DropReason::NO_ROUTE), true),
        Some(Route::Subnet(_)) => {
            return to_location(vpc, snapshot.location(vpc.index, Destination::Ip(destination)));
        }
        Some(Route::Via(_, target)) => target,
    };
    match target {
        RouteTarget::Blackhole => (FlowAction::drop(DropReason::BLACKHOLE), true),
        RouteTarget::Peer(peer) => match snapshot.vpc(*peer) {
            Some(peer) => {
                let location = snapshot.location(peer.index, Destination::Ip(destination));
                let is_refused = |source| !reverse_path::comes_back(snapshot, vpc.index, peer, source);
                let (action, _) = match location {
                    Some(_) if source.is_some_and(is_refused) => {
                        (FlowAction::drop(DropReason::INNER_SOURCE), false)
                    }
                    location => to_location(peer, location),
                };
                // A station may come there that has the source's address.
                (action, false)
            }
            None => (FlowAction::drop(DropReason::NO_ROUTE), false),
        },
        // Where it is now, so that the route follows it to other hosts; its own packets to there are hairpins.
        RouteTarget::Station(mac) => to_location(vpc, snapshot.location(vpc.index, Destination::Mac(*mac))),
        // A tenant's packets reach the underlay in a tunnel, never the switch itself.
        RouteTarget::Gateways(_)
            if snapshot.uplinks.iter().flatten().any(|uplink| uplink.owns(destination)) =>
        {
            (FlowAction::drop(DropReason::MARTIAN), true)
        }
        RouteTarget::Gateways(_) => match target.gateway(entropy) {
            Some(gateway) => (rewrite(forward(gateway.slot), vpc.router_mac, gateway.mac), true),
            None => (FlowAction::drop(DropReason::NO_ROUTE), true),
        },
    }
}

fn to_location(vpc: &Vpc, location: Option<&Location>) -> (FlowAction, bool) {
    match location {
        Some(location) => (rewrite(forward(location.slot), vpc.router_mac, location.mac), true),
        None => (FlowAction::drop(DropReason::NO_LOCATION), false),
    }
}

fn forward(slot: SlotRef) -> FlowAction {
    FlowAction {
        verdict: FlowVerdict::Forward,
        slot: slot.slot,
        slot_generation: slot.generation,
        ..FlowAction::default()
    }
}

fn rewrite(action: FlowAction, source: MacAddr, destination: MacAddr) -> FlowAction {
    FlowAction { rewrite: 1, src_mac: source.0, dst_mac: destination.0, ..action }
}
