//! `vswitch nic check --probe` where no switch runs: a process of its own starts DPDK with one device, for rules and no packets.
//! The device is `net_eswitch` of the crate `testdev`, which is told to start for that only; others hang, die, or have no rules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use testdev::{Driver, ESWITCH};
use tests::{Daemon, Netns, Workdir, binary};

/// A driver that dies when it is loaded.
const DIES: Driver = Driver {
    name: "net_dies",
    sources: &[(
        "net_dies.c",
        "#include <stdlib.h>\n__attribute__((constructor)) static void dies(void) { abort(); }\n",
    )],
};

/// A config with one uplink on a device.
struct Bench {
    folder: Workdir,
    port: String,
    plugin: Option<String>,
}

/// What the check says, and its exit status.
struct Told {
    status: Option<i32>,
    report: Value,
    errors: String,
    took: Duration,
}

impl Told {
    /// A finding's value, and what is to be made of it.
    #[track_caller]
    fn finding(&self, name: &str) -> (&str, &str) {
        let all = self.report["findings"].as_array().into_iter().flatten();
        let one = all.into_iter().find(|finding| finding["finding"] == name);
        let one = one.unwrap_or_else(|| panic!("no {name} in {}{}", self.report, self.errors));
        (one["value"].as_str().unwrap(), one["state"].as_str().unwrap())
    }

    /// Names and values of the findings that begin with this word.
    fn all(&self, kind: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = self.report["findings"].as_array().unwrap().iter();
        let of_kind = all.filter(|finding| text(&finding["finding"]).starts_with(kind));
        of_kind.map(|finding| (text(&finding["finding"]), text(&finding["value"]))).collect()
    }
}

impl Bench {
    fn new(port: &str) -> Self {
        Self { folder: Workdir::new("probe"), port: port.into(), plugin: None }
    }

    fn eswitch(arguments: &str) -> Self {
        let mut bench = Self::new(&format!("{{ kind = \"raw\", vdev = \"net_eswitch0{arguments}\" }}"));
        let plugin = ESWITCH.build(bench.folder.path()).unwrap_or_else(|error| panic!("{error}"));
        bench.plugin = Some(plugin.display().to_string());
        bench
    }

    fn prefix(&self) -> String {
        format!("probed-{}", std::process::id())
    }

    fn plugins(&self) -> String {
        self.plugin.as_ref().map(|plugin| format!("plugins = [\"{plugin}\"]\n")).unwrap_or_default()
    }

    fn uplink(&self) -> String {
        format!(
            "[[uplink]]\nname = \"up\"\nport = {}\naddresses = [\"192.0.2.1/24\"]\noffload = \"rte-flow\"\n",
            self.port
        )
    }

    /// The command line of a check that no switch answers.
    fn command(&self, device: &str, more: &[&str]) -> Vec<String> {
        let config = format!(
            "[eal]\nfile-prefix = \"{}\"\nhuge-pages = \"never\"\nmemory = \"128MiB\"\n{}[api]\nsocket = \"{}\"\n{}",
            self.prefix(),
            self.plugins(),
            self.folder.path().join("none.sock").display(),
            self.uplink(),
        );
        let config = self.folder.write("probe.toml", &config);
        let program = binary::release("vswitch");
        let words = ["nic", "check", device, "--config", config.to_str().unwrap(), "--probe", "--json"];
        let words = words.iter().chain(more).map(|word| (*word).to_owned());
        std::iter::once(program.display().to_string()).chain(words).collect()
    }

    /// Runs the check, and looks that nothing of it stays.
    #[track_caller]
    fn ask(&self, device: &str, more: &[&str]) -> Told {
        let command = self.command(device, more);
        self.run(Command::new(&command[0]).args(&command[1..]))
    }

    #[track_caller]
    fn run(&self, command: &mut Command) -> Told {
        let began = Instant::now();
        let output = command.output().unwrap();
        let took = began.elapsed();
        let config = self.folder.path().join("probe.toml");
        let left: Vec<String> = processes_with(&config);
        assert!(left.is_empty(), "{left:?}");
        Told {
            status: output.status.code(),
            report: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
            took,
        }
    }

