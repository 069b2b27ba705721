//! The rules that the device holds: waiting to come into force, in force, what they have seen, when they age.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::layers::{LayerSlots, Layers, Registers};
use super::table::{Group, Rank, RuleNumber, Spot};
use super::{EswitchConfig, gone};
use crate::offload::hasher::Map;
use rules::{Action, FlowRule};
use rules::{Cause, FlowError, Guard, RuleId, Usage, Where};

/// A rule that the device holds, and what it remembers of it.
pub struct HeldRule {
    /// The rule as it was taken.
    pub rule: FlowRule,
    slots: LayerSlots,
    serial: u64,
    counts: bool,
    /// Where it is in its group, once it is in force.
    spot: Option<Spot>,
    /// What must hold when it comes into force.
    guard: Option<Guard>,
    /// What it has seen.
    seen: Usage,
    /// What is shown of that, and in which refresh it was.
    shown: (Usage, u64),
    last_hit_ns: u64,
}

/// All rules that the device holds, by number, and those in force by group.
#[derive(Default)]
pub struct RuleTable {
    /// By number; the serial of a rule and its number are its id.
    held: Vec<Option<HeldRule>>,
    free: Vec<RuleNumber>,
    groups: Map<u32, Group>,
    /// Rules not yet in force, in order: when they will be.
    waiting: VecDeque<(u64, RuleId)>,
    /// Rules that age: when to look at them.
    ages: BinaryHeap<Reverse<(u64, RuleId)>>,
    next_serial: u64,
    ready_ns: u64,
}

/// Bits of an id that are the rule's number.
const NUMBER_BITS: u32 = 24;

