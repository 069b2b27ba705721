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

fn pair(eal: &Eal, pool: &Mempool, rx_offloads: RxOffloads) -> Pair {
    let socket = std::env::temp_dir().join(format!("pmd-vhost-{}.sock", std::process::id()));
    let path = socket.display();
    let vhost = Port::attach(eal, "net_vhost0", &format!("iface={path},tso=1")).unwrap();
    let vhost = start(vhost, &PortConfig { rx_offloads, ..PortConfig::default() }, pool);
    let guest = Port::attach(eal, "net_virtio_user0", &format!("path={path},queue_size=256")).unwrap();
    let tx_offloads = TxOffloads::TCP_CHECKSUM | TxOffloads::UDP_CHECKSUM | TxOffloads::TCP_TSO;
    let config = PortConfig { tx_offloads, rx_desc: 256, tx_desc: 256, ..PortConfig::default() };
    let guest = start(guest, &config, pool);
    let deadline = Instant::now() + Duration::from_secs(5);
    while !vhost.0.link().unwrap().up && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    Pair { vhost, guest, socket }
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
};

#[test]
fn unfinished_checksums_and_segments_are_reported() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let mut pair = pair(&eal, &pool, RxOffloads::TCP_CHECKSUM | RxOffloads::UDP_CHECKSUM);
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
fn without_checksum_offloads_the_driver_finishes_them_itself() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let mut pair = pair(&eal, &pool, RxOffloads::NONE);
    let mut unfinished = pool.alloc_from(&tcp(200)).unwrap();
    unfinished.request_tx(LENGTHS);
    let mut burst = Burst::with_capacity(4);
    burst.push(unfinished).unwrap();
    assert_eq!(pair.guest.2[0].send(&mut burst), 1);
    let received = receive_within(&mut pair.vhost.1, 1, |_| true).remove(0);
    assert_ne!(received[0].rx_facts().l4_checksum, ChecksumState::Partial);
    let bytes = received[0].to_vec();
    let pseudo = [&bytes[26..34], &[0, 6], &166u16.to_be_bytes(), &bytes[34..]].concat();
    assert_eq!(fold(&pseudo), 0xffff, "the checksum is right");
    drop(received);
    pair.end();
}

#[test]
fn repair_the_queues_that_a_guest_enables_are_told() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let socket = std::env::temp_dir().join(format!("pmd-queues-{}.sock", std::process::id()));
    let path = socket.display();
    let vhost = Port::attach(&eal, "net_vhost0", &format!("iface={path},queues=2")).unwrap();
    let two = PortConfig { rx_queues: 2, tx_queues: 2, ..PortConfig::default() };
    let (vhost, rx, tx) = start(vhost, &two, &pool);
    assert!(vhost.has_queue_events() && vhost.queue_event().is_none(), "nobody is there yet");
    for queues in [1u16, 2] {
        let args = format!("path={path},queue_size=256,queues=2,cq=1");
        let guest = Port::attach(&eal, "net_virtio_user0", &args).unwrap();
        let config = PortConfig { rx_queues: queues, tx_queues: queues, ..PortConfig::default() };
        let config = PortConfig { rx_desc: 256, tx_desc: 256, ..config };
        let (guest, guest_rx, guest_tx) = start(guest, &config, &pool);
        let mut enabled = [false; 2];
        let deadline = Instant::now() + Duration::from_secs(5);
        let wanted = [true, queues == 2];
        while (enabled != wanted || !vhost.link().unwrap().up) && Instant::now() < deadline {
            while let Some(event) = vhost.queue_event() {
                if !event.rx {
                    enabled[usize::from(event.queue)] = event.enabled;
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(enabled, wanted, "the guest uses {queues} pairs");
        stop(guest, guest_rx, guest_tx).detach().unwrap();
        while vhost.link().unwrap().up && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    stop(vhost, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}
