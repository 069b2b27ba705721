//! Where a worker's packets go: its own tx queues, or the ring to the worker that owns the queue.
//!
//! A tx queue has one owner. A port with fewer tx queues than workers is reached by the others through one
//! bounded ring per (worker, queue); the owner empties the rings between its own bursts, so that packets of one
//! flow, which one worker handles, stay in order.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use pipelines::Sink;
use pipelines::drops::DropReason;
use pipelines::snapshot::PortIndex;
use pmd::{Burst, Mbuf, TxQueue};
use wire::PacketBuf;

use super::MAX_PORTS;
use super::stats::WorkerStats;

/// Packets that wait for a tx queue before the port's packets are dropped as `tx-full`.
const BUFFER: usize = 256;
/// Attempts in a row after which the first packet of a buffer is given up: some drivers never take a packet that
/// they cannot send (net_tap, one over the interface's MTU), and it must not hold up the others for ever.
const MAX_REFUSALS: u32 = 20_000;
/// Slots of a hand-over ring.
pub const HAND_OFF_SLOTS: usize = 1024;

struct Own {
    queue: TxQueue,
    buffer: Burst,
    /// Bytes in the buffer.
    bytes: u64,
    /// Attempts in a row in which the queue took nothing.
    refusals: u32,
    rings: Vec<Arc<ArrayQueue<Mbuf>>>,
}

/// On lines of its own: the worker writes it for every packet.
#[repr(align(128))]
enum Path {
    None,
    Own(Own),
    HandOff(Arc<ArrayQueue<Mbuf>>),
}

/// The ways out of one worker, by port.
pub struct TxPaths {
    paths: Vec<Path>,
    /// Ports whose buffers hold packets.
    dirty: u64,
    /// Ports that other workers hand packets over for.
    with_rings: u64,
    /// Packets in buffers and rings, less those taken out of other workers' rings; published once a burst.
    queued: u64,
    stats: Arc<WorkerStats>,
}

const _: () = assert!(MAX_PORTS <= 64, "one bit a port");

impl TxPaths {
    pub(super) fn new(stats: Arc<WorkerStats>) -> Self {
        Self {
            paths: (0..MAX_PORTS).map(|_| Path::None).collect(),
            dirty: 0,
            with_rings: 0,
            queued: 0,
            stats,
        }
    }

    pub(super) fn own(&mut self, port: PortIndex, queue: TxQueue, rings: Vec<Arc<ArrayQueue<Mbuf>>>) {
        if !rings.is_empty() {
            self.with_rings |= 1 << port;
        }
        let buffer = Burst::with_capacity(BUFFER);
        self.paths[usize::from(port)] = Path::Own(Own { queue, buffer, bytes: 0, refusals: 0, rings });
    }

    pub(super) fn hand_off(&mut self, port: PortIndex, ring: Arc<ArrayQueue<Mbuf>>) {
        self.paths[usize::from(port)] = Path::HandOff(ring);
    }

    /// Gives up the way to a port. What still waits for it is sent if the queue takes it, else dropped by name.
    pub(super) fn remove(&mut self, port: PortIndex) -> Option<TxQueue> {
        // A ring holds more than the buffer: what the queue refuses is given up, so that all of the ring gets its turn.
        let mut lost = 0;
        loop {
            let taken = self.drain_rings(port);
            self.flush_port(port);
            if taken == 0 {
                break;
            }
            if let Path::Own(own) = &mut self.paths[usize::from(port)]
                && own.buffer.is_full()
            {
                lost += own.buffer.len() as u64;
                own.buffer.clear();
                own.bytes = 0;
            }
        }
        self.dirty &= !(1 << port);
        self.with_rings &= !(1 << port);
        match std::mem::replace(&mut self.paths[usize::from(port)], Path::None) {
            Path::Own(mut own) => {
                lost += own.buffer.len() as u64;
                own.buffer.clear();
                self.queued = self.queued.wrapping_sub(lost);
                self.stats.pipeline.queued.set(self.queued);
                self.stats.pipeline.drop_many(DropReason::PORT_DOWN, lost);
                self.stats.ports[usize::from(port)].tx_drops.add(lost);
                Some(own.queue)
            }
            Path::HandOff(_) | Path::None => None,
        }
    }

    /// Sends what is buffered, as far as the queues take it; the rest stays for the next turn.
    #[inline]
    pub(super) fn flush(&mut self) {
        let mut dirty = self.dirty;
        while dirty != 0 {
            let port = dirty.trailing_zeros() as PortIndex;
            dirty &= dirty - 1;
            self.flush_port(port);
        }
        self.stats.pipeline.queued.set(self.queued);
    }

