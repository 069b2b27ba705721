//! The service `Firewall`: security groups as they are used, and the connections that they admitted.

use std::collections::HashMap;

use pipelines::connections::{ConnectionKey, Kind, Phase, idle};
use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::firewall_server::Firewall;
use wire::protocol;

use super::named::{self, listed, texts};
use super::refusal::Problem;
use super::service::service;
use crate::config::{Access, Name};
use crate::controller::Controller;
use crate::switch::Switch;

/// Connections that are listed where nobody says how many.
const LISTED: u64 = 1000;

service! { Firewall {
    reads list_security_groups(ListSecurityGroupsRequest) -> ListSecurityGroupsResponse: "listing security groups",
    reads list_connections(ListConnectionsRequest) -> ListConnectionsResponse: "listing connections",
} }

fn list_security_groups(
    controller: &mut Controller,
    request: v1::ListSecurityGroupsRequest,
) -> Result<v1::ListSecurityGroupsResponse, Problem> {
    let wanted = request.group;
    let (config, topology) = (controller.switch.bare_config(), controller.switch.topology());
    // In one pass, as there may be many of either.
    let mut members: HashMap<&Name, (Vec<String>, u64)> = HashMap::new();
    for vnic in &config.vnics {
        for group in distinct(&vnic.security_groups) {
            members.entry(group).or_default().0.push(vnic.name.to_string());
        }
    }
    for group in topology.locations().flat_map(|location| distinct(&location.groups)) {
        members.entry(group).or_default().1 += 1;
    }
    let access = |access: Access| if access == Access::Allow { "allow" } else { "deny" }.to_owned();
    let groups = config.security_groups.iter();
    let groups = groups.filter(|group| wanted.is_empty() || wanted == *group.name.as_str());
    let state = |group: &crate::config::SecurityGroupConfig| {
        let (vnics, locations) = members.get(&group.name).cloned().unwrap_or_default();
        v1::SecurityGroupState {
            name: group.name.to_string(),
            vpc: group.vpc.to_string(),
            vnics,
            locations,
            default_in: access(group.default_in),
            default_out: access(group.default_out),
            rules: texts(&group.rules),
        }
    };
    let groups: Vec<_> = groups.map(state).collect();
    if groups.is_empty() && !wanted.is_empty() {
        let message = format!("no security group {wanted}; `show security-group` lists them");
        return Err(Problem::new(Code::NotFound, "group", message));
    }
    Ok(v1::ListSecurityGroupsResponse { groups })
}

/// Names, each once.
fn distinct(names: &[Name]) -> impl Iterator<Item = &Name> {
    names.iter().enumerate().filter(move |&(at, name)| !names[..at].contains(name)).map(|(_, name)| name)
}

fn list_connections(
    controller: &mut Controller,
    request: v1::ListConnectionsRequest,
) -> Result<v1::ListConnectionsResponse, Problem> {
    let limit = listed("limit", request.limit.unwrap_or(LISTED), "connections")?;
    let switch = &controller.switch;
    let snapshot = switch.snapshot();
    let wanted = match request.vnic.as_str() {
        "" => None,
        name => Some(named::vnic(snapshot, name)?.index),
    };
    let mut rows = Vec::new();
    let connections = switch.connections().keeper().connections();
    let now = switch.pool().now().tick;
    let mut from = Some(0);
    while let Some(start) = from.filter(|_| rows.len() < limit) {
        let (found, next) = switch.connections().keeper().scan(start, 1024);
        for seen in found {
            let key = ConnectionKey::from_words(seen.key);
            let Some(vnic) = snapshot.vnic(key.vnic()) else { continue };
            let state = connections.record(seen.slot).state;
            if wanted.is_some_and(|wanted| wanted != key.vnic()) || rows.len() == limit {
                continue;
            }
            let ([own, peer], [own_port, peer_port]) = (key.addresses(), key.ports());
            rows.push(v1::AdmittedConnection {
                vnic: vnic.name.clone(),
                protocol: protocol_name(&key),
                own: own.to_string(),
                own_port: own_port.into(),
                peer: peer.to_string(),
                peer_port: peer_port.into(),
                opened_here: state.is_out(),
                state: phase_name(state.phase()).into(),
                idle: f64::from(idle(now, seen.seen)) * f64::from(pipelines::TICK_MS) / 1000.0,
            });
        }
        from = next;
    }
    Ok(v1::ListConnectionsResponse {
        connections: rows,
        in_use: in_use(switch, wanted),
        refused: connections.refused(),
    })
}

/// Connections of a vNIC, or of all of them.
fn in_use(switch: &Switch, wanted: Option<u32>) -> u64 {
    let vnics = switch.snapshot().vnics.iter().flatten();
    let vnics = vnics.filter(|vnic| wanted.is_none_or(|wanted| wanted == vnic.index));
    vnics.map(|vnic| u64::from(switch.connections().in_use(vnic.index))).sum()
}

