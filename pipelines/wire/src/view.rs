//! [`View`]: reading a header layout in place, the same way for every protocol.
//!
//! Sits below the protocol files, which hold plain `#[repr(C)]` structs of big-endian fields. It only checks
//! that enough bytes are there: it never judges what they say, and never copies.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A fixed header layout laid over bytes. Implemented for every layout of this crate.
pub trait View: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Sized {
    /// Size of the layout in bytes.
    const LEN: usize = size_of::<Self>();

    /// The header at the start of `bytes` and what follows it; `None` when there are fewer than
    /// [`LEN`](Self::LEN) bytes.
    #[inline(always)]
    fn view(bytes: &[u8]) -> Option<(&Self, &[u8])> {
        Self::ref_from_prefix(bytes).ok()
    }

    /// The header `offset` bytes into `bytes`; `None` when it does not lie wholly in them.
    #[inline(always)]
    fn view_at(bytes: &[u8], offset: usize) -> Option<&Self> {
        Some(Self::view(bytes.get(offset..)?)?.0)
    }

    /// As [`view`](Self::view), to be written to.
    #[inline(always)]
    fn view_mut(bytes: &mut [u8]) -> Option<(&mut Self, &mut [u8])> {
        Self::mut_from_prefix(bytes).ok()
    }

    /// As [`view_at`](Self::view_at), to be written to.
    #[inline(always)]
    fn view_mut_at(bytes: &mut [u8], offset: usize) -> Option<&mut Self> {
        Some(Self::view_mut(bytes.get_mut(offset..)?)?.0)
    }

    /// The header's own bytes.
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned> View for T {}

/// The number in a 24-bit big-endian field.
#[inline(always)]
pub(crate) const fn u24(field: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, field[0], field[1], field[2]])
}

/// The low 24 bits of `value` as a big-endian field.
#[inline(always)]
pub(crate) const fn to_u24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Checks shared by the tests of every layout: bytes survive view, copy and rewrite, and no prefix shorter
/// than the layout is accepted.
#[cfg(test)]
pub(crate) mod check {
    use super::View;
    use std::fmt::Debug;

    pub(crate) fn layout<T: View + Copy + PartialEq + Debug>(sample: &[u8]) -> T {
        assert_eq!(sample.len(), T::LEN, "sample has the length of the layout");
        let (view, rest) = T::view(sample).unwrap();
        assert!(rest.is_empty());
        assert_eq!(view.bytes(), sample);
        for cut in 0..sample.len() {
            assert!(T::view(&sample[..cut]).is_none(), "cut at {cut}");
        }
        let mut longer = vec![0u8; 3];
        longer.extend_from_slice(sample);
        longer.push(0xee);
        assert_eq!(T::view_at(&longer, 3), Some(view));
        assert!(T::view_at(&longer, 5).is_none() && T::view_at(&longer, usize::MAX).is_none());
        let copy = *view;
        longer[3..3 + T::LEN].fill(0);
        *T::view_mut_at(&mut longer, 3).unwrap() = copy;
        assert_eq!(&longer[3..3 + T::LEN], sample);
        assert_eq!(longer.last(), Some(&0xee));
        copy
    }
}
