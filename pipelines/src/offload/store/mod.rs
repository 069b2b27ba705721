//! The rules that a back end holds for us: which chains share which, and which are in force.
//!
//! Rules with the same attributes and pattern are one rule. A chain is two [bundles](Bundle), which many chains may
//! share, and rules of its own. The last of those is its gate, made when all others are in force or when its owner says
//! so, and first to go. A rule that does something else from now on takes over when it is in force. So no packet is led
//! to where nothing is known of it.

mod chain;
mod leftover;
mod meters;

pub use chain::{InstalledChain, Update};

use std::cell::Cell;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use super::counter::{DeviceCounter, Pace};
use super::few::Few;
use super::hasher::Map;
use super::slots::Slots;
use super::translate::Adjacency;
use crate::flow_key::mix;
use leftover::{Leftovers, stays};
use meters::{Away, SharedMeter, of_meter, turns_away};
use rules::{BackEnd, Cause, FlowError, FlowRule, Guard, Meter, RuleId, Usage};

/// Number of a rule of ours, used again when the rule is gone.
type SharedNumber = u32;

/// Rules that chains share, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundle(u32);

/// The bundles that a chain needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundles {
    /// Rules of its adjacency: where packets leave.
    pub adjacencies: Bundle,
    /// Rules between the root and the adjacency.
    pub path: Bundle,
}

/// A rule in use.
struct SharedRule {
    rule: FlowRule,
    hash: u64,
    id: RuleId,
    state: RuleState,
    /// Bundles and chains that need it.
    users: u32,
    /// The rule in force until this one is.
    old: Option<RuleId>,
    /// What rules saw that this one took the place of.
    before: Usage,
}

impl SharedRule {
    /// True when it is this rule, and has not failed.
    fn does(&self, rule: &FlowRule) -> bool {
        self.rule == *rule && !matches!(self.state, RuleState::Failed(_))
    }
}

/// Rules of a bundle.
#[derive(Default)]
struct BundledRules {
    numbers: Vec<SharedNumber>,
    meter: Option<u32>,
    /// Chains that need it, and whoever works with it.
    users: u32,
    /// The change after which all of its rules were seen in force.
    settled: Cell<u64>,
}

/// What software would have counted.
fn inner(usage: Usage, tunnel_len: usize) -> Usage {
    let headers = usage.packets.saturating_mul(tunnel_len as u64);
    Usage { bytes: usage.bytes.saturating_sub(headers), ..usage }
}

/// How far a rule or a chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleState {
    /// The back end has taken it.
    Waiting,
    /// The device has put it into force: packets meet it.
    InForce,
    /// The back end took it, and it came to nothing.
    Failed(FlowError),
}

/// All rules of a back end that are ours.
#[derive(Default)]
pub struct RuleStore {
    rules: Slots<SharedRule>,
    bundles: Slots<BundledRules>,
    /// Rules by the hash of what they match.
    by_match: Map<u64, Few<SharedNumber>>,
    /// Rules that are not in force yet, in the order in which they were made; and some that are gone since.
    waiting: VecDeque<(RuleId, SharedNumber)>,
    /// Counts up with every rule that is not in force any more and still there.
    changes: u64,
    /// Chains that were prepared and are not open.
    gates_due: usize,
    meters: Map<u32, SharedMeter>,
    /// Rules that count what meters turn away.
    away: Map<SharedNumber, Away>,
    /// What such rules saw that are gone.
    last_away: Vec<(u32, Usage)>,
    /// Rounds in which all of them were asked.
    away_round: u64,
    leftovers: Leftovers,
    /// The rule that the audit under way asks for next.
    next_audited: SharedNumber,
    /// Some rule has failed since the last [poll](Self::poll).
    has_failed: bool,
    /// The time, and what counters are held against; as they were told last.
    pace: Pace,
}

/// Hash of what a rule is known by; masks are left to the comparison.
fn hash_of(rule: &FlowRule) -> u64 {
    let step = |hash: u64, word: u64| mix(hash ^ 0x9e37_79b9_7f4a_7c15, word ^ 0xa076_1d64_78bd_642f);
    let place = u64::from(rule.attr.group) << 32 | u64::from(rule.attr.priority);
    rule.pattern.iter().fold(step(0, place), |hash, item| {
        let (words, rest) = item.spec().as_chunks::<8>();
        let rest = rest.iter().fold(item.kind() as u64, |word, byte| word << 8 | u64::from(*byte));
        words.iter().map(|word| u64::from_le_bytes(*word)).chain([rest]).fold(hash, step)
    })
}

