//! When what control refused of other hosts may be tried again: soon where that costs little, and the later the more it costs.

use std::time::{Duration, Instant};

/// So many times as long as control was at it last, it is left alone.
const REST: u32 = 16;
/// But no longer than this.
const LONGEST: Duration = Duration::from_secs(10);

/// When there may be another try.
#[derive(Debug, Default)]
pub struct Tries(Option<Instant>);

impl Tries {
    /// True when control may be asked again.
    pub fn may(&self, now: Instant) -> bool {
        self.0.is_none_or(|at| at <= now)
    }

    /// A try ended, and control was at it for so long.
    pub fn took(&mut self, now: Instant, time: Duration) {
        self.0 = Some(now + (time * REST).min(LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_of_what_is_refused_take_a_small_part_of_controls_time() {
        let (mut now, millisecond) = (Instant::now(), Duration::from_millis(1));
        for cost in [0, 1, 150, 600].map(|cost| cost * millisecond) {
            let (mut tries, mut spent, begun) = (Tries::default(), Duration::ZERO, now);
            while now < begun + Duration::from_secs(60) {
                if tries.may(now) {
                    (spent, now) = (spent + cost, now + cost);
                    tries.took(now, cost);
                }
                now += 250 * millisecond;
            }
            assert!(spent <= Duration::from_secs(60) / 16, "{cost:?}: {spent:?}");
        }
        let mut tries = Tries::default();
        tries.took(now, Duration::from_secs(60));
        assert!(!tries.may(now + Duration::from_secs(9)) && tries.may(now + LONGEST));
        tries.took(now, 10 * millisecond);
        assert!(tries.may(now + 250 * millisecond), "a few are tried with every turn");
    }
}
