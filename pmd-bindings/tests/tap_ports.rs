//! Ports that are taps: frames of every length and super-frames both ways, queues that are told of when they have something, and what
//! becomes of the interface meanwhile. The kernel's side is a packet socket on the same interface.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{eal, frame, ip, is_frame, pool, receive_within, start, stop, unshare};
use pmd::{
    Burst, Eal, Mbuf, Mempool, Port, PortConfig, PortError, Readiness, RxQueue, StartedPort, TapConfig,
    TxQueue, process,
};
use wire::packet::L4Checksum;
use wire::{ChecksumState, PacketBuf, TxRequest};

type Running = (StartedPort, Vec<RxQueue>, Vec<TxQueue>);

fn config(queues: u16) -> TapConfig {
    TapConfig { iface: "t0".into(), namespace: None, queues, mac: None, persist: false, offloads: true }
}

/// The tap t0.
fn tap(eal: &Eal, pool: &Mempool, config: &TapConfig, mtu: u16) -> Running {
    let queues = config.queues;
    let start_with =
        PortConfig { rx_queues: queues, tx_queues: queues, mtu: Some(mtu), ..PortConfig::default() };
    start(Port::on_tap(eal, "tap0", config).unwrap(), &start_with, pool)
}

/// The kernel's side of it.
fn kernel(eal: &Eal, pool: &Mempool) -> Running {
    start(Port::on_interface(eal, "veth0", "t0").unwrap(), &PortConfig::default(), pool)
}

fn send(pool: &Mempool, tx: &mut [TxQueue], frames: &[(Vec<u8>, TxRequest)]) -> usize {
    let mut burst = Burst::with_capacity(frames.len());
    for (bytes, request) in frames {
        let mut packet = pool.alloc_from(bytes).unwrap();
        packet.request_tx(*request);
        burst.push(packet).unwrap();
    }
    tx[0].send(&mut burst)
}

fn plain(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, TxRequest)> {
    frames.iter().map(|frame| (frame.clone(), TxRequest::default())).collect()
}

#[test]
fn tap_carries_frames_of_every_length_while_it_is_attached() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 8191);
    let mac = Some("52:54:00:00:00:07".parse().unwrap());
    let (port, mut rx, mut tx) = tap(&eal, &pool, &TapConfig { mac, ..config(1) }, 9000);
    assert_eq!(process::interface_driver("t0").unwrap(), "tun");
    assert_eq!(port.mac().to_string(), "52:54:00:00:00:07");
    assert_eq!((port.mtu().unwrap(), process::interface_mtu("t0").unwrap()), (9000, 9000));
    assert!(port.link().unwrap().up, "a port that was started has set its interface up");
    let (socket, mut socket_rx, mut socket_tx) = kernel(&eal, &pool);
    // Around the size of a buffer, of two, and again short ones behind long ones.
    let lengths = [60, 64, 1514, 2047, 2048, 2049, 4096, 4097, 9014, 60, 9014, 64];
    for round in 0..40 {
        let frames: Vec<_> = lengths.iter().map(|length| frame(round, *length)).collect();
        assert_eq!(send(&pool, &mut tx, &plain(&frames)), frames.len());
        let up = receive_within(&mut socket_rx, frames.len(), is_frame).remove(0);
        assert!(up.iter().map(Mbuf::to_vec).eq(frames.iter().cloned()), "to the kernel");
        assert_eq!(send(&pool, &mut socket_tx, &plain(&frames)), frames.len());
        let down = receive_within(&mut rx, frames.len(), is_frame).remove(0);
        assert!(down.iter().map(Mbuf::to_vec).eq(frames.iter().cloned()), "from the kernel");
        assert!(down.iter().all(|packet| packet.rx_port() == port.id() && packet.head().len() >= 60));
    }
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets, stats.tx_errors), (480, 480, 0));
    assert!(port.xstats().unwrap().contains(&("rx_good_packets".into(), 480)));
    assert!(stats.rx_bytes == stats.tx_bytes && stats.rx_errors + stats.rx_no_mbuf == 0);
    ip("link set t0 down");
    assert!(!port.link().unwrap().up);
    assert_eq!(send(&pool, &mut tx, &plain(&[frame(1, 64)])), 0, "what cannot go stays with its sender");
    ip("link set t0 up");
    assert!(port.link().unwrap().up);
    port.set_mtu(1500).unwrap();
    assert_eq!(process::interface_mtu("t0").unwrap(), 1500);
    let mac = "52:54:00:00:00:08".parse().unwrap();
    port.set_mac(mac).unwrap();
    assert_eq!((port.mac(), pmd::interface::mac("t0").unwrap()), (mac, mac), "as it is up");
    assert!(matches!(socket.set_mac(mac), Err(PortError::Unsupported { .. })));
    stop(socket, socket_rx, socket_tx).detach().unwrap();
    stop(port, rx, tx).detach().unwrap();
    assert!(process::interface_mtu("t0").is_err(), "the interface goes with the port");
    assert_eq!(pool.in_use(), 0);
}

