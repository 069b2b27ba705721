//! A look at what librte_vhost is about to walk over in a guest's ring to give it packets: are its buffers chains of nothing?
//!
//! A descriptor without length holds no byte, and librte_vhost walks over it all the same, wherever it is: in a chain of a split ring
//! (`fill_vec_buf_split` of lib/vhost/virtio_net.c), in one of a packed ring or in a table, of which that walks over all whatever their flags
//! say (`fill_vec_buf_packed_indirect`). Chains of a thousand of them, tried one after the other, are a million steps for a
//! packet, which the worker is held up for and with it all other tenants. Drivers make no such descriptors.
//!
//! What a packed ring held, it does not tell once it was used, and a guest writes what it likes while the library walks. So nobody looks back:
//! a ring that is not trusted is looked at before each call, in which the library would walk over what is there then. It is walked over
//! here in the same order, as far as the packets need it, which is a few descriptors of a sound guest, and less than a tenth of what
//! sending takes.

use dpdk_sys as sys;

use super::Device;
use super::setup::{Region, Ring};
use crate::clock::rdtsc;

/// Cycles that a call may take before it is held against the ring, beside one for each byte that it copied: ten times and more what it takes.
const PATIENCE: u64 = 40_000;
/// Calls of a new peer that are looked at before.
const SUSPICION: u32 = 1 << 16;
/// Descriptors without length that are proof enough: with fewer of them, a ring is walked over in some thousand steps.
const PROOF: usize = 16;
/// Parts of a packet that the library can write to at most (`BUF_VECTOR_MAX`): it gives up behind so many descriptors with a length.
const PARTS: usize = 256;
/// Bytes in front of a packet (`struct virtio_net_hdr_mrg_rxbuf`).
const HEADER: u64 = 12;
/// Bytes of a descriptor of either format.
const DESCRIPTOR: usize = 16;
/// Of its flags (VIRTIO 1.2 sections 2.7.5 and 2.8.1).
const NEXT: u16 = 1;
const INDIRECT: u16 = 4;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

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

/// Whether a ring is to be looked at before it is sent to: that of a new peer is, and one that took long. Each time it did, it is looked at
/// twice as often; a guest gains nothing by behaving in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    calls: u32,
    penalty: u32,
    /// As of the device when it was renewed.
    generation: u32,
}

impl Default for Suspicion {
    fn default() -> Self {
        Self { calls: SUSPICION, penalty: SUSPICION, generation: 0 }
    }
}

impl Suspicion {
    #[inline(always)]
    pub fn is_there(self) -> bool {
        self.calls > 0
    }

    /// As it is with the peer and the rings of a generation of the device.
    #[inline(always)]
    pub fn of(self, generation: u32) -> Self {
        if generation == self.generation {
            return self;
        }
        Self { calls: self.calls.max(SUSPICION), generation, ..self }
    }

    /// Behind a call that took long.
    pub fn raised(self) -> Self {
        let penalty = self.penalty.saturating_mul(2);
        Self { calls: penalty, penalty, ..self }
    }

    /// What is left behind a look. One at a ring without buffers is none.
    pub fn after(self, seen: Seen) -> Self {
        match seen {
            Seen::Sound => Self { calls: self.calls.saturating_sub(1), ..self },
            Seen::Nothing | Seen::Empty => self,
        }
    }
}

/// What a look saw of what the library would walk over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// There is nothing, or nobody could look.
    Nothing,
    Sound,
    /// Descriptors without length.
    Empty,
}

/// A descriptor, of a split ring or a packed one.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    length: u32,
    flags: u16,
    /// Of a split ring.
    next: u16,
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
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, first0, first1, second0, second1] = bytes;
        let (first, second) = (u16::from_le_bytes([first0, first1]), u16::from_le_bytes([second0, second1]));
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: if packed { second } else { first },
            next: if packed { first } else { second },
        }
    }

    /// Whether it is available, in this round of a packed ring.
    fn is_available(self, wrap: bool) -> bool {
        (self.flags & AVAILABLE != 0) == wrap && (self.flags & USED != 0) != wrap
    }
}

/// The descriptors of a ring or of a table, all of which are mapped.
#[derive(Clone, Copy)]
struct Table {
    start: *const u8,
    count: u16,
    packed: bool,
}

impl Table {
    fn get(self, index: u16) -> Option<Descriptor> {
        // SAFETY: inside of what is mapped while the peers are locked.
        (index < self.count).then(|| unsafe { Descriptor::at(self.start, usize::from(index), self.packed) })
    }
}

