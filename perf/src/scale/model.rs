//! From one worker to sixteen, by arithmetic: what a packet costs alone, how often workers come to the lines that they
//! share, and what a line costs that another core has.
//!
//! ```text
//!   ticks(n) = alone + draws a packet * moves a draw * line * ((n - 1) / n + waiting)
//!   waiting  = busy / (2 * (1 - busy)), busy = the part of time in which the line is on its way
//! ```
//! The chance that somebody else had the line last is (n - 1) / n; waiting for one that is under way is that of a queue
//! with one server and a constant time of service. Whatever the machine itself takes from workers that run beside each
//! other (clock, caches, memory, the NIC) is not in it.

use serde::Serialize;

pub const MOST: u32 = 16;
/// Moves that a draw makes of each line that everybody shares: its tokens are looked at, then taken.
pub const MOVES_PER_LINE: f64 = 2.0;

/// What the curve is made of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Inputs {
    /// Ticks of the time stamp counter a packet, one worker alone. Measured.
    pub alone: f64,
    pub draws: f64,
    /// Ticks until a line that another core has is here. Measured.
    pub line: f64,
    /// Ticks a second.
    pub hertz: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    pub workers: u32,
    /// Millions of packets a second of each.
    pub each_mpps: f64,
    pub all_mpps: f64,
    /// Each, as a part of one alone.
    pub share: f64,
    /// The part of time in which the most wanted line is on its way from core to core.
    pub busy: f64,
}

/// The curve when so many lines of a draw are everybody's.
pub fn curve(inputs: &Inputs, lines: f64) -> Vec<Point> {
    (1..=MOST).map(|workers| point(inputs, lines, workers)).collect()
}

fn point(inputs: &Inputs, lines: f64, workers: u32) -> Point {
    let Inputs { alone, draws, line, hertz } = *inputs;
    let n = f64::from(workers);
    let elsewhere = (n - 1.0) / n;
    // Time that the line takes for a packet, in all and if it had to be waited for by nobody.
    let service = draws * MOVES_PER_LINE * line;
    // The more it costs, the less often workers come: halving finds where both agree.
    let cost = |ticks: f64| {
        let busy = (n * elsewhere * service / ticks).min(0.999_999);
        (alone + lines * service * (elsewhere + elsewhere * busy / (2.0 * (1.0 - busy))), busy)
    };
    let (mut low, mut high) = (alone, alone + 1e3 * n * (lines * service + 1.0));
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if cost(middle).0 > middle { low = middle } else { high = middle }
    }
    let each_mpps = hertz / high / 1e6;
    Point { workers, each_mpps, all_mpps: n * each_mpps, share: alone / high, busy: cost(high).1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: Inputs = Inputs { alone: 130.0, draws: 1.0 / 780.0, line: 200.0, hertz: 2.5e9 };

    #[test]
    fn workers_that_share_nothing_add_up() {
        for point in curve(&Inputs { draws: 0.0, ..INPUTS }, 1.0) {
            assert!((point.share - 1.0).abs() < 1e-9 && point.busy == 0.0);
            assert!((point.all_mpps - f64::from(point.workers) * 2.5e3 / 130.0).abs() < 1e-6);
        }
    }

    #[test]
    fn more_workers_lines_and_draws_cost_more() {
        let one = curve(&INPUTS, 1.0);
        assert!((one[0].share - 1.0).abs() < 1e-9);
        assert!(
            one.windows(2).all(|pair| pair[1].share < pair[0].share && pair[1].all_mpps > pair[0].all_mpps)
        );
        let four = curve(&INPUTS, 4.0);
        assert!(one.iter().zip(&four).skip(1).all(|(one, four)| four.share < one.share));
        assert!(one[15].share > 0.99, "{:?}", one[15]);
    }

    #[test]
    fn a_line_that_is_always_wanted_bounds_all_of_them() {
        // Each packet draws: at best, the line moves from core to core without a pause.
        let all = curve(&Inputs { draws: 1.0, ..INPUTS }, 1.0);
        let bound = INPUTS.hertz / (MOVES_PER_LINE * INPUTS.line) / 1e6;
        assert!(
            all.iter()
                .skip(1)
                .all(|point| point.all_mpps * (1.0 - 1.0 / f64::from(point.workers)) <= bound * 1.001)
        );
        assert!(all[15].busy > 0.8, "{:?}", all[15]);
    }
}
