//! Offload: hot flows as rules of a NIC's embedded switch.
//!
//! ```text
//!   tables -> translator -> FlowRule -> BackEnd: a DPDK port's rte_flow, or a simulated e-switch
//! ```
//! Rules, and the trait of what takes them, are the crate `rules`. Nothing here knows DPDK: whoever does lowers a rule to C
//! arrays behind [`BackEnd`](rules::BackEnd).

pub mod arrival;
mod counter;
mod few;
mod hasher;
pub mod manager;
pub mod sim;
mod slots;
pub mod store;
pub mod translate;

pub use store::{InstalledChain, RuleState, RuleStore};
