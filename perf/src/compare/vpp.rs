//! VPP on the same template devices, through its DPDK plugin, with one worker on the forwarding core.
//!
//! A bridge domain with static entries joins the tenant's port with a VxLAN tunnel (or with the second port). It keeps no state of
//! flows; with access lists every packet at the tenant's port is looked up among the sessions of a stateful list. VPP has to be
//! built with the DPDK of this machine (its cmake option `VPP_USE_SYSTEM_DPDK`), so that it can load the driver of the devices.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cases::{Case, Job};
use super::frames::{FAR_VTEP, NEAR_VTEP, SECOND_MAC, TENANT, VNI, peer_mac, peers};
use super::peer::{FramePort, Switch, SwitchSetup};
use crate::host::interrupt;
use crate::host::process::{self, Placement, Process};
use crate::host::scratch::RunFolder;
use crate::{Error, Result};

const LIMIT: Duration = Duration::from_secs(30);
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
const REMEDY: &str =
    "build VPP with the DPDK of this machine, and name the folder where it is installed with --vpp";
/// Huge pages for its heap and its buffers, in MiB.
pub(crate) const MEMORY: u64 = HEAP + 256;
/// Its heap, which holds a million sessions too, in MiB.
const HEAP: u64 = 1024;
const BRIDGE: u32 = 10;

/// A running VPP.
#[derive(Debug)]
pub struct Vpp {
    process: Process,
    control: Control,
    job: Job,
    has_lists: bool,
    /// Its names of the ports where frames come in and where they leave.
    ports: [String; 2],
    // Goes after the process.
    _run_folder: RunFolder,
}

/// Its command line.
#[derive(Debug)]
struct Control {
    vppctl: String,
    socket: String,
}

impl Control {
    fn ask(&self, command: &str) -> Result<String> {
        let words: Vec<&str> = ["-s", &self.socket].into_iter().chain(command.split_whitespace()).collect();
        process::run(&self.vppctl, &words, &[])
    }

    /// Gives a command that changes something.
    fn tell(&self, command: &str) -> Result<()> {
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

fn refused(words: String) -> Error {
    Error::Refused { switch: "vpp", words }
}

impl Vpp {
    /// Starts it, with stateful access lists or without, and last the port that begins to receive.
    pub fn start(setup: &SwitchSetup<'_>, has_lists: bool) -> Result<Self> {
        let folder = setup.vpp.unwrap_or(Path::new("/usr"));
        let startup = setup.folder.join("startup.conf");
        let plugins = plugins(folder)?;
        std::fs::write(&startup, config(setup, &plugins))
            .map_err(Error::io(format!("write {}", startup.display())))?;
        let program = folder.join("bin/vpp").display().to_string();
        let arguments = [
            format!("LD_PRELOAD={}", preloaded(setup, &plugins)?),
            program,
            "-c".to_owned(),
            startup.display().to_string(),
        ];
        let cores = setup.daemon().cores;
        let placement = Placement { cores: Some(cores), ..Placement::default() };
        let run_folder = RunFolder(setup.prefix.clone());
        let mut process = Process::start("env", &arguments, &[], placement, REMEDY)?;
        let control = Control {
            vppctl: folder.join("bin/vppctl").display().to_string(),
            socket: setup.folder.join("cli.sock").display().to_string(),
        };
        process.await_that("VPP's command line", LIMIT, || {
            interrupt::pause(Duration::from_millis(100))?;
            Ok(control.ask("show version").is_ok_and(|answer| answer.contains("vpp")))
        })?;
        let found = interfaces(&control.ask("show interface")?);
        let Ok(ports) = <[String; 2]>::try_from(found) else {
            let words = "its DPDK plugin does not have two ports: it was built with another DPDK, or without that plugin";
            return Err(refused(words.into()));
        };
        for command in commands(setup.job, has_lists, &ports) {
            control.tell(&command)?;
        }
        Ok(Self { process, control, job: setup.job.clone(), has_lists, ports, _run_folder: run_folder })
    }

    /// The nodes that must have run for the work to be done.
    fn nodes(&self) -> Vec<&'static str> {
        let mut nodes = vec!["l2-fwd"];
        for way in self.job.case.ways() {
            nodes.extend(match way {
                Case::Encap => &["vxlan4-encap"][..],
                Case::Decap => &["vxlan4-input"][..],
                Case::L2 | Case::Both => &[],
            });
            let list = if *way == Case::Decap { "acl-plugin-out-ip4-l2" } else { "acl-plugin-in-ip4-l2" };
            nodes.extend(self.has_lists.then_some(list));
        }
        nodes
    }
}

impl Switch for Vpp {
    fn name(&self) -> &str {
        "vpp"
    }

    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn forwarded(&mut self) -> Result<u64> {
        Ok(counter(&self.control.ask(&format!("show interface {}", self.ports[1]))?, "tx packets"))
    }

