//! The switch as its unit of systemd runs it: as a user of its own, with the unit's capabilities, and no way to more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use tests::api::{self, Api};
use tests::steady::Ping;
use tests::{Daemon, Netns, Workdir, binary, process};
use vswitch_api::v1::Kind;
use vswitch_api::v1::object::Spec;

/// Numbers of capabilities (linux/capability.h).
const CAPABILITIES: &[(&str, u32)] = &[("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13), ("CAP_BPF", 39)];
const NOBODY: u32 = 65_534;

/// The values of a key of the unit.
fn unit(key: &str) -> Vec<String> {
    let unit = std::fs::read_to_string(binary::workspace().join("vswitch/vswitch.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn privilege_a_user_with_three_capabilities_runs_taps_veths_and_vhost_sockets() {
    let (host, red, blue) = (Netns::new("host"), Netns::new("red"), Netns::new("blue"));
    let dir = Workdir::new("privilege");
    let run = dir.path().join("run");
    std::fs::create_dir(&run).unwrap();
    // The harness's folder may be entered, and the user has its own as the unit's RuntimeDirectory and StateDirectory.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
    host.ip(&format!("link add pod0 type veth peer name eth0 netns {}", blue.name()));
    host.ip("link set pod0 up");
    let at = run.display();
    let prefix = format!("priv{}", std::process::id());
    let config = dir.write(
        "vswitch.toml",
        &format!(
            "[eal]\nhuge-pages = \"never\"\nmemory = \"128MiB\"\nfile-prefix = \"{prefix}\"\n\
             [api]\nsocket = \"{at}/s.sock\"\n[workers]\ncores = [1]\nidle = \"sleep\"\n\
             [[uplink]]\nname = \"up\"\nport = {{ kind = \"ring\" }}\naddresses = [\"172.16.0.1/24\"]\nmtu = 1600\n\
             [[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
             [[vnic]]\nname = \"one\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:01\"\nvips = [\"10.0.0.1\"]\n\
             port = {{ kind = \"tap\", iface = \"one\" }}\n\
             [[vnic]]\nname = \"two\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:02\"\nvips = [\"10.0.0.2\"]\n\
             port = {{ kind = \"veth\", iface = \"pod0\" }}\n\
             [[vnic]]\nname = \"vm\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:03\"\nvips = [\"10.0.0.3\"]\n\
             port = {{ kind = \"vhost-user\", path = \"{at}/vm.sock\" }}\n"
        ),
    );
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o644)).unwrap();
    let wanted = unit("AmbientCapabilities");
    assert_eq!((&wanted, unit("NoNewPrivileges")), (&unit("CapabilityBoundingSet"), vec!["yes".into()]));
    let set = wanted.iter().map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_ascii_lowercase()));
    let set = format!("-all{}", set.collect::<String>());
    let program = binary::release("vswitch").display().to_string();
    let line = format!(
        "umask {}; exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps {set} --ambient-caps {set} \
         --bounding-set {set} --no-new-privs env XDG_RUNTIME_DIR={at} STATE_DIRECTORY={at} {program} run --config {}",
        unit("UMask")[0],
        config.display()
    );
    let mut switch = host.spawn("vswitch", &["sh", "-c", &line], &dir);
    switch.wait_output("the switch runs", Duration::from_secs(30));
    let status = std::fs::read_to_string(format!("/proc/{}/status", switch.pid())).unwrap();
    let mask: u64 = CAPABILITIES
        .iter()
        .filter(|(name, _)| wanted.iter().any(|one| one == name))
        .map(|(_, bit)| 1 << bit)
        .sum();
    for line in [
        format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}"),
        format!("CapEff:\t{mask:016x}"),
        format!("CapBnd:\t{mask:016x}"),
        "NoNewPrivs:\t1".into(),
        "Seccomp:\t2".into(),
        "Umask:\t0077".into(),
    ] {
        assert!(status.contains(&line), "{line}: {status}");
    }
    let socket = run.join("s.sock");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(&run.join("vm.sock"))), (0o600, 0o700));

    host.ip(&format!("link set one netns {}", red.name()));
    for (netns, interface, number) in [(&red, "one", 1), (&blue, "eth0", 2)] {
        netns.ip(&format!("link set {interface} address 02:00:00:00:01:0{number} mtu 1450 up"));
        netns.ip(&format!("addr add 10.0.0.{number}/24 dev {interface}"));
    }
    red.run(&["ping", "-c", "5", "-i", "0.2", "-W", "2", "10.0.0.2"]);
    assert_confined(switch.pid());
    let mut api = Api::connect(&socket);
    api.create(api::vpc("kept", 777)).unwrap();
    assert_eq!(mode(&run.join("state")), 0o600);
    let vnics = api.list(Kind::Vnic, 10);
    assert_eq!(vnics.len(), 3);
    switch.signal("TERM");
    assert!(switch.wait(Duration::from_secs(15)).success(), "{}", switch.output());
    let said = switch.output();
    assert!(!said.contains("CAP_") && !said.contains("ERROR"), "{said}");
    assert!(!socket.exists());
}

