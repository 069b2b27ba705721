//! NFT, the network flow table: an exact-match flow cache, one per worker, without locks.
//!
//! ```text
//!   hash(key) --> bucket (one line: 8 tags, 8 slots) --> entry (two lines: key + generation | action + counters)
//! ```
//! The index maps a key to an entry slot by bucketed cuckoo hashing with 16-bit tags; `idle` keeps the entries
//! in order of last use, for aging and for the choice of what goes when the table is full. A worker looks up a
//! whole burst at once: bucket lines are prefetched where keys are made, then all candidate entries, then keys are
//! compared.

mod entry;
mod idle;

pub use entry::{FlowAction, FlowVerdict, NftEntry};

use crate::flow_key::{FlowKey, Scope};
use crate::index::Index;
pub use crate::index::NONE;
use crate::mem::{Slab, prefetch};
use crate::rows::Rows;
use idle::IdleWheel;

/// How full the index gets.
const INDEX_PERCENT: usize = 60;
/// In a full table, a source with more than one of so many entries makes room among its own.
const SHARES: u32 = 8;
/// Entries that the search for one of a source looks at: of one that has its share, eight are among them on average.
const OWN_STEPS: u32 = 64;
/// Slots that are looked at between two bursts for what control asks.
const SLOTS: u32 = 4096;

/// Size and aging of an NFT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NftParams {
    /// Number of entries.
    pub entries: u32,
    /// An entry not used for this long goes. Ticks of [`crate::TICK_MS`].
    pub idle_ticks: u32,
    /// Seed of the hash, so that tenants cannot choose collisions.
    pub seed: u64,
}

/// What happened in a table since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NftStats {
    /// Entries in use.
    pub entries: u32,
    /// Entries made since the start, replaced and aged ones included.
    pub inserted: u64,
    /// Entries removed after `idle_ticks`.
    pub aged: u64,
    /// Entries removed to make room.
    pub evicted: u64,
}

/// One worker's flows: an index by hash in front of entries that stand still, and the order in which they go idle.
pub struct Nft {
    config: NftParams,
    index: Index,
    entries: Slab<NftEntry>,
    free: Vec<u32>,
    idle: IdleWheel,
    owners: Owners,
    stats: NftStats,
}

/// What a burst lookup needs of one packet, and what it leaves there.
pub trait Probe {
    /// The key to look up.
    fn key(&self) -> &FlowKey;
    /// `key().hash(seed)`.
    fn hash(&self) -> u64;
    /// Entry slot, or [`NONE`].
    fn set_entry(&mut self, slot: u32);
    /// What `set_entry` stored.
    fn entry(&self) -> u32;
}

impl Nft {
    /// A table of fixed size. `advise` is told the address ranges (start, bytes) of its slabs before they are
    /// first touched.
    pub fn new(config: NftParams, advise: &dyn Fn(usize, usize)) -> Self {
        let config = NftParams { entries: config.entries.clamp(1, NONE - 1), ..config };
        let entries: Slab<NftEntry> = Slab::zeroed(config.entries as usize, advise);
        let index = Index::new(config.entries, INDEX_PERCENT, advise);
        Self {
            config,
            index,
            entries,
            free: (0..config.entries).rev().collect(),
            idle: IdleWheel::new(config.idle_ticks),
            owners: Owners::new(1, 1, u32::MAX),
            stats: NftStats::default(),
        }
    }

    /// The table, empty as it is, for so many vNICs and VPCs, none of which may turn it over for the others: when it is full,
    /// a source that has its share loses its own entries to its new ones.
    pub fn shared_by(mut self, vnics: usize, vpcs: usize) -> Self {
        self.owners = Owners::new(vnics, vpcs, self.config.entries.div_ceil(SHARES));
        self
    }

    /// The seed for [`FlowKey::hash`].
    #[inline(always)]
    pub fn seed(&self) -> u64 {
        self.config.seed
    }

    /// The configured size and aging.
    pub fn config(&self) -> NftParams {
        self.config
    }

    /// What has happened to entries so far, and how many there are now.
    pub fn stats(&self) -> NftStats {
        NftStats { entries: self.config.entries - self.free.len() as u32, ..self.stats }
    }

    /// Hints the CPU to load the bucket of a hash that is to be looked up.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Looks up the probes whose bits are set in `mask`; returns the bits of those that hit. Faster after
    /// [`prefetch`](Self::prefetch) of their hashes.
    #[inline]
    pub fn lookup_burst<P: Probe>(&self, probes: &mut [P], mask: u64) -> u64 {
        self.lookup_burst_if(probes, mask, |_, _, _| true)
    }

