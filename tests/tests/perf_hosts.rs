//! `perf hosts`, short: every case moves bytes between its containers, and nothing is left behind, neither at the end nor when it
//! is stopped halfway. Nothing is asserted on rates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tests::{Process, Workdir, binary, process, wait_for};

const OVS: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// Those of Open vSwitch are left out where it is not installed.
fn cases() -> Vec<&'static str> {
    let local = ["local-kernel", "local-ovs", "local-veth", "local-af-packet"];
    let remote = ["remote-kernel", "remote-ovs", "remote-veth", "remote-tap", "remote-af-packet"];
    let has_ovs = Path::new(OVS).exists();
    local.into_iter().chain(remote).filter(|case| has_ovs || !case.ends_with("ovs")).collect()
}

fn hosts(dir: &Workdir, seconds: &str, more: &[&str]) -> Process {
    process::need_root();
    let (perf, vswitch) = (binary::release("perf"), binary::release("vswitch"));
    let (perf, vswitch) = (perf.display().to_string(), vswitch.display().to_string());
    let words =
        [&[&perf, "hosts", "--vswitch", &vswitch, "--seconds", seconds, "--rounds", "1"][..], more].concat();
    Process::spawn("perf", process::bound_to_us(&words), dir.path().join("perf.log"))
}

/// Network namespaces, folders, and files of DPDK that bear a run's name.
fn left_by(pid: u32) -> Vec<String> {
    let own = format!("vswitch-perf-{pid}");
    let folders = [Path::new("/run/netns"), Path::new("/var/run/dpdk"), &std::env::temp_dir()];
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| *name == own || name.starts_with(&format!("{own}-"))).collect()
}

#[test]
fn hosts_moves_bytes_in_every_case() {
    let dir = Workdir::new("hosts");
    let json = dir.path().join("hosts.json");
    let mut perf = hosts(&dir, "1", &["--json", &json.display().to_string()]);
    let done = perf.wait(Duration::from_secs(260));
    let text = perf.output();
    assert!(done.success(), "{text}");
    assert_eq!(left_by(perf.pid()), [""; 0], "{text}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    for (place, case) in cases().into_iter().enumerate() {
        let (sample, row) = (&report["samples"][place], &report["rows"][place]);
        assert!(sample["contender"] == case && row["contender"] == case, "{text}");
        assert!(sample["bytes"].as_u64().unwrap() > 1_000_000, "{case}\n{text}");
        let ratio = row["to_kernel"]["median"].as_f64().unwrap();
        assert!(if case.ends_with("kernel") { ratio == 1.0 } else { ratio > 0.0 }, "{case}\n{text}");
        assert!(text.lines().any(|line| line.starts_with(&format!("{case} "))), "{case}\n{text}");
    }
    assert!(text.contains("both ends, the traffic and the switch share the cores"), "{text}");
}

/// Processes with files in a run's folder.
fn running_of(pid: u32) -> Vec<String> {
    let own = format!("vswitch-perf-{pid}/");
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|process| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(&own)).collect()
}

/// `processes` are those with files in the run's folder.
fn stopped_halfway(case: &str, processes: usize) {
    let dir = Workdir::new("hostsstop");
    let mut perf = hosts(&dir, "60", &["--only", case]);
    let dpdk = format!("vswitch-perf-{}-2", perf.pid());
    wait_for("both switches", Duration::from_secs(60), || {
        assert!(perf.exited().is_none(), "{}", perf.output());
        Path::new("/var/run/dpdk").join(&dpdk).exists().then_some(())
    });
    // Two hosts, two containers, two switches, the folder.
    assert_eq!(left_by(perf.pid()).len(), 7, "{:?}", left_by(perf.pid()));
    let running = running_of(perf.pid());
    assert!(running.len() >= processes, "{running:?}");
    perf.signal("INT");
    assert!(!perf.wait(Duration::from_secs(30)).success());
    assert!(perf.output().contains("interrupted"), "{}", perf.output());
    assert_eq!((left_by(perf.pid()), running_of(perf.pid())), (vec![], vec![]), "{}", perf.output());
}

#[test]
fn hosts_stopped_halfway_leaves_nothing() {
    stopped_halfway("remote-veth", 2);
}

#[test]
fn hosts_stopped_halfway_leaves_nothing_of_open_vswitch() {
    if Path::new(OVS).exists() {
        // A database and a switch of each host.
        stopped_halfway("remote-ovs", 4);
    }
}

#[test]
fn hosts_clears_what_a_killed_run_left() {
    let dir = Workdir::new("hostskill");
    let mut perf = hosts(&dir, "60", &["--only", "local-kernel"]);
    wait_for("a container", Duration::from_secs(60), || (!left_by(perf.pid()).is_empty()).then_some(()));
    perf.signal("KILL");
    perf.wait(Duration::from_secs(10));
    assert_ne!(left_by(perf.pid()), [""; 0]);
    let mut next = hosts(&dir, "1", &["--only", "local-kernel"]);
    assert!(next.wait(Duration::from_secs(60)).success(), "{}", next.output());
    assert_eq!((left_by(perf.pid()), left_by(next.pid())), (vec![], vec![]), "{}", next.output());
}

#[test]
fn hosts_names_the_package_that_is_missing() {
    let dir = Workdir::new("hostspath");
    for program in ["ip", "ethtool", "ping", "sysctl"] {
        dir.write(program, "");
    }
    let output = std::process::Command::new(binary::release("perf"))
        .arg("hosts")
        .env("PATH", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("install Debian's package iperf3"), "{text}");
}
