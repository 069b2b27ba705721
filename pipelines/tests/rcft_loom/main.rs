//! The ledger of queue pairs under every interleaving of two or three threads that loom can find.
//!
//! `ledger.rs`, `keeper.rs` and `slot.rs` are compiled once more here, with loom's atomics under them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// The ledger's own file.
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../src/ledger/admission.rs"]
mod admission;
mod base;
/// Control's side of it.
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../src/ledger/keeper.rs"]
mod keeper;
/// What a vNIC may have.
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../src/ledger/limits.rs"]
mod limits;
/// Their slots.
#[allow(dead_code, unreachable_pub, missing_docs)]
#[path = "../../src/ledger/slot.rs"]
mod slot;

use admission::{Attendance, LedgerAnswer, LedgerParams};
use keeper::Keeper;
use limits::LedgerLimits;

/// The ledger of queue pairs.
type Ledger = admission::Ledger<3, 10>;

use loom::sync::Arc;
use loom::thread;

const A: [u64; 3] = [0, 1, 1 << 8];
const B: [u64; 3] = [0, 1, 2 << 8];
const C: [u64; 3] = [0, 1, 3 << 8];

fn ledger(entries: u32, workers: u32) -> Arc<Ledger> {
    Arc::new(Ledger::new(&LedgerParams { entries, vnics: 1, workers, seed: 0 }, &|_, _| {}))
}

fn with_quota(entries: u32, workers: u32, quota: u32) -> Arc<Ledger> {
    let ledger = ledger(entries, workers);
    Keeper::new(ledger.clone()).set_limits(0, LedgerLimits { quota, ..LedgerLimits::NONE });
    ledger
}

fn admit(ledger: &Ledger, key: &[u64; 3]) -> LedgerAnswer {
    ledger.admit(0, key, 1, 1, || false)
}

fn passes(answer: LedgerAnswer) -> bool {
    matches!(answer, LedgerAnswer::New(_) | LedgerAnswer::Known(_))
}

/// Checks every interleaving with at most so many preemptions.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

/// One queue pair that two workers see at once counts once, and is admitted by both.
#[test]
fn rcft_one_queue_pair_counts_once() {
    model(3, || {
        let ledger = with_quota(4, 2, 1);
        let other = {
            let ledger = ledger.clone();
            thread::spawn(move || admit(&ledger, &A))
        };
        let mine = admit(&ledger, &A);
        let theirs = other.join().unwrap();
        assert!(passes(mine) && passes(theirs), "{mine:?} {theirs:?}");
        let new = [mine, theirs].iter().filter(|answer| matches!(answer, LedgerAnswer::New(_))).count();
        assert_eq!((new, ledger.count(0)), (1, 1));
        assert!(ledger.lookup(&A).is_some());
    });
}

/// Two queue pairs and one place: exactly one of them gets it.
#[test]
fn rcft_never_more_than_the_quota() {
    model(3, || {
        let ledger = with_quota(4, 2, 1);
        let other = {
            let ledger = ledger.clone();
            thread::spawn(move || admit(&ledger, &A))
        };
        let mine = admit(&ledger, &B);
        let theirs = other.join().unwrap();
        assert_eq!(usize::from(passes(mine)) + usize::from(passes(theirs)), 1, "{mine:?} {theirs:?}");
        assert_eq!(ledger.count(0), 1);
    });
}

/// As many queue pairs as the quota allows are all admitted, whatever else is offered at the same time twice.
#[test]
fn rcft_any_n_distinct_are_admitted() {
    model(3, || {
        let ledger = with_quota(4, 2, 2);
        let other = {
            let ledger = ledger.clone();
            thread::spawn(move || [admit(&ledger, &B), admit(&ledger, &A)])
        };
        let mine = [admit(&ledger, &A), admit(&ledger, &B)];
        let theirs = other.join().unwrap();
        assert!(mine.into_iter().chain(theirs).all(passes), "{mine:?} {theirs:?}");
        assert_eq!(ledger.count(0), 2);
    });
}

/// A release lets exactly one of two waiting queue pairs in; while the one on its way out counts, nobody gets in.
#[test]
fn rcft_a_release_lets_exactly_one_in() {
    model(2, || {
        let ledger = with_quota(4, 0, 1);
        assert!(passes(admit(&ledger, &C)));
        let others: Vec<_> = [A, B]
            .into_iter()
            .map(|key| {
                let ledger = ledger.clone();
                thread::spawn(move || admit(&ledger, &key))
            })
            .collect();
        let mut keeper = Keeper::new(ledger.clone());
        assert!(keeper.remove(&C));
        let mut released = 0;
        while released == 0 {
            keeper.advance(|_| released += 1);
        }
        let early = others.into_iter().map(|other| usize::from(passes(other.join().unwrap()))).sum::<usize>();
        assert!(early <= 1);
        let late = [A, B].iter().filter(|key| passes(admit(&ledger, key))).count();
        assert_eq!((late, ledger.count(0)), (1, 1));
    });
}

