//! The CNI plugin as a container runtime runs it: variables, a network config, and what it answers; the real switch behind it.

use crate::{Daemon, Family, Lab, Netns, Workdir, binary, traffic};
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};

/// Where Debian has the plugins that addresses are delegated to.
pub const PLUGINS: &str = "/usr/lib/cni";

fn networks() -> String {
    let vpc = |name: &str, vni: u32| {
        format!(
            "[[vpc]]\nname = \"{name}\"\nvni = {vni}\n\
             [[subnet]]\nvpc = \"{name}\"\nprefix = \"10.0.0.0/24\"\ngateway = \"10.0.0.254\"\n\
             [[subnet]]\nvpc = \"{name}\"\nprefix = \"fd00:1::/64\"\ngateway = \"fd00:1::ff\"\n"
        )
    };
    [vpc("red", 100), vpc("blue", 200)].concat()
}

/// A host with the switch, whose changes are saved.
#[derive(Debug)]
pub struct Host {
    pub daemon: Daemon,
    pub lab: Lab,
    /// The interfaces of the host before the first pod.
    before: Vec<String>,
    pub dir: Workdir,
}

/// A container: its network namespace.
#[derive(Debug)]
pub struct Pod {
    pub netns: Netns,
    pub id: String,
}

impl Pod {
    pub fn new(name: &str) -> Pod {
        Pod { netns: Netns::new(name), id: format!("{name}0123456789abcdef0123456789abcdef") }
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.netns.name())
    }

    /// Packets that its interface got.
    pub fn heard(&self) -> u64 {
        let told = self.netns.run(&["cat", "/sys/class/net/eth0/statistics/rx_packets"]);
        told.trim().parse().unwrap()
    }
}

/// What the plugin answered.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub success: bool,
    /// Null where it said nothing.
    pub told: Value,
}

impl Answer {
    #[track_caller]
    pub fn result(self) -> Value {
        assert!(self.success, "{:#}", self.told);
        self.told
    }

    #[track_caller]
    pub fn failure(self, code: u64, words: &str) {
        let told = &self.told;
        assert!(!self.success && told["code"] == code, "not {code}: {told:#}");
        assert!(told["msg"].as_str().unwrap().contains(words), "no {words:?}: {told:#}");
        assert!(!told["details"].as_str().unwrap().is_empty(), "it does not say what to do: {told:#}");
    }
}

pub fn answer(child: Child) -> Answer {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{text}");
    let told = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
    Answer { success: output.status.success(), told }
}

/// The first address of a result that is of this family.
pub fn address(result: &Value, is_ipv6: bool) -> String {
    let ips = result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap());
    let ip = ips.into_iter().find(|ip| ip.contains(':') == is_ipv6).unwrap();
    ip.split('/').next().unwrap().to_owned()
}

pub fn with(config: &Value, more: Value) -> Value {
    let mut config = config.clone();
    let Value::Object(more) = more else { panic!("{more}") };
    for (key, value) in more {
        config[key] = value;
    }
    config
}

impl Host {
    pub fn start() -> Host {
        let lab = Lab::new(Family::V4);
        let dir = Workdir::new("cni");
        let state = dir.path().join("state");
        let uplink = lab.uplink_on("{ kind = \"veth\", iface = \"up0\" }", "");
        let config = format!("[control]\nstate = \"{}\"\n{uplink}{}", state.display(), networks());
        let before = lab.host.interfaces();
        let daemon = Daemon::start(&lab.host, &config);
        Host { daemon, lab, before, dir }
    }

    /// A network of VPC `red`.
    pub fn network(&self) -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "vswitch-cni", "socket": self.daemon.socket(),
            "vpc": "red", "subnet": ["10.0.0.0/24", "fd00:1::/64"], "mtu": 1400,
        })
    }

    /// Runs the plugin with these variables besides its command.
    pub fn spawn(&self, command: &str, variables: &[(&str, &str)], config: &[u8]) -> Child {
        self.spawn_program(&binary::release("vswitch-cni"), command, variables, config)
    }

    fn spawn_program(
        &self,
        program: &Path,
        command: &str,
        variables: &[(&str, &str)],
        config: &[u8],
    ) -> Child {
        let mut plugin = self.lab.host.command(&[&program.display().to_string()]);
        plugin.env("CNI_COMMAND", command).env("CNI_PATH", PLUGINS).envs(variables.iter().copied());
        let mut child =
            plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may refuse what it is asked before it has read all of it.
        let _ = child.stdin.take().unwrap().write_all(config);
        child
    }

    pub fn spawn_for(&self, command: &str, pod: &Pod, interface: &str, config: &Value) -> Child {
        self.spawn_program_for(&binary::release("vswitch-cni"), command, pod, interface, config)
    }

    /// Has a plugin of Debian's do something.
    pub fn ask_other(&self, name: &str, command: &str, pod: &Pod, interface: &str, config: &Value) -> Answer {
        answer(self.spawn_program_for(&Path::new(PLUGINS).join(name), command, pod, interface, config))
    }

    fn spawn_program_for(
        &self,
        program: &Path,
        command: &str,
        pod: &Pod,
        interface: &str,
        config: &Value,
    ) -> Child {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web";
        let (id, path) = (pod.id.as_str(), pod.path());
        let variables =
            [("CNI_CONTAINERID", id), ("CNI_IFNAME", interface), ("CNI_NETNS", &path), ("CNI_ARGS", args)];
        self.spawn_program(program, command, &variables, config.to_string().as_bytes())
    }

    pub fn ask(&self, command: &str, pod: &Pod, config: &Value) -> Answer {
        self.ask_as(command, pod, "eth0", config)
    }

    pub fn ask_as(&self, command: &str, pod: &Pod, interface: &str, config: &Value) -> Answer {
        answer(self.spawn_for(command, pod, interface, config))
    }

    #[track_caller]
    pub fn add(&self, pod: &Pod, config: &Value) -> Value {
        self.ask("ADD", pod, config).result()
    }

    pub fn check(&self, pod: &Pod, config: &Value, result: &Value) -> Answer {
        self.ask("CHECK", pod, &with(config, json!({"prevResult": result})))
    }

    #[track_caller]
    pub fn del(&self, pod: &Pod, config: &Value) {
        self.ask("DEL", pod, config).result();
    }

    pub fn vnics(&self) -> Vec<String> {
        let shown = self.daemon.json("show vnic");
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        shown.as_array().unwrap().iter().map(name).collect()
    }

    /// Nothing is there any more of any pod.
    #[track_caller]
    pub fn nothing_left(&self, pods: &[&Pod]) {
        assert_eq!(self.vnics(), [""; 0]);
        assert_eq!(self.lab.host.interfaces(), self.before);
        for pod in pods {
            assert_eq!(pod.netns.interfaces(), ["lo"]);
        }
    }
}

/// Both ways, over both families.
#[track_caller]
pub fn hear_each_other((one, its): (&Pod, &Value), (other, others): (&Pod, &Value)) {
    for is_ipv6 in [false, true] {
        traffic::ping(&one.netns, &address(others, is_ipv6), 1000, 3);
        traffic::ping(&other.netns, &address(its, is_ipv6), 56, 3);
    }
}

/// Addresses that a plugin of Debian's chose and holds.
pub fn held(store: &Path, network: &str) -> Vec<String> {
    let Ok(folder) = fs::read_dir(store.join(network)) else { return Vec::new() };
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("10.")).collect()
}
