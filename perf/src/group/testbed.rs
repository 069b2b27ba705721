//! The test bed of the group: the daemons and their configs, and this process as all members.

use std::path::{Path as FsPath, PathBuf};

use serde_json::Value;
use wire::build::Path;

use super::members::station;
use super::port::Memif;
use super::verbs::{Kind, Template};
use super::{Layout, MEMBERS, Options};
use crate::host::HostError;
use crate::host::cores::Cores;
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::scratch::{self, Scratch};
use crate::live::LiveError;
use crate::live::config::{Config, Counted, MemifEnd, await_ports};
use crate::live::ports::Runtime;
use crate::live::testbed::{Station, vtep};

const VNI: u32 = 5002;

const fn end(switch: usize) -> Station {
    vtep(switch as u8 + 1)
}

/// The name of a member's vNIC.
pub fn name(member: usize) -> String {
    format!("member{member}")
}

/// Templates of one ordered pair of members.
#[derive(Debug)]
pub struct Templates {
    pub write: Template,
    pub ack: Template,
    pub datagram: Template,
}

pub struct GroupTestBed {
    pub daemons: Vec<Daemon>,
    pub runtime: Runtime,
    pub members: Vec<Memif>,
    /// By sender, then receiver; none to itself.
    pub templates: Vec<Vec<Option<Templates>>>,
    pub switches: usize,
    /// Two memifs that are each other's far end, for the floor.
    pub direct: (Memif, Memif),
}

pub const fn home(member: usize, switches: usize) -> usize {
    member * switches / MEMBERS
}

impl GroupTestBed {
    /// Starts the daemons and joins their ports.
    pub fn start(
        options: &Options,
        vswitch: &FsPath,
        scratch: &Scratch,
        layout: &Layout,
    ) -> Result<Self, LiveError> {
        let switches = options.switches;
        let folders: Vec<PathBuf> = (0..switches)
            .map(|switch| scratch.folder(&format!("switch-{switch}")))
            .collect::<Result<_, HostError>>()?;
        let mut daemons = Vec::new();
        for (switch, folder) in folders.iter().enumerate() {
            let prefix = scratch::file_prefix(switch);
            let setup = DaemonSetup {
                program: vswitch,
                folder,
                prefix: &prefix,
                cores: Cores { forwarding: layout.workers[switch], housekeeping: layout.own },
            };
            let mut config = Config::new(&prefix, &setup.socket(), layout.workers[switch], layout.shared);
            config.section("[rcft]\nentries = 65536").vpc(VNI);
            let socket = folder.join("ports.sock");
            for member in (0..MEMBERS).filter(|&member| home(member, switches) == switch) {
                let end = MemifEnd { socket: &socket, id: member as u32, role: "server" };
                config.vnic(&name(member), station(member), &end, "");
            }
            if switches > 1 {
                let other = 1 - switch;
                let (tunnel, role) = (scratch.path().join("tunnel.sock"), ["server", "client"][switch]);
                config.uplink(&MemifEnd { socket: &tunnel, id: 0, role }, end(switch), end(other), "");
                for member in (0..MEMBERS).filter(|&member| home(member, switches) == other) {
                    config.location(VNI, station(member), end(other).1);
                }
            }
            let mut daemon = Daemon::start(&setup, config.text())?;
            daemon.process().favour();
            // The other one joins the tunnel that this one serves.
            await_ports(&mut daemon, MEMBERS / switches + usize::from(switches > 1))?;
            daemons.push(daemon);
        }
        let runtime = Runtime::start(&scratch::file_prefix(switches), layout.own, 8191)?;
        let members: Vec<Memif> = (0..MEMBERS)
            .map(|member| {
                let socket = folders[home(member, switches)].join("ports.sock");
                Memif::open(
                    &runtime,
                    &name(member),
                    &MemifEnd { socket: &socket, id: member as u32, role: "client" },
                )
            })
            .collect::<Result<_, LiveError>>()?;
        let direct = scratch.path().join("direct.sock");
        let near = Memif::open(&runtime, "near", &MemifEnd { socket: &direct, id: 0, role: "server" })?;
        let far = Memif::open(&runtime, "far", &MemifEnd { socket: &direct, id: 0, role: "client" })?;
        for port in members.iter().chain([&near, &far]) {
            port.await_link()?;
        }
        let mut testbed = Self {
            daemons,
            runtime,
            members,
            templates: templates(options.row)?,
            switches,
            direct: (near, far),
        };
        if switches > 1 {
            testbed.await_tunnel()?;
        }
        Ok(testbed)
    }

    /// Waits until the uplinks have found each other.
    fn await_tunnel(&mut self) -> Result<(), LiveError> {
        for _ in 0..500 {
            let mut up = 0;
            for daemon in &mut self.daemons {
                let ports = daemon.ask("port list")?;
                let rows = ports.as_array().into_iter().flatten();
                up += rows.filter(|port| port["name"] == "up" && port["link"] == "up").count();
            }
            if up == self.switches {
                return Ok(());
            }
            crate::host::interrupt::pause(std::time::Duration::from_millis(20))?;
        }
        Err(LiveError::Silent("the uplinks of the two switches have no link".into()))
    }

    /// What the switches have counted, at rest.
    pub fn counted(&mut self) -> Result<Vec<Counted>, LiveError> {
        self.daemons.iter_mut().map(Counted::at_rest).collect()
    }

    /// The switches' own views of the queue pairs: the answers to `show rcft <vnic>` of every member.
    pub fn queue_pairs(&mut self) -> Result<Vec<Value>, LiveError> {
        let mut answers = Vec::new();
        for member in 0..MEMBERS {
            let daemon = &mut self.daemons[home(member, self.switches)];
            answers.push(daemon.ask(&format!("show rcft {}", name(member)))?);
        }
        Ok(answers)
    }
}

fn templates(row: usize) -> Result<Vec<Vec<Option<Templates>>>, LiveError> {
    let make = |from, to| -> Option<Templates> {
        let path = Path::v4(station(from), station(to)).with_tos(2);
        Some(Templates {
            write: Template::new(&path, Kind::Write, row)?,
            ack: Template::new(&path, Kind::Ack, 0)?,
            datagram: Template::new(&path, Kind::Datagram, row)?,
        })
    };
    let mut all = Vec::new();
    for from in 0..MEMBERS {
        let mut rows = Vec::new();
        for to in 0..MEMBERS {
            let made = make(from, to);
            if made.is_none() {
                let words = "the frames of this program are not what it expects";
                return Err(LiveError::Silent(words.into()));
            }
            rows.push(made.filter(|_| from != to));
        }
        all.push(rows);
    }
    Ok(all)
}
