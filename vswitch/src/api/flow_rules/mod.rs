//! The service `FlowRules`: rules of rte_flow that are made by hand, on any port.
//!
//! They are for looking and trying. What the switch itself offloads is no business of theirs; rules made here are listed
//! here, and go when their port does.

mod actions;
mod items;
mod manual;
mod message;
#[cfg(test)]
mod tests;

use actions::{header, number};
pub use manual::ManualRules;
use manual::OnPort;
pub use message::message;
use message::rule;
use rules::{Cause, FlowError, FlowRule, RuleId, Where};
use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::flow_rules_server::FlowRules;

use super::ports::port;
use super::refusal::Problem;
use super::service::service;
use crate::controller::Controller;

/// Headers that are remembered.
const ENCAPS: usize = 1024;

// What a driver makes of a rule is found out by code of that driver: only those may ask who may make the rule.
service! { FlowRules {
    changes validate_flow_rule(ValidateFlowRuleRequest) -> ValidateFlowRuleResponse: "asking a port about a rule",
    changes create_flow_rule(CreateFlowRuleRequest) -> CreateFlowRuleResponse: "making a rule",
    changes destroy_flow_rules(DestroyFlowRulesRequest) -> DestroyFlowRulesResponse: "taking rules away",
    reads query_flow_rule(QueryFlowRuleRequest) -> QueryFlowRuleResponse: "asking a rule what it has seen",
    reads list_flow_rules(ListFlowRulesRequest) -> ListFlowRulesResponse: "listing rules made by hand",
    changes flush_flow_rules(FlushFlowRulesRequest) -> FlushFlowRulesResponse: "taking all rules of a port away",
    changes set_raw_encap(SetRawEncapRequest) -> SetRawEncapResponse: "remembering a header",
    reads list_raw_encaps(ListRawEncapsRequest) -> ListRawEncapsResponse: "listing headers",
} }

/// What a port's driver, or the simulated e-switch, said to a request about what is at a field.
fn refused(error: &FlowError, field: &str) -> Problem {
    let (code, remedy) = match error.cause {
        Cause::Unsupported | Cause::Invalid => (Code::InvalidArgument, "leave it out, or write it otherwise"),
        Cause::Full => (Code::ResourceExhausted, "remove other rules first"),
        Cause::Exists => (Code::AlreadyExists, "leave it, or remove the other first"),
        Cause::Again => (Code::Unavailable, "try again"),
        Cause::Gone => (Code::NotFound, "`flow list` shows those that were made by hand"),
        Cause::NoDevice | Cause::Other(_) => (Code::FailedPrecondition, "look at the port, and at the log"),
    };
    Problem::new(code, field, format!("the port refused: {error}; {remedy}"))
}

/// The same of the rule of a request: the driver may say which part of it is meant.
fn refused_rule(error: FlowError) -> Problem {
    let field = match error.at {
        Where::Unspecified | Where::Handle | Where::Attr => "rule".to_owned(),
        Where::AttrGroup => "rule.group".to_owned(),
        Where::AttrPriority => "rule.priority".to_owned(),
        Where::AttrIngress | Where::AttrEgress | Where::AttrTransfer => "rule.domain".to_owned(),
        Where::ItemNum => "rule.items".to_owned(),
        Where::ItemSpec(at) | Where::ItemLast(at) | Where::ItemMask(at) | Where::Item(at) => {
            format!("rule.items[{at}]")
        }
        Where::ActionNum => "rule.actions".to_owned(),
        Where::ActionConf(at) | Where::Action(at) => format!("rule.actions[{at}]"),
    };
    refused(&error, &field)
}

/// The number of a port, and its rules.
fn on_port<'a>(controller: &'a mut Controller, text: &str) -> Result<(u16, &'a mut OnPort), Problem> {
    if text.is_empty() {
        return Err(Problem::invalid("port", "there is no port; name one, or give its number".into()));
    }
    let index = port(&controller.switch, text)?;
    let gone =
        || Problem::new(Code::NotFound, "port", "the port is gone; `port list` shows the ports".into());
    Ok((index, controller.manual_rules.on_port(&controller.switch, index).ok_or_else(gone)?))
}

/// The rule of a request.
fn wanted(rule: Option<v1::FlowRule>) -> Result<FlowRule, Problem> {
    let rule = rule.ok_or_else(|| Problem::invalid("rule", "there is no rule; set its domain".into()))?;
    self::rule(&rule).map_err(|problem| problem.within("rule"))
}

/// A rule that was not made by hand, or not at this port.
fn unknown(port: u16, number: u64) -> Problem {
    let message = format!("port {port} has no rule {number} made by hand; `flow list` shows them");
    Problem::new(Code::NotFound, "number", message)
}

