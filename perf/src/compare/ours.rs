//! This project's own switch: the daemon on a config made for the case, asked over its control socket.
//!
//! It gets the same ports as its peers (a pcap port that replays the frames, a null port that drops or a pcap port
//! that writes), one worker, and everything a tenant network needs: locations, a static underlay neighbour, VIPs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use wire::MacAddr;

use super::CompareError;
use super::cases::{Case, Job};
use super::frames::{
    LOCAL_VTEP, REMOTE_VTEP, REMOTE_VTEP_MAC, SECOND_MAC, TENANT_IP, TENANT_MAC, UPLINK_MAC, VNI, peer_ip,
    peer_mac, peers,
};
use super::peer::{Setup, Sink, Source, Switch, mbufs};
use crate::host::HostError;
use crate::host::daemon::{Daemon, DaemonSetup};
use crate::host::interrupt;
use crate::host::process::Process;

/// The running daemon.
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
    pub fn start(setup: &Setup<'_>) -> Result<Self, CompareError> {
        let daemon = DaemonSetup {
            program: setup.vswitch,
            folder: &setup.folder,
            prefix: &setup.prefix,
            cores: (setup.housekeeping, setup.core),
        };
        let text = config(setup, &daemon.socket());
        // What stays on the host crosses no link and pays nothing.
        let pays = setup.job.qos && setup.job.case != Case::L2;
        Ok(Self { daemon: Daemon::start(&daemon, &text)?, pays })
    }
}

impl Switch for Ours {
    fn name(&self) -> &str {
        "vswitch"
    }

    fn process(&mut self) -> &mut Process {
        self.daemon.process()
    }

    fn forwarded(&mut self) -> Result<u64, CompareError> {
        let answer = self.daemon.ask("show port stats all")?;
        let missing = || HostError::Refused(format!("`show port stats all` has no port `sink`: {answer}"));
        Ok(sent_by(&answer, "sink").ok_or_else(missing)?)
    }

    fn settle(&mut self) -> Result<(), CompareError> {
        let start = Instant::now();
        while self.pays {
            let answer = self.daemon.ask("show qos")?;
            match paid(&answer) {
                Some((bytes, 0)) if bytes > 0 => break,
                Some((0, 0)) if start.elapsed() < PATIENCE => interrupt::pause(Duration::from_millis(50))?,
                _ => {
                    let words = format!("packets are to pay and not to wait, but `show qos` says {answer}");
                    return Err(CompareError::Refused { switch: "vswitch", words });
                }
            }
        }
        Ok(())
    }
}

/// Huge-page memory for packet buffers and tables, in MiB.
pub(crate) fn memory(job: &Job) -> u64 {
    256 + mbufs(job) as u64 * 2560 / (1024 * 1024)
}

/// Bytes for which classes took tokens, and packets that had to wait, from `show qos`.
fn paid(answer: &Value) -> Option<(u64, u64)> {
    let classes = answer["nodes"].as_array()?.iter().filter(|node| node["level"] == "class");
    let bytes = classes.map(|node| node["drawn"].as_u64()).sum::<Option<u64>>()?;
    Some((bytes, answer["counters"]["waited"].as_u64()?))
}

/// What the config says of rates: the section of the link, and the lines of the VPC and its vNICs.
struct Rates {
    link: &'static str,
    vpc: &'static str,
    vnic: &'static str,
}

impl Rates {
    const NONE: Self = Self { link: "", vpc: "", vnic: "" };
    /// Ten times and more what a core can carry, but limits all the same: each packet pays at every level.
    const HIGH: Self = Self {
        link: "[qos]\nlink = \"400Gbit\"\n\n",
        vpc: "qos = { out = { assured = \"200Gbit\", ceil = \"300Gbit\" }, in = { assured = \"200Gbit\", ceil = \"300Gbit\" } }\n",
        vnic: "qos = { out = { assured = \"90Gbit\", ceil = \"200Gbit\" }, in = { assured = \"90Gbit\", ceil = \"200Gbit\" }, \
               rdma = { out = { assured = \"40Gbit\" }, in = { assured = \"40Gbit\" } }, \
               tcp = { out = { assured = \"40Gbit\" }, in = { assured = \"40Gbit\" } } }\n",
    };
}

/// Packets sent by a port, from `show port stats all`.
fn sent_by(answer: &Value, name: &str) -> Option<u64> {
    let port = answer.as_array()?.iter().find(|port| port["name"] == name)?;
    port["tx-packets"].as_u64()
}

