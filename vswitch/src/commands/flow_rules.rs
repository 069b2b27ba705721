//! Commands about rules of rte_flow, made by hand on any port: testpmd's grammar, read here.

use rules::{Encap, FlowRule, testpmd};
use vswitch_api::v1;
use vswitch_api::v1::flow_rules_client::FlowRulesClient;

use super::ports::port;
use super::{Entry, Session, View, ask, shown, told};
use crate::api::flow_rule;
use crate::console::{Args, CommandError, Output, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "flow validate <port:port> <rule:text>",
            help: "Ask a port's driver whether it would take a rule, as in `ingress pattern eth / end actions drop / end`",
            rpc: "FlowRules.ValidateFlowRule",
            run: validate,
        },
        Entry {
            syntax: "flow create <port:port> <rule:text>",
            help: "Give a port a rule",
            rpc: "FlowRules.CreateFlowRule",
            run: create,
        },
        Entry {
            syntax: "flow destroy <port:port> rule <number:uint>...",
            help: "Take rules made by hand away",
            rpc: "FlowRules.DestroyFlowRules",
            run: destroy,
        },
        Entry {
            syntax: "flow query <port:port> <number:uint> count",
            help: "Packets and bytes of a rule that counts",
            rpc: "FlowRules.QueryFlowRule",
            run: query,
        },
        Entry {
            syntax: "flow list <port:port>",
            help: "List the rules made by hand",
            rpc: "FlowRules.ListFlowRules",
            run: list,
        },
        Entry {
            syntax: "flow flush <port:port>",
            help: "Take all rules made by hand away",
            rpc: "FlowRules.FlushFlowRules",
            run: flush,
        },
        Entry {
            syntax: "set raw_encap <index:uint> <header:text>",
            help: "Remember a header for `raw_encap index N`: eth ... / ipv4 ... / udp ... / vxlan vni is 1 / end_set",
            rpc: "FlowRules.SetRawEncap",
            run: set_raw_encap,
        },
    ]
}

/// The headers that the switch remembers for consoles, so that a `set raw_encap` holds for all of them.
fn encaps(session: &Session) -> Result<testpmd::Encaps, CommandError> {
    let known = ask!(session, FlowRulesClient.list_raw_encaps(v1::ListRawEncapsRequest {}))?;
    let header = |known: &v1::RawEncapHeader| {
        let index = u16::try_from(known.index).ok()?;
        Some((index, Encap::new(&known.header).ok()?))
    };
    Ok(known.headers.iter().filter_map(header).collect())
}

/// The rule that the argument `rule` describes.
fn rule(session: &Session, args: &Args) -> Result<Option<v1::FlowRule>, CommandError> {
    let text = args.get::<String>("rule")?;
    let encaps = match text.split_whitespace().any(|word| word == "raw_encap") {
        true => encaps(session)?,
        false => testpmd::Encaps::new(),
    };
    let rule: FlowRule = testpmd::rule(&text, &encaps).map_err(|message| args.error("rule", message))?;
    Ok(Some(flow_rule(&rule)))
}

fn validate(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let request = v1::ValidateFlowRuleRequest { port: port(args), rule: rule(session, args)? };
    told("the port would take this rule", ask!(session, FlowRulesClient.validate_flow_rule(request))?)
}

fn create(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let request = v1::CreateFlowRuleRequest { port: port(args), rule: rule(session, args)? };
    let answer = ask!(session, FlowRulesClient.create_flow_rule(request))?;
    told(format!("rule {} created on port {}", answer.rule, answer.port), answer)
}

fn destroy(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let request = v1::DestroyFlowRulesRequest { port: port(args), number: args.all("number") };
    let answer = ask!(session, FlowRulesClient.destroy_flow_rules(request))?;
    told(format!("{} gone from port {}", counted(answer.rules), answer.port), answer)
}

fn query(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let request = v1::QueryFlowRuleRequest { port: port(args), number: args.get("number")? };
    shown(ask!(session, FlowRulesClient.query_flow_rule(request))?)
}

fn list(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let request = v1::ListFlowRulesRequest { port: port(args) };
    shown(ask!(session, FlowRulesClient.list_flow_rules(request))?)
}

fn flush(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let request = v1::FlushFlowRulesRequest { port: port(args) };
    let answer = ask!(session, FlowRulesClient.flush_flow_rules(request))?;
    told(format!("{} gone from port {}", counted(answer.rules), answer.port), answer)
}

fn set_raw_encap(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let number = args.get::<u64>("index")?;
    let index =
        u16::try_from(number).map_err(|_| args.error("index", "headers have numbers from 0 to 65535"))?;
    let header =
        testpmd::encap(&args.get::<String>("header")?).map_err(|message| args.error("header", message))?;
    let header = header.bytes().to_vec();
    let text = format!("header {index}: {} bytes", header.len());
    let request = v1::SetRawEncapRequest { index: index.into(), header };
    told(text, ask!(session, FlowRulesClient.set_raw_encap(request))?)
}

fn counted(rules: u64) -> String {
    if rules == 1 { "1 rule".into() } else { format!("{rules} rules") }
}

impl View for v1::QueryFlowRuleResponse {
    fn text(&self) -> String {
        format!("{} packets, {} bytes", self.packets, self.bytes)
    }
}

impl View for v1::ListFlowRulesResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["id", "rule"]);
        for rule in &self.rules {
            table.row([rule.id.to_string(), rule.rule.clone()]);
        }
        table.to_string()
    }
}
