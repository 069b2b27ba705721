//! A meter's buckets: a two-rate three-colour marker as in RFC 4115, or with one rate as in RFC 2697; colour-blind.

use rules::{Colour, Meter};

/// Nanoseconds in a second: buckets count billionths of a byte, so that no refill is lost to rounding.
const NANO: u64 = 1_000_000_000;

/// A meter and what it has saved up.
#[derive(Clone, Copy, Debug)]
pub struct Metered {
    meter: Meter,
    committed: u64,
    excess: u64,
    since_ns: u64,
}

/// What a bucket of `burst` bytes holds at most.
fn full(burst: u64) -> u64 {
    burst.saturating_mul(NANO)
}

fn refill(rate: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(ns)).unwrap_or(u64::MAX)
}

impl Metered {
    /// A meter whose buckets are full: the first packets are green up to its bursts.
    pub fn new(meter: Meter, now_ns: u64) -> Self {
        Self { meter, committed: full(meter.cbs), excess: full(meter.ebs), since_ns: now_ns }
    }

    /// Other rates and bursts; what was saved up stays, as far as there is room.
    pub fn set(&mut self, meter: Meter, now_ns: u64) {
        self.fill(now_ns);
        self.meter = meter;
        self.committed = self.committed.min(full(meter.cbs));
        self.excess = self.excess.min(full(meter.ebs));
    }

    fn fill(&mut self, now_ns: u64) {
        let ns = now_ns.saturating_sub(self.since_ns);
        self.since_ns = self.since_ns.max(now_ns);
        let Meter { cir, cbs, eir, ebs } = self.meter;
        let committed = self.committed.saturating_add(refill(cir, ns));
        // One rate: what the committed bucket has no room for goes to the other.
        let excess = if eir == 0 { committed.saturating_sub(full(cbs)) } else { refill(eir, ns) };
        self.committed = committed.min(full(cbs));
        self.excess = self.excess.saturating_add(excess).min(full(ebs));
    }

    /// The colour of a packet.
    pub fn colour(&mut self, bytes: usize, now_ns: u64) -> Colour {
        self.fill(now_ns);
        let need = full(bytes as u64);
        for (bucket, colour) in [(&mut self.committed, Colour::Green), (&mut self.excess, Colour::Yellow)] {
            if *bucket >= need {
                *bucket -= need;
                return colour;
            }
        }
        Colour::Red
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Colours of 100-byte packets, `n` of them `gap` nanoseconds apart.
    fn colours(meter: Meter, n: u64, gap: u64) -> [u64; 3] {
        let mut metered = Metered::new(meter, 0);
        let mut seen = [0; 3];
        (1..=n).for_each(|i| seen[metered.colour(100, i * gap) as usize] += 1);
        seen
    }

    #[test]
    fn one_rate_fills_the_excess_with_what_overflows_only() {
        // 1000 bytes a second; ten packets a second keep to it.
        let meter = Meter { cir: 1000, cbs: 200, eir: 0, ebs: 300 };
        assert_eq!(colours(meter, 50, NANO / 10), [50, 0, 0]);
        // Twice the rate: bursts first, then every other packet is red.
        assert_eq!(colours(meter, 106, NANO / 20), [55 - 1, 3, 49]);
        // After a pause both are full again.
        let mut metered = Metered::new(meter, 0);
        let mut at = |now| metered.colour(100, now) as u8;
        assert_eq!([at(0), at(0), at(0), at(0), at(0), at(0)], [0, 0, 1, 1, 1, 2]);
        assert_eq!([at(NANO), at(NANO), at(NANO), at(NANO), at(NANO), at(NANO)], [0, 0, 1, 1, 1, 2]);
        assert_eq!([at(NANO + NANO / 5), at(NANO + NANO / 5), at(NANO + NANO / 5)], [0, 0, 2]);
    }

    #[test]
    fn two_rates_are_apart() {
        let meter = Meter { cir: 1000, cbs: 100, eir: 500, ebs: 100 };
        // Forty packets in a second: ten green, five yellow, and the bursts.
        let [green, yellow, red] = colours(meter, 400, NANO / 40);
        assert_eq!(green + yellow + red, 400);
        assert!((100..=101).contains(&green) && (50..=51).contains(&yellow), "{green} {yellow} {red}");
    }

    #[test]
    fn a_change_keeps_what_fits() {
        let mut metered = Metered::new(Meter { cir: 1, cbs: 1000, eir: 0, ebs: 0 }, 0);
        metered.set(Meter { cir: 1, cbs: 100, eir: 0, ebs: 100 }, 0);
        assert_eq!(metered.colour(100, 0), Colour::Green);
        assert_eq!(metered.colour(100, 0), Colour::Red, "the new excess bucket begins empty");
        assert_eq!(metered.colour(100, 100 * NANO), Colour::Green);
    }
}
