//! What rates cost a packet: the whole way of an encapsulated packet through [`Overlay`], with a tree that has no limits,
//! with limits far above the traffic, and with limits far below it.
//!
//! vNICs are VLANs of trunk ports and send in random order, bursts of 32, a flow each. Packets lie on the heap; making
//! them and giving them back is not timed. Before criterion's figures, which drift with the machine, the kinds of limits are
//! run by turns, and what each adds to none is printed from neighbours in time: each begins with the caches of the others.

use std::fmt;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use perf::generator::choice::Dice;
use perf::host::tsc;
use perf::report::stats::median;
use perf::setup::miss::Out;
use perf::setup::world::TableSizes;
use pipelines::burst::Burst;
use pipelines::counters::PipelineCounters;
use pipelines::flat::FlatMap;
use pipelines::overlay::Overlay;
use pipelines::qos::{Class, Divider, EPOCH_NS, NodeLimits};
use pipelines::snapshot::{
    Destination, NO_PORT, PortIndex, PortRole, PortRow, Prefix, Services, Snapshot, Subnet, Vnic, VnicRow,
};
use pipelines::{Direction, Now};
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{HeapBuf, MacAddr, Psn, Qpn};

/// Packets of a burst.
const BURST: usize = 32;
/// The least packets of a round, which is timed as one.
const ROUND: usize = 2048;
/// VLANs of a trunk port.
const VLANS: usize = 4094;
/// The numbers of vNICs that send.
const VNICS: [usize; 3] = [1, 64, 10_000];
/// Pairs of rounds of the comparison by turns.
const PAIRS: usize = 200;
/// When it begins, of the worker's clock.
const START_NS: u64 = 5_000_000_000;
/// A limit that nothing here reaches.
const HIGH: u64 = 400_000_000_000;
/// What all vNICs together may send when they are held to a limit.
const LOW: u64 = 10_000_000_000;
/// What a vNIC that is held to a limit may save up: so little that every packet asks the tree, and enough for a burst.
const SAVED: u64 = 7168;
/// What paying may add when nothing is held back: many times what is expected, even on a slow machine.
const BOUND_NS: f64 = 60.0;

const PEER: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0xee, 1]), Ipv4Addr::new(10, 200, 0, 1));
const SIZES: TableSizes =
    TableSizes { nft: 65_536, queue_pairs: 65_536, vnics: 16_384, tenants: 256, waiting: 131_072 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limits {
    /// Nothing: it has no limits.
    Free,
    /// Every packet pays at every level, out of the worker's token cache for the most part.
    Pays,
    /// Every packet is over its vNIC's rate: RDMA is marked, other traffic waits and is released.
    Over,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Free => "free",
            Self::Pays => "pays",
            Self::Over => "over",
        })
    }
}

/// A worker with vNICs that send.
struct World {
    overlay: Overlay<HeapBuf>,
    counters: Arc<PipelineCounters>,
    snapshot: Snapshot,
    burst: Burst<HeapBuf>,
    out: Out,
    now: Now,
    step_ns: u64,
    /// Divides the rates, beside the worker.
    divider: Divider,
    /// Time of each of its calls, and of each turn of the worker, while that is of interest.
    pauses: Option<Vec<Duration>>,
    turns: Vec<Duration>,
    /// The longest of them when all vNICs began to send.
    awakening: Duration,
    /// What is sent in a round, and into which port.
    bursts: Vec<(PortIndex, Vec<Vec<u8>>)>,
}

fn mac(vnic: usize) -> MacAddr {
    MacAddr([2, 0, 0, 1, (vnic >> 8) as u8, vnic as u8])
}

fn address(vnic: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0001 + vnic as u32)
}

/// A frame of 64 bytes and its check sequence, or the smallest RDMA send.
fn frame(class: Class, vnic: usize) -> Vec<u8> {
    let path = Path::v4((mac(vnic), address(vnic)), PEER).tagged((vnic % VLANS) as u16 + 1);
    match class {
        Class::Tcp => path.tcp(40_000, 80, 0x10, &[]),
        Class::Rdma => {
            let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(2 + vnic as u32), Psn::truncated(1));
            path.with_tos(2).roce(49_152, bth, &[0; 16])
        }
    }
}

