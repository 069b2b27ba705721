//! What goes into a ring port comes out of it, byte for byte and in order, and no buffer is lost.

mod common;

use common::{burst, contents, eal, frame, pool, start, stop};
use pmd::{Burst, Port, PortConfig};
use wire::PacketBuf;

#[test]
fn frames_come_back_whole_and_in_order() {
    let eal = eal();
    let pool = pool(&eal, 2047);
    let before = pool.in_use();
    let port = Port::attach(&eal, "net_ring0", "").unwrap();
    let info = port.info().unwrap();
    assert_eq!((info.driver.as_str(), info.name.as_str()), ("net_ring", "net_ring0"));
    let (port, mut rx, mut tx) = start(port, &PortConfig::default(), &pool);
    assert!(port.link().unwrap().up);

    let mut received = Burst::with_capacity(32);
    for round in 0..100 {
        let numbers = round * 32..(round + 1) * 32;
        let mut packets = burst(&pool, numbers.clone());
        assert_eq!(tx[0].send(&mut packets), 32);
        assert!(packets.is_empty());
        assert_eq!(rx[0].receive(&mut received), 32);
        assert_eq!(contents(&received), numbers.map(|number| frame(number, 64)).collect::<Vec<_>>());
        received.clear();
    }
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets, stats.tx_errors), (3200, 3200, 0));
    port.reset_stats().unwrap();
    assert_eq!(port.stats().unwrap().rx_packets, 0);

    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), before);
}

#[test]
fn receive_into_fills_leading_places_only() {
    let eal = eal();
    let pool = pool(&eal, 511);
    let (port, mut rx, mut tx) =
        start(Port::attach(&eal, "net_ring0", "").unwrap(), &PortConfig::default(), &pool);
    assert_eq!(tx[0].send(&mut burst(&pool, 0..8)), 8);
    let mut slots: Vec<Option<pmd::Mbuf>> = (0..10).map(|_| None).collect();
    slots[5] = pool.alloc_from(&frame(99, 64));
    assert_eq!(rx[0].receive_into(&mut slots), 5);
    let heads: Vec<_> = slots.iter().flatten().map(|packet| packet.head().to_vec()).collect();
    assert_eq!(heads, [0, 1, 2, 3, 4, 99].map(|number| frame(number, 64)));
    assert_eq!(rx[0].receive_into(&mut slots), 0, "no leading place is free");

    assert_eq!(tx[0].send_from(&mut slots), 6);
    assert!(slots.iter().all(Option::is_none));
    let mut rest = Burst::with_capacity(32);
    assert_eq!(rx[0].receive(&mut rest), 9);
    let order = [5, 6, 7, 0, 1, 2, 3, 4, 99];
    assert_eq!(contents(&rest), order.map(|number| frame(number, 64)));
    drop(rest);
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}