fn create<B: BackEnd>(back_end: &mut B, rule: &FlowRule, guard: Option<&Guard>) -> Result<RuleId, FlowError> {
    match guard {
        Some(guard) => back_end.create_gate(rule, guard),
        None => back_end.create(rule),
    }
}

fn add(a: Usage, b: Usage) -> Usage {
    Usage { packets: a.packets.saturating_add(b.packets), bytes: a.bytes.saturating_add(b.bytes) }
}

impl RuleStore {
    /// Tells the time, and what counters are held against.
    pub(in crate::offload) fn advance(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Rules that the back end holds for us, those that it does not let go among them.
    pub fn len(&self) -> usize {
        self.rules.len() + self.leftovers.len()
    }

    /// True without any rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.bundles.len() == 0
    }

    /// Bundles that a chain or a change under way holds.
    pub fn bundles(&self) -> usize {
        self.bundles.len()
    }

    /// Gates that are still to be made.
    pub fn gates_due(&self) -> usize {
        self.gates_due
    }

    /// Those of these rules that would have to be made.
    pub fn missing<'a>(&self, rules: impl IntoIterator<Item = &'a FlowRule>) -> usize {
        rules.into_iter().filter(|rule| self.find(hash_of(rule), rule).is_none()).count()
    }

    /// True when this rule is there as it is, or on its way.
    pub fn has(&self, rule: &FlowRule) -> bool {
        let known = self.find(hash_of(rule), rule).and_then(|number| self.rules.at(number));
        known.is_some_and(|known| known.does(rule))
    }

    fn find(&self, hash: u64, rule: &FlowRule) -> Option<SharedNumber> {
        let same = |number: &&SharedNumber| {
            self.rules
                .at(**number)
                .is_some_and(|known| known.rule.attr == rule.attr && known.rule.pattern == rule.pattern)
        };
        self.by_match.get(&hash)?.as_slice().iter().find(same).copied()
    }

    /// A bundle of rules, on packets with so many bytes of a tunnel, and whether any of them was there and does
    /// something else from now on. To be [dropped](Self::drop_bundle). A meter that is in use stays as it is.
    ///
    /// # Errors
    /// The back end's; nothing of the bundle is left then.
    pub fn bundle<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        rules: Vec<FlowRule>,
        meter: Option<(u32, Meter)>,
        tunnel_len: usize,
    ) -> Result<(Bundle, bool), FlowError> {
        let mut made =
            BundledRules { numbers: Vec::with_capacity(rules.len()), users: 1, ..BundledRules::default() };
        if let Some((id, meter)) = meter {
            match self.meters.entry(id) {
                Entry::Occupied(mut known) => known.get_mut().users += 1,
                Entry::Vacant(place) => {
                    back_end.set_meter(id, Some(meter)).map_err(of_meter)?;
                    place.insert(SharedMeter { rates: Some(meter), users: 1 });
                }
            }
            made.meter = Some(id);
        }
        let mut changed = false;
        for rule in rules {
            let away = made.meter.filter(|_| turns_away(&rule));
            match self.take(back_end, rule, None) {
                Ok((number, is_changed)) => {
                    if let Some(meter) = away {
                        let told = DeviceCounter::begin(self.pace.now_ns);
                        let away = Away { meter, tunnel_len, told, round: self.away_round };
                        self.away.entry(number).or_insert(away);
                    }
                    made.numbers.push(number);
                    changed |= is_changed;
                }
                Err((error, _)) => {
                    self.undo(back_end, &made);
                    return Err(error);
                }
            }
        }
        Ok((Bundle(self.bundles.add(made)), changed))
    }

    /// Lets go of a bundle; its rules are removed with its last user, in the order opposite to that of making.
    pub fn drop_bundle<B: BackEnd>(&mut self, back_end: &mut B, bundle: Bundle) {
        let Some(rules) = self.bundles.at_mut(bundle.0) else { return };
        rules.users -= 1;
        if rules.users == 0
            && let Some(rules) = self.bundles.remove(bundle.0)
        {
            self.undo(back_end, &rules);
        }
    }

    fn undo<B: BackEnd>(&mut self, back_end: &mut B, rules: &BundledRules) {
        for number in rules.numbers.iter().rev() {
            self.leave(back_end, *number, None);
        }
        if let Some(id) = rules.meter {
            self.leave_meter(back_end, id);
        }
    }

    /// The number of a rule, and whether it was there and does something else from now on.
    fn take<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        rule: FlowRule,
        guard: Option<&Guard>,
    ) -> Result<(SharedNumber, bool), (FlowError, FlowRule)> {
        let hash = hash_of(&rule);
        let Some(number) = self.find(hash, &rule) else {
            if let Err(error) = self.leftovers.make_way(back_end, &rule) {
                return Err((error, rule));
            }
            let id = match create(back_end, &rule, guard) {
                Ok(id) => id,
                Err(error) => return Err((error, rule)),
            };
            let (state, before) = (RuleState::Waiting, Usage::default());
            let number = self.rules.add(SharedRule { rule, hash, id, state, users: 1, old: None, before });
            match self.by_match.entry(hash) {
                Entry::Vacant(place) => drop(place.insert(Few::One(number))),
                Entry::Occupied(mut same) => same.get_mut().insert(number, |_| false),
            }
            self.waiting.push_back((id, number));
            return Ok((number, false));
        };
        let changed = self.replace(back_end, number, rule, guard)?;
        if let Some(shared) = self.rules.at_mut(number) {
            shared.users += 1;
        }
        Ok((number, changed))
    }

    /// Has a rule do what another one with the same pattern says; nothing, and false, when it does that already.
    fn replace<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        number: SharedNumber,
        rule: FlowRule,
        guard: Option<&Guard>,
    ) -> Result<bool, (FlowError, FlowRule)> {
        let Self { rules, waiting, changes, leftovers, has_failed, .. } = self;
        let Some(shared) = rules.at_mut(number) else { return Ok(false) };
        if shared.rule.actions == rule.actions && !matches!(shared.state, RuleState::Failed(_)) {
            return Ok(false);
        }
        // What is left of one that has failed goes first.
        if let RuleState::Failed(_) = shared.state {
            shared.before = add(shared.before, leftovers.destroy(back_end, shared.id, &rule).0);
        }
        if let Err(error) = leftovers.make_way(back_end, &rule) {
            return Err((error, rule));
        }
        // Where packets meet a rule already, none is overtaken.
        let guard = guard.filter(|_| shared.state != RuleState::InForce && shared.old.is_none());
        let mut made = create(back_end, &rule, guard);
        if made.as_ref().is_err_and(|error| error.cause == Cause::Exists) {
            // A device that does not take two rules that match the same: packets go to software in between.
            match back_end.destroy(shared.id) {
                Err(error) if stays(&error) => return Err((error, rule)),
                seen => shared.before = add(shared.before, seen.unwrap_or_default()),
            }
            made = create(back_end, &rule, guard);
        }
        let id = match made {
            Ok(id) => id,
            Err(error) => return Err((error, rule)),
        };
        waiting.push_back((id, number));
        *changes += 1;
        let last = std::mem::replace(&mut shared.id, id);
        match std::mem::replace(&mut shared.state, RuleState::Waiting) {
            RuleState::InForce => shared.old = Some(last),
            // It was never in force: what it would have replaced still is.
            RuleState::Waiting => {
                let (seen, kept) = leftovers.destroy(back_end, last, &rule);
                shared.before = add(shared.before, seen);
                // Which of the two packets will meet nobody can tell.
                if let Some(error) = kept {
                    shared.state = RuleState::Failed(error);
                    *has_failed = true;
                }
            }
            RuleState::Failed(_) => {}
        }
        shared.rule = rule;
        Ok(true)
    }

    /// A chain or a bundle does without a rule; without any that needs it, it goes. What it had seen then. Where the gate of a
    /// chain leads is remembered while the back end does not let it go.
    fn leave<B: BackEnd>(&mut self, back_end: &mut B, number: SharedNumber, to: Option<Adjacency>) -> Usage {
        let Some(shared) = self.rules.at_mut(number) else { return Usage::default() };
        shared.users -= 1;
        if shared.users > 0 {
            return Usage::default();
        }
        let Self { rules, leftovers, .. } = self;
        let Some(shared) = rules.remove(number) else { return Usage::default() };
        if let Entry::Occupied(mut same) = self.by_match.entry(shared.hash)
            && same.get_mut().remove(|other| *other == number)
        {
            same.remove();
        }
        let ids = [shared.old, Some(shared.id)];
        let seen = ids.into_iter().flatten().map(|id| leftovers.destroy(back_end, id, &shared.rule).0);
        let seen = seen.fold(shared.before, add);
        if let Some(to) = to {
            leftovers.lead(&shared.rule, to);
        }
        if let Some(mut away) = self.away.remove(&number) {
            self.last_away.push((away.meter, away.more(seen, self.pace)));
        }
        seen
    }

    fn waits(&self, id: RuleId, number: SharedNumber) -> bool {
        self.rules.at(number).is_some_and(|shared| shared.id == id && shared.state == RuleState::Waiting)
    }

    /// The rule that waits under an id; nearly always the first. Those that wait no more are forgotten on the adjacency.
    fn waited(&mut self, id: RuleId) -> Option<SharedNumber> {
        let mut at = 0;
        loop {
            let (first, number) = *self.waiting.get(at)?;
            let waits = self.waits(first, number);
            if waits && first != id {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            if waits {
                return Some(number);
            }
        }
    }

    /// Asks the back end which rules are in force and which have failed, and again for those that it did not let go. True
    /// when any has failed.
    pub fn poll<B: BackEnd>(&mut self, back_end: &mut B) -> bool {
        self.ask_again(back_end, false);
        let mut failed = std::mem::take(&mut self.has_failed);
        let mut results = Vec::new();
        back_end.completed(&mut results);
        for (id, result) in results {
            let Some(number) = self.waited(id) else { continue };
            let Some(shared) = self.rules.at_mut(number) else { continue };
            failed |= result.is_err();
            shared.state = match result {
                Ok(()) => RuleState::InForce,
                Err(error) => RuleState::Failed(error),
            };
            if let Some(old) = shared.old.take() {
                let (seen, kept) = self.leftovers.destroy(back_end, old, &shared.rule);
                shared.before = add(shared.before, seen);
                // Which of the two packets meet nobody can tell.
                if let Some(error) = kept {
                    shared.state = RuleState::Failed(error);
                    self.changes += 1;
                    failed = true;
                }
            }
        }
        while self.waiting.front().is_some_and(|(id, number)| !self.waits(*id, *number)) {
            self.waiting.pop_front();
        }
        failed
    }

    /// Asks the back end for every rule; those that it says are gone have failed, with [`Cause::Gone`]. How many those
    /// were. Gates of chains that need them are to be [closed](Self::close) before they are made again: packets that
    /// met half a chain are in software.
    pub fn audit<B: BackEnd>(&mut self, back_end: &mut B) -> usize {
        self.begin_audit();
        self.audit_until(back_end, || false).0
    }

    /// The next rule that an audit asks for is the first.
    pub fn begin_audit(&mut self) {
        self.next_audited = 0;
    }

    /// Goes on with an [audit](Self::audit) until `is_over` says so, and whether it is through.
    pub fn audit_until<B: BackEnd>(&mut self, back_end: &mut B, is_over: impl Fn() -> bool) -> (usize, bool) {
        let mut lost = 0;
        let first = std::mem::take(&mut self.next_audited);
        for number in first..self.rules.end() {
            let Some(shared) = self.rules.at_mut(number) else { continue };
            let (RuleState::InForce | RuleState::Waiting) = shared.state else { continue };
            if let Err(error) = back_end.query(shared.id)
                && error.cause == Cause::Gone
            {
                shared.state = RuleState::Failed(error);
                self.changes += 1;
                lost += 1;
            }
            if is_over() {
                self.next_audited = number + 1;
                return (lost, false);
            }
        }
        (lost, true)
    }

    /// Makes rules again that were lost. Of one whose counter alone the device has lost, the rest goes before.
    ///
    /// # Errors
    /// The back end's, when it does not take one.
    pub fn repair<B: BackEnd>(&mut self, back_end: &mut B) -> Result<(), FlowError> {
        let Self { rules, waiting, leftovers, has_failed, .. } = self;
        for (number, shared) in rules.iter_mut() {
            if !matches!(&shared.state, RuleState::Failed(error) if error.cause == Cause::Gone) {
                continue;
            }
            if let (_, Some(error)) = leftovers.destroy(back_end, shared.id, &shared.rule) {
                shared.state = RuleState::Failed(error);
                *has_failed = true;
                continue;
            }
            shared.id = back_end.create(&shared.rule)?;
            shared.state = RuleState::Waiting;
            waiting.push_back((shared.id, number));
        }
        Ok(())
    }
}
