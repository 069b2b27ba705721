//! The service `Flows`: what workers have in the NFT.

use crossbeam::channel::bounded;
use pipelines::drops::DropReason;
use pipelines::nft::{FlowVerdict, NftEntry};
use pipelines::snapshot::Snapshot;
use pipelines::vlt::Place;
use vswitch_api::v1;
use vswitch_api::v1::flows_server::Flows;
use worker::WorkerCommand;
use worker::mailbox::WorkerError;
use worker::pool::WorkerHandle;

use super::named::listed;
use super::refusal::Problems;
use super::service::service;
use crate::controller::Controller;
use crate::switch::Switch;
use crate::view::flow::{Ends, each};

/// Flows that a worker forgets between two bursts.
const SLICE: u32 = 256;

service! { Flows {
    reads list_flows(ListFlowsRequest) -> ListFlowsResponse: "listing flows",
    changes clear_flows(ClearFlowsRequest) -> ClearFlowsResponse: "forgetting flows",
} }

fn list_flows(
    controller: &mut Controller,
    request: v1::ListFlowsRequest,
) -> Result<v1::ListFlowsResponse, Problems> {
    let count = listed("count", request.count.into(), "flows")?;
    let snapshot = &controller.switch.snapshot().clone();
    let (mut flows, mut entries) = (Vec::new(), 0);
    each(&mut controller.switch, |worker, flow, now| {
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
    clear(&mut controller.switch)?;
    Ok(v1::ClearFlowsResponse {})
}

/// Has all workers forget all flows that they have, each a slice at a time: between two of them it polls its queues, and control does
/// what cannot wait.
fn clear(switch: &mut Switch) -> Result<(), WorkerError> {
    let mut result = Ok(());
    let mut next: Vec<Option<u32>> = vec![Some(0); switch.pool().workers.len()];
    while next.iter().any(Option::is_some) {
        let workers = &switch.pool().workers;
        let post = |(worker, from): (&WorkerHandle, &Option<u32>)| {
            let (reply, answer) = bounded(1);
            let posted = worker.mailbox().post(WorkerCommand::NftClear((*from)?, SLICE, reply));
            Some(posted.map(|()| answer))
        };
        let posted: Vec<_> = workers.iter().zip(&next).map(post).collect();
        for ((worker, next), posted) in workers.iter().zip(&mut next).zip(posted) {
            let Some(posted) = posted else { continue };
            // A worker that does not answer keeps no other from forgetting.
            *next = posted.and_then(|answer| worker.mailbox().wait(&answer)).unwrap_or_else(|error| {
                result = result.clone().and(Err(error));
                None
            });
        }
        switch.tend_if_due();
    }
    result
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

    #[test]
    fn all_workers_forget_their_flows_and_one_that_is_stuck_is_named() {
        let mut controller = Controller::new(testing::start(""), None);
        clear_flows(&mut controller, v1::ClearFlowsRequest {}).unwrap();
        let stuck = testing::stop_worker(&controller.switch);
        let refused = clear_flows(&mut controller, v1::ClearFlowsRequest {});
        assert_refused(refused, Code::Unavailable, "does not answer");
        drop(stuck);
        controller.switch.stop();
    }
}