    /// [`lookup_burst`](Self::lookup_burst), in which an entry that is not `current` is no hit (its slot is left in the
    /// probe all the same). `current` is told the number of the probe, the probe, and its entry.
    #[inline(always)]
    pub fn lookup_burst_if<P: Probe>(
        &self,
        probes: &mut [P],
        mask: u64,
        mut current: impl FnMut(usize, &P, &NftEntry) -> bool,
    ) -> u64 {
        for i in Bits(mask) {
            let slot = self.index.candidate(probes[i].hash());
            probes[i].set_entry(slot);
            if let Some(entry) = self.entries.get(slot as usize) {
                prefetch(&entry.key);
                prefetch(&entry.action);
            }
        }
        let mut hits = 0;
        for i in Bits(mask) {
            let probe = &mut probes[i];
            let found = match self.entries.get(probe.entry() as usize) {
                Some(entry) if entry.key == *probe.key() => current(i, probe, entry),
                _ => {
                    let slot = self.find(probe.key(), probe.hash());
                    probe.set_entry(slot);
                    self.entries.get(slot as usize).is_some_and(|entry| current(i, probe, entry))
                }
            };
            hits |= u64::from(found) << i;
        }
        hits
    }

    /// The slot of a key, or [`NONE`].
    #[inline]
    pub fn find(&self, key: &FlowKey, hash: u64) -> u32 {
        self.index.find(hash, |slot| self.entries.get(slot as usize).is_some_and(|entry| entry.key == *key))
    }

    /// The entry in a slot that a lookup or an insertion returned.
    #[inline(always)]
    pub fn entry(&self, slot: u32) -> &NftEntry {
        &self.entries[slot as usize]
    }

    /// The entry in a slot, for counting and updating; `None` for [`NONE`].
    #[inline(always)]
    pub fn entry_mut(&mut self, slot: u32) -> Option<&mut NftEntry> {
        self.entries.get_mut(slot as usize)
    }

    /// Inserts a key that is not in the table; makes room by removing the entry idle for longest, of the same source where
    /// that has its share of the table. The slot of the new entry: earlier slots may have lost theirs. [`NONE`] for a flow
    /// that is not cached, because no entry of its source was found at once (or the index lost count).
    pub fn insert(&mut self, key: FlowKey, hash: u64, action: FlowAction, now: u32) -> u32 {
        if self.free.is_empty() {
            let scope = key.scope();
            let victim = if self.owners.count(scope) >= self.owners.share {
                self.one_of(scope, now)
            } else {
                self.idle.oldest(&mut self.entries)
            };
            self.evict(victim);
        }
        let Some(slot) = self.free.pop() else { return NONE };
        if !self.index.insert(hash, slot) {
            // Both buckets of the key, and all that could be moved out of them, are full.
            self.evict(self.in_the_way(hash, key.scope(), now));
            if !self.index.insert(hash, slot) {
                self.free.push(slot);
                return NONE;
            }
        }
        self.entries[slot as usize] = NftEntry { key, action, last_seen: now, ..NftEntry::default() };
        self.idle.push(&mut self.entries, slot, now);
        *self.owners.of(key.scope()) += 1;
        self.stats.inserted += 1;
        slot
    }

    fn evict(&mut self, slot: u32) {
        if slot != NONE {
            self.remove(slot);
            self.stats.evicted += 1;
        }
    }

    /// Of the entries in both buckets of a hash, the one that gives way to a new one of a source: of those of sources that
    /// have more than their share if there are any, else of all, the one used longest ago. A source that has its share takes
    /// the place of nobody who has not: then it may be [`NONE`].
    fn in_the_way(&self, hash: u64, scope: Scope, now: u32) -> u32 {
        let has_its_share = self.owners.count(scope) >= self.owners.share;
        let candidates = self.index.slots_of(hash).filter_map(|slot| {
            let entry = &self.entries[slot as usize];
            let owner = entry.key.scope();
            let has_more = self.owners.count(owner) > self.owners.share;
            let may = !has_its_share || has_more || owner == scope;
            may.then(|| ((has_more, now.wrapping_sub(entry.last_seen)), slot))
        });
        candidates.max().map_or(NONE, |(_, slot)| slot)
    }

