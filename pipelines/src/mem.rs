//! Memory for the fast path: prefetch hints and zeroed, cache-line and huge-page aligned slabs.
//!
//! The only file of this crate with unsafe code. A [`Slab`] is allocated once, at its final size, and its pages
//! are not touched by the allocation: whoever builds a table may first give the operating system an advice on
//! the address range (`Slab::range`), huge pages for one.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use zerocopy::FromZeros;

/// Size of a huge page; slabs of at least this size are aligned to it.
pub const HUGE_PAGE: usize = 2 << 20;

/// Hints the CPU to load the cache line that holds `value`.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetch never faults and the address comes from a live reference.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            std::ptr::from_ref(value).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// A fixed-size array of `T`, zeroed, aligned to `T` and, from [`HUGE_PAGE`] bytes on, to huge pages.
pub struct Slab<T> {
    items: NonNull<T>,
    len: usize,
}

// SAFETY: a Slab owns its items like a Box<[T]> does.
unsafe impl<T: Send> Send for Slab<T> {}
// SAFETY: as above; shared access hands out &T only.
unsafe impl<T: Sync> Sync for Slab<T> {}

impl<T: FromZeros> Slab<T> {
    /// A slab of `len` zeroed items.
    pub fn zeroed(len: usize) -> Self {
        let layout = layout::<T>(len);
        if layout.size() == 0 {
            return Self { items: NonNull::dangling(), len };
        }
        // SAFETY: the layout has a size above zero.
        let raw = unsafe { alloc_zeroed(layout) };
        match NonNull::new(raw.cast::<T>()) {
            Some(items) => Self { items, len },
            None => handle_alloc_error(layout),
        }
    }
}

impl<T> Slab<T> {
    /// Address and length in bytes of the slab, for advice to the operating system.
    pub fn range(&self) -> (usize, usize) {
        (self.items.as_ptr() as usize, layout::<T>(self.len).size())
    }
}

fn layout<T>(len: usize) -> Layout {
    let size = len.saturating_mul(size_of::<T>());
    let align = if size >= HUGE_PAGE { HUGE_PAGE.max(align_of::<T>()) } else { align_of::<T>() };
    Layout::from_size_align(size, align).unwrap_or_else(|_| handle_alloc_error(Layout::new::<T>()))
}

impl<T> Deref for Slab<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `items` points to `len` initialised items (zeroed, and T: FromZeros) that live as long as self.
        unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Slab<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.items.as_ptr(), self.len) }
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        let layout = layout::<T>(self.len);
        if std::mem::needs_drop::<T>() {
            for item in self.iter_mut() {
                // SAFETY: each item is initialised and dropped once; the memory is released right after.
                unsafe { std::ptr::drop_in_place(item) };
            }
        }
        if layout.size() > 0 {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.items.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_zeroed_and_aligned() {
        let mut small: Slab<u64> = Slab::zeroed(3);
        small[2] = 7;
        assert_eq!(&small[..], [0, 0, 7]);
        let large: Slab<[u64; 16]> = Slab::zeroed(HUGE_PAGE / 64);
        assert_eq!(large.range().0 % HUGE_PAGE, 0);
        assert!(large.iter().all(|item| item == &[0; 16]));
        assert!(Slab::<u64>::zeroed(0).is_empty());
    }
}
