//! What the port tests share: a network namespace, DPDK, a pool, ports that run, and frames that are counted
//! and compared.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use pmd::{
    Burst, Eal, EalConfig, Hugepages, Mempool, MempoolConfig, PortConfig, RxQueue, StartedPort, TxQueue,
};
use vswitch::config::PortSpec;
use vswitch::port::{self, Cleanup, OpenError, OpenRequest, Traits};

/// How long frames may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// A namespace of this thread's own, DPDK in it, a pool, and a folder. All go with it.
pub struct Lab {
    pub eal: Eal,
    pub pool: Mempool,
    pub folder: PathBuf,
    unique: u32,
}

impl Lab {
    pub fn new() -> Self {
        Self::with_room(2048)
    }

    /// Buffers with room for so many bytes.
    pub fn with_room(room: u16) -> Self {
        // Threads and processes started from here on are in the new namespace, too.
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace of one's own takes root");
        let config = EalConfig {
            file_prefix: format!("ports-test-{}", std::process::id()),
            memory_mb: 256,
            hugepages: Hugepages::Never,
            ..EalConfig::default()
        };
        let eal = Eal::init(&config).unwrap();
        let config = MempoolConfig {
            mbufs: 8191,
            cache: 0,
            data_room: room + pmd::mempool::HEADROOM,
            ..MempoolConfig::default()
        };
        let pool = Mempool::new(&eal, &config).unwrap();
        let folder = std::env::temp_dir().join(format!("ports-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { eal, pool, folder, unique: 0 }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A port as the config would give it.
    pub fn open(&mut self, toml: &str) -> Result<port::OpenedPort, OpenError> {
        self.open_with(toml, 1, None)
    }

    pub fn open_with(
        &mut self,
        toml: &str,
        queues: u16,
        mtu: Option<u16>,
    ) -> Result<port::OpenedPort, OpenError> {
        self.unique += 1;
        let name = format!("p{}", self.unique);
        let request = OpenRequest { name: &name, unique: self.unique, queues, mtu, before_device: false };
        port::open(&self.eal, &spec(toml), &request)
    }

    /// The port, started.
    pub fn run(&mut self, toml: &str) -> Running {
        self.run_with(toml, 1, None)
    }

    pub fn run_with(&mut self, toml: &str, queues: u16, mtu: Option<u16>) -> Running {
        let opened = self.open_with(toml, queues, mtu).unwrap_or_else(|error| panic!("{toml}: {error}"));
        self.start(opened, queues, mtu)
    }

    pub fn start(&self, opened: port::OpenedPort, queues: u16, mtu: Option<u16>) -> Running {
        let traits = opened.traits;
        let (rx_queues, tx_queues) = traits.queues(None, None, queues).unwrap();
        let config = PortConfig {
            rx_queues,
            tx_queues,
            rx_desc: traits.rx_desc,
            tx_desc: traits.tx_desc,
            mtu: traits.start_mtu(mtu),
            ..PortConfig::default()
        };
        assert!(self.pool.segment_room() >= traits.min_segment.into(), "the pool suits the port: {traits:?}");
        let (port, rx, tx) = opened.port.start(&config, &self.pool).map_err(|(_, error)| error).unwrap();
        opened.access.map_or(Ok(()), |access| access.apply()).unwrap();
        Running { port, rx, tx, traits, cleanup: opened.cleanup, pool: self.pool.clone() }
    }

    /// Nothing is left: no port, no packet, no socket, no interface but the loopback and those named.
    pub fn check_clean(&self, interfaces: &[&str]) {
        assert_eq!(pmd::port::in_use(), 0, "ports left");
        assert_eq!(self.pool.in_use(), 0, "packets left");
        let left: Vec<_> =
            std::fs::read_dir(&self.folder).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "files left: {left:?}");
        let expected: BTreeSet<String> = interfaces.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(links(), expected, "interfaces");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A port that runs.
pub struct Running {
    pub port: StartedPort,
    pub rx: Vec<RxQueue>,
    pub tx: Vec<TxQueue>,
    pub traits: Traits,
    cleanup: Cleanup,
    pool: Mempool,
}

impl Running {
    /// Stops and closes it.
    pub fn close(self) {
        let port = self.port.stop(self.rx, self.tx).map_err(|(.., error)| error).unwrap();
        port::close(port, self.cleanup).unwrap();
    }

    /// Gives it another MTU as it runs.
    pub fn change_mtu(&mut self, toml: &str, mtu: u16) -> Result<(), OpenError> {
        port::change_mtu(&spec(toml), "p", &self.port, &self.traits, &mut self.cleanup, mtu)
    }

    /// Sends frames, as far as they go; returns how many did.
    pub fn send(&mut self, queue: usize, frames: &[Vec<u8>]) -> usize {
        let mut burst = Burst::with_capacity(frames.len().max(1));
        for frame in frames {
            burst.push(self.pool.alloc_from(frame).expect("the pool is large enough")).unwrap();
        }
        self.tx[queue].send(&mut burst)
    }

    /// What has arrived, with its queue.
    pub fn receive(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut burst = Burst::with_capacity(32);
        let mut frames = Vec::new();
        for (number, queue) in self.rx.iter_mut().enumerate() {
            queue.receive(&mut burst);
            frames.extend(burst.iter().map(|packet| (number, packet.to_vec())));
            burst.clear();
        }
        frames
    }

    /// Receives and forgets until nothing came for a while.
    pub fn drain(&mut self) {
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_millis(100) {
            if !self.receive().is_empty() {
                last = Instant::now();
            }
        }
    }

    /// Polls until `count` of our frames are there, which must be exactly `expected`; frames of others (the
    /// kernel's own) are passed over.
    pub fn expect(&mut self, expected: &[Vec<u8>]) -> Vec<usize> {
        let start = Instant::now();
        let mut queues = Vec::new();
        let mut got = Vec::new();
        while got.len() < expected.len() && start.elapsed() < PATIENCE {
            for (queue, frame) in self.receive() {
                if is_ours(&frame) {
                    queues.push(queue);
                    got.push(frame);
                }
            }
        }
        let sorted = |frames: &[Vec<u8>]| {
            let mut frames = frames.to_vec();
            frames.sort();
            frames
        };
        assert_eq!(got.len(), expected.len(), "frames arrived on {}", self.port.name());
        assert!(sorted(&got) == sorted(expected), "frames changed on the way to {}", self.port.name());
        queues
    }
}

/// Frames from one port to the other arrive, all of them, unchanged. The link may still be coming up: a first
/// frame is sent until it arrives.
pub fn pass(from: &mut Running, to: &mut Running, count: u16, length: usize) {
    let first = frame(0xffff, 64);
    let start = Instant::now();
    loop {
        from.send(0, std::slice::from_ref(&first));
        if to.receive().iter().any(|(_, frame)| *frame == first) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "no link from {} to {}", from.port.name(), to.port.name());
        std::thread::sleep(Duration::from_millis(1));
    }
    to.drain();
    let frames: Vec<Vec<u8>> = (0..count).map(|number| frame(number, length)).collect();
    let mut left = &frames[..];
    while !left.is_empty() {
        let sent = from.send(0, &left[..left.len().min(32)]);
        left = &left[sent..];
        assert!(start.elapsed() < PATIENCE, "{} does not send", from.port.name());
    }
    to.expect(&frames);
}

/// IPv4 and UDP with this source port, to port 9; a pattern behind it.
pub fn frame(number: u16, length: usize) -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(((length - 14) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    frame.extend(number.to_be_bytes());
    frame.extend([0, 9]);
    frame.extend(((length - 34) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((frame.len()..length).map(|at| (at as u16 ^ number) as u8));
    frame
}

fn is_ours(frame: &[u8]) -> bool {
    frame.get(26..34) == Some(&[198, 18, 0, 1, 198, 18, 0, 2])
}

/// A port's spec from TOML.
pub fn spec(toml: &str) -> PortSpec {
    #[derive(serde::Deserialize)]
    struct Holder {
        port: PortSpec,
    }
    toml::from_str::<Holder>(&format!("port = {{ {toml} }}")).unwrap().port
}

/// Runs a command that must succeed.
pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Interfaces of this namespace but the loopback.
pub fn links() -> BTreeSet<String> {
    let output = Command::new("ip").args(["-o", "link"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let name = |line: &str| {
        let name = line.split(": ").nth(1)?;
        Some(name.split('@').next()?.to_owned())
    };
    text.lines().filter_map(name).filter(|name| name != "lo").collect()
}

/// A namespace with a name, which goes with this.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new() -> Self {
        let name = format!("ports-test-{}", std::process::id());
        run(&format!("ip netns add {name}"));
        Self(name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A veth, both ends up, without IPv6 chatter.
pub fn veth(a: &str, b: &str, mtu: u16) {
    run(&format!("ip link add {a} mtu {mtu} type veth peer name {b} mtu {mtu}"));
    for end in [a, b] {
        run(&format!("sysctl -qw net.ipv6.conf.{end}.disable_ipv6=1"));
        run(&format!("ip link set {end} up"));
    }
}

/// A capture file of these frames.
pub fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut bytes = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    for frame in frames {
        bytes.extend(words(&[0, 0, frame.len() as u32, frame.len() as u32]));
        bytes.extend(frame);
    }
    bytes
}

/// The frames of a capture file.
pub fn contents(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + length].to_vec());
        rest = &rest[16 + length..];
    }
    frames
}
