//! Into the tunnel and out of it.

use pipelines::ecn::EcnEncap;
use pipelines::snapshot::DscpPolicy;
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{Ecn, HeapBuf, MacAddr, Psn, Qpn, Vni};

use testkit::open::open;
use testkit::*;

/// A frame of each kind that tenants send, from A to R.
fn inner_frames() -> Vec<Vec<u8>> {
    let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(0x11), Psn::truncated(7));
    vec![
        v4(A, R).tcp(1000, 80, 0x18, b"hello"),
        v4(A, R).with_tos(0xb8).udp(1000, 53, b"question"),
        v4(A, R).echo_request(7, 1, &[0; 56]),
        v4(A, R).roce(1234, bth, &[9; 32]),
        v6(A, R).tcp(1000, 80, 0x18, &[1; 101]),
        v6(A, R).with_tos(0x2a).udp(1000, 53, &[2; 3]),
        v6(A, R).roce(1234, bth, &[9; 31]),
        v4(A, R).ethernet(0x88b5, &[5; 46]),
        v4(A, R).ip(47, &[1; 40]),
        v4(A, R).udp(1, 2, &[3; 1400]),
    ]
}

#[test]
fn every_underlay_carries_every_kind_of_frame_there_and_back() {
    for underlay in UNDERLAYS {
        let (mut one, mut two) = (lab(1, underlay), lab(2, underlay));
        for inner in inner_frames() {
            let (port, wire) = one.one(1, &inner, &ENCAP);
            assert_eq!(port, UPLINK);
            let opened = open(&wire);
            assert_eq!((opened.src_mac, opened.dst_mac), (host_mac(1).0, host_mac(2).0));
            assert_eq!(opened.vlan, underlay.vlan);
            let (src, dst) = if underlay.v6 {
                (host_v6(1).into(), host_v6(2).into())
            } else {
                (host_v4(1).into(), host_v4(2).into())
            };
            assert_eq!((opened.src, opened.dst), (src, dst));
            assert_eq!((opened.vni, opened.ttl), (100, 64));
            assert_eq!(opened.checksum != 0, underlay.v6 && !underlay.zero_checksum6);
            assert!(opened.source_port >= 49152);
            assert_eq!(opened.inner, inner, "inner bytes");
            let tos = wire::parse::parse(&inner, inner.len()).unwrap().tos;
            assert_eq!(opened.tos, tos, "copied");
            // The flow is known now, and keeps its port.
            let again = one.one(1, &inner, &[("nft-hits", 1), ("encapsulated", 1)]).1;
            assert_eq!(again, wire);
            let (port, delivered) = two.one(UPLINK, &wire, &DECAP);
            assert_eq!((port, delivered), (1, inner.clone()));
            two.one(UPLINK, &wire, &[("nft-hits", 1), ("decapsulated", 1)]);
        }
    }
}

#[test]
fn vnics_count_their_traffic() {
    let mut world = plain();
    let frame = v4(A, R).udp(1, 2, b"12345678");
    world.pass(1, &frame);
    world.pass(1, &v4(A, B).cnp(5, Qpn::truncated(3)));
    let (a, b) = (world.worker.counters.vnic(0), world.worker.counters.vnic(1));
    assert_eq!((a.rx_packets.get(), a.tx_packets.get(), a.nft_misses.get(), a.drops.get()), (2, 0, 2, 0));
    assert!(a.rx_bytes.get() > frame.len() as u64);
    assert_eq!((b.tx_packets.get(), b.rdma_tx_packets.get(), a.rdma_rx_packets.get()), (1, 1, 1));
}

#[test]
fn outer_source_ports_spread_flows_and_keep_each_on_one_path() {
    let mut world = plain();
    let mut ports = std::collections::HashSet::new();
    for sport in 1000..1100 {
        let wire = world.pass(1, &v4(A, R).tcp(sport, 80, 0x10, b"x")).remove(0).1;
        let again = world.pass(1, &v4(A, R).tcp(sport, 80, 0x10, b"yy")).remove(0).1;
        assert_eq!(open(&wire).source_port, open(&again).source_port);
        ports.insert(open(&wire).source_port);
    }
    // 100 flows over 16384 ports: a birthday or two at most.
    assert!(ports.len() >= 97, "{} ports", ports.len());
    // A pure function of the flow: another worker, another port, the same answer.
    let mut other = plain();
    let frame = v4(A, R).tcp(1000, 80, 0x10, b"x");
    assert_eq!(open(&other.pass(1, &frame)[0].1).source_port, open(&world.pass(1, &frame)[0].1).source_port);
}

