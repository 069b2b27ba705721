//! What the manager of hot flows costs: rules per second into the simulated e-switch and out of it, without the
//! artificial latency of the device; and through pmd's flow queue into the device net_eswitch of the crate `testdev`.
//!
//! Flows of one vNIC to another on the same host differ in their ports; they get hot together, have their rules made,
//! and lose them. Timed are the calls of the manager, and with the flow queue what it takes until the device has answered.
//! `pipelines/tests/offload/figures.rs` has the simulated ones over tunnels, with few ways and many.

#![allow(clippy::panic, reason = "a bench that cannot start ends")]

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use perf::report::stats::median;
use pipelines::flow_key::{FlowKey, FlowPorts, Scope};
use pipelines::offload::manager::{FlowSample, Manager, Policy};
use pipelines::offload::sim::{Eswitch, EswitchConfig};
use pipelines::offload::translate::{FlowSelector, Tables};
use pmd::{
    Eal, EalConfig, FlowDevice, FlowEngine, FlowQueues, Hugepages, Mempool, MempoolConfig, Port, PortConfig,
    RxQueue, StartedPort, TxQueue,
};
use rules::{ArrivalCount, BackEnd};
use testkit::offload::{Host, whole};
use testkit::{A, B};

const FLOWS: [u64; 2] = [10_000, 100_000];
const ROUNDS: usize = 8;
const SYNC_NS: u64 = 100_000_000;

/// Two vNICs of one VPC, on ports 1 and 2, which are these of the device.
fn host(ports: [u16; 2]) -> Host {
    let mut world = testkit::World::new(1, testkit::Underlay::default());
    let vpc = world.add_vpc(100);
    for station in [A, B] {
        world.add_vnic(vpc, station, None);
    }
    Host { ports: vec![None, Some(ports[0]), Some(ports[1])], ..Host::new(world) }
}

/// What the rules go to.
trait Device: BackEnd {
    fn advance(&mut self, now_ns: u64);
    fn is_empty(&self) -> bool;
}