fn validate_flow_rule(
    controller: &mut Controller,
    request: v1::ValidateFlowRuleRequest,
) -> Result<v1::ValidateFlowRuleResponse, Problem> {
    let rule = wanted(request.rule)?;
    on_port(controller, &request.port)?.1.back_end().validate(&rule).map_err(refused_rule)?;
    Ok(v1::ValidateFlowRuleResponse {})
}

fn create_flow_rule(
    controller: &mut Controller,
    request: v1::CreateFlowRuleRequest,
) -> Result<v1::CreateFlowRuleResponse, Problem> {
    let rule = wanted(request.rule)?;
    let (port, known) = on_port(controller, &request.port)?;
    let id = known.back_end().create(&rule).map_err(refused_rule)?;
    known.rules.insert(id, rule);
    Ok(v1::CreateFlowRuleResponse { port: port.into(), rule: id.0 })
}

/// Takes a rule away that is known; one that the back end has no more is gone, too.
fn destroy(known: &mut OnPort, id: RuleId, field: &str) -> Result<(), Problem> {
    match known.back_end().destroy(id) {
        Err(error) if error.cause != Cause::Gone => Err(refused(&error, field)),
        _ => {
            known.rules.remove(&id);
            Ok(())
        }
    }
}

fn destroy_flow_rules(
    controller: &mut Controller,
    request: v1::DestroyFlowRulesRequest,
) -> Result<v1::DestroyFlowRulesResponse, Problem> {
    let (port, known) = on_port(controller, &request.port)?;
    for number in &request.number {
        let id = RuleId(*number);
        if !known.rules.contains_key(&id) {
            return Err(unknown(port, *number));
        }
        destroy(known, id, "number")?;
    }
    Ok(v1::DestroyFlowRulesResponse { port: port.into(), rules: request.number.len() as u64 })
}

fn query_flow_rule(
    controller: &mut Controller,
    request: v1::QueryFlowRuleRequest,
) -> Result<v1::QueryFlowRuleResponse, Problem> {
    let (port, known) = on_port(controller, &request.port)?;
    let id = RuleId(request.number);
    if !known.rules.contains_key(&id) {
        return Err(unknown(port, request.number));
    }
    let usage = known.back_end().query(id).map_err(|error| refused(&error, "number"))?;
    Ok(v1::QueryFlowRuleResponse { rule: request.number, packets: usage.packets, bytes: usage.bytes })
}

fn list_flow_rules(
    controller: &mut Controller,
    request: v1::ListFlowRulesRequest,
) -> Result<v1::ListFlowRulesResponse, Problem> {
    let (_, known) = on_port(controller, &request.port)?;
    let rules = known.rules.iter().map(|(id, rule)| v1::ManualFlowRule {
        id: id.0,
        group: rule.attr.group,
        priority: rule.attr.priority,
        rule: rule.to_string(),
        parts: Some(message(rule)),
    });
    Ok(v1::ListFlowRulesResponse { rules: rules.collect() })
}

fn flush_flow_rules(
    controller: &mut Controller,
    request: v1::FlushFlowRulesRequest,
) -> Result<v1::FlushFlowRulesResponse, Problem> {
    let (port, known) = on_port(controller, &request.port)?;
    // One by one: other rules of the port are not ours.
    let all: Vec<RuleId> = known.rules.keys().copied().collect();
    for id in &all {
        destroy(known, *id, "port")?;
    }
    Ok(v1::FlushFlowRulesResponse { port: port.into(), rules: all.len() as u64 })
}

fn set_raw_encap(
    controller: &mut Controller,
    request: v1::SetRawEncapRequest,
) -> Result<v1::SetRawEncapResponse, Problem> {
    let index = number("index", request.index, u16::MAX)?;
    let header = header(&request.header, "header")?;
    let encaps = &mut controller.manual_rules.encaps;
    if encaps.len() >= ENCAPS && !encaps.contains_key(&index) {
        let message = format!("{ENCAPS} headers are remembered already; use the number of one of them");
        return Err(Problem::new(Code::ResourceExhausted, "index", message));
    }
    encaps.insert(index, header);
    Ok(v1::SetRawEncapResponse {})
}

fn list_raw_encaps(
    controller: &mut Controller,
    _: v1::ListRawEncapsRequest,
) -> Result<v1::ListRawEncapsResponse, Problem> {
    let headers = controller.manual_rules.encaps.iter();
    let headers = headers.map(|(index, header)| v1::RawEncapHeader {
        index: (*index).into(),
        header: header.bytes().to_vec(),
    });
    Ok(v1::ListRawEncapsResponse { headers: headers.collect() })
}
