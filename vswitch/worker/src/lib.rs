//! Workers: the poll-mode threads that move packets.
//!
//! A worker owns its rx queues, its tx queues, its NFT and its counters; nothing on the packet path is shared but
//! read-only snapshots and hand-over rings. Control reaches it through a [`mailbox`], looked at between bursts. What
//! takes longer than a burst may, the division of rates, is a thread of its own ([`divider`]).
//!
//! ```text
//!   control --Command--> mailbox --> [ rx burst -> overlay -> tx buffers -> tx burst ]* --> idle
//! ```

mod command;
pub mod divider;
pub mod eswitch;
pub mod laps;
pub mod mailbox;
pub mod pool;
mod repeat;
mod run;
mod rx;
pub mod stats;
mod turns;
pub mod tx;
pub mod watchdog;

pub use mailbox::{Mode, RemovedPort, WorkerCommand};
pub use pool::{Pool, WorkerSpec};
pub use repeat::BfdPacket;
pub use stats::WorkerStats;

/// Most ports of a switch. Of those that are devices of DPDK there are fewer: as many as it was built for (`RTE_MAX_ETHPORTS`, 32 in
/// Debian's).
pub const MAX_PORTS: usize = 2048;

/// Most vNICs of a host.
pub const MAX_VNICS: usize = 16_384;

/// Most VPCs of a host.
pub const MAX_VPCS: usize = 16_384;
