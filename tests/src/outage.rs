//! For how long nothing came through: datagrams to several machines and back at a steady pace, whose longest gap is the outage; a
//! vhost-user peer that returns them and finds its switch again; and a TCP connection of which one end says nothing.

pub mod site;

use crate::vhost::{FrontEnd, PLAIN};
use crate::{Netns, Process, Workdir, script};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(40);
/// How often a peer of a vhost-user socket looks whether its switch is there: its reconnect time.
pub const RECONNECT: Duration = Duration::from_millis(10);

/// A machine that returns each datagram.
#[derive(Debug)]
pub struct Echo {
    _process: Process,
    _dir: Workdir,
}

impl Echo {
    /// Starts it on an address of a namespace.
    #[track_caller]
    pub fn start(netns: &Netns, address: &str) -> Echo {
        let dir = Workdir::new("echo");
        let mut process = netns.spawn("echo", &[script::PYTHON, &helper(), "echo", address], &dir);
        process.wait_output("ready", LIMIT);
        Echo { _process: process, _dir: dir }
    }
}

/// What a probe saw of one address.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Datagrams sent.
    pub sent: i64,
    /// Those that came back.
    pub came: i64,
    /// The longest time without an answer.
    pub longest: Duration,
}

/// Datagrams that go on.
#[derive(Debug)]
pub struct Probe {
    process: Process,
    until: PathBuf,
    _dir: Workdir,
}

impl Probe {
    /// Starts one datagram to each address every so often, and waits until all answer.
    #[track_caller]
    pub fn start(from: &Netns, every: Duration, addresses: &[&str]) -> Probe {
        let dir = Workdir::new("probe");
        let until = dir.path().join("until");
        let (path, pace) = (until.display().to_string(), every.as_millis().to_string());
        let script = helper();
        let line = [&[script::PYTHON, &script, "probe", &pace, &path], addresses].concat();
        let mut process = from.spawn("probe", &line, &dir);
        process.wait_output("flowing", LIMIT);
        Probe { process, until, _dir: dir }
    }

    /// Ends it; what it saw since all answered, by address.
    #[track_caller]
    pub fn stop(mut self) -> BTreeMap<String, Seen> {
        let said = told(&mut self.process, &self.until);
        let rows = said.as_object().unwrap_or_else(|| panic!("no object: {said}"));
        let number =
            |row: &Value, name: &str| row[name].as_i64().unwrap_or_else(|| panic!("no {name}: {row}"));
        let seen = |row: &Value| Seen {
            sent: number(row, "sent"),
            came: number(row, "came"),
            longest: Duration::from_millis(number(row, "longest_ms").unsigned_abs()),
        };
        rows.iter().map(|(address, row)| (address.clone(), seen(row))).collect()
    }
}

/// A TCP connection whose client hears and says nothing: only what the server sends can wake it up.
#[derive(Debug)]
pub struct Download {
    client: Process,
    _server: Process,
    until: PathBuf,
    _dir: Workdir,
}

impl Download {
    /// Connects, and waits for the first bytes.
    #[track_caller]
    pub fn start(client: &Netns, server: &Netns, address: &str) -> Download {
        let dir = Workdir::new("download");
        let (until, script) = (dir.path().join("until"), helper());
        let mut serving = server.spawn("push", &[script::PYTHON, &script, "push", address], &dir);
        serving.wait_output("ready", LIMIT);
        let path = until.display().to_string();
        let mut process = client.spawn("pull", &[script::PYTHON, &script, "pull", address, &path], &dir);
        process.wait_output("flowing", LIMIT);
        Download { client: process, _server: serving, until, _dir: dir }
    }

    /// Fails the test unless bytes still come, and all were right. How many there were.
    #[track_caller]
    pub fn stop(mut self) -> i64 {
        told(&mut self.client, &self.until)["bytes"].as_i64().unwrap_or(0)
    }
}

/// The peer of a vhost-user port: it returns each datagram, and is there again when the switch has gone.
#[derive(Debug)]
pub struct VhostEcho {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u32>>,
}

impl VhostEcho {
    /// One that connects to the switch's socket.
    pub fn connecting(path: &Path) -> VhostEcho {
        let path = path.to_owned();
        Self::start(move || UnixStream::connect(&path))
    }

    /// One that the switch connects to.
    #[track_caller]
    pub fn listening(path: &Path) -> VhostEcho {
        let listener = UnixListener::bind(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        listener.set_nonblocking(true).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self::start(move || {
            let (socket, _) = listener.accept()?;
            socket.set_nonblocking(false)?;
            Ok(socket)
        })
    }

    fn start(find: impl Fn() -> io::Result<UnixStream> + Send + 'static) -> VhostEcho {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let is_over = move || ends.load(Ordering::Relaxed);
        let thread = std::thread::spawn(move || {
            let mut connections = 0;
            while !is_over() {
                if let Ok(peer) = find().and_then(|socket| FrontEnd::ready_on(socket, PLAIN)) {
                    connections += 1;
                    serve(peer, &is_over);
                }
                std::thread::sleep(RECONNECT);
            }
            connections
        });
        VhostEcho { over, thread: Some(thread) }
    }

    /// Ends it; how often it connected.
    #[track_caller]
    pub fn stop(mut self) -> u32 {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().map(JoinHandle::join);
        thread.and_then(Result::ok).unwrap_or_else(|| panic!("the vhost-user peer panicked"))
    }
}

impl Drop for VhostEcho {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Returns datagrams until the switch hangs up.
fn serve(mut peer: FrontEnd, is_over: &impl Fn() -> bool) {
    while !is_over() && !peer.is_hung_up() {
        for mut frame in peer.receive().unwrap_or_default() {
            if turn_round(&mut frame) {
                let _ = peer.send(&frame);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends an IPv4 datagram back: addresses and ports change places, which no checksum notices.
fn turn_round(frame: &mut [u8]) -> bool {
    if frame.len() < 42 || frame[12..15] != [0x08, 0x00, 0x45] || frame[23] != 17 {
        return false;
    }
    for (at, length) in [(0, 6), (26, 4), (34, 2)] {
        let (one, other) = frame[at..at + 2 * length].split_at_mut(length);
        one.swap_with_slice(other);
    }
    true
}

fn helper() -> String {
    script::path("outage.py").display().to_string()
}

/// Tells a helper that it is over, and returns the JSON of its last line.
#[track_caller]
fn told(process: &mut Process, until: &Path) -> Value {
    std::fs::write(until, "").expect("a file in a folder of our own");
    let status = process.wait(LIMIT);
    let text = process.output();
    assert!(status.success(), "the helper ended with {status}: {text}");
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| panic!("no JSON at the end ({e}): {text}"))
}
