//! The NFT against a linear twin: a list of entries, searched from end to end.

mod clearing;

use proptest::prelude::*;

use super::*;

const SEED: u64 = 0x1234_5678;

/// What the table must be equal to.
#[derive(Default)]
struct Twin {
    /// Key number, last use, reason (as a value to tell decisions apart).
    entries: Vec<(u16, u32, u8)>,
}

impl Twin {
    fn find(&mut self, key: u16) -> Option<&mut (u16, u32, u8)> {
        self.entries.iter_mut().find(|entry| entry.0 == key)
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A packet of a flow: hit, or insert.
    Packet(u16),
    /// A burst of lookups.
    Burst(Vec<u16>),
    Remove(u16),
    /// Time passes (ticks), aging with this budget.
    Pass(u32, usize),
    Clear,
}

fn key(number: u16) -> FlowKey {
    FlowKey::from_words([u64::from(number), 0, 0, 0, 7 << 32, 0, 17])
}

fn action(value: u8) -> FlowAction {
    FlowAction { reason: value, ..FlowAction::default() }
}

struct Pair {
    nft: Nft,
    twin: Twin,
    now: u32,
    next_value: u8,
}

impl Pair {
    fn new(entries: u32, idle_ticks: u32, now: u32) -> Self {
        let nft = Nft::new(NftParams { entries, idle_ticks, seed: SEED }, &|_, _| {});
        Self { nft, twin: Twin::default(), now, next_value: 0 }
    }

    fn slice(&self, tick: u32) -> u32 {
        tick / self.nft.config().idle_ticks.div_ceil(32).max(1)
    }

    fn packet(&mut self, number: u16) {
        let (key, hash) = (key(number), key(number).hash(SEED));
        let slot = self.nft.find(&key, hash);
        assert_eq!(slot != NONE, self.twin.find(number).is_some(), "key {number}");
        if slot != NONE {
            assert_eq!(self.nft.entry(slot).key, key);
            self.nft.entry_mut(slot).unwrap().last_seen = self.now;
            self.twin.find(number).unwrap().1 = self.now;
            return;
        }
        let before = self.nft.stats();
        self.next_value = self.next_value.wrapping_add(1);
        let slot = self.nft.insert(key, hash, action(self.next_value), self.now);
        assert_eq!((self.nft.entry(slot).key, self.nft.find(&key, hash)), (key, slot));
        let evicted = self.nft.stats().evicted - before.evicted;
        let full = self.twin.entries.len() == self.nft.config().entries as usize;
        assert_eq!(evicted, u64::from(full), "one goes when full, none otherwise");
        if full {
            let gone: Vec<_> = self.twin.entries.iter().filter(|entry| !self.holds(entry.0)).collect();
            assert_eq!(gone.len(), 1, "exactly one gave way");
            let oldest = self.twin.entries.iter().map(|entry| entry.1).min().unwrap();
            assert_eq!(self.slice(gone[0].1), self.slice(oldest), "the one idle for longest, to a slice");
            let gone = gone[0].0;
            self.twin.entries.retain(|entry| entry.0 != gone);
        }
        self.twin.entries.push((number, self.now, self.next_value));
        assert_eq!(self.nft.stats().inserted, before.inserted + 1);
    }

    fn holds(&self, number: u16) -> bool {
        self.nft.find(&key(number), key(number).hash(SEED)) != NONE
    }

    fn pass(&mut self, ticks: u32, budget: usize) {
        self.now = self.now.saturating_add(ticks);
        let before = self.nft.stats();
        self.nft.age(self.now, budget);
        let aged = self.nft.stats().aged - before.aged;
        assert!(aged <= budget as u64, "the budget is kept");
        let idle = self.nft.config().idle_ticks;
        let slices = 2 * idle.div_ceil(32).max(1);
        let twin = std::mem::take(&mut self.twin.entries);
        let (kept, gone): (Vec<_>, Vec<_>) = twin.into_iter().partition(|entry| self.holds(entry.0));
        assert_eq!(gone.len() as u64, aged);
        for entry in gone {
            assert!(self.now - entry.1 > idle, "key {} went after {} ticks", entry.0, self.now - entry.1);
        }
        // With budget left, nothing is overdue by more than two slices.
        if budget >= 2 * self.nft.config().entries as usize {
            for entry in &kept {
                assert!(self.now - entry.1 <= idle + slices, "key {} stays too long", entry.0);
            }
        }
        self.twin.entries = kept;
    }

