//! A flow in hardware beside a class that is greedy in software: they share a link, and the tree hears of the flow ten times a
//! second.

use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::manager::{FlowSample, Manager, Policy};
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::{EntropySource, FlowSelector};
use pipelines::qos::{Class, HardwareWork, Leaf, NodeLimits};
use pipelines::{Direction, Now};

use rules::ArrivalCount;
use wire::HeapBuf;

use crate::host::*;
use testkit::*;

const MS: u64 = 1_000_000;
const LINK: u64 = 40_000_000;
/// Packets of the flow in a millisecond: less than half of what tunnels leave of the link.
const PACKETS: u64 = 4;
/// Those of its neighbour: twice the link.
const GREEDY: u64 = 20;

struct Lab {
    host: Host,
    eswitch: Eswitch,
    manager: Manager,
    selector: FlowSelector,
    leaf: Leaf,
    /// Packets of the flow that hardware forwarded, and bytes that it was debited.
    by_hardware: u64,
    debited: [u64; 2],
    /// Bytes of tunnels' headers that the link was debited.
    headers: u64,
}

fn frame(from: Station) -> Vec<u8> {
    v4(from, R).tcp(1, 80, 0x10, &[1; 400])
}

impl Lab {
    fn new() -> Self {
        let mut host = Host::new(plain());
        host.options.entropy = EntropySource::Hardware;
        let selector = whole(host.flow(1, &frame(A)));
        let tree = host.tree();
        let limits = NodeLimits { ceil: LINK, ..NodeLimits::FREE };
        tree.set(tree.link_node(Direction::Out), &limits, host.world.now.ns);
        let leaf = tree.leaf(Direction::Out, 0, Class::Tcp);
        let policy = Policy { packets: 1_000, rules_per_second: 1_000_000, ..Policy::default() };
        Self {
            host,
            eswitch: Eswitch::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() }),
            manager: Manager::new(policy),
            selector,
            leaf,
            by_hardware: 0,
            debited: [0; 2],
            headers: 0,
        }
    }

    fn millisecond(&mut self) {
        let Self { host: Host { world, .. }, eswitch, .. } = self;
        world.now = Now::from_ns(world.now.ns + MS);
        eswitch.advance(world.now.ns);
        for _ in 0..PACKETS {
            match eswitch.run(&mut HeapBuf::new(&frame(A)), dpdk(1)) {
                Fate::Out { .. } => self.by_hardware += 1,
                Fate::Software { .. } => drop(world.run(1, vec![HeapBuf::new(&frame(A))])),
                fate => panic!("{fate:?}"),
            }
        }
        for _ in 0..GREEDY {
            world.run(2, vec![HeapBuf::new(&frame(B))]);
        }
        let worker = &mut world.worker;
        while worker.overlay.release(&world.snapshot, world.now, &mut worker.out) {}
        worker.out.sent.clear();
        worker.divider.tick(world.now.ns);
    }

    /// A turn of counters, and the time until the next one.
    fn turn(&mut self) {
        let now_ns = self.host.world.now.ns;
        let entry = self.host.entries().into_iter().find(|entry| entry.key == self.selector.key).unwrap();
        let [packets, bytes] = self.debited;
        let samples = [FlowSample {
            selector: self.selector,
            packets: entry.packets + packets,
            bytes: entry.bytes + bytes,
        }];
        let tables = self.host.tables();
        let arrivals = self.eswitch.all_arrivals();
        let quiet = |selector: &FlowSelector| {
            Some(ArrivalCount(arrivals.of(flow_of(selector, FlowOrigin::of(&tables, &selector.key)?))))
        };
        let debits = self.manager.reconcile(&mut self.eswitch, &tables, &samples, quiet, now_ns);
        let overhead = u64::from(tables.snapshot.settings.red.overhead);
        for debit in debits {
            self.debited = [self.debited[0] + debit.packets, self.debited[1] + debit.bytes];
            let bytes = debit.bytes + debit.packets * overhead;
            let work = HardwareWork { bytes, over_ns: debit.over_ns, unread_ns: debit.over_ns };
            tables.tree.debit(debit.leaf.unwrap(), work, now_ns);
            let headers = HardwareWork { bytes: debit.packets * u64::from(debit.link_len), ..work };
            tables.tree.debit_link(debit.leaf.unwrap(), headers, now_ns);
            self.headers += headers.bytes;
        }
        (0..100).for_each(|_| self.millisecond());
    }
}

#[test]
fn red_a_flow_as_fast_as_ever_stays_in_hardware_beside_a_greedy_class() {
    let mut lab = Lab::new();
    (0..10).for_each(|_| lab.turn());
    assert_eq!(lab.manager.states().hardware, 1, "{:?}", lab.manager.why(&lab.selector.key));
    let rate = PACKETS * 1_000 * 8 * (frame(A).len() as u64 + 24);
    let (by_hardware, turns) = (lab.by_hardware, 40);
    let other = lab.host.tree().vnic_node(Direction::Out, 1);
    let sent = |lab: &Lab| lab.host.tree().view(other, lab.host.world.now.ns).drawn;
    let before = sent(&lab);
    for _ in 0..turns {
        let peak = lab.host.tree().meter(lab.leaf).peak;
        assert!(peak >= rate, "{peak} of {rate}");
        lab.turn();
    }
    assert_eq!((lab.manager.states().hardware, lab.manager.counters().over_rate), (1, 0));
    assert_eq!(lab.by_hardware - by_hardware, turns * 100 * PACKETS, "all of its packets went by");
    // What tunnels and the flow leave of the link, less what that may grow by.
    assert_eq!(lab.headers, lab.debited[0] * 50, "an outer header over IPv4 for each packet");
    let other_rate = (sent(&lab) - before) * 8 * 10 / turns;
    assert!(other_rate > LINK * 9 / 10 - rate - rate / 7, "{other_rate}");
}