    fn run_folder(&self) -> std::path::PathBuf {
        Path::new("/var/run/dpdk").join(format!("{}-probe", self.prefix()))
    }
}

/// Command lines of the processes that were given this file.
fn processes_with(file: &Path) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let text = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    text.filter(|line| line.contains(file.to_str().unwrap())).collect()
}

/// A refusal of this DPDK, not of a device.
fn of_build(words: &str) -> bool {
    words.contains("has no item ib_bth")
}

#[test]
fn offload_probe_asks_a_device_that_no_switch_has() {
    for (arguments, engine) in
        [("", "async"), (",queues=0,legacy=1", "sync"), (",delay=2000,late=5,late-us=30000", "async")]
    {
        // The device starts isolated and without a receive queue, or not at all.
        let bench = Bench::eswitch(&format!("{arguments},rules-only=1"));
        let told = bench.ask("net_eswitch0", &[]);
        let (by, _) = told.finding("asked by");
        assert!(by.starts_with("DPDK ") && by.ends_with(&format!("of its own, engine {engine}")), "{by}");
        let refused: Vec<_> = told.all("chain ").into_iter().chain(told.all("rule ")).collect();
        assert!(refused.len() > 20, "{refused:?}");
        let refused: Vec<_> =
            refused.into_iter().filter(|(_, value)| value != "taken" && !of_build(value)).collect();
        assert!(refused.is_empty(), "{arguments}: {refused:?}");
        assert_eq!(told.status, Some(0), "{}", told.report);
        assert!(!bench.run_folder().exists());
    }
}

#[test]
fn offload_probe_tells_what_a_device_refuses_in_its_words() {
    let bench = Bench::eswitch(",rules=3,rules-only=1");
    let told = bench.ask("net_eswitch0", &[]);
    assert_eq!((told.finding("rule count").0, told.status), ("taken", Some(0)));
    let (words, state) = told.finding("chain tcp-encap");
    assert!(words.starts_with("refused: ") && state == "noted", "{words}");
    let (by, _) = told.finding("asked by");
    assert!(by.ends_with("engine async"), "nothing of a chain that was refused half way stayed: {by}");

    // A driver without rules.
    let bench = Bench::new("{ kind = \"raw\", vdev = \"net_null0\" }");
    let told = bench.ask("net_null0", &[]);
    assert!(told.all("chain ").iter().all(|(_, value)| value.starts_with("refused: ")), "{}", told.report);
    assert_eq!(told.status, Some(0));
}

#[test]
fn offload_probe_is_told_that_a_device_is_not_there() {
    let bench = Bench::new("{ kind = \"raw\", vdev = \"net_nosuch0\" }");
    let told = bench.ask("net_nosuch0", &[]);
    let (words, state) = told.finding("chains");
    assert!(words.contains("net_nosuch0") && state == "unknown", "{words}");
    assert_eq!(told.status, Some(2));
    let told = bench.ask("ffff:1f:1f.7", &[]);
    assert_eq!(told.status, Some(2));
    assert!(told.errors.contains("PCI"), "{}", told.errors);
    let told = bench.ask("net_nosuch0", &["--socket", "/nowhere/vswitch.sock"]);
    assert!(told.finding("chains").0.contains("no vswitch answers on /nowhere/vswitch.sock"));
}

#[test]
fn offload_probe_ends_a_driver_that_hangs() {
    let folder = Workdir::new("client");
    let socket = folder.path().join("client.sock");
    let vdev = format!("net_virtio_user0,path={},server=1,queues=1", socket.display());
    // It waits for its client, for ever.
    let bench = Bench::new(&format!("{{ kind = \"raw\", vdev = \"{vdev}\" }}"));
    let told = bench.ask("net_virtio_user0", &["--timeout", "2"]);
    let (words, state) = told.finding("chains");
    let hung = "nothing came for 2 s while the device was opened: its process was killed";
    assert!(words.contains(hung) && state == "unknown", "{words}");
    assert_eq!(told.status, Some(2));
    assert!(told.took >= Duration::from_secs(2) && told.took < Duration::from_secs(30), "{:?}", told.took);
}

