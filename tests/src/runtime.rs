//! What scenarios about the running switch share: workers, open files, processor time, and the state that a refused change
//! must leave as it was.

use crate::{Daemon, Netns};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `[workers]` with one worker.
pub const ONE_WORKER: &str = "[workers]\ncores = [1]\nidle = \"sleep\"\n";
/// `[workers]` with two workers.
pub const TWO_WORKERS: &str = "[workers]\ncores = [0, 1]\nidle = \"sleep\"\n";

/// Packets that each worker received so far.
#[track_caller]
pub fn received_by_workers(daemon: &Daemon) -> Vec<i64> {
    let answer = daemon.json("show workers");
    let rows = answer["workers"].as_array().unwrap_or_else(|| panic!("no list of workers: {answer:#}"));
    rows.iter()
        .map(|row| row["packets"].as_i64().unwrap_or_else(|| panic!("a worker without packets: {row:#}")))
        .collect()
}

/// The row of a port in `port list`.
#[track_caller]
pub fn port_row(daemon: &Daemon, name: &str) -> serde_json::Value {
    let answer = daemon.json("port list");
    let rows = answer.as_array().unwrap_or_else(|| panic!("no list of ports: {answer:#}"));
    rows.iter()
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no port {name}: {answer:#}"))
        .clone()
}

/// A number of a port's row in `show port stats`.
#[track_caller]
pub fn port_count(daemon: &Daemon, name: &str, counter: &str) -> i64 {
    let answer = daemon.json(&format!("show port stats {name}"));
    answer[0][counter].as_i64().unwrap_or_else(|| panic!("port {name} has no {counter}: {answer:#}"))
}

/// Everything about a switch that a refused change must leave alone: config, ports, open files, interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The running config.
    pub config: String,
    /// The ports as they are listed.
    pub ports: String,
    /// Its open files, by what they are, sorted.
    pub files: Vec<String>,
    /// The interfaces of its namespace.
    pub interfaces: Vec<String>,
}

/// How a switch stands.
#[track_caller]
pub fn standing(daemon: &mut Daemon, host: &Netns) -> Standing {
    Standing {
        config: daemon.ctl("show config"),
        ports: daemon.ctl("port list"),
        files: open_files(daemon.process().pid()),
        interfaces: host.interfaces(),
    }
}

