//! The lab file: the device under test, the generator and what to run, as TOML.
//!
//! What is wrong in it is told with its line and what to do. Whether the machine is as the file says is `checks.rs`'s
//! business.

use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use crate::compare::cases::{Case, FlowCount, Job, Peer, Traffic};
use crate::compare::frames;
use crate::compare::peer::Attached;
use crate::generator::scenario::{ScenarioError, SourceText};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    device: WrittenDevice,
    generator: WrittenGenerator,
    #[serde(default)]
    run: WrittenRun,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenDevice {
    near: Spanned<String>,
    far: Spanned<String>,
    control_core: usize,
    cores: Spanned<Vec<usize>>,
    #[serde(default)]
    forwarders: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    offload: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenGenerator {
    near: Spanned<String>,
    far: Spanned<String>,
    core: usize,
    #[serde(default)]
    via: Vec<String>,
    #[serde(default)]
    perf: Option<String>,
    #[serde(default)]
    window: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct WrittenRun {
    cases: Spanned<Vec<String>>,
    flows: Spanned<Vec<String>>,
    inner_bytes: Spanned<Vec<usize>>,
    traffic: Spanned<Vec<String>>,
    qos: bool,
    rounds: Spanned<usize>,
    trial: f64,
    warm_up: f64,
    loss: f64,
    resolution: f64,
    retries: u32,
    max_rate: Option<String>,
    loads: Vec<f64>,
    scaling: bool,
    setup: bool,
}

impl Default for WrittenRun {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let unwritten = 0..0;
        Self {
            cases: Spanned::new(unwritten.clone(), words(&["encap", "decap", "both"])),
            flows: Spanned::new(unwritten.clone(), words(&["1", "1k", "100k", "1M"])),
            inner_bytes: Spanned::new(unwritten.clone(), vec![94, 1400]),
            traffic: Spanned::new(unwritten.clone(), words(&["tcp", "rocev2"])),
            qos: true,
            rounds: Spanned::new(unwritten, 3),
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabForwarder {
    Ours,
    Offloaded,
    Peer(Peer),
}

impl std::fmt::Display for LabForwarder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ours => formatter.pad("vswitch"),
            Self::Offloaded => formatter.pad("vswitch-offload"),
            Self::Peer(peer) => peer.fmt(formatter),
        }
    }
}

#[derive(Debug, Clone)]
pub struct DeviceUnderTest {
    /// Its port on the side of the tenants, and the one on the underlay.
    pub ports: [Attached; 2],
    /// The core of everything that does not forward.
    pub control_core: usize,
    /// The cores that forward: the first of them with one worker.
    pub cores: Vec<usize>,
    pub forwarders: Vec<LabForwarder>,
    pub offload: Option<String>,
}

#[derive(Debug, Clone)]
pub struct LabGenerator {
    /// Its ports: at the other ends of the device's.
    pub ports: [Attached; 2],
    pub core: usize,
    /// Words in front of its command, as `ssh generator`; none on this machine.
    pub via: Vec<String>,
    /// Its program there; this one if not given.
    pub perf: Option<String>,
    /// Frames on their way at a time; 0 for any number.
    pub window: u64,
}

#[derive(Debug, Clone)]
pub struct LabRun {
    pub jobs: Vec<Job>,
    /// How often each forwarder has its turn.
    pub rounds: usize,
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

#[derive(Debug, Clone)]
pub struct Lab {
    pub device: DeviceUnderTest,
    pub generator: LabGenerator,
    pub run: LabRun,
}

impl Lab {
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|reason| ScenarioError::Read { path: name.clone(), reason })?;
        Self::parse(name, text)
    }

    pub fn parse(path: String, text: String) -> Result<Self, ScenarioError> {
        let (written, source): (Written, SourceText) = SourceText::new(path, text).read()?;
        let run = run(&written.run, &source)?;
        let generator = LabGenerator {
            ports: [port(&written.generator.near, &source)?, port(&written.generator.far, &source)?],
            core: written.generator.core,
            via: written.generator.via,
            perf: written.generator.perf,
            window: written.generator.window,
        };
        Ok(Self { device: device(written.device, &source)?, generator, run })
    }
}

fn device(written: WrittenDevice, source: &SourceText) -> Result<DeviceUnderTest, ScenarioError> {
    let cores = written.cores.get_ref();
    if cores.is_empty()
        || cores.contains(&written.control_core)
        || (1..cores.len()).any(|at| cores[..at].contains(&cores[at]))
    {
        let what = "a core is there twice, is also the control-core, or there is none; write one core for each worker";
        return Err(source.at(&written.cores, what));
    }
    let mut forwarders = Vec::new();
    let usual = vec!["vswitch".to_owned(), "testpmd".to_owned()];
    for word in written.forwarders.as_ref().map_or(&usual, |forwarders| forwarders.get_ref()) {
        let named: Vec<LabForwarder> = match word.as_str() {
            "vswitch" => vec![LabForwarder::Ours],
            "testpmd" | "ovs" | "ovs-exact" | "ovs-wildcard" => {
                Peer::parse_word(word).unwrap_or_default().into_iter().map(LabForwarder::Peer).collect()
            }
            _ => Vec::new(),
        };
        if named.is_empty() || named.iter().any(|forwarder| forwarders.contains(forwarder)) {
            let what = format!(
                "`{word}` is unknown or there twice; there are vswitch, testpmd, ovs, ovs-exact and ovs-wildcard"
            );
            let at = written.forwarders.as_ref().map_or(0, |forwarders| forwarders.span().start);
            return Err(source.error(at, what));
        }
        forwarders.extend(named);
    }
    if let Some(offload) = &written.offload {
        if !["simulated", "rte-flow"].contains(&offload.get_ref().as_str())
            || !forwarders.contains(&LabForwarder::Ours)
        {
            let what = "offload is \"rte-flow\" (a NIC's e-switch) or \"simulated\", and goes with vswitch among the forwarders";
            return Err(source.at(offload, what));
        }
        forwarders.insert(
            forwarders.iter().position(|forwarder| *forwarder == LabForwarder::Ours).map_or(0, |at| at + 1),
            LabForwarder::Offloaded,
        );
    }
    Ok(DeviceUnderTest {
        ports: [port(&written.near, source)?, port(&written.far, source)?],
        control_core: written.control_core,
        cores: cores.clone(),
        forwarders,
        offload: written.offload.map(Spanned::into_inner),
    })
}

