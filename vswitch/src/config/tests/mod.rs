//! Tests of whole configs: the example file, round trips, and what bad input is told.

mod bad;
mod bad_networks;
mod bfd;
mod difference;
pub(crate) mod example;
pub(crate) mod faults;
mod offload;
mod qos;
pub(crate) mod round_trip;
