//! [`Mempool`]: where packet buffers come from and go back to.
//!
//! A handle is shared and cheap to clone. The pool is freed with its last handle, unless packets of it are still
//! outside: then it is kept for the rest of the process, and says so, for a buffer must never outlive its pool.
//!
//! Beside its usual buffers a pool may have *long* ones, in each of which a super-frame of a kernel port lies in one piece. They are
//! there for speed alone: a frame that finds none free takes as many usual buffers as it needs, and whatever is made of a packet in a
//! long buffer (copies, segments that were cut out of it) lies in usual ones.

use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::burst::Burst;
use crate::eal::Eal;
use crate::error::{Errno, MempoolError, cut};
use crate::flags::ANY_NODE;
use crate::log;
use crate::mbuf::Mbuf;

/// Free bytes in front of a fresh packet (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM: u16 = sys::RTE_PKTMBUF_HEADROOM as u16;
/// The usual data room: headroom and 2 KiB.
pub const DEFAULT_DATA_ROOM: u16 = HEADROOM + 2048;
/// The shortest segment that is useful beyond the headroom.
const MIN_SEGMENT: u16 = 64;
/// The longest pool name that leaves room for DPDK's own prefixes, and for the names of its twins.
const MAX_NAME: usize = 24;
/// Bytes of a long buffer, headroom included: as many as DPDK has numbers for.
pub const LONG_DATA_ROOM: u16 = u16::MAX;
/// Frames that are no longer do not take up a long buffer.
pub const LONG_FRAME: usize = 16 << 10;
/// Long buffers that each registered thread may keep for itself: those that it freed last are still in its cores' caches.
const LONG_CACHE: u32 = 8;
/// Bytes behind a buffer that are nobody's: librte_vhost writes a checksum of two bytes where the guest says, which may begin with the
/// last byte of a buffer (`vhost_dequeue_offload` of lib/vhost/virtio_net.c).
const SPARE: u16 = 8;

/// What a mempool is made of.
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// Unique name.
    pub name: String,
    /// Number of buffers. One less than a power of two wastes no memory.
    pub mbufs: u32,
    /// Buffers that each registered thread may keep for itself.
    pub cache: u32,
    /// Bytes of a buffer, headroom included.
    pub data_room: u16,
    /// Long buffers beside them, of [`LONG_DATA_ROOM`] bytes each. Where memory has no room for them there are none, and a warning.
    pub long: u32,
    /// NUMA node of the memory; any when not given.
    pub numa: Option<u32>,
}

/// Long buffers of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongBuffers {
    /// In all.
    pub size: usize,
    /// Neither in the pool nor in a thread's cache. Exact when no thread allocates or frees meanwhile.
    pub in_use: usize,
}

impl Default for MempoolConfig {
    fn default() -> Self {
        Self {
            name: "packets".into(),
            mbufs: 8191,
            cache: 256,
            data_room: DEFAULT_DATA_ROOM,
            long: 0,
            numa: None,
        }
    }
}

#[derive(Debug)]
struct PoolInner {
    raw: NonNull<sys::rte_mempool>,
    /// Has no buffers of its own; takes a bounded number of this pool's.
    bounded: NonNull<sys::rte_mempool>,
    /// Long buffers, which know this pool as that of their copies.
    long: Option<NonNull<sys::rte_mempool>>,
    eal: Eal,
    name: String,
    data_room: u16,
}

// SAFETY: a mempool's functions may be called from any thread; the ring behind it is multi-producer and
// multi-consumer, and caches belong to registered threads.
unsafe impl Send for PoolInner {}
// SAFETY: as above.
unsafe impl Sync for PoolInner {}

/// A shared handle on a pool of packet buffers.
#[derive(Clone, Debug)]
pub struct Mempool {
    inner: Arc<PoolInner>,
}

