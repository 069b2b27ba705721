//! VPP, with nothing of DPDK: frames are played by its own packet generator inside its graph and end at a generator
//! interface, which frees them.
//!
//! It is set up through its command line, in a private folder, with one worker on the forwarding core: `pg0` is the
//! tenant's port, `pg1` the underlay, and a bridge domain with static entries joins `pg0` with the VxLAN tunnel (or with
//! `pg1`). With access lists every packet of the tenant is looked up among the sessions of a stateful list.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cases::{Case, Job};
use super::check::OUTER;
use super::frames::{
    LOCAL_VTEP, REMOTE_VTEP, REMOTE_VTEP_MAC, SECOND_MAC, TENANT_MAC, UPLINK_MAC, VNI, peer_mac, peers,
};
use super::order::Order;
use super::peer::{Setup, Sink, Source, Switch};
use super::{CompareError, at};
use crate::host::process::{self, Placement, Process};
use crate::host::{HostError, interrupt, io};
use crate::pcap;

const LIMIT: Duration = Duration::from_secs(30);
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
const REMEDY: &str = "install VPP, or name the folder that it is in with --vpp";
/// Huge pages for its heap and its buffers, in MiB.
pub(crate) const MEMORY: u64 = 1024 + 256;
const BRIDGE: u32 = 10;
/// More packets than it will ever play.
const ENDLESS: u64 = 1_000_000_000_000_000;
/// Bytes of frames that are played over and over, at most: they lie in its heap.
const PLAYED: usize = 200 << 20;
/// Rounds over all flows in one file, each in another order, so that memory is not walked as it was filled.
const ROUNDS: usize = 16;

/// What differs between its rows and those of the others.
pub const METHOD: &str = "vpp-plain and vpp-acl: frames are played by VPP's own packet generator, a node of its graph, from memory \
     (up to 16 rounds over all flows, each in another order), and freed at a generator interface. Its cycles therefore have \
     the copy of each frame, but no receive or transmit of a driver, which the others' have; and vectors are always full \
     (256 packets; the others get bursts of 32). vpp-plain keeps no state of flows; vpp-acl looks each packet of the \
     tenant up among sessions of a reflexive access list, on the inner headers, without RDMA's queue pairs and without rates.";

/// Where VPP is.
#[derive(Debug, Clone)]
pub struct Programs {
    vpp: PathBuf,
    vppctl: PathBuf,
}

/// Finds `vpp` and `vppctl`, in a folder (or its `bin`) or among the programs of `PATH`.
pub fn find(folder: Option<&Path>) -> Result<Programs, HostError> {
    let programs = |place: &dyn Fn(&str) -> PathBuf| Programs { vpp: place("vpp"), vppctl: place("vppctl") };
    let there = |programs: &Programs| {
        [&programs.vpp, &programs.vppctl].iter().all(|path| process::findable(&path.display().to_string()))
    };
    let candidates = match folder {
        Some(folder) => {
            vec![programs(&|name| folder.join(name)), programs(&|name| folder.join("bin").join(name))]
        }
        None => vec![programs(&|name| name.into())],
    };
    let place = folder.map_or_else(|| "PATH".to_owned(), |folder| format!("{} or its bin", folder.display()));
    candidates.into_iter().find(there).ok_or(HostError::Missing {
        what: format!("`vpp` and `vppctl` are wanted and not both in {place}"),
        remedy: REMEDY,
    })
}

/// A running VPP.
#[derive(Debug)]
pub struct Vpp {
    process: Process,
    control: Control,
    job: Job,
    acl: bool,
    source: &'static str,
    sink: &'static str,
    /// Different five-tuples that are played.
    tuples: usize,
    /// Drops of its interfaces when it had settled.
    drops: Option<u64>,
}

/// Its command line.
#[derive(Debug)]
struct Control {
    vppctl: String,
    socket: String,
}

impl Control {
    fn ask(&self, command: &str) -> Result<String, HostError> {
        let words: Vec<&str> = ["-s", &self.socket].into_iter().chain(command.split_whitespace()).collect();
        process::run(&self.vppctl, &words, &[])
    }

    /// Gives a command that changes something.
    fn tell(&self, command: &str) -> Result<(), CompareError> {
        let answer = self.ask(command)?;
        if is_refusal(&answer) {
            return Err(refused(format!("`{command}`: {}", answer.trim())));
        }
        Ok(())
    }
}

/// Commands that are obeyed say nothing, or what they made; nothing else marks a refusal.
fn is_refusal(answer: &str) -> bool {
    let made = ["bridge-domain ", "vxlan_tunnel", "ACL index"];
    let answer = answer.trim();
    !answer.is_empty() && !made.iter().any(|word| answer.starts_with(word))
}

