//! Security groups, compiled: what a vNIC may send and get by the rules of the groups that it is in.
//!
//! A vNIC is in a set of groups; each distinct set that a vNIC has is compiled into a [`Policy`] once. Rules allow; what no
//! rule allows goes by the default of the direction. A rule says where the other end is: anywhere, in a prefix, or in a
//! group. Who is in which group is known of vNICs of this host and of locations that say so.
//!
//! [`oracle`] says the same rule by rule.

pub mod oracle;
mod policy;

use std::net::IpAddr;
use std::sync::Arc;

pub use policy::{Policy, RuleSet};

use crate::connections::{ConnectionKey, Connections};
use crate::decide::decide;
use crate::flow_key::{FlowKey, Scope};
use crate::nft::FlowVerdict;
use crate::snapshot::{Prefix, Route, RouteTarget, Snapshot};
use crate::vlt::Place;
use crate::{Direction, reverse_path};

/// What a rule is about, besides the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// Everything: each protocol, RoCE included, and what is not IP.
    Any,
    /// Destination ports of TCP, from one to another.
    Tcp(u16, u16),
    /// Destination ports of UDP, from one to another. RoCEv2 is not UDP here.
    Udp(u16, u16),
    /// Destination ports of SCTP, from one to another.
    Sctp(u16, u16),
    /// Messages of ICMP, from one type and code (the type in the upper half) to another.
    Icmp(u16, u16),
    /// The same of ICMPv6.
    Icmpv6(u16, u16),
    /// RoCEv2: the queue pairs between both ends, and the connection manager's messages.
    Rdma,
    /// Another protocol of IP by its number.
    Protocol(u8),
}

/// Where the other end of a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Anywhere.
    Any,
    /// At an address of a prefix.
    Prefix(Prefix),
    /// At an address of a member of a group.
    Group(u32),
}

/// One rule of a group: it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// What comes to members, or what they send.
    pub direction: Direction,
    /// Protocol and ports.
    pub traffic: Traffic,
    /// The other end.
    pub peer: Peer,
}

/// A group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// What no rule allows may come to members all the same.
    pub allows_in: bool,
    /// What no rule allows may be sent by members all the same.
    pub allows_out: bool,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// A flow as rules see it, in the direction of whoever opened it; in which groups the other end is comes beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The address of the other end; `None` for what is not IP.
    pub peer: Option<IpAddr>,
    /// IP protocol.
    pub proto: u8,
    /// Destination port, or type and code of ICMP.
    pub port: u16,
    /// It is RoCEv2.
    pub rdma: bool,
}

/// The number of a set of groups in a snapshot; 0: no groups.
pub type SetId = u32;

/// What a snapshot has of security groups.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// Counts up when something that was allowed may not be any more.
    pub epoch: u32,
    /// Sets of groups, by number less one.
    pub sets: Vec<GroupSet>,
}

/// A distinct set of groups.
#[derive(Clone, Debug)]
pub struct GroupSet {
    /// Its groups, in ascending order.
    pub groups: Arc<[u32]>,
    /// What a vNIC with this set may do; `None` for a set that only locations have.
    pub policy: Option<Arc<Policy>>,
}

impl Security {
    /// True when no vNIC is in a group.
    #[inline(always)]
    pub fn is_off(&self) -> bool {
        self.sets.is_empty()
    }

    /// The groups of a set.
    pub fn groups(&self, set: SetId) -> &[u32] {
        self.sets.get((set as usize).wrapping_sub(1)).map_or(&[], |set| &set.groups)
    }

    /// What a vNIC with a set of groups may do; `None` for one without groups, which may do everything.
    pub fn policy(&self, set: SetId) -> Option<&Policy> {
        self.sets.get((set as usize).wrapping_sub(1))?.policy.as_deref()
    }
}

/// The groups that the station at an address is in, as a VPC sees it. Behind a route to gateways nobody is in any, though a
/// station of the VPC have the address; nor is behind a route to a station, but for that station's own addresses.
pub fn groups_at(snapshot: &Snapshot, vpc: u32, address: IpAddr) -> &[u32] {
    let Some(vpc) = snapshot.vpc(vpc) else { return &[] };
    let Some(location) = reverse_path::locate(snapshot, vpc, address) else { return &[] };
    let groups = snapshot.security.groups(location.groups);
    let is_beyond = || match vpc.route(address) {
        Some(Route::Via(_, RouteTarget::Gateways(_) | RouteTarget::Blackhole)) => true,
        Some(Route::Via(_, RouteTarget::Station(mac))) => location.mac != *mac,
        Some(Route::Via(_, RouteTarget::Peer(_)) | Route::Subnet(_)) | None => false,
    };
    if groups.is_empty() || is_beyond() { &[] } else { groups }
}

/// The queue pairs with a peer, as rules see them.
const fn queue_pairs_with(peer: IpAddr) -> Subject {
    Subject { peer: Some(peer), proto: wire::protocol::UDP, port: 0, rdma: true }
}

/// True when the rules of a vNIC let it have queue pairs with a peer, whoever opens them.
pub fn may_have_queue_pairs(snapshot: &Snapshot, vnic: u32, peer: IpAddr) -> bool {
    let row = snapshot.row(vnic);
    snapshot.security.policy(row.group_set).is_none_or(|policy| {
        let groups = || groups_at(snapshot, row.vpc, peer);
        let subject = queue_pairs_with(peer);
        [Direction::In, Direction::Out]
            .into_iter()
            .any(|direction| policy.of(direction).allows(&subject, groups))
    })
}

/// True for a flow that hardware may carry: no end on this host is in a group, or it is of queue pairs that rules admitted for
/// those ends, and do now. Of all others software follows the connections.
pub fn leaves_to_hardware(
    snapshot: &Snapshot,
    connections: Option<&Connections>,
    key: &FlowKey,
    receiver: Option<u32>,
) -> bool {
    let Some(ip) = key.addresses() else { return true };
    let admitted = |vnic: u32, out: bool| {
        let row = snapshot.row(vnic);
        let peer = if out { ip.destination } else { ip.source };
        let Some(policy) = snapshot.security.policy(row.group_set) else { return true };
        let known = ConnectionKey::of(vnic, key, out).zip(connections).filter(|_| key.class() != 0);
        let known = known.and_then(|(key, connections)| connections.find(&key));
        known.map(|found| found.record.state).is_some_and(|state| {
            let direction = if state.is_out() { Direction::Out } else { Direction::In };
            let groups = || groups_at(snapshot, row.vpc, peer);
            !state.is_over() && policy.of(direction).allows(&queue_pairs_with(peer), groups)
        })
    };
    let sends = match key.scope() {
        Scope::Vnic(vnic) => admitted(vnic, true),
        Scope::Vpc(_) => true,
    };
    sends && receiver.is_none_or(|vnic| admitted(vnic, false))
}

/// False for queue pairs of a vNIC in groups whose connection has ended or was forgotten since they went into hardware: software
/// would drop their packets now. Hardware tells of no packet, and what comes for a vNIC keeps no connection with queue pairs
/// alive. Of such a vNIC no other flows are in hardware.
pub fn stays_in_hardware(snapshot: &Snapshot, connections: &Connections, key: &FlowKey) -> bool {
    if key.class() == 0 || snapshot.security.is_off() {
        return true;
    }
    let decision = decide(snapshot, key);
    let receiver = match snapshot.vlt.read(decision.slot).place {
        Place::Local { vnic } if decision.verdict == FlowVerdict::Forward => Some(vnic),
        _ => None,
    };
    leaves_to_hardware(snapshot, Some(connections), key, receiver)
}

#[cfg(test)]
mod tests;
