//! Taking a sample: packets forwarded per second of CPU time of the forwarding thread, and whether it was quiet.
//!
//! Counting per CPU-second takes the scheduler out; a thread that had less than [`QUIET_SHARE`] of its core shared
//! the caches with somebody, so such a sample is thrown away. It knows nothing of the switches beyond
//! [`Switch`].

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::board::Board;
use super::cases::Job;
use super::peer::Switch;
use crate::Result;
use crate::host::interrupt;
use crate::host::threads::cpu_seconds;

/// The share of its core that the forwarding thread must have had.
pub const QUIET_SHARE: f64 = 0.97;

/// Time given to caches, branch predictors and rings before a sample counts.
pub(crate) const WARM_UP: Duration = Duration::from_millis(150);

/// What one look at a running switch gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub packets: u64,
    /// Packets that were made for it, where that is known.
    pub made: Option<u64>,
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

    /// Packets that were made and did not come out, beyond what may have been under way.
    pub fn lost(&self) -> u64 {
        const UNDER_WAY: u64 = 8192;
        self.made.map_or(0, |made| made.saturating_sub(self.packets + UNDER_WAY))
    }
}

/// Where packets are counted: on the boards of the template devices, or else by the switch.
#[derive(Debug, Default)]
pub struct Counter {
    /// The boards of its two ports; none without template devices.
    pub boards: Vec<Board>,
}

impl Counter {
    /// What left the switch, and what was made for it.
    pub(super) fn read(&self, switch: &mut dyn Switch) -> Result<(u64, Option<u64>)> {
        if self.boards.is_empty() {
            return Ok((switch.forwarded()?, None));
        }
        let sum = |count: &dyn Fn(&Board) -> Result<u64, _>| self.boards.iter().map(count).sum();
        let packets: Result<u64, _> = sum(&Board::swallowed);
        let made: Result<u64, _> = sum(&Board::made);
        Ok((packets?, Some(made?)))
    }

    /// Opens the boards of a switch's template devices, and waits until two rounds over all flows have left it: none is
    /// new any more, and there are samples for the check.
    pub fn open(switch: &mut dyn Switch, boards: &[PathBuf; 2], job: &Job) -> Result<Self> {
        let boards = switch.process().await_found("its ports", PORTS, || {
            Ok(boards.iter().map(|path| Board::open(path)).collect::<Result<Vec<_>>>().ok())
        })?;
        let counter = Self { boards };
        let packets = SAMPLED.max(2 * (job.flows.count * job.case.ways().len()) as u64);
        let swallowed = || counter.boards.iter().map(Board::swallowed).sum::<Result<u64, _>>();
        switch.process().await_that("its flows to be installed", PATIENCE, || {
            interrupt::pause(Duration::from_millis(20))?;
            Ok(swallowed()? >= packets)
        })?;
        Ok(counter)
    }
}

/// How long a switch may take to open its ports.
const PORTS: Duration = Duration::from_secs(60);
/// As many packets as keep samples for the check.
const SAMPLED: u64 = 2_000_000;
/// How long the first rounds over all flows may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The counts of a forwarding thread at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    packets: u64,
    made: Option<u64>,
    cpu: f64,
    at: Instant,
}

impl Moment {
    /// The count may be asked for over a pipe or socket; the CPU time and the clock are read around it and averaged.
    pub(crate) fn of(
        pid: u32,
        thread: u32,
        count: impl FnOnce() -> Result<(u64, Option<u64>)>,
    ) -> Result<Self> {
        let (before, start) = (cpu_seconds(pid, thread)?, Instant::now());
        let (packets, made) = count()?;
        let (at, after) = (start + start.elapsed() / 2, cpu_seconds(pid, thread)?);
        Ok(Self { packets, made, cpu: f64::midpoint(before, after), at })
    }

    pub(crate) fn until(&self, last: &Self) -> Sample {
        Sample {
            packets: last.packets.saturating_sub(self.packets),
            made: last.made.zip(self.made).map(|(last, first)| last.saturating_sub(first)),
            cpu: last.cpu - self.cpu,
            wall: last.at.duration_since(self.at).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_cpu_time_not_wall_time() {
        let sample = Sample { packets: 10_000_000, made: None, cpu: 1.0, wall: 2.0 };
        assert!((sample.mpps() - 10.0).abs() < 1e-9);
        assert!((sample.cycles(2.5e9) - 250.0).abs() < 1e-9);
        assert!(sample.share() < QUIET_SHARE);
    }

    #[test]
    fn what_was_made_and_did_not_come_out_is_lost() {
        let sample = Sample { packets: 1_000_000, made: Some(1_008_192), cpu: 1.0, wall: 1.0 };
        assert_eq!(sample.lost(), 0);
        assert_eq!(Sample { made: Some(1_100_000), ..sample }.lost(), 91_808);
        assert_eq!(Sample { made: None, ..sample }.lost(), 0);
    }
}
