//! That no packet of a reliable connection overtakes an earlier one when rules appear and when they go: a queue lies
//! between the e-switch and software, and everything that leaves is compared with what was sent, flow by flow.

use std::collections::{HashMap, VecDeque};

use pipelines::offload::arrival::{Arrivals, FlowOrigin, flow_of};
use pipelines::offload::manager::*;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{EntropySource, FlowSelector};
use proptest::prelude::*;
use rules::{ArrivalCount, BackEnd};
use wire::roce::Bth;
use wire::{HeapBuf, Psn, Qpn};

use crate::host::*;
use testkit::*;

const US: u64 = 1000;
/// How long software has a packet, at least.
const DELAY_NS: u64 = 50 * US;
/// And so much longer for each packet before it.
const EACH_NS: u64 = 500;
const SYNC_NS: u64 = 300 * US;
const PAIRS: usize = 40;

/// A small generator of numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// A reliable connection.
struct Connection {
    selector: FlowSelector,
    /// The frame of PSN 0.
    frame: Vec<u8>,
    /// Packets sent, and packets that left.
    sent: u64,
    left: u64,
    next_ns: u64,
    pinned: bool,
}

/// Everything that happened.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    by_hardware: u64,
    by_software: u64,
    overtaken: u64,
}

struct Lab {
    host: Host,
    eswitch: Eswitch,
    manager: Manager,
    pairs: Vec<Connection>,
    /// When each packet leaves software: flow, connection, number.
    software: VecDeque<(u64, u64, usize, u64)>,
    finished: Arrivals,
    /// Times by which all goes slower than with a device that needs no time.
    slow: u64,
    seen: Seen,
}

impl Lab {
    fn new(latency_ns: u64, barrier: bool) -> Self {
        let mut host = Host::new(plain());
        host.options.entropy = EntropySource::Hardware;
        let frame = |qpn: u32, path: wire::build::Path| {
            path.roce(50_000, Bth::new(0x07, Qpn::truncated(qpn), Psn::truncated(0)), &[0; 64])
        };
        let pairs = (0..PAIRS).map(|n| {
            // Both families, two destinations, queue pairs of one flow.
            let path = match n % 3 {
                0 => v4(A, R),
                1 => v6(A, R),
                _ => routed(v4(A, S)),
            };
            let (frame, qpn) = (frame(17 + n as u32, path), 17 + n as u32);
            (frame, qpn, n)
        });
        let mut keys: HashMap<usize, pipelines::flow_key::FlowKey> = HashMap::new();
        let pairs = pairs.map(|(frame, qpn, n)| {
            let key = *keys.entry(n % 3).or_insert_with(|| host.flow(1, &frame));
            let selector = FlowSelector { key, qpn: Some(Qpn::truncated(qpn)), source_port: Some(50_000) };
            Connection { selector, frame, sent: 0, left: 0, next_ns: 0, pinned: false }
        });
        let pairs = pairs.collect();
        let config = EswitchConfig { latency_ns, refresh_ns: 0, ..EswitchConfig::default() };
        // Only what is pinned goes in, so that a great many come and go in a short time.
        let policy = Policy {
            packets: u64::MAX,
            bytes: u64::MAX,
            cool_ns: 0,
            retry_ns: 0,
            rules_per_second: 10_000_000,
            barrier,
            ..Policy::default()
        };
        Self {
            host,
            eswitch: Eswitch::new(config),
            manager: Manager::new(policy),
            pairs,
            software: VecDeque::new(),
            finished: Arrivals::default(),
            slow: 1 + 2 * latency_ns / SYNC_NS,
            seen: Seen::default(),
        }
    }

    /// A packet leaves: by hardware at once, by software in its time.
    fn leave(&mut self, pair: usize, number: u64) {
        let pair = &mut self.pairs[pair];
        self.seen.overtaken += u64::from(number != pair.left);
        pair.left += 1;
    }

    fn drain(&mut self, now_ns: u64) {
        while let Some((_, flow, pair, number)) = self.software.pop_front_if(|(due, ..)| *due <= now_ns) {
            self.leave(pair, number);
            self.finished.add(flow);
            self.seen.by_software += 1;
        }
    }

