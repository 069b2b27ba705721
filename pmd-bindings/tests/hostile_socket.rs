//! What a container may send by a packet socket of its own at the other end of a veth, or of a tap: virtio-net headers that lie about
//! checksum, segmentation and lengths, in front of frames of every length, whole, damaged and cut. Whatever comes of it in the kernel, what the port
//! delivers is sound, goes out again, and every buffer comes back.

#![allow(clippy::unwrap_used, unsafe_code, reason = "helpers of tests")]

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use common::enemy::{Random, frame, header};
use common::{cable, eal, frame as numbered, ip, is_frame, pool, receive_within, start, stop, unshare};
use pmd::{Burst, Eal, Mbuf, Port, PortConfig, StartedPort, TapConfig};
use wire::PacketBuf;

/// A socket as a container opens it, with virtio-net headers.
fn socket(iface: &str) -> OwnedFd {
    // SAFETY: makes a socket; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0) };
    assert!(fd >= 0);
    // SAFETY: a fresh descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    // SAFETY: an open socket, and a value with its size.
    let ret = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, (&raw const on).cast(), 4)
    };
    assert_eq!(ret, 0);
    // SAFETY: a structure of integers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    address.sll_ifindex = pmd::interface::index(iface).unwrap().cast_signed();
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: an open socket, and an address with its size.
    let ret = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
    assert_eq!(ret, 0);
    fd
}

/// bpf(2) with these attributes; the descriptor that it makes.
fn bpf(command: libc::c_long, attributes: [u64; 6]) -> OwnedFd {
    // With zeros behind them: valgrind looks at more than the kernel is told to read.
    let whole = [attributes, [0; 6], [0; 6]];
    // SAFETY: attributes with their size; what they point to is the caller's.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, whole.as_ptr(), size_of_val(&attributes)) };
    assert!(fd >= 0, "bpf {command}: {}", std::io::Error::last_os_error());
    // SAFETY: a fresh descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Has frames that `from` receives arrive at the other end of `to`, past all that cuts and completes frames on their way out.
fn redirect_to_peer(from: &str, to: &str) -> OwnedFd {
    let index = |iface| u64::from(pmd::interface::index(iface).unwrap());
    // bpf_redirect_peer(to, 0), which is function 155; what it returns is what becomes of the frame.
    let code: [u64; 4] = [index(to) << 32 | 0x01b7, 0x02b7, 155 << 32 | 0x85, 0x95];
    // BPF_PROG_LOAD of BPF_PROG_TYPE_SCHED_CLS; BPF_LINK_CREATE at BPF_TCX_INGRESS.
    let load = [(code.len() as u64) << 32 | 3, code.as_ptr() as u64, c"GPL".as_ptr() as u64, 0, 0, 0];
    let program = bpf(5, load);
    bpf(28, [index(from) << 32 | program.as_raw_fd() as u64, 46, 0, 0, 0, 0])
}

/// The container's end of a tap, which takes virtio-net headers.
fn tap(iface: &str) -> std::fs::File {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const TAP_WITH_HEADERS: libc::c_short = 0x0002 | 0x1000 | 0x4000;
    let file = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: a structure of integers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(iface.bytes()) {
        *place = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags = TAP_WITH_HEADERS;
    // SAFETY: an open file, and a request with a name.
    let ret = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    assert_eq!(ret, 0);
    ip(&format!("link set {iface} up"));
    file
}

/// A datagram of 5,028 bytes that is to be fragmented (`VIRTIO_NET_HDR_GSO_UDP`, which Linux takes and does not pass on), and one that is
/// to be cut (`VIRTIO_NET_HDR_GSO_UDP_L4`), with their headers.
fn datagrams() -> [Vec<u8>; 2] {
    let mut frame = vec![2u8; 14 + 5_028];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&5_028u16.to_be_bytes());
    frame[20..24].copy_from_slice(&[0, 0, 64, 17]);
    frame[34..40].copy_from_slice(&[0xc0, 1, 0, 53, 0x13, 0x90]);
    [3u8, 5].map(|kind| {
        let mut header = [1u8, kind, 42, 0, 0, 0, 34, 0, 6, 0];
        header[4..6].copy_from_slice(&1_000u16.to_ne_bytes());
        [&header[..], &frame].concat()
    })
}

/// Looks for a fault so many times, as control does.
fn looks(port: &StartedPort, times: usize, between: &dyn Fn()) -> Option<&'static str> {
    (0..times).find_map(|_| {
        between();
        port.fault()
    })
}

