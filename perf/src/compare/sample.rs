//! Taking a sample: packets forwarded per second of CPU time of the forwarding thread, and whether it was quiet.
//!
//! Counting per CPU-second takes the scheduler out; a thread that had less than [`QUIET_SHARE`] of its core shared
//! the caches with somebody, so such a sample is thrown away. It knows nothing of the switches beyond
//! [`Switch`].

use std::time::{Duration, Instant};

use super::CompareError;
use super::peer::Switch;
use crate::host::interrupt;
use crate::host::threads::cpu_seconds;

/// The share of its core that the forwarding thread must have had.
pub const QUIET_SHARE: f64 = 0.97;

/// Time given to caches, branch predictors and rings before a sample counts.
const WARM_UP: Duration = Duration::from_millis(150);

/// What one look at a running switch gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Packets that left the switch.
    pub packets: u64,
    /// CPU time of the forwarding thread, in seconds.
    pub cpu: f64,
    /// Wall-clock time, in seconds.
    pub wall: f64,
}

impl Sample {
    /// Millions of packets per CPU-second.
    pub fn mpps(&self) -> f64 {
        self.packets as f64 / self.cpu / 1e6
    }

    /// Ticks of the time stamp counter per packet.
    pub fn cycles(&self, hertz: f64) -> f64 {
        self.cpu * hertz / self.packets as f64
    }

    /// The share of its core that the thread had.
    pub fn share(&self) -> f64 {
        self.cpu / self.wall
    }

    /// Whether the thread had its core to itself.
    pub fn is_quiet(&self) -> bool {
        self.share() >= QUIET_SHARE
    }
}

#[derive(Debug, Clone, Copy)]
struct Moment {
    packets: u64,
    cpu: f64,
    at: Instant,
}

/// Thaws the switch, measures it for `seconds`, and freezes it again.
pub fn take(switch: &mut dyn Switch, thread: u32, seconds: f64) -> Result<Sample, CompareError> {
    switch.process().thaw()?;
    let sample = measure(switch, thread, seconds);
    switch.process().freeze()?;
    sample
}

fn measure(switch: &mut dyn Switch, thread: u32, seconds: f64) -> Result<Sample, CompareError> {
    interrupt::pause(WARM_UP)?;
    let first = moment(switch, thread)?;
    interrupt::pause(Duration::from_secs_f64(seconds))?;
    let last = moment(switch, thread)?;
    Ok(Sample {
        packets: last.packets.saturating_sub(first.packets),
        cpu: last.cpu - first.cpu,
        wall: last.at.duration_since(first.at).as_secs_f64(),
    })
}

/// The count is asked for over a pipe or socket; the CPU time and the clock are read around it and averaged.
fn moment(switch: &mut dyn Switch, thread: u32) -> Result<Moment, CompareError> {
    let pid = switch.process().pid();
    let (before, start) = (cpu_seconds(pid, thread)?, Instant::now());
    let packets = switch.forwarded()?;
    let (at, after) = (start + start.elapsed() / 2, cpu_seconds(pid, thread)?);
    Ok(Moment { packets, cpu: f64::midpoint(before, after), at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_cpu_time_not_wall_time() {
        let sample = Sample { packets: 10_000_000, cpu: 1.0, wall: 2.0 };
        assert!((sample.mpps() - 10.0).abs() < 1e-9);
        assert!((sample.cycles(2.5e9) - 250.0).abs() < 1e-9);
        assert!(!sample.is_quiet());
    }

    #[test]
    fn quiet_needs_its_core() {
        assert!(Sample { packets: 1, cpu: 0.97, wall: 1.0 }.is_quiet());
        assert!(!Sample { packets: 1, cpu: 0.969, wall: 1.0 }.is_quiet());
    }
}
