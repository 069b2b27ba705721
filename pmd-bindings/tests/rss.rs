//! How packets spread over receive queues, on a device that hashes what it was configured for (`testdev`, net_eswitch) and
//! gets its frames through the kernel.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{eswitch_eal, in_own_namespace, ip, pool, receive_within, start, stop};
use pmd::{Burst, Port, PortConfig, RssConfig, RssLevel, RssReport, RssTypes};
use wire::build::{Path, udp_datagram};
use wire::protocol;
use wire::roce::{Bth, opcode};
use wire::{MacAddr, PacketBuf, Psn, Qpn, Vni};

const QUEUES: u16 = 4;
const FLOWS: u16 = 64;
const VXLAN: u16 = 4789;
/// A source port that tells tunnels apart, or one for all of them.
const FIRST_PORT: u16 = 49_152;

fn path(network: u8) -> Path {
    let end = |last: u8| (MacAddr([2, 0, 0, 0, network, last]), [172, network, 0, last].into());
    Path::v4(end(1), end(2))
}

/// A frame in a tunnel between two VTEPs.
fn tunnelled(source_port: u16, inner: &[u8]) -> Vec<u8> {
    path(16).vxlan(source_port, Vni::new(7).unwrap(), inner)
}

/// A packet of queue pair `n` of one pair of addresses: its source port tells it from others.
fn queue_pair(n: u16, psn: u32) -> Vec<u8> {
    let bth = Bth::new(opcode::RC_WRITE_ONLY, Qpn::truncated(17), Psn::truncated(psn));
    path(20).roce(FIRST_PORT + n, bth, &[0; 32])
}

/// Numbers of the frames that came to each queue, and what became of the RSS configuration.
struct Spread {
    queues: Vec<Vec<usize>>,
    report: RssReport,
}

impl Spread {
    /// The queue of a frame.
    fn of(&self, frame: usize) -> usize {
        self.queues.iter().position(|frames| frames.contains(&frame)).unwrap()
    }

    /// Queues that got something.
    fn used(&self) -> usize {
        self.queues.iter().filter(|frames| !frames.is_empty()).count()
    }

    /// Queues that got their share: a quarter of 64 each, on average; one with less than 4 has a chance of one in a hundred
    /// thousand.
    fn shared(&self) -> bool {
        self.queues.iter().all(|frames| frames.len() >= 4)
    }
}

/// Sends frames, all different, to a port that says that it can hash `rss`, and that is asked for a level.
fn spread(rss: Option<u64>, level: RssLevel, frames: &[Vec<u8>]) -> Spread {
    ip("link add here type veth peer name there");
    ip("link set here up");
    ip("link set there up");
    let eal = eswitch_eal();
    let pool = pool(&eal, 4095);
    let rss = rss.map(|bits| format!(",rss={bits:#x}")).unwrap_or_default();
    let port = Port::attach(&eal, "net_eswitch0", &format!("iface=here{rss}")).unwrap();
    let config =
        PortConfig { rx_queues: QUEUES, rss: Some(RssConfig::usual(level)), ..PortConfig::default() };
    let (port, mut rx, tx) = start(port, &config, &pool);
    let (configured, report) = (port.configured_rss().unwrap(), port.rss());
    assert!(configured.spreads);
    // The driver tells what it was given, and that is what the report says.
    assert_eq!(configured.told, Some(configured.given));
    assert_eq!((configured.given.types, configured.given.level), (report.applied, report.level));
    let sender = Port::attach(&eal, "net_eswitch1", "switch=1,iface=there").unwrap();
    let (sender, sender_rx, mut sender_tx) = start(sender, &PortConfig::default(), &pool);
    for frames in frames.chunks(64) {
        let mut burst = Burst::with_capacity(64);
        for frame in frames {
            burst.push(pool.alloc_from(frame).unwrap()).unwrap();
        }
        assert_eq!(sender_tx[0].send(&mut burst), frames.len());
    }
    let number = |packet: &pmd::Mbuf| frames.iter().position(|frame| frame == packet.head());
    let received = receive_within(&mut rx, frames.len(), |packet| number(packet).is_some());
    let queues: Vec<Vec<usize>> =
        received.iter().map(|packets| packets.iter().filter_map(number).collect()).collect();
    drop(received);
    assert_eq!(queues.iter().map(Vec::len).sum::<usize>(), frames.len(), "{queues:?}");
    stop(sender, sender_rx, sender_tx).detach().unwrap();
    stop(port, rx, tx).detach().unwrap();
    Spread { queues, report }
}

/// What the device of these tests hashes when it is not told otherwise.
fn fields() -> RssTypes {
    RssTypes::IP | RssTypes::UDP | RssTypes::TCP
}

/// Its bits with both levels.
fn with_levels() -> u64 {
    // RTE_ETH_RSS_LEVEL_OUTERMOST and RTE_ETH_RSS_LEVEL_INNERMOST
    fields().bits() | 3 << 50
}

/// Tunnels of two VTEPs, each for a queue pair of its own, the source port its entropy or the same for all.
fn queue_pairs(entropy: bool) -> Vec<Vec<u8>> {
    let port = |n: u16| if entropy { FIRST_PORT + 7 * n } else { VXLAN };
    (0..FLOWS).map(|n| tunnelled(port(n), &queue_pair(n, 1))).collect()
}

