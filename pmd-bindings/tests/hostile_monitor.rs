//! Monitors of virtual machines that say what none says: the switch refuses it, and the others pay for nothing of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::monitor::{self, MEMORY, Monitor, PACKED, PLACES, PLAIN, SLOTS};
use common::{eal, frame, is_frame, pool, start, stop};
use pmd::{Burst, Eal, Mempool, Port, PortConfig, RxQueue, StartedPort, TxQueue};

type Started = (StartedPort, Vec<RxQueue>, Vec<TxQueue>);

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pmd-monitor-{}-{name}.sock", std::process::id()))
}

fn open(eal: &Eal, pool: &Mempool, path: &Path, is_server: bool) -> Started {
    let config = pmd::VhostConfig { path: path.to_owned(), is_server, queues: 1, offloads: true };
    let name = path.file_stem().unwrap().to_str().unwrap();
    start(Port::on_vhost_user(eal, name, &config).unwrap(), &PortConfig::default(), pool)
}

fn close((port, rx, tx): Started) {
    stop(port, rx, tx).detach().unwrap();
}

/// Polls both ways as a worker does, and counts the frames that came.
fn poll((_, rx, tx): &mut Started, pool: &Mempool) -> usize {
    let mut burst = Burst::with_capacity(32);
    let mut came = 0;
    for _ in 0..200 {
        rx[0].receive(&mut burst);
        came += burst.drain().filter(is_frame).count();
        burst.push(pool.alloc_from(&frame(1, 64)).unwrap()).unwrap();
        tx[0].send(&mut burst);
        burst.clear();
    }
    came
}

/// A guest's frame is received.
fn is_heard(port: &mut Started, pool: &Mempool, guest: &Monitor, number: u16) {
    guest.offer(PLACES[1], number, SLOTS as u16, &frame(7, 64));
    let deadline = Instant::now() + Duration::from_secs(5);
    while poll(port, pool) == 0 {
        assert!(Instant::now() < deadline, "frame {number}");
    }
}

#[test]
fn hostile_vhost_memory_that_cannot_be_mapped_leaves_the_memory_of_before() {
    let (eal, path) = (eal(), path("memory"));
    let pool = pool(&eal, 1023);
    let mut port = open(&eal, &pool, &path, true);
    let guest = Monitor::ready(&path, PLAIN);
    is_heard(&mut port, &pool, &guest, 0);
    let (whole, half) = (guest.memory.as_raw_fd(), MEMORY / 2);
    let readable = File::open(format!("/proc/self/fd/{whole}")).unwrap();
    let pipe = std::io::pipe().unwrap();
    let sealed = monitor::memory(MEMORY);
    seal(&sealed, libc::F_SEAL_FUTURE_WRITE).unwrap();
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    for (what, regions, files) in [
        ("an offset that overflows", vec![[0, half, 0, 4096_u64.wrapping_neg()]], vec![whole]),
        ("no bytes", vec![[0, 0, 0, 0]], vec![whole]),
        ("behind the file", vec![[0, MEMORY, 0, 4096]], vec![whole]),
        ("what may not be written", vec![[0, half, 0, 0]], vec![readable.as_raw_fd()]),
        ("what will not be written", vec![[0, half, 0, 0]], vec![sealed.as_raw_fd()]),
        ("a pipe", vec![[0, half, 0, 0]], vec![pipe.0.as_raw_fd()]),
        ("the second one", vec![[0, half, 0, 0], [half, half, half, u64::MAX]], vec![whole, whole]),
        ("fewer files", vec![[0, half, 0, 0], [half, half, half, half]], vec![whole]),
    ] {
        assert!(guest.share(&regions, &files).is_err(), "{what}");
        assert_eq!(poll(&mut port, &pool), 0, "{what}");
    }
    // Some of it by a thread that nobody waits for.
    let end = Instant::now() + Duration::from_secs(20);
    while open_files() > before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(open_files(), before, "what is refused is closed");
    is_heard(&mut port, &pool, &guest, 1);
    // What was looked at once cannot be taken away before it is mapped.
    let table = [[0, half, 0, 0], [half, half, half, half]];
    guest.share(&table, &[whole, whole]).unwrap();
    assert!(seal(&guest.memory, libc::F_SEAL_FUTURE_WRITE).is_err());
    is_heard(&mut port, &pool, &guest, 2);
    assert_eq!(port.0.fault(), None);
    drop(guest);
    close(port);
    assert_eq!(pool.in_use(), 0);
}

