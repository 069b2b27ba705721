//! Which flows are in hardware: the hot ones, while they are.
//!
//! ```text
//!   samples of NFT and RCFT -> hot? -> translate -> prepare -> [gap] -> gate -> hardware -> cold, aged, changed -> out
//!                                                                                  |
//!                                                      debits for NFT, RCFT, DHTB <+
//! ```
//! Runs on control, never on a worker, and knows the time only as it is told. It counts nothing twice: samples are what
//! the tables say in all, debits of hardware included, and only the speed of a flow in software is read off them.

mod flow;
mod policy;
mod rate;

pub use flow::{Pin, Status, Why};
pub use policy::{Debit, Policy, Sample, States, Tally};
pub use rate::Rate;

use std::collections::{BTreeMap, HashMap};

use super::store::{State, Store, Update};
use super::translate::{self, Ask, Chain, Tables, Translator};
use super::{BackEnd, Cause, FlowError, RuleId, Stamp, Usage};
use crate::flow_key::FlowKey;
use crate::qos::Leaf;
use flow::{Flow, Place};
use rate::Meter;

/// Decides which flows are in hardware, and keeps them there.
pub struct Manager {
    policy: Policy,
    on: bool,
    flows: HashMap<Ask, Flow>,
    by_gate: HashMap<RuleId, Ask>,
    translator: Translator,
    store: Store,
    tally: Tally,
    refusals: BTreeMap<String, u64>,
    debits: Vec<Debit>,
    /// Rules that may be made now, in billionths, and when that was found.
    allowance: u128,
    last_ns: u64,
    /// With so many rules the device was full, and until when that is believed.
    full: Option<(usize, u64)>,
}

/// Reasons that refusals are counted by; those beyond are counted together.
const REASONS: usize = 100;
/// Rules that may be made at once after a quiet time, at least: a chain has no more.
const BURST: u64 = 64;
const NANO: u128 = 1_000_000_000;

