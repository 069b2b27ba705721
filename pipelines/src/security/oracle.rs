//! What [`Policy`](super::Policy) says, rule by rule: slow and plain, for tests and for explanations.

use wire::protocol;

use super::{Group, Peer, Rule, Subject, Traffic};
use crate::Direction;

/// The first rule of the groups that allows a flow in a direction.
pub fn rule_for<'g>(
    groups: impl Iterator<Item = &'g Group>,
    direction: Direction,
    subject: &Subject,
    peer_groups: &[u32],
) -> Option<&'g Rule> {
    let fits = |rule: &&Rule| rule.direction == direction && matches(rule, subject, peer_groups);
    groups.flat_map(|group| &group.rules).find(fits)
}

/// True when a flow is allowed in a direction, by a rule or because all groups allow what no rule names.
pub fn allows<'g>(
    groups: impl Iterator<Item = &'g Group> + Clone,
    direction: Direction,
    subject: &Subject,
    peer_groups: &[u32],
) -> bool {
    let by_default = |group: &Group| match direction {
        Direction::In => group.allows_in,
        Direction::Out => group.allows_out,
    };
    groups.clone().all(by_default) || rule_for(groups, direction, subject, peer_groups).is_some()
}

fn matches(rule: &Rule, subject: &Subject, peer_groups: &[u32]) -> bool {
    let peer = match rule.peer {
        Peer::Any => true,
        Peer::Prefix(prefix) => subject.peer.is_some_and(|peer| prefix.contains(peer)),
        Peer::Group(group) => peer_groups.contains(&group),
    };
    let ports = |number: u8, from: u16, to: u16| {
        subject.proto == number && !subject.rdma && (from..=to).contains(&subject.port)
    };
    peer && match rule.traffic {
        Traffic::Any => true,
        _ if subject.peer.is_none() => false,
        Traffic::Rdma => subject.rdma,
        Traffic::Protocol(number) => subject.proto == number && !subject.rdma,
        Traffic::Tcp(from, to) => ports(protocol::TCP, from, to),
        Traffic::Udp(from, to) => ports(protocol::UDP, from, to),
        Traffic::Sctp(from, to) => ports(protocol::SCTP, from, to),
        Traffic::Icmp(from, to) => ports(protocol::ICMP, from, to),
        Traffic::Icmpv6(from, to) => ports(protocol::ICMPV6, from, to),
    }
}