    #[inline]
    fn flush_port(&mut self, port: PortIndex) {
        let Path::Own(own) = &mut self.paths[usize::from(port)] else { return };
        let waiting = own.buffer.len();
        if waiting == 0 {
            self.dirty &= !(1 << port);
            return;
        }
        let sent = own.queue.send(&mut own.buffer);
        own.refusals = if sent == 0 { own.refusals + 1 } else { 0 };
        if own.refusals > MAX_REFUSALS {
            own.refusals = 0;
            own.buffer.as_mut_slice().rotate_left(1);
            drop(own.buffer.pop());
            self.queued = self.queued.wrapping_sub(1);
            self.stats.pipeline.drop_many(DropReason::TX_STALLED, 1);
            self.stats.ports[usize::from(port)].tx_drops.add(1);
        }
        let left = if own.buffer.is_empty() { 0 } else { bytes_of(&own.buffer) };
        let counters = &self.stats.ports[usize::from(port)];
        counters.tx_packets.add(sent as u64);
        counters.tx_bytes.add(if sent == 0 { 0 } else { own.bytes - left });
        own.bytes = left;
        self.stats.pipeline.sent.add(sent as u64);
        self.queued = self.queued.wrapping_sub(sent as u64);
        if own.buffer.is_empty() {
            self.dirty &= !(1 << port);
        }
    }

    /// Takes over what other workers have for the ports of this one. Returns how many packets came.
    #[inline]
    pub(super) fn take_over(&mut self) -> usize {
        let mut ports = self.with_rings;
        let mut taken = 0;
        while ports != 0 {
            let port = ports.trailing_zeros() as PortIndex;
            ports &= ports - 1;
            taken += self.drain_rings(port);
        }
        taken
    }

    fn drain_rings(&mut self, port: PortIndex) -> usize {
        let Path::Own(own) = &mut self.paths[usize::from(port)] else { return 0 };
        let mut taken = 0;
        for ring in &own.rings {
            // No more than the buffer holds: the ring keeps the rest, and its bound does the dropping.
            while own.buffer.len() < BUFFER
                && let Some(packet) = ring.pop()
            {
                taken += 1;
                self.dirty |= 1 << port;
                own.bytes += packet.len() as u64;
                if own.buffer.push(packet).is_err() {
                    break;
                }
            }
        }
        taken
    }

    /// True while packets wait in buffers or rings.
    pub(super) fn is_waiting(&self) -> bool {
        self.dirty != 0
            || self.paths.iter().any(|path| match path {
                Path::Own(own) => own.rings.iter().any(|ring| !ring.is_empty()),
                Path::HandOff(_) | Path::None => false,
            })
    }

    #[cold]
    fn refuse(&self, port: PortIndex, packet: Mbuf, reason: DropReason) {
        drop(packet);
        self.stats.pipeline.drop_many(reason, 1);
        self.stats.ports[usize::from(port)].tx_drops.add(1);
    }
}

impl TxPaths {
    /// Everything but a packet for an own queue with room in its buffer.
    #[inline(never)]
    fn send_uncommon(&mut self, port: PortIndex, packet: Mbuf) {
        match self.paths.get_mut(usize::from(port)) {
            Some(Path::Own(_)) => {
                self.flush_port(port);
                let Some(Path::Own(own)) = self.paths.get_mut(usize::from(port)) else { return };
                let len = packet.len() as u64;
                match own.buffer.push(packet) {
                    Ok(()) => {
                        own.bytes += len;
                        self.dirty |= 1 << port;
                        self.queued = self.queued.wrapping_add(1);
                    }
                    Err(packet) => self.refuse(port, packet, DropReason::TX_FULL),
                }
            }
            Some(Path::HandOff(ring)) => match ring.push(packet) {
                Ok(()) => self.queued = self.queued.wrapping_add(1),
                Err(packet) => self.refuse(port, packet, DropReason::TX_HANDOFF_FULL),
            },
            Some(Path::None) => self.refuse(port, packet, DropReason::PORT_DOWN),
            None => {
                drop(packet);
                self.stats.pipeline.drop_many(DropReason::PORT_DOWN, 1);
            }
        }
    }
}

impl Sink<Mbuf> for TxPaths {
    #[inline(always)]
    fn send(&mut self, port: PortIndex, packet: Mbuf) {
        let mut packet = packet;
        if let Some(Path::Own(own)) = self.paths.get_mut(usize::from(port)) {
            let len = packet.len() as u64;
            match own.buffer.push(packet) {
                Ok(()) => {
                    own.bytes += len;
                    self.dirty |= 1 << port;
                    self.queued = self.queued.wrapping_add(1);
                    return;
                }
                Err(back) => packet = back,
            }
        }
        self.send_uncommon(port, packet);
    }
}

/// Bytes of the packets in a burst.
fn bytes_of(burst: &Burst) -> u64 {
    burst.iter().map(|packet| packet.len() as u64).sum()
}
