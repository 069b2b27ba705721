//! TCP super-frames that a device cuts inside VxLAN (`testdev`, net_eswitch, which does it in C and by DPDK's own helpers), and what its
//! driver refuses.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{eswitch_eal, in_own_namespace, ip, pool, receive_within, start, stop};
use pmd::{Burst, Eal, Mbuf, Mempool, Port, PortConfig, RxQueue, StartedPort, TxQueue};
use wire::build::Path;
use wire::packet::L4Checksum;
use wire::{MacAddr, OuterHeaders, PacketBuf, TunnelTso, TxRequest, Vni, tcp};

const SIZE: u16 = 1000;

fn path(network: u8) -> Path {
    let end = |last: u8| (MacAddr([2, 0, 0, 0, network, last]), [172, network, 0, last].into());
    Path::v4(end(1), end(2))
}

/// A super-frame in its tunnel, with the fields that are the device's as drivers want them.
fn super_frame(pool: &Mempool, data: usize, tso_size: u16) -> Mbuf {
    let mut header = tcp::Header::new(1000, 80, 7, 7, tcp::flags::ACK);
    let data: Vec<u8> = (0..data).map(|at| (at % 251) as u8).collect();
    // The addresses, and the protocol: no length (the sum of the words of RFC 9293 section 3.1).
    let words = [172 << 8 | 20, 1, 172 << 8 | 20, 2, 6];
    header.checksum.set(words.into_iter().sum::<u32>() as u16);
    let mut inner = path(20).ip_unfilled(6, &[wire::View::bytes(&header), &data].concat());
    inner[24..26].fill(0);
    let mut frame = path(16).vxlan(50_000, Vni::new(7).unwrap(), &inner);
    frame[24..26].fill(0);
    frame[40..42].fill(0);
    let mut packet = pool.alloc_from(&frame).unwrap();
    packet.request_tx(TxRequest {
        l2_len: 30,
        l3_len: 20,
        l4_len: 20,
        ipv4_checksum: true,
        l4_checksum: Some(L4Checksum::Tcp),
        tso_size,
        ipv6: false,
        outer: Some(OuterHeaders { l2_len: 14, l3_len: 20, ipv6: false, udp_checksum: false }),
    });
    assert!(packet.is_cut_by_device());
    packet
}

fn uplink(
    eal: &Eal,
    pool: &Mempool,
    arguments: &str,
    tunnel_tso: bool,
) -> (StartedPort, Vec<RxQueue>, Vec<TxQueue>) {
    let port = Port::attach(eal, "net_eswitch0", arguments).unwrap();
    start(port, &PortConfig { tunnel_tso, ..PortConfig::default() }, pool)
}

fn count(port: &StartedPort, name: &str) -> u64 {
    port.xstats().unwrap().into_iter().find(|(known, _)| known == name).unwrap().1
}

#[test]
fn a_port_cuts_in_tunnels_when_it_can_and_was_asked_to() {
    let eal = eswitch_eal();
    let pool = pool(&eal, 1023);
    for (arguments, asked, found) in [
        ("tso=1", true, Some(TunnelTso { outer_udp_checksum: true, max_segments: 40 })),
        ("tso=1", false, None),
        ("tso=0", true, None),
    ] {
        let (port, rx, tx) = uplink(&eal, &pool, arguments, asked);
        assert_eq!(port.tunnel_tso(), found, "{arguments} {asked}");
        stop(port, rx, tx);
    }
    let (port, rx, tx) = start(
        Port::attach(&eal, "net_null0", "").unwrap(),
        &PortConfig { tunnel_tso: true, ..PortConfig::default() },
        &pool,
    );
    assert_eq!(port.tunnel_tso(), None);
    stop(port, rx, tx);
}

#[test]
fn a_super_frame_leaves_in_pieces_and_what_the_driver_refuses_holds_up_nobody() {
    if in_own_namespace("a_super_frame_leaves_in_pieces_and_what_the_driver_refuses_holds_up_nobody") {
        return;
    }
    ip("link add here type veth peer name there");
    ip("link set here up");
    ip("link set there up");
    let eal = eswitch_eal();
    let pool = pool(&eal, 1023);
    let (port, rx, mut tx) = uplink(&eal, &pool, "iface=here,tso=1", true);
    let (peer, mut peer_rx, peer_tx) =
        start(Port::attach(&eal, "net_af_packet0", "iface=there").unwrap(), &PortConfig::default(), &pool);
    let plain = path(20).udp(1, 2, b"between");
    let mut burst = Burst::with_capacity(16);
    // The driver takes no segments as small as these, of which the sender chose the size.
    for packet in [
        super_frame(&pool, 5000, 100),
        super_frame(&pool, 3500, SIZE),
        pool.alloc_from(&plain).unwrap(),
        super_frame(&pool, 5000, 100),
        super_frame(&pool, 5000, 100),
        super_frame(&pool, 2000, SIZE),
        super_frame(&pool, 5000, 255),
    ] {
        burst.push(packet).unwrap();
    }
    let refused = 4 * (50 + 54 + 5000);
    assert_eq!(tx[0].send(&mut burst), 7, "each left, one way or the other");
    assert!(burst.is_empty());
    assert_eq!((tx[0].take_refused(), tx[0].take_refused()), ((4, refused), (0, 0)));
    // What the kernel says on its own is IPv6.
    let received = receive_within(&mut peer_rx, 7, |packet| packet.head().get(12..14) == Some(&[8, 0]));
    let frames: Vec<Vec<u8>> = received[0].iter().map(|packet| packet.to_vec()).collect();
    let lengths: Vec<usize> = frames.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1104, 1104, 1104, 604, plain.len(), 1104, 1104]);
    for (n, frame) in frames.iter().enumerate().filter(|(_, frame)| frame.len() != plain.len()) {
        let outer = wire::parse::parse(frame, frame.len()).unwrap();
        let inner = &frame[50..];
        let headers = wire::parse::parse(inner, inner.len()).unwrap();
        assert!(outer.ipv4_checksum_ok(frame) && headers.ipv4_checksum_ok(inner), "{n}");
        assert_eq!(usize::from(outer.l3_len), frame.len() - 14);
        let verdict = wire::l4::verify(&headers, [inner]);
        assert_eq!(verdict, wire::l4::ChecksumVerdict::Good, "{n}");
        let sequence = if n < 4 { 7 + 1000 * n } else { 7 + 1000 * (n - 5) };
        assert_eq!(headers.tcp(inner).unwrap().seq.get(), sequence as u32);
    }
    assert_eq!((count(&port, "tx_super_frames"), count(&port, "flow_misused")), (2, 0));
    // A burst of nothing but such ones, by the other way of sending.
    let mut slots = [100, 101, 102].map(|size| Some(super_frame(&pool, 5000, size)));
    assert_eq!(tx[0].send_from(&mut slots), 3);
    assert!(slots.iter().all(Option::is_none));
    assert_eq!(tx[0].take_refused().0, 3);
    drop((burst, received));
    stop(peer, peer_rx, peer_tx);
    stop(port, rx, tx);
    assert_eq!(pool.in_use(), 0);
}
