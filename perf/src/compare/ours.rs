//! This project's own switch: the daemon on a config made for the case, asked over its control socket.
//!
//! It gets the same ports as its peers (a pcap port that replays the frames, a null port that drops or a pcap port
//! that writes), one worker, and everything a tenant network needs: locations, a static underlay neighbour, VIPs.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::Value;
use wire::MacAddr;

use super::cases::{Case, Job, Traffic};
use super::frames::{NEAR_VTEP, SECOND_MAC, TENANT, TRUNK_PEERS, Tenant, peer_ip, peer_mac, peers};
use super::peer::{Attached, FramePort, StageTime, Switch, SwitchSetup, mbufs};
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::interrupt;
use crate::host::process::Process;
use crate::live::config::{Config, Head, UplinkLines, VnicLines};
use crate::live::testbed::Station;
use crate::{Error, Result};

#[derive(Debug)]
pub struct Ours {
    daemon: Daemon,
    /// Whether its packets are to pay.
    pays: bool,
}

/// How long the first packets may take to pay.
const PATIENCE: Duration = Duration::from_secs(5);

impl Ours {
    /// Starts the daemon on a config for the job.
    pub fn start(setup: &SwitchSetup<'_>) -> Result<Self> {
        let daemon = setup.daemon();
        let text = config(setup, &daemon);
        Self::start_with(&daemon, &text, setup.job)
    }

    /// The same on a config of the caller's.
    pub fn start_with(daemon: &DaemonSetup<'_>, text: &str, job: &Job) -> Result<Self> {
        // What stays on the host crosses no link and pays nothing.
        let pays = job.qos && job.case != Case::L2;
        Ok(Self { daemon: Daemon::start(daemon, text)?, pays })
    }

    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

impl Switch for Ours {
    fn name(&self) -> &str {
        "vswitch"
    }

    fn process(&mut self) -> &mut Process {
        self.daemon.process()
    }

    fn forwarded(&mut self) -> Result<u64> {
        let answer = self.daemon.ask("show port stats all")?;
        let missing = || Error::refused(format!("`show port stats all` has no port `sink`: {answer}"));
        sent_by(&answer, "sink").ok_or_else(missing)
    }

    fn settle(&mut self) -> Result<()> {
        let paid = interrupt::until(PATIENCE, || Ok((self.drawn()? > 0 || !self.pays).then_some(())))?;
        paid.ok_or_else(|| Error::refused(format!("nothing was paid for within {} s", PATIENCE.as_secs())))
    }

    fn drawn(&mut self) -> Result<u64> {
        if !self.pays {
            return Ok(0);
        }
        let answer = self.daemon.ask("show qos")?;
        match paid(&answer) {
            Some((bytes, 0)) => Ok(bytes),
            _ => Err(Error::refused(format!(
                "packets are to pay and not to wait, but `show qos` says {answer}"
            ))),
        }
    }

    fn watch(&mut self) -> Result<()> {
        self.daemon.ask("runtime on")?;
        Ok(())
    }

