//! [`Buffers`]: fresh buffers that the kernel reads a frame into, and the packet that they become.

use std::mem::MaybeUninit;

use wire::PacketBuf;

use crate::mbuf::Mbuf;
use crate::mempool::{LONG_FRAME, Mempool};

/// Buffers of a packet at most: 64 KiB in buffers that are half as large as usual.
pub(crate) const MAX_SEGMENTS: usize = 64;

/// A frame that so many usual buffers hold does not take up a long one, of which there are few.
const FEW: usize = 4;

/// A piece of memory for a system call, not yet said which.
pub(crate) type Place = MaybeUninit<libc::iovec>;

/// Buffers at hand, of one pool: a long one for a long frame where one is free, and usual ones.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub pool: Mempool,
    /// An empty packet in a long buffer, to be filled first.
    long: Option<Mbuf>,
    /// Empty packets of one segment; the last one is the next to be filled.
    fresh: Vec<Mbuf>,
}

impl Buffers {
    pub fn new(pool: Mempool) -> Self {
        Self { pool, long: None, fresh: Vec::new() }
    }

    /// Whether a packet has room for a frame of so many bytes, whatever buffers there are.
    pub fn may_hold(&self, len: usize) -> bool {
        len <= MAX_SEGMENTS * self.pool.segment_room()
    }

    /// Whether one usual buffer has room for a frame of so many bytes.
    #[inline]
    pub fn is_short(&self, len: usize) -> bool {
        len <= self.pool.segment_room()
    }

    /// Whether a frame of so many bytes is to lie in a long buffer.
    #[inline]
    fn is_long(&self, len: usize) -> bool {
        len > LONG_FRAME && len > FEW * self.pool.segment_room()
    }

    /// Has buffers at hand for a frame of so many bytes, or as many as the pool has, but no more than a packet has; how many bytes have
    /// room there. Of a frame that is not long a long buffer is given back.
    #[inline]
    pub fn arm(&mut self, len: usize) -> usize {
        if !self.is_long(len) {
            self.long = None;
        } else if self.long.is_none() {
            self.long = self.pool.alloc_long();
        }
        let each = self.pool.segment_room();
        let mut room = self.long.as_ref().map_or(0, Mbuf::tailroom) + self.fresh.len() * each;
        while room < len
            && self.fresh.len() < MAX_SEGMENTS
            && let Some(buffer) = self.pool.alloc()
        {
            room += each;
            self.fresh.push(buffer);
        }
        room
    }

    /// Gives back those that are at hand.
    pub fn release(&mut self) {
        self.long = None;
        self.fresh.clear();
    }

    /// Writes where the kernel is to put a frame: as many places as there are buffers, but no more than are given; how many places those
    /// are, and how many bytes have room there.
    #[inline]
    pub fn write_places(&self, places: &mut [Place]) -> (usize, usize) {
        let (mut used, mut room) = (0, 0);
        let buffers = self.long.iter().chain(self.fresh.iter().rev());
        for (place, buffer) in places.iter_mut().zip(buffers) {
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
        if !self.is_long(len)
            && let Some(packet) = self.copy(len)
        {
            return Some(packet);
        }
        let packet = self.long.take().or_else(|| self.fresh.pop())?;
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

    /// The packet of so many bytes that are in the long buffer, in usual ones: the long one stays for the next frame. None when there is
    /// no long buffer, or there are no usual ones.
    fn copy(&mut self, len: usize) -> Option<Mbuf> {
        let is_short = self.is_short(len);
        let long = self.long.as_ref().filter(|long| len <= long.tailroom())?;
        let segment = long.segment();
        // Not over its room, which is below 65,535.
        segment.set_data_len(len as u16);
        let bytes = long.head();
        let packet = match is_short.then(|| self.fresh.pop()).flatten() {
            Some(packet) => {
                packet.segment().fill(bytes);
                packet.segment().set_pkt_len(len as u32);
                Some(packet)
            }
            None => self.pool.alloc_from(bytes),
        };
        segment.set_data_len(0);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::vnet::LONGEST;

    /// What the kernel does: fills the places in order; what has no room is left over.
    fn read(buffers: &Buffers, frame: &[u8]) -> Vec<u8> {
        let mut places = [const { Place::uninit() }; MAX_SEGMENTS + 2];
        let (used, room) = buffers.write_places(&mut places);
        let mut rest = frame;
        for place in &places[..used] {
            // SAFETY: `write_places` wrote so many.
            let place = unsafe { place.assume_init() };
            let (here, behind) = rest.split_at(rest.len().min(place.iov_len));
            // SAFETY: memory of a fresh buffer, with its size.
            unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), place.iov_base.cast(), here.len()) };
            rest = behind;
        }
        assert_eq!(rest.len(), frame.len().saturating_sub(room));
        rest.to_vec()
    }

