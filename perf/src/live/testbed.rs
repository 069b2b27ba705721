//! The test bed of everything that runs the switch with [`Rig`]'s traffic: a daemon with vNICs and an uplink, and a port of
//! this process at the other end of each; and what every measurement of one forwarding core prepares.
//!
//! ```text
//!   perf: vNIC lanes 0 .. n-1  --memif-->  vswitch  --VxLAN, memif-->  perf: the uplink's lane n
//! ```

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use wire::MacAddr;

use super::config::{Config, await_ports, memif_port, with};
use super::ports::Runtime;
use crate::generator::frame::Shape;
use crate::generator::outcome::Outcome;
use crate::generator::ports::Lane;
use crate::generator::rig::{Demand, Rig};
use crate::generator::scenario::check::{Content, PortPlan, StreamPlan};
use crate::generator::scenario::{Attachment, Generator, Protocol, Role, memif};
use crate::generator::tuple::Tuples;
use crate::generator::units::{Macs, Range};
use crate::generator::unmade;
use crate::host::cores::{self, Cores};
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::hugepages::{self, HugePages};
use crate::host::scratch::{self, Scratch};
use crate::host::{interrupt, process, threads};
use crate::live::capacity::{self, Capacity};
use crate::{Error, Result};

/// Somebody with an address, as `wire` composes frames from.
pub type Station = (MacAddr, Ipv4Addr);

/// The network of all test beds.
pub const VNI: u32 = 5001;
/// The station behind the tunnel.
pub const REMOTE: Station = station(9);
/// Frames on their way at a time: half of what the rings hold, so that no stop of this process can fill one.
pub const WINDOW: u64 = 2048;
/// Packets of a ring.
const RING: u16 = 4096;
/// How long a port may take to be served.
const SERVED: Duration = Duration::from_secs(20);

/// The station of the `n`-th vNIC, from 1.
pub const fn station(n: u8) -> Station {
    (MacAddr([2, 0, 0, 0, 1, n]), Ipv4Addr::new(10, 0, 0, n))
}

/// The VTEP of the `n`-th switch, from 1.
pub const fn vtep(n: u8) -> Station {
    (MacAddr([2, 0, 0, 0, 0x10, n]), Ipv4Addr::new(172, 16, 0, n))
}

/// The machine, made ready: cores chosen, this process on its own and favoured, a private folder, memory.
pub struct PreparedHost {
    pub cores: Cores,
    // Given back before the folder goes, because its note is in there.
    _hugepages: Option<HugePages>,
    pub scratch: Scratch,
}

impl PreparedHost {
    /// `mebibytes` of huge pages are reserved where they can be had.
    pub fn prepare(core: Option<usize>, mebibytes: u64, keep: bool) -> Result<Self> {
        let cores = cores::choose(&cores::available(), core)?;
        Self::on(cores, mebibytes, keep)
    }

    /// The same on cores that are chosen already.
    pub fn on(cores: Cores, mebibytes: u64, keep: bool) -> Result<Self> {
        core_affinity::set_for_current(core_affinity::CoreId { id: cores.housekeeping });
        process::favour_this();
        let scratch = Scratch::create(keep)?;
        let hugepages = hugepages::reserve_or_say(mebibytes, &scratch);
        Ok(Self { cores, _hugepages: hugepages, scratch })
    }
}

/// What lies between a vNIC of the switch and this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// memif to memif.
    #[default]
    Memif,
    /// vhost-user to virtio-user.
    Vhost,
}

impl Ports {
    /// The socket of a port in a folder: memifs are told apart by their numbers and share one.
    pub fn socket(self, folder: &Path, port: usize) -> PathBuf {
        match self {
            Self::Memif => folder.join("ports.sock"),
            Self::Vhost => folder.join(format!("port-{port}.sock")),
        }
    }

    /// A port of the daemon's config, at which it serves.
    fn served(self, folder: &Path, port: usize) -> Value {
        let socket = self.socket(folder, port);
        match self {
            Self::Memif => with(memif_port(&socket, port as u32, "server"), &json!({ "trusted-peer": true })),
            Self::Vhost => json!({ "kind": "vhost-user", "path": socket, "server": true }),
        }
    }

