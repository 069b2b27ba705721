//! What the fuzz targets do with an input, one file a target.
//!
//! Each takes bytes that an attacker chose, calls the code under test, and asserts what must hold of the result.
//! The targets in `fuzz_targets/` only hand over the bytes; `examples/seeds.rs` makes the inputs to begin with.

pub mod mad;
pub mod overlay;
pub mod rcft;
pub mod roce;
