//! A look into a guest's ring after it took long to give it packets: are its buffers chains of nothing?
//!
//! A descriptor without length holds no byte, and librte_vhost walks over it all the same (`fill_vec_buf_split` of
//! lib/vhost/virtio_net.c): chains of a thousand of them, tried one after the other, are a million steps for a packet, which the
//! worker is held up for and with it all other tenants. Drivers make no such descriptors.

use dpdk_sys as sys;

use super::{MAX_RING, guard};
use crate::clock::rdtsc;

/// Cycles that a call may take before a look is worth it, beside one for each byte that it copied: ten times and more what it takes.
const PATIENCE: u64 = 40_000;
/// Descriptors without length that are proof enough: with fewer of them in each chain, a ring is walked over in some thousand steps.
const PROOF: usize = 16;
/// Available buffers before the next one and behind it whose tables of descriptors are looked at.
const NEAR: u16 = 32;
/// Bytes of a descriptor of either format.
const DESCRIPTOR: usize = 16;
/// Of its flags (VIRTIO 1.2 sections 2.7.5 and 2.8.3).
const NEXT: u16 = 1;
const INDIRECT: u16 = 4;

/// Measures a call in cycles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch(u64);

impl Stopwatch {
    #[inline(always)]
    pub fn start() -> Self {
        Self(rdtsc())
    }

    /// Whether it took longer than copying so many bytes explains.
    #[inline(always)]
    pub fn is_over(self, bytes: u64) -> bool {
        rdtsc().wrapping_sub(self.0) > PATIENCE + bytes
    }
}

/// A descriptor, of a split ring or a packed one.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
}

impl Descriptor {
    /// Reads the one at `index` of a table that the guest may write meanwhile.
    ///
    /// # Safety
    /// `index` is in the table, which is mapped.
    unsafe fn at(table: *const u8, index: usize, packed: bool) -> Self {
        let place = table.wrapping_add(index * DESCRIPTOR).cast::<[u8; DESCRIPTOR]>();
        // SAFETY: the caller's promise; bytes have no alignment.
        let bytes = unsafe { place.read_volatile() };
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, split0, split1, packed0, packed1] = bytes;
        let flags = if packed { [packed0, packed1] } else { [split0, split1] };
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes(flags),
        }
    }

    /// Whether it is part of a chain to which it adds nothing.
    fn is_empty(self) -> bool {
        self.length == 0 && self.flags & NEXT != 0
    }
}

/// Whether a ring has chains of descriptors without length.
///
/// # Safety
/// A peer that does not go meanwhile.
#[cold]
pub(super) unsafe fn has_empty_chains(vid: i32, ring: u16, packed: bool) -> bool {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut vring: sys::rte_vhost_vring = unsafe { std::mem::zeroed() };
    let (mut next, mut used) = (0, 0);
    // SAFETY: the caller's promise; a valid place.
    let is_known = unsafe { sys::rte_vhost_get_vhost_vring(vid, ring, &raw mut vring) } == 0;
    // SAFETY: as above.
    let is_used = unsafe { sys::rte_vhost_get_vring_base(vid, ring, &raw mut next, &raw mut used) } == 0;
    // SAFETY: both formats have one pointer here.
    let table = unsafe { vring.__bindgen_anon_1.desc }.cast::<u8>().cast_const();
    let size = vring.size;
    if !(is_known && is_used) || table.is_null() || size == 0 || u32::from(size) > MAX_RING {
        return false;
    }
    // SAFETY: so many descriptors are mapped there, and stay while the peer does.
    let at = |index: u16| unsafe { Descriptor::at(table, usize::from(index), packed) };
    let mut empty = (0..size).filter(|&index| at(index).is_empty()).count();
    // SAFETY: as above.
    let avail = unsafe { vring.__bindgen_anon_2.avail }.cast::<u16>().cast_const();
    let regions = guard::regions_of(vid);
    // Of a packed ring the highest bit says which round it is in.
    let next = u32::from(if packed { next & 0x7fff } else { next });
    let first = next + (u32::from(size) - 1) * u32::from(NEAR);
    for near in 0..2 * u32::from(NEAR) {
        if empty >= PROOF {
            break;
        }
        let place = ((first + near) % u32::from(size)) as u16;
        let head = match packed {
            true => place,
            false if avail.is_null() => break,
            // SAFETY: behind flags and index, the numbers of as many buffers as the ring has descriptors are mapped.
            false => unsafe { avail.wrapping_add(2 + usize::from(place)).read_unaligned() },
        };
        let head = at(head % size);
        if head.flags & INDIRECT != 0 {
            // SAFETY: the caller's promise.
            empty += unsafe { empty_ones_of(&regions, head, size, packed) };
        }
    }
    empty >= PROOF
}

/// Descriptors without length in the table that a descriptor is for.
///
/// # Safety
/// A peer that does not go meanwhile.
unsafe fn empty_ones_of(
    regions: &[sys::rte_vhost_mem_region],
    head: Descriptor,
    size: u16,
    packed: bool,
) -> usize {
    let count = (head.length as usize / DESCRIPTOR).min(usize::from(size));
    let bytes = (count * DESCRIPTOR) as u64;
    let place = regions.iter().find_map(|region| {
        let at = head.address.checked_sub(region.guest_phys_addr)?;
        (at.checked_add(bytes)? <= region.size).then(|| (region.host_user_addr + at) as *const u8)
    });
    // SAFETY: inside a region, which is mapped while the peer does not go.
    let is_empty =
        |table: *const u8, index: usize| unsafe { Descriptor::at(table, index, packed) }.is_empty();
    place.map_or(0, |table| (0..count).filter(|&index| is_empty(table, index)).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_both_formats_are_read() {
        let mut split = [0u8; 2 * DESCRIPTOR];
        split[DESCRIPTOR..].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 9, 0, 2, 0, 0, 5, 0, 7, 0]);
        // SAFETY: two descriptors.
        let read = |index, packed| unsafe { Descriptor::at(split.as_ptr(), index, packed) };
        let one = read(1, false);
        assert_eq!((one.address, one.length, one.flags), (0x0900_0000_0000_0001, 0x200, NEXT | INDIRECT));
        assert_eq!(read(1, true).flags, 7);
        assert!(!one.is_empty() && !read(0, false).is_empty());
        assert!(Descriptor { length: 0, ..one }.is_empty());
    }

    #[test]
    fn a_call_is_long_when_its_bytes_do_not_explain_it() {
        let watch = Stopwatch(rdtsc().wrapping_sub(2 * PATIENCE));
        assert!(watch.is_over(0) && !watch.is_over(u64::from(u32::MAX)) && !Stopwatch::start().is_over(0));
    }
}
