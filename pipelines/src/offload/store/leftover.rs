//! Rules that the device does not let go: out of the store, asked for until they go.
//!
//! What such a rule matches goes on meeting it. So no rule that matches the same is made beside it, and the adjacency that a
//! gate leads to is told of: without its rules the gate leads to software.

use std::collections::HashSet;

use super::{Adjacency, RuleState, RuleStore, hash_of};
use crate::offload::translate::{TAG_ADJACENCY, tagged};
use rules::items::tag;
use rules::{Action, BackEnd, Cause, FlowError, FlowRule, Modify, Removal, RuleId, Usage, Where};

/// A rule that the device has not let go so often waits for a while.
const REFUSALS: u32 = 8;
/// So many of them are asked for at a time at most, for the device may take its time for each.
const AT_ONCE: usize = 64;
/// For so long.
const RETRY_NS: u64 = 500_000_000;

/// A rule that the device did not let go.
struct Leftover {
    id: RuleId,
    rule: FlowRule,
    /// How often it was asked for in vain.
    refusals: u32,
    /// Not again before.
    not_before_ns: u64,
    /// Of a gate: where it leads, until that was told of.
    way: Option<Adjacency>,
    /// The device's.
    words: String,
}

/// A rule whose removal is under way: the device has not said that it lets it go.
struct Leaving {
    id: RuleId,
    rule: FlowRule,
    /// Of a gate: where it leads.
    way: Option<Adjacency>,
}

/// All of them, in the order in which they were to go: those that lead to others first.
#[derive(Default)]
pub(super) struct Leftovers {
    rules: Vec<Leftover>,
    /// Those that may become some.
    leaving: Vec<Leaving>,
    /// How often rules were asked for first.
    asked: u64,
    /// How many there have been, and were not told of.
    kept: u64,
}

fn matches(one: &FlowRule, other: &FlowRule) -> bool {
    one.attr == other.attr && one.pattern == other.pattern
}

/// The number of the adjacency that a gate leads to.
fn leads_to(rule: &FlowRule) -> Option<u32> {
    rule.actions.iter().find_map(|action| match action {
        Action::ModifyField(Modify::Tag { index: TAG_ADJACENCY, data }) => Some(*data),
        _ => None,
    })
}

/// The number of the adjacency that a rule is of.
fn adjacency_of(rule: &FlowRule) -> Option<u32> {
    let numbers = rule.pattern.iter().filter(|item| item.kind() == tag::DATA.kind);
    let mut numbers = numbers.filter_map(|item| Some((item, u32::try_from(item.field(tag::DATA).0).ok()?)));
    numbers.find(|(item, number)| **item == tagged(TAG_ADJACENCY, *number)).map(|(_, number)| number)
}

/// Asks once more for a rule that the device did not let go: its words when it stays. Where the back end asks by itself, what it heard last.
fn stays_again<B: BackEnd>(back_end: &mut B, id: RuleId) -> Option<FlowError> {
    match back_end.removal(id) {
        Removal::Done => back_end.destroy(id).err().filter(stays),
        Removal::UnderWay => Some(FlowError::new(Cause::Again, Where::Handle, "the device has not answered")),
        Removal::Refused(error) => Some(error),
    }
}

/// True for an error with which a rule is still there.
pub(super) fn stays(error: &FlowError) -> bool {
    !matches!(error.cause, Cause::Gone | Cause::NoDevice)
}

impl Leftovers {
    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Gates among them whose adjacency is left, too: what they match goes on, and not to software.
    fn forwarding(&self) -> usize {
        let gates: Vec<u32> = self.rules.iter().filter_map(|left| leads_to(&left.rule)).collect();
        if gates.is_empty() {
            return 0;
        }
        let open: HashSet<u32> = self.rules.iter().filter_map(|left| adjacency_of(&left.rule)).collect();
        gates.into_iter().filter(|number| open.contains(number)).count()
    }

