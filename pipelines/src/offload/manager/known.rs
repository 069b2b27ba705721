//! The flows that the manager knows, by number and by what they are.

use super::flow::Flow;
use crate::offload::hasher::Map;
use crate::offload::slots::Slots;
use crate::offload::translate::Ask;

/// A flow, by number.
pub type Number = u32;

/// All flows.
#[derive(Default)]
pub struct Known {
    flows: Slots<Flow>,
    numbers: Map<Ask, Number>,
}

impl Known {
    /// The flow of an ask, made when there is none.
    pub fn entry(&mut self, ask: Ask, fresh: impl FnOnce() -> Flow) -> &mut Flow {
        let Self { flows, numbers } = self;
        let number = *numbers.entry(ask).or_insert_with(|| flows.add_empty());
        flows.get_or_put(number, fresh)
    }

    /// The flow with a number.
    pub fn at(&self, number: Number) -> Option<&Flow> {
        self.flows.at(number)
    }

    /// The same, to be changed.
    pub fn at_mut(&mut self, number: Number) -> Option<&mut Flow> {
        self.flows.at_mut(number)
    }

    /// Forgets a flow.
    pub fn remove(&mut self, number: Number) {
        if let Some(flow) = self.flows.remove(number) {
            self.numbers.remove(&flow.ask);
        }
    }

    /// All flows.
    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter()
    }

    /// All flows by number, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Number, &mut Flow)> {
        self.flows.iter_mut()
    }
}
