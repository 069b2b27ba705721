//! What can go wrong with a switch, each with what to do about it, and with the value of the config that it is about where it is about
//! one: its `path`, as [`ConfigError::path`](crate::config::ConfigError::path) has it.

use worker::MAX_PORTS;
use worker::mailbox::WorkerError;
use worker::pool::PoolError;

use crate::config::ConfigErrors;
use crate::port::{OpenError, QueueError};
use crate::topology::TopologyError;

/// An error of the switch. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The config is not valid.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] pmd::EalError),
    /// More packet buffers than memory, or ports that need more than there are.
    #[error("{text}")]
    Memory { path: String, text: String },
    /// No packet buffers.
    #[error(transparent)]
    Mempool(#[from] pmd::MempoolError),
    /// The watchdog did not start.
    #[error("cannot start the watchdog's thread: {0}; raise the limit of threads (`ulimit -u`, or pids.max)")]
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
    #[error("no core {missing:?} for a worker here; choose those of `[workers] cores` from {available:?}")]
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
    /// The ports of a change are being opened, and it is tried again then: whoever waits for its answer is not told this.
    #[error("a port is being opened; ask again")]
    NotYet,
    /// Cannot change while the switch runs.
    #[error("{what} cannot change while the switch runs; restart it with the new config")]
    NotLive { what: &'static str, path: &'static str },
    /// A port on a bus that DPDK did not look at when it started.
    #[error(
        "port {name} is on the PCI bus, which DPDK was started without, as no port was on it: put the port into the config, or \
         its PCI device into `[eal] pci`, and restart the switch"
    )]
    NoPciBus { name: String, path: String },
    /// Nothing with that name.
    #[error("no {what} {name:?}; `{list}` shows those there are")]
    Unknown {
        /// What was looked for.
        what: &'static str,
        name: String,
        /// The command that lists them.
        list: &'static str,
        path: String,
    },
    /// A vNIC that no other host could find.
    #[error(
        "vNIC {name:?} has no VIP by which other hosts would find it; give it one first, or remove it with `vnic del`"
    )]
    Nowhere { name: String, path: String },
    /// Something else needs it.
    #[error("{what} {name:?} is in use by {by}; remove that first")]
    InUse {
        /// What was to be removed.
        what: &'static str,
        name: String,
        /// Who needs it.
        by: String,
        path: String,
    },
    /// A file of the switch's own.
    #[error("{file}: {source}; look at its folder, its permissions and the room on its disk")]
    File { file: String, source: std::io::Error },
    /// A change was made, but would not outlive the process.
    #[error(
        "the change is in force but not saved: {0}; it is tried again every few seconds, and with the next change"
    )]
    NotSaved(Box<SwitchError>),
    /// A change was made, and the NIC does not say that it is so in hardware.
    #[error(
        "the change is in force in software, but the NIC of port {port:?} has not answered that it let {rules} rules go, and may still \
         forward what the change forbids; look at the event `offload-let-go`, which tells when they are gone, and reset a NIC that \
         stays silent"
    )]
    NotWithdrawn {
        /// The port that takes the rules.
        port: String,
        rules: usize,
    },
    /// The config cannot be written.
    #[error(
        "a fault of the switch itself: the config cannot be written as TOML: {0}; take back what changed last"
    )]
    Toml(#[from] toml::ser::Error),
}

/// What went wrong with a port.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    /// It could not be opened.
    #[error("port {name}: {source}")]
    Open {
        name: String,
        path: String,
        /// Why, and what to do.
        source: Box<OpenError>,
    },
    /// It has not that many queues.
    #[error("port {name}: {source}")]
    Queues {
        name: String,
        path: String,
        /// What it takes.
        source: QueueError,
    },
    /// The packet buffers are too small for it.
    #[error(
        "port {name}: its driver needs packet buffers of {wanted} bytes, these have {room}; buffers are sized at start by \
         the largest `mtu` of the config: put the port (or one with its MTU) into the config and restart"
    )]
    SmallBuffers {
        name: String,
        path: String,
        /// Bytes of a buffer.
        room: usize,
        /// Bytes that the driver needs.
        wanted: u16,
    },
    /// Its peer did not come.
    #[error("port {name}: no peer connected within {seconds} s; start the peer, the port comes up then")]
    NoPeer {
        name: String,
        path: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// No thread to open it on.
    #[error(
        "port {name}: cannot start a thread to open it: {source}; raise the limit of threads (`ulimit -u`, or pids.max)"
    )]
    Thread { name: String, source: std::io::Error },
    /// The thread that opened it ended.
    #[error(
        "port {name}: the thread that opens ports ended, which is a fault of the switch itself; look at its log, and try again"
    )]
    Ended { name: String },
    /// The port that takes its rules is not there yet.
    #[error(
        "port {name}: the port that takes the rules of its NIC (the transfer proxy, its uplink) is not there: {words}; put \
         the uplink into the config"
    )]
    NoProxy { name: String, path: String, words: String },
    /// It could not be started, stopped or removed.
    #[error("port {name}: {source}")]
    Ethdev { name: String, path: String, source: Box<pmd::PortError> },
    /// It is in the config and not there.
    #[error("port {0} is not attached: `port list` says why; it is tried again until it comes up")]
    NotThere(String),
    /// There is no such port.
    #[error("no port {0:?}; `port list` shows the ports")]
    Unknown(String),
    /// No more ports.
    #[error("the switch has its largest number of ports, {MAX_PORTS}; put tenants on a trunk port, by VLAN")]
    TooMany { path: String },
    /// It is in that state already.
    #[error("port {name} is {state} already; leave it, or {command} it first")]
    AlreadySo {
        name: String,
        state: &'static str,
        /// What makes it otherwise.
        command: &'static str,
    },
    /// Workers are gone.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

impl SwitchError {
    /// True where the change was made all the same, and would not outlive the process or is not known to be in hardware.
    pub fn is_in_force(&self) -> bool {
        matches!(self, Self::NotSaved(_) | Self::NotWithdrawn { .. })
    }
}

impl PortsError {
    /// True when what the port stands for is not there now and may come.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Open { source, .. } => source.is_absence(),
            Self::NoPeer { .. } | Self::NoProxy { .. } => true,
            _ => false,
        }
    }
}