fn protocol_name(key: &ConnectionKey) -> String {
    match (key.kind(), key.proto()) {
        (Kind::QueuePairs, _) => "rdma".into(),
        (Kind::UnreliableRdma, _) => "rdma-unreliable".into(),
        (_, protocol::TCP) => "tcp".into(),
        (_, protocol::UDP) => "udp".into(),
        (_, protocol::SCTP) => "sctp".into(),
        (_, protocol::ICMP) => "icmp".into(),
        (_, protocol::ICMPV6) => "icmpv6".into(),
        (_, number) => number.to_string(),
    }
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Opening => "opening",
        Phase::Established => "established",
        Phase::Closing => "closing",
        Phase::TimeWait => "time-wait",
        Phase::Reset => "reset",
    }
}

#[cfg(test)]
mod tests {
    use pipelines::Now;
    use pipelines::connections::ConnectionState;

    use super::*;
    use crate::switch::testing;

    const GROUPS: &str = r#"
[[uplink]]
name = "up"
port = { kind = "null" }
addresses = ["172.16.0.1/24"]
[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[security-group]]
name = "web"
vpc = "red"
[[security-group]]
name = "db"
vpc = "red"
[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:00:01"
vips = ["10.0.0.1"]
security-groups = ["web"]
port = { kind = "null" }
[[location]]
vni = 100
vip = "10.0.0.2"
mac = "02:00:00:00:00:02"
vtep = "172.16.0.2"
groups = ["web", "db"]
[[location]]
vni = 100
vip = "10.0.0.3"
mac = "02:00:00:00:00:03"
vtep = "172.16.0.2"
groups = ["db"]
"#;

    #[test]
    fn a_group_has_its_vnics_and_locations() {
        let mut controller = Controller::new(testing::start(GROUPS), None);
        let copies = testing::copies();
        let mut list = |group: &str| {
            let request = v1::ListSecurityGroupsRequest { group: group.into() };
            let groups = list_security_groups(&mut controller, request).unwrap().groups;
            groups
                .into_iter()
                .map(|group| (group.name, group.vnics.join(" "), group.locations))
                .collect::<Vec<_>>()
        };
        let (web, db) = (("web".to_owned(), "one".to_owned(), 1), ("db".to_owned(), String::new(), 2));
        assert_eq!(list(""), [web, db.clone()]);
        assert_eq!(list("db"), [db]);
        assert_eq!(testing::copies(), copies, "who looks at the config copies none of it");
        controller.switch.stop();
    }

    #[test]
    fn connections_are_those_of_the_vnic_that_is_asked_for() {
        let two = GROUPS.replace("vips = [\"10.0.0.1\"]", "vips = [\"10.0.0.4\"]").replace(":01\"", ":04\"");
        let vnic =
            two.split_once("[[vnic]]").and_then(|(_, rest)| rest.split_once("[[location]]")).unwrap().0;
        let two = format!("{GROUPS}[[vnic]]{}", vnic.replace("\"one\"", "\"two\""));
        let mut controller = Controller::new(testing::start(&two), None);
        let switch = &controller.switch;
        let index = |name: &str| named::vnic(switch.snapshot(), name).unwrap().index;
        let (one, ahead) =
            (index("one"), Now { tick: switch.pool().now().tick + 600, ..switch.pool().now() });
        for (vnic, peer) in [(one, "10.0.0.2"), (one, "10.0.0.3"), (index("two"), "10.0.0.2")] {
            let key = ConnectionKey::queue_pairs(vnic, peer.parse().unwrap());
            let state = ConnectionState::opened(true, 0, false, 0);
            // A worker's clock may be ahead of control's.
            assert!(switch.connections().take(&key, state, switch.snapshot(), ahead));
        }
        let mut list = |vnic: &str, limit| {
            let request = v1::ListConnectionsRequest { vnic: vnic.into(), limit };
            list_connections(&mut controller, request)
        };
        for (vnic, listed) in [("", 3), ("one", 2), ("two", 1)] {
            let answer = list(vnic, None).unwrap();
            assert_eq!((answer.connections.len(), answer.in_use), (listed, listed as u64), "{vnic}");
            assert!(answer.connections.iter().all(|connection| connection.idle == 0.0), "{answer:?}");
        }
        assert_eq!(list("one", Some(1)).unwrap().in_use, 2);
        let problem = list("three", None).unwrap_err();
        assert_eq!((problem.code, problem.field.as_str()), (Code::NotFound, "vnic"));
        let problem = list("", Some(u64::MAX)).unwrap_err();
        assert_eq!((problem.code, problem.field.as_str()), (Code::InvalidArgument, "limit"));
        controller.switch.stop();
    }
}
