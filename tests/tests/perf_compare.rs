//! `perf compare` with frames of its template devices: the plugin driver is built, loaded alike by this switch and by
//! dpdk-testpmd, and what comes out of both is checked, before any rate is taken. Nothing is asserted on rates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::process::Command;

use serde_json::Value;
use tests::{Workdir, binary, process};

/// Both ways at once with TCP and RoCEv2, tenants on a trunk, and lengths, flows and VTEPs as they are not usually: all that the devices
/// make; and who moves the frames beside the switch. Of the length of inner frames the devices write one block of 64 bytes or two.
const RUNS: [(&str, &str, &str, &str); 3] = [
    ("both", "mixed", "testpmd", "--inner-bytes 96"),
    ("trunk64,trunk64-decap", "tcp", "testpmd", "--inner-bytes 64"),
    ("encap,decap", "tcp", "testpmd-mac", "--imix --zipf --churn 20 --vteps 64"),
];

#[test]
fn compare_makes_frames_and_checks_what_comes_out() {
    process::need_root();
    let dir = Workdir::new("compare");
    let (perf, vswitch) = (binary::release("perf"), binary::release("vswitch"));
    for (number, (cases, traffic, peer, more)) in RUNS.into_iter().enumerate() {
        let record = dir.path().join(format!("{number}.json"));
        let output = Command::new("timeout")
            .args([
                // The driver's headers may have to be fetched first, for which the driver's build takes two minutes at most.
                "200",
                &perf.display().to_string(),
                "compare",
                "--vswitch",
                &vswitch.display().to_string(),
            ])
            .args(["--peers", peer, "--cases", cases, "--traffic", traffic, "--flows", "5k", "--qos"])
            .args(more.split(' '))
            .args(["--pairs", "1", "--seconds", "0.2", "--record", &record.display().to_string()])
            .output()
            .unwrap();
        let text =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        let record: Value = serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap();
        let skipped = record["skipped"].as_array().unwrap();
        if !skipped.is_empty() {
            // Only for want of the headers; anything else is a fault.
            assert!(
                skipped.iter().all(|row| row[3].as_str().unwrap().contains("could not be built")),
                "{text}"
            );
            assert!(!text.contains("the compiler refuses"), "{text}");
            eprintln!("SKIPPED: {text}");
            return;
        }
        // The check of the output comes first; a machine that is too busy for quiet samples gives no rates after it.
        if !output.status.success() && text.contains("pairs were quiet") {
            eprintln!("no rates, the machine is busy: {text}");
            continue;
        }
        assert!(output.status.success(), "{text}");
        let rows = record["rows"].as_array().unwrap();
        assert_eq!(rows.len(), cases.split(',').count(), "{text}");
        for row in rows {
            assert!(row["ours_mpps"].as_f64().unwrap() > 0.0 && row["peer"] == peer, "{text}");
            assert_eq!(row["more"]["pairs"], 1, "{text}");
        }
    }
}
