//! Chains in the store: installed, opened and shut, changed, removed.

use super::{Bundle, Bundles, RuleState, RuleStore, SharedNumber, SharedRule, hash_of};
use crate::offload::translate::{Chain, ChainFacts};
use rules::{Action, ArrivalCount, BackEnd, Cause, FlowError, FlowRule, Guard, RuleId, Usage, Where};

/// The last rule of a chain.
#[derive(Debug)]
enum Gate {
    /// Not made yet, or taken away again: packets of the flow go to software.
    Due(FlowRule),
    Made(SharedNumber),
    /// Neither: in the middle of a change.
    None,
}

/// A chain that was installed. To be given back to [`RuleStore::remove`].
#[derive(Debug)]
pub struct InstalledChain {
    bundles: Bundles,
    /// The rule of its own in front of the gate, where there is one.
    aside: Option<SharedNumber>,
    gate: Gate,
    /// Facts of the flow.
    pub facts: ChainFacts,
}

impl InstalledChain {
    /// The gate, once it is made.
    fn made(&self) -> Option<SharedNumber> {
        match self.gate {
            Gate::Made(number) => Some(number),
            Gate::Due(_) | Gate::None => None,
        }
    }

    /// What software would have counted.
    fn inner(&self, usage: Usage) -> Usage {
        super::inner(usage, self.facts.tunnel_len)
    }
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

impl RuleStore {
    /// Makes all rules of a chain. The back end puts them into force in order.
    ///
    /// A chain that takes the place of another is installed before that one is removed: what both need stays.
    ///
    /// # Errors
    /// The back end's; nothing of the chain is left then.
    pub fn install<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        chain: Chain,
    ) -> Result<InstalledChain, FlowError> {
        let mut installed = self.prepare(back_end, chain)?;
        match self.make_gate(back_end, &mut installed, None) {
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
        chain: Chain,
    ) -> Result<InstalledChain, FlowError> {
        let adjacencies = self.bundle(back_end, chain.adjacencies, None, 0)?.0;
        let path = match self.bundle(back_end, chain.path, chain.meter, chain.facts.tunnel_len) {
            Ok((path, _)) => path,
            Err(error) => {
                self.drop_bundle(back_end, adjacencies);
                return Err(error);
            }
        };
        let bundles = Bundles { adjacencies, path };
        let installed = self.assemble(back_end, bundles, chain.own, chain.facts);
        self.drop_bundles(back_end, bundles);
        installed
    }

    /// A chain of bundles and rules of its own, the last of which is its gate, to be made later.
    ///
    /// # Errors
    /// The back end's; nothing of the chain is left then but for the bundles.
    pub fn assemble<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        bundles: Bundles,
        mut own: Vec<FlowRule>,
        facts: ChainFacts,
    ) -> Result<InstalledChain, FlowError> {
        let gate = own.pop().map_or(Gate::None, Gate::Due);
        let aside = own.pop().map(|rule| self.take(back_end, rule, None)).transpose();
        let aside = aside.map_err(|(error, _)| error)?;
        self.use_bundles(bundles);
        self.gates_due += 1;
        Ok(InstalledChain { bundles, aside: aside.map(|(number, _)| number), gate, facts })
    }

