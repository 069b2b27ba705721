//! Delays: a histogram of ticks, read as microseconds.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer delays count as this long (in ticks; some seconds).
const LONGEST: u64 = 1 << 34;

/// A histogram of delays in ticks of the time stamp counter.
#[derive(Debug, Clone)]
pub struct Delays {
    ticks: Option<Histogram<u64>>,
}

impl Default for Delays {
    fn default() -> Self {
        Self::new()
    }
}

impl Delays {
    /// An empty one: three digits, up to some seconds.
    pub fn new() -> Self {
        Self { ticks: Histogram::new_with_bounds(1, LONGEST, 3).ok() }
    }

    #[inline]
    pub fn record(&mut self, ticks: u64) {
        if let Some(histogram) = &mut self.ticks {
            histogram.saturating_record(ticks.clamp(1, LONGEST));
        }
    }

    pub fn clear(&mut self) {
        if let Some(histogram) = &mut self.ticks {
            histogram.reset();
        }
    }

    /// The figures, on a counter of `hertz`; `None` without any delay.
    pub fn quantiles(&self, hertz: u64) -> Option<Quantiles> {
        let histogram = self.ticks.as_ref().filter(|histogram| !histogram.is_empty())?;
        let micros = |ticks: u64| ticks as f64 * 1e6 / hertz as f64;
        Some(Quantiles {
            packets: histogram.len(),
            p50: micros(histogram.value_at_quantile(0.5)),
            p90: micros(histogram.value_at_quantile(0.9)),
            p99: micros(histogram.value_at_quantile(0.99)),
            p999: micros(histogram.value_at_quantile(0.999)),
            max: micros(histogram.max()),
        })
    }
}

/// Delays in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    pub packets: u64,
    pub p50: f64,
    /// 9 of 10 took no longer.
    pub p90: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1000 took no longer.
    pub p999: f64,
    pub max: f64,
}

impl Quantiles {
    /// Each figure less `floor` microseconds, but not below zero.
    pub fn less(self, floor: f64) -> Self {
        let less = |value: f64| (value - floor).max(0.0);
        Self {
            p50: less(self.p50),
            p90: less(self.p90),
            p99: less(self.p99),
            p999: less(self.p999),
            max: less(self.max),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_in_microseconds() {
        let mut delays = Delays::new();
        assert_eq!(delays.quantiles(1000), None);
        for ticks in 1..=1000 {
            delays.record(ticks * 1000);
        }
        let found = delays.quantiles(1_000_000_000).unwrap();
        assert_eq!(found.packets, 1000);
        assert!((found.p50 - 500.0).abs() < 1.0 && (found.p99 - 990.0).abs() < 1.0, "{found:?}");
        assert!((found.max - 1000.0).abs() < 1.0, "{found:?}");
        let less = found.less(600.0);
        assert!(less.p50.abs() < 1e-9 && (less.p99 - 390.0).abs() < 1.0);
        delays.clear();
        delays.record(u64::MAX);
        assert_eq!(delays.quantiles(1000).unwrap().packets, 1);
    }
}
