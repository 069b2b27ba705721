//! Where a worker's packets go: its own tx queues, or the ring to the worker that owns the queue.
//!
//! A tx queue has one owner. A port with fewer tx queues than workers is reached by the others through one
//! bounded ring per (worker, queue); the owner empties the rings between its own bursts, so that packets of one
//! flow, which one worker handles, stay in order. A queue that the port's peer has not enabled is *diverted*: its
//! owner hands over to the owner of an enabled one, as the others do.
//!
//! What waits for a port is bounded in packets, whatever the number of workers ([`MAX_WAITING`]), and in buffers, whatever
//! the length of the packets: a super-frame of 64 KB has 33 buffers. All that waits on account of one worker is bounded,
//! too ([`WORKER_ROOM`]), and no port has more of that than is left (a dynamic threshold; Choudhury and Hahne, 1998): so
//! however many peers stop reading, the next port finds room. Nothing waits where nobody reads: without a link, or after
//! [`STALL_NS`] in which a queue took nothing, packets are dropped at once, by name. `refusal.rs` has what becomes of
//! packets that a queue does not take.

mod ahead;
mod own;
mod refusal;
mod ring;
mod set;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use pipelines::drops::DropReason;
use pipelines::snapshot::PortIndex;
use pipelines::{Now, Sink};
use pmd::{Mbuf, TxQueue};
use wire::PacketBuf;

use super::mailbox::PortBuffers;
use super::stats::WorkerStats;
use own::{BUFFERS, Held, Own, buffers_of};
pub use own::{OwnQueue, most_buffers};
pub use refusal::STALL_NS;
use ring::HAND_OFFS;
pub use ring::{Ring, ring};
use set::PortSet;
pub use state::PortState;

