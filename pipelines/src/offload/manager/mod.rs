//! Which flows are in hardware: the hot ones, while they are.
//!
//! ```text
//!   samples of NFT and RCFT -> hot? -> translate -> prepare -> [gap] -> gate -> hardware -> cold, aged, changed -> out
//!                                                                                  |
//!                                                      debits for NFT, RCFT, DHTB <+
//! ```
//! Runs on control, never on a worker, and knows the time only as it is told. It counts nothing twice: samples are what
//! the tables say in all, debits of hardware included, and only the speed of a flow in software is read off them.
//!
//! However long the device takes for a call, no turn takes much longer than its limit ([`Manager::limit_turns`]), but for what
//! must not wait: flows that may not be in hardware any more leave at once.

mod change;
mod explain;
mod flow;
mod install;
mod known;
mod policy;
mod rate;
mod rates;
mod red;
mod time;

pub use flow::{Pin, Status, Why};
pub use policy::{Debit, FlowSample, ManagerCounters, Policy, States};
pub use rate::Rate;
pub use time::Clock;

use std::collections::{BTreeMap, HashSet};

use super::counter::{Growth, Pace};
use super::store::{RuleState, RuleStore};
use super::translate::{ChainFacts, FlowSelector, Tables, Translator};
use flow::{InstallState, OffloadFlow};
use install::FlowRate;
use known::{FlowNumber, Known};
use rate::RateEstimator;
use rates::RatesDue;
use red::Classes;
use rules::{ArrivalCount, BackEnd, Cause, FlowError, RuleId, Usage, Where};
use time::{TurnTime, Work};

/// Decides which flows are in hardware, and keeps them there.
pub struct Manager {
    policy: Policy,
    on: bool,
    flows: Known,
    /// Flows on their way into hardware.
    coming: Vec<FlowNumber>,
    translator: Translator,
    store: RuleStore,
    counters: ManagerCounters,
    refusals: BTreeMap<String, u64>,
    debits: Vec<Debit>,
    classes: Classes,
    rates_due: Option<RatesDue>,
    /// Rules that may be made now, in billionths, and when that was found.
    allowance: u128,
    last_ns: u64,
    /// Bytes a second that the device's ports carry at most; `None`: that is not known.
    port: Option<u64>,
    /// With so many rules the device was full, and until when that is believed.
    full: Option<(usize, u64)>,
    /// Flows that gave way last made no room, for the device keeps their rules: none does until then.
    displaces_from_ns: u64,
    time: TurnTime,
    /// The flow whose counter is read first in the next turn.
    next_counter: FlowNumber,
    /// Flows in hardware that are still to do what the tables say.
    stale: Vec<FlowNumber>,
    /// Rules that were found lost by the audit that is under way.
    found_lost: usize,
}

/// Rules that may be made at once after a quiet time, at least: a chain has no more.
const BURST: u64 = 64;
const NANO: u128 = 1_000_000_000;
/// Refreshes of the device without a figure of a flow, after which it leaves: nobody pays for it meanwhile.
const SILENT: u64 = 4;

