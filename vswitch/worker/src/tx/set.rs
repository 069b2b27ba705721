//! [`PortSet`]: which of many ports have something to be done, one bit each, found in the order of their indices.

use pipelines::snapshot::PortIndex;

use crate::MAX_PORTS;

const WORDS: usize = MAX_PORTS / 64;
const _: () = assert!(MAX_PORTS.is_multiple_of(64) && WORDS <= 64, "one bit a port, and one a word");

/// A set of ports.
#[derive(Clone, Debug)]
pub(super) struct PortSet {
    words: [u64; WORDS],
    /// The words that are not zero.
    used: u64,
}

impl Default for PortSet {
    fn default() -> Self {
        Self { words: [0; WORDS], used: 0 }
    }
}

impl PortSet {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    #[inline(always)]
    pub fn insert(&mut self, port: PortIndex) {
        let word = usize::from(port) / 64;
        if let Some(bits) = self.words.get_mut(word) {
            *bits |= 1 << (port % 64);
            self.used |= 1 << word;
        }
    }

    #[inline(always)]
    pub fn remove(&mut self, port: PortIndex) {
        let word = usize::from(port) / 64;
        if let Some(bits) = self.words.get_mut(word) {
            *bits &= !(1 << (port % 64));
            if *bits == 0 {
                self.used &= !(1 << word);
            }
        }
    }

    /// The first port of the set that is not before `from`. Ports may come and go between two questions.
    #[inline(always)]
    pub fn first_from(&self, from: PortIndex) -> Option<PortIndex> {
        let word = usize::from(from) / 64;
        let here = self.words.get(word)? & (u64::MAX << (from % 64));
        if here != 0 {
            return Some((word * 64) as PortIndex + here.trailing_zeros() as PortIndex);
        }
        // In two shifts: the last word has none behind it.
        let later = self.used & (u64::MAX << word << 1);
        if later == 0 {
            return None;
        }
        let word = later.trailing_zeros() as usize;
        Some((word * 64) as PortIndex + self.words[word].trailing_zeros() as PortIndex)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_ports_is_a_set(changes in prop::collection::vec((any::<bool>(), 0..MAX_PORTS as PortIndex), 0..200)) {
            let (mut set, mut twin) = (PortSet::default(), BTreeSet::new());
            for (comes, port) in changes {
                if comes {
                    set.insert(port);
                    twin.insert(port);
                } else {
                    set.remove(port);
                    twin.remove(&port);
                }
                prop_assert_eq!(set.is_empty(), twin.is_empty());
            }
            let (mut found, mut from) = (Vec::new(), 0);
            while let Some(port) = set.first_from(from) {
                found.push(port);
                from = port + 1;
            }
            prop_assert_eq!(found, twin.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn ports_out_of_range_are_in_no_set() {
        let mut set = PortSet::default();
        set.insert(PortIndex::MAX);
        set.remove(PortIndex::MAX);
        assert!(set.is_empty() && set.first_from(MAX_PORTS as PortIndex).is_none());
        set.insert(MAX_PORTS as PortIndex - 1);
        assert_eq!(set.first_from(0), Some(MAX_PORTS as PortIndex - 1));
        assert_eq!(set.first_from(MAX_PORTS as PortIndex), None);
    }
}
