//! [`Segment`]: the fields of one `rte_mbuf`, by the offsets that the C compiler found.
//!
//! DPDK releases nest the structure's unions differently; offsets hide that. Nothing here owns memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk_sys as sys;

use crate::flags::{EXTERNAL, INDIRECT};

const BUF_ADDR: usize = sys::DPDK_SYS_MBUF_BUF_ADDR as usize;
pub(crate) const DATA_OFF: usize = sys::DPDK_SYS_MBUF_DATA_OFF as usize;
pub(crate) const REFCNT: usize = sys::DPDK_SYS_MBUF_REFCNT as usize;
pub(crate) const NB_SEGS: usize = sys::DPDK_SYS_MBUF_NB_SEGS as usize;
const PORT: usize = sys::DPDK_SYS_MBUF_PORT as usize;
const OL_FLAGS: usize = sys::DPDK_SYS_MBUF_OL_FLAGS as usize;
pub(crate) const PKT_LEN: usize = sys::DPDK_SYS_MBUF_PKT_LEN as usize;
pub(crate) const DATA_LEN: usize = sys::DPDK_SYS_MBUF_DATA_LEN as usize;
const VLAN_TCI: usize = sys::DPDK_SYS_MBUF_VLAN_TCI as usize;
const HASH_RSS: usize = sys::DPDK_SYS_MBUF_HASH_RSS as usize;
pub(crate) const BUF_LEN: usize = sys::DPDK_SYS_MBUF_BUF_LEN as usize;
const POOL: usize = sys::DPDK_SYS_MBUF_POOL as usize;
const NEXT: usize = sys::DPDK_SYS_MBUF_NEXT as usize;
const TX_OFFLOAD: usize = sys::DPDK_SYS_MBUF_TX_OFFLOAD as usize;
const SHINFO: usize = sys::DPDK_SYS_MBUF_SHINFO as usize;
const SHINFO_REFCNT: usize = sys::DPDK_SYS_SHINFO_REFCNT as usize;

/// A handle on one segment of a packet that somebody in this crate owns.
#[derive(Clone, Copy)]
pub(crate) struct Segment(NonNull<sys::rte_mbuf>);

