//! Packets that are too long: answered by the host that knows the number, whatever the way.

use std::net::IpAddr;

use pipelines::Now;
use wire::build::{Pair, Path};
use wire::roce::Bth;
use wire::{HeapBuf, Psn, Qpn, Vni};

use testkit::open::open;
use testkit::*;

/// The MTU that an error names, who says it to whom, and the quoted bytes.
fn too_big(frame: &[u8]) -> (u32, IpAddr, IpAddr, Vec<u8>) {
    let headers = sound(frame);
    let (src, dst): (IpAddr, IpAddr) = match (headers.ipv4(frame), headers.ipv6(frame)) {
        (Some(ip), _) => (ip.src().into(), ip.dst().into()),
        (_, Some(ip)) => (ip.src().into(), ip.dst().into()),
        _ => panic!("no IP packet"),
    };
    let l4 = usize::from(headers.l4_offset);
    let (kind, code) = if dst.is_ipv4() { (3, 4) } else { (2, 0) };
    assert_eq!((frame[l4], frame[l4 + 1]), (kind, code), "fragmentation needed, or packet too big");
    let mtu = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
    (mtu, src, dst, frame[l4 + 8..].to_vec())
}

/// An IP packet of exactly this length, of a kind whose sender listens.
fn of_length(path: &Path, length: usize) -> Vec<u8> {
    let header = if matches!(path.ip, Pair::V6(..)) { 40 } else { 20 };
    path.udp(7, 8, &vec![5; length - header - 8])
}

#[test]
fn a_vnic_is_told_its_own_mtu_whatever_the_way_could_carry() {
    for underlay in UNDERLAYS {
        for (vnic, uplink) in [(1450, 1600), (1450, 9100), (1280, 1500), (8950, 9100)] {
            let mut world = lab(1, underlay);
            world.uplink().mtu = uplink;
            world.snapshot.vnic_rows.iter_mut().for_each(|row| row.mtu = 9000);
            world.snapshot.vnic_rows[0].mtu = vnic;
            // To another host, to a vNIC beside it, and by way of the router.
            for (path, gateway) in &[
                (v4(A, R), "10.0.0.254"),
                (v4(A, B), "10.0.0.254"),
                (routed(v4(A, S)), "10.0.0.254"),
                (routed(v4(A, C)), "10.0.0.254"),
                (v6(A, R), "fd00:1::fe"),
                (v6(A, B), "fd00:1::fe"),
                (routed(v6(A, C)), "fd00:1::fe"),
            ] {
                let path: &Path = path;
                let sender =
                    if matches!(path.ip, Pair::V6(..)) { IpAddr::V6(A.v6) } else { IpAddr::V4(A.v4) };
                for df in [false, true] {
                    let path = Path { dont_fragment: df, ..path.clone() };
                    let longer = of_length(&path, usize::from(vnic) + 1);
                    let (port, error) = world.one(1, &longer, &[("mtu-exceeded", 1), ("originated", 1)]);
                    let (mtu, from, to, quoted) = too_big(&error);
                    assert_eq!((port, mtu, from, to), (1, u32::from(vnic), ip(gateway), sender));
                    assert_eq!(quoted, &longer[14..14 + quoted.len()]);
                    let fits = of_length(&path, usize::from(vnic));
                    assert_eq!(world.pass(1, &fits).len(), 1);
                }
            }
        }
    }
}

#[test]
fn a_sender_behind_a_tunnel_is_told_the_mtu_of_the_vnic() {
    for underlay in UNDERLAYS {
        let mut world = lab(1, underlay);
        let wrap = |inner: &[u8]| outer(2, 1, underlay).vxlan(50_000, Vni::new(100).unwrap(), inner);
        world.uplink().mtu = 9100;
        world.snapshot.vnic_rows[0].mtu = 1300;
        world.snapshot.vnic_rows[2].mtu = 1400;
        // Bridged; routed by the sender's host, where the frame's source is the router; handed to our own router.
        let far = |mut path: Path| {
            path.src_mac = ROUTER;
            path
        };
        for (path, mtu, from, to) in [
            (v4(R, A), 1300, IpAddr::V4(A.v4), IpAddr::V4(R.v4)),
            (v6(R, A), 1300, A.v6.into(), R.v6.into()),
            (far(v4(S, A)), 1300, A.v4.into(), S.v4.into()),
            (far(v6(S, A)), 1300, A.v6.into(), S.v6.into()),
            (routed(v4(R, C)), 1400, C.v4.into(), R.v4.into()),
        ] {
            let longer = of_length(&path, mtu + 1);
            let moved = [
                ("nft-misses", 1),
                ("decapsulated", 1),
                ("mtu-exceeded", 1),
                ("originated", 1),
                ("encapsulated", 1),
            ];
            let (port, frame) = world.one(UPLINK, &wrap(&longer), &moved);
            let opened = open(&frame);
            assert_eq!((port, opened.vni, opened.dst_mac), (UPLINK, 100, host_mac(2).0));
            let (named, source, target, _) = too_big(&opened.inner);
            assert_eq!((named, source, target), (mtu as u32, from, to));
            let station = if to == IpAddr::V4(S.v4) || to == IpAddr::V6(S.v6) { S } else { R };
            assert_eq!(
                opened.inner[..6],
                station.mac.0,
                "to the sender, not to the router that its frame names"
            );
            assert_eq!(world.pass(UPLINK, &wrap(&of_length(&path, mtu))).len(), 1);
        }
        // What says it is from a vNIC of this host is not answered, nor is an error, a later fragment, or RoCEv2.
        let bth = Bth::new(0x0a, Qpn::truncated(0x11), Psn::truncated(1));
        let error = [&[3, 4, 0, 0, 0, 0, 5, 0], &v4(A, R).udp(1, 2, &[0; 1400])[14..]].concat();
        for (inner, reason) in [
            (of_length(&v4(B, A), 1301), "inner-source"),
            (v4(R, A).ip(1, &error), "mtu-exceeded"),
            (v4(R, A).roce(1, bth, &[0; 1400]), "mtu-roce"),
        ] {
            let before = world.worker.all_counters();
            assert!(world.pass(UPLINK, &wrap(&inner)).is_empty());
            let dropped = world
                .worker
                .all_counters()
                .iter()
                .zip(before)
                .map(|(a, b)| (a.0, a.1 - b.1))
                .find(|c| c.0 == reason);
            assert_eq!(dropped, Some((reason, 1)));
        }
    }
}

