//! What can go wrong with a switch, each with what to do about it.

use super::ports::PortsError;
use crate::config::ConfigErrors;
use crate::topology::TopologyError;
use crate::worker::mailbox::WorkerError;
use crate::worker::pool::PoolError;

/// An error of the switch. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The config is not valid.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] pmd::EalError),
    /// More packet buffers than memory.
    #[error("{0}")]
    Memory(String),
    /// No packet buffers.
    #[error(transparent)]
    Mempool(#[from] pmd::MempoolError),
    /// The watchdog did not start.
    #[error("cannot start the watchdog's thread: {0}")]
    Watchdog(std::io::Error),
    /// Workers did not start.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A worker ended.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// An RDMA device that a quota is a share of.
    #[error(transparent)]
    Rdma(#[from] crate::rdma::Error),
    /// A worker's core that this process may not use.
    #[error("no core {missing:?} for a worker here; `[workers] cores` can be any of {available:?}")]
    NoSuchCore {
        /// Those that are not there.
        missing: Vec<usize>,
        /// Those that are.
        available: Vec<usize>,
    },
    /// More workers than cores.
    #[error(
        "{wanted} workers need as many cores, this process may use {available:?}; lower `[workers] count`"
    )]
    TooFewCores {
        /// Workers.
        wanted: usize,
        /// Cores.
        available: Vec<usize>,
    },
    /// Cannot change while the switch runs.
    #[error("{0} cannot change while the switch runs; restart it with the new config")]
    NotLive(&'static str),
    /// Nothing with that name.
    #[error("no {what} {name:?}; `{list}` shows those there are")]
    Unknown {
        /// What was looked for.
        what: &'static str,
        name: String,
        /// The command that lists them.
        list: &'static str,
    },
    /// The name is taken.
    #[error("there is a {what} {name:?} already; remove it first or choose another name")]
    Duplicate {
        /// What was to be added.
        what: &'static str,
        name: String,
    },
    /// Something else needs it.
    #[error("{what} {name:?} is in use by {by}; remove that first")]
    InUse {
        /// What was to be removed.
        what: &'static str,
        name: String,
        /// Who needs it.
        by: String,
    },
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    /// A change was made, but would not outlive the process.
    #[error("the change is in force but not saved: {0}; mend that, then make any change to save all of them")]
    NotSaved(Box<SwitchError>),
    /// The config cannot be written.
    #[error("the config cannot be written as TOML: {0}")]
    Toml(#[from] toml::ser::Error),
}
