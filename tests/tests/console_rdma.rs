//! RDMA devices: what `show rdma devices` says on a host with or without any, and quotas that are shares of a device which
//! is not there: `check` takes them with a note, `run` and `config load` refuse them with the reason, and nothing changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::json;
use tests::{Daemon, Netns, Workdir, binary, process};

/// A device that no host has.
const NOBODYS: &str = "nosuch_0";

const BODY: &str = r#"[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[uplink]]
name = "up"
port = { kind = "ring" }
addresses = ["172.16.0.1/24"]
mtu = 1600
[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:01:01"
vips = ["10.0.0.1"]
port = { kind = "ring" }
"#;

fn with_quota(quota: &str) -> String {
    format!("{BODY}qp-quota = {quota}\n")
}

/// The names of this host's RDMA devices, by the kernel's own list.
fn devices() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/class/infiniband") else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Ends a switch that no packet came to: a `stop` would miss them.
#[track_caller]
fn end(daemon: &mut Daemon) {
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}

#[test]
fn console_rdma_devices_are_listed_or_said_to_be_missing() {
    let netns = Netns::new("rdma");
    let mut daemon = Daemon::start(&netns, BODY);
    let text = daemon.ctl("show rdma devices");
    let json = daemon.json("show rdma devices");
    let listed: Vec<_> =
        json["devices"].as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(listed, devices());
    assert_eq!(json["quotas"], json!([]));
    if listed.is_empty() {
        assert!(text.starts_with("no RDMA device\nnote: "), "{text}");
        assert!(!json["notes"].as_array().unwrap().is_empty(), "{json}");
    }
    for name in listed {
        let one = daemon.json(&format!("show rdma devices {name}"));
        assert_eq!(one["devices"].as_array().unwrap().len(), 1);
        assert!(one["devices"][0]["limits"].is_object() || one["devices"][0]["limits-unknown"].is_string());
        assert!(text.contains(name), "{text}");
    }
    let error = daemon.try_ctl(&format!("show rdma devices {NOBODYS}")).unwrap_err();
    assert!(error.contains(&format!("column 19: there is no RDMA device {NOBODYS} on this host")), "{error}");
    assert!(daemon.ctl("help show rdma").contains("show rdma devices"), "help does not know the command");
    end(&mut daemon);
}

#[test]
fn console_rdma_a_share_of_a_missing_device_is_refused_and_changes_nothing() {
    let netns = Netns::new("share");
    let mut daemon = Daemon::start(&netns, &with_quota("5"));
    let before = daemon.ctl("show config");
    assert!(before.contains("qp-quota = 5"), "{before}");
    daemon.rewrite_config(&with_quota(&format!("\"2.5% of {NOBODYS}\"")));
    let error = daemon.try_ctl(&format!("config load {}", daemon.config().display())).unwrap_err();
    for words in ["vnic one: qp-quota", &format!("no RDMA device {NOBODYS}"), "there are", "write a number"] {
        assert!(error.contains(words), "{words:?} is not in: {error}");
    }
    for device in devices() {
        assert!(error.contains(&device), "{device} is not in: {error}");
    }
    assert_eq!(daemon.ctl("show config"), before);
    // A number is taken while the switch runs; the size of the table is not.
    daemon.rewrite_config(&with_quota("0\nrefuse = \"reject\"\n[rcft]\nquota = 9\nidle-timeout = \"1min\""));
    daemon.ctl(&format!("config load {}", daemon.config().display()));
    let after = daemon.ctl("show config");
    assert!(after.contains("qp-quota = 0") && after.contains("idle-timeout = \"1min\""), "{after}");
    daemon.rewrite_config(&with_quota("0\n[rcft]\nentries = 2000"));
    let error = daemon.try_ctl(&format!("config load {}", daemon.config().display())).unwrap_err();
    assert!(error.contains("[rcft] entries cannot change while the switch runs"), "{error}");
    end(&mut daemon);
}

#[test]
fn console_rdma_check_takes_a_share_with_a_note_and_run_refuses_it() {
    let dir = Workdir::new("share");
    let netns = Netns::new("run-share");
    let socket = dir.path().join("vswitch.sock");
    let prefix = format!("vs{}-sh", std::process::id());
    let text = format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"256MiB\"\nfile-prefix = \"{prefix}\"\n[api]\nsocket = \"{}\"\n\
         [rcft]\nquota = \"25% of {NOBODYS}\"\n{BODY}",
        socket.display()
    );
    let file = dir.write("share.toml", &text).display().to_string();
    let program = binary::release("vswitch").display().to_string();
    let output = process::try_run(&[&program, "check", "--config", &file]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains(&format!("[rcft] quota = \"25% of {NOBODYS}\"")),
        "{said}"
    );
    let output = netns.try_run(&[&program, "run", "--config", &file]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("[rcft] quota: there is no RDMA device"), "{error}");
    assert!(!socket.exists() && !std::path::Path::new("/var/run/dpdk").join(&prefix).exists());
    // Spelt wrong it is refused by `check` already, with its place.
    let file = dir.write("bad.toml", "[rcft]\nquota = \"25 of mlx5_0\"\n").display().to_string();
    let output = process::try_run(&[&program, "check", "--config", &file]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("bad.toml:2:9: \"25 of mlx5_0\" is not a quota"),
        "{error}"
    );
}