/// A walk over buffers as the library does it, until it has seen enough.
struct Walk<'a> {
    regions: &'a [Region],
    ring: Table,
    /// Descriptors without length.
    empty: usize,
    /// Others that the library would still write to.
    parts: usize,
}

impl Walk<'_> {
    /// The bytes of one descriptor; `None` when it goes no further.
    fn note(&mut self, of: Descriptor) -> Option<u64> {
        if of.length == 0 {
            self.empty += 1;
        } else {
            self.parts = self.parts.checked_sub(1)?;
        }
        (self.empty < PROOF).then_some(of.length.into())
    }

    /// The table that a descriptor is for, of so many at most.
    fn table(&self, head: Descriptor, most: u16) -> Option<Table> {
        let count = u16::try_from(head.length as usize / DESCRIPTOR).ok().filter(|&count| count <= most)?;
        let bytes = u64::from(count) * DESCRIPTOR as u64;
        let start = at(self.regions, |region| region.guest, head.address, bytes)?;
        Some(Table { start, count, ..self.ring })
    }

    /// The bytes of a chain of a split ring.
    fn split(&mut self, head: u16) -> Option<u64> {
        let first = self.ring.get(head)?;
        let (table, mut index) = match first.flags & INDIRECT {
            0 => (self.ring, head),
            _ => (self.table(first, self.ring.count)?, 0),
        };
        let mut bytes = 0;
        for _ in 0..table.count {
            let descriptor = table.get(index)?;
            bytes += self.note(descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Some(bytes);
            }
            index = descriptor.next;
        }
        None
    }

    /// The bytes of a chain of a packed ring, and the descriptors of the ring that it takes.
    fn packed(&mut self, head: u16) -> Option<(u64, u16)> {
        let (mut bytes, mut index) = (0, head);
        for places in 1..=self.ring.count {
            let descriptor = self.ring.get(index)?;
            if descriptor.flags & INDIRECT != 0 {
                let table = self.table(descriptor, self.ring.count - 1)?;
                for index in 0..table.count {
                    bytes += self.note(table.get(index)?)?;
                }
                // It may be of none.
                self.parts = self.parts.checked_sub(1)?;
            } else {
                bytes += self.note(descriptor)?;
            }
            if descriptor.flags & NEXT == 0 {
                return Some((bytes, places));
            }
            index = if index + 1 < self.ring.count { index + 1 } else { 0 };
        }
        None
    }
}

/// Looks at what the library would walk over in a ring for so many packets of so many bytes in all.
///
/// Nothing of it is asked of the library, which may be about to unmap the guest's memory meanwhile: it has a message of the peer
/// checked first (`setup.rs`), for which the peers are locked as they are here, and from then on the memory is nowhere. Who
/// does not get the lock does not wait, and does not look.
///
/// # Safety
/// A peer that does not go meanwhile.
#[cold]
pub(super) unsafe fn look(device: &Device, vid: i32, ring: u16, packets: usize, bytes: u64) -> Seen {
    let (mut next, mut used) = (0, 0);
    // SAFETY: the caller's promise; two valid places. It fails for no ring that is in use.
    unsafe { sys::rte_vhost_get_vring_base(vid, ring, &raw mut next, &raw mut used) };
    look_from(device, vid, ring, next, packets, bytes)
}

/// As [`look`], from a place on that the library calls its next one.
fn look_from(device: &Device, vid: i32, ring: u16, next: u16, packets: usize, bytes: u64) -> Seen {
    let Ok(peers) = device.peers.try_lock() else { return Seen::Nothing };
    let Some(peer) = peers.known.iter().find(|peer| peer.vid == vid) else { return Seen::Nothing };
    let (setup, packed) = (&peer.setup, device.is_packed());
    let Some(Ring { size, places: Some([descriptors, available]), .. }) = setup.rings.get(&ring).copied()
    else {
        return Seen::Nothing;
    };
    let of_monitor = |place: u64, bytes: u64| at(&setup.regions, |region| region.monitor, place, bytes);
    let Some(start) = of_monitor(descriptors, u64::from(size) * DESCRIPTOR as u64) else {
        return Seen::Nothing;
    };
    let ring = Table { start, count: size, packed };
    let mut walk = Walk { regions: &setup.regions, ring, empty: 0, parts: packets * PARTS };
    let mut needed = bytes + packets as u64 * HEADER;
    let is_there = if packed {
        let (mut place, mut wrap) = (next & 0x7fff, next & 0x8000 != 0);
        let first = ring.get(place).is_some_and(|descriptor| descriptor.is_available(wrap));
        while needed > 0 && ring.get(place).is_some_and(|descriptor| descriptor.is_available(wrap)) {
            let Some((bytes, places)) = walk.packed(place) else { break };
            needed = needed.saturating_sub(bytes);
            place += places;
            if place >= size {
                place -= size;
                wrap = !wrap;
            }
        }
        first
    } else {
        let Some(available) = of_monitor(available, 4 + 2 * u64::from(size)) else { return Seen::Nothing };
        // SAFETY: flags, the index, and the numbers of as many buffers as the ring has descriptors are mapped; a ring has a size.
        let word = |at: u16| unsafe { available.cast::<u16>().wrapping_add(at.into()).read_unaligned() };
        let count = word(1).wrapping_sub(next);
        for number in 0..count {
            let place = next.wrapping_add(number) % size;
            let Some(bytes) = walk.split(word(2 + place)) else { break };
            needed = needed.saturating_sub(bytes);
            if needed == 0 {
                break;
            }
        }
        count > 0
    };
    match walk.empty {
        PROOF.. => Seen::Empty,
        _ if is_there => Seen::Sound,
        _ => Seen::Nothing,
    }
}

