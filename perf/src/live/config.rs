//! Configs of the daemon for live traffic, and the figures read from its answers.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use wire::MacAddr;

use super::testbed::Station;
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::interrupt;
use crate::{Error, Result};

/// A memif of the daemon.
#[derive(Debug, Clone, Copy)]
pub struct MemifEnd<'a> {
    pub socket: &'a Path,
    pub id: u32,
    /// `server` or `client`.
    pub role: &'a str,
}

impl std::fmt::Display for MemifEnd<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { socket, id, role } = self;
        write!(formatter, "socket = \"{}\", id = {id}, role = \"{role}\"", socket.display())
    }
}

/// What a config begins with.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    pub daemon: &'a DaemonSetup<'a>,
    /// `auto` or `require`.
    pub hugepages: &'a str,
    /// Huge-page memory in MiB.
    pub memory: u64,
    pub mbufs: usize,
    pub plugin: Option<&'a Path>,
    pub cores: &'a [usize],
    /// Further lines of `[workers]`.
    pub workers: &'a str,
    /// Lines of `[nft]`.
    pub nft: &'a str,
}

impl<'a> Head<'a> {
    /// One worker on the core that forwards.
    pub fn new(daemon: &'a DaemonSetup<'a>) -> Self {
        let cores = std::slice::from_ref(&daemon.cores.forwarding);
        let (memory, mbufs) = (192, 32_768);
        Self { daemon, hugepages: "auto", memory, mbufs, plugin: None, cores, workers: "", nft: "" }
    }
}

/// A vNIC of a config.
#[derive(Debug, Clone, Copy)]
pub struct VnicLines<'a> {
    pub name: &'a str,
    pub vpc: &'a str,
    pub mac: MacAddr,
    pub vips: &'a [Ipv4Addr],
    pub mtu: u16,
    /// The value of its port; further lines may follow.
    pub port: &'a str,
    /// Further lines.
    pub more: &'a str,
}

/// An uplink of a config.
#[derive(Debug, Clone, Copy)]
pub struct UplinkLines<'a> {
    pub name: &'a str,
    /// Its own end of the tunnels, and the far ones.
    pub own: Station,
    pub far: &'a [Station],
    pub mtu: u16,
    /// The value of its port; further lines may follow.
    pub port: &'a str,
}

/// Text of a config in the making.
#[derive(Debug)]
pub struct Config(String);

// Writing into a String cannot fail; the results are dropped for that reason.

impl Config {
    pub fn new(head: &Head<'_>) -> Self {
        let Head { daemon, hugepages, memory, mbufs, plugin, cores, workers, nft } = head;
        let plugins = plugin.map_or_else(String::new, |path| format!("plugins = [\"{}\"]\n", path.display()));
        Self(format!(
            "[eal]\nhuge-pages = \"{hugepages}\"\nmemory = \"{memory}MiB\"\nfile-prefix = \"{}\"\nmbufs = {mbufs}\n\
             {plugins}\n[workers]\ncores = {cores:?}\n{workers}\n\n[nft]\n{nft}\n\n[api]\nsocket = \"{}\"\n\n",
            daemon.prefix,
            daemon.socket().display()
        ))
    }

    pub fn section(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self.0.push_str("\n\n");
        self
    }

    /// A VPC, with further lines, and its subnet.
    pub fn vpc(&mut self, name: &str, vni: u32, more: &str) -> &mut Self {
        self.section(&format!(
            "[[vpc]]\nname = \"{name}\"\nvni = {vni}\n{more}\n\n[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.0.0.0/16\""
        ))
    }

    pub fn vnic(&mut self, vnic: &VnicLines<'_>) -> &mut Self {
        let VnicLines { name, vpc, mac, vips, mtu, port, more } = vnic;
        let vips: Vec<String> = vips.iter().map(|vip| format!("\"{vip}\"")).collect();
        let _ = write!(
            self.0,
            "[[vnic]]\nname = \"{name}\"\nvpc = \"{vpc}\"\nmac = \"{mac}\"\nvips = [{}]\nmtu = {mtu}\nport = {port}\n\
             {more}\n\n",
            vips.join(", ")
        );
        self
    }

    pub fn uplink(&mut self, uplink: &UplinkLines<'_>) -> &mut Self {
        let UplinkLines { name, own: (mac, vtep), far, mtu, port } = uplink;
        let far: Vec<String> =
            far.iter().map(|(mac, ip)| format!("{{ ip = \"{ip}\", mac = \"{mac}\" }}")).collect();
        let _ = write!(
            self.0,
            "[[uplink]]\nname = \"{name}\"\naddresses = [\"{vtep}/24\"]\nmac = \"{mac}\"\nmtu = {mtu}\n\
             neighbours = [{}]\nport = {port}\n\n",
            far.join(", ")
        );
        self
    }

