//! What arrives at the uplink and is not what it should be.

use std::net::Ipv4Addr;

use wire::build::Pair;
use wire::{HeapBuf, MacAddr, Vni, vxlan};

use testkit::*;

fn vni() -> Vni {
    Vni::new(100).unwrap()
}

fn inner() -> Vec<u8> {
    v4(R, A).udp(1, 2, b"payload")
}

#[test]
fn the_outer_packet_must_be_for_us_and_from_a_known_vtep() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let good = outer(2, 1, underlay);
        world.one(UPLINK, &good.vxlan(50_000, vni(), &inner()), &DECAP);
        let mut drop = |path: &wire::build::Path, vni: Vni, moved: &[(&str, u64)]| {
            assert!(world.expect(UPLINK, &[path.vxlan(50_000, vni, &inner())], moved).is_empty());
        };
        drop(&good, Vni::new(101).unwrap(), &[("unknown-vni", 1)]);
        drop(&outer(10, 1, underlay), vni(), &[("unknown-vtep", 1)]);
        let mut path = good.clone();
        path.dst_mac = MacAddr([2, 0, 0, 0, 0x77, 9]);
        drop(&path, vni(), &[("underlay-mac", 1)]);
        path.dst_mac = MacAddr::BROADCAST;
        drop(&path, vni(), &[("underlay-other", 1)]);
        let mut path = outer(2, 3, underlay);
        path.dst_mac = host_mac(1);
        drop(&path, vni(), &[("underlay-address", 1)]);
        let mut path = good.clone();
        path.tags = if underlay.vlan.is_some() { Vec::new() } else { vec![(0x8100, 9)] };
        drop(&path, vni(), &[("underlay-other", 1)]);
        // A priority tag is no VLAN.
        if underlay.vlan.is_none() {
            let frame = good.clone().tagged(0x6000).vxlan(50_000, vni(), &inner());
            world.one(UPLINK, &frame, &[("nft-hits", 1), ("decapsulated", 1)]);
        }
    }
}

/// Whatever came before it in the burst.
#[test]
fn each_packet_is_asked_for_its_vtep_and_its_network() {
    let mut world = plain();
    let known = outer(2, 1, Underlay::default());
    let mut nobody = known.clone();
    nobody.ip = Pair::V4(Ipv4Addr::UNSPECIFIED, host_v4(1));
    let sources = [known, nobody, outer(10, 1, Underlay::default())];
    world.one(UPLINK, &sources[0].vxlan(50_000, vni(), &inner()), &DECAP);
    for (first, then) in (0..36).map(|n| (n / 6, n % 6)) {
        let kinds = [first, then, first];
        let frames = kinds.map(|kind| {
            let vni = Vni::new(100 + kind as u32 % 2).unwrap();
            sources[kind / 2].vxlan(50_000, vni, &inner())
        });
        let of =
            |wanted: std::ops::Range<usize>| kinds.iter().filter(|kind| wanted.contains(kind)).count() as u64;
        let mut moved = vec![("decapsulated", of(0..1)), ("nft-hits", of(0..1))];
        moved.extend([("unknown-vni", of(1..2)), ("unknown-vtep", of(2..6))]);
        moved.retain(|(_, times)| *times > 0);
        assert_eq!(world.expect(UPLINK, &frames, &moved).len() as u64, of(0..1));
    }
}

#[test]
fn the_vxlan_header_is_checked() {
    let path = outer(2, 1, Underlay::default());
    for (strict, accepted) in [(false, true), (true, false)] {
        let mut world = plain();
        world.snapshot.settings.vxlan_strict = strict;
        world.one(UPLINK, &path.vxlan(50_000, vni(), &inner()), &DECAP);
        for bit in 0..64u32 {
            let mut header = vxlan::Header::new(vni());
            let raw =
                |header: &vxlan::Header| u64::from_be_bytes(wire::View::bytes(header).try_into().unwrap());
            let flipped = raw(&header) ^ 1 << bit;
            header = *vxlan::Header::parse(&flipped.to_be_bytes()).unwrap();
            let frame = path.vxlan_with(50_000, header, false, &inner());
            let moved: &[(&str, u64)] = match bit {
                59 => &[("vxlan-flags", 1)],
                8..=31 => &[("unknown-vni", 1)],
                _ if accepted => &[("nft-hits", 1), ("decapsulated", 1)],
                _ => &[("vxlan-reserved", 1)],
            };
            world.expect(UPLINK, &[frame], moved);
        }
    }
}

