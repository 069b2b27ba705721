//! Which flow is next, and how long its frame is: drawn from distributions, the same for the same seed.
//!
//! Numbers only; what a flow is does not matter here.

use super::scenario::Distribution;

/// A small generator of numbers that look random: SplitMix64.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall as `seed` says.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        scale(self.roll() as u32, bound)
    }

    /// Fisher and Yates's way.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

/// 32 random bits as a number below `bound`.
#[inline]
const fn scale(bits: u32, bound: u32) -> u32 {
    ((bits as u64 * bound as u64) >> 32) as u32
}

#[derive(Debug, Clone)]
pub struct FlowChoice {
    count: u32,
    how: How,
}

#[derive(Debug, Clone)]
enum How {
    InTurn(u32),
    Uniform,
    /// Vose's alias table: a column per flow, of which a share (of 2^32) is the flow's own and the rest another's.
    Alias(Vec<(u32, u32)>),
}

impl FlowChoice {
    /// Draws from flows 0 to `count - 1`.
    pub fn new(count: u32, distribution: Distribution, exponent: f64) -> Self {
        let how = match distribution {
            Distribution::InTurn | Distribution::New => How::InTurn(0),
            Distribution::Uniform => How::Uniform,
            Distribution::Zipf => How::Alias(alias(count, |rank| f64::from(rank + 1).powf(-exponent))),
        };
        Self { count, how }
    }

    #[inline]
    pub fn draw(&mut self, dice: &mut Dice) -> u32 {
        match &mut self.how {
            How::InTurn(next) => {
                let flow = *next;
                *next = if flow + 1 == self.count { 0 } else { flow + 1 };
                flow
            }
            How::Uniform => dice.below(self.count),
            How::Alias(columns) => {
                let roll = dice.roll();
                let column = scale(roll as u32, self.count);
                let (own, other) = columns[column as usize];
                if (roll >> 32) as u32 <= own { column } else { other }
            }
        }
    }
}

fn alias(count: u32, weight: impl Fn(u32) -> f64) -> Vec<(u32, u32)> {
    let total: f64 = (0..count).map(&weight).sum();
    let mut height: Vec<f64> = (0..count).map(|rank| weight(rank) * f64::from(count) / total).collect();
    let mut columns: Vec<(u32, u32)> = (0..count).map(|own| (u32::MAX, own)).collect();
    let (mut low, mut high): (Vec<u32>, Vec<u32>) = (0..count).partition(|&rank| height[rank as usize] < 1.0);
    while let (Some(small), Some(&large)) = (low.pop(), high.last()) {
        let own = height[small as usize];
        columns[small as usize] = ((own * 4_294_967_295.0) as u32, large);
        height[large as usize] -= 1.0 - own;
        if height[large as usize] < 1.0 {
            high.pop();
            low.push(large);
        }
    }
    columns
}

/// Draws lengths: a shuffled row that holds each as often as it weighs, gone through again and again.
#[derive(Debug, Clone)]
pub struct Lengths {
    row: Vec<u8>,
    next: usize,
}

impl Lengths {
    pub fn new(weights: &[u32], dice: &mut Dice) -> Self {
        let mut row: Vec<u8> = (0..=u8::MAX)
            .zip(weights)
            .flat_map(|(place, &weight)| std::iter::repeat_n(place, weight as usize))
            .collect();
        dice.shuffle(&mut row);
        Self { row, next: 0 }
    }

    #[inline]
    pub fn draw(&mut self) -> usize {
        let Some(&place) = self.row.get(self.next) else { return 0 };
        self.next = if self.next + 1 == self.row.len() { 0 } else { self.next + 1 };
        usize::from(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(count: u32, distribution: Distribution, exponent: f64, draws: u32) -> Vec<u32> {
        let (mut flows, mut dice) = (FlowChoice::new(count, distribution, exponent), Dice::new(7));
        let mut seen = vec![0; count as usize];
        for _ in 0..draws {
            seen[flows.draw(&mut dice) as usize] += 1;
        }
        seen
    }

    #[test]
    fn in_turn_visits_each_flow_as_often() {
        assert!(histogram(10, Distribution::InTurn, 0.0, 1000).iter().all(|&seen| seen == 100));
    }

    #[test]
    fn uniform_is_even_and_not_in_turn() {
        let seen = histogram(100, Distribution::Uniform, 0.0, 1_000_000);
        // Ten thousand each, standard deviation about a hundred.
        assert!(seen.iter().all(|seen| (9_500..10_500).contains(seen)), "{seen:?}");
        assert!(seen.iter().any(|&seen| seen != 10_000));
    }

    #[test]
    fn zipf_falls_with_the_rank_as_its_exponent_says() {
        for exponent in [0.5, 1.0, 1.5] {
            let seen = histogram(1000, Distribution::Zipf, exponent, 2_000_000);
            let total: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1, 2, 3, 10, 100, 1000] {
                let expected = 2e6 * f64::from(rank).powf(-exponent) / total;
                let found = f64::from(seen[rank as usize - 1]);
                assert!((found - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{exponent} {rank}: {found}");
            }
        }
    }

    #[test]
    fn lengths_come_as_often_as_they_weigh_but_not_in_blocks() {
        let mut dice = Dice::new(3);
        let mut lengths = Lengths::new(&[7, 4, 1], &mut dice);
        let drawn: Vec<usize> = (0..120).map(|_| lengths.draw()).collect();
        for (place, times) in [(0, 70), (1, 40), (2, 10)] {
            assert_eq!(drawn.iter().filter(|&&drawn| drawn == place).count(), times);
        }
        assert_ne!(drawn[..7], [0; 7]);
        assert_eq!(Lengths::new(&[1], &mut dice).draw(), 0);
    }

    #[test]
    fn one_flow_is_drawn_always() {
        for distribution in [Distribution::InTurn, Distribution::Uniform, Distribution::Zipf] {
            assert_eq!(histogram(1, distribution, 1.0, 50), [50]);
        }
    }
}