impl RuleTable {
    /// Rules that it holds, those not yet in force included.
    pub fn len(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// Rules in the lists of those that wait and of those that age, and shapes.
    pub fn remembered(&self) -> usize {
        let shapes: usize = self.groups.values().map(Group::shapes).sum();
        self.waiting.len() + self.ages.len() + shapes
    }

    /// True for a group in which a rule is or was in force.
    pub fn has_group(&self, group: u32) -> bool {
        self.groups.contains_key(&group)
    }

    /// The id of the rule with a number.
    pub fn id(&self, number: RuleNumber) -> RuleId {
        let serial = self.get(number).map_or(0, |held| held.serial);
        RuleId(serial << NUMBER_BITS | u64::from(number))
    }

    /// Rules about what a DPDK port stands for.
    pub fn naming(&self, port: u16) -> Vec<RuleId> {
        let used = (0..).zip(&self.held);
        let naming = used.filter(|(_, held)| held.as_ref().is_some_and(|held| held.rule.names_port(port)));
        naming.map(|(number, _)| self.id(number)).collect()
    }

    /// The ids of all rules, by number.
    pub fn ids(&self) -> Vec<RuleId> {
        let used = (0..).zip(&self.held).filter(|(_, held)| held.is_some());
        used.map(|(number, _)| self.id(number)).collect()
    }

    fn number(&self, id: RuleId) -> Option<RuleNumber> {
        let number = (id.0 & ((1 << NUMBER_BITS) - 1)) as RuleNumber;
        self.get(number).filter(|held| held.serial == id.0 >> NUMBER_BITS).map(|_| number)
    }

    /// True while a rule is there.
    pub fn has(&self, id: RuleId) -> bool {
        self.number(id).is_some()
    }

    /// The rule with a number.
    pub fn get(&self, number: RuleNumber) -> Option<&HeldRule> {
        self.held.get(number as usize)?.as_ref()
    }

    /// Takes a rule; it waits.
    pub fn add(
        &mut self,
        rule: &FlowRule,
        slots: LayerSlots,
        guard: Option<Guard>,
        now_ns: u64,
        config: &EswitchConfig,
    ) -> Result<RuleId, FlowError> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.held.len() < 1 << NUMBER_BITS => {
                self.held.push(None);
                self.held.len() as RuleNumber - 1
            }
            None => return Err(FlowError::new(Cause::Full, Where::Unspecified, "no more numbers for rules")),
        };
        self.next_serial += 1;
        self.held[number as usize] = Some(HeldRule {
            rule: rule.clone(),
            slots,
            serial: self.next_serial,
            counts: rule.actions.contains(&Action::Count),
            spot: None,
            guard,
            seen: Usage::default(),
            shown: (Usage::default(), 0),
            last_hit_ns: now_ns,
        });
        let id = self.id(number);
        let apart = 1_000_000_000u64.checked_div(u64::from(config.insertion_rate)).unwrap_or(0);
        self.ready_ns = (self.ready_ns + apart).max(now_ns);
        self.waiting.push_back((self.ready_ns + config.latency_ns, id));
        Ok(id)
    }

    /// Puts rules into force whose time has come and whose guard holds; of `fail_one_in` of them one fails.
    pub fn activate(
        &mut self,
        now_ns: u64,
        fail_one_in: u32,
        holds: impl Fn(&Guard) -> bool,
        mut done: impl FnMut(RuleId, Result<(), FlowError>),
    ) {
        while let Some((_, id)) = self.waiting.pop_front_if(|(ready, _)| *ready <= now_ns) {
            let Some(number) = self.number(id) else { continue };
            let serial = id.0 >> NUMBER_BITS;
            if serial.checked_rem(u64::from(fail_one_in)) == Some(0) {
                self.remove(id);
                done(id, Err(FlowError::new(Cause::NoDevice, Where::Unspecified, "the device failed")));
                continue;
            }
            let Some(held) = self.held[number as usize].as_mut() else { continue };
            if held.guard.is_some_and(|guard| !holds(&guard)) {
                self.remove(id);
                let text = "a packet of the flow came in between";
                done(id, Err(FlowError::new(Cause::Again, Where::Handle, text)));
                continue;
            }
            held.last_hit_ns = now_ns;
            let rank = Rank { priority: held.rule.attr.priority, serial };
            let group = self.groups.entry(held.rule.attr.group).or_default();
            held.spot = Some(group.insert(&held.rule.pattern, held.slots.as_slice(), rank, number));
            if let Some(timeout_ns) = timeout_ns(&held.rule) {
                self.ages.push(Reverse((now_ns + timeout_ns, id)));
            }
            done(id, Ok(()));
        }
    }

    /// Removes a rule: what it has seen.
    pub fn remove(&mut self, id: RuleId) -> Option<Usage> {
        let number = self.number(id)?;
        let held = self.held[number as usize].take()?;
        if let (Some(group), Some(spot)) = (self.groups.get_mut(&held.rule.attr.group), held.spot) {
            group.remove(spot, number);
        }
        self.free.push(number);
        Some(held.seen)
    }

    /// Removes all rules; ids are not used again.
    pub fn clear(&mut self) {
        let next_serial = self.next_serial;
        *self = Self { next_serial, ..Self::default() };
    }

    /// What a rule had seen at the last refresh.
    pub fn query(&mut self, id: RuleId, now_ns: u64, refresh_ns: u64) -> Result<Usage, FlowError> {
        let number = self.number(id).ok_or_else(gone)?;
        let Some(held) = self.held[number as usize].as_mut() else { return Err(gone()) };
        if !held.counts {
            return Err(FlowError::new(Cause::Invalid, Where::Action(0), "the rule does not count"));
        }
        if held.spot.is_none() {
            return Err(FlowError::new(Cause::Again, Where::Handle, "the rule is not in force yet"));
        }
        held.refresh(now_ns, refresh_ns);
        Ok(held.shown.0)
    }

    /// Counts a packet that met a rule; `bytes` is the frame as it was then.
    pub fn hit(&mut self, number: RuleNumber, bytes: usize, now_ns: u64, refresh_ns: u64) {
        if let Some(held) = self.held.get_mut(number as usize).and_then(Option::as_mut) {
            held.refresh(now_ns, refresh_ns);
            held.seen.packets += 1;
            held.seen.bytes += bytes as u64;
            held.last_hit_ns = now_ns;
        }
    }

    /// Rules whose time without packets is over, each once.
    pub fn aged(&mut self, now_ns: u64, aged: &mut Vec<RuleId>) {
        while let Some(Reverse((due, id))) = self.ages.peek().copied().filter(|age| age.0.0 <= now_ns) {
            self.ages.pop();
            let Some(held) = self.number(id).and_then(|number| self.get(number)) else { continue };
            let Some(timeout_ns) = timeout_ns(&held.rule) else { continue };
            let later = held.last_hit_ns + timeout_ns;
            if later > due.max(now_ns) {
                self.ages.push(Reverse((later, id)));
            } else {
                aged.push(id);
            }
        }
    }

    /// The first rule of a group that matches.
    pub fn find(
        &self,
        group: u32,
        layers: &Layers,
        head: &[u8],
        registers: &Registers,
    ) -> Option<RuleNumber> {
        let group = self.groups.get(&group)?;
        let matches = |number| self.get(number).is_some_and(|held| held.matches(layers, head, registers));
        group.find(|slot| layers.bytes(slot, head, registers), matches)
    }

    /// The same by looking at every rule.
    pub fn find_linear(
        &self,
        group: u32,
        layers: &Layers,
        head: &[u8],
        registers: &Registers,
    ) -> Option<RuleId> {
        let held = (0..).zip(&self.held).filter_map(|(number, held)| Some((number, held.as_ref()?)));
        let matching = held.filter(|(_, held)| {
            held.spot.is_some() && held.rule.attr.group == group && held.matches(layers, head, registers)
        });
        let first = matching.min_by_key(|(_, held)| (held.rule.attr.priority, held.serial));
        first.map(|(number, _)| self.id(number))
    }
}

impl HeldRule {
    fn matches(&self, layers: &Layers, head: &[u8], registers: &Registers) -> bool {
        self.rule.pattern.iter().zip(self.slots.as_slice()).all(|(item, slot)| {
            layers.bytes(*slot, head, registers).is_some_and(|bytes| item.matches(&bytes))
        })
    }

    /// Shows what was seen up to the last refresh before `now_ns`, if there was one since the last packet.
    fn refresh(&mut self, now_ns: u64, refresh_ns: u64) {
        let period = now_ns.checked_div(refresh_ns).unwrap_or(u64::MAX);
        if period != self.shown.1 || refresh_ns == 0 {
            self.shown = (self.seen, period);
        }
    }
}

fn timeout_ns(rule: &FlowRule) -> Option<u64> {
    rule.actions.iter().find_map(|action| match action {
        Action::Age { timeout } => Some(u64::from(*timeout) * 1_000_000_000),
        _ => None,
    })
}