#[test]
fn roce_follows_its_inner_source_port_with_one_entry_for_all_queue_pairs() {
    let mut world = plain();
    let mut ports = std::collections::HashSet::new();
    for qp in 0..50u16 {
        let bth = Bth::new(opcode::RC_WRITE_FIRST, Qpn::truncated(u32::from(qp)), Psn::truncated(0));
        let frame = v4(A, R).roce(0xc000 + qp, bth, &[0; 16]);
        ports.insert(open(&world.pass(1, &frame)[0].1).source_port);
    }
    assert!(ports.len() >= 48);
    assert_eq!(world.worker.overlay.nft().stats().entries, 1);
    assert_eq!(world.worker.counters.nft_misses.get(), 1);
    // Other transport classes are flows of their own.
    world.pass(1, &v4(A, R).cnp(0xc000, Qpn::truncated(1)));
    let ud = Bth::new(opcode::UD_SEND_ONLY, Qpn::truncated(1), Psn::truncated(0));
    world.pass(1, &v4(A, R).roce(0xc000, ud, &[0; 264]));
    assert_eq!(world.worker.overlay.nft().stats().entries, 3);
    // The bytes behind a datagram are not its BTH: an empty one to the RoCE port is of the class `other`.
    let mut padded = v4(A, R).udp(1, 4791, b"");
    padded.resize(60, 0);
    world.pass(1, &padded);
    let (entries, _) = world.worker.overlay.nft().scan(0, 100);
    assert!(entries.iter().any(|entry| entry.key.class() == pipelines::stage::key::CLASS_OTHER));
}

#[test]
fn ecn_and_dscp_at_encapsulation() {
    let modes = [
        (EcnEncap::Rfc6040, [0, 1, 2, 3]),
        (EcnEncap::Rfc3168, [0, 1, 2, 2]),
        (EcnEncap::Rfc6040Compat, [0, 0, 0, 0]),
    ];
    for underlay in UNDERLAYS {
        for (mode, expected) in modes {
            let mut world = lab(1, underlay);
            world.snapshot.settings.ecn_encap = mode;
            for (inner, outer) in (0u8..).zip(expected) {
                for frame in [
                    v4(A, R).with_tos(0x68 | inner).udp(1, 2, b""),
                    v6(A, R).with_tos(0x68 | inner).udp(1, 2, b""),
                ] {
                    let opened = open(&world.pass(1, &frame)[0].1);
                    assert_eq!((opened.tos, &opened.inner), (0x68 | outer, &frame), "{mode:?} inner {inner}");
                }
            }
            // One entry for all four codepoints of each family.
            assert_eq!(world.worker.overlay.nft().stats().entries, 2);
            world.snapshot.settings.dscp = DscpPolicy::Fixed(46);
            let frame = v4(A, R).with_tos(0x6b).udp(1, 2, b"");
            assert_eq!(open(&world.pass(1, &frame)[0].1).tos, 46 << 2 | expected[3]);
        }
    }
}

#[test]
fn all_cases_of_ecn_at_decapsulation() {
    // By inner, then outer codepoint as bits (00 Not-ECT, 01 ECT(1), 10 ECT(0), 11 CE); 4 stands for a drop.
    let table = [[0, 0, 0, 4], [1, 1, 1, 3], [2, 1, 2, 3], [3, 3, 3, 3]];
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        for (inner_ecn, row) in (0u8..).zip(table) {
            for (outer_ecn, expected) in (0u8..).zip(row) {
                for path in [v4(R, A), v6(R, A)] {
                    let inner = path.clone().with_tos(0x28 | inner_ecn).udp(9, 9, b"payload");
                    let wire = outer(2, 1, underlay).with_tos(outer_ecn).vxlan(
                        50_000,
                        Vni::new(100).unwrap(),
                        &inner,
                    );
                    let seen = world.worker.counters.nft_misses.get();
                    let out = world.pass(UPLINK, &wire);
                    if expected == 4 {
                        assert!(out.is_empty());
                        assert_eq!(world.worker.counters.nft_misses.get(), seen);
                        continue;
                    }
                    let wanted = path.with_tos(0x28 | expected).udp(9, 9, b"payload");
                    assert_eq!(out, [(1, wanted)], "inner {inner_ecn} outer {outer_ecn}");
                    sound(&out[0].1);
                }
            }
        }
        assert_eq!(world.worker.counters.drops(pipelines::drops::DropReason::ECN_DECAP), 2);
        assert_eq!(world.worker.counters.ecn_ce.get(), 12);
        assert_eq!(world.worker.counters.dropped(), 2);
    }
}

