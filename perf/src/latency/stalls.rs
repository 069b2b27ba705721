//! Stalls: how often and for how long a loop that does nothing was kept from its core, and what that alone does to packets.

use serde::Serialize;

/// What is shorter is not counted, in microseconds.
pub const LEAST: f64 = 5.0;
/// The part of the packets beyond the 99.9th percentile.
const BEYOND: f64 = 0.001;

/// The stalls of a stretch of time.
#[derive(Debug, Clone, Default)]
pub struct Stalls {
    micros: Vec<f64>,
    seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StallFigures {
    /// Stalls of over 5 microseconds a second.
    pub over_5: f64,
    pub over_10: f64,
    pub over_20: f64,
    pub over_100: f64,
    /// The share of the time that they took together.
    pub share: f64,
    /// The longest, in microseconds.
    pub longest: f64,
}

impl Stalls {
    /// Stalls of `micros` each within so many seconds.
    pub fn new(micros: Vec<f64>, seconds: f64) -> Self {
        Self { micros, seconds }
    }

    pub fn figures(&self) -> StallFigures {
        let over = |limit: f64| {
            let count = self.micros.iter().filter(|length| **length > limit).count();
            count as f64 / self.seconds
        };
        StallFigures {
            over_5: over(5.0),
            over_10: over(10.0),
            over_20: over(20.0),
            over_100: over(100.0),
            share: self.micros.iter().sum::<f64>() / 1e6 / self.seconds,
            longest: self.micros.iter().copied().fold(0.0, f64::max),
        }
    }

    /// The share of packets that these stalls alone hold up for more than `delay` microseconds, where a switch is
    /// otherwise at once with every packet and has `load` (0 to 1) of what it can do.
    ///
    /// A packet that comes `u` after the beginning of a stall of length `s` waits for its end and for those that came
    /// before it: `s - u + load * u`. That is over `delay` for `u` below `(s - delay) / (1 - load)`.
    pub fn share_over(&self, delay: f64, load: f64) -> f64 {
        let beyond: f64 = self.micros.iter().map(|length| (length - delay).max(0.0)).sum();
        beyond / (1.0 - load).max(0.01) / 1e6 / self.seconds
    }

    /// The 99.9th percentile of the delay that these stalls alone make, in microseconds; [`LEAST`] where it is no more.
    pub fn p999(&self, load: f64) -> f64 {
        let (mut low, mut high) = (LEAST, self.figures().longest.max(LEAST));
        if self.share_over(low, load) <= BEYOND {
            return low;
        }
        while high - low > 0.01 {
            let middle = f64::midpoint(low, high);
            if self.share_over(middle, load) > BEYOND {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_counted_by_length() {
        let figures = Stalls::new(vec![6.0, 12.0, 30.0, 152.0], 2.0).figures();
        assert_eq!(
            (figures.over_5, figures.over_10, figures.over_20, figures.over_100),
            (2.0, 1.5, 1.0, 0.5)
        );
        assert!((figures.share - 100e-6).abs() < 1e-12 && (figures.longest - 152.0).abs() < 1e-9);
    }

    /// The formula beside a queue that is played packet by packet.
    #[test]
    fn a_queue_with_such_stalls_has_that_tail() {
        for load in [0.1, 0.5, 0.9] {
            // A stall of 50 every 1000 microseconds: the queue is empty again before the next.
            let (service, stall, period) = (0.02, 50.0, 1000.0);
            let (mut free, mut delays) = (0.0f64, Vec::new());
            for packet in 0..1_000_000 {
                let at = f64::from(packet) * service / load;
                let mut start = free.max(at);
                if start % period < stall {
                    start = start - start % period + stall;
                }
                free = start + service;
                delays.push(free - at);
            }
            delays.sort_by(f64::total_cmp);
            let played = delays[delays.len() * 999 / 1000];
            let told = Stalls::new(vec![stall; 1000], 1.0).p999(load);
            assert!((played - told).abs() < 0.5, "load {load}: played {played}, told {told}");
        }
    }

    #[test]
    fn a_core_of_ones_own_has_no_tail() {
        assert_eq!(Stalls::new(Vec::new(), 1.0).p999(0.5), LEAST);
        // Once a second is no 99.9th percentile.
        assert_eq!(Stalls::new(vec![300.0], 1.0).p999(0.5), LEAST);
        assert!(Stalls::new(vec![4000.0], 1.0).p999(0.5) > 3000.0);
    }
}
