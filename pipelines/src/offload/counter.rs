//! How much of what a device's counter says is believed. One that goes back or leaps ahead for a moment is not: whoever
//! pays for what hardware did would pay for it twice, or for what nobody sent.
//!
//! ```text
//!   reading follows what is believed? -yes-> so much more
//!                |no
//!                v
//!   doubted: several in a row that follow each other, for longer than a stale figure lasts -> the counter goes on there
//! ```

use rules::Usage;

/// Bytes a second of the fastest port that there is, 800 Gbit/s, for those that do not tell their speed.
const FASTEST: u64 = 100_000_000_000;
/// So many times what a port carries in the time is no traffic.
const MARGIN: u64 = 2;
/// Bytes that a frame takes on any wire, at least.
const SHORTEST: u64 = 64;
/// Readings in a row after which a counter that goes on elsewhere is followed there.
const AGREED: u32 = 3;

/// What a reading is held against.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// When it was had, in nanoseconds.
    pub now_ns: u64,
    /// For how long a device may show the same figure, be it a wrong one; in nanoseconds.
    pub refresh_ns: u64,
    /// Bytes a second that the port carries at most.
    pub port: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { now_ns: 0, refresh_ns: 0, port: FASTEST }
    }
}

/// A counter of packets and bytes that a device keeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceCounter {
    believed: Reading,
    doubted: Option<Doubted>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    usage: Usage,
    at_ns: u64,
}

/// Readings in a row that cannot follow what is believed, but follow each other.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    first: Reading,
    last: Reading,
    readings: u32,
}

/// What follows from a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// So much came since what was believed before.
    By(Usage),
    /// It is less than before.
    Back,
    /// It is more than any port can have carried in the time.
    Ahead,
    /// As doubtful as the reading before.
    Doubted,
}

impl Reading {
    /// How much more a later reading is. A device may show at once what a refresh has brought.
    fn growth(&self, later: &Self, pace: Pace) -> Growth {
        let ns = later.at_ns.saturating_sub(self.at_ns).saturating_add(pace.refresh_ns);
        let most = u128::from(pace.port.saturating_mul(MARGIN)) * u128::from(ns) / 1_000_000_000;
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let packets = later.usage.packets.checked_sub(self.usage.packets);
        let bytes = later.usage.bytes.checked_sub(self.usage.bytes);
        if packets.is_some_and(|packets| packets > most / SHORTEST) || bytes.is_some_and(|bytes| bytes > most)
        {
            return Growth::Ahead;
        }
        match (packets, bytes) {
            (Some(packets), Some(bytes)) => Growth::By(Usage { packets, bytes }),
            _ => Growth::Back,
        }
    }
}

impl DeviceCounter {
    /// One that begins at 0 now.
    pub fn begin(now_ns: u64) -> Self {
        Self { believed: Reading { usage: Usage::default(), at_ns: now_ns }, doubted: None }
    }

    /// Takes a reading.
    pub fn read(&mut self, usage: Usage, pace: Pace) -> Growth {
        let Pace { now_ns, refresh_ns, .. } = pace;
        let reading = Reading { usage, at_ns: now_ns };
        let growth = self.believed.growth(&reading, pace);
        if let Growth::By(more) = growth {
            self.doubted = None;
            self.believed.at_ns = now_ns;
            // Bytes alone wait for their packets.
            if more.packets > 0 {
                self.believed.usage = usage;
            }
            return growth;
        }
        let known = self.doubted.filter(|known| matches!(known.last.growth(&reading, pace), Growth::By(_)));
        let Some(Doubted { first, readings, .. }) = known else {
            self.doubted = Some(Doubted { first: reading, last: reading, readings: 1 });
            return growth;
        };
        let readings = readings.saturating_add(1);
        if readings < AGREED || now_ns.saturating_sub(first.at_ns) <= refresh_ns {
            self.doubted = Some(Doubted { first, last: reading, readings });
            return Growth::Doubted;
        }
        // It goes on there. What came before the first of these readings nobody can tell.
        *self = Self { believed: reading, doubted: None };
        first.growth(&reading, pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: u64 = 100_000_000;

    /// What comes of these counts of packets of 100 bytes, read ten times a second.
    fn told(refresh_ns: u64, counts: &[u64]) -> Vec<Growth> {
        let mut counter = DeviceCounter::begin(0);
        let read = |(tenth, packets): (u64, &u64)| {
            let usage = Usage { packets: *packets, bytes: packets.saturating_mul(100) };
            counter.read(usage, Pace { now_ns: tenth * TENTH, refresh_ns, ..Pace::default() })
        };
        (1..).zip(counts).map(read).collect()
    }

    fn by(packets: u64) -> Growth {
        Growth::By(Usage { packets, bytes: packets * 100 })
    }

    #[test]
    fn a_dip_costs_nothing_and_what_came_meanwhile_is_counted_once() {
        for low in [0, 1, 999] {
            let counts = [1000, low, low, 1300, 1400];
            assert_eq!(told(TENTH, &counts), [by(1000), Growth::Back, Growth::Doubted, by(300), by(100)]);
        }
    }

    #[test]
    fn a_leap_is_not_counted() {
        for far in [1 << 63, u64::MAX, 1 << 40] {
            let counts = [1000, far, 1200];
            assert_eq!(told(TENTH, &counts), [by(1000), Growth::Ahead, by(200)]);
        }
    }

    #[test]
    fn a_counter_that_goes_on_elsewhere_is_followed_after_a_while() {
        let counts = [1_000_000, 0, 10, 20, 30, 40];
        let growth = [by(1_000_000), Growth::Back, Growth::Doubted, Growth::Doubted, by(30), by(10)];
        assert_eq!(told(2 * TENTH, &counts), growth);
        let far = 1 << 50;
        let growth = [by(1000), Growth::Ahead, Growth::Doubted, by(20), by(10)];
        assert_eq!(told(0, &[1000, far, far + 10, far + 20, far + 30]), growth);
        // One that is elsewhere each time is followed nowhere.
        let growth = [by(1000), Growth::Ahead, Growth::Back, Growth::Ahead, Growth::Back];
        assert_eq!(told(0, &[1000, far, 10, far, 10]), growth);
    }

    /// A device that refreshes now and then shows in one reading what came since.
    #[test]
    fn a_refresh_is_no_leap() {
        let a_second = FASTEST / 100;
        assert_eq!(told(10 * TENTH, &[0, a_second]), [by(0), by(a_second)]);
        assert_eq!(told(0, &[0, a_second]), [by(0), Growth::Ahead]);
    }

    #[test]
    fn a_port_that_tells_its_speed_is_held_to_it() {
        let mut counter = DeviceCounter::begin(0);
        let pace = Pace { now_ns: 10 * TENTH, refresh_ns: 0, port: 1_250_000_000 };
        let usage = |bytes| Usage { packets: bytes / 1000, bytes };
        assert_eq!(counter.read(usage(2_501_000_000), pace), Growth::Ahead);
        assert_eq!(counter.read(usage(2_500_000_000), pace), Growth::By(usage(2_500_000_000)));
    }
}
