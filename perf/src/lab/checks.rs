//! What the machine must be like before anything is measured: programs, ports, cores, memory.
//!
//! Reads sysfs and procfs and asks programs for their versions; changes nothing. What fails stops a run; what is poor
//! makes figures worse and is told with them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::file::Lab;
use super::{generator, memory};
use crate::Result;
use crate::compare::cases::Peer;
use crate::compare::peer::{Attached, Contender};
use crate::host::process::said;
use crate::host::{ovs, process};

/// Drivers of the kernel that hand a device to user space, and those that DPDK's own driver works beside.
const BOUND: [&str; 8] =
    ["vfio-pci", "uio_pci_generic", "igb_uio", "uio_hv_generic", "mlx5_core", "mlx4_core", "mana", "bnxt_re"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckVerdict {
    Good,
    Poor,
    Failed,
}

#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub what: String,
    pub verdict: CheckVerdict,
    /// What was found, and what to do where that is not good.
    pub found: String,
}

impl Check {
    fn good(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: CheckVerdict::Good, found: found.into() }
    }

    fn poor(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { verdict: CheckVerdict::Poor, ..Self::good(what, found) }
    }

    fn failed(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { verdict: CheckVerdict::Failed, ..Self::good(what, found) }
    }

    /// What was found if it is good, or what to do.
    fn poor_unless(is_good: bool, what: impl Into<String>, good: impl Into<String>, poor: String) -> Self {
        if is_good { Self::good(what, good) } else { Self::poor(what, poor) }
    }

    /// What a program says, or why it says nothing.
    fn asked(what: &str, answer: Result<String>) -> Self {
        match answer {
            Ok(answer) => Self::good(what, answer),
            Err(error) => Self::failed(what, error.to_string()),
        }
    }

    fn installed(what: &str, program: &str) -> Self {
        match process::findable(program) {
            true => Self::good(what, program),
            false => Self::failed(what, format!("{program} is not installed: scripts/bootstrap")),
        }
    }

    pub fn word(&self) -> &'static str {
        match self.verdict {
            CheckVerdict::Good => "ok",
            CheckVerdict::Poor => "POOR",
            CheckVerdict::Failed => "FAILED",
        }
    }

    pub fn line(&self) -> String {
        format!("{:<7} {:<28} {}", self.word(), self.what, self.found)
    }
}

/// Everything that can be looked at before the first frame.
pub fn all(lab: &Lab, vswitch: &Path) -> Vec<Check> {
    let system = System { sys: PathBuf::from("/sys"), proc: PathBuf::from("/proc") };
    let mut checks = programs(lab, vswitch);
    checks.extend(system.ports(lab));
    checks.extend(system.cores(lab));
    checks.push(system.hugepages(memory(lab)));
    checks
}

fn programs(lab: &Lab, vswitch: &Path) -> Vec<Check> {
    let takes_part = |wanted: &[Contender]| lab.device.forwarders.iter().any(|one| wanted.contains(one));
    let mut checks = vec![
        // The probe forwards with testpmd, whoever is measured.
        Check::installed("testpmd", "dpdk-testpmd"),
        Check::asked("DPDK", said("pkg-config", &["--modversion", "libdpdk"])),
        Check::asked("kernel", said("uname", &["-sr"])),
    ];
    if takes_part(&[Contender::Ours]) {
        checks.push(Check::asked("vswitch", said(&vswitch.display().to_string(), &["--version"])));
    }
    if takes_part(&[Peer::OvsExact, Peer::OvsWildcard].map(Contender::Peer)) {
        checks.push(match process::findable(ovs::DAEMON) {
            true => Check::asked("OVS", said("ovs-vswitchd", &["--version"])),
            false => Check::installed("OVS", ovs::DAEMON),
        });
    }
    let own = format!("perf {}", env!("CARGO_PKG_VERSION"));
    let theirs = generator::command(&lab.generator).and_then(|words| {
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).chain(["--version"]).collect();
        said(&words[0], &arguments)
    });
    let other =
        |version: &str| format!("it is `{version}` and this is `{own}`; install the same on both sides");
    checks.push(match theirs {
        Ok(version) if version != own => Check::poor("generator", other(&version)),
        theirs => Check::asked("generator", theirs),
    });
    checks
}

/// The kernel's view of the machine.
struct System {
    sys: PathBuf,
    proc: PathBuf,
}

