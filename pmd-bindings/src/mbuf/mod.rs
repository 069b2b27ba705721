//! [`Mbuf`]: one packet, owned.
//!
//! `segment.rs` reads and writes the C structure, `packet.rs` is the [`wire::PacketBuf`] that the pipeline sees,
//! `chain.rs` gathers headers that arrive in pieces. An `Mbuf` is the only owner of its `rte_mbuf` header (the
//! data may be shared, see [`wire::PacketBuf::is_shared`]); dropping it gives the buffer back to its pool.

mod chain;
mod packet;
mod segment;

use std::fmt;
use std::ptr::NonNull;

use dpdk_sys as sys;
use wire::PacketBuf;

pub(crate) use chain::HEAD_BYTES;
pub(crate) use segment::{REARM_OFFSET, SINGLE_EXCLUSIVE, SINGLE_EXCLUSIVE_MASK, Segment};

use crate::port::PortId;

/// One packet, owned. `Option<Mbuf>` is as large as a pointer.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf belongs to whoever holds the `Mbuf`; nothing in it is bound to a thread, and its pool takes it
// back from any thread.
unsafe impl Send for Mbuf {}
// SAFETY: through a shared reference an mbuf is only read.
unsafe impl Sync for Mbuf {}

impl Mbuf {
    /// Takes ownership of an mbuf.
    ///
    /// # Safety
    /// `raw` is a valid mbuf (the first of its chain) whose header nobody else uses from here on, and whose pool
    /// outlives it.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// Gives ownership away.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// A handle on the first segment, good while `self` is.
    #[inline]
    pub(crate) fn segment(&self) -> Segment {
        // SAFETY: `self` owns a valid chain; the callers in this crate drop the handle before the packet.
        unsafe { Segment::new(self.0) }
    }

    /// Gives ownership away, as a segment to be linked into another packet.
    pub(crate) fn into_segment(self) -> Segment {
        // SAFETY: the mbuf is valid, and ownership passes to the chain that the caller links it into.
        unsafe { Segment::new(self.into_raw()) }
    }

    /// The port that received the packet; meaningless for a packet made here.
    #[inline]
    pub fn rx_port(&self) -> PortId {
        PortId::new(self.segment().port())
    }

    /// Number of segments.
    #[inline]
    pub fn segment_count(&self) -> usize {
        usize::from(self.segment().nb_segs())
    }

    /// Free bytes in front of the first segment.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.segment().data_off())
    }

    /// Free bytes behind the last segment.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.segment().last().tailroom()
    }

    /// All bytes of the packet in one vector; for tests and control code.
    pub fn to_vec(&self) -> Vec<u8> {
        self.segments().flatten().copied().collect()
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `self` owns the chain and gives it up here.
        unsafe { sys::dpdk_sys_mbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mbuf({} bytes, {} segments)", self.len(), self.segment_count())
    }
}

const _: () = assert!(size_of::<Option<Mbuf>>() == size_of::<*mut sys::rte_mbuf>());
