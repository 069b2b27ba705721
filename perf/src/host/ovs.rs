//! Open vSwitch with its userspace datapath: a database and a daemon of our own, in private folders.
//!
//! What is connected by it is the caller's business. The machine's own Open vSwitch, if it runs one, is never touched: every
//! path and socket here is private.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use wire::MacAddr;

use super::interrupt;
use super::process::{self, Placement, Process};
use super::scratch::RunFolder;
use crate::Result;

/// The program that forwards: Debian's build with DPDK.
pub const DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// What to do where it is not installed.
pub const REMEDY: &str =
    "install the packages openvswitch-switch and openvswitch-switch-dpdk: scripts/bootstrap";

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const LIMIT: Duration = Duration::from_secs(30);
/// The bridge of tenants, and that of the underlay.
pub const INTEGRATION: &str = "br-int";
pub const UNDERLAY: &str = "br-phys";

/// Where an Open vSwitch runs, and how it is set.
#[derive(Debug)]
pub struct OvsSetup<'a> {
    pub folder: &'a Path,
    /// Its EAL file prefix, which no other process has.
    pub prefix: &'a str,
    pub placement: Placement<'a>,
    /// EAL's words besides those that every instance has.
    pub eal: &'a str,
    /// Huge-page memory in MiB.
    pub memory: u64,
    /// Further keys of `other_config`, as `key=value`.
    pub settings: &'a [String],
}

/// Both ends of its tunnels.
#[derive(Debug)]
pub struct TunnelEnds {
    pub own: (MacAddr, Ipv4Addr),
    pub far: (MacAddr, Ipv4Addr),
    pub vni: u32,
}

/// A running Open vSwitch.
#[derive(Debug)]
pub struct OpenVswitch {
    // Dropped in this order: the switch before its database, and both before what they leave behind.
    /// The process that forwards.
    pub daemon: Process,
    pub control: Control,
    _database: Process,
    _run_folder: RunFolder,
}

/// Where the running one listens.
#[derive(Debug)]
pub struct Control {
    environment: Vec<(String, String)>,
    database: String,
    daemon: String,
}

impl Control {
    pub fn vsctl(&self, arguments: &[&str]) -> Result<String> {
        let words = [["--timeout=120", "--retry", &self.database].as_slice(), arguments].concat();
        process::run("ovs-vsctl", &words, &self.environment)
    }

    pub fn appctl(&self, arguments: &[&str]) -> Result<String> {
        let words = [["-T", "30", "-t", &self.daemon].as_slice(), arguments].concat();
        process::run("ovs-appctl", &words, &self.environment)
    }

    pub fn flow(&self, bridge: &str, rule: &str) -> Result<()> {
        process::run("ovs-ofctl", &["add-flow", bridge, rule], &self.environment).map(drop)
    }

    fn configure(&self, setup: &OvsSetup<'_>) -> Result<()> {
        self.vsctl(&["--no-wait", "init"])?;
        let OvsSetup { prefix, eal, memory, settings, .. } = setup;
        let own = [
            "dpdk-init=true".to_owned(),
            format!("dpdk-extra=\"{eal} --in-memory --file-prefix {prefix}\""),
            format!("dpdk-socket-mem=\"{memory}\""),
        ];
        let words = own.iter().chain(*settings).map(|word| format!("other_config:{word}"));
        let words: Vec<String> = words.collect();
        let mut arguments = vec!["--no-wait", "set", "Open_vSwitch", "."];
        arguments.extend(words.iter().map(String::as_str));
        self.vsctl(&arguments).map(drop)
    }
}

impl OpenVswitch {
    /// Starts database and switch, and waits for DPDK. There is no bridge yet.
    pub fn start(setup: &OvsSetup<'_>) -> Result<Self> {
        let folder = setup.folder.display().to_string();
        let environment: Vec<(String, String)> = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"]
            .map(|name| (name.to_owned(), folder.clone()))
            .into();
        let run_folder = RunFolder(setup.prefix.to_owned());
        let (socket, store) = (format!("{folder}/db.sock"), format!("{folder}/conf.db"));
        process::run("ovsdb-tool", &["create", &store, SCHEMA], &environment)?;
        let arguments =
            [store, format!("--remote=punix:{socket}"), format!("--unixctl={folder}/database.ctl")];
        let mut database =
            Process::start("ovsdb-server", &arguments, &environment, Placement::default(), REMEDY)?;
        database.await_that("its socket", LIMIT, || Ok(Path::new(&socket).exists()))?;
        let control = Control {
            environment,
            database: format!("--db=unix:{socket}"),
            daemon: format!("{folder}/switch.ctl"),
        };
        control.configure(setup)?;

        let arguments = [
            format!("unix:{socket}"),
            format!("--unixctl={}", control.daemon),
            format!("--log-file={folder}/switch.log"),
        ];
        let mut daemon = Process::start(DAEMON, &arguments, &control.environment, setup.placement, REMEDY)?;
        daemon.await_that("DPDK to initialise", LIMIT, || {
            let answer = control.vsctl(&["get", "Open_vSwitch", ".", "dpdk_initialized"]);
            Ok(answer.is_ok_and(|text| text.trim() == "true"))
        })?;
        Ok(Self { daemon, control, _database: database, _run_folder: run_folder })
    }

