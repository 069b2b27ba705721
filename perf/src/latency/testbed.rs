//! Who takes part: the switch, testpmd and the empty loop, each with a pair of ports of this process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::empty::Empty;
use super::interference::Interference;
use super::stalls::Stalls;
use super::{Options, Ports, testpmd};
use crate::generator::ports::{self, Lane};
use crate::generator::rig::Rig;
use crate::generator::scenario::check::{PortPlan, StreamPlan};
use crate::generator::scenario::{Attachment, Distribution, Generator};
use crate::generator::units::Range;
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::scratch;
use crate::host::testpmd::Testpmd;
use crate::host::threads::{self, cpu_seconds};
use crate::host::{HostError, interrupt};
use crate::live::LiveError;
use crate::live::config::{Config, MemifEnd, await_ports};
use crate::live::ports::Runtime;
use crate::live::testbed::{Bench, VNI, station, stream};

const FLOWS: u32 = 64;
const MBUFS: u32 = 16_383;
const RING: u16 = 1024;
/// Frames on their way at a time: no ring fills because this process was stopped.
const WINDOW: u64 = 768;
const SERVED: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarder {
    Ours,
    /// `testpmd io`.
    Testpmd,
    Empty,
}

impl Forwarder {
    pub const ALL: [Self; 3] = [Self::Ours, Self::Testpmd, Self::Empty];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Testpmd => "testpmd",
            Self::Empty => "empty-loop",
        }
    }
}

/// Everything that takes part. What it holds goes in this order: ports before those who serve them.
pub struct LatencyTestBed {
    /// Ports and streams of each forwarder.
    pub rigs: Vec<Rig>,
    empty: Empty,
    pub ours: Daemon,
    pub ours_thread: u32,
    testpmd: Testpmd,
    testpmd_thread: u32,
    pub runtime: Runtime,
    core: usize,
}

pub fn memif_socket(folder: &Path) -> PathBuf {
    folder.join("ports.sock")
}

pub fn vhost_socket(folder: &Path, port: usize) -> PathBuf {
    folder.join(format!("port-{port}.sock"))
}

impl LatencyTestBed {
    /// Starts all of them and joins their ports; they are at rest then.
    pub fn start(options: &Options, vswitch: &Path, bench: &Bench) -> Result<Self, LiveError> {
        let (scratch, core) = (&bench.scratch, bench.cores.forwarding);
        let folders = [scratch.folder("ours")?, scratch.folder("testpmd")?];
        let prefixes = [scratch::file_prefix(1), scratch::file_prefix(2)];
        let setup =
            DaemonSetup { program: vswitch, folder: &folders[0], prefix: &prefixes[0], cores: bench.cores };
        let mut config = Config::new(&prefixes[0], &setup.socket(), core, false);
        config.vpc(VNI);
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            config.section(&vnic(name, index, options.ports, &folders[0]));
        }
        let mut ours = Daemon::start(&setup, config.text())?;
        ours.process().favour();
        let mut testpmd = testpmd::start(&folders[1], options.ports, bench.cores, &prefixes[1])?;
        testpmd.process.favour();
        let probes = stream("probes", 0, 1, station(1), station(2)).with_flows(FLOWS, |_, tuples| {
            tuples.src_port = Some(Range { first: 10_000, count: FLOWS });
        });
        let plan = [StreamPlan {
            window: Some(WINDOW),
            sizes: vec![(options.size, 1)],
            distribution: Distribution::Uniform,
            ..probes
        }];
        let runtime = ports::runtime(&ports::plan_of(&plan), bench.cores.housekeeping, MBUFS)?;
        let (empty, empty_lanes) = Empty::start(&runtime, core)?;
        let ours_lanes = lanes(&runtime, options.ports, &folders[0], 0)?;
        await_ports(&mut ours, 2)?;
        let testpmd_lanes = lanes(&runtime, options.ports, &folders[1], 2)?;
        testpmd.forward()?;
        for lane in ours_lanes.iter().chain(&testpmd_lanes) {
            lane.await_link()?;
        }
        let rigs: Option<Vec<Rig>> = [ours_lanes, testpmd_lanes, empty_lanes]
            .into_iter()
            .map(|lanes| Rig::new(lanes, &plan, &Generator::default()))
            .collect();
        let rigs = rigs.ok_or_else(|| {
            LiveError::Silent(format!("frames of {} bytes cannot be made; --size 64 is good", options.size))
        })?;
        // Who forwards is told by who is busy: one at a time.
        testpmd.process.freeze()?;
        let ours_thread = threads::forwarding(ours.process(), "vswitch", core)?;
        ours.process().freeze()?;
        testpmd.process.thaw()?;
        let testpmd_thread = threads::forwarding(&mut testpmd.process, "testpmd", core)?;
        testpmd.process.freeze()?;
        Ok(Self { rigs, empty, ours, ours_thread, testpmd, testpmd_thread, runtime, core })
    }

    pub fn wake(&mut self, forwarder: Forwarder) -> Result<(), HostError> {
        match forwarder {
            Forwarder::Ours => self.ours.process().thaw(),
            Forwarder::Testpmd => self.testpmd.process.thaw(),
            Forwarder::Empty => {
                self.empty.set_awake(true);
                Ok(())
            }
        }
    }

    pub fn rest(&mut self, forwarder: Forwarder) -> Result<(), HostError> {
        match forwarder {
            Forwarder::Ours => self.ours.process().freeze(),
            Forwarder::Testpmd => self.testpmd.process.freeze(),
            Forwarder::Empty => {
                self.empty.set_awake(false);
                Ok(())
            }
        }
    }

    /// CPU time that its forwarding thread has had.
    pub fn cpu_seconds(&mut self, forwarder: Forwarder) -> Result<f64, HostError> {
        let (pid, thread) = self.forwarder(forwarder);
        cpu_seconds(pid, thread)
    }

    /// What its forwarding thread was kept from, so far.
    pub fn interference(&mut self, forwarder: Forwarder) -> Result<Interference, HostError> {
        let (pid, thread) = self.forwarder(forwarder);
        Interference::of(pid, thread, self.core)
    }

    /// The stalls of the empty loop since this was last asked, which is so many seconds ago.
    pub fn take_stalls(&self, seconds: f64) -> Stalls {
        Stalls::new(self.empty.take_stalls(), seconds)
    }

    fn forwarder(&mut self, forwarder: Forwarder) -> (u32, u32) {
        match forwarder {
            Forwarder::Ours => (self.ours.process().pid(), self.ours_thread),
            Forwarder::Testpmd => (self.testpmd.process.pid(), self.testpmd_thread),
            Forwarder::Empty => (std::process::id(), self.empty.thread()),
        }
    }
}

