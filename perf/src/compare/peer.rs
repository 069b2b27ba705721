//! What every switch under comparison offers: start with ports on files, count what it forwarded, check itself.
//!
//! One file per switch implements it; this file has the common words only.

use std::path::{Path, PathBuf};

use super::cases::{Job, Peer};
use super::{CompareError, ours, ovs, testpmd};
use crate::host::process::Process;

/// Where the frames come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A pcap file over and over, copied from memory.
    Endless(PathBuf),
    /// A pcap file once.
    Once(PathBuf),
}

impl Source {
    /// The device arguments of the pcap port that plays it.
    pub(crate) fn devargs(&self) -> String {
        match self {
            Self::Endless(path) => format!("rx_pcap={},infinite_rx=1", path.display()),
            Self::Once(path) => format!("rx_pcap={}", path.display()),
        }
    }
}

/// Where they go.
#[derive(Debug, Clone)]
pub enum Sink {
    /// Counted and dropped by a null port.
    Drop,
    /// Written to a pcap file.
    File(PathBuf),
}

impl Sink {
    /// Driver and device arguments of the port, which itself never receives anything.
    pub(crate) fn driver(&self) -> (&'static str, String) {
        match self {
            Self::Drop => ("net_null", "no-rx=1".into()),
            Self::File(path) => ("net_pcap", format!("tx_pcap={}", path.display())),
        }
    }
}

/// Everything a switch needs to know to start.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The work.
    pub job: &'a Job,
    /// Where frames come from.
    pub source: Source,
    /// Where they go.
    pub sink: Sink,
    /// The core that forwards.
    pub core: usize,
    /// The core for everything else.
    pub housekeeping: usize,
    /// A folder of its own.
    pub folder: PathBuf,
    /// A name no other switch has, for EAL file prefixes.
    pub prefix: String,
    /// A choice for OVS.
    pub exact_match_cache: ovs::ExactMatchCache,
    /// The daemon's binary.
    pub vswitch: &'a Path,
}

/// A running switch.
pub trait Switch {
    /// What to call it.
    fn name(&self) -> &str;
    /// Its process.
    fn process(&mut self) -> &mut Process;
    /// Packets that went out of the sink port so far.
    fn forwarded(&mut self) -> Result<u64, CompareError>;
    /// Waits until it is in its steady state, and fails if it does something else than it should.
    fn settle(&mut self) -> Result<(), CompareError>;
}

/// Which switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// This project's.
    Ours,
    /// Another one.
    Peer(Peer),
}

impl std::fmt::Display for Contender {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ours => formatter.pad("vswitch"),
            Self::Peer(peer) => peer.fmt(formatter),
        }
    }
}

/// Starts it.
pub fn start(contender: Contender, setup: &Setup<'_>) -> Result<Box<dyn Switch>, CompareError> {
    Ok(match contender {
        Contender::Ours => Box::new(ours::Ours::start(setup)?),
        Contender::Peer(Peer::Udp | Peer::UdpFew | Peer::NoQos) => Box::new(ours::Ours::start(setup)?),
        Contender::Peer(Peer::Testpmd) => Box::new(testpmd::Testpmd::start(setup)?),
        Contender::Peer(Peer::OvsExact) => Box::new(ovs::Ovs::start(setup, ovs::Megaflows::Exact)?),
        Contender::Peer(Peer::OvsWildcard) => Box::new(ovs::Ovs::start(setup, ovs::Megaflows::Wildcard)?),
    })
}

/// Packet buffers for the replayed frames, the rings and the caches.
pub(crate) fn mbufs(job: &Job) -> usize {
    job.flows.count + 16_384
}