#[test]
fn offload_probe_outlives_a_driver_that_dies() {
    let mut bench = Bench::new("{ kind = \"raw\", vdev = \"net_null0\" }");
    let plugin = DIES.build(bench.folder.path()).unwrap_or_else(|error| panic!("{error}"));
    bench.plugin = Some(plugin.display().to_string());
    let told = bench.ask("net_null0", &[]);
    let (words, state) = told.finding("chains");
    assert!(words.contains("the driver's process died (signal: 6"), "{words}");
    assert!(words.contains("while DPDK was started") && state == "unknown", "{words}");
    // What a driver does not have to say is told all the same.
    assert_eq!((told.finding("[offload]").1, told.status), ("fine", Some(2)));
}

#[test]
fn offload_probe_asks_the_switch_that_has_the_device() {
    let bench = Bench::eswitch("");
    let host = Netns::new("probe");
    let body = format!("[eal]\n{}{}", bench.plugins(), bench.uplink());
    let mut daemon = Daemon::start_alone(&host, &body);
    let socket = daemon.socket().display().to_string();
    let told = bench.ask("net_eswitch0", &["--socket", &socket]);
    assert_eq!(told.finding("asked by").0, "the switch that runs with it", "{}", told.errors);
    assert_eq!((told.finding("rule count").0, told.status), ("taken", Some(0)));
    // The same without being told where: its config says it.
    let program = binary::release("vswitch");
    let config = daemon.config().to_str().unwrap().to_owned();
    let told = bench.run(Command::new(program).args([
        "nic",
        "check",
        "net_eswitch0",
        "--probe",
        "--json",
        "--config",
        &config,
    ]));
    assert_eq!(told.finding("asked by").0, "the switch that runs with it", "{}", told.errors);
    assert_eq!(daemon.figure("show port xstats up", "/0/xstats/flow_rules"), 0);
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}

#[test]
fn offload_probe_brings_the_real_driver_to_a_pci_device() {
    // A made-up ConnectX in place of the machine's own bus, in a mount namespace that nobody else sees.
    let bench = Bench::new("{ kind = \"pci\", address = \"0000:3b:00.0\", devargs = \"dv_flow_en=2\" }");
    let bus = bench.folder.path().join("bus");
    let device = bus.join("devices/0000:3b:00.0");
    std::fs::create_dir_all(&device).unwrap();
    std::fs::create_dir_all(bus.join("drivers/mlx5_core")).unwrap();
    let regions = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n".repeat(6);
    for (file, text) in [
        ("vendor", "0x15b3\n"),
        ("device", "0x101d\n"),
        ("subsystem_vendor", "0x15b3\n"),
        ("subsystem_device", "0x0001\n"),
        ("class", "0x020000\n"),
        ("numa_node", "0\n"),
        ("max_vfs", "0\n"),
        ("resource", regions.as_str()),
    ] {
        std::fs::write(device.join(file), text).unwrap();
    }
    std::os::unix::fs::symlink("../../drivers/mlx5_core", device.join("driver")).unwrap();
    let check = bench.command("3b:00.0", &[]);
    let script = "mount --bind \"$0\" /sys/bus/pci && exec \"$@\"";
    let told = bench.run(Command::new("unshare").args(["--mount", "sh", "-c", script]).arg(&bus).args(check));
    // The driver was asked for this device, with the config's arguments, and says what it lacks.
    let (words, state) = told.finding("chains");
    assert!(words.contains("0000:3b:00.0,dv_flow_en=2") && words.contains("mlx5"), "{words}");
    assert_eq!((state, told.finding("model").0), ("unknown", "ConnectX-6 Dx (0x15b3:0x101d)"));
}
