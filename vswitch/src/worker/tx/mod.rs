//! Where a worker's packets go: its own tx queues, or the ring to the worker that owns the queue.
//!
//! A tx queue has one owner. A port with fewer tx queues than workers is reached by the others through one
//! bounded ring per (worker, queue); the owner empties the rings between its own bursts, so that packets of one
//! flow, which one worker handles, stay in order. A queue that the port's peer has not enabled is *diverted*: its
//! owner hands over to the owner of an enabled one, as the others do.
//!
//! What waits for a port is bounded per port, whatever the number of workers ([`MAX_WAITING`]), and nothing waits
//! where nobody reads: without a link, or after [`STALL_NS`] in which a queue took nothing, packets are dropped at
//! once, by name. `refusal.rs` has what becomes of packets that a queue does not take.

mod refusal;
mod set;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crossbeam::queue::ArrayQueue;
use pipelines::drops::DropReason;
use pipelines::snapshot::PortIndex;
use pipelines::{Now, Sink};
use pmd::{Burst, Mbuf, TxQueue};
use wire::PacketBuf;

use super::stats::WorkerStats;
pub use refusal::STALL_NS;
use refusal::TxRefusal;
use set::PortSet;

/// Packets that wait in the buffers of a port's queues before more are dropped as `tx-full`, all queues together;
/// each of many queues has room for [`MIN_BUFFER`].
const BUFFERS: usize = 128;
/// Packets that the buffer of each queue has room for at least.
const MIN_BUFFER: usize = 32;
/// Slots of all rings to a port that are in use at a time.
const HAND_OFFS: usize = 512;
/// Packets that wait for a port of up to four queues at most, whatever the number of workers; each further queue
/// may have `MIN_BUFFER` more.
pub const MAX_WAITING: usize = BUFFERS + HAND_OFFS;

/// A ring to the worker that owns a queue.
pub type Ring = Arc<ArrayQueue<Mbuf>>;

/// A ring to a port that so many workers hand packets over to.
pub fn ring(workers: usize) -> Ring {
    Arc::new(ArrayQueue::new((HAND_OFFS / workers.max(1)).max(1)))
}

/// What control knows of a port and its workers want to know.
#[derive(Debug)]
pub struct PortState {
    /// False without a link, or without a peer.
    link: AtomicBool,
    /// The longest frame that the driver takes.
    max_frame: AtomicU32,
}

impl PortState {
    /// A port with a link, for frames of up to so many bytes.
    pub fn new(max_frame: u32) -> Self {
        Self { link: AtomicBool::new(true), max_frame: AtomicU32::new(max_frame) }
    }

    /// Tells whether somebody is there to read.
    pub fn set_link(&self, up: bool) {
        self.link.store(up, Ordering::Relaxed);
    }

    /// Whether somebody is there to read.
    pub fn link(&self) -> bool {
        self.link.load(Ordering::Relaxed)
    }

    /// Sets the longest frame.
    pub fn set_max_frame(&self, bytes: u32) {
        self.max_frame.store(bytes, Ordering::Relaxed);
    }

    /// The longest frame.
    pub fn max_frame(&self) -> u32 {
        self.max_frame.load(Ordering::Relaxed)
    }
}

/// A transmit queue for the worker that is to own it.
pub struct OwnQueue {
    pub queue: TxQueue,
    /// The rings in which other workers have packets for it.
    pub rings: Vec<Ring>,
    pub port: Arc<PortState>,
    /// Transmit queues of the port that workers own.
    pub queues: usize,
}

struct Own {
    queue: TxQueue,
    buffer: Burst,
    /// Bytes in the buffer.
    bytes: u64,
    /// The longest frame, as it was when the buffer was last flushed.
    max_frame: usize,
    refusal: TxRefusal,
    rings: Vec<Ring>,
    port: Arc<PortState>,
}

/// On lines of its own: the worker writes it for every packet.
#[repr(align(128))]
enum TxPath {
    None,
    Own(Own),
    /// An own queue that the peer does not read; its packets go to the owner of one that it does.
    Diverted(Own, Ring),
    HandOff(Ring),
}

/// The ways out of one worker, by port.
pub struct TxPaths {
    paths: Vec<TxPath>,
    /// Ports whose buffers hold packets.
    dirty: PortSet,
    /// Ports that other workers hand packets over for.
    with_rings: PortSet,
    /// Packets in buffers and rings, less those taken out of other workers' rings; published once a burst.
    queued: u64,
    /// The time of this turn.
    now_ns: u64,
    stats: Arc<WorkerStats>,
}

impl TxPaths {
    pub(super) fn new(stats: Arc<WorkerStats>) -> Self {
        Self {
            paths: Vec::new(),
            dirty: PortSet::default(),
            with_rings: PortSet::default(),
            queued: 0,
            now_ns: 0,
            stats,
        }
    }

