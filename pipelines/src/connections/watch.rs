//! What flows in the NFT rest on, as a packet that hits sees it: two bytes of a dense array.

use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use zerocopy::FromZeros;

/// What a flow's entry in the NFT rests on; where that changed, the flow is decided again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub struct Watch {
    /// The place of a version in the table's: of a connection, or of a vNIC whose rules refused the flow; 0: nothing.
    pub(super) of: u32,
    pub(super) version: u16,
}

impl Watch {
    /// Nothing.
    pub const NONE: Self = Self { of: 0, version: 0 };

    /// True for a flow that security groups have nothing to do with.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.of == 0
    }

    /// Its parts, for an entry to keep.
    #[inline(always)]
    pub const fn parts(self) -> (u32, u16) {
        (self.of, self.version)
    }

    /// From its [`parts`](Self::parts).
    #[inline(always)]
    pub const fn from_parts((of, version): (u32, u16)) -> Self {
        Self { of, version }
    }
}

/// The versions that flows rest on, by place.
#[derive(Clone, Copy, Debug)]
pub struct Versions<'a>(pub(super) &'a [AtomicU16]);

impl Versions<'_> {
    /// True while a flow may go on resting on what it rests on.
    #[inline(always)]
    pub fn holds(self, watch: Watch) -> bool {
        self.0.get(watch.of as usize).is_some_and(|now| now.load(Relaxed) == watch.version)
    }
}
