//! What tables cost a burst of 32 packets, from sizes that fit any cache to sizes that fit none: flows and locations in
//! random order, what is there and what is not.
//!
//! Queue pairs and rates have benches of their own, `rcft` and `dhtb`.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use perf::generator::choice::Dice;
use perf::host::hugepages::advise;
use pipelines::burst::Meta;
use pipelines::flat::FlatMap;
use pipelines::flow_key::{FlowKey, Scope};
use pipelines::fragments::{FirstFragment, Fragments};
use pipelines::miss::MissLimits;
use pipelines::nft::{FlowAction, Nft, NftParams};
use pipelines::snapshot::{Destination, Location, ip_key};
use pipelines::vlt::{Hot, Place, TEMPLATE_BYTES, Tunnel, Vlt};
use wire::MacAddr;

/// Packets of a burst.
const BURST: usize = 32;
const MASK: u64 = (1 << BURST) - 1;
/// Bursts of look-ups that are timed as one: few enough for their keys to stay in the second level of the cache.
const ROUND: usize = 64;
const SIZES: [(&str, u32); 3] = [("1k", 1000), ("100k", 100_000), ("1M", 1_000_000)];

/// So many numbers below `n`, in random order.
fn order(dice: &mut Dice, count: usize, n: u32) -> Vec<u32> {
    (0..count).map(|_| dice.below(n)).collect()
}

/// Calls `burst` with 32 random numbers below `size` at a time.
fn bursts(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    size: u32,
    mut burst: impl FnMut(&[u32]) -> u64,
) {
    let order = order(&mut Dice::new(7), 1 << 16, size);
    let mut at = 0;
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            let numbers = &order[at..at + BURST];
            at = (at + BURST) % order.len();
            black_box(burst(numbers))
        });
    });
}

/// The n-th TCP flow of vNIC 0.
fn flow(n: u32) -> FlowKey {
    let addresses = 0x0a00_0001_0a00_0000 | u64::from(n >> 12);
    let ports = u64::from(n & 0xfff) << 16 | 80;
    FlowKey::from_words([addresses, 0, 0, 0, ports, 0x0200_0000_0109, 6])
}

fn nft_of(flows: u32) -> Nft {
    let mut nft = Nft::new(NftParams { entries: 1 << 20, idle_ticks: 3000, seed: 0x5eed }, &advise);
    for n in 0..flows {
        let key = flow(n);
        nft.insert(key, key.hash(nft.seed()), FlowAction::default(), 1);
    }
    nft
}

fn probe(nft: &Nft, n: u32) -> Meta {
    let key = flow(n);
    Meta { key, hash: key.hash(nft.seed()), ..Meta::default() }
}

fn nft(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nft");
    group.throughput(Throughput::Elements(BURST as u64));
    for (parameter, flows) in SIZES {
        let nft = nft_of(flows);
        // What is not there are the flows behind.
        for (name, first, found) in [("hit", 0, MASK), ("miss", flows, 0)] {
            let mut dice = Dice::new(7);
            group.bench_function(BenchmarkId::new(name, parameter), |bencher| {
                bencher.iter_custom(|iterations| {
                    let mut spent = Duration::ZERO;
                    let rounds = iterations.div_ceil(ROUND as u64);
                    for _ in 0..rounds {
                        let order = order(&mut dice, ROUND * BURST, flows);
                        let mut probes: Vec<Meta> = order.iter().map(|n| probe(&nft, first + n)).collect();
                        let mut hits = MASK;
                        let start = Instant::now();
                        for burst in probes.chunks_mut(BURST) {
                            hits &= nft.lookup_burst(burst, MASK);
                        }
                        spent += start.elapsed();
                        assert_eq!(hits, found);
                    }
                    spent.mul_f64(iterations as f64 / (rounds * ROUND as u64) as f64)
                });
            });
        }
    }
    // Into an empty table, and into a full one, where each new flow takes the place of the one idle for longest.
    for (name, before) in [("insert", 0), ("insert into a full table", 1 << 20)] {
        let mut nft = nft_of(before);
        let (mut next, mut tick) = (before, 2);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    let probes: Vec<Meta> = (next..).take(BURST).map(|n| probe(&nft, n)).collect();
                    next = next.wrapping_add(BURST as u32);
                    let start = Instant::now();
                    let slots: Vec<u32> = probes
                        .iter()
                        .map(|probe| nft.insert(probe.key, probe.hash, FlowAction::default(), tick))
                        .collect();
                    spent += start.elapsed();
                    tick += u32::from(next.is_multiple_of(1 << 14));
                    if before == 0 {
                        slots.into_iter().for_each(|slot| nft.remove(slot));
                    }
                }
                spent
            });
        });
    }
    group.finish();
}