impl Mempool {
    /// Makes a pool.
    ///
    /// # Errors
    /// [`MempoolError`]: a setting out of range, or not enough memory.
    pub fn new(eal: &Eal, config: &MempoolConfig) -> Result<Self, MempoolError> {
        let Names { name, twin, long: long_name } = checked_names(config)?;
        let node = config.numa.and_then(|node| i32::try_from(node).ok()).unwrap_or(ANY_NODE);
        let spare = SPARE.min(u16::MAX - config.data_room);
        let create = || {
            let MempoolConfig { mbufs, cache, data_room, .. } = *config;
            // SAFETY: the EAL runs (`eal`), `name` is a C string, and the sizes were checked above.
            let raw =
                unsafe { sys::dpdk_sys_pool_create(name.as_ptr(), mbufs, cache, data_room, spare, node) };
            let raw = NonNull::new(raw)?;
            // SAFETY: as above; the pool outlives its twin.
            let bounded = unsafe { sys::dpdk_sys_bounded_pool_create(twin.as_ptr(), raw.as_ptr()) };
            let bounded = NonNull::new(bounded);
            if bounded.is_none() {
                // SAFETY: a pool that nobody else knows.
                unsafe { sys::rte_mempool_free(raw.as_ptr()) };
            }
            Some((raw, bounded?))
        };
        let (pools, words) = log::captured(create);
        let Some((raw, bounded)) = pools else {
            let bytes = u64::from(config.mbufs) * (u64::from(config.data_room) + 192);
            return Err(MempoolError::Create {
                name: config.name.clone(),
                mbufs: config.mbufs,
                megabytes: bytes.div_ceil(1 << 20),
                errno: Errno::last(),
                words,
            });
        };
        let long = (config.long > 0).then(|| long_pool(config, &long_name, raw, node)).flatten();
        let (name, data_room) = (config.name.clone(), config.data_room);
        Ok(Self { inner: Arc::new(PoolInner { raw, bounded, long, eal: eal.clone(), name, data_room }) })
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Buffers in use, long ones too: everything that is neither in the pool nor in a thread's cache. Exact when no thread
    /// allocates or frees meanwhile.
    pub fn in_use(&self) -> usize {
        self.inner.in_use()
    }

    /// The long buffers.
    pub fn long(&self) -> LongBuffers {
        self.inner.long.map_or_else(LongBuffers::default, |long| {
            // SAFETY: the pool is live (`inner`), and its size never changes.
            let size = unsafe { (*long.as_ptr()).size };
            LongBuffers { size: size as usize, in_use: in_use(long) }
        })
    }

    /// Free buffers of the usual length, those in caches of threads included. Exact when no thread allocates or frees meanwhile.
    pub fn available(&self) -> usize {
        // SAFETY: the pool is live (`inner`); the count is read without locks, as documented.
        let count = unsafe { sys::rte_mempool_avail_count(self.raw()) };
        count as usize
    }

    /// Free buffers that threads keep for themselves, likewise.
    pub fn cached(&self) -> usize {
        // SAFETY: the pool is live (`inner`); lengths of caches are read without locks.
        let count = unsafe { sys::dpdk_sys_mempool_cached(self.raw()) };
        count as usize
    }

    /// Buffers of the usual length, in all.
    pub fn capacity(&self) -> usize {
        // SAFETY: the pool is live (`inner`), and its size never changes.
        let size = unsafe { (*self.inner.raw.as_ptr()).size };
        size as usize
    }

    /// Bytes that fit one usual buffer behind the headroom.
    pub fn segment_room(&self) -> usize {
        usize::from(self.inner.data_room - HEADROOM)
    }

    /// An empty packet, or `None` when the pool is exhausted.
    #[inline]
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is live (`inner`).
        unsafe { Mbuf::alloc_in(self.raw()) }
    }

    /// An empty packet in a long buffer, for a frame of more than [`LONG_FRAME`] bytes; `None` when none is free.
    #[inline]
    pub fn alloc_long(&self) -> Option<Mbuf> {
        // SAFETY: the pool is live (`inner`).
        unsafe { Mbuf::alloc_in(self.inner.long?.as_ptr()) }
    }

    /// A packet with these bytes, over as many segments as they need; `None` when the pool is exhausted or
    /// they need more than 65,535 segments.
    pub fn alloc_from(&self, bytes: &[u8]) -> Option<Mbuf> {
        Mbuf::chain_of(|| self.alloc(), [bytes])
    }

    /// Adds up to `count` empty packets to `burst`, all or none, as far as it has room. Returns how many.
    pub fn alloc_bulk(&self, burst: &mut Burst, count: usize) -> usize {
        let count = count.min(burst.spare());
        let Ok(wanted) = u32::try_from(count) else { return 0 };
        let slots = burst.spare_slots();
        // SAFETY: the pool is live, and `slots` has room for at least `count` pointers.
        let ret = unsafe { sys::dpdk_sys_mbuf_alloc_bulk(self.raw(), slots, wanted) };
        if ret != 0 {
            return 0;
        }
        // SAFETY: on success `count` fresh mbufs that nobody else has were written.
        unsafe { burst.grow(count) };
        count
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.inner.raw.as_ptr()
    }

    /// For `dpdk_sys_vhost_dequeue`: what is taken by it is of this pool, and goes back there.
    pub(crate) fn bounded(&self) -> *mut sys::rte_mempool {
        self.inner.bounded.as_ptr()
    }
}

