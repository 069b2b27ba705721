//! Commands about rules of rte_flow, made by hand on any port: testpmd's grammar.
//!
//! They are for looking and trying. What the switch itself offloads is no business of theirs; rules made here are listed
//! here, and go when their port does.

use std::collections::BTreeMap;

use pmd::Flows;
use rules::{BackEnd, Cause, FlowError, FlowRule, RuleId, testpmd};
use serde_json::json;

use super::port::port_of;
use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output, Table};
use crate::switch::offload::Simulated;

/// What `flow` commands remember.
#[derive(Debug, Default)]
pub(super) struct Manual {
    /// Headers for `raw_encap`.
    encaps: testpmd::Encaps,
    /// Rules by port.
    ports: BTreeMap<u16, OnPort>,
}

/// The rules of one port, while it is the same port.
#[derive(Debug)]
struct OnPort {
    holder: ManualHolder,
    rules: BTreeMap<RuleId, FlowRule>,
}

/// What holds the rules of a port.
#[derive(Clone, Debug)]
enum ManualHolder {
    Driver(Flows),
    /// The simulated e-switch that it is on, by the port that it is there.
    Simulated(Simulated, Flows),
}

impl ManualHolder {
    fn back_end(&mut self) -> &mut dyn BackEnd {
        match self {
            Self::Driver(flows) => flows,
            Self::Simulated(device, _) => device,
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Driver(flows), Self::Driver(others)) => flows.same_port(others),
            (Self::Simulated(_, flows), Self::Simulated(_, others)) => flows.same_port(others),
            _ => false,
        }
    }
}

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "flow validate <id:port> <rule:text>",
            help: "Ask a port's driver whether it would take a rule, as in `ingress pattern eth / end actions drop / end`",
            run: validate,
        },
        Entry { syntax: "flow create <id:port> <rule:text>", help: "Give a port a rule", run: create },
        Entry {
            syntax: "flow destroy <id:port> rule <number:uint>...",
            help: "Take rules made by hand away",
            run: destroy,
        },
        Entry {
            syntax: "flow query <id:port> <number:uint> count",
            help: "Packets and bytes of a rule that counts",
            run: query,
        },
        Entry { syntax: "flow list <id:port>", help: "List the rules made by hand", run: list },
        Entry { syntax: "flow flush <id:port>", help: "Take all rules made by hand away", run: flush },
        Entry {
            syntax: "set raw_encap <index:uint> <header:text>",
            help: "Remember a header for `raw_encap index N`: eth ... / ipv4 ... / udp ... / vxlan vni is 1 / end_set",
            run: set_raw_encap,
        },
    ]
}

fn refused(error: FlowError) -> CommandError {
    CommandError::new(format!("the port refused: {error}"))
}

/// The rules of the port that an argument names; those of an earlier port of that number are forgotten.
fn on_port<'a>(shell: &'a mut Shell, args: &Args) -> Result<(u16, &'a mut OnPort), CommandError> {
    let index = port_of(shell, args, "id")?;
    let Some(port) = shell.switch.ports().get(index) else {
        return Err(args.error("id", "the port is gone"));
    };
    let (flows, offload) = (port.port.flows(), shell.switch.offload());
    let holder = match offload.simulated().filter(|_| offload.has(index)) {
        Some(device) => ManualHolder::Simulated(device.clone(), flows),
        None => ManualHolder::Driver(flows),
    };
    let fresh = || OnPort { holder: holder.clone(), rules: BTreeMap::new() };
    let known = shell.manual.ports.entry(index).or_insert_with(fresh);
    if !known.holder.is(&holder) {
        *known = fresh();
    }
    Ok((index, known))
}

fn rule_of(shell: &Shell, args: &Args) -> Result<FlowRule, CommandError> {
    let text = args.get::<String>("rule")?;
    testpmd::rule(&text, &shell.manual.encaps).map_err(|message| args.error("rule", message))
}

fn validate(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let rule = rule_of(shell, args)?;
    on_port(shell, args)?.1.holder.back_end().validate(&rule).map_err(refused)?;
    Ok(Output::message("the port would take this rule"))
}

fn create(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let rule = rule_of(shell, args)?;
    let (port, known) = on_port(shell, args)?;
    let id = known.holder.back_end().create(&rule).map_err(refused)?;
    known.rules.insert(id, rule);
    let text = format!("rule {} created on port {port}", id.0);
    Ok(Output::new(text.clone(), json!({ "message": text, "port": port, "rule": id.0 })))
}

fn destroy(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let numbers: Vec<u64> = args.all("number");
    let (port, known) = on_port(shell, args)?;
    for number in &numbers {
        let id = RuleId(*number);
        if !known.rules.contains_key(&id) {
            return Err(CommandError::new(format!(
                "port {port} has no rule {number} made by hand; `flow list` shows them"
            )));
        }
        match known.holder.back_end().destroy(id) {
            Err(error) if error.cause != Cause::Gone => return Err(refused(error)),
            _ => known.rules.remove(&id),
        };
    }
    Ok(Output::message(format!("{} gone from port {port}", counted(numbers.len()))))
}

fn query(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let number = args.get::<u64>("number")?;
    let (port, known) = on_port(shell, args)?;
    if !known.rules.contains_key(&RuleId(number)) {
        return Err(CommandError::new(format!(
            "port {port} has no rule {number} made by hand; `flow list` shows them"
        )));
    }
    let usage = known.holder.back_end().query(RuleId(number)).map_err(refused)?;
    let text = format!("{} packets, {} bytes", usage.packets, usage.bytes);
    Ok(Output::new(text, json!({ "rule": number, "packets": usage.packets, "bytes": usage.bytes })))
}

fn list(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (_, known) = on_port(shell, args)?;
    let mut table = Table::new(["id", "rule"]);
    let mut rows = Vec::new();
    for (id, rule) in &known.rules {
        table.row([id.0.to_string(), rule.to_string()]);
        rows.push(json!({ "id": id.0, "group": rule.attr.group, "priority": rule.attr.priority, "rule": rule.to_string() }));
    }
    Ok(Output::table(&table, json!(rows)))
}

fn flush(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (port, known) = on_port(shell, args)?;
    // One by one: other rules of the port are not ours.
    let all: Vec<RuleId> = known.rules.keys().copied().collect();
    for id in &all {
        match known.holder.back_end().destroy(*id) {
            Err(error) if error.cause != Cause::Gone => return Err(refused(error)),
            _ => known.rules.remove(id),
        };
    }
    Ok(Output::message(format!("{} gone from port {port}", counted(all.len()))))
}

fn set_raw_encap(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let index = args.get::<u64>("index")?;
    let index =
        u16::try_from(index).map_err(|_| args.error("index", "headers have numbers from 0 to 65535"))?;
    let header =
        testpmd::encap(&args.get::<String>("header")?).map_err(|message| args.error("header", message))?;
    shell.manual.encaps.insert(index, header);
    Ok(Output::message(format!("header {index}: {} bytes", header.bytes().len())))
}

fn counted(rules: usize) -> String {
    if rules == 1 { "1 rule".into() } else { format!("{rules} rules") }
}