fn snapshot(vnics: usize) -> Snapshot {
    let mut host = testkit::World::new(1, testkit::Underlay::default());
    let vpc = host.add_vpc(100);
    let prefix = Prefix::new(IpAddr::V4(address(0)), 8);
    host.vpc(vpc).set_subnets(vec![Subnet { prefix, gateway: None, services: Services::NONE }]);
    host.vpc(vpc).vnics = (0..vnics as u32).collect();
    let tunnel = host.tunnel(vpc, 2);
    for destination in [Destination::Mac(PEER.0), Destination::Ip(IpAddr::V4(PEER.1))] {
        host.locate(vpc, destination, PEER.0, tunnel);
    }
    let mut snapshot = host.snapshot;
    let first_cell = snapshot.cells.len();
    snapshot.cells.resize(first_cell + vnics, 1);
    for (trunk, first) in (0..vnics).step_by(VLANS).enumerate() {
        let port = snapshot.ports.len() as PortIndex;
        let role = PortRole::Trunk(trunk as u32);
        snapshot.ports.push(PortRow { role, partner: NO_PORT, ..PortRow::default() });
        let members = first..(first + VLANS).min(vnics);
        let vlans = members.clone().map(|vnic| ((vnic - first) as u128 + 1, vnic as u32));
        snapshot.trunks.push(Arc::new(FlatMap::new(vlans)));
        for vnic in members {
            let vlan = (vnic - first) as u16 + 1;
            snapshot.vnics.push(Some(Arc::new(Vnic {
                name: format!("vnic{vnic}"),
                index: vnic as u32,
                vpc,
                mac: mac(vnic),
                vips: vec![IpAddr::V4(address(vnic))],
                learns: false,
                allowed: Vec::new(),
                guarded: true,
                mtu: 1450,
                port,
                vlan: Some(vlan),
                group_set: 0,
                cell: (first_cell + vnic) as u32,
            })));
            let (mac, v4) = (mac(vnic).to_u64(), u32::from(address(vnic)));
            let row = VnicRow { mac, v4, router_mac: testkit::ROUTER.to_u64(), ..VnicRow::FREE };
            snapshot.vnic_rows.push(VnicRow { vpc, port, vlan, mtu: 1450, ..row });
        }
    }
    snapshot.touch_topology(vpc);
    snapshot
}

fn bursts(class: Class, vnics: usize) -> Vec<(PortIndex, Vec<Vec<u8>>)> {
    let mut random = Dice::new(7);
    let mut bursts = Vec::new();
    for (trunk, first) in (0..vnics).step_by(VLANS).enumerate() {
        let mut frames: Vec<_> = (first..(first + VLANS).min(vnics)).map(|vnic| frame(class, vnic)).collect();
        // Every vNIC sends as often as any other.
        while vnics < ROUND && frames.len() < ROUND {
            frames.extend_from_within(..);
        }
        random.shuffle(&mut frames);
        bursts.extend(frames.chunks(BURST).map(|chunk| (trunk as PortIndex + 1, chunk.to_vec())));
    }
    random.shuffle(&mut bursts);
    bursts
}

