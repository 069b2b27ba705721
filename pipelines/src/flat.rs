//! A small read-only hash map with integer keys: open addressing, at most a quarter full so that most
//! keys are where they are looked for first, no pointers to chase.
//!
//! Built by control for a snapshot, read by workers for every packet (VNI -> VPC, known VTEPs, VLAN -> vNIC).

use crate::flow_key::mix;

/// Immutable map from `u128` to `u32`.
#[derive(Clone, Debug, Default)]
pub struct FlatMap {
    cells: Vec<(u128, u32)>,
    mask: usize,
    len: usize,
}

const FREE: u32 = u32::MAX;

impl FlatMap {
    /// A map of these pairs; a later pair replaces an earlier one with the same key. The value `u32::MAX` is
    /// reserved and is left out.
    pub fn new(pairs: impl IntoIterator<Item = (u128, u32)>) -> Self {
        let pairs: Vec<_> = pairs.into_iter().filter(|&(_, value)| value != FREE).collect();
        let size = (pairs.len() * 4).next_power_of_two().max(4);
        let mut map = Self { cells: vec![(0, FREE); size], mask: size - 1, len: 0 };
        for (key, value) in pairs {
            let mut at = Self::hash(key) as usize & map.mask;
            while map.cells[at].1 != FREE && map.cells[at].0 != key {
                at = (at + 1) & map.mask;
            }
            map.len += usize::from(map.cells[at].1 == FREE);
            map.cells[at] = (key, value);
        }
        map
    }

    #[inline(always)]
    fn hash(key: u128) -> u64 {
        mix(key as u64 ^ 0x9e37_79b9_7f4a_7c15, (key >> 64) as u64 ^ 0xa076_1d64_78bd_642f)
    }

    /// The value of a key.
    #[inline(always)]
    pub fn get(&self, key: u128) -> Option<u32> {
        let mut at = Self::hash(key) as usize & self.mask;
        loop {
            let &(found, value) = self.cells.get(at)?;
            if value == FREE {
                return None;
            }
            if found == key {
                return Some(value);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without any key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn agrees_with_a_hash_map(pairs in prop::collection::vec((0u128..64, 0u32..9), 0..80)) {
            let twin: HashMap<_, _> = pairs.iter().copied().collect();
            let map = FlatMap::new(pairs);
            prop_assert_eq!(map.len(), twin.len());
            for key in 0..70 {
                prop_assert_eq!(map.get(key), twin.get(&key).copied());
            }
        }
    }

    #[test]
    fn empty_maps_find_nothing() {
        assert_eq!(FlatMap::default().get(1), None);
        assert_eq!(FlatMap::new([]).get(1), None);
    }
}
