//! Two workers of one switch, as control makes them, and their bursts.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use pipelines::Direction;
use pipelines::Now;
use pipelines::burst::Burst;
use pipelines::connections::{Connections, WorkerConnections};
use pipelines::counters::PipelineCounters;
use pipelines::hot::Hints;
use pipelines::ledger::LedgerParams;
use pipelines::nft::NftParams;
use pipelines::overlay::{Overlay, OverlayConfig, OverlayParts};
use pipelines::qos::{Class, Dhtb, Divider, EPOCH_NS, NodeLimits, Tree, TreeSize};
use pipelines::rcft::{Rcft, RcftParams, RcftShared};
use pipelines::snapshot::PortIndex;
use wire::roce::{Bth, opcode};
use wire::{HeapBuf, PacketBuf, Psn, Qpn};

use super::trace::PACKETS as PACKETS_FILE;
use testkit::*;

/// Names the file in which the child announces itself.
pub const CHILD: &str = "VSWITCH_SCALING";
/// What workers share on purpose.
pub const BUCKETS: &str = "DHTB nodes";

const BURST: u32 = 32;
/// Kinds of bursts: TCP and RoCEv2, into the tunnel and out of it.
const KINDS: u32 = 4;
/// Bursts of each kind and worker that are counted.
const TURNS: u32 = 5;
/// Packets of each worker that are counted.
pub const PACKETS: u32 = TURNS * KINDS * BURST;
/// Bytes behind the headers of an inner frame.
const PAYLOAD: usize = 40;
/// What every node may save up, which is what low rates do by themselves, and what one of two workers draws of it at a time:
/// half of an eighth, few packets' worth, so that a short run has many draws.
const SAVED: u64 = 128 << 10;
const QUANTUM: u64 = SAVED / 8 / 2;
/// What a packet costs at most, in bytes.
const COST: u64 = 130;
/// Draws of both workers at most: one of each kind may be of what a quantum from before had left.
const DRAWS: u64 = 2 * (PACKETS as u64 * COST / QUANTUM + KINDS as u64);
/// Divisions of the rates that pass, and the classes in use.
const DIVISIONS: u64 = (TURNS * KINDS) as u64 * STEP / EPOCH_NS + 1;
const CLASSES: u64 = 8;
/// Time between two bursts of a worker, nanoseconds: some epochs of the division pass.
const STEP: u64 = 50_000;

/// Bytes before and behind the first byte of a packet that are its own.
const AROUND: u64 = 512;

/// Who has which traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A vNIC each.
    OwnVnics,
    /// Half of the flows of one vNIC each.
    OneVnic,
}

impl Scenario {
    pub const ALL: [Self; 2] = [Self::OwnVnics, Self::OneVnic];

    /// How often lines of buckets may move. A draw looks at the tokens of each node, then takes some: two moves for each
    /// that both workers are under (VPC and link; or vNIC and class, too). The division looks at what each class took and
    /// says what it gets.
    pub fn most_moves(self) -> u64 {
        let nodes = match self {
            Self::OwnVnics => 2,
            Self::OneVnic => 4,
        };
        2 * nodes * DRAWS + 4 * CLASSES * DIVISIONS
    }
}

/// A worker's thread has its own pages.
#[repr(align(4096))]
struct Pages<T>(T);

struct Duo {
    world: World,
    tree: Arc<Tree>,
    /// Beside the workers: its steps are of no phase.
    divider: Divider,
    workers: Vec<Box<Pages<TestWorker>>>,
    /// By worker.
    bursts: [Vec<(PortIndex, Vec<HeapBuf>)>; 2],
}

/// Marks of a phase, each on a line of its own.
#[repr(align(64))]
struct Mark(AtomicU64);

static MARKS: [Mark; 1 + 2 * Scenario::ALL.len()] =
    [const { Mark(AtomicU64::new(0)) }; 1 + 2 * Scenario::ALL.len()];

