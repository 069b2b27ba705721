//! The service `Flows`: what workers have in the NFT.

use pipelines::drops::DropReason;
use pipelines::nft::{FlowVerdict, NftEntry};
use pipelines::snapshot::Snapshot;
use pipelines::vlt::Place;
use vswitch_api::v1;
use vswitch_api::v1::flows_server::Flows;
use worker::WorkerCommand;

use super::named::listed;
use super::refusal::Problems;
use super::service::service;
use crate::controller::Controller;
use crate::view::flow::{Ends, each};

service! { Flows {
    reads list_flows(ListFlowsRequest) -> ListFlowsResponse: "listing flows",
    changes clear_flows(ClearFlowsRequest) -> ClearFlowsResponse: "forgetting flows",
} }

fn list_flows(
    controller: &mut Controller,
    request: v1::ListFlowsRequest,
) -> Result<v1::ListFlowsResponse, Problems> {
    let count = listed("count", request.count.into(), "flows")?;
    let snapshot = controller.switch.snapshot();
    let (mut flows, mut entries) = (Vec::new(), 0);
    each(controller.switch.pool(), |worker, flow, now| {
        entries += 1;
        if flows.len() >= count {
            return;
        }
        let ends = Ends::of(&flow.key, snapshot);
        let idle = f64::from(now.wrapping_sub(flow.last_seen)) * f64::from(pipelines::TICK_MS);
        flows.push(v1::FlowState {
            worker: worker as u32,
            from: ends.from,
            source: ends.source,
            destination: ends.destination,
            proto: ends.proto.into(),
            ports: ends.ports,
            class: ends.class.into(),
            action: action(flow, snapshot),
            packets: flow.packets,
            bytes: flow.bytes,
            idle_seconds: idle / 1000.0,
        });
    })?;
    Ok(v1::ListFlowsResponse { flows, entries })
}

fn action(flow: &NftEntry, snapshot: &Snapshot) -> String {
    let routed = if flow.action.rewrite != 0 { "route, " } else { "" };
    match flow.action.verdict {
        FlowVerdict::Drop => {
            let reason = DropReason::from_index(usize::from(flow.action.reason));
            format!("drop {}", reason.map_or("?", DropReason::name))
        }
        FlowVerdict::Flood => "flood".into(),
        FlowVerdict::Router => "to the router".into(),
        FlowVerdict::Service => "to a service".into(),
        FlowVerdict::Forward => match snapshot.vlt.read(flow.action.slot).place {
            Place::Local { vnic } => {
                let name = snapshot.vnic(vnic).map(|vnic| vnic.name.clone()).unwrap_or_default();
                format!("{routed}to vnic {name}")
            }
            Place::Remote(tunnel) if snapshot.uplink_of(tunnel.group).is_none() => {
                "wait for the next hop".into()
            }
            Place::Remote(_) => format!("{routed}encap, slot {}", flow.action.slot),
            Place::Empty => "decide again".into(),
        },
    }
}

fn clear_flows(
    controller: &mut Controller,
    _: v1::ClearFlowsRequest,
) -> Result<v1::ClearFlowsResponse, Problems> {
    let pool = controller.switch.pool();
    pool.post_all(|| WorkerCommand::NftClear).and_then(|()| pool.barrier())?;
    Ok(v1::ClearFlowsResponse {})
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::owned::assert_refused;
    use super::*;
    use crate::switch::testing;

    #[test]
    fn a_list_of_all_flows_is_refused() {
        let mut controller = Controller::new(testing::start(""), None);
        let mut list = |count| list_flows(&mut controller, v1::ListFlowsRequest { count });
        assert_refused(list(u32::MAX), Code::InvalidArgument, "ask for 10000 flows at the most");
        assert_eq!(list(10_000).unwrap().flows.len(), 0);
        controller.switch.stop();
    }
}
