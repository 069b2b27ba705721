//! What this DPDK and the drivers of ports make of the rules of offload.

use pmd::flow::{BUILD, transfer_proxy};
use tonic::Code;
use vswitch_api::v1;

use crate::api::ports::port;
use crate::api::refusal::Problem;
use crate::capabilities::{self, CapabilityAnswer};
use crate::controller::Controller;

pub(super) fn get_offload_capabilities(
    controller: &mut Controller,
    request: v1::GetOffloadCapabilitiesRequest,
) -> Result<v1::GetOffloadCapabilitiesResponse, Problem> {
    let ids: Vec<u16> = match request.port.as_str() {
        "" => controller.switch.ports().iter().map(|(id, _)| id).collect(),
        text => vec![port(&controller.switch, text)?],
    };
    let dpdk = v1::DpdkBuild {
        version: BUILD.version.into(),
        ib_bth: BUILD.ib_bth,
        meter_mark: BUILD.meter_mark,
        meter_color: BUILD.meter_color,
        flow_queues: BUILD.queues,
        encap_hash: BUILD.encap_hash,
    };
    let ports = ids.into_iter().map(|id| ask(controller, id)).collect::<Result<_, _>>()?;
    Ok(v1::GetOffloadCapabilitiesResponse { dpdk: Some(dpdk), ports })
}

fn ask(controller: &mut Controller, id: u16) -> Result<v1::PortCapabilities, Problem> {
    let gone = || {
        let message = format!("port {id} is gone; `port list` shows the ports");
        Problem::new(Code::NotFound, "port", message)
    };
    let to = {
        let own = controller.switch.ports().get(id).ok_or_else(gone)?.port.id();
        // Packets have to go somewhere else: any other port will do for the question.
        let mut others = controller.switch.ports().iter().map(|(_, other)| other.port.id());
        others.find(|other| *other != own).unwrap_or(own)
    };
    // The device that it is on is asked the way its rules go.
    let asked = controller.switch.offload_mut().ask(id, to);
    let is_simulated = controller.switch.offload().simulated().is_some();
    let port = controller.switch.ports().get(id).ok_or_else(gone)?;
    let own = port.port.id();
    let proxy = transfer_proxy(&port.port);
    let (device, report) = match asked {
        Some(report) if is_simulated => ("simulated: a lab device, no NIC", report),
        Some(report) => ("rte_flow", report),
        None => {
            // Another port that takes the rules is asked where it is one of ours.
            let taker = proxy.as_ref().ok().and_then(|proxy| {
                controller
                    .switch
                    .ports()
                    .iter()
                    .map(|(_, other)| other)
                    .find(|other| other.port.id() == *proxy)
            });
            let mut flows = taker.unwrap_or(port).port.flows();
            ("rte_flow", capabilities::probe(&mut flows, own.get(), to.get()))
        }
    };
    let report = report.map_err(|words| Problem::new(Code::FailedPrecondition, "port", words))?;
    let limits = port.port.flow_limits();
    Ok(v1::PortCapabilities {
        id: id.into(),
        name: port.name.clone(),
        driver: port.port.info().map(|info| info.driver).unwrap_or_default(),
        device: device.into(),
        takes_own_rules: proxy.as_ref().is_ok_and(|proxy| *proxy == own),
        transfer_proxy: proxy.as_ref().ok().map(|proxy| proxy.get().into()),
        transfer_proxy_unknown: proxy.err().map(|error| error.to_string()),
        flow_queues: limits.as_ref().ok().map(|limits| v1::FlowQueues {
            queues: limits.queues,
            depth: limits.depth,
            counters: limits.counters,
            ages: limits.ages,
            meters: limits.meters,
        }),
        flow_queues_unknown: limits.err().map(|error| error.to_string()),
        features: report.features.iter().map(answer).collect(),
        chains: report.chains.iter().map(answer).collect(),
    })
}

fn answer(answer: &CapabilityAnswer) -> v1::CapabilityAnswer {
    let refusal = answer.taken.as_ref().err();
    v1::CapabilityAnswer {
        name: answer.name.into(),
        taken: refusal.is_none(),
        words: refusal.map(|(_, error)| error.to_string()),
        rule: refusal.and_then(|(rule, _)| rule.as_ref().map(ToString::to_string)),
    }
}
