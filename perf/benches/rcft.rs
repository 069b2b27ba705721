//! What queue pairs cost a worker: admission, refusal, hits of both directions, and the keeper's rounds.
//!
//! Everything goes through [`Rcft`], as the stage does: prefetch the index lines of a burst, then the entry lines,
//! then count. Tables have their default size, a million queue pairs; keys are random. Beside criterion's figures
//! a check times admissions one by one and fails when their median is beyond what a slow machine needs.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use perf::generator::choice::Dice;
use perf::host::hugepages::advise;
use pipelines::Direction;
use pipelines::Now;
use pipelines::flow_key::Scope;
use pipelines::rcft::{
    Keeper, Ledger, LedgerLimits, QpKey, QpOutcome, QpProbe, Rcft, RcftParams, RcftShared, RocePacketFacts,
};
use wire::Qpn;
use wire::roce::opcode::RC_SEND_ONLY;

/// The default size of the tables.
const ENTRIES: u32 = 1_000_000;
/// Packets of a burst.
const BURST: usize = 32;
/// Queue pairs that come and go while a table is kept at one fill.
const BATCH: usize = 32_000;
/// Queue pairs of one of the keeper's rounds.
const ROUND: usize = 4096;
/// The vNIC of the benches, and one whose quota is nothing.
const VNIC: u32 = 1;
const REFUSED: u32 = 2;
const VPC: u32 = 0;
/// A new queue pair is to be admitted in a microsecond, and the machine's speed drifts by this factor.
const ADMISSION_BOUND: Duration = Duration::from_nanos(1900);

/// A worker's tables and control's side of them.
struct World {
    rcft: Rcft,
    keeper: Keeper<Arc<Ledger>>,
    dice: Dice,
    now: Now,
}

impl World {
    fn new() -> Self {
        let config = RcftParams { entries: ENTRIES, vnics: 64, workers: 1, seed: 0x5eed };
        let shared = RcftShared::new(config, &advise);
        shared.set_times(6000, 6000, 600);
        let keeper = Keeper::new(shared.ledger.clone());
        keeper.set_limits(REFUSED, LedgerLimits { quota: 0, ..LedgerLimits::NONE });
        let rcft = Rcft::new(shared, 0, &advise);
        Self { rcft, keeper, dice: Dice::new(7), now: Now::from_ns(5_000_000_000) }
    }

    /// A worker with so many queue pairs, and their keys in random order.
    fn filled(count: usize) -> (Self, Vec<QpKey>) {
        let mut world = Self::new();
        let keys = world.keys(Scope::Vnic(VNIC), count);
        for key in &keys {
            assert_eq!(world.sent(VNIC, key, 1), QpOutcome::Opened);
        }
        let mut order = keys;
        world.dice.shuffle(&mut order);
        (world, order)
    }

    /// Random keys: a /8 of peers with random queue pairs each, so that none comes twice in practice.
    fn keys(&mut self, scope: Scope, count: usize) -> Vec<QpKey> {
        (0..count)
            .map(|_| {
                let random = self.dice.roll();
                let address = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | (random >> 40) as u32));
                QpKey::new(scope, address, Qpn::truncated((random as u32 | 2) & 0xff_ffff))
            })
            .collect()
    }

    #[inline(always)]
    fn sent(&mut self, vnic: u32, key: &QpKey, psn: u32) -> QpOutcome {
        let probe = self.rcft.probe(Direction::Out, *key);
        self.rcft.sent(vnic, &probe, &said(psn), self.now)
    }

    /// One burst toward the wire.
    #[inline(never)]
    fn burst(&mut self, vnic: u32, keys: &[QpKey], psn: u32) -> u32 {
        let probes = self.probes(Direction::Out, keys);
        let mut passed = 0;
        for probe in &probes[..keys.len()] {
            let outcome = self.rcft.sent(vnic, probe, &said(psn), self.now);
            passed += u32::from(matches!(outcome, QpOutcome::Pass | QpOutcome::Opened));
        }
        passed
    }

    #[inline(never)]
    fn received(&mut self, keys: &[QpKey], psn: u32) {
        let probes = self.probes(Direction::In, keys);
        for probe in &probes[..keys.len()] {
            self.rcft.received(probe, &said(psn), self.now, || Some(VNIC));
        }
    }

    /// The time of so many queue pairs of a vNIC, in batches.
    fn batches(
        &mut self,
        vnic: u32,
        queue_pairs: u64,
        mut batch: impl FnMut(&mut Self, &[QpKey]) -> Duration,
    ) -> Duration {
        let (mut spent, mut left) = (Duration::ZERO, queue_pairs as usize);
        while left > 0 {
            let keys = self.keys(Scope::Vnic(vnic), left.min(BATCH));
            spent += batch(self, &keys);
            left -= keys.len();
        }
        spent
    }

    /// A burst's keys as they are looked for, their lines on the way.
    #[inline(always)]
    fn probes(&self, direction: Direction, keys: &[QpKey]) -> [QpProbe; BURST] {
        let mut probes = [QpProbe::default(); BURST];
        for (probe, key) in probes.iter_mut().zip(keys) {
            *probe = QpProbe { key: *key, hash: self.rcft.prefetch(direction, key), slot: 0 };
        }
        for probe in &mut probes[..keys.len()] {
            probe.slot = self.rcft.prefetch_line(direction, probe.hash);
        }
        probes
    }

    /// Takes queue pairs out again, as control does with them.
    fn release(&mut self, keys: &[QpKey]) {
        for key in keys {
            assert!(self.keeper.remove(key.words()));
        }
        while self.keeper.is_busy() {
            self.keeper.advance(|_| {});
            self.rcft.tend(self.now);
        }
    }
}

