//! This project's own switch: the daemon on a config made for the case, asked over its control socket.
//!
//! It gets the same ports as its peers (a pcap port that replays the frames, a null port that drops or a pcap port
//! that writes), one worker, and everything a tenant network needs: locations, a static underlay neighbour, VIPs.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use wire::MacAddr;

use super::cases::{Case, Job, Traffic};
use super::frames::{FAR_VTEP, NEAR_VTEP, SECOND_MAC, TENANT, Tenant, peer_ip, peer_mac, peers, routed_vtep};
use super::peer::{Attached, FramePort, StageTime, Switch, SwitchSetup, mbufs};
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::interrupt;
use crate::host::process::Process;
use crate::live::config::{Config, with};
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
            Some((bytes, waited)) => Err(Error::refused(format!(
                "{waited} packets had to wait for tokens where none should: {bytes} bytes were paid for, and the machine is faster \
                 than the rates of --qos, or a burst of packets is more than --burst"
            ))),
            None => Err(Error::refused("`show qos` has no nodes of classes, or no counter `waited`")),
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

/// How many times the rates are those for the shortest frames, so that none waits of longer ones either. Config takes 10 Tbit/s at most.
fn longer(job: &Job) -> u64 {
    (job.inner_bytes as u64).div_ceil(64).min(25)
}

/// A rate, or a tenant's part of it, in both directions: ten times and more what a core can carry, but a limit all the same, so that
/// each packet pays at every level.
fn both_ways(job: &Job, assured: u64, ceil: Option<u64>) -> Value {
    let tenants = u64::from(job.tenants.unwrap_or(1));
    let mut way = json!({ "assured": format!("{}Mbit", assured * longer(job) * 1000 / tenants) });
    if let Some(burst) = job.burst {
        way["burst"] = format!("{burst}B").into();
    }
    if let Some(ceil) = ceil {
        way["ceil"] = format!("{}Gbit", ceil * longer(job)).into();
    }
    json!({ "out": way, "in": way })
}

/// Security groups of a tenant, and rules of each.
const GROUPS: (usize, usize) = (1000, 10);

fn group_name(tenant: Tenant, group: usize) -> String {
    format!("t{}-{group}", tenant.0)
}

/// The groups of a tenant, who is in the first one. Its last rule lets in what the frames are.
fn groups(tenant: Tenant) -> impl Iterator<Item = Value> {
    // Of many tenants, one has them all.
    let count = if tenant.0 == 0 { GROUPS.0 } else { 1 };
    (0..count).map(move |number| {
        let rule = |n: usize| {
            let peer = group_name(tenant, (number + n + 1) % count);
            json!({ "direction": "in", "protocol": "tcp", "ports": n.to_string(), "group": peer })
        };
        let everybody = json!({ "direction": "in", "prefix": "0.0.0.0/0" });
        let rules: Vec<Value> = (1..GROUPS.1).map(rule).chain([everybody]).collect();
        json!({ "name": group_name(tenant, number), "vpc": vpc_name(tenant), "rules": rules })
    })
}

fn vpc_name(tenant: Tenant) -> String {
    format!("tenant{}", tenant.0)
}

/// Packets sent by a port, from `show port stats all`.
fn sent_by(answer: &Value, name: &str) -> Option<u64> {
    let port = answer.as_array()?.iter().find(|port| port["name"] == name)?;
    port["tx-packets"].as_u64()
}

/// Entries of the flow table: one per flow and direction and some room; none to spare where flows are replaced, so that an old one
/// has to go for each new one.
fn entries(job: &Job) -> usize {
    let flows = job.flows.count * job.case.ways().len();
    if job.mix.churn > 0 { flows } else { (flows * 5 / 4).max(65_536) }
}

