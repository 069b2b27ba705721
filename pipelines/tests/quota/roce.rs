//! What is a queue pair and what is not, and what the view says of one.

use pipelines::Direction;
use pipelines::drops::DropReason;
use pipelines::flow_key::Scope;
use pipelines::rcft::{QpKey, QpView};
use pipelines::stage::key::RoceClasses;
use wire::roce::opcode::{Operation, extended_len};
use wire::roce::{Aeth, Bth, Reth, opcode};
use wire::{Psn, Qpn, View};

use super::*;

fn sent_view(world: &World, to: Station, qpn: u32) -> QpView {
    let key = QpKey::new(Scope::Vnic(0), to.v4.into(), Qpn::truncated(qpn));
    world.worker.overlay.rcft().view(Direction::Out, &key).expect("a queue pair toward the wire")
}

fn received_view(world: &World, of: Station, qpn: u32) -> QpView {
    let key = QpKey::new(Scope::Vpc(0), of.v4.into(), Qpn::truncated(qpn));
    world.worker.overlay.rcft().view(Direction::In, &key).expect("a queue pair from the wire")
}

/// Every opcode there is, over IPv4 and IPv6: forwarded whatever it is, and a queue pair only when it is one of RC
/// or XRC that the standard assigns.
#[test]
fn roce_every_opcode_is_forwarded_and_only_rc_is_counted() {
    for v6_peer in [false, true] {
        for code in 0..=255u8 {
            let path = if v6_peer { v6(A, R) } else { v4(A, R) };
            let mut world = plain();
            let body = vec![0; extended_len(code).unwrap_or(0) + 16];
            let frame = rc(path, code, 0x1234, 7, &body);
            assert_eq!(world.pass(1, &frame).len(), 1, "opcode {code:02x}");
            let reliable = matches!(code >> 5, 0 | 5) && Operation::of(code).is_some();
            assert_eq!(world.shared.rcft.ledger.count(0), u32::from(reliable), "opcode {code:02x}");
            let unknown = world.worker.counters.roce_unknown.get();
            let known = Operation::of(code).is_some() || matches!(code >> 5, 1 | 2 | 3 | 6 | 7);
            assert_eq!(unknown, u64::from(!known), "opcode {code:02x}");
        }
    }
}

#[test]
fn unknown_roce_packets_are_forwarded_and_never_a_queue_pair() {
    let mut world = plain();
    world.snapshot.settings.miss_rate = 0;
    // A BTH cut short at every length.
    for len in 0..12 {
        world.pass(1, &v4(A, R).udp(1, 4791, &[0x0a; 12][..len]));
    }
    // Queue pairs 0 and 1; a header version of the future; reserved bits; a pad count beyond the payload.
    for qpn in [0, 1] {
        world.pass(1, &write(v4(A, R), qpn, 0));
    }
    assert_eq!((world.worker.counters.roce_unknown.get(), world.shared.rcft.ledger.count(0)), (14, 0));
    assert_eq!(world.worker.counters.sent.get(), 14);
    let mut bth = Bth::new(opcode::RC_ACK, Qpn::truncated(9), Psn::truncated(0));
    (bth.flags, bth.ack, bth.congestion) = (0x3f, 0x7f, 0x3f);
    world.pass(1, &v4(A, R).roce(1, bth, &[]));
    assert_eq!((world.worker.counters.sent.get(), world.shared.rcft.ledger.count(0)), (15, 1));
}

#[test]
fn roce_on_another_udp_port() {
    let mut world = plain();
    world.snapshot.settings.rdma_port = 5000;
    quota(&world, 0, 0);
    let payload = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(9), Psn::truncated(0)).bytes().to_vec();
    let to = |port| v4(A, R).udp(1, port, &[payload.as_slice(), &[0; 8]].concat());
    world.expect(1, &[to(5000)], &[("nft-misses", 1), ("qp-quota", 1)]);
    world.one(1, &to(4791), &FIRST);
}

/// Dynamically connected transport and the like: what is configured is under quotas and in the view, on both paths; what is not passes.
#[test]
fn roce_vendor_opcodes_count_where_they_are_configured() {
    for tag in [None, Some(5)] {
        let path = || match tag {
            Some(tci) => v4(A, R).tagged(tci),
            None => v4(A, R),
        };
        let mut world = plain();
        world.keep_vlan(0);
        quota(&world, 0, 0);
        let dc = |opcode, qpn| rc(path(), opcode, qpn, 7, &[0; 32]);
        world.one(1, &dc(0xc4, 9), &FIRST);
        world.snapshot.settings.roce_classes = RoceClasses::counting([0xc4, 0xe0, opcode::UD_SEND_ONLY]);
        world.expect(1, &[dc(0xc4, 9)], &[("nft-misses", 1), ("qp-quota", 1)]);
        world.one(1, &dc(0xc5, 9), &NEXT);
        // What the standard has assigned stays what it is.
        world.one(1, &dc(opcode::UD_SEND_ONLY, 9), &FIRST);
        quota(&world, 0, 1);
        for found in [1, 2] {
            world.one(1, &dc(0xc4, 9), &NEXT);
            world.one(1, &dc(0xe0, 9), &NEXT);
            let view = sent_view(&world, R, 9);
            assert_eq!((view.packets, view.last_opcode), (2 * found, 0xe0));
            assert_eq!(
                (view.next_psn, view.events.gaps, view.acks),
                (None, 0, 0),
                "what they mean nobody knows"
            );
        }
        world.expect(1, &[dc(0xc4, 10)], &REFUSED);
        assert_eq!(world.shared.rcft.ledger.count(0), 1);
        assert_eq!(world.worker.counters.roce_unknown.get(), 0);
    }
}

