//! What a container may do so that somebody waits for it: hold back what was sent to it, change what it has sent, hide who has its tap
//! among many files. Nobody waits, and nothing else is lost.

#![allow(clippy::unwrap_used, unsafe_code, reason = "helpers of tests")]

mod common;

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{burst, cable, eal, frame, ip, is_frame, pool, receive_within, start, stop, unshare};
use pmd::{Eal, Mbuf, Mempool, Port, PortConfig};
use wire::PacketBuf;

/// Longer than any burst takes, on a machine that has other things to do.
const LONG: Duration = Duration::from_secs(2);

/// Sends many frames by an interface whose other end holds them back: those that have no room stay, and no call waits for it.
fn sends_by_an_end_that_holds_back(eal: &Eal, pool: &Mempool, driver: &str, frames: usize) {
    cable();
    // What comes is sent on by the container, where nothing leaves; and what waits there still belongs to the socket that sent it.
    ip("link add br0 type bridge");
    ip("link add vc type veth peer name vd");
    for iface in ["vb", "vc"] {
        ip(&format!("link set {iface} master br0 up"));
    }
    ip("link set br0 up");
    ip("link set vd up");
    let (port, rx, mut tx) =
        start(Port::attach(eal, driver, "iface=va").unwrap(), &PortConfig::default(), pool);
    let held = "tc qdisc add dev vc root tbf rate 8bit burst 2000 limit 100000000";
    assert!(Command::new("sh").args(["-c", held]).status().unwrap().success());
    let (mut sent, mut calls) = (0, 0);
    while calls < frames / 16 {
        let mut burst = burst(pool, 0..32);
        let began = Instant::now();
        sent += tx[0].send(&mut burst);
        assert!(began.elapsed() < LONG, "{driver} waited for {:?} after {sent} frames", began.elapsed());
        calls += 1;
    }
    assert!(sent > 0 && sent < calls * 32, "{driver} has room for {sent} of {} frames", calls * 32);
    // Whoever is told that there is room may send again, as before.
    assert!(Command::new("sh").args(["-c", "tc qdisc del dev vc root"]).status().unwrap().success());
    let until = Instant::now() + Duration::from_secs(5);
    let mut burst = burst(pool, 0..32);
    while !burst.is_empty() && Instant::now() < until {
        tx[0].send(&mut burst);
    }
    assert!(burst.is_empty(), "{driver} sends again");
    drop(burst);
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn hostile_nobody_waits_for_who_holds_back_frames_of_packet_sockets() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 8191);
    sends_by_an_end_that_holds_back(&eal, &pool, "net_af_packet0", 6000);
}

#[test]
fn hostile_nobody_waits_for_who_holds_back_frames_of_xdp_sockets() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 16_383);
    sends_by_an_end_that_holds_back(&eal, &pool, "net_af_xdp0", 12_000);
}

#[test]
fn hostile_what_is_changed_after_it_was_sent_loses_nothing_else() {
    /// Bytes of each datagram.
    const SIZE: usize = 1_000;
    /// Bytes of headers in front of them.
    const HEADERS: usize = 42;
    unshare();
    cable();
    ip("addr add 10.0.0.1/24 dev vb");
    ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev vb");
    let eal = eal();
    let pool = pool(&eal, 4095);
    let port = Port::on_interface(&eal, "veth0", "va").unwrap();
    let (port, mut rx, tx) = start(port, &PortConfig::default(), &pool);
    let (other, other_rx, mut other_tx) =
        start(Port::on_interface(&eal, "veth1", "vb").unwrap(), &PortConfig::default(), &pool);
    // A file in memory, whose pages go into packets by reference.
    // SAFETY: makes a descriptor; the result is checked.
    let file = unsafe { libc::memfd_create(c"sent".as_ptr(), 0) };
    assert!(file >= 0);
    // SAFETY: a fresh descriptor that nobody else owns.
    let file = unsafe { File::from_raw_fd(file) };
    let socket = UdpSocket::bind("10.0.0.1:1000").unwrap();
    socket.connect("10.0.0.2:1000").unwrap();
    let size = SIZE as libc::c_int;
    // SAFETY: an open socket, and a value with its size.
    let ret = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const size).cast(), 4)
    };
    assert_eq!(ret, 0);
    for at in [10, 500, 1_700, 20_000] {
        file.write_all_at(&[2; 30 * SIZE], 0).unwrap();
        let mut from = 0;
        // SAFETY: open descriptors, and a place.
        let sent = unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut from, 30 * SIZE) };
        assert_eq!(sent, 30 * SIZE as isize, "{}", std::io::Error::last_os_error());
        file.write_all_at(&[253], at).unwrap();
        let mut behind = burst(&pool, 0..8);
        assert_eq!(other_tx[0].send(&mut behind), 8);
        let is_datagram = |packet: &Mbuf| packet.len() == HEADERS + SIZE;
        let received =
            receive_within(&mut rx, 38, |packet| is_frame(packet) || is_datagram(packet)).remove(0);
        assert_eq!(received.len(), 38, "with byte {at} changed");
        let (frames, datagrams): (Vec<&Mbuf>, Vec<&Mbuf>) =
            received.iter().partition(|packet| is_frame(packet));
        assert!(frames.iter().map(|packet| packet.to_vec()).eq((0..8).map(|number| frame(number, 64))));
        let data: Vec<u8> = datagrams.iter().flat_map(|packet| packet.to_vec()[HEADERS..].to_vec()).collect();
        assert_eq!(data[at as usize], 253, "byte {at} was changed before it was read");
    }
    assert_eq!(port.stats().unwrap().rx_errors, 0);
    stop(port, rx, tx).detach().unwrap();
    stop(other, other_rx, other_tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn hostile_who_has_a_tap_is_not_looked_for_among_all_files() {
    unshare();
    // A descriptor of which there is much to tell, many times: some hundred megabytes in all.
    let limit = libc::rlimit { rlim_cur: 8_000, rlim_max: 8_000 };
    // SAFETY: a whole structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    // SAFETY: makes a descriptor, which stays.
    let all = unsafe { libc::epoll_create1(0) };
    for _ in 0..5_000 {
        // SAFETY: as above.
        let one = unsafe { libc::eventfd(0, 0) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: open descriptors, and a whole event.
        assert_eq!(unsafe { libc::epoll_ctl(all, libc::EPOLL_CTL_ADD, one, &raw mut event) }, 0);
    }
    // SAFETY: copies a descriptor.
    assert!((0..2_000).all(|_| unsafe { libc::dup(all) } >= 0));
    let began = Instant::now();
    assert_eq!(pmd::interface::tap_holder("nobodys"), None);
    let took = began.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
}
