//! Into hardware: hot flows are translated, their rules made, and their gates opened in a gap.

use std::cmp::Reverse;

use super::flow::{InstallState, OffloadFlow, Status, Why};
use super::known::FlowNumber;
use super::rate::RateEstimator;
use super::time::Work;
use super::{Manager, NANO, because};
use crate::offload::counter::DeviceCounter;
use crate::offload::hasher::Map;
use crate::offload::store::{Bundle, Bundles, RuleState, RuleStore};
use crate::offload::translate::{
    Adjacency, ChainPlan, FlowSelector, OffloadRefusal, PathKey, PathRules, Tables,
};
use rules::{ArrivalCount, BackEnd, Cause, FlowError, FlowRule};

/// Bundles that were made in one go: the tables stand still, so that they hold for all flows with the same adjacency or path.
#[derive(Default)]
pub(super) struct Turn {
    adjacencies: Map<Adjacency, Bundle>,
    paths: Map<PathKey, Bundle>,
    /// Flows in hardware that may give way, coldest last; found when first asked for.
    coldest: Option<Vec<FlowRate>>,
}

/// A flow, and how fast it is.
pub(super) struct FlowRate {
    pub number: FlowNumber,
    /// Packets a second; `u64::MAX` for a flow that is pinned to hardware.
    pub packets: u64,
}

/// Rules of a flow that are to be made.
pub(super) struct MissingRules {
    /// Those of its adjacency and of its path, unless they are there.
    adjacencies: Option<Vec<FlowRule>>,
    path: Option<PathRules>,
    pub own: Vec<FlowRule>,
}

/// What a flow has from now on: the bundles of its adjacency and its path, its own rules, and whether any rule that was there
/// does something else now.
pub(super) struct Renewed {
    pub bundles: Bundles,
    pub own: Vec<FlowRule>,
    pub changed: bool,
}

impl MissingRules {
    /// Rules that other flows may have, too.
    fn shared(&self) -> impl Iterator<Item = &FlowRule> {
        let path = self.path.iter().flat_map(|path| &path.rules);
        self.adjacencies.iter().flatten().chain(path)
    }

    /// True when they are all there and do what they should, the flow's own ones aside.
    pub fn is_there(&self, store: &RuleStore) -> bool {
        let meter = self.path.as_ref().and_then(|path| path.meter);
        meter.is_none_or(|(id, _)| store.has_meter(id)) && self.shared().all(|rule| store.has(rule))
    }

    /// True when those of its adjacency are.
    pub fn leads_there(&self, store: &RuleStore) -> bool {
        self.adjacencies.iter().flatten().all(|rule| store.has(rule))
    }
}

impl Turn {
    pub fn due(&self, tables: &Tables, plan: &ChainPlan) -> Result<MissingRules, OffloadRefusal> {
        let adjacencies = !self.adjacencies.contains_key(&plan.facts.adjacency);
        let path = !self.paths.contains_key(&plan.path);
        Ok(MissingRules {
            path: path.then(|| plan.path(tables)).transpose()?,
            adjacencies: adjacencies.then(|| plan.adjacencies(tables)).transpose()?,
            own: plan.own(tables)?,
        })
    }
}