/// A PCI address with arguments behind it, or any other device as DPDK's `--vdev` takes it.
fn port(written: &Spanned<String>, source: &SourceText) -> Result<Attached, ScenarioError> {
    let text = written.get_ref();
    if text.contains(|c: char| c.is_control() || c.is_whitespace() || matches!(c, '"' | '\\')) {
        return Err(source.at(written, "a port has no blanks, quotes or control characters; remove them"));
    }
    if text.starts_with("net_") {
        return Ok(Attached::Virtual(text.clone()));
    }
    let address = text.split(',').next().unwrap_or_default();
    let hex = |text: &str, digits| text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
    let full = if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() };
    let good = matches!(full.split([':', '.']).collect::<Vec<_>>()[..], [domain, bus, device, function]
        if hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1));
    if good {
        return Ok(Attached::Pci(text.replacen(address, &full.to_ascii_lowercase(), 1)));
    }
    let what = "a port is a PCI address (0000:3b:00.0, `lspci -D` lists them), or a device of DPDK that begins with its \
                driver's name, as in net_memif0,role=server,id=0,socket=/run/lab.sock,socket-abstract=no";
    Err(source.at(written, what))
}

fn run(written: &WrittenRun, source: &SourceText) -> Result<LabRun, ScenarioError> {
    let wrong = |at: usize, what: &str| Err(source.error(at, what));
    let place = |words: &Spanned<Vec<String>>| words.span().start;
    let cases: Vec<Case> = words(&written.cases, source)?;
    let flows: Vec<FlowCount> = words(&written.flows, source)?;
    let traffic: Vec<Traffic> = words(&written.traffic, source)?;
    if traffic.contains(&Traffic::UdpFew) {
        return wrong(place(&written.traffic), "traffic is udp, tcp, rocev2 or mixed; write one of those");
    }
    let mut jobs = Vec::new();
    for &inner_bytes in written.inner_bytes.get_ref() {
        if !frames::INNER_BYTES.contains(&inner_bytes) {
            let what = "inner-bytes is not in 64 to 1454; 94 is the least for all kinds of traffic";
            return wrong(written.inner_bytes.span().start, what);
        }
        for (&traffic, &case) in traffic.iter().flat_map(|one| cases.iter().map(move |case| (one, case))) {
            let job = |flows: &FlowCount| Job {
                case,
                tenants: None,
                flows: flows.clone(),
                inner_bytes,
                traffic,
                qos: written.qos,
            };
            jobs.extend(flows.iter().map(job));
        }
    }
    if jobs.is_empty() || *written.rounds.get_ref() == 0 {
        let what = "nothing is run: cases, flows, inner-bytes, traffic or rounds is empty; leave it out, or write one";
        return wrong(written.rounds.span().start, what);
    }
    if !written.loads.iter().all(|load| *load > 0.0 && *load <= 100.0) {
        return wrong(0, "[run] loads are percents of the throughput, over 0 to 100; write [10, 50, 90]");
    }
    Ok(LabRun {
        jobs,
        rounds: *written.rounds.get_ref(),
        trial: written.trial,
        warm_up: written.warm_up,
        loss: written.loss,
        resolution: written.resolution,
        retries: written.retries,
        max_rate: written.max_rate.clone(),
        loads: written.loads.clone(),
        scaling: written.scaling,
        setup: written.setup,
    })
}

fn words<T: std::str::FromStr<Err: std::fmt::Display>>(
    written: &Spanned<Vec<String>>,
    source: &SourceText,
) -> Result<Vec<T>, ScenarioError> {
    let read = |word: &String| word.parse().map_err(|error: T::Err| source.at(written, error.to_string()));
    written.get_ref().iter().map(read).collect()
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

    fn parse(text: &str) -> Result<Lab, String> {
        Lab::parse("lab.toml".into(), text.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_forwarders_and_the_usual_run() {
        let lab = parse(TEXT).unwrap();
        let pci = |text: &str| Attached::Pci(text.into());
        assert_eq!(lab.device.ports, [pci("0000:41:00.0"), pci("0000:41:00.1,dv_flow_en=2")]);
        let forwarders: Vec<String> = lab.device.forwarders.iter().map(LabForwarder::to_string).collect();
        assert_eq!(forwarders, ["vswitch", "ovs-exact", "ovs-wildcard"]);
        assert!(
            matches!(&lab.generator.ports[0], Attached::Virtual(text) if text.starts_with("net_memif0,"))
        );
        // Three cases, four numbers of flows, two lengths, two kinds of traffic.
        assert_eq!((lab.run.jobs.len(), lab.run.rounds), (48, 3));
        let lab = parse(&TEXT.replace("cores = [1, 2]", "cores = [1, 2]\noffload = \"rte-flow\"")).unwrap();
        assert_eq!(lab.device.forwarders[..2], [LabForwarder::Ours, LabForwarder::Offloaded]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (from, to, line, word) in [
            ("\"0000:41:00.0\"", "\"eth0\"", 3, "PCI address"),
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
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(&format!("lab.toml:{line}:")) && error.contains(word), "{error}");
        }
    }
}