fn said(psn: u32) -> RocePacketFacts {
    RocePacketFacts { opcode: RC_SEND_ONLY, psn, bytes: 90, payload: 48, detail: 0, ce: false }
}

/// The middle one of admissions timed one by one, the clock's own time included.
fn median_admission(world: &mut World, batches: usize) -> Duration {
    let mut times = Vec::with_capacity(batches * BATCH);
    for _ in 0..batches {
        let keys = world.keys(Scope::Vnic(VNIC), BATCH);
        for key in &keys {
            let start = Instant::now();
            let outcome = world.sent(VNIC, key, 1);
            times.push(start.elapsed());
            assert_eq!(outcome, QpOutcome::Opened);
        }
        world.release(&keys);
    }
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}

fn admission(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admission");
    for (name, before) in [("empty", 0), ("900k", 900_000)] {
        let (mut world, _) = World::filled(before);
        let median = median_admission(&mut world, 4);
        println!("admission/{name}: median of single admissions {} ns (target 1000 ns)", median.as_nanos());
        assert!(
            median <= ADMISSION_BOUND,
            "the median admission took {median:?}, more than {ADMISSION_BOUND:?}: too slow even for a slow machine"
        );
        group.bench_function(BenchmarkId::new("new QP", name), |bencher| {
            bencher.iter_custom(|iterations| {
                world.batches(VNIC, iterations, |world, keys| {
                    let start = Instant::now();
                    for key in keys {
                        black_box(world.sent(VNIC, key, 1));
                    }
                    let spent = start.elapsed();
                    world.release(keys);
                    spent
                })
            });
        });
    }
    group.finish();
}

fn refusal(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("refusal");
    let (mut world, _) = World::filled(100_000);
    group.bench_function("first time", |bencher| {
        bencher.iter_custom(|iterations| {
            world.batches(REFUSED, iterations, |world, keys| {
                let start = Instant::now();
                for burst in keys.chunks(BURST) {
                    assert_eq!(world.burst(REFUSED, burst, 1), 0);
                }
                start.elapsed()
            })
        });
    });
    let keys = world.keys(Scope::Vnic(REFUSED), 1024);
    for burst in keys.chunks(BURST) {
        world.burst(REFUSED, burst, 1);
    }
    group.throughput(Throughput::Elements(keys.len() as u64));
    group.bench_function("again, 1024 QPs", |bencher| {
        bencher.iter(|| keys.chunks(BURST).map(|burst| world.burst(REFUSED, burst, 1)).sum::<u32>());
    });
    group.finish();
}

/// Bursts through an order, again and again: each turn through it brings the next PSN of every queue pair.
fn turns(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    mut order: Vec<QpKey>,
    mut burst: impl FnMut(&[QpKey], u32) -> u32,
) {
    // Short orders are repeated.
    while order.len() < 32 * BURST {
        order.extend_from_within(..);
    }
    order.truncate(order.len() / BURST * BURST);
    let (mut at, mut psn) = (0, 2);
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            let passed = burst(&order[at..at + BURST], psn);
            at += BURST;
            if at == order.len() {
                (at, psn) = (0, psn + 1);
            }
            passed
        });
    });
}

fn hits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hit");
    group.throughput(Throughput::Elements(BURST as u64));
    for (name, count) in [("1 QP", 1), ("1k QPs", 1000), ("100k QPs", 100_000), ("1M QPs", 1_000_000)] {
        let (mut world, order) = World::filled(count);
        let id = BenchmarkId::new("out, burst of 32", name);
        turns(&mut group, id, order, |keys, psn| world.burst(VNIC, keys, psn));
    }
    for (name, count) in [("1 QP", 1), ("1k QPs", 1000), ("100k QPs", 100_000)] {
        // A vNIC has entries from the wire in proportion to what it has admitted.
        let (mut world, _) = World::filled(count);
        let mut order = world.keys(Scope::Vpc(VPC), count);
        for keys in order.chunks(BURST) {
            world.received(keys, 1);
        }
        let stats = world.rcft.stats();
        assert_eq!((stats.into as usize, stats.unknown), (count, 0));
        world.dice.shuffle(&mut order);
        let id = BenchmarkId::new("in, burst of 32", name);
        turns(&mut group, id, order, |keys, psn| {
            world.received(keys, psn);
            0
        });
    }
    group.finish();
}

/// Time of `part` of whole rounds of [`ROUND`] queue pairs: 0 the keeper's, 1 the worker's.
fn rounds(world: &mut World, iterations: u64, part: usize) -> Duration {
    let mut spent = [Duration::ZERO; 2];
    for _ in 0..iterations {
        let keys = world.keys(Scope::Vnic(VNIC), ROUND);
        for key in &keys {
            world.sent(VNIC, key, 1);
        }
        let mut start = Instant::now();
        let mut turn = |spent: &mut Duration| {
            let now = Instant::now();
            *spent += now - start;
            start = now;
        };
        for key in &keys {
            world.keeper.remove(key.words());
        }
        while world.keeper.is_busy() {
            world.keeper.advance(|_| {});
            turn(&mut spent[0]);
            world.rcft.tend(world.now);
            turn(&mut spent[1]);
        }
    }
    spent[part]
}

fn release(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("release");
    group.sample_size(20);
    group.throughput(Throughput::Elements(ROUND as u64));
    let (mut world, _) = World::filled(900_000);
    for (part, name) in
        ["round of 4096, control's part", "round of 4096, the worker's part"].iter().enumerate()
    {
        group.bench_function(*name, |bencher| {
            bencher.iter_custom(|iterations| rounds(&mut world, iterations, part));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50);
    targets = admission, refusal, hits, release
}
criterion_main!(benches);
