//! Where flows are, and why; what was refused and how often.

use super::Manager;
use super::flow::{Status, Why};
use super::policy::{ManagerCounters, States};
use super::rate::Rate;
use crate::flow_key::FlowKey;
use crate::offload::hasher::Map;
use crate::offload::translate::{FlowSelector, OffloadRefusal};

/// Reasons that refusals are counted by; those beyond are counted together.
const REASONS: usize = 100;

impl Manager {
    /// What has happened so far.
    pub fn counters(&self) -> ManagerCounters {
        self.counters
    }

    /// Rules that the device does not let go, and its words for one of them.
    pub fn kept(&self) -> Option<(usize, &str)> {
        self.store.kept()
    }

    /// Rules that the device was asked to let go, and of which it has not said that they are gone.
    pub fn leaving(&self) -> usize {
        self.store.leaving()
    }

    /// Flows that are forwarded though they were withdrawn: the device lets go neither their gates nor where these lead.
    pub fn forwarding(&self) -> usize {
        self.store.forwarding()
    }

    /// Rules that the back end holds for the manager, those that it does not let go among them.
    pub fn rules(&self) -> usize {
        self.store.len()
    }

    /// Adjacencies and bundles of rules known: with the rules, what would grow if something were left behind.
    pub fn adjacencies_and_bundles(&self) -> (usize, usize) {
        (self.translator.numbered(), self.store.bundles())
    }

    /// All flows: where they are, and how fast.
    pub fn flows(&self) -> impl Iterator<Item = (&FlowSelector, Status, Rate)> {
        self.flows.iter().map(|flow| (&flow.selector, flow.status(), flow.rate()))
    }

    /// Where a flow is, and why; of a flow of queue pairs, where they are.
    pub fn why(&self, key: &FlowKey) -> Status {
        let of_key = self.flows.iter().filter(|flow| flow.selector.key == *key);
        let all = of_key.map(|flow| flow.status()).reduce(Status::with);
        all.unwrap_or(Status::Software(Why::Cold))
    }

    /// How many flows are where.
    pub fn states(&self) -> States {
        let mut flows: Map<FlowKey, Status> = Map::default();
        for flow in self.flows.iter() {
            let status = flow.status();
            let status = match flows.remove(&flow.selector.key) {
                Some(other) => other.with(status),
                None => status,
            };
            flows.insert(flow.selector.key, status);
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

    pub(super) fn refused(&mut self, status: &Status) {
        let (counters, reason) = match status {
            Status::Refused(refusal) => (&mut self.counters.refused, refusal.to_string()),
            Status::RefusedByDevice(words) => (&mut self.counters.refused_by_device, words.clone()),
            _ => return,
        };
        *counters += 1;
        let known = self.refusals.len() < REASONS || self.refusals.contains_key(&reason);
        *self.refusals.entry(if known { reason } else { "others".into() }).or_default() += 1;
    }

    /// The status of a flow that is not to be offloaded, counted.
    pub(super) fn refuse(&mut self, refusal: OffloadRefusal) -> Status {
        let status = Status::Refused(refusal);
        self.refused(&status);
        status
    }
}
