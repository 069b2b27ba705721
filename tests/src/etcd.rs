//! A cluster: hosts that each run the switch, an underlay and a management network between them, and Debian's etcd on the latter.
//!
//! ```text
//!  red1 ── veth ── h1: vswitch ══ up0 ══ fabric (bridge) ══ up0 ══ h2: vswitch ── veth ── red2
//!                     └── mgmt0 ── mgmt (bridge, etcd 10.99.0.254) ── mgmt0 ──┘
//! ```

use crate::tls::Authority;
use crate::{Daemon, Netns, Process, Workdir, lab, netns, process, wait_for};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

const ADDRESS: &str = "10.99.0.254";
const START: Duration = Duration::from_secs(20);
/// What a lease of the hosts is here, in seconds: the shortest there is.
pub const LEASE: u64 = 2;
/// How long hosts believe one whose lease has ended.
pub const GRACE: Duration = Duration::from_secs(6);

/// Members of an etcd, in a namespace of their own.
#[derive(Debug)]
pub struct Etcd {
    /// The management network; hosts are cabled to its bridge.
    pub netns: Netns,
    members: Vec<Option<Process>>,
    secure: Option<Authority>,
    /// `user:password` of whoever asks by `etcdctl`.
    pub user: Option<String>,
    dir: Workdir,
}

/// An authority, a certificate of etcd for the address of the management network, and one of a client.
#[track_caller]
pub fn certificates() -> Authority {
    let made = Authority::new(&["ca"]);
    // A member is a client of the others, too.
    made.sign("etcd", "ca", &format!("IP:{ADDRESS}"), "-days 2");
    made.sign("client", "ca", "DNS:host.test", "-days 2");
    made
}

impl Etcd {
    /// One member, which asks nobody who he is.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_members(1, None)
    }

    /// So many members, by TLS where there are certificates: clients have to have one.
    #[track_caller]
    pub fn start_members(count: usize, secure: Option<Authority>) -> Self {
        let netns = Netns::new("mgmt");
        netns.ip("link add bridge type bridge mcast_snooping 0");
        netns.ip(&format!("addr add {ADDRESS}/24 dev bridge"));
        netns.ip("link set bridge up");
        let members = (0..count).map(|_| None).collect();
        let mut etcd = Self { netns, members, secure, user: None, dir: Workdir::new("etcd") };
        (0..count).for_each(|member| etcd.revive(member));
        etcd.wait_until_healthy();
        etcd
    }

    fn scheme(&self) -> &'static str {
        if self.secure.is_some() { "https" } else { "http" }
    }

    /// The URL of a member.
    pub fn endpoint(&self, member: usize) -> String {
        format!("{}://{ADDRESS}:{}", self.scheme(), 2379 + 10 * member)
    }

    /// The process of a member is gone, without a word.
    #[track_caller]
    pub fn kill(&mut self, member: usize) {
        let mut process = self.members[member].take().expect("the member runs");
        process.signal("KILL");
        process.wait(START);
    }

    /// A member that does not run has nothing any more.
    #[track_caller]
    pub fn empty(&mut self, member: usize) {
        assert!(self.members[member].is_none(), "the member runs");
        std::fs::remove_dir_all(self.dir.path().join(format!("m{member}"))).expect("its folder");
    }

    /// A member is started, on what it had.
    #[track_caller]
    pub fn revive(&mut self, member: usize) {
        let peer = |member: usize| format!("{}://{ADDRESS}:{}", self.scheme(), 2380 + 10 * member);
        let all: Vec<String> =
            (0..self.members.len()).map(|member| format!("m{member}={}", peer(member))).collect();
        let mut command = format!(
            "exec etcd --name m{member} --data-dir {}/m{member} --listen-client-urls {client} --advertise-client-urls {client} \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster {all} --unsafe-no-fsync \
             --heartbeat-interval 50 --election-timeout 500",
            self.dir.path().display(),
            client = self.endpoint(member),
            peer = peer(member),
            all = all.join(","),
        );
        // Of Debian 12; only tests would want it.
        if !has_option("--unsafe-no-fsync") {
            command = command.replace(" --unsafe-no-fsync", "");
        }
        if let Some(files) = &self.secure {
            for kind in ["", "peer-"] {
                let _ = write!(
                    command,
                    " --{kind}cert-file {} --{kind}key-file {} --{kind}trusted-ca-file {} --{kind}client-cert-auth",
                    files.path("etcd.pem").display(),
                    files.path("etcd.key").display(),
                    files.path("ca.pem").display(),
                );
            }
        }
        let name = format!("etcd{member}");
        self.members[member] = Some(self.netns.spawn(&name, &["bash", "-c", &command], &self.dir));
    }

    /// Waits until a majority answers.
    #[track_caller]
    pub fn wait_until_healthy(&mut self) {
        wait_for("etcd to answer", START, || {
            for process in self.members.iter_mut().flatten() {
                assert!(process.exited().is_none(), "etcd ended:\n{}", process.output());
            }
            self.try_ctl(&["get", "/none"])
        });
    }

    fn try_ctl(&self, args: &[&str]) -> Option<String> {
        let running = self.members.iter().enumerate().filter(|(_, member)| member.is_some());
        let endpoints: Vec<String> = running.map(|(member, _)| self.endpoint(member)).collect();
        let endpoints = endpoints.join(",");
        let mut words = vec!["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", &endpoints];
        let files = self.secure.as_ref().map(|files| {
            ["ca.pem", "client.pem", "client.key"].map(|name| files.path(name).display().to_string())
        });
        if let Some([ca, certificate, key]) = &files {
            words.extend(["--cacert", ca, "--cert", certificate, "--key", key]);
        }
        if let Some(user) = &self.user {
            words.extend(["--user", user]);
        }
        words.extend(args);
        let output = self.netns.try_run(&words);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What `etcdctl` says to some words.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|| panic!("etcdctl refused {args:?}"))
    }

    /// The newest revision.
    #[track_caller]
    pub fn revision(&self) -> i64 {
        let said = self.ctl(&["get", "/none", "-w", "json"]);
        let said: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        said["header"]["revision"].as_i64().expect("a revision")
    }

    /// The `etcd` key of `[control]` for a host; `more` are further keys of it.
    pub fn config(&self, host: usize, more: &str) -> String {
        let endpoints: Vec<String> =
            (0..self.members.len()).map(|member| format!("\"{}\"", self.endpoint(member))).collect();
        let tls = self.secure.as_ref().map(|files| {
            let path = |name: &str| files.path(name).display().to_string();
            format!(
                ", tls = {{ ca = \"{}\", certificate = \"{}\", key = \"{}\" }}",
                path("ca.pem"),
                path("client.pem"),
                path("client.key")
            )
        });
        format!(
            "etcd = {{ endpoints = [{}], host = \"h{host}\", lease = \"{LEASE}s\", grace = \"{}s\"{}{more} }}\n",
            endpoints.join(", "),
            GRACE.as_secs(),
            tls.unwrap_or_default(),
        )
    }
}

