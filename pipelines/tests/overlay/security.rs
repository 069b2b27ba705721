//! Security groups on the way of packets: connections, replies on another worker, changes of rules, queue pairs.

use std::sync::Arc;

use pipelines::connections::{ConnectionKeeper, ConnectionTimes};
use pipelines::drops::DropReason;
use pipelines::security::{Group, GroupSet, Peer, Policy, Rule, Security, Traffic};
use pipelines::snapshot::{Destination, Prefix, RouteTarget};
use pipelines::{Direction, Now};
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::tcp::flags::{ACK, FIN, PSH, RST, SYN};
use wire::{HeapBuf, Psn, Qpn};

use testkit::*;

/// Gives vNICs and stations groups: `members` says which station is in which groups (by their place in `groups`).
pub(super) fn secure(world: &mut World, groups: &[Group], members: &[(Station, &[u32])]) {
    let mut security = Security { epoch: world.snapshot.security.epoch + 1, sets: Vec::new() };
    for &(station, of) in members {
        let policy = Policy::compile(of.iter().map(|&group| &groups[group as usize]));
        security.sets.push(GroupSet { groups: of.into(), policy: Some(Arc::new(policy)) });
        let set = security.sets.len() as u32;
        let keys = [
            Destination::Ip(station.v4.into()),
            Destination::Ip(station.v6.into()),
            Destination::Mac(station.mac),
        ];
        for key in keys {
            if let Some(location) = world.snapshot.locations.get_mut(&(0, key)) {
                location.groups = set;
            }
        }
        let own = world.snapshot.vnics.iter().flatten().find(|vnic| vnic.mac == station.mac);
        if let Some(index) = own.map(|vnic| vnic.index as usize) {
            world.snapshot.vnic_rows[index].group_set = set;
            Arc::make_mut(world.snapshot.vnics[index].as_mut().unwrap()).group_set = set;
        }
    }
    world.snapshot.security = Arc::new(security);
    world.snapshot.touch_vpc(0);
}

pub(super) fn rule(direction: Direction, traffic: Traffic, peer: Peer) -> Rule {
    Rule { direction, traffic, peer }
}

/// Members may send everything, and get what `rules` say.
pub(super) fn group(rules: &[Rule]) -> Group {
    Group { allows_in: false, allows_out: true, rules: rules.to_vec() }
}

/// In from anywhere.
fn from_anyone(traffic: Traffic) -> Rule {
    rule(Direction::In, traffic, Peer::Any)
}

/// A frame of a remote station, as it comes out of the tunnel.
fn inward(frame: Vec<u8>) -> Vec<u8> {
    tunnelled(&frame)
}

fn drops(world: &World, reason: DropReason) -> u64 {
    world.worker.counters.drops(reason)
}

/// Lets a frame through, and says whether it came out.
pub(super) fn passes(world: &mut World, port: u16, frame: &[u8]) -> bool {
    !world.pass(port, frame).is_empty()
}

/// The handshake of a connection that A opens to R.
fn connect(world: &mut World, out: &Path, back: &Path, port: u16) {
    assert!(passes(world, 1, &out.tcp(port, 80, SYN, b"")));
    assert!(passes(world, UPLINK, &inward(back.tcp(80, port, SYN | ACK, b""))));
    assert!(passes(world, 1, &out.tcp(port, 80, ACK, b"")));
}

