//! The service `Shaping`: what each node of the tree of rates may do and does.

use pipelines::qos::{NodeLimits, Tree};
use vswitch_api::v1;
use vswitch_api::v1::shaping_server::Shaping;

use super::named;
use super::refusal::{Problem, Problems};
use super::service::service;
use crate::controller::Controller;
use crate::switch::Switch;
use crate::view;
use crate::view::qos::{QosNode, QosOwner};

service! { Shaping {
    reads get_shaping(GetShapingRequest) -> GetShapingResponse: "looking at rates",
} }

fn message(node: &QosNode) -> v1::ShapingNode {
    let NodeLimits { assured, ceil, weight, .. } = node.limits;
    let some = |bits: u64| (bits > 0).then_some(bits);
    let class = match &node.owner {
        QosOwner::Class(_, class) => Some(class.name().to_owned()),
        _ => None,
    };
    v1::ShapingNode {
        level: node.owner.level().into(),
        name: node.owner.name().map(str::to_owned),
        class,
        direction: node.direction.name().into(),
        rate: node.rate,
        assured: some(assured),
        ceil: some(ceil),
        share: some(node.view.share),
        weight,
        burst: some(ceil).map(|_| node.view.burst),
        tokens: some(ceil).map(|_| node.view.tokens),
        debt: node.view.debt,
        drawn: node.view.drawn,
        held_back: node.view.held_back,
        waiting_packets: node.held.packets,
        waiting_bytes: node.held.bytes,
        marked: node.held.marked,
        dropped: node.held.dropped,
        idle: node.is_idle(),
    }
}

/// Leaves the nodes that are asked for.
fn keep(switch: &Switch, nodes: &mut Vec<QosNode>, request: &v1::GetShapingRequest) -> Result<(), Problem> {
    let snapshot = switch.snapshot();
    let v1::GetShapingRequest { vpc, vnic } = request;
    match (vpc.as_str(), vnic.as_str()) {
        ("", "") => {}
        (vpc, "") => {
            named::vpc(snapshot, vpc)?;
            let mut inside = false;
            nodes.retain(|node| match &node.owner {
                QosOwner::Link => true,
                QosOwner::Vpc(name) => {
                    inside = name == vpc;
                    inside
                }
                _ => inside,
            });
        }
        ("", vnic) => {
            let vpc = snapshot.vpc(named::vnic(snapshot, vnic)?.vpc);
            nodes.retain(|node| match &node.owner {
                QosOwner::Link => true,
                QosOwner::Vpc(name) => vpc.is_some_and(|vpc| vpc.name == *name),
                QosOwner::Vnic(name) | QosOwner::Class(name, _) => name == vnic,
            });
        }
        _ => {
            let message = "a VPC and a vNIC are too much; ask for one of them".into();
            return Err(Problem::invalid("vnic", message));
        }
    }
    Ok(())
}

fn get_shaping(
    controller: &mut Controller,
    request: v1::GetShapingRequest,
) -> Result<v1::GetShapingResponse, Problems> {
    let switch = &controller.switch;
    let (mut nodes, now_ns) = view::qos::nodes(switch)?;
    keep(switch, &mut nodes, &request)?;
    let totals = view::totals(switch);
    let drop = |name: &str| totals.drops.get(name).copied().unwrap_or(0);
    Ok(v1::GetShapingResponse {
        now_ns,
        nodes: nodes.iter().map(message).collect(),
        counters: Some(v1::ShapingCounters {
            rdma_marked: totals.get("rdma-marked"),
            waited: totals.get("waited"),
            waiting: totals.get("waiting"),
        }),
        drops: Some(v1::ShapingDrops {
            rdma_overrun: drop("rdma-overrun"),
            tcp_shaped: drop("tcp-shaped"),
            shaper_full: drop("shaper-full"),
        }),
        node_bytes: Tree::NODE_BYTES as u64,
        unlimited: switch.qos().tree().is_free(),
    })
}
