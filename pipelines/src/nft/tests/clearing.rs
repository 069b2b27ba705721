//! A table that is cleared while it is used.

use super::*;

#[test]
fn a_table_is_cleared_in_slices_while_flows_come_in() {
    let mut nft = Nft::new(NftParams { entries: 10_000, idle_ticks: 320, seed: SEED }, &|_, _| {});
    let k = |n: u64| FlowKey::from_words([n, 0, 0, 0, 0, 0, 6]);
    let is_in = |nft: &Nft, n: u64| nft.find(&k(n), k(n).hash(SEED)) != NONE;
    for n in 0..9000 {
        nft.insert(k(n), k(n).hash(SEED), action(1), 0);
    }
    let (mut next, mut rounds) = (Some(0), 0);
    while let Some(from) = next {
        let before = nft.stats().entries;
        next = nft.clear_some(from, 100);
        let gone = before - nft.stats().entries;
        assert!(gone == 100 || next.is_none_or(|next| next == from + SLOTS), "{gone} from {from} on");
        assert!(gone <= 100);
        // One comes in again, and one that is new.
        for n in [rounds, 20_000 + rounds] {
            if !is_in(&nft, n) {
                nft.insert(k(n), k(n).hash(SEED), action(2), 1);
            }
        }
        rounds += 1;
    }
    assert!(rounds >= 90, "{rounds}");
    let left = nft.entries.iter().filter(|entry| entry.used != 0 && entry.last_seen == 0).count();
    assert_eq!(left, 0, "all that were there at the beginning are gone");
    assert!(is_in(&nft, 20_000 + rounds - 1));
    assert_eq!(nft.clear_some(10_000, 100), None);
}
