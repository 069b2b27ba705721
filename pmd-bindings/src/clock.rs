//! Time from the TSC, calibrated against `CLOCK_MONOTONIC_RAW`.
//!
//! DPDK's own figure is rounded and may be 0.15 % off. Reading the TSC costs dozens of cycles in a virtual
//! machine: once per burst is the way.

use std::time::Duration;

/// The time-stamp counter.
#[inline(always)]
pub fn rdtsc() -> u64 {
    // SAFETY: every x86-64 has the instruction; it reads a register.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A conversion between TSC cycles and time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    hz: u64,
    /// Nanoseconds per cycle, times 2^32.
    nanos_scaled: u64,
}

impl Clock {
    /// Measures the TSC's rate for `window`, sleeping meanwhile. 50 ms give a few parts per million.
    pub fn calibrate(window: Duration) -> Self {
        let (tsc, nanos) = sample();
        std::thread::sleep(window.max(Duration::from_millis(1)));
        let (later, later_nanos) = sample();
        let cycles = u128::from(later.wrapping_sub(tsc));
        let elapsed = u128::from(later_nanos.saturating_sub(nanos)).max(1);
        Self::from_hz(u64::try_from(cycles * 1_000_000_000 / elapsed).unwrap_or(u64::MAX))
    }

    /// With a known rate.
    pub fn from_hz(hz: u64) -> Self {
        let hz = hz.max(1);
        let nanos_scaled = (1_000_000_000u128 << 32) / u128::from(hz);
        Self { hz, nanos_scaled: u64::try_from(nanos_scaled).unwrap_or(u64::MAX) }
    }

    /// Cycles per second.
    pub fn hz(&self) -> u64 {
        self.hz
    }

    /// Nanoseconds of so many cycles.
    #[inline]
    pub fn nanos(&self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.nanos_scaled)) >> 32) as u64
    }

    /// What the TSC of this core was at a moment. Cores whose counters differ have the same time since then.
    pub fn tsc_at(&self, moment: Moment) -> u64 {
        let (tsc, nanos) = sample();
        tsc.wrapping_sub(self.cycles(Duration::from_nanos(nanos.saturating_sub(moment.0))))
    }

    /// Cycles of so much time.
    pub fn cycles(&self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos() * u128::from(self.hz) / 1_000_000_000).unwrap_or(u64::MAX)
    }
}

/// A moment, the same for all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// This one.
    pub fn now() -> Self {
        Self(monotonic_raw())
    }
}

/// TSC and raw monotonic nanoseconds of one instant: the tightest of several pairs.
fn sample() -> (u64, u64) {
    let pairs = (0..16).map(|_| {
        let before = rdtsc();
        let nanos = monotonic_raw();
        let after = rdtsc();
        (after.wrapping_sub(before), before.wrapping_add(after.wrapping_sub(before) / 2), nanos)
    });
    let (_, tsc, nanos) = pairs.min().unwrap_or_default();
    (tsc, nanos)
}

fn monotonic_raw() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_both_ways() {
        let clock = Clock::from_hz(2_500_000_000);
        assert_eq!(clock.cycles(Duration::from_micros(4)), 10_000);
        assert!((399..=400).contains(&clock.nanos(1000)));
        let day = clock.cycles(Duration::from_secs(86_400));
        let error = clock.nanos(day).abs_diff(86_400_000_000_000);
        assert!(error < 86_400_000, "{error} ns in a day");
    }

    #[test]
    fn cores_agree_on_a_moment() {
        let clock = Clock::calibrate(Duration::from_millis(50));
        let (moment, tsc) = (Moment::now(), rdtsc());
        std::thread::sleep(Duration::from_millis(20));
        let error = (0..100).map(|_| clock.nanos(clock.tsc_at(moment).abs_diff(tsc))).min();
        // 20 ms at a rate that is off by 0.1 %.
        assert!(error < Some(20_000), "{error:?} ns");
    }

    #[test]
    fn measures_the_rate_that_the_system_clock_shows() {
        let clock = Clock::calibrate(Duration::from_millis(50));
        let (tsc, nanos) = sample();
        std::thread::sleep(Duration::from_millis(50));
        let (later, later_nanos) = sample();
        let (ours, theirs) = (clock.nanos(later - tsc) as f64, (later_nanos - nanos) as f64);
        assert!((ours / theirs - 1.0).abs() < 0.001, "{ours} ns by TSC, {theirs} ns by the system");
    }
}