impl World {
    fn new(class: Class, vnics: usize, limits: Limits) -> Self {
        let mut snapshot = snapshot(vnics);
        let bursts = bursts(class, vnics);
        let bytes = (bursts[0].1[0].len() as u32 - 4 + snapshot.settings.red.overhead) as u64;
        let tree = SIZES.tree();
        if limits != Limits::Free {
            for node in [tree.link_node(Direction::Out), tree.tenant_node(Direction::Out, 0)] {
                tree.set(node, &NodeLimits { assured: HIGH / 2, ceil: HIGH, ..NodeLimits::FREE }, 0);
            }
        }
        let vnic_limits = match limits {
            Limits::Free => NodeLimits::FREE,
            Limits::Pays => NodeLimits { assured: HIGH / 4, ceil: HIGH / 2, ..NodeLimits::FREE },
            Limits::Over => NodeLimits { ceil: LOW / vnics as u64, burst: SAVED, ..NodeLimits::FREE },
        };
        for vnic in 0..vnics as u32 {
            tree.set(tree.vnic_node(Direction::Out, vnic), &vnic_limits, 0);
            if limits == Limits::Pays {
                for class in Class::ALL {
                    let assured = NodeLimits { assured: HIGH / 8, ..NodeLimits::FREE };
                    tree.set(tree.leaf_node(tree.leaf(Direction::Out, vnic, class)), &assured, 0);
                }
            }
        }
        // Marked from the first byte of debt on, and never stopped.
        let red = &mut snapshot.settings.red;
        (red.kmin, red.kmax, red.hard_limit) = (0, 1, u64::MAX >> 1);
        let counters = Arc::new(PipelineCounters::new(16_384));
        let divider = Divider::new(tree.clone());
        let overlay = SIZES.overlay(tree, counters.clone());
        // As fast as a core sends, but held to a limit: TCP at that limit, RDMA at twenty times as much.
        let step_ns = match (limits, class) {
            (Limits::Over, Class::Tcp) => BURST as u64 * bytes * 8 * 1_000_000_000 / LOW,
            (Limits::Over, Class::Rdma) => BURST as u64 * bytes * 8 * 1_000_000_000 / LOW / 20,
            _ => 1_300,
        };
        let mut world = Self {
            overlay,
            counters,
            snapshot,
            burst: Burst::default(),
            out: Out::default(),
            now: Now::from_ns(START_NS),
            step_ns: step_ns / 10,
            divider,
            pauses: Some(Vec::new()),
            turns: Vec::new(),
            awakening: Duration::ZERO,
            bursts,
        };
        // The flows, the queue pairs, what was saved up, and what waits all the time: sent at ten times the speed, so
        // that of ten packets' tokens nine are saved ones.
        let each =
            if limits == Limits::Over { (SAVED / bytes) as usize + (1024 / vnics).clamp(4, 64) } else { 2 };
        let mut left = each * vnics * 10 / 9;
        for (port, frames) in world.bursts.clone().iter().cycle() {
            world.send(*port, frames.iter().map(|frame| HeapBuf::new(frame)).collect());
            world.beside();
            world.out.0.clear();
            left = left.saturating_sub(frames.len());
            if left == 0 {
                break;
            }
        }
        world.step_ns = step_ns;
        while world.now.ns < START_NS + 3 * EPOCH_NS {
            world.round();
        }
        world.awakening = world.pauses.take().into_iter().flatten().max().unwrap_or_default();
        world.check(class, limits);
        world
    }

    fn per_round(&self) -> usize {
        self.bursts.iter().map(|(_, frames)| frames.len()).sum()
    }

    #[inline(always)]
    fn send(&mut self, port: PortIndex, packets: Vec<HeapBuf>) {
        self.now = Now::from_ns(self.now.ns + self.step_ns);
        self.burst.fill(packets);
        self.overlay.run(&self.snapshot, self.now, port, &mut self.burst, &mut self.out);
        while self.overlay.release(&self.snapshot, self.now, &mut self.out) {}
        self.overlay.idle(self.now);
    }

    /// What goes on beside the worker.
    fn beside(&mut self) {
        let start = Instant::now();
        self.divider.tick(self.now.ns);
        if let Some(pauses) = &mut self.pauses {
            pauses.push(start.elapsed());
        }
    }

    /// Sends all bursts, and releases what may go. Only the worker's part counts; buffers are used again at once, as
    /// those of a pool are.
    #[inline(never)]
    fn round(&mut self) -> Duration {
        let mut spent = Duration::ZERO;
        let bursts = std::mem::take(&mut self.bursts);
        for (port, frames) in &bursts {
            let packets: Vec<HeapBuf> = frames.iter().map(|frame| HeapBuf::new(frame)).collect();
            let start = Instant::now();
            self.send(*port, packets);
            let turn = start.elapsed();
            spent += turn;
            if self.pauses.is_some() {
                self.turns.push(turn);
            }
            self.beside();
            black_box(&self.out.0);
            self.out.0.clear();
        }
        self.bursts = bursts;
        spent
    }

    /// The mean of a round, nanoseconds a packet.
    fn per_packet(&mut self) -> f64 {
        self.round().as_nanos() as f64 / self.per_round() as f64
    }

