//! Connection requests over quota, and what control hears of the connection manager.

use std::net::IpAddr;

use pipelines::event::Event;
use pipelines::rcft::LedgerLimits;
use wire::cm::{Cm, CmMessage, RejectReason, Req, Transport};
use wire::{Psn, Qpn, View};

use super::*;

fn req(from: Station, to: Station, transport: Transport) -> Cm {
    let gid = |station: Station| wire::cm::Gid(station.v4.to_ipv6_mapped().octets());
    Cm::new(
        77,
        CmMessage::Req(Req {
            local_comm_id: 0x1111,
            service_id: 0x0106_1234,
            local_ca_guid: 1,
            local_qpn: Qpn::truncated(0x20),
            transport,
            starting_psn: Psn::truncated(5),
            pkey: 0xffff,
            path_mtu: Some(1024),
            local_gid: gid(from),
            remote_gid: gid(to),
        }),
    )
}

fn rejecting(world: &World, vnic: u32, quota: u32) {
    keeper(world).set_limits(vnic, LedgerLimits { quota, reject: true, ..LedgerLimits::NONE });
}

fn read(frame: &[u8]) -> Cm {
    let headers = sound(frame);
    assert_eq!(wire::icrc::verify(&headers, [frame]), Some(true), "ICRC");
    Cm::of(&headers, frame).unwrap()
}

const REJECT: [(&str, u64); 3] = [("nft-misses", 1), ("qp-quota", 1), ("originated", 1)];