/// Where so many bytes are that begin at an address of the guest's, or of its monitor's; `None` when they are not all in a region.
fn at(regions: &[Region], start: fn(&Region) -> u64, address: u64, bytes: u64) -> Option<*const u8> {
    regions.iter().find_map(|region| {
        let at = address.checked_sub(start(region))?;
        (at.checked_add(bytes)? <= region.size).then(|| (region.here + at) as *const u8)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::{Peer, Socket, feature};
    use super::*;

    #[test]
    fn descriptors_of_both_formats_are_read() {
        let mut split = [0u8; 2 * DESCRIPTOR];
        split[DESCRIPTOR..].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 9, 0, 2, 0, 0, 5, 0, 7, 0]);
        // SAFETY: two descriptors.
        let read = |index, packed| unsafe { Descriptor::at(split.as_ptr(), index, packed) };
        let one = read(1, false);
        assert_eq!((one.address, one.length), (0x0900_0000_0000_0001, 0x200));
        assert_eq!((one.flags, one.next), (NEXT | INDIRECT, 7));
        assert_eq!((read(1, true).flags, read(1, true).next), (7, NEXT | INDIRECT));
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

    /// The bytes of a descriptor.
    fn bytes(packed: bool, address: u64, length: u32, flags: u16, next: u16) -> [u8; DESCRIPTOR] {
        let [first, second] = if packed { [next, flags] } else { [flags, next] };
        let mut bytes = [0; DESCRIPTOR];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&first.to_le_bytes());
        bytes[14..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    const SIZE: u16 = 64;
    /// Where the memory of a guest is, for its monitor.
    const MONITOR: u64 = 1 << 20;
    /// Where its available ring is, and a table, for itself.
    const HEADS: usize = 0x1000;
    const FAR: usize = 0x2000;

    /// A guest with these descriptors in a ring, of which each is a buffer, and a table of others elsewhere.
    fn guest(packed: bool, ring: &[[u8; DESCRIPTOR]], table: &[[u8; DESCRIPTOR]]) -> (Device, Vec<u8>) {
        let socket = Socket { path: c"look".into(), is_server: true, offloads: true };
        let (device, mut peer) = (Device::new(socket, 1), Peer::new(5));
        let mut memory = vec![0; 0x4000];
        memory[..ring.len() * DESCRIPTOR].copy_from_slice(ring.as_flattened());
        memory[FAR..FAR + table.len() * DESCRIPTOR].copy_from_slice(table.as_flattened());
        for (number, place) in memory[HEADS + 4..].as_chunks_mut().0.iter_mut().zip(0..SIZE) {
            *number = place.to_le_bytes();
        }
        memory[HEADS + 2..HEADS + 4].copy_from_slice(&(ring.len() as u16).to_le_bytes());
        let size = memory.len() as u64;
        peer.setup.regions = vec![Region { guest: 0, monitor: MONITOR, here: memory.as_ptr() as u64, size }];
        let ring = Ring { size: SIZE, has_base: true, places: Some([MONITOR, MONITOR + HEADS as u64]) };
        peer.setup.rings.insert(0, ring);
        device.peers().known.push(peer);
        device.features.store(if packed { feature::RING_PACKED } else { 0 }, Ordering::Relaxed);
        (device, memory)
    }

    /// What is seen of one for packets of 1,500 bytes, where the first descriptor is the next one.
    fn seen(packed: bool, ring: &[[u8; DESCRIPTOR]], table: &[[u8; DESCRIPTOR]]) -> Seen {
        let (device, _memory) = guest(packed, ring, table);
        look_from(&device, 5, 0, if packed { 0x8000 } else { 0 }, 8, 8 * 1500)
    }

    #[test]
    fn hostile_vhost_what_the_library_would_walk_over_is_walked_over() {
        for packed in [false, true] {
            let ready = if packed { AVAILABLE } else { 0 };
            let whole = bytes(packed, 0, 2048, ready, 0);
            let short = bytes(packed, 0, 1, ready, 0);
            let empty = bytes(packed, 0, 0, ready, 0);
            let nothing = |flags| [bytes(packed, 0, 0, flags, 0); PROOF];
            let table = |flags| bytes(packed, FAR as u64, (16 * PROOF) as u32, INDIRECT | ready | flags, 0);
            let loops = [bytes(packed, 0, 0, NEXT, 0); SIZE as usize];
            assert_eq!(seen(packed, &[], &[]), Seen::Nothing);
            assert_eq!(seen(packed, &[whole; 4], &[]), Seen::Sound);
            assert_eq!(seen(packed, &[whole; SIZE as usize], &nothing(0)), Seen::Sound);
            assert_eq!(seen(packed, &[empty; PROOF - 1], &[]), Seen::Sound);
            assert_eq!(seen(packed, &[empty; PROOF], &[]), Seen::Empty);
            // Whatever the flags of a packed ring's table say, and wherever it is.
            let far = [&[short; 50][..], &[table(0); 4]].concat();
            assert_eq!(seen(packed, &far, &nothing(NEXT)), Seen::Empty);
            assert_eq!(seen(packed, &far, &nothing(0)), if packed { Seen::Empty } else { Seen::Sound });
            assert_eq!(seen(packed, &[table(NEXT); 1], &loops), Seen::Empty);
            // The packets do not need what is behind so much.
            assert_eq!(
                seen(packed, &[&[whole; 8][..], &[table(0); 4]].concat(), &nothing(NEXT)),
                Seen::Sound
            );
            let nowhere = bytes(packed, 1 << 40, 1024, INDIRECT | ready, 0);
            assert_eq!(seen(packed, &[nowhere; 40], &[]), Seen::Sound);
            let long = bytes(packed, 0, u32::MAX, INDIRECT | ready, 0);
            assert_eq!(seen(packed, &[long; 40], &[]), Seen::Sound);
        }
    }

    #[test]
    fn hostile_vhost_places_that_run_wild_are_not_followed() {
        for packed in [false, true] {
            let (device, _memory) = guest(packed, &[bytes(packed, 0, 0, NEXT, u16::MAX); 8], &[]);
            for next in [63, 64, 0x7fff, 0x8000, 0x803f, 0xffff] {
                assert_ne!(look_from(&device, 5, 0, next, 8, 12_000), Seen::Empty, "{next:#x}");
            }
        }
    }

    #[test]
    fn hostile_vhost_memory_that_changes_is_not_looked_into() {
        let (device, _memory) = guest(false, &[bytes(false, 0, 0, 0, 0); PROOF], &[]);
        let seen = |ring| look_from(&device, 5, ring, 0, 1, 64);
        assert_eq!([seen(0), seen(1)], [Seen::Empty, Seen::Nothing]);
        // While the library's thread has a message of the peer checked, and from then on.
        let mut peers = device.peers();
        assert_eq!(seen(0), Seen::Nothing);
        peers.known[0].setup.regions.clear();
        drop(peers);
        assert_eq!(seen(0), Seen::Nothing);
    }

    #[test]
    fn suspicion_ends_behind_so_many_sound_calls() {
        let lasts = |mut suspicion: Suspicion| {
            let sound = (0..).take_while(|_| {
                let is_there = suspicion.is_there();
                suspicion = suspicion.after(Seen::Nothing).after(Seen::Sound);
                is_there
            });
            (sound.count() as u32, suspicion)
        };
        let (calls, over) = lasts(Suspicion::default());
        assert_eq!(calls, SUSPICION);
        assert!(!over.of(0).is_there());
        assert_eq!(lasts(over.of(1)).0, SUSPICION, "another peer");
        assert_eq!(lasts(over.raised()).0, 2 * SUSPICION);
        assert_eq!(lasts(over.raised().raised().of(1)).0, 4 * SUSPICION);
    }

    #[test]
    fn a_call_is_long_when_its_bytes_do_not_explain_it() {
        let watch = Stopwatch(rdtsc().wrapping_sub(2 * PATIENCE));
        assert!(watch.is_over(0) && !watch.is_over(u64::from(u32::MAX)) && !Stopwatch::start().is_over(0));
    }
}