fn refused(words: String) -> CompareError {
    CompareError::Refused { switch: "vpp", words }
}

impl Vpp {
    /// Starts it and lets it play.
    pub fn start(setup: &Setup<'_>, acl: bool) -> Result<Self, CompareError> {
        let missing = || HostError::Missing { what: "VPP was not looked for".into(), remedy: REMEDY };
        let programs = setup.vpp.ok_or_else(missing)?;
        let (path, endless) = match &setup.source {
            Source::Endless(path) => (path, true),
            Source::Once(path) => (path, false),
            Source::Made(_) | Source::Attached(_) => {
                return Err(refused("it has no ports of DPDK; give it frames in a file".into()));
            }
        };
        let frames = pcap::read(path).map_err(at(path))?;
        let tuples = tuples(setup.job, &frames);
        let (file, limit) = if endless {
            (play(&setup.folder, &frames)?, ENDLESS)
        } else {
            (path.clone(), frames.len() as u64)
        };
        let startup = setup.folder.join("startup.conf");
        std::fs::write(&startup, config(setup)).map_err(io(format!("write {}", startup.display())))?;
        let arguments = ["-c".to_owned(), startup.display().to_string()];
        let placement = Placement { cores: Some((setup.housekeeping, setup.core)), ..Placement::default() };
        let mut process =
            Process::start(&programs.vpp.display().to_string(), &arguments, &[], placement, REMEDY)?;
        let control = Control {
            vppctl: programs.vppctl.display().to_string(),
            socket: setup.folder.join("cli.sock").display().to_string(),
        };
        process.await_that("its command line", LIMIT, || {
            Ok(control.ask("show version").is_ok_and(|answer| answer.contains("vpp")))
        })?;
        for command in commands(setup.job, acl) {
            control.tell(&command)?;
        }
        let (source, sink) = if setup.job.case == Case::Decap { ("pg1", "pg0") } else { ("pg0", "pg1") };
        if let Sink::File(out) = &setup.sink {
            let count = frames.len();
            control.tell(&format!("packet-generator capture {sink} pcap {} count {count}", out.display()))?;
        }
        control.tell(&format!(
            "packet-generator new {{ name frames limit {limit} node ethernet-input source {source} worker 0 pcap {} }}",
            file.display()
        ))?;
        control.tell("packet-generator enable-stream frames")?;
        Ok(Self { process, control, job: setup.job.clone(), acl, source, sink, tuples, drops: None })
    }

    /// A counter of an interface; 0 where it is not shown, as those that are 0 are not.
    fn counter(&self, interface: &str, name: &str) -> Result<u64, CompareError> {
        let answer = self.control.ask(&format!("show interface {interface}"))?;
        if !answer.contains(interface) {
            return Err(refused(format!("`show interface {interface}` says {answer}")));
        }
        Ok(counter(&answer, name))
    }

    /// Packets that it dropped at any of its interfaces.
    fn dropped(&self) -> Result<u64, CompareError> {
        let tunnel: &[&str] = if self.job.case == Case::L2 { &[] } else { &["vxlan_tunnel0"] };
        ["pg0", "pg1"].iter().chain(tunnel).map(|interface| self.counter(interface, "drops")).sum()
    }

    /// The nodes that must have run for the work to be done.
    fn nodes(&self) -> Vec<&'static str> {
        let work: &[&str] = match self.job.case {
            Case::L2 => &["l2-fwd"],
            Case::Encap | Case::Both => &["l2-fwd", "vxlan4-encap"],
            Case::Decap => &["vxlan4-input", "l2-fwd"],
        };
        let list =
            if self.job.case == Case::Decap { "acl-plugin-out-ip4-l2" } else { "acl-plugin-in-ip4-l2" };
        work.iter().copied().chain(self.acl.then_some(list)).collect()
    }
}

