//! The field of `perf setup`: one daemon, and this process behind two vNICs and the uplink.

use std::net::Ipv4Addr;

use wire::MacAddr;

use super::Options;
use crate::generator::frame::Shape;
use crate::generator::ports::{self, Lane};
use crate::generator::rig::Rig;
use crate::generator::scenario::check::{Content, Plan, PortPlan, StreamPlan};
use crate::generator::scenario::{Attachment, Distribution, Generator, Protocol};
use crate::generator::tuple::Tuples;
use crate::generator::units::{Macs, Range, Rate};
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::scratch::{self, Scratch};
use crate::host::threads;
use crate::live::LiveError;
use crate::live::config::{Config, await_ports};
use crate::live::ports::Runtime;

const VNI: u32 = 5001;
/// The vNIC of the established traffic.
pub const NEIGHBOUR: &str = "neighbour";
const STATIONS: [(MacAddr, Ipv4Addr); 2] = [station(1), station(2)];
const REMOTE: (MacAddr, Ipv4Addr) = station(9);
const HERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0x10, 1]), Ipv4Addr::new(172, 16, 0, 1));
const THERE: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0x10, 2]), Ipv4Addr::new(172, 16, 0, 2));
const KNOWN: u32 = 1000;
/// Ports of either side that flows have.
const PORTS: u32 = 60_000;
/// Flows of the scanner beside the neighbour at a time, and how many a second are replaced: more than it has packets.
const PLACES: u32 = 4096;
const CHURN: u64 = 50_000_000;
const WINDOW: u64 = 2048;
const MBUFS: u32 = 32_767;
const UPLINK: usize = 2;

const fn station(n: u8) -> (MacAddr, Ipv4Addr) {
    (MacAddr([2, 0, 0, 0, 1, n]), Ipv4Addr::new(10, 0, 0, n))
}

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// The scanner, held back by a window like anybody else.
    Scanner,
    /// The neighbour, and a scanner that cares for nothing.
    Both,
}

/// Everything that takes part; ports go before those who serve them.
pub struct Field {
    /// Ports and streams.
    pub rig: Rig,
    /// The switch.
    pub daemon: Daemon,
    /// Its forwarding thread.
    pub thread: u32,
}

/// DPDK of this process.
pub fn runtime(options: &Options, core: usize) -> Result<Runtime, LiveError> {
    let plan = Plan { ports: Vec::new(), streams: plans(Streams::Both, options.flows) };
    ports::runtime(&plan, core, MBUFS)
}

impl Field {
    /// Starts a daemon with these lines about flows and joins its ports. `name` is of the folder.
    pub fn start(
        options: &Options,
        scratch: &Scratch,
        runtime: &Runtime,
        (core, housekeeping): (usize, usize),
        (name, nft): (&str, &str),
        streams: Streams,
    ) -> Result<Self, LiveError> {
        let folder = scratch.folder(name)?;
        let prefix = format!("{}-{name}", scratch::file_prefix(1));
        let setup = DaemonSetup {
            program: &options.vswitch,
            folder: &folder,
            prefix: &prefix,
            cores: (housekeeping, core),
        };
        let socket = folder.join("ports.sock");
        let mut config = Config::with_flows(&prefix, &setup.socket(), core, false, nft);
        config.vpc(VNI);
        for (id, vnic) in [NEIGHBOUR, "scanner"].into_iter().enumerate() {
            config.vnic(vnic, STATIONS[id], (&socket, id as u32), "");
        }
        config.uplink((&socket, UPLINK as u32, "server"), HERE, THERE, "").location(VNI, REMOTE, THERE.1);
        let mut daemon = Daemon::start(&setup, config.text())?;
        daemon.process().favour();
        await_ports(&mut daemon, 3)?;
        let lane = |id: usize| {
            let args = format!("role=client,id={id},socket={},socket-abstract=no,rsize=12", socket.display());
            let attachment = Attachment::Virtual { name: format!("net_memif_{name}{id}"), args };
            Lane::open(
                runtime,
                &PortPlan { name: format!("port {id}"), attachment, descriptors: 4096, rx_queues: 1 },
                id,
            )
        };
        let lanes = [0, 1, UPLINK].into_iter().map(lane).collect::<Result<Vec<_>, _>>()?;
        for lane in &lanes {
            lane.await_link()?;
        }
        let thread = threads::forwarding(daemon.process(), "vswitch", core)?;
        let generator = Generator { window: WINDOW, ..Generator::default() };
        let rig = Rig::new(lanes, &plans(streams, options.flows), &generator)
            .ok_or_else(|| LiveError::Silent("the frames of this program are not what it expects".into()))?;
        Ok(Self { rig, daemon, thread })
    }
}

fn plans(streams: Streams, flows: u32) -> Vec<StreamPlan> {
    let neighbour = plan(NEIGHBOUR, 0, (KNOWN, Distribution::Uniform), WINDOW);
    match streams {
        Streams::Scanner => vec![plan("scanner", 1, (flows, Distribution::InTurn), WINDOW)],
        Streams::Both => {
            // Each place has another flow before its turn comes again: no packet is of a flow that was there before.
            let scanner = plan("scanner", 1, (PLACES, Distribution::InTurn), 0);
            vec![neighbour, StreamPlan { churn: CHURN, ..scanner }]
        }
    }
}

fn plan(name: &str, from: usize, (flows, distribution): (u32, Distribution), window: u64) -> StreamPlan {
    let (mac, ip) = STATIONS[from];
    let shape = Shape { protocol: Protocol::Udp, v6: false, tos: 0, vlan: None, syn: false, tunnel: None };
    let tuples = Tuples {
        src_mac: Macs::one(mac),
        dst_mac: Macs::one(REMOTE.0),
        src_ip: Range::one(ip.to_bits().into()),
        dst_ip: Range::one(REMOTE.1.to_bits().into()),
        src_port: Some(Range { first: 1024, count: PORTS }),
        dst_port: Range { first: 7, count: PORTS },
        qp: Range::one(0),
        vni: Range::one(0),
    };
    StreamPlan {
        name: name.into(),
        from,
        to: UPLINK,
        rate: Rate::Max,
        window: Some(window),
        sizes: vec![(64, 1)],
        flows,
        churn: 0,
        distribution,
        exponent: 1.0,
        content: Content::Made { shape, tuples: Box::new(tuples), opcodes: vec![0] },
    }
}
