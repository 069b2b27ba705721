//! What is counted: gungraun runs each bench once, in a process of its own under callgrind, and counts what happens
//! between setup and teardown.

use gungraun::prelude::*;

use testkit::fixture::{BURST, FixtureWorker, Lane, SINGLE, SingleStage, Stages, WHOLE, Whole};

/// Bursts of a count: what only some of them pay (a quantum of tokens, for one) is spread over all.
const LANES: usize = 8;
/// Packets of a count.
pub const PACKETS: u64 = (LANES * BURST) as u64;

/// A worker with packets at its door.
struct Ready<W> {
    worker: W,
    lanes: Vec<Lane>,
    before: Vec<(&'static str, u64)>,
}

fn before_stage(index: usize) -> Box<(SingleStage, Ready<Stages>)> {
    let (_, stage, case) = SINGLE[index];
    let mut worker = Stages::busy(case);
    let mut lanes = worker.lanes(LANES);
    let before = worker.seen();
    lanes.iter_mut().for_each(|lane| worker.before(stage, lane));
    Box::new((stage, Ready { worker, lanes, before }))
}

fn after_stage(ready: Box<(SingleStage, Ready<Stages>)>) {
    let (stage, Ready { mut worker, mut lanes, before }) = *ready;
    lanes.iter_mut().for_each(|lane| worker.after(stage, lane));
    worker.check(&before, PACKETS);
}

fn before_whole(index: usize) -> Box<Ready<Whole>> {
    let mut worker = Whole::busy(WHOLE[index].1);
    let lanes = worker.lanes(LANES);
    let before = worker.seen();
    Box::new(Ready { worker, lanes, before })
}

fn after_whole(mut ready: Box<Ready<Whole>>) {
    let Ready { worker, before, .. } = &mut *ready;
    worker.check(before, PACKETS);
}

#[library_benchmark]
#[benches::of(iter = 0..SINGLE.len(), setup = before_stage, teardown = after_stage)]
fn stage(mut ready: Box<(SingleStage, Ready<Stages>)>) -> Box<(SingleStage, Ready<Stages>)> {
    let (stage, Ready { worker, lanes, .. }) = &mut *ready;
    for lane in lanes {
        worker.step(*stage, lane);
    }
    ready
}

#[library_benchmark]
#[benches::of(iter = 0..WHOLE.len(), setup = before_whole, teardown = after_whole)]
fn whole(mut ready: Box<Ready<Whole>>) -> Box<Ready<Whole>> {
    let Ready { worker, lanes, .. } = &mut *ready;
    for lane in lanes {
        worker.pass(lane);
    }
    ready
}

library_benchmark_group!(name = overlay, benchmarks = [stage, whole]);

main!(library_benchmark_groups = overlay);

/// The program as gungraun and its runner want it.
pub fn serve() {
    main();
}