    /// Makes a bridge that forwards nothing but what rules say.
    pub fn add_bridge(&self, name: &str) -> Result<()> {
        let bridge = ["--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure"];
        self.control.vsctl(&[["add-br", name].as_slice(), &bridge].concat()).map(drop)
    }

    /// Adds a port with that number in OpenFlow; `more` are columns of its interface.
    pub fn add_port(&self, bridge: &str, name: &str, number: u32, more: &[&str]) -> Result<()> {
        let number = format!("ofport_request={number}");
        let front = ["add-port", bridge, name, "--", "set", "Interface", name, &number];
        self.control.vsctl(&[front.as_slice(), more].concat())?;
        // The command succeeds whatever becomes of the port.
        let error = self.control.vsctl(&["get", "Interface", name, "error"])?;
        if error.trim() == "[]" {
            return Ok(());
        }
        Err(process::failed(&format!("ovs-vsctl add-port {bridge} {name}"), &error))
    }

    /// Adds the bridge of the underlay with the tunnel's own address, and the tunnel to the bridge of tenants as port `number`.
    pub fn add_tunnel(&self, ends: &TunnelEnds, number: u32) -> Result<()> {
        let TunnelEnds { own, far, vni } = ends;
        self.add_bridge(UNDERLAY)?;
        self.control.vsctl(&["set", "bridge", UNDERLAY, &format!("other-config:hwaddr=\"{}\"", own.0)])?;
        // The kernel would send router solicitations into the underlay.
        self.nsenter(&format!("sysctl -qw net.ipv6.conf.{UNDERLAY}.disable_ipv6=1"))?;
        self.nsenter(&format!("ip address add {}/24 dev {UNDERLAY}", own.1))?;
        self.nsenter(&format!("ip link set {UNDERLAY} up"))?;
        let (local, remote) = (format!("options:local_ip={}", own.1), format!("options:remote_ip={}", far.1));
        let key = format!("options:key={vni}");
        self.add_port(INTEGRATION, "tunnel", number, &["type=vxlan", &local, &remote, &key])?;
        // The switch learns of the address from the kernel's route messages, a moment later.
        for _ in 0..100 {
            if self.control.appctl(&["ovs/route/show"])?.contains(&own.1.to_string()) {
                break;
            }
            interrupt::pause(Duration::from_millis(50))?;
        }
        self.control.appctl(&["tnl/neigh/set", UNDERLAY, &far.1.to_string(), &far.0.to_string()]).map(drop)
    }

    /// What its datapath has dropped so far, by reason.
    pub fn drops(&self) -> Result<BTreeMap<String, u64>> {
        Ok(drops(&self.control.appctl(&["coverage/show"])?))
    }

    /// Runs a helper program in the network namespace of the switch; words are split at blanks.
    fn nsenter(&self, line: &str) -> Result<()> {
        let namespace = format!("--net=/proc/{}/ns/net", self.daemon.pid());
        let words: Vec<&str> = [namespace.as_str()].into_iter().chain(line.split_whitespace()).collect();
        process::run("nsenter", &words, &[]).map(drop)
    }
}

impl Drop for OpenVswitch {
    fn drop(&mut self) {
        let _ = self.daemon.thaw();
        // A clean exit lets DPDK remove what it made.
        let _ = self.control.appctl(&["exit"]);
        self.daemon.terminate(Duration::from_secs(3));
    }
}

/// The datapath's reasons to drop, with their totals, from `coverage/show`.
fn drops(text: &str) -> BTreeMap<String, u64> {
    let reasons = text.lines().filter_map(|line| {
        let reason = line.split_whitespace().next()?;
        let total = line.split_once("total:")?.1.trim().parse().ok()?;
        reason.starts_with(DROP).then(|| (reason.to_owned(), total))
    });
    reasons.collect()
}

/// What the names of its reasons to drop begin with.
pub const DROP: &str = "datapath_drop_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_dropped() {
        let text = "Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash=7e5d3a2c:\n\
                    datapath_drop_upcall_error   0.0/sec     0.033/sec        0.0006/sec   total: 2\n\
                    netdev_sent                5.0/sec     1.033/sec        0.0006/sec   total: 815\n\
                    112 events never hit\n";
        assert_eq!(drops(text), [("datapath_drop_upcall_error".to_owned(), 2)].into());
    }
}