fn has_option(option: &str) -> bool {
    let help = process::try_run(&["etcd", "--help"]);
    let text = [help.stdout, help.stderr].concat();
    String::from_utf8_lossy(&text).contains(option)
}

/// The underlay: a bridge.
#[derive(Debug)]
pub struct Fabric(Netns);

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Fabric {
    /// With nobody on it.
    #[track_caller]
    pub fn new() -> Self {
        Netns::reap();
        Self::named("fabric")
    }

    /// A further one, with nobody on it.
    #[track_caller]
    pub fn named(name: &str) -> Self {
        let netns = Netns::new(name);
        netns.ip(&format!("link add bridge mtu {} type bridge mcast_snooping 0", lab::UNDERLAY_MTU));
        netns.ip("link set bridge up");
        Self(netns)
    }

    /// Its namespace, where it has a port for each host and whoever else is on it.
    pub fn netns(&self) -> &Netns {
        &self.0
    }

    /// Somebody else comes onto it, with an interface whose port here has the other name.
    #[track_caller]
    pub fn join(&self, netns: &Netns, interface: &str, port: &str) {
        netns::cable((netns, interface), (&self.0, port), lab::UNDERLAY_MTU);
        self.0.ip(&format!("link set {port} master bridge"));
    }
}

/// A host of the cluster: a namespace on both networks.
#[derive(Debug)]
pub struct Host {
    pub netns: Netns,
    pub number: usize,
}

/// A container of a host.
#[derive(Debug)]
pub struct Container {
    pub netns: Netns,
    pub name: String,
    pub address: String,
    mac: String,
    vpc: String,
}

impl Host {
    /// A host with a number of its own: its VTEP is 172.16.0 and that number.
    #[track_caller]
    pub fn new(fabric: &Fabric, etcd: &Etcd, number: usize) -> Self {
        let netns = Netns::new(&format!("h{number}"));
        netns::cable((&netns, "up0"), (&fabric.0, &format!("h{number}")), lab::UNDERLAY_MTU);
        fabric.0.ip(&format!("link set h{number} master bridge"));
        netns::cable((&netns, "mgmt0"), (&etcd.netns, &format!("h{number}")), 1500);
        etcd.netns.ip(&format!("link set h{number} master bridge"));
        netns.ip(&format!("addr add 10.99.0.{number}/24 dev mgmt0"));
        Self { netns, number }
    }

