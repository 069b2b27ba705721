//! One vNIC opens a hundred thousand queue pairs a second beside another's established traffic.
//!
//! On a virtual clock: it goes on by what the pipeline takes for a burst of its source and size, the median of the
//! last few times it really took, each compared with what a burst of a worker that is left in peace took just before:
//! the machine's speed, and its changes of speed, cancel out. Arrivals are computed from that clock.

use std::collections::{HashMap, VecDeque};

use nix::time::{ClockId, clock_gettime};
use pipelines::Now;
use pipelines::rcft::{RcftParams, RcftShared};
use wire::HeapBuf;

use super::*;

/// Seconds that this thread has run.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9
}

/// Packets that the rx ring of a port holds.
const RING: usize = 1024;
const BURST: usize = 32;
/// Queue pairs of the victim.
const VICTIM_QPS: u32 = 64;
/// New queue pairs per second.
const STORM_RATE: f64 = 100_000.0;
/// How long it lasts.
const SECONDS: f64 = 0.25;
/// What a burst of the worker in peace takes on the clock: 6 million packets a second.
const UNIT: f64 = BURST as f64 / 6e6;

/// Bursts of one source and size that the clock remembers.
const MEMORY: usize = 63;
/// With fewer of them, the fastest counts: a hiccup would be most of what is known.
const FEW: usize = 7;

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn typical(took: &VecDeque<f64>) -> f64 {
    let times = took.iter().copied();
    if took.len() < FEW { times.fold(f64::INFINITY, f64::min) } else { median(times) }
}

struct Source {
    port: u16,
    /// Packets per second.
    rate: f64,
    due: f64,
    ring: VecDeque<HeapBuf>,
    made: u32,
    offered: u64,
    lost: u64,
    served: u64,
}

impl Source {
    fn new(port: u16, rate: f64) -> Self {
        Self { port, rate, due: 0.0, ring: VecDeque::new(), made: 0, offered: 0, lost: 0, served: 0 }
    }

    /// What has arrived by `now`.
    fn arrive(&mut self, now: f64, make: &dyn Fn(u32) -> Vec<u8>) {
        while self.due <= now {
            self.due += 1.0 / self.rate;
            self.offered += 1;
            if self.ring.len() == RING {
                self.lost += 1;
                continue;
            }
            self.ring.push_back(HeapBuf::new(&make(self.made)));
            self.made += 1;
        }
    }
}

/// A worker that knows hundreds of thousands of queue pairs.
fn world() -> World {
    let mut world = plain();
    let config = RcftParams { entries: 300_000, vnics: 64, workers: 1, seed: 3 };
    world.shared.rcft = RcftShared::new(config, &|_, _| {});
    world.worker = TestWorker::new(256, world.shared.clone(), 0);
    world
}

/// A worker with the victim's queue pairs, and nobody beside it.
struct Peace {
    world: World,
    made: u32,
    /// What the last bursts took.
    took: VecDeque<f64>,
    /// How often that was asked for.
    asked: u32,
}

impl Peace {
    fn new() -> Self {
        Self { world: world(), made: 0, took: VecDeque::new(), asked: 0 }
    }

    /// What a burst takes these days: looked at every eighth time.
    fn burst(&mut self, now: Now) -> f64 {
        if self.asked.is_multiple_of(8) {
            let packets = (self.made..).take(BURST).map(|n| HeapBuf::new(&established(n))).collect();
            self.made += BURST as u32;
            self.took.push_back(run_burst(&mut self.world, 1, packets, now));
            self.world.worker.out.sent.clear();
            if self.took.len() > FEW {
                self.took.pop_front();
            }
        }
        self.asked += 1;
        median(self.took.iter().copied())
    }
}

/// Sends a burst through the pipeline, and says how long that took.
fn run_burst(world: &mut World, port: u16, packets: Vec<HeapBuf>, now: Now) -> f64 {
    let worker = &mut world.worker;
    let rest = worker.burst.fill(packets);
    assert!(rest.is_empty());
    let before = processor_time();
    worker.overlay.run(&world.snapshot, now, port, &mut worker.burst, &mut worker.out);
    worker.overlay.idle(now);
    processor_time() - before
}

struct Run {
    world: World,
    peace: Peace,
    now: f64,
    /// What the last bursts took, by source and size, in bursts of the worker in peace.
    took: HashMap<(u16, usize), VecDeque<f64>>,
}

impl Run {
    fn new(quota_of_storm: u32) -> Self {
        let world = world();
        quota(&world, 1, quota_of_storm);
        Self { world, peace: Peace::new(), now: 1.0, took: HashMap::new() }
    }