    fn send(&mut self, index: usize, now_ns: u64) {
        let pair = &mut self.pairs[index];
        let number = pair.sent;
        pair.sent += 1;
        match self.eswitch.run(&mut HeapBuf::new(&pair.frame), dpdk(1)) {
            Fate::Out { .. } => {
                self.seen.by_hardware += 1;
                self.leave(index, number);
            }
            Fate::Software { flow, .. } => {
                let last = self.software.back().map_or(0, |last| last.0 + EACH_NS);
                self.software.push_back((last.max(now_ns + DELAY_NS), flow, index, number));
            }
            fate => panic!("{fate:?}"),
        }
    }

    fn sync(&mut self, now_ns: u64) {
        let tables = self.host.tables();
        let (arrivals, finished) = (self.eswitch.all_arrivals(), &self.finished);
        let quiet = |selector: &FlowSelector| {
            let flow = flow_of(selector, FlowOrigin::of(&tables, &selector.key)?);
            let arrived = arrivals.of(flow);
            (finished.of(flow) == arrived).then_some(ArrivalCount(arrived))
        };
        self.manager.reconcile(&mut self.eswitch, &tables, &[], quiet, now_ns);
    }

    /// Bursts and pauses of all connections; every sync some are sent to hardware or taken out of it.
    fn run(&mut self, syncs: u64, dice: &mut Dice) {
        let mut now_ns = 0;
        for sync in 1..=syncs {
            while now_ns < sync * SYNC_NS {
                now_ns += 5 * US;
                self.eswitch.advance(now_ns);
                self.drain(now_ns);
                for index in 0..self.pairs.len() {
                    if self.pairs[index].next_ns <= now_ns {
                        self.send(index, now_ns);
                        // Mostly back to back; now and then a pause that may be longer than software takes.
                        let gap = if dice.roll(8) == 0 { dice.roll(900 * self.slow) * US } else { 5 * US };
                        self.pairs[index].next_ns = now_ns + gap;
                    }
                }
            }
            for pair in &mut self.pairs {
                if dice.roll(3 * self.slow) == 0 {
                    pair.pinned = !pair.pinned;
                    let pin = if pair.pinned { Pin::Hardware } else { Pin::Software };
                    self.manager.pin(pair.selector, Some(pin), now_ns);
                }
            }
            self.sync(now_ns);
            if sync % 50 == 0 {
                // The device loses a rule, and is looked after.
                let ids = self.eswitch.ids();
                if let Some(id) = ids.get(dice.roll(ids.len().max(1) as u64) as usize) {
                    self.eswitch.lose(*id);
                    self.manager.audit(&mut self.eswitch).unwrap();
                }
            }
        }
        self.drain(u64::MAX);
        let all: u64 = self.pairs.iter().map(|pair| pair.sent).sum();
        assert_eq!(self.seen.by_hardware + self.seen.by_software, all);
    }
}

#[test]
fn order_no_packet_of_a_reliable_connection_is_overtaken() {
    for (latency_ns, seed) in [(0, 7), (0, 8), (40 * US, 9), (700 * US, 10)] {
        let mut lab = Lab::new(latency_ns, true);
        lab.run(1500, &mut Dice(seed));
        let (seen, counters) = (&lab.seen, lab.manager.counters());
        assert_eq!(seen.overtaken, 0, "latency {latency_ns}: {seen:?} {counters:?}");
        assert!(counters.installed > 1000 && counters.withdrawn > 1000, "latency {latency_ns}: {counters:?}");
        let few = (seen.by_hardware + seen.by_software) / 50;
        assert!(seen.by_hardware > few && seen.by_software > few, "{seen:?}");
        assert!(counters.repaired > 0);
    }
}

#[test]
fn order_without_the_barrier_packets_are_overtaken() {
    for latency_ns in [0, 40 * US] {
        let mut lab = Lab::new(latency_ns, false);
        lab.run(300, &mut Dice(7));
        assert!(lab.seen.overtaken > 100, "latency {latency_ns}: {:?}", lab.seen);
    }
}

