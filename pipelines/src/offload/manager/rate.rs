//! How fast a counter goes up, from readings at any times.

/// A counter of packets and bytes and its speed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateEstimator {
    packets: u64,
    bytes: u64,
    /// When it was seen to go up.
    at_ns: u64,
    /// Packets and bytes a second when it last went up.
    rate: Rate,
}

/// Packets and bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Packets a second, between the last two readings that differed.
    pub packets: u64,
    /// Bytes a second, as the counter counts bytes.
    pub bytes: u64,
}

impl RateEstimator {
    /// Begins at a count; the speed goes on.
    pub fn begin(packets: u64, bytes: u64, now_ns: u64, rate: Rate) -> Self {
        Self { packets, bytes, at_ns: now_ns, rate }
    }

    /// For a counter that goes on elsewhere: where it is, the next reading tells.
    pub fn elsewhere(now_ns: u64, rate: Rate) -> Self {
        Self::begin(u64::MAX, u64::MAX, now_ns, rate)
    }

    /// Takes a count of software's tables. When it went back, it begins anew there.
    pub fn read(&mut self, packets: u64, bytes: u64, now_ns: u64) {
        match packets.checked_sub(self.packets).zip(bytes.checked_sub(self.bytes)) {
            None => *self = Self::begin(packets, bytes, now_ns, self.rate),
            Some((more, more_bytes)) => {
                self.rise(more, more_bytes, now_ns, 0);
                if more > 0 {
                    (self.packets, self.bytes) = (packets, bytes);
                }
            }
        }
    }

    /// So much came since the last call. `patience_ns` is for how long a counter that stands still may just not have been
    /// refreshed.
    pub fn rise(&mut self, packets: u64, bytes: u64, now_ns: u64, patience_ns: u64) {
        let ns = now_ns.saturating_sub(self.at_ns);
        if packets > 0 && ns > 0 {
            let a_second =
                |n: u64| u64::try_from(u128::from(n) * 1_000_000_000 / u128::from(ns)).unwrap_or(u64::MAX);
            self.rate = Rate { packets: a_second(packets), bytes: a_second(bytes) };
            self.at_ns = now_ns;
        } else if ns > patience_ns {
            self.rate = Rate::default();
            self.at_ns = now_ns;
        }
    }

    /// For how long it has not been seen to go up.
    pub const fn stands_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.at_ns)
    }

    /// Packets and bytes a second when the counter last went up; 0 when it stands still.
    pub const fn rate(&self) -> Rate {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_counter_that_is_refreshed_in_steps_has_one_speed() {
        let mut meter = RateEstimator::begin(0, 0, 0, Rate::default());
        for tenth in 1..=30u64 {
            // Refreshed twice a second; a thousand packets a second.
            let more = if tenth % 5 == 0 { 500 } else { 0 };
            meter.rise(more, more * 100, tenth * SECOND / 10, SECOND);
            if tenth >= 5 {
                assert_eq!(meter.rate(), Rate { packets: 1000, bytes: 100_000 }, "after {tenth} tenths");
            }
        }
        for tenth in 31..=41 {
            meter.rise(0, 0, tenth * SECOND / 10, SECOND);
        }
        assert_eq!(meter.rate(), Rate::default(), "it stands still");
    }

    #[test]
    fn a_count_that_goes_back_begins_anew() {
        let mut meter = RateEstimator::begin(100, 100, 0, Rate::default());
        meter.read(40, 100, SECOND);
        meter.read(50, 120, 2 * SECOND);
        assert_eq!(meter.rate(), Rate { packets: 10, bytes: 20 });
    }
}
