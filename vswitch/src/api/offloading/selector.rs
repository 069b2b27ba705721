//! Which flows are meant.

use std::collections::HashSet;
use std::net::IpAddr;

use pipelines::flow_key::{FlowAddresses, FlowKey, FlowPorts, Scope};
use pipelines::offload::manager::{Rate, Status, Why};
use pipelines::offload::translate::FlowSelector;
use pipelines::snapshot::Snapshot;
use pipelines::stage::key::is_reliable;
use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::offload_selector::{self, Flow};
use wire::{Qpn, protocol};

use crate::api::refusal::{Problem, Problems};
use crate::config::error::quote;
use crate::controller::Controller;
use crate::switch::offload::FlowState;
use crate::view::flow::each;

struct Meant {
    scope: Scope,
    addresses: FlowAddresses,
    kind: Pattern,
}

enum Pattern {
    Ports(u8, FlowPorts),
    QueuePair(Qpn),
    Roce,
    Any,
}

impl Meant {
    fn read(snapshot: &Snapshot, selector: v1::OffloadSelector) -> Result<Self, Problem> {
        let unknown = |field: &str, what: &str, name: &str, list: &str| {
            let message = format!("no {what} {}; `{list}` lists them", quote(name));
            Problem::new(Code::NotFound, field, message)
        };
        let scope = match &selector.scope {
            Some(offload_selector::Scope::Vnic(name)) => {
                let vnic = snapshot.vnics.iter().flatten().find(|vnic| vnic.name == *name);
                Scope::Vnic(vnic.ok_or_else(|| unknown("vnic", "vNIC", name, "show vnic"))?.index)
            }
            Some(offload_selector::Scope::Tunnel(name)) => {
                let vpcs = &mut snapshot.vpcs.iter();
                let vpc = vpcs.position(|vpc| vpc.as_ref().is_some_and(|vpc| vpc.name == *name));
                Scope::Vpc(vpc.ok_or_else(|| unknown("tunnel", "VPC", name, "show vpc"))? as u32)
            }
            None => {
                let message =
                    "it says not where flows come from; set `vnic`, or `tunnel` to the name of a VPC";
                return Err(Problem::invalid("", message.into()));
            }
        };
        let ip = |field: &str, text: &str| {
            let wrong = || format!("{} is not an IP address; write one such as 10.0.0.2", quote(text));
            text.parse::<IpAddr>().map_err(|_| Problem::invalid(field, wrong()))
        };
        let addresses = FlowAddresses {
            source: ip("source", &selector.source)?,
            destination: ip("destination", &selector.destination)?,
        };
        let kind = match selector.flow {
            Some(Flow::Tcp(of)) => Pattern::Ports(protocol::TCP, ports("tcp", of)?),
            Some(Flow::Udp(of)) => Pattern::Ports(protocol::UDP, ports("udp", of)?),
            Some(Flow::Qp(number)) => {
                let wrong = |_| format!("{number} is no number of a queue pair; give 0 to 16777215");
                Pattern::QueuePair(Qpn::new(number).map_err(|error| Problem::invalid("qp", wrong(error)))?)
            }
            Some(Flow::Roce(_)) => Pattern::Roce,
            Some(Flow::Any(_)) => Pattern::Any,
            None => {
                let message = "it says not which flows; set one of `tcp`, `udp`, `qp`, `roce` and `any`";
                return Err(Problem::invalid("", message.into()));
            }
        };
        Ok(Self { scope, addresses, kind })
    }

    fn is(&self, key: &FlowKey) -> bool {
        let right = match self.kind {
            Pattern::Ports(proto, ports) => key.proto() == proto && key.ports() == ports,
            Pattern::QueuePair(_) => is_reliable(key.class()),
            Pattern::Roce => key.class() != 0,
            Pattern::Any => true,
        };
        right && key.scope() == self.scope && key.addresses() == Some(self.addresses)
    }

    fn qpn(&self) -> Option<Qpn> {
        match self.kind {
            Pattern::QueuePair(qpn) => Some(qpn),
            _ => None,
        }
    }

    fn selects(&self, selector: &FlowSelector) -> bool {
        self.qpn().is_none_or(|qpn| selector.qpn == Some(qpn)) && self.is(&selector.key)
    }
}

fn ports(field: &str, ports: v1::OffloadPorts) -> Result<FlowPorts, Problem> {
    let port = |name: &str, value: u32| {
        let wrong = || format!("{value} is no port; give 0 to 65535");
        u16::try_from(value).map_err(|_| Problem::invalid(&format!("{field}.{name}"), wrong()))
    };
    Ok(FlowPorts {
        source: port("source", ports.source)?,
        destination: port("destination", ports.destination)?,
    })
}

/// Flows in the order in which they were found, each once, whatever number of workers have it.
#[derive(Default)]
struct Found {
    flows: Vec<FlowState>,
    known: HashSet<FlowSelector>,
}

impl Found {
    fn add(&mut self, selector: FlowSelector) {
        if self.known.insert(selector) {
            let status = Status::Software(Why::Cold);
            self.flows.push(FlowState { selector, status, rate: Rate::default() });
        }
    }
}

/// The flows that are meant: those that the manager knows, else those of the workers' tables.
pub(super) fn selected(
    controller: &mut Controller,
    selector: Option<v1::OffloadSelector>,
) -> Result<Vec<FlowState>, Problems> {
    let meant = Meant::read(controller.switch.snapshot(), selector.unwrap_or_default())
        .map_err(|problem| problem.within("flow"))?;
    let known: Vec<FlowState> =
        controller.switch.offload().flows().filter(|flow| meant.selects(&flow.selector)).collect();
    if !known.is_empty() {
        return Ok(known);
    }
    let qpn = meant.qpn();
    let mut found = Found::default();
    each(&mut controller.switch, |_, flow, _| {
        if meant.is(&flow.key) {
            found.add(FlowSelector { key: flow.key, qpn, source_port: None });
        }
    })?;
    let found = found.flows;
    if found.is_empty() {
        let message = "there is no such flow; `show nft` and `show offload flows` list them";
        return Err(Problem::new(Code::NotFound, "flow", message.into()).into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The fastest of a few times that so many flows are found in, by two workers each.
    fn fastest(flows: u64) -> u128 {
        let one = || {
            let begun = Instant::now();
            let mut found = Found::default();
            for number in (0..flows).chain(0..flows) {
                let key = FlowKey::from_words([number, 0, 0, 0, 0, 0, 6]);
                found.add(FlowSelector { key, qpn: None, source_port: None });
            }
            assert_eq!(found.flows.len() as u64, flows);
            begun.elapsed().as_nanos()
        };
        (0..3).map(|_| one()).min().unwrap()
    }

    #[test]
    fn flows_are_found_once_at_the_cost_of_one_each() {
        let (few, many) = (fastest(2000), fastest(8000));
        // Of a square it would be sixteen times as much.
        assert!(many < few * 9, "{few} ns, and four times as many {many} ns");
    }
}
