//! A rule, and the message that says it.

use rules::{Attr, Domain, FlowRule};
use vswitch_api::v1::{self, FlowDomain};

use super::{actions, items};
use crate::api::refusal::Problem;

/// Items and actions that a rule may have: drivers take no more.
const PARTS: usize = 64;

/// The message that says a rule.
pub fn message(rule: &FlowRule) -> v1::FlowRule {
    let domain = match rule.attr.domain {
        Domain::Ingress => FlowDomain::Ingress,
        Domain::Egress => FlowDomain::Egress,
        Domain::Transfer => FlowDomain::Transfer,
    };
    let item = |item| v1::FlowItem { item: Some(items::message(item)) };
    let action = |action| v1::FlowAction { action: Some(actions::message(action)) };
    v1::FlowRule {
        group: rule.attr.group,
        priority: rule.attr.priority,
        domain: domain.into(),
        items: rule.pattern.iter().map(item).collect(),
        actions: rule.actions.iter().map(action).collect(),
    }
}

/// The rule that a message says. Fields of problems are paths within the message.
pub(super) fn rule(message: &v1::FlowRule) -> Result<FlowRule, Problem> {
    let domain = match message.domain() {
        FlowDomain::Ingress => Domain::Ingress,
        FlowDomain::Egress => Domain::Egress,
        FlowDomain::Transfer => Domain::Transfer,
        FlowDomain::Unspecified => {
            let words = "a rule is one of ingress, egress, transfer; set one of them";
            return Err(Problem::invalid("domain", words.into()));
        }
    };
    for (field, count) in [("items", message.items.len()), ("actions", message.actions.len())] {
        if count > PARTS {
            return Err(Problem::invalid(field, format!("{count} are too many; give at most {PARTS}")));
        }
    }
    let mut rule = FlowRule {
        attr: Attr { group: message.group, priority: message.priority, domain },
        pattern: Vec::with_capacity(message.items.len()),
        actions: Vec::with_capacity(message.actions.len()),
    };
    for (index, item) in message.items.iter().enumerate() {
        let empty =
            || Problem::invalid("", "there is no item; set one of its messages, such as `eth`".into());
        let item = item.item.as_ref().ok_or_else(empty).and_then(items::item);
        rule.pattern.push(item.map_err(|problem| problem.within(&format!("items[{index}]")))?);
    }
    for (index, action) in message.actions.iter().enumerate() {
        let empty =
            || Problem::invalid("", "there is no action; set one of its messages, such as `drop`".into());
        let action = action.action.as_ref().ok_or_else(empty).and_then(actions::action);
        rule.actions.push(action.map_err(|problem| problem.within(&format!("actions[{index}]")))?);
    }
    Ok(rule)
}
