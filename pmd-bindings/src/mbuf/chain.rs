//! Packets whose first segment is too short to hold the headers.
//!
//! The pipeline parses the first segment only. A receive queue therefore gathers the first [`HEAD_BYTES`] of a
//! chain, or drops it as `header-split`. Not on the fast path: packets of one segment never come here. Also chains that are
//! made here, of bytes that one buffer does not hold.

use dpdk_sys as sys;

use super::Mbuf;
use crate::mempool::HEADROOM;

/// Bytes that the first segment of a chain is to hold, or the whole packet where that is shorter: room for all
/// headers of an encapsulated packet.
pub(crate) const HEAD_BYTES: usize = 256;

impl Mbuf {
    /// True when the chain has as many segments and bytes as its first segment says, all inside their buffers.
    pub(crate) fn is_sound(&self) -> bool {
        let head = self.segment();
        let (mut segments, mut bytes) = (0, 0);
        let mut next = Some(head);
        while let Some(segment) = next {
            if segments == head.nb_segs() || !segment.is_inside() {
                return false;
            }
            segments += 1;
            bytes += u64::from(segment.data_len());
            next = segment.next();
        }
        segments == head.nb_segs() && bytes == u64::from(head.pkt_len())
    }

    /// Moves bytes of later segments to the first until it holds `wanted` of them, or the whole packet.
    /// `false` when there is no room, the data is shared, or the chain is broken; the packet is then still
    /// whole.
    pub(crate) fn pull_up(&mut self, wanted: usize) -> bool {
        let head = self.segment();
        let wanted = wanted.min(head.pkt_len() as usize);
        let short = wanted.saturating_sub(usize::from(head.data_len()));
        if short == 0 {
            return true;
        }
        if !head.is_writable() || usize::from(u16::MAX - head.data_len()) < short {
            return false;
        }
        if head.tailroom() < short {
            head.move_data_to(HEADROOM);
        }
        if head.tailroom() < short {
            return false;
        }
        let mut missing = short;
        while missing > 0 {
            let Some(next) = head.next().filter(|next| next.refcnt() == 1) else { return false };
            let take = missing.min(usize::from(next.data_len()));
            // SAFETY: `next` is part of our packet, whose bytes nobody writes here.
            let bytes = unsafe { next.bytes() };
            head.fill(&bytes[..take]);
            // `take` is at most data_len, a u16.
            next.set_data_off(next.data_off() + take as u16);
            next.set_data_len(next.data_len() - take as u16);
            missing -= take;
            if next.data_len() == 0 {
                head.set_next(next.next());
                head.set_nb_segs(head.nb_segs().saturating_sub(1).max(1));
                next.set_next(None);
                // SAFETY: the segment was just unlinked: it is ours, and part of no packet.
                unsafe { sys::dpdk_sys_mbuf_free_segment(next.as_ptr()) };
            }
        }
        true
    }

    /// Ends the packet behind its first `keep` bytes, which it has, and gives the segments behind them back. `false` (and
    /// no change) when the segment in which it would end has other owners, or the chain is broken.
    pub(crate) fn cut_to(&mut self, keep: u32) -> bool {
        let head = self.segment();
        let (mut end, mut left, mut segments) = (head, keep, 1);
        while left > u32::from(end.data_len()) {
            let Some(next) = end.next() else { return false };
            left -= u32::from(end.data_len());
            (end, segments) = (next, segments + 1);
        }
        if end.refcnt() != 1 {
            return false;
        }
        let rest = end.next();
        // `left` is at most data_len, a u16.
        end.set_data_len(left as u16);
        end.set_next(None);
        head.set_nb_segs(segments);
        head.set_pkt_len(keep);
        if let Some(rest) = rest {
            // SAFETY: the segments were just unlinked: they are ours, and part of no packet.
            unsafe { sys::dpdk_sys_mbuf_free(rest.as_ptr()) };
        }
        true
    }

    /// A packet of these bytes, one part after another, over as many fresh buffers as they need; `None` when there are no more,
    /// or it would be of more than 65,535 segments.
    pub(crate) fn chain_of<'a>(
        alloc: impl Fn() -> Option<Self>,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Self> {
        let packet = alloc()?;
        let head = packet.segment();
        let (mut last, mut segments, mut total) = (head, 1u16, 0u32);
        for part in parts {
            total = total.checked_add(u32::try_from(part.len()).ok()?)?;
            let mut rest = last.fill(part);
            while !rest.is_empty() {
                let next = alloc()?.into_segment();
                // Linked at once, so that dropping `packet` frees it on any way out.
                last.set_next(Some(next));
                last = next;
                segments = segments.checked_add(1)?;
                head.set_nb_segs(segments);
                rest = last.fill(rest);
            }
        }
        head.set_pkt_len(total);
        Some(packet)
    }

    /// [`Self::chain_of`] in usual buffers of this packet's pool, the first part in the first of them.
    pub(crate) fn chain_like<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let pool = self.segment().pool_of_copies();
        // SAFETY: the pool of a live packet is live.
        let alloc = || unsafe { Self::alloc_in(pool) };
        let mut parts = parts.into_iter();
        let first = parts.next().unwrap_or_default();
        let packet = Self::chain_of(alloc, std::iter::once(first).chain(parts))?;
        (usize::from(packet.segment().data_len()) >= first.len()).then_some(packet)
    }

    /// A packet of our own with the same bytes, in place of one whose header others use too. `None` when the
    /// pool is exhausted; the original is given up either way.
    pub(crate) fn unshared(self) -> Option<Self> {
        self.deep_copy()
    }
}