#[test]
fn hostile_super_frame_without_a_name_stops_no_port_for_good() {
    use std::io::Write;
    unshare();
    let eal = eal();
    let pool = pool(&eal, 4095);
    ip("link add va mtu 1500 type veth peer name vb");
    ip("link set va up");
    // The container, with a namespace of its own and all capabilities.
    let (send, frames) = std::sync::mpsc::channel::<Vec<u8>>();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let container = std::thread::spawn(move || {
        unshare();
        // SAFETY: asks for a number.
        let thread = unsafe { libc::gettid() };
        ready.send(format!("/proc/{}/task/{thread}/ns/net", std::process::id())).unwrap();
        while pmd::interface::index("vb").is_err() {
            std::thread::yield_now();
        }
        ip("link set vb up");
        let mut tap = tap("t0");
        let _link = redirect_to_peer("t0", "vb");
        ready.send(String::new()).unwrap();
        frames.iter().for_each(|frame| tap.write_all(&frame).unwrap());
    });
    ip(&format!("link set vb netns {}", is_ready.recv().unwrap()));
    is_ready.recv().unwrap();
    let plain = |number: usize| [&[0u8; 10][..], &numbered(number, 100)].concat();
    let [unnamed, named] = datagrams();
    for round in 0..3 {
        let port = Port::on_interface(&eal, "veth0", "va").unwrap();
        let (port, mut rx, tx) = start(port, &PortConfig::default(), &pool);
        send.send(plain(round)).unwrap();
        send.send(named.clone()).unwrap();
        assert_eq!(receive_within(&mut rx, 6, |_| true)[0].len(), 6, "a frame, and five datagrams of one");
        assert_eq!(looks(&port, 5, &|| send.send(plain(9)).unwrap()), None);
        receive_within(&mut rx, 5, is_frame);
        assert_eq!(looks(&port, 5, &|| ()), None, "silence is none");
        // The enemy: from here on the kernel drops everything.
        send.send(unnamed.clone()).unwrap();
        (0..100).for_each(|number| send.send(plain(number)).unwrap());
        let before = Instant::now();
        while port.stats().unwrap().rx_missed < 101 {
            assert!(before.elapsed() < Duration::from_secs(5));
        }
        let mut slots: [Option<Mbuf>; 8] = Default::default();
        assert_eq!(rx[0].receive_into(&mut slots), 0, "the ring stands still");
        let pause = || {
            send.send(plain(9)).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        };
        let fault = looks(&port, 4, &pause).unwrap();
        assert!(fault.contains("super-frame"), "{fault}");
        stop(port, rx, tx).detach().unwrap();
    }
    drop(send);
    container.join().unwrap();
    assert_eq!(pool.in_use(), 0);
}

/// A port, and the socket of a container at its other end.
type Ends = (Port, OwnedFd);

/// Over a cable.
fn on_veth(eal: &Eal) -> Ends {
    cable();
    (Port::on_interface(eal, "veth0", "va").unwrap(), socket("vb"))
}

/// By a tap.
fn on_tap(eal: &Eal) -> Ends {
    let config = TapConfig {
        iface: "t0".into(),
        namespace: None,
        queues: 1,
        mac: None,
        persist: false,
        offloads: true,
    };
    let port = Port::on_tap(eal, "tap0", &config).unwrap();
    ip("link set t0 up");
    (port, socket("t0"))
}

