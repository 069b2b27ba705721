//! A worker's own table of queue pairs of one direction: an index line and an entry line per packet, a second
//! entry line when something happened.

use super::qp::{QpEvents, QpKey, QpLine, QpProbe, QpView, RocePacketFacts};
use crate::index::{Index, NONE};
use crate::mem::{Slab, prefetch};

/// How full the index gets: fixed memory matters here, and a queue pair that does not fit is only not counted.
const INDEX_PERCENT: usize = 95;

/// The table of one direction on one worker.
pub(super) struct QpTable {
    index: Index,
    lines: Slab<QpLine>,
    events: Slab<QpEvents>,
    /// First free line below `fresh`; each names the next in its `ledger` word.
    free: u32,
    used: u32,
    /// Lines from here on were never used.
    fresh: u32,
    hand: u32,
    seed: u64,
}

impl QpTable {
    pub fn new(entries: u32, seed: u64, advise: &dyn Fn(usize, usize)) -> Self {
        let lines: Slab<QpLine> = Slab::zeroed(entries as usize, advise);
        let events: Slab<QpEvents> = Slab::zeroed(entries as usize, advise);
        Self {
            index: Index::new(entries, INDEX_PERCENT, advise),
            lines,
            events,
            free: NONE,
            used: 0,
            fresh: 0,
            hand: 0,
            seed,
        }
    }

    /// Bytes of a table of so many entries.
    pub fn bytes(entries: u32) -> usize {
        let lines = Slab::<QpLine>::bytes(entries as usize) + Slab::<QpEvents>::bytes(entries as usize);
        Index::bytes(entries, INDEX_PERCENT) + lines
    }

    /// Entries in use.
    pub fn len(&self) -> u32 {
        self.used
    }

    #[inline(always)]
    pub fn hash(&self, key: &QpKey) -> u64 {
        crate::ledger::hash(key.words(), self.seed)
    }

    #[inline(always)]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// The entry that a key with this hash has, if it has one.
    #[inline(always)]
    pub fn prefetch_line(&self, hash: u64) -> u32 {
        let slot = self.index.candidate(hash);
        if let Some(line) = self.lines.get(slot as usize) {
            prefetch(line);
        }
        slot
    }

    /// The entry of the key of a probe, or [`NONE`].
    #[inline(always)]
    pub fn found(&self, probe: &QpProbe) -> u32 {
        match self.lines.get(probe.slot as usize) {
            Some(line) if line.key == probe.key => probe.slot,
            _ => self.find(&probe.key, probe.hash),
        }
    }

    /// The entry of a key, or [`NONE`].
    #[inline(never)]
    pub fn find(&self, key: &QpKey, hash: u64) -> u32 {
        self.index.find(hash, |slot| self.lines.get(slot as usize).is_some_and(|line| line.key == *key))
    }

    /// An entry for a key that has none; [`NONE`] when the table is full.
    pub fn insert(&mut self, key: QpKey, hash: u64, ledger: u32, tick: u32) -> u32 {
        let reused = self.lines.get(self.free as usize).map(|line| line.ledger);
        let slot = if reused.is_some() { self.free } else { self.fresh };
        if slot as usize >= self.lines.len() || !self.index.insert(hash, slot) {
            return NONE;
        }
        match reused {
            Some(next) => self.free = next,
            None => self.fresh += 1,
        }
        self.used += 1;
        self.lines[slot as usize] = QpLine { key, ledger, last_seen: tick, ..QpLine::default() };
        self.events[slot as usize] = QpEvents { first_seen: tick, ..QpEvents::default() };
        slot
    }

    /// Counts a packet; the ticks of the packet before it.
    #[inline(always)]
    pub fn count(&mut self, slot: u32, facts: &RocePacketFacts, tick: u32) -> (u32, u32) {
        match (self.lines.get_mut(slot as usize), self.events.get_mut(slot as usize)) {
            (Some(line), Some(events)) => {
                let before = line.last_seen;
                line.count(facts, tick, events);
                (before, line.ledger)
            }
            _ => (tick, NONE),
        }
    }

    pub fn events_mut(&mut self, slot: u32) -> Option<&mut QpEvents> {
        self.events.get_mut(slot as usize)
    }

    pub fn line_mut(&mut self, slot: u32) -> Option<&mut QpLine> {
        self.lines.get_mut(slot as usize).filter(|line| !line.key.is_free())
    }

    pub fn remove(&mut self, key: &QpKey) {
        let hash = self.hash(key);
        let slot = self.find(key, hash);
        if let Some(line) = self.lines.get_mut(slot as usize) {
            *line = QpLine { ledger: self.free, ..QpLine::default() };
            self.free = slot;
            self.used -= 1;
            self.index.remove(hash, slot);
        }
    }

    /// Looks at up to `budget` lines in turn and removes those for which `goes(packets, last seen)` holds;
    /// `gone` hears of each what `insert` was told as `ledger`.
    pub fn sweep(&mut self, budget: u32, goes: impl Fn(u64, u32) -> bool, mut gone: impl FnMut(u32)) {
        for _ in 0..budget.min(self.fresh) {
            self.hand = if self.hand + 1 >= self.fresh { 0 } else { self.hand + 1 };
            let line = &self.lines[self.hand as usize];
            if !line.key.is_free() && goes(line.packets, line.last_seen) {
                let (key, ledger) = (line.key, line.ledger);
                self.remove(&key);
                gone(ledger);
            }
        }
    }

    /// Looks at up to `budget` lines from `from` on and removes those for which `keep(key, what insert was told)`
    /// does not hold; `gone` hears of each. Where to go on, `None` at the end.
    pub fn retain(
        &mut self,
        from: u32,
        budget: u32,
        keep: impl Fn(&QpKey, u32) -> bool,
        mut gone: impl FnMut(u32),
    ) -> Option<u32> {
        let end = self.fresh.min(from.saturating_add(budget));
        for slot in from..end {
            let QpLine { key, ledger, .. } = self.lines[slot as usize];
            if !key.is_free() && !keep(&key, ledger) {
                self.remove(&key);
                gone(ledger);
            }
        }
        (end < self.fresh).then_some(end)
    }

    pub fn view(&self, slot: u32) -> Option<QpView> {
        let line = self.lines.get(slot as usize)?;
        (!line.key.is_free()).then(|| line.view(&self.events[slot as usize]))
    }

    /// Up to `limit` entries from slot `from` on, and where to go on.
    pub fn scan(&self, from: u32, limit: usize) -> (Vec<QpView>, Option<u32>) {
        let end = self.fresh.min(from.saturating_add(4096));
        let mut found = Vec::new();
        for slot in from..end {
            if found.len() == limit {
                return (found, Some(slot));
            }
            found.extend(self.view(slot));
        }
        (found, (end < self.fresh).then_some(end))
    }
}