#[test]
fn chains_of_segments_get_the_same_answer() {
    let mut world = plain();
    for (path, first) in
        [(v4(A, R), 256), (v6(A, R), 256), (v4(A, B), 1400), (routed(v6(A, C)), 62), (v4(A, R), 2999)]
    {
        let frame = of_length(&path, 3000 - 14);
        let (head, rest) = frame.split_at(first);
        let tail: Vec<&[u8]> = rest.chunks(1000).collect();
        let packet = HeapBuf::segmented(head, &tail);
        let out = world.expect_packets(1, vec![packet], &[("mtu-exceeded", 1), ("originated", 1)]);
        let (mtu, _, _, quoted) = too_big(&out[0].1);
        assert_eq!(mtu, 1500);
        assert!(quoted.len() >= 28 && frame[14..].starts_with(&quoted));
    }
    // Out of a tunnel, back into it; the first segment ends with the inner headers, or further on.
    for underlay in UNDERLAYS {
        for (path, first) in [(v4(R, A), 0), (v6(R, A), 0), (v4(R, A), 1000), (v6(R, A), 2048)] {
            let mut world = lab(1, underlay);
            world.uplink().mtu = 9100;
            let inner = of_length(&path, 8900);
            let frame = outer(2, 1, underlay).vxlan(50_000, Vni::new(100).unwrap(), &inner);
            let (head, rest) = frame.split_at(first.max(frame.len() - inner.len() + 62));
            let packet = HeapBuf::segmented(head, &rest.chunks(2048).collect::<Vec<_>>());
            let moved = [("decapsulated", 1), ("mtu-exceeded", 1), ("originated", 1), ("encapsulated", 1)];
            let moved = [&[("nft-misses", 1)][..], &moved].concat();
            let out = world.expect_packets(UPLINK, vec![packet], &moved);
            let (mtu, .., quoted) = too_big(&open(&out[0].1).inner);
            assert_eq!(mtu, 1500);
            assert!(quoted.len() >= 28 && inner[14..].starts_with(&quoted));
        }
    }
}

#[test]
fn what_no_sender_hears_is_dropped_by_name() {
    let mut world = plain();
    let bth = Bth::new(0x0a, Qpn::truncated(0x11), Psn::truncated(1));
    world.expect(1, &[v4(A, R).roce(1, bth, &[0; 1500])], &[("mtu-roce", 1)]);
    let error = [&[3, 4, 0, 0, 0, 0, 5, 0], &v4(R, A).udp(1, 2, &[0; 1500])[14..]].concat();
    world.expect(1, &[v4(A, R).ip(1, &error)], &[("mtu-exceeded", 1)]);
    world.expect(1, &[v4(A, R).ethernet(0x88b5, &[1; 1501])], &[("mtu-exceeded", 1)]);
    // A tag counts for nothing: the packet behind it is what the MTU bounds.
    world.keep_vlan(0);
    assert_eq!(world.pass(1, &of_length(&v4(A, R).tagged(5), 1500)).len(), 1);
    let (_, error) =
        world.one(1, &of_length(&v4(A, R).tagged(5), 1501), &[("mtu-exceeded", 1), ("originated", 1)]);
    assert_eq!((too_big(&error).0, &error[12..16]), (1500, &[0x81, 0, 0, 5][..]));
}

#[test]
fn errors_are_bounded_and_take_nothing_from_new_flows() {
    let mut world = plain();
    world.snapshot.settings.miss_rate = 20;
    world.snapshot.settings.error_rate = 1000;
    let mut errors = 0;
    for burst in 0..1000u64 {
        world.now = Now::from_ns(10_000_000_000 + burst * 1_000_000);
        let longer = HeapBuf::new(&of_length(&v4(A, R), 1501));
        errors += world.run(1, vec![longer; 64]).len();
    }
    assert!((1000..=1052).contains(&errors), "{errors} errors in a second");
    world.one(1, &v4(A, R).tcp(1, 2, 2, b""), &ENCAP);
}

/// What others send to a vNIC in too long packets takes nothing of what the vNIC is told of its own.
#[test]
fn errors_about_what_comes_take_nothing_from_those_about_what_is_sent() {
    let mut world = plain();
    world.snapshot.settings.error_rate = 10;
    let long_in = tunnelled(&of_length(&v4(R, A), 1501));
    let flood = (0..200).map(|_| world.pass(UPLINK, &long_in).len()).sum::<usize>();
    assert!((1..=10).contains(&flood), "{flood} errors to R");
    assert_eq!(world.pass(1, &of_length(&v4(A, R), 1501)).len(), 1, "A is told");
}
