//! Views: what the switch shows of itself, as data. Sums over workers, less what `clear` set as zero point.
//!
//! Reads counters only; how they are laid out for people is the commands' business.

pub mod buffers;
pub mod flow;
pub mod qos;
pub mod qps;

use std::collections::BTreeMap;

use pipelines::counters::{PipelineTotals, VnicTotals};
use pipelines::drops::DropReason;
use pipelines::watch::Stage;
use pmd::PortStats;
use worker::Pool;
use worker::stats::{BURST_CLASSES, PortTotals};

use crate::switch::Switch;

/// Counters of the whole data path, summed over workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All but the drops.
    pub pipeline: PipelineTotals,
    /// Drops by reason; zero ones included.
    pub drops: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Everything but the drops by name, in the order of display.
    pub fn scalars(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.pipeline.iter()
    }

    /// One scalar.
    pub fn get(&self, name: &str) -> u64 {
        self.scalars().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
    }

    pub fn dropped(&self) -> u64 {
        self.drops.values().fold(0, |sum, n| sum.wrapping_add(*n))
    }

    /// [`PipelineTotals::imbalance`] of all workers.
    pub fn imbalance(&self) -> i64 {
        self.pipeline.imbalance(self.dropped())
    }

    fn since(mut self, base: &Self) -> Self {
        self.pipeline = self.pipeline.since(&base.pipeline);
        for (name, value) in &mut self.drops {
            *value = value.wrapping_sub(base.drops.get(name).copied().unwrap_or(0));
        }
        self
    }
}

/// A worker's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerTotals {
    pub number: usize,
    pub core: usize,
    pub alive: bool,
    /// Packets received.
    pub packets: u64,
    /// Turns of the loop.
    pub polls: u64,
    /// TSC cycles of turns with packets.
    pub busy_cycles: u64,
    /// TSC cycles of turns without.
    pub idle_cycles: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Bursts by size class.
    pub bursts: [u64; BURST_CLASSES],
    /// NFT hits.
    pub hits: u64,
    /// NFT misses.
    pub misses: u64,
}

impl WorkerTotals {
    /// Cycles per received packet, over turns that received any.
    pub fn cycles_per_packet(&self) -> f64 {
        if self.packets == 0 { 0.0 } else { self.busy_cycles as f64 / self.packets as f64 }
    }

    /// Share of its time in which nothing came in, 0 to 1.
    pub fn idle_share(&self) -> f64 {
        let all = self.busy_cycles + self.idle_cycles;
        if all == 0 { 0.0 } else { self.idle_cycles as f64 / all as f64 }
    }
}

/// The zero point of displayed counters.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// Of the data path.
    pub totals: Totals,
    /// Of ports, by name.
    pub ports: BTreeMap<String, PortTotals>,
    /// Of vNICs, by name: what an earlier one of the same index left.
    pub vnics: BTreeMap<String, VnicTotals>,
}

impl Baseline {
    /// A port that has just been attached counts from zero, whatever the one had that was here before.
    pub(crate) fn begin_port(&mut self, pool: &Pool, index: u16, name: &str) {
        self.ports.insert(name.into(), raw_port(pool, index));
    }

    /// As [`begin_port`](Self::begin_port), of a vNIC.
    pub(crate) fn begin_vnic(&mut self, pool: &Pool, index: u32, name: &str) {
        self.vnics.insert(name.into(), raw_vnic(pool, index));
    }

    /// Forgets the ports and vNICs that are gone.
    pub(crate) fn forget<'n>(
        &mut self,
        ports: impl IntoIterator<Item = &'n str>,
        vnics: impl IntoIterator<Item = &'n str>,
    ) {
        for name in ports {
            self.ports.remove(name);
        }
        for name in vnics {
            self.vnics.remove(name);
        }
    }
}

/// The data path's counters since the last `clear`.
pub fn totals(switch: &Switch) -> Totals {
    raw_totals(switch).since(&switch.baseline().totals)
}

fn raw_totals(switch: &Switch) -> Totals {
    let workers = &switch.pool().workers;
    let mut sum = Totals {
        pipeline: workers.iter().map(|worker| worker.stats.pipeline.totals()).sum(),
        drops: BTreeMap::new(),
    };
    for worker in workers {
        for reason in DropReason::all() {
            let total = sum.drops.entry(reason.name()).or_default();
            *total = total.wrapping_add(worker.stats.pipeline.drops(reason));
        }
    }
    sum
}

fn raw_port(pool: &Pool, index: u16) -> PortTotals {
    pool.workers.iter().map(|worker| worker.stats.ports[usize::from(index)].totals()).sum()
}

/// A port's traffic since the last `clear`.
pub fn port(switch: &Switch, index: u16) -> PortTotals {
    let name = switch.ports().get(index).map(|port| port.name.as_str()).unwrap_or_default();
    let base = switch.baseline().ports.get(name).copied().unwrap_or_default();
    raw_port(switch.pool(), index).since(&base)
}

