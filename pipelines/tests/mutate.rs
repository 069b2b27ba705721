//! A million damaged packets through the whole pipeline: no panic, no packet unaccounted for.
//!
//! `MUTATE_SEED` repeats a run, `MUTATE_PACKETS` changes its length.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests, too

use pipelines::Now;
use testkit::*;
use wire::build::control::{arp_request, neighbour_solicitation};
use wire::{HeapBuf, PacketBuf, Qpn, Vni, roce};

/// The generator xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n.max(1) as u128) >> 64) as usize
    }
}

/// Sound frames between stations, as tenants send them.
fn tenant_frames(from: Station, to: Station) -> Vec<Vec<u8>> {
    let bth = roce::Bth::new(0x0a, Qpn::truncated(5), wire::Psn::truncated(1));
    let mut frames = Vec::new();
    for path in
        [v4(from, to), v6(from, to), routed(v4(from, to)), routed(v6(from, to)), v4(from, to).tagged(5)]
    {
        frames.push(path.tcp(1000, 80, 0x18, b"some bytes of payload"));
        frames.push(path.udp(1000, 53, &[1; 300]));
        frames.push(path.clone().with_ttl(1).udp(1, 2, b"x"));
        frames.push(path.echo_request(1, 2, &[0; 56]));
        frames.push(path.clone().with_tos(2).tcp(1000, 80, 0x10, b"ECT"));
        frames.push(partial(path.tcp(1001, 80, 0x10, b"left to the switch")));
        frames.push(partial(path.tcp(1001, 80, 0x98, &[2; 3800])));
        frames.push(path.roce(5555, bth, &[1; 64]));
        frames.push(path.cnp(5555, Qpn::truncated(5)));
        frames.push(path.udp(1, 2, &[0; 1600]));
        let mut loose = path.clone();
        loose.dont_fragment = false;
        frames.extend(loose.fragments(47, &[3; 900], 9, 500));
        loose.options = vec![7, 7, 4, 0, 0, 0, 0];
        loose.extensions =
            vec![(0, vec![5, 2, 0, 0, 1, 0]), (60, vec![1, 4, 0, 0, 0, 0]), (43, vec![0, 1, 0, 0, 0, 0])];
        frames.push(loose.udp(3, 4, b"options"));
        frames.push(path.ip(1, &[[3, 4, 0, 0, 0, 0, 5, 0].as_slice(), &frames[0][14..]].concat()));
        frames.push(path.ethernet(0x88b5, &[1; 46]));
    }
    frames.push(arp_request((from.mac, from.v4), to.v4));
    frames.push(arp_request((from.mac, from.v4), "10.0.0.254".parse().unwrap()));
    frames.push(neighbour_solicitation((from.mac, from.v6), to.v6, None));
    frames
}

/// The frame with the pseudo-header sum only in its checksum field.
fn partial(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = wire::parse::parse(&frame, frame.len()).unwrap();
    let at = wire::l4::field_offset(&headers).unwrap();
    let pseudo = wire::l4::pseudo_header(&headers, &frame, headers.l4_total_len()).unwrap().fold();
    frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

/// What arrives at the uplink, by underlay.
fn wire_frames(underlay: Underlay) -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = tenant_frames(R, A)
        .iter()
        .enumerate()
        .map(|(n, inner)| {
            let path = outer(2, 1, underlay).with_tos((n % 4) as u8);
            path.vxlan(50_000, Vni::new(100 + 100 * (n as u32 % 2)).unwrap(), inner)
        })
        .collect();
    frames.push(arp_request((host_mac(2), host_v4(2)), host_v4(1)));
    frames.push(neighbour_solicitation((host_mac(2), host_v6(2)), host_v6(1), None));
    frames.push(outer(2, 1, underlay).echo_request(1, 2, b"ping"));
    frames.push(outer(2, 1, underlay).tcp(1, 22, 2, b""));
    frames
}

