//! The test bed of `storm`, `setup` and `offload`: one daemon with vNICs and an uplink, and a port of this process at the
//! other end of each; and what every measurement of one forwarding core prepares.
//!
//! ```text
//!   perf: vNIC lanes 0 .. n-1  --memif-->  vswitch  --VxLAN, memif-->  perf: the uplink's lane n
//! ```

use std::net::Ipv4Addr;
use std::path::Path;

use wire::MacAddr;

use super::LiveError;
use super::config::{Config, MemifEnd, await_ports};
use super::ports::Runtime;
use crate::generator::frame::Shape;
use crate::generator::ports::Lane;
use crate::generator::scenario::check::{Content, PortPlan, StreamPlan};
use crate::generator::scenario::{Attachment, Distribution, Protocol};
use crate::generator::tuple::Tuples;
use crate::generator::units::{Macs, Range, Rate};
use crate::host::cores::{self, Cores};
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::hugepages::{self, HugePages};
use crate::host::scratch::{self, Scratch};
use crate::host::{HostError, process, threads};

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

/// The station of the `n`-th vNIC, from 1.
pub const fn station(n: u8) -> Station {
    (MacAddr([2, 0, 0, 0, 1, n]), Ipv4Addr::new(10, 0, 0, n))
}

/// The VTEP of the `n`-th switch, from 1.
pub const fn vtep(n: u8) -> Station {
    (MacAddr([2, 0, 0, 0, 0x10, n]), Ipv4Addr::new(172, 16, 0, n))
}

/// The machine, made ready: cores chosen, this process on its own and favoured, a private folder, memory.
pub struct Bench {
    pub cores: Cores,
    // Given back before the folder goes, because its note is in there.
    _hugepages: Option<HugePages>,
    pub scratch: Scratch,
}

impl Bench {
    /// `mebibytes` of huge pages are reserved where they can be had.
    pub fn prepare(core: Option<usize>, mebibytes: u64, keep: bool) -> Result<Self, HostError> {
        let cores = cores::choose(&cores::available(), core)?;
        Self::on(cores, mebibytes, keep)
    }

    /// The same on cores that are chosen already.
    pub fn on(cores: Cores, mebibytes: u64, keep: bool) -> Result<Self, HostError> {
        core_affinity::set_for_current(core_affinity::CoreId { id: cores.housekeeping });
        process::favour_this();
        let scratch = Scratch::create(keep)?;
        let hugepages = hugepages::reserve_or_say(mebibytes, &scratch);
        Ok(Self { cores, _hugepages: hugepages, scratch })
    }
}

/// What a test bed is made of.
#[derive(Debug, Default)]
pub struct Spec<'a> {
    /// Of its folder and its devices; no two in one process are alike.
    pub name: &'a str,
    /// Lines of `[nft]`.
    pub nft: &'a str,
    /// Further sections of the config.
    pub sections: &'a str,
    /// Name and further lines of each vNIC.
    pub vnics: &'a [(&'a str, String)],
    /// Further lines of the uplink.
    pub uplink: &'a str,
}

/// A running daemon, its forwarding thread, and the lanes to its ports: those of the vNICs, then the uplink's.
pub struct TestBed {
    pub lanes: Vec<Lane>,
    pub daemon: Daemon,
    pub thread: u32,
}

impl TestBed {
    pub fn start(
        vswitch: &Path,
        bench: &Bench,
        runtime: &Runtime,
        spec: &Spec<'_>,
    ) -> Result<Self, LiveError> {
        let folder = bench.scratch.folder(spec.name)?;
        let prefix = format!("{}-{}", scratch::file_prefix(1), spec.name);
        let setup = DaemonSetup { program: vswitch, folder: &folder, prefix: &prefix, cores: bench.cores };
        let socket = folder.join("ports.sock");
        let mut config =
            Config::with_flows(&prefix, &setup.socket(), bench.cores.forwarding, false, spec.nft);
        config.section(spec.sections).vpc(VNI);
        let end = |id: usize| MemifEnd { socket: &socket, id: id as u32, role: "server" };
        for (id, (name, more)) in spec.vnics.iter().enumerate() {
            config.vnic(name, station(id as u8 + 1), &end(id), more);
        }
        let uplink = spec.vnics.len();
        config.uplink(&end(uplink), vtep(1), vtep(2), spec.uplink).location(VNI, REMOTE, vtep(2).1);
        let mut daemon = Daemon::start(&setup, config.text())?;
        daemon.process().favour();
        await_ports(&mut daemon, uplink + 1)?;
        let lane = |id: usize| {
            let args = format!("role=client,id={id},socket={},socket-abstract=no,rsize=12", socket.display());
            let attachment = Attachment::Virtual { name: format!("net_memif_{}{id}", spec.name), args };
            let plan = PortPlan { name: format!("port {id}"), attachment, descriptors: RING, rx_queues: 1 };
            Lane::open(runtime, &plan, id)
        };
        let lanes = (0..=uplink).map(lane).collect::<Result<Vec<_>, _>>()?;
        for lane in &lanes {
            lane.await_link()?;
        }
        let thread = threads::forwarding(daemon.process(), "vswitch", bench.cores.forwarding)?;
        Ok(Self { lanes, daemon, thread })
    }
}

/// A stream of the shortest UDP frames between two stations, one flow as fast as it goes; what differs is for the caller.
pub fn stream(name: &str, from: usize, to: usize, src: Station, dst: Station) -> StreamPlan {
    let shape = Shape { protocol: Protocol::Udp, v6: false, tos: 0, vlan: None, syn: false, tunnel: None };
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
    StreamPlan {
        name: name.into(),
        from,
        to,
        rate: Rate::Max,
        window: Some(WINDOW),
        sizes: vec![(64, 1)],
        flows: 1,
        churn: 0,
        distribution: Distribution::InTurn,
        exponent: 1.0,
        content: Content::Made { shape, tuples: Box::new(tuples), opcodes: vec![0] },
    }
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