/// A TCP segment over IPv4 with so many bytes of payload, whose checksum field holds the pseudo-header sum.
fn segment(payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 0x08, 0x00];
    let (total, tcp) = ((40 + payload) as u16, (20 + payload) as u16);
    bytes.extend([0x45, 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 7, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    bytes.extend([0x1f, 0x40, 0x23, 0x28, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    let ip = wire::checksum::of(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&ip.to_be_bytes());
    let sum = wire::checksum::pseudo_v4([198, 18, 0, 1], [198, 18, 0, 2], 6, tcp).fold();
    bytes[50..52].copy_from_slice(&sum.to_be_bytes());
    bytes.extend((0..payload).map(|at| (at * 7) as u8));
    bytes
}

#[test]
fn tap_gso_super_frames_go_whole_both_ways_and_say_so() {
    const SEGMENTS: TxRequest = TxRequest {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        ipv4_checksum: false,
        l4_checksum: Some(L4Checksum::Tcp),
        tso_size: 1448,
        ipv6: false,
        outer: None,
    };
    unshare();
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, mut rx, mut tx) = tap(&eal, &pool, &config(1), 1500);
    let (socket, mut socket_rx, mut socket_tx) = kernel(&eal, &pool);
    // One that is short and only wants its checksum between two that are long: the order stays.
    let sent = [(60_000, 1448), (100, 0), (65_000, 1000), (1400, 0)];
    let frames = sent.map(|(payload, tso_size)| (segment(payload), TxRequest { tso_size, ..SEGMENTS }));
    let is_tcp = |packet: &Mbuf| packet.head().get(23) == Some(&6);
    let told = |packet: &Mbuf| (packet.len(), packet.rx_facts().gso_size, packet.rx_facts().l4_checksum);
    let wanted = sent.map(|(payload, size)| (payload + 54, size, ChecksumState::Partial));
    for _ in 0..3 {
        assert_eq!(send(&pool, &mut tx, &frames), 4);
        let up = receive_within(&mut socket_rx, 4, is_tcp).remove(0);
        assert_eq!(up.iter().map(told).collect::<Vec<_>>(), wanted, "to the kernel");
        assert_eq!(send(&pool, &mut socket_tx, &frames), 4);
        let down = receive_within(&mut rx, 4, is_tcp).remove(0);
        assert_eq!(down.iter().map(told).collect::<Vec<_>>(), wanted, "from the kernel");
        for packets in [up, down] {
            assert!(packets.iter().zip(&frames).all(|(packet, (bytes, _))| packet.to_vec() == *bytes));
            assert!(packets.iter().all(|packet| packet.head().len() >= packet.len().min(256)));
        }
    }
    stop(socket, socket_rx, socket_tx).detach().unwrap();
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn tap_without_buffers_waits_and_loses_only_what_it_has_read() {
    unshare();
    let eal = eal();
    let (pool, few) = (pool(&eal, 1023), {
        let config = pmd::MempoolConfig { name: "few".into(), mbufs: 7, cache: 0, ..Default::default() };
        Mempool::new(&eal, &config).unwrap()
    });
    let (port, mut rx, tx) = tap(&eal, &few, &config(1), 65_521);
    let (socket, socket_rx, mut socket_tx) = kernel(&eal, &pool);
    let held: Vec<Mbuf> = std::iter::from_fn(|| few.alloc()).collect();
    assert_eq!(send(&pool, &mut socket_tx, &plain(&[frame(1, 100), frame(2, 30_000), frame(3, 100)])), 3);
    let mut slots: [Option<Mbuf>; 8] = Default::default();
    assert_eq!((rx[0].receive_into(&mut slots), rx[0].receive_into(&mut slots)), (0, 0));
    assert_eq!(ready(&armed(&rx)), [0], "they wait in the kernel");
    assert_eq!(port.stats().unwrap().rx_no_mbuf, 1, "which is counted once");
    drop(held);
    let numbers: Vec<_> =
        receive_within(&mut rx, 2, is_frame)[0].iter().map(|packet| packet.head()[17]).collect();
    assert_eq!(numbers, [1, 3], "there are too few buffers for the second one");
    assert_eq!(port.stats().unwrap().rx_no_mbuf, 2);
    stop(socket, socket_rx, socket_tx).detach().unwrap();
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(few.in_use(), 0);
}

/// All queues armed, each with its place as its number.
fn armed(rx: &[RxQueue]) -> Readiness {
    let readiness = Readiness::new().unwrap();
    assert!(rx.iter().enumerate().all(|(place, queue)| readiness.arm(queue, place as u64)));
    readiness
}

/// The numbers of queues that have something.
fn ready(readiness: &Readiness) -> Vec<u64> {
    let mut numbers = Vec::new();
    readiness.take(|number| numbers.push(number));
    numbers
}

#[test]
fn queues_of_the_kernel_are_told_of_once_when_something_comes_and_nothing_is_missed() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, mut rx, mut tx) = tap(&eal, &pool, &config(2), 1500);
    let (socket, mut socket_rx, mut socket_tx) = kernel(&eal, &pool);
    let readiness = armed(&rx);
    for number in 0..200 {
        assert_eq!(ready(&readiness), [0; 0], "nothing is there before frame {number}");
        assert_eq!(send(&pool, &mut socket_tx, &plain(&[frame(number, 100), frame(number, 100)])), 2);
        let told = ready(&readiness);
        assert_eq!(told.len(), 1, "a flow has one queue");
        assert_eq!(ready(&readiness), [0; 0], "which is told of once");
        let place = told[0] as usize;
        // It has something when it is armed, too; and with another number.
        assert!(readiness.arm(&rx[place], 7));
        assert_eq!(ready(&readiness), [7]);
        let mut slots: [Option<Mbuf>; 8] = Default::default();
        assert_eq!(rx[place].receive_into(&mut slots), 2);
        assert!(readiness.arm(&rx[place], told[0]));
    }
    rx.iter().for_each(|queue| readiness.forget(queue));
    assert_eq!(send(&pool, &mut socket_tx, &plain(&[frame(1, 100)])), 1);
    assert_eq!(ready(&readiness), [0; 0], "what was forgotten is not told of");
    // The ring of a packet socket, in the same way.
    let readiness = armed(&socket_rx);
    for number in 0..200 {
        assert_eq!(ready(&readiness), [0; 0], "nothing is there before frame {number}");
        assert_eq!(send(&pool, &mut tx, &plain(&[frame(number, 100)])), 1);
        assert_eq!((ready(&readiness), ready(&readiness)), (vec![0], vec![]));
        assert_eq!(receive_within(&mut socket_rx, 1, is_frame)[0].len(), 1);
        assert!(readiness.arm(&socket_rx[0], 0));
    }
    // An interface that goes down is told of once, and not again and again.
    ip("link set t0 down");
    assert_eq!((ready(&readiness), ready(&readiness)), (vec![0], vec![]));
    assert!(readiness.arm(&socket_rx[0], 0));
    assert_eq!(ready(&readiness), [0; 0]);
    stop(socket, socket_rx, socket_tx).detach().unwrap();
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_tap_in_another_namespace_is_the_same_and_a_deleted_one_says_so() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 1023);
    let (port, mut rx, mut tx) = tap(&eal, &pool, &config(1), 1500);
    // A container, for as long as this sleeps.
    let mut container =
        process::kill_with_parent(Command::new("unshare").args(["--net", "sleep", "60"])).spawn().unwrap();
    let within = |pid: u32, what: &str| {
        let status =
            Command::new("nsenter").args(["--net", "-t", &pid.to_string()]).args(what.split(' ')).status();
        status.unwrap().success()
    };
    let pid = container.id();
    let deadline = Instant::now() + Duration::from_secs(5);
    while std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
        == std::fs::read_link("/proc/thread-self/ns/net").ok()
    {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    ip(&format!("link set t0 netns {pid}"));
    assert!(!port.link().unwrap().up, "what is moved is set down");
    // Another interface of its name is not mistaken for it.
    ip("link add t0 type veth peer name t1");
    assert!(within(pid, "ip link set t0 name eth0") && within(pid, "ip link set eth0 up"));
    assert!(port.link().unwrap().up && port.fault().is_none());
    port.set_mtu(4000).unwrap();
    assert_eq!((port.mtu().unwrap(), process::interface_mtu("t0").unwrap()), (4000, 1500));
    assert!(within(pid, "ip addr add 198.18.0.1/24 dev eth0"));
    // The container asks who has an address.
    assert!(within(pid, "ip neigh flush dev eth0") && !within(pid, "ping -c1 -W1 198.18.0.2"));
    let asked = receive_within(&mut rx, 1, |packet| packet.head().get(12..14) == Some(&[8, 6]));
    assert!(!asked[0].is_empty(), "once, or again when nobody answered");
    drop(asked);
    assert!(within(pid, "ip link del eth0"));
    let fault = port.fault().unwrap();
    assert!(fault.contains("deleted"), "{fault}");
    let mut slots = [None];
    assert_eq!((rx[0].receive_into(&mut slots), port.link().unwrap().up), (0, false));
    assert_eq!(send(&pool, &mut tx, &plain(&[frame(1, 64)])), 0);
    assert!(port.mtu().is_err() && port.set_mtu(1500).is_err());
    stop(port, rx, tx).detach().unwrap();
    container.kill().unwrap();
    container.wait().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn tap_that_persists_is_taken_again_whatever_was_done_to_it() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 1023);
    let persists = TapConfig { persist: true, ..config(2) };
    // A port that was never started leaves nothing.
    Port::on_tap(&eal, "tap0", &persists).unwrap().detach().unwrap();
    assert!(pmd::interface::index("t0").is_err());
    let mut index = None;
    for round in 0..3 {
        let (port, mut rx, mut tx) = tap(&eal, &pool, &persists, 1500);
        let now = pmd::interface::index("t0").unwrap();
        assert_eq!(*index.get_or_insert(now), now, "the same interface");
        let (socket, mut socket_rx, mut socket_tx) = kernel(&eal, &pool);
        assert_eq!(send(&pool, &mut tx, &plain(&[frame(round, 1000)])), 1);
        assert_eq!(receive_within(&mut socket_rx, 1, is_frame)[0].len(), 1);
        assert_eq!(send(&pool, &mut socket_tx, &plain(&[frame(round, 1000)])), 1);
        assert_eq!(receive_within(&mut rx, 1, is_frame).iter().map(Vec::len).sum::<usize>(), 1);
        stop(socket, socket_rx, socket_tx).detach().unwrap();
        stop(port, rx, tx).detach().unwrap();
        // The kernel says so a while later.
        let deadline = Instant::now() + Duration::from_secs(5);
        while pmd::interface::has_carrier("t0").unwrap() {
            assert!(Instant::now() < deadline, "nobody is behind it");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Without headers in front of frames, as other programs use it.
        pmd::interface::probe_tap("t0").unwrap();
    }
    ip("link del t0");
    ip("tuntap add t0 mode tap");
    let error = Port::on_tap(&eal, "tap0", &persists).unwrap_err();
    assert!(matches!(error, PortError::Operation { .. }), "a tap of one queue: {error}");
    assert_eq!(pool.in_use(), 0);
}