impl Device for Eswitch {
    fn advance(&mut self, now_ns: u64) {
        Self::advance(self, now_ns);
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

impl Device for FlowDevice {
    fn advance(&mut self, _: u64) {}

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

struct World<D> {
    host: Host,
    device: D,
    manager: Manager,
    selectors: Vec<FlowSelector>,
    tick: u64,
}

impl<D: Device> World<D> {
    /// The vNICs are on these ports of the device.
    fn new(flows: u64, device: D, ports: [u16; 2]) -> Self {
        let frame = testkit::v4(A, B).tcp(1, 80, 0x10, &[]);
        let headers = wire::parse::parse(&frame, frame.len()).unwrap_or_default();
        let base = FlowKey::build(&frame, &headers, Scope::Vnic(0), FlowPorts::default(), 0, false);
        let selector = |n: u64| {
            let mut words = *base.words();
            words[4] |= n;
            whole(FlowKey::from_words(words))
        };
        let policy = Policy { packets: 1000, rules_per_second: 1 << 30, ..Policy::default() };
        Self {
            host: host(ports),
            device,
            manager: Manager::new(policy),
            selectors: (0..flows).map(selector).collect(),
            tick: 0,
        }
    }

    fn sync(&mut self) -> Duration {
        self.tick += 1;
        let Self { host, device, manager, selectors, tick } = self;
        let tables = Tables { connections: None, ..host.tables() };
        let sample = |selector: &FlowSelector| FlowSample {
            selector: *selector,
            packets: *tick * 1000,
            bytes: *tick * 64_000,
        };
        let samples: Vec<_> = selectors.iter().map(sample).collect();
        let now_ns = *tick * SYNC_NS;
        device.advance(now_ns);
        let began = Instant::now();
        manager.reconcile(device, &tables, &samples, |_| Some(ArrivalCount(0)), now_ns);
        let drained = device.drain();
        let elapsed = began.elapsed();
        assert_eq!(drained, Ok(()));
        elapsed
    }

    /// All flows in, and all out: what each took, and rules.
    fn round(&mut self) -> (Duration, Duration, usize) {
        let all = self.manager.counters().installed + self.selectors.len() as u64;
        self.manager.switch(true);
        let mut install = Duration::ZERO;
        while self.manager.counters().installed < all {
            install += self.sync();
            assert!(self.manager.refusals().is_empty(), "{:?}", self.manager.refusals());
        }
        let rules = self.manager.rules();
        self.manager.switch(false);
        let remove = self.sync();
        assert!(self.manager.rules() == 0 && self.device.is_empty(), "rules are left");
        (install, remove, rules)
    }
}

/// Rules a second of all flows in and all out.
fn print_rates<D: Device>(what: &str, world: &mut World<D>) {
    // The first round finds the memory that the others use again.
    world.round();
    let mut rates = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let (install, remove, rules) = world.round();
        rates[0].push(rules as f64 / install.as_secs_f64());
        rates[1].push(rules as f64 / remove.as_secs_f64());
    }
    let [install, remove] = rates.map(|rates| median(&rates).unwrap_or(f64::NAN));
    let flows = world.selectors.len();
    println!(
        "{what}, {flows} flows: {install:.0} rules a second installed, {remove:.0} removed, medians of {ROUNDS}"
    );
}

type Started = (StartedPort, Vec<RxQueue>, Vec<TxQueue>);

/// An uplink and two representors of an e-switch that answers after 20 us.
fn started(eal: &Eal, pool: &Mempool) -> [Started; 3] {
    let engine = FlowEngine::Async(FlowQueues::for_rules(1 << 20));
    let ports = [
        ("net_eswitch0", "legacy=1,delay=20", engine),
        ("net_eswitch1", "representor=0", FlowEngine::Sync),
        ("net_eswitch2", "representor=1", FlowEngine::Sync),
    ];
    ports.map(|(name, args, flow_engine)| {
        let port = Port::attach(eal, name, args).unwrap_or_else(|error| panic!("{error}"));
        let config = PortConfig { flow_engine, ..PortConfig::default() };
        port.start(&config, pool).unwrap_or_else(|(_, error)| panic!("{error}"))
    })
}

/// The same through a flow queue, where the driver can be built.
fn through_a_queue() {
    let folder = std::env::temp_dir().join(format!("bench-offload-{}", std::process::id()));
    let plugin = match testdev::ESWITCH.build(&folder) {
        Ok(plugin) => plugin,
        Err(error) => return println!("no figures of the flow queue: {error}"),
    };
    let _ = std::fs::remove_dir_all(&folder);
    let config = EalConfig { hugepages: Hugepages::Never, plugins: vec![plugin], ..EalConfig::default() };
    let eal = Eal::init(&config).unwrap_or_else(|error| panic!("{error}"));
    let pool = Mempool::new(&eal, &MempoolConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let [uplink, one, two] = started(&eal, &pool);
    for flows in FLOWS {
        let device = FlowDevice::new(&uplink.0).unwrap_or_else(|error| panic!("{error}"));
        let ports = [&one.0, &two.0].map(|port| port.id().get());
        print_rates("flow queue", &mut World::new(flows, device, ports));
    }
    for (port, rx, tx) in [one, two, uplink] {
        port.stop(rx, tx).map(drop).unwrap_or_else(|(.., error)| panic!("{error}"));
    }
}

fn simulated(flows: u64) -> World<Eswitch> {
    World::new(flows, Eswitch::new(EswitchConfig::default()), [10, 11])
}

fn offload(criterion: &mut Criterion) {
    for flows in FLOWS {
        print_rates("simulated", &mut simulated(flows));
    }
    through_a_queue();
    let mut group = criterion.benchmark_group("offload");
    for flows in FLOWS {
        let mut world = simulated(flows);
        for (name, which) in [("install", 0), ("remove", 1)] {
            group.bench_function(BenchmarkId::new(format!("{name}, flow"), flows), |bencher| {
                bencher.iter_custom(|iterations| {
                    let rounds = iterations.div_ceil(flows);
                    let spent: Duration = (0..rounds)
                        .map(|_| {
                            let (install, remove, _) = world.round();
                            if which == 0 { install } else { remove }
                        })
                        .sum();
                    spent.mul_f64(iterations as f64 / (rounds * flows) as f64)
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(10);
    targets = offload
}
criterion_main!(benches);