    fn watched(&mut self) -> Result<Vec<StageTime>> {
        let answer = self.daemon.ask("show runtime")?;
        self.daemon.ask("runtime off")?;
        let missing = || Error::refused(format!("`show runtime` lacks what stages took: {answer}"));
        stage_times(&answer).ok_or_else(missing)
    }
}

/// The stages of the one worker, from `show runtime`.
fn stage_times(answer: &Value) -> Option<Vec<StageTime>> {
    let time = |stage: &Value| {
        Some(StageTime {
            stage: stage["stage"].as_str()?.to_owned(),
            cycles: stage["cycles-per-received-packet"].as_f64()?,
            burst: stage["packets"].as_f64()? / stage["bursts"].as_f64()?,
        })
    };
    answer["stages"].as_array()?.iter().map(time).collect()
}

/// Huge-page memory for packet buffers and tables, in MiB.
pub(crate) fn memory(job: &Job, replayed: bool) -> u64 {
    256 + mbufs(job, replayed) as u64 * 2560 / (1024 * 1024)
}

/// Bytes for which classes took tokens, and packets that had to wait, from `show qos`.
fn paid(answer: &Value) -> Option<(u64, u64)> {
    let classes = answer["nodes"].as_array()?.iter().filter(|node| node["level"] == "class");
    let bytes = classes.map(|node| node["drawn"].as_u64()).sum::<Option<u64>>()?;
    Some((bytes, answer["counters"]["waited"].as_u64()?))
}

/// Rates that are ten times and more what a core can carry, but limits all the same: each packet pays at every level.
const LINK_RATE: &str = "[qos]\nlink = \"400Gbit\"";

/// A rate, or a tenant's part of it, in both directions.
fn both_ways(assured: u64, ceil: Option<u64>, tenants: u32) -> String {
    let megabits = assured * 1000 / u64::from(tenants);
    let ceil = ceil.map_or_else(String::new, |ceil| format!(", ceil = \"{ceil}Gbit\""));
    let way = format!("{{ assured = \"{megabits}Mbit\"{ceil} }}");
    format!("out = {way}, in = {way}")
}

/// The lines of a VPC and of a vNIC; empty without rates.
fn vpc_rates(job: &Job) -> String {
    if !job.qos {
        return String::new();
    }
    format!("qos = {{ {} }}\n", both_ways(200, Some(300), job.tenants.unwrap_or(1)))
}

fn vnic_rates(job: &Job) -> String {
    if !job.qos {
        return String::new();
    }
    let tenants = job.tenants.unwrap_or(1);
    let (whole, class) = (both_ways(90, Some(200), tenants), both_ways(40, None, tenants));
    format!("qos = {{ {whole}, rdma = {{ {class} }}, tcp = {{ {class} }} }}\n")
}

/// Room for a connection for each flow; empty without groups.
fn connections(job: &Job) -> String {
    if !job.groups {
        return String::new();
    }
    let count = entries(job).max(262_144);
    format!("[security]\nconnections = {count}\nconnections-per-vnic = {count}")
}

/// Security groups of a tenant, and rules of each.
const GROUPS: (usize, usize) = (1000, 10);

/// The groups of a tenant, who is in the first one. Its last rule lets in what the frames are.
fn groups(job: &Job, tenant: Tenant) -> String {
    if !job.groups {
        return String::new();
    }
    // Of many tenants, one has them all.
    let count = if tenant.0 == 0 { GROUPS.0 } else { 1 };
    let name = |group: usize| format!("t{}-{group}", tenant.0);
    let group = |number: usize| {
        let rule = |n: usize| {
            let peer = (number + n + 1) % count;
            format!(
                "{{ direction = \"in\", protocol = \"tcp\", ports = \"{n}\", group = \"{}\" }}",
                name(peer)
            )
        };
        let mut rules: Vec<String> = (1..GROUPS.1).map(rule).collect();
        rules.push("{ direction = \"in\", prefix = \"0.0.0.0/0\" }".into());
        format!(
            "[[security-group]]\nname = \"{}\"\nvpc = \"tenant{}\"\nrules = [{}]\n",
            name(number),
            tenant.0,
            rules.join(", ")
        )
    };
    (0..count).map(group).collect()
}

fn membership(job: &Job, tenant: Tenant) -> String {
    if job.groups { format!("security-groups = [\"t{}-0\"]\n", tenant.0) } else { String::new() }
}

/// Packets sent by a port, from `show port stats all`.
fn sent_by(answer: &Value, name: &str) -> Option<u64> {
    let port = answer.as_array()?.iter().find(|port| port["name"] == name)?;
    port["tx-packets"].as_u64()
}

/// Entries of the flow table: one per flow and direction and some room.
fn entries(job: &Job) -> usize {
    (job.flows.count * job.case.ways().len() * 5 / 4).max(65_536)
}

/// Room for more queue pairs than there is without asking.
fn queue_pairs(job: &Job) -> String {
    if job.traffic == Traffic::Tcp || job.flows.count <= 500_000 {
        return String::new();
    }
    format!("[rcft]\nentries = {}", job.flows.count * 5 / 4)
}

fn config(setup: &SwitchSetup<'_>, daemon: &DaemonSetup<'_>) -> String {
    let job = setup.job;
    let replayed = setup.source.is_replayed();
    let mut config = begin(
        job,
        &Head {
            memory: memory(job, replayed),
            mbufs: mbufs(job, replayed),
            plugin: setup.plugin.as_deref(),
            cores: &setup.cores(),
            ..Head::new(daemon)
        },
    );
    let offload = setup.offload.map_or_else(String::new, |device| format!("\noffload = \"{device}\""));
    let source = ("source", port_value(&setup.source, 0) + &offload);
    let sink = ("sink", port_value(&setup.sink, 1) + &offload);
    let (near, far) = if job.case == Case::Decap { (sink, source) } else { (source, sink) };
    if job.tenants.is_some() {
        config.section(&format!("[[trunk]]\nname = \"{}\"\nport = {}", near.0, near.1));
    }
    let tenants = || (0..job.tenants.unwrap_or(1)).map(Tenant);
    for tenant in tenants() {
        let (name, port) = match job.tenants {
            Some(_) => (format!("machine{}", tenant.0), format!("\"{}\"\nvlan = {}", near.0, tenant.vlan())),
            None => (near.0.to_owned(), near.1.clone()),
        };
        network(&mut config, job, tenant);
        vnic(&mut config, job, tenant, (&name, &port), (TENANT.0, &[TENANT.1]));
    }
    if job.case == Case::L2 {
        let everybody: Vec<Ipv4Addr> = (0..peers(job.flows.count)).map(peer_ip).collect();
        vnic(&mut config, job, Tenant(0), (far.0, &far.1), (SECOND_MAC, &everybody));
        return config.text().to_owned();
    }
    // More than an Ethernet has is for devices of our own.
    let mtu = if matches!(setup.sink, FramePort::Attached(_)) { 1500 } else { 1600 };
    let vteps: Vec<Station> = tenants().map(Tenant::vtep).collect();
    config.uplink(&UplinkLines { name: far.0, own: NEAR_VTEP, far: &vteps, mtu, port: &far.1 });
    let counterparts = if job.tenants.is_some() { TRUNK_PEERS } else { peers(job.flows.count) };
    for (tenant, vtep) in tenants().zip(vteps) {
        locations(&mut config, tenant, vtep, counterparts);
    }
    config.text().to_owned()
}

/// Huge pages without fail, tables with room for all that a job has, and its rates.
pub(crate) fn begin(job: &Job, head: &Head<'_>) -> Config {
    let nft = format!("entries = {}\nmiss-rate = 0", entries(job));
    let mut config = Config::new(&Head { hugepages: "require", nft: &nft, ..*head });
    config.section(&queue_pairs(job)).section(if job.qos { LINK_RATE } else { "" });
    config.section(&connections(job));
    config
}

pub(crate) fn network(config: &mut Config, job: &Job, tenant: Tenant) {
    config.vpc(&format!("tenant{}", tenant.0), tenant.vni().get(), &vpc_rates(job));
    config.section(&groups(job, tenant));
}

/// A vNIC of a tenant: its name and the value of its port, its addresses.
pub(crate) fn vnic(
    config: &mut Config,
    job: &Job,
    tenant: Tenant,
    (name, port): (&str, &str),
    (mac, vips): (MacAddr, &[Ipv4Addr]),
) {
    let (vpc, more) = (format!("tenant{}", tenant.0), vnic_rates(job) + &membership(job, tenant));
    config.vnic(&VnicLines { name, vpc: &vpc, mac, vips, mtu: 1450, port, more: &more });
}

/// The counterparts of a tenant, behind a VTEP.
pub(crate) fn locations(config: &mut Config, tenant: Tenant, vtep: Station, counterparts: usize) {
    for index in 0..counterparts {
        config.location(tenant.vni().get(), (peer_mac(index), peer_ip(index)), vtep.1);
    }
}

/// The value of a port of the config; `number` tells devices apart.
fn port_value(port: &FramePort, number: usize) -> String {
    match port {
        FramePort::Replayed { path, endless } => {
            let endless = if *endless { ", infinite-rx = true" } else { "" };
            format!("{{ kind = \"pcap\", rx-pcap = \"{}\"{endless} }}", path.display())
        }
        FramePort::File(path) => format!("{{ kind = \"pcap\", tx-pcap = \"{}\" }}", path.display()),
        // The peers' devices too; kind "null" would also receive.
        FramePort::Drop | FramePort::Template(_) => {
            format!("{{ kind = \"raw\", vdev = \"{}\" }}", port.device(number))
        }
        FramePort::Attached(Attached::Virtual(device)) => {
            format!("{{ kind = \"raw\", vdev = \"{device}\", trusted-peer = true }}")
        }
        FramePort::Attached(Attached::Pci(device)) => match device.split_once(',') {
            Some((address, more)) => {
                format!("{{ kind = \"pci\", address = \"{address}\", devargs = \"{more}\" }}")
            }
            None => format!("{{ kind = \"pci\", address = \"{device}\" }}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(case: Case, qos: bool) -> String {
        text_for(&Job { qos, ..Job::plain(case, "1k") })
    }

    fn text_for(job: &Job) -> String {
        let setup = SwitchSetup {
            job,
            source: FramePort::Replayed { path: "in.pcap".into(), endless: true },
            sink: FramePort::Drop,
            plugin: None,
            core: 1,
            more_cores: &[],
            offload: None,
            housekeeping: 0,
            folder: "folder".into(),
            prefix: "prefix".into(),
            exact_match_cache: Default::default(),
            vswitch: std::path::Path::new("vswitch"),
        };
        config(&setup, &setup.daemon())
    }

    #[test]
    fn each_case_has_its_ports_and_everybody_has_a_place() {
        let l2 = text(Case::L2, false);
        assert_eq!((l2.matches("[[vnic]]").count(), l2.matches("[[uplink]]").count()), (2, 0));
        assert!(l2.contains("10.0.1.16"));
        for case in [Case::Encap, Case::Decap, Case::Both] {
            let text = text(case, false);
            assert_eq!((text.matches("[[vnic]]").count(), text.matches("[[uplink]]").count()), (1, 1));
            assert_eq!(text.matches("[[location]]").count(), 16);
        }
        let text = text_for(&Job { tenants: Some(64), qos: true, ..Job::plain(Case::Decap, "1k") });
        let count = |word: &str| text.matches(word).count();
        assert_eq!((count("[[vnic]]"), count("[[trunk]]"), count("[[location]]")), (64, 1, 256));
        assert_eq!(
            (count("port = \"sink\""), count("ip = \"172.16.0."), count("\"1406Mbit\"")),
            (64, 64, 128)
        );
    }

    #[test]
    fn rates_are_given_only_when_asked_for() {
        assert!(!text(Case::Encap, false).contains("qos"));
        for (case, vnics) in [(Case::L2, 2), (Case::Encap, 1), (Case::Decap, 1)] {
            let text = text(case, true);
            assert!(text.contains("[qos]\nlink = "));
            assert_eq!(
                (text.matches("rdma = { out").count(), text.matches("ceil = \"300Gbit\"").count()),
                (vnics, 2)
            );
        }
    }

    #[test]
    fn what_was_paid_is_the_sum_over_classes() {
        let node = |level: &str, drawn: u64| json!({ "level": level, "drawn": drawn });
        let nodes = [node("link", 99), node("class", 3), node("class", 4)];
        assert_eq!(paid(&json!({ "nodes": nodes, "counters": { "waited": 2 } })), Some((7, 2)));
        assert_eq!(paid(&json!({ "nodes": nodes, "counters": {} })), None);
    }

    #[test]
    fn stages_are_those_of_the_worker() {
        let answer = json!({ "watching": true, "lap-cycles": 60, "stages": [
            { "worker": 0, "stage": "rx", "packets": 64, "bursts": 2, "cycles": 640,
              "cycles-per-received-packet": 10.0, "share": 1.0 }
        ] });
        let rx = StageTime { stage: "rx".into(), cycles: 10.0, burst: 32.0 };
        assert_eq!(stage_times(&answer), Some(vec![rx]));
        assert_eq!(stage_times(&json!({ "stages": [{ "stage": "rx" }] })), None);
    }

    #[test]
    fn finds_the_port_by_its_name() {
        let answer = json!([{ "name": "source", "tx-packets": 1 }, { "name": "sink", "tx-packets": 2 }]);
        assert_eq!((sent_by(&answer, "sink"), sent_by(&answer, "other")), (Some(2), None));
    }
}
