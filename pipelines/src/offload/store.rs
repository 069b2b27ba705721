//! The rules that a back end holds for us: which chains share which, and which are in force.
//!
//! Rules with the same attributes and pattern are one rule. The last of a chain is its gate, made when all others are
//! in force or when its owner says so, and first to go. A rule that does something else from now on takes over when it
//! is in force. So no packet is led to where nothing is known of it.

use std::collections::HashMap;

use super::translate::{Chain, Way};
use super::{BackEnd, Cause, FlowError, FlowRule, Guard, Meter, RuleId, Stamp, Usage, Where};
use crate::flow_key::mix;
use crate::qos::Leaf;

/// A rule in use, by number.
type Number = u32;

/// A rule in use.
struct Shared {
    rule: FlowRule,
    id: RuleId,
    state: State,
    /// Chains that need it.
    users: u32,
    /// The rule in force until this one is.
    old: Option<RuleId>,
    /// What rules saw that this one took the place of.
    before: Usage,
}

/// How far a rule or a chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The back end has taken it.
    Waiting,
    /// Packets meet it.
    InForce,
    /// The back end took it, and it came to nothing.
    Failed(FlowError),
}

/// A chain that was installed. To be given back to [`Store::remove`].
#[derive(Debug)]
pub struct Installed {
    rules: Vec<Number>,
    /// The last rule, while it is not made.
    gate: Option<FlowRule>,
    tunnel_len: usize,
    meter: Option<u32>,
    flow: u64,
    /// Who pays for its packets.
    pub leaf: Option<Leaf>,
    /// Its way.
    pub way: Way,
}

impl Installed {
    /// What software would have counted.
    fn inner(&self, usage: Usage) -> Usage {
        Usage { bytes: usage.bytes.saturating_sub(usage.packets * self.tunnel_len as u64), ..usage }
    }
}

/// All rules of a back end that are ours.
#[derive(Default)]
pub struct Store {
    rules: Vec<Option<Shared>>,
    free: Vec<Number>,
    /// Rules by the hash of what they match.
    by_match: HashMap<u64, Vec<Number>>,
    /// Rules that are not in force yet.
    waiting: HashMap<RuleId, Number>,
    /// Chains that were prepared and are not open.
    gates_due: usize,
    /// Meters, and the chains that need each.
    meters: HashMap<u32, (Meter, u32)>,
}

/// What became of a chain that was translated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// It is as it was.
    Same,
    /// Some of its rules do something else from now on.
    Changed,
    /// Its rules match other packets: it has to be installed anew.
    Other,
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
    Usage { packets: a.packets + b.packets, bytes: a.bytes + b.bytes }
}

impl Store {
    /// Rules in use.
    pub fn len(&self) -> usize {
        self.rules.len() - self.free.len()
    }

    /// True without any rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gates that are still to be made.
    pub fn gates_due(&self) -> usize {
        self.gates_due
    }

    fn at(&self, number: Number) -> Option<&Shared> {
        self.rules.get(number as usize)?.as_ref()
    }

    fn at_mut(&mut self, number: Number) -> Option<&mut Shared> {
        self.rules.get_mut(number as usize)?.as_mut()
    }

    /// Rules of the chain that would have to be made: those that no other chain has.
    pub fn missing(&self, chain: &Chain) -> usize {
        chain.rules.iter().filter(|rule| self.find(hash_of(rule), rule).is_none()).count()
    }

    fn find(&self, hash: u64, rule: &FlowRule) -> Option<Number> {
        let same = |number: &&Number| {
            self.at(**number)
                .is_some_and(|known| known.rule.attr == rule.attr && known.rule.pattern == rule.pattern)
        };
        self.by_match.get(&hash)?.iter().find(same).copied()
    }

    /// Makes all rules of a chain. The back end puts them into force in order.
    ///
    /// A chain that takes the place of another is installed before that one is removed: what both need stays.
    ///
    /// # Errors
    /// The back end's; nothing of the chain is left then.
    pub fn install<B: BackEnd>(&mut self, back_end: &mut B, chain: Chain) -> Result<Installed, FlowError> {
        let mut installed = self.prepare(back_end, chain)?;
        match self.open(back_end, &mut installed, None) {
            Ok(()) => Ok(installed),
            Err(error) => {
                self.remove(back_end, installed);
                Err(error)
            }
        }
    }

