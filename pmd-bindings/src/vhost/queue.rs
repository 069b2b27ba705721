//! [`Receiver`] and [`Sender`]: packets from a guest and to it.
//!
//! Packets are copied, both ways: a guest has no buffer of ours, and we none of a guest's. What a guest is not ready for stays
//! with the caller; what it leaves to its device comes as a fact of the packet, and goes as a request.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;

use super::look::{Seen, Stopwatch, Suspicion};
use super::{Device, NOBODY, Offence, look, shadow};
use crate::counters::Refused;
use crate::flags;
use crate::mbuf::{Segment, free_counted};
use crate::mempool::Mempool;
use crate::port::PortId;
use crate::vnet::LONGEST;

/// After a burst of so many bytes the next one is short: super-frames of one guest do not hold up the other ports.
const LONG_BURST: u64 = 128 << 10;
/// Packets of a short burst.
const SHORT: usize = 4;
/// Packets that are asked for at least of a packed ring. Behind an announcement of a guest that migrated, which takes one place, the library
/// looks for no packets at all then, and writes and frees what it has not got (`virtio_dev_tx_packed`, before DPDK 24.11).
const FEWEST: u16 = 2;

/// The receiving half of a queue pair.
///
/// A guest may enable more pairs than the port has queues: each queue receives from every so many-th one.
#[derive(Debug)]
pub(crate) struct Receiver {
    device: Arc<Device>,
    queue: usize,
    port: PortId,
    pool: Mempool,
    /// Buffers of the longest frame.
    buffers: u32,
    /// The pair that comes first next time.
    next: usize,
    /// Whether the last burst was long.
    is_long: bool,
    /// As of the device when rings were last hushed.
    generation: u32,
}

impl Receiver {
    pub(super) fn new(device: Arc<Device>, queue: usize, port: PortId, pool: Mempool) -> Self {
        let buffers = LONGEST.div_ceil(pool.segment_room()) as u32;
        Self { device, queue, port, pool, buffers, next: 0, is_long: false, generation: 0 }
    }

    /// The virtqueues to receive from: how many, in steps of two for each queue of the port.
    #[inline(always)]
    fn pairs(&self) -> usize {
        let (pairs, queues) = (self.device.pairs.load(Ordering::Relaxed) as usize, self.device.gates.len());
        pairs.saturating_sub(self.queue).div_ceil(queues)
    }

    #[inline(always)]
    fn ring(&self, number: usize) -> u16 {
        // Below twice 128.
        (2 * (self.queue + number * self.device.gates.len()) + 1) as u16
    }

    /// Whether a guest has packets, as far as that can be told without receiving them.
    #[inline]
    pub(crate) fn has_packets(&self) -> bool {
        let _inside = self.device.gates[self.queue][0].enter();
        let vid = self.device.vid.load(Ordering::Acquire);
        if vid == NOBODY {
            return false;
        }
        // The library counts what is available in split rings only, and no announcement.
        if self.device.is_packed() || self.device.announces.load(Ordering::Relaxed) {
            return true;
        }
        (0..self.pairs()).map(|number| self.ring(number)).any(|ring| {
            // SAFETY: a peer that does not go while we are inside; the library checks the ring.
            self.device.is_enabled(ring.into()) && unsafe { sys::rte_vhost_rx_queue_count(vid, ring) } > 0
        })
    }

