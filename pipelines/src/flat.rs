//! A small read-only hash map with integer keys: open addressing, at most a quarter full so that most
//! keys are where they are looked for first, no pointers to chase.
//!
//! Built by control for a snapshot, read by workers for every packet (VNI -> VPC, known VTEPs, VLAN -> vNIC). Snapshots
//! that do not differ in a map share it: a clone costs nothing, and the first change of it copies the cells once.

use std::sync::Arc;

use crate::flow_key::mix;

/// Map from `u128` to `u32`.
#[derive(Clone, Debug)]
pub struct FlatMap {
    cells: Arc<[(u128, u32)]>,
    mask: usize,
    len: usize,
}

const FREE: u32 = u32::MAX;
const EMPTY: (u128, u32) = (0, FREE);
/// The fewest cells.
const LEAST: usize = 4;

impl Default for FlatMap {
    fn default() -> Self {
        Self::with_cells(LEAST)
    }
}

/// Equal when they have the same pairs, in whatever cells.
impl PartialEq for FlatMap {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cells, &other.cells)
            || self.len == other.len && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl Eq for FlatMap {}

impl FlatMap {
    /// A map of these pairs; a later pair replaces an earlier one with the same key. The value `u32::MAX` is
    /// reserved and is left out.
    pub fn new(pairs: impl IntoIterator<Item = (u128, u32)>) -> Self {
        let pairs: Vec<_> = pairs.into_iter().filter(|&(_, value)| value != FREE).collect();
        let mut map = Self::with_cells(cells_for(pairs.len()));
        let cells = Arc::make_mut(&mut map.cells);
        for (key, value) in pairs {
            let at = Self::place(cells, key);
            map.len += usize::from(cells[at].1 == FREE);
            cells[at] = (key, value);
        }
        map
    }

    fn with_cells(size: usize) -> Self {
        Self { cells: vec![EMPTY; size].into(), mask: size - 1, len: 0 }
    }

    /// Enters a pair, in place of an earlier one with the same key. The value `u32::MAX` is reserved and is left out.
    pub fn insert(&mut self, key: u128, value: u32) {
        if value == FREE || self.get(key) == Some(value) {
            return;
        }
        if cells_for(self.len + 1) > self.cells.len() {
            *self = Self::new(self.iter().chain([(key, value)]));
            return;
        }
        let cells = Arc::make_mut(&mut self.cells);
        let at = Self::place(cells, key);
        self.len += usize::from(cells[at].1 == FREE);
        cells[at] = (key, value);
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: u128) {
        if self.get(key).is_none() {
            return;
        }
        let (mask, cells) = (self.mask, Arc::make_mut(&mut self.cells));
        let mut hole = Self::place(cells, key);
        cells[hole] = EMPTY;
        self.len -= 1;
        // Whatever was pushed past the hole moves up, so that no search ends at it too early.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (key, value) = cells[at];
            if value == FREE {
                return;
            }
            let first = Self::hash(key) as usize & mask;
            if at.wrapping_sub(first) & mask >= at.wrapping_sub(hole) & mask {
                cells[hole] = cells[at];
                cells[at] = EMPTY;
                hole = at;
            }
        }
    }

    /// The cell that has a key, or that it would get.
    fn place(cells: &[(u128, u32)], key: u128) -> usize {
        let mask = cells.len() - 1;
        let mut at = Self::hash(key) as usize & mask;
        while cells[at].1 != FREE && cells[at].0 != key {
            at = (at + 1) & mask;
        }
        at
    }

    /// The pairs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u128, u32)> {
        self.cells.iter().copied().filter(|&(_, value)| value != FREE)
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

/// Cells for so many pairs: a quarter of them at most is taken.
fn cells_for(pairs: usize) -> usize {
    (pairs * 4).next_power_of_two().max(LEAST)
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

    proptest! {
        #[test]
        fn changes_agree_with_a_hash_map_and_leave_clones_alone(
            first in prop::collection::vec((0u128..40, 0u32..9), 0..40),
            changes in prop::collection::vec((0u128..40, prop::option::of(0u32..9)), 0..120),
        ) {
            let mut twin: HashMap<_, _> = first.iter().copied().collect();
            let mut map = FlatMap::new(first);
            for (key, value) in changes {
                let (before, was) = (map.clone(), twin.clone());
                match value {
                    Some(value) => {
                        map.insert(key, value);
                        twin.insert(key, value);
                    }
                    None => {
                        map.remove(key);
                        twin.remove(&key);
                    }
                }
                for key in 0..40 {
                    prop_assert_eq!(map.get(key), twin.get(&key).copied());
                    prop_assert_eq!(before.get(key), was.get(&key).copied());
                }
                prop_assert_eq!(map.len(), twin.len());
                prop_assert!(map == FlatMap::new(twin.iter().map(|(&key, &value)| (key, value))));
                prop_assert_eq!(map == before, twin == was);
            }
        }
    }

    #[test]
    fn empty_maps_find_nothing() {
        assert_eq!(FlatMap::default().get(1), None);
        assert_eq!(FlatMap::new([]).get(1), None);
    }
}
