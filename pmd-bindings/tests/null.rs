//! The null port: a source and a sink. Also polled from a registered, pinned thread.

mod common;

use common::{eal, pool, start, stop};
use pmd::{Burst, Port, PortConfig, RssConfig, RssLevel, RssTypes, lcore};
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

#[test]
fn repair_rss_is_configured_with_what_the_port_has_and_only_for_several_queues() {
    let eal = eal();
    let pool = pool(&eal, 4095);
    for queues in [1, 2, 4] {
        let port = Port::attach(&eal, &format!("net_null{queues}"), "").unwrap();
        let offered = port.info().unwrap().rss.types;
        assert!(!offered.is_empty(), "a driver that has RSS");
        let rss = (queues > 1).then(|| RssConfig::usual(RssLevel::Innermost));
        let config = PortConfig { rx_queues: queues, tx_queues: queues, rss, ..PortConfig::default() };
        let (port, rx, tx) = start(port, &config, &pool);
        let configured = port.configured_rss().unwrap();
        assert_eq!(configured.spreads, queues > 1, "{queues} queues");
        let wanted = (RssTypes::IP | RssTypes::UDP | RssTypes::TCP).and(offered);
        let wanted = if queues > 1 { wanted } else { RssTypes::NONE };
        assert_eq!(configured.given.types, wanted, "{queues} queues: {:?}", configured.given.types.names());
        // This driver can be told no level, and is not told one.
        assert_eq!((configured.given.level, port.rss().level), (RssLevel::Driver, RssLevel::Driver));
        stop(port, rx, tx).detach().unwrap();
    }
}
