//! This project's own switch: the daemon on a config made for the case, asked over its control socket.
//!
//! It gets the same ports as its peers (a pcap port that replays the frames, a null port that drops or a pcap port
//! that writes), one worker, and everything a tenant network needs: locations, a static underlay neighbour, VIPs.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use wire::MacAddr;

use super::cases::{Case, Job};
use super::frames::{
    LOCAL_VTEP, REMOTE_VTEP, REMOTE_VTEP_MAC, SECOND_MAC, TENANT_IP, TENANT_MAC, UPLINK_MAC, VNI, peer_ip,
    peer_mac, peers,
};
use super::peer::{Setup, Sink, Source, Switch, mbufs};
use super::{CompareError, arguments_of};
use crate::host::HostError;
use crate::host::process::{Placement, Process};
use crate::host::scratch;

const LIMIT: Duration = Duration::from_secs(20);
const REMEDY: &str = "build it (cargo build --release -p vswitch) or name it with --vswitch";

/// The running daemon.
#[derive(Debug)]
pub struct Ours {
    process: Process,
    control: BufReader<UnixStream>,
    socket: PathBuf,
    prefix: String,
}

impl Ours {
    /// Writes the config, starts the daemon and waits for its control socket.
    pub fn start(setup: &Setup<'_>) -> Result<Self, CompareError> {
        let socket = setup.folder.join("vswitch.sock");
        let path = setup.folder.join("vswitch.toml");
        let text = config(setup, &socket);
        std::fs::write(&path, text)
            .map_err(|reason| HostError::Io { what: format!("write {}", path.display()), reason })?;
        let program = setup.vswitch.display().to_string();
        let arguments = arguments_of(["run", "--config", &path.display().to_string()]);
        let placement = Placement { cores: Some((setup.housekeeping, setup.core)), ..Placement::default() };
        let mut process = Process::start(&program, &arguments, &[], placement, REMEDY)?;
        let mut stream = None;
        process.await_that("its control socket", LIMIT, || {
            stream = UnixStream::connect(&socket).ok();
            Ok(stream.is_some())
        })?;
        let Some(stream) = stream else { return Err(refused("no control socket")) };
        stream.set_read_timeout(Some(LIMIT)).map_err(|reason| HostError::Io {
            what: "set a time limit on the control socket".into(),
            reason,
        })?;
        Ok(Self { process, control: BufReader::new(stream), socket, prefix: setup.prefix.clone() })
    }

    fn ask(&mut self, command: &str) -> Result<Value, CompareError> {
        let talk = |reason| HostError::Io { what: format!("ask `{command}` on the control socket"), reason };
        let request = json!({ "id": 1, "command": command, "json": true });
        writeln!(self.control.get_mut(), "{request}").map_err(talk)?;
        let mut line = String::new();
        self.control.read_line(&mut line).map_err(talk)?;
        let mut answer: Value = serde_json::from_str(&line)
            .map_err(|error| refused(&format!("`{command}` answered no JSON: {error}")))?;
        if answer["ok"] != Value::Bool(true) {
            return Err(refused(&format!("`{command}`: {}", answer["error"])));
        }
        Ok(answer["json"].take())
    }
}

impl Switch for Ours {
    fn name(&self) -> &str {
        "vswitch"
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn forwarded(&mut self) -> Result<u64, CompareError> {
        self.process.check_alive()?;
        let answer = self.ask("show port stats all")?;
        sent_by(&answer, "sink")
            .ok_or_else(|| refused(&format!("`show port stats all` has no port `sink`: {answer}")))
    }

    fn settle(&mut self) -> Result<(), CompareError> {
        Ok(())
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.process.terminate(Duration::from_secs(5));
        let _ = std::fs::remove_file(&self.socket);
        scratch::remove_run_folder(&self.prefix);
    }
}

fn refused(words: &str) -> CompareError {
    CompareError::Refused { switch: "vswitch", words: words.to_owned() }
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
