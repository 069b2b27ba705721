//! The service `Offloading`: what of the traffic is in hardware, and why.

mod capabilities;
mod selector;
mod summary;

use std::cmp::Reverse;

use capabilities::get_offload_capabilities;
use pipelines::offload::manager::{Pin, Status};
use pipelines::snapshot::Snapshot;
use selector::selected;
use summary::get_offload;
use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::OffloadPlace;
use vswitch_api::v1::offloading_server::Offloading;

use super::named::listed;
use super::refusal::{Problem, Problems};
use super::service::service;
use crate::controller::Controller;
use crate::switch::offload::FlowState;
use crate::view::flow::Ends;

/// Flows listed when no number is given.
const DEFAULT_FLOWS: u64 = 20;

// The question about capabilities makes rules in the device, be it for a moment.
service! { Offloading {
    reads get_offload(GetOffloadRequest) -> GetOffloadResponse: "looking at offload",
    reads list_offload_flows(ListOffloadFlowsRequest) -> ListOffloadFlowsResponse: "listing flows of offload",
    changes get_offload_capabilities(GetOffloadCapabilitiesRequest) -> GetOffloadCapabilitiesResponse: "asking drivers which rules they take",
    reads explain_offload(ExplainOffloadRequest) -> ExplainOffloadResponse: "explaining where flows are",
    changes pin_offload(PinOffloadRequest) -> PinOffloadResponse: "pinning flows",
    changes audit_offload(AuditOffloadRequest) -> AuditOffloadResponse: "auditing the rules of offload",
} }

/// One word for a state.
fn word(status: &Status) -> &'static str {
    match status {
        Status::Software(_) => "software",
        Status::Installing => "installing",
        Status::Hardware => "hardware",
        Status::Partial => "partial",
        Status::Refused(_) | Status::RefusedByDevice(_) => "refused",
    }
}

fn message(flow: &FlowState, snapshot: &Snapshot) -> v1::OffloadFlow {
    let ends = Ends::of(&flow.selector.key, snapshot);
    v1::OffloadFlow {
        from: ends.from,
        source: ends.source,
        destination: ends.destination,
        proto: ends.proto.into(),
        ports: ends.ports,
        class: ends.class.into(),
        qpn: flow.selector.qpn.map(|qpn| qpn.get()),
        state: word(&flow.status).into(),
        why: flow.status.to_string(),
        packets_per_second: flow.rate.packets,
        bits_per_second: flow.rate.bytes.saturating_mul(8),
    }
}

fn list_offload_flows(
    controller: &mut Controller,
    request: v1::ListOffloadFlowsRequest,
) -> Result<v1::ListOffloadFlowsResponse, Problem> {
    let limit = listed("count", request.count.unwrap_or(DEFAULT_FLOWS), "flows")?;
    let snapshot = controller.switch.snapshot();
    let mut flows: Vec<FlowState> = controller.switch.offload().flows().collect();
    let order = |flow: &FlowState| {
        let inside = matches!(flow.status, Status::Hardware | Status::Installing);
        (Reverse(inside), Reverse(flow.rate.packets), *flow.selector.key.words())
    };
    flows.sort_by_key(order);
    Ok(v1::ListOffloadFlowsResponse {
        entries: flows.len() as u64,
        flows: flows.iter().take(limit).map(|flow| message(flow, snapshot)).collect(),
    })
}

fn explain_offload(
    controller: &mut Controller,
    request: v1::ExplainOffloadRequest,
) -> Result<v1::ExplainOffloadResponse, Problems> {
    let flows = selected(controller, request.flow)?;
    let snapshot = controller.switch.snapshot();
    Ok(v1::ExplainOffloadResponse { flows: flows.iter().map(|flow| message(flow, snapshot)).collect() })
}

fn pin_offload(
    controller: &mut Controller,
    request: v1::PinOffloadRequest,
) -> Result<v1::PinOffloadResponse, Problems> {
    let pin = match request.place() {
        OffloadPlace::Auto => None,
        OffloadPlace::Software => Some(Pin::Software),
        OffloadPlace::Hardware => Some(Pin::Hardware),
        OffloadPlace::Unspecified => {
            let message = "there is no such place; say software, hardware or auto";
            return Err(Problem::invalid("place", message.into()).into());
        }
    };
    if pin == Some(Pin::Hardware) && controller.switch.offload().device().is_none() {
        let message = "no port is on a device that holds rules; say offload = \"simulated\" or \"rte-flow\" at ports in the config";
        return Err(Problem::new(Code::FailedPrecondition, "place", message.into()).into());
    }
    let flows = selected(controller, request.flow)?;
    let now_ns = controller.switch.pool().now().ns;
    for flow in &flows {
        controller.switch.offload_mut().pin(flow.selector, pin, now_ns);
    }
    Ok(v1::PinOffloadResponse { flows: flows.len() as u64 })
}

fn audit_offload(
    controller: &mut Controller,
    _: v1::AuditOffloadRequest,
) -> Result<v1::AuditOffloadResponse, Problem> {
    let offload = controller.switch.offload_mut();
    let repaired = offload.audit().map_err(|error| {
        let message = format!(
            "a rule that was lost could not be put back: {error}; its flows go on in software: try again"
        );
        Problem::new(Code::FailedPrecondition, "", message)
    })?;
    Ok(v1::AuditOffloadResponse { rules: offload.rules() as u64, repaired: repaired as u64 })
}
