//! Taking a sample: packets forwarded per second of CPU time of the forwarding thread, and whether it was quiet.
//!
//! Counting per CPU-second takes the scheduler out; a thread that had less than [`QUIET_SHARE`] of its core shared
//! the caches with somebody, so such a sample is thrown away. It knows nothing of the switches beyond
//! [`Switch`].

use std::path::Path;
use std::time::{Duration, Instant};

use super::CompareError;
use super::peer::Switch;
use crate::host::{HostError, interrupt};

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

/// CPU time a thread has had so far.
fn cpu_seconds(pid: u32, thread: u32) -> Result<f64, HostError> {
    let path = format!("/proc/{pid}/task/{thread}/schedstat");
    let text = std::fs::read_to_string(&path)
        .map_err(|reason| HostError::Io { what: format!("read {path}"), reason })?;
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse::<u64>().ok());
    nanoseconds.map(|value| value as f64 / 1e9).ok_or(HostError::Missing {
        what: format!("{path} holds no CPU time"),
        remedy: "use a kernel with scheduler statistics (CONFIG_SCHED_INFO)",
    })
}

/// Finds the forwarding thread: the only thread of the process that may run on `core` alone and is busy there.
pub fn forwarding_thread(switch: &mut dyn Switch, core: usize) -> Result<u32, CompareError> {
    // A switch may answer before its workers have begun.
    let mut tries = 1;
    loop {
        match look_for_thread(switch, core) {
            Err(CompareError::Threads { .. }) if tries < 15 => tries += 1,
            other => return other,
        }
    }
}

fn look_for_thread(switch: &mut dyn Switch, core: usize) -> Result<u32, CompareError> {
    let pid = switch.process().pid();
    let before = threads_on(pid, core)?;
    interrupt::pause(Duration::from_millis(200))?;
    let mut busy = Vec::new();
    for (thread, cpu) in before {
        if cpu_seconds(pid, thread)? - cpu > 0.05 {
            busy.push(thread);
        }
    }
    switch.process().check_alive()?;
    match busy.as_slice() {
        [thread] => Ok(*thread),
        _ => Err(CompareError::Threads { switch: switch.name().into(), core, found: busy.len() }),
    }
}

fn threads_on(pid: u32, core: usize) -> Result<Vec<(u32, f64)>, HostError> {
    let folder = format!("/proc/{pid}/task");
    let entries = Path::new(&folder)
        .read_dir()
        .map_err(|reason| HostError::Io { what: format!("list {folder}"), reason })?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Threads come and go; one that is gone does not forward.
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        if allowed.is_some_and(|list| list.trim() == core.to_string()) {
            found.push((thread, cpu_seconds(pid, thread)?));
        }
    }
    Ok(found)
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

    #[test]
    fn reads_its_own_cpu_time() {
        let pid = std::process::id();
        let before = cpu_seconds(pid, pid).unwrap();
        assert!(before >= 0.0 && cpu_seconds(pid, pid).unwrap() >= before);
    }
}
