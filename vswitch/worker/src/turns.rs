//! [`Turns`]: which receive queues a worker polls in a turn, so that hundreds of idle ones cost the others next to nothing.
//!
//! A few queues are polled every turn, all of them. Of many, those that brought a packet within [`ACTIVE_NS`] are. The others are
//! idle: of those that the kernel fills, the kernel is asked once in [`SWEEP_NS`] which of them have something; those that a guest
//! or a NIC fills are looked at in rotation, each one within that time, as far as a turn of the worker is not longer.

use pipelines::Now;

/// So many queues are polled every turn, used or not.
const ALWAYS: usize = 16;
/// How long a queue counts as used after its last packet.
const ACTIVE_NS: u64 = 10_000_000;
/// Within this time every idle queue is looked at.
const SWEEP_NS: u64 = 50_000;
/// Between two looks for used queues that are idle now.
const SORT_NS: u64 = 1_000_000;
/// Queues of which one sorting has the kernel tell: each is a system call.
const ARMED_AT_ONCE: usize = 32;

/// How to learn of packets on queues that are not polled.
pub(super) trait Idle {
    /// Has the kernel tell of a queue when it has something, or already has; `false` when that cannot be, and the queue has to be looked at.
    fn arm(&mut self, place: usize) -> bool;
    /// Says the places of armed queues that have something; each is armed no more. It may say others, too.
    fn take_ready(&mut self, ready: impl FnMut(usize));
    /// Looks at a queue.
    fn may_have_packets(&mut self, place: usize) -> bool;
}

/// The places of receive queues, in use or idle.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Polled every turn.
    active: Vec<u32>,
    /// Looked at in rotation.
    looked: Vec<u32>,
    /// The next of `looked`.
    next: usize,
    /// When `looked` was last looked at.
    looked_ns: u64,
    /// How many the kernel tells of.
    armed: usize,
    /// When it was last asked.
    asked_ns: u64,
    sorted_ns: u64,
    queues: Vec<Queue>,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    /// When it last brought a packet.
    used_ns: u64,
    /// The kernel tells of it.
    is_armed: bool,
}

impl Turns {
    /// There are so many queues now, others than before.
    pub fn reset(&mut self, queues: usize, now: Now) {
        let sorted_ns = now.ns;
        *self = Self { sorted_ns, looked_ns: now.ns, asked_ns: now.ns, ..Self::default() };
        (0..queues).for_each(|_| self.add(now));
    }

    /// There is one more, behind the others. It begins as a used one: what waits in it since before is not to wait longer.
    pub fn add(&mut self, now: Now) {
        self.active.push(self.queues.len() as u32);
        self.queues.push(Queue { used_ns: now.ns, is_armed: false });
    }