#[test]
fn outer_checksums_are_verified() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let path = outer(2, 1, underlay);
        let good = path.vxlan_with(50_000, vxlan::Header::new(vni()), true, &inner());
        world.one(UPLINK, &good, &DECAP);
        let zero = path.vxlan_with(50_000, vxlan::Header::new(vni()), false, &inner());
        let moved: &[(&str, u64)] = if underlay.v6 && !underlay.zero_checksum6 {
            &[("outer-checksum-zero", 1)]
        } else {
            &[("nft-hits", 1), ("decapsulated", 1)]
        };
        world.expect(UPLINK, &[zero], moved);
        // Any flipped bit of the payload shows.
        for at in [good.len() - 1, good.len() - 9] {
            let mut wrong = good.clone();
            wrong[at] ^= 0x10;
            world.expect(UPLINK, &[wrong.clone()], &[("outer-checksum", 1)]);
            // In segments as well; and nobody looks twice where the device did.
            let packet = HeapBuf::segmented(&wrong[..wrong.len() - 20], &[&wrong[wrong.len() - 20..]]);
            world.expect_packets(UPLINK, vec![packet], &[("outer-checksum", 1)]);
            let facts = wire::RxFacts { l4_checksum: wire::ChecksumState::Good, ..Default::default() };
            let trusted = HeapBuf::new(&wrong).with_facts(facts);
            world.expect_packets(UPLINK, vec![trusted], &[("nft-hits", 1), ("decapsulated", 1)]);
        }
        let facts = wire::RxFacts { l4_checksum: wire::ChecksumState::Bad, ..Default::default() };
        world.expect_packets(UPLINK, vec![HeapBuf::new(&good).with_facts(facts)], &[("outer-checksum", 1)]);
        if !underlay.v6 {
            let l3 = if underlay.vlan.is_some() { 18 } else { 14 };
            let mut wrong = path.vxlan(50_000, vni(), &inner());
            wrong[l3 + 8] ^= 1;
            world.expect(UPLINK, &[wrong], &[("outer-checksum", 1)]);
            let facts = wire::RxFacts { l3_checksum: wire::ChecksumState::Bad, ..Default::default() };
            let packet = HeapBuf::new(&good).with_facts(facts);
            world.expect_packets(UPLINK, vec![packet], &[("outer-checksum", 1)]);
        }
        // A port that leaves checksums to us: the pseudo-header sum is as good as the whole.
        let headers = wire::parse::parse(&good, good.len()).unwrap();
        let at = wire::l4::field_offset(&headers).unwrap();
        let pseudo = wire::l4::pseudo_header(&headers, &good, headers.l4_total_len()).unwrap().fold();
        let mut partial = good.clone();
        partial[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        world.expect(UPLINK, &[partial.clone()], &[("outer-checksum", 1)]);
        world.snapshot.ports[0].partial_checksums = true;
        world.expect(UPLINK, &[partial], &[("nft-hits", 1), ("decapsulated", 1)]);
    }
}

#[test]
fn outer_fragments_are_dropped() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let mut path = outer(2, 1, underlay);
        path.dont_fragment = false;
        let whole = path.vxlan(50_000, vni(), &v4(R, A).udp(1, 2, &[7; 1200]));
        let headers = wire::parse::parse(&whole, whole.len()).unwrap();
        let fragments = path.fragments(17, &whole[usize::from(headers.l4_offset)..], 77, 600);
        assert!(fragments.len() >= 3);
        world.expect(UPLINK, &fragments, &[("outer-fragment", fragments.len() as u64)]);
    }
}

#[test]
fn frames_cut_short_at_every_byte_are_dropped_by_name() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        for inner in [v4(R, A).tcp(1, 2, 2, b"abc"), v6(R, A).udp(1, 2, b"abc")] {
            let whole = outer(2, 1, underlay).vxlan(50_000, vni(), &inner);
            for cut in 0..whole.len() {
                let before = world.worker.counters.dropped();
                assert!(world.pass(UPLINK, &whole[..cut]).is_empty(), "cut at {cut}");
                assert_eq!(world.worker.counters.dropped(), before + 1);
            }
            // The same with outer lengths that fit: the inner frame is what is short.
            for cut in 0..inner.len() {
                let before = world.worker.counters.dropped();
                let frame = outer(2, 1, underlay).vxlan(50_000, vni(), &inner[..cut]);
                assert!(world.pass(UPLINK, &frame).is_empty(), "inner cut at {cut}");
                assert_eq!(world.worker.counters.dropped(), before + 1);
            }
        }
        for inner in [v4(A, R).tcp(1, 2, 2, b"abc"), v6(A, R).udp(1, 2, b"abc")] {
            for cut in 0..inner.len() {
                let before = world.worker.counters.dropped();
                assert!(world.pass(1, &inner[..cut]).is_empty(), "cut at {cut}");
                assert_eq!(world.worker.counters.dropped(), before + 1);
            }
        }
    }
}

