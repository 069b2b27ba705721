//! The lab file: the device under test, the generator and what to run, as TOML.
//!
//! What is wrong in it is told with its line and what to do. Whether the machine is as the file says is `checks.rs`'s
//! business.

use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::Result;
use crate::compare::cases::{Case, FlowCount, Job, Peer, Traffic};
use crate::compare::frames;
use crate::compare::peer::{Attached, Contender};
use crate::generator::scenario::SourceText;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceUnderTest {
    /// Its port on the side of the tenants.
    #[serde(deserialize_with = "port")]
    pub near: Attached,
    /// Its port on the underlay.
    #[serde(deserialize_with = "port")]
    pub far: Attached,
    /// The core of everything that does not forward.
    pub control_core: usize,
    /// The cores that forward: the first of them with one worker.
    pub cores: Spanned<Vec<usize>>,
    #[serde(rename = "forwarders", default = "usual_forwarders")]
    words: Spanned<Vec<String>>,
    /// Those behind the words.
    #[serde(skip)]
    pub forwarders: Vec<Contender>,
    pub offload: Option<Spanned<String>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LabGenerator {
    /// Its port at the other end of the device's near one.
    #[serde(deserialize_with = "port")]
    pub near: Attached,
    #[serde(deserialize_with = "port")]
    pub far: Attached,
    pub core: usize,
    /// Words in front of its command, as `ssh generator`; none on this machine.
    #[serde(default)]
    pub via: Vec<String>,
    /// Its program there; this one if not given.
    pub perf: Option<String>,
    /// Frames on their way at a time; 0 for any number.
    #[serde(default)]
    pub window: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LabRun {
    cases: Vec<Case>,
    flows: Vec<FlowCount>,
    inner_bytes: Spanned<Vec<usize>>,
    traffic: Spanned<Vec<Traffic>>,
    qos: bool,
    /// What those above come to.
    #[serde(skip)]
    pub jobs: Vec<Job>,
    /// How often each forwarder has its turn.
    pub rounds: Spanned<usize>,
    /// Length of a trial in seconds.
    pub trial: f64,
    /// Seconds of traffic before the first trial.
    pub warm_up: f64,
    /// Share of frames that may be lost at the throughput, in percent.
    pub loss: f64,
    /// How near the search comes, in percent of the highest rate.
    pub resolution: f64,
    /// How often a failed trial is tried again.
    pub retries: u32,
    /// The highest rate, in the words of `perf gen`.
    pub max_rate: Option<String>,
    /// Loads at which delays are taken, in percent.
    pub loads: Vec<f64>,
    /// Take the throughput with one worker to all of them.
    pub scaling: bool,
    /// Take the throughput where every packet is of a new flow.
    pub setup: bool,
}

/// What is not written in the file.
fn unwritten<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn usual_forwarders() -> Spanned<Vec<String>> {
    unwritten(["vswitch", "testpmd"].map(str::to_owned).into())
}

impl Default for LabRun {
    fn default() -> Self {
        Self {
            cases: vec![Case::Encap, Case::Decap, Case::Both],
            flows: ["1", "1k", "100k", "1M"].iter().filter_map(|word| word.parse().ok()).collect(),
            inner_bytes: unwritten(vec![94, 1400]),
            traffic: unwritten(vec![Traffic::Tcp, Traffic::Rocev2]),
            qos: true,
            jobs: Vec::new(),
            rounds: unwritten(3),
            trial: 10.0,
            warm_up: 10.0,
            loss: 0.0,
            resolution: 1.0,
            retries: 1,
            max_rate: None,
            loads: vec![10.0, 50.0, 90.0],
            scaling: true,
            setup: true,
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lab {
    pub device: DeviceUnderTest,
    pub generator: LabGenerator,
    #[serde(default)]
    pub run: LabRun,
}

impl Lab {
    pub fn load(path: &Path) -> Result<Self> {
        Self::read(SourceText::load(path)?)
    }

    fn read(text: SourceText) -> Result<Self> {
        let (mut lab, source): (Self, SourceText) = text.read()?;
        lab.run.jobs = lab.run.jobs(&source)?;
        lab.device.forwarders = lab.device.forwarders(&source)?;
        Ok(lab)
    }
}

impl DeviceUnderTest {
    /// Checks the cores, and says who takes turns.
    fn forwarders(&self, source: &SourceText) -> Result<Vec<Contender>> {
        let cores = self.cores.get_ref();
        if cores.is_empty()
            || cores.contains(&self.control_core)
            || (1..cores.len()).any(|at| cores[..at].contains(&cores[at]))
        {
            let what = "a core is there twice, is also the control-core, or there is none; write one core for each worker";
            return Err(source.at(&self.cores, what));
        }
        let mut forwarders = Vec::new();
        for word in self.words.get_ref() {
            let named: Vec<Contender> = match word.as_str() {
                "vswitch" => vec![Contender::Ours],
                "testpmd" | "ovs" | "ovs-exact" | "ovs-wildcard" => {
                    Peer::parse_word(word).unwrap_or_default().into_iter().map(Contender::Peer).collect()
                }
                _ => Vec::new(),
            };
            if named.is_empty() || named.iter().any(|forwarder| forwarders.contains(forwarder)) {
                let what = format!(
                    "`{word}` is unknown or there twice; there are vswitch, testpmd, ovs, ovs-exact and ovs-wildcard"
                );
                return Err(source.at(&self.words, what));
            }
            forwarders.extend(named);
        }
        if let Some(offload) = &self.offload {
            let ours = forwarders.iter().position(|forwarder| *forwarder == Contender::Ours);
            let known = ["simulated", "rte-flow"].contains(&offload.get_ref().as_str());
            let Some(ours) = ours.filter(|_| known) else {
                let what = "offload is \"rte-flow\" (a NIC's e-switch) or \"simulated\", and goes with vswitch among the forwarders";
                return Err(source.at(offload, what));
            };
            forwarders.insert(ours + 1, Contender::Offloaded);
        }
        Ok(forwarders)
    }
}

/// A PCI address with arguments behind it, any other device as DPDK's `--vdev` takes it, or the socket between a guest and a switch,
/// which has the same name on both sides.
fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attached, D::Error> {
    let text = String::deserialize(deserializer)?;
    attached(&text).map_err(D::Error::custom)
}

/// What is before the path of a guest's socket.
const GUEST: &str = "vhost:";

fn attached(text: &str) -> Result<Attached, String> {
    if text.contains(|c: char| c.is_control() || c.is_whitespace() || matches!(c, '"' | '\\')) {
        return Err("a port has no blanks, quotes or control characters; remove them".into());
    }
    if text.starts_with("net_") {
        return Ok(Attached::Virtual(text.to_owned()));
    }
    if let Some(path) = text.strip_prefix(GUEST) {
        if !path.starts_with('/') || path.contains(',') {
            return Err(format!(
                "behind {GUEST} is the absolute path of a socket, without commas: {GUEST}/run/lab.sock"
            ));
        }
        return Ok(Attached::Guest(path.to_owned()));
    }
    let address = text.split(',').next().unwrap_or_default();
    let hex = |text: &str, digits| text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
    let full = if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() };
    let good = matches!(full.split([':', '.']).collect::<Vec<_>>()[..], [domain, bus, device, function]
        if hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1));
    if good {
        return Ok(Attached::Pci(text.replacen(address, &full.to_ascii_lowercase(), 1)));
    }
    let what = "a port is a PCI address (0000:3b:00.0, `lspci -D` lists them), a device of DPDK that begins with its \
                driver's name, as in net_memif0,role=server,id=0,socket=/run/lab.sock,socket-abstract=no, or vhost: and the \
                path of a socket, at which the generator is the guest";
    Err(what.into())
}

impl LabRun {
    fn jobs(&self, source: &SourceText) -> Result<Vec<Job>> {
        let traffic = self.traffic.get_ref();
        if traffic.contains(&Traffic::UdpFew) {
            let what = "traffic is udp, tcp, rocev2 or mixed; write one of those";
            return Err(source.at(&self.traffic, what));
        }
        let mut jobs = Vec::new();
        for &inner_bytes in self.inner_bytes.get_ref() {
            if !frames::INNER_BYTES.contains(&inner_bytes) {
                let what = "inner-bytes is not in 64 to 1454; 94 is the least for all kinds of traffic";
                return Err(source.at(&self.inner_bytes, what));
            }
            let works = traffic.iter().flat_map(|one| self.cases.iter().map(move |case| (one, case)));
            for (&traffic, &case) in works {
                let qos = self.qos;
                let like = Job { inner_bytes, traffic, qos, ..Job::default() };
                jobs.extend(like.each([(case, None)], &self.flows));
            }
        }
        if jobs.is_empty() || *self.rounds.get_ref() == 0 {
            let what = "nothing is run: cases, flows, inner-bytes, traffic or rounds is empty; leave it out, or write one";
            return Err(source.at(&self.rounds, what));
        }
        if !self.loads.iter().all(|load| *load > 0.0 && *load <= 100.0) {
            let what = "[run] loads are percents of the throughput, over 0 to 100; write [10, 50, 90]";
            return Err(source.error(0, what));
        }
        Ok(jobs)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const TEXT: &str = r#"
[device]
near = "0000:41:00.0"
far = "41:00.1,dv_flow_en=2"
control-core = 0
cores = [1, 2]
forwarders = ["vswitch", "ovs"]

[generator]
near = "net_memif0,role=client,id=0,socket=/run/lab.sock"
far = "0000:81:00.1"
core = 3
via = ["ssh", "root@generator"]
perf = "vswitch-perf"
"#;

    /// The lab of such a file.
    pub(crate) fn lab(text: &str) -> Result<Lab> {
        Lab::read(SourceText::new("lab.toml".into(), text.into()))
    }

    #[test]
    fn ports_forwarders_and_the_usual_run() {
        let usual = lab(TEXT).unwrap();
        let pci = |text: &str| Attached::Pci(text.into());
        assert_eq!(
            [&usual.device.near, &usual.device.far],
            [&pci("0000:41:00.0"), &pci("0000:41:00.1,dv_flow_en=2")]
        );
        let forwarders: Vec<String> = usual.device.forwarders.iter().map(Contender::to_string).collect();
        assert_eq!(forwarders, ["vswitch", "ovs-exact", "ovs-wildcard"]);
        assert!(matches!(&usual.generator.near, Attached::Virtual(text) if text.starts_with("net_memif0,")));
        // Three cases, four numbers of flows, two lengths, two kinds of traffic.
        assert_eq!((usual.run.jobs.len(), *usual.run.rounds.get_ref()), (48, 3));
        let lab = lab(&TEXT.replace("cores = [1, 2]", "cores = [1, 2]\noffload = \"rte-flow\"")).unwrap();
        assert_eq!(lab.device.forwarders[..2], [Contender::Ours, Contender::Offloaded]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (from, to, line, word) in [
            ("\"0000:41:00.0\"", "\"eth0\"", 3, "PCI address"),
            ("\"0000:41:00.0\"", "\"vhost:vm.sock\"", 3, "absolute path"),
            ("cores = [1, 2]", "cores = [1, 1]", 6, "twice"),
            ("cores = [1, 2]", "cores = [0]", 6, "control-core"),
            ("\"ovs\"", "\"snabb\"", 7, "snabb"),
            ("\"ovs\"", "\"vswitch\"", 7, "twice"),
            ("core = 3", "core = 3\nspeed = 1", 13, "speed"),
            ("core = 3", "core = 3\n[run]\ncases = [\"l3\"]", 14, "l3"),
            ("core = 3", "core = 3\n[run]\ninner-bytes = [60]", 14, "64 to 1454"),
            ("core = 3", "core = 3\n[run]\nrounds = 0", 14, "nothing is run"),
            ("cores = [1, 2]", "cores = [1, 2]\noffload = \"magic\"", 7, "rte-flow"),
        ] {
            let text = TEXT
                .replace(from, to)
                .replace("via = [\"ssh\", \"root@generator\"]\nperf = \"vswitch-perf\"\n", "");
            let error = lab(&text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("lab.toml:{line}:")) && error.contains(word), "{error}");
        }
    }
}
