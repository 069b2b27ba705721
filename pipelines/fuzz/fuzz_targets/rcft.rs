//! Sequences of operations on the RC flow table. See [`fuzz::rcft`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::rcft::run(data));
