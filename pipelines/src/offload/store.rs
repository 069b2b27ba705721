//! The rules that a back end holds for us: which chains share which.
//!
//! Rules with the same attributes and pattern are one rule. They are made downstream first and go in the opposite
//! order, so that no packet is led to where nothing is known of it.

use std::collections::HashMap;

use super::items::Item;
use super::translate::{Chain, Way};
use super::{Action, Attr, BackEnd, Cause, FlowError, FlowRule, RuleId, Usage};
use crate::qos::Leaf;

/// What a rule is known by.
type Match = (Attr, Vec<Item>);

/// A rule in use.
struct Shared {
    id: RuleId,
    actions: Vec<Action>,
    /// Chains that need it.
    users: u32,
    /// What rules saw that this one took the place of.
    before: Usage,
}

/// A chain that was installed. To be given back to [`Store::remove`].
#[derive(Debug)]
pub struct Installed {
    matches: Vec<Match>,
    counts: usize,
    tunnel_len: usize,
    meter: Option<u32>,
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
    rules: HashMap<Match, Shared>,
    /// Chains by meter.
    meters: HashMap<u32, u32>,
}

fn add(a: Usage, b: Usage) -> Usage {
    Usage { packets: a.packets + b.packets, bytes: a.bytes + b.bytes }
}

impl Store {
    /// Rules in use.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True without any rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Makes the rules of a chain that are not there yet, and changes those that do something else now. A chain that
    /// takes the place of another is installed before that one is removed: what both need stays.
    ///
    /// # Errors
    /// The back end's; nothing of the chain is left then.
    pub fn install<B: BackEnd>(&mut self, back_end: &mut B, chain: Chain) -> Result<Installed, FlowError> {
        let mut installed = Installed {
            matches: Vec::with_capacity(chain.rules.len()),
            counts: chain.counts,
            tunnel_len: chain.tunnel_len,
            meter: None,
            leaf: chain.leaf,
            way: chain.way,
        };
        if let Some((id, meter)) = chain.meter {
            back_end.set_meter(id, Some(meter))?;
            *self.meters.entry(id).or_default() += 1;
            installed.meter = Some(id);
        }
        for rule in chain.rules {
            if let Err(error) = self.take(back_end, &rule) {
                self.remove(back_end, installed);
                return Err(error);
            }
            installed.matches.push((rule.attr, rule.pattern));
        }
        Ok(installed)
    }

    fn take<B: BackEnd>(&mut self, back_end: &mut B, rule: &FlowRule) -> Result<(), FlowError> {
        let key = (rule.attr, rule.pattern.clone());
        let Some(shared) = self.rules.get_mut(&key) else {
            let id = back_end.create(rule)?;
            let shared = Shared { id, actions: rule.actions.clone(), users: 1, before: Usage::default() };
            self.rules.insert(key, shared);
            return Ok(());
        };
        if shared.actions != rule.actions {
            // The new one first, so that packets meet one of them; not every device takes two that match the same.
            let (new, old) = match back_end.create(rule) {
                Err(error) if error.cause == Cause::Exists => {
                    let old = back_end.destroy(shared.id);
                    (back_end.create(rule)?, old)
                }
                new => (new?, back_end.destroy(shared.id)),
            };
            shared.id = new;
            shared.actions.clone_from(&rule.actions);
            shared.before = add(shared.before, old.unwrap_or_default());
        }
        shared.users += 1;
        Ok(())
    }

    /// Removes the rules of a chain that no other chain needs. What the chain's own had seen, as software would have
    /// counted it; of a rule that stays for another chain, that one's removal tells.
    pub fn remove<B: BackEnd>(&mut self, back_end: &mut B, installed: Installed) -> Usage {
        let mut usage = Usage::default();
        for (index, key) in installed.matches.iter().enumerate().rev() {
            let Some(shared) = self.rules.get_mut(key) else { continue };
            shared.users -= 1;
            if shared.users > 0 {
                continue;
            }
            // A rule that is gone already cannot tell any more.
            let seen = add(shared.before, back_end.destroy(shared.id).unwrap_or_default());
            self.rules.remove(key);
            if index == installed.counts {
                usage = installed.inner(seen);
            }
        }
        if let Some(id) = installed.meter {
            self.leave_meter(back_end, id);
        }
        usage
    }

    fn leave_meter<B: BackEnd>(&mut self, back_end: &mut B, id: u32) {
        let Some(users) = self.meters.get_mut(&id) else { return };
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
    /// The back end's; [`Cause::Gone`] when the counting rule was lost.
    pub fn query<B: BackEnd>(&self, back_end: &mut B, installed: &Installed) -> Result<Usage, FlowError> {
        let key = installed.matches.get(installed.counts);
        let Some(shared) = key.and_then(|key| self.rules.get(key)) else {
            return Err(FlowError::new(Cause::Gone, super::Where::Handle, "the chain is not installed"));
        };
        back_end.query(shared.id).map(|usage| installed.inner(add(shared.before, usage)))
    }

    /// The rules of a chain, by id.
    pub fn ids(&self, installed: &Installed) -> Vec<RuleId> {
        installed.matches.iter().filter_map(|key| self.rules.get(key)).map(|shared| shared.id).collect()
    }

    /// The rule that counts a chain.
    pub fn counting(&self, installed: &Installed) -> Option<RuleId> {
        self.rules.get(installed.matches.get(installed.counts)?).map(|shared| shared.id)
    }
}