fn mark(phase: usize) {
    MARKS[phase].0.store(1, Ordering::SeqCst);
}

fn frame(kind: u32, own: Station, flow: u32) -> Vec<u8> {
    let out = kind < 2;
    let path = if out { v4(own, R) } else { v4(R, own) };
    let inner = if kind.is_multiple_of(2) {
        path.tcp(1000 + flow as u16, 80, 0x10, &[0; PAYLOAD])
    } else {
        let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(100 + flow), Psn::truncated(1));
        path.roce(2000 + flow as u16, bth, &[0; PAYLOAD])
    };
    if out { inner } else { tunnelled(&inner) }
}

impl Duo {
    fn new(scenario: Scenario, announced: &mut String) -> Self {
        let mut world = plain();
        world.snapshot.settings.miss_budget = 64;
        let label = std::cell::Cell::new("");
        let lines = std::cell::RefCell::new(String::new());
        let advise = |start: usize, len: usize| {
            let _ = writeln!(lines.borrow_mut(), "structure {start:x} {len:x} {}", label.get());
        };
        label.set("ledger of queue pairs");
        let config = RcftParams { entries: 1024, vnics: 64, workers: 2, seed: 7 };
        let shared = RcftShared::new(config, &advise);
        shared.set_times(6000, 50, 600);
        label.set("connections");
        let params = LedgerParams { entries: 1024, vnics: 64, workers: 2, seed: 7 };
        let connections = Arc::new(Connections::new(&params, &advise));
        label.set(BUCKETS);
        let tree = Arc::new(Tree::new(TreeSize { tenants: 8, vnics: 64 }, &advise));
        limit(&tree);
        let workers = (0..2u32).map(|number| {
            let counters = Arc::new(PipelineCounters::new(64));
            let config = OverlayConfig {
                nft: NftParams { entries: 1024, idle_ticks: 300, seed: 9 },
                vnics: 64,
                vpcs: 8,
            };
            label.set(["queue pairs of worker 0", "queue pairs of worker 1"][number as usize]);
            let rcft = Rcft::new(shared.clone(), number, &advise);
            let dhtb = Dhtb::new(tree.clone(), 1024, 3 + u64::from(number));
            label.set(["flow table of worker 0", "flow table of worker 1"][number as usize]);
            let parts = OverlayParts {
                fragments: world.shared.fragments.clone(),
                connections: WorkerConnections::new(connections.clone(), number),
                rcft,
                dhtb,
                events: world.shared.events.clone(),
                counters: counters.clone(),
            };
            let mut overlay = Overlay::new(&config, parts, &advise);
            overlay.set_hints(Some(Hints::new(Arc::new(ArrayQueue::new(64)))));
            let out = RecordingSink { sent: Vec::with_capacity(4096), counters: counters.clone() };
            let divider = Divider::new(tree.clone());
            Box::new(Pages(TestWorker { overlay, out, counters, burst: Burst::default(), divider }))
        });
        let workers: Vec<_> = workers.collect();
        let stations = if scenario == Scenario::OneVnic { [A, A] } else { [A, B] };
        let bursts = [0, 1].map(|worker: usize| {
            let own = stations[worker];
            let port = if own == A { 1 } else { 2 };
            let first = worker as u32 * BURST;
            let frames =
                |kind| (first..first + BURST).map(move |flow| frame(kind, own, flow)).collect::<Vec<_>>();
            let kinds: Vec<_> =
                (0..KINDS).map(|kind| (if kind < 2 { port } else { UPLINK }, frames(kind))).collect();
            // The first turn makes everything known.
            let turns = std::iter::repeat_n(kinds, 1 + TURNS as usize).flatten();
            turns
                .map(|(port, frames)| (port, frames.iter().map(|frame| HeapBuf::new(frame)).collect()))
                .collect()
        });
        *announced += &lines.borrow();
        let divider = Divider::new(tree.clone());
        Self { world, tree, divider, workers, bursts }
    }

