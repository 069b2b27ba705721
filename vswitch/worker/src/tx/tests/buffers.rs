//! Bounds in buffers: what long packets hold, and what many stopped readers leave the others.

use super::*;
use crate::tx::own::MIN_BUFFER;

/// Bytes of a packet in so many buffers of the rig's pool.
const SUPER_FRAME: usize = 33 * 2048;
const SEGMENTS: usize = 33;

/// Puts a packet for a port in, without a turn.
fn offer(paths: &mut TxPaths, port: PortIndex, packet: Mbuf) {
    paths.stats.pipeline.received.add(1);
    paths.send(port, packet);
}

#[test]
fn ports_buffers_that_wait_for_a_full_queue_are_few_whatever_the_length_of_packets() {
    let mut rig = Rig::new(1);
    let mut owner = rig.worker(Vec::new());
    rig.saturate(&mut owner);
    for _ in 0..50 {
        send(&mut owner, rig.packet(SUPER_FRAME));
    }
    let waiting = rig.pool.in_use() - RING;
    assert_eq!(
        (waiting, owner.waiting, owner.queued),
        (7 * SEGMENTS, 7 * SEGMENTS, 7),
        "256 buffers have room for 7"
    );
    assert_eq!(drops(&owner, DropReason::TX_FULL), 43);
    send(&mut owner, rig.packet(60));
    assert_eq!(owner.queued, 8, "a short one finds room behind them");
    assert_eq!(rig.arrived(), RING);
    turn_at(&mut owner, 1);
    assert_eq!((rig.arrived(), rig.pool.in_use(), owner.waiting), (8, 0, 0));
    assert_balance(&[&owner]);
}

/// In a long buffer each, as many bytes wait, and no more: the next reader finds as many buffers, and the last packet is not later.
#[test]
fn ports_buffers_of_super_frames_in_one_piece_are_as_few() {
    const LONG: usize = 60_000;
    let mut rig = Rig::new(1);
    let (mut owner, mut other, ring) = rig.two_workers();
    rig.saturate(&mut owner);
    for _ in 0..50 {
        send(&mut owner, rig.long_packet(LONG));
    }
    assert_eq!((owner.waiting, owner.queued), (8 * 29, 8), "256 buffers have room for 8 times 29");
    assert_eq!(rig.pool.long().in_use, 8);
    assert_eq!(drops(&owner, DropReason::TX_FULL), 42);
    for _ in 0..50 {
        offer(&mut other, 0, rig.long_packet(LONG));
    }
    assert_eq!((ring.buffers(), other.handed), (35 * 29, 35 * 29), "of 1,024");
    assert_eq!(drops(&other, DropReason::TX_HANDOFF_FULL), 15);
    other.flush();
    let mut arrived = 0;
    for turn in 1..20 {
        arrived += rig.arrived();
        turn_at(&mut owner, turn);
    }
    assert_eq!((arrived + rig.arrived(), rig.pool.in_use()), (RING + 8 + 35, 0));
    assert_eq!((owner.waiting, ring.buffers()), (0, 0));
    assert_balance(&[&owner, &other]);
}

/// A queue that takes each packet at once loses none, though a burst of them is more than may wait.
#[test]
fn ports_buffers_of_a_burst_of_long_packets_pass_a_free_queue() {
    let mut rig = Rig::new(1);
    let mut owner = rig.worker(Vec::new());
    for _ in 0..32 {
        offer(&mut owner, 0, rig.packet(SUPER_FRAME));
    }
    turn_at(&mut owner, 1);
    assert_eq!((rig.arrived(), owner.waiting), (32, 0));
    assert_balance(&[&owner]);
}

#[test]
fn ports_buffers_in_hand_over_rings_are_few_whatever_the_length_of_packets() {
    let mut rig = Rig::new(1);
    let (mut owner, mut other, ring) = rig.two_workers();
    for _ in 0..50 {
        offer(&mut other, 0, rig.packet(SUPER_FRAME));
    }
    let held = 31 * SEGMENTS;
    assert_eq!((rig.pool.in_use(), ring.buffers(), other.handed), (held, held, held), "of 1,024");
    assert_eq!(drops(&other, DropReason::TX_HANDOFF_FULL), 19);
    other.flush();
    for turn in 0..10 {
        turn_at(&mut owner, turn);
    }
    assert_eq!((rig.arrived(), rig.pool.in_use(), ring.buffers()), (31, 0, 0));
    assert_balance(&[&owner, &other]);
}

/// However many peers stop reading, what they hold is bounded, and whoever comes next finds room.
#[test]
fn ports_buffers_of_many_stopped_readers_leave_room_for_the_next() {
    const STOPPED: u16 = 40;
    let rig = Rig::new(1);
    let mut paths = worker();
    let rings: Vec<Ring> = (0..=STOPPED).map(|_| ring(1)).collect();
    for (port, ring) in rings.iter().enumerate() {
        paths.hand_off(port as PortIndex, ring.clone());
    }
    for round in 0..600 {
        paths.begin(Now::from_ns(round * 100_000));
        for port in 0..STOPPED {
            offer(&mut paths, port, rig.packet(60));
        }
    }
    let held: usize = rings.iter().map(|ring| ring.buffers()).sum();
    assert_eq!(rig.pool.in_use(), held);
    assert!(held <= WORKER_ROOM, "{held}");
    // All have as much as is left; the next one comes to half of that, and to its share when others are read.
    let share = WORKER_ROOM / usize::from(STOPPED + 1) / 2 - 1;
    let before = drops(&paths, DropReason::TX_HANDOFF_FULL);
    for _ in 0..share {
        offer(&mut paths, STOPPED, rig.packet(60));
    }
    let lost = drops(&paths, DropReason::TX_HANDOFF_FULL) - before;
    assert_eq!((lost, rings[usize::from(STOPPED)].buffers()), (0, share), "there is room for the next");
    // What the others were given is taken out: there is room for more.
    rings[..usize::from(STOPPED)].iter().for_each(|ring| while ring.pop().is_some() {});
    paths.begin(Now::from_ns(100_000_000));
    for _ in 0..HAND_OFFS {
        offer(&mut paths, STOPPED, rig.packet(60));
    }
    assert_eq!(rings[usize::from(STOPPED)].len(), HAND_OFFS);
    assert_eq!(drops(&paths, DropReason::TX_HANDOFF_FULL) - before, share as u64);
    // The test took packets out that no worker counts.
    let (out, counted) = (held, paths.queued as usize);
    assert_eq!(counted, rings.iter().map(|ring| ring.buffers()).sum::<usize>() + out);
}

