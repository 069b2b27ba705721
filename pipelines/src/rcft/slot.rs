//! A slot of the ledger: a key, what it is linked to, and what it is at the moment.

use super::base::{AtomicU32, Ordering};
use Ordering::Relaxed;

/// Nothing: end of a chain, no slot.
pub(super) const NONE: u32 = 0;

/// Words of a slot. Slot numbers in links are one higher than their position, so that zero is none.
pub(super) type LedgerSlot = [AtomicU32; 10];
pub(super) const NEXT: usize = 6;
pub(super) const STATE: usize = 7;
pub(super) const SEEN: usize = 8;
pub(super) const BORN: usize = 9;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 40;
const _: () = assert!(SLOT_BYTES == 4 * 10);

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

/// The key in a slot.
pub(super) fn read_key(slot: &LedgerSlot) -> [u64; 3] {
    let word = |i: usize| u64::from(slot[i].load(Relaxed)) << 32 | u64::from(slot[i + 1].load(Relaxed));
    [word(0), word(2), word(4)]
}
