//! The rings in which workers hand packets over, and the buffers in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam::queue::ArrayQueue;
use pmd::Mbuf;

use super::own::buffers_of;

/// Slots of all rings to a port that are in use at a time.
pub(super) const HAND_OFFS: usize = 512;
/// Buffers that a ring holds at least: fifteen super-frames of 64 KB, so that a burst of them finds room.
const SUPER_FRAMES: usize = 512;

/// A ring to the worker that owns a queue. One worker puts packets in, and one takes them out.
pub type Ring = Arc<HandOffRing>;

/// See [`Ring`].
pub struct HandOffRing {
    packets: ArrayQueue<Mbuf>,
    /// Buffers that may be in it.
    room: usize,
    /// Buffers that were put in since it is there, wrapping; written by the one who puts in.
    put: AtomicU32,
    /// Buffers that were taken out, likewise; written by the one who takes out.
    taken: AtomicU32,
}

/// A ring to a port that so many workers hand packets over to.
pub fn ring(workers: usize) -> Ring {
    let (slots, room) = sizes(workers);
    let count = AtomicU32::default;
    Arc::new(HandOffRing { packets: ArrayQueue::new(slots), room, put: count(), taken: count() })
}

/// Slots of a ring to a port that so many workers hand packets over to, and the buffers that it may hold.
pub(super) fn sizes(workers: usize) -> (usize, usize) {
    let slots = (HAND_OFFS / workers.max(1)).max(1);
    (slots, (2 * slots).max(SUPER_FRAMES))
}

impl HandOffRing {
    /// Buffers that are in it. Exact for both ends while the other does nothing.
    pub fn buffers(&self) -> usize {
        // What was taken first: what is put in meanwhile may be counted, but never less than nothing.
        let taken = self.taken.load(Ordering::Acquire);
        self.put.load(Ordering::Acquire).wrapping_sub(taken) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Puts a packet of `buffers` in, if the ring has no more than `most` of them then; an empty ring takes any packet.
    ///
    /// # Errors
    /// The packet.
    pub(super) fn push(&self, packet: Mbuf, buffers: usize, most: usize) -> Result<(), Mbuf> {
        let held = self.buffers();
        if held > 0 && held + buffers > most.min(self.room) {
            return Err(packet);
        }
        // Before the packet, for it may be taken out at once.
        let put = self.put.load(Ordering::Relaxed);
        self.put.store(put.wrapping_add(buffers as u32), Ordering::Release);
        let result = self.packets.push(packet);
        if result.is_err() {
            self.put.store(put, Ordering::Release);
        }
        result
    }

    /// Takes a packet out, and its number of buffers.
    #[inline]
    pub(super) fn pop(&self) -> Option<(Mbuf, usize)> {
        let packet = self.packets.pop()?;
        let buffers = buffers_of(&packet);
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(buffers as u32), Ordering::Release);
        Some((packet, buffers))
    }

    /// Slots.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.packets.capacity()
    }

    /// Packets that are in it.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }
}
