//! Live traffic: `perf` as the machines around the switch, on memif ports, with frames made and read packet by packet.
//!
//! ```text
//!   one core: perf                                      another core: vswitch
//!   pace -> write frames -> tx  ===== memif =====>  vNIC port -> worker --+
//!   histograms <- read frames <- rx  <==== memif ====  uplink or vNIC  <--+
//! ```
//! One thread sends and receives, so that its own hiccups delay both: what is on its way is bounded, no ring can
//! overflow because of it, and a loss is the switch's.

pub mod config;
pub mod delay;
pub mod pace;
pub mod plot;
pub mod ports;
pub mod verbs;

use pmd::{EalError, MempoolError, PortError};

use crate::host::HostError;

/// What can go wrong with live traffic.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The machine around it, or the daemon.
    #[error(transparent)]
    Host(#[from] HostError),
    /// DPDK in this process.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// Packet buffers of this process.
    #[error(transparent)]
    Pool(#[from] MempoolError),
    /// A port of this process.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A port did not come up.
    #[error("memif {id} on {socket} has no link after {seconds} s; its other end did not come")]
    NoLink {
        /// Its number.
        id: u32,
        /// Its socket.
        socket: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// An answer of the daemon lacks a figure.
    #[error("`{command}` does not say {what}: {answer}")]
    Answer {
        /// The command.
        command: String,
        /// What was looked for.
        what: String,
        /// The answer.
        answer: String,
    },
    /// No traffic came through.
    #[error("{0}")]
    Silent(String),
    /// A plot could not be drawn.
    #[error("draw {path}: {reason}")]
    Plot {
        /// The file.
        path: String,
        /// What went wrong.
        reason: String,
    },
}