impl Manager {
    /// With no flow in hardware.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            on: true,
            flows: HashMap::new(),
            by_gate: HashMap::new(),
            translator: Translator::default(),
            store: Store::default(),
            tally: Tally::default(),
            refusals: BTreeMap::new(),
            debits: Vec::new(),
            allowance: 0,
            last_ns: 0,
            full: None,
        }
    }

    /// What has happened so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Rules in use.
    pub fn rules(&self) -> usize {
        self.store.len()
    }

    /// Ways and gates known: with the rules, what would grow if something were left behind.
    pub fn ways_and_gates(&self) -> (usize, usize) {
        (self.translator.ways(), self.by_gate.len())
    }

    /// All flows: where they are, and how fast.
    pub fn flows(&self) -> impl Iterator<Item = (&Ask, Status, Rate)> {
        self.flows.iter().map(|(ask, flow)| (ask, flow.status(), flow.rate()))
    }

    /// Where a flow is, and why; of a flow of queue pairs, where they are.
    pub fn why(&self, key: &FlowKey) -> Status {
        let of_key = self.flows.iter().filter(|(ask, _)| ask.key == *key);
        let all = of_key.map(|(_, flow)| flow.status()).reduce(Status::with);
        all.unwrap_or(Status::Software(Why::Cold))
    }

    /// How many flows are where.
    pub fn states(&self) -> States {
        let mut flows: HashMap<FlowKey, Status> = HashMap::new();
        for (ask, flow) in &self.flows {
            let status = flow.status();
            let status = match flows.remove(&ask.key) {
                Some(other) => other.with(status),
                None => status,
            };
            flows.insert(ask.key, status);
        }
        let mut states = States::default();
        for status in flows.values() {
            let count = match status {
                Status::Software(_) => &mut states.software,
                Status::Installing => &mut states.installing,
                Status::Hardware => &mut states.hardware,
                Status::Partial => &mut states.partial,
                Status::Refused(_) | Status::RefusedByDevice(_) => &mut states.refused,
            };
            *count += 1;
        }
        states
    }

    /// Refusals so far by reason, ours and the device's, most frequent first.
    pub fn refusals(&self) -> Vec<(String, u64)> {
        let mut refusals: Vec<_> = self.refusals.iter().map(|(reason, n)| (reason.clone(), *n)).collect();
        refusals.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        refusals
    }

    fn refused(&mut self, status: &Status) {
        let (tally, reason) = match status {
            Status::Refused(refusal) => (&mut self.tally.refused, refusal.to_string()),
            Status::RefusedByDevice(words) => (&mut self.tally.refused_by_device, words.clone()),
            _ => return,
        };
        *tally += 1;
        let known = self.refusals.len() < REASONS || self.refusals.contains_key(&reason);
        *self.refusals.entry(if known { reason } else { "others".into() }).or_default() += 1;
    }

    /// Says where a flow has to be; `None`: where it belongs. Takes effect with the next [`sync`](Self::sync).
    pub fn pin(&mut self, ask: Ask, pin: Option<Pin>, now_ns: u64) {
        let fresh = || Flow::new(Meter::begin(0, 0, now_ns, Rate::default()), now_ns);
        let flow = self.flows.entry(ask).or_insert_with(fresh);
        flow.pin = pin;
        if let Place::Software { not_before_ns, .. } = &mut flow.place {
            *not_before_ns = 0;
        }
    }

    /// Looks at everything once, to be called every 100 ms or so. What hardware did is in the debits that come back.
    ///
    /// `quiet` says when no packet of a flow is on its way in software: with the count of those that had come there, all
    /// of which have left. The gate of the flow comes into force only while that count stands, so that no packet is
    /// overtaken by a later one. `None` when something may be on its way: the gate stays shut, and is asked for again.
    pub fn sync<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        tables: &Tables,
        samples: &[Sample],
        mut quiet: impl FnMut(&Ask) -> Option<Stamp>,
        now_ns: u64,
    ) -> Vec<Debit> {
        let ns = u128::from(now_ns.saturating_sub(self.last_ns));
        self.last_ns = now_ns;
        let rate = self.policy.rules_per_second;
        let most = u128::from(rate.max(BURST)) * NANO;
        self.allowance = (self.allowance + u128::from(rate) * ns).min(most);

        if self.store.hear(back_end) {
            self.give_up(back_end, now_ns);
        }
        self.listen(samples, now_ns);
        self.collect(back_end, now_ns);
        self.age(back_end);
        self.proceed(back_end, &mut quiet, now_ns);
        self.cool(back_end, now_ns);
        self.pace(back_end, tables);
        if self.on {
            self.heat(back_end, tables, now_ns);
        }
        let forgotten = self.policy.retry_ns;
        self.flows.retain(|_, flow| {
            let idle = now_ns.saturating_sub(flow.told_ns) > forgotten;
            !(idle && flow.pin.is_none() && matches!(flow.place, Place::Software { .. }))
        });
        std::mem::take(&mut self.debits)
    }

    /// Speeds of flows in software.
    fn listen(&mut self, samples: &[Sample], now_ns: u64) {
        for &Sample { ask, packets, bytes } in samples {
            let fresh = || Flow::new(Meter::begin(packets, bytes, now_ns, Rate::default()), now_ns);
            let flow = self.flows.entry(ask).or_insert_with(fresh);
            flow.told_ns = now_ns;
            // Once the gate is made, software may see nothing of a flow that is as hot as before.
            if !matches!(flow.place, Place::Hardware(_) | Place::Opening(..)) {
                flow.meter.read(packets, bytes, now_ns, 0);
            }
        }
    }

    /// Counters of flows in hardware.
    fn collect<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64) {
        let patience = self.policy.refresh_ns;
        let mut lost: Vec<Ask> = Vec::new();
        for (ask, flow) in &mut self.flows {
            let Place::Hardware(installed) = &flow.place else { continue };
            let usage = match self.store.query(back_end, installed) {
                Ok(usage) => usage,
                Err(error) if error.cause == Cause::Gone => {
                    lost.push(*ask);
                    continue;
                }
                Err(_) => continue,
            };
            match flow.meter.read(usage.packets, usage.bytes, now_ns, patience) {
                Some((0, _)) => {}
                Some((packets, bytes)) => {
                    self.debits.push(Debit { ask: *ask, packets, bytes, leaf: installed.leaf })
                }
                None => self.tally.backwards += 1,
            }
        }
        if lost.is_empty() {
            return;
        }
        // Rules are gone behind our back: put back what the device takes.
        if let Err(error) = self.audit(back_end) {
            let words = Status::RefusedByDevice(error.to_string());
            for ask in lost {
                self.refused(&words);
                self.withdraw(back_end, &ask, words.clone(), now_ns + self.policy.retry_ns);
            }
        }
    }

    /// Flows in hardware some rule of which was to be changed and came to nothing leave.
    fn give_up<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64) {
        let mut failed = Vec::new();
        for (ask, flow) in &self.flows {
            if let Place::Hardware(installed) = &flow.place
                && let State::Failed(error) = self.store.state(installed)
            {
                failed.push((*ask, Status::RefusedByDevice(error.to_string())));
            }
        }
        for (ask, words) in failed {
            self.refused(&words);
            self.withdraw(back_end, &ask, words, now_ns + self.policy.retry_ns);
        }
    }

    fn age<B: BackEnd>(&mut self, back_end: &mut B) {
        let mut aged = Vec::new();
        back_end.aged(&mut aged);
        for id in aged {
            match self.by_gate.get(&id).copied() {
                Some(ask) if self.flows.get(&ask).is_some_and(|flow| flow.pin != Some(Pin::Hardware)) => {
                    self.tally.aged += 1;
                    self.withdraw(back_end, &ask, Status::Software(Why::Cold), 0);
                }
                Some(_) => {}
                None => self.tally.strangers += 1,
            }
        }
    }

    /// Flows that are on their way into hardware.
    fn proceed<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        quiet: &mut impl FnMut(&Ask) -> Option<Stamp>,
        now_ns: u64,
    ) {
        let mut failed: Vec<(Ask, Status)> = Vec::new();
        let coming = |place: &Place| matches!(place, Place::Preparing(..) | Place::Opening(..));
        let coming = self.flows.iter().filter(|(_, flow)| coming(&flow.place));
        let mut coming: Vec<_> = coming.map(|(ask, flow)| (flow.rate().packets, *ask)).collect();
        coming.sort_unstable_by_key(hottest);
        for (_, ask) in &coming {
            let Some(flow) = self.flows.get_mut(ask) else { continue };
            let Some(installed) = flow.place.installed() else { continue };
            let state = self.store.state(installed);
            let late = |since_ns: u64| now_ns.saturating_sub(since_ns) > self.policy.install_wait_ns;
            let nothing = || Place::software(Status::Software(Why::Cold));
            flow.place = match (std::mem::replace(&mut flow.place, nothing()), state) {
                (place, State::Waiting) => place,
                // The gap was over before the gate was in force: no packet met it.
                (Place::Opening(mut installed, since_ns), State::Failed(error))
                    if error.cause == Cause::Again =>
                {
                    if let Some(gate) = self.store.counting(&installed) {
                        self.by_gate.remove(&gate);
                    }
                    self.store.close(back_end, &mut installed);
                    if late(since_ns) {
                        failed.push((*ask, Status::Software(Why::NoGap)));
                    }
                    Place::Preparing(installed, since_ns)
                }
                (place, State::Failed(error)) => {
                    failed.push((*ask, Status::RefusedByDevice(error.to_string())));
                    place
                }
                (Place::Preparing(mut installed, since_ns), State::InForce) => {
                    let stamp = if self.policy.barrier { quiet(ask) } else { None };
                    if stamp.is_none() && self.policy.barrier {
                        if late(since_ns) {
                            failed.push((*ask, Status::Software(Why::NoGap)));
                        }
                        Place::Preparing(installed, since_ns)
                    } else if let Err(error) = self.store.open(back_end, &mut installed, stamp) {
                        failed.push((*ask, because(&error)));
                        Place::Preparing(installed, since_ns)
                    } else {
                        self.by_gate.extend(self.store.counting(&installed).map(|gate| (gate, *ask)));
                        Place::Opening(installed, since_ns)
                    }
                }
                (Place::Opening(installed, _), State::InForce) => {
                    flow.meter = Meter::begin(0, 0, now_ns, flow.rate());
                    flow.cold_since_ns = None;
                    self.tally.installed += 1;
                    Place::Hardware(installed)
                }
                (place, State::InForce) => place,
            };
        }
        for (ask, status) in failed {
            let later = now_ns + self.policy.retry_ns;
            match status {
                Status::Software(Why::NoRoom) => {
                    self.full = Some((self.store.len(), later));
                    self.withdraw(back_end, &ask, status, 0);
                    continue;
                }
                Status::Software(_) => self.tally.no_gap += 1,
                _ => self.refused(&status),
            }
            self.withdraw(back_end, &ask, status, later);
        }
    }

    /// Flows that have been below half of what makes a flow hot for a while leave.
    fn cool<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64) {
        let policy = self.policy;
        let mut out = Vec::new();
        for (ask, flow) in &mut self.flows {
            let cold = policy.is_cold(flow.rate());
            flow.cold_since_ns = cold.then(|| flow.cold_since_ns.unwrap_or(now_ns));
            let cooled =
                flow.cold_since_ns.is_some_and(|since| now_ns.saturating_sub(since) >= policy.cool_ns);
            match (flow.pin, flow.place.installed().is_some()) {
                (_, false) => {}
                (_, true) if !self.on => out.push((*ask, Why::Off)),
                (Some(Pin::Software), true) => out.push((*ask, Why::Pinned)),
                (Some(Pin::Hardware), true) => {}
                (None, true) if cooled => out.push((*ask, Why::Cold)),
                _ => {}
            }
        }
        out.into_iter().for_each(|(ask, why)| self.withdraw(back_end, &ask, Status::Software(why), 0));
    }

    /// Hot flows in software, hottest first, as many as may come in now.
    fn heat<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables, now_ns: u64) {
        let mut hot: Vec<(u64, Ask)> = Vec::new();
        for (ask, flow) in &mut self.flows {
            let Place::Software { status, not_before_ns } = &mut flow.place else { continue };
            let wanted = match flow.pin {
                Some(Pin::Software) => {
                    *status = Status::Software(Why::Pinned);
                    continue;
                }
                Some(Pin::Hardware) => Some(u64::MAX),
                None => None,
            };
            let rate = flow.meter.rate();
            let is_hot = flow.told_ns == now_ns && self.policy.is_hot(rate);
            if now_ns >= *not_before_ns && (is_hot || wanted.is_some()) {
                hot.push((wanted.unwrap_or(rate.packets), *ask));
            } else if now_ns >= *not_before_ns {
                *status = Status::Software(Why::Cold);
            }
        }
        hot.sort_unstable_by_key(hottest);
        for (packets, ask) in hot {
            self.bring(back_end, tables, ask, packets, now_ns);
        }
    }

    fn bring<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables, ask: Ask, packets: u64, now_ns: u64) {
        let later = now_ns + self.policy.retry_ns;
        let chain = match self.translator.chain(tables, &ask) {
            Ok(chain) => chain,
            Err(refusal) => {
                let status = Status::Refused(refusal);
                self.refused(&status);
                return self.stay(&ask, status, later);
            }
        };
        let needed = self.store.missing(&chain);
        let cost = needed as u128 * NANO;
        if cost > self.allowance {
            self.translator.forget(&chain.way);
            return self.stay(&ask, Status::Software(Why::Turn), 0);
        }
        let way = chain.way;
        // Colder flows give way one after another, until there is room or none is clearly colder.
        while !self.has_room(self.store.missing(&chain), now_ns) {
            if needed > self.most(now_ns) || !self.displace(back_end, packets) {
                self.translator.forget(&way);
                return self.stay(&ask, Status::Software(Why::NoRoom), 0);
            }
        }
        match self.store.prepare(back_end, chain) {
            Ok(installed) => {
                self.allowance -= cost;
                self.translator.hold(&way);
                if let Some(flow) = self.flows.get_mut(&ask) {
                    flow.place = Place::Preparing(installed, now_ns);
                }
            }
            Err(error) => {
                self.translator.forget(&way);
                let status = because(&error);
                if status == Status::Software(Why::NoRoom) {
                    self.full = Some((self.store.len(), later));
                    return self.stay(&ask, status, 0);
                }
                self.refused(&status);
                self.stay(&ask, status, later);
            }
        }
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

    fn stay(&mut self, ask: &Ask, status: Status, not_before_ns: u64) {
        if let Some(flow) = self.flows.get_mut(ask) {
            flow.place = Place::Software { status, not_before_ns };
        }
    }

    /// Takes the coldest flow out of hardware, if it has less than half of these packets a second.
    fn displace<B: BackEnd>(&mut self, back_end: &mut B, packets: u64) -> bool {
        let loose = self.flows.iter().filter(|(_, flow)| flow.pin.is_none());
        let inside = loose.filter(|(_, flow)| matches!(flow.place, Place::Hardware(_)));
        let coldest = inside.map(|(ask, flow)| (flow.rate().packets, *ask)).min_by_key(|(rate, _)| *rate);
        let Some((_, ask)) = coldest.filter(|(rate, _)| *rate < packets / 2) else { return false };
        self.tally.displaced += 1;
        self.withdraw(back_end, &ask, Status::Software(Why::NoRoom), 0);
        true
    }

    /// Takes a flow out of hardware; what that still counted is debited.
    fn withdraw<B: BackEnd>(&mut self, back_end: &mut B, ask: &Ask, status: Status, not_before_ns: u64) {
        let Some(flow) = self.flows.get_mut(ask) else { return };
        let was_inside = matches!(flow.place, Place::Hardware(_));
        let place = std::mem::replace(&mut flow.place, Place::Software { status, not_before_ns });
        let Some(installed) = place.into_installed() else { return };
        if let Some(gate) = self.store.counting(&installed) {
            self.by_gate.remove(&gate);
        }
        let (leaf, way) = (installed.leaf, installed.way);
        let usage = self.store.remove(back_end, installed);
        self.settle(ask, usage, was_inside, leaf);
        self.tally.withdrawn += u64::from(was_inside);
        self.translator.release(&way);
    }

    /// The gate of a flow is shut: what it counted last is debited, and software counts on.
    fn settle(&mut self, ask: &Ask, usage: Usage, was_inside: bool, leaf: Option<Leaf>) {
        let Some(flow) = self.flows.get_mut(ask) else { return };
        let Usage { packets, bytes } = usage;
        let mut rest = if was_inside { flow.meter } else { Meter::default() };
        if let Some((packets, bytes)) = rest.read(packets, bytes, self.last_ns, 0).filter(|more| more.0 > 0) {
            self.debits.push(Debit { ask: *ask, packets, bytes, leaf });
        }
        flow.meter = Meter::elsewhere(self.last_ns, flow.rate());
        flow.cold_since_ns = None;
    }

    /// Takes flows out of hardware at once: those of queue pairs that are not admitted any more, say. What hardware did
    /// for them is in the debits that come back, and not in those of the next [`sync`](Self::sync).
    pub fn withdraw_all<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        chosen: impl Fn(&Ask) -> bool,
        why: Why,
    ) -> Vec<Debit> {
        let known = self.debits.len();
        let out = self.flows.iter().filter(|(ask, flow)| flow.place.installed().is_some() && chosen(ask));
        let out: Vec<Ask> = out.map(|(ask, _)| *ask).collect();
        out.into_iter().for_each(|ask| self.withdraw(back_end, &ask, Status::Software(why), 0));
        self.debits.split_off(known)
    }

    /// After a change of policy, topology, locations or limits: chains that are refused now go at once, those that
    /// differ are changed in place.
    pub fn follow<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables) {
        let inside: Vec<Ask> = self
            .flows
            .iter()
            .filter(|(_, flow)| flow.place.installed().is_some())
            .map(|(ask, _)| *ask)
            .collect();
        for ask in inside {
            match self.translator.chain(tables, &ask) {
                Err(refusal) => {
                    let status = Status::Refused(refusal);
                    self.refused(&status);
                    self.withdraw(back_end, &ask, status, 0);
                }
                Ok(chain) => self.change(back_end, &ask, &chain),
            }
        }
        self.store.hear(back_end);
        self.know_gates();
    }

    /// A chain whose rules match what they matched is changed in place; one that needs others goes, and comes again.
    fn change<B: BackEnd>(&mut self, back_end: &mut B, ask: &Ask, chain: &Chain) {
        let Some(installed) = self.flows.get(ask).and_then(|flow| flow.place.installed()) else { return };
        let update = self.store.update(back_end, installed, chain);
        let same_way = installed.way == chain.way;
        match update {
            Ok(Update::Same) if same_way => {}
            Ok(Update::Changed) if same_way => self.tally.updated += 1,
            Ok(_) => self.withdraw(back_end, ask, Status::Software(Why::Cold), 0),
            Err(error) => {
                let status = Status::RefusedByDevice(error.to_string());
                self.refused(&status);
                self.withdraw(back_end, ask, status, 0);
            }
        }
        self.translator.forget(&chain.way);
    }

    /// Gates by id: a rule that changed or was put back has another.
    fn know_gates(&mut self) {
        let Self { flows, store, by_gate, .. } = self;
        let installed = flows.iter().filter_map(|(ask, flow)| Some((ask, flow.place.installed()?)));
        *by_gate =
            installed.filter_map(|(ask, installed)| Some((store.counting(installed)?, *ask))).collect();
    }

    /// Sets the meters of classes to their shares as they are now.
    fn pace<B: BackEnd>(&mut self, back_end: &mut B, tables: &Tables) {
        for id in self.store.meters() {
            // A class whose share is not known at the moment keeps the one it had.
            if let Ok(meter) = translate::meter(tables, Leaf(id - 1)) {
                self.store.pace(back_end, id, meter);
            }
        }
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
        let failed = |flow: &Flow| {
            let state = flow.place.installed().map(|installed| self.store.state(installed));
            matches!(state, Some(State::Failed(error)) if error.cause == Cause::Gone)
        };
        let affected: Vec<Ask> =
            self.flows.iter().filter(|(_, flow)| failed(flow)).map(|(ask, _)| *ask).collect();
        for ask in affected {
            let Some(flow) = self.flows.get_mut(&ask) else { continue };
            let was_inside = matches!(flow.place, Place::Hardware(_));
            let nothing = Place::software(Status::Software(Why::Cold));
            let Some(mut installed) = std::mem::replace(&mut flow.place, nothing).into_installed() else {
                continue;
            };
            let usage = self.store.close(back_end, &mut installed);
            let leaf = installed.leaf;
            flow.place = Place::Preparing(installed, self.last_ns);
            self.settle(&ask, usage, was_inside, leaf);
            self.tally.withdrawn += u64::from(was_inside);
        }
        let repaired = self.store.repair(back_end);
        self.tally.repaired += lost as u64;
        self.know_gates();
        repaired.map(|()| lost)
    }

    /// Switches offload on or off; off takes effect with the next [`sync`](Self::sync).
    pub fn switch(&mut self, on: bool) {
        self.on = on;
    }

    /// The device is gone, and all rules with it: everything is in software. What it had counted since the last
    /// [`sync`](Self::sync) nobody knows.
    pub fn lost(&mut self) {
        self.store = Store::default();
        self.translator = Translator::default();
        self.by_gate.clear();
        for flow in self.flows.values_mut() {
            if flow.place.installed().is_some() {
                self.tally.withdrawn += 1;
            }
            flow.place = Place::software(Status::Software(Why::Off));
            flow.meter = Meter::elsewhere(self.last_ns, Rate::default());
        }
    }
}

/// What a back end's refusal of a chain means.
fn because(error: &FlowError) -> Status {
    match error.cause {
        Cause::Full => Status::Software(Why::NoRoom),
        _ => Status::RefusedByDevice(error.to_string()),
    }
}

/// Order of flows by packets a second; where they are equal, any that is always the same.
fn hottest((packets, ask): &(u64, Ask)) -> (std::cmp::Reverse<u64>, [u64; 7]) {
    (std::cmp::Reverse(*packets), *ask.key.words())
}