impl Segment {
    /// A handle.
    ///
    /// # Safety
    /// `raw` is a valid mbuf, and stays so and in the caller's ownership while this handle and its copies are
    /// used. The safe methods rest on that.
    #[inline]
    pub(crate) unsafe fn new(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// The packet in a place; `None` where there is none.
    ///
    /// # Safety
    /// As of [`new`](Self::new), for the packet in that place.
    #[inline(always)]
    pub(crate) unsafe fn at(place: *const *mut sys::rte_mbuf) -> Option<Self> {
        // SAFETY: the caller's promise.
        NonNull::new(unsafe { place.read() }).map(Self)
    }

    #[inline(always)]
    fn get<T: Copy>(self, offset: usize) -> T {
        let field = self.0.as_ptr().cast_const().wrapping_byte_add(offset).cast::<T>();
        // SAFETY: the mbuf is valid (see `new`), and `offset` is that of a field of type T.
        unsafe { field.read() }
    }

    #[inline(always)]
    fn set<T: Copy>(self, offset: usize, value: T) {
        let field = self.0.as_ptr().wrapping_byte_add(offset).cast::<T>();
        // SAFETY: the mbuf is valid and ours to write (see `new`), and `offset` is that of a field of type T.
        unsafe { field.write(value) }
    }

    pub(crate) fn as_ptr(self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    #[inline]
    pub(crate) fn data_off(self) -> u16 {
        self.get(DATA_OFF)
    }

    #[inline]
    pub(crate) fn set_data_off(self, value: u16) {
        self.set(DATA_OFF, value);
    }

    #[inline]
    pub(crate) fn data_len(self) -> u16 {
        self.get(DATA_LEN)
    }

    #[inline]
    pub(crate) fn set_data_len(self, value: u16) {
        self.set(DATA_LEN, value);
    }

    #[inline]
    pub(crate) fn pkt_len(self) -> u32 {
        self.get(PKT_LEN)
    }

    #[inline]
    pub(crate) fn set_pkt_len(self, value: u32) {
        self.set(PKT_LEN, value);
    }

    #[inline]
    pub(crate) fn nb_segs(self) -> u16 {
        self.get(NB_SEGS)
    }

    pub(crate) fn set_nb_segs(self, value: u16) {
        self.set(NB_SEGS, value);
    }

    #[inline]
    pub(crate) fn port(self) -> u16 {
        self.get(PORT)
    }

    #[inline]
    pub(crate) fn set_port(self, value: u16) {
        self.set(PORT, value);
    }

    #[inline]
    pub(crate) fn flags(self) -> u64 {
        self.get(OL_FLAGS)
    }

    #[inline]
    pub(crate) fn set_flags(self, value: u64) {
        self.set(OL_FLAGS, value);
    }

    #[inline]
    pub(crate) fn vlan_tci(self) -> u16 {
        self.get(VLAN_TCI)
    }

    #[inline]
    pub(crate) fn rss_hash(self) -> u32 {
        self.get(HASH_RSS)
    }

    #[inline]
    pub(crate) fn tx_offload(self) -> u64 {
        self.get(TX_OFFLOAD)
    }

    #[inline]
    pub(crate) fn set_tx_offload(self, value: u64) {
        self.set(TX_OFFLOAD, value);
    }

    /// Where buffers for a copy come from.
    pub(crate) fn pool_of_copies(self) -> *mut sys::rte_mempool {
        // SAFETY: the pool of a live mbuf is live.
        unsafe { sys::dpdk_sys_pool_of_copies(self.get(POOL)) }
    }

    #[inline]
    pub(crate) fn next(self) -> Option<Self> {
        self.get::<Option<NonNull<sys::rte_mbuf>>>(NEXT).map(Self)
    }

    pub(crate) fn set_next(self, next: Option<Self>) {
        self.set(NEXT, next.map(|next| next.0));
    }

    /// The last segment of the chain that begins here.
    #[inline]
    pub(crate) fn last(mut self) -> Self {
        while let Some(next) = self.next() {
            self = next;
        }
        self
    }

    /// Where the segment's data begins.
    #[inline]
    pub(crate) fn data(self) -> *mut u8 {
        self.get::<*mut u8>(BUF_ADDR).wrapping_add(usize::from(self.data_off()))
    }

    /// The segment's bytes.
    ///
    /// # Safety
    /// The packet outlives `'a`, and nobody writes these bytes meanwhile.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: a valid mbuf has `data_len` initialised bytes at `data()`; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data(), usize::from(self.data_len())) }
    }

    /// The segment's bytes, writable.
    ///
    /// # Safety
    /// The packet outlives `'a`, the segment [`is_writable`](Self::is_writable), and nobody else has a
    /// reference to these bytes.
    #[inline]
    pub(crate) unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: as for `bytes`, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data(), usize::from(self.data_len())) }
    }

    /// True when the data lies inside the segment's buffer.
    pub(crate) fn is_inside(self) -> bool {
        let end = usize::from(self.data_off()) + usize::from(self.data_len());
        end <= usize::from(self.get::<u16>(BUF_LEN))
    }

    /// Free bytes behind the data.
    #[inline]
    pub(crate) fn tailroom(self) -> usize {
        let used = usize::from(self.data_off()) + usize::from(self.data_len());
        usize::from(self.get::<u16>(BUF_LEN)).saturating_sub(used)
    }

    /// Moves the data of a writable segment toward its beginning, where it starts behind `offset`.
    pub(crate) fn move_data_to(self, offset: u16) {
        let Some(distance) = self.data_off().checked_sub(offset) else { return };
        let from = self.data();
        let to = from.wrapping_sub(usize::from(distance));
        // SAFETY: both ranges lie in the segment's buffer, which is ours and unshared; they may overlap.
        unsafe { to.copy_from(from, usize::from(self.data_len())) };
        self.set_data_off(offset);
    }

    /// References to this `rte_mbuf` itself.
    #[inline]
    pub(crate) fn refcnt(self) -> u16 {
        let field = self.0.as_ptr().wrapping_byte_add(REFCNT).cast::<u16>();
        // SAFETY: a valid, aligned 16-bit field that other owners change only atomically.
        let counter = unsafe { AtomicU16::from_ptr(field) };
        // Acquire: when another owner has just let go, its reads of the data are over.
        counter.load(Ordering::Acquire)
    }

    /// True when the data belongs to this segment alone.
    #[inline]
    pub(crate) fn is_writable(self) -> bool {
        let flags = self.flags();
        let usual = flags & (INDIRECT | EXTERNAL) == 0;
        self.refcnt() == 1 && (usual || flags & INDIRECT == 0 && self.external_refcnt() == 1)
    }

    /// References to the external buffer: 1 in a driver that hands out slices of its own memory (mlx5's
    /// multi-packet receive queue), more when somebody shares it.
    #[inline]
    fn external_refcnt(self) -> u16 {
        let shared: *mut u8 = self.get(SHINFO);
        if shared.is_null() {
            return 0;
        }
        // SAFETY: an mbuf with an external buffer points to its live shared info, whose counter is changed
        // only atomically.
        let counter = unsafe { AtomicU16::from_ptr(shared.wrapping_add(SHINFO_REFCNT).cast()) };
        counter.load(Ordering::Acquire)
    }

    /// Appends as much of `bytes` as fits to a fresh segment; returns the rest.
    pub(crate) fn fill(self, bytes: &[u8]) -> &[u8] {
        let room = self.tailroom().min(usize::from(u16::MAX - self.data_len()));
        let (now, rest) = bytes.split_at(room.min(bytes.len()));
        let end = self.data().wrapping_add(usize::from(self.data_len()));
        // SAFETY: `tailroom` bytes behind the data belong to the segment, which is ours and unshared, so they
        // do not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), end, now.len()) };
        self.set_data_len(self.data_len() + now.len() as u16);
        rest
    }
}
