//! What the kernel and the hypervisor tell of a thread and its core: being put off the core, and stolen time.

use serde::Serialize;

use crate::{Error, Result};

/// Milliseconds of a unit of `/proc/stat`: `USER_HZ` is 100 on every Linux that DPDK knows.
const UNIT_MS: u64 = 10;

/// What there was so far, or since then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Interference {
    /// How often somebody else got the thread's core although it wanted to go on.
    pub preempted: u64,
    /// Milliseconds in which the machine's host did not let the core run; in steps of ten.
    pub stolen_ms: u64,
}

impl Interference {
    pub fn of(pid: u32, thread: u32, core: usize) -> Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(Error::io(format!("read {path}")));
        let status = read(&format!("/proc/{pid}/task/{thread}/status"))?;
        let preempted = status
            .lines()
            .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))
            .and_then(|value| value.trim().parse().ok());
        let stolen = stolen(&read("/proc/stat")?, core);
        match (preempted, stolen) {
            (Some(preempted), Some(stolen)) => Ok(Self { preempted, stolen_ms: stolen * UNIT_MS }),
            _ => Err(Error::missing(
                format!("the kernel does not tell what thread {thread} or core {core} was kept from"),
                "use a Linux with /proc/stat and /proc/PID/task",
            )),
        }
    }

    /// What there was since an earlier look.
    pub fn since(self, before: Self) -> Self {
        Self {
            preempted: self.preempted.saturating_sub(before.preempted),
            stolen_ms: self.stolen_ms.saturating_sub(before.stolen_ms),
        }
    }

    /// Nothing of either.
    pub fn is_quiet(self) -> bool {
        self == Self::default()
    }
}

/// The units of stolen time of a core.
fn stolen(stat: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
    line.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_tells() {
        let stat = "cpu  1 2 3 4 5 6 7 99 0 0\ncpu1 1 2 3 4 5 6 7 8 0 0\ncpu10 1 2 3 4 5 6 7 80 0 0\n";
        assert_eq!((stolen(stat, 1), stolen(stat, 10), stolen(stat, 2)), (Some(8), Some(80), None));
        let pid = std::process::id();
        let before = Interference::of(pid, pid, 0).unwrap();
        assert!(before.since(before).is_quiet());
        assert!(Interference::of(pid, pid, 9999).is_err());
    }
}
