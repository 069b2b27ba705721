//! The judge of captures (`peers/gobackn.py`) against made-up ones: it passes what is right and names each deliberate fault.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use tests::{process, script};

#[test]
fn apps_judge_names_each_fault_of_made_up_captures() {
    let tests = script::path("gobackn_test.py").display().to_string();
    let output = process::try_run(&[script::PYTHON, "-B", &tests]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK"), "{said}");
}