    /// One burst of a source through the pipeline; its packets that left.
    fn poll(&mut self, source: &mut Source) {
        let n = source.ring.len().min(BURST);
        if n == 0 {
            // An empty poll takes a little, too.
            self.now += 50e-9;
            return;
        }
        let packets: Vec<HeapBuf> = source.ring.drain(..n).collect();
        let time = Now::from_ns((self.now * 1e9) as u64);
        let unit = self.peace.burst(time);
        let ratio = run_burst(&mut self.world, source.port, packets, time) / unit;
        let took = self.took.entry((source.port, n)).or_default();
        took.push_back(ratio);
        if took.len() > MEMORY {
            took.pop_front();
        }
        self.now += typical(took) * UNIT;
        let worker = &mut self.world.worker;
        source.served += worker.out.sent.len() as u64;
        worker.out.sent.clear();
    }

    /// Packets per second that the worker can do for the victim alone.
    fn capacity(&mut self) -> f64 {
        let mut victim = Source::new(1, 1.0);
        for round in 0..3000u32 {
            for n in 0..BURST as u32 {
                victim.ring.push_back(HeapBuf::new(&established(round * BURST as u32 + n)));
            }
            self.poll(&mut victim);
        }
        BURST as f64 / (median(self.took[&(1, BURST)].iter().copied()) * UNIT)
    }
}

fn established(n: u32) -> Vec<u8> {
    write(v4(A, R), 100 + n % VICTIM_QPS, n / VICTIM_QPS)
}

fn opening(n: u32) -> Vec<u8> {
    write(v4(B, R), 2 + n % 0xff_fff0, 0)
}

/// The victim and the attacker after a while, and how many queue pairs the attacker has.
fn storm(load: f64, quota_of_storm: u32, churn: bool) -> (Source, Source, u32) {
    let mut run = Run::new(quota_of_storm);
    let capacity = run.capacity();
    let start = run.now;
    let mut victim = Source::new(1, load * capacity);
    let mut attacker = Source::new(2, STORM_RATE);
    (victim.due, attacker.due) = (start, start);
    let mut control = keeper(&run.world);
    let (mut swept, mut gone) = (start, 0);
    while run.now < start + SECONDS {
        victim.arrive(run.now, &established);
        attacker.arrive(run.now, &opening);
        run.poll(&mut victim);
        run.poll(&mut attacker);
        if churn && run.now >= swept + 0.005 {
            // What the storm opened goes again, thousands at a time.
            swept = run.now;
            control.sweep(u32::MAX, |seen| seen.key[2] >> 32 == 1);
            control.advance(|_| gone += 1);
        }
    }
    assert!(!churn || gone > 5_000, "the storm's queue pairs went: {gone}");
    while !victim.ring.is_empty() {
        run.poll(&mut victim);
    }
    let admitted = run.world.shared.rcft.ledger.count(1);
    println!(
        "capacity {:.2} Mpps, victim served/offered {}/{}, storm offered {} admitted {admitted}",
        capacity / 1e6,
        victim.served,
        victim.offered,
        attacker.offered
    );
    assert_eq!(run.world.shared.rcft.ledger.count(0), VICTIM_QPS);
    (victim, attacker, admitted)
}

fn harms_nobody_else(quota_of_storm: u32) {
    let (victim, attacker, admitted) = storm(0.4, quota_of_storm, false);
    assert_eq!((victim.lost, victim.served), (0, victim.offered));
    let wanted = (STORM_RATE * SECONDS) as u64;
    assert!(attacker.offered >= wanted, "the storm was one: {}", attacker.offered);
    assert_eq!(u64::from(admitted), wanted.min(u64::from(quota_of_storm)).max(attacker.served));
}

#[test]
fn quota_storm_of_refused_queue_pairs_harms_nobody_else() {
    harms_nobody_else(1000);
}

#[test]
fn quota_storm_of_admitted_queue_pairs_harms_nobody_else() {
    harms_nobody_else(u32::MAX);
}

/// What the storm opened is taken out all the time: forgetting it harms nobody else either.
#[test]
fn quota_storm_of_leaving_queue_pairs_harms_nobody_else() {
    let (victim, _, _) = storm(0.4, 10_000, true);
    assert_eq!((victim.lost, victim.served), (0, victim.offered));
}

/// The same with more than the worker can do: what this measures can go wrong.
#[test]
fn quota_storm_an_overloaded_worker_loses() {
    let (victim, _, _) = storm(1.5, 1000, false);
    assert!(victim.lost > victim.offered / 5, "{} of {}", victim.lost, victim.offered);
}