#[test]
fn security_what_nobody_asked_for_does_not_come_in_and_replies_do() {
    for (out, back) in [(v4(A, R), v4(R, A)), (v6(A, R), v6(R, A))] {
        let mut world = plain();
        secure(&mut world, &[group(&[])], &[(A, &[0])]);
        let question = inward(back.udp(7, 9, b"?"));
        world.expect(
            UPLINK,
            std::slice::from_ref(&question),
            &[("nft-misses", 1), ("security-in", 1), ("decapsulated", 1)],
        );
        world.expect(
            UPLINK,
            std::slice::from_ref(&question),
            &[("nft-hits", 1), ("security-in", 1), ("decapsulated", 1)],
        );
        // The same addresses and ports as the reply to a question of its own.
        world.one(1, &out.udp(9, 7, b"mine"), &ENCAP);
        world.one(UPLINK, &question, &[("nft-stale", 1), ("decapsulated", 1)]);
        world.one(UPLINK, &question, &[("nft-hits", 1), ("decapsulated", 1)]);
        connect(&mut world, &out, &back, 1000);
        // Established since the entry of its handshake was made: decided once more.
        for found in ["nft-stale", "nft-hits"] {
            let page = inward(back.tcp(80, 1000, ACK | PSH, b"page"));
            world.one(UPLINK, &page, &[(found, 1), ("decapsulated", 1)]);
        }
        // Others, and the same peer on other ports, do not.
        world.expect(
            UPLINK,
            &[inward(back.tcp(81, 1000, ACK, b""))],
            &[("nft-misses", 1), ("security-in", 1), ("decapsulated", 1)],
        );
        assert!(passes(&mut world, 1, &out.echo_request(7, 1, b"ping")));
        assert!(passes(&mut world, UPLINK, &inward(back.echo_reply(7, 1, b"ping"))));
        assert!(!passes(&mut world, UPLINK, &inward(back.echo_request(7, 1, b"ping"))));
        assert!(!passes(&mut world, UPLINK, &inward(back.echo_reply(8, 1, b"ping"))));
    }
}

#[test]
fn security_the_other_side_of_a_connection_cannot_begin_another_or_go_on_after_its_end() {
    let (out, back) = (v4(A, R), v4(R, A));
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    connect(&mut world, &out, &back, 1000);
    let data = inward(back.tcp(80, 1000, ACK, b"data"));
    assert!(passes(&mut world, UPLINK, &data));
    assert!(!passes(&mut world, UPLINK, &inward(back.tcp(80, 1000, SYN, b""))), "a connection of its own");
    assert!(passes(&mut world, UPLINK, &data), "which ends nothing");
    assert!(passes(&mut world, 1, &out.tcp(1000, 80, RST, b"")));
    assert!(!passes(&mut world, UPLINK, &data), "reset");
    assert_eq!(drops(&world, DropReason::SECURITY_IN), 2);
    // Not by who opened it either, but by a new one.
    assert!(!passes(&mut world, 1, &out.tcp(1000, 80, ACK, b"")));
    connect(&mut world, &out, &back, 1000);
    assert!(passes(&mut world, UPLINK, &data));
    assert!(passes(&mut world, 1, &out.tcp(1000, 80, FIN | ACK, b"")));
    assert!(passes(&mut world, UPLINK, &inward(back.tcp(80, 1000, FIN | ACK, b""))));
    assert!(passes(&mut world, 1, &out.tcp(1000, 80, ACK, b"")), "the last acknowledgement");
    assert!(!passes(&mut world, UPLINK, &inward(back.tcp(80, 1000, SYN, b""))));
}

#[test]
fn security_a_rule_that_goes_ends_what_it_admitted_in_both_directions() {
    for (out, back) in [(v4(A, R), v4(R, A)), (v6(A, R), v6(R, A))] {
        let mut world = plain();
        let open = [from_anyone(Traffic::Tcp(80, 80)), from_anyone(Traffic::Rdma)];
        secure(&mut world, &[group(&open)], &[(A, &[0])]);
        assert!(passes(&mut world, UPLINK, &inward(back.tcp(5, 80, SYN, b""))));
        assert!(passes(&mut world, 1, &out.tcp(80, 5, SYN | ACK, b"")));
        let (to, from) = (inward(back.tcp(5, 80, ACK, b"get")), out.tcp(80, 5, ACK, b"page"));
        for _ in 0..3 {
            assert!(passes(&mut world, UPLINK, &to) && passes(&mut world, 1, &from));
        }
        let write = Bth::new(opcode::RC_WRITE_ONLY, Qpn::truncated(5), Psn::truncated(1));
        let to_qp = inward(back.roce(3000, write, &[0; 20]));
        let ack = out.roce(3000, Bth::new(opcode::RC_ACK, Qpn::truncated(6), Psn::truncated(1)), &[0; 4]);
        assert!(passes(&mut world, UPLINK, &to_qp) && passes(&mut world, 1, &ack));
        // Another rule goes: nothing of this one changes.
        secure(&mut world, &[group(&open)], &[(A, &[0])]);
        assert!(passes(&mut world, 1, &from) && passes(&mut world, UPLINK, &to));
        assert!(passes(&mut world, UPLINK, &to_qp) && passes(&mut world, 1, &ack));
        // What members send is allowed still: what they answer opens nothing.
        secure(&mut world, &[group(&[])], &[(A, &[0])]);
        for _ in 0..3 {
            assert!(!passes(&mut world, 1, &from) && !passes(&mut world, UPLINK, &to));
            assert!(!passes(&mut world, UPLINK, &to_qp) && !passes(&mut world, 1, &ack));
        }
        assert_eq!((drops(&world, DropReason::SECURITY_IN), drops(&world, DropReason::SECURITY_OUT)), (6, 6));
        assert!(pipelines::decide::reaches(&world.snapshot, 0, R.v4.into()), "it may open some itself");
        secure(&mut world, &[Group { allows_out: false, ..group(&[]) }], &[(A, &[0])]);
        assert!(!pipelines::decide::reaches(&world.snapshot, 0, R.v4.into()), "its queue pairs leave");
    }
}

