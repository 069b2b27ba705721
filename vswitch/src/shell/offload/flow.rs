//! Single flows: where they are and why, and where they have to be.

use pipelines::flow_key::{FlowAddresses, FlowKey, FlowPorts, Scope};
use pipelines::offload::manager::{Pin, Rate, Status, Why};
use pipelines::offload::translate::FlowSelector;
use pipelines::snapshot::Snapshot;
use pipelines::stage::key::is_reliable;
use serde_json::json;
use wire::{Qpn, protocol};

use super::super::Shell;
use super::super::rcft::read_qpn;
use super::show::{json_of, what};
use crate::config::Name;
use crate::console::{Args, CommandError, Output};
use crate::switch::offload::FlowState;
use crate::view::flow::Ends;
use crate::worker::WorkerCommand;

/// Entries of an NFT read at a time.
const PAGE: usize = 64;

/// Which flow is meant.
struct Meant {
    scope: Scope,
    addresses: FlowAddresses,
    kind: FlowPattern,
}

enum FlowPattern {
    Ports(u8, u16, u16),
    QueuePair(Qpn),
    Roce,
    Any,
}

impl Meant {
    fn read(snapshot: &Snapshot, args: &Args) -> Result<Self, CommandError> {
        let name: Name = args.get("name")?;
        let unknown = |what, list| args.error("name", format!("no {what} {name}; `{list}` lists them"));
        let scope = if args.has("vnic") {
            let vnic = snapshot.vnics.iter().flatten().find(|vnic| vnic.name == *name);
            Scope::Vnic(vnic.ok_or_else(|| unknown("vNIC", "show vnic"))?.index)
        } else {
            let vpc = snapshot.vpcs.iter().position(|vpc| vpc.as_ref().is_some_and(|vpc| vpc.name == *name));
            Scope::Vpc(vpc.ok_or_else(|| unknown("VPC", "show vpc"))? as u32)
        };
        let text: String = args.get("flow")?;
        let kind = FlowPattern::read(&text).ok_or_else(|| {
            let shown = crate::config::error::quote(&text);
            args.error(
                "flow",
                format!(
                    "{shown} is no flow; write `tcp 40000 5201`, `udp 1000 2000`, `qp 17`, `roce` or `any`"
                ),
            )
        })?;
        let addresses = FlowAddresses { source: args.get("source")?, destination: args.get("destination")? };
        Ok(Self { scope, addresses, kind })
    }

    fn is(&self, key: &FlowKey) -> bool {
        let right = match self.kind {
            FlowPattern::Ports(proto, source, destination) => {
                key.proto() == proto && key.ports() == FlowPorts { source, destination }
            }
            FlowPattern::QueuePair(_) => is_reliable(key.class()),
            FlowPattern::Roce => key.class() != 0,
            FlowPattern::Any => true,
        };
        right && key.scope() == self.scope && key.addresses() == Some(self.addresses)
    }

    fn selects(&self, selector: &FlowSelector) -> bool {
        let pair = match self.kind {
            FlowPattern::QueuePair(qpn) => selector.qpn == Some(qpn),
            _ => true,
        };
        pair && self.is(&selector.key)
    }
}

impl FlowPattern {
    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let ports = |proto, source: &str, destination: &str| {
            Some(Self::Ports(proto, source.parse().ok()?, destination.parse().ok()?))
        };
        match words[..] {
            ["tcp", source, destination] => ports(protocol::TCP, source, destination),
            ["udp", source, destination] => ports(protocol::UDP, source, destination),
            ["qp", number] => read_qpn(number).map(Self::QueuePair),
            ["roce"] => Some(Self::Roce),
            ["any"] => Some(Self::Any),
            _ => None,
        }
    }
}

/// The flows that are meant: those that the manager knows, else those of the workers' tables.
fn meant(shell: &Shell, args: &Args) -> Result<Vec<FlowState>, CommandError> {
    let snapshot = shell.switch.snapshot();
    let meant = Meant::read(snapshot, args)?;
    let known: Vec<FlowState> =
        shell.switch.offload().flows().filter(|flow| meant.selects(&flow.selector)).collect();
    if !known.is_empty() {
        return Ok(known);
    }
    let qpn = match meant.kind {
        FlowPattern::QueuePair(qpn) => Some(qpn),
        _ => None,
    };
    let mut found: Vec<FlowState> = Vec::new();
    for worker in &shell.switch.pool().workers {
        let mut from = Some(0);
        while let Some(start) = from {
            let page = worker.mailbox().ask(|reply| WorkerCommand::Nft(start, PAGE, reply))?;
            for flow in page.entries.iter().filter(|flow| meant.is(&flow.key)) {
                let selector = FlowSelector { key: flow.key, qpn, source_port: None };
                let status = Status::Software(Why::Cold);
                if !found.iter().any(|other| other.selector == selector) {
                    found.push(FlowState { selector, status, rate: Rate::default() });
                }
            }
            from = page.next;
        }
    }
    if found.is_empty() {
        return Err(
            args.error("flow", "there is no such flow; `show nft` and `show offload flows` list them")
        );
    }
    Ok(found)
}

pub(super) fn why(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let flows = meant(shell, args)?;
    let snapshot = shell.switch.snapshot();
    let line = |flow: &FlowState| {
        let ends = Ends::of(&flow.selector.key, snapshot);
        let what = what(flow, &ends);
        format!("{} {} > {} {what}: {}\n", ends.from, ends.source, ends.destination, flow.status)
    };
    let text: String = flows.iter().map(line).collect();
    let rows: Vec<_> = flows.iter().map(|flow| json_of(flow, snapshot)).collect();
    Ok(Output::new(text, json!({ "flows": rows })))
}

pub(super) fn pin(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let place: String = args.get("place")?;
    let pin = match place.as_str() {
        "software" => Some(Pin::Software),
        "hardware" => Some(Pin::Hardware),
        _ => None,
    };
    if pin == Some(Pin::Hardware) && shell.switch.offload().device().is_none() {
        return Err(CommandError::new(
            "no port is on a device that holds rules; say offload = \"simulated\" or \"rte-flow\" at ports in the config",
        ));
    }
    let flows = meant(shell, args)?;
    let now_ns = shell.switch.pool().now().ns;
    for flow in &flows {
        shell.switch.offload_mut().pin(flow.selector, pin, now_ns);
    }
    let count = if flows.len() == 1 { "1 flow".to_string() } else { format!("{} flows", flows.len()) };
    let text = match pin {
        Some(_) => format!("{count}: in {place} from the next turn on"),
        None => format!("{count}: where it belongs"),
    };
    Ok(Output::new(text.clone(), json!({ "message": text, "flows": flows.len() })))
}
