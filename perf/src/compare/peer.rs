//! What every switch under comparison offers: start with ports on files, count what it forwarded, check itself.
//!
//! One file per switch implements it; this file has the common words only.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cases::{Job, Peer};
use super::plugin::TemplateDevice;
use super::{ours, ovs, testpmd};
use crate::Result;
use crate::host::cores::Cores;
use crate::host::daemon::DaemonSetup;
use crate::host::process::Process;

/// A port of a device under test, by its name in DPDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// On the PCI bus: the address, and the driver's own arguments behind a comma.
    Pci(String),
    /// A virtual device: the name, and its arguments behind a comma.
    Virtual(String),
    /// The vhost-user socket of a guest that has the server's side, as QEMU has it where a switch may restart.
    Guest(String),
}

impl Attached {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Pci(text) | Self::Virtual(text) | Self::Guest(text) => text,
        }
    }
}

/// What is at a port of a switch.
#[derive(Debug, Clone)]
pub enum FramePort {
    /// Frames of a pcap file, once or over and over, copied from memory.
    Replayed { path: PathBuf, endless: bool },
    /// Nothing: it drops, and receives nothing.
    Drop,
    /// A pcap file into which it writes.
    File(PathBuf),
    /// A template device, which makes frames where it has any, and swallows what it is sent.
    Template(TemplateDevice),
    /// Somebody else at its other end.
    Attached(Attached),
}

impl FramePort {
    /// Name, with a number that no other port has, and arguments of the device.
    pub(crate) fn device(&self, number: usize) -> String {
        match self {
            Self::Replayed { path, endless } => {
                let endless = if *endless { ",infinite_rx=1" } else { "" };
                format!("net_pcap{number},rx_pcap={}{endless}", path.display())
            }
            Self::Drop => format!("net_null{number},no-rx=1"),
            Self::File(path) => format!("net_pcap{number},tx_pcap={}", path.display()),
            Self::Template(device) => device.text(number),
            Self::Attached(Attached::Guest(path)) => format!("net_vhost{number},iface={path},client=1"),
            Self::Attached(port) => port.text().to_owned(),
        }
    }

    /// The device's address and arguments where it is on the PCI bus.
    pub(crate) fn pci(&self) -> Option<&str> {
        if let Self::Attached(Attached::Pci(device)) = self { Some(device) } else { None }
    }

    /// Whether its frames are replayed from a file.
    pub(crate) fn is_replayed(&self) -> bool {
        matches!(self, Self::Replayed { .. })
    }
}

/// Everything a switch needs to know to start.
#[derive(Debug)]
pub struct SwitchSetup<'a> {
    pub job: &'a Job,
    /// Where the frames come in.
    pub source: FramePort,
    /// Where they leave; they may also come in here.
    pub sink: FramePort,
    pub plugin: Option<PathBuf>,
    /// Those that forward; one at least.
    pub cores: &'a [usize],
    /// What holds rules of this switch's ports; nothing if not given.
    pub offload: Option<&'a str>,
    pub housekeeping: usize,
    pub folder: PathBuf,
    /// A name no other switch has, for EAL file prefixes.
    pub prefix: String,
    pub exact_match_cache: ovs::ExactMatchCache,
    pub vswitch: &'a Path,
}

impl SwitchSetup<'_> {
    /// Where and as whom a daemon of this project runs.
    pub(crate) fn daemon(&self) -> DaemonSetup<'_> {
        let cores = Cores { forwarding: self.cores[0], housekeeping: self.housekeeping };
        let Self { vswitch: program, folder, prefix, .. } = self;
        DaemonSetup { program, folder, prefix, cores, netns: None }
    }

    /// EAL's words about the PCI bus: its ports' devices and no others.
    pub(crate) fn bus_words(&self) -> Vec<String> {
        let ports = [&self.source, &self.sink].into_iter().filter_map(FramePort::pci);
        let allowed: Vec<String> = ports.flat_map(|device| ["-a", device].map(str::to_owned)).collect();
        if allowed.is_empty() { vec!["--no-pci".into()] } else { allowed }
    }
}

/// What a stage of a switch takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTime {
    pub stage: String,
    /// TSC cycles for each packet that was received, reading the clock not counted.
    pub cycles: f64,
    pub burst: f64,
}

pub trait Switch {
    fn name(&self) -> &str;
    fn process(&mut self) -> &mut Process;
    /// Packets that went out of the sink port so far.
    fn forwarded(&mut self) -> Result<u64>;
    /// Waits until it is in its steady state, and fails if it does something else than it should.
    fn settle(&mut self) -> Result<()>;
    /// Bytes that its classes have paid for so far; none where it has no rates. Fails if packets had to wait at any time.
    fn drawn(&mut self) -> Result<u64> {
        Ok(0)
    }
    /// Begins to watch what its stages take, where it can tell.
    fn watch(&mut self) -> Result<()> {
        Ok(())
    }
    /// What they took since, and the end of it; nothing where it cannot tell.
    fn watched(&mut self) -> Result<Vec<StageTime>> {
        Ok(Vec::new())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Ours,
    /// The same with its flows offloaded, in a lab.
    Offloaded,
    Peer(Peer),
}

impl std::fmt::Display for Contender {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ours => formatter.pad("vswitch"),
            Self::Offloaded => formatter.pad("vswitch-offload"),
            Self::Peer(peer) => peer.fmt(formatter),
        }
    }
}

pub fn start(contender: Contender, setup: &SwitchSetup<'_>) -> Result<Box<dyn Switch>> {
    Ok(match contender {
        Contender::Ours | Contender::Offloaded => Box::new(ours::Ours::start(setup)?),
        Contender::Peer(peer) if peer.is_ourselves() => Box::new(ours::Ours::start(setup)?),
        Contender::Peer(Peer::OvsExact) => Box::new(ovs::Ovs::start(setup, ovs::Megaflows::Exact)?),
        Contender::Peer(Peer::OvsWildcard) => Box::new(ovs::Ovs::start(setup, ovs::Megaflows::Wildcard)?),
        Contender::Peer(Peer::OvsConntrack) => Box::new(ovs::Ovs::start(setup, ovs::Megaflows::Conntrack)?),
        Contender::Peer(Peer::TestpmdMac) => Box::new(testpmd::start(setup, "mac")?),
        Contender::Peer(_) => Box::new(testpmd::start(setup, "io")?),
    })
}

/// Buffers that each further port of ours may hold.
const AT_IDLE_PORTS: usize = 40;

/// Packet buffers for the rings and the caches, and for the frames when they are `replayed`.
pub(crate) fn mbufs(job: &Job, replayed: bool) -> usize {
    16_384 + if replayed { job.flows.count } else { 0 } + usize::from(job.idle_ports) * AT_IDLE_PORTS
}
