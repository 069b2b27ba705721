//! Views: what the switch shows of itself, as data. Sums over workers, less what `clear` set as zero point.
//!
//! Reads counters only; how they are laid out for people is the shell's business.

pub mod flow;
pub mod qos;
pub mod qps;

use std::collections::BTreeMap;

use pipelines::drops::DropReason;
use pipelines::watch::Stage;
use pmd::PortStats;

use crate::switch::Switch;
use crate::worker::Pool;
use crate::worker::stats::BURST_CLASSES;

/// Counters of the whole data path, summed over workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Scalar counters by name, in the order of display.
    pub scalars: Vec<(&'static str, u64)>,
    /// Drops by reason; zero ones included.
    pub drops: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// One scalar.
    pub fn get(&self, name: &str) -> u64 {
        self.scalars.iter().find(|(n, _)| *n == name).map_or(0, |&(_, value)| value)
    }

    /// All drops.
    pub fn dropped(&self) -> u64 {
        self.drops.values().fold(0, |sum, n| sum.wrapping_add(*n))
    }

    /// received + originated + offloaded + copies - sent - drops - consumed - queued - waiting: zero when no packet is on its way
    /// through a stage.
    pub fn imbalance(&self) -> i64 {
        let came = ["received", "originated", "offloaded", "copies"].map(|name| self.get(name));
        let came = came.into_iter().fold(0, u64::wrapping_add);
        let held = self.get("queued").wrapping_add(self.get("waiting"));
        let went = self.get("sent").wrapping_add(self.get("consumed")).wrapping_add(held);
        came.wrapping_sub(went).wrapping_sub(self.dropped()) as i64
    }

    fn since(mut self, base: &Self) -> Self {
        for (name, value) in &mut self.scalars {
            // What is held is a level, not a sum.
            if !matches!(*name, "queued" | "waiting") {
                *value = value.wrapping_sub(base.get(name));
            }
        }
        for (name, value) in &mut self.drops {
            *value = value.wrapping_sub(base.drops.get(name).copied().unwrap_or(0));
        }
        self
    }
}

/// Traffic of a port as the switch counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTotals {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped for want of room on the way out.
    pub tx_drops: u64,
}

/// Traffic of a vNIC, seen from the switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnicTotals {
    /// Packets from the vNIC.
    pub rx_packets: u64,
    /// Bytes from the vNIC.
    pub rx_bytes: u64,
    /// Packets to the vNIC.
    pub tx_packets: u64,
    /// Bytes to the vNIC.
    pub tx_bytes: u64,
    /// Packets from it that were dropped.
    pub drops: u64,
    /// NFT misses.
    pub misses: u64,
    /// RC queue pairs that it opened.
    pub qps_opened: u64,
    /// RC queue pairs that it was refused.
    pub qps_refused: u64,
    /// Packets of refused queue pairs.
    pub qp_drops: u64,
    /// Connection requests answered with a reject.
    pub qps_rejected: u64,
    /// Connection manager messages from and to it.
    pub cm_messages: u64,
}

/// A worker's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerTotals {
    /// Number.
    pub number: usize,
    /// Core.
    pub core: usize,
    /// Alive.
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

    /// Forgets a vNIC that is gone, and its port.
    pub(crate) fn forget_vnic(&mut self, name: &str) {
        self.ports.remove(name);
        self.vnics.remove(name);
    }

    /// Forgets the ports and vNICs that are gone.
    pub(crate) fn retain(&mut self, port: impl Fn(&str) -> bool, vnic: impl Fn(&str) -> bool) {
        self.ports.retain(|name, _| port(name));
        self.vnics.retain(|name, _| vnic(name));
    }
}

/// The data path's counters since the last `clear`.
pub fn totals(switch: &Switch) -> Totals {
    raw_totals(switch).since(&switch.baseline().totals)
}

fn raw_totals(switch: &Switch) -> Totals {
    let mut sum = Totals::default();
    for worker in &switch.pool().workers {
        let pipeline = &worker.stats.pipeline;
        for (index, (name, value)) in pipeline.scalars().into_iter().enumerate() {
            match sum.scalars.get_mut(index) {
                Some((_, total)) => *total = total.wrapping_add(value),
                None => sum.scalars.push((name, value)),
            }
        }
        for reason in DropReason::all() {
            let total = sum.drops.entry(reason.name()).or_default();
            *total = total.wrapping_add(pipeline.drops(reason));
        }
    }
    sum
}