/// Offsets of bytes that say a length, a type or a place in any of the frames above.
const TELLING: [usize; 28] = [
    12, 13, 14, 16, 17, 18, 19, 20, 21, 23, 34, 38, 39, 42, 46, 54, 58, 59, 62, 64, 66, 67, 70, 73, 82, 84,
    88, 89,
];

fn mutate(random: &mut Random, corpus: &[Vec<u8>], frame: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let len = frame.len();
        if len == 0 {
            return;
        }
        match random.below(9) {
            0 | 1 => frame[random.below(len)] ^= 1 << random.below(8),
            2 => frame[random.below(len.min(100))] = random.next() as u8,
            3 => frame.truncate(random.below(len + 1)),
            4 => {
                let other = &corpus[random.below(corpus.len())];
                let (to, from) = (random.below(len), random.below(other.len()));
                frame.truncate(to);
                frame.extend_from_slice(&other[from..]);
            }
            5 | 6 => {
                let at = TELLING[random.below(TELLING.len())].min(len - 1);
                frame[at] =
                    [0, 1, 4, 5, 6, 7, 8, 0x0f, 0x3f, 0x45, 0x4f, 0x60, 0x7f, 0x80, 0xff][random.below(15)];
            }
            7 if len > 2 => {
                let at = random.below(len - 1);
                let value = (random.next() as u16 & [0x7, 0xff, 0xffff][random.below(3)]).to_be_bytes();
                frame[at..at + 2].copy_from_slice(&value);
            }
            _ => {
                let (at, n) = (random.below(len), random.below(40));
                frame.splice(at..at, std::iter::repeat_n(0, n));
            }
        }
    }
    frame.truncate(4000);
}

fn packet(random: &mut Random, frame: &[u8]) -> HeapBuf {
    let mut packet = match random.below(8) {
        0 if frame.len() > 2 => {
            let first = random.below(frame.len() - 1).max(1);
            let second = first + random.below(frame.len() - first);
            HeapBuf::segmented(&frame[..first], &[&frame[first..second], &frame[second..]])
        }
        _ => HeapBuf::new(frame),
    };
    packet.set_shared(random.below(32) == 0);
    // Nearly every packet that is too long is said to be a super-frame, and a few of the others.
    if random.below(16) == 0 || frame.len() > 3000 && random.below(8) > 0 {
        let states = [wire::ChecksumState::Good, wire::ChecksumState::Bad, wire::ChecksumState::Partial];
        let l3_checksum = states[random.below(2)];
        let l4_checksum = states[random.below(3)];
        let gso_size = [0, 1, 8, 100, 536, 1400, 1448, 1500][random.below(8)];
        packet =
            packet.with_facts(wire::RxFacts { l3_checksum, l4_checksum, gso_size, ..Default::default() });
        if random.below(4) == 0 {
            packet = packet.with_memory(random.below(5));
        }
    }
    packet
}

fn world(underlay: Underlay, n: usize) -> World {
    let mut world = lab(1, underlay);
    let other = world.add_vpc(200);
    let trunk = world.add_trunk();
    world.add_vnic(other, A, Some(trunk));
    world.add_vnic(other, B, Some(trunk));
    if n % 2 == 1 {
        world.flood(0, &[2]);
        world.keep_vlan(0);
        world.add_punt();
    }
    world.snapshot.settings.vxlan_strict = n == 2;
    world.snapshot.ports[1].partial_checksums = n == 1;
    world.snapshot.ports[2].takes_super_frames = n.is_multiple_of(2);
    world
}

