//! What the switch answers about offload, in words.

use std::cmp::Reverse;

use vswitch_api::v1;
use vswitch_api::v1::offload_audit::Result as Audit;

use crate::commands::View;
use crate::console::Table;

impl View for v1::GetOffloadResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["", ""]);
        let mut line = |name: &str, text: String| {
            table.row([name.to_string(), text]);
        };
        let device = match self.device.as_deref() {
            Some("simulated") => "simulated (a lab device, no NIC)".to_owned(),
            Some(other) => format!("{other}, engine {}", self.engine.as_deref().unwrap_or("unknown")),
            None => "none".to_owned(),
        };
        line("offload", format!("{}, device: {device}", if self.on { "on" } else { "off" }));
        let mut ports: Vec<(&String, &u32)> = self.ports.iter().collect();
        ports.sort_by_key(|(name, dpdk)| (**dpdk, *name));
        let ports: Vec<String> =
            ports.into_iter().map(|(name, dpdk)| format!("{name} (dpdk {dpdk})")).collect();
        line("ports", if ports.is_empty() { "none".into() } else { ports.join(", ") });
        let flows = self.flows.unwrap_or_default();
        line(
            "flows",
            format!(
                "{} in hardware, {} partly, {} on their way, {} in software, {} refused",
                flows.hardware, flows.partial, flows.installing, flows.software, flows.refused
            ),
        );
        let done = self.done.unwrap_or_default();
        line("done in hardware", format!("{} packets, {} bytes", done.packets, done.bytes));
        line("rules", self.rules.to_string());
        line("outer source ports", self.source_ports.clone());
        let counts = counts(&self.so_far.unwrap_or_default());
        let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        line("so far", counts.join(", "));
        let mut refusals: Vec<_> = self.refusals.iter().collect();
        refusals.sort_by_key(|(reason, count)| (Reverse(**count), reason.as_str()));
        for (reason, count) in refusals {
            line("refused", format!("{count} times: {reason}"));
        }
        let audit = match self.audit.as_ref().and_then(|audit| audit.result.as_ref()) {
            None => "not yet".to_string(),
            Some(Audit::Repaired(lost)) => format!("{lost} rules were lost and put back"),
            Some(Audit::Error(error)) => format!("could not repair: {error}"),
        };
        line("last audit", audit);
        if let Some(eswitch) = &self.eswitch {
            line("e-switch (simulated)", words(eswitch));
        }
        table.to_string()
    }
}

/// What has happened so far, by name.
fn counts(counters: &v1::OffloadCounters) -> [(&'static str, u64); 15] {
    [
        ("installed", counters.installed),
        ("withdrawn", counters.withdrawn),
        ("aged", counters.aged),
        ("displaced", counters.displaced),
        ("over their rates", counters.over_their_rates),
        ("updated", counters.updated),
        ("refused", counters.refused),
        ("refused by the device", counters.refused_by_the_device),
        ("no gap", counters.no_gap),
        ("counters gone back", counters.counters_gone_back),
        ("counters run ahead", counters.counters_run_ahead),
        ("kept by the device", counters.kept_by_the_device),
        ("aged rules unknown", counters.aged_rules_unknown),
        ("repaired", counters.repaired),
        ("unknown to workers", counters.unknown_to_workers),
    ]
}

fn words(eswitch: &v1::OffloadEswitch) -> String {
    let v1::OffloadEswitch {
        rules,
        forwarded,
        to_software,
        missed,
        dropped,
        errors,
        sent,
        ring_full,
        lost,
        cycles,
        ..
    } = eswitch;
    format!(
        "{rules} rules; {forwarded} packets forwarded, {to_software} to software by rule, {missed} without one, \
         {dropped} dropped by rule, {errors} failed, {sent} sent, {ring_full} found a ring full, {lost} led nowhere; \
         {cycles} cycles"
    )
}

/// What tells a flow from others between the same ends.
fn what(flow: &v1::OffloadFlow) -> String {
    match flow.qpn {
        Some(qpn) => format!("{} qp {qpn}", flow.class),
        None if flow.class != "-" => flow.class.clone(),
        None => match flow.proto {
            6 => format!("tcp {}", flow.ports),
            17 => format!("udp {}", flow.ports),
            proto => format!("proto {proto}"),
        },
    }
}

impl View for v1::ListOffloadFlowsResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["from", "source", "destination", "flow", "packets/s", "bit/s", "where"]);
        for flow in &self.flows {
            table.row([
                flow.from.clone(),
                flow.source.clone(),
                flow.destination.clone(),
                what(flow),
                flow.packets_per_second.to_string(),
                flow.bits_per_second.to_string(),
                flow.why.clone(),
            ]);
        }
        format!("{table}{} of {} flows\n", self.flows.len(), self.entries)
    }
}

impl View for v1::ExplainOffloadResponse {
    fn text(&self) -> String {
        let line = |flow: &v1::OffloadFlow| {
            let what = what(flow);
            format!("{} {} > {} {what}: {}\n", flow.from, flow.source, flow.destination, flow.why)
        };
        self.flows.iter().map(line).collect()
    }
}

impl View for v1::GetOffloadCapabilitiesResponse {
    fn text(&self) -> String {
        let build = self.dpdk.clone().unwrap_or_default();
        let pairs = if build.ib_bth {
            "it can say \"match this queue pair\" (ib_bth): RC flows can be offloaded where the driver takes that"
        } else {
            "it cannot say \"match this queue pair\" (ib_bth, since 23.07): RC flows stay in software, TCP and UDP do not"
        };
        let has = |has: bool| if has { "has" } else { "has no" };
        let mut text = format!(
            "{}: {pairs}\nit {} meters that let red packets on (meter_mark), {} colours to match (meter_color), {} templates and queues, {} question for the outer source ports that a NIC writes\n",
            build.version,
            has(build.meter_mark),
            has(build.meter_color),
            has(build.flow_queues),
            has(build.encap_hash),
        );
        for port in &self.ports {
            let proxy = match (port.transfer_proxy, &port.transfer_proxy_unknown) {
                (Some(_), _) if port.takes_own_rules => "takes its own rules".into(),
                (Some(proxy), _) => format!("its rules are given to DPDK port {proxy}"),
                (None, words) => {
                    format!("who takes its rules is unknown: {}", words.as_deref().unwrap_or_default())
                }
            };
            let queues = match (&port.flow_queues, &port.flow_queues_unknown) {
                (Some(limits), _) => format!("{} flow queues of {}", limits.queues, limits.depth),
                (None, words) => format!("no flow queues: {}", words.as_deref().unwrap_or_default()),
            };
            text += &format!(
                "\nport {} {} ({}, {}): {proxy}; {queues}\n",
                port.id, port.name, port.driver, port.device
            );
            text += &answers(port);
        }
        text
    }
}

/// What was asked for, and the answers.
fn answers(port: &v1::PortCapabilities) -> String {
    let mut table = Table::new(["asked for", "taken", "in the device's words"]);
    for (kind, answers) in [("", &port.features), ("chain ", &port.chains)] {
        for answer in answers {
            let taken = if answer.taken { "yes" } else { "no" };
            let words = answer.words.clone().unwrap_or_default();
            table.row([format!("{kind}{}", answer.name), taken.into(), words]);
        }
    }
    table.to_string()
}