/// With latency, asking once is not enough: without the guard in the e-switch a gap that is over by then would do.
#[test]
fn order_a_gate_whose_gap_is_over_does_not_open() {
    let mut lab = Lab::new(100 * US, true);
    let key = lab.pairs[0].selector;
    let chain = lab.host.chain(key).unwrap();
    let tables = lab.host.tables();
    let (gate, eswitch) = (chain.own.last().unwrap(), &mut lab.eswitch);
    let frame = lab.pairs[0].frame.clone();
    let origin = FlowOrigin::of(&tables, &key.key).unwrap();
    assert_eq!(flow_of(&key, origin), chain.facts.flow);
    let mut made = |between: bool, now_us: u64| {
        let guard = rules::Guard {
            flow: chain.facts.flow,
            arrivals: ArrivalCount(eswitch.arrivals(chain.facts.flow)),
        };
        let id = eswitch.create_gate(gate, &guard).unwrap();
        eswitch.advance((now_us + 99) * US);
        if between {
            eswitch.run(&mut HeapBuf::new(&frame), dpdk(1));
        }
        eswitch.advance((now_us + 100) * US);
        let mut results = Vec::new();
        eswitch.completed(&mut results);
        assert_eq!(results.len(), 1);
        (results[0].0 == id, results.remove(0).1.map_err(|error| error.cause))
    };
    assert_eq!(made(true, 0), (true, Err(rules::Cause::Again)));
    assert_eq!(made(false, 100), (true, Ok(())));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A packet that a gate matches has the gate's flow, as the e-switch sees it.
    #[test]
    fn order_a_gate_and_its_packets_are_one_flow(
        underlay in prop::sample::select(UNDERLAYS.to_vec()),
        (from, to, kind, sport, vlan, is_routed) in
            (0..5usize, 0..5usize, 0..7u8, any::<u16>(), any::<bool>(), any::<bool>()),
        (qpn, psn, tos, outer_port) in (2..0xff_ffffu32, any::<u32>(), 0..4u8, any::<u16>()),
    ) {
        const STATIONS: [Station; 5] = [A, B, C, R, S];
        prop_assume!(from != to && (from < 3 || to < 3));
        let (source, target) = (STATIONS[from], STATIONS[to]);
        let path = if kind % 2 == 0 { v4(source, target) } else { v6(source, target) };
        let path = if is_routed { routed(path) } else { path };
        let path = if vlan { path.tagged(5) } else { path }.with_tos(tos & 1);
        let rdma = |opcode| path.roce(sport, Bth::new(opcode, Qpn::truncated(qpn), Psn::truncated(psn)), &[0; 40]);
        let inner = match kind {
            0 | 1 => path.tcp(sport, 80, 0x10, b"data"),
            2 => path.udp(sport, 53, b"data"),
            3 => path.udp(sport, 4789, &[0xff; 60]),
            4 | 5 => rdma(0x07),
            _ => rdma(0x24),
        };
        let mut host = Host::new(lab(1, underlay));
        host.world.keep_vlan(0);
        host.options.entropy = EntropySource::Hardware;
        let (port, frame) = if from < 3 {
            (from as u16 + 1, inner)
        } else {
            let path = outer(2, 1, underlay);
            (UPLINK, path.vxlan(outer_port, wire::Vni::new(100).unwrap(), &inner))
        };
        host.world.pass(port, &frame);
        let Some(entry) = host.entries().pop() else { return Ok(()) };
        let mut selector = whole(entry.key);
        (selector.qpn, selector.source_port) = (Some(Qpn::truncated(qpn)), Some(sport));
        let Ok(chain) = host.chain(selector) else { return Ok(()) };
        let tables = host.tables();
        let flow = flow_of(&selector, FlowOrigin::of(&tables, &selector.key).unwrap());
        prop_assert_eq!(flow, chain.facts.flow);
        // The gate matches the packet, once its framing is known; in front of it, it comes to software and is counted.
        let mut eswitch = Eswitch::new(EswitchConfig::default());
        let mut gate = chain.own.last().unwrap().clone();
        gate.pattern.retain(|item| item.kind() != rules::ItemKind::Tag);
        eswitch.create(&gate).unwrap();
        prop_assert!(eswitch.first_match(&HeapBuf::new(&frame), dpdk(port), gate.attr.group).is_some());
        let fate = eswitch.run(&mut HeapBuf::new(&frame), dpdk(port));
        prop_assert!(matches!(fate, Fate::Software { flow: seen, .. } if seen == flow), "{:?}", fate);
        prop_assert_eq!(eswitch.arrivals(flow), 1);
    }
}
