//! Rules that are made by hand, and what holds them.

use std::collections::BTreeMap;

use pmd::Flows;
use rules::{BackEnd, FlowRule, RuleId, testpmd::Encaps};

use crate::switch::Switch;
use crate::switch::offload::Simulated;

/// What is remembered of rules that are made by hand.
#[derive(Debug, Default)]
pub struct ManualRules {
    /// Headers for `raw_encap` that consoles call by number.
    pub(super) encaps: Encaps,
    /// Rules by port.
    ports: BTreeMap<u16, OnPort>,
}

/// The rules of one port, while it is the same port.
#[derive(Debug)]
pub(super) struct OnPort {
    holder: Holder,
    pub(super) rules: BTreeMap<RuleId, FlowRule>,
}

/// What holds the rules of a port.
#[derive(Clone, Debug)]
enum Holder {
    Driver(Flows),
    /// The simulated e-switch that it is on, by the port that it is there.
    Simulated(Simulated, Flows),
}

impl Holder {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Driver(flows), Self::Driver(others)) => flows.same_port(others),
            (Self::Simulated(_, flows), Self::Simulated(_, others)) => flows.same_port(others),
            _ => false,
        }
    }
}

impl ManualRules {
    /// The rules of an attached port; those of an earlier port of its number are forgotten. Nothing when it is gone.
    pub(super) fn on_port(&mut self, switch: &Switch, index: u16) -> Option<&mut OnPort> {
        let flows = switch.ports().get(index)?.port.flows();
        let offload = switch.offload();
        let holder = match offload.simulated().filter(|_| offload.has(index)) {
            Some(device) => Holder::Simulated(device.clone(), flows),
            None => Holder::Driver(flows),
        };
        let fresh = || OnPort { holder: holder.clone(), rules: BTreeMap::new() };
        let known = self.ports.entry(index).or_insert_with(fresh);
        if !known.holder.is(&holder) {
            *known = fresh();
        }
        Some(known)
    }
}

impl OnPort {
    pub(super) fn back_end(&mut self) -> &mut dyn BackEnd {
        match &mut self.holder {
            Holder::Driver(flows) => flows,
            Holder::Simulated(device, _) => device,
        }
    }
}