#[test]
fn roce_view_of_a_queue_pair() {
    let mut world = plain();
    // Three writes in order, one lost, the lost one and its successor again; a read of three packets.
    for psn in [5, 6, 8, 7, 8, 9] {
        world.pass(1, &write(v4(A, R), 0x77, psn));
    }
    let first = [Reth::new(0, 1, 3000).bytes(), &[0; 1024]].concat();
    world.pass(1, &rc(v4(A, R), opcode::RC_WRITE_FIRST, 0x77, 10, &first));
    world.pass(1, &rc(v4(A, R), opcode::RC_READ_REQUEST, 0x77, 11, Reth::new(0, 1, 3000).bytes()));
    world.pass(1, &write(v4(A, R), 0x77, 14));
    // What R answers: an ACK, a NAK, an RNR NAK, a congestion notification, data marked on the way.
    let answer = |syndrome| rc(v4(R, A), opcode::RC_ACK, 0x55, 8, Aeth::new(syndrome, 1).bytes());
    for syndrome in [0x1f, 0x60, 0x2a] {
        world.pass(UPLINK, &tunnelled(&answer(syndrome)));
    }
    world.pass(UPLINK, &tunnelled(&v4(R, A).cnp(1, Qpn::truncated(0x55))));
    world.pass(UPLINK, &tunnelled(&write(v4(R, A).with_tos(0x6b), 0x55, 3)));
    // A answers with a notification of its own.
    world.pass(1, &v4(A, R).cnp(1, Qpn::truncated(0x77)));
    world.pass(1, &v4(A, R).cnp(1, Qpn::truncated(0x78)));

    let out = sent_view(&world, R, 0x77);
    assert_eq!((out.packets, out.acks, out.path_mtu, out.next_psn), (9, 0, Some(1024), Some(15)));
    assert_eq!((out.events.gaps, out.events.retransmissions, out.events.cnp), (1, 2, 1));
    assert_eq!(out.last_opcode, opcode::RC_WRITE_ONLY);
    let back = received_view(&world, A, 0x55);
    assert_eq!((back.packets, back.acks), (4, 1));
    let events = back.events;
    assert_eq!((events.nak_sequence, events.rnr, events.cnp, events.ce), (1, 1, 1, 1));
    assert_eq!((events.gaps, events.retransmissions, events.nak_fatal), (0, 0, [0; 4]));
    // A notification opens no queue pair.
    assert_eq!(world.shared.rcft.ledger.count(0), 1);
}

#[test]
fn roce_refused_packets_are_not_in_the_view_and_have_their_names() {
    let mut world = plain();
    quota(&world, 0, 1);
    for psn in 0..5 {
        world.pass(1, &write(v4(A, R), 0x77, psn));
        world.pass(1, &write(v4(A, R), 0x78, psn));
    }
    assert_eq!(sent_view(&world, R, 0x77).packets, 5);
    let gone = QpKey::new(Scope::Vnic(0), R.v4.into(), Qpn::truncated(0x78));
    assert_eq!(world.worker.overlay.rcft().view(Direction::Out, &gone), None);
    assert_eq!(world.worker.counters.drops(DropReason::QP_QUOTA), 5);
    // Told once: with whom and why.
    let event = world.shared.events.pop().unwrap();
    let pipelines::event::Event::QpRefused { vnic, peer, qpn, reason } = event else { panic!("{event:?}") };
    assert_eq!((vnic, peer, qpn.get(), reason), (0, R.v4.into(), 0x78, DropReason::QP_QUOTA));
    assert_eq!(world.shared.events.pop(), None);
}

/// The source's own sequence of a lossy stream: no more gaps than packets lost, no claim about read responses.
#[test]
fn roce_xrc_counts_as_rc() {
    let mut world = plain();
    quota(&world, 0, 1);
    let xrc = |qpn| rc(v4(A, R), 0xa4, qpn, 0, &[0; 8]);
    world.one(1, &xrc(9), &FIRST);
    world.expect(1, &[xrc(10)], &REFUSED);
    // XRC and RC are different flows of the NFT, but one kind of queue pair.
    world.expect(1, &[write(v4(A, R), 10, 0)], &[("nft-misses", 1), ("qp-quota", 1)]);
    assert_eq!(sent_view(&world, R, 9).packets, 1);
}
