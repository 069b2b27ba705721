//! DCQCN at the ends: the reaction point, which is the sender's rate, and the notification point, which paces the
//! receiver's notifications (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015).

/// Parameters; times in nanoseconds, rates in bits per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// A receiver notifies a sender at most this often.
    pub cnp_interval_ns: u64,
    /// Without notifications alpha decays this often.
    pub alpha_timer_ns: u64,
    pub g: f64,
    pub fast_recovery: u32,
    pub additive: f64,
    /// Hyper increase, per step.
    pub hyper: f64,
    pub increase_timer_ns: u64,
    /// ... and every so many bytes.
    pub increase_bytes: u64,
    pub min_rate: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            cnp_interval_ns: 50_000,
            alpha_timer_ns: 55_000,
            g: 1.0 / 256.0,
            fast_recovery: 5,
            additive: 40e6,
            hyper: 50e6,
            increase_timer_ns: 55_000,
            increase_bytes: 10 << 20,
            min_rate: 100e6,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ReactionPoint {
    parameters: Parameters,
    line_rate: f64,
    rate: f64,
    target: f64,
    alpha: f64,
    alpha_due: u64,
    increase_due: u64,
    bytes: u64,
    by_timer: u32,
    by_bytes: u32,
}

impl ReactionPoint {
    /// A sender that starts at line rate.
    pub fn new(parameters: Parameters, line_rate: f64, now_ns: u64) -> Self {
        Self {
            parameters,
            line_rate,
            rate: line_rate,
            target: line_rate,
            alpha: 1.0,
            alpha_due: now_ns + parameters.alpha_timer_ns,
            increase_due: now_ns + parameters.increase_timer_ns,
            bytes: 0,
            by_timer: 0,
            by_bytes: 0,
        }
    }

    /// Bits per second now.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    pub fn notified(&mut self, now_ns: u64) {
        self.target = self.rate;
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.parameters.min_rate);
        self.alpha = (1.0 - self.parameters.g) * self.alpha + self.parameters.g;
        self.alpha_due = now_ns + self.parameters.alpha_timer_ns;
        self.increase_due = now_ns + self.parameters.increase_timer_ns;
        (self.bytes, self.by_timer, self.by_bytes) = (0, 0, 0);
    }

    /// So many bytes were sent.
    pub fn sent(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= self.parameters.increase_bytes {
            self.bytes -= self.parameters.increase_bytes;
            self.by_bytes += 1;
            self.increase();
        }
    }

    pub fn tick(&mut self, now_ns: u64) {
        while now_ns >= self.alpha_due {
            self.alpha_due += self.parameters.alpha_timer_ns;
            self.alpha *= 1.0 - self.parameters.g;
        }
        while now_ns >= self.increase_due {
            self.increase_due += self.parameters.increase_timer_ns;
            self.by_timer += 1;
            self.increase();
        }
    }

    fn increase(&mut self) {
        let fast = self.parameters.fast_recovery;
        let (most, least) = (self.by_timer.max(self.by_bytes), self.by_timer.min(self.by_bytes));
        if most > fast {
            let more = if least > fast {
                self.parameters.hyper * f64::from(least - fast)
            } else {
                self.parameters.additive
            };
            self.target = (self.target + more).min(self.line_rate);
        }
        self.rate = ((self.target + self.rate) / 2.0).min(self.line_rate);
    }
}

/// A receiver's notifications to one sender.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    next_ns: u64,
}

impl NotificationPoint {
    /// A packet with congestion experienced came. True when the sender is to be told.
    pub fn marked(&mut self, parameters: &Parameters, now_ns: u64) -> bool {
        let tells = now_ns >= self.next_ns;
        if tells {
            self.next_ns = now_ns + parameters.cnp_interval_ns;
        }
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dcqcn_cuts_by_half_at_first_and_recovers_in_five_steps() {
        let parameters = Parameters::default();
        let mut sender = ReactionPoint::new(parameters, 10e9, 0);
        sender.notified(0);
        assert_eq!(sender.rate(), 5e9);
        // Fast recovery: half of what is missing each time.
        for (step, expected) in [7.5e9, 8.75e9, 9.375e9, 9.6875e9, 9.84375e9].into_iter().enumerate() {
            sender.tick((step as u64 + 1) * parameters.increase_timer_ns);
            assert!((sender.rate() - expected).abs() < 1.0, "step {step}: {}", sender.rate());
        }
        // Notifications without end bring it to the least rate, and alpha stays high.
        for n in 0..200 {
            sender.notified(1_000_000 + n * 50_000);
        }
        assert_eq!(sender.rate(), parameters.min_rate);
    }

    #[test]
    fn dcqcn_additive_then_hyper_increase() {
        let parameters = Parameters::default();
        let mut sender = ReactionPoint::new(parameters, 10e9, 0);
        for _ in 0..40 {
            sender.notified(0);
        }
        let start = sender.rate();
        let after = |sender: &mut ReactionPoint, steps: u64| {
            sender.tick(steps * parameters.increase_timer_ns);
            sender.rate()
        };
        let slow = after(&mut sender, 25) - start;
        assert!((19.0 * 40e6..=21.0 * 40e6).contains(&slow), "{slow}");
        // Bytes count steps of their own: with both past fast recovery it grows faster and faster.
        (0..8).for_each(|_| sender.sent(parameters.increase_bytes));
        let fast = sender.rate() - start - slow;
        assert!(fast > 3.0 * 40e6, "{fast}");
    }

    #[test]
    fn dcqcn_notifications_are_paced() {
        let parameters = Parameters::default();
        let mut receiver = NotificationPoint::default();
        let told = (0..1000u64).filter(|n| receiver.marked(&parameters, n * 1000)).count();
        assert_eq!(told, 20);
    }
}