#[test]
fn packets_in_segments_travel_as_whole_ones_do() {
    for underlay in UNDERLAYS {
        let (mut one, mut two) = (lab(1, underlay), lab(2, underlay));
        let inner = v6(A, R).tcp(1000, 80, 0x18, &(0..=255).collect::<Vec<u8>>());
        let whole = one.one(1, &inner, &ENCAP).1;
        for cuts in [[80, 81], [100, 200], [81, 330]] {
            let packet =
                HeapBuf::segmented(&inner[..cuts[0]], &[&inner[cuts[0]..cuts[1]], &inner[cuts[1]..]]);
            let out = one.expect_packets(1, vec![packet], &[("nft-hits", 1), ("encapsulated", 1)]);
            assert_eq!(out, [(UPLINK, whole.clone())]);
        }
        // Headers must lie in the first segment, outer and inner: then the rest may be anywhere.
        let head = whole.len() - inner.len() + 80;
        let packet = HeapBuf::segmented(&whole[..head], &[&whole[head..head + 33], &whole[head + 33..]]);
        let out = two.expect_packets(UPLINK, vec![packet], &DECAP);
        assert_eq!(out, [(1, inner.clone())]);
        // Padding is cut, in the last segment and over whole ones.
        let padded = HeapBuf::segmented(&whole[..head], &[&whole[head..], &[0; 4]]);
        two.expect_packets(UPLINK, vec![padded], &[("nft-hits", 1), ("decapsulated", 1)]);
        let padded = HeapBuf::segmented(&whole[..head], &[&[&whole[head..], &[0; 2]].concat(), &[0; 4]]);
        let out = two.expect_packets(UPLINK, vec![padded], &[("nft-hits", 1), ("decapsulated", 1)]);
        assert_eq!(out, [(1, inner.clone())]);
    }
}

#[test]
fn shared_buffers_are_never_written() {
    let mut world = plain();
    let shared = |frame: &[u8]| {
        let mut packet = HeapBuf::new(frame);
        packet.set_shared(true);
        packet
    };
    let out = shared(&v4(A, R).udp(1, 2, b"x"));
    assert!(world.expect_packets(1, vec![out], &[("nft-misses", 1), ("no-buffer", 1)]).is_empty());
    // Delivery to another vNIC writes nothing.
    let local = v4(A, B).udp(1, 2, b"x");
    assert_eq!(world.expect_packets(1, vec![shared(&local)], &LOCAL), [(2, local)]);
    // Decapsulation neither, unless ECN or a checksum has to change.
    let inner = v4(R, A).with_tos(2).udp(1, 2, b"x");
    let out = world.expect_packets(UPLINK, vec![shared(&tunnelled(&inner))], &DECAP);
    assert_eq!(out, [(1, inner.clone())]);
    let wire = outer(2, 1, Underlay::default()).with_tos(3).vxlan(50_000, Vni::new(100).unwrap(), &inner);
    let moved = [("decapsulated", 1), ("ecn-ce", 1), ("no-buffer", 1)];
    world.expect_packets(UPLINK, vec![shared(&wire)], &moved);
    let routed = routed(v4(A, C)).udp(1, 2, b"x");
    world.expect_packets(1, vec![shared(&routed)], &[("nft-misses", 1), ("no-buffer", 1)]);
    let arp = wire::build::control::arp_request((A.mac, A.v4), R.v4);
    world.expect_packets(1, vec![shared(&arp)], &[("no-buffer", 1)]);
}

#[test]
fn without_headroom_a_packet_is_dropped_by_name() {
    use wire::PacketBuf;
    let mut world = plain();
    let frame = v4(A, R).udp(1, 2, b"x");
    let mut padded = vec![0; 100];
    padded.extend_from_slice(&frame);
    // 128 bytes of headroom and 100 of frame, of which 179 are used up: 49 are left, 50 are needed.
    let mut packet = HeapBuf::new(&padded);
    assert!(packet.trim_front(100) && packet.prepend(179).is_some());
    let mut tight = packet;
    tight.head_mut()[..frame.len()].copy_from_slice(&frame);
    let surplus = tight.len() - frame.len();
    assert!(tight.trim_back(surplus));
    world.expect_packets(1, vec![tight.clone()], &[("nft-misses", 1), ("no-buffer", 1)]);
    // A trunk tag still fits.
    assert!(tight.prepend(4).is_some());
}

