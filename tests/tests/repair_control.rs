//! What a user, a careless one, or an unlucky one does to the control side: commands of the README, closed pipes, files
//! with secrets, stuck workers, little memory, dead queue pairs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tests::{Daemon, Family, Lab, Scene, Workdir, binary, process, wait_for};

/// The networks of the README's session: a tenant, an uplink, a destination behind a VTEP.
const NETWORKS: &str = r#"
[[uplink]]
name = "up"
port = { kind = "ring" }
addresses = ["172.16.0.1/24"]
mtu = 1600
peers = ["172.16.0.2", "172.16.0.3"]

[[vpc]]
name = "red"
vni = 100

[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"

[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:01:01"
vips = ["10.0.0.1"]
mtu = 1450
port = { kind = "tap", iface = "tap1" }

[[location]]
vni = 100
vip = "10.0.0.2"
mac = "02:00:00:00:01:02"
vtep = "172.16.0.2"
"#;

/// A line of shell, for bash.
fn bash(line: &str) -> std::process::Output {
    process::try_run(&["bash", "-c", line])
}

/// The words of a `vswitch ...` line of the README, run against a daemon.
fn as_written(daemon: &Daemon, words: &str) -> std::process::Output {
    let program = daemon.program().display();
    let socket = daemon.socket().display();
    // The README speaks of the default socket; here it is said in front of the command.
    let words = words.replacen("ctl ", &format!("ctl --socket {socket} "), 1);
    let words = words.replacen("--config f", &format!("--config {}", daemon.config().display()), 1);
    bash(&format!("{program} {words}"))
}

/// What the README shows can be typed.
#[test]
fn repair_readme_commands_work_as_they_are_written() {
    let readme = std::fs::read_to_string(binary::workspace().join("README.md")).unwrap();
    let lab = Lab::new(Family::V4);
    let daemon = Daemon::start(&lab.host, NETWORKS);
    let typed: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("vswitch> "))
        .map(|line| line.split(" #").next().unwrap_or(line).trim())
        .collect();
    assert!(typed.len() >= 3, "no console session in the README: {typed:?}");
    for command in &typed {
        let said = daemon.ctl(command);
        assert!(!said.trim().is_empty(), "{command}");
    }
    assert!(daemon.ctl("show vlt").contains("172.16.0.3"), "the session moves a VM");
    // Words in the text: whole commands for a shell, and commands of the console.
    let pieces: Vec<&str> =
        readme.split('`').skip(1).step_by(2).filter(|piece| !piece.contains('\n')).collect();
    let lines: Vec<&str> = pieces.iter().filter_map(|piece| piece.strip_prefix("vswitch ")).collect();
    let lines: Vec<&&str> = lines
        .iter()
        .filter(|line| line.starts_with("ctl \"") || line.starts_with("check --config f"))
        .collect();
    assert!(lines.len() >= 2, "{lines:?}");
    for line in lines {
        let output = as_written(&daemon, line);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "vswitch {line}: {said}");
        if line.contains("--json") {
            serde_json::from_str::<serde_json::Value>(&said)
                .unwrap_or_else(|e| panic!("{line}: {e}: {said}"));
        }
    }
    for piece in pieces.iter().filter(|piece| piece.starts_with("show ") || **piece == "runtime on") {
        daemon.ctl(piece);
    }
    daemon.ctl("runtime off");
    daemon.end();
}