/// What leaves for a vNIC, or for another host in a tunnel, fits and is finished, or is a super-frame for a port that takes them.
fn check(world: &World, from: u16, to: u16, packet: &HeapBuf) {
    assert_eq!(packet.rx_facts().gso_size, 0, "left to whoever comes next");
    let request = packet.tx_request();
    if request.tso_size > 0 {
        assert!(world.snapshot.ports[usize::from(to)].takes_super_frames);
        assert!(request.l3_len + u16::from(request.l4_len) + request.tso_size <= 1500);
    } else if to != UPLINK || from != UPLINK {
        let most = if to == UPLINK { 1600 + 18 } else { 1500 + 22 };
        assert!(packet.len() <= most, "{} bytes for port {to}", packet.len());
    }
}

#[test]
fn mutate_a_million_packets_are_all_accounted_for() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("MUTATE_SEED").unwrap_or(clock.as_nanos() as u64) | 1;
    let packets = number("MUTATE_PACKETS").unwrap_or(1_000_000) as usize;
    println!("MUTATE_SEED={seed}");
    let mut random = Random(seed);
    let mut seen = std::collections::BTreeMap::new();
    for (n, underlay) in UNDERLAYS.into_iter().enumerate() {
        let mut world = world(underlay, n);
        let trunk = world
            .snapshot
            .ports
            .iter()
            .position(|port| matches!(port.role, pipelines::snapshot::PortRole::Trunk(_)))
            .unwrap() as u16;
        let from_vnic = tenant_frames(A, R).into_iter().chain(tenant_frames(A, B)).collect::<Vec<_>>();
        let on_trunk: Vec<_> =
            from_vnic.iter().map(|frame| [&frame[..12], &[0x81, 0, 0, 103], &frame[12..]].concat()).collect();
        let corpora = [(UPLINK, wire_frames(underlay)), (1, from_vnic), (trunk, on_trunk)];
        let mut left = packets / UNDERLAYS.len();
        while left > 0 {
            let (port, corpus) = &corpora[random.below(3)];
            let count = left.min(1 + random.below(64));
            let burst = (0..count)
                .map(|_| {
                    let mut frame = corpus[random.below(corpus.len())].clone();
                    mutate(&mut random, corpus, &mut frame);
                    packet(&mut random, &frame)
                })
                .collect();
            // Every run checks the conservation law and that nothing is left in the burst.
            for (to, packet) in world.worker.run(&world.snapshot, world.now, *port, burst) {
                check(&world, *port, to, &packet);
            }
            left -= count;
            world.now = Now::from_ns(world.now.ns + 1_000_000);
            world.worker.overlay.idle(world.now);
            while world.shared.events.pop().is_some() {}
        }
        for (name, value) in world.worker.all_counters() {
            *seen.entry(name).or_insert(0) += value;
        }
    }
    assert_eq!(seen["received"], (packets / UNDERLAYS.len() * UNDERLAYS.len()) as u64);
    // The damage reached deep: nearly every name was met, and much came through.
    println!("{seen:?}");
    if packets >= 1_000_000 {
        assert!(seen["sent"] > packets as u64 / 10 && seen["nft-hits"] > packets as u64 / 20);
        for name in MET {
            assert!(seen[name] > 0, "{name} was never met");
        }
    }
}

/// Counters that no run of a million leaves at zero.
const MET: [&str; 35] = [
    "arp-format",
    "arp-truncated",
    "checksums-filled",
    "copies",
    "decapsulated",
    "ecn-ce",
    "ecn-decap",
    "encapsulated",
    "fragment-unknown",
    "fragments",
    "gso-unsupported",
    "guard-mac",
    "guard-vip",
    "inner-vlan",
    "ipv4-total-length",
    "ipv4-truncated",
    "ipv6-extension-truncated",
    "local",
    "mtu-exceeded",
    "neighbours-answered",
    "no-buffer",
    "no-location",
    "no-route",
    "originated",
    "outer-checksum",
    "outer-fragment",
    "tcp-header-length",
    "to-router",
    "ttl-expired",
    "udp-length",
    "underlay-mac",
    "underlay-other",
    "unknown-vni",
    "vlan-unbound",
    "vxlan-flags",
];