    /// Makes the rules of a chain but for its gate: those that are not there yet, and those that do something else now.
    ///
    /// # Errors
    /// The back end's; nothing of the chain is left then.
    pub fn prepare<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        mut chain: Chain,
    ) -> Result<Installed, FlowError> {
        let mut installed = Installed {
            rules: Vec::with_capacity(chain.rules.len()),
            gate: chain.rules.pop(),
            tunnel_len: chain.tunnel_len,
            meter: None,
            flow: chain.flow,
            leaf: chain.leaf,
            way: chain.way,
        };
        if let Some((id, meter)) = chain.meter {
            back_end.set_meter(id, Some(meter))?;
            let (last, users) = self.meters.entry(id).or_insert((meter, 0));
            (*last, *users) = (meter, *users + 1);
            installed.meter = Some(id);
        }
        self.gates_due += usize::from(installed.gate.is_some());
        for rule in chain.rules {
            match self.take(back_end, rule, None) {
                Ok(number) => installed.rules.push(number),
                Err(error) => {
                    self.remove(back_end, installed);
                    return Err(error);
                }
            }
        }
        Ok(installed)
    }

    /// Makes the gate of a chain: packets may come. With a stamp only if none of its packets came to software since:
    /// else the gate fails with [`Cause::Again`], and can be [closed](Self::close) and made anew.
    ///
    /// # Errors
    /// The back end's; the gate can be made later.
    pub fn open<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        installed: &mut Installed,
        stamp: Option<Stamp>,
    ) -> Result<(), FlowError> {
        let guard = stamp.map(|stamp| Guard { flow: installed.flow, stamp });
        if let Some(gate) = installed.gate.take() {
            match self.take(back_end, gate.clone(), guard.as_ref()) {
                Ok(number) => {
                    installed.rules.push(number);
                    self.gates_due -= 1;
                }
                Err(error) => {
                    installed.gate = Some(gate);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the gate of a chain away, as it was before [`open`](Self::open). What it had seen, as software would have
    /// counted it.
    pub fn close<B: BackEnd>(&mut self, back_end: &mut B, installed: &mut Installed) -> Usage {
        if installed.gate.is_some() {
            return Usage::default();
        }
        let Some(number) = installed.rules.pop() else { return Usage::default() };
        installed.gate = self.at(number).map(|shared| shared.rule.clone());
        self.gates_due += usize::from(installed.gate.is_some());
        installed.inner(self.leave(back_end, number))
    }

    fn take<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        rule: FlowRule,
        guard: Option<&Guard>,
    ) -> Result<Number, FlowError> {
        let hash = hash_of(&rule);
        let Some(number) = self.find(hash, &rule) else {
            let id = create(back_end, &rule, guard)?;
            let number = self.free.pop().unwrap_or_else(|| {
                self.rules.push(None);
                self.rules.len() as Number - 1
            });
            let (state, before) = (State::Waiting, Usage::default());
            self.rules[number as usize] = Some(Shared { rule, id, state, users: 1, old: None, before });
            self.by_match.entry(hash).or_default().push(number);
            self.waiting.insert(id, number);
            return Ok(number);
        };
        self.replace(back_end, number, rule, guard)?;
        if let Some(shared) = self.at_mut(number) {
            shared.users += 1;
        }
        Ok(number)
    }

    /// Has a rule do what another one with the same pattern says; nothing when it does that already.
    fn replace<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        number: Number,
        rule: FlowRule,
        guard: Option<&Guard>,
    ) -> Result<(), FlowError> {
        let Self { rules, waiting, .. } = self;
        let Some(shared) = rules[number as usize].as_mut() else { return Ok(()) };
        if shared.rule.actions != rule.actions || matches!(shared.state, State::Failed(_)) {
            // Where packets meet a rule already, none is overtaken.
            let guard = guard.filter(|_| shared.state != State::InForce && shared.old.is_none());
            let id = match create(back_end, &rule, guard) {
                // A device that does not take two rules that match the same: packets go to software in between.
                Err(error) if error.cause == Cause::Exists => {
                    shared.before = add(shared.before, back_end.destroy(shared.id).unwrap_or_default());
                    create(back_end, &rule, guard)?
                }
                id => id?,
            };
            waiting.insert(id, number);
            let last = std::mem::replace(&mut shared.id, id);
            match std::mem::replace(&mut shared.state, State::Waiting) {
                State::InForce => shared.old = Some(last),
                // It was never in force: what it would have replaced still is.
                State::Waiting => {
                    waiting.remove(&last);
                    shared.before = add(shared.before, back_end.destroy(last).unwrap_or_default());
                }
                State::Failed(_) => {}
            }
            shared.rule = rule;
        }
        Ok(())
    }

    /// Has an installed chain do what its new translation says, if that matches the same packets: a location that
    /// moved, say.
    ///
    /// # Errors
    /// The back end's; some rules may do the new thing then.
    pub fn update<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        installed: &Installed,
        chain: &Chain,
    ) -> Result<Update, FlowError> {
        let made = installed.rules.iter().filter_map(|number| self.at(*number)).map(|shared| &shared.rule);
        let known: Vec<&FlowRule> = made.chain(&installed.gate).collect();
        let pairs = || known.iter().zip(&chain.rules);
        let same = |(a, b): (&&FlowRule, &FlowRule)| a.attr == b.attr && a.pattern == b.pattern;
        let gate = installed.gate.as_ref().is_none_or(|gate| chain.rules.last() == Some(gate));
        if known.len() != chain.rules.len() || !pairs().all(same) || !gate || installed.leaf != chain.leaf {
            return Ok(Update::Other);
        }
        if pairs().all(|(known, new)| known.actions == new.actions) {
            return Ok(Update::Same);
        }
        // A gate that is on its way has a guard, which one in its place would not have.
        if self.gate(installed).is_some_and(|gate| gate.state != State::InForce && gate.old.is_none()) {
            return Ok(Update::Other);
        }
        for (number, rule) in installed.rules.iter().zip(&chain.rules) {
            self.replace(back_end, *number, rule.clone(), None)?;
        }
        Ok(Update::Changed)
    }

    /// Meters in use.
    pub fn meters(&self) -> Vec<u32> {
        self.meters.keys().copied().collect()
    }

    /// Sets a meter in use, if it is another than before. One that the device refuses keeps what it had.
    pub fn pace<B: BackEnd>(&mut self, back_end: &mut B, id: u32, meter: Meter) {
        if let Some((last, _)) = self.meters.get_mut(&id).filter(|(last, _)| *last != meter)
            && back_end.set_meter(id, Some(meter)).is_ok()
        {
            *last = meter;
        }
    }

    /// Hears from the back end which rules are in force and which have failed. True when any has failed.
    pub fn hear<B: BackEnd>(&mut self, back_end: &mut B) -> bool {
        let mut failed = false;
        let mut results = Vec::new();
        back_end.completed(&mut results);
        for (id, result) in results {
            let Some(number) = self.waiting.remove(&id) else { continue };
            let Some(shared) = self.at_mut(number) else { continue };
            failed |= result.is_err();
            shared.state = match result {
                Ok(()) => State::InForce,
                Err(error) => State::Failed(error),
            };
            if let Some(old) = shared.old.take() {
                shared.before = add(shared.before, back_end.destroy(old).unwrap_or_default());
            }
        }
        failed
    }

    /// How far a chain is: in force when all of its rules that were made are.
    pub fn state(&self, installed: &Installed) -> State {
        let mut all = State::InForce;
        for shared in installed.rules.iter().filter_map(|number| self.at(*number)) {
            match &shared.state {
                State::InForce => {}
                State::Waiting => all = State::Waiting,
                failed => return failed.clone(),
            }
        }
        all
    }

    /// Removes the rules of a chain that no other chain needs. What the chain's own had seen, as software would have
    /// counted it; of a rule that stays for another chain, that one's removal tells.
    pub fn remove<B: BackEnd>(&mut self, back_end: &mut B, installed: Installed) -> Usage {
        let mut usage = Usage::default();
        self.gates_due -= usize::from(installed.gate.is_some());
        for (index, &number) in installed.rules.iter().enumerate().rev() {
            let seen = self.leave(back_end, number);
            if index + 1 == installed.rules.len() && installed.gate.is_none() {
                usage = installed.inner(seen);
            }
        }
        if let Some(id) = installed.meter {
            self.leave_meter(back_end, id);
        }
        usage
    }

    /// A chain does without a rule; without any that needs it, it goes. What it had seen then.
    fn leave<B: BackEnd>(&mut self, back_end: &mut B, number: Number) -> Usage {
        let Some(shared) = self.at_mut(number) else { return Usage::default() };
        shared.users -= 1;
        if shared.users > 0 {
            return Usage::default();
        }
        let Some(shared) = self.rules[number as usize].take() else { return Usage::default() };
        self.free.push(number);
        self.waiting.remove(&shared.id);
        let hash = hash_of(&shared.rule);
        if let Some(same) = self.by_match.get_mut(&hash) {
            same.retain(|other| *other != number);
            if same.is_empty() {
                self.by_match.remove(&hash);
            }
        }
        // A rule that is gone already cannot tell any more.
        let ids = [Some(shared.id), shared.old];
        let seen = ids.into_iter().flatten().map(|id| back_end.destroy(id).unwrap_or_default());
        seen.fold(shared.before, add)
    }

    fn leave_meter<B: BackEnd>(&mut self, back_end: &mut B, id: u32) {
        let Some((_, users)) = self.meters.get_mut(&id) else { return };
        *users -= 1;
        if *users == 0 {
            self.meters.remove(&id);
            // One that is gone already is what is wanted.
            let _ = back_end.set_meter(id, None);
        }
    }

    /// What a chain has seen, as software would have counted it.
    ///
    /// # Errors
    /// The back end's: [`Cause::Again`] while it is not in force, [`Cause::Gone`] when the counting rule was lost.
    pub fn query<B: BackEnd>(&self, back_end: &mut B, installed: &Installed) -> Result<Usage, FlowError> {
        let Some(shared) = self.gate(installed) else {
            return Err(FlowError::new(Cause::Again, Where::Handle, "the chain's gate is not made yet"));
        };
        let seen = match shared.old {
            Some(old) => back_end.query(old)?,
            None => back_end.query(shared.id)?,
        };
        Ok(installed.inner(add(shared.before, seen)))
    }

    /// The rule that counts a chain and ages, once it is made.
    pub fn counting(&self, installed: &Installed) -> Option<RuleId> {
        self.gate(installed).map(|shared| shared.id)
    }

    fn gate(&self, installed: &Installed) -> Option<&Shared> {
        let last = installed.rules.last().filter(|_| installed.gate.is_none())?;
        self.at(*last)
    }

    /// Asks the back end for every rule; those that it says are gone have failed, with [`Cause::Gone`]. How many those
    /// were. Gates of chains that need them are to be [closed](Self::close) before they are made again: packets that
    /// met half a chain are in software.
    pub fn audit<B: BackEnd>(&mut self, back_end: &mut B) -> usize {
        let mut lost = 0;
        let Self { rules, waiting, .. } = self;
        for shared in rules.iter_mut().flatten() {
            if let State::InForce | State::Waiting = shared.state
                && let Err(error) = back_end.query(shared.id)
                && error.cause == Cause::Gone
            {
                waiting.remove(&shared.id);
                shared.state = State::Failed(error);
                lost += 1;
            }
        }
        lost
    }

    /// Makes rules again that were lost.
    ///
    /// # Errors
    /// The back end's, when it does not take one.
    pub fn repair<B: BackEnd>(&mut self, back_end: &mut B) -> Result<(), FlowError> {
        let Self { rules, waiting, .. } = self;
        for (number, shared) in (0..).zip(rules) {
            let lost = |shared: &&mut Shared| matches!(&shared.state, State::Failed(error) if error.cause == Cause::Gone);
            let Some(shared) = shared.as_mut().filter(lost) else { continue };
            shared.id = back_end.create(&shared.rule)?;
            shared.state = State::Waiting;
            waiting.insert(shared.id, number);
        }
        Ok(())
    }
}
