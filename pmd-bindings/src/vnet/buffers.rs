//! [`Buffers`]: fresh buffers that the kernel reads a frame into, and the packet that they become.

use std::mem::MaybeUninit;

use crate::mbuf::Mbuf;
use crate::mempool::Mempool;

/// Buffers of a packet at most: 64 KiB in buffers that are half as large as usual.
pub(crate) const MAX_SEGMENTS: usize = 64;

/// A piece of memory for a system call, not yet said which.
pub(crate) type Place = MaybeUninit<libc::iovec>;

/// Buffers at hand, of one pool.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub pool: Mempool,
    /// Empty packets of one segment; the last one is the next to be filled.
    fresh: Vec<Mbuf>,
}

impl Buffers {
    pub fn new(pool: Mempool) -> Self {
        Self { pool, fresh: Vec::new() }
    }

    /// How many are needed for a frame of so many bytes.
    pub fn needed(&self, len: usize) -> usize {
        len.div_ceil(self.pool.segment_room()).max(1)
    }

    /// Has so many at hand, or as many as the pool has, but no more than a packet has; how many there are.
    #[inline]
    pub fn arm(&mut self, wanted: usize) -> usize {
        while self.fresh.len() < wanted.min(MAX_SEGMENTS)
            && let Some(buffer) = self.pool.alloc()
        {
            self.fresh.push(buffer);
        }
        self.fresh.len()
    }

    /// Gives back those that are at hand.
    pub fn release(&mut self) {
        self.fresh.clear();
    }

    /// Writes where the kernel is to put a frame: as many places as there are buffers, but no more than are given; how many places those
    /// are, and how many bytes have room there.
    #[inline]
    pub fn write_places(&self, places: &mut [Place]) -> (usize, usize) {
        let (mut used, mut room) = (0, 0);
        for (place, buffer) in places.iter_mut().zip(self.fresh.iter().rev()) {
            let segment = buffer.segment();
            place.write(libc::iovec { iov_base: segment.data().cast(), iov_len: segment.tailroom() });
            room += segment.tailroom();
            used += 1;
        }
        (used, room)
    }

    /// The packet of so many bytes, of which the kernel has put the first into the buffers, as `write_places` said; what had no room
    /// there is at the beginning of `rest`. None when there is no buffer for that: the frame is lost then.
    #[inline]
    pub fn take(&mut self, len: usize, rest: &[u8]) -> Option<Mbuf> {
        let packet = self.fresh.pop()?;
        let (head, mut last) = (packet.segment(), packet.segment());
        let (mut left, mut segments) = (len, 1);
        loop {
            let here = left.min(last.tailroom());
            // Not over the room of a buffer, which is at most 65,535.
            last.set_data_len(here as u16);
            left -= here;
            let Some(next) = (left > 0).then(|| self.fresh.pop()).flatten() else { break };
            // Linked at once, so that dropping `packet` frees it on any way out.
            let next = next.into_segment();
            last.set_next(Some(next));
            segments += 1;
            head.set_nb_segs(segments);
            last = next;
        }
        if left > 0 {
            let behind = self.pool.alloc_from(rest.get(..left)?)?;
            segments += behind.segment().nb_segs();
            last.set_next(Some(behind.into_segment()));
            head.set_nb_segs(segments);
        }
        // Frames are no longer than `LONGEST`.
        head.set_pkt_len(len as u32);
        Some(packet)
    }
}
