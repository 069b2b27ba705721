//! [`Turns`]: which receive queues a worker polls in a turn, so that hundreds of idle ones cost the others next to nothing.
//!
//! A few queues are polled every turn, all of them. Of many, those that brought a packet within [`ACTIVE_NS`] are; the others are
//! looked at in rotation, each one within [`SWEEP_NS`], as far as a turn of the worker is not longer than that.

use pipelines::Now;

/// So many queues are polled every turn, used or not.
const ALWAYS: usize = 16;
/// How long a queue counts as used after its last packet.
const ACTIVE_NS: u64 = 10_000_000;
/// Within this time every idle queue is looked at.
const SWEEP_NS: u64 = 50_000;
/// Between two looks for used queues that are idle now.
const SORT_NS: u64 = 1_000_000;

/// The places of receive queues, in use or idle.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Polled every turn.
    active: Vec<u32>,
    /// Looked at in rotation.
    idle: Vec<u32>,
    /// The next of `idle`.
    next: usize,
    /// When `idle` was last looked at.
    looked_ns: u64,
    sorted_ns: u64,
    /// When the queue of a place last brought a packet.
    used_ns: Vec<u64>,
}

impl Turns {
    /// There are so many queues now, others than before.
    pub fn reset(&mut self, queues: usize, now: Now) {
        self.active = (0..queues as u32).collect();
        self.idle.clear();
        self.idle.reserve(queues);
        self.next = 0;
        (self.looked_ns, self.sorted_ns) = (now.ns, now.ns);
        // They begin as used ones: what waits in them since before is not to wait longer.
        self.used_ns = vec![now.ns; queues];
    }

    /// Places that are polled this turn, not counting those that [`wake`](Self::wake) adds.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.active.len()
    }

    /// The place of a number below [`len`](Self::len).
    #[inline(always)]
    pub fn place(&self, at: usize) -> usize {
        self.active[at] as usize
    }

    /// The queue of a place brought packets.
    #[inline(always)]
    pub fn used(&mut self, place: usize, now: Now) {
        self.used_ns[place] = now.ns;
    }

    /// A turn begins: looks at the idle queues whose turn it is, and has those polled that may have packets.
    #[inline(always)]
    pub fn begin(&mut self, now: Now, may_have_packets: impl FnMut(usize) -> bool) {
        if self.used_ns.len() > ALWAYS {
            self.wake(now, may_have_packets);
        }
    }

    #[inline(never)]
    fn wake(&mut self, now: Now, mut may_have_packets: impl FnMut(usize) -> bool) {
        if now.ns.saturating_sub(self.sorted_ns) >= SORT_NS {
            self.sorted_ns = now.ns;
            let (used_ns, idle) = (&self.used_ns, &mut self.idle);
            self.active.retain(|&place| {
                let used = now.ns.saturating_sub(used_ns[place as usize]) < ACTIVE_NS;
                if !used {
                    idle.push(place);
                }
                used
            });
        }
        let waited = now.ns.saturating_sub(self.looked_ns).min(SWEEP_NS);
        let queues = self.idle.len() as u64;
        if queues == 0 {
            self.looked_ns = now.ns;
            return;
        }
        let (looks, rest) = (queues * waited / SWEEP_NS, queues * waited % SWEEP_NS);
        // The time of less than a look is kept: turns may be shorter than that.
        self.looked_ns = now.ns - rest / queues;
        for _ in 0..looks {
            if self.next >= self.idle.len() {
                self.next = 0;
            }
            let Some(&place) = self.idle.get(self.next) else { break };
            if may_have_packets(place as usize) {
                // Unless packets do come, the next sorting finds it idle again.
                self.idle.swap_remove(self.next);
                self.active.push(place);
            } else {
                self.next += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn at(ns: u64) -> Now {
        Now::from_ns(ns)
    }

    fn polled(turns: &Turns) -> BTreeSet<usize> {
        let places: Vec<usize> = (0..turns.len()).map(|at| turns.place(at)).collect();
        let set: BTreeSet<usize> = places.iter().copied().collect();
        assert_eq!(set.len(), places.len(), "no queue is polled twice in a turn");
        set
    }

    #[test]
    fn a_few_queues_are_polled_every_turn() {
        let mut turns = Turns::default();
        turns.reset(ALWAYS, at(0));
        for ms in 0..100 {
            turns.begin(at(ms * 1_000_000), |_| panic!("nobody is asked"));
            assert_eq!(polled(&turns).len(), ALWAYS);
        }
    }

    #[test]
    fn of_many_only_the_used_ones_are_and_the_others_are_looked_at_in_time() {
        let mut turns = Turns::default();
        turns.reset(500, at(0));
        assert_eq!(polled(&turns).len(), 500, "at first all of them");
        let mut looked = vec![0u64; 500];
        let mut looks = 0;
        for turn in 0..100_000u64 {
            let now = 1_000 * turn;
            turns.begin(at(now), |place| {
                let gap = now.saturating_sub(looked[place].max(12_000_000));
                assert!(
                    now < 13_000_000 || gap <= SWEEP_NS + 2_000,
                    "place {place} was not looked at for {gap} ns"
                );
                looked[place] = now;
                looks += 1;
                false
            });
            turns.used(7, at(now));
        }
        assert_eq!(polled(&turns), BTreeSet::from([7]));
        // 499 in each 50 us of the 90 ms in which they were idle, less the time of one sorting.
        let most = 499 * (100_000_000 - ACTIVE_NS) / SWEEP_NS;
        let least = 499 * (100_000_000 - ACTIVE_NS - 2 * SORT_NS) / SWEEP_NS;
        assert!((least..=most).contains(&looks), "{looks} looks, {least} to {most} expected");
    }

    #[test]
    fn a_packet_on_an_idle_queue_makes_it_a_used_one() {
        let mut turns = Turns::default();
        turns.reset(100, at(0));
        for ms in 0..30 {
            turns.begin(at(ms * 1_000_000), |_| false);
        }
        assert_eq!(turns.len(), 0);
        turns.begin(at(30_050_000), |place| place == 42);
        assert_eq!(polled(&turns), BTreeSet::from([42]));
        turns.used(42, at(30_050_000));
        turns.begin(at(39_000_000), |_| false);
        assert_eq!(polled(&turns), BTreeSet::from([42]), "used within the last 10 ms");
        turns.begin(at(50_000_000), |_| false);
        assert_eq!(turns.len(), 0);
    }

    proptest! {
        /// Whatever turns take and whoever has packets: no place is lost, none is there twice, and after a long turn all are looked at.
        #[test]
        fn no_queue_is_ever_lost(
            queues in 0usize..200,
            steps in prop::collection::vec((0u64..3_000_000, any::<u8>()), 1..100),
        ) {
            let mut turns = Turns::default();
            turns.reset(queues, at(0));
            let mut now = 0;
            for (pause, who) in steps {
                now += pause;
                turns.begin(at(now), |place| place % 256 == usize::from(who));
                let active = polled(&turns);
                let idle: BTreeSet<usize> = turns.idle.iter().map(|&place| place as usize).collect();
                prop_assert!(active.is_disjoint(&idle));
                prop_assert_eq!(active.len() + idle.len(), queues);
                prop_assert_eq!(turns.idle.len(), idle.len());
                if queues > ALWAYS && pause >= SWEEP_NS && usize::from(who) < queues {
                    prop_assert!(active.contains(&usize::from(who)));
                }
            }
        }
    }
}