    /// Places that are polled this turn, once it has [begun](Self::begin).
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
        self.queues[place].used_ns = now.ns;
    }

    /// A turn begins: has those idle queues polled that have packets, as far as it is time to know.
    #[inline(always)]
    pub fn begin(&mut self, now: Now, idle: impl Idle) {
        if self.queues.len() > ALWAYS {
            self.wake(now, idle);
        }
    }

    #[inline(never)]
    fn wake(&mut self, now: Now, mut idle: impl Idle) {
        if now.ns.saturating_sub(self.sorted_ns) >= SORT_NS {
            self.sorted_ns = now.ns;
            self.sort(now, &mut idle);
        }
        if self.armed > 0 && now.ns.saturating_sub(self.asked_ns) >= SWEEP_NS {
            self.asked_ns = now.ns;
            idle.take_ready(|place| {
                if let Some(queue) = self.queues.get_mut(place).filter(|queue| queue.is_armed) {
                    // Unless packets do come, a later sorting finds it idle again.
                    queue.is_armed = false;
                    self.armed -= 1;
                    self.active.push(place as u32);
                }
            });
        }
        self.look(now, |place| idle.may_have_packets(place));
    }

    /// Has the queues idle that were not used for long.
    fn sort(&mut self, now: Now, idle: &mut impl Idle) {
        let mut left = ARMED_AT_ONCE;
        self.active.retain(|&place| {
            let queue = &mut self.queues[place as usize];
            if left == 0 || now.ns.saturating_sub(queue.used_ns) < ACTIVE_NS {
                return true;
            }
            if idle.arm(place as usize) {
                left -= 1;
                self.armed += 1;
                queue.is_armed = true;
            } else {
                self.looked.push(place);
            }
            false
        });
    }

    /// Looks at those whose turn it is.
    fn look(&mut self, now: Now, mut may_have_packets: impl FnMut(usize) -> bool) {
        let waited = now.ns.saturating_sub(self.looked_ns).min(SWEEP_NS);
        let queues = self.looked.len() as u64;
        if queues == 0 {
            self.looked_ns = now.ns;
            return;
        }
        let (looks, rest) = (queues * waited / SWEEP_NS, queues * waited % SWEEP_NS);
        // The time of less than a look is kept: turns may be shorter than that.
        self.looked_ns = now.ns - rest / queues;
        for _ in 0..looks {
            if self.next >= self.looked.len() {
                self.next = 0;
            }
            let Some(&place) = self.looked.get(self.next) else { break };
            if may_have_packets(place as usize) {
                self.looked.swap_remove(self.next);
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

    /// Queues, of which the kernel fills those with even places unless it fills none.
    #[derive(Default)]
    struct Queues {
        kernel: bool,
        has_packets: BTreeSet<usize>,
        armed: BTreeSet<usize>,
        /// What was done, since it was last looked at.
        arms: usize,
        asks: usize,
        looks: Vec<usize>,
    }

    impl Idle for &mut Queues {
        fn arm(&mut self, place: usize) -> bool {
            let is_kernel = self.kernel && place.is_multiple_of(2);
            if is_kernel {
                self.arms += 1;
                assert!(self.armed.insert(place), "{place} is armed already");
            }
            is_kernel
        }

        fn take_ready(&mut self, mut ready: impl FnMut(usize)) {
            self.asks += 1;
            let told: Vec<_> = self.armed.intersection(&self.has_packets).copied().collect();
            self.armed.retain(|place| !told.contains(place));
            told.into_iter().for_each(&mut ready);
            // What was armed before places changed.
            ready(1_000_000);
        }

        fn may_have_packets(&mut self, place: usize) -> bool {
            assert!(!self.armed.contains(&place));
            self.looks.push(place);
            self.has_packets.contains(&place)
        }
    }

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
        let (mut turns, mut queues) = (Turns::default(), Queues { kernel: true, ..Queues::default() });
        turns.reset(ALWAYS, at(0));
        for ms in 0..100 {
            turns.begin(at(ms * 1_000_000), &mut queues);
            assert_eq!(polled(&turns).len(), ALWAYS);
        }
        assert!(queues.arms + queues.asks + queues.looks.len() == 0, "nobody is asked");
    }

    #[test]
    fn of_many_only_the_used_ones_are_and_the_others_are_looked_at_in_time() {
        let (mut turns, mut queues) = (Turns::default(), Queues::default());
        turns.reset(500, at(0));
        assert_eq!(polled(&turns).len(), 500, "at first all of them");
        let mut looked = vec![0u64; 500];
        let mut looks = 0;
        for turn in 0..100_000u64 {
            let now = 1_000 * turn;
            turns.begin(at(now), &mut queues);
            for place in std::mem::take(&mut queues.looks) {
                let gap = now.saturating_sub(looked[place].max(12_000_000));
                assert!(
                    now < 13_000_000 || gap <= SWEEP_NS + 2_000,
                    "place {place} was not looked at for {gap} ns"
                );
                looked[place] = now;
                looks += 1;
            }
            turns.used(7, at(now));
        }
        assert_eq!(polled(&turns), BTreeSet::from([7]));
        // 499 in each 50 us of the 90 ms in which they were idle, less the time of one sorting.
        let most = 499 * (100_000_000 - ACTIVE_NS) / SWEEP_NS;
        let least = 499 * (100_000_000 - ACTIVE_NS - 2 * SORT_NS) / SWEEP_NS;
        assert!((least..=most).contains(&looks), "{looks} looks, {least} to {most} expected");
    }

    #[test]
    fn those_of_the_kernel_are_armed_a_few_at_a_time_and_asked_for_with_one_question() {
        let (mut turns, mut queues) = (Turns::default(), Queues { kernel: true, ..Queues::default() });
        turns.reset(500, at(0));
        for turn in 0..100_000u64 {
            let arms = queues.arms;
            turns.begin(at(1_000 * turn), &mut queues);
            assert!(queues.arms - arms <= ARMED_AT_ONCE);
            turns.used(8, at(1_000 * turn));
        }
        assert_eq!((polled(&turns), queues.arms, queues.armed.len()), (BTreeSet::from([8]), 249, 249));
        assert!(queues.asks as u64 <= 100_000_000 / SWEEP_NS);
        // Whatever has packets is polled within a sweep, and armed again when it has none for long.
        queues.has_packets = BTreeSet::from([42, 43]);
        turns.begin(at(100_050_000), &mut queues);
        assert_eq!(polled(&turns), BTreeSet::from([8, 42, 43]));
        queues.has_packets.clear();
        for ms in 101..130 {
            turns.begin(at(ms * 1_000_000), &mut queues);
        }
        assert_eq!((polled(&turns), queues.armed.len()), (BTreeSet::new(), 250));
    }

    #[test]
    fn a_packet_on_an_idle_queue_makes_it_a_used_one() {
        let (mut turns, mut queues) = (Turns::default(), Queues::default());
        turns.reset(99, at(0));
        turns.add(at(0));
        for ms in 0..30 {
            turns.begin(at(ms * 1_000_000), &mut queues);
        }
        assert_eq!(turns.len(), 0);
        queues.has_packets.insert(42);
        turns.begin(at(30_050_000), &mut queues);
        assert_eq!(polled(&turns), BTreeSet::from([42]));
        turns.used(42, at(30_050_000));
        queues.has_packets.clear();
        turns.begin(at(39_000_000), &mut queues);
        assert_eq!(polled(&turns), BTreeSet::from([42]), "used within the last 10 ms");
        turns.begin(at(50_000_000), &mut queues);
        assert_eq!(turns.len(), 0);
        turns.add(at(50_000_000));
        assert_eq!(polled(&turns), BTreeSet::from([100]), "a new one disturbs no other");
    }

    proptest! {
        /// Whatever turns take and whoever has packets: no place is lost, none is there twice, and after a long turn all are looked at.
        #[test]
        fn no_queue_is_ever_lost(
            count in 0usize..200,
            kernel in any::<bool>(),
            steps in prop::collection::vec((0u64..3_000_000, any::<u8>()), 1..100),
        ) {
            let (mut turns, mut queues) = (Turns::default(), Queues { kernel, ..Queues::default() });
            turns.reset(count / 2, at(0));
            (count / 2..count).for_each(|_| turns.add(at(0)));
            let mut now = 0;
            for (pause, who) in steps {
                now += pause;
                queues.has_packets = BTreeSet::from([usize::from(who)]);
                turns.begin(at(now), &mut queues);
                let active = polled(&turns);
                let looked: BTreeSet<usize> = turns.looked.iter().map(|&place| place as usize).collect();
                prop_assert!(active.is_disjoint(&looked) && active.is_disjoint(&queues.armed));
                prop_assert!(looked.is_disjoint(&queues.armed));
                prop_assert_eq!(active.len() + looked.len() + queues.armed.len(), count);
                prop_assert_eq!(turns.looked.len(), looked.len());
                prop_assert_eq!(turns.armed, queues.armed.len());
                if count > ALWAYS && pause >= SWEEP_NS && usize::from(who) < count {
                    prop_assert!(active.contains(&usize::from(who)));
                }
            }
        }
    }
}
