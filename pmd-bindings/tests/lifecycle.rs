//! Ports come, start, stop and go, again and again; what is wrong is said with names.

mod common;

use common::{burst, eal, pool, start, stop};
use pmd::{Burst, Errno, Port, PortConfig, PortError, RssConfig, RssTypes, RxOffloads, TxOffloads};

#[test]
fn ports_start_and_stop_and_leave_without_a_trace() {
    let eal = eal();
    let pool = pool(&eal, 511);
    for round in 0..20 {
        let mut port = Port::attach(&eal, "net_ring0", "").unwrap();
        for _ in 0..5 {
            let (started, mut rx, mut tx) = start(port, &PortConfig::default(), &pool);
            assert_eq!(tx[0].send(&mut burst(&pool, 0..16)), 16);
            let mut received = Burst::with_capacity(32);
            assert_eq!(rx[0].receive(&mut received), 16);
            drop(received);
            port = stop(started, rx, tx);
        }
        assert_eq!(pmd::port::in_use(), 1, "round {round}");
        if round % 2 == 0 {
            port.detach().unwrap();
        } else {
            drop(port);
        }
        assert_eq!((pmd::port::in_use(), pool.in_use()), (0, 0));
    }
}

#[test]
fn queues_may_differ_from_start_to_start() {
    let eal = eal();
    let pool = pool(&eal, 511);
    let mut port = Port::attach(&eal, "net_null0", "").unwrap();
    let most = port.info().unwrap().max_rx_queues.min(port.info().unwrap().max_tx_queues).min(4);
    assert!(most > 1);
    for queues in (1..=most).chain([1]) {
        let config = PortConfig { rx_queues: queues, tx_queues: queues, ..PortConfig::default() };
        let (started, rx, tx) = start(port, &config, &pool);
        assert_eq!((rx.len(), tx.len()), (queues.into(), queues.into()));
        assert!(rx.iter().zip(0..).all(|(queue, id)| queue.queue() == id));
        port = stop(started, rx, tx);
    }
}

#[test]
fn a_port_stops_only_with_all_its_own_queues() {
    let eal = eal();
    let pool = pool(&eal, 511);
    let config = PortConfig { rx_queues: 2, tx_queues: 2, ..PortConfig::default() };
    let (first, mut rx, mut tx) = start(Port::attach(&eal, "net_null0", "").unwrap(), &config, &pool);
    let (other, other_rx, other_tx) =
        start(Port::attach(&eal, "net_null1", "").unwrap(), &PortConfig::default(), &pool);

    let kept_rx = rx.pop().unwrap();
    let kept_tx = tx.remove(0);
    let (first, mut rx, mut tx, error) = first.stop(rx, tx).unwrap_err();
    assert!(matches!(&error, PortError::QueuesMissing { rx, tx, .. } if rx[..] == [1] && tx[..] == [0]));
    assert!(error.to_string().contains("net_null0") && error.to_string().contains("[1]"), "{error}");

    rx.push(kept_rx);
    tx.push(kept_tx);
    rx.extend(other_rx);
    let (first, mut rx, tx, error) = first.stop(rx, tx).unwrap_err();
    assert!(matches!(error, PortError::ForeignQueues { count: 1, .. }));

    // It still runs, and stops with the right ones in any order.
    let other_rx = rx.split_off(2);
    let mut packets = Burst::with_capacity(8);
    assert_eq!(rx[1].receive(&mut packets), 8);
    drop(packets);
    stop(first, rx, tx);
    stop(other, other_rx, other_tx);
}

#[test]
fn bad_settings_leave_the_port_with_its_owner() {
    let eal = eal();
    let pool = pool(&eal, 511);
    let mut port = Port::attach(&eal, "net_ring0", "").unwrap();
    let try_with = |port: Port, config: PortConfig| port.start(&config, &pool).map(|_| ()).unwrap_err();
    let base = PortConfig::default();

    let (back, error) = try_with(port, PortConfig { rx_queues: 500, ..base.clone() });
    assert!(matches!(error, PortError::Range { value: 500, min: 0, .. }), "{error}");
    let (back, error) = try_with(back, PortConfig { tx_queues: 0, ..base.clone() });
    assert!(matches!(error, PortError::Range { value: 0, .. }), "{error}");
    let (back, error) = try_with(back, PortConfig { mtu: Some(20), ..base.clone() });
    assert!(matches!(error, PortError::Range { what: "MTU", .. }), "{error}");
    let (back, error) = try_with(back, PortConfig { rx_offloads: RxOffloads::VLAN_STRIP, ..base.clone() });
    assert!(
        matches!(error, PortError::Offloads { direction: "rx", .. })
            && error.to_string().contains("VLAN_STRIP")
    );
    let (back, error) = try_with(back, PortConfig { tx_offloads: TxOffloads::TCP_TSO, ..base.clone() });
    assert!(
        matches!(error, PortError::Offloads { direction: "tx", .. }) && error.to_string().contains("TCP_TSO")
    );

    let strict = RssConfig { types: RssTypes::UDP, ..RssConfig::default() };
    let (back, error) = try_with(back, PortConfig { rss: Some(strict.clone()), ..base.clone() });
    assert!(matches!(error, PortError::Rss { .. }) && error.to_string().contains("ipv4-udp"), "{error}");
    port = back;

    let adjusting = RssConfig { adjust: true, ..strict };
    let (started, rx, tx) = start(port, &PortConfig { rss: Some(adjusting), ..base }, &pool);
    assert_eq!((started.rss().applied, started.rss().refused), (RssTypes::NONE, RssTypes::UDP));
    stop(started, rx, tx).detach().unwrap();
}