impl Manager {
    /// With no flow in hardware.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            on: true,
            flows: Known::default(),
            coming: Vec::new(),
            translator: Translator::default(),
            store: RuleStore::default(),
            counters: ManagerCounters::default(),
            refusals: BTreeMap::new(),
            debits: Vec::new(),
            classes: Classes::default(),
            rates_due: None,
            allowance: 0,
            last_ns: 0,
            port: None,
            full: None,
            displaces_from_ns: 0,
            time: TurnTime::default(),
            next_counter: 0,
            stale: Vec::new(),
            found_lost: 0,
        }
    }

    /// Says how long a turn may keep its caller waiting for the device, and which clock tells. Without, a turn takes what it
    /// takes.
    pub fn limit_turns(&mut self, clock: Clock, limit_ns: u64) {
        self.time = TurnTime::new(clock, limit_ns);
    }

    /// Says where a flow has to be; `None`: where it belongs. Takes effect with the next [`reconcile`](Self::reconcile).
    pub fn pin(&mut self, selector: FlowSelector, pin: Option<Pin>, now_ns: u64) {
        let fresh =
            || OffloadFlow::new(selector, RateEstimator::begin(0, 0, now_ns, Rate::default()), now_ns);
        let flow = self.flows.entry(selector, fresh);
        flow.pin = pin;
        if let InstallState::Software { not_before_ns, .. } = &mut flow.state {
            *not_before_ns = 0;
        }
    }

    /// Says how many bytes a second the device's ports carry at most: what a counter says beyond twice that is no traffic, and
    /// debits nothing. `None` while that is not known: 800 Gbit/s then.
    pub fn set_port_speed(&mut self, bytes: Option<u64>) {
        self.port = bytes;
    }

    fn pace(&self) -> Pace {
        let known = Pace { now_ns: self.last_ns, refresh_ns: self.policy.refresh_ns, ..Pace::default() };
        Pace { port: self.port.unwrap_or(known.port), ..known }
    }

    /// Looks at everything once, to be called every 100 ms or so. What hardware did is in the debits that come back.
    ///
    /// `quiet` says when no packet of a flow is on its way in software: with the count of those that had come there, all
    /// of which have left. The gate of the flow comes into force only while that count stands, so that no packet is
    /// overtaken by a later one. `None` when something may be on its way: the gate stays shut, and is asked for again.
    pub fn reconcile<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        tables: &Tables,
        samples: &[FlowSample],
        mut quiet: impl FnMut(&FlowSelector) -> Option<ArrivalCount>,
        now_ns: u64,
    ) -> Vec<Debit> {
        self.time.begin();
        let before_ns = std::mem::replace(&mut self.last_ns, now_ns);
        let ns = u128::from(now_ns.saturating_sub(before_ns));
        let rate = self.policy.rules_per_second;
        let most = u128::from(rate.max(BURST)) * NANO;
        self.store.advance(self.pace());
        self.allowance = (self.allowance + u128::from(rate) * ns).min(most);

        if self.store.poll(back_end) {
            self.withdraw_failed(back_end, now_ns);
        }
        self.read_samples(tables, samples, now_ns);
        self.read_counters(back_end, before_ns, now_ns);
        self.withdraw_over_rate(back_end, now_ns);
        self.age(back_end);
        self.proceed(back_end, &mut quiet, now_ns);
        let hot = self.choose_hot(back_end, now_ns);
        self.change_stale(back_end, tables);
        self.set_rates(back_end, tables, now_ns);
        self.install_hot(back_end, tables, hot, now_ns);
        self.shut_ways(back_end);
        self.take_off_red(back_end, 0);
        let ns = u64::try_from(ns).unwrap_or(u64::MAX).min(self.policy.refresh_ns);
        self.expect(tables, now_ns.saturating_add(2 * ns));
        std::mem::take(&mut self.debits)
    }

    /// Goes on with flows that wait for a gap, between two calls of [`reconcile`](Self::reconcile): short gaps are found by
    /// looking often.
    pub fn open_gates<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        mut quiet: impl FnMut(&FlowSelector) -> Option<ArrivalCount>,
        now_ns: u64,
    ) {
        if self.coming.is_empty() {
            return;
        }
        self.time.begin();
        if self.store.poll(back_end) {
            self.withdraw_failed(back_end, now_ns);
        }
        self.proceed(back_end, &mut quiet, now_ns);
        self.shut_ways(back_end);
    }

    /// Speeds of flows in software.
    fn read_samples(&mut self, tables: &Tables, samples: &[FlowSample], now_ns: u64) {
        for &FlowSample { selector, packets, bytes } in samples {
            let selector = selector.canonical(tables);
            let fresh = || {
                OffloadFlow::new(
                    selector,
                    RateEstimator::begin(packets, bytes, now_ns, Rate::default()),
                    now_ns,
                )
            };
            let flow = self.flows.entry(selector, fresh);
            flow.told_ns = now_ns;
            // Once the gate is made, software may see nothing of a flow that is as hot as before.
            if !matches!(flow.state, InstallState::Hardware(_) | InstallState::Opening(..)) {
                flow.meter.read(packets, bytes, now_ns);
            }
        }
    }

    /// Counters of flows in hardware; `before_ns` is when that was done last.
    fn read_counters<B: BackEnd>(&mut self, back_end: &mut B, before_ns: u64, now_ns: u64) {
        let (patience, pace) = (self.policy.refresh_ns, self.pace());
        let (mut lost, mut silent) = (Vec::new(), Vec::new());
        let silence = patience.saturating_mul(SILENT);
        let mut any = false;
        for number in self.flows.numbers(std::mem::take(&mut self.next_counter)) {
            let Some(flow) = self.flows.at_mut(number) else { continue };
            let InstallState::Hardware(installed) = &flow.state else { continue };
            if std::mem::replace(&mut any, true) && self.time.is_over(Work::Counters) {
                self.next_counter = number;
                break;
            }
            let words = match self.store.query(back_end, installed) {
                Ok(usage) => match flow.counter.read(usage, pace) {
                    Growth::By(Usage { packets, bytes }) => {
                        (flow.counted_ns, flow.is_silent) = (now_ns, false);
                        let over_ns = flow.meter.stands_ns(now_ns);
                        flow.meter.rise(packets, bytes, now_ns, patience);
                        if packets > 0 {
                            let ChainFacts { leaf, tunnel_len, link_len, .. } = installed.facts;
                            self.classes.seen(leaf, packets, bytes, tunnel_len);
                            let selector = flow.selector;
                            self.debits.push(Debit { selector, packets, bytes, leaf, link_len, over_ns });
                        }
                        continue;
                    }
                    growth => {
                        self.counters.doubt(growth);
                        "its counter goes back and forth".into()
                    }
                },
                Err(error) if error.cause == Cause::Gone => {
                    lost.push(number);
                    continue;
                }
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut flow.is_silent, true) {
                // For how long it was not asked does not count.
                flow.counted_ns = flow.counted_ns.max(before_ns);
            }
            if now_ns.saturating_sub(flow.counted_ns) > silence {
                let words = format!("the device does not tell what it did: {words}");
                silent.push((number, Status::RefusedByDevice(words)));
            }
        }
        for (number, words) in silent {
            self.leave_refused(back_end, [number], &words, now_ns);
        }
        if lost.is_empty() {
            return;
        }
        // Rules are gone behind our back: put back what the device takes.
        if let Some(Err(error)) = self.audit_part(back_end, Some(Work::Counters)) {
            let words = Status::RefusedByDevice(error.to_string());
            self.leave_refused(back_end, lost, &words, now_ns);
        }
    }

    /// Flows in hardware some rule of which was to be changed and came to nothing leave.
    fn withdraw_failed<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64) {
        let mut failed = Vec::new();
        for (number, flow) in self.flows.iter_mut() {
            if let InstallState::Hardware(installed) = &flow.state
                && let RuleState::Failed(error) = self.store.state(installed)
            {
                failed.push((number, Status::RefusedByDevice(error.to_string())));
            }
        }
        for (number, words) in failed {
            self.leave_refused(back_end, [number], &words, now_ns);
        }
    }

    fn leave_refused<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        flows: impl IntoIterator<Item = FlowNumber>,
        words: &Status,
        now_ns: u64,
    ) {
        for number in flows {
            self.refused(words);
            self.withdraw(back_end, number, words.clone(), now_ns + self.policy.retry_ns);
        }
    }

    fn age<B: BackEnd>(&mut self, back_end: &mut B) {
        let mut aged = Vec::new();
        back_end.aged(&mut aged);
        if aged.is_empty() {
            return;
        }
        let aged: HashSet<RuleId> = aged.into_iter().collect();
        let mut known = HashSet::new();
        for (_, flow) in self.flows.iter_mut() {
            let gate = flow.state.installed().and_then(|installed| self.store.counting(installed));
            let Some(gate) = gate.filter(|gate| aged.contains(gate)) else { continue };
            known.insert(gate);
            flow.is_aged = flow.pin != Some(Pin::Hardware);
        }
        self.counters.unknown_aged += (aged.len() - known.len()) as u64;
    }

    /// Looks at each flow once: those that have aged or been below half of what makes a flow hot for a while leave hardware,
    /// as many as there is time for; those that software does not know any more are forgotten. The hot ones in software, and
    /// how hot.
    fn choose_hot<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64) -> Vec<FlowRate> {
        let Self { policy, on, flows, .. } = self;
        let (mut out, mut hot, mut forgotten) = (Vec::new(), Vec::new(), Vec::new());
        for (number, flow) in flows.iter_mut() {
            let rate = flow.meter.rate();
            let told = flow.told_ns == now_ns;
            let InstallState::Software { status, not_before_ns } = &mut flow.state else {
                let cold = policy.is_cold(rate);
                flow.cold_since_ns = cold.then(|| flow.cold_since_ns.unwrap_or(now_ns));
                let cooled =
                    flow.cold_since_ns.is_some_and(|since| now_ns.saturating_sub(since) >= policy.cool_ns);
                match flow.pin {
                    _ if !*on => out.push((number, Why::Off)),
                    Some(Pin::Software) => out.push((number, Why::Pinned)),
                    None if cooled || flow.is_aged => out.push((number, Why::Cold)),
                    _ => {}
                }
                continue;
            };
            match flow.pin {
                Some(Pin::Software) => *status = Status::Software(Why::Pinned),
                None if now_ns.saturating_sub(flow.told_ns) > policy.retry_ns => forgotten.push(number),
                _ if now_ns < *not_before_ns || !*on => {}
                Some(Pin::Hardware) => hot.push(FlowRate { number, packets: u64::MAX }),
                None if told && policy.is_hot(rate) => hot.push(FlowRate { number, packets: rate.packets }),
                // Whoever took it out said why, and software has not named it since.
                None if !told && matches!(status, Status::Software(Why::NotAdmitted | Why::Unknown)) => {}
                None => *status = Status::Software(Why::Cold),
            }
        }
        forgotten.into_iter().for_each(|number| self.flows.remove(number));
        for (done, (number, why)) in out.into_iter().enumerate() {
            if done > 0 && self.time.is_over(Work::Withdrawals) {
                break;
            }
            let has_aged = self.flows.at(number).is_some_and(|flow| flow.is_aged);
            self.counters.aged += u64::from(has_aged && why == Why::Cold);
            self.withdraw(back_end, number, Status::Software(why), 0);
        }
        hot
    }

    /// Takes a flow out of hardware; what that still counted is debited.
    fn withdraw<B: BackEnd>(
        &mut self,
        back_end: &mut B,
        number: FlowNumber,
        status: Status,
        not_before_ns: u64,
    ) {
        let Some(flow) = self.flows.at_mut(number) else { return };
        let was_inside = matches!(flow.state, InstallState::Hardware(_));
        let state = std::mem::replace(&mut flow.state, InstallState::Software { status, not_before_ns });
        let Some(installed) = state.into_installed() else { return };
        let facts = installed.facts;
        let usage = self.store.remove(back_end, installed);
        self.settle(number, usage, was_inside, &facts);
        self.translator.release(&facts);
    }

    /// The gate of a flow is shut: what it counted last is debited, and software counts on.
    fn settle(&mut self, number: FlowNumber, usage: Usage, was_inside: bool, facts: &ChainFacts) {
        let pace = self.pace();
        let Some(flow) = self.flows.at_mut(number) else { return };
        // A gate that met no packet, or that is gone and cannot tell any more.
        if usage != Usage::default() {
            match flow.counter.read(usage, pace) {
                Growth::By(Usage { packets: 0, .. }) => {}
                Growth::By(Usage { packets, bytes }) => {
                    let (selector, over_ns) = (flow.selector, flow.meter.stands_ns(self.last_ns));
                    let ChainFacts { leaf, link_len, .. } = *facts;
                    self.debits.push(Debit { selector, packets, bytes, leaf, link_len, over_ns });
                }
                growth => self.counters.doubt(growth),
            }
        }
        flow.meter = RateEstimator::elsewhere(self.last_ns, flow.meter.rate());
        (flow.cold_since_ns, flow.is_aged) = (None, false);
        self.counters.withdrawn += u64::from(was_inside);
    }
}

/// What a back end's refusal of a chain means. Where it names an item or an action, it has room for rules and lacks what that needs: a
/// meter, say, or a place for a header.
fn because(error: &FlowError) -> Status {
    let is_of_rules = matches!(error.at, Where::Unspecified | Where::Handle | Where::AttrGroup | Where::Attr);
    match error.cause {
        Cause::Full if is_of_rules => Status::Software(Why::NoRoom),
        _ => Status::RefusedByDevice(error.to_string()),
    }
}