    /// Takes up to `count` packets, the first ones of `slots`, and returns how many.
    ///
    /// # Safety
    /// `slots` has room for `count` pointers.
    #[inline]
    pub(crate) unsafe fn receive(&mut self, slots: *mut *mut sys::rte_mbuf, count: usize) -> usize {
        let _inside = self.device.gates[self.queue][0].enter();
        let vid = self.device.vid.load(Ordering::Acquire);
        let pairs = self.pairs();
        if vid == NOBODY || pairs == 0 {
            return 0;
        }
        let generation = self.device.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            hush(vid, (0..pairs).map(|number| self.ring(number)));
        }
        let count = if self.is_long { count.min(SHORT) } else { count };
        let (mut received, mut lost) = (0, 0);
        for turn in 0..pairs {
            let ring = self.ring((self.next + turn) % pairs);
            if !self.device.is_enabled(ring.into()) {
                continue;
            }
            let room = (count - received) as u16;
            if room < FEWEST && self.device.is_packed() {
                break;
            }
            // What so many frames can take, and no more: a guest describes as long a frame as it likes.
            let most = u32::from(room) * self.buffers;
            // SAFETY: a peer that does not go while we are inside; the library checks the ring. `slots` has so much room.
            received += unsafe {
                let (pool, slots) = (self.pool.bounded(), slots.wrapping_add(received));
                usize::from(sys::dpdk_sys_vhost_dequeue(vid, ring, pool, most, slots, room, &raw mut lost))
            };
            if lost != 0 {
                let counters = &self.device.counters[self.queue];
                if u32::from(lost) == sys::DPDK_SYS_TOO_LONG {
                    self.device.caught(Offence::EndlessFrames);
                    counters.rx_errors.add(1);
                } else {
                    counters.rx_no_mbuf.add(1);
                }
                break;
            }
            if received >= count {
                break;
            }
        }
        self.next = if pairs > 1 { self.next.wrapping_add(1) } else { 0 };
        let mut bytes = 0;
        for index in 0..received {
            // SAFETY: the library wrote so many packets, which are ours.
            let Some(head) = (unsafe { Segment::at(slots.wrapping_add(index)) }) else { continue };
            head.set_port(self.port.get());
            bytes += u64::from(head.pkt_len());
        }
        self.is_long = bytes > LONG_BURST;
        if bytes > LONGEST as u64 {
            // SAFETY: as above.
            let (kept, lost) = unsafe { self.without_endless(slots, received) };
            (received, bytes) = (kept, bytes - lost);
        }
        if received > 0 {
            let counters = &self.device.counters[self.queue];
            counters.rx_packets.add(received as u64);
            counters.rx_bytes.add(bytes);
            // It is the first of the next packets, whatever queue they come by.
            if self.device.announces.load(Ordering::Relaxed) {
                self.device.announces.store(false, Ordering::Relaxed);
            }
        }
        received
    }
}

impl Receiver {
    /// Frees those of `count` frames that are longer than any is, and closes the gaps; how many are left, and how many bytes are not.
    ///
    /// # Safety
    /// `slots` holds so many packets of ours.
    #[cold]
    unsafe fn without_endless(&self, slots: *mut *mut sys::rte_mbuf, count: usize) -> (usize, u64) {
        let (mut kept, mut lost) = (0, 0);
        for index in 0..count {
            let slot = slots.wrapping_add(index);
            // SAFETY: the caller's promise.
            if unsafe { Segment::at(slot) }.is_some_and(|head| head.pkt_len() as usize > LONGEST) {
                // SAFETY: as above; the packet is gone now.
                lost += unsafe { free_counted(slot, 1) };
                self.device.counters[self.queue].rx_errors.add(1);
                continue;
            }
            // SAFETY: places of the caller's, of which one was kept or is gone.
            unsafe { slots.wrapping_add(kept).copy_from(slot, 1) };
            kept += 1;
        }
        (kept, lost)
    }
}

