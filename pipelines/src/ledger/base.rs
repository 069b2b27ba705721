//! What the ledger stands on: atomics, zeroed memory, a hash, a hint to the processor. The model check puts loom's atomics in its place.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::flow_key::mix;
use crate::mem::Slab;
pub(super) use crate::mem::prefetch;

/// Atomics all zero.
pub(super) type Cells<T> = Slab<T>;

/// `n` zeroed items, of whose memory `advise` is told before it is touched.
pub(super) fn zeroed<T: zerocopy::FromZeros>(n: usize, advise: &dyn Fn(usize, usize)) -> Cells<T> {
    Slab::zeroed(n, advise)
}

/// Hash of a key under a seed.
#[inline(always)]
pub(crate) fn hash<const K: usize>(key: &[u64; K], seed: u64) -> u64 {
    const C: u64 = 0xd6e8_feb8_6659_fd93;
    let first = mix(key[0] ^ seed, key[1] ^ seed.rotate_left(17) ^ C);
    key[2..].iter().fold(first, |hash, word| mix(hash ^ word, seed.rotate_left(32) ^ C))
}
