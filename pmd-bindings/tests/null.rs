//! The null port: a source and a sink. Also polled from a registered, pinned thread.

mod common;

use common::{eal, pool, start, stop};
use pmd::{Burst, Port, PortConfig, lcore};
use wire::PacketBuf;

#[test]
fn a_worker_thread_moves_bursts() {
    let eal = eal();
    let pool = pool(&eal, 1023);
    let (port, mut rx, mut tx) =
        start(Port::attach(&eal, "net_null0", "size=60").unwrap(), &PortConfig::default(), &pool);
    let core = *lcore::available().last().unwrap();
    let worker_eal = eal.clone();
    let worker = std::thread::spawn(move || {
        let registration = lcore::register_current_thread(&worker_eal).unwrap();
        lcore::pin_current_thread(core).unwrap();
        let mut packets = Burst::with_capacity(32);
        let mut moved = 0;
        for _ in 0..1000 {
            assert_eq!(rx[0].receive(&mut packets), 32);
            assert!(packets.iter().all(|packet| packet.len() == 60 && packet.rx_port() == rx[0].port()));
            moved += tx[0].send(&mut packets);
        }
        drop(registration);
        (rx, tx, moved)
    });
    let (rx, tx, moved) = worker.join().unwrap();
    assert_eq!(moved, 32_000);
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (32_000, 32_000));
    stop(port, rx, tx).detach().unwrap();
    drop(eal);
    assert_eq!(pool.in_use(), 0);
}