fn config(setup: &Setup<'_>, socket: &Path) -> String {
    let job = setup.job;
    let rates = if job.qos { Rates::HIGH } else { Rates::NONE };
    let mut text = format!(
        "[eal]\nhuge-pages = \"require\"\nmemory = \"{}MiB\"\nfile-prefix = \"{}\"\nmbufs = {}\n\n\
         [workers]\ncores = [{}]\n\n[nft]\nentries = {}\nmiss-rate = 0\n\n[api]\nsocket = \"{}\"\n\n\
         {}[[vpc]]\nname = \"tenant\"\nvni = {}\n{}\n[[subnet]]\nvpc = \"tenant\"\nprefix = \"10.0.0.0/16\"\n\n",
        memory(job),
        setup.prefix,
        mbufs(job),
        setup.core,
        (job.flows.count * 2).next_power_of_two().max(65_536),
        socket.display(),
        rates.link,
        VNI.get(),
        rates.vpc,
    );
    let source = source_port(&setup.source);
    let sink = sink_port(&setup.sink);
    let everybody: Vec<String> =
        (0..peers(job.flows.count)).map(|index| format!("\"{}\"", peer_ip(index))).collect();
    match job.case {
        Case::L2 => {
            vnic(&mut text, "source", TENANT_MAC, &format!("\"{TENANT_IP}\""), &source, &rates);
            vnic(&mut text, "sink", SECOND_MAC, &everybody.join(", "), &sink, &rates);
        }
        Case::Encap => {
            vnic(&mut text, "source", TENANT_MAC, &format!("\"{TENANT_IP}\""), &source, &rates);
            tunnel(&mut text, job, "sink", &sink);
        }
        Case::Decap => {
            vnic(&mut text, "sink", TENANT_MAC, &format!("\"{TENANT_IP}\""), &sink, &rates);
            tunnel(&mut text, job, "source", &source);
        }
    }
    text
}

// Writing into a String cannot fail; the results are dropped for that reason.

fn vnic(text: &mut String, name: &str, mac: MacAddr, vips: &str, port: &str, rates: &Rates) {
    let _ = write!(
        text,
        "[[vnic]]\nname = \"{name}\"\nvpc = \"tenant\"\nmac = \"{mac}\"\nvips = [{vips}]\nmtu = 1450\nport = {port}\n{}\n",
        rates.vnic
    );
}

fn tunnel(text: &mut String, job: &Job, name: &str, port: &str) {
    let _ = write!(
        text,
        "[[uplink]]\nname = \"{name}\"\nport = {port}\naddresses = [\"{LOCAL_VTEP}/24\"]\nmac = \"{UPLINK_MAC}\"\nmtu = 1600\n\
         neighbours = [{{ ip = \"{REMOTE_VTEP}\", mac = \"{REMOTE_VTEP_MAC}\" }}]\n\n"
    );
    for index in 0..peers(job.flows.count) {
        let _ = write!(
            text,
            "[[location]]\nvni = {}\nvip = \"{}\"\nmac = \"{}\"\nvtep = \"{REMOTE_VTEP}\"\n\n",
            VNI.get(),
            peer_ip(index),
            peer_mac(index)
        );
    }
}

fn source_port(source: &Source) -> String {
    match source {
        Source::Endless(path) => {
            format!("{{ kind = \"pcap\", rx-pcap = \"{}\", infinite-rx = true }}", path.display())
        }
        Source::Once(path) => format!("{{ kind = \"pcap\", rx-pcap = \"{}\" }}", path.display()),
    }
}

fn sink_port(sink: &Sink) -> String {
    match sink {
        // The same device as the peers' sink; kind "null" would also receive.
        Sink::Drop => "{ kind = \"raw\", vdev = \"net_null_sink,no-rx=1\" }".into(),
        Sink::File(path) => format!("{{ kind = \"pcap\", tx-pcap = \"{}\" }}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compare::cases::Traffic;

    fn text(case: Case, qos: bool) -> String {
        let job = Job { case, flows: "1k".parse().unwrap(), inner_bytes: 64, traffic: Traffic::Tcp, qos };
        let setup = Setup {
            job: &job,
            source: Source::Endless("in.pcap".into()),
            sink: Sink::Drop,
            core: 1,
            housekeeping: 0,
            folder: "folder".into(),
            prefix: "prefix".into(),
            exact_match_cache: Default::default(),
            vswitch: Path::new("vswitch"),
        };
        config(&setup, Path::new("socket"))
    }

    #[test]
    fn each_case_has_its_ports_and_everybody_has_a_place() {
        let l2 = text(Case::L2, false);
        assert_eq!((l2.matches("[[vnic]]").count(), l2.matches("[[uplink]]").count()), (2, 0));
        assert!(l2.contains("10.0.1.16"));
        for case in [Case::Encap, Case::Decap] {
            let text = text(case, false);
            assert_eq!((text.matches("[[vnic]]").count(), text.matches("[[uplink]]").count()), (1, 1));
            assert_eq!(text.matches("[[location]]").count(), 16);
        }
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
    fn finds_the_port_by_its_name() {
        let answer = json!([{ "name": "source", "tx-packets": 1 }, { "name": "sink", "tx-packets": 2 }]);
        assert_eq!((sent_by(&answer, "sink"), sent_by(&answer, "other")), (Some(2), None));
    }
}
