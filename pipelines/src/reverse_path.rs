//! The reverse path of what comes out of the tunnel: the source of an inner packet must be behind the VTEP that sent
//! it (RFC 3704 calls this strict reverse path forwarding).
//!
//! A source that has a location is accepted from the VTEP of that location, and never when the location is a vNIC of this
//! host. Others, and those with a location where a longer route leads elsewhere, are accepted from where the VPC would route to
//! them ([`Vpc::route`]):
//!
//! - by a route to gateways, from the VTEP of each of them;
//! - by a route to another VPC, from the VTEP of the location there;
//! - by a route to a station of the VPC, from the VTEP that it is behind.
//!
//! Besides, a source without a location is accepted
//!
//! - when it is a link-local address, from any VTEP of the VPC: which ones its stations have beside those that follow from
//!   their MACs, their host knows;
//! - where the VPC floods, from the VTEPs of its flood list: stations without locations are what flooding is for;
//! - from the VTEPs that the config lists (`[[uplink]] peers`);
//!
//! the last two not when a route says that it is nowhere.
//!
//! What goes from here into another VPC goes only where that VPC routes the source back ([`comes_back`]): its stations' hosts could
//! not tell, for this host's VTEP is where stations of that VPC may be, too.
//!
//! The virtual router's addresses are the source of ICMP errors only, which its part on any host sends. The slow path asks here
//! once for a flow; each hit asks [`SourceVtep::admits`] again, for a location may have moved meanwhile.

use std::net::IpAddr;

use wire::MacAddr;

use crate::burst::Meta;
use crate::direction::Direction;
use crate::event::Binding;
use crate::flow_key::FlowKey;
use crate::snapshot::{Destination, Location, Route, RouteTarget, Snapshot, Vpc};
use crate::vlt::Place;
use crate::vtep::{SourceVtep, Vtep};

/// From where the flow of a packet may come, when that is where the packet came from. A vNIC's packets are the guard's
/// to judge.
pub fn of_packet(snapshot: &Snapshot, meta: &Meta) -> Option<SourceVtep> {
    if meta.direction() == Direction::Out {
        return Some(SourceVtep::default());
    }
    of_flow(snapshot, snapshot.vpc(meta.vpc)?, &meta.key, meta.vtep)
}

/// The same of a flow of a VPC, from a VTEP.
pub fn of_flow(snapshot: &Snapshot, vpc: &Vpc, key: &FlowKey, vtep: Vtep) -> Option<SourceVtep> {
    match key.addresses() {
        Some(ip) if vpc.is_gateway(ip.source) && key.is_icmp_error() => Some(SourceVtep::vtep(vtep)),
        Some(ip) => of_address(snapshot, vpc, ip.source, vtep),
        None => of_mac(snapshot, vpc, key.src_mac(), vtep),
    }
}

/// The same of an IP address.
pub fn of_address(snapshot: &Snapshot, vpc: &Vpc, source: IpAddr, vtep: Vtep) -> Option<SourceVtep> {
    if vpc.is_gateway(source) {
        return None;
    }
    let own = snapshot.location(vpc.index, Destination::Ip(source));
    if is_link_local(source) {
        return own.map_or_else(|| Some(SourceVtep::vtep(vtep)), |own| behind(snapshot, own, vtep));
    }
    if let Some(own) = own {
        let is_here = matches!(snapshot.vlt.read(own.slot.slot).place, Place::Local { .. });
        let there = behind(snapshot, own, vtep);
        if is_here || there.is_some() {
            return there;
        }
    }
    let by_gateway = |slot| snapshot.vlt.vtep_of(slot) == vtep.number();
    match vpc.route(source) {
        Some(Route::Via(_, RouteTarget::Blackhole)) => return None,
        Some(Route::Via(_, RouteTarget::Gateways(gateways)))
            if gateways.iter().any(|gateway| by_gateway(gateway.slot.slot)) =>
        {
            return Some(SourceVtep::vtep(vtep));
        }
        Some(Route::Via(_, RouteTarget::Peer(peer))) => {
            if let Some(location) = snapshot.location(*peer, Destination::Ip(source)) {
                return behind(snapshot, location, vtep);
            }
        }
        Some(Route::Via(_, RouteTarget::Station(mac))) => {
            if let Some(location) = snapshot.location(vpc.index, Destination::Mac(*mac)) {
                return behind(snapshot, location, vtep);
            }
        }
        Some(Route::Via(_, RouteTarget::Gateways(_)) | Route::Subnet(_)) | None => {}
    }
    (own.is_none() && may_be_stranger(snapshot, vpc, vtep)).then_some(SourceVtep::vtep(vtep))
}

/// True when what a vNIC or a tunnel of VPC `from` sends to a station of VPC `to`, on whichever host, may come from `source`: nobody
/// in `to` has the address, and its routes lead back to `from`. So a VPC that has no route to another one is not reached from
/// there, and who is there bears no address of its stations, whose groups it would have. Where this host does not know routes of
/// `to`, none leads back.
pub fn comes_back(snapshot: &Snapshot, from: u32, to: &Vpc, source: IpAddr) -> bool {
    let is_known = snapshot.location(to.index, Destination::Ip(source)).is_some();
    let leads_back =
        || matches!(to.route(source), Some(Route::Via(_, RouteTarget::Peer(back))) if *back == from);
    !is_known && leads_back()
}