#[track_caller]
fn is_reject(frame: &[u8], from: (IpAddr, wire::MacAddr), to: Station) {
    let headers = sound(frame);
    let eth = headers.ethernet(frame).unwrap();
    let source = match headers.ipv4(frame) {
        Some(ip) => IpAddr::from(ip.src()),
        None => headers.ipv6(frame).unwrap().src().into(),
    };
    assert_eq!((source, eth.src, eth.dst), (from.0, from.1, to.mac));
    let cm = read(frame);
    assert_eq!(cm.transaction, 77);
    match cm.message {
        CmMessage::Rej { remote_comm_id, reason, .. } => {
            assert_eq!((remote_comm_id, reason), (0x1111, RejectReason::NO_RESOURCES));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn quota_requests_of_a_full_vnic_are_rejected() {
    for v6_peer in [false, true] {
        let path = |from, to| if v6_peer { v6(from, to) } else { v4(from, to) };
        let address = |station: Station| if v6_peer { IpAddr::from(station.v6) } else { station.v4.into() };
        let mut world = plain();
        rejecting(&world, 0, 1);
        // Under the quota a request passes.
        let frame = path(A, R).cm(9, &req(A, R, Transport::Rc));
        world.one(1, &frame, &FIRST);
        world.one(1, &write(path(A, R), 10, 0), &FIRST);
        // Full: to R, by way of the router, to B on the same host.
        let rejected = [("nft-hits", 1), ("qp-quota", 1), ("originated", 1)];
        let (port, answer) = world.one(1, &frame, &rejected);
        assert_eq!(port, 1);
        is_reject(&answer, (address(R), R.mac), A);
        let (_, answer) = world.one(1, &routed(path(A, S)).cm(9, &req(A, S, Transport::Rc)), &REJECT);
        is_reject(&answer, (address(S), ROUTER), A);
        let (_, answer) = world.one(1, &path(A, B).cm(9, &req(A, B, Transport::Rc)), &REJECT);
        is_reject(&answer, (address(B), B.mac), A);
        // A request to it is rejected as well: from the host itself ...
        let (port, answer) = world.one(2, &path(B, A).cm(9, &req(B, A, Transport::Rc)), &REJECT);
        assert_eq!(port, 2);
        is_reject(&answer, (address(A), A.mac), B);
        // ... and out of the tunnel.
        let asked = tunnelled(&path(R, A).cm(9, &req(R, A, Transport::Rc)));
        let mut moved = REJECT.to_vec();
        moved.extend([("decapsulated", 1), ("encapsulated", 1)]);
        let (port, answer) = world.one(UPLINK, &asked, &moved);
        assert_eq!(port, UPLINK);
        is_reject(&open::open(&answer).inner, (address(A), A.mac), R);
        assert_eq!(world.worker.counters.vnic(0).qps_rejected.get(), 5);
        assert_eq!(world.worker.counters.vnic(0).qps_refused.get(), 5, "a reject is a refusal");
        assert_eq!(world.worker.counters.vnic(0).cm_messages.get(), 1);
    }
}

#[test]
fn quota_only_requests_for_reliable_connections_are_rejected() {
    let mut world = plain();
    rejecting(&world, 0, 0);
    world.one(1, &v4(A, R).cm(9, &req(A, R, Transport::Uc)), &FIRST);
    let ids = (1, 2);
    for message in [
        CmMessage::Rtu { local_comm_id: ids.0, remote_comm_id: ids.1 },
        CmMessage::Dreq { local_comm_id: ids.0, remote_comm_id: ids.1, remote_qpn: Qpn::truncated(9) },
        CmMessage::SidrReq { request_id: 1, pkey: 0xffff, service_id: 2 },
    ] {
        world.one(1, &v4(A, R).cm(9, &Cm::new(1, message)), &NEXT);
    }
    // Without the wish for it nothing is rejected: the data packets decide.
    quota(&world, 0, 0);
    world.one(1, &v4(A, R).cm(9, &req(A, R, Transport::Rc)), &NEXT);
}

#[test]
fn quota_messages_of_wrong_class_or_length_pass_and_are_counted() {
    let mut world = plain();
    rejecting(&world, 0, 0);
    let whole = v4(A, R).cm(9, &req(A, R, Transport::Rc));
    let payload = &whole[42..];
    let mut frames = Vec::new();
    for (at, value) in [(20, 2), (21, 8), (22, 3), (23, 1), (37, 0x55), (12, 0)] {
        let mut payload = payload.to_vec();
        payload[at] = value;
        frames.push(v4(A, R).udp_without_checksum(9, 4791, &payload));
    }
    for len in [12, 20, 44, 100, payload.len() - 1] {
        frames.push(v4(A, R).udp_without_checksum(9, 4791, &payload[..len]));
    }
    for (n, frame) in frames.iter().enumerate() {
        let flow = if n == 0 { ("nft-misses", 1) } else { ("nft-hits", 1) };
        world.one(1, frame, &[flow, ("encapsulated", 1), ("cm-unknown", 1)]);
    }
    assert_eq!(world.worker.counters.vnic(0).qps_rejected.get(), 0);
}

#[test]
fn quota_control_hears_messages_of_both_ends() {
    let mut world = plain();
    let sent = |event: Option<Event>| match event {
        Some(Event::Cm { vnic, peer, sends, message }) => (vnic, peer, sends, message.name()),
        other => panic!("{other:?}"),
    };
    world.pass(1, &v4(A, R).cm(9, &req(A, R, Transport::Rc)));
    assert_eq!(sent(world.shared.events.pop()), (0, R.v4.into(), true, "req"));
    world.pass(UPLINK, &tunnelled(&v4(R, A).cm(9, &req(R, A, Transport::Rc))));
    assert_eq!(sent(world.shared.events.pop()), (0, R.v4.into(), false, "req"));
    // Between two of one host: each of them.
    world.pass(1, &v4(A, B).cm(9, &req(A, B, Transport::Rc)));
    assert_eq!(sent(world.shared.events.pop()), (0, B.v4.into(), true, "req"));
    assert_eq!(sent(world.shared.events.pop()), (1, A.v4.into(), false, "req"));
    assert_eq!(world.shared.events.pop(), None);
}

/// A flood of requests is forwarded (or rejected) like any traffic; control hears a bounded part of it, and a
/// vNIC's flood leaves other events their room.
#[test]
fn quota_a_flood_of_requests_stays_bounded() {
    let mut world = plain();
    let frame = v4(A, R).cm(9, &req(A, R, Transport::Rc));
    for _ in 0..5000 {
        assert_eq!(world.pass(1, &frame).len(), 1);
    }
    quota(&world, 0, 0);
    world.pass(1, &write(v4(A, R), 9, 0));
    // The world's queues hold sixteen: a vNIC alone takes half of that, and what control does not hear of is counted.
    let counters = world.worker.counters.vnic(0);
    assert_eq!((counters.cm_messages.get(), counters.cm_unheard.get()), (5000, 4992));
    assert!(matches!(world.shared.events.pop(), Some(Event::QpRefused { .. })));
    assert_eq!(std::iter::from_fn(|| world.shared.events.pop()).count(), 8);
    assert_eq!(frame[42..].len(), wire::cm::UDP_PAYLOAD_LEN);
    assert!(wire::roce::Bth::view(&frame[42..]).is_some());
}

/// A reject is told, once a second; and where a silent queue pair would give way the request passes.
#[test]
fn repair_rejects_are_told_and_not_given_where_somebody_gives_way() {
    let mut world = plain();
    rejecting(&world, 0, 1);
    let frame = v4(A, R).cm(9, &req(A, R, Transport::Rc));
    world.one(1, &write(v4(A, R), 10, 0), &FIRST);
    while world.shared.events.pop().is_some() {}
    for _ in 0..3 {
        world.pass(1, &frame);
    }
    let told: Vec<Event> = std::iter::from_fn(|| world.shared.events.pop()).collect();
    let [Event::ConnectionRejected { vnic: 0, peer, asked: true, .. }] = told[..] else { panic!("{told:?}") };
    assert_eq!(peer, IpAddr::from(R.v4));
    keeper(&world).set_silent(0, 1);
    let sent = world.pass(1, &frame);
    assert_eq!(sent.len(), 1);
    assert_eq!(world.worker.counters.vnic(0).qps_rejected.get(), 3, "it was let through");
}

/// Of two queue pairs under a quota that was lowered to one, a silent one helps nobody: a request that passed would wait for
/// ever. Two silent ones make room.
#[test]
fn quota_requests_below_a_lowered_quota_are_rejected_unless_enough_give_way() {
    let mut world = plain();
    rejecting(&world, 0, 2);
    for qpn in [10, 11] {
        world.pass(1, &write(v4(A, R), qpn, 0));
    }
    let ledger = world.worker.overlay.rcft().shared().ledger.clone();
    assert_eq!(ledger.staying(0), 2);
    let frame = v4(A, R).cm(9, &req(A, R, Transport::Rc));
    for (quota, silent, rejected) in [(1, 0, true), (1, 1, true), (1, 2, false), (2, 1, false), (0, 2, true)]
    {
        rejecting(&world, 0, quota);
        keeper(&world).set_silent(0, silent);
        let before = world.worker.counters.vnic(0).qps_rejected.get();
        world.pass(1, &frame);
        let now = world.worker.counters.vnic(0).qps_rejected.get();
        assert_eq!(now - before, u64::from(rejected), "quota {quota}, {silent} of two silent");
        assert_eq!(ledger.makes_room(0), !rejected);
    }
}