    fn settle(&mut self) -> Result<()> {
        let wanted = self.job.flows.count * self.job.case.ways().len();
        let Self { process, control, has_lists, .. } = self;
        process.await_that("all flows to have sessions", SETTLE_LIMIT, || {
            interrupt::pause(Duration::from_millis(100))?;
            Ok(!*has_lists || sessions(&control.ask("show acl-plugin sessions")?) >= wanted)
        })?;
        let runtime = self.control.ask("show runtime")?;
        match self.nodes().into_iter().find(|node| !runtime.contains(node)) {
            Some(node) => Err(refused(format!("its node {node} did not run:\n{runtime}"))),
            None => Ok(()),
        }
    }
}

impl Drop for Vpp {
    fn drop(&mut self) {
        let _ = self.process.thaw();
        self.process.terminate(Duration::from_secs(3));
    }
}

/// The folder of its plugins.
fn plugins(folder: &Path) -> Result<PathBuf> {
    let missing =
        || Error::Missing { what: format!("{} has no lib/*/vpp_plugins", folder.display()), remedy: REMEDY };
    let libraries = std::fs::read_dir(folder.join("lib")).map_err(|_| missing())?;
    let folders = libraries.flatten().map(|entry| entry.path()).chain([folder.join("lib")]);
    folders.map(|path| path.join("vpp_plugins")).find(|path| path.is_dir()).ok_or_else(missing)
}

/// The libraries of DPDK that its plugin needs, and the driver of the devices, which asks them to know it when it is loaded.
fn preloaded(setup: &SwitchSetup<'_>, plugins: &Path) -> Result<String> {
    let needed = process::run("ldd", &[&plugins.join("dpdk_plugin.so").display().to_string()], &[])?;
    let libraries = needed.lines().filter(|line| line.contains("librte_"));
    let paths = libraries.filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned);
    let driver = setup.plugin.as_ref().map(|path| path.display().to_string());
    Ok(paths.chain(driver).collect::<Vec<_>>().join(":"))
}

fn config(setup: &SwitchSetup<'_>, plugins: &Path) -> String {
    let folder = setup.folder.display();
    let [source, sink] =
        [(&setup.source, 0), (&setup.sink, 1)].map(|(port, number): (&FramePort, _)| port.device(number));
    format!(
        "unix {{ nodaemon nobanner runtime-dir {folder} cli-listen {folder}/cli.sock log {folder}/vpp.log }}\n\
         api-segment {{ prefix {} }}\n\
         statseg {{ socket-name {folder}/stats.sock }}\n\
         cpu {{ main-core {} corelist-workers {} }}\n\
         memory {{ main-heap-size {HEAP}M main-heap-page-size 2M }}\n\
         buffers {{ buffers-per-numa 32768 page-size 2M }}\n\
         plugins {{ path {} plugin default {{ disable }} plugin dpdk_plugin.so {{ enable }} \
         plugin vxlan_plugin.so {{ enable }} plugin acl_plugin.so {{ enable }} }}\n\
         dpdk {{ no-pci no-tx-checksum-offload file-prefix {} vdev {source} vdev {sink} }}\n",
        setup.prefix,
        setup.housekeeping,
        setup.cores[0],
        plugins.display(),
        setup.prefix,
    )
}

