//! Made-up hosts: a folder that looks like `/`, and tools that answer what they are told to.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::config::Config;
use crate::nic_check::host::{Tools, Unanswered};
use crate::nic_check::probe::Probed;
use crate::nic_check::{self, Device, Finding, FindingState, HostView, NicReport, Unseen};

pub const PCI: &str = "0000:3b:00.0";
pub const DEVICE: &str = "sys/bus/pci/devices/0000:3b:00.0";
pub const NETDEV: &str = "ens1f0np0";

/// A host under construction. Its folder goes with it.
pub struct Tree {
    pub root: PathBuf,
    answers: HashMap<String, Result<String, Unanswered>>,
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

struct Answers(HashMap<String, Result<String, Unanswered>>);

impl Tools for Answers {
    fn run(&self, tool: &str, args: &[&str]) -> Result<String, Unanswered> {
        let line = format!("{tool} {}", args.join(" "));
        let found = self.0.iter().find(|(start, _)| line.starts_with(start.as_str()));
        found.map_or_else(|| Err(Unanswered::Missing(tool.into())), |(_, answer)| answer.clone())
    }
}

impl Tree {
    /// No device at all, with a PCI bus.
    pub fn empty() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("nic-check-{}-{unique}", std::process::id()));
        fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
        Self { root, answers: HashMap::new() }
    }

    /// A ConnectX-6 Dx in switchdev mode with two VFs, and all as it should be.
    pub fn fine() -> Self {
        let mut tree = Self::empty();
        for (file, text) in [
            ("vendor", "0x15b3"),
            ("device", "0x101d"),
            ("numa_node", "1"),
            ("local_cpulist", "16-31,48-63"),
            ("sriov_numvfs", "2"),
            ("sriov_totalvfs", "8"),
            ("current_link_speed", "16.0 GT/s PCIe"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
            ("infiniband/mlx5_0/fw_ver", "22.36.1010"),
        ] {
            tree.write(&format!("{DEVICE}/{file}"), text);
        }
        tree.bind("mlx5_core");
        tree.write("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
        tree.write("usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_net_mlx5.so", "");
        tree.pages(1, 2048, 1024, 1024);
        tree.interface(NETDEV, "p0");
        tree.interface("ens1f0np0_0", "pf0vf0");
        tree.interface("ens1f0np0_1", "pf0vf1");
        let net = format!("sys/class/net/{NETDEV}");
        for (file, text) in [("operstate", "up"), ("speed", "100000"), ("mtu", "9000")] {
            tree.write(&format!("{net}/{file}"), text);
        }
        for queue in ["rx-0", "rx-1", "tx-0", "tx-1"] {
            fs::create_dir_all(tree.root.join(format!("{net}/queues/{queue}"))).unwrap();
        }
        for role in ["roce_np", "roce_rp"] {
            tree.write(&format!("{net}/ecn/{role}/enable/3"), "1");
        }
        tree.eswitch("switchdev");
        tree.steering("smfs");
        let info = r#"{"info":{"pci/0000:3b:00.0":{"driver":"mlx5_core","versions":{"running":{"fw.version":"22.36.1010"}}}}}"#;
        tree.answer("devlink -j dev info", info);
        tree.pfc(Some(3));
        tree.answer("dcb -j app show", r#"{"dscp_prio":[[26,3," "]]}"#);
        tree
    }

    pub fn write(&mut self, path: &str, text: &str) {
        self.write_bytes(path, format!("{text}\n").as_bytes());
    }

    pub fn write_bytes(&mut self, path: &str, bytes: &[u8]) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub fn remove(&mut self, path: &str) {
        let path = self.root.join(path);
        let _ = if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
    }

    pub fn bind(&mut self, driver: &str) {
        self.remove(&format!("{DEVICE}/driver"));
        symlink(format!("../../../bus/pci/drivers/{driver}"), self.root.join(DEVICE).join("driver")).unwrap();
    }

    /// An interface of the device's e-switch. In switchdev mode representors are below the device, too.
    fn interface(&mut self, name: &str, port: &str) {
        fs::create_dir_all(self.root.join(DEVICE).join("net").join(name)).unwrap();
        self.write(&format!("sys/class/net/{name}/phys_switch_id"), "7aee5d0003a1420c");
        self.write(&format!("sys/class/net/{name}/phys_port_name"), port);
    }

    pub fn pages(&mut self, node: u32, kib: u32, all: u32, free: u32) {
        let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB");
        self.write(&format!("{folder}/nr_hugepages"), &all.to_string());
        self.write(&format!("{folder}/free_hugepages"), &free.to_string());
    }

    pub fn answer(&mut self, start: &str, json: &str) {
        self.answers.insert(start.into(), Ok(json.into()));
    }

    pub fn fail(&mut self, start: &str, why: Unanswered) {
        self.answers.insert(start.into(), Err(why));
    }

    /// A tool is not installed.
    pub fn uninstall(&mut self, tool: &str) {
        self.answers.retain(|start, _| !start.starts_with(tool));
    }

    pub fn eswitch(&mut self, mode: &str) {
        let json = format!(
            r#"{{"dev":{{"pci/{PCI}":{{"mode":"{mode}","inline-mode":"none","encap-mode":"basic"}}}}}}"#
        );
        self.answer("devlink -j dev eswitch show", &json);
    }

    pub fn steering(&mut self, mode: &str) {
        let json = format!(
            r#"{{"param":{{"pci/{PCI}":[{{"name":"flow_steering_mode","type":"driver-specific","values":[{{"cmode":"runtime","value":"{mode}"}}]}}]}}}}"#
        );
        self.answer("devlink -j dev param show", &json);
    }

    pub fn pfc(&mut self, priority: Option<usize>) {
        let on: Vec<String> = (0..8).map(|at| (Some(at) == priority).to_string()).collect();
        self.answer(
            "dcb -j pfc show",
            &format!(r#"{{"pfc_cap":8,"prio_pfc":[{}],"delay":0}}"#, on.join(",")),
        );
    }

    pub fn check(&self, config: Option<&Config>) -> Result<NicReport, Unseen> {
        self.look(config, None)
    }

    /// With what a switch says of the device.
    pub fn probed(&self, probed: &Result<Probed, String>) -> NicReport {
        self.look(None, Some(probed)).unwrap()
    }

    fn look(
        &self,
        config: Option<&Config>,
        probed: Option<&Result<Probed, String>>,
    ) -> Result<NicReport, Unseen> {
        let host = HostView { root: self.root.clone(), tools: Box::new(Answers(self.answers.clone())) };
        let given = config.map(|config| (config, "/etc/vswitch.toml"));
        let report = nic_check::check(&host, &Device::parse("3b:00.0")?, given, probed);
        if let Ok(report) = &report {
            consistent(report);
        }
        report
    }

    pub fn report(&self) -> NicReport {
        self.check(None).unwrap()
    }

    /// Makes any file of the device unreadable: a folder is in its place.
    pub fn spoil(&mut self, path: &str) {
        self.remove(path);
        fs::create_dir_all(self.root.join(Path::new(path))).unwrap();
    }

    /// Every regular file, below the root.
    pub fn files(&self) -> Vec<String> {
        let mut folders = vec![self.root.clone()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let kind = entry.file_type().unwrap();
                match kind.is_dir() {
                    true => folders.push(entry.path()),
                    false if kind.is_file() => {
                        let path = entry.path();
                        files.push(path.strip_prefix(&self.root).unwrap().to_str().unwrap().to_owned());
                    }
                    false => {}
                }
            }
        }
        files.sort();
        files
    }
}

/// What holds of every report.
fn consistent(report: &NicReport) {
    for finding in &report.findings {
        let command = finding.command.as_deref();
        if finding.state == FindingState::Change {
            assert!(command.is_some_and(|command| !command.is_empty()), "{finding:?}");
        }
        assert!(!command.is_some_and(|command| command.replace("<file>", "").contains('<')), "{finding:?}");
        assert!(!finding.value.is_empty(), "{finding:?}");
    }
    let text = report.text();
    assert_eq!(text.lines().count(), report.findings.len() + 3, "{text}");
    assert_eq!(report.json()["status"], report.status());
}

pub fn finding<'a>(report: &'a NicReport, name: &str) -> &'a Finding {
    report.findings.iter().find(|finding| finding.name == name).unwrap()
}

/// Names and commands of what is to be changed.
pub fn changes(report: &NicReport) -> Vec<(&str, &str)> {
    let change = report.findings.iter().filter(|finding| finding.state == FindingState::Change);
    change.map(|finding| (finding.name.as_str(), finding.command.as_deref().unwrap())).collect()
}
