//! A virtio peer's wishes arrive as facts: unfinished checksums and super-frames, through the real vhost-user
//! protocol, both ends in this process.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{eal, frame, is_frame, pool, receive_within, start, stop};
use pmd::{Burst, Eal, Mempool, Port, PortConfig, RxOffloads, RxQueue, StartedPort, TxOffloads, TxQueue};
use wire::packet::L4Checksum;
use wire::{ChecksumState, PacketBuf, RxFacts, TxRequest};

/// A vhost-user port and a virtio peer on it, of which each plays its part until both are dropped.
struct Pair {
    vhost: (StartedPort, Vec<RxQueue>, Vec<TxQueue>),
    guest: (StartedPort, Vec<RxQueue>, Vec<TxQueue>),
    socket: PathBuf,
}

/// A port that makes the socket, for guests that leave checksums and segmentation to it.
fn server(path: &std::path::Path, queues: u16) -> pmd::VhostConfig {
    pmd::VhostConfig { path: path.to_owned(), is_server: true, queues, offloads: true }
}

fn pair(eal: &Eal, pool: &Mempool, guest_rx_offloads: RxOffloads, more: &str) -> Pair {
    let socket = std::env::temp_dir().join(format!("pmd-vhost-{}.sock", std::process::id()));
    let path = socket.display();
    let vhost = Port::on_vhost_user(eal, "vhost0", &server(&socket, 1)).unwrap();
    let vhost = start(vhost, &PortConfig::default(), pool);
    let guest = Port::attach(eal, "net_virtio_user0", &format!("path={path},queue_size=256{more}")).unwrap();
    let tx_offloads = TxOffloads::TCP_CHECKSUM | TxOffloads::UDP_CHECKSUM | TxOffloads::TCP_TSO;
    let config = PortConfig { tx_offloads, rx_offloads: guest_rx_offloads, ..PortConfig::default() };
    let guest = start(guest, &PortConfig { rx_desc: 256, tx_desc: 256, ..config }, pool);
    until("the guest is there", || vhost.0.link().unwrap().up);
    Pair { vhost, guest, socket }
}

/// Waits for at most five seconds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within five seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Pair {
    fn end(self) {
        let (guest, rx, tx) = self.guest;
        stop(guest, rx, tx).detach().unwrap();
        let (vhost, rx, tx) = self.vhost;
        stop(vhost, rx, tx).detach().unwrap();
        assert!(!self.socket.exists(), "the socket goes with the port");
    }
}

/// IPv4 and TCP headers and a payload; the checksum field holds the pseudo-header sum.
fn tcp(length: u16) -> Vec<u8> {
    let mut bytes = frame(0, length.into());
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6]);
    bytes[16..18].copy_from_slice(&(length - 14).to_be_bytes());
    bytes[46] = 0x50;
    let pseudo = [&bytes[26..34], &[0, 6], &(length - 34).to_be_bytes()].concat();
    let sum = fold(&pseudo);
    bytes[50..52].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The ones' complement sum.
fn fold(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) as u16 + (sum >> 16) as u16
}

const LENGTHS: TxRequest = TxRequest {
    l2_len: 14,
    l3_len: 20,
    l4_len: 20,
    ipv4_checksum: false,
    l4_checksum: Some(L4Checksum::Tcp),
    tso_size: 0,
    ipv6: false,
    outer: None,
};

