//! What a worker can do: packets for each second of its CPU time in which it has any.

use serde::Serialize;

use crate::generator::outcome::Outcome;
use crate::host::daemon::Daemon;
use crate::host::threads::cpu_seconds;
use crate::live::config::Counted;
use crate::{Error, Result};

/// Seconds of traffic before it is measured.
pub const SETTLE: f64 = 0.3;
/// Seconds of traffic that are measured.
pub const SECONDS: f64 = 1.0;

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Capacity {
    /// Packets per second in which it has nothing but packets.
    pub packets_per_second: f64,
    pub packets: u64,
    /// The share of its time that it had packets.
    pub busy_share: f64,
}

impl std::fmt::Display for Capacity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "capacity of the worker: {:.2} million packets per second of CPU time with packets ({} at {:.0} % busy)",
            self.packets_per_second / 1e6,
            self.packets,
            self.busy_share * 100.0
        )
    }
}

/// The capacity that shows while `run` sends as much as goes, and what came of that. Nothing may be lost.
pub fn of(
    daemon: &mut Daemon,
    thread: u32,
    run: impl FnOnce() -> Result<Outcome>,
) -> Result<(Capacity, Outcome)> {
    let pid = daemon.process().pid();
    let before = Counted::of(daemon)?;
    let cpu_before = cpu_seconds(pid, thread)?;
    let outcome = run()?;
    let cpu = cpu_seconds(pid, thread)? - cpu_before;
    let after = Counted::of(daemon)?;
    let spent = |counter| -> Result<u64> { Ok(after.worker(counter)? - before.worker(counter)?) };
    let (busy, idle) = (spent("busy-cycles")?, spent("idle-cycles")?);
    let busy_share = busy as f64 / (busy + idle).max(1) as f64;
    let packets = outcome.arrived();
    if packets == 0 || outcome.lost() > 0 {
        let drops = Counted::at_rest(daemon)?.drops_since(&before);
        return Err(Error::Failed(format!(
            "{packets} of {} packets came through the switch (drops: {drops:?}); see to that first",
            outcome.sent()
        )));
    }
    Ok((Capacity { packets_per_second: packets as f64 / (cpu * busy_share), packets, busy_share }, outcome))
}
