//! Rules that the device does not let go: out of the store, asked for until they go.
//!
//! What such a rule matches goes on meeting it. So no rule that matches the same is made beside it, and the adjacency that a
//! gate leads to is told of: without its rules the gate leads to software.

use super::{Adjacency, RuleStore};
use rules::{BackEnd, Cause, FlowError, FlowRule, RuleId, Usage, Where};

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

/// All of them, in the order in which they were to go: those that lead to others first.
#[derive(Default)]
pub(super) struct Leftovers {
    rules: Vec<Leftover>,
    /// How many there have been, and were not told of.
    kept: u64,
}

impl Leftover {
    fn matches(&self, rule: &FlowRule) -> bool {
        self.rule.attr == rule.attr && self.rule.pattern == rule.pattern
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

    /// Has the back end take a rule away: what it had seen, and the device's words when it stays. One that is gone already
    /// cannot tell any more.
    pub(super) fn destroy<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        id: RuleId,
        rule: &FlowRule,
    ) -> (Usage, Option<FlowError>) {
        match back_end.destroy(id) {
            Ok(seen) => (seen, None),
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
        let gates = self.rules.iter_mut().filter(|left| left.matches(gate));
        gates.for_each(|left| left.way = Some(adjacency));
    }

    /// Asks again for the rules whose turn it is, or for all.
    fn ask<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64, all: bool) {
        let mut asked = 0;
        self.rules.retain_mut(|left| {
            if !all && (now_ns < left.not_before_ns || asked == AT_ONCE) {
                return true;
            }
            asked += 1;
            let Some(error) = back_end.destroy(left.id).err().filter(stays) else { return false };
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
            if !left.matches(rule) {
                return true;
            }
            let error = back_end.destroy(left.id).err().filter(stays);
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
    /// Asks again for the rules that the back end did not let go: those whose turn it is, or all.
    pub fn ask_again<B: BackEnd>(&mut self, back_end: &mut B, all: bool) {
        self.leftovers.ask(back_end, self.pace.now_ns, all);
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