    fn burst(&mut self, numbers: &[u16]) {
        #[derive(Clone)]
        struct Lookup(FlowKey, u64, u32);
        impl Probe for Lookup {
            fn key(&self) -> &FlowKey {
                &self.0
            }
            fn hash(&self) -> u64 {
                self.1
            }
            fn set_entry(&mut self, slot: u32) {
                self.2 = slot;
            }
            fn entry(&self) -> u32 {
                self.2
            }
        }
        let mut probes: Vec<_> = numbers.iter().map(|&n| Lookup(key(n), key(n).hash(SEED), 77)).collect();
        let mask = 0x5555_5555_5555_5555 | 2;
        let mask = mask & if probes.len() >= 64 { u64::MAX } else { (1 << probes.len()) - 1 };
        let hits = self.nft.lookup_burst(&mut probes, mask);
        assert_eq!(hits & !mask, 0);
        for (i, probe) in probes.iter().enumerate() {
            if mask & 1 << i == 0 {
                assert_eq!(probe.2, 77, "left alone");
                continue;
            }
            let expected = self.twin.find(numbers[i]).map(|entry| entry.2);
            let found = (hits & 1 << i != 0).then(|| self.nft.entry(probe.2));
            assert_eq!(found.map(|entry| (entry.key, entry.action.reason)), expected.map(|v| (probe.0, v)));
            assert_eq!(probe.2 == NONE, expected.is_none());
        }
    }

    /// Everything at once.
    fn compare(&mut self) {
        assert_eq!(self.nft.stats().entries as usize, self.twin.entries.len());
        let (mut from, mut seen) = (0, Vec::new());
        loop {
            let (entries, next) = self.nft.scan(from, 3);
            seen.extend(
                entries
                    .iter()
                    .map(|entry| (entry.key.words()[0] as u16, entry.last_seen, entry.action.reason)),
            );
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        seen.sort_unstable();
        self.twin.entries.sort_unstable();
        assert_eq!(seen, self.twin.entries);
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Packet(number) => self.packet(*number),
            Op::Burst(numbers) => self.burst(numbers),
            Op::Remove(number) => {
                let slot = self.nft.find(&key(*number), key(*number).hash(SEED));
                assert_eq!(slot != NONE, self.twin.find(*number).is_some());
                self.nft.remove(slot);
                self.twin.entries.retain(|entry| entry.0 != *number);
            }
            Op::Pass(ticks, budget) => self.pass(*ticks, *budget),
            Op::Clear => {
                self.nft.clear();
                self.twin.entries.clear();
            }
        }
    }
}

fn op(keys: u16) -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..keys).prop_map(Op::Packet),
        2 => prop::collection::vec(0..keys, 0..=64).prop_map(Op::Burst),
        2 => (0..keys).prop_map(Op::Remove),
        2 => (0u32..40, 0usize..4).prop_map(|(ticks, budget)| Op::Pass(ticks, budget)),
        1 => (0u32..400, Just(1000)).prop_map(|(ticks, budget)| Op::Pass(ticks, budget)),
        1 => prop_oneof![
            8 => (1000u32..5_000_000, Just(1000)).prop_map(|(ticks, budget)| Op::Pass(ticks, budget)),
            1 => Just(Op::Clear),
        ],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equals_its_linear_twin(
        entries in 1u32..40,
        idle in prop_oneof![0u32..40, 40u32..1000],
        start in prop_oneof![Just(0u32), 0u32..100_000, Just(3_000_000_000u32)],
        ops in prop::collection::vec(op(60), 1..300),
    ) {
        let mut pair = Pair::new(entries, idle, start);
        for op in &ops {
            pair.run(op);
        }
        pair.compare();
    }
}

#[test]
fn every_configured_entry_can_be_used() {
    for entries in (1..200).chain([255, 256, 409, 410, 819, 1638, 3276, 6553, 13_107, 52_428]) {
        for round in 0..3u64 {
            let config = NftParams { entries, idle_ticks: 100, seed: SEED ^ round << 40 };
            let mut nft = Nft::new(config, &|_, _| {});
            for number in 0..u64::from(entries) {
                let key = FlowKey::from_words([number * 0x1_0001, 0, 0, 0, number, 0, 6]);
                nft.insert(key, key.hash(config.seed), action(1), 5);
            }
            let stats = nft.stats();
            assert_eq!((stats.entries, stats.evicted), (entries, 0), "{entries} entries, round {round}");
        }
    }
}