impl Drop for LatencyTestBed {
    /// A port of virtio-user asks its other end before it goes, and who is frozen does not answer.
    fn drop(&mut self) {
        for process in [self.ours.process(), &mut self.testpmd.process] {
            // A process that is gone needs no thawing.
            let _ = process.thaw();
        }
    }
}

fn vnic(name: &str, index: usize, ports: Ports, folder: &Path) -> String {
    let (mac, vip) = station(index as u8 + 1);
    let port = match ports {
        Ports::Memif => {
            let end = MemifEnd { socket: &memif_socket(folder), id: index as u32, role: "server" };
            format!("kind = \"memif\", {end}, trusted-peer = true")
        }
        Ports::Vhost => {
            let socket = vhost_socket(folder, index);
            format!("kind = \"vhost-user\", path = \"{}\", server = true", socket.display())
        }
    };
    format!(
        "[[vnic]]\nname = \"{name}\"\nvpc = \"tenant\"\nmac = \"{mac}\"\nvips = [\"{vip}\"]\nmtu = 1500\nport = {{ {port} }}"
    )
}

/// Both ports at the other ends of those in a folder.
fn lanes(runtime: &Runtime, ports: Ports, folder: &Path, first: usize) -> Result<Vec<Lane>, LiveError> {
    let lane = |port: usize| {
        let index = first + port;
        let attachment = match ports {
            Ports::Memif => {
                let socket = memif_socket(folder);
                await_socket(&socket)?;
                let args =
                    format!("role=client,id={port},socket={},socket-abstract=no,rsize=10", socket.display());
                Attachment::Virtual { name: format!("net_memif_lat{index}"), args }
            }
            Ports::Vhost => {
                let socket = vhost_socket(folder, port);
                await_socket(&socket)?;
                let args = format!("path={},server=0,queues=1,queue_size={RING}", socket.display());
                Attachment::Virtual { name: format!("net_virtio_user{index}"), args }
            }
        };
        let plan = PortPlan { name: ["a", "b"][port].into(), attachment, descriptors: RING, rx_queues: 1 };
        Lane::open(runtime, &plan, index)
    };
    [0, 1].into_iter().map(lane).collect()
}

fn await_socket(socket: &Path) -> Result<(), LiveError> {
    let end = Instant::now() + SERVED;
    while !socket.exists() {
        if Instant::now() > end {
            let what = format!("nobody serves {} after {} s", socket.display(), SERVED.as_secs());
            return Err(LiveError::Silent(what));
        }
        interrupt::pause(Duration::from_millis(20))?;
    }
    Ok(())
}
