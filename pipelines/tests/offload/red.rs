//! Meters tell the truth: what they turn away is counted once, and the rate that a class gets is that of its frames on
//! the wire.

use std::collections::HashMap;

use pipelines::Direction;
use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::manager::*;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{EntropySource, FlowSelector};
use pipelines::qos::Class;
use pipelines::snapshot::PortIndex;
use rules::ArrivalCount;
use wire::HeapBuf;

use crate::host::*;
use testkit::*;

const SYNC_NS: u64 = 100_000_000;

struct Lab {
    host: Host,
    eswitch: Eswitch,
    manager: Manager,
    now_ns: u64,
    flows: Vec<(PortIndex, Vec<u8>, FlowSelector)>,
    /// By flow: packets sent, by hardware, in software, debited; and bytes debited.
    seen: HashMap<FlowSelector, [u64; 5]>,
}

impl Lab {
    fn new(flows: Vec<(PortIndex, Vec<u8>)>) -> Self {
        let mut host = Host::new(plain());
        host.options.entropy = EntropySource::Hardware;
        let flows: Vec<_> = flows
            .into_iter()
            .map(|(port, frame)| {
                let key = host.flow(port, &frame);
                (port, frame, whole(key))
            })
            .collect();
        let policy = Policy { rules_per_second: 1_000_000, ..Policy::default() };
        Self {
            host,
            eswitch: Eswitch::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() }),
            manager: Manager::new(policy),
            now_ns: 1_000_000_000,
            flows,
            seen: HashMap::new(),
        }
    }

    /// So many tenths of a second with so many packets of each flow in each, evenly; all flows are pinned.
    fn run(&mut self, tenths: u64, packets: u64) {
        self.run_with(tenths, packets, true);
    }

    /// The same; where flows are not pinned, they are as hot as software sees them.
    fn run_with(&mut self, tenths: u64, packets: u64, pinned: bool) {
        for _ in 0..tenths {
            for n in 0..packets {
                self.eswitch.advance(self.now_ns + SYNC_NS * n / packets);
                for (port, frame, selector) in &self.flows {
                    let seen = self.seen.entry(*selector).or_default();
                    seen[0] += 1;
                    match self.eswitch.run(&mut HeapBuf::new(frame), dpdk(*port)) {
                        Fate::Out { .. } => seen[1] += 1,
                        Fate::Software { .. } => seen[2] += 1,
                        fate => panic!("{fate:?}"),
                    }
                }
            }
            self.now_ns += SYNC_NS;
            self.eswitch.advance(self.now_ns);
            let tables = self.host.tables();
            let selectors: Vec<_> = self.flows.iter().map(|flow| flow.2).collect();
            let to_pin = selectors.iter().filter(|_| pinned);
            to_pin.for_each(|selector| self.manager.pin(*selector, Some(Pin::Hardware), self.now_ns));
            let in_software =
                |selector: &FlowSelector| self.seen.get(selector).map_or(0, |seen| seen[2] + seen[3]);
            let samples: Vec<FlowSample> = selectors
                .iter()
                .map(|selector| FlowSample {
                    selector: *selector,
                    packets: in_software(selector),
                    bytes: in_software(selector) * 400,
                })
                .collect();
            let samples = if pinned { Vec::new() } else { samples };
            let arrivals = self.eswitch.all_arrivals();
            let quiet = |selector: &FlowSelector| {
                Some(ArrivalCount(arrivals.of(flow_of(selector, FlowOrigin::of(&tables, &selector.key)?))))
            };
            let debits = self.manager.reconcile(&mut self.eswitch, &tables, &samples, quiet, self.now_ns);
            self.book(&debits);
        }
    }

    fn book(&mut self, debits: &[Debit]) {
        for debit in debits {
            let seen = self.seen.entry(debit.selector).or_default();
            seen[3] += debit.packets;
            seen[4] += debit.bytes;
        }
    }

    fn sum(&self, what: usize) -> u64 {
        self.seen.values().map(|seen| seen[what]).sum()
    }
}

fn tcp(port: u16, len: usize) -> Vec<u8> {
    v4(A, R).tcp(port, 80, 0x10, &vec![1; len])
}

