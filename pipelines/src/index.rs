//! The hash index of the flow tables (NFT, and the worker's side of RCFT): bucketed cuckoo hashing.
//!
//! A bucket is one cache line: eight 16-bit tags and eight entry slots. A key lives in its primary bucket or in
//! the alternate one, which follows from bucket and tag alone, so entries move without touching their keys.
//! Placement prefers the primary bucket; nearly every hit therefore costs one line here. The number of buckets
//! need not be a power of two.

use zerocopy::FromZeros;

use crate::mem::{Slab, equal_lanes, prefetch};

/// No slot: the key is in no entry.
pub const NONE: u32 = u32::MAX;

const WAYS: usize = 8;
/// Longest chain of moves before an insertion gives up.
const MAX_MOVES: usize = 64;

#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(64))]
struct IndexBucket {
    /// 0: the way is free.
    tags: [u16; WAYS],
    slots: [u32; WAYS],
}

const _: () = assert!(size_of::<IndexBucket>() == 64);

impl IndexBucket {
    /// The ways whose tag is `tag`, as [`equal_lanes`] has them.
    #[inline(always)]
    fn matches(&self, tag: u16) -> u32 {
        equal_lanes(self.tags, tag)
    }

    /// The slot of the first way in a mask of [`matches`](Self::matches).
    #[inline(always)]
    fn first(&self, mask: u32) -> u32 {
        self.slots[(mask.trailing_zeros() as usize / 2) & (WAYS - 1)]
    }
}

pub(crate) struct Index {
    buckets: Slab<IndexBucket>,
    count: u64,
    /// Rotates the way that a move throws out, so that a cycle does not repeat.
    turn: usize,
}

#[inline(always)]
fn tag_of(hash: u64) -> u16 {
    ((hash >> 48) as u16).max(1)
}

impl Index {
    /// An index with room for `entries` entries when it is `percent` full. The number of buckets is even.
    pub(crate) fn new(entries: u32, percent: usize, advise: &dyn Fn(usize, usize)) -> Self {
        let count = Self::buckets(entries, percent);
        Self { buckets: Slab::zeroed(count, advise), count: count as u64, turn: 0 }
    }

    fn buckets(entries: u32, percent: usize) -> usize {
        (entries as usize * 100).div_ceil(WAYS * percent.clamp(1, 100)).next_multiple_of(2).max(2)
    }

    /// Bytes of an index with room for `entries` entries when it is `percent` full.
    pub(crate) fn bytes(entries: u32, percent: usize) -> usize {
        Slab::<IndexBucket>::bytes(Self::buckets(entries, percent))
    }

    #[inline(always)]
    pub(crate) fn primary(&self, hash: u64) -> usize {
        ((u64::from(hash as u32) * self.count) >> 32) as usize
    }

    /// The other bucket of a hash.
    #[cfg(test)]
    pub(crate) fn alternate(&self, hash: u64) -> usize {
        self.other(self.primary(hash), tag_of(hash))
    }

    /// The other bucket of a tag: what is left of a number made of the tag, modulo the count, or half way round
    /// where that is the bucket itself; either way its own inverse.
    #[inline(always)]
    fn other(&self, bucket: usize, tag: u16) -> usize {
        let spread = u32::from(tag).wrapping_mul(0x9e37_79b1);
        let sum = ((u64::from(spread) * self.count) >> 32) as usize;
        let count = self.count as usize;
        let other = if sum >= bucket { sum - bucket } else { sum + count - bucket };
        match other {
            same if same == bucket => (bucket + count / 2) % count,
            other => other,
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets[self.primary(hash)]);
    }

    /// The first slot of the primary bucket whose tag fits, or [`NONE`]; its key is not compared.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> u32 {
        let bucket = &self.buckets[self.primary(hash)];
        match bucket.matches(tag_of(hash)) {
            0 => NONE,
            mask => bucket.first(mask),
        }
    }

    /// The slot for which `is_it` holds, among those whose tag fits.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> u32 {
        let tag = tag_of(hash);
        let primary = self.primary(hash);
        for bucket in [primary, self.other(primary, tag)] {
            let bucket = &self.buckets[bucket];
            let mut mask = bucket.matches(tag);
            while mask != 0 {
                let slot = bucket.first(mask);
                if is_it(slot) {
                    return slot;
                }
                mask &= mask - 1;
            }
        }
        NONE
    }

    /// Places a slot. `false` when no way could be freed within the bounded number of moves; nothing moved.
    pub(crate) fn insert(&mut self, hash: u64, slot: u32) -> bool {
        let tag = tag_of(hash);
        let primary = self.primary(hash);
        let alternate = self.other(primary, tag);
        for bucket in [primary, alternate] {
            if self.place(bucket, tag, slot) {
                return true;
            }
        }
        self.move_out(primary, tag, slot)
    }

    fn place(&mut self, bucket: usize, tag: u16, slot: u32) -> bool {
        let bucket = &mut self.buckets[bucket];
        let Some(way) = bucket.tags.iter().position(|&t| t == 0) else { return false };
        bucket.tags[way] = tag;
        bucket.slots[way] = slot;
        true
    }

    /// Walks a chain of full buckets, then shifts the chain by one, last link first, so that at every moment
    /// each key can be found.
    fn move_out(&mut self, start: usize, tag: u16, slot: u32) -> bool {
        let mut path = [(0usize, 0usize); MAX_MOVES];
        let mut at = start;
        for depth in 0..MAX_MOVES {
            self.turn = self.turn.wrapping_add(1);
            let way = self.turn % WAYS;
            path[depth] = (at, way);
            let victim = self.buckets[at].tags[way];
            let next = self.other(at, victim);
            if path[..depth].iter().any(|&(bucket, w)| bucket == at && w == way) {
                return false;
            }
            if self.buckets[next].tags.contains(&0) {
                for &(bucket, way) in path[..=depth].iter().rev() {
                    let (tag, slot) = (self.buckets[bucket].tags[way], self.buckets[bucket].slots[way]);
                    let to = self.other(bucket, tag);
                    if !self.place(to, tag, slot) {
                        return false;
                    }
                    self.buckets[bucket].tags[way] = 0;
                }
                return self.place(start, tag, slot);
            }
            at = next;
        }
        false
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, hash: u64, slot: u32) {
        let tag = tag_of(hash);
        let primary = self.primary(hash);
        for at in [primary, self.other(primary, tag)] {
            let bucket = &mut self.buckets[at];
            for way in 0..WAYS {
                if bucket.tags[way] == tag && bucket.slots[way] == slot {
                    bucket.tags[way] = 0;
                    return;
                }
            }
        }
    }

    /// The slots in both buckets of a hash.
    pub(crate) fn slots_of(&self, hash: u64) -> impl Iterator<Item = u32> {
        let primary = self.primary(hash);
        [primary, self.other(primary, tag_of(hash))].into_iter().flat_map(|at| {
            let bucket = self.buckets[at];
            (0..WAYS).filter(move |&way| bucket.tags[way] != 0).map(move |way| bucket.slots[way])
        })
    }
}