/// Tells a guest that it need not notify us of packets, nor of buffers: we look.
#[cold]
fn hush(vid: i32, rings: impl Iterator<Item = u16>) {
    for ring in rings {
        for ring in [ring - 1, ring] {
            // SAFETY: a peer that does not go while the caller is inside; the library checks the ring.
            unsafe { sys::rte_vhost_enable_guest_notification(vid, ring, 0) };
        }
    }
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Sender {
    device: Arc<Device>,
    queue: usize,
    /// Since they were last asked for.
    refused: Refused,
    /// Nobody else has the queue.
    suspicion: Cell<Suspicion>,
}

impl Sender {
    pub(super) fn new(device: Arc<Device>, queue: usize) -> Self {
        Self { device, queue, refused: Refused::default(), suspicion: Cell::default() }
    }

    /// What was refused of the packets that are gone, since the last question.
    pub(crate) fn take_refused(&mut self) -> Refused {
        std::mem::take(&mut self.refused)
    }

    /// Sends from the front of `count` packets and returns how many are gone: taken by the guest, or not to be given to it and
    /// counted as `tx_errors`. A guest without room leaves the rest where it is.
    ///
    /// # Safety
    /// `slots` holds `count` packets; those that are gone have been freed.
    #[inline]
    pub(crate) unsafe fn send(&mut self, slots: *mut *mut sys::rte_mbuf, count: usize) -> usize {
        let _inside = self.device.gates[self.queue][1].enter();
        let vid = self.device.vid.load(Ordering::Acquire);
        if vid == NOBODY || !self.device.is_enabled(2 * self.queue) {
            return 0;
        }
        self.suspicion.set(self.suspicion.get().of(self.device.generation.load(Ordering::Acquire)));
        let mut gone = 0;
        if self.device.takes_super_frames() {
            // SAFETY: the caller's packets.
            return unsafe { self.enqueue(vid, slots, count) };
        }
        // What was made for the guest before it came back without these features.
        while gone < count {
            // SAFETY: the caller's packets.
            let asks = |at: usize| unsafe { Segment::at(slots.wrapping_add(at)) }.is_some_and(asks_for_work);
            let fit = (gone..count).take_while(|&at| !asks(at)).count();
            if fit == 0 {
                // SAFETY: the caller's packet, which is gone now.
                let bytes = unsafe { free_counted(slots.wrapping_add(gone), 1) };
                self.refused.add(1, bytes);
                self.device.counters[self.queue].tx_errors.add(1);
                gone += 1;
                continue;
            }
            // SAFETY: the caller's packets.
            let sent = unsafe { self.enqueue(vid, slots.wrapping_add(gone), fit) };
            gone += sent;
            if sent < fit {
                break;
            }
        }
        gone
    }

    /// Copies packets into the guest's buffers, and frees those that it got; how many that were.
    ///
    /// # Safety
    /// `slots` holds `count` packets of the caller; we are inside, and `vid` is the peer.
    #[inline(always)]
    unsafe fn enqueue(&self, vid: i32, slots: *mut *mut sys::rte_mbuf, count: usize) -> usize {
        let ring = 2 * self.queue as u16;
        let watch = Stopwatch::start();
        let (mut gone, mut bytes) = (0, 0);
        while gone < count {
            let (slots, some) =
                (slots.wrapping_add(gone), (count - gone).min(usize::from(shadow::SENT)) as u16);
            // SAFETY: the caller's promises.
            if self.suspicion.get().is_there() && !unsafe { self.is_sound(vid, slots, some.into()) } {
                break;
            }
            // SAFETY: the caller's promises; the library checks the ring, and keeps no packet.
            let sent = unsafe { sys::rte_vhost_enqueue_burst(vid, ring, slots, some) }.min(some);
            if sent > 0 {
                // SAFETY: the guest has copies; nobody uses these any more.
                bytes += unsafe { free_counted(slots, sent.into()) };
            }
            gone += usize::from(sent);
            if watch.is_over(bytes) {
                self.suspicion.set(self.suspicion.get().raised());
            }
            if sent < some {
                break;
            }
        }
        if gone > 0 {
            let counters = &self.device.counters[self.queue];
            counters.tx_packets.add(gone as u64);
            counters.tx_bytes.add(bytes);
        }
        gone
    }

    /// Whether the ring's buffers for some packets are what a sound guest gives.
    ///
    /// # Safety
    /// As of [`enqueue`](Self::enqueue).
    #[cold]
    unsafe fn is_sound(&self, vid: i32, slots: *mut *mut sys::rte_mbuf, count: usize) -> bool {
        // SAFETY: the caller's packets.
        let length = |at: usize| unsafe { Segment::at(slots.wrapping_add(at)) }.map_or(0, Segment::pkt_len);
        let bytes = (0..count).map(|at| u64::from(length(at))).sum();
        // SAFETY: a peer that does not go while we are inside.
        let seen = unsafe { look::look(&self.device, vid, 2 * self.queue as u16, count, bytes) };
        self.suspicion.set(self.suspicion.get().after(seen));
        if seen == Seen::Empty {
            self.device.caught(Offence::EmptyChains);
        }
        seen != Seen::Empty
    }
}

/// Whether a packet's checksum is unfinished, or it is to be cut.
fn asks_for_work(head: Segment) -> bool {
    head.flags() & (flags::TX_L4_MASK | flags::TX_TCP_SEG) != 0
}
