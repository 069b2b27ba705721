//! What a container may do so that somebody waits for it: hold back what was sent to it, change what it has sent, hide who has its tap
//! among many files. Nobody waits, and nothing else is lost.

#![allow(clippy::unwrap_used, unsafe_code, reason = "helpers of tests")]

mod common;

use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{burst, eal, frame, ip, is_frame, pool, receive_within, start, stop, unshare};
use pmd::{Burst, Eal, Mbuf, Mempool, Port, PortConfig};
use wire::PacketBuf;

/// Longer than any burst takes, on a machine that has other things to do.
const LONG: Duration = Duration::from_secs(2);

fn cable() {
    ip("link add va mtu 1500 type veth peer name vb");
    ip("link set va up");
    ip("link set vb up");
}

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

/// A container's ring of one frame, shared with the kernel, which sends by reference to it.
struct SendRing {
    socket: std::os::fd::OwnedFd,
    memory: *mut u8,
}

const RING: usize = 64 << 10;
/// Where the kernel takes a frame from, behind its own header (`TPACKET_HDRLEN` less the address).
const DATA: usize = 32;

impl SendRing {
    fn new(iface: &str) -> Self {
        use std::os::fd::FromRawFd;
        // SAFETY: makes a socket; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        assert!(fd >= 0);
        // SAFETY: a fresh descriptor that nobody else owns.
        let socket = unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) };
        let set = |option, value: &[u32]| {
            let size = size_of_val(value) as libc::socklen_t;
            // SAFETY: an open socket, and a value with its size.
            let ret = unsafe { libc::setsockopt(fd, libc::SOL_PACKET, option, value.as_ptr().cast(), size) };
            assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
        };
        set(libc::PACKET_VNET_HDR, &[1]);
        // Size and number of blocks, then of frames.
        set(libc::PACKET_TX_RING, &[RING as u32, 1, RING as u32, 1]);
        // SAFETY: a structure of integers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
        address.sll_ifindex = pmd::interface::index(iface).unwrap().cast_signed();
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: an open socket, and an address with its size.
        let ret = unsafe { libc::bind(fd, (&raw const address).cast(), size) };
        assert_eq!(ret, 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the ring of the socket, wherever it fits.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), RING, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        Self { socket, memory: memory.cast() }
    }

    /// Sends a frame with its header, and changes a byte of it when that was done.
    fn send_and_change(&self, header: &[u8; 10], frame: &[u8], at: usize) {
        let place = self.memory.wrapping_add(DATA);
        let length = header.len() + frame.len();
        assert!(DATA + length <= RING);
        // SAFETY: inside the ring, which the kernel does not write to.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), place, header.len());
            std::ptr::copy_nonoverlapping(frame.as_ptr(), place.add(header.len()), frame.len());
            // `struct tpacket_hdr`: status, then length.
            self.memory.add(8).cast::<u32>().write_volatile(length as u32);
            self.memory.cast::<u64>().write_volatile(u64::from(libc::TP_STATUS_SEND_REQUEST));
        }
        // SAFETY: an open socket; what is sent is in the ring.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), std::ptr::null(), 0, 0) };
        assert!(sent > 0, "{}", std::io::Error::last_os_error());
        // SAFETY: inside the ring.
        unsafe { place.add(header.len() + at).write_volatile(!frame[at]) };
    }
}

#[test]
fn hostile_what_is_changed_after_it_was_sent_loses_nothing_else() {
    unshare();
    cable();
    let eal = eal();
    let pool = pool(&eal, 4095);
    let port = Port::on_interface(&eal, "veth0", "va").unwrap();
    let (port, mut rx, mut tx) = start(port, &PortConfig::default(), &pool);
    let (other, other_rx, mut other_tx) =
        start(Port::on_interface(&eal, "veth1", "vb").unwrap(), &PortConfig::default(), &pool);
    let ring = SendRing::new("vb");
    // A super-frame of TCP that no slot of a ring has room for, and whose memory is the sender's.
    let mut long = vec![2u8; 14 + 30_000];
    long[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    long[16..18].copy_from_slice(&30_000u16.to_be_bytes());
    long[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    long[46..48].copy_from_slice(&[0x50, 0x10]);
    let mut header = [1u8, 1, 54, 0, 0, 0, 34, 0, 16, 0];
    header[4..6].copy_from_slice(&1_000u16.to_ne_bytes());
    for at in [60, 1_000, 1_800, 20_000] {
        ring.send_and_change(&header, &long, at);
        let mut behind = burst(&pool, 0..8);
        assert_eq!(other_tx[0].send(&mut behind), 8);
        let received = receive_within(&mut rx, 9, |packet| is_frame(packet) || packet.len() == long.len());
        assert_eq!(received[0].len(), 9, "with byte {at} changed");
        let frames: Vec<Vec<u8>> =
            received[0].iter().filter(|packet| is_frame(packet)).map(Mbuf::to_vec).collect();
        assert_eq!(frames, (0..8).map(|number| frame(number, 64)).collect::<Vec<_>>());
    }
    assert_eq!(port.stats().unwrap().rx_errors, 0);
    let mut nothing = Burst::with_capacity(1);
    assert_eq!(tx[0].send(&mut nothing), 0);
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
