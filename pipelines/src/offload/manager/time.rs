//! How long a turn may keep control waiting for the device.
//!
//! A device that takes its time for each call would have control stand still while thousands of rules are made or counters
//! read. So a turn has a limit. What is to be done in it goes on until its part of the turn is over, and what is left is
//! for the next turn, which begins there. Of each kind of work one piece is done in any turn, so that all of them go on.

/// Tells the time in nanoseconds, since whenever.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// What a turn is spent on, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Counters of flows in hardware are read.
    Counters,
    /// What meters turned away is read.
    Red,
    /// Gates of flows on their way into hardware are opened.
    Gates,
    /// Flows leave that need not leave at once.
    Withdrawals,
    /// Chains are changed that have to be.
    Changes,
    /// Meters get the rates of their classes.
    Rates,
    /// Rules are made for hot flows, or compared with those of the device.
    Rules,
}

impl Work {
    /// So many hundredths of a turn may be over when the next kind of work begins.
    const fn until(self) -> u64 {
        match self {
            Self::Counters => 30,
            Self::Red => 40,
            Self::Gates => 50,
            Self::Withdrawals => 60,
            Self::Changes => 75,
            Self::Rates => 85,
            Self::Rules => 100,
        }
    }
}

/// The time of a turn, as a clock tells it.
pub(super) struct TurnTime {
    clock: Clock,
    limit_ns: u64,
    began_ns: u64,
}

impl Default for TurnTime {
    /// No turn ever takes too long.
    fn default() -> Self {
        Self { clock: Box::new(|| 0), limit_ns: u64::MAX, began_ns: 0 }
    }
}

impl TurnTime {
    pub fn new(clock: Clock, limit_ns: u64) -> Self {
        Self { clock, limit_ns, began_ns: 0 }
    }

    /// A turn begins.
    pub fn begin(&mut self) {
        self.began_ns = (self.clock)();
    }

    /// True when the next piece of this work is for the next turn.
    pub fn is_over(&self, work: Work) -> bool {
        let passed = (self.clock)().saturating_sub(self.began_ns);
        u128::from(passed) * 100 >= u128::from(self.limit_ns) * u128::from(work.until())
    }
}
