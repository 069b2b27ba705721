//! No buffer is lost and none is freed twice: not by a full ring, not by a dropped burst, not by a port that is
//! let go without a stop.

mod common;

use common::{burst, contents, eal, frame, pool, start, stop};
use pmd::{Burst, Port, PortConfig};

#[test]
fn a_full_ring_gives_back_what_it_did_not_take_in_order() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, mut rx, mut tx) =
        start(Port::attach(&eal, "net_ring0", "").unwrap(), &PortConfig::default(), &pool);

    let mut packets = burst(&pool, 0..2000);
    let sent = tx[0].send(&mut packets);
    assert!(sent > 0 && sent < 2000, "{sent} of 2000 fit the ring");
    assert_eq!(contents(&packets), (sent..2000).map(|number| frame(number, 64)).collect::<Vec<_>>());
    assert_eq!(tx[0].send(&mut packets), 0);
    assert_eq!((packets.len(), pool.in_use()), (2000 - sent, 2000));

    // What waits in the ring and what stayed outside are each there once.
    let mut received = Burst::with_capacity(100);
    assert_eq!(rx[0].receive(&mut received), 100);
    assert_eq!(tx[0].send(&mut packets), 100);
    assert_eq!(contents(&received)[99], frame(99, 64));
    drop(packets);
    drop(received);
    assert_eq!(pool.in_use(), sent);

    let mut expected = 100;
    let mut received = Burst::with_capacity(64);
    while rx[0].receive(&mut received) > 0 {
        for bytes in contents(&received) {
            assert_eq!(bytes, frame(expected, 64));
            expected += 1;
        }
        received.clear();
    }
    assert_eq!((expected, pool.in_use()), (sent + 100, 0));
    stop(port, rx, tx).detach().unwrap();
}

#[test]
fn slots_keep_what_a_full_ring_did_not_take() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (port, rx, mut tx) =
        start(Port::attach(&eal, "net_ring0", "").unwrap(), &PortConfig::default(), &pool);
    let mut slots: Vec<_> = (0..2000).map(|number| pool.alloc_from(&frame(number, 64))).collect();
    let sent = tx[0].send_from(&mut slots);
    assert!(sent > 0 && sent < 2000);
    assert!(slots[..sent].iter().all(Option::is_none));
    for (number, slot) in slots.iter().enumerate().skip(sent) {
        assert_eq!(slot.as_ref().unwrap().to_vec(), frame(number, 64));
    }
    drop(slots);
    assert_eq!(pool.in_use(), sent);
    // What still waits in the ring is freed at the stop, and not delivered after the next start.
    let (port, mut rx, tx) = start(stop(port, rx, tx), &PortConfig::default(), &pool);
    assert_eq!(pool.in_use(), 0);
    assert_eq!(rx[0].receive(&mut Burst::with_capacity(32)), 0);
    stop(port, rx, tx);
}

#[test]
fn bursts_free_what_they_hold() {
    let eal = eal();
    let pool = pool(&eal, 255);
    let mut packets = burst(&pool, 0..100);
    packets.truncate(60);
    assert_eq!(pool.in_use(), 60);
    assert_eq!(contents(&packets)[59], frame(59, 64));
    drop(packets.pop());
    assert_eq!(packets.drain().count(), 59);
    assert_eq!(pool.in_use(), 0);

    let mut all = Burst::with_capacity(300);
    assert_eq!(pool.alloc_bulk(&mut all, 200), 200);
    assert_eq!(pool.alloc_bulk(&mut all, 100), 0, "only 55 are left");
    assert_eq!(pool.alloc_bulk(&mut all, 55), 55);
    assert!(pool.alloc().is_none() && pool.alloc_from(b"x").is_none());
    assert_eq!(pool.in_use(), pool.capacity());
    drop(all);
    // A chain that does not fit the pool leaves nothing behind.
    assert!(pool.alloc_from(&vec![0; pool.segment_room() * 256]).is_none());
    assert_eq!(pool.in_use(), 0);
    let mut one = Burst::with_capacity(1);
    one.push(pool.alloc().unwrap()).unwrap();
    assert!(one.push(pool.alloc().unwrap()).is_err());
    drop(one);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_pool_outlives_its_handles_while_packets_are_out() {
    let eal = eal();
    let pool = pool(&eal, 63);
    let packet = pool.alloc_from(b"still readable").unwrap();
    drop(pool);
    drop(eal);
    assert_eq!(packet.to_vec(), b"still readable");
    drop(packet);
}

#[test]
fn a_port_that_is_let_go_stops_with_its_last_queue() {
    let eal = eal();
    let pool = pool(&eal, 255);
    for _ in 0..3 {
        let (port, rx, mut tx) =
            start(Port::attach(&eal, "net_ring0", "").unwrap(), &PortConfig::default(), &pool);
        drop((port, rx));
        assert_eq!(tx[0].send(&mut burst(&pool, 0..4)), 4, "the queue still works");
        assert_eq!(pmd::port::in_use(), 1);
        drop(tx);
        assert_eq!((pmd::port::in_use(), pool.in_use()), (0, 0));
    }
}