/// Keys that share both buckets and tag: found by their keys alone, and room is made among themselves.
#[test]
fn colliding_keys_are_told_apart_and_give_way_to_each_other() {
    let mut nft = Nft::new(NftParams { entries: 100, idle_ticks: 100, seed: SEED }, &|_, _| {});
    let hash = 0xabcd_0000_0000_0005;
    // `insert` takes the hash as it is given; removal computes it, so nothing may be removed in this test.
    for number in 0..16 {
        let slot = nft.insert(key(number), hash, action(number as u8), u32::from(number));
        assert_eq!(nft.find(&key(number), hash), slot);
    }
    for number in 0..16 {
        assert_eq!(nft.entry(nft.find(&key(number), hash)).action.reason, number as u8);
    }
    assert_eq!(nft.find(&key(99), hash), NONE);
}

#[test]
fn a_full_pair_of_buckets_gives_up_its_oldest() {
    // Real keys whose hashes fall into one pair of buckets of a small table.
    let mut nft = Nft::new(NftParams { entries: 400, idle_ticks: 1000, seed: SEED }, &|_, _| {});
    let hash_of = |n: u64| FlowKey::from_words([n, 0, 0, 0, 0, 0, 6]).hash(SEED);
    let wanted = hash_of(0);
    let place = |hash: u64| (hash >> 48, nft.index.primary(hash));
    let same = |n: &u64| place(hash_of(*n)) == place(wanted);
    let numbers: Vec<u64> = (0..).filter(same).take(20).collect();
    for (tick, &number) in numbers.iter().enumerate() {
        let key = FlowKey::from_words([number, 0, 0, 0, 0, 0, 6]);
        let slot = nft.insert(key, key.hash(SEED), action(1), tick as u32);
        assert_eq!(nft.find(&key, key.hash(SEED)), slot, "what was inserted is there");
        let used = nft.entries.iter().filter(|entry| entry.used != 0).count();
        assert_eq!(used as u32, nft.stats().entries);
    }
    // Sixteen fit, four gave way, and what is left can be found.
    assert_eq!((nft.stats().entries, nft.stats().evicted), (16, 4));
    let left = numbers.iter().filter(|&&n| {
        let key = FlowKey::from_words([n, 0, 0, 0, 0, 0, 6]);
        nft.find(&key, key.hash(SEED)) != NONE
    });
    assert_eq!(left.count(), 16);
    nft.clear();
    assert_eq!(nft.stats().entries, 0);
}

#[test]
fn refreshed_entries_survive_a_full_table_that_is_kept_tidy() {
    let mut nft = Nft::new(NftParams { entries: 5000, idle_ticks: 320, seed: SEED }, &|_, _| {});
    let k = |n: u64| FlowKey::from_words([n, 0, 0, 0, 0, 0, 6]);
    let slots: Vec<u32> = (0..5000).map(|n| nft.insert(k(n), k(n).hash(SEED), action(1), 0)).collect();
    // All but one are in use; the worker goes on polling.
    for (n, &slot) in slots.iter().enumerate() {
        if n != 1234 {
            nft.entry_mut(slot).unwrap().last_seen = 100;
        }
    }
    for _ in 0..5000 {
        nft.age(100, 8);
    }
    nft.insert(k(9999), k(9999).hash(SEED), action(1), 101);
    assert_eq!(nft.find(&k(1234), k(1234).hash(SEED)), NONE, "the only idle one");
    assert_eq!((nft.stats().evicted, nft.stats().entries), (1, 5000));
}

/// Without anybody keeping it tidy, an eviction looks at 64 entries and takes the one used longest ago of these.
#[test]
fn an_eviction_is_bounded_and_takes_the_least_recently_used_it_saw() {
    let mut nft = Nft::new(NftParams { entries: 200, idle_ticks: 320, seed: SEED }, &|_, _| {});
    let k = |n: u64| FlowKey::from_words([n, 0, 0, 0, 0, 0, 6]);
    let slots: Vec<u32> = (0..200).map(|n| nft.insert(k(n), k(n).hash(SEED), action(1), 0)).collect();
    for (n, &slot) in slots.iter().enumerate() {
        nft.entry_mut(slot).unwrap().last_seen = if n == 170 { 50 } else { 60 + n as u32 % 100 };
    }
    // The latest queued are looked at first: 199 down to 136.
    nft.insert(k(9999), k(9999).hash(SEED), action(1), 170);
    assert_eq!(nft.find(&k(170), k(170).hash(SEED)), NONE);
    assert_eq!((nft.stats().evicted, nft.stats().entries), (1, 200));
}

