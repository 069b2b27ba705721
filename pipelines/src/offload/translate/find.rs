//! What the tables say of a flow, and whether hardware would treat it as software does.

use std::net::IpAddr;

use wire::roce::RoceClass;
use wire::{MacAddr, protocol};

use super::patterns::{Family, RoceMatch};
use super::{OffloadRefusal, Tables};
use crate::decide::decide;
use crate::direction::Direction;
use crate::event::Binding;
use crate::flow_key::{FlowKey, Scope};
use crate::nft::{FlowAction, FlowVerdict};
use crate::qos::{Class, Leaf};
use crate::security;
use crate::snapshot::{Destination, NO_PORT, PortIndex, Snapshot, Uplink, VnicRow, mac_from};
use crate::vlt::{Place, Tunnel};

/// What is known of a flow once the tables were asked.
pub(super) struct ResolvedFlow {
    /// IP family of its packets.
    pub family: Family,
    /// What the slow path decides.
    pub decision: FlowAction,
    /// Content of the VLT slot that the decision names.
    pub place: Place,
    /// A source port whose bucket of the slot's next-hop group has the way that its packets take.
    pub bucket: u16,
    /// DPDK port that stands for where they come from ...
    pub from: u16,
    /// ... and for where they go.
    pub to: u16,
    /// The MAC that they come from; zero out of the tunnel.
    pub source_mac: MacAddr,
    /// Destination MAC of their frames, as they come in.
    pub destination: MacAddr,
    /// They pass the virtual router, which has that MAC: MACs are rewritten, and the TTL decremented.
    pub routed: bool,
    /// The class whose rate its packets count against: `None` where they stay on this host.
    pub leaf: Option<Leaf>,
    /// The tunnel that they come out of.
    pub tunnel: Option<ArrivalTunnel>,
}

/// A tunnel as the receiver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrivalTunnel {
    /// IP version of the outer header.
    pub outer: Family,
    /// The sender's VTEP and our own address.
    pub ends: (IpAddr, IpAddr),
    /// MAC of our uplink, to which outer frames are sent.
    pub mac: MacAddr,
    /// VLAN of the underlay.
    pub vlan: Option<u16>,
    /// VNI of the network that the tunnel carries.
    pub vni: u32,
    /// Bytes of the outer headers.
    pub len: usize,
}

/// Asks the tables where packets with a key and a UDP or TCP source port go, and checks what hardware would do otherwise.
pub(super) fn find(tables: &Tables, key: &FlowKey, source_port: u16) -> Result<ResolvedFlow, OffloadRefusal> {
    let Tables { snapshot, tree, connections, .. } = tables;
    let source = key.addresses().ok_or(OffloadRefusal::Protocol)?.source;
    // The second VLAN id of a key is in the upper bits of its last word.
    if key.words()[6] >> 48 != 0 {
        return Err(OffloadRefusal::Vlan);
    }
    let decision = decide(snapshot, key);
    if decision.verdict != FlowVerdict::Forward {
        return Err(OffloadRefusal::NotForwarded);
    }
    let reading = snapshot.vlt.read(decision.slot);
    if reading.generation != decision.slot_generation {
        return Err(OffloadRefusal::Gone);
    }
    let receiver = match reading.place {
        Place::Local { vnic } => Some(vnic),
        Place::Remote(_) | Place::Empty => None,
    };
    if !snapshot.security.is_off() && !security::leaves_to_hardware(snapshot, *connections, key, receiver) {
        return Err(OffloadRefusal::SecurityGroup);
    }
    let to_tunnel = key.proto() == protocol::UDP && key.ports().destination == snapshot.settings.vxlan_port;
    if to_tunnel && key.class() == 0 && matches!(key.scope(), Scope::Vnic(_)) {
        return Err(OffloadRefusal::Tunnel);
    }
    let class = if key.class() != 0 { Class::Rdma } else { Class::Tcp };
    let mut bucket = 0;
    let (to, receiver) = match reading.place {
        Place::Remote(tunnel) => {
            // As software chooses, so that a flow keeps its uplink when it moves.
            let port = snapshot.port_mix().port(snapshot.entropy(key), source_port);
            bucket = snapshot.vlt.next_hops().representative(tunnel.group, port);
            let (uplink, _) = snapshot.way(tunnel.group, bucket).ok_or(OffloadRefusal::Unresolved)?;
            (uplink.port, None)
        }
        Place::Local { vnic } => (row_of(snapshot, vnic)?.port, Some(vnic)),
        Place::Empty => return Err(OffloadRefusal::Gone),
    };
    let mut found = ResolvedFlow {
        family: Family::of(source),
        decision,
        place: reading.place,
        bucket,
        from: 0,
        to: port_of(tables, to)?,
        source_mac: MacAddr::ZERO,
        destination: key.dst_mac(),
        routed: decision.macs().is_some(),
        leaf: None,
        tunnel: None,
    };
    let vpc = match key.scope() {
        Scope::Vnic(index) => {
            let row = row_of(snapshot, index)?;
            let from = Binding { address: source, mac: mac_from(row.mac) };
            if !snapshot.vnic(index).is_some_and(|vnic| vnic.may_send(from)) {
                return Err(OffloadRefusal::Guard);
            }
            found.from = port_of(tables, row.port)?;
            found.source_mac = mac_from(row.mac);
            if receiver == Some(index) {
                return Err(OffloadRefusal::NotForwarded);
            }
            fits(snapshot, row, &reading.place)?;
            let remote = receiver.is_none();
            found.leaf = remote.then(|| tree.leaf(Direction::Out, index, class));
            row.vpc
        }
        Scope::Vpc(index) => {
            let receiver = receiver.ok_or(OffloadRefusal::NotForwarded)?;
            let tunnel = way_back(snapshot, index, source)?;
            let uplink = snapshot.uplink_of(tunnel.group).ok_or(OffloadRefusal::Unresolved)?;
            found.from = port_of(tables, uplink.port)?;
            found.leaf = Some(tree.leaf(Direction::In, receiver, class));
            found.tunnel = Some(receiving(snapshot, index, uplink, &tunnel)?);
            index
        }
    };
    let router = snapshot.vpc(vpc).ok_or(OffloadRefusal::Gone)?.router_mac;
    if key.routed() {
        found.destination = router;
    }
    Ok(found)
}

