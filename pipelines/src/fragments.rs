//! What first fragments tell about the later ones: (source, destination, protocol, id) -> ports and class.
//!
//! A later fragment takes the ports of its first fragment and thereby its flow key; no verdict is stored, so a
//! change of policy holds for fragments as for whole packets. The table is shared by all workers, because a
//! NIC's hash may send fragments of one datagram to different queues; it is bounded, lossy and lock-free: each
//! cell holds `tag ^ value` and `value`, so that two racing writers leave a cell that matches neither.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Cells probed for one datagram.
const WAYS: usize = 4;
/// A datagram's fragments must arrive within this time (ticks; RFC 8200 section 4.5 and Linux: 30 to 60 s).
const LIFETIME_TICKS: u16 = 300;
/// By how much the clocks of two workers may differ.
const SKEW_TICKS: u16 = 16;

/// What later fragments need of their first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstFragment {
    /// Source port, or ICMP type and code.
    pub sport: u16,
    /// Destination port, or ICMP id.
    pub dport: u16,
    /// IP protocol.
    pub proto: u8,
    /// RoCE class code.
    pub class: u8,
}

/// The shared table.
pub struct Fragments {
    cells: Box<[[(AtomicU64, AtomicU64); WAYS]]>,
}

impl Fragments {
    /// A table for `datagrams` datagrams in flight.
    pub fn new(datagrams: usize) -> Self {
        let sets = datagrams.div_ceil(WAYS).next_power_of_two();
        Self { cells: (0..sets).map(|_| Default::default()).collect() }
    }

    fn set(&self, hash: u64) -> &[(AtomicU64, AtomicU64); WAYS] {
        &self.cells[(hash >> 20) as usize & (self.cells.len() - 1)]
    }

    fn age(value: u64, tick: u32) -> u16 {
        let age = (tick as u16).wrapping_sub(value as u16);
        // Workers read the clock each for itself: a first fragment may be a little younger than "now".
        if age > u16::MAX - SKEW_TICKS { 0 } else { age }
    }

    /// Remembers a first fragment. The oldest datagram of the set gives way.
    pub fn store(&self, hash: u64, first: FirstFragment, tick: u32) {
        let value = u64::from(first.sport) << 48
            | u64::from(first.dport) << 32
            | u64::from(first.proto) << 24
            | u64::from(first.class) << 16
            | u64::from(tick as u16);
        let set = self.set(hash);
        let same = set.iter().find(|(tag, stored)| tag.load(Relaxed) ^ stored.load(Relaxed) == hash);
        let cell = same.or_else(|| {
            set.iter().max_by_key(|(tag, stored)| match (tag.load(Relaxed), stored.load(Relaxed)) {
                (0, 0) => u32::MAX,
                (_, stored) => u32::from(Self::age(stored, tick)),
            })
        });
        if let Some((tag, stored)) = cell {
            stored.store(value, Relaxed);
            tag.store(hash ^ value, Relaxed);
        }
    }

    /// The first fragment of a datagram, when it was seen lately.
    pub fn find(&self, hash: u64, tick: u32) -> Option<FirstFragment> {
        self.set(hash).iter().find_map(|(tag, stored)| {
            let value = stored.load(Relaxed);
            let fits = tag.load(Relaxed) ^ value == hash && Self::age(value, tick) <= LIFETIME_TICKS;
            fits.then_some(FirstFragment {
                sport: (value >> 48) as u16,
                dport: (value >> 32) as u16,
                proto: (value >> 24) as u8,
                class: (value >> 16) as u8,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: FirstFragment = FirstFragment { sport: 53, dport: 4791, proto: 17, class: 1 };

    #[test]
    fn datagrams_are_found_until_they_expire() {
        let table = Fragments::new(64);
        table.store(0x1234_5678_9abc_def1, FIRST, 70_000);
        assert_eq!(table.find(0x1234_5678_9abc_def1, 70_000), Some(FIRST));
        assert_eq!(table.find(0x1234_5678_9abc_def1, 70_300), Some(FIRST));
        assert_eq!(table.find(0x1234_5678_9abc_def1, 70_301), None);
        assert_eq!(table.find(0x1234_5678_9abc_def3, 70_000), None);
    }

    #[test]
    fn the_table_is_bounded_and_the_newest_survive() {
        let table = Fragments::new(16);
        for n in 0..10_000u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            table.store(hash, FirstFragment { sport: n as u16, ..FIRST }, n as u32 / 100);
            assert_eq!(table.find(hash, n as u32 / 100).map(|first| first.sport), Some(n as u16));
        }
    }
}
