//! Ports on kernel interfaces, in a network namespace of their own: af_packet over veth, tap.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{eal, frame, in_own_namespace, ip, is_frame, pool, receive_within, start, stop};
use pmd::{Burst, Mbuf, Port, PortConfig, PortError, RxOffloads, process};
use wire::PacketBuf;

fn veth() {
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").ok();
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").ok();
    ip("link add va type veth peer name vb");
    ip("link set va up");
    ip("link set vb up");
}

#[test]
fn ethtool_settings_of_an_interface() {
    if in_own_namespace("ethtool_settings_of_an_interface") {
        return;
    }
    veth();
    assert_eq!(process::interface_driver("va").unwrap(), "veth");
    assert!(process::tx_checksum_offload("va").unwrap());
    process::set_tx_checksum_offload("va", false).unwrap();
    assert!(!process::tx_checksum_offload("va").unwrap() && process::tx_checksum_offload("vb").unwrap());
    process::set_interface_mtu("va", 4200).unwrap();
    assert_eq!((process::interface_mtu("va").unwrap(), process::interface_mtu("vb").unwrap()), (4200, 1500));
    assert!(process::set_interface_mtu("va", 1).is_err());
    assert_eq!(process::interface_driver("vc").unwrap_err().raw_os_error(), Some(19));
}

#[test]
fn af_packet_carries_frames_over_veth() {
    if in_own_namespace("af_packet_carries_frames_over_veth") {
        return;
    }
    veth();
    let eal = eal();
    let pool = pool(&eal, 4095);
    let attach =
        |name, args: &str| start(Port::attach(&eal, name, args).unwrap(), &PortConfig::default(), &pool);
    let (a, a_rx, mut a_tx) = attach("net_af_packet0", "iface=va");
    let (b, mut b_rx, b_tx) = attach("net_af_packet1", "iface=vb");
    assert_eq!(a.info().unwrap().driver, "net_af_packet");

    let mut burst = common::burst(&pool, 0..100);
    assert_eq!(a_tx[0].send(&mut burst), 100);
    let received = receive_within(&mut b_rx, 100, is_frame).remove(0);
    let bytes: Vec<_> = received.iter().map(Mbuf::to_vec).collect();
    assert_eq!(bytes, (0..100).map(|number| frame(number, 64)).collect::<Vec<_>>());
    assert!(received.iter().all(|packet| packet.rx_port() == b.id()));
    drop(received);
    stop(a, a_rx, a_tx).detach().unwrap();
    stop(b, b_rx, b_tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);

    let error = Port::attach(&eal, "net_af_packet2", "iface=no-such-if").unwrap_err().to_string();
    assert!(error.contains("no-such-if"), "{error}");
}

