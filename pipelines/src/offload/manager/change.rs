//! What happens to flows in hardware from outside: changes of the tables, lost rules, a lost device, withdrawals.

use std::collections::HashSet;

use super::Manager;
use super::flow::{InstallState, OffloadFlow, Pin, Status, Why};
use super::install::{Renewed, Turn};
use super::known::FlowNumber;
use super::policy::Debit;
use super::rate::{Rate, RateEstimator};
use super::red::Classes;
use super::time::Work;
use crate::offload::store::{InstalledChain, RuleState, RuleStore, Update};
use crate::offload::translate::{FlowSelector, Tables, Translator};
use rules::{BackEnd, Cause, FlowError};

/// How often the device is waited for: rules that it keeps have others leave, which it may keep, too.
const ROUNDS: usize = 4;

impl Manager {
    /// Takes flows out of hardware at once: those of queue pairs that are not admitted any more, say. What hardware did
    /// for them is in the debits that come back, and not in those of the next [`reconcile`](Self::reconcile).
    pub fn withdraw_all<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        chosen: impl Fn(&FlowSelector) -> bool,
        why: Why,
    ) -> Vec<Debit> {
        self.withdraw_those(back_end, |flow| chosen(&flow.selector), why)
    }

    /// Keeps flows in software that an operator wants in hardware and that may not be there: those of queue pairs that are not admitted,
    /// say. They are looked at again after `retry_ns`.
    pub fn hold_back(&mut self, chosen: impl Fn(&FlowSelector) -> bool, why: Why, now_ns: u64) {
        let later = now_ns + self.policy.retry_ns;
        let pinned = self.flows.iter_mut().filter(|(_, flow)| flow.pin == Some(Pin::Hardware));
        for (_, OffloadFlow { selector, state, .. }) in pinned {
            if let InstallState::Software { status, not_before_ns } = state
                && now_ns >= *not_before_ns
                && chosen(selector)
            {
                (*status, *not_before_ns) = (Status::Software(why), later);
            }
        }
    }

    /// Takes flows out of hardware that no worker knows any more, but for those that an operator wants there.
    pub fn withdraw_unknown<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        unknown: &HashSet<FlowSelector>,
    ) -> Vec<Debit> {
        let leaves = |flow: &OffloadFlow| flow.pin != Some(Pin::Hardware) && unknown.contains(&flow.selector);
        self.withdraw_those(back_end, leaves, Why::Unknown)
    }

    fn withdraw_those<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        chosen: impl Fn(&OffloadFlow) -> bool,
        why: Why,
    ) -> Vec<Debit> {
        self.time.begin();
        let known = self.debits.len();
        for number in self.installed(chosen) {
            self.withdraw(back_end, number, Status::Software(why), 0);
        }
        self.shut_ways(back_end);
        self.take_off_red(back_end, known);
        self.debits.split_off(known)
    }

    /// Forgets flows that are gone, and where an operator wanted them. Those that still have rules are forgotten when these have
    /// gone.
    pub fn forget(&mut self, is_gone: impl Fn(&FlowSelector) -> bool) {
        let mut gone = Vec::new();
        for (number, flow) in self.flows.iter_mut().filter(|(_, flow)| is_gone(&flow.selector)) {
            (flow.pin, flow.told_ns) = (None, 0);
            if flow.state.installed().is_none() {
                gone.push(number);
            }
        }
        gone.into_iter().for_each(|number| self.flows.remove(number));
    }

    /// Flows that have rules.
    pub(super) fn installed(&mut self, chosen: impl Fn(&OffloadFlow) -> bool) -> Vec<FlowNumber> {
        let installed = |flow: &OffloadFlow| flow.state.installed().is_some() && chosen(flow);
        self.flows.iter_mut().filter(|(_, flow)| installed(flow)).map(|(number, _)| number).collect()
    }

    /// After a change of policy, topology, locations or limits: chains that are refused now go at once, and so do those that
    /// would match other packets, to come again. Those that differ are changed in place: as many as there is time for, and
    /// the others in the next turns, or when [`settle_all`](Self::settle_all) is called.
    pub fn follow<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables) {
        self.time.begin();
        self.stale.clear();
        let mut turn = Turn::default();
        let mut differ = Vec::new();
        for number in self.installed(|_| true) {
            match self.change(back_end, tables, &mut turn, number, true) {
                Ok(true) => {}
                Ok(false) => differ.push(number),
                Err(status) => self.leave_at_once(back_end, number, &status),
            }
        }
        self.stale = differ;
        // What is replaced goes behind it, and takes as long again.
        self.change_until(back_end, tables, turn, Some(Work::Gates));
        if self.store.poll(back_end) {
            self.withdraw_failed(back_end, self.last_ns);
        }
        self.shut_ways(back_end);
        self.merge(tables);
    }

    /// Changes all chains that [`follow`](Self::follow) had no time for.
    pub fn settle_all<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables) {
        self.change_until(back_end, tables, Turn::default(), None);
        if self.store.poll(back_end) {
            self.withdraw_failed(back_end, self.last_ns);
        }
        self.shut_ways(back_end);
    }

    /// Goes on where [`follow`](Self::follow) had no time left.
    pub(super) fn change_stale<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables) {
        if !self.stale.is_empty() {
            self.change_until(back_end, tables, Turn::default(), Some(Work::Changes));
        }
    }

    fn change_until<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        tables: &Tables,
        mut turn: Turn,
        until: Option<Work>,
    ) {
        let mut stale = std::mem::take(&mut self.stale).into_iter();
        let mut any = false;
        for number in stale.by_ref() {
            if any && until.is_some_and(|work| self.time.is_over(work)) {
                self.stale.push(number);
                break;
            }
            any = true;
            if let Err(status) = self.change(back_end, tables, &mut turn, number, false) {
                self.leave_at_once(back_end, number, &status);
            }
        }
        self.stale.extend(stale);
        self.end(back_end, turn);
    }

    fn leave_at_once<B: BackEnd>(&mut self, back_end: &mut B, number: FlowNumber, status: &Status) {
        self.refused(status);
        self.withdraw(back_end, number, status.clone(), 0);
    }

    /// Rules that the device was asked to let go, so far.
    pub fn removals(&self) -> u64 {
        self.store.removals()
    }

    /// Waits until the device has let go what was withdrawn, for as long as it answers and [`BackEnd::drain`] waits. What it keeps has
    /// others leave. [`leaving`](Self::leaving) tells what it has not answered, [`forwarding`](Self::forwarding) what it keeps in force.
    pub fn await_removals<B: BackEnd>(&mut self, back_end: &mut B) {
        for _ in 0..ROUNDS {
            if self.store.leaving() == 0 {
                break;
            }
            let answers = !back_end.drain().is_err_and(|error| error.cause == Cause::Again);
            if self.store.poll(back_end) {
                self.withdraw_failed(back_end, self.last_ns);
            }
            self.shut_ways(back_end);
            if !answers {
                break;
            }
        }
    }

    /// A gate that the device does not let go leads to its adjacency. Packets of a flow that was withdrawn would go on where
    /// other flows hold that open: those leave, too, and come back by an adjacency with another number.
    pub(super) fn shut_ways<B: BackEnd>(&mut self, back_end: &mut B) {
        self.store.ask_again(back_end, false);
        loop {
            let ways = self.store.ways_kept();
            if ways.is_empty() {
                break;
            }
            let leads_there = |flow: &OffloadFlow| {
                flow.state.installed().is_some_and(|installed| ways.contains(&installed.facts.adjacency))
            };
            for number in self.installed(leads_there) {
                self.withdraw(back_end, number, Status::Software(Why::Cold), 0);
            }
        }
        self.counters.kept += self.store.newly_kept();
    }

    /// Flows that rules do not tell apart any more are forgotten, and the pin of one holds for what they are now.
    fn merge(&mut self, tables: &Tables) {
        let mut merged = Vec::new();
        for (number, flow) in self.flows.iter_mut() {
            let now = flow.selector.canonical(tables);
            if now != flow.selector && flow.state.installed().is_none() {
                merged.push((number, now, flow.pin));
            }
        }
        for (number, selector, pin) in merged {
            self.flows.remove(number);
            if pin.is_some() {
                self.pin(selector, pin, self.last_ns);
            }
        }
    }

    /// Has a chain do what the tables say. False when it `may_wait`, and that takes calls of the device. What may be in the wrong
    /// hands if it goes on as it did never waits: only a tunnel of the same network that leads elsewhere does, or another way to
    /// the same adjacency.
    fn change<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        tables: &Tables,
        turn: &mut Turn,
        number: FlowNumber,
        may_wait: bool,
    ) -> Result<bool, Status> {
        let inside = self.flows.at(number).filter(|flow| flow.state.installed().is_some());
        let Some(selector) = inside.map(|flow| flow.selector) else { return Ok(true) };
        let plan = self.translator.plan(tables, &selector).map_err(Status::Refused)?;
        let due = turn.due(tables, &plan).inspect_err(|_| self.translator.forget(&plan.facts));
        let due = due.map_err(Status::Refused)?;
        let installed = self.flows.at(number).and_then(|flow| flow.state.installed());
        let waits = |installed: &InstalledChain| {
            let store = &self.store;
            let is_as_it_was = due.is_there(store) && store.has_own(installed, &due.own);
            let leads_there =
                due.leads_there(store) || plan.enters_tunnel() && store.enters_tunnel(installed);
            installed.facts == plan.facts && leads_there && !is_as_it_was
        };
        if may_wait && installed.is_some_and(waits) {
            self.translator.forget(&plan.facts);
            return Ok(false);
        }
        let made = self.bundles(back_end, turn, &plan, due);
        let made = made.map_err(|error| Status::RefusedByDevice(error.to_string()));
        let made = made.inspect_err(|_| self.translator.forget(&plan.facts));
        let Renewed { bundles, own, changed } = made?;
        let Some(installed) = self.flows.at_mut(number).and_then(|flow| flow.state.installed_mut()) else {
            return Ok(true);
        };
        let update = self.store.update(back_end, installed, bundles, own, &plan.facts);
        match update.map_err(|error| Status::RefusedByDevice(error.to_string()))? {
            Update::Other => {
                self.withdraw(back_end, number, Status::Software(Why::Cold), 0);
                self.translator.forget(&plan.facts);
            }
            Update::Changed => self.counters.updated += 1,
            Update::Same => self.counters.updated += u64::from(changed),
        }
        Ok(true)
    }

    /// Compares with the device, and puts back what it has lost. Packets that met half a chain went to software: the
    /// gates of such chains are shut, and opened in a gap as at first. What those packets were counted twice, by the
    /// gate and by software, nobody can tell.
    ///
    /// # Errors
    /// The device's, when it does not take a rule again.
    pub fn audit<B: BackEnd>(&mut self, back_end: &mut B) -> Result<usize, FlowError> {
        self.store.ask_again(back_end, true);
        self.store.begin_audit();
        self.found_lost = 0;
        self.audit_part(back_end, None).unwrap_or(Ok(0))
    }

    /// Goes on with an audit as long as a turn may take, or begins one: what it came to, once it is through. `None`: there is
    /// more to compare.
    pub fn go_on_with_audit<B: BackEnd>(&mut self, back_end: &mut B) -> Option<Result<usize, FlowError>> {
        self.time.begin();
        self.audit_part(back_end, Some(Work::Rules))
    }

    pub(super) fn audit_part<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        until: Option<Work>,
    ) -> Option<Result<usize, FlowError>> {
        let time = &self.time;
        let is_over = || until.is_some_and(|work| time.is_over(work));
        let (lost, is_through) = self.store.audit_until(back_end, is_over);
        let repaired = if lost > 0 { self.put_back(back_end, lost) } else { Ok(()) };
        self.found_lost += lost;
        if let Err(error) = repaired {
            self.found_lost = 0;
            return Some(Err(error));
        }
        is_through.then(|| Ok(std::mem::take(&mut self.found_lost)))
    }

    /// Makes rules again that were lost.
    fn put_back<B: BackEnd>(&mut self, back_end: &mut B, lost: usize) -> Result<(), FlowError> {
        let now_ns = self.last_ns;
        let mut settled = Vec::new();
        for (number, flow) in self.flows.iter_mut() {
            let rules = flow.state.installed().map(|installed| self.store.state(installed));
            if !matches!(rules, Some(RuleState::Failed(error)) if error.cause == Cause::Gone) {
                continue;
            }
            let was_inside = matches!(flow.state, InstallState::Hardware(_));
            let nothing = InstallState::software(Status::Software(Why::Cold));
            let state = std::mem::replace(&mut flow.state, nothing);
            let Some(mut installed) = state.into_installed() else { continue };
            let usage = self.store.close(back_end, &mut installed);
            settled.push((number, usage, was_inside, installed.facts));
            flow.state = InstallState::Preparing(installed, now_ns);
            self.coming.push(number);
        }
        for (number, usage, was_inside, facts) in settled {
            self.settle(number, usage, was_inside, &facts);
        }
        self.shut_ways(back_end);
        let repaired = self.store.repair(back_end);
        self.counters.repaired += lost as u64;
        repaired
    }

    /// Switches offload on or off; off takes effect with the next calls of [`reconcile`](Self::reconcile), as they have time.
    pub fn switch(&mut self, on: bool) {
        self.on = on;
    }

    /// The device is gone, and all rules with it: everything is in software. What it had counted since the last
    /// [`reconcile`](Self::reconcile) nobody knows.
    pub fn lost(&mut self) {
        self.store = RuleStore::default();
        self.translator = Translator::default();
        self.classes = Classes::default();
        self.coming.clear();
        self.stale.clear();
        for (_, flow) in self.flows.iter_mut() {
            self.counters.withdrawn += u64::from(matches!(flow.state, InstallState::Hardware(_)));
            flow.state = InstallState::software(Status::Software(Why::Off));
            flow.meter = RateEstimator::elsewhere(self.last_ns, Rate::default());
        }
    }
}