impl PoolInner {
    fn in_use(&self) -> usize {
        in_use(self.raw) + self.long.map_or(0, in_use)
    }
}

/// Buffers of a live pool that are outside.
fn in_use(pool: NonNull<sys::rte_mempool>) -> usize {
    // SAFETY: the pool is live; the count is read without locks, as documented.
    let count = unsafe { sys::rte_mempool_in_use_count(pool.as_ptr()) };
    count as usize
}

/// The long buffers beside those of a pool.
fn long_pool(
    config: &MempoolConfig,
    name: &CStr,
    usual: NonNull<sys::rte_mempool>,
    node: i32,
) -> Option<NonNull<sys::rte_mempool>> {
    let (count, cache) = (config.long, LONG_CACHE.min(most_cached(config.long)));
    let create = || {
        // SAFETY: the EAL runs, `name` is a C string, `usual` outlives the new pool, and the cache is no larger than DPDK takes.
        let raw = unsafe {
            sys::dpdk_sys_long_pool_create(name.as_ptr(), count, cache, LONG_DATA_ROOM, usual.as_ptr(), node)
        };
        NonNull::new(raw)
    };
    let (pool, words) = log::captured(create);
    if pool.is_none() {
        let (name, errno) = (&config.name, Errno::last());
        tracing::warn!(pool = name, count, %errno, "no memory for long buffers: super-frames take usual ones {words}");
    }
    pool
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        // Two looks: a thread in the middle of giving buffers back shows them twice for an instant.
        let outside = self.in_use().max(self.in_use());
        if outside > 0 {
            tracing::warn!(pool = self.name, outside, "mempool kept: packets of it are still in use");
            std::mem::forget(self.eal.clone());
            return;
        }
        for pool in self.long.into_iter().chain([self.bounded, self.raw]) {
            // SAFETY: no handle is left, no buffer is outside, and every port that received into it is closed (a
            // port holds a handle until then).
            unsafe { sys::rte_mempool_free(pool.as_ptr()) };
        }
    }
}

/// Names that DPDK knows: of a pool, of its bounded twin, and of the pool of its long buffers.
#[derive(Debug)]
struct Names {
    name: CString,
    twin: CString,
    long: CString,
}

/// Buffers in a thread's cache at most: DPDK flushes a cache at 1.5 times its size, and wants as many buffers in the pool.
fn most_cached(mbufs: u32) -> u32 {
    sys::RTE_MEMPOOL_CACHE_MAX_SIZE.min((u64::from(mbufs) * 2 / 3) as u32)
}

/// The names of a pool whose settings are good.
fn checked_names(config: &MempoolConfig) -> Result<Names, MempoolError> {
    let name = &config.name;
    if !(1..=MAX_NAME).contains(&name.len()) || !name.chars().all(|c| c.is_ascii_graphic()) {
        return Err(MempoolError::Name(cut(name)));
    }
    if config.mbufs == 0 {
        return Err(MempoolError::Empty(name.clone()));
    }
    let max = most_cached(config.mbufs);
    if config.cache > max {
        return Err(MempoolError::Cache {
            name: name.clone(),
            cache: config.cache,
            mbufs: config.mbufs,
            max,
        });
    }
    let min = HEADROOM + MIN_SEGMENT;
    if config.data_room < min {
        return Err(MempoolError::DataRoom { name: name.clone(), data_room: config.data_room, min });
    }
    let text = |name: String| CString::new(name.as_str()).map_err(|_| MempoolError::Name(cut(&name)));
    Ok(Names { name: text(name.clone())?, twin: text(format!("{name}~"))?, long: text(format!("{name}+"))? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_before_dpdk_sees_them() {
        let good = MempoolConfig::default();
        assert!(checked_names(&good).is_ok());
        for name in ["", "a b", "x\0", &"x".repeat(25)] {
            let config = MempoolConfig { name: name.into(), ..good.clone() };
            assert!(matches!(checked_names(&config), Err(MempoolError::Name(_))), "{name:?}");
        }
        let config = MempoolConfig { mbufs: 0, ..good.clone() };
        assert!(matches!(checked_names(&config), Err(MempoolError::Empty(_))));
        let config = MempoolConfig { mbufs: 100, cache: 67, ..good.clone() };
        assert!(matches!(checked_names(&config), Err(MempoolError::Cache { max: 66, .. })));
        let config = MempoolConfig { data_room: 130, ..good };
        assert!(matches!(checked_names(&config), Err(MempoolError::DataRoom { min: 192, .. })));
    }
}