/// An Ethernet, IPv4 and UDP frame of a flow.
fn udp(flow: u16) -> Vec<u8> {
    let mut bytes = frame(0, 64);
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    let header = [0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    bytes[14..34].copy_from_slice(&header);
    bytes[34..36].copy_from_slice(&flow.to_be_bytes());
    bytes[36..42].copy_from_slice(&[0x12, 0xb7, 0, 30, 0, 0]);
    bytes
}

#[test]
fn af_packet_queues_share_the_flows() {
    if in_own_namespace("af_packet_queues_share_the_flows") {
        return;
    }
    veth();
    let eal = eal();
    let pool = pool(&eal, 4095);
    let (a, a_rx, mut a_tx) =
        start(Port::attach(&eal, "net_af_packet0", "iface=va").unwrap(), &PortConfig::default(), &pool);
    let two = PortConfig { rx_queues: 2, tx_queues: 2, ..PortConfig::default() };
    let (b, mut b_rx, b_tx) =
        start(Port::attach(&eal, "net_af_packet1", "iface=vb,qpairs=2").unwrap(), &two, &pool);

    let mut burst = Burst::with_capacity(256);
    for flow in (0..64u16).cycle().take(256) {
        burst.push(pool.alloc_from(&udp(40_000 + flow)).unwrap()).unwrap();
    }
    assert_eq!(a_tx[0].send(&mut burst), 256);
    let received = receive_within(&mut b_rx, 256, |packet| packet.head().get(23) == Some(&17));
    let flows = |packets: &[Mbuf]| -> std::collections::BTreeSet<Vec<u8>> {
        packets.iter().map(|packet| packet.head()[34..36].to_vec()).collect()
    };
    let (first, second) = (flows(&received[0]), flows(&received[1]));
    assert_eq!(received[0].len() + received[1].len(), 256);
    assert!(first.len() > 8 && second.len() > 8, "{} and {} flows", first.len(), second.len());
    assert!(first.is_disjoint(&second), "a flow stays on its queue");
    drop(received);
    stop(a, a_rx, a_tx);
    stop(b, b_rx, b_tx);
}

#[test]
fn a_tap_is_an_interface_while_it_is_attached() {
    if in_own_namespace("a_tap_is_an_interface_while_it_is_attached") {
        return;
    }
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").ok();
    let eal = eal();
    let pool = pool(&eal, 8191);
    // Whoever sets the interface's MTU past a buffer's size asks for chains, or loses long frames.
    let chains = PortConfig { rx_offloads: RxOffloads::SCATTER, ..PortConfig::default() };
    let (tap, mut tap_rx, mut tap_tx) =
        start(Port::attach(&eal, "net_tap0", "iface=tapx").unwrap(), &chains, &pool);
    assert_eq!(process::interface_driver("tapx").unwrap(), "tun");
    assert!(tap.info().unwrap().if_index.is_some());
    ip("link set tapx up");
    let most = *tap.info().unwrap().mtu_range.end();
    tap.set_mtu(most).unwrap();
    let error = tap.set_mtu(most + 1).unwrap_err();
    assert!(matches!(error, PortError::Range { what: "MTU", .. }), "{error}");
    process::set_interface_mtu("tapx", 4200).unwrap();
    // DPDK 22.11's driver takes an MTU of 1504 at most, later ones more than the other end's buffers hold.
    let (rx_limit, tx_limit) = (4000, usize::from(most).min(3900));
    let (other, mut other_rx, mut other_tx) = start(
        Port::attach(&eal, "net_af_packet0", "iface=tapx,framesz=8192,blocksz=8192").unwrap(),
        &PortConfig::default(),
        &large_pool(&eal),
    );
    // Out: up to the driver's MTU. A longer frame stays with the sender.
    let mut expected: Vec<_> =
        (0..9).map(|number| frame(number, 64)).chain([frame(9, tx_limit + 14)]).collect();
    let mut burst = Burst::with_capacity(11);
    for bytes in &expected {
        burst.push(pool.alloc_from(bytes).unwrap()).unwrap();
    }
    burst.push(pool.alloc_from(&frame(10, 4000)).unwrap()).unwrap();
    if usize::from(most) < 4000 {
        assert_eq!((tap_tx[0].send(&mut burst), burst.len()), (10, 1));
        assert_eq!(burst.pop().unwrap().to_vec(), frame(10, 4000));
    } else {
        assert_eq!((tap_tx[0].send(&mut burst), burst.len()), (11, 0));
        expected.push(frame(10, 4000));
    }
    let up = receive_within(&mut other_rx, expected.len(), is_frame).remove(0);
    assert_eq!(up.iter().map(Mbuf::to_vec).collect::<Vec<_>>(), expected);
    drop(up);

    // In: whatever the interface's MTU lets through, in several segments.
    let expected: Vec<_> = (0..9).map(|number| frame(number, 64)).chain([frame(9, rx_limit)]).collect();
    for bytes in &expected {
        burst.push(pool.alloc_from(bytes).unwrap()).unwrap();
    }
    assert_eq!(other_tx[0].send(&mut burst), 10);
    let down = receive_within(&mut tap_rx, 10, is_frame).remove(0);
    assert_eq!(down.iter().map(Mbuf::to_vec).collect::<Vec<_>>(), expected);
    assert!(down[9].segment_count() > 1 && down[9].head().len() >= 256);
    drop(down);
    stop(other, other_rx, other_tx).detach().unwrap();
    stop(tap, tap_rx, tap_tx).detach().unwrap();
    assert!(process::interface_mtu("tapx").is_err(), "the interface goes with the port");
    assert_eq!(pool.in_use(), 0);
}

/// A pool whose buffers hold a whole af_packet frame, as that driver wants.
fn large_pool(eal: &pmd::Eal) -> pmd::Mempool {
    let config = pmd::MempoolConfig {
        name: "large".into(),
        mbufs: 1023,
        cache: 0,
        data_room: pmd::mempool::HEADROOM + 8192,
        numa: None,
    };
    pmd::Mempool::new(eal, &config).unwrap()
}