    /// A turn begins.
    #[inline(always)]
    pub(super) fn begin(&mut self, now: Now) {
        self.now_ns = now.ns;
    }

    pub(super) fn own(&mut self, port: PortIndex, own: OwnQueue) {
        let OwnQueue { queue, rings, port: state, queues } = own;
        if !rings.is_empty() {
            self.with_rings.insert(port);
        }
        let buffer = Burst::with_capacity((BUFFERS / queues.max(1)).max(MIN_BUFFER));
        let max_frame = state.max_frame() as usize;
        let refusal = TxRefusal::default();
        *self.path_mut(port) =
            TxPath::Own(Own { queue, buffer, bytes: 0, max_frame, refusal, rings, port: state });
    }

    /// The way to a port; there are as many as the highest index needs.
    fn path_mut(&mut self, port: PortIndex) -> &mut TxPath {
        let index = usize::from(port);
        if index >= self.paths.len() {
            self.paths.resize_with(index + 1, || TxPath::None);
        }
        &mut self.paths[index]
    }

    pub(super) fn hand_off(&mut self, port: PortIndex, ring: Ring) {
        *self.path_mut(port) = TxPath::HandOff(ring);
    }

    /// One more ring for the owner of a queue.
    pub(super) fn add_ring(&mut self, port: PortIndex, ring: Ring) {
        if let TxPath::Own(own) | TxPath::Diverted(own, _) = self.path_mut(port) {
            own.rings.push(ring);
            self.with_rings.insert(port);
        }
    }

    /// Hands packets for an own queue over to another owner, or no more.
    pub(super) fn divert(&mut self, port: PortIndex, to: Option<Ring>) {
        let path = self.path_mut(port);
        *path = match (std::mem::replace(path, TxPath::None), to) {
            (TxPath::Own(own) | TxPath::Diverted(own, _), Some(ring)) => TxPath::Diverted(own, ring),
            (TxPath::Own(own) | TxPath::Diverted(own, _), None) => TxPath::Own(own),
            (other, _) => other,
        };
        self.flush_port(port);
    }

    /// Gives up the way to a port. What still waits for it is sent if the queue takes it, else dropped by name.
    pub(super) fn remove(&mut self, port: PortIndex) -> Option<TxQueue> {
        // The rings hold more than the buffer, and may find it full: what the queue refuses is given up, until nothing
        // is left in any of them.
        loop {
            let taken = self.drain_rings(port);
            self.flush_port(port);
            let lost = self.give_up(port, DropReason::PORT_DOWN);
            if taken == 0 && lost == 0 {
                break;
            }
        }
        self.stats.pipeline.queued.set(self.queued);
        self.dirty.remove(port);
        self.with_rings.remove(port);
        match std::mem::replace(self.path_mut(port), TxPath::None) {
            TxPath::Own(own) | TxPath::Diverted(own, _) => Some(own.queue),
            TxPath::HandOff(_) | TxPath::None => None,
        }
    }

    /// Sends what is buffered, as far as the queues take it; the rest stays for the next turn.
    #[inline]
    pub(super) fn flush(&mut self) {
        let mut from = 0;
        while let Some(port) = self.dirty.first_from(from) {
            self.flush_port(port);
            from = port + 1;
        }
        self.stats.pipeline.queued.set(self.queued);
    }

    #[inline]
    fn flush_port(&mut self, port: PortIndex) {
        let own = match self.paths.get_mut(usize::from(port)) {
            Some(TxPath::Own(own)) => own,
            Some(TxPath::Diverted(..)) => return self.pass_on(port),
            Some(TxPath::HandOff(_) | TxPath::None) | None => return,
        };
        let waiting = own.buffer.len();
        if waiting == 0 {
            self.dirty.remove(port);
            return;
        }
        own.max_frame = own.port.max_frame() as usize;
        if !own.port.link() && own.queue.sends_without_link() {
            return self.refused(port, 0);
        }
        let sent = own.queue.send(&mut own.buffer);
        self.sent(port, sent);
        if sent < waiting {
            self.refused(port, sent);
        }
    }

