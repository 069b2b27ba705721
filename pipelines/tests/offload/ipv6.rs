//! Flows between IPv6 addresses, whose matches are split: on each NIC of the table hardware has exactly the packets that it was
//! given, and does to them what software does; and a chain has no rule more than the split needs.

use std::collections::HashMap;

use pipelines::Direction;
use pipelines::flow_key::FlowKey;
use pipelines::offload::RuleStore;
use pipelines::offload::manager::{Manager, Pin, Policy};
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{Chain, EntropySource, FlowSelector, group};
use pipelines::qos::Class;
use pipelines::snapshot::PortIndex;
use proptest::prelude::*;
use rules::mlx5::{self, Engine, Nic};
use rules::{ArrivalCount, FlowRule};
use wire::roce::{Bth, opcode};
use wire::{MacAddr, Psn, Qpn, Vni};

use crate::host::*;
use crate::mixed::{Mixed, choose_ports};
use testkit::*;

const STATIONS: [Station; 5] = [A, B, C, R, S];
/// Underlays over which flows go into hardware both ways.
const OVER: [Underlay; 3] = [UNDERLAYS[0], UNDERLAYS[1], UNDERLAYS[4]];
/// One of RC; one of RC that means nothing; one of XRC, of UC and of UD.
const OPCODES: [u8; 5] = [opcode::RC_WRITE_ONLY, 0x15, 0xaa, 0x2a, opcode::UD_SEND_ONLY];

/// What a packet is of, as far as rules tell.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Queue {
    from: usize,
    /// From an address that the sender does not have.
    foreign: bool,
    to: usize,
    v6: bool,
    routed: bool,
    tagged: bool,
    opcode: u8,
    qpn: u32,
    source_port: u16,
}

impl Queue {
    /// The packet as a station sends it, out of the tunnel for those of other hosts.
    fn frame(&self, underlay: Underlay) -> (PortIndex, Vec<u8>) {
        let (mut source, target) = (STATIONS[self.from], STATIONS[self.to]);
        if self.foreign {
            source.v4 = (u32::from(source.v4) ^ 1 << 6).into();
            source.v6 = (u128::from(source.v6) ^ 1 << 40).into();
        }
        let path = if self.v6 { v6(source, target) } else { v4(source, target) };
        let path = if self.routed { routed(path) } else { path };
        let path = if self.tagged { path.tagged(5) } else { path };
        let bth = Bth::new(self.opcode, Qpn::truncated(self.qpn), Psn::truncated(1));
        let inner = path.with_tos(2).roce(self.source_port, bth, &[0; 36]);
        if self.from < 3 {
            (self.from as PortIndex + 1, inner)
        } else {
            (UPLINK, outer(2, 1, underlay).vxlan(50_000, Vni::new(100).unwrap(), &inner))
        }
    }

    /// RC and XRC.
    fn is_reliable(&self) -> bool {
        matches!(self.opcode >> 5, 0 | 5)
    }

    /// True when the rules of one are about the packets of the other; source ports count where the outer one follows them.
    fn takes(&self, other: &Self, entropy: EntropySource) -> bool {
        let follows = self.from < 3 && self.to >= 3 && entropy == EntropySource::Exact;
        // Of a class that means something all is one, but for the connection manager, which these packets are not.
        self.opcode >> 5 == other.opcode >> 5
            && other.opcode != OPCODES[1]
            && (self.qpn == other.qpn || !self.is_reliable())
            && (self.source_port == other.source_port || !follows)
            && *self == Self { opcode: self.opcode, qpn: self.qpn, source_port: self.source_port, ..*other }
    }
}

fn queue() -> impl Strategy<Value = Queue> {
    let way = (0..5usize, 1..5usize, prop::bool::weighted(0.8), any::<bool>(), prop::bool::weighted(0.3));
    let of_class = prop_oneof![4 => Just(OPCODES[0]), 1 => prop::sample::select(&OPCODES[..])];
    (way, of_class, 17..20u32, 50_000..50_002u16).prop_map(
        |((from, more, v6, routed, tagged), opcode, qpn, source_port)| Queue {
            from,
            foreign: false,
            to: (from + more) % 5,
            v6,
            routed,
            tagged,
            opcode,
            qpn,
            source_port,
        },
    )
}

/// Another queue, that differs in one thing at most.
fn near(queue: Queue, (what, like): (u8, Queue)) -> Queue {
    let like = Queue { to: if like.to == queue.from { queue.to } else { like.to }, ..like };
    match what % 10 {
        0 => Queue { from: if like.from == queue.to { queue.from } else { like.from }, ..queue },
        1 => Queue { to: like.to, ..queue },
        2 => Queue { v6: like.v6, ..queue },
        3 => Queue { routed: like.routed, ..queue },
        4 => Queue { tagged: like.tagged, ..queue },
        5 => Queue { opcode: like.opcode, ..queue },
        6 => Queue { qpn: like.qpn, ..queue },
        7 => Queue { source_port: like.source_port, ..queue },
        8 => Queue { foreign: true, ..queue },
        _ => queue,
    }
}

