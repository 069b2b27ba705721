//! Scenarios of the topology, without DPDK: configs from text, ports from a list, decisions asked of the pipeline.
//!
//! Here is the lab they share; each file beside this one has one subject.

mod bfd;
mod cells;
mod failures;
mod floating;
mod following;
mod history;
mod link_local;
mod many;
mod repair;
mod security;
mod slots;
mod stations;
mod vteps;

use std::net::IpAddr;
use std::time::Instant;

use pipelines::decide::decide;
use pipelines::event::{Binding, Claim};
use pipelines::flow_key::{FlowKey, Scope};
use pipelines::nft::{FlowAction, FlowVerdict};
use pipelines::snapshot::Destination;
use pipelines::vlt::{Place, Tunnel};
use wire::{L3, MacAddr, Vni};

use super::*;
use crate::topology::testing::Names;

/// What an answer is worth.
const ANSWER: Claim = Claim { overrides: true, confirms: true };
/// No cell.
const NONE: [u32; 0] = [];

const PORTS: Names = Names(&["up", "up2", "va", "vb", "vc"]);

const UPLINK: &str = r#"
[[uplink]]
name = "up"
port = { kind = "null" }
addresses = ["172.16.0.1/24"]
"#;

fn vpc(name: &str, vni: u32, more: &str) -> String {
    format!(
        "[[vpc]]\nname = \"{name}\"\nvni = {vni}\n{more}\n[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.{}.0.0/24\"\n",
        name.as_bytes()[0]
    )
}

fn vnic(name: &str, vpc: &str, host: u8) -> String {
    let net = vpc.as_bytes()[0];
    format!(
        "[[vnic]]\nname = \"{name}\"\nvpc = \"{vpc}\"\nmac = \"02:00:00:00:00:{host:02x}\"\nvips = [\"10.{net}.0.{host}\"]\nport = {{ kind = \"null\" }}\n"
    )
}

fn location(vni: u32, net: u8, host: u8, mac: u8, vtep: u8) -> String {
    format!(
        "[[location]]\nvni = {vni}\nvip = \"10.{net}.0.{host}\"\nmac = \"02:00:00:00:00:{mac:02x}\"\nvtep = \"172.16.0.{vtep}\"\n"
    )
}

