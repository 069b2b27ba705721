//! Order of last use: a wheel of intrusive lists, one list per slice of time.
//!
//! A hit only stores the time in its entry; the entry stays in the list of the slice in which it was queued.
//! When a list comes up, refreshed entries move on to the list of their last use, the rest is what was idle for
//! longest. Aging and eviction are therefore exact to one slice and cost nothing per hit. A bit per list says
//! whether it holds anything, so finding the oldest costs the same after a long pause as after a short one.
//!
//! Ticks must not go back. They wrap after 13 years; the wheel counts slices of a time that does not, to which each tick is
//! extended by its distance from the latest.

use super::{NONE, NftEntry};

/// Lists of the wheel; must exceed the slices of an idle timeout.
const SLICES: u64 = 64;
/// Most slices per idle timeout.
const PER_TIMEOUT: u32 = 32;
/// By how many ticks a time may be ahead of the latest, or the latest go back.
const SKEW: u32 = 1 << 10;
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
    timeout: u64,
    /// No entry is queued under an earlier slice, nor under one `SLICES` or more later.
    cursor: u64,
    /// The latest tick, extended.
    now: u64,
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
        let timeout = u64::from(idle.div_ceil(slice_ticks));
        Self { heads: [NONE; SLICES as usize], occupied: 0, idle, slice_ticks, timeout, cursor: 0, now: 0 }
    }

    /// The time of an entry, extended: it is past, or a little ahead where clocks differ.
    #[inline(always)]
    fn extend(&self, tick: u32) -> u64 {
        let back = (self.now as u32).wrapping_sub(tick);
        match back.wrapping_neg() {
            ahead if ahead < SKEW => self.now + u64::from(ahead),
            _ => self.now.saturating_sub(u64::from(back)),
        }
    }

    #[inline(always)]
    fn slice(&self, tick: u32) -> u64 {
        self.extend(tick) / u64::from(self.slice_ticks)
    }

    /// Takes note of the time: later than before, or earlier by a little, which changes nothing.
    #[inline(always)]
    fn hear(&mut self, tick: u32) {
        let ahead = tick.wrapping_sub(self.now as u32);
        if self.occupied == 0 || ahead.wrapping_neg() >= SKEW || ahead == 0 {
            self.now += u64::from(ahead);
        }
    }

    /// The oldest slice with an entry, and the first entry of its list.
    #[inline(always)]
    fn first(&self) -> Option<(u64, u32)> {
        if self.occupied == 0 {
            return None;
        }
        let ahead = self.occupied.rotate_right((self.cursor % SLICES) as u32).trailing_zeros();
        let slice = self.cursor + u64::from(ahead);
        Some((slice, self.heads[(slice % SLICES) as usize]))
    }

    /// Queues an entry that is used now.
    pub(super) fn push(&mut self, entries: &mut [NftEntry], slot: u32, now: u32) {
        self.hear(now);
        self.queue(entries, slot, now);
    }

    /// Queues an entry under the time of its last use.
    fn queue(&mut self, entries: &mut [NftEntry], slot: u32, tick: u32) {
        let slice = self.slice(tick);
        // The oldest slice there is, this one included: an entry that is moved on may be older than all others. It
        // goes back no further than keeps the newest one on the wheel.
        self.cursor = self.first().map_or(slice, |(first, _)| {
            let last = self.occupied.rotate_right((first % SLICES) as u32).leading_zeros();
            let span = (SLICES - 1) - u64::from(last);
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
        entry.used = 1 + list as u16;
        entry.prev = NONE;
        entry.next = head;
        self.heads[list as usize] = slot;
        self.occupied |= 1 << list;
    }

    /// Takes an entry out.
    pub(super) fn unlink(&mut self, entries: &mut [NftEntry], slot: u32) {
        let NftEntry { prev, next, used, .. } = entries[slot as usize];
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
    pub(super) fn next_expired(&mut self, entries: &mut [NftEntry], now_tick: u32) -> Expired {
        self.hear(now_tick);
        let Some((first, slot)) = self.first() else { return Expired::None };
        // Of a slice that is due, every entry is, unless it was used since.
        if first + self.timeout >= self.slice(now_tick) {
            return Expired::None;
        }
        let seen = self.extend(entries[slot as usize].last_seen);
        if self.extend(now_tick).saturating_sub(seen) > u64::from(self.idle) {
            return Expired::Entry(slot);
        }
        self.requeue(entries, slot);
        Expired::Refreshed
    }

    /// Moves one refreshed entry out of the way of [`oldest`](Self::oldest). `false` when the next one there is
    /// none.
    pub(super) fn tidy(&mut self, entries: &mut [NftEntry]) -> bool {
        let Some((first, slot)) = self.first() else { return false };
        let refreshed = self.slice(entries[slot as usize].last_seen) > first;
        if refreshed {
            self.requeue(entries, slot);
        }
        refreshed
    }

    /// The entry idle for longest, or [`NONE`] in an empty table. Where more entries were refreshed than one call
    /// may look at (and [`tidy`](Self::tidy) did not keep up), the one used longest ago among those it saw.
    pub(super) fn oldest(&mut self, entries: &mut [NftEntry]) -> u32 {
        let (mut best, mut best_seen) = (NONE, u64::MAX);
        for _ in 0..MAX_STEPS {
            let Some((first, slot)) = self.first() else { break };
            let seen = self.extend(entries[slot as usize].last_seen);
            if seen / u64::from(self.slice_ticks) <= first {
                return slot;
            }
            if seen < best_seen {
                (best, best_seen) = (slot, seen);
            }
            self.requeue(entries, slot);
        }
        best
    }

    fn requeue(&mut self, entries: &mut [NftEntry], slot: u32) {
        self.unlink(entries, slot);
        self.queue(entries, slot, entries[slot as usize].last_seen);
    }
}
