//! A look into a guest's ring after it took long to give it packets: are its buffers chains of nothing?
//!
//! A descriptor without length holds no byte, and librte_vhost walks over it all the same (`fill_vec_buf_split` of
//! lib/vhost/virtio_net.c): chains of a thousand of them, tried one after the other, are a million steps for a packet, which the
//! worker is held up for and with it all other tenants. Drivers make no such descriptors.

use dpdk_sys as sys;

use super::Device;
use super::setup::{Region, Ring};
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
/// Nothing of it is asked of the library, which may be about to unmap the guest's memory meanwhile: it has a message of the peer
/// checked first (`setup.rs`), for which the peers are locked as they are here, and from then on the memory is nowhere. Who
/// does not get the lock does not wait, and does not look.
///
/// # Safety
/// A peer that does not go meanwhile.
#[cold]
pub(super) unsafe fn has_empty_chains(device: &Device, vid: i32, ring: u16) -> bool {
    let Ok(peers) = device.peers.try_lock() else { return false };
    let Some(peer) = peers.known.iter().find(|peer| peer.vid == vid) else { return false };
    let (setup, packed) = (&peer.setup, device.is_packed());
    let Some(Ring { size, places: Some([descriptors, available]), .. }) = setup.rings.get(&ring).copied()
    else {
        return false;
    };
    let of_monitor = |place: u64, bytes: u64| at(&setup.regions, |region| region.monitor, place, bytes);
    let Some(table) = of_monitor(descriptors, u64::from(size) * DESCRIPTOR as u64) else { return false };
    // SAFETY: so many descriptors are mapped there, and stay while the peers are locked.
    let at = |index: u16| unsafe { Descriptor::at(table, usize::from(index), packed) };
    let mut empty = (0..size).filter(|&index| at(index).is_empty()).count();
    let available = of_monitor(available, 4 + 2 * u64::from(size));
    let (mut next, mut used) = (0, 0);
    // SAFETY: the caller's promise; two valid places. It fails for no ring that is in use.
    unsafe { sys::rte_vhost_get_vring_base(vid, ring, &raw mut next, &raw mut used) };
    // Of a packed ring the highest bit says which round it is in.
    let next = u32::from(if packed { next & 0x7fff } else { next });
    let first = next + (u32::from(size) - 1) * u32::from(NEAR);
    for near in 0..2 * u32::from(NEAR) {
        if empty >= PROOF {
            break;
        }
        let place = ((first + near) % u32::from(size)) as u16;
        let head = match (packed, available) {
            (true, _) => place,
            (false, None) => break,
            // SAFETY: behind flags and index, the numbers of as many buffers as the ring has descriptors are mapped.
            (false, Some(available)) => unsafe {
                available.cast::<u16>().wrapping_add(2 + usize::from(place)).read_unaligned()
            },
        };
        let head = at(head % size);
        if head.flags & INDIRECT != 0 {
            empty += empty_ones_of(&setup.regions, head, size, packed);
        }
    }
    empty >= PROOF
}

/// Where so many bytes are that begin at an address of the guest's, or of its monitor's; `None` when they are not all in a region.
fn at(regions: &[Region], start: fn(&Region) -> u64, address: u64, bytes: u64) -> Option<*const u8> {
    regions.iter().find_map(|region| {
        let at = address.checked_sub(start(region))?;
        (at.checked_add(bytes)? <= region.size).then(|| (region.here + at) as *const u8)
    })
}

/// Descriptors without length in the table that a descriptor is for, in memory that is mapped.
fn empty_ones_of(regions: &[Region], head: Descriptor, size: u16, packed: bool) -> usize {
    let count = (head.length as usize / DESCRIPTOR).min(usize::from(size));
    let table = at(regions, |region| region.guest, head.address, (count * DESCRIPTOR) as u64);
    let is_empty = |table: *const u8, index: usize| {
        // SAFETY: inside a region, which is mapped while the peers are locked.
        unsafe { Descriptor::at(table, index, packed) }.is_empty()
    };
    table.map_or(0, |table| (0..count).filter(|&index| is_empty(table, index)).count())
}

#[cfg(test)]
mod tests {
    use super::super::{Peer, Socket};
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
    fn hostile_vhost_bytes_are_found_in_one_region_or_not_at_all() {
        let region =
            |guest, size| Region { guest, monitor: guest + (1 << 40), here: guest + (1 << 44), size };
        let regions = [region(0, 0x1000), region(u64::MAX - 0xfff - (1 << 44), 0x1000)];
        let guest = |address, bytes| at(&regions, |region| region.guest, address, bytes);
        assert_eq!(guest(0xff0, 16), Some((0xff0 + (1u64 << 44)) as *const u8));
        assert_eq!(guest(0xff0, 17), None);
        assert_eq!(guest(0, u64::MAX), None);
        assert_eq!(guest(u64::MAX, 16), None);
        assert_eq!(at(&regions, |region| region.monitor, 0xff0, 16), None);
        assert_eq!(at(&regions, |region| region.monitor, (1 << 40) + 1, 16), guest(1, 16));
        assert_eq!(at(&[], |region| region.guest, 1, 16), None, "none while they change");
    }

    #[test]
    fn hostile_vhost_memory_that_changes_is_not_looked_into() {
        const SIZE: u16 = 64;
        let socket = Socket { path: c"look".into(), is_server: true, offloads: true };
        let (device, mut peer) = (Device::new(socket, 1), Peer::new(5));
        let mut descriptor = [0; DESCRIPTOR];
        descriptor[12] = NEXT as u8;
        let table = vec![descriptor; usize::from(SIZE)];
        let size = (table.len() * DESCRIPTOR) as u64;
        peer.setup.regions = vec![Region { guest: 0, monitor: 1 << 20, here: table.as_ptr() as u64, size }];
        let ring = Ring { size: SIZE, has_base: true, places: Some([1 << 20, 0]) };
        peer.setup.rings.insert(0, ring);
        device.peers().known.push(peer);
        // SAFETY: a peer that stays.
        let has_empty_chains = |ring| unsafe { has_empty_chains(&device, 5, ring) };
        assert!(has_empty_chains(0) && !has_empty_chains(1));
        // While the library's thread has a message of the peer checked, and from then on.
        let mut peers = device.peers();
        assert!(!has_empty_chains(0));
        peers.known[0].setup.regions.clear();
        drop(peers);
        assert!(!has_empty_chains(0));
    }

    #[test]
    fn a_call_is_long_when_its_bytes_do_not_explain_it() {
        let watch = Stopwatch(rdtsc().wrapping_sub(2 * PATIENCE));
        assert!(watch.is_over(0) && !watch.is_over(u64::from(u32::MAX)) && !Stopwatch::start().is_over(0));
    }
}