/// The row of a vNIC that has a port of its own.
fn row_of(snapshot: &Snapshot, vnic: u32) -> Result<&VnicRow, OffloadRefusal> {
    let row = snapshot.row(vnic);
    match (row.port, row.vlan) {
        (NO_PORT, _) => Err(OffloadRefusal::Port),
        (_, 0) => Ok(row),
        _ => Err(OffloadRefusal::Trunk),
    }
}

fn port_of(tables: &Tables, port: PortIndex) -> Result<u16, OffloadRefusal> {
    tables.ports.get(usize::from(port)).copied().flatten().ok_or(OffloadRefusal::Port)
}

/// The tunnel to the source of packets that come out of it.
fn way_back(snapshot: &Snapshot, vpc: u32, source: IpAddr) -> Result<Tunnel, OffloadRefusal> {
    let location = snapshot.location(vpc, Destination::Ip(source)).ok_or(OffloadRefusal::Source)?;
    match snapshot.vlt.read(location.slot.slot).place {
        Place::Remote(tunnel) => Ok(tunnel),
        _ => Err(OffloadRefusal::Source),
    }
}

fn receiving(
    snapshot: &Snapshot,
    vpc: u32,
    uplink: &Uplink,
    back: &Tunnel,
) -> Result<ArrivalTunnel, OffloadRefusal> {
    if snapshot.settings.vxlan_strict {
        return Err(OffloadRefusal::Strict);
    }
    let header = &back.header;
    let ip = usize::from(uplink.link_header_len());
    let address = |at: usize, n: usize| -> Option<IpAddr> {
        let bytes = header.get(ip + at..ip + at + n)?;
        <[u8; 4]>::try_from(bytes)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
            .ok()
    };
    let v4 = header[ip] >> 4 == 4;
    let (own, peer) = if v4 { (address(12, 4), address(16, 4)) } else { (address(8, 16), address(24, 16)) };
    let (own, peer) = own.zip(peer).ok_or(OffloadRefusal::Source)?;
    if !v4 && !uplink.udp6_zero_checksum {
        return Err(OffloadRefusal::UdpChecksum);
    }
    Ok(ArrivalTunnel {
        outer: Family::of(peer),
        ends: (peer, own),
        mac: mac_from(uplink.mac),
        vlan: uplink.vlan,
        vni: snapshot.vpc(vpc).ok_or(OffloadRefusal::Gone)?.vni.get(),
        len: usize::from(back.len),
    })
}

/// Frames that fit where they come from must fit where they go.
fn fits(snapshot: &Snapshot, row: &VnicRow, place: &Place) -> Result<(), OffloadRefusal> {
    let tag = if row.keep_vlan != 0 { 4 } else { 0 };
    let (longest, most) = match place {
        Place::Remote(tunnel) => {
            let uplink = snapshot.uplink_of(tunnel.group).ok_or(OffloadRefusal::Unresolved)?;
            (usize::from(row.mtu) + 14 + tag + usize::from(tunnel.len), uplink.longest_frame())
        }
        Place::Local { vnic } => (usize::from(row.mtu), usize::from(snapshot.row(*vnic).mtu)),
        Place::Empty => return Err(OffloadRefusal::Gone),
    };
    if longest > most { Err(OffloadRefusal::Mtu(longest)) } else { Ok(()) }
}

/// The RoCEv2 class of a flow whose packets rules can tell; `None` for other flows.
pub(super) fn roce_of(key: &FlowKey) -> Result<Option<RoceMatch>, OffloadRefusal> {
    let Some(code) = key.class().checked_sub(1) else { return Ok(None) };
    let class = RoceClass::ALL.get(usize::from(code)).copied().ok_or(OffloadRefusal::RoceClass)?;
    RoceMatch::Class(class).item().map(|_| Some(RoceMatch::Class(class))).ok_or(OffloadRefusal::RoceClass)
}
