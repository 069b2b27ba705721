//! What first fragments tell about the later ones: (source, destination, protocol, id) -> ports and class.
//!
//! A later fragment takes the ports of its first fragment and thereby its flow key; no verdict is stored, so a
//! change of policy holds for fragments as for whole packets. The table is shared by all workers, because a
//! NIC's hash may send fragments of one datagram to different queues; it is bounded, lossy and lock-free: each
//! cell holds a value, and the words of a key mixed with it, so that what two racing writers leave matches nobody.
//!
//! The hash is keyed, so that tenants cannot choose who meets whom. Of the cells in which a datagram may lie, one source
//! has half at most: who sends first fragments without end loses its own datagrams, not those of others.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::flow_key::{FlowKey, Scope, mix};

/// Cells probed for one datagram.
const WAYS: usize = 8;
/// How many of them one source may have.
const OWN: usize = 4;
/// Words of a key.
const WORDS: usize = 7;
/// The word of a key whose upper half is its scope.
const SCOPE_WORD: usize = 4;
/// The word of a key whose upper part, a MAC, fragments leave zero: a cell has the time there.
const TIME_WORD: usize = 5;
/// A datagram's fragments must arrive within this time (ticks; RFC 8200 section 4.5 and Linux: 30 to 60 s).
const LIFETIME_TICKS: u32 = 300;
/// By how much the clocks of two workers may differ.
const SKEW_TICKS: u32 = 16;

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

/// A datagram, in one cache line.
#[derive(Default)]
#[repr(align(64))]
struct FragmentCell {
    key: [AtomicU64; WORDS],
    /// Ports, protocol, class, and a part of the time; 0: free.
    value: AtomicU64,
}

impl FragmentCell {
    /// What each word of a key is mixed with.
    #[inline]
    fn mask(value: u64, word: usize) -> u64 {
        mix(value ^ 0x9e37_79b9_7f4a_7c15, word as u64 ^ 0xd6e8_feb8_6659_fd93)
    }

    /// A word of the key, as of when the value was this.
    fn word(&self, value: u64, word: usize) -> u64 {
        self.key[word].load(Relaxed) ^ Self::mask(value, word)
    }

    /// The value and its time, when the cell holds this key.
    fn value_of(&self, key: &FlowKey) -> Option<(u64, u32)> {
        let value = self.value.load(Relaxed);
        let time = (self.word(value, TIME_WORD) >> 16) as u32;
        let words = key.words().iter().enumerate();
        let differs = words.fold(0, |differs, (i, word)| {
            let time = if i == TIME_WORD { u64::from(time) << 16 } else { 0 };
            differs | self.word(value, i) ^ word ^ time
        });
        (value != 0 && differs == 0 && value as u16 == time as u16).then_some((value, time))
    }

    fn scope(&self) -> Option<Scope> {
        let value = self.value.load(Relaxed);
        (value != 0).then(|| Scope::from_raw((self.word(value, SCOPE_WORD) >> 32) as u32))
    }

    fn age(&self, tick: u32) -> Option<u32> {
        let value = self.value.load(Relaxed);
        (value != 0).then(|| age((self.word(value, TIME_WORD) >> 16) as u32, tick))
    }

    fn store(&self, key: &FlowKey, value: u64, tick: u32) {
        self.value.store(value, Relaxed);
        for (i, (stored, word)) in self.key.iter().zip(key.words()).enumerate() {
            let time = if i == TIME_WORD { u64::from(tick) << 16 } else { 0 };
            stored.store((word | time) ^ Self::mask(value, i), Relaxed);
        }
    }
}

/// Ticks from one moment to a later one.
fn age(then: u32, tick: u32) -> u32 {
    let age = tick.wrapping_sub(then);
    // Workers read the clock each for itself: a first fragment may be a little younger than "now".
    if age > u32::MAX - SKEW_TICKS { 0 } else { age }
}

/// The shared table.
pub struct Fragments {
    cells: Box<[[FragmentCell; WAYS]]>,
    seed: u64,
}

impl Fragments {
    /// A table for `datagrams` datagrams in flight, whose hash is keyed by `seed`.
    pub fn new(datagrams: usize, seed: u64) -> Self {
        let sets = datagrams.div_ceil(WAYS).next_power_of_two();
        Self { cells: (0..sets).map(|_| Default::default()).collect(), seed }
    }

    fn set(&self, key: &FlowKey) -> &[FragmentCell; WAYS] {
        &self.cells[(key.hash(self.seed) >> 20) as usize & (self.cells.len() - 1)]
    }

    /// Remembers a first fragment. The oldest datagram of the set gives way, of the same source where that has its part.
    pub fn store(&self, key: &FlowKey, first: FirstFragment, tick: u32) {
        let value = u64::from(first.sport) << 48
            | u64::from(first.dport) << 32
            | u64::from(first.proto) << 24
            | u64::from(first.class) << 16
            | u64::from(tick as u16);
        let set = self.set(key);
        let own = |cell: &&FragmentCell| cell.scope() == Some(key.scope());
        let age = |cell: &&FragmentCell| cell.age(tick).unwrap_or(u32::MAX);
        let same = set.iter().find(|cell| cell.value_of(key).is_some());
        let cell = same.or_else(|| {
            if set.iter().filter(own).count() >= OWN {
                set.iter().filter(own).max_by_key(age)
            } else {
                set.iter().max_by_key(age)
            }
        });
        if let Some(cell) = cell {
            cell.store(key, value, tick);
        }
    }

