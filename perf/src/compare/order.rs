//! The order in which the template device visits flows, as a model of its C.
//!
//! Numbers come in rounds; each visits every flow once, in an order of its own, so that no round goes through memory
//! in the order in which an earlier one filled it.

use crate::generator::choice::Dice;

/// Flow numbers without end.
#[derive(Debug, Clone)]
pub struct Order {
    flows: u32,
    mask: u32,
    half: u32,
    state: u32,
    increment: u32,
    left: u32,
    dice: Dice,
    round: u32,
}

impl Order {
    /// Over the numbers below `flows` (at most 2^24); `key` chooses among the orders.
    pub fn new(flows: u32, key: u64) -> Self {
        let mask = flows.next_power_of_two() - 1;
        let half = (32 - mask.leading_zeros()) / 2 + 1;
        let mut order = Self {
            flows,
            mask,
            half,
            state: 0,
            increment: 0,
            left: 0,
            dice: Dice::new(key),
            round: u32::MAX,
        };
        order.begin_round();
        order
    }

    fn begin_round(&mut self) {
        let word = self.dice.roll();
        self.increment = (word & u64::from(u32::MAX)) as u32 | 1;
        self.state = (word >> 32) as u32 & self.mask;
        self.left = self.mask + 1;
        self.round = self.round.wrapping_add(1);
    }
}

impl Iterator for Order {
    /// The round, from 0, and the flow.
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        loop {
            if self.left == 0 {
                self.begin_round();
            }
            self.left -= 1;
            let mut flow = self.state;
            // Full period over a power of two: the multiplier is 1 modulo 4, the increment odd.
            self.state = flow.wrapping_mul(747_796_405).wrapping_add(self.increment) & self.mask;
            flow ^= flow >> self.half;
            flow = flow.wrapping_mul(2_654_435_769) & self.mask;
            flow ^= flow >> self.half;
            if flow < self.flows {
                return Some((self.round, flow));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_visits_every_flow_once() {
        for flows in [1, 2, 3, 5, 64, 1000, 100_000] {
            let mut order = Order::new(flows, 7);
            for round in 0..3 {
                let mut seen = vec![false; flows as usize];
                for _ in 0..flows {
                    let (in_round, flow) = order.next().unwrap();
                    assert_eq!(in_round, round, "{flows} flows");
                    assert!(!std::mem::replace(&mut seen[flow as usize], true), "{flow} of {flows} twice");
                }
            }
        }
    }

    #[test]
    fn a_round_is_in_no_order_of_an_earlier_one() {
        let flows = 100_000;
        let visited: Vec<u32> = Order::new(flows, 7).take(3 * flows as usize).map(|(_, flow)| flow).collect();
        // Slots of a table that the first round filled.
        let mut slot = vec![0; flows as usize];
        for (number, &flow) in visited[..flows as usize].iter().enumerate() {
            slot[flow as usize] = number;
        }
        for round in visited.chunks(flows as usize).skip(1) {
            let steps = round.windows(2).map(|two| slot[two[0] as usize].abs_diff(slot[two[1] as usize]));
            // Chance has 2 * 64 / 100,000 of them.
            let near = steps.filter(|&step| step <= 64).count();
            assert!(near < flows as usize / 200, "{near} of {flows} steps are to a slot nearby");
        }
    }
}