fn vlt(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("vlt");
    group.throughput(Throughput::Elements(BURST as u64));
    for (parameter, places) in SIZES {
        let (vlt, mut writer) = Vlt::new(places);
        for n in 0..places {
            let mut header = [0; TEMPLATE_BYTES];
            header[..4].copy_from_slice(&n.to_ne_bytes());
            writer.allocate(Place::Remote(Tunnel { group: 1, len: 50, vtep: 1, header }));
        }
        bursts(&mut group, BenchmarkId::new("hot", parameter), places, |slots| {
            slots.iter().for_each(|&slot| vlt.prefetch(slot));
            let read = slots.iter().map(|&slot| match vlt.read_hot(slot, 0) {
                Hot::Tunnel4(header) => {
                    let [first, ..] = black_box(std::array::from_fn::<_, 7, _>(|n| header.word(n)));
                    if header.is_still() { first & 0xffff_ffff } else { 0 }
                }
                _ => 0,
            });
            read.sum()
        });
        bursts(&mut group, BenchmarkId::new("whole", parameter), places, |slots| {
            slots.iter().for_each(|&slot| vlt.prefetch(slot));
            let read = slots.iter().map(|&slot| match vlt.read(slot).place {
                Place::Remote(tunnel) => u64::from(black_box(&tunnel).len),
                _ => 0,
            });
            read.sum()
        });
    }
    group.finish();
}

fn flat(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("flat map");
    group.throughput(Throughput::Elements(BURST as u64));
    let key = |n: u32| ip_key(IpAddr::V4(Ipv4Addr::from(0xac10_0000 + n)));
    for (parameter, keys) in [("16", 16), ("4k", 4096), ("100k", 100_000)] {
        let map = FlatMap::new((0..keys).map(|n| (key(n), n)));
        bursts(&mut group, BenchmarkId::new("hit", parameter), keys, |numbers| {
            numbers.iter().filter_map(|&n| map.get(key(n))).map(u64::from).sum()
        });
        bursts(&mut group, BenchmarkId::new("miss", parameter), keys, |numbers| {
            numbers.iter().filter(|&&n| map.get(key(keys + n)).is_none()).count() as u64
        });
    }
    group.finish();
}

fn locations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("locations");
    group.throughput(Throughput::Elements(BURST as u64));
    let key = |n: u32| (0u32, Destination::Ip(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n))));
    for (parameter, places) in SIZES {
        let (_, mut writer) = Vlt::new(1);
        let Some(slot) = writer.allocate(Place::Local { vnic: 0 }) else { return };
        let location = Location { slot, mac: MacAddr([2, 0, 0, 0, 0, 1]), groups: 0 };
        let map: imbl::HashMap<_, _> = (0..places).map(|n| (key(n), location)).collect();
        bursts(&mut group, BenchmarkId::new("hit", parameter), places, |numbers| {
            numbers
                .iter()
                .filter_map(|&n| map.get(&key(n)))
                .map(|location| u64::from(location.slot.slot))
                .sum()
        });
        bursts(&mut group, BenchmarkId::new("miss", parameter), places, |numbers| {
            numbers.iter().filter(|&&n| !map.contains_key(&key(places + n))).count() as u64
        });
    }
    group.finish();
}

fn fragments(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fragments");
    group.throughput(Throughput::Elements(BURST as u64));
    // Half of a set at most is one source's: many sources.
    let key =
        |n: u32| FlowKey::from_words([Dice::new(u64::from(n)).roll(), 0, 0, 0, u64::from(n) << 32, 0, 17]);
    for (parameter, datagrams) in [("1k", 1000), ("100k", 100_000)] {
        let table = Fragments::new(4 * datagrams as usize, 5);
        let first = |n: u32| FirstFragment { sport: n as u16, dport: 2, proto: 17, class: 0 };
        for n in 0..datagrams {
            table.store(&key(n), first(n), 1);
        }
        bursts(&mut group, BenchmarkId::new("find", parameter), datagrams, |numbers| {
            numbers.iter().filter_map(|&n| table.find(&key(n), 2)).map(|first| u64::from(first.sport)).sum()
        });
        bursts(&mut group, BenchmarkId::new("miss", parameter), datagrams, |numbers| {
            numbers.iter().filter(|&&n| table.find(&key(datagrams + n), 2).is_none()).count() as u64
        });
        bursts(&mut group, BenchmarkId::new("store", parameter), datagrams, |numbers| {
            numbers.iter().for_each(|&n| table.store(&key(n), first(n), 2));
            0
        });
    }
    group.finish();
}

fn miss_limits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("miss limits");
    group.throughput(Throughput::Elements(BURST as u64));
    for (parameter, vnics) in [("1", 1), ("10k", 10_000)] {
        let mut limits = MissLimits::new(vnics as usize, 1);
        limits.set_rate(100_000);
        let mut now = 5_000_000_000;
        bursts(&mut group, BenchmarkId::new("admit", parameter), vnics, |numbers| {
            now += 1300;
            numbers.iter().filter(|&&vnic| limits.admit(Scope::Vnic(vnic), now)).count() as u64
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .sample_size(20);
    targets = nft, vlt, flat, locations, fragments, miss_limits
}
criterion_main!(benches);
