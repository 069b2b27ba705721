//! `perf scale`, short: two workers of one switch, each with a generator of its own, and what comes out of both is right
//! before any rate is taken. Nothing is asserted on rates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::process::Command;

use serde_json::Value;
use tests::{Workdir, binary, process};

#[test]
fn scale_measures_two_workers_with_lanes_of_their_own() {
    process::need_root();
    let dir = Workdir::new("scale");
    let json = dir.path().join("scale.json");
    let (perf, vswitch) = (binary::release("perf"), binary::release("vswitch"));
    let output = Command::new("timeout")
        .args([
            // The driver's headers may have to be fetched first, for which the driver's build takes two minutes at most.
            "200",
            &perf.display().to_string(),
            "scale",
            "--vswitch",
            &vswitch.display().to_string(),
        ])
        .args(["--cases", "both", "--traffic", "mixed", "--flows", "2k", "--qos"])
        .args(["--rounds", "1", "--seconds", "0.2", "--json", &json.display().to_string()])
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // What comes out is checked first; a machine that is too busy for quiet samples gives no rates after it.
    if !output.status.success() && text.contains("rounds were quiet") {
        eprintln!("no rates, the machine is busy: {text}");
        return;
    }
    assert!(output.status.success(), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    if let Some(reason) = report["skipped"].as_str() {
        // Only for want of the headers; anything else is a fault.
        assert!(reason.contains("could not be built") && !reason.contains("the compiler refuses"), "{text}");
        eprintln!("SKIPPED: {text}");
        return;
    }
    let row = &report["rows"][0];
    let workers = row["workers"].as_array().unwrap();
    assert_eq!((workers.len(), row["rounds"].as_u64()), (2, Some(1)), "{text}");
    assert!(workers.iter().all(|worker| worker["together_mpps"].as_f64().unwrap() > 0.0), "{text}");
    assert_ne!(workers[0]["core"], workers[1]["core"], "{text}");
    // Each packet pays, from quanta that the workers draw.
    assert!(row["draws_per_packet"].as_f64().unwrap() > 1e-4, "{text}");
    let curve = &row["extrapolated"];
    assert!(curve["label"].as_str().unwrap().starts_with("extrapolated"), "{text}");
    assert_eq!(curve["own_tenants"].as_array().unwrap().len(), 16, "{text}");
}
