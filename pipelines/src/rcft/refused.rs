//! What was refused or went idle lately: the worker's memory of refusals, and the shared one of queue pairs that
//! gave their places back for idleness. Both are bounded and lossy.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::drops::DropReason;

/// Refusals that a worker remembers.
const REFUSALS: usize = 2048;
/// How long one holds, in ticks.
const HOLDS: u32 = 10;

#[derive(Clone, Copy, Default)]
struct RecentRefusal {
    hash: u64,
    /// What [`super::Ledger::changes`] was then.
    changes: u32,
    tick: u32,
}

/// The refusals of one worker: the packets of a refused queue pair cost one look here.
pub(super) struct Refusals {
    cells: Box<[(RecentRefusal, DropReason)]>,
}

impl Refusals {
    pub fn new() -> Self {
        Self { cells: vec![(RecentRefusal::default(), DropReason::QP_QUOTA); REFUSALS].into_boxed_slice() }
    }

    fn place(hash: u64) -> usize {
        (hash >> 32) as usize % REFUSALS
    }

    /// Why this key was refused, if it was lately and nothing has changed since.
    pub fn find(&self, hash: u64, changes: u32, tick: u32) -> Option<DropReason> {
        let (refusal, reason) = self.cells[Self::place(hash)];
        let fresh = refusal.changes == changes && tick.wrapping_sub(refusal.tick) <= HOLDS;
        (refusal.hash == hash && fresh).then_some(reason)
    }

    pub fn store(&mut self, hash: u64, changes: u32, tick: u32, reason: DropReason) {
        self.cells[Self::place(hash)] = (RecentRefusal { hash, changes, tick }, reason);
    }
}

/// Cells that one key may lie in.
const WAYS: usize = 4;

/// Queue pairs that went idle: when they come back soon, they are not held up as new ones are.
pub struct Grace {
    /// The upper half of the hash, and the tick; zero is free.
    cells: Box<[[AtomicU64; WAYS]]>,
}

/// By how much the clocks of control and of a worker may differ, in ticks.
const SKEW: u32 = 16;

impl Grace {
    /// The longest time of grace, in ticks: nearly seven years. What is older than it must be [forgotten](Self::forget)
    /// before its age wraps.
    pub const LONGEST: u32 = u32::MAX / 2;

    /// A memory of about `entries` queue pairs; the oldest give way.
    pub fn new(entries: usize) -> Self {
        Self { cells: (0..entries.div_ceil(WAYS).max(1)).map(|_| Default::default()).collect() }
    }

    fn set(&self, hash: u64) -> &[AtomicU64; WAYS] {
        &self.cells[((u64::from(hash as u32) * self.cells.len() as u64) >> 32) as usize]
    }

    fn age(cell: u64, tick: u32) -> u32 {
        let age = tick.wrapping_sub(cell as u32);
        if age > u32::MAX - SKEW { 0 } else { age }
    }

    fn is(cell: u64, hash: u64) -> bool {
        cell != 0 && (cell ^ hash) >> 32 == 0
    }

    /// Remembers a queue pair that went idle.
    pub fn store(&self, hash: u64, tick: u32) {
        let set = self.set(hash);
        let value = hash & !u64::from(u32::MAX) | u64::from(tick);
        let oldest = set.iter().max_by_key(|cell| match cell.load(Relaxed) {
            0 => u32::MAX,
            found if Self::is(found, hash) => u32::MAX,
            found => Self::age(found, tick),
        });
        if let Some(cell) = oldest {
            cell.store(value, Relaxed);
        }
    }

    /// True when it went idle no longer ago than `grace` ticks.
    pub fn holds(&self, hash: u64, tick: u32, grace: u32) -> bool {
        let cells = self.set(hash).iter().map(|cell| cell.load(Relaxed));
        cells.into_iter().any(|found| Self::is(found, hash) && Self::age(found, tick) <= grace)
    }

    /// Forgets what one place holds that went idle longer ago than `grace` ticks; which place is next. Only for the one
    /// that [stores](Self::store), again and again.
    pub fn forget(&self, place: usize, tick: u32, grace: u32) -> usize {
        for cell in self.cells.get(place).into_iter().flatten() {
            let found = cell.load(Relaxed);
            if found != 0 && Self::age(found, tick) > grace {
                cell.store(0, Relaxed);
            }
        }
        if place + 1 < self.cells.len() { place + 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_hold_until_something_changes() {
        let mut refusals = Refusals::new();
        refusals.store(77, 3, 100, DropReason::QP_QUOTA);
        assert_eq!(refusals.find(77, 3, 110), Some(DropReason::QP_QUOTA));
        assert_eq!(refusals.find(77, 3, 111), None);
        assert_eq!(refusals.find(77, 4, 100), None);
        assert_eq!(refusals.find(78, 3, 100), None);
    }

    /// A place is not kept for longer than it is for the clock's having wrapped.
    #[test]
    fn repair_grace_does_not_come_back_when_a_clock_wraps() {
        let hash = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for start in [0, 1000, 0xffff, u32::MAX - 600, u32::MAX] {
            let grace = Grace::new(64);
            grace.store(hash(5), start);
            assert!(grace.holds(hash(5), start.wrapping_add(600), 600));
            // Sixteen bits of a tick wrap after less than two hours, 834 days are 720,576,000 ticks.
            for later in [601, 0x1_0000, 0x1_0000 + 300, 720_576_000, Grace::LONGEST] {
                assert!(!grace.holds(hash(5), start.wrapping_add(later), 600), "{later} after {start}");
            }
            // A worker may be a tick ahead of control.
            assert!(grace.holds(hash(5), start.wrapping_sub(2), 600));
            let pass = |tick: u32| (0..16).fold(0, |place, _| grace.forget(place, tick, 600));
            assert_eq!(pass(start.wrapping_add(600)), 0, "once around");
            assert!(grace.holds(hash(5), start.wrapping_add(600), 600), "not before its time");
            pass(start.wrapping_add(601));
            // Thirteen years later.
            assert!(!grace.holds(hash(5), start, 600) && !grace.holds(hash(5), start.wrapping_sub(1), 600));
        }
    }

    #[test]
    fn grace_ends_and_is_bounded() {
        let grace = Grace::new(64);
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        grace.store(hash(5), 1000);
        assert!(grace.holds(hash(5), 1600, 600) && !grace.holds(hash(5), 1601, 600));
        assert!(!grace.holds(hash(6), 1000, 600));
        for n in 100..10_000 {
            grace.store(hash(n), 2000);
            assert!(grace.holds(hash(n), 2000, 0));
        }
    }
}
