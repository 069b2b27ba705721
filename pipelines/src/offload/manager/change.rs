//! What happens to flows in hardware from outside: changes of the tables, lost rules, a lost device, withdrawals.

use super::Manager;
use super::flow::{Flow, Place, Status, Why};
use super::install::{Renewed, Turn};
use super::known::Number;
use super::policy::Debit;
use super::rate::{Meter, Rate};
use super::red::Classes;
use crate::offload::store::{State, Store, Update};
use crate::offload::translate::{Ask, Tables, Translator};
use rules::{BackEnd, Cause, FlowError};

impl Manager {
    /// Takes flows out of hardware at once: those of queue pairs that are not admitted any more, say. What hardware did
    /// for them is in the debits that come back, and not in those of the next [`reconcile`](Self::reconcile).
    pub fn withdraw_all<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        chosen: impl Fn(&Ask) -> bool,
        why: Why,
    ) -> Vec<Debit> {
        let known = self.debits.len();
        for number in self.installed(|flow| chosen(&flow.ask)) {
            self.withdraw(back_end, number, Status::Software(why), 0);
        }
        self.take_off_red(back_end, known);
        self.debits.split_off(known)
    }

    /// Flows that have rules.
    pub(super) fn installed(&mut self, chosen: impl Fn(&Flow) -> bool) -> Vec<Number> {
        let installed = |flow: &Flow| flow.place.installed().is_some() && chosen(flow);
        self.flows.iter_mut().filter(|(_, flow)| installed(flow)).map(|(number, _)| number).collect()
    }

    /// After a change of policy, topology, locations or limits: chains that are refused now go at once, those that
    /// differ are changed in place, those that would match other packets go, and come again.
    pub fn follow<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables) {
        let mut turn = Turn::default();
        for number in self.installed(|_| true) {
            if let Err(status) = self.change(back_end, tables, &mut turn, number) {
                self.refused(&status);
                self.withdraw(back_end, number, status, 0);
            }
        }
        self.end(back_end, turn);
        if self.store.hear(back_end) {
            self.withdraw_failed(back_end, self.last_ns);
        }
    }

    fn change<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        tables: &Tables,
        turn: &mut Turn,
        number: Number,
    ) -> Result<(), Status> {
        let Some(ask) = self.flows.at(number).map(|flow| flow.ask) else { return Ok(()) };
        let plan = self.translator.plan(tables, &ask).map_err(Status::Refused)?;
        let made = self.renew(back_end, tables, turn, &plan);
        if made.is_err() {
            self.translator.forget(&plan.about);
        }
        let Renewed { bundles, own, changed } = made?;
        let Some(installed) = self.flows.at_mut(number).and_then(|flow| flow.place.installed_mut()) else {
            return Ok(());
        };
        let update = self.store.update(back_end, installed, bundles, own, &plan.about);
        match update.map_err(|error| Status::RefusedByDevice(error.to_string()))? {
            Update::Other => self.withdraw(back_end, number, Status::Software(Why::Cold), 0),
            Update::Changed => self.tally.updated += 1,
            Update::Same => self.tally.updated += u64::from(changed),
        }
        Ok(())
    }

    /// Compares with the device, and puts back what it has lost. Packets that met half a chain went to software: the
    /// gates of such chains are shut, and opened in a gap as at first. What those packets were counted twice, by the
    /// gate and by software, nobody can tell.
    ///
    /// # Errors
    /// The device's, when it does not take a rule again.
    pub fn audit<B: BackEnd>(&mut self, back_end: &mut B) -> Result<usize, FlowError> {
        let lost = self.store.audit(back_end);
        if lost == 0 {
            return Ok(0);
        }
        let now_ns = self.last_ns;
        let mut settled = Vec::new();
        for (number, flow) in self.flows.iter_mut() {
            let state = flow.place.installed().map(|installed| self.store.state(installed));
            if !matches!(state, Some(State::Failed(error)) if error.cause == Cause::Gone) {
                continue;
            }
            let was_inside = matches!(flow.place, Place::Hardware(_));
            let nothing = Place::software(Status::Software(Why::Cold));
            let place = std::mem::replace(&mut flow.place, nothing);
            let Some(mut installed) = place.into_installed() else { continue };
            let usage = self.store.close(back_end, &mut installed);
            settled.push((number, usage, was_inside, installed.about.leaf));
            flow.place = Place::Preparing(installed, now_ns);
            self.coming.push(number);
        }
        for (number, usage, was_inside, leaf) in settled {
            self.settle(number, usage, was_inside, leaf);
        }
        let repaired = self.store.repair(back_end);
        self.tally.repaired += lost as u64;
        repaired.map(|()| lost)
    }

    /// Switches offload on or off; off takes effect with the next [`reconcile`](Self::reconcile).
    pub fn switch(&mut self, on: bool) {
        self.on = on;
    }

    /// The device is gone, and all rules with it: everything is in software. What it had counted since the last
    /// [`reconcile`](Self::reconcile) nobody knows.
    pub fn lost(&mut self) {
        self.store = Store::default();
        self.translator = Translator::default();
        self.classes = Classes::default();
        self.coming.clear();
        for (_, flow) in self.flows.iter_mut() {
            self.tally.withdrawn += u64::from(matches!(flow.place, Place::Hardware(_)));
            flow.place = Place::software(Status::Software(Why::Off));
            flow.meter = Meter::elsewhere(self.last_ns, Rate::default());
        }
    }
}
