//! Offload: the rule model.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

mod model;