#[test]
fn pauses_of_any_length_cost_nothing_and_lose_nothing() {
    for start in [0, 1, 63, 64, 4_000_000_000, u32::MAX - 70, u32::MAX - 1, u32::MAX] {
        for idle in [0, 1, 31, 320] {
            let mut pair = Pair::new(8, idle, start);
            for number in 0..12 {
                pair.packet(number);
                pair.pass(1, 100);
            }
            pair.pass(3_000_000_000, 100);
            (0..3).for_each(|number| pair.packet(number));
            pair.compare();
        }
    }
}

#[test]
fn nothing_is_lost_when_the_clock_wraps() {
    let mut nft = Nft::new(NftParams { entries: 8, idle_ticks: 10, seed: SEED }, &|_, _| {});
    for number in 0..20u16 {
        nft.insert(
            key(number),
            key(number).hash(SEED),
            action(0),
            (u32::MAX - 5).wrapping_add(u32::from(number)),
        );
        nft.age((u32::MAX - 5).wrapping_add(u32::from(number)), 8);
    }
    assert!(nft.stats().entries > 0 && nft.stats().entries <= 8);
    nft.clear();
    assert_eq!(nft.stats().entries, 0);
}

#[test]
fn an_entry_moved_on_keeps_its_place_before_younger_ones() {
    let config = NftParams { entries: 4, idle_ticks: 430, seed: SEED };
    let mut nft = Nft::new(config, &|_, _| {});
    let old = nft.insert(key(1), key(1).hash(SEED), action(1), 0);
    nft.entry_mut(old).unwrap().last_seen = 18;
    nft.insert(key(2), key(2).hash(SEED), action(2), 172);
    // Not idle for longer than 430 ticks yet: moved on, and due two slices later at the latest.
    nft.age(448, 100);
    assert_ne!(nft.find(&key(1), key(1).hash(SEED)), NONE);
    nft.age(18 + 430 + 2 * 14, 100);
    assert_eq!(nft.find(&key(1), key(1).hash(SEED)), NONE);
    assert_ne!(nft.find(&key(2), key(2).hash(SEED)), NONE);
}

#[test]
fn repair_a_scanner_turns_nobody_else_over() {
    let of = |vnic: u32, n: u32| {
        let scope = Scope::Vnic(vnic).raw();
        FlowKey::from_words([u64::from(n), 0, 0, 0, u64::from(scope) << 32, 0, 6])
    };
    let config = NftParams { entries: 1024, idle_ticks: 300, seed: SEED };
    let mut nft = Nft::new(config, &|_, _| {}).shared_by(8, 4);
    let insert =
        |nft: &mut Nft, key: FlowKey, now| nft.insert(key, key.hash(SEED), FlowAction::default(), now);
    for n in 0..100 {
        assert_ne!(insert(&mut nft, of(1, n), 1), NONE);
    }
    // Flows of the others are the ones idle for longest.
    for n in 0..100_000 {
        insert(&mut nft, of(0, n), 2 + n / 1000);
    }
    for n in 0..100 {
        assert_ne!(nft.find(&of(1, n), of(1, n).hash(SEED)), NONE, "flow {n} of the quiet one");
    }
    assert_eq!(nft.stats().entries, 1024);
    // The newest of the scanner's own are there, and whoever has no share yet gets room from it.
    assert_ne!(nft.find(&of(0, 99_999), of(0, 99_999).hash(SEED)), NONE);
    for n in 0..100 {
        assert_ne!(insert(&mut nft, of(2, n), 150), NONE);
    }
    // Removal gives shares back: the table may be filled and emptied for ever.
    nft.clear();
    assert!(Scope::Vnic(0) == of(0, 0).scope() && (0..8).all(|vnic| *nft.owners.of(Scope::Vnic(vnic)) == 0));
}

