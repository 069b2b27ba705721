//! Monitors of virtual machines that say what none says, or stop in the middle of it, beside two that pay for nothing of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use tests::vhost::siege::{ENEMY, Siege};
use tests::vhost::{
    FAR, FrontEnd, LARGE, MEMORY, OFFLOADS, PLAIN, SLOTS, Station, VAST, arp_request, datagram, message,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// The payload of a message that shares memory: each region's address, size, address in the monitor, and offset in its file.
fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut payload = (regions.len() as u64).to_ne_bytes().to_vec();
    payload.extend(regions.iter().flatten().flat_map(|word| word.to_ne_bytes()));
    payload
}

/// The library unmaps the memory that there is before it knows that there will be other memory.
#[test]
fn hostile_vhost_memory_that_cannot_be_mapped_is_refused() {
    let siege = Siege::start();
    for round in 0..4 {
        let mut peer = siege.enemy(PLAIN);
        let readable = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&peer.memory)));
        let readable = readable.unwrap();
        let (offset, file) = match round % 2 {
            0 => (4096u64.wrapping_neg(), peer.memory.as_fd()),
            _ => (0, readable.as_fd()),
        };
        let payload = table(&[[0, MEMORY / 2, 0, offset]]);
        if round < 2 {
            assert!(peer.tell(message::SET_MEM_TABLE, &payload, &[file]).is_err());
            for number in 0..10 {
                peer.send(&datagram(ENEMY, Station(1), 1 << 30 | number)).unwrap();
            }
            std::thread::sleep(Duration::from_millis(50));
        } else {
            // Who does not ask for a reply is sent away.
            peer.send_raw(message::SET_MEM_TABLE, 1, payload.len() as u32, &payload, &[file]).unwrap();
            is_hung_up(&peer);
        }
    }
    siege.stop();
}

/// The library looks once whether a ring is in the guest's memory, for the size that it has then.
#[test]
fn hostile_vhost_rings_do_not_grow_out_of_their_memory() {
    let siege = Siege::start();
    let mut peer = siege.enemy(PLAIN);
    // The used ring ends where the memory does.
    peer.place(1, [0x3000, 0x4000, MEMORY - 4 - 8 * u64::from(SLOTS)]).unwrap();
    assert!(peer.size(1, u32::from(LARGE)).is_err());
    for number in 0..u16::MAX {
        peer.set_available(1, number).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    // One that never got a size has no end at all.
    drop(peer);
    peer = siege.connect();
    peer.agree(PLAIN).unwrap();
    peer.share(MEMORY).unwrap();
    assert!(peer.size(0, 0).is_err());
    assert!(peer.place(0, [0, 0x1000, MEMORY - 64]).is_err());
    drop(peer);
    siege.stop();
}

#[track_caller]
fn is_hung_up(peer: &FrontEnd) {
    let end = Instant::now() + PATIENCE;
    while !peer.is_hung_up() {
        assert!(Instant::now() < end, "it is not sent away");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One thread of the library speaks to all peers, and would wait for the rest of a message as long as its peer likes.
#[test]
fn hostile_vhost_a_peer_that_stops_in_a_message_holds_nobody_up() {
    let siege = Siege::start();
    let path = |name: &str| siege.dir.path().join(name);
    let attach = |name: &str| {
        siege.daemon.ctl(&format!("port attach {name} vhost-user path={}", path(name).display()));
    };
    attach("bad");
    attach("good");
    let stuck: Vec<FrontEnd> = (0..2)
        .map(|_| FrontEnd::connect(&path("bad")).unwrap())
        .chain([siege.connect()])
        .inspect(|peer| peer.send_raw(message::SET_MEM_TABLE, 1, 40, &[], &[]).unwrap())
        .collect();
    let began = Instant::now();
    drop(FrontEnd::ready(&path("good"), PLAIN).unwrap());
    stuck.iter().for_each(is_hung_up);
    siege.daemon.ctl("port detach bad");
    siege.daemon.ctl("port attach spare ring");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    siege.stop();
}

/// A worker that looks into a ring for chains of nothing does not look into memory that is being unmapped.
#[test]
fn hostile_vhost_memory_that_changes_all_the_time_is_looked_into_by_nobody() {
    const NEXT: u16 = 1;
    const CHAIN: u16 = 8;
    let siege = Siege::start();
    let mut peer = siege.vast(OFFLOADS);
    // Chains that are too short to be an offence.
    let descriptors: Vec<u8> = (0..LARGE)
        .flat_map(|at| {
            let flags = if at % CHAIN == CHAIN - 1 || at >= CHAIN { 0 } else { NEXT };
            [&[0; 12][..], &flags.to_ne_bytes(), &(at + 1).to_ne_bytes()].concat()
        })
        .collect();
    peer.memory.write_all_at(&descriptors, FAR[0]).unwrap();
    peer.memory.write_all_at(&vec![0; 2 * usize::from(LARGE)], FAR[1] + 4).unwrap();
    peer.memory.write_all_at(&(LARGE - 1).to_ne_bytes(), FAR[1] + 2).unwrap();
    let half = VAST / 2;
    let tables = [table(&[[0, VAST, 0, 0]]), table(&[[0, half, 0, 0], [half, half, half, half]])];
    let end = Instant::now() + PATIENCE;
    let question = arp_request(ENEMY, Station(1));
    let mut is_gone = false;
    while Instant::now() < end && !is_gone {
        for (count, payload) in (1..).zip(&tables) {
            let memory = peer.memory.as_fd();
            let files: Vec<BorrowedFd<'_>> = vec![memory; count];
            let size = payload.len() as u32;
            is_gone |= peer.send_raw(message::SET_MEM_TABLE, 1, size, payload, &files).is_err();
        }
        let _ = peer.send(&question);
    }
    drop(peer);
    siege.stop();
}