/// Every thread has the filter, and a way to no more rights.
fn assert_confined(pid: u32) {
    let threads: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap())
        .collect();
    assert!(threads.len() > 4, "{}", threads.len());
    for status in &threads {
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1"] {
            assert!(status.contains(line), "{line}: {status}");
        }
    }
}

/// What the daemon would do at somebody's bidding: a debugger has one of its threads make the calls.
#[test]
fn privilege_calls_that_nobody_needs_are_refused_and_packets_go_on() {
    let host = Netns::new("host");
    let mut daemon = Daemon::start(&host, api::NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let pods = [("one", 1), ("two", 2)].map(|(name, number)| {
        api.create(Spec::Vnic(api::tap_vnic(name, "red", number))).unwrap();
        api::plug(&host, name, number)
    });
    pods[0].run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", "10.0.0.2"]);
    let pid = daemon.process().pid();
    assert_confined(pid);
    let ping = Ping::start(&pods[0], "10.0.0.2");
    // execve, unshare, mount; and setns of nothing, which is allowed, and fails otherwise (EPERM is 1, EBADF 9).
    let calls = [
        ("59,0,0,0", "59 = -1"),
        ("272,0x40000000", "272 = -1"),
        ("165,0,0,0,4096,0", "165 = -1"),
        ("308,-1,0", "308 = -9"),
    ];
    let helper = tests::script::path("call_in.py").display().to_string();
    let pid = pid.to_string();
    let words = [tests::script::PYTHON, &helper, &pid].into_iter().chain(calls.map(|(call, _)| call));
    let output = process::try_run(&words.collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted: Vec<&str> = calls.iter().map(|(_, said)| *said).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted, "{}", String::from_utf8_lossy(&output.stderr));
    // The debugger held it for a moment; nothing else happened.
    ping.stop();
    pods[0].run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", "10.0.0.2"]);
    daemon.assert_conserved();
    drop(pods);
    daemon.end();
}

/// systemd itself reads the unit.
#[test]
fn privilege_the_unit_is_one_for_systemd() {
    let dir = Workdir::new("unit");
    let unit = std::fs::read_to_string(binary::workspace().join("vswitch/vswitch.service")).unwrap();
    let program = binary::release("vswitch").display().to_string();
    let here = unit
        .replace("/usr/local/bin/vswitch", &program)
        .replace("=vswitch\nGroup=vswitch", "=root\nGroup=root");
    assert_ne!(here, unit);
    assert!(unit.contains("\nStartLimitIntervalSec=0\n"), "it is started again however often it ends");
    let path = dir.write("vswitch.service", &here).display().to_string();
    let output = process::try_run(&["systemd-analyze", "verify", &path]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && !said.contains("vswitch.service:"), "{said}");
}