/// In ticks of 100 ms.
const TWO_MINUTES: ConnectionTimes = ConnectionTimes {
    tcp_opening: 1200,
    tcp_established: 1200,
    tcp_closing: 1200,
    one_way: 1200,
    both_ways: 1200,
    icmp: 1200,
    rdma: 1200,
};

/// Of UDP, answers look like questions: those of a flow that a rule's end has closed open no new one, while they go on.
#[test]
fn security_answers_of_a_flow_that_a_rule_admitted_do_not_open_it_again() {
    for (out, back) in [(v4(A, R), v4(R, A)), (v6(A, R), v6(R, A))] {
        let echo = |path: &Path, asks: bool| {
            if asks { path.echo_request(7, 1, b"") } else { path.echo_reply(7, 1, b"") }
        };
        let flows = [
            (Traffic::Udp(9000, 9000), inward(back.udp(5, 9000, b"get")), out.udp(9000, 5, b"stream")),
            (Traffic::Any, inward(back.ip(132, &[5; 16])), out.ip(132, &[5; 16])),
            (Traffic::Any, inward(echo(&back, true)), echo(&out, false)),
        ];
        for (traffic, to, from) in flows {
            for answer_first in [false, true] {
                let mut world = plain();
                secure(&mut world, &[group(&[from_anyone(traffic)])], &[(A, &[0])]);
                for _ in 0..2 {
                    assert!(passes(&mut world, UPLINK, &to) && passes(&mut world, 1, &from), "{traffic:?}");
                }
                secure(&mut world, &[group(&[])], &[(A, &[0])]);
                let mut keeper = ConnectionKeeper::new(world.shared.connections.clone(), TWO_MINUTES);
                for _ in 0..4 {
                    // Longer in all than what has ended is remembered without packets.
                    world.now = Now::from_ns(world.now.ns + 60_000_000_000);
                    keeper.sweep(u32::MAX, world.now.tick, |_| false);
                    keeper.advance();
                    if answer_first {
                        assert!(!passes(&mut world, 1, &from), "{traffic:?}");
                    }
                    assert!(!passes(&mut world, UPLINK, &to) && !passes(&mut world, 1, &from), "{traffic:?}");
                }
                // What it asks itself opens one of its own.
                if traffic != Traffic::Any {
                    assert!(passes(&mut world, 1, &out.udp(9001, 5, b"question")));
                }
                // And the rule, when it comes back.
                secure(&mut world, &[group(&[from_anyone(traffic)])], &[(A, &[0])]);
                assert!(passes(&mut world, UPLINK, &to) && passes(&mut world, 1, &from), "{traffic:?}");
            }
        }
    }
}

