//! A schedule in ticks of the time stamp counter: so many packets a second, and no flood after a hiccup.

#[derive(Debug, Clone)]
pub struct Pace {
    /// Packets per tick, as a fraction.
    packets: u64,
    ticks: u64,
    start: u64,
    taken: u64,
    skipped: u64,
    backlog: u64,
}

impl Pace {
    /// `rate` packets per second on a counter of `hertz`, from tick `now` on. Whoever comes late finds at most
    /// `backlog` packets due; the others are given up and counted.
    pub fn new(rate: u64, hertz: u64, now: u64, backlog: u64) -> Self {
        Self { packets: rate, ticks: hertz.max(1), start: now, taken: 0, skipped: 0, backlog }
    }

    /// Packets due at tick `now`.
    pub fn due(&mut self, now: u64) -> u64 {
        let elapsed = u128::from(now.saturating_sub(self.start));
        let scheduled = (elapsed * u128::from(self.packets) / u128::from(self.ticks)) as u64;
        let due = scheduled.saturating_sub(self.taken + self.skipped);
        if due > self.backlog {
            self.skipped += due - self.backlog;
            return self.backlog;
        }
        due
    }

    pub fn take(&mut self, count: u64) {
        self.taken += count;
    }

    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_rate_and_forgives_hiccups() {
        let mut pace = Pace::new(1_000_000, 2_500_000_000, 1000, 64);
        assert_eq!(pace.due(1000), 0);
        assert_eq!(pace.due(1000 + 2499), 0);
        assert_eq!(pace.due(1000 + 25_000), 10);
        pace.take(4);
        assert_eq!(pace.due(1000 + 25_000), 6);
        pace.take(6);
        // Ten milliseconds away: ten thousand were due.
        assert_eq!(pace.due(1000 + 25_025_000), 64);
        assert_eq!(pace.skipped(), 10_000 - 64);
        pace.take(64);
        assert_eq!(pace.due(1000 + 25_025_000), 0);
        assert_eq!(pace.due(1000 + 25_027_500), 1);
    }
}
