//! A slot of the ledger: a key, what it is linked to, and what it is at the moment.

use std::num::NonZeroU32;

use super::base::{AtomicU32, Ordering};
use Ordering::Relaxed;

/// Nothing: end of a chain, no slot.
pub(super) const NONE: u32 = 0;

/// A slot of `N` words: four of its own, then the key, whose words of 64 bits take two each. Slot numbers in links are one
/// higher than their position, so that zero is none.
pub(super) type LedgerSlot<const N: usize> = [AtomicU32; N];
pub(super) const NEXT: usize = 0;
pub(super) const STATE: usize = 1;
pub(super) const SEEN: usize = 2;
pub(super) const BORN: usize = 3;
/// Where the key begins.
pub(super) const KEY: usize = 4;

/// What a slot is; the low bits of its state word, above them a version that changes with every use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum SlotState {
    /// Not in use.
    Free = 0,
    /// Linked by a worker that has not (or not yet) been granted a place.
    Claimed = 1,
    /// It counts against its vNIC's quota.
    Admitted = 2,
    /// Being taken out; still counts.
    Leaving = 3,
    /// Claimed in vain; control unlinks it.
    Void = 4,
}

const KIND: u32 = 7;
pub(super) const VERSION: u32 = 8;

pub(super) const fn with(state: u32, kind: SlotState) -> u32 {
    state & !KIND | kind as u32
}

pub(super) const fn is(state: u32, kind: SlotState) -> bool {
    state & KIND == kind as u32
}

/// The chain in which a key is, if it is anywhere. Who asks for several things of a key takes its hash once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain(NonZeroU32);

impl Chain {
    pub(super) const fn at(position: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(position))
    }

    pub(super) const fn position(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// True for the slot of a key. The last word is compared first: keys of one chain differ there.
pub(super) fn has_key<const K: usize, const N: usize>(slot: &LedgerSlot<N>, key: &[u64; K]) -> bool {
    (0..K).rev().all(|i| word(slot, i) == key[i])
}

/// The key in a slot.
pub(super) fn read_key<const K: usize, const N: usize>(slot: &LedgerSlot<N>) -> [u64; K] {
    std::array::from_fn(|i| word(slot, i))
}

/// A word of the key in a slot.
fn word<const N: usize>(slot: &LedgerSlot<N>, i: usize) -> u64 {
    let half = |i: usize| u64::from(slot[KEY + i].load(Relaxed));
    half(2 * i) << 32 | half(2 * i + 1)
}
