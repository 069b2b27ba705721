//! Memory for the fast path: prefetch hints, words compared at once, and zeroed slabs, on cache lines of their own, large
//! ones on huge pages.
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

/// A slab shares no block of so many bytes with anything else: two cache lines, which processors fetch together. What
/// one worker writes is never beside what another does.
const BLOCK: usize = 128;

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

/// Which of eight words have a value: bit `2n` for word `n`.
#[inline(always)]
pub(crate) fn equal_lanes(words: [u16; 8], value: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        equal_lanes_sse2(words, value)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        words.iter().rev().fold(0, |bits, &word| bits << 2 | u32::from(word == value))
    }
}

/// Five instructions; from a loop over the words compilers make six times as many.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
#[inline]
fn equal_lanes_sse2(words: [u16; 8], value: u16) -> u32 {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_set1_epi16};
    let words: __m128i = zerocopy::transmute!(words);
    _mm_movemask_epi8(_mm_cmpeq_epi16(words, _mm_set1_epi16(value as i16))) as u32 & 0x5555
}

/// A fixed-size array of `T`, zeroed, aligned to two cache lines and, from [`HUGE_PAGE`] bytes on, to huge pages.
pub struct Slab<T> {
    items: NonNull<T>,
    len: usize,
    /// What the allocator gave; the items begin at the first aligned place in it.
    block: NonNull<u8>,
}

// SAFETY: a Slab owns its items like a Box<[T]> does.
unsafe impl<T: Send> Send for Slab<T> {}
// SAFETY: as above; shared access hands out &T only.
unsafe impl<T: Sync> Sync for Slab<T> {}

impl<T: FromZeros> Slab<T> {
    /// A slab of `len` zeroed items. `advise` is told address and length in bytes; then every page is touched: memory
    /// that packets use is there before the first of them.
    pub fn zeroed(len: usize, advise: &dyn Fn(usize, usize)) -> Self {
        const PAGE: usize = 4096;
        let Some((block, align)) = layout::<T>(len) else {
            return Self { items: NonNull::dangling(), len, block: NonNull::dangling() };
        };
        // SAFETY: the layout has a size above zero.
        let raw = unsafe { alloc_zeroed(block) };
        let Some(raw) = NonNull::new(raw) else { handle_alloc_error(block) };
        let offset = raw.as_ptr().align_offset(align);
        // SAFETY: the block is longer than the items by `align`, so the first aligned place is inside of it.
        let items = unsafe { raw.add(offset) };
        let bytes = Self::bytes(len);
        advise(items.as_ptr() as usize, bytes);
        for at in (0..bytes).step_by(PAGE) {
            // SAFETY: `at` is less than the bytes of the items, which are nobody else's yet and all zero.
            unsafe { items.as_ptr().wrapping_add(at).write_volatile(0) };
        }
        Self { items: items.cast(), len, block: raw }
    }
}

impl<T> Slab<T> {
    /// Bytes of the items of a slab.
    pub const fn bytes(len: usize) -> usize {
        len.saturating_mul(size_of::<T>())
    }
}

/// What is asked of the allocator for `len` items, and the alignment that they get; `None` for no bytes at all.
///
/// The alignment is made room for rather than asked for: for one beyond a word's the standard library's allocator
/// would write the zeros itself, and touch every page before the advice.
fn layout<T>(len: usize) -> Option<(Layout, usize)> {
    let size = Slab::<T>::bytes(len);
    let align = if size >= HUGE_PAGE { HUGE_PAGE } else { BLOCK }.max(align_of::<T>());
    let padded =
        size.checked_next_multiple_of(BLOCK).unwrap_or(size).saturating_add(align).min(isize::MAX as usize);
    let block = Layout::from_size_align(padded, 1).unwrap_or_else(|_| handle_alloc_error(Layout::new::<T>()));
    (size > 0).then_some((block, align))
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
        if std::mem::needs_drop::<T>() {
            for item in self.iter_mut() {
                // SAFETY: each item is initialised and dropped once; the memory is released right after.
                unsafe { std::ptr::drop_in_place(item) };
            }
        }
        if let Some((block, _)) = layout::<T>(self.len) {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.block.as_ptr(), block) };
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn equal_lanes_are_those_that_are_equal() {
        for pattern in 0..256u32 {
            let words =
                std::array::from_fn(|n| if pattern >> n & 1 != 0 { 0x8001 } else { 0x8000 + 2 * n as u16 });
            let found = super::equal_lanes(words, 0x8001);
            assert_eq!(
                found,
                (0..8).filter(|n| pattern >> n & 1 != 0).fold(0, |bits, n| bits | 1 << (2 * n))
            );
        }
    }

    use super::*;

    /// Pages of this process that are in memory, of 4096 bytes (proc(5), statm).
    #[cfg(target_os = "linux")]
    fn resident_pages() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pages_are_touched_after_the_advice() {
        let before = resident_pages();
        let slab: Slab<[u64; 16]> = Slab::zeroed(256 << 20 >> 7, &|_, len| {
            assert_eq!(len, 256 << 20);
            let made = resident_pages() - before;
            assert!(made < 1024, "{made} pages of {} before the advice", len / 4096);
        });
        assert!(resident_pages() - before > 60_000);
        assert!(slab.iter().all(|item| *item == [0; 16]));
    }

    #[test]
    fn slabs_are_zeroed_and_aligned() {
        let told = std::cell::Cell::new((0, 0));
        let advise = |start: usize, len| told.set((start % HUGE_PAGE, len));
        let mut small: Slab<u64> = Slab::zeroed(3, &advise);
        small[2] = 7;
        assert_eq!(&small[..], [0, 0, 7]);
        let large: Slab<[u64; 16]> = Slab::zeroed(HUGE_PAGE / 64, &advise);
        assert_eq!(told.get(), (0, 2 * HUGE_PAGE));
        assert!(large.iter().all(|item| item == &[0; 16]));
        assert!(Slab::<u64>::zeroed(0, &advise).is_empty());
        assert_eq!(small.as_ptr() as usize % BLOCK, 0);
        let odd: Slab<[u8; 3]> = Slab::zeroed(HUGE_PAGE, &advise);
        assert_eq!((told.get(), odd[HUGE_PAGE - 1]), ((0, 3 * HUGE_PAGE), [0; 3]));
    }
}