    /// Opens the other end of a port that somebody serves in a folder. `name` and port tell devices of this process apart.
    pub fn join(self, runtime: &Runtime, folder: &Path, port: usize, name: &str, ring: u16) -> Result<Lane> {
        let socket = self.socket(folder, port);
        await_socket(&socket)?;
        let socket = socket.display();
        let (driver, args) = match self {
            Self::Memif => ("memif", memif(Role::Client, port as u32, socket, ring)),
            Self::Vhost => ("virtio_user", format!("path={socket},server=0,queues=1,queue_size={ring}")),
        };
        let attachment = Attachment::Virtual { name: format!("net_{driver}_{name}{port}"), args };
        let plan = PortPlan { name: format!("port {port}"), attachment, descriptors: ring, rx_queues: 1 };
        Lane::open(runtime, &plan, port)
    }
}

fn await_socket(socket: &Path) -> Result<()> {
    let found = interrupt::until(SERVED, || Ok::<_, Error>(socket.exists().then_some(())))?;
    found.ok_or_else(|| {
        Error::Failed(format!("nobody serves {} after {} s", socket.display(), SERVED.as_secs()))
    })
}

/// Where the uplink of a switch goes.
#[derive(Debug, Default)]
pub enum Uplink {
    /// There is none: everybody is on this switch.
    #[default]
    None,
    /// To this process, with further settings; [`REMOTE`] is behind it.
    Here(Value),
    /// To another switch over this port: the VTEPs' numbers, this one's first, and who is behind the other one.
    Switch { port: Value, vteps: [u8; 2], behind: Vec<Station> },
}

/// What a switch under test is like.
#[derive(Debug)]
pub struct SwitchSpec<'a> {
    /// Of its folder and its devices; no two in one process are alike.
    pub name: &'a str,
    pub cores: Cores,
    /// It shares its core, and sleeps when idle for that reason.
    pub shared: bool,
    /// Keys of `[nft]`.
    pub nft: Value,
    /// Further sections of the config.
    pub sections: Value,
    pub ports: Ports,
    /// Packets of a ring.
    pub ring: u16,
    /// The number of the first vNIC's station; those of the others follow.
    pub first: u8,
    /// Name and further settings of each vNIC.
    pub vnics: &'a [(String, Value)],
    pub uplink: Uplink,
}

impl<'a> SwitchSpec<'a> {
    /// vNICs on memifs and no uplink, without a limit of misses.
    pub fn new(name: &'a str, cores: Cores, vnics: &'a [(String, Value)]) -> Self {
        let (nft, sections) = (json!({ "miss-rate": 0 }), json!({}));
        let (ports, uplink) = (Ports::Memif, Uplink::None);
        Self { name, cores, shared: false, nft, sections, ports, ring: RING, first: 1, vnics, uplink }
    }

    /// The same with the uplink at this process; `more` are further settings of it.
    pub fn with_uplink(self, more: Value) -> Self {
        Self { uplink: Uplink::Here(more), ..self }
    }
}

/// A running daemon with vNICs and perhaps an uplink that are served for this process: the device under test.
pub struct SwitchUnderTest {
    pub daemon: Daemon,
    folder: PathBuf,
    name: String,
    core: usize,
    /// Of the vNICs, then the uplink's if that is here.
    ports: Vec<Ports>,
    ring: u16,
}

impl SwitchUnderTest {
    pub fn start(vswitch: &Path, scratch: &Scratch, spec: &SwitchSpec<'_>) -> Result<Self> {
        let folder = scratch.folder(spec.name)?;
        let prefix = format!("{}-{}", scratch::file_prefix(1), spec.name);
        let setup = DaemonSetup {
            program: vswitch,
            folder: &folder,
            prefix: &prefix,
            cores: spec.cores,
            netns: None,
        };
        let mut config = Config::new(&setup);
        let idle = if spec.shared { "sleep" } else { "poll" };
        config.set(&json!({ "workers": { "idle": idle }, "nft": spec.nft }));
        config.set(&spec.sections);
        config.vpc("tenant", VNI, &json!({}));
        for (number, (name, more)) in spec.vnics.iter().enumerate() {
            let (mac, vip) = station(spec.first + number as u8);
            let port = spec.ports.served(&folder, number);
            config.vnic(
                name,
                mac,
                &[vip],
                &with(json!({ "vpc": "tenant", "mtu": 1500, "port": port }), more),
            );
        }
        let vnics = spec.vnics.len();
        let mut uplink = |port: &Value, [own, other]: [u8; 2], behind: &[Station], more: &Value| {
            config.uplink("up", vtep(own), &[vtep(other)], 1600, &with(json!({ "port": port }), more));
            behind.iter().for_each(|station| config.location(VNI, *station, vtep(other).1));
        };
        match &spec.uplink {
            Uplink::None => {}
            Uplink::Here(more) => {
                let port = memif_port(&Ports::Memif.socket(&folder, vnics), vnics as u32, "server");
                uplink(&port, [1, 2], &[REMOTE], more);
            }
            Uplink::Switch { port, vteps, behind } => uplink(port, *vteps, behind, &json!({})),
        }
        let mut ports = vec![spec.ports; vnics];
        if matches!(spec.uplink, Uplink::Here(_)) {
            ports.push(Ports::Memif);
        }
        let mut daemon = Daemon::start(&setup, &config.text())?;
        await_ports(&mut daemon, vnics + usize::from(!matches!(spec.uplink, Uplink::None)))?;
        Ok(Self {
            daemon,
            folder,
            name: spec.name.to_owned(),
            core: spec.cores.forwarding,
            ports,
            ring: spec.ring,
        })
    }