fn config(setup: &SwitchSetup<'_>, daemon: &DaemonSetup<'_>) -> String {
    let job = setup.job;
    let replayed = setup.source.is_replayed();
    let (memory, mbufs) = (memory(job, replayed), mbufs(job, replayed));
    let mut config = begin(job, daemon, setup.cores, memory, mbufs, setup.plugin.as_deref());
    let port = |port: &FramePort, number: usize| {
        let mut settings = json!({ "port": port_value(port, number) });
        if let Some(device) = setup.offload {
            settings["offload"] = device.into();
        }
        settings
    };
    let (source, sink) = (("source", port(&setup.source, 0)), ("sink", port(&setup.sink, 1)));
    let (near, far) = if job.case == Case::Decap { (sink, source) } else { (source, sink) };
    if job.tenants.is_some() {
        config.add("trunk", with(json!({ "name": near.0 }), &near.1));
    }
    let tenants = || (0..job.tenants.unwrap_or(1)).map(Tenant);
    for tenant in tenants() {
        let (name, port) = match job.tenants {
            Some(_) => (format!("machine{}", tenant.0), json!({ "port": near.0, "vlan": tenant.vlan() })),
            None => (near.0.to_owned(), near.1.clone()),
        };
        network(&mut config, job, tenant);
        vnic(&mut config, job, tenant, (&name, &port), (TENANT.0, &[TENANT.1]));
    }
    if job.case == Case::L2 {
        let everybody: Vec<Ipv4Addr> = (0..peers(job)).map(peer_ip).collect();
        vnic(&mut config, job, Tenant(0), (far.0, &far.1), (SECOND_MAC, &everybody));
        return config.text();
    }
    // More than an Ethernet has is for devices of our own.
    let mtu = if matches!(setup.sink, FramePort::Attached(_)) { 1500 } else { 1600 };
    let neighbours: Vec<Station> = tenants().map(Tenant::vtep).collect();
    let routed = if job.mix.vteps > 0 { json!({ "gateway": [FAR_VTEP.1] }) } else { json!({}) };
    config.uplink(far.0, NEAR_VTEP, &neighbours, mtu, &with(far.1, &routed));
    for tenant in tenants() {
        let vtep = |index| if job.mix.vteps > 0 { routed_vtep(index) } else { tenant.vtep() };
        locations(&mut config, tenant, peers(job), vtep);
    }
    config.text()
}

/// Huge pages without fail, tables with room for all that a job has, and its rates.
pub(crate) fn begin(
    job: &Job,
    daemon: &DaemonSetup<'_>,
    cores: &[usize],
    memory: u64,
    mbufs: usize,
    plugin: Option<&Path>,
) -> Config {
    let mut config = Config::new(daemon);
    let memory = format!("{memory}MiB");
    config.set(&json!({
        "eal": { "huge-pages": "require", "memory": memory, "mbufs": mbufs, "plugins": plugin.as_slice() },
        "workers": { "cores": cores },
        "nft": { "entries": entries(job), "miss-rate": 0 },
    }));
    // Room for more queue pairs than there is without asking.
    if job.traffic != Traffic::Tcp && job.flows.count > 500_000 {
        config.set(&json!({ "rcft": { "entries": job.flows.count * 5 / 4 } }));
    }
    if job.qos {
        config.set(&json!({ "qos": { "link": format!("{}Gbit", 400 * longer(job)) } }));
    }
    for number in 0..job.idle_ports {
        let name = format!("idle{number}");
        config.add("port", json!({ "name": name, "port": { "kind": "tap", "iface": name } }));
    }
    if job.groups {
        // A connection for each flow.
        let count = entries(job).max(262_144);
        config.set(&json!({ "security": { "connections": count, "connections-per-vnic": count } }));
    }
    config
}

pub(crate) fn network(config: &mut Config, job: &Job, tenant: Tenant) {
    let rates = || json!({ "qos": both_ways(job, 200, Some(300)) });
    config.vpc(&vpc_name(tenant), tenant.vni().get(), &if job.qos { rates() } else { json!({}) });
    groups(tenant).filter(|_| job.groups).for_each(|group| config.add("security-group", group));
}

/// A vNIC of a tenant: its name and its port, its addresses.
pub(crate) fn vnic(
    config: &mut Config,
    job: &Job,
    tenant: Tenant,
    (name, port): (&str, &Value),
    (mac, vips): (MacAddr, &[Ipv4Addr]),
) {
    let mut settings = with(json!({ "vpc": vpc_name(tenant), "mtu": 1450 }), port);
    if job.qos {
        let class = both_ways(job, 40, None);
        let classes = json!({ "rdma": class, "tcp": class });
        settings["qos"] = with(both_ways(job, 90, Some(200)), &classes);
    }
    if job.groups {
        settings["security-groups"] = json!([group_name(tenant, 0)]);
    }
    config.vnic(name, mac, vips, &settings);
}