#[test]
fn red_packets_are_counted_once() {
    let back = |port| tunnelled(&v4(R, A).tcp(80, port, 0x10, &[1; 400]));
    for (direction, flows) in [
        (Direction::Out, vec![(1, tcp(1, 400)), (1, tcp(2, 400))]),
        (Direction::In, vec![(UPLINK, back(1)), (UPLINK, back(2))]),
    ] {
        let mut lab = Lab::new(flows);
        // A tenth of what comes fits.
        lab.host.limit(direction, 0, Class::Tcp, 4_000_000);
        lab.run(4, 50);
        assert_eq!(lab.manager.states().hardware, 2);
        lab.run(20, 500);
        let left = lab.manager.withdraw_all(&mut lab.eswitch, |_| true, Why::Cold);
        lab.book(&left);
        let (sent, hardware, software, debited) = (lab.sum(0), lab.sum(1), lab.sum(2), lab.sum(3));
        assert_eq!(sent, hardware + software);
        assert!(hardware > 500 && software > 4 * hardware, "{:?}", lab.seen);
        assert_eq!(debited, hardware, "what hardware forwarded, no more: {:?}", lab.seen);
        let inner = v4(A, R).tcp(1, 80, 0x10, &[1; 400]).len() as u64;
        assert_eq!(lab.sum(4), debited * inner, "in bytes as software counts them");
        // Each flow gives its share, though nobody knows whose were red.
        lab.seen.values().for_each(|seen| assert!(seen[3] * 4 > hardware, "{:?}", lab.seen));
    }
}

#[test]
fn red_a_class_gets_its_rate_whatever_the_size_of_its_frames() {
    const RATE: u64 = 8_000_000;
    let back = |len| tunnelled(&v4(R, A).tcp(80, 1, 0x10, &vec![1; len]));
    for (direction, port, frame, inner) in [
        (Direction::Out, 1, tcp(1, 10), tcp(1, 10).len()),
        (Direction::Out, 1, tcp(1, 1400), tcp(1, 1400).len()),
        (Direction::In, UPLINK, back(10), tcp(1, 10).len()),
        (Direction::In, UPLINK, back(1400), tcp(1, 1400).len()),
    ] {
        let mut lab = Lab::new(vec![(port, frame)]);
        lab.host.limit(direction, 0, Class::Tcp, RATE);
        let overhead = u64::from(lab.host.world.snapshot.settings.red.overhead);
        let wire = inner as u64 + overhead;
        // Three times the rate.
        let packets = 3 * RATE / 8 / 10 / wire;
        lab.run(20, packets);
        let before = lab.sum(1);
        lab.run(100, packets);
        let rate = (lab.sum(1) - before) * wire * 8 / 10;
        let off = rate.abs_diff(RATE) * 100 / RATE;
        assert!(off <= 2, "{direction:?}, {inner} bytes: {rate} bits a second instead of {RATE}");
    }
}

#[test]
fn red_flows_of_a_class_over_its_rate_come_back_to_where_the_queues_are() {
    let mut lab = Lab::new(vec![(1, tcp(1, 400)), (1, tcp(2, 400))]);
    lab.host.limit(Direction::Out, 0, Class::Tcp, 40_000_000);
    let hot = Policy { packets: 100, rules_per_second: 1_000_000, ..Policy::default() };
    lab.manager = Manager::new(hot);
    // Well within its rate: there they stay.
    lab.run_with(20, 50, false);
    assert_eq!((lab.manager.states().hardware, lab.manager.counters().over_rate), (2, 0));
    // Ten times the rate.
    lab.run_with(5, 5000, false);
    let selectors: Vec<FlowSelector> = lab.flows.iter().map(|flow| flow.2).collect();
    for selector in &selectors {
        assert_eq!(lab.manager.why(&selector.key), Status::Software(Why::OverRate));
    }
    let counters = lab.manager.counters();
    assert_eq!((counters.over_rate, counters.withdrawn), (2, 2), "{counters:?}");
    // Not again before the retry time; then they may try.
    lab.run_with(90, 50, false);
    assert_eq!(lab.manager.states().hardware, 0);
    lab.run_with(20, 50, false);
    assert_eq!(lab.manager.states().hardware, 2);
}