/// Sends a frame with its header; it is taken.
fn put(container: &OwnedFd, header: &[u8; 10], frame: &[u8]) {
    let message = [&header[..], frame].concat();
    // SAFETY: an open socket, and bytes with their length.
    let sent = unsafe { libc::send(container.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    assert_eq!(sent, message.len() as isize, "{}", std::io::Error::last_os_error());
}

/// A TCP segment over IPv4 with so many bytes behind the Ethernet header, and the header of a super-frame.
fn super_frame(length: u16) -> ([u8; 10], Vec<u8>) {
    let mut frame = vec![2u8; 14 + usize::from(length)];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    let mut header = [1u8, 1, 54, 0, 0, 0, 34, 0, 16, 0];
    header[4..6].copy_from_slice(&1_000u16.to_ne_bytes());
    (header, frame)
}

#[test]
fn hostile_super_frames_end_a_burst_before_they_hold_up_others() {
    super_frames_end_a_burst(on_veth);
}

#[test]
fn hostile_tap_super_frames_end_a_burst_before_they_hold_up_others() {
    super_frames_end_a_burst(on_tap);
}

fn super_frames_end_a_burst(ends: fn(&Eal) -> Ends) {
    const FRAMES: usize = 40;
    unshare();
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, container) = ends(&eal);
    let (port, mut rx, tx) = start(port, &PortConfig::default(), &pool);
    let (header, mut frame) = super_frame(60_000);
    for number in 0..FRAMES {
        frame[100] = number as u8;
        put(&container, &header, &frame);
    }
    let mut numbers = Vec::new();
    while numbers.len() < FRAMES {
        let mut slots: [Option<Mbuf>; 64] = [const { None }; 64];
        let n = rx[0].receive_into(&mut slots);
        assert!((1..=3).contains(&n), "{n} super-frames in one burst, after {}", numbers.len());
        numbers.extend(slots.into_iter().flatten().map(|packet| usize::from(packet.head()[100])));
    }
    assert_eq!(numbers, (0..FRAMES).collect::<Vec<_>>());
    // Short ones count as what they are to be cut into: 120 pieces each.
    let (mut header, frame) = super_frame(1_000);
    header[4..6].copy_from_slice(&8u16.to_ne_bytes());
    (0..FRAMES).for_each(|_| put(&container, &header, &frame));
    for _ in 0..FRAMES / 2 {
        let mut slots: [Option<Mbuf>; 64] = [const { None }; 64];
        assert_eq!(rx[0].receive_into(&mut slots), 2, "super-frames of small pieces in one burst");
    }
    // Frames of the usual length come as many at a time as are asked for.
    (0..64).for_each(|number| put(&container, &[0; 10], &numbered(number, 1_500)));
    let mut slots: [Option<Mbuf>; 64] = [const { None }; 64];
    assert_eq!(rx[0].receive_into(&mut slots), 64);
    drop(slots);
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn hostile_or_not_what_a_container_left_to_its_device_is_completed_or_dropped() {
    what_was_left_is_completed(on_veth);
}

#[test]
fn hostile_or_not_what_is_left_to_a_tap_is_completed_or_dropped() {
    what_was_left_is_completed(on_tap);
}

fn what_was_left_is_completed(ends: fn(&Eal) -> Ends) {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 1023);
    let (port, container) = ends(&eal);
    let (port, mut rx, tx) = start(port, &PortConfig::default(), &pool);
    let ipv4 = |protocol: u8| {
        let mut ip = [0u8; 20];
        (ip[0], ip[6], ip[8], ip[9]) = (0x45, 0x40, 64, protocol);
        ip.to_vec()
    };
    let ipv6 = |next_header: u8| {
        let mut ip = [0u8; 40];
        (ip[0], ip[6], ip[7]) = (0x60, next_header, 64);
        ip.to_vec()
    };
    let ethernet = |ethertype: [u8; 2]| [&[2u8; 12][..], &ethertype].concat();
    let (v4, v6) = (ethernet([8, 0]), ethernet([0x86, 0xdd]));
    let gre = vec![0, 0, 8, 0];
    // The headers in front of the place, and where in it the checksum is: 8 is that of SCTP.
    let cases: [(Vec<u8>, usize); 8] = [
        ([&v4[..], &ipv4(132)].concat(), 8),
        ([&v6[..], &ipv6(132)].concat(), 8),
        ([&v4[..], &ipv4(47), &gre, &ipv4(132)].concat(), 8),
        ([&v4[..], &ipv4(47), &gre, &ipv4(6)].concat(), 16),
        ([&v4[..], &ipv4(4), &ipv4(17)].concat(), 6),
        ([&v6[..], &ipv6(41), &ipv6(58)].concat(), 2),
        ([&v6[..], &ipv6(60), &[6, 0, 1, 4, 0, 0, 0, 0]].concat(), 16),
        // Behind a header that does not say what comes: it might be SCTP, or not.
        ([&v4[..], &ipv4(47), &[0, 0, 0x12, 0x34]].concat(), 8),
    ];
    for (number, (before, field)) in cases.iter().enumerate() {
        let start = before.len();
        let mut frame = before.clone();
        frame.extend((0..301).map(|at| (at * 7 + number) as u8));
        let mut header = [1u8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
        header[8..10].copy_from_slice(&(*field as u16).to_ne_bytes());
        put(&container, &header, &frame);
        let mut slots = [None];
        if rx[0].receive_into(&mut slots) == 0 {
            assert_eq!((number, port.stats().unwrap().rx_errors), (7, 1));
            continue;
        }
        let packet = slots[0].take().unwrap();
        assert_ne!(packet.rx_facts().l4_checksum, wire::ChecksumState::Partial, "case {number}");
        let place = start + field;
        if *field == 8 {
            let crc = wire::sctp::checksum([&frame[..]], start).unwrap();
            frame[place..place + 4].copy_from_slice(&crc.to_le_bytes());
        } else {
            let sum = wire::checksum::of(&frame[start..]);
            frame[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        }
        assert!(packet.to_vec() == frame, "case {number}");
    }
    assert_eq!(port.stats().unwrap().rx_packets, 7);
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn hostile_tap_goes_on_after_a_super_frame_without_a_name() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 1023);
    let (port, container) = on_tap(&eal);
    let (port, mut rx, tx) = start(port, &PortConfig::default(), &pool);
    for _ in 0..10 {
        for datagram in datagrams() {
            // SAFETY: an open socket, and bytes with their length; the kernel may refuse it.
            unsafe { libc::send(container.as_raw_fd(), datagram.as_ptr().cast(), datagram.len(), 0) };
        }
        put(&container, &[0; 10], &numbered(1, 100));
        assert_eq!(receive_within(&mut rx, 1, is_frame)[0].len(), 1);
        assert_eq!(looks(&port, 3, &|| ()), None);
    }
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_port_of_a_process_that_may_not_have_the_filter_receives_all_the_same() {
    // Of linux/capability.h: the two that allow eBPF.
    const SYS_ADMIN: u32 = 1 << 21;
    const BPF: u32 = 1 << (39 - 32);
    unshare();
    cable();
    let eal = eal();
    let pool = pool(&eal, 1023);
    let container = socket("vb");
    // struct __user_cap_header_struct (version 3, this thread), and two of __user_cap_data_struct.
    let header = [0x2008_0522u32, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: a header, and a place for what is asked.
    let ret = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    assert_eq!(ret, 0);
    sets[0].iter_mut().for_each(|set| *set &= !SYS_ADMIN);
    sets[1].iter_mut().for_each(|set| *set &= !BPF);
    // SAFETY: a header and two sets.
    let ret = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(ret, 0);
    let port = Port::on_interface(&eal, "veth0", "va").unwrap();
    let (port, mut rx, tx) = start(port, &PortConfig { rx_queues: 2, ..PortConfig::default() }, &pool);
    (0..20).for_each(|number| put(&container, &[0; 10], &numbered(number, 100)));
    let received = receive_within(&mut rx, 20, is_frame);
    assert_eq!(received.iter().map(Vec::len).sum::<usize>(), 20);
    assert_eq!((looks(&port, 3, &|| ()), port.stats().unwrap().rx_errors), (None, 0));
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn a_full_ring_is_not_taken_for_one_that_stands_still() {
    unshare();
    let eal = eal();
    let pool = pool(&eal, 4095);
    cable();
    let port = Port::on_interface(&eal, "veth0", "va").unwrap();
    let (port, mut rx, tx) = start(port, &PortConfig::default(), &pool);
    let container = socket("vb");
    let blast = || (0..2_000).for_each(|number| put(&container, &[0; 10], &numbered(number, 100)));
    assert_eq!(looks(&port, 4, &blast), None, "nobody reads");
    assert!(port.stats().unwrap().rx_missed > 5_000);
    let waited = receive_within(&mut rx, 512, is_frame)[0].len();
    assert_eq!((waited, looks(&port, 4, &|| ())), (512, None));
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn lying_headers_in_front_of_frames_harm_nobody() {
    lying_headers(on_veth);
}

#[test]
fn hostile_tap_lying_headers_in_front_of_frames_harm_nobody() {
    lying_headers(on_tap);
}

fn lying_headers(ends: fn(&Eal) -> Ends) {
    // In this process, for valgrind does not look into another one.
    unshare();
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, container) = ends(&eal);
    let (port, mut rx, mut tx) = start(port, &PortConfig::default(), &pool);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut taken, mut delivered, mut cut, mut echoed) = (0, 0, 0, 0);
    let until = Instant::now() + Duration::from_secs(20);
    for _ in 0..6_000 {
        if Instant::now() > until {
            break;
        }
        let (frame, protocol, l4) = frame(&mut random);
        let header = header(&mut random, protocol, l4);
        let message = [&header[..], &frame].concat();
        // SAFETY: an open socket, and bytes with their length.
        let sent = unsafe { libc::send(container.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        taken += usize::from(sent > 0);
        let mut slots: Vec<Option<Mbuf>> = (0..64).map(|_| None).collect();
        let n = rx[0].receive_into(&mut slots);
        let mut back = Burst::with_capacity(64);
        for packet in slots.into_iter().flatten() {
            delivered += 1;
            cut += usize::from(packet.rx_facts().gso_size != 0);
            assert_eq!(packet.segments().map(<[u8]>::len).sum::<usize>(), packet.len());
            assert!(packet.head().len() >= packet.len().min(256), "headers are in the first segment");
            assert!(packet.len() <= 65_535 + 22 && packet.segment_count() <= 64);
            back.push(packet).unwrap();
        }
        assert!(n <= 64);
        // What it is is the pipeline's business; the sender must bear all of it.
        echoed += tx[0].send(&mut back);
    }
    // The kernel refuses most of what is nonsense, and must not have refused all.
    assert!(taken > 500 && delivered > 500 && cut > 50 && echoed > 500, "{taken} {delivered} {cut} {echoed}");
    // Whatever came before, what is sound still comes as it was sent.
    let mut slots: Vec<Option<Mbuf>> = (0..64).map(|_| None).collect();
    while rx[0].receive_into(&mut slots) > 0 {
        slots.iter_mut().for_each(|slot| *slot = None);
    }
    for length in [30_000u16, 60_000, 1_400, 65_000, 5_000] {
        let (header, frame) = super_frame(length);
        put(&container, &header, &frame);
        assert_eq!(rx[0].receive_into(&mut slots), 1, "a frame of {length} bytes");
        let packet = slots[0].take().unwrap();
        assert!(packet.to_vec() == frame && packet.rx_facts().gso_size == 1_000);
    }
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0, "every buffer is back, once");
    let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!(all.len(), 4095);
    assert!(all.iter().all(|packet| packet.segment_count() == 1));
}