#[test]
fn unfinished_checksums_and_segments_are_reported() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let mut pair = pair(&eal, &pool, RxOffloads::NONE, "");
    let plain = pool.alloc_from(&frame(1, 64)).unwrap();
    let mut unfinished = pool.alloc_from(&tcp(200)).unwrap();
    unfinished.request_tx(LENGTHS);
    let mut super_frame = pool.alloc_from(&tcp(3000)).unwrap();
    super_frame.request_tx(TxRequest { tso_size: 1000, ..LENGTHS });
    let mut burst = Burst::with_capacity(4);
    for packet in [plain, unfinished, super_frame] {
        burst.push(packet).unwrap();
    }
    assert_eq!(pair.guest.2[0].send(&mut burst), 3);
    let received = receive_within(&mut pair.vhost.1, 3, |_| true).remove(0);
    assert_eq!((received[0].to_vec(), received[0].rx_facts()), (frame(1, 64), RxFacts::default()));
    let facts = received[1].rx_facts();
    assert_eq!((facts.l4_checksum, facts.gso_size), (ChecksumState::Partial, 0));
    assert_eq!(received[1].to_vec(), tcp(200));
    let facts = received[2].rx_facts();
    assert_eq!((facts.l4_checksum, facts.gso_size), (ChecksumState::Partial, 1000));
    assert_eq!(received[2].len(), 3000);
    drop(received);

    burst.push(pool.alloc_from(&frame(5, 64)).unwrap()).unwrap();
    assert_eq!(pair.vhost.2[0].send(&mut burst), 1);
    let received = receive_within(&mut pair.guest.1, 1, is_frame).remove(0);
    assert_eq!(received[0].to_vec(), frame(5, 64));
    drop(received);
    pair.end();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn vhost_a_guest_gets_what_it_takes_and_nothing_else() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    for packed in ["", ",packed_vq=1"] {
        for takes in [true, false] {
            let offloads = match takes {
                true => RxOffloads::TCP_CHECKSUM | RxOffloads::UDP_CHECKSUM | RxOffloads::TCP_LRO,
                false => RxOffloads::NONE,
            };
            let mut pair = pair(&eal, &pool, offloads, packed);
            assert_eq!(pair.vhost.0.peer_takes_super_frames(), Some(takes));
            let mut burst = Burst::with_capacity(4);
            burst.push(pool.alloc_from(&frame(1, 64)).unwrap()).unwrap();
            let mut super_frame = pool.alloc_from(&tcp(2000)).unwrap();
            super_frame.request_tx(TxRequest { tso_size: 1000, ..LENGTHS });
            burst.push(super_frame).unwrap();
            burst.push(pool.alloc_from(&frame(2, 64)).unwrap()).unwrap();
            assert_eq!(pair.vhost.2[0].send(&mut burst), 3);
            let stats = pair.vhost.0.stats().unwrap();
            let wanted = if takes { (3, 2128, 0) } else { (2, 128, 1) };
            assert_eq!((stats.tx_packets, stats.tx_bytes, stats.tx_errors), wanted);
            assert_eq!(pair.vhost.2[0].take_refused(), if takes { (0, 0) } else { (1, 2000) });
            let received = receive_within(&mut pair.guest.1, wanted.0 as usize, |_| true).remove(0);
            let lengths: Vec<usize> = received.iter().map(PacketBuf::len).collect();
            assert_eq!(lengths, if takes { vec![64, 2000, 64] } else { vec![64, 64] });
            if takes {
                let facts = received[1].rx_facts();
                assert_eq!((facts.l4_checksum, facts.gso_size), (ChecksumState::Partial, 1000));
            }
            drop(received);
            pair.end();
            assert_eq!(pool.in_use(), 0);
        }
    }
}

#[test]
fn vhost_a_second_peer_waits_for_the_first_and_a_third_is_turned_away() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let first = pair(&eal, &pool, RxOffloads::NONE, "");
    let path = first.socket.display().to_string();
    let config = PortConfig { rx_desc: 256, tx_desc: 256, ..PortConfig::default() };
    let second = Port::attach(&eal, "net_virtio_user1", &format!("path={path},queue_size=256")).unwrap();
    let (second, mut second_rx, second_tx) = start(second, &config, &pool);
    let third = Port::attach(&eal, "net_virtio_user2", &format!("path={path},queue_size=256"));
    assert!(third.is_err(), "nobody answers it");
    let Pair { vhost: (vhost, rx, mut tx), guest: (guest, mut guest_rx, guest_tx), socket } = first;
    let mut send = |number| {
        let mut burst = Burst::with_capacity(1);
        burst.push(pool.alloc_from(&frame(number, 64)).unwrap()).unwrap();
        assert_eq!(tx[0].send(&mut burst), 1);
    };
    send(1);
    assert_eq!(
        receive_within(&mut guest_rx, 1, is_frame)[0].len(),
        1,
        "the first stays the one that is used"
    );
    stop(guest, guest_rx, guest_tx).detach().unwrap();
    until("the second takes its place", || vhost.link().unwrap().up);
    send(2);
    let received = receive_within(&mut second_rx, 1, is_frame).remove(0);
    assert_eq!(received[0].to_vec(), frame(2, 64));
    drop(received);
    stop(second, second_rx, second_tx).detach().unwrap();
    until("nobody is left", || !vhost.link().unwrap().up);
    stop(vhost, rx, tx).detach().unwrap();
    assert!(!socket.exists() && pool.in_use() == 0);
}

#[test]
fn vhost_a_socket_is_of_one_port_and_its_number_is_free_again() {
    let eal = eal();
    let pool = pool(&eal, 1023);
    let path = std::env::temp_dir().join(format!("pmd-one-{}.sock", std::process::id()));
    for _ in 0..2 {
        let one = Port::on_vhost_user(&eal, "one", &server(&path, 1)).unwrap();
        let (one, rx, tx) = start(one, &PortConfig::default(), &pool);
        let other = Port::on_vhost_user(&eal, "other", &server(&path, 1)).unwrap();
        let (other, error) = other.start(&PortConfig::default(), &pool).unwrap_err();
        assert!(error.to_string().contains("another port has"), "{error}");
        other.detach().unwrap();
        assert!(path.exists(), "the refused one took nothing with it");
        stop(one, rx, tx).detach().unwrap();
        assert!(!path.exists());
    }
    let long = std::path::PathBuf::from("/run/".to_owned() + &"x".repeat(103));
    assert!(Port::on_vhost_user(&eal, "long", &server(&long, 1)).is_err());
    assert_eq!(pmd::vhost::too_many(511, 1), None);
    assert_eq!(pmd::vhost::too_many(511, 2), Some((1024, 1023)));
}

