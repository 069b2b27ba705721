//! The demo as a newcomer runs it: its claims hold, and nothing of it stays on the machine, however it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::{Process, Workdir, binary, process, wait_for};

/// The demo in a plain environment: what the test runner sets must not change what cargo builds.
fn demo(dir: &Workdir, args: &[&str]) -> Process {
    process::need_root();
    binary::release("vswitch");
    let script = binary::workspace().join("scripts/demo").display().to_string();
    let mut line = vec![script.as_str()];
    line.extend(args);
    let mut command: Command = process::bound_to_us(&line);
    command.env_clear().env("CARGO_TARGET_DIR", binary::target_dir()).current_dir(dir.path());
    for name in ["HOME", "PATH", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    Process::spawn("scripts/demo", command, dir.path().join("demo.log"))
}

/// What a demo might leave behind on the machine: namespaces, DPDK's folders, scratch files, hugepages, interfaces.
fn machine() -> Vec<String> {
    let mut found: Vec<String> = ["/run/netns", "/run/dpdk", "/tmp", "/dev/hugepages", "/sys/class/net"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .filter(|path| !path.contains("vswitch-scenario-"))
        .collect();
    found.push(std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap());
    found.sort();
    found
}

/// Processes of a demo, told by their command line.
fn processes() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| {
            line.contains("demo.d/story.py")
                || line.contains("/demo/alpha.toml")
                || line.contains("/demo/gamma.toml")
        })
        .collect()
}

#[track_caller]
fn assert_nothing_left(before: &[String]) {
    wait_for(&format!("the demo's processes to go: {:?}", processes()), Duration::from_secs(10), || {
        processes().is_empty().then_some(())
    });
    let left: Vec<String> = machine().into_iter().filter(|path| !before.contains(path)).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn demo_tells_the_truth_and_leaves_nothing() {
    let dir = Workdir::new("demo");
    let before = machine();
    let facts = dir.path().join("facts.json");
    let mut demo = demo(&dir, &["--json", &facts.display().to_string()]);
    let status = demo.wait(Duration::from_secs(170));
    let said = demo.output();
    assert!(status.success(), "the demo ended with {status}:\n{said}");
    let facts: Value = serde_json::from_str(&std::fs::read_to_string(Path::new(&facts)).unwrap()).unwrap();
    assert_eq!(facts["wrong"], serde_json::json!([]), "{said}");
    let matrix = facts["matrix"].as_object().unwrap();
    assert_eq!(matrix.len(), 6 * 4 - 7, "six machines ask four addresses, not their own");
    for (pair, answer) in matrix {
        let (asker, address) = pair.split_once(" -> ").unwrap();
        let (tenant, _) = asker.split_once('-').unwrap();
        let host = ["a", "b", "c", "b"][address.rsplit('.').next().unwrap().parse::<usize>().unwrap() - 1];
        let silent = address == "10.0.0.4" && tenant == "red";
        let wanted = if silent { Value::Null } else { format!("{tenant}-{host}").into() };
        assert_eq!(*answer, wanted, "{pair}");
    }
    assert_eq!((&facts["leaked"], &facts["pings_lost"]), (&0.into(), &0.into()));
    for (pair, stream) in facts["roce"].as_object().unwrap() {
        assert_eq!(stream["icrc_ok"], stream["sent"], "{pair}");
        assert!(stream["sent"].as_i64().unwrap() > 1000, "{pair}");
    }
    assert_eq!(facts["exit_codes"], serde_json::json!({"alpha": 0, "gamma": 0}));
    for words in [
        "Who talks to whom",
        "Drops by name",
        "Workers",
        "unknown-vni",
        "guard-vip",
        "everything the demo claims was so",
    ] {
        assert!(said.contains(words), "the demo does not show '{words}':\n{said}");
    }
    assert!(!said.contains('\x1b'), "no colours in a file");
    assert!(facts["seconds"].as_f64().unwrap() < 110.0, "the demo took {} s", facts["seconds"]);
    assert_nothing_left(&before);
}

#[test]
fn demo_interrupted_leaves_nothing() {
    for signal in ["INT", "TERM", "KILL"] {
        let dir = Workdir::new("demo");
        let before = machine();
        let mut demo = demo(&dir, &[]);
        demo.wait_output("Who talks to whom", Duration::from_secs(120));
        assert!(!processes().is_empty(), "the demo runs");
        demo.signal(signal);
        let status = demo.wait(Duration::from_secs(15));
        assert!(!status.success());
        if signal != "KILL" {
            assert_eq!(status.code(), Some(130), "{signal}: {}", demo.output());
            assert!(demo.output().contains("everything the demo made is gone"), "{}", demo.output());
        }
        assert_nothing_left(&before);
    }
}

#[test]
fn demo_says_what_to_do_where_the_toolchain_does_not_work() {
    let dir = Workdir::new("toolchain");
    for name in ["rustc", "cargo"] {
        let fake =
            dir.write(name, "#!/bin/sh\necho 'error: rustup could not choose a version' >&2\nexit 1\n");
        process::run(&["chmod", "+x", &fake.display().to_string()]);
    }
    let script = binary::workspace().join("scripts/demo").display().to_string();
    let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", dir.path().display());
    let output = process::bound_to_us(&[&script])
        .env_clear()
        .env("PATH", path)
        .env("HOME", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for word in ["could not choose a version", "rustup default stable", "RUSTUP_HOME", "CARGO_HOME"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
