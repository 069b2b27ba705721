//! Offload: the rule model, the simulated e-switch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

#[path = "../support/mod.rs"]
mod support;

mod model;
mod sim;
