//! Config files, run-time changes and restarts in any order. See `reload_support`.
#![no_main]

#[path = "../../tests/reload_support/mod.rs"]
mod reload_support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| reload_support::run(data));