#[allow(unsafe_code, reason = "asks the kernel")]
fn seal(file: &File, seal: libc::c_int) -> std::io::Result<()> {
    // SAFETY: an open descriptor, and a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seal) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The library looks whether a ring is in the guest's memory once, for the size that it has then.
#[test]
fn hostile_vhost_a_ring_grows_into_nothing_that_is_not_its_guests() {
    let (eal, path) = (eal(), path("rings"));
    let pool = pool(&eal, 1023);
    let mut port = open(&eal, &pool, &path, true);
    // The used ring ends where the memory does.
    let places = [PLACES[0], [0x3000, 0x4000, MEMORY - 4 - 8 * u64::from(SLOTS)]];
    let guest = Monitor::ready_with(&path, PLAIN, places);
    for number in 0..10 {
        guest.offer(places[1], number, SLOTS as u16, &frame(7, 64));
    }
    assert!(guest.numbers(monitor::SET_VRING_NUM, [1, 1024]).is_err());
    assert!(guest.numbers(monitor::SET_VRING_NUM, [1, SLOTS]).is_ok(), "what it is already");
    let deadline = Instant::now() + Duration::from_secs(5);
    while guest.used(places[1]) < 10 && Instant::now() < deadline {
        poll(&mut port, &pool);
    }
    for number in 10..4000 {
        guest.offer(places[1], number, 1024, &frame(7, 64));
        if number % 64 == 0 {
            poll(&mut port, &pool);
        }
    }
    assert_eq!(port.0.fault(), None);
    drop(guest);
    close(port);
}

/// Rings without a size, or with one of before, have no place for what the library notes of them.
#[test]
fn hostile_vhost_rings_are_used_only_with_a_size_and_a_place_in_it() {
    let (eal, path) = (eal(), path("sizes"));
    let pool = pool(&eal, 1023);
    let mut port = open(&eal, &pool, &path, true);
    // No size at all.
    let mut guest = Monitor::connect(&path);
    guest.agree(PLAIN);
    guest.share(&[[0, MEMORY, 0, 0]], &[guest.memory.as_raw_fd()]).unwrap();
    for ring in 0..2 {
        assert!(guest.numbers(monitor::SET_VRING_NUM, [ring, 0]).is_err());
        assert!(guest.numbers(monitor::SET_VRING_NUM, [ring, 63]).is_err());
        assert!(guest.place(ring, PLACES[ring as usize]).is_err());
        assert!(guest.notify(ring).is_err());
    }
    drop(guest);
    // Stopped, and not set up again.
    let mut guest = Monitor::ready(&path, PLAIN);
    is_heard(&mut port, &pool, &guest, 0);
    for ring in 0_u32..2 {
        guest.ask(monitor::GET_VRING_BASE, &[ring.to_ne_bytes(), [0; 4]].concat()).unwrap();
    }
    for ring in 0..2 {
        assert!(guest.place(ring, PLACES[ring as usize]).is_err());
        assert!(guest.notify(ring).is_err());
    }
    guest.offer(PLACES[1], 1, SLOTS as u16, &frame(7, 64));
    assert_eq!(poll(&mut port, &pool), 0);
    // And set up again as it should be.
    for ring in 0..2 {
        guest.numbers(monitor::SET_VRING_NUM, [ring, SLOTS]).unwrap();
        guest.numbers(monitor::SET_VRING_BASE, [ring, ring]).unwrap();
        guest.place(ring, PLACES[ring as usize]).unwrap();
        guest.notify(ring).unwrap();
    }
    is_heard(&mut port, &pool, &guest, 1);
    drop(guest);
    // A packed ring is indexed by where it begins.
    let guest = Monitor::connect(&path);
    guest.agree(PACKED);
    guest.share(&[[0, MEMORY, 0, 0]], &[guest.memory.as_raw_fd()]).unwrap();
    assert!(guest.numbers(monitor::SET_VRING_BASE, [1, 0]).is_err());
    guest.numbers(monitor::SET_VRING_NUM, [1, SLOTS]).unwrap();
    assert!(guest.numbers(monitor::SET_VRING_BASE, [1, SLOTS]).is_err());
    assert!(guest.numbers(monitor::SET_VRING_BASE, [1, 1 << 15 | 0x7fff]).is_err());
    guest.numbers(monitor::SET_VRING_BASE, [1, 1 << 15 | (SLOTS - 1)]).unwrap();
    // What was set up for one format is nothing for the other.
    assert!(guest.tell(monitor::SET_FEATURES, &PLAIN.to_ne_bytes(), &[]).is_err());
    drop(guest);
    close(port);
}

#[test]
fn hostile_vhost_what_no_network_device_is_asked_for_is_refused() {
    let (eal, path) = (eal(), path("unasked"));
    let pool = pool(&eal, 1023);
    let port = open(&eal, &pool, &path, true);
    let guest = Monitor::ready(&path, PLAIN);
    assert!(guest.tell(monitor::POSTCOPY_ADVISE, &[], &[]).is_err());
    // A record of packets on their way of 64 GB.
    let sizes = [[0; 16].to_vec(), [0xff; 4].to_vec(), [0; 4].to_vec()].concat();
    assert!(guest.tell(monitor::GET_INFLIGHT_FD, &sizes, &[]).is_err());
    let mut one_queue = [0; 20];
    one_queue[16] = 1;
    for number in [22, 25, 32, 37, 38] {
        assert!(guest.tell(number, &one_queue, &[]).is_err(), "message {number}");
    }
    // Of less than it takes, what was there before would be read.
    assert!(guest.tell(monitor::SET_VRING_NUM, &[], &[]).is_err());
    guest.ask(monitor::GET_FEATURES, &[]).unwrap();
    drop(guest);
    close(port);
}

/// Who sends waits for the library while it maps memory, and then looks whether the ring holds chains of nothing.
#[test]
fn hostile_vhost_memory_that_is_being_changed_is_not_looked_into() {
    let (eal, path) = (eal(), path("changes"));
    let pool = pool(&eal, 1023);
    let mut port = open(&eal, &pool, &path, true);
    let guest = Monitor::ready(&path, PLAIN);
    // Buffers for received frames, each in a chain that begins with a descriptor without length.
    let empty = [&[0; 12][..], &1u16.to_ne_bytes(), &1u16.to_ne_bytes()].concat();
    guest.give(PLACES[0], 1);
    guest.memory.write_all_at(&empty, PLACES[0][0]).unwrap();
    let half = MEMORY / 2;
    let tables: [&[[u64; 4]]; 2] = [&[[0, MEMORY, 0, 0]], &[[0, half, 0, 0], [half, half, half, half]]];
    let file = guest.memory.as_raw_fd();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(1);
            let mut available = 0u16;
            while Instant::now() < end {
                for (count, regions) in (1..).zip(tables) {
                    guest.share_unheard(regions, &vec![file; count]).unwrap();
                }
                available = available.wrapping_add(1);
                guest.memory.write_all_at(&available.to_ne_bytes(), PLACES[0][1] + 2).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            poll(&mut port, &pool);
        }
    });
    assert_eq!(port.0.fault(), None);
    drop(guest);
    close(port);
}