/// What sets it up for a job. Frames come in at the first port.
fn commands(job: &Job, has_lists: bool, [source, sink]: &[String; 2]) -> Vec<String> {
    let (near, far) = if job.case == Case::Decap { (sink, source) } else { (source, sink) };
    let mut commands = vec![
        format!("create bridge-domain {BRIDGE} learn 0 forward 1 uu-flood 0 flood 0 arp-term 0"),
        format!("set interface l2 bridge {near} {BRIDGE}"),
        format!("l2fib add {} {BRIDGE} {near} static", TENANT.0),
    ];
    if job.case == Case::L2 {
        commands.extend([
            format!("set interface l2 bridge {far} {BRIDGE}"),
            format!("l2fib add {SECOND_MAC} {BRIDGE} {far} static"),
        ]);
    } else {
        commands.extend([
            format!("set interface mac address {far} {}", NEAR_VTEP.0),
            format!("set interface ip address {far} {}/24", NEAR_VTEP.1),
            format!("set interface state {far} up"),
            format!("set ip neighbor {far} {} {} static", FAR_VTEP.1, FAR_VTEP.0),
            format!("create vxlan tunnel src {} dst {} vni {}", NEAR_VTEP.1, FAR_VTEP.1, VNI.get()),
            format!("set interface l2 bridge vxlan_tunnel0 {BRIDGE}"),
            // Takes the tunnel's packets out before the routes are looked up.
            format!("set interface ip vxlan-bypass {far}"),
        ]);
        let remote = |index| format!("l2fib add {} {BRIDGE} vxlan_tunnel0 static", peer_mac(index));
        commands.extend((0..peers(job)).map(remote));
    }
    if has_lists {
        commands.push("set acl-plugin acl permit+reflect src 0.0.0.0/0 dst 0.0.0.0/0 tag all".to_owned());
        for way in job.case.ways() {
            let way = if *way == Case::Decap { "output" } else { "input" };
            commands.push(format!("set acl-plugin interface {near} {way} acl 0"));
        }
        // Frozen while the other switch is measured: its sessions must not look idle.
        let kinds = ["udp idle", "tcp idle", "tcp transient"];
        commands.extend(kinds.map(|kind| format!("set acl-plugin session timeout {kind} 100000")));
    }
    commands.extend([sink, source].map(|port| format!("set interface state {port} up")));
    commands
}

/// The interfaces of `show interface` that are ports, in their order.
fn interfaces(answer: &str) -> Vec<String> {
    let names = answer.lines().skip(1).filter(|line| !line.starts_with(' '));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| !["local0", "vxlan_tunnel0"].contains(name)).map(str::to_owned).collect()
}

/// A counter in `show interface`; those that are 0 are not shown.
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

    const SHOW: &str = "              Name               Idx    State  MTU (L3/IP4/IP6/MPLS)     Counter          Count     \n\
                        Ethernet0                         1      up          9000/0/0/0     rx packets                     7\n\
                        \x20                                                                   tx packets               4096\n\
                        Ethernet1                         2     down         9000/0/0/0     \n\
                        local0                            0     down          0/0/0/0       \n";

    #[test]
    fn reads_its_tables() {
        assert_eq!((counter(SHOW, "tx packets"), counter(SHOW, "punt")), (4096, 0));
        assert_eq!(interfaces(SHOW), ["Ethernet0", "Ethernet1"]);
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
        let ports = ["one", "two"].map(str::to_owned);
        let text = |case, lists| commands(&Job::plain(case, "1k"), lists, &ports).join("\n");
        let l2 = text(Case::L2, false);
        assert!(!l2.contains("vxlan") && !l2.contains("acl") && l2.contains(&SECOND_MAC.to_string()));
        let encap = text(Case::Encap, true);
        assert_eq!(encap.matches("vxlan_tunnel0 static").count(), 16);
        assert!(encap.contains("vni 5001") && encap.contains("interface one input acl 0"));
        assert!(text(Case::Decap, true).contains("interface two output acl 0"));
        let both = text(Case::Both, true);
        assert!(both.contains("one input acl 0") && both.contains("one output acl 0"), "{both}");
    }

    #[test]
    fn what_is_missing_is_told() {
        let error = plugins(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("/nowhere") && error.contains("--vpp"), "{error}");
    }
}
