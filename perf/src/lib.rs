//! Measuring the switch: comparisons with other switches, storms of queue pairs, group traffic.
//!
//! The binary `perf` is a thin command line over this library. The switches run as processes of their own and are
//! looked at from outside (their counters, their threads' CPU time, their frames); the data plane is linked by the
//! benches, the simulation in [`dcqcn`] and the slow path of [`setup`] alone. [`live`] traffic has ports of its own.

pub mod compare;
pub mod dcqcn;
mod error;
#[path = "gen/mod.rs"] // `gen` is a word of the language
pub mod generator;
pub mod group;
pub mod host;
pub mod hosts;
pub mod lab;
pub mod latency;
pub mod live;
pub mod offload;
pub mod options;
pub mod pcap;
pub mod report;
pub mod scale;
pub mod setup;
pub mod storm;

pub use error::{Error, Result};