fn host(underlay: Underlay, entropy: EntropySource, limited: bool) -> Host {
    let mut world = lab(1, underlay);
    world.keep_vlan(0);
    let mut host = Host::new(world);
    choose_ports(&mut host, entropy);
    // More than enough for all of them: what is matched and written differs, and nothing turns red.
    for direction in [Direction::In, Direction::Out].into_iter().filter(|_| limited) {
        (0..3).for_each(|vnic| host.limit(direction, vnic, Class::Rdma, 800_000_000_000));
    }
    host
}

/// The flow of a packet as software knows it, and what left.
fn met(host: &mut Host, port: PortIndex, frame: &[u8]) -> Option<FlowKey> {
    let packets = |host: &Host| -> HashMap<_, _> {
        host.entries().into_iter().map(|entry| (entry.key, entry.packets)).collect()
    };
    let before = packets(host);
    host.world.pass(port, frame);
    packets(host).into_iter().find(|(key, seen)| before.get(key) != Some(seen)).map(|(key, _)| key)
}

fn selector(key: FlowKey, queue: &Queue) -> FlowSelector {
    let qpn = queue.is_reliable().then_some(Qpn::truncated(queue.qpn));
    FlowSelector { key, qpn, source_port: Some(queue.source_port) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ipv6_hardware_has_the_packets_that_it_was_given_and_does_what_software_does(
        underlay in prop::sample::select(&OVER[..]),
        entropy in prop::sample::select(vec![EntropySource::Exact, EntropySource::Hardware]),
        nic in prop::sample::select(&Nic::ALL[..]),
        limited in any::<bool>(),
        queues in prop::collection::vec(queue(), 1..6),
        packets in prop::collection::vec((any::<prop::sample::Index>(), (any::<u8>(), queue())), 1..60),
    ) {
        let mut software = host(underlay, entropy, limited);
        let mut mixed = Mixed::new(host(underlay, entropy, limited), nic);
        let mut given: Vec<Queue> = Vec::new();
        for queue in &queues {
            let (port, frame) = queue.frame(underlay);
            software.world.pass(port, &frame);
            let Some(key) = met(&mut mixed.host, port, &frame) else { continue };
            let is_known = given.iter().any(|other| other.takes(queue, entropy));
            if !is_known && mixed.offload(selector(key, queue)) {
                given.push(*queue);
            }
        }
        mixed.wait(200);
        for (which, other) in packets {
            let queue = near(*which.get(&queues), other);
            let (port, frame) = queue.frame(underlay);
            let expected = software.world.pass(port, &frame);
            let (fate, out) = mixed.pass(port, &frame);
            let is_given = given.iter().any(|other| other.takes(&queue, entropy));
            prop_assert_eq!(matches!(fate, Fate::Out { .. }), is_given, "{:?}: {:?}", queue, fate);
            prop_assert_eq!(out, expected, "{:?}", queue);
        }
    }
}

/// A queue pair of RC.
fn reliable(from: usize, to: usize, v6: bool, qpn: u32) -> Queue {
    let (foreign, routed, tagged) = (false, false, false);
    Queue { from, foreign, to, v6, routed, tagged, opcode: OPCODES[0], qpn, source_port: 50_001 }
}

#[track_caller]
fn chain(host: &mut Host, underlay: Underlay, queue: &Queue) -> Chain {
    let (port, frame) = queue.frame(underlay);
    let key = met(host, port, &frame).expect("a flow");
    host.chain(selector(key, queue)).unwrap_or_else(|refusal| panic!("{queue:?}: {refusal}"))
}

/// No queue pair stays in software for want of room: into the tunnel, out of it and on one host, with its source port and
/// without, with a rate and without, on each NIC and with both engines.
#[test]
fn ipv6_queue_pairs_have_room_on_every_nic() {
    let ways = [(0, 3, false), (0, 4, true), (3, 0, false), (4, 0, true), (0, 1, false), (0, 2, true)];
    let mut rules = 0;
    for underlay in OVER {
        for entropy in [EntropySource::Exact, EntropySource::Hardware] {
            for (limited, tagged) in [(false, false), (false, true), (true, false), (true, true)] {
                for (from, to, routed) in ways {
                    let queue = Queue { routed, tagged, ..reliable(from, to, true, 17) };
                    let chain = chain(&mut host(underlay, entropy, limited), underlay, &queue);
                    for rule in chain.rules() {
                        for (engine, nic) in
                            Engine::ALL.into_iter().flat_map(|engine| Nic::ALL.map(|nic| (engine, nic)))
                        {
                            let taken = mlx5::check(rule, nic, engine);
                            taken.unwrap_or_else(|error| panic!("{engine}, {nic}: {rule}: {error}"));
                        }
                        rules += 1;
                    }
                }
            }
        }
    }
    assert!(rules > 1000, "{rules}");
}

/// The rules of a queue pair's own, and those of the path that are about its framing.
fn of_flow(chain: &Chain) -> (Vec<&FlowRule>, usize) {
    let framing = |rule: &&FlowRule| rule.attr.group == group::FRAMING || rule.attr.priority == 2;
    (chain.own.iter().collect(), chain.path.iter().filter(framing).count())
}

/// The split costs a queue pair no rule: its own are two as those of IPv4, and what it takes from a vNIC is one framing.
#[test]
fn ipv6_queue_pairs_have_as_many_rules_as_those_of_ipv4() {
    for (from, to, framings) in [(0, 3, [0, 1]), (3, 0, [1, 1]), (0, 1, [0, 1])] {
        for (v6, framings) in [false, true].into_iter().zip(framings) {
            let mut host = host(OVER[0], EntropySource::Exact, false);
            let chain = chain(&mut host, OVER[0], &reliable(from, to, v6, 17));
            let (own, of_framing) = of_flow(&chain);
            assert_eq!((own.len(), of_framing), (2, framings), "{from} to {to}, IPv6: {v6}");
        }
    }
}

/// What flows of the same addresses have in common they share, and it goes with the last of them.
#[test]
fn ipv6_flows_of_the_same_addresses_share_their_first_rules() {
    for (from, to) in [(0, 3), (3, 0)] {
        let mut host = host(OVER[0], EntropySource::Hardware, false);
        let queues = [17, 18, 19].map(|qpn| reliable(from, to, true, qpn));
        let tcp = if from == 0 { v6(A, R) } else { v6(R, A) }.tcp(1000, 80, 0x10, b"data");
        let chains = queues.map(|queue| chain(&mut host, OVER[0], &queue));
        let key = if from == 0 { host.flow(1, &tcp) } else { host.flow(UPLINK, &tunnelled(&tcp)) };
        let tcp = host.chain(whole(key)).unwrap();
        let (mut eswitch, mut store) = (Eswitch::new(EswitchConfig::default()), RuleStore::default());
        let mut installed = Vec::new();
        let mut lens = Vec::new();
        for chain in chains.iter().chain([&tcp]) {
            host.translator.hold(&chain.facts);
            installed.push(store.install(&mut eswitch, chain.clone()).unwrap());
            lens.push(store.len());
        }
        let [first, second, third, of_tcp] =
            [lens[0], lens[1] - lens[0], lens[2] - lens[1], lens[3] - lens[2]];
        assert_eq!((first, second, third), (chains[0].rules().len(), 1, 1), "a gate each");
        // Out of the tunnel TCP has a rule of its own behind the framing, which all flows from there share.
        assert_eq!(of_tcp, if from == 0 { 1 } else { 2 });
        let numbered = host.translator.numbered();
        while let Some(last) = installed.pop() {
            assert_eq!(host.translator.numbered(), numbered, "as long as a chain holds them");
            host.translator.release(&last.facts);
            store.remove(&mut eswitch, last);
            lens.pop();
            assert_eq!(store.len(), lens.last().copied().unwrap_or(0));
        }
        assert_eq!((host.translator.numbered(), eswitch.len()), (0, 0));
    }
}

/// A router that gets another MAC: the flows match other packets from then on, and leave no number behind.
#[test]
fn ipv6_a_change_of_framing_leaves_nothing_behind() {
    let mut host = host(OVER[0], EntropySource::Hardware, false);
    let queue = Queue { routed: true, ..reliable(4, 0, true, 17) };
    let (port, frame) = queue.frame(OVER[0]);
    let key = met(&mut host, port, &frame).unwrap();
    let selector = selector(key, &queue);
    let mut eswitch = Eswitch::new(EswitchConfig::default());
    let mut manager = Manager::new(Policy::default());
    manager.pin(selector, Some(Pin::Hardware), 1);
    let quiet = |_: &FlowSelector| Some(ArrivalCount(0));
    for tenth in 1..=5 {
        manager.reconcile(&mut eswitch, &host.tables(), &[], quiet, tenth * 100_000_000);
    }
    assert_eq!(manager.states().hardware, 1, "{:?}", manager.why(&key));
    let (adjacencies_and_numbers, _) = manager.adjacencies_and_bundles();
    assert_eq!(adjacencies_and_numbers, 3, "an adjacency, the framing, and that with the source");
    let mac = MacAddr([2, 0, 0, 0, 9, 9]);
    host.world.vpc(0).router_mac = mac;
    host.world.snapshot.vnic_rows.iter_mut().for_each(|row| row.router_mac = mac.to_u64());
    manager.pin(selector, None, 600_000_000);
    manager.follow(&mut eswitch, &host.tables());
    assert_eq!((manager.states().hardware, manager.rules(), eswitch.len()), (0, 0, 0));
    assert_eq!(manager.adjacencies_and_bundles(), (0, 0));
}