    fn frame(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + len) as u8).collect()
    }

    fn take(buffers: &mut Buffers, len: usize) -> Mbuf {
        let rest = read(buffers, &frame(len));
        let packet = buffers.take(len, &rest).unwrap();
        assert!(packet.is_sound() && packet.to_vec() == frame(len) && packet.len() == len, "{len} bytes");
        packet
    }

    const LENGTHS: [usize; 13] =
        [1, 60, 2_047, 2_048, 2_049, 8_193, 16_384, 16_385, 40_000, 65_407, 65_408, 65_535, LONGEST];

    #[test]
    fn long_frames_lie_in_long_buffers_while_there_are_any_and_others_never() {
        let pool = testing::pool_with_long("long", 3);
        let mut buffers = Buffers::new(pool.clone());
        for armed in [1, 2_048, 8_193, 16_384, 16_385, LONGEST] {
            for len in LENGTHS {
                let room = buffers.arm(armed);
                assert!(room >= armed && buffers.long.is_some() == (armed > 16_384), "{armed}");
                let packet = take(&mut buffers, len);
                let is_in_one = packet.segment_count() <= len.div_ceil(65_407);
                assert_eq!(
                    is_in_one,
                    len <= 2_048 || len > 16_384 && armed > 16_384,
                    "{len} armed for {armed}"
                );
                // What the pipeline makes of it is in usual buffers, with room for a tunnel in front.
                let held = pool.long().in_use;
                let copies =
                    [packet.deep_copy().unwrap(), packet.gather([&packet.head()[..len.min(1_448)]]).unwrap()];
                assert_eq!(copies[0].segment_count(), len.div_ceil(2_048));
                assert_eq!((copies[1].segment_count(), copies[1].headroom()), (1, 128));
                assert_eq!(pool.long().in_use, held);
            }
        }
        // More than there are: as many usual ones as are needed.
        let many: Vec<Mbuf> = (0..5)
            .map(|_| {
                buffers.arm(LONGEST);
                take(&mut buffers, 40_000)
            })
            .collect();
        let counts: Vec<usize> = many.iter().map(Mbuf::segment_count).collect();
        assert_eq!((counts, pool.long().in_use), (vec![1, 1, 1, 20, 20], 3));
        drop(many);
        assert!(pool.in_use() > 0, "some are at hand");
        buffers.release();
        assert_eq!((pool.in_use(), pool.long().in_use), (0, 0), "every buffer came back");
    }

    #[test]
    fn a_short_frame_without_a_usual_buffer_takes_the_long_one() {
        let pool = testing::pool_with_long("short", 1);
        let mut buffers = Buffers::new(pool.clone());
        let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(buffers.arm(LONGEST), 65_407);
        let packet = take(&mut buffers, 60);
        assert_eq!((pool.long().in_use, packet.segment_count()), (1, 1));
        assert!(
            packet.try_clone().is_none() && packet.gather([&[1u8; 60][..]]).is_none(),
            "usual ones are none"
        );
        assert_eq!(buffers.arm(LONGEST), 0);
        drop((packet, all));
        assert_eq!(pool.in_use(), 0);
    }
}