    /// Has the back end take a rule away: what it had seen, and the device's words when it stays. One that is gone already
    /// cannot tell any more.
    pub(super) fn destroy<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        id: RuleId,
        rule: &FlowRule,
    ) -> (Usage, Option<FlowError>) {
        self.asked += 1;
        match back_end.destroy(id) {
            Ok(seen) => {
                if back_end.removal(id) == Removal::UnderWay {
                    self.leaving.push(Leaving { id, rule: rule.clone(), way: None });
                }
                (seen, None)
            }
            Err(error) if stays(&error) => {
                if self.rules.iter().all(|left| left.id != id) {
                    let (rule, words) = (rule.clone(), error.to_string());
                    self.rules.push(Leftover { id, rule, refusals: 1, not_before_ns: 0, way: None, words });
                    self.kept += 1;
                }
                (back_end.query(id).unwrap_or_default(), Some(error))
            }
            Err(_) => (Usage::default(), None),
        }
    }

    /// The rules that match what this gate does lead to this adjacency.
    pub(super) fn lead(&mut self, gate: &FlowRule, adjacency: Adjacency) {
        let left = self.rules.iter_mut().map(|left| (&left.rule, &mut left.way));
        let leaving = self.leaving.iter_mut().map(|leaving| (&leaving.rule, &mut leaving.way));
        let gates = left.chain(leaving).filter(|(rule, _)| matches(rule, gate));
        gates.for_each(|(_, way)| *way = Some(adjacency));
    }

    /// Takes in which of the rules whose removal was under way the device does not let go.
    fn hear<B: BackEnd>(&mut self, back_end: &mut B) -> Vec<(FlowRule, FlowError)> {
        let mut refused = Vec::new();
        for Leaving { id, rule, way } in std::mem::take(&mut self.leaving) {
            match back_end.removal(id) {
                Removal::Done => {}
                Removal::UnderWay => self.leaving.push(Leaving { id, rule, way }),
                Removal::Refused(error) => {
                    let words = error.to_string();
                    refused.push((rule.clone(), error));
                    self.rules.push(Leftover { id, rule, refusals: 1, not_before_ns: 0, way, words });
                    self.kept += 1;
                }
            }
        }
        refused
    }

    /// Asks again for the rules whose turn it is, or for all.
    fn ask<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64, all: bool) {
        let mut asked = 0;
        self.rules.retain_mut(|left| {
            if !all && (now_ns < left.not_before_ns || asked == AT_ONCE) {
                return true;
            }
            asked += 1;
            let Some(error) = stays_again(back_end, left.id) else { return false };
            left.words = error.to_string();
            left.refusals = left.refusals.saturating_add(1);
            if left.refusals >= REFUSALS {
                left.not_before_ns = now_ns.saturating_add(RETRY_NS);
            }
            true
        });
    }

    /// Makes way for a rule: of those that match the same none is left.
    ///
    /// # Errors
    /// The device's words for the one that it does not let go.
    pub(super) fn make_way<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        rule: &FlowRule,
    ) -> Result<(), FlowError> {
        let mut refused = None;
        self.rules.retain(|left| {
            if !matches(&left.rule, rule) {
                return true;
            }
            let error = stays_again(back_end, left.id);
            let is_left = error.is_some();
            refused = refused.take().or(error);
            is_left
        });
        match refused {
            None => Ok(()),
            Some(error) => {
                let message = format!("the device keeps an older rule that matches the same: {error}");
                Err(FlowError::new(Cause::Exists, Where::Handle, message))
            }
        }
    }
}

impl RuleStore {
    /// Takes in what the device did not let go, and asks again for that: for the rules whose turn it is, or for all.
    pub fn ask_again<B: BackEnd>(&mut self, back_end: &mut B, all: bool) {
        for (rule, error) in self.leftovers.hear(back_end) {
            // Which of the two packets meet nobody can tell.
            let beside = self.find(hash_of(&rule), &rule).and_then(|number| self.rules.at_mut(number));
            if let Some(shared) = beside {
                shared.state = RuleState::Failed(error);
                self.changes += 1;
                self.has_failed = true;
            }
        }
        self.leftovers.ask(back_end, self.pace.now_ns, all);
    }

    /// Rules that the back end was asked to let go, so far.
    pub fn removals(&self) -> u64 {
        self.leftovers.asked
    }

    /// Rules whose removal is under way.
    pub fn leaving(&self) -> usize {
        self.leftovers.leaving.len()
    }

    /// Gates that the back end does not let go while it keeps where they lead: what they match is forwarded.
    pub fn forwarding(&self) -> usize {
        self.leftovers.forwarding()
    }

    /// The rules that the back end does not let go: how many, and its words for one of them.
    pub fn kept(&self) -> Option<(usize, &str)> {
        self.leftovers.rules.last().map(|left| (self.leftovers.len(), left.words.as_str()))
    }

    /// How many more there have been since the last call.
    pub fn newly_kept(&mut self) -> u64 {
        std::mem::take(&mut self.leftovers.kept)
    }

    /// Adjacencies that gates among them lead to, each told once.
    pub fn ways_kept(&mut self) -> Vec<Adjacency> {
        self.leftovers.rules.iter_mut().filter_map(|left| left.way.take()).collect()
    }
}
