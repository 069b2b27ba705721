//! Security groups and queue pairs: what the RCFT has admitted opens the way in for its peer, and nothing else does.

use pipelines::connections::{ConnectionKeeper, ConnectionTimes};
use pipelines::drops::DropReason;
use pipelines::rcft::{Keeper, LedgerLimits};
use pipelines::security::Traffic;
use pipelines::{Direction, Now};
use wire::build::Path;
use wire::cm::{Cm, CmMessage, Gid, Req, Transport};
use wire::roce::{Bth, opcode};
use wire::{HeapBuf, Psn, Qpn};

use testkit::*;

use super::security::*;

/// A packet of A's to R.
fn out(op: u8, qpn: u32) -> Vec<u8> {
    roce(A, R, op, qpn)
}

/// One of R's to A, as it comes out of the tunnel.
fn back(op: u8, qpn: u32) -> Vec<u8> {
    tunnelled(&roce(R, A, op, qpn))
}

fn roce(from: Station, to: Station, op: u8, qpn: u32) -> Vec<u8> {
    v4(from, to).roce(3000, Bth::new(op, Qpn::truncated(qpn), Psn::truncated(1)), &[0; 32])
}

/// A world in which A is in a group that lets nothing in, with so many queue pairs at most.
fn closed(quota: u32) -> World {
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    set_quota(&world, quota);
    world
}

fn set_quota(world: &World, quota: u32) {
    let keeper = Keeper::new(world.shared.rcft.ledger.clone());
    keeper.set_limits(0, LedgerLimits { quota, ..LedgerLimits::NONE });
}

fn drops(world: &World, reason: DropReason) -> u64 {
    world.worker.counters.drops(reason)
}

#[test]
fn security_a_queue_pair_that_is_refused_opens_no_way_in() {
    let mut world = closed(0);
    for _ in 0..3 {
        assert!(!passes(&mut world, 1, &out(opcode::RC_WRITE_ONLY, 9)));
        assert!(!passes(&mut world, UPLINK, &back(opcode::RC_WRITE_ONLY, 8)));
        assert!(!passes(&mut world, UPLINK, &back(opcode::RC_ACK, 8)));
    }
    assert_eq!((drops(&world, DropReason::QP_QUOTA), drops(&world, DropReason::SECURITY_IN)), (3, 6));
    assert_eq!(world.shared.connections.ledger().count(0), 0);
    // With the first that is admitted, although its flow is known by then.
    set_quota(&world, 1);
    assert!(passes(&mut world, 1, &out(opcode::RC_WRITE_ONLY, 9)));
    assert!(!passes(&mut world, 1, &out(opcode::RC_WRITE_ONLY, 10)));
    assert!(passes(&mut world, UPLINK, &back(opcode::RC_WRITE_ONLY, 8)));
    assert!(passes(&mut world, UPLINK, &back(opcode::RC_ACK, 8)));
    assert!(passes(&mut world, UPLINK, &tunnelled(&v4(R, A).cnp(3000, Qpn::truncated(8)))));
}

/// In one burst: the flow is new to all of them, and the RCFT admits one.
#[test]
fn security_a_queue_pair_among_refused_ones_opens_the_way_in() {
    let mut world = closed(1);
    let frames = [9, 10, 11].map(|qpn| out(opcode::RC_WRITE_ONLY, qpn));
    assert_eq!(world.run(1, frames.iter().map(|frame| HeapBuf::new(frame)).collect()).len(), 1);
    assert!(passes(&mut world, UPLINK, &back(opcode::RC_ACK, 8)));
    assert_eq!(world.shared.connections.ledger().count(0), 1);
}

/// What the RCFT does not admit opens nothing for what it does: UD, UC, opcodes that mean nothing or are a vendor's, queue pairs of
/// management. They have a connection of their own.
#[test]
fn security_datagrams_open_no_way_in_for_queue_pairs() {
    for op in [opcode::UD_SEND_ONLY, 0x24, 0xc4, 0x9f] {
        let mut world = closed(u32::MAX);
        assert!(passes(&mut world, 1, &out(op, 9)), "{op:#x}");
        for reliable in [opcode::RC_WRITE_ONLY, opcode::RC_ACK, 0xa4] {
            assert!(!passes(&mut world, UPLINK, &back(reliable, 8)), "{op:#x} {reliable:#x}");
        }
        assert!(passes(&mut world, UPLINK, &back(op, 8)), "{op:#x}");
        assert!(passes(&mut world, UPLINK, &tunnelled(&v4(R, A).cnp(3000, Qpn::truncated(8)))), "{op:#x}");
    }
    for (op, qpn) in [(opcode::RC_WRITE_ONLY, 1), (0x1f, 9), (0xbf, 9)] {
        let mut world = closed(u32::MAX);
        passes(&mut world, 1, &out(op, qpn));
        assert!(!passes(&mut world, UPLINK, &back(opcode::RC_WRITE_ONLY, 8)), "{op:#x} {qpn}");
    }
}

