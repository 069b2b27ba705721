//! What a peer can make librte_vhost leave behind: pointers beyond the count that it returns. Both ends of a real
//! vhost-user connection are in this process.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use common::{burst, eal, is_frame, pool, start, stop};
use pmd::{Mbuf, Port, PortConfig, RxQueue};

/// A port that makes the socket, for guests that leave checksums and segmentation to it.
fn server(path: &std::path::Path, queues: u16) -> pmd::VhostConfig {
    pmd::VhostConfig { path: path.to_owned(), is_server: true, queues, offloads: true }
}

/// As a worker does it: places that are free again after each burst, and are offered again.
fn poll(queue: &mut RxQueue, slots: &mut [Option<Mbuf>], numbers: &mut Vec<u32>) {
    let received = queue.receive_into(slots);
    assert!(slots[received..].iter().all(Option::is_none), "places behind the last packet stay empty");
    for packet in slots[..received].iter_mut().map(|slot| slot.take().unwrap()) {
        let bytes = packet.to_vec();
        if is_frame(&packet) {
            numbers.push(u32::from_be_bytes(bytes[14..18].try_into().unwrap()));
        }
    }
}

/// Frames go from a well-formed peer of this kind to the switch's side, in order, all of them, for many bursts.
fn all_arrive(peer_args: &str) {
    const FRAMES: usize = 2000;
    let eal = eal();
    let pool = pool(&eal, 4095);
    let socket = std::env::temp_dir().join(format!("pmd-hostile-{}.sock", std::process::id()));
    let path = socket.display();
    let vhost = Port::on_vhost_user(&eal, "vhost0", &server(&socket, 1)).unwrap();
    let (vhost, mut rx, tx) = start(vhost, &PortConfig::default(), &pool);
    let guest =
        Port::attach(&eal, "net_virtio_user0", &format!("path={path},queue_size=256,{peer_args}")).unwrap();
    let config = PortConfig { rx_desc: 256, tx_desc: 256, ..PortConfig::default() };
    let (guest, guest_rx, mut guest_tx) = start(guest, &config, &pool);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !vhost.link().unwrap().up && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut slots: Vec<Option<Mbuf>> = (0..64).map(|_| None).collect();
    let mut numbers = Vec::new();
    let mut next = 0;
    while numbers.len() < FRAMES && Instant::now() < deadline {
        // Bursts of every size, none of them as large as what is offered: each leaves free places.
        let count = (next % 37 + 1).min(FRAMES - next);
        let mut frames = burst(&pool, next..next + count);
        next += guest_tx[0].send(&mut frames);
        drop(frames);
        poll(&mut rx[0], &mut slots, &mut numbers);
    }
    let expected: Vec<u32> = (0..FRAMES as u32).collect();
    assert!(numbers == expected, "{} of {FRAMES} frames arrived", numbers.len());
    drop(slots);
    stop(guest, guest_rx, guest_tx).detach().unwrap();
    stop(vhost, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0, "every buffer is back, once");
    // Each buffer is in the pool once: all of them can be had, and no two are the same.
    let mut all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!(all.len(), pool.capacity());
    for (number, packet) in all.iter_mut().enumerate() {
        let place = wire::PacketBuf::append(packet, 4).unwrap();
        place.copy_from_slice(&(number as u32).to_be_bytes());
    }
    let whole = |(number, packet): (usize, &Mbuf)| packet.to_vec() == (number as u32).to_be_bytes();
    assert!(all.iter().enumerate().all(whole), "a buffer was given back twice");
}

#[test]
fn repair_a_peer_with_packed_rings_is_heard_on() {
    all_arrive("packed_vq=1");
}

#[test]
fn repair_a_peer_with_packed_rings_in_order_is_heard_on() {
    all_arrive("packed_vq=1,in_order=1");
}

#[test]
fn repair_a_peer_with_split_rings_is_heard_on() {
    all_arrive("packed_vq=0,mrg_rxbuf=0");
}
