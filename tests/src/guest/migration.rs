//! Live migration: a guest goes on in another process of QEMU while it runs.
//!
//! ```text
//!  QEMU (source) ── guest's memory over a Unix socket ──> QEMU (-incoming)
//!    └ vhost-user to one port                               └ vhost-user to the same port, or to another switch's
//! ```
//! QEMU is asked by its monitor protocol (QMP, docs/interop/qmp-spec.txt of its sources): a line of JSON asks, a line answers,
//! events come between. The steps are the scenario's: the guest stands still only between [`Migration::converge`] and
//! [`Migration::complete`].

use super::{Cable, Guest, Hardware, MONITOR, Machine};
use crate::wait_for;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the source may take to send what is left, and QEMU to say something.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes a second of memory that are sent: as many as it takes to get done, and so few that what is written meanwhile keeps a copy
/// under way.
const FAST: u64 = 64 << 20;
const SLOW: u64 = 1 << 20;

/// QEMU's monitor.
#[derive(Debug)]
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Connects, and waits until QEMU answers: one that waits for its ports to be connected does not yet.
    #[track_caller]
    fn of(machine: &mut Machine) -> Monitor {
        let path = machine.dir.path().join(MONITOR);
        let socket = wait_for("QEMU's monitor", PATIENCE, || {
            if let Some(status) = machine.process.exited() {
                panic!("QEMU ended ({status}):\n{}", machine.process.output());
            }
            UnixStream::connect(&path).ok()
        });
        socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let mut monitor = Monitor(BufReader::new(socket));
        monitor.ask("qmp_capabilities", json!({}));
        monitor
    }

    /// Runs a command and returns what it says.
    #[track_caller]
    fn ask(&mut self, command: &str, arguments: Value) -> Value {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.0.get_mut().write_all(line.as_bytes()).expect("QEMU reads what it is asked");
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap_or_else(|error| panic!("{command}: {error}"));
            let answer: Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{command}: {error}: {line:?}"));
            if let Some(said) = answer.get("return") {
                return said.clone();
            }
            assert!(answer.get("error").is_none(), "{command} was refused: {line}");
        }
    }
}

/// A guest on its way into another process.
#[derive(Debug)]
pub struct Migration<'g> {
    guest: &'g Guest,
    from: Monitor,
    to: Machine,
    began: Instant,
}

impl Guest {
    /// Starts a process that waits for this guest, with its `eth0` plugged into a socket, which somebody must serve.
    #[track_caller]
    pub fn migrate(&self, socket: &Path) -> Migration<'_> {
        let mut source = self.machine.borrow_mut();
        let mut to = {
            let Machine { mac, memory, image, more, .. } = &*source;
            let hardware = Hardware {
                name: &self.name,
                mac,
                cable: Cable::VhostUser(socket),
                memory: *memory,
                image,
                more,
            };
            Machine::start(&hardware, Some(&source.dir.path().join("migration.sock")))
        };
        let state = Monitor::of(&mut to).ask("query-status", json!({}));
        assert_eq!(state["status"], "inmigrate", "{state}");
        let from = Monitor::of(&mut source);
        drop(source);
        Migration { guest: self, from, to, began: Instant::now() }
    }
}

impl Migration<'_> {
    /// Copies all of the guest's memory. When this returns, what was written meanwhile is being copied, slowly: what is written from
    /// now on comes over because somebody says that it was.
    #[track_caller]
    pub fn begin(&mut self) {
        let uri = format!("unix:{}", self.guest.machine.borrow().dir.path().join("migration.sock").display());
        let pause = json!([{ "capability": "pause-before-switchover", "state": true }]);
        self.from.ask("migrate-set-capabilities", json!({ "capabilities": pause }));
        self.limit(FAST, 1);
        self.from.ask("migrate", json!({ "uri": uri }));
        self.began = Instant::now();
        wait_for("the second round", PATIENCE, || (self.round() > 1).then_some(()));
        self.limit(SLOW, 1);
        eprintln!("second round after {:?}", self.began.elapsed());
    }

    /// How often QEMU has asked what was written; fails the test when the copy is not under way.
    #[track_caller]
    pub fn round(&mut self) -> u64 {
        let told = self.from.ask("query-migrate", json!({}));
        assert!(matches!(told["status"].as_str(), Some("active" | "setup")), "{told}");
        told["ram"]["dirty-sync-count"].as_u64().unwrap_or_default()
    }

    /// Lets the copy come to its end: when this returns the guest stands still, and what it had was sent but for what was written
    /// last. The source uses its port no more.
    #[track_caller]
    pub fn converge(&mut self) {
        self.limit(FAST, 5000);
        self.wait("pre-switchover");
    }

    /// Bytes a second that are sent, and how many milliseconds the guest may stand still in the end.
    #[track_caller]
    fn limit(&mut self, bandwidth: u64, downtime: u64) {
        let limits = json!({ "max-bandwidth": bandwidth, "downtime-limit": downtime });
        self.from.ask("migrate-set-parameters", limits);
    }

    /// Has the guest go on in the new process. Jobs that run in it go on, too.
    #[track_caller]
    pub fn complete(mut self) {
        self.from.ask("migrate-continue", json!({ "state": "pre-switchover" }));
        self.wait("completed");
        // Both know how it went; the guest runs where it came to.
        let mut to = Monitor::of(&mut self.to);
        wait_for("the guest to run", PATIENCE, || {
            (to.ask("query-status", json!({}))["status"] == "running").then_some(())
        });
        let next = self.to.channel();
        self.from.ask("quit", json!({}));
        let took_over = self.guest.channel.borrow_mut().go_on_with(next, Instant::now() + PATIENCE);
        took_over.unwrap_or_else(|error| self.guest.gone(&error));
        self.guest.machine.replace(self.to);
    }

    #[track_caller]
    fn wait(&mut self, state: &str) {
        let mut last = Value::Null;
        let end = Instant::now() + PATIENCE;
        while last["status"] != state {
            assert!(last["status"] != "failed" && Instant::now() < end, "not {state}: {last}");
            std::thread::sleep(Duration::from_millis(20));
            last = self.from.ask("query-migrate", json!({}));
        }
        eprintln!("{} after {:?}: {}", state, self.began.elapsed(), last["ram"]);
    }
}