/// The passive end of a connection may be the first to send: right after the RTU, if there is a place for the queue pair.
#[test]
fn security_a_connection_that_was_agreed_upon_opens_the_way_in_while_there_is_a_place() {
    for quota in [0, 1] {
        let mut world = closed(quota);
        let cm = |path: Path, message| path.cm(9, &Cm::new(77, message));
        let req = CmMessage::Req(Req {
            local_comm_id: 1,
            service_id: 1,
            local_ca_guid: 1,
            local_qpn: Qpn::truncated(8),
            transport: Transport::Rc,
            starting_psn: Psn::truncated(0),
            pkey: 0xffff,
            path_mtu: None,
            local_gid: Gid([0; 16]),
            remote_gid: Gid([0; 16]),
        });
        assert!(passes(&mut world, 1, &cm(v4(A, R), req)));
        assert!(!passes(&mut world, UPLINK, &back(opcode::RC_SEND_ONLY, 8)));
        let rep = CmMessage::Rep {
            local_comm_id: 2,
            remote_comm_id: 1,
            local_qpn: Qpn::truncated(9),
            starting_psn: Psn::truncated(0),
            local_ca_guid: 1,
        };
        assert!(passes(&mut world, UPLINK, &tunnelled(&cm(v4(R, A), rep))), "an answer to the request");
        let rtu = CmMessage::Rtu { local_comm_id: 1, remote_comm_id: 2 };
        assert!(passes(&mut world, 1, &cm(v4(A, R), rtu)));
        assert_eq!(passes(&mut world, UPLINK, &back(opcode::RC_SEND_ONLY, 8)), quota == 1, "quota {quota}");
        assert_eq!(passes(&mut world, 1, &out(opcode::RC_ACK, 9)), quota == 1, "quota {quota}");
    }
}

/// A worker that has never seen it, a vNIC that comes into its first group, a connection table that is full.
#[test]
fn security_queue_pairs_that_are_known_already_open_the_way_in() {
    let mut world = plain();
    world.shared = SharedTables::new(2);
    let mut workers = [0, 1].map(|number| TestWorker::new(256, world.shared.clone(), number));
    let write = out(opcode::RC_WRITE_ONLY, 9);
    let mut pass = |world: &World, worker: usize, port, frame: &[u8]| {
        !workers[worker].run(&world.snapshot, world.now, port, vec![HeapBuf::new(frame)]).is_empty()
    };
    assert!(pass(&world, 0, 1, &write) && pass(&world, 1, 1, &write));
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    let keeper = ConnectionKeeper::new(world.shared.connections.clone(), HOUR);
    keeper.set_limits(0, 0, 0);
    assert!(!pass(&world, 1, 1, &write), "no place in the connection table");
    assert!(!pass(&world, 0, UPLINK, &back(opcode::RC_ACK, 8)));
    keeper.set_limits(0, 1, 0);
    assert!(pass(&world, 1, 1, &write) && pass(&world, 0, UPLINK, &back(opcode::RC_ACK, 8)));
}

/// In ticks of 100 ms.
const HOUR: ConnectionTimes = ConnectionTimes {
    tcp_opening: 36_000,
    tcp_established: 36_000,
    tcp_closing: 36_000,
    one_way: 36_000,
    both_ways: 36_000,
    icmp: 36_000,
    rdma: 36_000,
};

/// Packets of either side keep no way in open, control does, which knows what has a place; a rule lets peers in again.
#[test]
fn security_the_way_in_is_open_while_control_says_that_there_is_a_queue_pair() {
    for by_rule in [false, true] {
        let mut world = plain();
        let open = [rule(Direction::In, Traffic::Rdma, pipelines::security::Peer::Any)];
        secure(&mut world, &[group(if by_rule { &open } else { &[] })], &[(A, &[0])]);
        let (write, request) = (out(opcode::RC_WRITE_ONLY, 9), back(opcode::RC_WRITE_ONLY, 8));
        assert!(passes(&mut world, 1, &write) && passes(&mut world, UPLINK, &request));
        let mut keeper = ConnectionKeeper::new(world.shared.connections.clone(), HOUR);
        let mut go_on = |world: &mut World, held: bool| {
            world.now = Now::from_ns(world.now.ns + 60_000_000_000);
            let key = pipelines::connections::ConnectionKey::queue_pairs(0, R.v4.into());
            if let Some(found) = world.shared.connections.find(&key).filter(|_| held) {
                world.shared.connections.touch(found.slot, world.now.tick);
            }
            keeper.set_held_since(Some(world.now.tick - 20));
            keeper.sweep(u32::MAX, world.now.tick, |_| false);
            for _ in 0..4 {
                keeper.advance();
                world.worker.overlay.idle(world.now);
            }
        };
        for _ in 0..3 {
            go_on(&mut world, true);
            assert!(passes(&mut world, UPLINK, &request), "the vNIC is silent, and has its queue pair");
        }
        passes(&mut world, 1, &write);
        go_on(&mut world, false);
        assert_eq!(passes(&mut world, UPLINK, &request), by_rule);
    }
}
