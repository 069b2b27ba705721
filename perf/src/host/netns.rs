//! Network namespaces, for hosts and containers: their names carry the process id, they go with the value, and those of
//! runs that were killed are removed by the next run.

use std::path::Path;
use std::process::Command;

use super::{process, scratch};
use crate::Result;

/// Where `ip netns` keeps a name for each.
const NAMES: &str = "/run/netns";

/// A network namespace; dropping it removes it with all interfaces in it.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes one with its loopback up and without IPv6, whose unasked-for messages would be in everybody's way.
    pub fn create(label: &str) -> Result<Self> {
        let name = format!("{}{}-{label}", scratch::PREFIX, std::process::id());
        process::run("ip", &["netns", "add", &name], &[])?;
        let netns = Self { name };
        netns.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// Removes those of runs that were killed. What ran in them died with its run.
    pub fn clear_dead() {
        let Ok(entries) = std::fs::read_dir(Path::new(NAMES)) else { return };
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if scratch::is_of_dead_run(&name) {
                remove(&name);
                eprintln!("removed network namespace {name}, left by a run that was killed");
            }
        }
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs one `ip` command in it; words are split at blanks.
    pub fn ip(&self, line: &str) -> Result<String> {
        self.helper(&["-n", &self.name], line)
    }

    /// Runs a helper program in it to its end; words are split at blanks.
    pub fn run(&self, line: &str) -> Result<String> {
        self.helper(&["netns", "exec", &self.name], line)
    }

    fn helper(&self, front: &[&str], line: &str) -> Result<String> {
        let words: Vec<&str> = front.iter().copied().chain(line.split_whitespace()).collect();
        process::run("ip", &words, &[])
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Also after the user has asked to stop, when other helper programs are not started any more.
fn remove(name: &str) {
    let removed = Command::new("ip").args(["netns", "del", name]).output();
    if !removed.is_ok_and(|output| output.status.success()) {
        eprintln!("cannot remove network namespace {name}: run ip netns del {name}");
    }
}
