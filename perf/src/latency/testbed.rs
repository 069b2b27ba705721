//! Who takes part: the switch, testpmd and the empty loop, each with a pair of ports of this process.

use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;

use super::LatencyOptions;
use super::empty::Empty;
use super::interference::Interference;
use super::stalls::Stalls;
use crate::generator::ports::{self, Lane};
use crate::generator::rig::Rig;
use crate::generator::scenario::check::StreamPlan;
use crate::generator::scenario::{Distribution, Generator};
use crate::generator::units::Range;
use crate::host::cores::Cores;
use crate::host::daemon::Daemon;
use crate::host::scratch;
use crate::host::testpmd::{Testpmd, TestpmdSpec};
use crate::host::threads::{self, cpu_seconds};
use crate::live::ports::Runtime;
use crate::live::testbed::{Ports, PreparedHost, SwitchSpec, SwitchUnderTest, station, stream};
use crate::{Error, Result};

/// Free huge pages that are enough for `testpmd`.
const HUGE_MB: u64 = 192;
const FLOWS: u32 = 64;
const MBUFS: u32 = 16_383;
const RING: u16 = 1024;
/// Frames on their way at a time: no ring fills because this process was stopped.
const WINDOW: u64 = 768;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyForwarder {
    #[default]
    Ours,
    /// `testpmd io`.
    Testpmd,
    EmptyLoop,
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

impl LatencyTestBed {
    /// Starts all of them and joins their ports; they are at rest then.
    pub fn start(options: &LatencyOptions, vswitch: &Path, bench: &PreparedHost) -> Result<Self> {
        let (scratch, core) = (&bench.scratch, bench.cores.forwarding);
        let vnics = ["a", "b"].map(|name| (name.to_owned(), json!({})));
        let spec =
            SwitchSpec { ports: options.ports, ring: RING, ..SwitchSpec::new("ours", bench.cores, &vnics) };
        let mut ours = SwitchUnderTest::start(vswitch, scratch, &spec)?;
        let folder = scratch.folder("testpmd")?;
        let mut testpmd = start_testpmd(&folder, options.ports, bench.cores, &scratch::file_prefix(2))?;
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
        let ours_lanes = ours.lanes(&runtime)?;
        let testpmd_lanes = [0, 1]
            .map(|port| options.ports.join(&runtime, &folder, port, "testpmd", RING))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        testpmd.forward()?;
        testpmd_lanes.iter().try_for_each(Lane::await_link)?;
        let rigs: Option<Vec<Rig>> = [ours_lanes, testpmd_lanes, empty_lanes]
            .into_iter()
            .map(|lanes| Rig::new(lanes, &plan, &Generator::default()))
            .collect();
        let rigs = rigs.ok_or_else(|| {
            Error::Failed(format!("frames of {} bytes cannot be made; --size 64 is good", options.size))
        })?;
        // Who forwards is told by who is busy: one at a time.
        testpmd.process.freeze()?;
        let ours_thread = ours.thread()?;
        let mut ours = ours.daemon;
        ours.process().freeze()?;
        testpmd.process.thaw()?;
        let testpmd_thread = threads::forwarding(&mut testpmd.process, "testpmd", core)?;
        testpmd.process.freeze()?;
        Ok(Self { rigs, empty, ours, ours_thread, testpmd, testpmd_thread, runtime, core })
    }

    pub fn wake(&mut self, forwarder: LatencyForwarder) -> Result<()> {
        self.set_awake(forwarder, true)
    }

    pub fn rest(&mut self, forwarder: LatencyForwarder) -> Result<()> {
        self.set_awake(forwarder, false)
    }

    fn set_awake(&mut self, forwarder: LatencyForwarder, awake: bool) -> Result<()> {
        let process = match forwarder {
            LatencyForwarder::Ours => self.ours.process(),
            LatencyForwarder::Testpmd => &mut self.testpmd.process,
            LatencyForwarder::EmptyLoop => {
                self.empty.set_awake(awake);
                return Ok(());
            }
        };
        if awake { process.thaw() } else { process.freeze() }
    }

    /// CPU time that its forwarding thread has had.
    pub fn cpu_seconds(&mut self, forwarder: LatencyForwarder) -> Result<f64> {
        let (pid, thread) = self.forwarder(forwarder);
        cpu_seconds(pid, thread)
    }

    /// What its forwarding thread was kept from, so far.
    pub fn interference(&mut self, forwarder: LatencyForwarder) -> Result<Interference> {
        let (pid, thread) = self.forwarder(forwarder);
        Interference::of(pid, thread, self.core)
    }

    /// The stalls of the empty loop since this was last asked, which is so many seconds ago.
    pub fn take_stalls(&self, seconds: f64) -> Stalls {
        Stalls::new(self.empty.take_stalls(), seconds)
    }

    fn forwarder(&mut self, forwarder: LatencyForwarder) -> (u32, u32) {
        match forwarder {
            LatencyForwarder::Ours => (self.ours.process().pid(), self.ours_thread),
            LatencyForwarder::Testpmd => (self.testpmd.process.pid(), self.testpmd_thread),
            LatencyForwarder::EmptyLoop => (std::process::id(), self.empty.thread()),
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

/// Starts the floor, `testpmd` in io mode between two ports of the same kind as the switch's, which it serves in `folder`.
fn start_testpmd(folder: &Path, ports: Ports, cores: Cores, prefix: &str) -> Result<Testpmd> {
    let devices = [0, 1].map(|port| {
        let socket = ports.socket(folder, port);
        let socket = socket.display();
        match ports {
            Ports::Memif => {
                format!("net_memif{port},role=server,id={port},socket={socket},socket-abstract=no")
            }
            Ports::Vhost => format!("net_vhost{port},iface={socket},queues=1,client=0,tso=0"),
        }
    });
    // Without huge pages it would not start, unless told so; either way its memory can be shared with us.
    let memory = if pmd::hugepage::free_mb() >= HUGE_MB {
        "--in-memory --single-file-segments"
    } else {
        "--no-huge -m 256 --no-shconf"
    };
    let words = |words: &str| words.split(' ').map(str::to_owned).collect();
    let mut testpmd = Testpmd::start(&TestpmdSpec {
        mode: "io",
        housekeeping: cores.housekeeping,
        cores: &[cores.forwarding],
        prefix,
        eal: words(&format!("{memory} --no-pci --vdev {} --vdev {}", devices[0], devices[1])),
        own: words("--total-num-mbufs=16384 --disable-link-check --no-lsc-interrupt --rxd=1024 --txd=1024"),
    })?;
    testpmd.await_prompt()?;
    Ok(testpmd)
}
