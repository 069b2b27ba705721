//! What is said of floating addresses, held down where one vNIC has them move all the time: each round of moves is a new snapshot for
//! every worker.
//!
//! Of each address the last word counts, whoever says it. Knows neither workers nor the time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pipelines::event::Floating;

/// Rounds of moves that a vNIC has in short order.
const FREE: u32 = 5;
/// Between two rounds of a vNIC that has had them: as routers that share an address advertise by default (VRRP, RFC 9568).
const EVERY: Duration = Duration::from_secs(1);

/// What waits, and for whom.
#[derive(Debug, Default)]
pub struct HoldDown {
    /// By vNIC: until when its moves are paid for, one in each [`EVERY`]; those that owe nothing are not in it.
    paid: BTreeMap<u32, Instant>,
    /// By VPC and address: what was said last, and its number among all that waited.
    waiting: BTreeMap<(u32, IpAddr), (u64, Floating)>,
    said: u64,
}

impl HoldDown {
    /// Takes in what was said of an address of a VPC. It comes back when it is to be looked at now; what was said of that address before
    /// does not count any more.
    pub fn admit(&mut self, vpc: u32, floating: Floating, now: Instant) -> Option<Floating> {
        let of = (vpc, floating.binding.address);
        self.waiting.remove(&of);
        if !is_held(&self.paid, floating.vnic, now) {
            return Some(floating);
        }
        self.said += 1;
        self.waiting.insert(of, (self.said, floating));
        None
    }

    /// What has waited and is to be looked at now, in the order in which it was said.
    pub fn due(&mut self, now: Instant) -> Vec<Floating> {
        let Self { paid, waiting, .. } = self;
        paid.retain(|_, until| *until > now);
        let mut due = Vec::new();
        waiting.retain(|_, waits| {
            let stays = is_held(paid, waits.1.vnic, now);
            if !stays {
                due.push(*waits);
            }
            stays
        });
        due.sort_unstable_by_key(|(said, _)| *said);
        due.into_iter().map(|(_, floating)| floating).collect()
    }

    /// Addresses have moved because of a vNIC, in one round.
    pub fn moved(&mut self, vnic: u32, now: Instant) {
        let until = self.paid.entry(vnic).or_insert(now);
        *until = (*until).max(now) + EVERY;
    }
}

fn is_held(paid: &BTreeMap<u32, Instant>, vnic: u32, now: Instant) -> bool {
    let owed = paid.get(&vnic).map(|until| until.saturating_duration_since(now));
    owed.is_some_and(|owed| owed > EVERY * (FREE - 1))
}

#[cfg(test)]
mod tests {
    use pipelines::event::Binding;
    use wire::MacAddr;

    use super::*;

    fn says(vnic: u32, host: u8) -> Floating {
        let mac = MacAddr([2, 0, 0, 0, 0, vnic as u8]);
        Floating { vnic, binding: Binding { address: [10, 0, 0, host].into(), mac }, here: true }
    }

    /// Who says something new in every round, and of several addresses; beside it one who says something once.
    #[test]
    fn guard_a_vnic_whose_addresses_move_all_the_time_waits_and_others_do_not() {
        let (start, mut hold) = (Instant::now(), HoldDown::default());
        let mut moves = Vec::new();
        for round in 0..100u32 {
            let now = start + Duration::from_millis(100) * round;
            let mut looked = hold.due(now);
            looked.extend((1..=3).filter_map(|host| hold.admit(0, says(7, host), now)));
            if !looked.is_empty() {
                moves.push(round);
                hold.moved(7, now);
            }
            let other = says(8, 100 + round as u8);
            assert_eq!(hold.admit(0, other, now), Some(other), "{round}");
        }
        // Five rounds, then one a second; the last round of the ten seconds is the 99th.
        assert_eq!(moves, [0, 1, 2, 3, 4, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
        // What was said last is not lost, and after some quiet all is as in the beginning.
        let now = start + Duration::from_secs(10);
        assert_eq!(hold.due(now), [1, 2, 3].map(|host| says(7, host)));
        hold.moved(7, now);
        assert_eq!(hold.admit(0, says(7, 1), now), None);
        let now = now + Duration::from_secs(5);
        assert_eq!(hold.due(now), [says(7, 1)]);
        for _ in 0..FREE {
            assert!(hold.admit(0, says(7, 2), now).is_some());
            hold.moved(7, now);
        }
        assert_eq!((hold.admit(0, says(7, 2), now), hold.waiting.len()), (None, 1));
    }

    #[test]
    fn guard_of_what_waits_the_last_word_counts() {
        let (now, mut hold) = (Instant::now(), HoldDown::default());
        (0..FREE).for_each(|_| hold.moved(7, now));
        for host in [3, 2, 1, 2] {
            assert_eq!(hold.admit(0, says(7, host), now), None);
        }
        // Another one has the address now, of another VPC it has not.
        assert!(hold.admit(0, says(8, 3), now).is_some() && hold.admit(1, says(9, 1), now).is_some());
        assert_eq!(hold.due(now), []);
        assert_eq!(hold.due(now + EVERY), [says(7, 1), says(7, 2)]);
        assert_eq!(hold.due(now + EVERY), []);
    }
}