#[test]
fn tunnels_spread_over_queues_by_their_source_ports() {
    if in_own_namespace("tunnels_spread_over_queues_by_their_source_ports") {
        return;
    }
    // As mlx5: it has no level to be told, and hashes the outer headers.
    let spread = spread(None, RssLevel::Innermost, &queue_pairs(true));
    assert!(spread.shared(), "{:?}", spread.queues);
    assert_eq!(spread.report.applied.and(RssTypes::UDP).names(), ["ipv4-udp", "ipv6-udp", "ipv6-udp-ex"]);
    assert!(spread.report.refused.is_empty(), "{:?}", spread.report.refused.names());
    assert_eq!(spread.report.level, RssLevel::Driver);
}

#[test]
fn tunnels_of_one_source_port_are_one_queue_where_the_outer_headers_are_hashed() {
    if in_own_namespace("tunnels_of_one_source_port_are_one_queue_where_the_outer_headers_are_hashed") {
        return;
    }
    let spread = spread(Some(with_levels()), RssLevel::Outermost, &queue_pairs(false));
    assert_eq!((spread.used(), spread.report.level), (1, RssLevel::Outermost), "{:?}", spread.queues);
}

#[test]
fn tunnels_of_one_source_port_spread_where_the_inner_headers_are_hashed() {
    if in_own_namespace("tunnels_of_one_source_port_spread_where_the_inner_headers_are_hashed") {
        return;
    }
    let spread = spread(Some(with_levels()), RssLevel::Innermost, &queue_pairs(false));
    assert_eq!(spread.report.level, RssLevel::Innermost);
    assert!(spread.shared(), "{:?}", spread.queues);
}

#[test]
fn a_queue_pair_keeps_its_queue_whatever_its_tunnels_source_port() {
    if in_own_namespace("a_queue_pair_keeps_its_queue_whatever_its_tunnels_source_port") {
        return;
    }
    const PAIRS: u16 = 8;
    const EACH: u16 = 8;
    // The source port of the tunnel changes with every packet, as once when a flow goes into the sender's NIC.
    let of_pair = |pair: u16| {
        (0..EACH).map(move |n| tunnelled(FIRST_PORT + EACH * pair + n, &queue_pair(pair, n.into())))
    };
    let frames: Vec<Vec<u8>> = (0..PAIRS).flat_map(of_pair).collect();
    let spread = spread(Some(with_levels()), RssLevel::Innermost, &frames);
    for pair in 0..usize::from(PAIRS) {
        let first = pair * usize::from(EACH);
        let queue = spread.of(first);
        let packets: Vec<usize> = (first..first + usize::from(EACH)).collect();
        let there: Vec<usize> =
            spread.queues[queue].iter().copied().filter(|frame| packets.contains(frame)).collect();
        assert_eq!(there, packets, "all of pair {pair} in queue {queue}, in order");
    }
    assert!(spread.used() > 1, "{:?}", spread.queues);
}

#[test]
fn fragments_of_a_datagram_in_tunnels_come_to_one_queue() {
    if in_own_namespace("fragments_of_a_datagram_in_tunnels_come_to_one_queue") {
        return;
    }
    let datagram = udp_datagram(1000, 2000, &[5; 1000]);
    let fragments = path(20).fragments(protocol::UDP, &datagram, 9, 400);
    assert!(fragments.len() > 2);
    // A VTEP that takes its entropy from ports gives the first fragment, which has them, another source port.
    let tunnels = fragments.iter().enumerate().map(|(n, inner)| tunnelled(FIRST_PORT + n as u16, inner));
    let spread = spread(Some(with_levels()), RssLevel::Innermost, &tunnels.collect::<Vec<_>>());
    assert_eq!(spread.used(), 1, "{:?}", spread.queues);
}

#[test]
fn a_port_that_hashes_addresses_only_is_configured_for_that_and_says_so() {
    if in_own_namespace("a_port_that_hashes_addresses_only_is_configured_for_that_and_says_so") {
        return;
    }
    let only = RssTypes::IP;
    let spread = spread(Some(only.bits()), RssLevel::Innermost, &queue_pairs(true));
    let report = spread.report;
    assert_eq!((report.applied, report.refused.and(RssTypes::UDP)), (only, RssTypes::UDP));
    // Of one pair of addresses all packets come to one queue.
    assert_eq!((spread.used(), report.level), (1, RssLevel::Driver), "{:?}", spread.queues);
}

#[test]
fn a_level_that_must_be_there_is_refused_by_name_where_it_is_not() {
    let eal = eswitch_eal();
    let pool = pool(&eal, 1023);
    let port = Port::attach(&eal, "net_eswitch0", "").unwrap();
    let rss = RssConfig { adjust: false, ..RssConfig::usual(RssLevel::Innermost) };
    let config = PortConfig { rx_queues: QUEUES, rss: Some(rss), ..PortConfig::default() };
    let (_port, error) = port.start(&config, &pool).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("level innermost"), "{error}");
}