/// An echo reply that nobody asked for is none.
#[test]
fn security_an_echo_reply_opens_nothing() {
    let mut world = plain();
    secure(&mut world, &[group(&[from_anyone(Traffic::Any)])], &[(A, &[0])]);
    assert!(!passes(&mut world, UPLINK, &inward(v4(R, A).echo_reply(7, 1, b""))));
    assert!(!passes(&mut world, 1, &v6(A, R).echo_reply(7, 1, b"")));
    assert!(passes(&mut world, 1, &v4(A, R).echo_request(7, 1, b"")));
    assert!(passes(&mut world, UPLINK, &inward(v4(R, A).echo_reply(7, 1, b""))));
}

/// Rules name addresses; the frame has to go to who has the address.
#[test]
fn security_what_may_be_sent_to_an_address_reaches_nobody_else() {
    let only_r = rule(Direction::Out, Traffic::Any, Peer::Prefix(Prefix::new(R.v4.into(), 32)));
    let restricted = [Group { allows_out: false, ..group(&[only_r]) }];
    let to = |mac| Path::v4((A.mac, A.v4), (mac, R.v4)).udp(9, 7, b"x");
    let mut world = plain();
    secure(&mut world, &restricted, &[(A, &[0])]);
    assert!(passes(&mut world, 1, &to(R.mac)));
    let refused = drops(&world, DropReason::SECURITY_OUT);
    assert!(!passes(&mut world, 1, &to(B.mac)), "a vNIC here");
    assert!(!passes(&mut world, 1, &to(S.mac)), "a station there");
    assert_eq!(drops(&world, DropReason::SECURITY_OUT), refused + 2);
    // The router knows the way, and so does a station that the VPC routes the address to.
    assert!(passes(&mut world, 1, &to(ROUTER)));
    world.route(0, &[("10.0.0.8/29", RouteTarget::Station(B.mac))]);
    assert!(passes(&mut world, 1, &to(B.mac)));
    assert!(!passes(&mut world, 1, &to(S.mac)));
    // Who may send to anybody may send to a neighbour by any address.
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    assert!(passes(&mut world, 1, &to(S.mac)));
}

/// Neighbour discovery passes groups on the link that it belongs to, and no router's hands.
#[test]
fn security_neighbour_discovery_is_not_routed_past_groups() {
    use wire::build::control::neighbour_solicitation;
    let mut world = plain();
    world.vpc(0).flood = true;
    let gateways = world.gateways(0, &[4]);
    world.route(0, &[("::/0", gateways)]);
    let beyond = "2001:db8::66".parse().unwrap();
    let letter = neighbour_solicitation((A.mac, A.v6), beyond, Some(ROUTER));
    assert!(passes(&mut world, 1, &letter), "without groups it is a packet like others");
    secure(&mut world, &[Group { allows_out: false, ..group(&[]) }], &[(A, &[0])]);
    assert!(!passes(&mut world, 1, &letter));
    assert_eq!(drops(&world, DropReason::SECURITY_OUT), 1);
}

#[test]
fn security_queue_pairs_are_admitted_by_a_rule_and_answered_without() {
    let (out, back) = (v4(A, R), v4(R, A));
    let bth = |op, qpn| Bth::new(op, Qpn::truncated(qpn), Psn::truncated(1));
    let write = out.roce(3000, bth(opcode::RC_WRITE_ONLY, 9), &[0; 20]);
    let ack = inward(back.roce(3000, bth(opcode::RC_ACK, 8), &[0; 4]));
    let mut world = plain();
    // UDP is not RoCE, whatever its port.
    secure(&mut world, &[group(&[from_anyone(Traffic::Udp(0, 65535))])], &[(A, &[0])]);
    assert!(!passes(&mut world, UPLINK, &ack));
    assert!(!passes(&mut world, UPLINK, &inward(back.cnp(3000, Qpn::truncated(8)))));
    assert!(passes(&mut world, 1, &write));
    assert!(passes(&mut world, UPLINK, &ack));
    assert!(passes(&mut world, UPLINK, &inward(back.cnp(3000, Qpn::truncated(8)))));
    // Not from another station.
    let stranger = inward(v4(S, A).roce(3000, bth(opcode::RC_ACK, 8), &[0; 4]));
    assert!(!passes(&mut world, UPLINK, &stranger));
    // A rule with a group: the members' queue pairs, nobody else's.
    let mut world = plain();
    let members = rule(Direction::In, Traffic::Rdma, Peer::Group(1));
    secure(&mut world, &[group(&[members]), group(&[])], &[(A, &[0]), (R, &[1])]);
    let request = |from| inward(v4(from, A).roce(3000, bth(opcode::RC_WRITE_ONLY, 8), &[0; 20]));
    assert!(!passes(&mut world, UPLINK, &ack), "an answer to nothing");
    assert!(passes(&mut world, UPLINK, &request(R)) && !passes(&mut world, UPLINK, &request(S)));
    assert!(passes(&mut world, UPLINK, &ack));
}