    /// The first fragment of a datagram, when it was seen lately.
    pub fn find(&self, key: &FlowKey, tick: u32) -> Option<FirstFragment> {
        let (value, then) = self.set(key).iter().find_map(|cell| cell.value_of(key))?;
        (age(then, tick) <= LIFETIME_TICKS).then_some(FirstFragment {
            sport: (value >> 48) as u16,
            dport: (value >> 32) as u16,
            proto: (value >> 24) as u8,
            class: (value >> 16) as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: FirstFragment = FirstFragment { sport: 53, dport: 4791, proto: 17, class: 1 };

    fn key(vnic: u32, id: u32) -> FlowKey {
        FlowKey::from_words([1, 0, 0, 0, u64::from(vnic) << 32 | u64::from(id), 0, 17])
    }

    #[test]
    fn datagrams_are_found_until_they_expire() {
        let table = Fragments::new(64, 5);
        table.store(&key(1, 7), FIRST, 70_000);
        assert_eq!(table.find(&key(1, 7), 70_000), Some(FIRST));
        assert_eq!(table.find(&key(1, 7), 70_300), Some(FIRST));
        assert_eq!(table.find(&key(1, 7), 70_301), None);
        assert_eq!((table.find(&key(1, 8), 70_000), table.find(&key(2, 7), 70_000)), (None, None));
    }

    #[test]
    fn the_table_is_bounded_and_the_newest_survive() {
        let table = Fragments::new(16, 5);
        for n in 0..10_000u32 {
            table.store(&key(n % 9, n), FirstFragment { sport: n as u16, ..FIRST }, n / 100);
            assert_eq!(table.find(&key(n % 9, n), n / 100).map(|first| first.sport), Some(n as u16));
        }
    }

    #[test]
    fn repair_an_old_datagram_is_not_taken_for_a_new_one_when_sixteen_bits_of_time_wrap() {
        let table = Fragments::new(64, 5);
        for start in [1_000, u32::MAX - 100] {
            table.store(&key(1, 7), FIRST, start);
            assert_eq!(table.find(&key(1, 7), start.wrapping_add(300)), Some(FIRST));
            assert_eq!(table.find(&key(1, 7), start.wrapping_sub(3)), Some(FIRST));
            for later in [301, 1 << 16, (1 << 16) + 50, 1 << 24, 1 << 31] {
                assert_eq!(table.find(&key(1, 7), start.wrapping_add(later)), None, "{later} ticks later");
            }
        }
    }

    #[test]
    fn repair_every_word_of_a_key_is_compared() {
        let table = Fragments::new(1, 5);
        let known = FlowKey::from_words([1, 2, 3, 4, 5, 6, 7]);
        table.store(&known, FIRST, 1);
        for word in 0..WORDS {
            for bit in 0..if word == TIME_WORD { 16 } else { 64 } {
                let mut words = *known.words();
                words[word] ^= 1 << bit;
                assert_eq!(table.find(&FlowKey::from_words(words), 1), None, "word {word}, bit {bit}");
            }
        }
        assert_eq!(table.find(&known, 1), Some(FIRST));
    }

    #[test]
    fn repair_one_source_does_not_push_out_the_datagrams_of_others() {
        let table = Fragments::new(1024, 5);
        for id in 0..100 {
            table.store(&key(1, id), FirstFragment { sport: id as u16, ..FIRST }, 100);
        }
        for id in 0..100_000 {
            table.store(&key(2, id), FIRST, 150);
        }
        for id in 0..100 {
            assert_eq!(table.find(&key(1, id), 200).map(|first| first.sport), Some(id as u16));
        }
        let all = table.cells.iter().flatten();
        let stranger = all.filter(|cell| cell.scope() == Some(Scope::Vnic(2))).count();
        assert!(stranger <= 1024 * OWN / WAYS, "{stranger} cells of one source");
    }

    #[test]
    fn repair_what_two_writers_leave_matches_neither() {
        let (one, two) = (key(1, 7), key(2, 9));
        for torn in 0..=WORDS {
            let table = Fragments::new(1, 5);
            table.store(&one, FIRST, 1);
            let cell = &table.cells[0][WAYS - 1];
            let cell = if cell.value_of(&one).is_some() { cell } else { &table.cells[0][0] };
            // The other one has written its value and so many words.
            let value = cell.value.load(Relaxed) ^ 3;
            cell.value.store(value, Relaxed);
            for word in 0..torn {
                let time = if word == TIME_WORD { 2 << 16 } else { 0 };
                cell.key[word].store((two.words()[word] | time) ^ FragmentCell::mask(value, word), Relaxed);
            }
            assert_eq!(table.find(&one, 1), None, "{torn} words");
            assert_eq!(table.find(&two, 2).is_some(), torn == WORDS);
        }
    }
}