/// Asserts that a switch stands as it did, or does so in a moment; `after` says after what.
#[track_caller]
pub fn assert_stands(daemon: &mut Daemon, host: &Netns, before: &Standing, after: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let now = standing(daemon, host);
        if now == *before {
            return;
        }
        let parts = [
            (before.config.lines().collect(), now.config.lines().collect()),
            (before.ports.lines().collect(), now.ports.lines().collect()),
            (strs(&before.files), strs(&now.files)),
            (strs(&before.interfaces), strs(&now.interfaces)),
        ];
        let changes: Vec<String> = parts.iter().flat_map(|(old, new)| difference(old, new)).collect();
        assert!(Instant::now() < end, "after {after} something else than before: {changes:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// What only one of two lists has, each item as often as it has more of it.
fn difference(old: &[&str], new: &[&str]) -> Vec<String> {
    let mut rest = new.to_vec();
    let mut changes = Vec::new();
    for item in old {
        match rest.iter().position(|other| other == item) {
            Some(index) => drop(rest.remove(index)),
            None => changes.push(format!("- {item}")),
        }
    }
    changes.extend(rest.iter().map(|item| format!("+ {item}")));
    changes
}

/// What a process has open: packet sockets, taps, anything; sockets by their family, nameless files without their numbers.
///
/// Connections of consoles are left out: one that has ended a moment ago may still be there.
#[track_caller]
pub fn open_files(pid: u32) -> Vec<String> {
    // The tables first: no console comes in between.
    let sockets = sockets(pid);
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let describe = |target: PathBuf| {
        let name = target.display().to_string();
        let Some((kind, number)) = name.split_once(":[") else { return Some(name) };
        match sockets.get(number.trim_end_matches(']')) {
            Some(what) if is_console(what) => None,
            Some(what) => Some(format!("{kind} {what}")),
            None => Some(kind.to_owned()),
        }
    };
    let mut files: Vec<String> = entries
        .flatten()
        // One that is closed while we look is not open.
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(describe)
        .collect();
    files.sort();
    files
}

/// True for the consoles' socket and connections to it: the switch binds it in a folder of its own, `.v` and the process id,
/// and moves it to its place, and what was bound keeps that first name.
fn is_console(socket: &str) -> bool {
    let first_name = |path: &str| {
        let (folder, name) = path.rsplit_once('/')?;
        let pid = folder.rsplit_once("/.v")?.1;
        Some(name == "s" && !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
    };
    socket.ends_with("/vswitch.sock") || first_name(socket) == Some(true)
}

/// Sockets by inode: the family, and the path of a Unix socket. One that was accepted carries the path of the one that
/// listens, and is listed in the namespace of the one that connected, which may be ours.
fn sockets(pid: u32) -> BTreeMap<String, String> {
    // The table, and which of its columns is the inode.
    let tables =
        [("unix", 6), ("packet", 8), ("netlink", 9), ("udp", 9), ("udp6", 9), ("raw", 9), ("icmp", 9)];
    let mut found = BTreeMap::new();
    for (family, column) in tables {
        for process in [pid.to_string(), "self".to_owned()] {
            let text = std::fs::read_to_string(format!("/proc/{process}/net/{family}")).unwrap_or_default();
            for line in text.lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                let Some(inode) = words.get(column) else { continue };
                let path = if family == "unix" { words.get(7).copied().unwrap_or_default() } else { "" };
                found.insert((*inode).to_owned(), format!("{family} {path}").trim_end().to_owned());
            }
        }
    }
    found
}

/// Processor time of the threads of a process whose names begin with `stem`, in clock ticks (a hundredth of a second).
#[track_caller]
pub fn thread_ticks(pid: u32, stem: &str) -> u64 {
    let folder = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let ticks = |entry: std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name may hold blanks; fields are counted behind its closing bracket: utime and stime are the 12th and 13th.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let of = |index: usize| fields.get(index)?.parse::<u64>().ok();
        name.starts_with(stem).then_some(of(11)? + of(12)?)
    };
    let found: Vec<u64> = entries.flatten().filter_map(ticks).collect();
    assert!(!found.is_empty(), "process {pid} has no thread {stem}*");
    found.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_told_from_both_sides() {
        assert!(difference(&["a", "b", "a"], &["a", "a", "b"]).is_empty());
        assert_eq!(difference(&["a", "a"], &["a", "c"]), ["- a", "+ c"]);
    }

    #[test]
    fn sockets_of_consoles_are_known_by_both_names() {
        assert!(is_console("unix /tmp/x/vswitch.sock") && is_console("unix /tmp/x/.v7767/s"));
        assert!(!is_console("unix /tmp/x/.v7767/t") && !is_console("unix /tmp/.vx/s") && !is_console("unix"));
    }

    #[test]
    fn own_files_and_threads_are_found() {
        let own = std::process::id();
        let before = open_files(own);
        let dir = crate::Workdir::new("files");
        let file = std::fs::File::create(dir.path().join("open")).unwrap();
        let now = open_files(own);
        assert!(now.iter().any(|name| name.ends_with("/open")), "{now:?} after {before:?}");
        drop(file);
        assert!(!open_files(own).iter().any(|name| name.ends_with("-files/open")));
        let began = thread_ticks(own, "");
        let end = Instant::now() + Duration::from_secs(10);
        // Looking itself takes processor time.
        while thread_ticks(own, "") == began {
            assert!(Instant::now() < end, "ten seconds of work and no tick");
        }
    }
}
