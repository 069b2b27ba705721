//! Offload: the rule model, the simulated e-switch, the translation, and all of them against software.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

mod bad;
mod bad_counters;
mod bad_device;
mod bad_removals;
mod churn;
mod differential;
mod ecn;
mod figures;
mod host;
mod ipv6;
mod manager;
mod mixed;
mod model;
mod neighbours;
mod order;
mod queue_pairs;
mod red;
mod refusals;
mod room;
mod sim;
mod slow;
mod source_ports;
mod store;
mod translate;