#[test]
fn security_two_vnics_of_a_host_are_judged_at_both_ends() {
    let mut world = plain();
    let web = group(&[rule(Direction::In, Traffic::Tcp(80, 80), Peer::Group(1))]);
    let silent = Group { allows_out: false, ..group(&[]) };
    secure(&mut world, &[web, group(&[]), silent], &[(A, &[1]), (B, &[0, 2])]);
    let (out, back) = (v4(A, B), v4(B, A));
    world.one(1, &out.tcp(5, 80, SYN, b""), &LOCAL);
    world.one(2, &back.tcp(80, 5, SYN | ACK, b""), &LOCAL);
    assert!(passes(&mut world, 1, &out.tcp(5, 80, ACK, b"")));
    for found in ["nft-stale", "nft-hits"] {
        world.one(2, &back.tcp(80, 5, ACK, b"page"), &[(found, 1), ("local", 1)]);
    }
    world.expect(1, &[out.tcp(5, 81, SYN, b"")], &[("nft-misses", 1), ("security-in", 1)]);
    world.expect(2, &[back.tcp(6, 80, SYN, b"")], &[("nft-misses", 1), ("security-out", 1)]);
    // C, in the other subnet, is in no group, and not in the one that is let in.
    let from_c = routed(v4(C, B)).tcp(5, 80, SYN, b"");
    world.expect(3, &[from_c], &[("nft-misses", 1), ("security-in", 1)]);
    // One end resets it: it has ended for both.
    assert!(passes(&mut world, 1, &out.tcp(5, 80, RST, b"")));
    assert!(!passes(&mut world, 2, &back.tcp(80, 5, ACK, b"page")));
}

#[test]
fn security_a_reply_finds_its_connection_on_another_worker() {
    let (out, back) = (v4(A, R), v4(R, A));
    let mut world = plain();
    world.shared = SharedTables::new(2);
    let mut workers = [0, 1].map(|number| TestWorker::new(256, world.shared.clone(), number));
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    let mut pass = |worker: usize, port, frame: &[u8]| {
        !workers[worker].run(&world.snapshot, world.now, port, vec![HeapBuf::new(frame)]).is_empty()
    };
    let reply = inward(back.udp(53, 9, b"answer"));
    assert!(!pass(1, UPLINK, &reply));
    assert!(pass(0, 1, &out.udp(9, 53, b"question")));
    assert!(pass(1, UPLINK, &reply), "what was refused before is the reply to a question now");
    assert!(
        pass(0, 1, &out.tcp(9, 80, SYN, b"")) && pass(1, UPLINK, &inward(back.tcp(80, 9, SYN | ACK, b"")))
    );
    assert!(pass(0, 1, &out.tcp(9, 80, ACK, b"")) && pass(1, UPLINK, &inward(back.tcp(80, 9, ACK, b"x"))));
    assert!(pass(0, 1, &out.tcp(9, 80, RST, b"")));
    assert!(!pass(1, UPLINK, &inward(back.tcp(80, 9, ACK, b"x"))), "reset on one, ended on both");
}

