//! The service `Firewall`: security groups as they are used, and the connections that they admitted.

use pipelines::connections::{ConnectionKey, Kind, Phase};
use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::firewall_server::Firewall;
use wire::protocol;

use super::named::texts;
use super::refusal::Problem;
use super::service::service;
use crate::config::Access;
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
    let config = controller.switch.config();
    let access = |access: Access| if access == Access::Allow { "allow" } else { "deny" }.to_owned();
    let groups = config.security_groups.iter();
    let groups = groups.filter(|group| wanted.is_empty() || wanted == *group.name.as_str());
    let state = |group: &crate::config::SecurityGroupConfig| {
        let vnics = config.vnics.iter().filter(|vnic| vnic.security_groups.contains(&group.name));
        let locations = config.locations.iter().filter(|location| location.groups.contains(&group.name));
        v1::SecurityGroupState {
            name: group.name.to_string(),
            vpc: group.vpc.to_string(),
            vnics: vnics.map(|vnic| vnic.name.to_string()).collect(),
            locations: locations.count() as u64,
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

fn list_connections(
    controller: &mut Controller,
    request: v1::ListConnectionsRequest,
) -> Result<v1::ListConnectionsResponse, Problem> {
    let wanted = request.vnic;
    let limit = usize::try_from(request.limit.unwrap_or(LISTED)).unwrap_or(usize::MAX);
    let switch = &controller.switch;
    let snapshot = switch.snapshot();
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
            if (!wanted.is_empty() && wanted != vnic.name) || rows.len() == limit {
                continue;
            }
            let ([own, peer], [own_port, peer_port]) = (key.addresses(), key.ports());
            let idle = now.wrapping_sub(seen.seen).min(u32::MAX / 2);
            rows.push(v1::AdmittedConnection {
                vnic: vnic.name.clone(),
                protocol: protocol_name(&key),
                own: own.to_string(),
                own_port: own_port.into(),
                peer: peer.to_string(),
                peer_port: peer_port.into(),
                opened_here: state.is_out(),
                state: phase_name(state.phase()).into(),
                idle: f64::from(idle) * f64::from(pipelines::TICK_MS) / 1000.0,
            });
        }
        from = next;
    }
    Ok(v1::ListConnectionsResponse {
        connections: rows,
        in_use: in_all(switch),
        refused: connections.refused(),
    })
}

/// Connections of all vNICs.
fn in_all(switch: &Switch) -> u64 {
    let vnics = switch.snapshot().vnics.iter().flatten();
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