#[test]
fn partial_checksums_are_completed() {
    for path in [v4(A, R), v6(A, R)] {
        let frames = [path.tcp(1000, 80, 0x18, b"odd"), path.udp(1000, 53, b"even"), path.tcp(7, 7, 2, b"")];
        for whole in frames {
            let headers = sound(&whole);
            let at = wire::l4::field_offset(&headers).unwrap();
            let pseudo = wire::l4::pseudo_header(&headers, &whole, headers.l4_total_len()).unwrap().fold();
            let mut partial = whole.clone();
            partial[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
            let facts = wire::RxFacts { l4_checksum: wire::ChecksumState::Partial, ..Default::default() };
            let filled = [("nft-misses", 1), ("encapsulated", 1), ("checksums-filled", 1)];
            let mut world = plain();
            let out = world.expect_packets(1, vec![HeapBuf::new(&partial).with_facts(facts)], &filled);
            assert_eq!(open(&out[0].1).inner, whole, "completed when the sender says so");
            // In segments, cut at an odd place behind the headers.
            let cut = headers.payload_offset();
            let packet = HeapBuf::segmented(&partial[..cut], &[&partial[cut..]]).with_facts(facts);
            let out = world.expect_packets(
                1,
                vec![packet],
                &[("nft-hits", 1), ("encapsulated", 1), ("checksums-filled", 1)],
            );
            assert_eq!(open(&out[0].1).inner, whole);
            // A port that does not say: by the look of it; finished ones are left alone.
            let mut world = plain();
            world.snapshot.ports[1].partial_checksums = true;
            let out = world.one(1, &partial, &filled).1;
            assert_eq!(open(&out).inner, whole);
            let out = world.one(1, &whole, &[("nft-hits", 1), ("encapsulated", 1)]).1;
            assert_eq!(open(&out).inner, whole);
            // Otherwise nobody guesses.
            let out = plain().one(1, &partial, &ENCAP).1;
            assert_eq!(open(&out).inner, partial);
            // Nor may it leave unfinished where it cannot be written.
            let mut shared = HeapBuf::new(&partial).with_facts(facts);
            shared.set_shared(true);
            plain().expect_packets(1, vec![shared], &[("no-buffer", 1)]);
        }
    }
}

#[test]
fn partial_checksums_come_out_of_the_tunnel_complete() {
    let whole = v4(R, A).tcp(1000, 80, 0x18, b"data");
    let headers = sound(&whole);
    let at = wire::l4::field_offset(&headers).unwrap();
    let mut partial = whole.clone();
    let pseudo = wire::l4::pseudo_header(&headers, &whole, headers.l4_total_len()).unwrap().fold();
    partial[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    let mut world = plain();
    world.snapshot.ports[0].partial_checksums = true;
    let moved = [("nft-misses", 1), ("decapsulated", 1), ("checksums-filled", 1)];
    assert_eq!(world.one(UPLINK, &tunnelled(&partial), &moved).1, whole);
}

#[test]
fn the_longest_frame_that_fits_and_the_first_that_does_not() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        world.snapshot.vnic_rows[0].mtu = 9000;
        // Outer IP packet of 1600 bytes: inner frame plus the outer headers behind Ethernet.
        let most = 1600 - if underlay.v6 { 56 } else { 36 };
        let frame = |len: usize| v4(A, R).ethernet(0x88b5, &vec![1; len - 14]);
        let wire = world.one(1, &frame(most), &ENCAP).1;
        open(&wire);
        world.expect(1, &[frame(most + 1)], &[("nft-hits", 1), ("mtu-exceeded", 1)]);
    }
}

#[test]
fn a_short_burst_and_a_full_one() {
    let mut world = plain();
    assert!(world.expect(1, &[], &[]).is_empty());
    let frames: Vec<_> = (0..64).map(|n| v4(A, R).udp(n, 2, b"x")).collect();
    let out = world.expect(1, &frames, &[("nft-misses", 64), ("encapsulated", 64)]);
    for (frame, (_, wire)) in frames.iter().zip(&out) {
        assert_eq!(&open(wire).inner, frame, "in order");
    }
    let out = world.expect(1, &frames, &[("nft-hits", 64), ("encapsulated", 64)]);
    assert_eq!(out.len(), 64);
    // Sixty-four packets of one new flow: one miss.
    let same = vec![v4(A, R).udp(9999, 2, b"x"); 64];
    world.expect(1, &same, &[("nft-misses", 1), ("nft-hits", 63), ("encapsulated", 64)]);
}

#[test]
fn ecn_of_frames_that_are_not_ip_is_not_looked_at() {
    let mut world = plain();
    let inner = Path::v4((R.mac, R.v4), (A.mac, A.v4)).ethernet(0x88b5, &[3; 46]);
    let wire = outer(2, 1, Underlay::default()).with_tos(Ecn::Ce.into_tos(0)).vxlan(
        50_000,
        Vni::new(100).unwrap(),
        &inner,
    );
    assert_eq!(world.one(UPLINK, &wire, &DECAP), (1, inner));
    let to_nobody = Path::v4((R.mac, R.v4), (MacAddr([2, 9, 9, 9, 9, 9]), A.v4)).ethernet(0x88b5, &[3; 46]);
    world.expect(
        UPLINK,
        &[tunnelled(&to_nobody)],
        &[("nft-misses", 1), ("decapsulated", 1), ("not-local", 1)],
    );
}
