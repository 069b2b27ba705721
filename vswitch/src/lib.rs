//! The Jakiro vswitch: config, ports, workers, console and control socket.
//!
//! The library behind the `vswitch` binary, so that tests and tools can reach its parts.
// They panic where nobody takes what is printed.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod api;
pub mod bfd;
pub mod capabilities;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod confinement;
pub mod console;
pub mod control;
pub mod controller;
pub mod daemon;
pub mod evpn;
pub mod handover;
mod lock_file;
pub mod nic_check;
pub mod port;
pub mod probe;
pub mod rdma;
pub mod services;
pub mod state;
pub mod switch;
pub mod topology;
pub mod view;
