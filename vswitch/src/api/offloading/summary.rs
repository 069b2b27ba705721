//! What is in hardware, at a glance.

use vswitch_api::v1;
use vswitch_api::v1::offload_audit::Result as Audit;
use worker::stats::EswitchTotals;

use crate::api::refusal::Problem;
use crate::controller::Controller;
use crate::switch::offload::{OffloadControl, SourcePorts};

pub(super) fn get_offload(
    controller: &mut Controller,
    _: v1::GetOffloadRequest,
) -> Result<v1::GetOffloadResponse, Problem> {
    let switch = &controller.switch;
    let offload = switch.offload();
    let ports = offload
        .ports()
        .filter_map(|(port, dpdk)| Some((switch.ports().get(port)?.name.clone(), u32::from(dpdk))));
    let (states, done) = (offload.states(), offload.done());
    let audit = offload.audited().map(|audited| match audited {
        Ok(lost) => Audit::Repaired(*lost as u64),
        Err(error) => Audit::Error(error.to_string()),
    });
    Ok(v1::GetOffloadResponse {
        on: offload.is_on(),
        device: offload.device().map(str::to_owned),
        engine: offload.engine().map(str::to_owned),
        ports: ports.collect(),
        flows: Some(v1::OffloadStates {
            hardware: states.hardware,
            partial: states.partial,
            installing: states.installing,
            software: states.software,
            refused: states.refused,
        }),
        done: Some(v1::OffloadUsage { packets: done.packets, bytes: done.bytes }),
        rules: offload.rules() as u64,
        entropy: offload.entropy().into(),
        software_follows: offload.source_ports().map(|ports| *ports == SourcePorts::Followed),
        so_far: Some(counters(offload)),
        refusals: offload.refusals().into_iter().collect(),
        audit: audit.map(|result| v1::OffloadAudit { result: Some(result) }),
        eswitch: eswitch(controller),
        source_ports: offload.source_ports_in_words(),
    })
}

fn counters(offload: &OffloadControl) -> v1::OffloadCounters {
    let counters = offload.counters();
    v1::OffloadCounters {
        installed: counters.installed,
        withdrawn: counters.withdrawn,
        aged: counters.aged,
        displaced: counters.displaced,
        over_their_rates: counters.over_rate,
        updated: counters.updated,
        refused: counters.refused,
        refused_by_the_device: counters.refused_by_device,
        no_gap: counters.no_gap,
        counters_gone_back: counters.backwards,
        counters_run_ahead: counters.ahead,
        kept_by_the_device: counters.kept,
        aged_rules_unknown: counters.unknown_aged,
        repaired: counters.repaired,
        unknown_to_workers: offload.unknown(),
    }
}

/// The simulated e-switch itself.
fn eswitch(controller: &Controller) -> Option<v1::OffloadEswitch> {
    let (stats, rules) = controller.switch.offload().device_stats()?;
    let workers = controller.switch.pool().workers.iter();
    let EswitchTotals { sent, ring_full, lost, cycles } =
        workers.map(|worker| worker.stats.eswitch.totals()).sum();
    Some(v1::OffloadEswitch {
        rules: rules as u64,
        created: stats.created,
        refused: stats.refused,
        failed: stats.failed,
        forwarded: stats.forwarded,
        to_software: stats.to_software,
        missed: stats.missed,
        dropped: stats.dropped,
        errors: stats.errors,
        sent,
        ring_full,
        lost,
        cycles,
    })
}
