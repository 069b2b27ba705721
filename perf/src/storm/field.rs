//! The field of the storm: one daemon, and this process behind its two vNICs and its uplink.

use std::net::Ipv4Addr;

use wire::build::Path;
use wire::{MacAddr, Qpn};

use super::Options;
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::scratch::{self, Scratch};
use crate::host::threads;
use crate::live::LiveError;
use crate::live::config::{Config, await_ports};
use crate::live::ports::{Memif, Role, Runtime};
use crate::live::verbs::{Kind, Template};

const VNI: u32 = 5001;
const fn station(n: u8) -> (MacAddr, Ipv4Addr) {
    (MacAddr([2, 0, 0, 0, 1, n]), Ipv4Addr::new(10, 0, 0, n))
}
const VICTIM: (MacAddr, Ipv4Addr) = station(1);
const STORM: (MacAddr, Ipv4Addr) = station(2);
const REMOTE: (MacAddr, Ipv4Addr) = station(9);
const HERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0x10, 1]), Ipv4Addr::new(172, 16, 0, 1));
const THERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0x10, 2]), Ipv4Addr::new(172, 16, 0, 2));
/// The first queue pair of the victim; the storm's numbers begin far above.
pub const VICTIM_QPN: u32 = 0x1000;
/// The first queue pair of the storm.
pub const STORM_QPN: u32 = 0x10_0000;
/// Packets of a ring, as a power of two.
const RING: u8 = 12;
const PAYLOAD: usize = 32;

/// Everything that takes part.
pub struct Field {
    /// The switch.
    pub daemon: Daemon,
    /// Its forwarding thread.
    pub thread: u32,
    /// Ours.
    pub runtime: Runtime,
    /// The victim's port.
    pub victim: Memif,
    /// The storm's.
    pub storm: Memif,
    /// The other end of the tunnel.
    pub uplink: Memif,
    /// The victim's frames.
    pub write: Template,
    /// The storm's.
    pub storm_write: Template,
    /// Next sequence number of each of the victim's queue pairs, as sent and as awaited at the uplink.
    pub sent_psn: Vec<u32>,
    /// As awaited at the uplink.
    pub awaited_psn: Vec<u32>,
    /// The storm's next queue pair.
    pub storm_qpn: u32,
}

impl Field {
    /// Starts the daemon and joins its ports.
    pub fn start(
        options: &Options,
        scratch: &Scratch,
        (core, housekeeping): (usize, usize),
    ) -> Result<Self, LiveError> {
        let folder = scratch.folder("switch")?;
        let prefix = scratch::file_prefix(0);
        let setup = DaemonSetup {
            program: &options.vswitch,
            folder: &folder,
            prefix: &prefix,
            cores: (housekeeping, core),
        };
        let ports = folder.join("ports.sock");
        let mut config = Config::new(&prefix, &setup.socket(), core, false);
        // Queue pairs that the storm leaves give their places back, so that new ones are admitted all the time.
        config.section("[rcft]\nidle-timeout = \"1s\"\ngrace = \"0s\"").vpc(VNI);
        config.vnic("victim", VICTIM, (&ports, 0), &format!("qp-quota = {}", options.victim_qps));
        config.vnic("storm", STORM, (&ports, 1), &format!("qp-quota = {}", options.storm_quota));
        config.uplink((&ports, 2, "server"), HERE, THERE, "").location(VNI, REMOTE, THERE.1);
        let mut daemon = Daemon::start(&setup, config.text())?;
        daemon.process().favour();
        await_ports(&mut daemon, 3)?;
        let runtime = Runtime::start(&scratch::file_prefix(1), housekeeping, 16_383)?;
        let open = |name, id| Memif::open(&runtime, name, (&ports, id), Role::Client, RING);
        let (victim, storm, uplink) = (open("victim", 0)?, open("storm", 1)?, open("uplink", 2)?);
        for port in [&victim, &storm, &uplink] {
            port.await_link()?;
        }
        let thread = threads::forwarding(daemon.process(), "vswitch", core)?;
        let template = |from| {
            Template::new(&Path::v4(from, REMOTE).with_tos(2), Kind::Write, PAYLOAD)
                .ok_or_else(|| LiveError::Silent("the frames of this program are not what it expects".into()))
        };
        let victims = options.victim_qps as usize;
        Ok(Self {
            daemon,
            thread,
            victim,
            storm,
            uplink,
            write: template(VICTIM)?,
            storm_write: template(STORM)?,
            sent_psn: vec![0; victims],
            awaited_psn: vec![0; victims],
            storm_qpn: STORM_QPN,
            runtime,
        })
    }

    /// The storm's next queue pair; after sixteen million they come again.
    #[inline]
    pub fn next_storm_qpn(&mut self) -> Qpn {
        let qpn = Qpn::truncated(self.storm_qpn);
        self.storm_qpn = if self.storm_qpn >= 0xff_fff0 { STORM_QPN } else { self.storm_qpn + 1 };
        qpn
    }
}
