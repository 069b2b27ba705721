//! What the integration tests share: an EAL of their own without huge pages, a pool, frames with content.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

pub mod enemy;
pub mod eswitch;
pub mod monitor;
pub mod rings;

use pmd::{
    Burst, Eal, EalConfig, Hugepages, Mempool, MempoolConfig, Port, PortConfig, RxQueue, StartedPort, TxQueue,
};
use wire::PacketBuf;

/// An EAL whose prefix carries the process id. nextest runs each test in a process of its own.
pub fn eal() -> Eal {
    eal_named("pmd")
}

/// As [`eal`], for a test that needs to know the prefix.
pub fn eal_named(name: &str) -> Eal {
    Eal::init(&EalConfig {
        file_prefix: prefix(name),
        memory_mb: 128,
        hugepages: Hugepages::Never,
        ..EalConfig::default()
    })
    .unwrap()
}

/// As [`eal`], with the driver net_eswitch of the crate `testdev`.
pub fn eswitch_eal() -> Eal {
    let folder = std::env::temp_dir().join(prefix("eswitch"));
    let plugin = testdev::ESWITCH.build(&folder).map_err(|error| error.to_string()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    Eal::init(&EalConfig {
        file_prefix: prefix("eswitch"),
        memory_mb: 128,
        hugepages: Hugepages::Never,
        plugins: vec![plugin],
        ..EalConfig::default()
    })
    .unwrap()
}

/// The file prefix of [`eal_named`].
pub fn prefix(name: &str) -> String {
    format!("{name}-test-{}", std::process::id())
}

/// A pool without caches, so that its count is exact at once; of super-frames the first ones lie in long buffers.
pub fn pool(eal: &Eal, mbufs: u32) -> Mempool {
    Mempool::new(eal, &MempoolConfig { mbufs, cache: 0, long: 2, ..MempoolConfig::default() }).unwrap()
}

/// A frame of `length` bytes that tells its number.
pub fn frame(number: usize, length: usize) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xb5];
    frame.extend((number as u32).to_be_bytes());
    while frame.len() < length {
        frame.push((frame.len() * 7 + number) as u8);
    }
    frame.truncate(length);
    frame
}

/// A burst of frames `numbers`, 64 bytes each.
pub fn burst(pool: &Mempool, numbers: std::ops::Range<usize>) -> Burst {
    let mut burst = Burst::with_capacity(numbers.len());
    for number in numbers {
        burst.push(pool.alloc_from(&frame(number, 64)).unwrap()).unwrap();
    }
    burst
}

/// The bytes of all packets.
pub fn contents(burst: &Burst) -> Vec<Vec<u8>> {
    burst.iter().map(|packet| packet.segments().flatten().copied().collect()).collect()
}

/// Starts a port that must start.
pub fn start(port: Port, config: &PortConfig, pool: &Mempool) -> (StartedPort, Vec<RxQueue>, Vec<TxQueue>) {
    port.start(config, pool).map_err(|(_, error)| error).unwrap()
}

/// Stops a port that must stop.
pub fn stop(port: StartedPort, rx: Vec<RxQueue>, tx: Vec<TxQueue>) -> Port {
    port.stop(rx, tx).map_err(|(_, _, _, error)| error).unwrap()
}

/// Receives until `wanted` packets that `is_ours` are there, for at most five seconds.
pub fn receive_within(
    rx: &mut [RxQueue],
    wanted: usize,
    is_ours: impl Fn(&pmd::Mbuf) -> bool,
) -> Vec<Vec<pmd::Mbuf>> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    let mut received: Vec<Vec<pmd::Mbuf>> = rx.iter().map(|_| Vec::new()).collect();
    let mut burst = Burst::with_capacity(32);
    while received.iter().map(Vec::len).sum::<usize>() < wanted && std::time::Instant::now() < deadline {
        for (queue, packets) in rx.iter_mut().zip(&mut received) {
            queue.receive(&mut burst);
            packets.extend(burst.drain().filter(&is_ours));
        }
    }
    received
}

/// True for [`frame`]s.
pub fn is_frame(packet: &pmd::Mbuf) -> bool {
    packet.head().get(12..14) == Some(&[0x88, 0xb5])
}

/// Runs the named test again in a network namespace of its own and returns `false` there; `true` when that is
/// done, or when there are no rights to do so.
pub fn in_own_namespace(test: &str) -> bool {
    if std::env::var_os("PMD_TEST_NETNS").is_some() {
        return false;
    }
    if !pmd::process::is_root() {
        eprintln!("skipped: not root");
        return true;
    }
    let output = std::process::Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("PMD_TEST_NETNS", "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    true
}

/// A veth, `va` and `vb`, both up.
pub fn cable() {
    ip("link add va mtu 1500 type veth peer name vb");
    ip("link set va up");
    ip("link set vb up");
}

/// Runs `ip` with these arguments.
pub fn ip(args: &str) {
    let status = std::process::Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// A network namespace of this thread's own, and of the processes that it starts.
#[allow(unsafe_code, reason = "asks the kernel")]
pub fn unshare() {
    // SAFETY: changes which interfaces this thread sees.
    let ret = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(ret, 0, "a network namespace of one's own takes root");
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").ok();
}