/// Beyond the worker's room a packet is tried once, and not kept.
#[test]
fn ports_buffers_beyond_the_room_of_a_worker_are_not_kept() {
    let mut rig = Rig::new(1);
    let mut owner = rig.worker(Vec::new());
    rig.saturate(&mut owner);
    let stopped: Vec<Ring> = (1..=4).map(|_| ring(1)).collect();
    for (port, ring) in stopped.iter().enumerate() {
        owner.hand_off(port as PortIndex + 1, ring.clone());
    }
    // Three rings of 1,024 buffers, and the rest of the room but for a few.
    for _ in 0..31 {
        (1..=4).for_each(|port| offer(&mut owner, port, rig.packet(SUPER_FRAME)));
    }
    let left = owner.room_left();
    assert!(left < WORKER_ROOM / 4, "{left}");
    for _ in 0..60 {
        send(&mut owner, rig.packet(SUPER_FRAME));
    }
    assert!(owner.waiting + owner.handed <= WORKER_ROOM, "{} and {}", owner.waiting, owner.handed);
    assert_eq!(rig.arrived(), RING);
    let before = drops(&owner, DropReason::TX_FULL);
    for _ in 0..20 {
        send(&mut owner, rig.packet(SUPER_FRAME));
    }
    assert_eq!(drops(&owner, DropReason::TX_FULL), before, "a free queue takes every one");
    assert_balance(&[&owner]);
}

#[test]
fn ports_buffers_of_a_port_are_bounded_whatever_the_number_of_workers() {
    assert_eq!(most_buffers(1, 1), 2 * BUFFERS);
    assert_eq!(most_buffers(1, 2), 2 * BUFFERS + 2 * HAND_OFFS);
    assert_eq!(most_buffers(8, 8), 8 * 2 * MIN_BUFFER, "a queue for each");
    assert_eq!(most_buffers(8, 2), most_buffers(2, 2), "workers use no more");
    for workers in 2..=64 {
        assert!(most_buffers(1, workers) <= 2 * BUFFERS + (workers - 1) * 1024, "{workers} workers");
    }
}

/// What control sends is for the next burst, whoever else waits: a saturated uplink is no dead one.
#[test]
fn ports_buffers_control_goes_ahead_of_all_that_waits() {
    const CONTROL: u8 = 0xbf;
    let mut rig = Rig::new(1);
    let mut owner = rig.worker(Vec::new());
    rig.saturate(&mut owner);
    while drops(&owner, DropReason::TX_FULL) == 0 {
        send(&mut owner, rig.packet(60));
    }
    let before = owner.queued;
    for number in 0..3 {
        let packet = rig.pool.alloc_from(&[CONTROL + number; 60]).unwrap();
        owner.stats.pipeline.originated.add(1);
        owner.send_ahead(0, packet);
    }
    assert_eq!(owner.queued, before, "in place of the last ones");
    assert_eq!(drops(&owner, DropReason::TX_FULL), 1 + 3);
    assert_balance(&[&owner]);
    assert_eq!(rig.arrived(), RING);
    turn_at(&mut owner, 1);
    let mut burst = Burst::with_capacity(RING);
    rig.rx[0].receive(&mut burst);
    let first: Vec<u8> = burst.iter().take(4).map(|packet| packet.head()[20]).collect();
    assert_eq!(first, [CONTROL, CONTROL + 1, CONTROL + 2, 7]);
    assert_eq!(burst.len() as u64, before);
    assert_balance(&[&owner]);
}

/// Long packets make room for it, too, and one for a port that is free waits for nobody.
#[test]
fn ports_buffers_control_finds_room_among_long_packets() {
    let mut rig = Rig::new(1);
    let mut owner = rig.worker(Vec::new());
    rig.saturate(&mut owner);
    for _ in 0..50 {
        send(&mut owner, rig.packet(SUPER_FRAME));
    }
    while drops(&owner, DropReason::TX_FULL) == 43 {
        send(&mut owner, rig.packet(60));
    }
    owner.stats.pipeline.originated.add(1);
    owner.send_ahead(0, rig.pool.alloc_from(&[1; 60]).unwrap());
    assert_eq!(rig.arrived(), RING);
    turn_at(&mut owner, 2);
    let mut burst = Burst::with_capacity(RING);
    rig.rx[0].receive(&mut burst);
    assert_eq!(burst.iter().next().map(|packet| packet.head()[20]), Some(1));
    owner.stats.pipeline.originated.add(1);
    owner.send_ahead(0, rig.packet(60));
    turn_at(&mut owner, 3);
    assert_eq!(rig.arrived(), 1);
    assert_balance(&[&owner]);
}
