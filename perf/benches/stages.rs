//! How long each stage of the overlay takes for a packet, and the whole of it: bursts of 32 in a small switch that has
//! been running for a while (`pipelines/testkit/src/fixture`). Caches are warm; what tables cost when they are not is in `tables`.
//!
//! Packets come to a stage through the stages before it, outside the clock. Counts of instructions for the same, which
//! do not drift with the machine, are in `perf/instructions`.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use testkit::fixture::{BURST, FixtureWorker, Lane, SINGLE, Stages, WHOLE, Whole};

/// Bursts that are timed as one: few enough for the second level of the cache.
const LANES: usize = 16;

/// The time of so many bursts in `timed`, made ready by `ready`.
fn rounds<W: FixtureWorker>(
    worker: &mut W,
    bursts: u64,
    mut ready: impl FnMut(&mut W, &mut Lane),
    mut timed: impl FnMut(&mut W, &mut Lane),
    mut after: impl FnMut(&mut W, &mut Lane),
) -> Duration {
    let rounds = bursts.div_ceil(LANES as u64);
    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        let mut lanes = worker.lanes(LANES);
        lanes.iter_mut().for_each(|lane| ready(worker, lane));
        let start = Instant::now();
        for lane in &mut lanes {
            timed(worker, lane);
        }
        spent += start.elapsed();
        lanes.iter_mut().for_each(|lane| after(worker, lane));
        worker.forget();
        worker.rest();
    }
    spent.mul_f64(bursts as f64 / (rounds * LANES as u64) as f64)
}

fn stages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stage");
    group.throughput(Throughput::Elements(BURST as u64));
    // New queue pairs are new once: the bench `rcft` has them.
    for (name, stage, case) in SINGLE.into_iter().filter(|(.., case)| !case.opens_queue_pairs()) {
        let mut worker = Stages::busy(case);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|bursts| {
                rounds(
                    &mut worker,
                    bursts,
                    |worker, lane| worker.before(stage, lane),
                    |worker, lane| worker.step(stage, lane),
                    |worker, lane| worker.after(stage, lane),
                )
            });
        });
    }
    group.finish();
}

fn whole(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("whole");
    group.throughput(Throughput::Elements(BURST as u64));
    for (name, case) in WHOLE.into_iter().filter(|(_, case)| !case.opens_queue_pairs()) {
        let mut worker = Whole::busy(case);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|bursts| rounds(&mut worker, bursts, |_, _| {}, Whole::pass, |_, _| {}));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(30))
        .measurement_time(Duration::from_millis(100))
        .sample_size(20);
    targets = stages, whole
}
criterion_main!(benches);
