//! This project's own switch: the daemon on a config made for the case, asked over its control socket.
//!
//! It gets the same ports as its peers (a pcap port that replays the frames, a null port that drops or a pcap port
//! that writes), one worker, and everything a tenant network needs: locations, a static underlay neighbour, VIPs.

use std::fmt::Write as _;
use std::path::Path;

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
use crate::host::process::Process;

/// The running daemon.
#[derive(Debug)]
pub struct Ours(Daemon);

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
        Ok(Self(Daemon::start(&daemon, &text)?))
    }
}

impl Switch for Ours {
    fn name(&self) -> &str {
        "vswitch"
    }

    fn process(&mut self) -> &mut Process {
        self.0.process()
    }

    fn forwarded(&mut self) -> Result<u64, CompareError> {
        let answer = self.0.ask("show port stats all")?;
        let missing = || HostError::Refused(format!("`show port stats all` has no port `sink`: {answer}"));
        Ok(sent_by(&answer, "sink").ok_or_else(missing)?)
    }

    fn settle(&mut self) -> Result<(), CompareError> {
        Ok(())
    }
}

/// Huge-page memory for packet buffers and tables, in MiB.
pub(crate) fn memory(job: &Job) -> u64 {
    256 + mbufs(job) as u64 * 2560 / (1024 * 1024)
}

/// Packets sent by a port, from `show port stats all`.
fn sent_by(answer: &Value, name: &str) -> Option<u64> {
    let port = answer.as_array()?.iter().find(|port| port["name"] == name)?;
    port["tx-packets"].as_u64()
}

fn config(setup: &Setup<'_>, socket: &Path) -> String {
    let job = setup.job;
    let mut text = format!(
        "[eal]\nhuge-pages = \"require\"\nmemory = \"{}MiB\"\nfile-prefix = \"{}\"\nmbufs = {}\n\n\
         [workers]\ncores = [{}]\n\n[nft]\nentries = {}\nmiss-rate = 0\n\n[api]\nsocket = \"{}\"\n\n\
         [[vpc]]\nname = \"tenant\"\nvni = {}\n\n[[subnet]]\nvpc = \"tenant\"\nprefix = \"10.0.0.0/16\"\n\n",
        memory(job),
        setup.prefix,
        mbufs(job),
        setup.core,
        (job.flows.count * 2).next_power_of_two().max(65_536),
        socket.display(),
        VNI.get(),
    );
    let source = source_port(&setup.source);
    let sink = sink_port(&setup.sink);
    let everybody: Vec<String> =
        (0..peers(job.flows.count)).map(|index| format!("\"{}\"", peer_ip(index))).collect();
    match job.case {
        Case::L2 => {
            vnic(&mut text, "source", TENANT_MAC, &format!("\"{TENANT_IP}\""), &source);
            vnic(&mut text, "sink", SECOND_MAC, &everybody.join(", "), &sink);
        }
        Case::Encap => {
            vnic(&mut text, "source", TENANT_MAC, &format!("\"{TENANT_IP}\""), &source);
            tunnel(&mut text, job, "sink", &sink);
        }
        Case::Decap => {
            vnic(&mut text, "sink", TENANT_MAC, &format!("\"{TENANT_IP}\""), &sink);
            tunnel(&mut text, job, "source", &source);
        }
    }
    text
}

// Writing into a String cannot fail; the results are dropped for that reason.

fn vnic(text: &mut String, name: &str, mac: MacAddr, vips: &str, port: &str) {
    let _ = write!(
        text,
        "[[vnic]]\nname = \"{name}\"\nvpc = \"tenant\"\nmac = \"{mac}\"\nvips = [{vips}]\nmtu = 1450\nport = {port}\n\n"
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

    fn text(case: Case) -> String {
        let job = Job { case, flows: "1k".parse().unwrap(), inner_bytes: 64, traffic: Traffic::Tcp };
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
        let l2 = text(Case::L2);
        assert_eq!((l2.matches("[[vnic]]").count(), l2.matches("[[uplink]]").count()), (2, 0));
        assert!(l2.contains("10.0.1.16"));
        for case in [Case::Encap, Case::Decap] {
            let text = text(case);
            assert_eq!((text.matches("[[vnic]]").count(), text.matches("[[uplink]]").count()), (1, 1));
            assert_eq!(text.matches("[[location]]").count(), 16);
        }
    }

    #[test]
    fn finds_the_port_by_its_name() {
        let answer = json!([{ "name": "source", "tx-packets": 1 }, { "name": "sink", "tx-packets": 2 }]);
        assert_eq!((sent_by(&answer, "sink"), sent_by(&answer, "other")), (Some(2), None));
    }
}
