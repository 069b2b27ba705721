//! The simulated e-switch in front of a worker's receive queue: a lab device, no claim about hardware.
//!
//! ```text
//!   port --rx--> [ rules of the e-switch ] -- no rule --> ring (depth, delay) --> pipeline --> tx
//!                          \------------------- offloaded ----------------------------------^
//! ```
//! One device for all ports that it serves, behind a lock that control takes for single rules. Its cycles are counted
//! apart from the worker's. It counts which packets have left software again, so that control can tell when nothing
//! of a flow is on its way.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pipelines::offload::arrival::{ARRIVAL_SLOTS, arrival_slot};
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::snapshot::{NO_PORT, PortIndex};
use pipelines::{Now, Sink};
use pmd::{Mbuf, rdtsc};

use super::stats::WorkerStats;
use super::tx::TxPaths;

pub struct SimulatedDevice {
    state: Mutex<EswitchState>,
    /// Packets that a ring holds.
    ring: usize,
    /// For how long they wait there at least, nanoseconds.
    delay_ns: u64,
}

/// What is behind the lock.
pub struct EswitchState {
    /// The rules, and what they did.
    pub eswitch: Eswitch,
    /// The switch's ports by DPDK port id.
    ports: Vec<PortIndex>,
    /// Packets that have left software, by the flow's slot.
    left: Box<[u64]>,
}

impl fmt::Debug for SimulatedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedDevice")
            .field("ring", &self.ring)
            .field("delay_ns", &self.delay_ns)
            .finish_non_exhaustive()
    }
}

impl SimulatedDevice {
    /// A device without rules and ports. Rings hold `ring` packets for `delay_ns` at least.
    pub fn new(config: EswitchConfig, ring: usize, delay_ns: u64) -> Self {
        let left = vec![0; ARRIVAL_SLOTS].into();
        Self {
            state: Mutex::new(EswitchState { eswitch: Eswitch::new(config), ports: Vec::new(), left }),
            ring,
            delay_ns,
        }
    }

    /// The device for one step. Workers wait as long as this is held.
    pub fn lock(&self) -> MutexGuard<'_, EswitchState> {
        // Whoever panicked with it left no step half done that matters to packets.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EswitchState {
    /// Connects a port, by its DPDK port id.
    pub fn connect(&mut self, dpdk_port: u16, port: PortIndex) {
        let at = usize::from(dpdk_port);
        if self.ports.len() <= at {
            self.ports.resize(at + 1, NO_PORT);
        }
        self.ports[at] = port;
    }

    /// Takes a port away, with all rules about it.
    pub fn disconnect(&mut self, dpdk_port: u16) {
        self.eswitch.forget_port(dpdk_port);
        if let Some(port) = self.ports.get_mut(usize::from(dpdk_port)) {
            *port = NO_PORT;
        }
    }

    /// How many packets of a flow came to software, when all of them have left the workers' receive side again.
    pub fn drained(&self, flow: u64) -> Option<u64> {
        let came = self.eswitch.arrivals(flow);
        (self.left[arrival_slot(flow)] == came).then_some(came)
    }
}

/// A packet on its way to the worker.
struct Waiting {
    due_ns: u64,
    slot: u32,
    packet: Mbuf,
}

/// The device in front of one receive queue.
pub struct Front {
    device: Arc<SimulatedDevice>,
    dpdk_port: u16,
    ring: VecDeque<Waiting>,
    /// Flows of the packets that the pipeline has now.
    given: Vec<u32>,
    /// What goes out of ports.
    out: Vec<(PortIndex, Mbuf)>,
}

impl Front {
    /// In front of a queue of a port.
    pub fn new(device: Arc<SimulatedDevice>, dpdk_port: u16) -> Self {
        let room = device.ring;
        Self {
            device,
            dpdk_port,
            ring: VecDeque::with_capacity(room),
            given: Vec::with_capacity(pipelines::burst::MAX_BURST),
            out: Vec::with_capacity(pipelines::burst::MAX_BURST),
        }
    }

    /// True while it holds packets, or has yet to hear that those it gave have left.
    #[inline]
    pub fn is_busy(&self) -> bool {
        !(self.ring.is_empty() && self.given.is_empty())
    }

    /// Packet buffers that wait in its ring.
    pub fn buffers(&self) -> usize {
        self.ring.iter().map(|waiting| waiting.packet.segment_count()).sum()
    }

    /// Takes the first `n` packets of a burst; how many it leaves there for the pipeline, from the first place on, and
    /// the TSC cycles that it took. All that it left before has gone through the pipeline by now.
    pub fn pass(
        &mut self,
        packets: &mut [Option<Mbuf>],
        n: usize,
        now: Now,
        tx: &mut TxPaths,
        stats: &WorkerStats,
    ) -> (usize, u64) {
        let begin = rdtsc();
        let counters = &stats.eswitch;
        let Self { device, dpdk_port, ring, given, out } = self;
        let mut state = device.lock();
        let EswitchState { eswitch, ports, left } = &mut *state;
        given.drain(..).for_each(|slot| left[slot as usize] += 1);
        eswitch.advance(now.ns);
        for mut packet in packets[..n].iter_mut().filter_map(Option::take) {
            match eswitch.run(&mut packet, *dpdk_port) {
                Fate::Out { port } => match ports.get(usize::from(port)) {
                    Some(&port) if port != NO_PORT => out.push((port, packet)),
                    _ => counters.lost.add(1),
                },
                Fate::Software { flow, .. } => {
                    let slot = arrival_slot(flow) as u32;
                    if ring.len() < device.ring {
                        ring.push_back(Waiting { due_ns: now.ns + device.delay_ns, slot, packet });
                    } else {
                        counters.ring_full.add(1);
                        left[slot as usize] += 1;
                    }
                }
                Fate::Dropped | Fate::Failed => {}
            }
        }
        drop(state);
        stats.pipeline.offloaded.add(out.len() as u64);
        counters.sent.add(out.len() as u64);
        out.drain(..).for_each(|(port, packet)| tx.send(port, packet));
        tx.flush();
        let left = self.take(packets, now.ns);
        let cycles = rdtsc().wrapping_sub(begin);
        counters.cycles.add(cycles);
        (left, cycles)
    }

    /// Packets that have waited long enough, into the first places.
    fn take(&mut self, packets: &mut [Option<Mbuf>], now_ns: u64) -> usize {
        let mut taken = 0;
        while taken < packets.len()
            && let Some(waiting) = self.ring.pop_front_if(|waiting| waiting.due_ns <= now_ns)
        {
            packets[taken] = Some(waiting.packet);
            self.given.push(waiting.slot);
            taken += 1;
        }
        taken
    }

    /// Packets of the ring whatever their time, into the first places: the queue is taken away.
    pub fn empty(&mut self, packets: &mut [Option<Mbuf>]) -> usize {
        let mut state = self.device.lock();
        self.given.drain(..).for_each(|slot| state.left[slot as usize] += 1);
        drop(state);
        self.take(packets, u64::MAX)
    }
}
