//! The overlay from rx to tx, packet by packet: what leaves, byte by byte, and which counters moved.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

mod bfd;
mod bum;
mod encap_hash;
mod failover;
mod fast_path;
mod fragments;
mod guard;
mod guard_llc;
mod hostile;
mod neighbours;
mod probe;
mod repair_garp;
mod repair_link_local;
mod repair_martian;
mod repair_mtu;
mod routing;
mod routing_stations;
mod routing_targets;
mod security;
mod security_errors;
mod security_hits;
mod security_model;
mod security_queue_pairs;
mod services;
mod sources;
mod state;
mod super_frames;
mod tenants;
mod tunnel;
mod tunnel_tso;
