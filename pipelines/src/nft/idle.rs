//! Order of last use: a wheel of intrusive lists, one list per slice of time.
//!
//! A hit only stores the time in its entry; the entry stays in the list of the slice in which it was queued.
//! When a list comes up, refreshed entries move on to the list of their last use, the rest is what was idle for
//! longest. Aging and eviction are therefore exact to one slice and cost nothing per hit. A bit per list says
//! whether it holds anything, so finding the oldest costs the same after a long pause as after a short one.
//!
//! Ticks must not go back; after they wrap (13 years) nothing ages any more, nothing else breaks.

use super::{Entry, NONE};

/// Lists of the wheel; must exceed the slices of an idle timeout.
const SLICES: u32 = 64;
/// Most slices per idle timeout.
const PER_TIMEOUT: u32 = 32;
/// Most entries that one eviction looks at.
const MAX_STEPS: usize = 64;

pub(super) struct IdleWheel {
    heads: [u32; SLICES as usize],
    /// A bit per list that is not empty.
    occupied: u64,
    /// Ticks after which an unused entry goes.
    idle: u32,
    slice_ticks: u32,
    /// `idle` in slices, rounded up.
    timeout: u32,
    /// No entry is queued under an earlier slice, nor under one `SLICES` or more later.
    cursor: u32,
}

/// What [`IdleWheel::next_expired`] found.
pub(super) enum Expired {
    /// This entry is idle for longer than the timeout.
    Entry(u32),
    /// An entry was moved on; there may be more.
    Refreshed,
    /// Nothing is due.
    None,
}

impl IdleWheel {
    pub(super) fn new(idle: u32) -> Self {
        let slice_ticks = idle.div_ceil(PER_TIMEOUT).max(1);
        let timeout = idle.div_ceil(slice_ticks);
        Self { heads: [NONE; SLICES as usize], occupied: 0, idle, slice_ticks, timeout, cursor: 0 }
    }

    #[inline(always)]
    fn slice(&self, tick: u32) -> u32 {
        tick / self.slice_ticks
    }

    /// The oldest slice with an entry, and the first entry of its list.
    #[inline(always)]
    fn first(&self) -> Option<(u32, u32)> {
        if self.occupied == 0 {
            return None;
        }
        let ahead = self.occupied.rotate_right(self.cursor % SLICES).trailing_zeros();
        let slice = self.cursor.wrapping_add(ahead);
        Some((slice, self.heads[(slice % SLICES) as usize]))
    }

    /// Queues an entry under the time of its last use.
    pub(super) fn push(&mut self, entries: &mut [Entry], slot: u32, tick: u32) {
        let slice = self.slice(tick);
        // The oldest slice there is, this one included: an entry that is moved on may be older than all others. It
        // goes back no further than keeps the newest one on the wheel.
        self.cursor = self.first().map_or(slice, |(first, _)| {
            let span = (SLICES - 1) - self.occupied.rotate_right(first % SLICES).leading_zeros();
            slice.clamp((first + span).saturating_sub(SLICES - 1).min(first), first)
        });
        // A time before the oldest goes where it is looked at next, one beyond the wheel (aging is behind) where
        // it is looked at last.
        let slice = slice.clamp(self.cursor, self.cursor.saturating_add(SLICES - 1));
        let list = slice % SLICES;
        let head = self.heads[list as usize];
        if let Some(next) = entries.get_mut(head as usize) {
            next.prev = slot;
        }
        let entry = &mut entries[slot as usize];
        entry.used = 1 + list;
        entry.prev = NONE;
        entry.next = head;
        self.heads[list as usize] = slot;
        self.occupied |= 1 << list;
    }

    /// Takes an entry out.
    pub(super) fn unlink(&mut self, entries: &mut [Entry], slot: u32) {
        let Entry { prev, next, used, .. } = entries[slot as usize];
        match entries.get_mut(prev as usize) {
            Some(entry) => entry.next = next,
            None => {
                let list = used - 1;
                self.heads[list as usize] = next;
                if next == NONE {
                    self.occupied &= !(1 << list);
                }
            }
        }
        if let Some(entry) = entries.get_mut(next as usize) {
            entry.prev = prev;
        }
    }

    /// The next entry that is due at `now_tick`. Each call looks at one entry.
    pub(super) fn next_expired(&mut self, entries: &mut [Entry], now_tick: u32) -> Expired {
        let Some((first, slot)) = self.first() else { return Expired::None };
        // Of a slice that is due, every entry is, unless it was used since.
        if first.saturating_add(self.timeout) >= self.slice(now_tick) {
            return Expired::None;
        }
        if now_tick.saturating_sub(entries[slot as usize].last_seen) > self.idle {
            return Expired::Entry(slot);
        }
        self.requeue(entries, slot);
        Expired::Refreshed
    }

    /// Moves one refreshed entry out of the way of [`oldest`](Self::oldest). `false` when the next one there is
    /// none.
    pub(super) fn tidy(&mut self, entries: &mut [Entry]) -> bool {
        let Some((first, slot)) = self.first() else { return false };
        let refreshed = self.slice(entries[slot as usize].last_seen) > first;
        if refreshed {
            self.requeue(entries, slot);
        }
        refreshed
    }

    /// The entry idle for longest, or [`NONE`] in an empty table. Where more entries were refreshed than one call
    /// may look at (and [`tidy`](Self::tidy) did not keep up), the one used longest ago among those it saw.
    pub(super) fn oldest(&mut self, entries: &mut [Entry]) -> u32 {
        let (mut best, mut best_seen) = (NONE, u32::MAX);
        for _ in 0..MAX_STEPS {
            let Some((first, slot)) = self.first() else { break };
            let seen = entries[slot as usize].last_seen;
            if self.slice(seen) <= first {
                return slot;
            }
            if seen < best_seen {
                (best, best_seen) = (slot, seen);
            }
            self.requeue(entries, slot);
        }
        best
    }

    fn requeue(&mut self, entries: &mut [Entry], slot: u32) {
        self.unlink(entries, slot);
        self.push(entries, slot, entries[slot as usize].last_seen);
    }
}
