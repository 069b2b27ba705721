//! Packet buffers, as data: who holds how many of the pool.
//!
//! Workers are asked between two bursts, so they have none in hand just then; the pool is asked after them. While packets flow
//! the sum is therefore about right, and with none on their way it is exact but for transmit rings of devices, which
//! nobody can count: there, what they hold at most is told.

use std::collections::BTreeMap;

use pipelines::qos::Leaf;
use pipelines::snapshot::PortIndex;
use pmd::LongBuffers;
use worker::WorkerCommand;
use worker::mailbox::WorkerError;

use super::qos::{depths, leaves};
use crate::port::held_by_driver;
use crate::switch::Switch;
use crate::switch::pool_size::BufferNeed;

/// Packet buffers held for a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortHolds {
    pub name: String,
    pub kind: &'static str,
    /// In its driver's receive rings: descriptors that are armed.
    pub rx_rings: usize,
    /// In its driver's transmit rings, where they can be counted.
    pub tx_rings: usize,
    /// In those that cannot be counted, at most.
    pub tx_rings_at_most: usize,
    /// In front of its transmit queues, and those of packets that are repeated.
    pub waiting: usize,
    /// In hand-over rings to the owners of those.
    pub handed_over: usize,
    /// In the simulated e-switch in front of its receive queues.
    pub in_front: usize,
    /// Of its vNICs, waiting for tokens in either direction.
    pub shaped: usize,
}

impl PortHolds {
    /// All that was counted.
    pub fn held(&self) -> usize {
        self.rx_rings + self.tx_rings + self.waiting + self.handed_over + self.in_front + self.shaped
    }
}

/// The pool, and who holds what of it.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    /// Buffers in all.
    pub size: usize,
    /// Bytes of a frame that each has room for.
    pub room: usize,
    /// Free for whoever comes.
    pub free: usize,
    /// Free, and kept in caches of workers and of control.
    pub cached: usize,
    /// Neither.
    pub in_use: usize,
    /// Buffers beside them in which super-frames of kernel ports lie in one piece.
    pub long: LongBuffers,
    pub ports: Vec<PortHolds>,
    /// What ports and workers hold at their busiest.
    pub need: BufferNeed,
}

impl Buffers {
    /// In use, long ones too, and by none of the ports that were counted; below zero when rings hold less than their descriptors.
    pub fn unaccounted(&self) -> i64 {
        let held: usize = self.ports.iter().map(PortHolds::held).sum();
        (self.in_use + self.long.in_use) as i64 - held as i64
    }

    /// What transmit rings may hold of that.
    pub fn tx_rings_at_most(&self) -> usize {
        self.ports.iter().map(|port| port.tx_rings_at_most).sum()
    }
}

/// Who holds what.
///
/// # Errors
/// [`WorkerError`].
pub fn buffers(switch: &Switch) -> Result<Buffers, WorkerError> {
    let pool = switch.pool();
    let workers = pool.workers.len() as u16;
    let mut ports: BTreeMap<PortIndex, PortHolds> = BTreeMap::new();
    for (index, port) in switch.ports().iter() {
        let wanted = &port.wanted;
        let driver = held_by_driver(&wanted.spec, wanted.rx_queues, wanted.tx_queues, workers);
        let counted = port.sent_into_rings();
        let holds = PortHolds {
            name: port.name.clone(),
            kind: wanted.spec.kind(),
            rx_rings: driver.rx as usize,
            tx_rings: counted.unwrap_or(0),
            tx_rings_at_most: if counted.is_some() { 0 } else { driver.tx as usize },
            ..PortHolds::default()
        };
        ports.insert(index, holds);
    }
    let vnics: Vec<_> = switch.snapshot().vnics.iter().flatten().collect();
    let tree = switch.qos().tree();
    // Unless something waits, nobody needs to look at every class.
    if pool.workers.iter().any(|worker| worker.stats.pipeline.waiting.get() > 0) {
        let all: Vec<Leaf> = vnics.iter().flat_map(|vnic| leaves(tree, vnic)).collect();
        let depths = depths(pool, &all)?;
        for vnic in vnics {
            let waits = leaves(tree, vnic).filter_map(|leaf| depths.get(&leaf));
            let shaped: u32 = waits.map(|depth| depth.buffers).sum();
            if let Some(port) = ports.get_mut(&vnic.port) {
                port.shaped += shaped as usize;
            }
        }
    }
    for worker in &pool.workers {
        for held in worker.mailbox().ask(WorkerCommand::Buffers)? {
            if let Some(port) = ports.get_mut(&held.port) {
                port.waiting += held.waiting;
                port.handed_over += held.handed_over;
                port.in_front += held.in_front;
            }
        }
    }
    let mempool = switch.mempool();
    let (size, available, cached) = (mempool.capacity(), mempool.available(), mempool.cached());
    Ok(Buffers {
        size,
        room: mempool.segment_room(),
        free: available.saturating_sub(cached),
        cached,
        in_use: size - available,
        long: mempool.long(),
        ports: ports.into_values().collect(),
        need: BufferNeed::of(switch.ports().iter().map(|(_, port)| &port.wanted), switch.bare_config()),
    })
}
