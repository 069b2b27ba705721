//! [`Turns`]: what waits for room that there is little of, each in its turn.

use std::collections::BTreeSet;
use std::ops::Bound;

/// What waits, and where it was left the last time: one that needs more room than there is keeps no other from having it.
#[derive(Debug)]
pub struct Turns<T> {
    waiting: BTreeSet<T>,
    last: Option<T>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { waiting: BTreeSet::new(), last: None }
    }
}

impl<T: Copy + Ord> Turns<T> {
    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True for what waits.
    pub fn has(&self, one: &T) -> bool {
        self.waiting.contains(one)
    }

    /// One more waits.
    pub fn add(&mut self, one: T) {
        self.waiting.insert(one);
    }

    /// One waits no more; `true` if it did.
    pub fn remove(&mut self, one: &T) -> bool {
        self.waiting.remove(one)
    }

    /// Those whose turn it is, as many as there is room for. They go on waiting.
    pub fn next(&mut self, room: usize) -> Vec<T> {
        let from = (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let rest = self.last.into_iter().flat_map(|last| self.waiting.range(..=last));
        let next: Vec<T> = self.waiting.range(from).chain(rest).take(room).copied().collect();
        self.last = next.last().copied().or(self.last);
        next
    }
}
