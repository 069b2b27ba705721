//! Order of last use: a wheel of intrusive lists, one list per slice of time.
//!
//! A hit only stores the time in its entry; the entry stays in the list of the slice in which it was queued.
//! When a list comes up, refreshed entries move on to the list of their last use, the rest is what was idle for
//! longest. Aging and eviction are therefore exact to one slice and cost nothing per hit.

use super::{Entry, NONE};

/// Slices of the wheel; must exceed the slices of an idle timeout by one full turn of slack.
const SLICES: u32 = 64;
/// Slices per idle timeout.
const PER_TIMEOUT: u32 = 32;
/// Most entries that one eviction moves on before it takes what it has.
const MAX_STEPS: usize = 64;

pub(super) struct IdleWheel {
    heads: [u32; SLICES as usize],
    idle: u32,
    slice_ticks: u32,
    /// The oldest slice that may hold entries.
    cursor: u32,
    started: bool,
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
        Self { heads: [NONE; SLICES as usize], idle, slice_ticks, cursor: 0, started: false }
    }

    fn slice(&self, tick: u32) -> u32 {
        tick / self.slice_ticks
    }

    /// Queues an entry under the time of its last use.
    pub(super) fn push(&mut self, entries: &mut [Entry], slot: u32, tick: u32) {
        let slice = self.slice(tick);
        if !self.started {
            self.started = true;
            self.cursor = slice;
        }
        // A time before the cursor goes where it is looked at next, one beyond the wheel (aging is behind)
        // where it is looked at last.
        let slice = slice.clamp(self.cursor, self.cursor + (SLICES - 1));
        let bucket = (slice % SLICES) as usize;
        let head = self.heads[bucket];
        if let Some(next) = entries.get_mut(head as usize) {
            next.prev = slot;
        }
        let entry = &mut entries[slot as usize];
        entry.used = 1 + bucket as u32;
        entry.prev = NONE;
        entry.next = head;
        self.heads[bucket] = slot;
    }

    /// Takes an entry out.
    pub(super) fn unlink(&mut self, entries: &mut [Entry], slot: u32) {
        let entry = entries[slot as usize];
        match entries.get_mut(entry.prev as usize) {
            Some(prev) => prev.next = entry.next,
            None => self.heads[(entry.used - 1) as usize] = entry.next,
        }
        if let Some(next) = entries.get_mut(entry.next as usize) {
            next.prev = entry.prev;
        }
    }

    /// The next entry that is due at `now_tick`. Each call looks at one entry or at empty slices.
    pub(super) fn next_expired(&mut self, entries: &mut [Entry], now_tick: u32) -> Expired {
        if !self.started {
            return Expired::None;
        }
        let now = self.slice(now_tick);
        while self.cursor.saturating_add(PER_TIMEOUT + 1) < now {
            let slot = self.heads[(self.cursor % SLICES) as usize];
            if slot == NONE {
                self.cursor += 1;
                continue;
            }
            let seen = entries[slot as usize].last_seen;
            if now_tick.wrapping_sub(seen) > self.idle {
                return Expired::Entry(slot);
            }
            self.unlink(entries, slot);
            self.push(entries, slot, seen);
            return Expired::Refreshed;
        }
        Expired::None
    }

    /// The entry idle for longest. The table must not be empty.
    pub(super) fn oldest(&mut self, entries: &mut [Entry]) -> u32 {
        let mut best = NONE;
        for _ in 0..MAX_STEPS {
            let mut slice = self.cursor;
            let slot = loop {
                let head = self.heads[(slice % SLICES) as usize];
                if head != NONE {
                    break head;
                }
                slice = slice.wrapping_add(1);
                if slice.wrapping_sub(self.cursor) >= SLICES {
                    return best;
                }
            };
            best = slot;
            let seen = entries[slot as usize].last_seen;
            if self.slice(seen) <= slice {
                break;
            }
            self.unlink(entries, slot);
            self.push(entries, slot, seen);
        }
        best
    }
}
