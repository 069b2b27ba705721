//! `show offload capabilities`: what this DPDK and the driver of a port make of the rules of offload.

use pmd::flow::{BUILD, FlowLimits, transfer_proxy};
use serde_json::{Value, json};

use crate::capabilities::{self, CapabilityAnswer, CapabilityReport};
use crate::console::{Args, CommandError, Output, PortRef, Table};
use crate::shell::Shell;
use crate::shell::port::port_of;

/// A port, and what there is to be said of it.
struct Asked {
    id: u16,
    name: String,
    driver: String,
    /// What was asked.
    device: &'static str,
    /// The DPDK port that takes its rules, and whether it is this one.
    proxy: Result<(u16, bool), String>,
    queues: Result<FlowLimits, String>,
    report: CapabilityReport,
}

pub(super) fn show(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let ids: Vec<u16> = match args.maybe::<PortRef>("id") {
        Some(_) => vec![port_of(shell, args, "id")?],
        None => shell.switch.ports().iter().map(|(id, _)| id).collect(),
    };
    let asked = ids.into_iter().map(|id| ask(shell, id)).collect::<Result<Vec<_>, _>>()?;
    Ok(Output::new(
        text(&asked),
        json!({ "dpdk": build(), "ports": asked.iter().map(row).collect::<Vec<_>>() }),
    ))
}

fn ask(shell: &mut Shell, id: u16) -> Result<Asked, CommandError> {
    let to = {
        let gone = || CommandError::new(format!("port {id} is gone; `port list` shows the ports"));
        let own = shell.switch.ports().get(id).ok_or_else(gone)?.port.id();
        // Packets have to go somewhere else: any other port will do for the question.
        let others = shell.switch.ports().iter().map(|(_, other)| other.port.id());
        others.into_iter().find(|other| *other != own).unwrap_or(own)
    };
    // The device that it is on is asked the way its rules go.
    let asked = shell.switch.offload_mut().ask(id, to);
    let is_simulated = shell.switch.offload().simulated().is_some();
    let gone = || CommandError::new(format!("port {id} is gone; `port list` shows the ports"));
    let port = shell.switch.ports().get(id).ok_or_else(gone)?;
    let own = port.port.id();
    let proxy = transfer_proxy(&port.port);
    let (device, report) = match asked {
        Some(report) if is_simulated => ("simulated: a lab device, no NIC", report),
        Some(report) => ("rte_flow", report),
        None => {
            // Another port that takes the rules is asked where it is one of ours.
            let taker = proxy.as_ref().ok().and_then(|proxy| {
                shell.switch.ports().iter().map(|(_, other)| other).find(|other| other.port.id() == *proxy)
            });
            let mut flows = taker.unwrap_or(port).port.flows();
            ("rte_flow", capabilities::probe(&mut flows, own.get(), to.get()))
        }
    };
    Ok(Asked {
        id,
        name: port.name.clone(),
        driver: port.port.info().map(|info| info.driver).unwrap_or_default(),
        device,
        proxy: proxy.map(|proxy| (proxy.get(), proxy == own)).map_err(|error| error.to_string()),
        queues: port.port.flow_limits().map_err(|error| error.to_string()),
        report: report.map_err(CommandError::new)?,
    })
}

fn build() -> Value {
    json!({
        "version": BUILD.version, "ib-bth": BUILD.ib_bth, "meter-mark": BUILD.meter_mark,
        "meter-color": BUILD.meter_color, "flow-queues": BUILD.queues, "encap-hash": BUILD.encap_hash,
    })
}

fn text(asked: &[Asked]) -> String {
    let pairs = if BUILD.ib_bth {
        "it can say \"match this queue pair\" (ib_bth): RC flows can be offloaded where the driver takes that"
    } else {
        "it cannot say \"match this queue pair\" (ib_bth, since 23.07): RC flows stay in software, TCP and UDP do not"
    };
    let has = |has: bool| if has { "has" } else { "has no" };
    let mut text = format!(
        "{}: {pairs}\nit {} meters that let red packets on (meter_mark), {} colours to match (meter_color), {} templates and queues, {} question for the outer source ports that a NIC writes\n",
        BUILD.version,
        has(BUILD.meter_mark),
        has(BUILD.meter_color),
        has(BUILD.queues),
        has(BUILD.encap_hash),
    );
    for port in asked {
        let proxy = match &port.proxy {
            Ok((_, true)) => "takes its own rules".into(),
            Ok((proxy, false)) => format!("its rules are given to DPDK port {proxy}"),
            Err(words) => format!("who takes its rules is unknown: {words}"),
        };
        let queues = match &port.queues {
            Ok(limits) => format!("{} flow queues of {}", limits.queues, limits.depth),
            Err(words) => format!("no flow queues: {words}"),
        };
        text += &format!(
            "\nport {} {} ({}, {}): {proxy}; {queues}\n",
            port.id, port.name, port.driver, port.device
        );
        text += &table(&port.report);
    }
    text
}

fn table(report: &CapabilityReport) -> String {
    let mut table = Table::new(["asked for", "taken", "in the device's words"]);
    let mut add = |kind: &str, answer: &CapabilityAnswer| {
        let (taken, words) = match &answer.taken {
            Ok(()) => ("yes", String::new()),
            Err((_, error)) => ("no", error.to_string()),
        };
        table.row([format!("{kind}{}", answer.name), taken.into(), words]);
    };
    report.features.iter().for_each(|answer| add("", answer));
    report.chains.iter().for_each(|answer| add("chain ", answer));
    table.to_string()
}

fn row(port: &Asked) -> Value {
    let queues = port.queues.as_ref().ok().map(|limits| {
        json!({
            "queues": limits.queues, "depth": limits.depth, "counters": limits.counters, "ages": limits.ages,
            "meters": limits.meters,
        })
    });
    json!({
        "id": port.id, "name": port.name, "driver": port.driver, "device": port.device,
        "transfer-proxy": port.proxy.as_ref().ok().map(|(proxy, _)| proxy), "flow-queues": queues,
        "features": capabilities::json(&port.report.features),
        "chains": capabilities::json(&port.report.chains),
    })
}