    /// What a division of the rates takes, and how long a turn of the worker is, microseconds; of both the middle of the
    /// longest.
    fn longest(&mut self) -> [f64; 2] {
        let start_ns = self.now.ns;
        self.pauses = Some(Vec::new());
        self.turns.clear();
        // Twenty of the longest epochs, those of 10,000 classes.
        while self.now.ns < start_ns + 20 * 6 * EPOCH_NS {
            self.round();
        }
        [self.pauses.take().unwrap_or_default(), std::mem::take(&mut self.turns)].map(|mut times| {
            times.sort_unstable();
            let longest: Vec<f64> =
                times.iter().rev().take(20).map(|time| time.as_nanos() as f64 / 1e3).collect();
            median(&longest).unwrap_or(f64::NAN)
        })
    }

    /// That the limits do what is to be timed.
    fn check(&mut self, class: Class, limits: Limits) {
        let seen = |world: &Self| {
            let counters = &world.counters;
            (counters.encapsulated.get(), counters.waited.get(), counters.rdma_marked.get())
        };
        let before = seen(self);
        self.round();
        let after = seen(self);
        let (sent, waited, marked) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        let all = self.per_round() as u64;
        let most = |n: u64| n * 100 >= all * 90;
        let right = match (limits, class) {
            (Limits::Over, Class::Tcp) => most(sent) && most(waited) && marked == 0,
            (Limits::Over, Class::Rdma) => sent == all && waited == 0 && most(marked),
            _ => sent == all && waited == 0 && marked == 0,
        };
        assert!(
            right,
            "{class:?} {limits}: of {all} packets {sent} left, {waited} waited, {marked} were marked"
        );
        let tree = self.overlay.dhtb().tree();
        let drawn = tree.view(tree.link_node(Direction::Out), self.now.ns).drawn;
        assert_eq!(
            drawn > 0,
            limits != Limits::Free,
            "{class:?} {limits}: the link let {drawn} bytes through"
        );
    }
}

/// What limits add to none, from rounds by turns.
fn by_turns() {
    let hertz = tsc::hertz().unwrap_or(f64::NAN);
    println!(
        "{:<5} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}  ns a packet, medians of {PAIRS} rounds by turns",
        "class", "vNICs", "free", "pays +", "cycles", "over +", "cycles"
    );
    for class in [Class::Tcp, Class::Rdma] {
        for vnics in VNICS {
            let [mut free, mut pays, mut over] =
                [Limits::Free, Limits::Pays, Limits::Over].map(|limits| World::new(class, vnics, limits));
            let mut rows = [const { Vec::new() }; 3];
            for _ in 0..PAIRS {
                let base = free.per_packet();
                rows[0].push(base);
                rows[1].push(pays.per_packet() - base);
                let base = free.per_packet();
                rows[2].push(over.per_packet() - base);
            }
            let [base, paid, held] = rows.map(|row| median(&row).unwrap_or(f64::NAN));
            let cycles = |ns: f64| ns * hertz / 1e9;
            println!(
                "{:<5} {vnics:>6} {base:>9.1} {paid:>9.1} {:>9.0} {held:>9.1} {:>9.0}",
                class.name(),
                cycles(paid),
                cycles(held)
            );
            for (limits, world) in [(Limits::Pays, &mut pays), (Limits::Over, &mut over)] {
                let first = world.awakening.as_nanos() as f64 / 1e3;
                let [division, turn] = world.longest();
                println!(
                    "  {limits}: a turn takes the worker {turn:.1} us at most, a division beside it {division:.1} us, the \
                     first one of all vNICs {first:.1} us",
                );
            }
            // With thousands of vNICs it is the memory that is timed.
            assert!(paid < BOUND_NS || vnics > 1000, "paying adds {paid:.1} ns to a packet, over {BOUND_NS}");
        }
    }
}

fn dhtb(criterion: &mut Criterion) {
    by_turns();
    let mut group = criterion.benchmark_group("dhtb");
    for class in [Class::Tcp, Class::Rdma] {
        for limits in [Limits::Free, Limits::Pays, Limits::Over] {
            for vnics in VNICS {
                let name = format!("{}, {limits}, packet", class.name());
                let mut world = World::new(class, vnics, limits);
                group.bench_function(BenchmarkId::new(name, vnics), |bencher| {
                    bencher.iter_custom(|iterations| {
                        let rounds = iterations.div_ceil(world.per_round() as u64);
                        let spent: Duration = (0..rounds).map(|_| world.round()).sum();
                        let packets = rounds * world.per_round() as u64;
                        spent.mul_f64(iterations as f64 / packets as f64)
                    });
                });
            }
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = dhtb
}
criterion_main!(benches);