    /// Where its packets are, headroom and all.
    fn packets(&self) -> impl Iterator<Item = u64> {
        let packets = self.bursts.iter().flatten().flat_map(|(_, packets)| packets);
        packets.map(|packet| packet.head().as_ptr() as u64 - AROUND / 2)
    }

    /// Both workers by turns, burst by burst.
    fn run(mut self, phases: [usize; 2]) {
        let mut now = self.world.now.ns;
        let [first, second] = self.bursts;
        for (turn, pair) in first.into_iter().zip(second).enumerate() {
            now += STEP;
            for (number, (port, packets)) in [pair.0, pair.1].into_iter().enumerate() {
                let TestWorker { overlay, out, burst, .. } = &mut self.workers[number].0;
                let count = packets.len();
                assert!(burst.fill(packets).is_empty());
                let (now, snapshot) = (Now::from_ns(now), &self.world.snapshot);
                mark(if turn < KINDS as usize { 0 } else { phases[number] });
                overlay.run(snapshot, now, port, burst, out);
                overlay.release(snapshot, now, out);
                overlay.idle(now);
                mark(0);
                assert_eq!(out.sent.len(), count, "all of them go on");
                out.sent.clear();
            }
            self.divider.tick(now);
        }
        for worker in &self.workers {
            let counters = &worker.0.counters;
            assert_eq!(
                counters.nft_misses.get(),
                u64::from(KINDS / 2 * BURST + KINDS / 2),
                "none is new any more"
            );
        }
        let drawn = self.tree.view(self.tree.link_node(Direction::Out), now).drawn;
        assert!(drawn > 10 * QUANTUM, "packets paid: {drawn}");
    }
}

/// Rates that nothing reaches.
fn limit(tree: &Tree) {
    const GIGABIT: u64 = 1_000_000_000;
    let limits = |assured, ceil| NodeLimits {
        assured: assured * GIGABIT,
        ceil: ceil * GIGABIT,
        weight: 1,
        burst: SAVED,
    };
    for direction in Direction::ALL {
        tree.set(tree.link_node(direction), &limits(0, 400), 0);
        tree.set(tree.tenant_node(direction, 0), &limits(200, 300), 0);
        for vnic in 0..2 {
            tree.set(tree.vnic_node(direction, vnic), &limits(90, 200), 0);
            for class in Class::ALL {
                tree.set(tree.leaf_node(tree.leaf(direction, vnic, class)), &limits(40, 0), 0);
            }
        }
    }
}

/// Where this program is loaded.
fn base() -> u64 {
    let program = std::env::current_exe().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let first = maps.lines().find(|line| line.ends_with(program.to_str().unwrap()));
    first.map_or(0, |line| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap())
}

/// All scenarios, after it is announced in `path` what is where.
pub fn run(path: &Path) {
    let here = 0u8;
    let top = std::ptr::from_ref(&here) as u64;
    let mut announced = format!("stack {:x} {:x}\nbase {:x}\n", top - (1 << 19), top + 4096, base());
    for (phase, mark) in MARKS.iter().enumerate() {
        let _ = writeln!(announced, "mark {:x} {phase:x}", mark.0.as_ptr() as u64);
    }
    let duos = Scenario::ALL.map(|scenario| Duo::new(scenario, &mut announced));
    let packets: Vec<u8> = duos.iter().flat_map(Duo::packets).flat_map(u64::to_le_bytes).collect();
    std::fs::write(path.with_extension(PACKETS_FILE), packets).unwrap();
    let _ = writeln!(announced, "packets {AROUND:x}");
    std::fs::write(path, announced).unwrap();
    // The parent looks for the file now and then: it finds it somewhere in the trace of this.
    let zeros = vec![0u8; 30_000];
    assert_eq!(zeros.iter().map(|zero| std::hint::black_box(*zero)).max(), Some(0));
    for (number, duo) in duos.into_iter().enumerate() {
        duo.run([2 * number + 1, 2 * number + 2]);
    }
}