#[test]
fn vhost_more_pairs_than_the_port_has_are_all_heard() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let socket = std::env::temp_dir().join(format!("pmd-pairs-{}.sock", std::process::id()));
    let vhost = Port::on_vhost_user(&eal, "vhost0", &server(&socket, 2)).unwrap();
    let (vhost, mut rx, tx) = start(vhost, &two_queues(), &pool);
    assert_eq!(vhost.read_queues(), Some(vec![false, false]), "nobody is there yet");
    let args = format!("path={},queue_size=256,queues=5,cq=1", socket.display());
    let guest = Port::attach(&eal, "net_virtio_user0", &args).unwrap();
    let five = PortConfig { rx_queues: 5, tx_queues: 5, rx_desc: 256, tx_desc: 256, ..PortConfig::default() };
    let (guest, guest_rx, mut guest_tx) = start(guest, &five, &pool);
    until("all are read", || vhost.read_queues() == Some(vec![true, true]));
    for round in 0..20 {
        for (number, queue) in guest_tx.iter_mut().enumerate() {
            let mut burst = common::burst(&pool, round * 5 + number..round * 5 + number + 1);
            assert_eq!(queue.send(&mut burst), 1);
        }
    }
    let received = receive_within(&mut rx, 100, is_frame);
    let facts = (vhost.link().unwrap().up, vhost.read_queues(), vhost.fault());
    assert_eq!(
        (received[0].len(), received[1].len()),
        (60, 40),
        "pairs 0, 2, 4 and pairs 1, 3; up, read, fault: {facts:?}"
    );
    drop(received);
    stop(guest, guest_rx, guest_tx).detach().unwrap();
    stop(vhost, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

fn two_queues() -> PortConfig {
    PortConfig { rx_queues: 2, tx_queues: 2, ..PortConfig::default() }
}

#[test]
fn repair_the_queues_that_a_guest_enables_are_told() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let socket = std::env::temp_dir().join(format!("pmd-queues-{}.sock", std::process::id()));
    let vhost = Port::on_vhost_user(&eal, "vhost0", &server(&socket, 2)).unwrap();
    let (vhost, rx, tx) = start(vhost, &two_queues(), &pool);
    for queues in [1u16, 2] {
        let args = format!("path={},queue_size=256,queues=2,cq=1", socket.display());
        let guest = Port::attach(&eal, "net_virtio_user0", &args).unwrap();
        let config = PortConfig { rx_queues: queues, tx_queues: queues, ..PortConfig::default() };
        let config = PortConfig { rx_desc: 256, tx_desc: 256, ..config };
        let (guest, guest_rx, guest_tx) = start(guest, &config, &pool);
        let wanted = Some(vec![true, queues == 2]);
        until("the guest's queues are told", || vhost.link().unwrap().up && vhost.read_queues() == wanted);
        stop(guest, guest_rx, guest_tx).detach().unwrap();
        until("the guest is gone", || vhost.read_queues() == Some(vec![false, false]));
    }
    stop(vhost, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

/// The library waits for sockets for a second at a time, whatever comes and goes meanwhile.
#[test]
fn vhost_peers_hear_at_once_of_ports_that_come_and_go() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    // The library's first words and ours: its features.
    const GET_FEATURES: [u32; 3] = [1, 1, 0];
    let eal = eal();
    let pool = pool(&eal, 4095);
    let socket = std::env::temp_dir().join(format!("pmd-vhost-{}.sock", std::process::id()));
    // With its last socket newer versions of the library end their thread, which takes up to a second.
    let other = std::env::temp_dir().join(format!("pmd-vhost-{}-other.sock", std::process::id()));
    let other = Port::on_vhost_user(&eal, "other", &server(&other, 1)).unwrap();
    let (other, other_rx, other_tx) = start(other, &PortConfig::default(), &pool);
    let (mut answered, mut hung_up) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let vhost = Port::on_vhost_user(&eal, &format!("vhost{round}"), &server(&socket, 1)).unwrap();
        let (vhost, rx, tx) = start(vhost, &PortConfig::default(), &pool);
        let began = Instant::now();
        let mut peer = UnixStream::connect(&socket).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let question: Vec<u8> = GET_FEATURES.iter().flat_map(|word| word.to_ne_bytes()).collect();
        peer.write_all(&question).unwrap();
        peer.read_exact(&mut [0; 20]).unwrap();
        answered.push(began.elapsed());
        let began = Instant::now();
        stop(vhost, rx, tx).detach().unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it hangs up");
        hung_up.push(began.elapsed());
    }
    stop(other, other_rx, other_tx).detach().unwrap();
    for (what, mut times) in [("answers", answered), ("hangs up", hung_up)] {
        times.sort_unstable();
        assert!(times[2] < Duration::from_millis(500), "{what} after {times:?}");
    }
}
