//! The field of the offload: one daemon, and this process behind its vNIC and its uplink.

use std::net::Ipv4Addr;

use serde_json::Value;
use wire::MacAddr;
use wire::build::Path;

use super::Options;
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::scratch::{self, Scratch};
use crate::live::LiveError;
use crate::live::config::{Config, await_ports, number};
use crate::live::ports::{Memif, Role, Runtime};

const VNI: u32 = 5001;
const SENDER: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 1, 1]), Ipv4Addr::new(10, 0, 0, 1));
const REMOTE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 1, 9]), Ipv4Addr::new(10, 0, 0, 9));
const HERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0x10, 1]), Ipv4Addr::new(172, 16, 0, 1));
const THERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0x10, 2]), Ipv4Addr::new(172, 16, 0, 2));
/// Packets of a ring, as a power of two.
const RING: u8 = 12;
/// Offset of the UDP source port in a frame.
const SOURCE_PORT: usize = 34;
/// UDP port that the flows are for.
const SERVICE: u16 = 7;

/// Everything that takes part.
pub struct Field {
    /// The switch.
    pub daemon: Daemon,
    /// Ours.
    pub runtime: Runtime,
    /// The vNIC's port.
    pub vnic: Memif,
    /// The other end of the tunnel.
    pub uplink: Memif,
    /// A frame; [`Field::push`] gives it its flow.
    frame: Vec<u8>,
}

impl Field {
    /// Starts the daemon and joins its ports.
    pub fn start(
        options: &Options,
        scratch: &Scratch,
        (core, housekeeping): (usize, usize),
        (runtime, number, hot): (Runtime, usize, u64),
    ) -> Result<Self, LiveError> {
        let folder = scratch.folder(&format!("switch{number}"))?;
        let prefix = scratch::file_prefix(number);
        let setup = DaemonSetup {
            program: &options.vswitch,
            folder: &folder,
            prefix: &prefix,
            cores: (housekeeping, core),
        };
        let ports = folder.join("ports.sock");
        let mut config = Config::new(&prefix, &setup.socket(), core, false);
        config.section(&format!(
            "[offload]\nhot-packets = {hot}\nhot-rate = \"1Gbit\"\ncool-after = \"300ms\"\nidle-timeout = \"2s\"\n\
             rules-per-second = 1000000\n[offload.simulated]\nrefresh = \"100ms\""
        ));
        config.vpc(VNI).vnic("sender", SENDER, (&ports, 0), "offload = \"simulated\"");
        config.uplink((&ports, 1, "server"), HERE, THERE, "offload = \"simulated\"");
        config.location(VNI, REMOTE, THERE.1);
        let mut daemon = Daemon::start(&setup, config.text())?;
        daemon.process().favour();
        await_ports(&mut daemon, 2)?;
        let open = |name: &str, id| Memif::open(&runtime, name, (&ports, id), Role::Client, RING);
        let (vnic, uplink) = (open(&format!("vnic{number}"), 0)?, open(&format!("uplink{number}"), 1)?);
        for port in [&vnic, &uplink] {
            port.await_link()?;
        }
        let frame = Path::v4(SENDER, REMOTE).udp_without_checksum(1, SERVICE, &[0; 18]);
        Ok(Self { daemon, runtime, vnic, uplink, frame })
    }

    /// Puts a packet of a flow behind those that wait. `false` when there is no room.
    #[inline]
    pub fn push(&mut self, flow: u16) -> bool {
        self.frame[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&flow.to_be_bytes());
        self.vnic.push(&self.frame)
    }

    /// Ends the daemon; the runtime goes on.
    pub fn stop(self) -> Runtime {
        let Self { daemon, runtime, vnic, uplink, .. } = self;
        drop((vnic, uplink, daemon));
        runtime
    }

    /// `show offload`.
    pub fn offload(&mut self) -> Result<Shown, LiveError> {
        Ok(Shown(self.daemon.ask("show offload")?))
    }

    /// Memory of the daemon, bytes.
    pub fn memory(&mut self) -> u64 {
        let path = format!("/proc/{}/statm", self.daemon.process().pid());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
        pages * 4096
    }
}

/// An answer to `show offload`.
pub struct Shown(Value);

impl Shown {
    /// One of its figures.
    pub fn figure(&self, path: &str) -> Result<u64, LiveError> {
        number(&self.0, path, "show offload")
    }
}