fn raw_port(pool: &Pool, index: u16) -> PortTotals {
    let rows = pool.workers.iter().map(|worker| &worker.stats.ports[usize::from(index)]);
    rows.fold(PortTotals::default(), |sum, row| PortTotals {
        rx_packets: sum.rx_packets + row.rx_packets.get(),
        rx_bytes: sum.rx_bytes + row.rx_bytes.get(),
        tx_packets: sum.tx_packets + row.tx_packets.get(),
        tx_bytes: sum.tx_bytes + row.tx_bytes.get(),
        tx_drops: sum.tx_drops + row.tx_drops.get(),
    })
}

/// A port's traffic since the last `clear`.
pub fn port(switch: &Switch, index: u16) -> PortTotals {
    let name = switch.ports().get(index).map(|port| port.name.as_str()).unwrap_or_default();
    let base = switch.baseline().ports.get(name).copied().unwrap_or_default();
    let now = raw_port(switch.pool(), index);
    PortTotals {
        rx_packets: now.rx_packets.wrapping_sub(base.rx_packets),
        rx_bytes: now.rx_bytes.wrapping_sub(base.rx_bytes),
        tx_packets: now.tx_packets.wrapping_sub(base.tx_packets),
        tx_bytes: now.tx_bytes.wrapping_sub(base.tx_bytes),
        tx_drops: now.tx_drops.wrapping_sub(base.tx_drops),
    }
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
    let now = raw_vnic(switch.pool(), index);
    let row = switch.snapshot().vnics.get(index as usize).and_then(Option::as_ref);
    let base = row.and_then(|vnic| switch.baseline().vnics.get(&vnic.name)).copied().unwrap_or_default();
    VnicTotals {
        rx_packets: now.rx_packets.wrapping_sub(base.rx_packets),
        rx_bytes: now.rx_bytes.wrapping_sub(base.rx_bytes),
        tx_packets: now.tx_packets.wrapping_sub(base.tx_packets),
        tx_bytes: now.tx_bytes.wrapping_sub(base.tx_bytes),
        drops: now.drops.wrapping_sub(base.drops),
        misses: now.misses.wrapping_sub(base.misses),
        qps_opened: now.qps_opened.wrapping_sub(base.qps_opened),
        qps_refused: now.qps_refused.wrapping_sub(base.qps_refused),
        qp_drops: now.qp_drops.wrapping_sub(base.qp_drops),
        qps_rejected: now.qps_rejected.wrapping_sub(base.qps_rejected),
        cm_messages: now.cm_messages.wrapping_sub(base.cm_messages),
    }
}

fn raw_vnic(pool: &Pool, index: u32) -> VnicTotals {
    let rows = pool.workers.iter().map(|worker| worker.stats.pipeline.vnic(index as usize));
    rows.fold(VnicTotals::default(), |sum, row| VnicTotals {
        rx_packets: sum.rx_packets + row.rx_packets.get(),
        rx_bytes: sum.rx_bytes + row.rx_bytes.get(),
        tx_packets: sum.tx_packets + row.tx_packets.get(),
        tx_bytes: sum.tx_bytes + row.tx_bytes.get(),
        drops: sum.drops + row.drops.get(),
        misses: sum.misses + row.misses.get(),
        qps_opened: sum.qps_opened + row.qps_opened.get(),
        qps_refused: sum.qps_refused + row.qps_refused.get(),
        qp_drops: sum.qp_drops + row.qp_drops.get(),
        qps_rejected: sum.qps_rejected + row.qps_rejected.get(),
        cm_messages: sum.cm_messages + row.cm_messages.get(),
    })
}

/// The workers.
pub fn workers(switch: &Switch) -> Vec<WorkerTotals> {
    let of = |(number, worker): (usize, &crate::worker::pool::WorkerHandle)| {
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
    /// The stage.
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
/// ([`crate::worker::laps::own_cycles`]). Stages that never had anything to do are left out.
pub fn stages(switch: &Switch, lap_cycles: u64) -> Vec<Vec<StageTotals>> {
    let of = |worker: &crate::worker::pool::WorkerHandle| {
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
/// [`LONG_TURN_NS`](crate::worker::stats::LONG_TURN_NS), since that is watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    /// Microseconds.
    pub longest_us: f64,
    /// How often.
    pub long: u64,
}

/// The gaps of each worker.
pub fn gaps(switch: &Switch) -> Vec<Gaps> {
    let pool = switch.pool();
    let of = |stats: &crate::worker::WorkerStats| Gaps {
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
