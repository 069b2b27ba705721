//! The flows that the manager knows, by number and by what they are.

use super::flow::OffloadFlow;
use crate::offload::hasher::Map;
use crate::offload::slots::Slots;
use crate::offload::translate::FlowSelector;

/// Number of a flow, used again when the flow is forgotten.
pub type FlowNumber = u32;

/// The flows that software told of and that were not forgotten, each with its number.
#[derive(Default)]
pub struct Known {
    flows: Slots<OffloadFlow>,
    numbers: Map<FlowSelector, FlowNumber>,
}

impl Known {
    /// The flow of a selector, made when there is none.
    pub fn entry(&mut self, selector: FlowSelector, fresh: impl FnOnce() -> OffloadFlow) -> &mut OffloadFlow {
        let Self { flows, numbers } = self;
        let number = *numbers.entry(selector).or_insert_with(|| flows.add_empty());
        flows.get_or_put(number, fresh)
    }

    /// The flow with a number.
    pub fn at(&self, number: FlowNumber) -> Option<&OffloadFlow> {
        self.flows.at(number)
    }

    /// The same, to be changed.
    pub fn at_mut(&mut self, number: FlowNumber) -> Option<&mut OffloadFlow> {
        self.flows.at_mut(number)
    }

    /// Forgets a flow and gives its number back. Its rules must be gone.
    pub fn remove(&mut self, number: FlowNumber) {
        if let Some(flow) = self.flows.remove(number) {
            self.numbers.remove(&flow.selector);
        }
    }

    /// Numbers that flows may have, each once, beginning with this one.
    pub fn numbers(&self, first: FlowNumber) -> impl Iterator<Item = FlowNumber> + use<> {
        let end = self.flows.end();
        let first = first.min(end);
        (first..end).chain(0..first)
    }

    /// All flows, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &OffloadFlow> {
        self.flows.iter()
    }

    /// All flows by number, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (FlowNumber, &mut OffloadFlow)> {
        self.flows.iter_mut()
    }
}
