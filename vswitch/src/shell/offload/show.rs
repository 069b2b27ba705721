//! What is in hardware, at a glance and by flow.

use std::cmp::Reverse;

use pipelines::offload::manager::Status;
use pipelines::snapshot::Snapshot;
use serde_json::{Value, json};

use super::super::Shell;
use crate::console::{Args, CommandError, Output, Table};
use crate::switch::offload::{FlowState, OffloadControl, SourcePorts};
use crate::view::flow::Ends;
use crate::worker::stats::EswitchTotals;

/// Flows shown when no number is given.
const DEFAULT_FLOWS: u64 = 20;

pub(super) fn all(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let switch = &shell.switch;
    let offload = switch.offload();
    let ports: Vec<(String, u16)> = offload
        .ports()
        .filter_map(|(port, dpdk)| Some((switch.ports().get(port)?.name.clone(), dpdk)))
        .collect();
    let (states, done) = (offload.states(), offload.done());
    let refusals = offload.refusals();
    let mut table = Table::new(["", ""]);
    let mut line = |name: &str, text: String| {
        table.row([name.to_string(), text]);
    };
    let (device, engine) = (offload.device(), offload.engine());
    let on = if offload.is_on() { "on" } else { "off" };
    line(
        "offload",
        format!(
            "{on}, device: {}",
            match device {
                Some("simulated") => "simulated (a lab device, no NIC)".to_owned(),
                Some(other) => format!("{other}, engine {}", engine.unwrap_or("unknown")),
                None => "none".to_owned(),
            }
        ),
    );
    let named: Vec<String> = ports.iter().map(|(name, dpdk)| format!("{name} (dpdk {dpdk})")).collect();
    line("ports", if named.is_empty() { "none".into() } else { named.join(", ") });
    line(
        "flows",
        format!(
            "{} in hardware, {} partly, {} on their way, {} in software, {} refused",
            states.hardware, states.partial, states.installing, states.software, states.refused
        ),
    );
    line("done in hardware", format!("{} packets, {} bytes", done.packets, done.bytes));
    line("rules", offload.rules().to_string());
    let followed = offload.source_ports().map(|ports| *ports == SourcePorts::Followed);
    line("outer source ports", offload.source_ports_in_words());
    let counts = counts(offload);
    line(
        "so far",
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", "),
    );
    for (reason, count) in &refusals {
        line("refused", format!("{count} times: {reason}"));
    }
    let audit = match offload.audited() {
        None => (Value::Null, "not yet".to_string()),
        Some(Ok(lost)) => (json!({ "repaired": lost }), format!("{lost} rules were lost and put back")),
        Some(Err(error)) => (json!({ "error": error.to_string() }), format!("could not repair: {error}")),
    };
    line("last audit", audit.1);
    let eswitch = eswitch(shell);
    if let Some((text, _)) = &eswitch {
        line("e-switch (simulated)", text.clone());
    }
    let so_far: serde_json::Map<String, Value> =
        counts.into_iter().map(|(name, count)| (name.replace(' ', "-"), count.into())).collect();
    let reasons: serde_json::Map<String, Value> =
        refusals.into_iter().map(|(reason, count)| (reason, count.into())).collect();
    let ports: serde_json::Map<String, Value> =
        ports.into_iter().map(|(name, dpdk)| (name, dpdk.into())).collect();
    let json = json!({
        "on": offload.is_on(), "device": device, "engine": engine, "ports": ports,
        "flows": {
            "hardware": states.hardware, "partial": states.partial, "installing": states.installing,
            "software": states.software, "refused": states.refused,
        },
        "done": { "packets": done.packets, "bytes": done.bytes },
        "rules": offload.rules(), "entropy": offload.entropy(), "software-follows": followed, "so-far": so_far, "refusals": reasons, "audit": audit.0,
        "eswitch": eswitch.map(|(_, json)| json),
    });
    Ok(Output::table(&table, json))
}

