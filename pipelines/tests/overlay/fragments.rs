//! Fragments of tenants' packets, and ICMP errors.

use std::sync::Arc;

use pipelines::Now;
use pipelines::flow_key::FlowKey;
use pipelines::snapshot::{Gateway, RouteTarget};
use wire::HeapBuf;
use wire::build::Path;

use testkit::open::open;
use testkit::*;

/// A UDP datagram of 1000 bytes in fragments of 400, of both families.
fn fragments(path: &Path, id: u32) -> Vec<Vec<u8>> {
    let mut path = path.clone();
    path.dont_fragment = false;
    let whole = path.udp(5000, 6000, &[7; 1000]);
    let headers = wire::parse::parse(&whole, whole.len()).unwrap();
    path.fragments(17, &whole[usize::from(headers.l4_offset)..], id, 400)
}

#[test]
fn fragments_share_the_flow_and_the_path_of_their_first_one() {
    for path in [v4(A, R), v6(A, R)] {
        let mut world = plain();
        let whole = world.one(1, &path.udp(5000, 6000, b"whole"), &ENCAP).1;
        let pieces = fragments(&path, 1);
        let later = pieces.len() as u64 - 1;
        let moved = [("nft-hits", later + 1), ("fragments", later), ("encapsulated", later + 1)];
        let out = world.expect(1, &pieces, &moved);
        for (piece, (_, wire)) in pieces.iter().zip(&out) {
            assert_eq!(open(wire).inner, *piece);
            assert_eq!(open(wire).source_port, open(&whole).source_port);
        }
        // Out of the tunnel as well.
        let inward: Vec<_> = fragments(
            &match path.ip {
                wire::build::Pair::V4(..) => v4(R, A),
                wire::build::Pair::V6(..) => v6(R, A),
            },
            2,
        );
        let wrapped: Vec<_> = inward.iter().map(|frame| tunnelled(frame)).collect();
        let moved =
            [("nft-misses", 1), ("nft-hits", later), ("fragments", later), ("decapsulated", later + 1)];
        let out = world.expect(UPLINK, &wrapped, &moved);
        assert!(out.into_iter().map(|(_, frame)| frame).eq(inward));
    }
}

#[test]
fn later_fragments_alone_are_unknown() {
    for path in [v4(A, R), v6(A, R)] {
        let mut world = plain();
        let pieces = fragments(&path, 1);
        world.expect(1, &pieces[1..2], &[("fragment-unknown", 1)]);
        world.pass(1, &pieces[0]);
        world.expect(1, &pieces[1..2], &[("nft-hits", 1), ("fragments", 1), ("encapsulated", 1)]);
        // Another id, another sender, another direction, or half a minute later.
        world.expect(1, &fragments(&path, 2)[1..2], &[("fragment-unknown", 1)]);
        let from_b = match path.ip {
            wire::build::Pair::V4(..) => v4(B, R),
            wire::build::Pair::V6(..) => v6(B, R),
        };
        world.expect(2, &fragments(&from_b, 1)[1..2], &[("fragment-unknown", 1)]);
        world.now = Now::from_ns(world.now.ns + 30_000_000_000);
        world.expect(1, &pieces[1..2], &[("nft-hits", 1), ("fragments", 1), ("encapsulated", 1)]);
        world.now = Now::from_ns(world.now.ns + 200_000_000);
        world.expect(1, &pieces[1..2], &[("fragment-unknown", 1)]);
    }
}

#[test]
fn two_workers_share_what_first_fragments_say() {
    let mut world = plain();
    let mut other = TestWorker::new(64, world.shared.clone(), 0);
    let pieces = fragments(&v4(A, R), 9);
    world.pass(1, &pieces[0]);
    let now = world.now;
    assert_eq!(other.run(&world.snapshot, now, 1, vec![HeapBuf::new(&pieces[1])]).len(), 1);
    // A worker whose clock was read a little earlier, too.
    let earlier = Now::from_ns(now.ns - 200_000_000);
    assert_eq!(other.run(&world.snapshot, earlier, 1, vec![HeapBuf::new(&pieces[2])]).len(), 1);
    assert_eq!(other.counters.fragments.get(), 2);
    // Both at once, on threads of their own: found, or unknown; never mistaken for another datagram's.
    let table = Arc::new(pipelines::fragments::Fragments::new(8, 5));
    std::thread::scope(|scope| {
        for worker in 0..2u16 {
            let table = table.clone();
            scope.spawn(move || {
                for n in 0..200_000u64 {
                    let key = FlowKey::from_words([n % 64, 0, 0, 0, (n % 64) << 32, 0, 17]);
                    let port = (n % 64) as u16;
                    let first = pipelines::fragments::FirstFragment {
                        sport: port,
                        dport: worker,
                        proto: 17,
                        class: 0,
                    };
                    if n % 3 == 0 {
                        table.store(&key, first, 100);
                    } else if let Some(found) = table.find(&key, 100) {
                        assert_eq!(found.sport, port);
                    }
                }
            });
        }
    });
}

#[test]
fn fragments_of_roce_belong_to_its_class() {
    let mut world = plain();
    let bth = wire::roce::Bth::new(0x0a, wire::Qpn::truncated(0x11), wire::Psn::truncated(1));
    let mut path = v4(A, R);
    path.dont_fragment = false;
    let whole = path.roce(1234, bth, &[1; 1000]);
    let pieces = path.fragments(17, &whole[34..], 3, 400);
    let count = pieces.len() as u64;
    world.expect(
        1,
        &pieces,
        &[("nft-misses", 1), ("nft-hits", count - 1), ("fragments", count - 1), ("encapsulated", count)],
    );
    let (entries, _) = world.worker.overlay.nft().scan(0, 10);
    assert_eq!((entries.len(), entries[0].key.class()), (1, pipelines::stage::key::CLASS_RC));
}

#[test]
fn icmp_errors_travel_with_what_they_quote() {
    let mut world = plain();
    // A tells R that its port is closed; a router outside tells A that its packet was too big.
    let quoted = &v4(R, A).udp(1, 2, b"question")[14..];
    let error = v4(A, R).ip(1, &[[3, 3, 0, 0, 0, 0, 0, 0].as_slice(), quoted].concat());
    assert_eq!(open(&world.one(1, &error, &ENCAP).1).inner, error);
    let quoted = &v4(A, R).udp(1, 2, b"question")[14..];
    let slot = world.writer.allocate(world.tunnel(0, 2)).unwrap();
    let gateway = Gateway { vtep: host_v4(2).into(), slot, mac: R.mac };
    world.route(0, &[("0.0.0.0/0", RouteTarget::Gateways(vec![gateway]))]);
    world.snapshot.touch_vpc(0);
    let mut path = v4(R, A);
    path.ip = wire::build::Pair::V4("192.0.2.1".parse().unwrap(), A.v4);
    let error = path.ip(1, &[[3, 4, 0, 0, 0, 0, 5, 0].as_slice(), quoted].concat());
    assert_eq!(world.one(UPLINK, &tunnelled(&error), &DECAP), (1, error));
    let quoted = &v6(A, R).udp(1, 2, b"question")[14..];
    let error = v6(R, A).ip(58, &[[2, 0, 0, 0, 0, 0, 5, 0].as_slice(), quoted].concat());
    assert_eq!(world.one(UPLINK, &tunnelled(&error), &DECAP), (1, error));
}