/// What a port's driver counted; zeros where it does not say.
pub fn driver(switch: &Switch, index: u16) -> PortStats {
    switch.ports().get(index).and_then(|port| port.port.stats().ok()).unwrap_or_default()
}

/// What the drivers of all ports together lost or failed to send, before the switch saw it or after: it is outside the
/// conservation law, and shown beside it.
pub fn drivers(switch: &Switch) -> [(&'static str, u64); 4] {
    let stats: Vec<PortStats> =
        switch.ports().iter().filter_map(|(_, port)| port.port.stats().ok()).collect();
    let sum = |of: fn(&PortStats) -> u64| stats.iter().map(of).fold(0, u64::wrapping_add);
    [
        ("rx-nombuf", sum(|stats| stats.rx_no_mbuf)),
        ("imissed", sum(|stats| stats.rx_missed)),
        ("ierrors", sum(|stats| stats.rx_errors)),
        ("oerrors", sum(|stats| stats.tx_errors)),
    ]
}

/// A vNIC's traffic since it is there.
pub fn vnic(switch: &Switch, index: u32) -> VnicTotals {
    let row = switch.snapshot().vnics.get(index as usize).and_then(Option::as_ref);
    let base = row.and_then(|vnic| switch.baseline().vnics.get(&vnic.name)).copied().unwrap_or_default();
    raw_vnic(switch.pool(), index).since(&base)
}

fn raw_vnic(pool: &Pool, index: u32) -> VnicTotals {
    pool.workers.iter().map(|worker| worker.stats.pipeline.vnic(index as usize).totals()).sum()
}

pub fn workers(switch: &Switch) -> Vec<WorkerTotals> {
    let of = |(number, worker): (usize, &worker::pool::WorkerHandle)| {
        let stats = &worker.stats;
        WorkerTotals {
            number,
            core: worker.core,
            alive: worker.is_alive(),
            packets: stats.pipeline.received.get(),
            polls: stats.polls.get(),
            busy_cycles: stats.busy_cycles.get(),
            idle_cycles: stats.idle_cycles.get(),
            sleeps: stats.sleeps.get(),
            bursts: std::array::from_fn(|class| stats.bursts[class].get()),
            hits: stats.pipeline.nft_hits.get(),
            misses: stats.pipeline.nft_misses.get(),
        }
    };
    switch.pool().workers.iter().enumerate().map(of).collect()
}

/// What a stage of a worker took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageTotals {
    pub stage: Stage,
    /// Packets that it began with.
    pub packets: u64,
    /// Bursts in which it had something to do.
    pub bursts: u64,
    /// TSC cycles without those of reading the clock.
    pub cycles: u64,
}

impl StageTotals {
    /// TSC cycles for each of so many packets.
    pub fn cycles_of(&self, packets: u64) -> f64 {
        self.cycles as f64 / packets.max(1) as f64
    }
}

/// What the stages of each worker took since that is watched; `lap_cycles` is what reading the clock takes
/// ([`worker::laps::own_cycles`]). Stages that never had anything to do are left out.
pub fn stages(switch: &Switch, lap_cycles: u64) -> Vec<Vec<StageTotals>> {
    let of = |worker: &worker::pool::WorkerHandle| {
        let stages = Stage::ALL.into_iter().zip(&worker.stats.stages);
        let totals = stages.map(|(stage, counter)| {
            let bursts = counter.laps.get();
            let cycles = counter.cycles.get().saturating_sub(bursts * lap_cycles);
            StageTotals { stage, packets: counter.packets.get(), bursts, cycles }
        });
        totals.filter(|totals| totals.bursts > 0).collect()
    };
    switch.pool().workers.iter().map(of).collect()
}

/// The longest time between two polls of a worker, and how often it was longer than
/// [`LONG_TURN_NS`](worker::stats::LONG_TURN_NS), since that is watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    pub longest_us: f64,
    /// How often.
    pub long: u64,
}

/// The gaps of each worker.
pub fn gaps(switch: &Switch) -> Vec<Gaps> {
    let pool = switch.pool();
    let of = |stats: &worker::WorkerStats| Gaps {
        longest_us: pool.clock.nanos(stats.longest_turn.get()) as f64 / 1e3,
        long: stats.long_turns.get(),
    };
    pool.workers.iter().map(|worker| of(&worker.stats)).collect()
}

/// A zero point of now; with `ports` or `forwarding` left out, those of `old` stay.
pub fn baseline(switch: &Switch, ports: bool, forwarding: bool) -> Baseline {
    let mut baseline = switch.baseline().clone();
    if ports {
        baseline.ports = switch
            .ports()
            .iter()
            .map(|(index, port)| (port.name.clone(), raw_port(switch.pool(), index)))
            .collect();
    }
    if forwarding {
        baseline.totals = raw_totals(switch);
    }
    baseline
}