/// A worker that walks a chain while control takes a slot out of it and uses it again never loses its way: it finds
/// the queue pair behind that slot, and no queue pair is in the table twice.
#[test]
fn rcft_slots_are_not_reused_under_a_worker() {
    model(3, || {
        // Both in one chain, the older one behind the newer.
        let ledger = with_quota(1, 1, 3);
        assert!(passes(admit(&ledger, &A)));
        assert!(passes(admit(&ledger, &B)));
        let worker = {
            let ledger = ledger.clone();
            thread::spawn(move || {
                let mut at = Attendance::default();
                for _ in 0..2 {
                    ledger.attend(0, &mut at, |_, key| assert_eq!(key, B));
                    assert!(matches!(admit(&ledger, &A), LedgerAnswer::Known(_)));
                }
                ledger.retire(0);
            })
        };
        let mut keeper = Keeper::new(ledger.clone());
        assert!(keeper.remove(&B));
        keeper.advance(|_| {});
        keeper.advance(|key| assert_eq!(key, B));
        keeper.advance(|_| {});
        assert!(passes(admit(&ledger, &C)));
        worker.join().unwrap();
        assert!(matches!(admit(&ledger, &A), LedgerAnswer::Known(_)));
    });
}

/// Slots claimed in vain come back.
#[test]
fn rcft_nothing_is_lost_to_a_race() {
    model(3, || {
        let ledger = with_quota(1, 0, 1);
        let other = {
            let ledger = ledger.clone();
            thread::spawn(move || admit(&ledger, &A))
        };
        let mine = admit(&ledger, &A);
        assert!(passes(mine) && passes(other.join().unwrap()));
        let mut keeper = Keeper::new(ledger.clone());
        keeper.sweep(u32::MAX, |_| true);
        while keeper.is_busy() {
            keeper.advance(|_| {});
        }
        assert_eq!(ledger.count(0), 0);
        // One entry and the slack of two: all three slots can be claimed again.
        keeper.set_limits(0, LedgerLimits::NONE);
        assert!([A, B, C].iter().all(|key| passes(admit(&ledger, key))));
        assert_eq!(admit(&ledger, &[0, 1, 4 << 8]), LedgerAnswer::Full);
    });
}

/// A queue pair that is offered again while it is taken out passes, and afterwards is there once or not at all: the
/// count is that of the slots.
#[test]
fn rcft_offered_while_leaving() {
    model(2, || {
        let ledger = with_quota(2, 1, 1);
        assert!(passes(admit(&ledger, &A)));
        let worker = {
            let ledger = ledger.clone();
            thread::spawn(move || {
                let mut at = Attendance::default();
                let first = admit(&ledger, &A);
                ledger.attend(0, &mut at, |_, key| assert_eq!(key, A));
                let second = admit(&ledger, &A);
                ledger.retire(0);
                (first, second)
            })
        };
        let mut keeper = Keeper::new(ledger.clone());
        assert!(keeper.remove(&A));
        keeper.advance(|_| {});
        keeper.advance(|key| assert_eq!(key, A));
        let answers = worker.join().unwrap();
        // While it counts, one place is taken, by itself: it may be refused only between being unlinked and its place
        // being given back.
        assert!(
            !matches!(answers.0, LedgerAnswer::Full) && !matches!(answers.1, LedgerAnswer::Full),
            "{answers:?}"
        );
        while keeper.is_busy() {
            keeper.advance(|_| {});
        }
        assert_eq!(ledger.count(0), u32::from(ledger.lookup(&A).is_some()));
    });
}

/// Control unlinks the slot at the head of a chain while a worker puts another in front of it.
#[test]
fn rcft_unlinked_at_the_head() {
    model(3, || {
        let ledger = with_quota(2, 0, 3);
        assert!(passes(admit(&ledger, &A)));
        assert!(passes(admit(&ledger, &B)));
        let other = {
            let ledger = ledger.clone();
            thread::spawn(move || admit(&ledger, &C))
        };
        let mut keeper = Keeper::new(ledger.clone());
        assert!(keeper.remove(&B));
        keeper.advance(|_| {});
        keeper.advance(|_| {});
        assert!(passes(other.join().unwrap()));
        assert_eq!([A, B, C].map(|key| ledger.lookup(&key).is_some()), [true, false, true]);
        assert_eq!(ledger.count(0), 2);
    });
}

/// The last free slot and two workers that see the same queue pair: both pass, nobody hears that the table is full.
#[test]
fn rcft_the_last_slot_is_enough_for_one_queue_pair() {
    model(3, || {
        // Three slots, two of them taken.
        let ledger = with_quota(1, 0, 10);
        assert!(passes(admit(&ledger, &B)) && passes(admit(&ledger, &C)));
        let other = {
            let ledger = ledger.clone();
            thread::spawn(move || admit(&ledger, &A))
        };
        let mine = admit(&ledger, &A);
        let theirs = other.join().unwrap();
        let full = [mine, theirs].iter().filter(|answer| **answer == LedgerAnswer::Full).count();
        // One that lost the slot to the other one's claim, and looked again before that was granted, may be told so;
        // it holds for this packet only.
        assert!(full <= 1 && [mine, theirs].iter().any(|answer| passes(*answer)), "{mine:?} {theirs:?}");
        assert!(matches!(admit(&ledger, &A), LedgerAnswer::Known(_)));
    });
}