/// True for an IPv6 link-local unicast address (RFC 4291 section 2.5.6).
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// The same of a MAC address, for what is not IP.
pub fn of_mac(snapshot: &Snapshot, vpc: &Vpc, source: MacAddr, vtep: Vtep) -> Option<SourceVtep> {
    match snapshot.location(vpc.index, Destination::Mac(source)) {
        Some(location) => behind(snapshot, location, vtep),
        None => may_be_stranger(snapshot, vpc, vtep).then_some(SourceVtep::vtep(vtep)),
    }
}

/// True when a station behind a VTEP may say that it has an address and a MAC (ARP, neighbour discovery).
pub fn may_claim(snapshot: &Snapshot, vpc: &Vpc, binding: Binding, vtep: Vtep) -> bool {
    let Binding { address, mac } = binding;
    if address.is_unspecified() {
        return of_mac(snapshot, vpc, mac, vtep).is_some();
    }
    let others = |location: &Location| location.mac != mac;
    !locate(snapshot, vpc, address).is_some_and(others)
        && of_address(snapshot, vpc, address, vtep).is_some()
        && (!is_link_local(address) || of_mac(snapshot, vpc, mac, vtep).is_some())
}

/// From where an ICMP error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorSender {
    /// From this vNIC of this host.
    Vnic(u32),
    /// Out of the tunnel, from this VTEP, in a frame with this source MAC.
    Remote(Vtep, MacAddr),
}

/// True when an ICMP error from an address, `source`, may be what became of a packet to `destination`: it comes from the station
/// that has the destination, from one that the VPC routes the destination to, or from nobody who is known as a station of the VPC,
/// such as the virtual router on another host and routers beyond a gateway. What any other station reports it made up (RFC 5927).
pub fn may_report(
    snapshot: &Snapshot,
    vpc: &Vpc,
    sender: ErrorSender,
    source: IpAddr,
    destination: IpAddr,
) -> bool {
    let station = locate_in(snapshot, vpc, destination);
    let by_mac = |mac: MacAddr| Some((vpc.index, snapshot.location(vpc.index, Destination::Mac(mac))?));
    let (router, gateways) = match vpc.route(destination) {
        Some(Route::Via(_, RouteTarget::Station(mac))) => (by_mac(*mac), &[][..]),
        Some(Route::Via(_, RouteTarget::Gateways(gateways))) => (None, &gateways[..]),
        Some(Route::Via(_, RouteTarget::Peer(_) | RouteTarget::Blackhole) | Route::Subnet(_)) | None => {
            (None, &[][..])
        }
    };
    let mut on_the_way = [station, router].into_iter().flatten();
    match sender {
        // Whose packet it is, is known whatever address it bears. An address that nobody is known to have is whose it says.
        ErrorSender::Vnic(vnic) => {
            let is_it =
                |location: &Location| snapshot.vlt.read(location.slot.slot).place == Place::Local { vnic };
            on_the_way.any(|(_, location)| is_it(location)) || station.is_none() && source == destination
        }
        ErrorSender::Remote(vtep, mac) => {
            if source == destination || vpc.is_gateway(source) {
                return true;
            }
            let Some(sender) = locate_in(snapshot, vpc, source).or_else(|| by_mac(mac)) else { return true };
            // A station may have several addresses, and answer from another one.
            let is_it = |(of, location): (u32, &Location)| (of, location.mac) == (sender.0, sender.1.mac);
            on_the_way.any(is_it)
                || gateways.iter().any(|gateway| snapshot.vlt.vtep_of(gateway.slot.slot) == vtep.number())
        }
    }
}

fn behind(snapshot: &Snapshot, location: &Location, vtep: Vtep) -> Option<SourceVtep> {
    let source = SourceVtep::location(location.slot.slot);
    source.admits(&snapshot.vlt, vtep).then_some(source)
}

/// The location of an address, in the VPC or in the one that it is routed to.
pub(crate) fn locate<'a>(snapshot: &'a Snapshot, vpc: &Vpc, address: IpAddr) -> Option<&'a Location> {
    locate_in(snapshot, vpc, address).map(|(_, location)| location)
}

/// The same, and in which VPC: MAC addresses say who somebody is within one.
fn locate_in<'a>(snapshot: &'a Snapshot, vpc: &Vpc, address: IpAddr) -> Option<(u32, &'a Location)> {
    let of = |vpc: u32| Some((vpc, snapshot.location(vpc, Destination::Ip(address))?));
    of(vpc.index).or_else(|| match vpc.route(address)? {
        Route::Via(_, RouteTarget::Peer(peer)) => of(*peer),
        _ => None,
    })
}

/// True where sources without a location are accepted.
pub fn may_be_stranger(snapshot: &Snapshot, vpc: &Vpc, vtep: Vtep) -> bool {
    let on_list = || vpc.flood_slots.iter().any(|slot| snapshot.vlt.vtep_of(slot.slot) == vtep.number());
    vtep.is_listed() || vpc.flood && on_list()
}
