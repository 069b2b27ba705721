//! Security groups against one list of connections: what two workers say of any packets is what the list says.

use std::collections::HashMap;

use pipelines::Direction;
use pipelines::security::{Group, Peer, Rule, Subject, Traffic, oracle};
use pipelines::snapshot::Prefix;
use proptest::prelude::*;
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::tcp::flags::{ACK, SYN};
use wire::{HeapBuf, Psn, Qpn};

use testkit::*;

use super::security::*;

/// A packet of a few stations, ports and protocols.
#[derive(Clone, Copy, Debug)]
enum Packet {
    Udp(u16, u16),
    Syn(u16, u16),
    Ping(u16),
    Rdma,
}

impl Packet {
    fn frame(self, path: &Path, is_reply: bool) -> Vec<u8> {
        let swap = |from: u16, to: u16| if is_reply { (to, from) } else { (from, to) };
        match self {
            Self::Udp(from, to) => {
                let (from, to) = swap(from, to);
                path.udp(from, to, b"x")
            }
            Self::Syn(from, to) => {
                let (from, to) = swap(from, to);
                path.tcp(from, to, if is_reply { SYN | ACK } else { SYN }, b"")
            }
            Self::Ping(id) if is_reply => path.echo_reply(id, 1, b""),
            Self::Ping(id) => path.echo_request(id, 1, b""),
            Self::Rdma => {
                path.roce(3000, Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(5), Psn::truncated(1)), &[])
            }
        }
    }

    /// Protocol, ports of whoever sends, and what rules call the port.
    fn facts(self, is_reply: bool) -> (u8, [u16; 2], u16, bool) {
        let ports = |from: u16, to: u16| if is_reply { [to, from] } else { [from, to] };
        match self {
            Self::Udp(from, to) => (17, ports(from, to), ports(from, to)[1], false),
            Self::Syn(from, to) => (6, ports(from, to), ports(from, to)[1], false),
            Self::Ping(id) => (1, [id, id], if is_reply { 0 } else { 0x0800 }, false),
            Self::Rdma => (17, [0, 0], 0, true),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// From A (or to it) with R or S as the other end, on one of two workers.
    Send {
        packet: Packet,
        is_reply: bool,
        out: bool,
        with_s: bool,
        worker: usize,
    },
    Rules(Vec<Rule>, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let port = || 1..3u16;
    let packet = prop_oneof![
        (port(), port()).prop_map(|(from, to)| Packet::Udp(from, to)),
        (port(), port()).prop_map(|(from, to)| Packet::Syn(from, to)),
        port().prop_map(Packet::Ping),
        Just(Packet::Rdma),
    ];
    let traffic = prop_oneof![
        Just(Traffic::Any),
        Just(Traffic::Rdma),
        port().prop_map(|port| Traffic::Udp(port, port)),
        port().prop_map(|port| Traffic::Tcp(port, 2)),
        Just(Traffic::Icmp(0x0800, 0x08ff)),
    ];
    let peer = prop_oneof![
        Just(Peer::Any),
        Just(Peer::Group(1)),
        Just(Peer::Prefix(Prefix::new(R.v4.into(), 32))),
        Just(Peer::Prefix(Prefix::new(S.v4.into(), 24))),
    ];
    let direction = prop_oneof![Just(Direction::In), Just(Direction::Out)];
    let rules = prop::collection::vec(
        (direction, traffic, peer).prop_map(|(direction, traffic, peer)| rule(direction, traffic, peer)),
        0..4,
    );
    prop_oneof![
        12 => (packet, any::<bool>(), any::<bool>(), any::<bool>(), 0..2usize)
            .prop_map(|(packet, is_reply, out, with_s, worker)| Step::Send { packet, is_reply, out, with_s, worker }),
        1 => (rules, prop::bool::weighted(0.3)).prop_map(|(rules, out)| Step::Rules(rules, out)),
    ]
}

/// Protocol, whether it is RoCE, whether the other end is S, and own port and the other's.
type ModelKey = (u8, bool, bool, [u16; 2]);

/// What a plain list of connections says, under rules that are read one by one.
#[derive(Default)]
struct Model {
    groups: Vec<Group>,
    /// By protocol, other end, own port and the other's: whether A opened it, and what rules called its port.
    connections: HashMap<ModelKey, (bool, u16)>,
    /// Those that rules have ended, and whether A had opened them.
    ended: HashMap<ModelKey, bool>,
}

impl Model {
    fn allows(&self, out: bool, with_s: bool, (proto, port, rdma): (u8, u16, bool)) -> bool {
        let peer = if with_s { S } else { R };
        let peer_groups: &[u32] = if with_s { &[1] } else { &[] };
        let subject = Subject { peer: Some(peer.v4.into()), proto, port, rdma };
        let direction = if out { Direction::Out } else { Direction::In };
        oracle::allows(self.groups.iter(), direction, &subject, peer_groups)
    }

    fn passes(&mut self, packet: Packet, is_reply: bool, out: bool, with_s: bool) -> bool {
        let (proto, [from, to], port, rdma) = packet.facts(is_reply);
        let own = if out { [from, to] } else { [to, from] };
        let key = (proto, rdma, with_s, own);
        let by_rules = self.allows(out, with_s, (proto, port, rdma));
        let stands =
            |&(opened_here, port): &(bool, u16)| self.allows(opened_here, with_s, (proto, port, rdma));
        if let Some((opened_here, _)) = self.connections.get(&key).copied().filter(|known| !stands(known)) {
            self.connections.remove(&key);
            self.ended.insert(key, opened_here);
        }
        match self.connections.get(&key).copied() {
            // The other side of a connection may not begin one of its own by it.
            Some((opened_here, _)) => {
                let begins = matches!(packet, Packet::Syn(..) | Packet::Ping(_)) && !is_reply;
                !begins || opened_here == out || by_rules
            }
            None => {
                // What closed lets an opener in again, and no answer; of UDP, all that the other side sends is one.
                let answers = is_reply && matches!(packet, Packet::Syn(..) | Packet::Ping(_));
                let goes_on = matches!(packet, Packet::Udp(..))
                    && self.ended.get(&key).is_some_and(|&here| here != out);
                let opens = !answers && !goes_on;
                if by_rules && opens {
                    self.ended.remove(&key);
                    self.connections.insert(key, (out, port));
                }
                by_rules && opens
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    /// Two workers with one table say of each packet what one list says.
    #[test]
    fn security_two_workers_say_what_one_list_of_connections_says(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = plain();
        world.shared = SharedTables::new(2);
        let mut workers = [0, 1].map(|number| TestWorker::new(256, world.shared.clone(), number));
        let mut model = Model { groups: vec![group(&[])], ..Model::default() };
        secure(&mut world, &[group(&[]), group(&[])], &[(A, &[0]), (S, &[1])]);
        for step in steps {
            match step {
                Step::Rules(rules, allows_out) => {
                    let new = Group { allows_in: false, allows_out, rules };
                    secure(&mut world, &[new.clone(), group(&[])], &[(A, &[0]), (S, &[1])]);
                    model.groups = vec![new];
                }
                Step::Send { packet, is_reply, out, with_s, worker } => {
                    let other = if with_s { S } else { R };
                    let path = if out { v4(A, other) } else { v4(other, A) };
                    // The other subnet is behind the router.
                    let path = if with_s && out { routed(path) } else { path };
                    let frame = packet.frame(&path, is_reply);
                    let (port, frame) = if out { (1, frame) } else { (UPLINK, tunnelled(&frame)) };
                    let left = workers[worker].run(&world.snapshot, world.now, port, vec![HeapBuf::new(&frame)]);
                    let expected = model.passes(packet, is_reply, out, with_s);
                    prop_assert_eq!(!left.is_empty(), expected, "{:?} reply {} out {} with S {}", packet, is_reply, out, with_s);
                }
            }
        }
    }
}