fn config(parts: &[String]) -> Config {
    let text = format!("{UPLINK}{}", parts.concat());
    Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

struct Lab {
    topology: Topology,
    neighbours: Neighbours,
}

impl Lab {
    fn new(entries: u32) -> Self {
        Self { topology: Topology::new(entries), neighbours: Neighbours::default() }
    }
    fn try_set(&mut self, config: &Config) -> Result<(), TopologyError> {
        self.topology.rebuild(config, &PORTS, &self.neighbours)?;
        self.topology.commit();
        self.topology.settle(&mut self.neighbours);
        Ok(())
    }
    fn set(&mut self, config: &Config) {
        self.try_set(config).unwrap();
    }
    fn hear(&mut self, host: u8, mac: u8) {
        let (address, mac) = (vtep(host), MacAddr([2, 0, 0, 0, 2, mac]));
        if self.neighbours.learn(0, Binding { address, mac }, ANSWER, Instant::now()) {
            self.topology.next_hop_changed(0, address, &mut self.neighbours);
        }
    }
    fn cells_after(&mut self, config: &Config) -> Vec<u32> {
        let before = self.topology.snapshot().cells.clone();
        self.set(config);
        let after = &self.topology.snapshot().cells;
        (0..after.len()).filter(|&i| before.get(i) != Some(&after[i])).map(|i| i as u32).collect()
    }
    fn vpc(&self, name: &str) -> Arc<pipelines::snapshot::Vpc> {
        let found = self.topology.snapshot().vpcs.iter().flatten().find(|vpc| vpc.name == name);
        found.unwrap_or_else(|| panic!("no VPC {name}")).clone()
    }
    fn vnic_cell(&self, name: &str) -> u32 {
        self.topology.snapshot().vnics.iter().flatten().find(|vnic| vnic.name == name).unwrap().cell
    }
    fn all_cells(&self, vpc: &str, vnics: &[&str]) -> Vec<u32> {
        let vpc = self.vpc(vpc);
        let mut cells = vec![vpc.cell, vpc.topology_cell];
        cells.extend(vnics.iter().map(|name| self.vnic_cell(name)));
        cells.sort_unstable();
        cells
    }
    fn slot(&self, vpc: &str, host: u8) -> SlotRef {
        let address = ip(vpc.as_bytes()[0], host);
        self.topology.snapshot().location(self.vpc(vpc).index, Destination::Ip(address)).unwrap().slot
    }
    fn place(&self, slot: SlotRef) -> Place {
        self.topology.writer.table().read(slot.slot).place
    }
    /// Where the group of a slot leads: by its first bucket.
    fn hop_of(&self, slot: SlotRef) -> Option<(u16, MacAddr)> {
        let Place::Remote(tunnel) = self.place(slot) else { panic!("{slot:?} is not behind a VTEP") };
        self.hop(tunnel.group)
    }
    fn hop(&self, group: u16) -> Option<(u16, MacAddr)> {
        self.topology.writer.table().next_hops().find(group, 0).map(|hop| (hop.uplink(), hop.mac()))
    }
    fn used(&self) -> usize {
        self.topology.vlt_usage().0
    }
    /// What is decided for the packets of every VPC and vNIC there is, in terms that do not depend on indices.
    fn decisions(&self) -> Vec<String> {
        let keys = keys(self.topology.snapshot()).into_iter();
        let mut told: Vec<String> = keys
            .map(|(who, key)| format!("{who}: {}", tell(self, &decide(self.topology.snapshot(), &key))))
            .collect();
        told.sort();
        told
    }
}

fn ip(net: u8, host: u8) -> IpAddr {
    IpAddr::from([10, net, 0, host])
}

fn vtep(host: u8) -> IpAddr {
    IpAddr::from([172, 16, 0, host])
}

fn keys(snapshot: &Snapshot) -> Vec<(String, FlowKey)> {
    let vnics = snapshot.vnics.iter().flatten();
    let vnics = vnics.map(|vnic| (format!("vnic {}", vnic.name), Scope::Vnic(vnic.index), vnic.vpc));
    let vpcs = snapshot.vpcs.iter().flatten();
    let vpcs = vpcs.map(|vpc| (format!("vpc {}", vpc.name), Scope::Vpc(vpc.index), vpc.index));
    let mut keys = Vec::new();
    for (who, scope, vpc) in vnics.chain(vpcs) {
        let rest = u64::from(scope.raw()) << 32;
        // From the VPC's own network: the router takes nothing from a martian.
        let net = snapshot.vpc(vpc).unwrap().name.as_bytes()[0];
        let from = u64::from(u32::from_be_bytes([10, net, 0, 1])) << 32;
        for net in [b'a', b'b', b'c', 200] {
            for host in 1..8u8 {
                let to = u64::from(u32::from_be_bytes([10, net, 0, host]));
                let words = [from | to, 0, 0, 0, rest, 0, (L3::Ipv4 as u64) << 16 | 1 << 24];
                keys.push((format!("{who} to {}", ip(net, host)), FlowKey::from_words(words)));
            }
        }
        for host in 1..8u64 {
            let words = [0, 0, 0, 0, rest, (0x0200_0000_0000 | host) << 16, (L3::Ipv4 as u64) << 16];
            keys.push((format!("{who} to mac {host}"), FlowKey::from_words(words)));
        }
    }
    keys
}

fn address_of(lab: &Lab, number: u32) -> Option<IpAddr> {
    lab.topology.draft.vteps.iter().find(|(_, known)| **known == number).map(|(address, _)| *address)
}

fn tell(lab: &Lab, action: &FlowAction) -> String {
    let place = match action.verdict {
        FlowVerdict::Forward => match lab.topology.writer.table().read(action.slot).place {
            Place::Local { vnic } => {
                format!("{:?}", lab.topology.snapshot().vnic(vnic).map(|vnic| &vnic.name))
            }
            // The numbers of VTEPs depend on the history.
            // Those of next-hop groups do too.
            Place::Remote(tunnel) => {
                let hop = lab.hop(tunnel.group);
                let (vtep, tunnel) = (tunnel.vtep, Tunnel { vtep: 0, group: 0, ..tunnel });
                format!("{tunnel:?} by {hop:?}, behind {:?}", address_of(lab, vtep))
            }
            Place::Empty => "nowhere".into(),
        },
        _ => String::new(),
    };
    format!("{:?} {} {:?} {} {place}", action.verdict, action.reason, action.macs(), action.rcft)
}

/// What a worker's NFT would still use.
fn valid(lab: &Lab, action: &FlowAction) -> bool {
    let snapshot = lab.topology.snapshot();
    action.generation == snapshot.generation(action.cell)
        && (action.verdict != FlowVerdict::Forward
            || lab.topology.writer.table().read(action.slot).generation == action.slot_generation)
}

fn base() -> Vec<String> {
    vec![
        vpc("a", 1, "routes = [{ to = \"10.98.0.0/24\", vpc = \"b\" }]"),
        vpc("b", 2, ""),
        vnic("va", "a", 1),
        vnic("vb", "b", 1),
        location(1, b'a', 2, 2, 2),
        location(2, b'b', 2, 2, 3),
    ]
}

fn with(more: &[String]) -> Config {
    config(&[base(), more.to_vec()].concat())
}