    /// Its VTEP address.
    pub fn vtep(&self) -> String {
        format!("172.16.0.{}", self.number)
    }

    /// A container on a veth; `net` is the third byte of its address, `last` the fourth, and both are in its MAC address.
    #[track_caller]
    pub fn container(&self, vpc: &str, net: u8, last: u8) -> Container {
        let name = format!("{vpc}{net}-{last}");
        let netns = Netns::new(&format!("{name}h{}", self.number));
        let (mac, address) = (format!("02:00:00:00:{net:02x}:{last:02x}"), format!("10.0.{net}.{last}"));
        netns::cable((&netns, "eth0"), (&self.netns, &name), lab::TENANT_MTU);
        netns.ip(&format!("link set eth0 address {mac}"));
        netns.ip(&format!("addr add {address}/16 dev eth0"));
        Container { netns, name, address, mac, vpc: vpc.to_owned() }
    }

    /// The config of its switch: uplink, control, and what follows.
    pub fn config(&self, etcd: &Etcd, control: &str, body: &str) -> String {
        format!(
            "[workers]\ncount = 1\nidle = \"sleep\"\n[control]\n{}{control}\n[[uplink]]\nname = \"up\"\nport = {{ kind = \"af-packet\", iface = \"up0\" }}\n\
             addresses = [\"{}/24\"]\nmtu = {}\n{body}",
            etcd.config(self.number, ""),
            self.vtep(),
            lab::UNDERLAY_MTU
        )
    }

    /// Its switch, running.
    #[track_caller]
    pub fn start(&self, etcd: &Etcd, body: &str) -> Daemon {
        Daemon::start_alone(&self.netns, &self.config(etcd, "", body))
    }
}

impl Container {
    /// Its `[[vnic]]`; `more` are further keys of it.
    pub fn vnic(&self, more: &str) -> String {
        format!(
            "[[vnic]]\nname = \"{0}\"\nvpc = \"{1}\"\nmac = \"{2}\"\nvips = [\"{3}\"]\nmtu = {4}\nport = {{ kind = \"veth\", iface = \"{0}\" }}\n{more}\n",
            self.name,
            self.vpc,
            self.mac,
            self.address,
            lab::TENANT_MTU
        )
    }

    /// The words of `vnic add` for it.
    pub fn add(&self) -> String {
        format!(
            "vnic add {0} vpc {1} mac {2} vips {3} mtu {4} port veth iface={0}",
            self.name,
            self.vpc,
            self.mac,
            self.address,
            lab::TENANT_MTU
        )
    }
}

/// Where a switch says that an address is: "vtep ADDRESS" or "vnic NAME", if it knows it.
#[track_caller]
pub fn place(daemon: &Daemon, vni: u32, address: &str) -> Option<String> {
    row(daemon, vni, address)?["where"].as_str().map(str::to_owned)
}

fn row(daemon: &Daemon, vni: u32, address: &str) -> Option<Value> {
    let shown = daemon.json("show vlt");
    let rows = shown["locations"].as_array().unwrap_or_else(|| panic!("no locations: {shown}")).iter();
    let mut found = rows.filter(|row| row["vni"] == vni && row["vip"] == address);
    found.next().cloned()
}

/// Waits until a switch says that an address is there, or nowhere; where it is behind a VTEP, until the way there is known.
#[track_caller]
pub fn wait_for_place(daemon: &Daemon, vni: u32, address: &str, wanted: Option<&str>, limit: Duration) {
    let what = format!("{address} in VNI {vni} to be at {wanted:?}");
    wait_for(&what, limit, || {
        let known = row(daemon, vni, address);
        let is_there = known.as_ref().and_then(|row| row["where"].as_str()) == wanted;
        (is_there && known.is_none_or(|row| row["state"] != "resolving")).then_some(())
    });
}

/// What a switch says of its control plane.
#[track_caller]
pub fn control(daemon: &Daemon) -> Value {
    daemon.json("show control")
}

/// The faults of a kind that a switch tells of, by their subjects.
#[track_caller]
pub fn faults(daemon: &Daemon, kind: &str) -> Vec<(String, String)> {
    let shown = control(daemon);
    let faults = shown["faults"].as_array().cloned().unwrap_or_default();
    let text = |fault: &Value, name: &str| fault[name].as_str().unwrap_or_default().to_owned();
    let of_kind = faults.iter().filter(|fault| fault["kind"] == kind);
    of_kind.map(|fault| (text(fault, "subject"), text(fault, "text"))).collect()
}