    /// Of some entries of a source, the one used longest ago; [`NONE`] when none was met.
    fn one_of(&mut self, scope: Scope, now: u32) -> u32 {
        let (mut best, mut longest) = (NONE, 0);
        for _ in 0..OWN_STEPS.min(self.config.entries) {
            let slot = self.owners.hand;
            self.owners.hand = (slot + 1) % self.config.entries;
            let entry = &self.entries[slot as usize];
            let unused = now.wrapping_sub(entry.last_seen);
            if entry.used != 0 && entry.key.scope() == scope && (best == NONE || unused > longest) {
                (best, longest) = (slot, unused);
            }
        }
        best
    }

    /// Removes the entry in `slot`.
    pub fn remove(&mut self, slot: u32) {
        let Some(entry) = self.entries.get(slot as usize) else { return };
        if entry.used == 0 {
            return;
        }
        let hash = entry.key.hash(self.config.seed);
        let owned = self.owners.of(entry.key.scope());
        *owned = owned.saturating_sub(1);
        self.index.remove(hash, slot);
        self.idle.unlink(&mut self.entries, slot);
        self.entries[slot as usize] = NftEntry::default();
        self.free.push(slot);
    }

    /// Removes entries idle for longer than configured (and at most two slices, 1/16 of that, too late), looking
    /// at no more than `budget` of them.
    pub fn age(&mut self, now: u32, budget: usize) {
        for _ in 0..budget {
            match self.idle.next_expired(&mut self.entries, now) {
                idle::Expired::Entry(slot) => {
                    self.remove(slot);
                    self.stats.aged += 1;
                }
                idle::Expired::Refreshed => {}
                // Nothing is due. While the table is nearly full, the next eviction is prepared instead.
                idle::Expired::None if self.free.len() < self.config.entries as usize / 16 + 1 => {
                    if !self.idle.tidy(&mut self.entries) {
                        break;
                    }
                }
                idle::Expired::None => break,
            }
        }
    }

    /// Removes every entry.
    pub fn clear(&mut self) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.clear_some(from, u32::MAX);
        }
    }

    /// Removes up to `budget` entries, from slot `from` on, and says where to go on (`None` at the end). Who goes on until then has
    /// removed every entry that was there at the beginning, whatever comes in meanwhile: entries stand still.
    pub fn clear_some(&mut self, from: u32, budget: u32) -> Option<u32> {
        let end = self.config.entries.min(from.saturating_add(SLOTS));
        let mut left = budget;
        for slot in from..end {
            if self.entries[slot as usize].used == 0 {
                continue;
            }
            if left == 0 {
                return Some(slot);
            }
            self.remove(slot);
            left -= 1;
        }
        (end < self.config.entries).then_some(end)
    }

    /// Up to `limit` entries in use, from slot `from` on, and the slot to go on from (`None` at the end).
    pub fn scan(&self, from: u32, limit: usize) -> (Vec<NftEntry>, Option<u32>) {
        let mut found = Vec::new();
        let end = self.config.entries.min(from.saturating_add(SLOTS));
        for slot in from..end {
            if found.len() == limit {
                return (found, Some(slot));
            }
            let entry = &self.entries[slot as usize];
            if entry.used != 0 {
                found.push(*entry);
            }
        }
        (found, (end < self.config.entries).then_some(end))
    }
}

/// Who has how many entries.
struct Owners {
    vnics: Rows<u32>,
    vpcs: Rows<u32>,
    /// Entries from which on a source makes room among its own.
    share: u32,
    /// Where the search for one of them goes on.
    hand: u32,
}

impl Owners {
    fn new(vnics: usize, vpcs: usize, share: u32) -> Self {
        Self { vnics: Rows::new(vnics, || 0), vpcs: Rows::new(vpcs, || 0), share, hand: 0 }
    }

    fn of(&mut self, scope: Scope) -> &mut u32 {
        match scope {
            Scope::Vnic(index) => self.vnics.at_mut(index),
            Scope::Vpc(index) => self.vpcs.at_mut(index),
        }
    }

    fn count(&self, scope: Scope) -> u32 {
        match scope {
            Scope::Vnic(index) => *self.vnics.at(index),
            Scope::Vpc(index) => *self.vpcs.at(index),
        }
    }
}

/// Iterates over the set bits of a mask, lowest first.
#[derive(Clone, Copy)]
pub struct Bits(pub u64);

impl Bits {
    /// What [`next`](Iterator::next) will return.
    #[inline(always)]
    pub const fn peek(&self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize) }
    }
}

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests;
