//! `perf lab` over a guest's vhost-user socket and memif in place of NICs: the machine is looked at, frames come through, and each forwarder does its work,
//! which lengths, checksums and signatures show. Nothing is asserted on rates or delays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::{Workdir, binary, process};

const FORWARDERS: [&str; 3] = ["vswitch", "testpmd", "ovs-wildcard"];

/// The generator is run as one on another machine would be. On the side of the tenants it is a guest, whose switch comes and goes.
fn lab(folder: &Path, perf: &str) -> String {
    let (guest, socket) = (folder.join("guest.sock"), folder.join("m.sock"));
    let (guest, socket) = (format!("vhost:{}", guest.display()), socket.display());
    let port = |name: &str, role: &str, id: u32| {
        format!("net_memif{name},role={role},id={id},socket={socket},socket-abstract=no")
    };
    format!(
        r#"
[device]
near = "{guest}"
far = "{}"
control-core = 0
cores = [1]
forwarders = {FORWARDERS:?}

[generator]
near = "{guest}"
far = "{}"
core = 0
via = ["env"]
perf = "{perf}"
window = 512

[run]
cases = ["both"]
flows = ["100"]
inner-bytes = [128]
traffic = ["mixed"]
qos = false
rounds = 1
trial = 0.3
warm-up = 1.0
loss = 50.0
resolution = 50.0
max-rate = "20kpps"
loads = [50]
"#,
        port("1", "server", 1),
        port("_far", "client", 1)
    )
}

fn perf_lab(file: &Path, more: &[&str]) -> (bool, String) {
    let (perf, vswitch) = (binary::release("perf"), binary::release("vswitch"));
    let output = Command::new("timeout")
        .args(["180", &perf.display().to_string(), "lab", &file.display().to_string()])
        .args(["--vswitch", &vswitch.display().to_string()])
        .args(more)
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

#[test]
fn lab_takes_every_forwarder_through_every_measurement() {
    process::need_root();
    let dir = Workdir::new("lab");
    let perf = binary::release("perf").display().to_string();
    let file = dir.write("lab.toml", &lab(dir.path(), &perf));
    let (json, page) = (dir.path().join("lab.json"), dir.path().join("lab.html"));
    let more = ["--json", &json.display().to_string(), "--html", &page.display().to_string()];
    let (done, text) = perf_lab(&file, &more);
    assert!(done, "{text}");
    assert!(text.contains("frames come through both ways"), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["what"] == "generator" && check["verdict"] == "good"), "{text}");
    assert!(checks.iter().all(|check| check["verdict"] != "failed"), "{text}");

    let rows = report["rows"].as_array().unwrap();
    let of = |kind: &str| rows.iter().filter(|row| row["kind"] == kind).collect::<Vec<_>>();
    assert_eq!((of("rate").len(), of("setup").len()), (FORWARDERS.len(), 2 * FORWARDERS.len()), "{text}");
    for (row, forwarder) in of("rate").into_iter().zip(FORWARDERS) {
        assert!(
            row["forwarder"] == forwarder && row["throughput"].as_f64().unwrap() > 0.0,
            "{row:#}\n{text}"
        );
        let loads = row["loads"].as_array().unwrap();
        assert_eq!(loads.len(), 4, "both ways, TCP and RoCEv2: {row:#}");
        for load in loads {
            let grown = match load["name"].as_str().unwrap() {
                _ if forwarder == "testpmd" => 0.0,
                stream if stream.starts_with("encap") => 50.0,
                _ => -50.0,
            };
            assert!((load["growth"].as_f64().unwrap() - grown).abs() < 0.01, "{forwarder}: {load:#}");
            assert!(load["delay"]["packets"].as_u64().unwrap() > 100, "{forwarder}: {load:#}");
        }
    }
    // Whoever keeps flows has to set up each of them.
    assert!(of("setup")[0]["throughput"].as_f64().unwrap() > 0.0, "{text}");
    let summary = report["summary"].as_array().unwrap();
    assert_eq!(summary.len(), 3 * FORWARDERS.len(), "{text}");
    assert!(summary[1]["first_to_this"].as_f64().unwrap() > 0.0, "{text}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.matches("<svg").count() == 1 && page.contains("ovs-wildcard"), "{page}");
}

#[test]
fn lab_says_what_a_machine_lacks_and_starts_nothing() {
    process::need_root();
    let dir = Workdir::new("labcheck");
    let perf = binary::release("perf").display().to_string();
    let text = lab(dir.path(), &perf);
    let near = text.lines().find(|line| line.starts_with("near")).unwrap();
    let text = text.replace(near, "near = \"0000:ff:1f.7\"").replace("\"env\"", "\"no-such-program\"");
    let (done, said) = perf_lab(&dir.write("lab.toml", &text), &["--check"]);
    assert!(!done && said.contains("there is no 0000:ff:1f.7") && said.contains("no-such-program"), "{said}");
    assert!(said.contains("2 of the checks failed") && !dir.path().join("m.sock").exists(), "{said}");
}
