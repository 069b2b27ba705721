//! Configs of the daemon for live traffic, and the figures read from its answers.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use wire::MacAddr;

use super::testbed::Station;
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::interrupt;
use crate::{Error, Result};

/// A config of the daemon in the making: its sections, and its lists of objects.
#[derive(Debug)]
pub struct Config(Value);

/// Settings with further ones.
pub fn with(settings: Value, more: &Value) -> Value {
    match (settings, more) {
        (Value::Object(mut settings), Value::Object(more)) => {
            settings.extend(more.clone());
            Value::Object(settings)
        }
        (_, more) => more.clone(),
    }
}

/// A memif of the daemon; `role` is `server` or `client`.
pub fn memif_port(socket: &Path, id: u32, role: &str) -> Value {
    json!({ "kind": "memif", "socket": socket, "id": id, "role": role })
}

impl Config {
    /// Of one worker, on the core that forwards.
    pub fn new(daemon: &DaemonSetup<'_>) -> Self {
        Self(json!({
            "eal": { "huge-pages": "auto", "memory": "192MiB", "mbufs": 32_768, "file-prefix": daemon.prefix },
            "workers": { "cores": [daemon.cores.forwarding] },
            "api": { "socket": daemon.socket() },
        }))
    }

    /// Sets keys of sections.
    pub fn set(&mut self, sections: &Value) {
        for (section, keys) in sections.as_object().into_iter().flatten() {
            self.0[section] = with(self.0[section].take(), keys);
        }
    }

    pub fn add(&mut self, list: &str, object: Value) {
        match &mut self.0[list] {
            Value::Array(objects) => objects.push(object),
            none => *none = json!([object]),
        }
    }

    /// A VPC, with further settings, and its subnet.
    pub fn vpc(&mut self, name: &str, vni: u32, more: &Value) {
        self.add("vpc", with(json!({ "name": name, "vni": vni }), more));
        self.add("subnet", json!({ "vpc": name, "prefix": "10.0.0.0/16" }));
    }

    /// A vNIC with its addresses; `more` are its VPC, its MTU, its port and what else there is to say.
    pub fn vnic(&mut self, name: &str, mac: MacAddr, vips: &[Ipv4Addr], more: &Value) {
        self.add("vnic", with(json!({ "name": name, "mac": mac.to_string(), "vips": vips }), more));
    }

    /// An uplink with its own end of the tunnels and the far ones; `more` has its port.
    pub fn uplink(&mut self, name: &str, own: Station, far: &[Station], mtu: u16, more: &Value) {
        let neighbour = |(mac, ip): &Station| json!({ "ip": ip, "mac": mac.to_string() });
        let neighbours: Vec<Value> = far.iter().map(neighbour).collect();
        let addresses = [format!("{}/24", own.1)];
        let own = json!({ "name": name, "addresses": addresses, "mac": own.0.to_string(), "mtu": mtu });
        self.add("uplink", with(with(own, &json!({ "neighbours": neighbours })), more));
    }

    pub fn location(&mut self, vni: u32, (mac, vip): Station, vtep: Ipv4Addr) {
        self.add("location", json!({ "vni": vni, "vip": vip, "mac": mac.to_string(), "vtep": vtep }));
    }

    /// The file that the daemon reads. Values of these kinds can be written always.
    pub fn text(&self) -> String {
        toml::to_string(&self.0).unwrap_or_default()
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
    let what = format!("that all of {count} ports are started, after 20 s");
    started.ok_or_else(|| Error::answer("port list", what, &last))
}

pub fn number(answer: &Value, path: &str, command: &str) -> Result<u64> {
    answer.pointer(path).and_then(Value::as_u64).ok_or_else(|| Error::answer(command, path, answer))
}

/// The row of a list of named ones.
pub fn row<'a>(answer: &'a Value, name: &str, command: &str) -> Result<&'a Value> {
    let rows = answer.as_array().into_iter().flatten();
    let missing = || Error::answer(command, format!("a row named {name}"), answer);
    rows.into_iter().find(|row| row["name"] == name).ok_or_else(missing)
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