impl Manager {
    /// Flows that are on their way into hardware.
    pub(super) fn proceed<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        quiet: &mut impl FnMut(&FlowSelector) -> Option<ArrivalCount>,
        now_ns: u64,
    ) {
        let mut coming: Vec<_> = std::mem::take(&mut self.coming);
        coming.sort_unstable();
        coming.dedup();
        let rate = |number: &FlowNumber| Reverse(self.flows.at(*number).map(|flow| flow.rate().packets));
        coming.sort_by_cached_key(|number| (rate(number), *number));
        let mut failed: Vec<(FlowNumber, Status)> = Vec::new();
        let mut opened = false;
        for number in coming {
            let Some(flow) = self.flows.at_mut(number) else { continue };
            if !matches!(flow.state, InstallState::Preparing(..) | InstallState::Opening(..)) {
                continue;
            }
            let Some(installed) = flow.state.installed() else { continue };
            let rules = self.store.state(installed);
            let late = |since_ns: u64| now_ns.saturating_sub(since_ns) > self.policy.install_wait_ns;
            let nothing = || InstallState::software(Status::Software(Why::Cold));
            flow.state = match (std::mem::replace(&mut flow.state, nothing()), rules) {
                (state, RuleState::Waiting) => state,
                // The gap was over before the gate was in force: no packet met it.
                (InstallState::Opening(mut installed, since_ns), RuleState::Failed(error))
                    if error.cause == Cause::Again =>
                {
                    self.store.close(back_end, &mut installed);
                    if late(since_ns) {
                        failed.push((number, Status::Software(Why::NoGap)));
                    }
                    InstallState::Preparing(installed, since_ns)
                }
                (state, RuleState::Failed(error)) => {
                    failed.push((number, Status::RefusedByDevice(error.to_string())));
                    state
                }
                (state @ InstallState::Preparing(..), RuleState::InForce)
                    if opened && self.time.is_over(Work::Gates) =>
                {
                    state
                }
                (InstallState::Preparing(mut installed, since_ns), RuleState::InForce) => {
                    opened = true;
                    let count = if self.policy.barrier { quiet(&flow.selector) } else { None };
                    if count.is_none() && self.policy.barrier {
                        if late(since_ns) {
                            failed.push((number, Status::Software(Why::NoGap)));
                        }
                        InstallState::Preparing(installed, since_ns)
                    } else if let Err(error) = self.store.open(back_end, &mut installed, count) {
                        failed.push((number, because(&error)));
                        InstallState::Preparing(installed, since_ns)
                    } else {
                        flow.counter = DeviceCounter::begin(now_ns);
                        InstallState::Opening(installed, since_ns)
                    }
                }
                (InstallState::Opening(installed, _), RuleState::InForce) => {
                    flow.meter = RateEstimator::begin(0, 0, now_ns, flow.meter.rate());
                    (flow.counted_ns, flow.is_silent, flow.is_aged) = (now_ns, false, false);
                    flow.cold_since_ns = None;
                    self.counters.installed += 1;
                    InstallState::Hardware(installed)
                }
                (state, RuleState::InForce) => state,
            };
            if matches!(flow.state, InstallState::Preparing(..) | InstallState::Opening(..)) {
                self.coming.push(number);
            }
        }
        for (done, (number, status)) in failed.into_iter().enumerate() {
            // The others are found again in the next turn.
            if done > 0 && self.time.is_over(Work::Gates) {
                break;
            }
            let later = now_ns + self.policy.retry_ns;
            match status {
                Status::Software(Why::NoRoom) => {
                    let not_before_ns = self.learn_full(now_ns);
                    self.withdraw(back_end, number, status, not_before_ns);
                    continue;
                }
                Status::Software(_) => self.counters.no_gap += 1,
                _ => self.refused(&status),
            }
            self.withdraw(back_end, number, status, later);
        }
    }

    /// Hot flows in software, hottest first, as many as may come in now and as there is time for.
    pub(super) fn install_hot<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        tables: &Tables,
        mut hot: Vec<FlowRate>,
        now_ns: u64,
    ) {
        hot.sort_unstable_by_key(|flow| (Reverse(flow.packets), flow.number));
        let mut turn = Turn::default();
        for (done, flow) in hot.into_iter().enumerate() {
            let number = flow.number;
            let made = if done > 0 && self.time.is_over(Work::Rules) {
                Err((Status::Software(Why::Turn), 0))
            } else {
                self.install(back_end, tables, &mut turn, flow, now_ns)
            };
            if let Err((status, not_before_ns)) = made
                && let Some(flow) = self.flows.at_mut(number)
            {
                flow.state = InstallState::Software { status, not_before_ns };
            }
        }
        self.end(back_end, turn);
    }

    /// Bundles that no flow has taken go again.
    pub(super) fn end<B: BackEnd>(&mut self, back_end: &mut B, turn: Turn) {
        for (path, bundle) in turn.paths {
            self.store.drop_bundle(back_end, bundle);
            self.translator.release_framing(path.framing.as_ref());
        }
        for (adjacency, bundle) in turn.adjacencies {
            self.store.drop_bundle(back_end, bundle);
            self.translator.release_adjacency(&adjacency);
        }
    }

    /// Begins to install a flow, or says where it stays and until when.
    fn install<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        tables: &Tables,
        turn: &mut Turn,
        FlowRate { number, packets }: FlowRate,
        now_ns: u64,
    ) -> Result<(), (Status, u64)> {
        let Some(selector) = self.flows.at(number).map(|flow| flow.selector) else { return Ok(()) };
        let later = now_ns + self.policy.retry_ns;
        let plan = match self.translator.plan(tables, &selector) {
            Ok(plan) => plan,
            Err(refusal) => return Err((self.refuse(refusal), later)),
        };
        let facts = plan.facts;
        let due = match turn.due(tables, &plan) {
            Ok(due) => due,
            Err(refusal) => {
                self.translator.forget(&facts);
                return Err((self.refuse(refusal), later));
            }
        };
        let own = due.own.len();
        let needed = self.store.missing(due.shared()) + own;
        let cost = needed as u128 * NANO;
        if cost > self.allowance {
            self.translator.forget(&facts);
            return Err((Status::Software(Why::Turn), 0));
        }
        // Colder flows give way one after another, until there is room or none is clearly colder.
        let mut missing = needed;
        while !self.has_room(missing, now_ns) {
            if needed > self.most(now_ns) || !self.displace(back_end, turn, packets, now_ns) {
                self.translator.forget(&facts);
                return Err((Status::Software(Why::NoRoom), 0));
            }
            missing = self.store.missing(due.shared()) + own;
        }
        let made = self.bundles(back_end, turn, &plan, due);
        let made = made.and_then(|made| self.store.assemble(back_end, made.bundles, made.own, facts));
        match made {
            Ok(installed) => {
                self.allowance -= cost;
                self.translator.hold(&facts);
                if let Some(flow) = self.flows.at_mut(number) {
                    flow.state = InstallState::Preparing(installed, now_ns);
                    self.coming.push(number);
                }
                Ok(())
            }
            Err(error) => {
                self.translator.forget(&facts);
                let status = because(&error);
                if status == Status::Software(Why::NoRoom) {
                    return Err((status, self.learn_full(now_ns)));
                }
                self.refused(&status);
                Err((status, later))
            }
        }
    }

    /// Makes the bundles of a flow where they are not there.
    pub(super) fn bundles<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        turn: &mut Turn,
        plan: &ChainPlan,
        due: MissingRules,
    ) -> Result<Renewed, FlowError> {
        let mut changed = false;
        let adjacency = plan.facts.adjacency;
        if let Some(rules) = due.adjacencies {
            let (bundle, is_changed) = self.store.bundle(back_end, rules, None, 0)?;
            turn.adjacencies.insert(adjacency, bundle);
            // The number of the adjacency is in its rules: it stays as long as the bundle.
            self.translator.hold_adjacency(&adjacency);
            changed |= is_changed;
        }
        if let Some(PathRules { rules, meter }) = due.path {
            let made = self.store.bundle(back_end, rules, meter, plan.facts.tunnel_len)?;
            turn.paths.insert(plan.path.clone(), made.0);
            self.translator.hold_framing(plan.path.framing.as_ref());
            changed |= made.1;
        }
        let bundles = Bundles { adjacencies: turn.adjacencies[&adjacency], path: turn.paths[&plan.path] };
        Ok(Renewed { bundles, own: due.own, changed })
    }

    /// Rules that fit: what the policy allows, or what the device was seen to hold.
    fn most(&self, now_ns: u64) -> usize {
        let seen = self.full.filter(|(_, until_ns)| now_ns < *until_ns);
        seen.map_or(self.policy.rules, |(rules, _)| rules.min(self.policy.rules))
    }

    /// True when so many rules more would fit, beside the gates that are still to come.
    fn has_room(&self, needed: usize, now_ns: u64) -> bool {
        self.store.len() + self.store.gates_due() + needed <= self.most(now_ns)
    }

    /// The device had no room for a rule: learns how many it holds, and tells when the flow may be tried again. With fewer rules than it
    /// was seen to hold it lacks something else that the flow needs, for which nobody has to give way.
    fn learn_full(&mut self, now_ns: u64) -> u64 {
        let later = now_ns + self.policy.retry_ns;
        let has_held_more =
            self.full.is_some_and(|(rules, until_ns)| now_ns < until_ns && self.store.len() < rules);
        // Rules that are on their way out still take up room.
        if has_held_more && self.store.leaving() == 0 {
            return later;
        }
        self.full = Some((self.store.len(), later));
        0
    }

    /// Takes the coldest flow out of hardware, if it has less than half of these packets a second. Without effect on a device that does
    /// not let rules go: then no other flow gives way for a while.
    fn displace<B: BackEnd>(&mut self, back_end: &mut B, turn: &mut Turn, packets: u64, now_ns: u64) -> bool {
        if now_ns < self.displaces_from_ns {
            return false;
        }
        let flows = &mut self.flows;
        let coldest = turn.coldest.get_or_insert_with(|| {
            let loose = flows.iter_mut().filter(|(_, flow)| flow.pin.is_none());
            let inside = loose.filter(|(_, flow)| matches!(flow.state, InstallState::Hardware(_)));
            let rate = |(number, flow): (FlowNumber, &mut OffloadFlow)| FlowRate {
                number,
                packets: flow.rate().packets,
            };
            let mut inside: Vec<_> = inside.map(rate).collect();
            inside.sort_unstable_by_key(|flow| Reverse((flow.packets, flow.number)));
            inside
        });
        let Some(FlowRate { number, .. }) = coldest.pop_if(|flow| flow.packets < packets / 2) else {
            return false;
        };
        self.counters.displaced += 1;
        let before = self.store.len();
        self.withdraw(back_end, number, Status::Software(Why::NoRoom), 0);
        if self.store.len() >= before {
            self.displaces_from_ns = now_ns + self.policy.retry_ns;
        }
        true
    }
}
