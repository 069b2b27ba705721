//! How packets spread over receive queues, on a device that hashes what it was configured for (`testdev`, net_eswitch) and
//! gets its frames through the kernel.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::net::Ipv4Addr;

use common::{eswitch_eal, in_own_namespace, ip, pool, receive_within, start, stop};
use pmd::{Burst, Port, PortConfig, RssConfig, RssTypes};
use wire::build::Path;
use wire::{MacAddr, PacketBuf};

const QUEUES: u16 = 4;
const PORTS: u16 = 64;
const VXLAN: u16 = 4789;

/// A tunnelled packet as another VTEP sends it: of one pair of addresses, the source port its entropy.
fn tunnelled(entropy: u16) -> Vec<u8> {
    let end = |last: u8| (MacAddr([2, 0, 0, 0, 0, last]), Ipv4Addr::new(172, 16, 0, last));
    Path::v4(end(1), end(2)).udp(49_152 + entropy, VXLAN, &[8; 40])
}

/// Sends packets of so many source ports; how many source ports came to each queue, and what the port hashes on.
fn spread(rss: &str) -> (Vec<usize>, RssTypes, RssTypes) {
    let eal = eswitch_eal();
    let pool = pool(&eal, 4095);
    let port = Port::attach(&eal, "net_eswitch0", &format!("iface=here{rss}")).unwrap();
    let config = PortConfig { rx_queues: QUEUES, rss: Some(RssConfig::usual()), ..PortConfig::default() };
    let (port, mut rx, tx) = start(port, &config, &pool);
    let configured = port.configured_rss().unwrap();
    assert!(configured.spreads);
    assert_eq!(configured.types, port.rss().applied);
    let sender = Port::attach(&eal, "net_eswitch1", "switch=1,iface=there").unwrap();
    let (sender, sender_rx, mut sender_tx) = start(sender, &PortConfig::default(), &pool);
    let mut burst = Burst::with_capacity(usize::from(PORTS));
    for entropy in 0..PORTS {
        burst.push(pool.alloc_from(&tunnelled(entropy)).unwrap()).unwrap();
    }
    assert_eq!(sender_tx[0].send(&mut burst), usize::from(PORTS));
    let ours = |packet: &pmd::Mbuf| packet.head().get(36..38) == Some(&VXLAN.to_be_bytes());
    let received = receive_within(&mut rx, usize::from(PORTS), ours);
    let counts = received.iter().map(Vec::len).collect();
    let report = port.rss();
    drop(received);
    stop(sender, sender_rx, sender_tx).detach().unwrap();
    stop(port, rx, tx).detach().unwrap();
    (counts, report.applied, report.refused)
}

fn cable() {
    ip("link add here type veth peer name there");
    ip("link set here up");
    ip("link set there up");
}

#[test]
fn tunnels_spread_over_queues_by_their_source_ports() {
    if in_own_namespace("tunnels_spread_over_queues_by_their_source_ports") {
        return;
    }
    cable();
    let (counts, applied, refused) = spread("");
    assert_eq!(counts.iter().sum::<usize>(), usize::from(PORTS));
    // A quarter of 64 each, on average; a queue with less than 4 has a chance of one in a hundred thousand.
    assert!(counts.iter().all(|count| *count >= 4), "{counts:?}");
    assert_eq!(applied.and(RssTypes::UDP).names(), ["ipv4-udp", "ipv6-udp", "ipv6-udp-ex"]);
    assert!(refused.is_empty(), "{:?}", refused.names());
}

#[test]
fn a_port_that_hashes_addresses_only_is_configured_for_that_and_says_so() {
    if in_own_namespace("a_port_that_hashes_addresses_only_is_configured_for_that_and_says_so") {
        return;
    }
    cable();
    let only = RssTypes::IP;
    let (counts, applied, refused) = spread(&format!(",rss={:#x}", only.bits()));
    assert_eq!((applied, refused.and(RssTypes::UDP)), (only, RssTypes::UDP));
    // Of one pair of addresses all packets come to one queue.
    assert_eq!(counts.iter().filter(|count| **count > 0).count(), 1, "{counts:?}");
}