#[test]
fn a_vxlan_header_cut_short_has_its_own_name() {
    let path = outer(2, 1, Underlay::default());
    for len in 0..8 {
        let frame = path.udp_without_checksum(50_000, 4789, &[8, 0, 0, 0, 0, 0, 100, 0][..len]);
        plain().expect(UPLINK, std::slice::from_ref(&frame), &[("vxlan-truncated", 1)]);
        // Bytes behind the datagram do not stand in for it.
        let padded = [&frame[..], &[8, 0, 0, 0, 0, 0, 100, 0]].concat();
        plain().expect(UPLINK, &[padded], &[("vxlan-truncated", 1)]);
    }
    let empty = path.vxlan(50_000, vni(), b"");
    plain().expect(UPLINK, &[empty], &[("decapsulated", 1), ("ethernet-truncated", 1)]);
}

#[test]
fn a_tenant_cannot_reach_into_the_underlay_or_another_vpc() {
    let mut world = plain();
    // A VxLAN packet made by a tenant is a tenant's packet: it travels inside the tunnel, or not at all.
    let mut path = wire::build::Path::v4((A.mac, A.v4), (host_mac(2), host_v4(2)));
    let forged = path.vxlan(50_000, Vni::new(200).unwrap(), &inner());
    world.expect(1, &[forged], &[("nft-misses", 1), ("no-location", 1)]);
    path.dst_mac = ROUTER;
    let forged = path.vxlan(50_000, Vni::new(200).unwrap(), &inner());
    world.expect(1, &[forged], &[("nft-misses", 1), ("no-route", 1), ("originated", 1)]);
}

#[test]
fn punted_traffic_goes_to_the_host_and_the_hosts_to_the_wire() {
    let mut world = plain();
    let punt = world.add_punt();
    let underlay = Underlay::default();
    let ssh = outer(2, 1, underlay).tcp(999, 22, 2, b"");
    assert_eq!(world.one(UPLINK, &ssh, &[]), (punt, ssh.clone()));
    let other = outer(2, 3, underlay).udp(1, 2, b"");
    let mut other_path = outer(2, 3, underlay);
    other_path.dst_mac = host_mac(1);
    assert_eq!(world.one(UPLINK, &other_path.udp(1, 2, b""), &[]).0, punt);
    world.expect(UPLINK, &[other], &[("underlay-mac", 1)]);
    let reply = outer(1, 2, underlay).tcp(22, 999, 0x12, b"");
    assert_eq!(world.one(punt, &reply, &[]), (UPLINK, reply.clone()));
    // What the host's port does not take is dropped by name and holds up nobody: 20 + 20 bytes of headers.
    let longest = outer(2, 1, underlay).tcp(999, 22, 2, &[7; 1460]);
    assert_eq!(world.one(UPLINK, &longest, &[]), (punt, longest.clone()));
    let longer = outer(2, 1, underlay).tcp(999, 22, 2, &[7; 1461]);
    world.expect(UPLINK, &[longer], &[("mtu-exceeded", 1)]);
    // VxLAN is ours, fragments of it may be the host's.
    world.one(UPLINK, &tunnelled(&inner()), &DECAP);
    let mut without = plain();
    without.expect(UPLINK, &[ssh], &[("underlay-other", 1)]);
    without.expect(UPLINK, &[outer(2, 1, underlay).ethernet(0x88cc, &[0; 46])], &[("underlay-other", 1)]);
}

#[test]
fn the_host_speaks_with_the_mac_of_its_uplink_or_not_at_all() {
    let mut world = plain();
    let punt = world.add_punt();
    let from = |mac| wire::build::control::arp_request((mac, host_v4(1)), host_v4(2));
    assert_eq!(world.one(punt, &from(host_mac(1)), &[]), (UPLINK, from(host_mac(1))));
    // Whoever hears the VTEP's address with another MAC sends its tunnel packets there.
    world.expect(punt, &[from(host_mac(9)), vec![0; 11]], &[("host-mac", 2)]);
}
