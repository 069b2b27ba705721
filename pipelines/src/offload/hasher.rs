//! A hash for maps of control that flows are looked up in by the hundred thousand: a folded multiplication a word,
//! under a seed of its own for every map, since tenants choose part of what the keys are made of.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::flow_key::mix;

/// A map with the cheap hash.
pub type Map<K, V> = HashMap<K, V, Seed>;

/// The seed of a map.
#[derive(Clone, Copy, Debug)]
pub struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0u64))
    }
}

impl BuildHasher for Seed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded { state: self.0, seed: self.0 | 1 }
    }
}

/// A hash on its way.
#[derive(Clone, Copy, Debug)]
pub struct Folded {
    state: u64,
    seed: u64,
}

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.write_u64(rest.iter().fold(rest.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.state = mix(self.state ^ n, self.seed ^ 0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.state ^ 0xa076_1d64_78bd_642f, self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_little_are_apart_in_high_and_low_bits() {
        let seed = Seed::default();
        let hashes: Vec<u64> = (0..4096u64).map(|n| seed.hash_one((7u16, [n, 1 << 40], n >> 3))).collect();
        for shift in [0, 52] {
            let mut buckets = [0; 4096];
            hashes.iter().for_each(|hash| buckets[(hash >> shift) as usize % 4096] += 1);
            assert!(buckets.iter().all(|n| *n < 12), "shift {shift}");
        }
        let bytes: Vec<u8> = vec![1; 20];
        assert_ne!(seed.hash_one(&bytes[..19]), seed.hash_one(&bytes));
    }
}
