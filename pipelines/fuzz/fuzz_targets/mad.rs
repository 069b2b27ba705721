//! Connection manager messages and the answer to a REQ. See [`fuzz::mad`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::mad::run(data));