    pub fn location(&mut self, vni: u32, station: Station, vtep: Ipv4Addr) -> &mut Self {
        let (mac, vip) = station;
        self.section(&format!(
            "[[location]]\nvni = {vni}\nvip = \"{vip}\"\nmac = \"{mac}\"\nvtep = \"{vtep}\""
        ))
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Waits until a daemon has started all of its `count` ports; it answers commands before.
pub fn await_ports(daemon: &mut Daemon, count: usize) -> Result<()> {
    let mut last = Value::Null;
    let started = interrupt::until(Duration::from_secs(20), || {
        last = daemon.ask("port list")?;
        let rows = last.as_array().into_iter().flatten();
        Ok((rows.filter(|port| port["state"] == "started").count() >= count).then_some(()))
    })?;
    started.ok_or_else(|| Error::Answer {
        command: "port list".into(),
        what: format!("that all of {count} ports are started, after 20 s"),
        answer: last.to_string().chars().take(600).collect(),
    })
}

pub fn number(answer: &Value, path: &str, command: &str) -> Result<u64> {
    answer.pointer(path).and_then(Value::as_u64).ok_or_else(|| Error::Answer {
        command: command.into(),
        what: path.into(),
        answer: answer.to_string().chars().take(300).collect(),
    })
}

/// The row of a list of named ones.
pub fn row<'a>(answer: &'a Value, name: &str, command: &str) -> Result<&'a Value> {
    let rows = answer.as_array().into_iter().flatten();
    rows.into_iter().find(|row| row["name"] == name).ok_or_else(|| Error::Answer {
        command: command.into(),
        what: format!("a row named {name}"),
        answer: answer.to_string().chars().take(300).collect(),
    })
}

/// What a daemon has counted: the answers to the commands that show packets.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    /// `show fwd stats all`.
    pub fwd: Value,
    /// `show port stats all`.
    pub port: Value,
    /// `show vnic`.
    pub vnic: Value,
    /// `show workers`; its figures are of time and load.
    #[serde(skip)]
    pub workers: Value,
}

impl Counted {
    pub fn of(daemon: &mut Daemon) -> Result<Self> {
        Ok(Self {
            fwd: daemon.ask("show fwd stats all")?,
            port: daemon.ask("show port stats all")?,
            vnic: daemon.ask("show vnic")?,
            workers: daemon.ask("show workers")?,
        })
    }

    /// Once the worker is done with what it has: two looks alike.
    pub fn at_rest(daemon: &mut Daemon) -> Result<Self> {
        let mut last = Self::of(daemon)?;
        let at_rest = interrupt::until(Duration::from_secs(2), || {
            interrupt::pause(Duration::from_millis(20))?;
            let next = Self::of(daemon)?;
            let same = (&next.fwd, &next.port, &next.vnic) == (&last.fwd, &last.port, &last.vnic);
            last = next;
            Ok(same.then(|| last.clone()))
        })?;
        at_rest.ok_or_else(|| Error::Failed("the switch's counters go on moving with no traffic".into()))
    }

    pub fn port(&self, name: &str, counter: &str) -> Result<u64> {
        number(row(&self.port, name, "show port stats all")?, &format!("/{counter}"), "show port stats all")
    }

    pub fn vnic(&self, name: &str, counter: &str) -> Result<u64> {
        number(row(&self.vnic, name, "show vnic")?, &format!("/{counter}"), "show vnic")
    }

    /// A counter of the first worker.
    pub fn worker(&self, counter: &str) -> Result<u64> {
        number(&self.workers, &format!("/workers/0/{counter}"), "show workers")
    }

    pub fn drops_since(&self, before: &Self) -> std::collections::BTreeMap<String, u64> {
        let of = |counted: &Self, name: &str| counted.fwd["drops"][name].as_u64().unwrap_or(0);
        let names = self.fwd["drops"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
        names
            .map(|name| {
                let more = of(self, &name).saturating_sub(of(before, &name));
                (name, more)
            })
            .filter(|(_, more)| *more > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn drops_are_those_since() {
        let counted = |drops: Value| Counted {
            fwd: json!({ "drops": drops }),
            port: json!([{ "name": "up", "rx-packets": 5 }]),
            vnic: json!([]),
            workers: json!({ "workers": [{ "polls": 9 }] }),
        };
        let (before, after) =
            (counted(json!({ "a": 1, "b": 2 })), counted(json!({ "a": 1, "b": 5, "c": 1 })));
        let drops = after.drops_since(&before);
        assert_eq!(drops.into_iter().collect::<Vec<_>>(), [("b".to_owned(), 3), ("c".to_owned(), 1)]);
        assert_eq!(after.port("up", "rx-packets").unwrap(), 5);
        assert_eq!(after.worker("polls").unwrap(), 9);
        assert!(after.port("down", "rx-packets").is_err() && after.port("up", "none").is_err());
    }
}