    /// Books the first `sent` packets of a buffer, which have left it.
    #[inline]
    fn sent(&mut self, port: PortIndex, sent: usize) {
        let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) else { return };
        let left = if own.buffer.is_empty() { 0 } else { bytes_of(&own.buffer) };
        let (refused, refused_bytes) = own.queue.take_refused();
        let counters = &self.stats.ports[usize::from(port)];
        counters.tx_packets.add((sent as u64).saturating_sub(refused));
        counters.tx_bytes.add((own.bytes - left).saturating_sub(refused_bytes));
        own.bytes = left;
        self.stats.pipeline.sent.add((sent as u64).saturating_sub(refused));
        self.queued = self.queued.wrapping_sub(sent as u64);
        if own.buffer.is_empty() {
            own.refusal.over();
            self.dirty.remove(port);
        }
        if refused > 0 {
            self.count_drops(port, DropReason::TX_REFUSED, refused);
        }
    }

    /// Takes over what other workers have for the ports of this one. Returns how many packets came.
    #[inline]
    pub(super) fn take_over(&mut self) -> usize {
        let (mut from, mut taken) = (0, 0);
        while let Some(port) = self.with_rings.first_from(from) {
            taken += self.drain_rings(port);
            from = port + 1;
        }
        taken
    }

    fn drain_rings(&mut self, port: PortIndex) -> usize {
        let Some(TxPath::Own(own) | TxPath::Diverted(own, _)) = self.paths.get_mut(usize::from(port)) else {
            return 0;
        };
        own.max_frame = own.port.max_frame() as usize;
        let (mut taken, mut too_long) = (0, 0);
        for ring in &own.rings {
            // No more than the buffer holds: the ring keeps the rest, and its bound does the dropping.
            while !own.buffer.is_full()
                && let Some(packet) = ring.pop()
            {
                taken += 1;
                if packet.len() > own.max_frame {
                    too_long += 1;
                    continue;
                }
                self.dirty.insert(port);
                own.bytes += packet.len() as u64;
                if own.buffer.push(packet).is_err() {
                    break;
                }
            }
        }
        if too_long > 0 {
            self.queued = self.queued.wrapping_sub(too_long);
            self.count_drops(port, DropReason::MTU_EXCEEDED, too_long);
        }
        taken
    }

    /// True while packets wait in buffers or rings.
    pub(super) fn is_waiting(&self) -> bool {
        if !self.dirty.is_empty() {
            return true;
        }
        let mut from = 0;
        while let Some(port) = self.with_rings.first_from(from) {
            if let Some(TxPath::Own(own) | TxPath::Diverted(own, _)) = self.paths.get(usize::from(port))
                && own.rings.iter().any(|ring| !ring.is_empty())
            {
                return true;
            }
            from = port + 1;
        }
        false
    }

    fn count_drops(&self, port: PortIndex, reason: DropReason, packets: u64) {
        self.stats.pipeline.drop_many(reason, packets);
        if let Some(counters) = self.stats.ports.get(usize::from(port)) {
            counters.tx_drops.add(packets);
        }
    }

    #[cold]
    fn refuse(&self, port: PortIndex, packet: Mbuf, reason: DropReason) {
        drop(packet);
        self.count_drops(port, reason, 1);
    }

    /// Everything but a packet for an own queue with room in its buffer.
    #[inline(never)]
    fn send_uncommon(&mut self, port: PortIndex, packet: Mbuf) {
        match self.paths.get_mut(usize::from(port)) {
            Some(TxPath::Own(own)) if packet.len() > own.max_frame => {
                own.max_frame = own.port.max_frame() as usize;
                if packet.len() > own.max_frame {
                    return self.refuse(port, packet, DropReason::MTU_EXCEEDED);
                }
                self.send_own(port, packet);
            }
            Some(TxPath::Own(_)) => self.send_own(port, packet),
            Some(TxPath::HandOff(ring) | TxPath::Diverted(_, ring)) => match ring.push(packet) {
                Ok(()) => self.queued = self.queued.wrapping_add(1),
                Err(packet) => self.refuse(port, packet, DropReason::TX_HANDOFF_FULL),
            },
            Some(TxPath::None) | None => self.refuse(port, packet, DropReason::PORT_DOWN),
        }
    }

    /// A packet for an own queue whose buffer may be full.
    fn send_own(&mut self, port: PortIndex, packet: Mbuf) {
        if let Some(TxPath::Own(own)) = self.paths.get(usize::from(port))
            && own.buffer.is_full()
        {
            self.flush_port(port);
        }
        let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) else { return };
        let len = packet.len() as u64;
        match own.buffer.push(packet) {
            Ok(()) => {
                own.bytes += len;
                self.dirty.insert(port);
                self.queued = self.queued.wrapping_add(1);
            }
            Err(packet) => self.refuse(port, packet, DropReason::TX_FULL),
        }
    }
}

impl Sink<Mbuf> for TxPaths {
    #[inline(always)]
    fn send(&mut self, port: PortIndex, packet: Mbuf) {
        let mut packet = packet;
        if let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) {
            let len = packet.len();
            if len <= own.max_frame {
                match own.buffer.push(packet) {
                    Ok(()) => {
                        own.bytes += len as u64;
                        self.dirty.insert(port);
                        self.queued = self.queued.wrapping_add(1);
                        return;
                    }
                    Err(back) => packet = back,
                }
            }
        }
        self.send_uncommon(port, packet);
    }
}

/// Bytes of the packets in a burst.
fn bytes_of(burst: &Burst) -> u64 {
    burst.iter().map(|packet| packet.len() as u64).sum()
}
