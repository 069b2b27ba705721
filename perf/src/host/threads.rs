//! Threads of a child from outside: which one forwards, and the CPU time it has had.

use std::path::Path;
use std::time::Duration;

use super::interrupt;
use super::process::Process;
use crate::{Error, Result};

/// CPU time a thread has had so far.
pub fn cpu_seconds(pid: u32, thread: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/task/{thread}/schedstat");
    let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse::<u64>().ok());
    nanoseconds.map(|value| value as f64 / 1e9).ok_or_else(|| {
        let remedy = "use a kernel with scheduler statistics (CONFIG_SCHED_INFO)";
        Error::missing(format!("{path} holds no CPU time"), remedy)
    })
}

/// Finds the forwarding thread of `name`: the only thread of the process that may run on `core` alone and is busy
/// there.
pub fn forwarding(process: &mut Process, name: &str, core: usize) -> Result<u32> {
    // A switch may answer before its workers have begun.
    let mut tries = 1;
    loop {
        match look(process, name, core) {
            Err(Error::Threads { .. }) if tries < 15 => tries += 1,
            other => return other,
        }
    }
}

fn look(process: &mut Process, name: &str, core: usize) -> Result<u32> {
    let pid = process.pid();
    let before = threads_on(pid, core)?;
    interrupt::pause(Duration::from_millis(200))?;
    let mut busy = Vec::new();
    for (thread, cpu) in before {
        if cpu_seconds(pid, thread)? - cpu > 0.05 {
            busy.push(thread);
        }
    }
    process.check_alive()?;
    match busy.as_slice() {
        [thread] => Ok(*thread),
        _ => Err(Error::Threads { switch: name.into(), core, found: busy.len() }),
    }
}

fn threads_on(pid: u32, core: usize) -> Result<Vec<(u32, f64)>> {
    let folder = format!("/proc/{pid}/task");
    let entries = Path::new(&folder).read_dir().map_err(Error::io(format!("list {folder}")))?;
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
    fn reads_its_own_cpu_time() {
        let pid = std::process::id();
        let before = cpu_seconds(pid, pid).unwrap();
        assert!(before >= 0.0 && cpu_seconds(pid, pid).unwrap() >= before);
    }
}