impl System {
    fn word(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.sys.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn ports(&self, lab: &Lab) -> Vec<Check> {
        let names = ["device near", "device far", "generator near", "generator far"];
        // Ports of another machine are that machine's business.
        let (device, generator) = (&lab.device, &lab.generator);
        let here = if generator.via.is_empty() { 4 } else { 2 };
        let owner = |index: usize| {
            if index < 2 {
                &lab.device.cores.get_ref()[..]
            } else {
                std::slice::from_ref(&lab.generator.core)
            }
        };
        let ports = [&device.near, &device.far, &generator.near, &generator.far];
        let ports = names.into_iter().zip(ports).take(here).enumerate();
        ports.flat_map(|(index, (name, port))| self.port(name, port, owner(index))).collect()
    }

    fn port(&self, name: &str, port: &Attached, cores: &[usize]) -> Vec<Check> {
        let device = match port {
            Attached::Virtual(device) => {
                let device = device.split(',').next().unwrap_or_default();
                return vec![Check::poor(name, format!("{device}: no NIC; figures are of software"))];
            }
            Attached::Guest(path) => {
                return vec![Check::poor(name, format!("{path}: a guest's socket; figures are of software"))];
            }
            Attached::Pci(device) => device.split(',').next().unwrap_or_default(),
        };
        let folder = format!("bus/pci/devices/{device}");
        if !self.sys.join(&folder).exists() {
            let found = format!("there is no {device}; `lspci -D` lists the devices");
            return vec![Check::failed(name, found)];
        }
        let target = fs::read_link(self.sys.join(&folder).join("driver")).ok();
        let driver =
            target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let mut checks = vec![match driver.as_deref() {
            Some(driver) if BOUND.contains(&driver) => {
                Check::good(name, format!("{device}, driver {driver}"))
            }
            other => Check::failed(
                name,
                format!(
                    "{device} has the driver {}, which DPDK does not work with; \
                     `dpdk-devbind.py --bind=vfio-pci {device}` (its kernel interface goes away)",
                    other.unwrap_or("none")
                ),
            ),
        }];
        if driver.as_deref() == Some("vfio-pci") {
            checks.push(Check::poor_unless(
                self.sys.join(&folder).join("iommu_group").exists(),
                format!("{name}, IOMMU"),
                "in a group of its own or with others",
                "in no group: switch it on (intel_iommu=on or amd_iommu=on, iommu=pt), or allow \
                 enable_unsafe_noiommu_mode of the module vfio"
                    .into(),
            ));
        }
        checks.push(self.node_of_port(name, &folder, cores));
        checks.extend(self.slot(name, &folder));
        checks.extend(self.interfaces(name, &folder));
        checks
    }

    fn node_of_port(&self, name: &str, folder: &str, cores: &[usize]) -> Check {
        let node = self.word(&format!("{folder}/numa_node")).and_then(|word| word.parse::<i64>().ok());
        let what = format!("{name}, NUMA");
        let Some(node) = node else { return Check::poor(what, "the kernel does not say its node") };
        // Where there is one node only, the kernel says -1.
        let far: Vec<usize> =
            cores.iter().copied().filter(|&core| node >= 0 && !self.on_node(core, node)).collect();
        let poor = format!("node {node}, but cores {far:?} are on another; choose cores of node {node}");
        Check::poor_unless(far.is_empty(), what, format!("node {node}, as its cores"), poor)
    }

    fn on_node(&self, core: usize, node: i64) -> bool {
        self.sys.join(format!("devices/system/cpu/cpu{core}/node{node}")).exists()
    }

    /// A slot that is slower than the NIC bounds everything.
    fn slot(&self, name: &str, folder: &str) -> Option<Check> {
        let [speed, best, width, widest] =
            ["current_link_speed", "max_link_speed", "current_link_width", "max_link_width"]
                .map(|file| self.word(&format!("{folder}/{file}")));
        let (speed, best, width, widest) = (speed?, best?, width?, widest?);
        let poor = format!("{speed} and {width} lanes of {best} and {widest}; use a better slot, or riser");
        let (is_good, good) = (speed == best && width == widest, format!("{speed}, {width} lanes"));
        Some(Check::poor_unless(is_good, format!("{name}, slot"), good, poor))
    }

    /// Link and firmware, where the kernel has an interface beside DPDK's driver.
    fn interfaces(&self, name: &str, folder: &str) -> Vec<Check> {
        let Ok(entries) = fs::read_dir(self.sys.join(folder).join("net")) else { return Vec::new() };
        let mut checks = Vec::new();
        for interface in entries.flatten() {
            let interface = interface.file_name().to_string_lossy().into_owned();
            let up = self.word(&format!("class/net/{interface}/carrier")).as_deref() == Some("1");
            checks.push(if up {
                let speed = self.word(&format!("class/net/{interface}/speed")).unwrap_or_default();
                Check::good(format!("{name}, link"), format!("up, {speed} Mbit/s"))
            } else {
                let found = format!("down: look at the cable, then `ip link set {interface} up`");
                Check::failed(format!("{name}, link"), found)
            });
            let text = process::run("ethtool", &["-i", &interface], &[]).unwrap_or_default();
            let version = text.lines().find_map(|line| line.strip_prefix("firmware-version: "));
            checks.extend(version.map(|version| Check::good(format!("{name}, firmware"), version)));
        }
        checks
    }

    fn cores(&self, lab: &Lab) -> Vec<Check> {
        let mut busy = lab.device.cores.get_ref().clone();
        if lab.generator.via.is_empty() {
            busy.push(lab.generator.core);
        }
        let folder = |core: usize| format!("devices/system/cpu/cpu{core}");
        let absent: Vec<usize> = busy
            .iter()
            .chain([&lab.device.control_core])
            .copied()
            .filter(|&core| !self.sys.join(folder(core)).exists())
            .collect();
        if !absent.is_empty() {
            return vec![Check::failed(
                "cores",
                format!("there are no cores {absent:?}; `lscpu -e` lists them"),
            )];
        }
        let mut checks = Vec::new();
        if lab.generator.via.is_empty() && lab.device.cores.get_ref().contains(&lab.generator.core) {
            let found = format!("core {} forwards and generates; give each its own", lab.generator.core);
            checks.push(Check::failed("cores", found));
        }
        let isolated = set(&self.word("devices/system/cpu/isolated").unwrap_or_default());
        let shares = |core: usize| {
            let siblings = self.word(&format!("{}/topology/thread_siblings_list", folder(core)));
            let siblings = set(&siblings.unwrap_or_default());
            siblings.iter().any(|other| *other != core && busy.contains(other))
        };
        let is_slow = |core: usize| {
            let governor = self.word(&format!("{}/cpufreq/scaling_governor", folder(core)));
            governor.is_some_and(|word| word != "performance")
        };
        let mut judge = |what: &str, is_poor: &dyn Fn(usize) -> bool, good: &str, remedy: &str| {
            let poor: Vec<usize> = busy.iter().copied().filter(|&core| is_poor(core)).collect();
            let words = format!("cores {poor:?} {remedy}");
            checks.push(Check::poor_unless(poor.is_empty(), what, good, words));
        };
        judge(
            "isolated cores",
            &|core| !isolated.contains(&core),
            "the kernel runs nothing else on them",
            "are not isolated; boot with isolcpus, nohz_full and rcu_nocbs for them",
        );
        judge(
            "hyperthreads",
            &shares,
            "no two share a core",
            "share a core with another of them; use one hyperthread of each core",
        );
        judge(
            "frequency",
            &is_slow,
            "governor performance, or none",
            "have another governor than `performance`; `cpupower frequency-set -g performance`",
        );
        checks
    }

    fn hugepages(&self, mebibytes: u64) -> Check {
        let wanted = mebibytes.div_ceil(2);
        let free = self
            .word("kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
            .and_then(|word| word.parse::<u64>().ok())
            .unwrap_or(0);
        if free >= wanted {
            return Check::good("huge pages", format!("{free} free, {wanted} needed"));
        }
        let memory = fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        let kibibytes = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemFree:"))
            .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        let found = format!("{free} free of {wanted} needed");
        if kibibytes.unwrap_or(0) / 1024 > mebibytes {
            return Check::good("huge pages", format!("{found}; the rest is reserved for the run"));
        }
        Check::failed(
            "huge pages",
            format!("{found}, and too little memory is free; boot with hugepages={wanted}"),
        )
    }
}

/// A list of cores as the kernel writes it: `0-3,8`.
fn set(list: &str) -> BTreeSet<usize> {
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.split(',').filter_map(|word| range(word.trim())).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::file::tests::{TEXT, lab};
    use super::*;

    /// A machine made of files, with all that the lab file of the tests needs.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let machine = Self(std::env::temp_dir().join(format!("perf-lab-{name}-{}", std::process::id())));
            let pci = "sys/bus/pci/devices/0000:41:00.0";
            for core in 0..4 {
                machine.write(
                    &format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"),
                    &core.to_string(),
                );
                machine.write(&format!("sys/devices/system/cpu/cpu{core}/node0/x"), "");
                machine.write(
                    &format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"),
                    "performance",
                );
            }
            machine.write("sys/devices/system/cpu/isolated", "1-3");
            for (file, text) in [
                ("numa_node", "0"),
                ("current_link_speed", "16.0 GT/s"),
                ("max_link_speed", "16.0 GT/s"),
                ("current_link_width", "16"),
                ("max_link_width", "16"),
                ("iommu_group/type", "DMA"),
            ] {
                machine.write(&format!("{pci}/{file}"), text);
            }
            machine.bind("vfio-pci");
            machine.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100");
            machine.write("proc/meminfo", "MemTotal: 9 kB\nMemFree:         1048576 kB\n");
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        fn bind(&self, driver: &str) {
            let link = self.0.join("sys/bus/pci/devices/0000:41:00.0/driver");
            let _ = fs::remove_file(&link);
            symlink(format!("../../drivers/{driver}"), link).unwrap();
        }

        fn system(&self) -> System {
            System { sys: self.0.join("sys"), proc: self.0.join("proc") }
        }

        fn checks(&self) -> Vec<Check> {
            let lab = lab(&TEXT.replace("41:00.1,dv_flow_en=2", "0000:41:00.0")).unwrap();
            let system = self.system();
            [system.ports(&lab), system.cores(&lab)].concat()
        }

        /// The checks that did not come out well, after a change.
        fn after(&self, path: &str, text: &str) -> Vec<String> {
            let before = fs::read_to_string(self.0.join(path)).unwrap();
            self.write(path, text);
            let bad = self
                .checks()
                .iter()
                .filter(|check| check.verdict != CheckVerdict::Good)
                .map(Check::line)
                .collect();
            self.write(path, before.trim());
            bad
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_good_machine_has_nothing_to_say_and_each_fault_one_line() {
        let machine = Machine::new("good");
        let bad: Vec<_> =
            machine.checks().into_iter().filter(|check| check.verdict != CheckVerdict::Good).collect();
        assert!(bad.is_empty(), "{bad:?}");
        let pci = "sys/bus/pci/devices/0000:41:00.0";
        for (path, text, lines, word) in [
            ("sys/devices/system/cpu/isolated".to_owned(), "2-3", 1, "[1] are not isolated"),
            (
                "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor".to_owned(),
                "powersave",
                1,
                "[2] have another governor",
            ),
            (
                "sys/devices/system/cpu/cpu1/topology/thread_siblings_list".to_owned(),
                "1-2",
                1,
                "hyperthreads",
            ),
            (format!("{pci}/current_link_width"), "8", 2, "8 lanes of 16.0 GT/s and 16"),
            (format!("{pci}/numa_node"), "1", 2, "cores [1, 2] are on another"),
        ] {
            let bad = machine.after(&path, text);
            assert!(bad.len() == lines && bad[0].contains(word), "{path}: {bad:?}");
        }
    }

    #[test]
    fn ports_that_dpdk_cannot_have_fail() {
        let machine = Machine::new("ports");
        machine.bind("ice");
        let failed = |checks: Vec<Check>| -> Vec<String> {
            checks.iter().filter(|check| check.verdict == CheckVerdict::Failed).map(Check::line).collect()
        };
        let lines = failed(machine.checks());
        assert!(lines.len() == 2 && lines[0].contains("driver ice"), "{lines:?}");
        fs::remove_dir_all(machine.0.join("sys/bus/pci/devices/0000:41:00.0")).unwrap();
        let lines = failed(machine.checks());
        assert!(lines.len() == 2 && lines[0].contains("there is no 0000:41:00.0"), "{lines:?}");
    }

    #[test]
    fn memory_is_free_or_can_be_had() {
        let machine = Machine::new("memory");
        let verdict = |mebibytes| machine.system().hugepages(mebibytes).verdict;
        assert_eq!(
            (verdict(200), verdict(900), verdict(2000)),
            (CheckVerdict::Good, CheckVerdict::Good, CheckVerdict::Failed)
        );
    }

    #[test]
    fn lists_of_cores() {
        assert_eq!(set("0-2,7").into_iter().collect::<Vec<_>>(), [0, 1, 2, 7]);
        assert!(set("").is_empty());
    }
}
