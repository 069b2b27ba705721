//! Runs the Python helpers of `tests/peers/`: crafted frames (scapy) and byte-for-byte transfers.
//!
//! A helper prints one JSON value as its last line of output; the assertions stay in the Rust scenario.

use crate::{binary, process};
use serde_json::Value;
use std::path::PathBuf;

/// Debian's interpreter, which sees Debian's scapy; another python3 may come first in PATH.
pub const PYTHON: &str = "/usr/bin/python3";

/// The path of a helper.
pub fn path(name: &str) -> PathBuf {
    binary::workspace().join("tests").join("peers").join(name)
}

/// Runs a helper to its end and returns the JSON of its last line; fails the test when the helper fails.
#[track_caller]
pub fn run(name: &str, args: &[&str]) -> Value {
    let script = path(name).display().to_string();
    let mut command = vec![PYTHON, &script];
    command.extend(args);
    let text = process::run(&command);
    let last = text.lines().last().unwrap_or("");
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{name} did not end in JSON ({e}):\n{text}"))
}
