//! Tests of whole configs: the example file, round trips, and what bad input is told.

mod bad;
mod bad_networks;
mod bfd;
mod difference;
mod example;
mod offload;
mod qos;
mod round_trip;
