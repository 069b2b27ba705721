//! The packet pipeline: stages, tables and the decisions behind them.
//!
//! Between `wire` (what bytes mean) and `vswitch` (ports, threads, configuration). Knows no DPDK, no I/O and no
//! wall clock: packets come as [`wire::PacketBuf`], time as an argument, and everything here runs in tests
//! exactly as it runs on a worker.
//!
//! The way of a packet is [`overlay::Overlay::run`]; read that first.

#![warn(missing_docs)]

pub mod bfd;
pub mod burst;
pub mod connections;
pub mod counters;
pub mod decide;
pub mod direction;
pub mod drops;
pub mod ecn;
pub mod encap_hash;
pub mod event;
pub mod flat;
pub mod flow_key;
pub mod fragments;
pub mod hot;
mod index;
pub mod io;
pub mod ledger;
pub mod martian;
pub mod mem;
pub mod miss;
pub mod next_hop;
pub mod nft;
pub mod offload;
pub mod overlay;
pub mod probe;
pub mod qos;
pub mod rcft;
pub mod reverse_path;
pub mod rows;
pub mod security;
pub mod service;
pub mod snapshot;
pub mod stage;
pub mod vlt;
pub mod vtep;
pub mod watch;

pub use direction::Direction;

/// Length of a tick of the coarse clock ([`Now::tick`]), in milliseconds.
pub const TICK_MS: u32 = 100;

/// The time, read once per burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds of a monotonic clock.
    pub ns: u64,
    /// The same in ticks of [`TICK_MS`]; wraps after 13 years.
    pub tick: u32,
}

impl Now {
    /// The time `ns` nanoseconds after the clock's start.
    #[inline(always)]
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns, tick: (ns / (TICK_MS as u64 * 1_000_000)) as u32 }
    }
}

/// Where a pipeline puts packets that leave it.
pub trait Sink<P> {
    /// Takes a packet for a port. What happens to it is counted by the sink: sent, queued or dropped.
    fn send(&mut self, port: snapshot::PortIndex, packet: P);
}
