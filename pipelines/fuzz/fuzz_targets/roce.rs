//! Whole frames: headers, RoCEv2, ICRC. See [`fuzz::roce`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::roce::run(data));
