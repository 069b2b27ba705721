//! [`Port`] and [`StartedPort`]: a port's life, from attachment to detachment.
//!
//! `attach.rs` brings ports in and out, `config.rs` starts them, `running.rs` is what can be done while packets
//! flow, `shared.rs` what a port and its queues share, `info.rs`, `offload.rs` and `rss.rs` say what a port can do. A port is an ethdev, packet sockets on a kernel
//! interface (`socket.rs`), a kernel interface of its own (`tap.rs`), or a vhost-user socket (`vhost.rs`); several ethdevs may be one port (`bond.rs`); which arguments a kind wants is the business of the switch.

mod attach;
mod bond;
mod config;
mod info;
mod offload;
mod rings;
mod rss;
mod running;
mod shared;
mod socket;
mod stats;
mod tap;
mod vhost;

use std::fmt;

pub use attach::{Port, in_use, limit};
pub use bond::{BondHash, BondMember, BondMode, LacpState};
pub use config::PortConfig;
pub use info::{DescriptorLimits, PortInfo};
pub use offload::{RxOffloads, TxOffloads};
pub use rings::Ring;
pub use rss::{ConfiguredRss, RssCapabilities, RssConfig, RssHash, RssLevel, RssReport, RssTypes};
pub use running::{Link, StartedPort};
pub(crate) use shared::Running;
pub use stats::PortStats;
pub use tap::{MAX_TAP_MTU, TapConfig, TapPlace};
pub use vhost::VhostConfig;

/// DPDK's number of a port, or one above 32,767 of a port that is no ethdev. Numbers are used again after a port was detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u16);

impl PortId {
    /// The first number that no ethdev has.
    pub(crate) const FIRST_OTHER: u16 = 0x8000;

    pub(crate) const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number, as an index into a table of ports.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