/// The counterparts of a tenant, behind their VTEPs.
pub(crate) fn locations(
    config: &mut Config,
    tenant: Tenant,
    counterparts: usize,
    vtep: impl Fn(usize) -> Station,
) {
    for index in 0..counterparts {
        config.location(tenant.vni().get(), (peer_mac(index), peer_ip(index)), vtep(index).1);
    }
}

/// The value of a port of the config; `number` tells devices apart.
pub(crate) fn port_value(port: &FramePort, number: usize) -> Value {
    match port {
        FramePort::Replayed { path, endless } => {
            json!({ "kind": "pcap", "rx-pcap": path, "infinite-rx": endless })
        }
        FramePort::File(path) => json!({ "kind": "pcap", "tx-pcap": path }),
        // The peers' devices too; kind "null" would also receive.
        FramePort::Drop | FramePort::Template(_) => json!({ "kind": "raw", "vdev": port.device(number) }),
        FramePort::Attached(Attached::Virtual(device)) => {
            json!({ "kind": "raw", "vdev": device, "trusted-peer": true })
        }
        FramePort::Attached(Attached::Guest(path)) => {
            json!({ "kind": "vhost-user", "path": path, "server": false })
        }
        FramePort::Attached(Attached::Pci(device)) => match device.split_once(',') {
            Some((address, more)) => json!({ "kind": "pci", "address": address, "devargs": more }),
            None => json!({ "kind": "pci", "address": device }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::Mix;

    fn text(case: Case, qos: bool) -> String {
        text_for(&Job { qos, ..Job::plain(case, "1k") })
    }

    fn text_for(job: &Job) -> String {
        let setup = SwitchSetup {
            job,
            source: FramePort::Replayed { path: "in.pcap".into(), endless: true },
            sink: FramePort::Drop,
            plugin: None,
            cores: &[1],
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
        assert!(l2.contains("10.0.129.16"));
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
    fn many_vteps_are_behind_one_router_and_a_table_with_churn_is_full() {
        let mix = Mix { vteps: 16_384, churn: 10, ..Mix::default() };
        let text = text_for(&Job { mix, ..Job::plain(Case::Encap, "100k") });
        let count = |word: &str| text.matches(word).count();
        assert_eq!((count("[[location]]"), count("[[uplink.neighbours]]")), (16_384, 1), "{text}");
        assert!(
            text.contains("gateway = [\"172.16.0.2\"]") && text.contains("vtep = \"172.17.64.0\""),
            "{text}"
        );
        assert!(text.contains("entries = 100000"), "{text}");
    }

    #[test]
    fn rates_are_given_only_when_asked_for() {
        assert!(!text(Case::Encap, false).contains("qos"));
        for (case, vnics) in [(Case::L2, 2), (Case::Encap, 1), (Case::Decap, 1)] {
            let text = text(case, true);
            assert!(text.contains("[qos]\nlink = "));
            assert_eq!(
                (text.matches("[vnic.qos.rdma.out]").count(), text.matches("ceil = \"300Gbit\"").count()),
                (vnics, 2)
            );
        }
    }

    #[test]
    fn rates_are_as_many_packets_of_any_length_and_bursts_as_many_bytes() {
        let text = text_for(&Job {
            inner_bytes: 1400,
            qos: true,
            burst: Some(131_072),
            ..Job::plain(Case::Encap, "1k")
        });
        assert!(text.contains("link = \"8800Gbit\""), "{text}");
        // Of the VPC, the vNIC and both classes, in both directions.
        assert_eq!(text.matches("burst = \"131072B\"").count(), 8, "{text}");
        let longest = text_for(&Job { inner_bytes: 9000, qos: true, ..Job::plain(Case::Encap, "1k") });
        assert!(longest.contains("link = \"10000Gbit\"") && !longest.contains("burst"), "{longest}");
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