    /// Makes the gate of a chain: packets may come. With a count of arrivals only if none of its packets came to software since:
    /// else the gate fails with [`Cause::Again`], and can be [closed](Self::close) and made anew.
    ///
    /// # Errors
    /// The back end's; the gate can be made later. [`Cause::Exists`] while another chain has that gate: each of the two
    /// would count what the packets of both are.
    pub fn open<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        installed: &mut InstalledChain,
        arrivals: Option<ArrivalCount>,
    ) -> Result<(), FlowError> {
        if let Gate::Due(rule) = &installed.gate
            && self.find(hash_of(rule), rule).is_some()
        {
            let message = "the same packets are those of another flow in hardware";
            return Err(FlowError::new(Cause::Exists, Where::Handle, message));
        }
        self.make_gate(back_end, installed, arrivals)
    }

    fn make_gate<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        installed: &mut InstalledChain,
        arrivals: Option<ArrivalCount>,
    ) -> Result<(), FlowError> {
        let guard = arrivals.map(|arrivals| Guard { flow: installed.facts.flow, arrivals });
        match std::mem::replace(&mut installed.gate, Gate::None) {
            Gate::Due(rule) => match self.take(back_end, rule, guard.as_ref()) {
                Ok((number, _)) => {
                    installed.gate = Gate::Made(number);
                    self.gates_due -= 1;
                }
                Err((error, rule)) => {
                    installed.gate = Gate::Due(rule);
                    return Err(error);
                }
            },
            gate => installed.gate = gate,
        }
        Ok(())
    }

    /// Takes the gate of a chain away, as it was before [`open`](Self::open). What it had seen, as software would have
    /// counted it.
    pub fn close<B: BackEnd>(&mut self, back_end: &mut B, installed: &mut InstalledChain) -> Usage {
        let Gate::Made(number) = installed.gate else { return Usage::default() };
        let Some(shared) = self.rules.at(number) else { return Usage::default() };
        installed.gate = Gate::Due(shared.rule.clone());
        self.gates_due += 1;
        let seen = self.leave(back_end, number, Some(installed.facts.adjacency));
        installed.inner(seen)
    }

    /// Has an installed chain do what its new translation says, if that matches the same packets: a location that
    /// moved, say.
    ///
    /// # Errors
    /// The back end's; some rules may do the new thing then.
    pub fn update<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        installed: &mut InstalledChain,
        bundles: Bundles,
        mut own: Vec<FlowRule>,
        facts: &ChainFacts,
    ) -> Result<Update, FlowError> {
        let numbers = |bundle: Bundle| self.bundles.at(bundle.0).map(|rules| &rules.numbers);
        let same_bundles = numbers(bundles.adjacencies) == numbers(installed.bundles.adjacencies)
            && numbers(bundles.path) == numbers(installed.bundles.path);
        let (Some(gate), aside) = (own.pop(), own.pop()) else { return Ok(Update::Other) };
        let matches = |rule: &FlowRule, known: Option<&FlowRule>| {
            known.is_some_and(|known| known.attr == rule.attr && known.pattern == rule.pattern)
        };
        let known = |number: SharedNumber| self.rules.at(number).map(|shared| &shared.rule);
        let same_aside = match &aside {
            None => installed.aside.is_none(),
            Some(rule) => matches(rule, installed.aside.and_then(known)),
        };
        let known_gate = match &installed.gate {
            Gate::Due(rule) => Some(rule),
            Gate::Made(number) => known(*number),
            Gate::None => None,
        };
        if !same_bundles || !same_aside || !matches(&gate, known_gate) || *facts != installed.facts {
            return Ok(Update::Other);
        }
        let mut changed = false;
        if let (Some(number), Some(rule)) = (installed.aside, aside) {
            changed |= self.replace(back_end, number, rule, None).map_err(|(error, _)| error)?;
        }
        match &mut installed.gate {
            Gate::Due(rule) => {
                changed |= *rule != gate;
                *rule = gate;
            }
            Gate::Made(number) => {
                let shared = self.rules.at(*number);
                // A gate that is on its way has a guard, which one in its place would not have.
                let coming =
                    shared.is_some_and(|made| made.state != RuleState::InForce && made.old.is_none());
                if coming && shared.is_some_and(|made| made.rule != gate) {
                    return Ok(Update::Other);
                }
                changed |= self.replace(back_end, *number, gate, None).map_err(|(error, _)| error)?;
            }
            Gate::None => {}
        }
        self.use_bundles(bundles);
        let old = std::mem::replace(&mut installed.bundles, bundles);
        self.drop_bundles(back_end, old);
        Ok(if changed { Update::Changed } else { Update::Same })
    }

    /// True when these are the own rules of a chain, and all that were made are there.
    pub fn has_own(&self, installed: &InstalledChain, own: &[FlowRule]) -> bool {
        let Some((gate, aside)) = own.split_last() else { return false };
        let does = |number: SharedNumber, rule| self.rules.at(number).is_some_and(|known| known.does(rule));
        let has_gate = match &installed.gate {
            Gate::Due(rule) => rule == gate,
            Gate::Made(number) => does(*number, gate),
            Gate::None => false,
        };
        let has_aside = match (installed.aside, aside) {
            (None, []) => true,
            (Some(number), [rule]) => does(number, rule),
            _ => false,
        };
        has_gate && has_aside
    }

    /// True for a chain that puts its packets into a tunnel.
    pub fn enters_tunnel(&self, installed: &InstalledChain) -> bool {
        let rules = self.bundles.at(installed.bundles.adjacencies.0).map(|rules| &rules.numbers);
        let rules = rules.into_iter().flatten().filter_map(|number| self.rules.at(*number));
        let enters = |action: &Action| matches!(action, Action::RawEncap(_));
        rules.into_iter().any(|known| known.rule.actions.iter().any(enters))
    }

    fn use_bundles(&mut self, bundles: Bundles) {
        for bundle in [bundles.adjacencies, bundles.path] {
            if let Some(rules) = self.bundles.at_mut(bundle.0) {
                rules.users += 1;
            }
        }
    }

    fn drop_bundles<B: BackEnd>(&mut self, back_end: &mut B, bundles: Bundles) {
        self.drop_bundle(back_end, bundles.path);
        self.drop_bundle(back_end, bundles.adjacencies);
    }

    /// How far a chain is: in force when all of its rules that were made are.
    pub fn state(&self, installed: &InstalledChain) -> RuleState {
        let Bundles { adjacencies, path } = installed.bundles;
        let bundles = [adjacencies, path].map(|bundle| self.bundles.at(bundle.0));
        let mut all = self.state_of(installed.aside.into_iter().chain(installed.made()));
        for rules in bundles.into_iter().flatten() {
            // Chains that share a bundle look at its rules once.
            if matches!(all, RuleState::Failed(_)) || rules.settled.get() == self.changes + 1 {
                continue;
            }
            match self.state_of(rules.numbers.iter().copied()) {
                RuleState::InForce => rules.settled.set(self.changes + 1),
                state => all = state,
            }
        }
        all
    }

    fn state_of(&self, rules: impl Iterator<Item = SharedNumber>) -> RuleState {
        let mut all = RuleState::InForce;
        for number in rules {
            match self.rules.at(number).map(|shared| &shared.state) {
                Some(RuleState::InForce) | None => {}
                Some(RuleState::Waiting) => all = RuleState::Waiting,
                Some(failed) => return failed.clone(),
            }
        }
        all
    }

    /// Removes the rules of a chain that no other chain needs. What its gate had seen, as software would have counted
    /// it; of one that stays for another chain, that one's removal tells.
    pub fn remove<B: BackEnd>(&mut self, back_end: &mut B, installed: InstalledChain) -> Usage {
        let usage = match installed.gate {
            Gate::Made(number) => self.leave(back_end, number, Some(installed.facts.adjacency)),
            Gate::Due(_) | Gate::None => {
                self.gates_due -= 1;
                Usage::default()
            }
        };
        if let Some(number) = installed.aside {
            self.leave(back_end, number, None);
        }
        self.drop_bundles(back_end, installed.bundles);
        installed.inner(usage)
    }

    /// What a chain has seen, as software would have counted it.
    ///
    /// # Errors
    /// The back end's: [`Cause::Again`] while it is not in force, [`Cause::Gone`] when the counting rule was lost.
    pub fn query<B: BackEnd>(
        &self,
        back_end: &mut B,
        installed: &InstalledChain,
    ) -> Result<Usage, FlowError> {
        let Some(shared) = self.gate(installed) else {
            return Err(FlowError::new(Cause::Again, Where::Handle, "the chain's gate is not made yet"));
        };
        let seen = back_end.query(shared.old.unwrap_or(shared.id))?;
        Ok(installed.inner(super::add(shared.before, seen)))
    }

    /// The rule that counts a chain and ages, once it is made.
    pub fn counting(&self, installed: &InstalledChain) -> Option<RuleId> {
        self.gate(installed).map(|shared| shared.id)
    }

    fn gate(&self, installed: &InstalledChain) -> Option<&SharedRule> {
        installed.made().and_then(|number| self.rules.at(number))
    }
}
