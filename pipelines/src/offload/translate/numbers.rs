//! Numbers that registers of the e-switch carry from one group to the next.

use std::hash::Hash;

use crate::offload::hasher::Map;

/// Things that rules name by a number in a register. A number is not used again for another thing.
pub(super) struct RegisterNumbers<T> {
    /// Their numbers, and how many chains and bundles hold them.
    known: Map<T, (u32, u32)>,
    last: u32,
}

impl<T> Default for RegisterNumbers<T> {
    fn default() -> Self {
        Self { known: Map::default(), last: 0 }
    }
}

impl<T: Copy + Eq + Hash> RegisterNumbers<T> {
    /// The number of a thing, from 1 on: a register that nobody wrote is 0.
    pub fn of(&mut self, thing: T) -> u32 {
        let Self { known, last } = self;
        let numbered = known.entry(thing).or_insert_with(|| {
            *last += 1;
            (*last, 0)
        });
        numbered.0
    }

    /// Keeps a number: rules with it are there.
    pub fn hold(&mut self, thing: &T) {
        if let Some((_, holders)) = self.known.get_mut(thing) {
            *holders += 1;
        }
    }

    /// The opposite of [`hold`](Self::hold).
    pub fn release(&mut self, thing: &T) {
        if let Some((_, holders)) = self.known.get_mut(thing) {
            *holders = holders.saturating_sub(1);
            if *holders == 0 {
                self.known.remove(thing);
            }
        }
    }

    /// Forgets a thing that nobody holds.
    pub fn forget(&mut self, thing: &T) {
        if self.known.get(thing).is_some_and(|(_, holders)| *holders == 0) {
            self.known.remove(thing);
        }
    }

    /// How many have a number.
    pub fn len(&self) -> usize {
        self.known.len()
    }
}
