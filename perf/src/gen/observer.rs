//! Looking at a run while it goes on: the live screen does, and commands that ask the daemon meanwhile.

use super::outcome::StreamOutcome;
use crate::Result;

/// Somebody who looks at a run while it goes on, from its thread.
pub trait Observer {
    /// Whether it wants to look, at tick `now`.
    fn is_due(&mut self, now: u64) -> bool;

    /// Looks, so many seconds after the beginning; `false` ends the run.
    fn look(&mut self, seconds: f64, streams: &[StreamOutcome]) -> Result<bool>;
}

impl Observer for () {
    #[inline]
    fn is_due(&mut self, _: u64) -> bool {
        false
    }

    fn look(&mut self, _: f64, _: &[StreamOutcome]) -> Result<bool> {
        Ok(true)
    }
}

/// Looks every so many ticks, the first time at once.
pub struct Every<F> {
    ticks: u64,
    next: u64,
    look: F,
}

impl<F: FnMut(f64) -> Result<bool>> Every<F> {
    pub fn new(ticks: u64, look: F) -> Self {
        Self { ticks, next: 0, look }
    }
}

impl<F: FnMut(f64) -> Result<bool>> Observer for Every<F> {
    #[inline]
    fn is_due(&mut self, now: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + self.ticks;
        }
        due
    }

    fn look(&mut self, seconds: f64, _: &[StreamOutcome]) -> Result<bool> {
        (self.look)(seconds)
    }
}