#[test]
fn security_hardware_gets_queue_pairs_that_rules_admit_and_no_longer() {
    use pipelines::security::leaves_to_hardware;
    let back = v4(R, A);
    let mut world = plain();
    let open = [from_anyone(Traffic::Rdma), from_anyone(Traffic::Tcp(80, 80))];
    secure(&mut world, &[group(&open)], &[(A, &[0])]);
    let write = Bth::new(opcode::RC_WRITE_ONLY, Qpn::truncated(5), Psn::truncated(1));
    let key_of = |world: &mut World, frame: Vec<u8>| {
        world.pass(UPLINK, &inward(frame));
        world.worker.burst.metas[0].key
    };
    let rdma = key_of(&mut world, back.roce(3000, write, &[0; 20]));
    let tcp = key_of(&mut world, back.tcp(5, 80, SYN, b""));
    let goes = |world: &World, key| {
        leaves_to_hardware(&world.snapshot, Some(&world.shared.connections), key, Some(0))
    };
    assert!(goes(&world, &rdma) && !goes(&world, &tcp));
    // What the vNIC may still open itself does not keep in hardware what its peer has opened.
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    assert!(!goes(&world, &rdma));
    assert!(!leaves_to_hardware(&world.snapshot, None, &rdma, Some(0)));
    assert!(leaves_to_hardware(&world.snapshot, None, &rdma, Some(1)), "B is in no group");
}

/// In hardware, what comes for a vNIC keeps nothing alive, as in software: the vNIC itself does.
#[test]
fn security_queue_pairs_leave_hardware_when_their_vnic_has_nothing_to_do_with_them_any_more() {
    use pipelines::security::stays_in_hardware;
    let mut world = plain();
    secure(&mut world, &[group(&[from_anyone(Traffic::Rdma)])], &[(A, &[0])]);
    let write = Bth::new(opcode::RC_WRITE_ONLY, Qpn::truncated(5), Psn::truncated(1));
    world.pass(UPLINK, &inward(v4(R, A).roce(3000, write, &[0; 20])));
    let to_a = world.worker.burst.metas[0].key;
    world.pass(UPLINK, &inward(v4(R, B).roce(3000, write, &[0; 20])));
    let to_b = world.worker.burst.metas[0].key;
    let mut keeper = ConnectionKeeper::new(world.shared.connections.clone(), TWO_MINUTES);
    let mut stays = |world: &mut World, seconds: u64| {
        world.now = Now::from_ns(world.now.ns + seconds * 1_000_000_000);
        keeper.sweep(u32::MAX, world.now.tick, |_| false);
        [to_a, to_b].map(|key| stays_in_hardware(&world.snapshot, &world.shared.connections, &key))
    };
    assert_eq!(stays(&mut world, 60), [true, true]);
    assert_eq!(stays(&mut world, 90), [false, true], "B is in no group");
}

#[test]
fn security_a_station_that_went_and_came_back_is_reached_again() {
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    let question = v4(A, R).udp(9, 7, b"mine");
    assert!(passes(&mut world, 1, &question) && passes(&mut world, 1, &question));
    world.forget(0, Destination::Mac(R.mac));
    let place = world.tunnel(0, 2);
    world.locate(0, Destination::Mac(R.mac), R.mac, place);
    // The flow's entry knows the slot of before, and nothing makes it stale but its next packet.
    passes(&mut world, 1, &question);
    assert!(passes(&mut world, 1, &question) && passes(&mut world, 1, &question));
}

#[test]
fn security_nobody_behind_a_gateway_is_in_a_group() {
    use pipelines::security::groups_at;
    use pipelines::snapshot::{Gateway, RouteTarget};
    let mut world = plain();
    secure(&mut world, &[group(&[]), group(&[])], &[(A, &[0]), (R, &[1])]);
    assert_eq!(groups_at(&world.snapshot, 0, R.v4.into()), [1]);
    let place = world.tunnel(0, 3);
    let slot = world.writer.allocate(place).unwrap();
    let gateways = vec![Gateway { vtep: host_v4(3).into(), slot, mac: S.mac }];
    let route = (Prefix::new(R.v4.into(), 28), RouteTarget::Gateways(gateways));
    world.vpc(0).set_routes(vec![route]);
    assert!(groups_at(&world.snapshot, 0, R.v4.into()).is_empty(), "a longer route leads elsewhere");
}

