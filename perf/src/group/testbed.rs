//! The test bed of the group: one switch or two, and this process as all members.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::traffic::{self, home, station};
use super::{GroupOptions, Layout, MEMBERS};
use crate::generator::outcome::Outcome;
use crate::generator::ports::{self, Lane};
use crate::generator::rig::{Demand, Rig};
use crate::generator::scenario::check::{PortPlan, StreamPlan};
use crate::generator::scenario::{Attachment, Generator, Role, memif};
use crate::generator::unmade;
use crate::host::cores::Cores;
use crate::host::interrupt;
use crate::host::scratch::Scratch;
use crate::live::config::{Counted, memif_port};
use crate::live::ports::Runtime;
use crate::live::testbed::{SwitchSpec, SwitchUnderTest, Uplink};
use crate::report::delay::Quantiles;
use crate::{Error, Result};

/// Packets of a ring: a whole round fits.
const RING: u16 = 1024;
const MBUFS: u32 = 8191;
/// How long the uplinks may take to find each other.
const TUNNEL: Duration = Duration::from_secs(10);
/// Length of a step of the time series, in seconds.
const STEP: f64 = 0.1;
/// Frames of the measurement without a switch, and those before it that only warm up.
const DIRECT: [u64; 2] = [2000, 40_000];

/// Every frame is checked.
const GENERATOR: Generator = Generator { verify_every: 1, ..Generator::USUAL };

pub struct GroupTestBed {
    rig: Rig,
    direct: Rig,
    switches: Vec<SwitchUnderTest>,
    pub runtime: Runtime,
}

fn name(member: usize) -> String {
    format!("member{member}")
}

impl GroupTestBed {
    /// Starts the switches and joins their ports.
    pub fn start(options: &GroupOptions, vswitch: &Path, scratch: &Scratch, layout: &Layout) -> Result<Self> {
        let count = options.switches;
        let streams = traffic::streams(count, options.row);
        let runtime = ports::runtime(&ports::plan_of(&streams), layout.own, MBUFS)?;
        let tunnel = scratch.path().join("tunnel.sock");
        let mut switches = Vec::new();
        let mut lanes = Vec::new();
        // The other one joins the tunnel that the first serves.
        for switch in 0..count {
            let of = |switch| (0..MEMBERS).filter(move |&member| home(member, count) == switch);
            let vnics: Vec<_> = of(switch).map(|member| (name(member), json!({}))).collect();
            let cores = Cores { forwarding: layout.workers[switch], housekeeping: layout.own };
            let (own, other) = (switch as u8 + 1, 2 - switch as u8);
            let uplink = if count == 1 {
                Uplink::None
            } else {
                let port = memif_port(&tunnel, 0, ["server", "client"][switch]);
                Uplink::Switch { port, vteps: [own, other], behind: of(1 - switch).map(station).collect() }
            };
            let folder = format!("switch{switch}-");
            let first = (switch * MEMBERS / count) as u8 + 1;
            let sections = json!({ "rcft": { "entries": 65_536 } });
            let shared = layout.shared;
            let spec = SwitchSpec {
                shared,
                sections,
                ring: RING,
                first,
                uplink,
                ..SwitchSpec::new(&folder, cores, &vnics)
            };
            switches.push(SwitchUnderTest::start(vswitch, scratch, &spec)?);
        }
        for switch in &switches {
            lanes.extend(switch.lanes(&runtime)?);
        }
        let rig = Rig::new(lanes, &streams, &GENERATOR).ok_or_else(unmade)?;
        let direct = direct(&runtime, &scratch.path().join("direct.sock"), &traffic::direct(options.row))?;
        let mut testbed = Self { rig, direct, switches, runtime };
        if count > 1 {
            testbed.await_tunnel()?;
        }
        Ok(testbed)
    }

    /// Waits until the uplinks have found each other.
    fn await_tunnel(&mut self) -> Result<()> {
        let up = interrupt::until(TUNNEL, || {
            let mut up = 0;
            for switch in &mut self.switches {
                let ports = switch.daemon.ask("port list")?;
                let rows = ports.as_array().into_iter().flatten();
                up += rows.filter(|port| port["name"] == "up" && port["link"] == "up").count();
            }
            Ok((up == self.switches.len()).then_some(()))
        })?;
        up.ok_or_else(|| Error::Failed("the uplinks of the two switches have no link".into()))
    }

    /// Plays rounds for as long as asked.
    pub fn rounds(&mut self, options: &GroupOptions) -> Result<Outcome> {
        let (rounds, series) = (Some(options.rounds as f64), Some(STEP));
        let demand = Demand { rounds, series, ..Demand::new(vec![None; 2], options.seconds) };
        let outcome = self.rig.run_through(&self.runtime, &demand, &mut ())?;
        if outcome.arrived() == 0 {
            return Err(Error::Failed("no packet of the group came through the switch".into()));
        }
        Ok(outcome)
    }

    /// The same frames over two memifs that are each other's far end: what sending, copying twice and receiving take by
    /// themselves.
    pub fn floor(&mut self) -> Result<Quantiles> {
        let mut delay = None;
        for frames in DIRECT {
            // Each round as soon as the last is over.
            let demand = Demand { rounds: Some(1e9), frames: Some(frames), ..Demand::new(vec![None], 10.0) };
            let outcome = self.direct.run_through(&self.runtime, &demand, &mut ())?;
            delay = outcome.streams[0].delay.filter(|_| outcome.lost() == 0);
        }
        delay.ok_or_else(|| Error::Failed("frames vanish between two memifs of this process".into()))
    }

    /// What the switches have counted, at rest.
    pub fn counted(&mut self) -> Result<Vec<Counted>> {
        self.switches.iter_mut().map(|switch| Counted::at_rest(&mut switch.daemon)).collect()
    }

    /// The switches' own views of the queue pairs: the answers to `show rcft <vnic>` of every member.
    pub fn queue_pairs(&mut self) -> Result<Vec<Value>> {
        let count = self.switches.len();
        let ask = |member| {
            let daemon = &mut self.switches[home(member, count)].daemon;
            daemon.ask(&format!("show rcft {}", name(member)))
        };
        (0..MEMBERS).map(ask).collect()
    }
}

fn direct(runtime: &Runtime, socket: &Path, stream: &StreamPlan) -> Result<Rig> {
    let lane = |(port, role): (usize, Role)| {
        let args = memif(role, 0, socket.display(), RING);
        let attachment = Attachment::Virtual { name: format!("net_memif_direct{port}"), args };
        let plan = PortPlan { name: format!("direct{port}"), attachment, descriptors: RING, rx_queues: 1 };
        Lane::open(runtime, &plan, port)
    };
    let lanes = [Role::Server, Role::Client].into_iter().enumerate().map(lane).collect::<Result<Vec<_>>>()?;
    lanes.iter().try_for_each(Lane::await_link)?;
    Rig::new(lanes, std::slice::from_ref(stream), &GENERATOR).ok_or_else(unmade)
}