/// What has happened so far, by name.
fn counts(offload: &OffloadControl) -> Vec<(&'static str, u64)> {
    let counters = offload.counters();
    vec![
        ("installed", counters.installed),
        ("withdrawn", counters.withdrawn),
        ("aged", counters.aged),
        ("displaced", counters.displaced),
        ("over their rates", counters.over_rate),
        ("updated", counters.updated),
        ("refused", counters.refused),
        ("refused by the device", counters.refused_by_device),
        ("no gap", counters.no_gap),
        ("counters gone back", counters.backwards),
        ("aged rules unknown", counters.unknown_aged),
        ("repaired", counters.repaired),
        ("unknown to workers", offload.unknown()),
    ]
}

/// The simulated e-switch itself.
fn eswitch(shell: &Shell) -> Option<(String, Value)> {
    let (stats, rules) = shell.switch.offload().device_stats()?;
    let workers = shell.switch.pool().workers.iter();
    let EswitchTotals { sent, ring_full, lost, cycles } =
        workers.map(|worker| worker.stats.eswitch.totals()).sum();
    let text = format!(
        "{rules} rules; {} packets forwarded, {} to software by rule, {} without one, {} dropped by rule, {} failed, \
         {sent} sent, {ring_full} found a ring full, {lost} led nowhere; {cycles} cycles",
        stats.forwarded, stats.to_software, stats.missed, stats.dropped, stats.errors
    );
    let json = json!({
        "rules": rules, "created": stats.created, "refused": stats.refused, "failed": stats.failed,
        "forwarded": stats.forwarded, "to-software": stats.to_software, "missed": stats.missed,
        "dropped": stats.dropped, "errors": stats.errors, "sent": sent, "ring-full": ring_full, "lost": lost, "cycles": cycles,
    });
    Some((text, json))
}

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

/// A flow for programs.
pub(super) fn json_of(flow: &FlowState, snapshot: &Snapshot) -> Value {
    let ends = Ends::of(&flow.selector.key, snapshot);
    json!({
        "from": ends.from, "source": ends.source, "destination": ends.destination, "proto": ends.proto,
        "ports": ends.ports, "class": ends.class, "qpn": flow.selector.qpn.map(|qpn| qpn.get()),
        "state": word(&flow.status), "why": flow.status.to_string(),
        "packets-per-second": flow.rate.packets, "bits-per-second": flow.rate.bytes.saturating_mul(8),
    })
}

/// What tells a flow from others between the same ends.
pub(super) fn what(flow: &FlowState, ends: &Ends) -> String {
    match flow.selector.qpn {
        Some(qpn) => format!("{} qp {}", ends.class, qpn.get()),
        None if ends.class != "-" => ends.class.to_string(),
        None => match ends.proto {
            6 => format!("tcp {}", ends.ports),
            17 => format!("udp {}", ends.ports),
            proto => format!("proto {proto}"),
        },
    }
}

pub(super) fn flows(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let limit = args.maybe::<u64>("count").unwrap_or(DEFAULT_FLOWS) as usize;
    let snapshot = shell.switch.snapshot();
    let mut flows: Vec<FlowState> = shell.switch.offload().flows().collect();
    let order = |flow: &FlowState| {
        let inside = matches!(flow.status, Status::Hardware | Status::Installing);
        (Reverse(inside), Reverse(flow.rate.packets), *flow.selector.key.words())
    };
    flows.sort_by_key(order);
    let all = flows.len();
    flows.truncate(limit);
    let mut table = Table::new(["from", "source", "destination", "flow", "packets/s", "bit/s", "where"]);
    let mut rows = Vec::new();
    for flow in &flows {
        let ends = Ends::of(&flow.selector.key, snapshot);
        table.row([
            ends.from.clone(),
            ends.source.clone(),
            ends.destination.clone(),
            what(flow, &ends),
            flow.rate.packets.to_string(),
            flow.rate.bytes.saturating_mul(8).to_string(),
            flow.status.to_string(),
        ]);
        rows.push(json_of(flow, snapshot));
    }
    let text = format!("{table}{} of {all} flows\n", rows.len());
    Ok(Output::new(text, json!({ "flows": rows, "entries": all })))
}
