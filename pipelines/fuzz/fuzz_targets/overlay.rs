//! Whole frames through the overlay, both ways. See [`fuzz::overlay`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::overlay::run(data));