impl Switch for Vpp {
    fn name(&self) -> &str {
        "vpp"
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn forwarded(&mut self) -> Result<u64, CompareError> {
        let sent = self.counter(self.sink, "tx packets")?;
        if let Some(before) = self.drops {
            let dropped = self.dropped()?.saturating_sub(before);
            if dropped > 0 {
                return Err(refused(format!("{dropped} packets were dropped beside {sent} that were sent")));
            }
        }
        Ok(sent)
    }

    fn settle(&mut self) -> Result<(), CompareError> {
        // Two rounds over all flows: none is new any more.
        let wanted = 2 * self.job.flows.count as u64;
        let start = Instant::now();
        loop {
            let sent = self.counter(self.sink, "tx packets")?;
            let known =
                if self.acl { sessions(&self.control.ask("show acl-plugin sessions")?) } else { self.tuples };
            if sent >= wanted && known >= self.tuples {
                break;
            }
            if start.elapsed() > SETTLE_LIMIT {
                let received = self.counter(self.source, "rx packets")?;
                return Err(refused(format!(
                    "{sent} of {received} packets came out and {known} of {} sessions are known after {} s; `show errors`:\n{}",
                    self.tuples,
                    SETTLE_LIMIT.as_secs(),
                    self.control.ask("show errors")?
                )));
            }
            self.process.check_alive()?;
            interrupt::pause(Duration::from_millis(100))?;
        }
        let runtime = self.control.ask("show runtime")?;
        if let Some(node) = self.nodes().into_iter().find(|node| !runtime.contains(node)) {
            return Err(refused(format!("its node {node} did not run:\n{runtime}")));
        }
        self.drops = Some(self.dropped()?);
        Ok(())
    }
}

impl Drop for Vpp {
    fn drop(&mut self) {
        self.process.terminate(Duration::from_secs(3));
    }
}

fn config(setup: &Setup<'_>) -> String {
    let folder = setup.folder.display();
    format!(
        "unix {{ nodaemon nobanner runtime-dir {folder} cli-listen {folder}/cli.sock log {folder}/vpp.log }}\n\
         api-segment {{ prefix {} }}\n\
         statseg {{ socket-name {folder}/stats.sock }}\n\
         cpu {{ main-core {} corelist-workers {} }}\n\
         memory {{ main-heap-size 1G main-heap-page-size 2M }}\n\
         buffers {{ buffers-per-numa 32768 page-size 2M }}\n\
         plugins {{ plugin default {{ disable }} plugin vxlan_plugin.so {{ enable }} plugin acl_plugin.so {{ enable }} }}\n",
        setup.prefix, setup.housekeeping, setup.core
    )
}

/// What sets it up for a job.
fn commands(job: &Job, acl: bool) -> Vec<String> {
    let mut commands = vec![
        "create packet-generator interface pg0".to_owned(),
        "create packet-generator interface pg1".to_owned(),
        "set interface state pg0 up".to_owned(),
        format!("create bridge-domain {BRIDGE} learn 0 forward 1 uu-flood 0 flood 0 arp-term 0"),
        format!("set interface l2 bridge pg0 {BRIDGE}"),
        format!("l2fib add {TENANT_MAC} {BRIDGE} pg0 static"),
    ];
    if job.case == Case::L2 {
        commands.extend([
            format!("set interface l2 bridge pg1 {BRIDGE}"),
            format!("l2fib add {SECOND_MAC} {BRIDGE} pg1 static"),
        ]);
    } else {
        commands.extend([
            format!("set interface mac address pg1 {UPLINK_MAC}"),
            format!("set interface ip address pg1 {LOCAL_VTEP}/24"),
            format!("create vxlan tunnel src {LOCAL_VTEP} dst {REMOTE_VTEP} vni {}", VNI.get()),
            format!("set interface l2 bridge vxlan_tunnel0 {BRIDGE}"),
            // Takes the tunnel's packets out before the routes are looked up.
            "set interface ip vxlan-bypass pg1".to_owned(),
        ]);
        commands.extend(
            (0..peers(job.flows.count))
                .map(|index| format!("l2fib add {} {BRIDGE} vxlan_tunnel0 static", peer_mac(index))),
        );
    }
    commands.push("set interface state pg1 up".into());
    if job.case != Case::L2 {
        commands.push(format!("set ip neighbor pg1 {REMOTE_VTEP} {REMOTE_VTEP_MAC} static"));
    }
    if acl {
        let way = if job.case == Case::Decap { "output" } else { "input" };
        commands.extend([
            "set acl-plugin acl permit+reflect src 0.0.0.0/0 dst 0.0.0.0/0 tag all".to_owned(),
            format!("set acl-plugin interface pg0 {way} acl 0"),
        ]);
        // Frozen while the other switch is measured: its sessions must not look idle.
        for kind in ["udp idle", "tcp idle", "tcp transient"] {
            commands.push(format!("set acl-plugin session timeout {kind} 100000"));
        }
    }
    commands
}

/// Writes the frames in several orders, one round after the other.
fn play(folder: &Path, frames: &[Vec<u8>]) -> Result<PathBuf, CompareError> {
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let rounds = (PLAYED / bytes.max(1)).clamp(1, ROUNDS);
    let path = folder.join("frames.pcap");
    let flows = u32::try_from(frames.len()).unwrap_or(u32::MAX);
    let order = Order::new(flows, 1).take(rounds * frames.len());
    pcap::write(&path, order.map(|(_, flow)| frames[flow as usize].as_slice())).map_err(at(&path))?;
    Ok(path)
}

/// Different five-tuples of the inner frames: addresses, protocol and ports.
fn tuples(job: &Job, frames: &[Vec<u8>]) -> usize {
    let front = if job.case == Case::Decap { OUTER } else { 0 };
    let tuples =
        frames.iter().filter_map(|frame| Some((frame.get(front + 23)?, frame.get(front + 26..front + 38)?)));
    tuples.collect::<HashSet<_>>().len()
}

/// A counter in `show interface`.
fn counter(answer: &str, name: &str) -> u64 {
    let rest =
        answer.lines().find_map(|line| line.split_once(name).map(|(_, rest)| rest.trim().parse().ok()));
    rest.flatten().unwrap_or(0)
}

/// Sessions in `show acl-plugin sessions`.
fn sessions(answer: &str) -> usize {
    let line = answer.lines().find(|line| line.trim().starts_with("Sessions total:"));
    line.and_then(|line| line.rsplit('=').next()?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::Traffic;
    use crate::compare::frames;

    const SHOW: &str = "              Name               Idx    State  MTU (L3/IP4/IP6/MPLS)     Counter          Count     \n\
                        pg1                               2      up          9000/0/0/0     rx packets                     7\n\
                        \x20                                                                   tx packets               4096\n\
                        \x20                                                                   drops                       3\n";

    fn job(case: Case, traffic: Traffic) -> Job {
        Job { case, tenants: None, flows: "1k".parse().unwrap(), inner_bytes: 64, traffic, qos: false }
    }

    #[test]
    fn reads_its_tables() {
        assert_eq!(
            (counter(SHOW, "tx packets"), counter(SHOW, "drops"), counter(SHOW, "punt")),
            (4096, 3, 0)
        );
        let text = "Sessions total: add 1003 - del 3 = 1000\nSessions active: add 1003 - deact 3 = 1000\n";
        assert_eq!((sessions(text), sessions("")), (1000, 0));
    }

    #[test]
    fn refusals_are_told_from_answers() {
        for made in ["", "\n", "vxlan_tunnel0\n", "bridge-domain 10\n", "ACL index:0\n"] {
            assert!(!is_refusal(made), "{made}");
        }
        for refusal in
            ["tunnel already exists...\n", "unknown input `x'", "specify interface, IP address and MAC: `'"]
        {
            assert!(is_refusal(refusal), "{refusal}");
        }
    }

    #[test]
    fn each_case_has_its_commands() {
        let text = |case, acl| commands(&job(case, Traffic::Tcp), acl).join("\n");
        let l2 = text(Case::L2, false);
        assert!(!l2.contains("vxlan") && !l2.contains("acl") && l2.contains(&SECOND_MAC.to_string()));
        let encap = text(Case::Encap, true);
        assert_eq!(encap.matches("vxlan_tunnel0 static").count(), 16);
        assert!(encap.contains("vni 5001") && encap.contains("interface pg0 input acl 0"));
        assert!(text(Case::Decap, true).contains("interface pg0 output acl 0"));
    }

    #[test]
    fn sessions_are_as_many_as_five_tuples() {
        for (case, traffic, wanted) in [
            (Case::Encap, Traffic::Tcp, 1000),
            (Case::Decap, Traffic::Tcp, 1000),
            (Case::Decap, Traffic::UdpFew, 16),
        ] {
            let job = job(case, traffic);
            assert_eq!(tuples(&job, &frames::frames(&job).input), wanted, "{case} {traffic}");
        }
    }

    #[test]
    fn frames_are_played_in_rounds_of_different_order() {
        let folder = std::env::temp_dir().join(format!("perf-vpp-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let frames = frames::frames(&job(Case::Encap, Traffic::Tcp)).input;
        let played = pcap::read(&play(&folder, &frames).unwrap()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let rounds: Vec<&[Vec<u8>]> = played.chunks(1000).collect();
        assert_eq!(rounds.len(), ROUNDS);
        for pair in rounds.windows(2) {
            assert_ne!(pair[0], pair[1]);
            assert_eq!(pair[0].iter().collect::<HashSet<_>>(), pair[1].iter().collect::<HashSet<_>>());
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        let error = find(Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(
            error.contains("`vpp` and `vppctl`") && error.contains("/nowhere") && error.contains("--vpp"),
            "{error}"
        );
    }
}
