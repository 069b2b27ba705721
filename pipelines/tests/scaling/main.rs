//! What two workers share: the cache lines that one writes and the other touches, counted over whole bursts of a steady
//! state by valgrind's lackey, which prints every access of a program.
//!
//! ```text
//!   test -- runs itself under valgrind --> two overlays, bursts by turns, every line of memory, by worker
//! ```
//! One thread plays both workers, so the addresses are exact and no interleaving is left to chance. What belongs to a
//! worker's thread alone in a switch (its stack, its packets) is left out or kept on pages of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

mod duo;
mod trace;

use std::collections::BTreeMap;

use duo::{CHILD, PACKETS, Scenario};
use trace::Moves;

/// Two workers, in every scenario; the parent reads what it touches.
#[test]
fn scaling_child() {
    if let Some(path) = std::env::var_os(CHILD) {
        duo::run(path.as_ref());
    }
}

#[test]
fn scaling_workers_share_no_written_line_but_the_buckets() {
    let found = trace::of_child(CHILD, "scaling_child", 2 * Scenario::ALL.len());
    for (scenario, pair) in Scenario::ALL.into_iter().zip(found.phases.chunks(2)) {
        let moves = Moves::between(pair);
        let named = found.by_structure(&moves);
        let per_packet = |moves: u64| moves as f64 / f64::from(2 * PACKETS);
        println!("{scenario:?}: {} lines only read by both, moves per packet:", moves.read_by_both);
        for (structure, (lines, moved)) in &named {
            println!("  {structure}: {:.5} ({lines} lines, {moved} moves)", per_packet(*moved));
        }
        // Both look at the same configuration: had nothing been seen of that, nothing would have been counted.
        assert!(moves.read_by_both > 10, "{scenario:?}: {}", moves.read_by_both);
        let (buckets, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            named.into_iter().partition(|(structure, _)| structure == duo::BUCKETS);
        let others: Vec<_> = others.keys().collect();
        assert!(others.is_empty(), "{scenario:?}: written by one worker, touched by the other: {others:#?}");
        let (_, moved) = buckets.get(duo::BUCKETS).copied().unwrap_or_default();
        assert!(moved > 0, "{scenario:?}: the link's bucket is everybody's");
        assert!(moved <= scenario.most_moves(), "{scenario:?}: {moved} moves");
    }
}