/// Flags may stand behind the command; whoever closes the pipe ends `ctl` without a word.
#[test]
fn repair_ctl_takes_flags_behind_and_closed_pipes_quietly() {
    let lab = Lab::new(Family::V4);
    let daemon = Daemon::start(&lab.host, NETWORKS);
    let (program, socket) = (daemon.program().display().to_string(), daemon.socket().display().to_string());
    for words in ["\"show vnic\" --json", "show vnic --json", "--json show vnic"] {
        let output = bash(&format!("{program} ctl --socket {socket} {words}"));
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
    }
    let output = bash(&format!("{program} ctl show vnic --socket {socket}"));
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("02:00:00:00:01:01"));
    for words in [
        format!("ctl --socket {socket} help"),
        format!("ctl --socket {socket} --json help"),
        format!("check --config {}", daemon.config().display()),
    ] {
        // The reader is gone before the first byte comes.
        let output = bash(&format!("{{ sleep 1; {program} {words}; echo \"status $?\" >&2; }} | true"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said, "status 141\n", "{words}");
    }
    // A console whose answers nobody takes any more did not do all of its lines.
    let lines = "printf 'show vnic\\nvpc add late vni 900\\n'";
    let console = format!("{program} console --strict --socket {socket}");
    let output = bash(&format!("{lines} | {{ sleep 1; {console}; echo \"status $?\" >&2; }} | true"));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "status 141\n");
    assert!(!daemon.ctl("show vpc").contains("late"));
    // Words stay as the shell has split them, and no command is none.
    let saved = daemon.dir().path().join("a #b.toml");
    let output = bash(&format!("{program} ctl --socket {socket} save \"{}\"", saved.display()));
    assert!(output.status.success() && saved.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    for words in ["''", "' '", "'# all'", "' ' --json"] {
        let output = bash(&format!("{program} ctl --socket {socket} {words}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("no command"), "{words}: {said}");
    }
    daemon.end();
}

/// `config reload` and SIGHUP read the file that was loaded last; a refused load changes nothing.
#[test]
fn repair_reload_reads_the_file_that_was_loaded_last() {
    let lab = Lab::new(Family::V4);
    let mut daemon = Daemon::start(&lab.host, NETWORKS);
    let text = std::fs::read_to_string(daemon.config()).unwrap();
    let with_vpc = |name: &str, vni: u32| format!("{text}\n[[vpc]]\nname = \"{name}\"\nvni = {vni}\n");
    let has = |daemon: &Daemon, name: &str| daemon.ctl("show vpc").contains(name);
    let other = daemon.dir().write("other.toml", &with_vpc("blue", 200)).display().to_string();
    let bad = daemon.dir().write("bad.toml", "[[vpc]]\nname = 5\n").display().to_string();
    let said = daemon.ctl(&format!("config load {other}"));
    assert!(said.contains("`config reload` and SIGHUP read it from now on"), "{said}");
    assert!(has(&daemon, "blue"));
    assert!(daemon.try_ctl(&format!("config load {bad}")).is_err());
    daemon.dir().write("other.toml", &with_vpc("green", 300));
    assert!(daemon.ctl("config reload").contains("other.toml"));
    assert!(has(&daemon, "green"));
    daemon.dir().write("other.toml", &with_vpc("amber", 400));
    daemon.process().signal("HUP");
    wait_for("the reload", Duration::from_secs(20), || has(&daemon, "amber").then_some(()));
    // A start reads the file that it was given.
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
    daemon.restart(&lab.host);
    assert!(!has(&daemon, "amber") && has(&daemon, "red"));
    daemon.end();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Files with secrets are their owner's alone, no answer shows a secret, and the saved state still works.
#[test]
fn repair_secrets_are_neither_shown_nor_open() {
    let lab = Lab::new(Family::V4);
    let dir = Workdir::new("secrets");
    let state = dir.path().join("state");
    let socket = dir.path().join("memif.sock").display().to_string();
    let memif = format!(
        "[control]\nstate = \"{}\"\n{NETWORKS}\n[[vnic]]\nname = \"two\"\nvpc = \"red\"\nmac = \"02:00:00:00:01:05\"\n\
         vips = [\"10.0.0.5\"]\nmtu = 1450\n\
         port = {{ kind = \"memif\", socket = \"{socket}\", secret = \"xyzzy\", trusted-peer = true }}\n",
        state.display()
    );
    let mut daemon = Daemon::start(&lab.host, &memif);
    daemon.ctl("vlt set 100 10.0.0.9 mac 02:00:00:00:01:09 vtep 172.16.0.3");
    let copy = dir.path().join("copy.toml");
    daemon.ctl(&format!("save {}", copy.display()));
    for file in [&state, &copy] {
        assert_eq!(mode(file), 0o600, "{}", file.display());
        assert!(std::fs::read_to_string(file).unwrap().contains("xyzzy"), "it must work after a restart");
    }
    for command in ["show config", "port list", "show port info all", "show vnic", "show events"] {
        assert!(
            !daemon.ctl(command).contains("xyzzy") && !daemon.json(command).to_string().contains("xyzzy")
        );
    }
    let error = daemon.try_ctl("port attach p9 memif socket=/no/such/folder/m secret=plugh").unwrap_err();
    assert!(!error.contains("plugh"), "{error}");
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
    assert_eq!(mode(&dir.path().join("state.rcft")), 0o600);
    daemon.restart(&lab.host);
    assert!(daemon.ctl("show vlt").contains("10.0.0.9") && daemon.ctl("port list").contains("two"));
    assert!(!daemon.log().contains("xyzzy") && !daemon.log().contains("plugh"));
    daemon.end();
}

/// What `check` finds good starts: with little memory there are fewer buffers.
#[test]
fn repair_little_memory_is_enough_or_refused_by_check() {
    let lab = Lab::new(Family::V4);
    let dir = Workdir::new("memory");
    let program = binary::release("vswitch").display().to_string();
    for memory in ["64MiB", "96MiB", "200MiB"] {
        let daemon = Daemon::start(&lab.host, NETWORKS);
        let text = std::fs::read_to_string(daemon.config()).unwrap().replace("256MiB", memory);
        daemon.end();
        let socket = dir.path().join("s.sock");
        let text = text
            .lines()
            .map(|line| match line.strip_prefix("socket = ") {
                Some(_) => format!("socket = \"{}\"", socket.display()),
                None => line.to_owned(),
            })
            .collect::<Vec<_>>()
            .join("\n");
        let config = dir.write("small.toml", &text).display().to_string();
        assert!(process::try_run(&[&program, "check", "--config", &config]).status.success());
        let mut running = lab.host.spawn("vswitch", &[&program, "run", "--config", &config], &dir);
        wait_for(&format!("a start with {memory}"), Duration::from_secs(30), || {
            assert!(running.exited().is_none(), "{memory}: {}", running.output());
            running.output().contains("the switch runs").then_some(())
        });
        running.signal("TERM");
        assert!(running.wait(Duration::from_secs(15)).success(), "{memory}: {}", running.output());
        // What there is not, `check` refuses, and says how much there is.
        let many = text.replacen("[eal]", "[eal]\nmbufs = 60000", 1);
        let config = dir.write("many.toml", &many).display().to_string();
        let output = process::try_run(&[&program, "check", "--config", &config]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("mbufs 60000") && said.contains(memory), "{said}");
    }
}

/// Stops one thread of a process, as a fault would, until this is dropped.
struct Stopped(Child);

/// A debugger that stops the thread of its first argument and says so, and lets it go when its input ends.
const DEBUGGER: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
thread = int(sys.argv[1])
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
assert libc.ptrace(SEIZE, thread, None, None) == 0, os.strerror(ctypes.get_errno())
assert libc.ptrace(INTERRUPT, thread, None, None) == 0, os.strerror(ctypes.get_errno())
os.waitpid(thread, WALL)
print('stopped', flush=True)
sys.stdin.read()
";

impl Stopped {
    #[track_caller]
    fn thread(pid: u32, name: &str) -> Self {
        use std::io::{BufRead, BufReader};
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let named = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let mut tasks = tasks.filter(named);
        let thread = tasks.next().unwrap_or_else(|| panic!("no thread {name}")).file_name();
        let mut child = Command::new("python3")
            .args(["-c", DEBUGGER])
            .arg(thread)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "stopped\n");
        Self(child)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A worker that is stuck: what needs it is refused with its name, soon; everything else is answered; the watchdog tells.
#[test]
fn repair_a_stuck_worker_is_named_and_control_goes_on() {
    let lab = Lab::new(Family::V4);
    let workers = "[workers]\ncores = [0, 1]\nidle = \"sleep\"\n";
    let mut daemon = Daemon::start(&lab.host, &format!("{workers}{NETWORKS}"));
    let pid = daemon.process().pid();
    let stopped = Stopped::thread(pid, "worker-1");
    let error = daemon.try_ctl("vlt set 100 10.0.0.9 mac 02:00:00:00:01:09 vtep 172.16.0.3").unwrap_err();
    assert!(error.contains("worker 1 on core 1 does not answer"), "{error}");
    // Nobody waits for it a second time, and nothing else waits at all.
    let start = Instant::now();
    for _ in 0..5 {
        assert!(daemon.try_ctl("show nft 1").is_err());
        assert!(daemon.ctl("show vnic").contains("02:00:00:00:01:01"));
        assert!(daemon.ctl("port list").contains("tap1") || daemon.ctl("port list").contains("one"));
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    wait_for("the watchdog's event", Duration::from_secs(20), || {
        daemon.ctl("show events").contains("worker 1 on core 1 has stood still").then_some(())
    });
    assert!(daemon.log().contains("worker 1 on core 1 has stood still"));
    drop(stopped);
    wait_for("the worker to be back", Duration::from_secs(20), || daemon.try_ctl("show nft 1").ok());
    daemon.ctl("vlt set 100 10.0.0.9 mac 02:00:00:00:01:09 vtep 172.16.0.3");
    wait_for("the event of it", Duration::from_secs(20), || {
        daemon.ctl("show events").contains("worker 1 on core 1 is back").then_some(())
    });
    daemon.end();
}

/// Dead queue pairs of a vNIC at its quota make room for new ones, and living ones stay.
#[test]
fn repair_dead_queue_pairs_make_room() {
    let mut scene = Scene::start(Family::V4, "", "[rcft]\nquota = 2\nsilent-after = \"10s\"\n");
    let passes = |scene: &mut Scene, number: u32| {
        let outcome = scene.outbound(&[format!("rc('red', 'far', {number})")]);
        !outcome.seen.is_empty()
    };
    assert!(passes(&mut scene, 17) && passes(&mut scene, 18));
    assert!(!passes(&mut scene, 19), "both may still be alive");
    // 18 goes on; 17 is dead, and the new one asks again and again, as its sender would.
    wait_for("a place for the new queue pair", Duration::from_secs(60), || {
        assert!(passes(&mut scene, 18), "a queue pair with traffic is never refused");
        passes(&mut scene, 19).then_some(())
    });
    assert!(passes(&mut scene, 18));
    let row = scene.daemon.json("show rcft")["vnics"][0].clone();
    assert_eq!(row["in-use"], 2, "{row}");
    let events = scene.daemon.ctl("show events 256");
    assert!(events.contains("qps-gave-way"), "{events}");
    scene.stop();
}
