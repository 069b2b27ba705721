//! Ports on kernel interfaces, in a network namespace of their own: af_packet over veth.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{eal, frame, in_own_namespace, ip, is_frame, pool, receive_within, start, stop};
use pmd::{Burst, Mbuf, Port, PortConfig, process};
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