/// Flows of some vNICs whose hashes fall into one pair of buckets, so that room is made there and not in the table.
fn colliding(nft: &Nft, vnics: u32, each: usize) -> Vec<Vec<FlowKey>> {
    let key =
        |vnic: u32, n: u64| FlowKey::from_words([n, 0, 0, 0, u64::from(Scope::Vnic(vnic).raw()) << 32, 0, 6]);
    let pair = |key: &FlowKey| {
        let primary = nft.index.primary(key.hash(SEED));
        (primary, nft.index.alternate(key.hash(SEED)))
    };
    let (one, other) = pair(&key(0, 0));
    let same = |key: &FlowKey| [(one, other), (other, one)].contains(&pair(key));
    (0..vnics).map(|vnic| (0..).map(|n| key(vnic, n)).filter(same).take(each).collect()).collect()
}

proptest! {
    /// Whoever has his share takes nothing from those who have no more than theirs, also where a bucket is full.
    #[test]
    fn repair_a_full_bucket_respects_the_shares(
        entries in 24u32..100,
        steps in prop::collection::vec((0u32..3, 0usize..24, 0u32..3), 1..200),
    ) {
        // Sixteen places, of which three shares are more or less.
        let config = NftParams { entries, idle_ticks: 100_000, seed: SEED };
        let mut nft = Nft::new(config, &|_, _| {}).shared_by(4, 1);
        let keys = colliding(&nft, 3, 24);
        let share = nft.owners.share;
        let held = |nft: &Nft| [0, 1, 2].map(|vnic| nft.owners.count(Scope::Vnic(vnic)));
        let mut now = 1;
        for (vnic, n, pause) in steps {
            now += pause;
            let key = keys[vnic as usize][n];
            let slot = nft.find(&key, key.hash(SEED));
            if let Some(entry) = nft.entry_mut(slot) {
                entry.last_seen = now;
                continue;
            }
            let before = held(&nft);
            nft.insert(key, key.hash(SEED), FlowAction::default(), now);
            let after = held(&nft);
            for other in (0..3).filter(|other| *other != vnic as usize) {
                let lost = after[other] < before[other];
                prop_assert!(
                    !lost || before[vnic as usize] < share || before[other] > share,
                    "vNIC {} with {} took from vNIC {} with {}", vnic, before[vnic as usize], other, before[other]
                );
            }
            prop_assert_eq!(after.iter().sum::<u32>(), nft.stats().entries);
        }
    }
}

#[test]
fn repair_entries_age_where_ticks_wrap() {
    for idle_ticks in [7, 300, 6000] {
        let mut nft = Nft::new(NftParams { entries: 64, idle_ticks, seed: SEED }, &|_, _| {});
        let key = |n: u32| FlowKey::from_words([u64::from(n), 0, 0, 0, 0, 0, 6]);
        let hash = |n| key(n).hash(SEED);
        // One flow stays in use over the wrap, others come and go before, at and after it.
        let start = 0u32.wrapping_sub(idle_ticks * 5 / 2);
        let kept = nft.insert(key(0), hash(0), FlowAction::default(), start);
        for step in 0..idle_ticks * 10 {
            let now = start.wrapping_add(step);
            if step % (idle_ticks / 3).max(1) == 0 {
                nft.entry_mut(kept).unwrap().last_seen = now;
                nft.insert(key(1 + step), hash(1 + step), FlowAction::default(), now);
            }
            nft.age(now, 8);
            assert!(
                nft.stats().entries <= 8,
                "{} entries at step {step} of {idle_ticks}",
                nft.stats().entries
            );
            assert_eq!(nft.find(&key(0), hash(0)), kept, "at step {step} of {idle_ticks}");
        }
        assert!(nft.stats().aged >= 25, "{:?}", nft.stats());
        // Unused, it goes as well; and what makes room in a full table is what was idle for longest.
        let now = start.wrapping_add(idle_ticks * 14);
        (0..20).for_each(|_| nft.age(now, 8));
        assert_eq!(nft.stats().entries, 0);
    }
    let mut nft = Nft::new(NftParams { entries: 8, idle_ticks: 300, seed: SEED }, &|_, _| {});
    for n in 0..100u32 {
        let key = FlowKey::from_words([u64::from(n), 0, 0, 0, 0, 0, 6]);
        nft.insert(key, key.hash(SEED), FlowAction::default(), 0u32.wrapping_sub(500).wrapping_add(n * 10));
        let oldest = FlowKey::from_words([u64::from(n.saturating_sub(7)), 0, 0, 0, 0, 0, 6]);
        assert_ne!(nft.find(&oldest, oldest.hash(SEED)), NONE, "flow {n} pushed out a younger one");
    }
}
