//! TCP super-frames inside VxLAN on taps, whole to who takes them and cut by the kernel for who does not: the pieces are what software
//! makes of them, and what comes whole is what was sent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::net::{Ipv4Addr, Ipv6Addr};

use common::{eal, ip, pool, receive_within, start, stop, unshare};
use pmd::{Burst, Eal, Mbuf, Mempool, Port, PortConfig, RxQueue, StartedPort, TapConfig, TxQueue};
use wire::build::{Pair, Path};
use wire::l4::ChecksumVerdict;
use wire::segment::{Segmentation, SuperFrame};
use wire::{ChecksumState, HeapBuf, L3, MacAddr, OuterHeaders, PacketBuf, RxFacts, View, Vni, tcp};

type Running = (StartedPort, Vec<RxQueue>, Vec<TxQueue>);

const SIZE: u16 = 1398;

/// A tap that takes all that there is to take, or nothing.
fn tap(eal: &Eal, pool: &Mempool, iface: &str, offloads: bool) -> Running {
    let config =
        TapConfig { iface: iface.into(), namespace: None, queues: 1, mac: None, persist: false, offloads };
    let start_with = PortConfig { mtu: Some(1600), tunnel_tso: true, ..PortConfig::default() };
    let running = start(Port::on_tap(eal, iface, &config).unwrap(), &start_with, pool);
    ip(&format!("link set {iface} master br0"));
    running
}

/// From one station to another in a network of this number.
fn path(is_ipv6: bool, network: u8) -> Path {
    let mac = |last| MacAddr([2, 0, 0, 0, network, last]);
    if is_ipv6 {
        let end = |last| (mac(last), Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0, 0, 0, u16::from(last)));
        Path::v6(end(1), end(2))
    } else {
        let end = |last| (mac(last), Ipv4Addr::new(172, network, 0, last));
        Path::v4(end(1), end(2))
    }
}

struct Sent {
    frame: SuperFrame,
    /// As the pipeline gets it of a container.
    inner: HeapBuf,
    outer: OuterHeaders,
    /// The headers of the tunnel.
    front: Vec<u8>,
}

impl Sent {
    fn new(outer: &Path, inner: &Path, data: usize, udp_checksum: bool) -> Self {
        // Congestion was seen, and the end of what was written is here: first and last piece alone say so.
        let flags = tcp::flags::ACK | tcp::flags::CWR | tcp::flags::PSH;
        let header = tcp::Header::new(1000, 80, 7, 7, flags);
        let data: Vec<u8> = (0..data).map(|at| (at % 251) as u8).collect();
        let inner = inner.ip_unfilled(6, &[View::bytes(&header), &data].concat());
        let facts = RxFacts { gso_size: SIZE, l4_checksum: ChecksumState::Partial, ..RxFacts::default() };
        let heap = HeapBuf::new(&inner).with_facts(facts);
        let headers = wire::parse::parse(&inner, inner.len()).unwrap();
        let Segmentation::Several(frame) = Segmentation::of(&headers, &inner, inner.len(), &facts) else {
            panic!("it is no super-frame");
        };
        let whole = outer.vxlan(50_000, Vni::new(7).unwrap(), &inner);
        let (front, is_ipv6) =
            (whole[..whole.len() - inner.len()].to_vec(), matches!(outer.ip, Pair::V6(..)));
        let (l2_len, l3_len) = (14 + 4 * outer.tags.len() as u8, if is_ipv6 { 40 } else { 20 });
        let outer = OuterHeaders { l2_len, l3_len, ipv6: is_ipv6, udp_checksum };
        Self { frame, inner: heap, outer, front }
    }

    /// The packet, as the pipeline sends it to a device that cuts.
    fn packet(&self, pool: &Mempool) -> Mbuf {
        let mut packet = pool.alloc_from(&self.inner.to_vec()).unwrap();
        assert!(self.frame.request_in_tunnel(&mut packet, self.outer));
        packet.prepend(self.front.len()).unwrap()[..self.front.len()].copy_from_slice(&self.front);
        let head = packet.head_mut();
        if !self.outer.ipv6 {
            let at = usize::from(self.outer.l2_len) + 10;
            head[at..at + 2].fill(0);
        }
        let at = self.front.len() - 10;
        head[at..at + 2].fill(0);
        packet
    }

    /// The frames that software makes of what is inside.
    fn pieces(&self) -> Vec<Vec<u8>> {
        self.frame.cut(&self.inner).map(|piece| piece.unwrap().to_vec()).collect()
    }