    /// The other ends of its ports.
    pub fn lanes(&self, runtime: &Runtime) -> Result<Vec<Lane>> {
        let Self { folder, name, ring, .. } = self;
        let ports = self.ports.iter().enumerate();
        let lanes = ports.map(|(port, kind)| kind.join(runtime, folder, port, name, *ring));
        let lanes = lanes.collect::<Result<Vec<_>>>()?;
        lanes.iter().try_for_each(Lane::await_link)?;
        Ok(lanes)
    }

    /// The thread that forwards.
    pub fn thread(&mut self) -> Result<u32> {
        threads::forwarding(self.daemon.process(), "vswitch", self.core)
    }
}

/// A switch with the streams of this process.
pub struct TestBed<'a> {
    // Ports go before who serves them.
    pub rig: Rig,
    pub daemon: Daemon,
    pub thread: u32,
    pub runtime: &'a Runtime,
}

impl<'a> TestBed<'a> {
    pub fn start(
        vswitch: &Path,
        bench: &PreparedHost,
        runtime: &'a Runtime,
        spec: &SwitchSpec<'_>,
        streams: &[StreamPlan],
    ) -> Result<Self> {
        let mut switch = SwitchUnderTest::start(vswitch, &bench.scratch, spec)?;
        let rig = Rig::new(switch.lanes(runtime)?, streams, &Generator::default()).ok_or_else(unmade)?;
        let thread = switch.thread()?;
        Ok(Self { rig, daemon: switch.daemon, thread, runtime })
    }

    pub fn run(&mut self, demand: &Demand) -> Result<Outcome> {
        self.rig.run_through(self.runtime, demand, &mut ())
    }

    /// What the worker can do with the first of two streams alone, and what came of that.
    pub fn capacity_of_first(&mut self) -> Result<(Capacity, Outcome)> {
        let flood = |seconds| Demand::new(vec![None, Some(0.0)], seconds);
        // The first turn opens flows and queue pairs.
        self.run(&flood(capacity::SETTLE))?;
        self.capacity(&flood(capacity::SECONDS))
    }

    /// What the worker can do, from a run that is as fast as it goes.
    pub fn capacity(&mut self, demand: &Demand) -> Result<(Capacity, Outcome)> {
        let Self { rig, daemon, thread, runtime } = self;
        capacity::of(daemon, *thread, || rig.run_through(runtime, demand, &mut ()))
    }
}

/// A stream of the shortest UDP frames between two stations, one flow as fast as it goes; what differs is for the caller.
pub fn stream(name: &str, from: usize, to: usize, src: Station, dst: Station) -> StreamPlan {
    let shape = Shape::plain(Protocol::Udp, 0);
    let tuples = Tuples {
        src_mac: Macs::one(src.0),
        dst_mac: Macs::one(dst.0),
        src_ip: Range::one(src.1.to_bits().into()),
        dst_ip: Range::one(dst.1.to_bits().into()),
        src_port: Some(Range::one(10_000)),
        dst_port: Range::one(7),
        qp: Range::one(0),
        vni: Range::one(0),
    };
    let content = Content::Made { shape, tuples: Box::new(tuples), opcodes: vec![0] };
    StreamPlan { window: Some(WINDOW), ..StreamPlan::new(name, from, to, vec![(64, 1)], content) }
}

impl StreamPlan {
    /// The same with other flows: ranges of their fields, and how many there are at a time.
    pub fn with_flows(mut self, flows: u32, change: impl FnOnce(&mut Shape, &mut Tuples)) -> Self {
        self.flows = flows;
        if let Content::Made { shape, tuples, .. } = &mut self.content {
            change(shape, tuples);
        }
        self
    }
}
