//! The switch under test: the release `vswitch`, run as a user runs it, asked through its own control socket.
//!
//! A daemon is started in a namespace with a TOML config, and stopped with the checks every scenario owes: the counters
//! add up, no packet buffer is missing, the process ended cleanly, and nothing of it is left on the machine.

use crate::{Counters, Netns, Process, Workdir, binary, process, wait_for};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a start may take: EAL start, ports and, without hugepages, touching all memory.
const START: Duration = Duration::from_secs(30);
/// How long a clean stop may take.
const STOP: Duration = Duration::from_secs(15);
/// How long next hops of the underlay may take to say where they are. The switch asks four times in this time; one that
/// says nothing by then is not there.
const RESOLVE: Duration = Duration::from_millis(1300);

/// In a body, around further keys of `[api]`.
const API: &str = "#api\n";

/// A running switch.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    program: PathBuf,
    socket: PathBuf,
    config: PathBuf,
    prefix: String,
    netns: String,
    interfaces: Vec<String>,
    buffers_at_start: i64,
    stopped: bool,
    dir: Workdir,
}

impl Daemon {
    /// Starts the switch in a namespace and waits until it answers and knows the next hops of its underlay: packets before
    /// that are dropped as `no-neighbour`, as they should be.
    ///
    /// `body` is the config without `[api]`; `[workers]` is added when it has none, and `[eal]` holds keys beside the
    /// harness's own.
    #[track_caller]
    pub fn start(netns: &Netns, body: &str) -> Daemon {
        let mut daemon = Self::start_alone(netns, body);
        daemon.wait_until_resolved();
        daemon
    }

    /// As `start`, with further keys of `[api]`.
    #[track_caller]
    pub fn start_with_api(netns: &Netns, body: &str, api: &str) -> Daemon {
        // The harness ends its own `[api]` with the socket.
        let mut daemon = Self::start_alone(netns, &format!("{API}{api}{API}{body}"));
        daemon.wait_until_resolved();
        daemon
    }

