//! [`Moats`]: room of ours behind each mapping of a guest's memory.
//!
//! librte_vhost can be brought to write a whole packet behind the end of a buffer of a guest's that is shorter than a virtio-net header
//! (`csrc/moat.c` of dpdk-sys says how), and so behind the end of its memory. What is written there lands in such a room; the next
//! guest's memory is not behind it.

use std::cell::Cell;
use std::ffi::c_void;

use dpdk_sys as sys;

thread_local! {
    /// The peer for whose message the calling thread digs.
    static FOR: Cell<i32> = const { Cell::new(-1) };
}

/// The rooms behind the regions of one peer's memory.
#[derive(Debug, Default)]
pub(super) struct Moats(Vec<(usize, usize)>);

impl Moats {
    /// What the calling thread maps from now on, as a peer asks, gets one.
    pub fn begin(vid: i32) {
        FOR.set(vid);
        // SAFETY: changes what belongs to the calling thread.
        unsafe { sys::dpdk_sys_moats_begin() };
    }

    /// Those that were made since it began, and for whom; none when it did not. Of a message that failed, nobody is told: then they are
    /// found before the next message of anybody.
    pub fn end() -> (i32, Self) {
        // SAFETY: as above.
        let made = unsafe { sys::dpdk_sys_moats_end() };
        let all = made.start.into_iter().zip(made.length).take(made.count as usize);
        (FOR.replace(-1), Self(all.collect()))
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Keeps others besides.
    pub fn keep(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }
}

impl Drop for Moats {
    fn drop(&mut self) {
        for (start, length) in self.0.drain(..) {
            // SAFETY: memory of ours that was mapped for this, and that nothing but what a guest has written there is in.
            unsafe { libc::munmap(start as *mut c_void, length) };
        }
    }
}