/// Packets that wait for a port of up to four queues at most, whatever the number of workers; each further queue
/// may have `MIN_BUFFER` more.
pub const MAX_WAITING: usize = BUFFERS + HAND_OFFS;
/// Buffers that wait on account of one worker at most, in front of its own queues and in the rings that it fills. Each
/// queue and each ring may have one packet beyond that: it is on its way, and a free queue takes it at once.
pub const WORKER_ROOM: usize = 4096;
/// After so many packets for full rings it is counted again what is in them, and after so long.
const RECOUNT: u32 = 64;
/// Between two calls of a driver that wants to be called: the bonding driver does, every 100 ms at least.
const TEND_NS: u64 = 20_000_000;
/// See [`RECOUNT`].
const RECOUNT_NS: u64 = 50_000;

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
    /// Ports whose drivers want to be called although there is nothing to send, and when they are next.
    tended: PortSet,
    tend_due_ns: u64,
    /// Packets in buffers and rings, less those taken out of other workers' rings; published once a burst.
    queued: u64,
    /// Buffers in front of own queues.
    waiting: usize,
    /// Buffers in the rings that this worker fills, or more: what was taken out is counted now and then.
    handed: usize,
    /// When that was, and packets for rings since.
    counted_ns: u64,
    since_counted: u32,
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
            tended: PortSet::default(),
            tend_due_ns: u64::MAX,
            queued: 0,
            waiting: 0,
            handed: 0,
            counted_ns: 0,
            since_counted: 0,
            now_ns: 0,
            stats,
        }
    }

    /// A turn begins.
    #[inline(always)]
    pub(super) fn begin(&mut self, now: Now) {
        self.now_ns = now.ns;
        if now.ns >= self.tend_due_ns {
            self.tend();
        }
    }

    /// Calls the drivers that want to be called.
    #[cold]
    fn tend(&mut self) {
        let mut from = 0;
        while let Some(port) = self.tended.first_from(from) {
            if let Some(TxPath::Own(own) | TxPath::Diverted(own, _)) = self.paths.get_mut(usize::from(port)) {
                own.queue.tend();
            }
            from = port + 1;
        }
        self.tend_due_ns = if self.tended.is_empty() { u64::MAX } else { self.now_ns + TEND_NS };
    }

    pub(super) fn own(&mut self, port: PortIndex, own: OwnQueue) {
        if !own.rings.is_empty() {
            self.with_rings.insert(port);
        }
        if own.queue.wants_calls() {
            self.tended.insert(port);
            self.tend_due_ns = self.now_ns;
        }
        *self.path_mut(port) = TxPath::Own(Own::new(own));
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
        self.tended.remove(port);
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
        own.learn_max_frame();
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
        let left = if own.buffer.is_empty() { Held::default() } else { Held::of(&own.buffer) };
        let (refused, refused_bytes) = own.queue.take_refused();
        let counters = &self.stats.ports[usize::from(port)];
        counters.tx_packets.add((sent as u64).saturating_sub(refused));
        counters.tx_bytes.add((own.held.bytes - left.bytes).saturating_sub(refused_bytes));
        self.waiting -= own.held.buffers - left.buffers;
        own.held = left;
        self.stats.pipeline.sent.add((sent as u64).saturating_sub(refused));
        self.queued = self.queued.wrapping_sub(sent as u64);
        own.ahead = own.ahead.saturating_sub(sent);
        if own.buffer.is_empty() {
            own.refusal.over();
            self.dirty.remove(port);
        }
        if refused > 0 {
            self.count_drops(port, DropReason::TX_REFUSED, refused);
        }
    }

    /// Counts what waits at a port after packets have left without being sent.
    fn recount(&mut self, port: PortIndex) {
        let Some(TxPath::Own(own) | TxPath::Diverted(own, _)) = self.paths.get_mut(usize::from(port)) else {
            return;
        };
        let left = Held::of(&own.buffer);
        self.waiting -= own.held.buffers - left.buffers;
        own.held = left;
        own.ahead = own.ahead.min(own.buffer.len());
        if own.buffer.is_empty() {
            self.dirty.remove(port);
        }
    }

    /// Buffers that may still wait on account of this worker.
    #[inline(always)]
    fn room_left(&self) -> usize {
        WORKER_ROOM.saturating_sub(self.waiting + self.handed)
    }

    /// Counts what is in the rings that this worker fills, unless it did just now.
    #[cold]
    fn count_handed(&mut self) {
        self.since_counted += 1;
        if self.since_counted < RECOUNT && self.now_ns.saturating_sub(self.counted_ns) < RECOUNT_NS {
            return;
        }
        (self.counted_ns, self.since_counted) = (self.now_ns, 0);
        self.handed = self.rings_out().map(|ring| ring.buffers()).sum();
    }

    /// The rings that this worker fills.
    fn rings_out(&self) -> impl Iterator<Item = &Ring> {
        self.paths.iter().filter_map(|path| match path {
            TxPath::HandOff(ring) | TxPath::Diverted(_, ring) => Some(ring),
            TxPath::Own(_) | TxPath::None => None,
        })
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
        own.learn_max_frame();
        let (mut taken, mut too_long) = (0, 0);
        for ring in &own.rings {
            // No more than the buffer holds: the ring keeps the rest, and its bound does the dropping.
            while !own.buffer.is_full()
                && own.has_room(1, WORKER_ROOM.saturating_sub(self.waiting))
                && let Some((packet, buffers)) = ring.pop()
            {
                taken += 1;
                if own.is_too_long(&packet) {
                    too_long += 1;
                    continue;
                }
                self.dirty.insert(port);
                own.held.add(packet.len(), buffers);
                self.waiting += buffers;
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

    /// What waits for the ports whose queues this worker owns.
    pub(super) fn buffers(&self) -> impl Iterator<Item = PortBuffers> {
        let paths = self.paths.iter().enumerate();
        paths.filter_map(|(port, path)| match path {
            TxPath::Own(own) | TxPath::Diverted(own, _) => Some(PortBuffers {
                waiting: own.buffer.iter().map(Mbuf::segment_count).sum(),
                handed_over: own.rings.iter().map(|ring| ring.buffers()).sum(),
                ..PortBuffers::of(port as PortIndex)
            }),
            TxPath::HandOff(_) | TxPath::None => None,
        })
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
                own.learn_max_frame();
                if own.is_too_long(&packet) {
                    return self.refuse(port, packet, DropReason::MTU_EXCEEDED);
                }
                self.send_own(port, packet);
            }
            Some(TxPath::Own(_)) => self.send_own(port, packet),
            Some(TxPath::HandOff(_) | TxPath::Diverted(..)) => self.hand_over(port, packet),
            Some(TxPath::None) | None => self.refuse(port, packet, DropReason::PORT_DOWN),
        }
    }

    /// A packet for a queue of another worker.
    fn hand_over(&mut self, port: PortIndex, packet: Mbuf) {
        let buffers = buffers_of(&packet);
        if self.room_left() < WORKER_ROOM / 2 {
            self.count_handed();
        }
        let left = self.room_left();
        let Some(TxPath::HandOff(ring) | TxPath::Diverted(_, ring)) = self.paths.get(usize::from(port))
        else {
            return self.refuse(port, packet, DropReason::PORT_DOWN);
        };
        match ring.push(packet, buffers, left) {
            Ok(()) => {
                self.handed += buffers;
                self.queued = self.queued.wrapping_add(1);
            }
            Err(packet) => self.refuse(port, packet, DropReason::TX_HANDOFF_FULL),
        }
    }

    /// A packet for an own queue whose buffer may be full.
    fn send_own(&mut self, port: PortIndex, packet: Mbuf) {
        let (len, buffers) = (packet.len(), buffers_of(&packet));
        for may_flush in [true, false] {
            let left = self.room_left();
            let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) else { break };
            if !own.buffer.is_full() && own.has_room(buffers, left) {
                own.held.add(len, buffers);
                self.waiting += buffers;
                self.dirty.insert(port);
                self.queued = self.queued.wrapping_add(1);
                // There is room: it was asked just now.
                let _ = own.buffer.push(packet);
                return;
            }
            if may_flush {
                self.flush_port(port);
            }
        }
        self.refuse(port, packet, DropReason::TX_FULL);
    }
}

impl Sink<Mbuf> for TxPaths {
    #[inline(always)]
    fn send(&mut self, port: PortIndex, packet: Mbuf) {
        let mut packet = packet;
        let left = self.room_left();
        if let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) {
            // Of a packet that is no longer these are those that it waits as.
            let (len, buffers) = (packet.len(), packet.segment_count());
            if len <= own.max_frame && own.has_room(buffers, left) {
                match own.buffer.push(packet) {
                    Ok(()) => {
                        own.held.add(len, buffers);
                        self.waiting += buffers;
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
