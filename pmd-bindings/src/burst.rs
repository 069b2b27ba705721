//! [`Burst`]: a handful of packets, with a capacity that never changes.
//!
//! What rx appends to and tx takes from. It never allocates after it was made.

use std::vec::Drain;

use dpdk_sys as sys;

use crate::mbuf::Mbuf;

/// A vector of packets with a fixed capacity. Dropping or clearing it frees what it holds.
#[derive(Debug)]
pub struct Burst {
    packets: Vec<Mbuf>,
    capacity: usize,
}

impl Burst {
    /// An empty burst for at most `capacity` packets.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { packets: Vec::with_capacity(capacity), capacity }
    }

    /// Adds a packet at the end, or gives it back when the burst is full.
    #[inline]
    pub fn push(&mut self, packet: Mbuf) -> Result<(), Mbuf> {
        let length = self.packets.len();
        if length == self.capacity {
            return Err(packet);
        }
        // Not `Vec::push`: it would ask once more whether there is room, and carry the code to make some.
        match self.packets.spare_capacity_mut().first_mut() {
            Some(slot) => slot.write(packet),
            None => return Err(packet),
        };
        // SAFETY: the slot behind the last packet lies in the vector's capacity and was just written.
        unsafe { self.packets.set_len(length + 1) };
        Ok(())
    }

    /// Takes the last packet.
    #[inline]
    pub fn pop(&mut self) -> Option<Mbuf> {
        self.packets.pop()
    }

    /// Number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// True without packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// True when no other packet fits.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.packets.len() == self.capacity
    }

    /// Number of packets that fit in all.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of packets that still fit.
    #[inline]
    pub fn spare(&self) -> usize {
        self.capacity - self.packets.len()
    }

    /// Frees all packets.
    #[inline]
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Frees all packets but the first `keep`.
    #[inline]
    pub fn truncate(&mut self, keep: usize) {
        let Some(excess) = self.packets.len().checked_sub(keep).filter(|excess| *excess > 0) else { return };
        // SAFETY: `keep` is below the length, and the packets behind it are given up just below.
        unsafe { self.packets.set_len(keep) };
        let first = self.packets.as_mut_ptr().wrapping_add(keep).cast::<*mut sys::rte_mbuf>();
        // A u32 always holds the count: no burst is that large.
        // SAFETY: `excess` packets that the vector owned until now and will not look at again; an `Mbuf` is a
        // pointer.
        unsafe { sys::rte_pktmbuf_free_bulk(first, excess as u32) };
    }

    /// Takes out all packets, in order; those not taken from the iterator are freed.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_, Mbuf> {
        self.packets.drain(..)
    }

    /// The packets.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Mbuf> {
        self.packets.iter()
    }

    /// The packets, writable.
    #[inline]
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Mbuf> {
        self.packets.iter_mut()
    }

    /// The packets.
    #[inline]
    pub fn as_slice(&self) -> &[Mbuf] {
        &self.packets
    }

    /// The packets, writable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Mbuf] {
        &mut self.packets
    }

    /// The packets as C sees them.
    #[inline]
    pub(crate) fn slots(&mut self) -> *mut *mut sys::rte_mbuf {
        self.packets.as_mut_ptr().cast()
    }

    /// Room for [`spare`](Self::spare) more, as C sees it.
    #[inline]
    pub(crate) fn spare_slots(&mut self) -> *mut *mut sys::rte_mbuf {
        self.packets.spare_capacity_mut().as_mut_ptr().cast()
    }

    /// Takes in `count` packets that were written to [`spare_slots`](Self::spare_slots).
    ///
    /// # Safety
    /// They were written there, are at most [`spare`](Self::spare), and this burst becomes their owner.
    #[inline]
    pub(crate) unsafe fn grow(&mut self, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.packets.set_len(self.packets.len() + count) };
    }

    /// Forgets packets `..sent` and `left..offered`, which others own now, and closes the gaps.
    ///
    /// # Safety
    /// `sent <= left <= offered <= len`, and those packets have owners.
    #[inline]
    pub(crate) unsafe fn forget_sent(&mut self, sent: usize, left: usize, offered: usize) {
        let length = self.packets.len();
        let first = self.packets.as_mut_ptr();
        // SAFETY: 0 is no more than the capacity; the packets are put back below.
        unsafe { self.packets.set_len(0) };
        let unsent = left - sent;
        if unsent > 0 {
            // SAFETY: both ranges lie in the vector's initialised part.
            unsafe { first.copy_from(first.wrapping_add(sent), unsent) };
        }
        let behind = length - offered;
        if behind > 0 {
            // SAFETY: as above.
            unsafe { first.wrapping_add(unsent).copy_from(first.wrapping_add(offered), behind) };
        }
        // SAFETY: so many packets were just moved to the front.
        unsafe { self.packets.set_len(unsent + behind) };
    }

    /// Looks at the packets from `first` on and keeps those for which `keep` returns a packet, in order.
    pub(crate) fn filter_map_from(&mut self, first: usize, mut keep: impl FnMut(Mbuf) -> Option<Mbuf>) {
        let length = self.packets.len();
        // SAFETY: shrinks; the packets behind are taken out below (and leaked, not freed twice, on a panic).
        unsafe { self.packets.set_len(first) };
        let mut kept = first;
        for index in first..length {
            let slot = self.packets.as_mut_ptr().wrapping_add(index);
            // SAFETY: the slot is initialised, and each is taken out once.
            let packet = unsafe { slot.read() };
            if let Some(packet) = keep(packet) {
                let slot = self.packets.as_mut_ptr().wrapping_add(kept);
                // SAFETY: `kept <= index`: the slot's packet was taken out.
                unsafe { slot.write(packet) };
                kept += 1;
            }
        }
        // SAFETY: the slots below `kept` hold packets.
        unsafe { self.packets.set_len(kept) };
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<'a> IntoIterator for &'a Burst {
    type Item = &'a Mbuf;
    type IntoIter = std::slice::Iter<'a, Mbuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Burst {
    type Item = &'a mut Mbuf;
    type IntoIter = std::slice::IterMut<'a, Mbuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
