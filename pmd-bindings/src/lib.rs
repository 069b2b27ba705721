//! The one safe door to DPDK.
//!
//! Sits between `dpdk-sys` (raw bindings, used by nobody else) and everything that moves packets. An [`Eal`] is
//! DPDK's runtime, a [`Mempool`] holds packet buffers, an [`Mbuf`] is one packet, a [`Burst`] a handful of them;
//! a [`Port`] that is started yields its [`RxQueue`]s and [`TxQueue`]s and needs them back to stop.
//!
//! Ownership keeps the C side sound: a queue holds its port open, a port and a mempool hold the EAL open, and a
//! mempool with packets still outside is kept rather than freed. No type here decides where a packet goes.

#![warn(missing_docs)]
#![allow(unsafe_code)]

pub mod burst;
pub mod clock;
mod counters;
pub mod eal;
pub mod error;
mod flags;
pub mod flow;
pub mod hugepage;
pub mod interface;
pub mod lcore;
mod log;
pub mod mbuf;
pub mod mempool;
pub mod namespace;
pub mod port;
pub mod process;
pub mod queue;
pub mod rdma;
mod run_dir;
mod socket;
mod tap;
#[cfg(test)]
mod testing;
pub mod vhost;
mod vnet;

pub use burst::Burst;
pub use clock::{Clock, Moment, rdtsc};
pub use eal::{Eal, EalConfig, Hugepages, LogLevel, PciAccess};
pub use error::{EalError, Errno, MempoolError, PortError};
pub use flow::{FlowDevice, FlowEngine, FlowQueue, FlowQueues, Flows};
pub use mbuf::Mbuf;
pub use mempool::{LongBuffers, Mempool, MempoolConfig};
pub use namespace::Namespace;
pub use port::{
    BondHash, BondMember, BondMode, ConfiguredRss, LacpState, Link, Port, PortConfig, PortId, PortInfo,
    PortStats, Ring, RssCapabilities, RssConfig, RssHash, RssLevel, RssReport, RssTypes, RxOffloads,
    StartedPort, TapConfig, TapPlace, TxOffloads, VhostConfig,
};
pub use queue::{Readiness, RxQueue, TxQueue};
