//! Rules made wrong: what the switch gives a NIC, each with one thing changed.

use std::collections::BTreeSet;

use rules::items::ipv6;
use rules::{Action, FlowRule, Item, ItemKind};

use crate::chains::Chain;

/// Rules of the chains, one of each form, and each of them with actions swapped, doubled or left out, with items doubled or
/// left out, with what the switch never uses added at each place, and with both addresses of IPv6 in one match.
pub fn mutants(chains: &[Chain]) -> Vec<FlowRule> {
    let mut forms = BTreeSet::new();
    let mut mutants = Vec::new();
    for rule in chains.iter().flat_map(|chain| &chain.rules) {
        if forms.insert(form(rule)) {
            mutants.push(rule.clone());
            of_actions(rule, &mut mutants);
            of_items(rule, &mut mutants);
        }
    }
    mutants
}

/// Rules of the chains, one of each sequence of items, each with one field matched otherwise: not at all, as a whole, in half,
/// between two values.
pub fn fields(chains: &[Chain]) -> Vec<FlowRule> {
    let mut sequences = BTreeSet::new();
    let mut mutants = Vec::new();
    for rule in chains.iter().flat_map(|chain| &chain.rules) {
        let kinds: Vec<ItemKind> = rule.pattern.iter().map(Item::kind).collect();
        if !sequences.insert(kinds.clone()) {
            continue;
        }
        for (at, field) in kinds
            .iter()
            .enumerate()
            .flat_map(|(at, kind)| kind.fields().iter().map(move |field| (at, *field)))
        {
            let item = rule.pattern[at];
            let ones = field.ones();
            // A port that is none is refused for that.
            let value =
                if matches!(field.kind, ItemKind::RepresentedPort | ItemKind::PortId) { 11 } else { ones };
            for changed in [
                item.masked(field, 0u8, 0),
                item.is(field, 0u8),
                item.is(field, value),
                item.masked(field, value, ones & !(ones >> ones.count_ones().div_ceil(2))),
                item.between(field, 0u8, ones),
            ] {
                let mut pattern = rule.pattern.clone();
                pattern[at] = changed;
                mutants.push(FlowRule { pattern, ..rule.clone() });
            }
        }
    }
    mutants
}

/// Kinds and masks of items, kinds of actions: rules that differ in values only are of one form.
fn form(rule: &FlowRule) -> String {
    let items = rule.pattern.iter().map(|item| format!("{:?} {:x?}", item.kind(), item.mask()));
    let actions = rule.actions.iter().map(|action| action.name().to_owned());
    items.chain(actions).collect::<Vec<_>>().join(" / ")
}

fn of_actions(rule: &FlowRule, mutants: &mut Vec<FlowRule>) {
    let mut with = |actions: Vec<Action>| mutants.push(FlowRule { actions, ..rule.clone() });
    for at in 0..rule.actions.len() {
        let mut actions = rule.actions.clone();
        if at > 0 {
            actions.swap(at - 1, at);
            with(actions.clone());
            actions.swap(at - 1, at);
        }
        actions.insert(at, rule.actions[at]);
        with(actions.clone());
        actions.drain(at..at + 2);
        with(actions);
        for more in [
            Action::Meter { mtr_id: 1 },
            Action::Count,
            Action::Age { timeout: 30 },
            Action::VxlanDecap,
            Action::set_tag(1, 7),
            Action::Mark { id: 1 },
            Action::Drop,
            Action::PortId { id: 11 },
            Action::PortRepresentor { port: 11 },
            Action::Queue { index: 0 },
        ] {
            let mut actions = rule.actions.clone();
            actions.insert(at, more);
            with(actions);
        }
    }
}

/// The rule with the source of IPv6 beside the destination, as it would be if it were not split; `None` without a destination.
pub fn unsplit(rule: &FlowRule) -> Option<FlowRule> {
    let mut rule = rule.clone();
    let has_destination = |item: &&mut Item| item.kind() == ItemKind::Ipv6 && item.field(ipv6::DST).1 != 0;
    let item = rule.pattern.iter_mut().find(has_destination)?;
    *item = item.is(ipv6::SRC, 0xfd00u128 << 112 | 1);
    Some(rule)
}

fn of_items(rule: &FlowRule, mutants: &mut Vec<FlowRule>) {
    mutants.extend(unsplit(rule));
    let mut with = |pattern: Vec<Item>| mutants.push(FlowRule { pattern, ..rule.clone() });
    for at in 0..rule.pattern.len() {
        let mut pattern = rule.pattern.clone();
        pattern.insert(at, rule.pattern[at]);
        with(pattern.clone());
        pattern.drain(at..at + 2);
        with(pattern);
        for kind in ItemKind::ALL
            .iter()
            .filter(|kind| !matches!(kind, ItemKind::IbBth | ItemKind::Tag | ItemKind::RepresentedPort))
        {
            let mut pattern = rule.pattern.clone();
            pattern.insert(at, Item::any(*kind));
            with(pattern);
        }
    }
}