/// A message is read with its whole length at once, or not at all: one thread speaks to all peers.
#[test]
fn hostile_vhost_a_peer_that_stops_in_a_message_holds_nobody_up() {
    let (eal, bad, good, far) = (eal(), path("bad"), path("good"), path("far"));
    let pool = pool(&eal, 1023);
    let listener = UnixListener::bind(&far).unwrap();
    let hostile = open(&eal, &pool, &bad, true);
    let mut honest = open(&eal, &pool, &good, true);
    let client = open(&eal, &pool, &far, false);
    let guest = Monitor::ready(&good, PLAIN);
    let stuck: Vec<UnixStream> = (0..2)
        .map(|_| UnixStream::connect(&bad).unwrap())
        .chain(std::iter::once(listener.accept().unwrap().0))
        .inspect(|socket| {
            let header = [monitor::SET_MEM_TABLE, 1, 40].map(u32::to_ne_bytes).concat();
            { socket }.write_all(&header).unwrap();
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    guest.ask(monitor::GET_FEATURES, &[]).unwrap();
    is_heard(&mut honest, &pool, &guest, 0);
    for (socket, what) in stuck.iter().zip(["one", "another", "one that was connected to"]) {
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        assert_eq!({ socket }.read(&mut [0]).unwrap(), 0, "{what} is sent away");
    }
    // Nor does one that reads no replies.
    let silent = Monitor::connect(&bad);
    silent.socket.set_nonblocking(true).unwrap();
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end && silent.send(monitor::GET_FEATURES, 1, &[], &[]).is_ok() {}
    guest.ask(monitor::GET_FEATURES, &[]).unwrap();
    close(hostile);
    close(client);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    drop(guest);
    close(honest);
    fs::remove_file(&far).unwrap();
}

/// Nothing in the rings says that the library has something to give.
#[test]
fn vhost_an_announcement_is_a_packet_to_be_received() {
    let (eal, path) = (eal(), path("rarp"));
    let pool = pool(&eal, 1023);
    let (port, mut rx, tx) = open(&eal, &pool, &path, true);
    let guest = Monitor::ready(&path, PLAIN);
    let mut burst = Burst::with_capacity(4);
    for round in 0..2 {
        assert_eq!(rx[0].receive(&mut burst), 0);
        assert!(!rx[0].may_have_packets(), "round {round}");
        guest.tell(monitor::SEND_RARP, &[2, 0, 0, 0, 0, 9, 0, 0], &[]).unwrap();
        assert!(rx[0].may_have_packets(), "round {round}");
        let deadline = Instant::now() + Duration::from_secs(5);
        while rx[0].receive(&mut burst) == 0 && Instant::now() < deadline {}
        let announced = burst.drain().next().unwrap();
        assert_eq!(wire::PacketBuf::head(&announced)[6..14], [2, 0, 0, 0, 0, 9, 0x80, 0x35]);
    }
    drop(guest);
    close((port, rx, tx));
}