#[test]
fn security_what_loses_its_entry_in_its_burst_is_not_let_through() {
    let mut world = plain();
    world.worker = TestWorker::new(1, world.shared.clone(), 0);
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    let refused = inward(v4(R, A).udp(7, 9, b"?"));
    assert!(!passes(&mut world, UPLINK, &refused), "its entry is there now");
    // A flow to a vNIC without groups takes the only place.
    let others = inward(v4(R, B).udp(7, 9, b"!"));
    let packets = [&refused, &others].map(|frame| HeapBuf::new(frame)).to_vec();
    let out = world.run(UPLINK, packets);
    assert!(out.iter().all(|(port, _)| *port == 2), "B's alone, if anything");
}

#[test]
fn security_an_echo_lets_no_other_message_in_and_neighbours_may_ask() {
    let mut world = plain();
    secure(&mut world, &[group(&[from_anyone(Traffic::Icmp(0x0800, 0x08ff))])], &[(A, &[0])]);
    let back = v4(R, A);
    // The identifier is type and code of a timestamp request.
    assert!(passes(&mut world, UPLINK, &inward(back.echo_request(0x0d00, 1, b"ping"))));
    assert!(!passes(&mut world, UPLINK, &inward(back.ip(1, &[13, 0, 0xf2, 0xff, 0, 0, 0, 0]))));
    let mut frame = back.ethernet(0x0806, &[0; 28]);
    frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
    let refused = drops(&world, DropReason::SECURITY_IN);
    passes(&mut world, UPLINK, &inward(frame));
    assert_eq!(drops(&world, DropReason::SECURITY_IN), refused);
}

#[test]
fn security_icmp_errors_of_what_newer_rules_have_not_judged_go_by_rules() {
    use wire::build::control::{IcmpError, icmp_error};
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    let question = v4(A, R).udp(9, 7, b"mine");
    assert!(passes(&mut world, 1, &question));
    let headers = wire::parse::parse(&question, question.len()).unwrap();
    let error = inward(icmp_error(&headers, &question, IcmpError::NoRoute, (R.mac, R.v4.into())).unwrap());
    assert!(passes(&mut world, UPLINK, &error));
    secure(&mut world, &[Group { allows_out: false, ..group(&[]) }], &[(A, &[0])]);
    assert!(!passes(&mut world, UPLINK, &error));
}

#[test]
fn security_connections_under_way_are_taken_up_for_a_while_by_what_rules_allow() {
    let (out, back) = (v4(A, R), v4(R, A));
    let mut world = plain();
    let now = world.now.tick;
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    let (data, answer) = (out.tcp(1000, 80, ACK, b"get"), inward(back.tcp(80, 1000, ACK, b"page")));
    assert!(!passes(&mut world, 1, &data), "nobody saw it begin");
    world.shared.connections.pick_up_until(0, now + 10);
    world.snapshot.touch_vpc(0);
    assert!(passes(&mut world, 1, &data) && passes(&mut world, UPLINK, &answer));
    assert!(passes(&mut world, 1, &data));
    world.now = pipelines::Now::from_ns(world.now.ns + 2_000_000_000);
    assert!(passes(&mut world, 1, &data) && passes(&mut world, UPLINK, &answer), "it goes on");
    assert!(!passes(&mut world, 1, &out.tcp(1001, 80, ACK, b"get")));
}

#[test]
fn security_connections_under_way_are_not_taken_up_by_answers() {
    use wire::tcp::flags::{FIN, PSH, RST};
    let back = v4(R, A);
    let mut world = plain();
    secure(&mut world, &[group(&[])], &[(A, &[0])]);
    world.shared.connections.pick_up_until(0, world.now.tick + 10);
    let refused = drops(&world, DropReason::SECURITY_IN);
    let kinds = [0, SYN, ACK, SYN | ACK, FIN, FIN | ACK, PSH | ACK, RST, RST | ACK, 0x3f, 0xff];
    for (port, flags) in (1000..).zip(kinds) {
        assert!(!passes(&mut world, UPLINK, &inward(back.tcp(80, port, flags, b"made up"))), "{flags:#x}");
    }
    assert_eq!(drops(&world, DropReason::SECURITY_IN), refused + kinds.len() as u64);
    assert_eq!(world.shared.connections.ledger().count(0), 0, "none of them has a place");
}