    /// Checks the headers of the tunnel, and returns what is behind them.
    fn inside<'a>(&self, frame: &'a [u8], has_checksum: bool) -> &'a [u8] {
        let outer = wire::parse::parse(frame, frame.len()).unwrap();
        let l4 = usize::from(outer.l4_offset);
        assert_eq!(outer.l3_end(), frame.len());
        assert!(outer.l3 != L3::Ipv4 || outer.ipv4_checksum_ok(frame));
        let length = u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]);
        assert_eq!(usize::from(length), frame.len() - l4);
        match has_checksum {
            true => assert_eq!(wire::l4::verify(&outer, [frame]), ChecksumVerdict::Good),
            false => assert_eq!(frame[l4 + 6..l4 + 8], [0, 0]),
        }
        // Addresses, ports and VNI.
        assert_eq!((&frame[..12], &frame[l4..l4 + 4]), (&self.front[..12], &self.front[l4..l4 + 4]));
        assert_eq!(frame[l4 + 8..l4 + 16], self.front[l4 + 8..]);
        &frame[self.front.len()..]
    }
}

/// Whether a frame is of VxLAN: interfaces speak on their own, too.
fn is_ours(packet: &Mbuf) -> bool {
    packet.head().get(..12) == Some(&[2, 0, 0, 0, 16, 2, 2, 0, 0, 0, 16, 1])
}

#[test]
fn tap_carries_super_frames_in_tunnels_whole_and_the_kernel_cuts_them_as_software_does() {
    unshare();
    ip("link add br0 mtu 1600 type bridge");
    ip("link set br0 up");
    let eal = eal();
    let pool = pool(&eal, 8191);
    let (port, rx, mut tx) = tap(&eal, &pool, "t0", true);
    // Everybody gets what goes to a station that nobody knows.
    let (taker, mut taker_rx, taker_tx) = tap(&eal, &pool, "t1", true);
    let (other, mut other_rx, other_tx) = tap(&eal, &pool, "t2", false);
    let Some(tso) = port.tunnel_tso() else {
        eprintln!("skipped: this kernel knows nothing of super-frames in tunnels (Linux before 6.17)");
        return;
    };
    assert!(tso.outer_udp_checksum && tso.max_segments > 64 && other.tunnel_tso().is_none());
    let mut burst = Burst::with_capacity(4);
    for (outer_v6, inner_v6, udp_checksum, tag) in [
        (false, false, false, false),
        (false, true, false, false),
        (true, false, false, false),
        (true, true, true, false),
        (true, false, true, false),
        (false, false, true, false),
        (false, true, false, true),
        (true, false, true, true),
    ] {
        let case = (outer_v6, inner_v6, udp_checksum, tag);
        let mut outer = path(outer_v6, 16);
        if tag {
            outer = outer.tagged(5);
        }
        for data in [1399, 5 * 1398, 60_000] {
            let sent = Sent::new(&outer, &path(inner_v6, 20), data, udp_checksum);
            burst.push(sent.packet(&pool)).unwrap();
            assert_eq!((tx[0].send(&mut burst), tx[0].take_refused()), (1, (0, 0)), "{case:?}");
            let pieces = sent.pieces();
            let cut = receive_within(&mut other_rx, pieces.len(), is_ours).remove(0);
            let frames: Vec<Vec<u8>> = cut.iter().map(Mbuf::to_vec).collect();
            let inside: Vec<&[u8]> = frames.iter().map(|frame| sent.inside(frame, udp_checksum)).collect();
            assert!(inside.iter().eq(&pieces), "{case:?}: {} of {}", inside.len(), pieces.len());
            // Whole, it is taken out of the tunnel and cut behind it.
            let mut whole = receive_within(&mut taker_rx, 1, is_ours).remove(0);
            let mut packet = whole.pop().unwrap();
            assert_eq!(packet.rx_facts(), sent.inner.rx_facts(), "{case:?}");
            let bytes = packet.to_vec();
            assert_eq!(bytes.len(), sent.front.len() + sent.inner.len());
            if !udp_checksum {
                sent.inside(&bytes, false);
            }
            assert!(packet.trim_front(sent.front.len()));
            let headers = wire::parse::parse(packet.head(), packet.len()).unwrap();
            let facts = packet.rx_facts();
            let judged = Segmentation::of(&headers, packet.head(), packet.len(), &facts);
            let Segmentation::Several(frame) = judged else { panic!("{case:?}: {judged:?}") };
            assert!(frame.cut(&packet).map(|piece| piece.unwrap().to_vec()).eq(pieces), "{case:?}");
        }
    }
    assert_eq!(port.stats().unwrap().tx_errors + taker.stats().unwrap().rx_errors, 0);
    for (port, rx, tx) in [(port, rx, tx), (taker, taker_rx, taker_tx), (other, other_rx, other_tx)] {
        stop(port, rx, tx);
    }
    drop(burst);
    assert_eq!(pool.in_use(), 0);
}