    /// As `start`, without waiting for next hops: nobody is there yet who could say where they are.
    #[track_caller]
    pub fn start_alone(netns: &Netns, body: &str) -> Daemon {
        let program = binary::release("vswitch");
        let dir = Workdir::new("vswitch");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("vs{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let socket = dir.path().join("vswitch.sock");
        let text = whole_config(body, &prefix, &socket);
        let config = dir.write("vswitch.toml", &text);
        let interfaces = netns.interfaces();
        let process = launch(netns, &program, &config, &dir);
        let name = netns.name().to_owned();
        let mut daemon = Daemon {
            process,
            program,
            socket,
            config,
            prefix,
            netns: name,
            interfaces,
            buffers_at_start: 0,
            stopped: false,
            dir,
        };
        daemon.wait_until_it_answers();
        daemon
    }

    /// Starts it again on the same config after it ended.
    #[track_caller]
    pub fn restart(&mut self, netns: &Netns) {
        self.process = launch(netns, &self.program, &self.config, &self.dir);
        self.stopped = false;
        self.wait_until_it_answers();
        self.wait_until_resolved();
    }

    /// Starts a new process that takes over from the running one.
    #[track_caller]
    pub fn begin_upgrade(&self, netns: &Netns) -> Process {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("upgrade{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let words =
            [&self.program.display().to_string(), "upgrade", "--config", &self.config.display().to_string()];
        netns.spawn(&name, &words, &self.dir)
    }

    /// Has a new process take over, and waits until the old one has ended well.
    #[track_caller]
    pub fn upgrade(&mut self, netns: &Netns) {
        let mut new = self.begin_upgrade(netns);
        new.wait_output("the switch runs", START);
        let mut old = self.adopt(new);
        let status = old.wait(STOP);
        assert!(status.success(), "the old vswitch ended with {status}:\n{}", old.output());
    }

    /// Goes on with a process that has taken over; the one before it.
    #[track_caller]
    pub fn adopt(&mut self, new: Process) -> Process {
        let old = std::mem::replace(&mut self.process, new);
        self.wait_until_it_answers();
        self.wait_until_resolved();
        old
    }

    /// Waits until no next hop of the underlay is being resolved, or as long as one may take. `start` has done so; of two
    /// switches the first one does when the second is there.
    pub fn wait_until_resolved(&mut self) {
        let end = Instant::now() + RESOLVE;
        let resolving = |daemon: &Daemon| {
            let shown = daemon.json("show neigh");
            shown.as_array().is_some_and(|rows| rows.iter().any(|row| row["state"] == "incomplete"))
        };
        while resolving(self) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.buffers_at_start = self.buffers_in_use();
    }

    #[track_caller]
    fn wait_until_it_answers(&mut self) {
        wait_for("the switch to answer on its socket", START, || {
            if let Some(status) = self.process.exited() {
                let config = std::fs::read_to_string(&self.config).unwrap_or_default();
                panic!("vswitch ended at start ({status}):\n{}\nconfig:\n{config}", self.log());
            }
            self.try_ctl("show workers").ok()
        });
        self.buffers_at_start = self.buffers_in_use();
    }

    /// Takes the buffers in use now as the mark that a stop compares with.
    #[track_caller]
    pub fn settled(&mut self) {
        self.counters();
        self.buffers_at_start = self.buffers_in_use();
    }

    /// Runs one console command and returns its text; fails the test when the switch refuses it.
    #[track_caller]
    pub fn ctl(&self, command: &str) -> String {
        self.try_ctl(command)
            .unwrap_or_else(|error| panic!("'{command}' was refused: {error}\n{}", self.log()))
    }

    /// Runs one console command; what it said to the error output when it failed.
    pub fn try_ctl(&self, command: &str) -> Result<String, String> {
        self.run_ctl(&[], command)
    }

    /// Runs one console command and returns its JSON form; of an answer that is one list or one map, what is in it.
    #[track_caller]
    pub fn json(&self, command: &str) -> Value {
        let text = self
            .run_ctl(&["--json"], command)
            .unwrap_or_else(|error| panic!("'{command}' was refused: {error}\n{}", self.log()));
        let answer = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("'{command}' did not answer in JSON ({e}): {text}"));
        match answer {
            Value::Object(fields)
                if fields.len() == 1 && fields.values().all(|v| v.is_array() || v.is_object()) =>
            {
                fields.into_iter().next().map(|(_, inner)| inner).unwrap_or_default()
            }
            answer => answer,
        }
    }

    /// A number in the JSON form of an answer, by its JSON pointer.
    #[track_caller]
    pub fn figure(&self, command: &str, pointer: &str) -> i64 {
        let shown = self.json(command);
        shown.pointer(pointer).and_then(Value::as_i64).unwrap_or_else(|| panic!("no {pointer}: {shown:#}"))
    }

    fn run_ctl(&self, options: &[&str], command: &str) -> Result<String, String> {
        let (program, socket) = (self.program.display().to_string(), self.socket.display().to_string());
        let mut args = vec![program.as_str(), "ctl", "--socket", &socket];
        args.extend(options);
        args.push(command);
        let output = process::try_run(&args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// A snapshot of every packet counter, taken when no counter moves any more.
    #[track_caller]
    pub fn counters(&self) -> Counters {
        let read = || {
            let mut counters = Counters::default();
            counters.add("fwd", &self.json("show fwd stats all"));
            counters.add("port", &self.json("show port stats all"));
            counters
        };
        let mut last = read();
        wait_for("the counters to stand still", Duration::from_secs(10), || {
            // The workers answer between two bursts: what one of them had in hand at the first look is done at the second.
            // One whose core is taken for a moment is asked again.
            self.try_ctl("show nft 1").ok()?;
            let next = read();
            let still = next == last;
            last = next;
            still.then(|| last.clone())
        })
    }

    /// The number of packets dropped for a reason so far.
    #[track_caller]
    pub fn drops(&self, reason: &str) -> i64 {
        self.counters().get(&format!("fwd.drops.{reason}"))
    }

    /// Asserts the conservation law: everything that came in or was made is accounted for.
    #[track_caller]
    pub fn assert_conserved(&self) {
        let counters = self.counters();
        let total = |name: &str| counters.get(&format!("fwd.{name}"));
        let dropped: i64 =
            counters.iter().filter(|(path, _)| path.starts_with("fwd.drops.")).map(|(_, v)| v).sum();
        let made = total("received") + total("originated") + total("offloaded") + total("copies");
        let gone = total("sent") + dropped + total("consumed") + total("queued");
        assert!(total("received") > 0, "no packet reached the switch: {counters:#?}");
        assert_eq!(
            made, gone,
            "received + originated + offloaded + copies = sent + drops + consumed + queued: {counters:#?}"
        );
    }

    /// Packet buffers in use right now, over all pools.
    #[track_caller]
    pub fn buffers_in_use(&self) -> i64 {
        let answer = self.json("show fwd stats all");
        answer
            .pointer("/mbufs/in-use")
            .and_then(Value::as_i64)
            .unwrap_or_else(|| panic!("'show fwd stats all' does not say mbufs.in-use: {answer:#}"))
    }

    /// The path of its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The path of its config file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// A scratch folder that goes with it.
    pub fn dir(&self) -> &Workdir {
        &self.dir
    }

    /// Rewrites the config file under the running switch, for a reload.
    #[track_caller]
    pub fn rewrite_config(&self, body: &str) {
        self.dir.write("vswitch.toml", &whole_config(body, &self.prefix, &self.socket));
    }

    /// Checks the books, stops it by SIGTERM and checks that it ended cleanly and left nothing behind.
    #[track_caller]
    pub fn stop(self) {
        self.stop_holding(0);
    }

    /// As `stop`, with drivers that keep up to `held` buffers in their rings until they need the room.
    #[track_caller]
    pub fn stop_holding(mut self, held: i64) {
        self.assert_conserved();
        let start = self.buffers_at_start;
        let what = format!(
            "packet buffers to come back to their pool ({} now, {start} at start)",
            self.buffers_in_use()
        );
        wait_for(&what, Duration::from_secs(5), || (self.buffers_in_use() <= start + held).then_some(()));
        self.process.signal("TERM");
        self.assert_clean_end();
    }

    /// Stops a switch that no packet has come through, by SIGTERM, and checks that it ended cleanly and left nothing behind.
    #[track_caller]
    pub fn end(mut self) {
        self.process.signal("TERM");
        self.assert_clean_end();
    }

    /// An interface of its own making is meant to stay when it has ended.
    pub fn leaves(&mut self, interface: &str) {
        self.interfaces.push(interface.to_owned());
    }

    /// Waits for its end (which somebody asked for already) and checks that it was clean and left nothing behind.
    #[track_caller]
    pub fn assert_clean_end(&mut self) {
        let status = self.process.wait(STOP);
        self.stopped = true;
        assert!(status.success(), "vswitch ended with {status}:\n{}", self.log());
        self.assert_nothing_left();
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        assert!(!self.socket.exists(), "the control socket is still there: {}", self.socket.display());
        let left: Vec<PathBuf> = dpdk_traces(&self.prefix);
        assert!(left.is_empty(), "DPDK files are still there: {left:?}");
        let listed = process::run(&["ip", "-n", &self.netns, "-o", "link", "show"]);
        for line in listed.lines() {
            let name = line.split(": ").nth(1).unwrap_or("").split('@').next().unwrap_or("");
            assert!(self.interfaces.iter().any(|i| i == name), "the interface {name} is still there");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of vswitch in {}:\n{}", self.netns, self.log());
            for command in ["show fwd stats all", "show port stats all", "show vlt", "show neigh", "show nft"]
            {
                eprintln!("{command}:\n{}", self.try_ctl(command).unwrap_or_else(|error| error));
            }
        }
        if !self.stopped {
            // A killed switch cannot clean up; the scenario does, so that the next one starts from nothing.
            drop(process::try_run(&["kill", "-KILL", &self.process.pid().to_string()]));
            for path in dpdk_traces(&self.prefix) {
                let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            }
        }
    }
}

#[track_caller]
fn launch(netns: &Netns, program: &Path, config: &Path, dir: &Workdir) -> Process {
    netns.spawn(
        "vswitch",
        &[&program.display().to_string(), "run", "--config", &config.display().to_string()],
        dir,
    )
}

fn whole_config(body: &str, prefix: &str, socket: &Path) -> String {
    let (api, body) = body.strip_prefix(API).and_then(|rest| rest.split_once(API)).unwrap_or(("", body));
    // Both cores are shared with the traffic here, so an idle worker sleeps.
    let workers = if body.contains("[workers]") { "" } else { "[workers]\ncores = [1]\nidle = \"sleep\"\n" };
    let (before, eal) = body.split_once("[eal]\n").unwrap_or((body, ""));
    let (eal, after) = eal.split_at(eal.find("\n[").map_or(eal.len(), |end| end + 1));
    format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"256MiB\"\nfile-prefix = \"{prefix}\"\n{eal}\n[api]\nsocket = \"{}\"\n{api}\n{workers}\n{before}{after}",
        socket.display()
    )
}

/// Run folders and hugepage files of a DPDK file prefix.
fn dpdk_traces(prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["/var/run/dpdk", "/dev/hugepages", "/tmp/dpdk"] {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                found.push(entry.path());
            }
        }
    }
    found
}