#[test]
fn rss_is_applied_as_far_as_the_port_has_it() {
    let eal = eal();
    let pool = pool(&eal, 511);
    let port = Port::attach(&eal, "net_null0", "").unwrap();
    let info = port.info().unwrap();
    assert!(!info.rss.types.is_empty(), "this driver reports hash types");
    let rss =
        RssConfig { types: info.rss.types, key: Some(vec![1; 7]), adjust: false, ..RssConfig::default() };
    let config = PortConfig { rx_queues: 2, tx_queues: 2, rss: Some(rss), ..PortConfig::default() };
    let (port, error) = port.start(&config, &pool).map(|_| ()).unwrap_err();
    assert!(matches!(error, PortError::RssKey { given: 7, wanted: 40, .. }), "{error}");

    let key = Some(vec![0x6d; 40]);
    let rss = RssConfig { types: info.rss.types, key, adjust: false, ..RssConfig::default() };
    let (port, rx, tx) = start(port, &PortConfig { rss: Some(rss), ..config }, &pool);
    assert_eq!((port.rss().applied, port.rss().refused), (info.rss.types, RssTypes::NONE));
    stop(port, rx, tx);
}

#[test]
fn names_and_arguments_are_refused_with_the_drivers_words() {
    let eal = eal();
    let error = Port::attach(&eal, "net_pcap0", "no-such-key=1").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PortError::Attach { .. }), "{text}");
    assert!(
        text.contains("net_pcap0") && text.contains("no-such-key=1") && text.contains("DPDK says"),
        "{text}"
    );
    assert_eq!(pmd::port::in_use(), 0);

    let error = Port::attach(&eal, "net_no_such_driver0", "").unwrap_err();
    assert!(matches!(error, PortError::Attach { .. }), "{error}");
    let error = Port::attach(&eal, &"x".repeat(10_000), "").unwrap_err();
    assert!(matches!(error, PortError::Name { .. }) && error.to_string().len() < 300);

    let port = Port::attach(&eal, "net_ring0", "").unwrap();
    assert!(matches!(Port::attach(&eal, "net_ring0", ""), Err(PortError::Exists(_))));
    assert!(matches!(Port::open(&eal, "net_ring0"), Err(PortError::Busy(_))));
    assert!(matches!(Port::open(&eal, "net_ring9"), Err(PortError::NotFound { .. })));
    assert!(matches!(
        Port::open(&eal, "0000:ff:1f.7"),
        Err(PortError::NotFound { .. } | PortError::Attach { .. })
    ));
    port.detach().unwrap();
}

#[test]
fn what_a_driver_lacks_is_told_from_what_failed() {
    let eal = eal();
    let pool = pool(&eal, 511);
    let (port, rx, mut tx) =
        start(Port::attach(&eal, "net_null0", "").unwrap(), &PortConfig::default(), &pool);
    assert!(matches!(port.set_link_down(), Err(PortError::Unsupported { .. })));
    assert!(matches!(tx[0].cleanup(), Err(PortError::Unsupported { .. })));
    assert_eq!(port.fault(), None);
    assert!(Errno::ENOTSUP.is_unsupported());
    stop(port, rx, tx);

    let (port, rx, tx) = start(Port::attach(&eal, "net_ring0", "").unwrap(), &PortConfig::default(), &pool);
    port.set_link_down().unwrap();
    assert!(!port.link().unwrap().up);
    port.set_link_up().unwrap();
    assert!(port.link().unwrap().up);
    port.set_promiscuous(true).unwrap();
    assert!(port.mac().is_station() || port.mac() == wire::MacAddr::ZERO);
    stop(port, rx, tx);
}

#[test]
fn the_port_limit_is_named() {
    let eal = eal();
    let limit = pmd::port::limit();
    let ports: Vec<Port> =
        (0..limit).map(|number| Port::attach(&eal, &format!("net_null{number}"), "").unwrap()).collect();
    assert_eq!(pmd::port::in_use(), limit);
    let error = Port::attach(&eal, "net_null_extra", "").unwrap_err();
    assert!(matches!(&error, PortError::LimitReached { limit: named, .. } if *named == limit), "{error}");
    assert!(error.to_string().contains(&limit.to_string()) && error.to_string().contains("net_null_extra"));
    drop(ports);
    Port::attach(&eal, "net_null_extra", "").unwrap().detach().unwrap();
}
