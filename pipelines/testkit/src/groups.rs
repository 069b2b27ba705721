//! Stations in security groups, as many and with as many rules as a busy host has.

use std::net::Ipv4Addr;
use std::sync::Arc;

use pipelines::Direction;
use pipelines::security::{Group, GroupSet, Peer, Policy, Rule, Security, Traffic};
use pipelines::snapshot::{Destination, Prefix, Snapshot};

use crate::{A, B, R};

/// Security groups of the host, and rules of each.
const GROUPS: (u32, u32) = (1000, 10);
/// Groups that each vNIC is in, and the remote station.
const MEMBER_OF: (u32, u32) = (16, 4);

/// Puts the vNICs of stations A and B, and the remote station R, into groups. What admits UDP is the prefix of their subnet, which rules by group
/// and by shorter and longer prefixes are looked at before.
pub fn join_groups(snapshot: &mut Snapshot) {
    let subnet =
        |n: u32, len: u8| Prefix::new(Ipv4Addr::from_bits(A.v4.to_bits() & !0xff | n << 12).into(), len);
    let rule = |group: u32, n: u32| {
        let direction = if n.is_multiple_of(2) { Direction::In } else { Direction::Out };
        let last = n / 2 + 1 == GROUPS.1 / 2 && group == 0;
        let (traffic, peer) = match n / 2 {
            _ if last => (Traffic::Udp(0, u16::MAX), Peer::Prefix(subnet(0, 24))),
            0 | 1 => (Traffic::Tcp(80, 443), Peer::Group((group + n) % GROUPS.0)),
            _ => (Traffic::Tcp(22, 22), Peer::Prefix(subnet(group + n, 20 + (n / 2) as u8))),
        };
        Rule { direction, traffic, peer }
    };
    let group =
        |group: u32| Group { rules: (0..GROUPS.1).map(|n| rule(group, n)).collect(), ..Group::default() };
    let groups: Vec<Group> = (0..GROUPS.0).map(group).collect();
    let policy = Policy::compile(groups.iter().take(MEMBER_OF.0 as usize));
    let own = GroupSet { groups: (0..MEMBER_OF.0).collect(), policy: Some(Arc::new(policy)) };
    let far = GroupSet { groups: (0..MEMBER_OF.1).collect(), policy: None };
    snapshot.security = Arc::new(Security { epoch: 1, sets: vec![own, far] });
    for (station, set) in [(A, 1), (B, 1), (R, 2)] {
        if let Some(location) = snapshot.locations.get_mut(&(0, Destination::Ip(station.v4.into()))) {
            location.groups = set;
        }
    }
    snapshot.vnic_rows.iter_mut().for_each(|row| row.group_set = 1);
    snapshot.touch_vpc(0);
}
