//! VLT, the VxLAN location table: a slab of versioned slots, written by control, read by every worker.
//!
//! A slot says where a destination is: on this host (a vNIC) or behind a VTEP, then with the ready outer header but for its
//! MAC addresses, which the slot's [next-hop group](crate::next_hop) has.
//! Control updates a slot in place under a sequence lock, so moving a VM is one write and flows follow on their
//! next packet; workers never wait for long (a write is a dozen stores) and take no lock. IPv4 headers, VLAN tag
//! included, fit one cache line together with the slot's control word.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::next_hop::{BUCKETS, NextHops, ResolvedHop};

/// Bytes of a header template: Ethernet 14, VLAN 4, IPv6 40, UDP 8, VxLAN 8, rounded up to words.
pub const TEMPLATE_BYTES: usize = WORDS * 8;
const WORDS: usize = 10;

/// Where a destination is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the slot is free.
    Empty,
    /// A vNIC of this host.
    Local {
        /// Index of the vNIC.
        vnic: u32,
    },
    /// Behind a VTEP.
    Remote(Tunnel),
}

impl Place {
    /// The number of the VTEP, 0 without one.
    const fn vtep(&self) -> u32 {
        match self {
            Self::Remote(tunnel) => tunnel.vtep,
            Self::Empty | Self::Local { .. } => 0,
        }
    }
}

/// The way to a VTEP: the outer header up to and including VxLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Index of its next-hop group; 0 while there is none.
    pub group: u16,
    /// Length of the header in bytes.
    pub len: u8,
    /// Number of the VTEP.
    pub vtep: u32,
    /// The header, with zero MAC addresses, lengths, source port and checksums; rest zero.
    pub header: [u8; TEMPLATE_BYTES],
}

/// A slot's index and the generation it has now. The generation changes when the slot is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotRef {
    /// Index in the table.
    pub slot: u32,
    /// Counts up when the slot is freed; a decision with another one is stale.
    pub generation: u16,
}

/// One slot: control word, then the header. 16 words so that slots do not share cache lines.
#[repr(C, align(64))]
struct VltSlot {
    /// sequence (16) | generation (16) | kind (8) | length (8) | next-hop group (16)
    control: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Bytes of an untagged IPv4 header.
const V4_LEN: u8 = 50;

const KIND_EMPTY: u8 = 0;
const KIND_LOCAL: u8 = 1;
const KIND_REMOTE: u8 = 2;

#[inline(always)]
const fn pack(sequence: u16, generation: u16, kind: u8, len: u8, group: u16) -> u64 {
    (sequence as u64) << 48
        | (generation as u64) << 32
        | (kind as u64) << 24
        | (len as u64) << 16
        | group as u64
}

/// The shared table. Readers use [`Vlt::read`]; [`VltWriter`] changes it.
pub struct Vlt {
    slots: Box<[VltSlot]>,
    /// Number of the VTEP behind which the destination is, or 0; beside the slots, because every packet out of a tunnel
    /// reads that of its source and nothing else of it.
    vteps: Box<[AtomicU32]>,
    next_hops: NextHops,
}

/// What nearly every packet needs of a slot, small enough to stay in registers.
#[derive(Clone, Copy)]
pub enum Hot<'a> {
    /// A vNIC of this host.
    Local {
        /// Index of the vNIC.
        vnic: u32,
    },
    /// Behind a VTEP over untagged IPv4.
    Tunnel4(Header4<'a>),
    /// Anything else: [`Vlt::read`] tells. Also a slot of another generation, or one that is being written.
    Other,
}

/// The way through a tunnel over untagged IPv4, not yet read.
#[derive(Clone, Copy)]
pub struct Header4<'a> {
    slot: &'a VltSlot,
    control: u64,
}

impl Header4<'_> {
    /// Index of the next-hop group.
    #[inline(always)]
    pub const fn group(&self) -> u16 {
        self.control as u16
    }

    /// The n-th word of the header, of seven, its bytes in memory order. It counts only if the header
    /// [`is_still`](Self::is_still) there afterwards.
    #[inline(always)]
    pub fn word(&self, n: usize) -> u64 {
        self.slot.words[n].load(Ordering::Relaxed)
    }

    /// True when the slot was not written since it was found.
    #[inline(always)]
    pub fn is_still(&self) -> bool {
        fence(Ordering::Acquire);
        self.slot.control.load(Ordering::Relaxed) == self.control
    }
}

/// What a worker reads of a slot.
#[derive(Clone, Copy)]
pub struct VltReading {
    /// Generation of the slot.
    pub generation: u16,
    /// Where the destination is.
    pub place: Place,
}

impl Vlt {
    /// A table of `slots` free slots and the one handle that may change it.
    pub fn new(slots: u32) -> (std::sync::Arc<Self>, VltWriter) {
        let table = std::sync::Arc::new(Self {
            slots: (0..slots)
                .map(|_| VltSlot { control: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] })
                .collect(),
            vteps: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            next_hops: NextHops::new(slots),
        });
        let writer = VltWriter { table: table.clone(), free: (0..slots).collect() };
        (table, writer)
    }

    /// The next-hop groups that slots refer to.
    #[inline(always)]
    pub const fn next_hops(&self) -> &NextHops {
        &self.next_hops
    }

    /// Hints the CPU to load a slot.
    #[inline(always)]
    pub fn prefetch(&self, slot: u32) {
        if let Some(slot) = self.slots.get(slot as usize) {
            crate::mem::prefetch(slot);
        }
    }

    /// The number of the VTEP behind which a slot's destination is; 0 for a vNIC of this host, a free slot, and past the
    /// end.
    #[inline(always)]
    pub fn vtep_of(&self, slot: u32) -> u32 {
        self.vteps.get(slot as usize).map_or(0, |vtep| vtep.load(Ordering::Relaxed))
    }

    /// Hints the CPU to load what [`vtep_of`](Self::vtep_of) reads.
    #[inline(always)]
    pub fn prefetch_vtep(&self, slot: u32) {
        if let Some(vtep) = self.vteps.get(slot as usize) {
            crate::mem::prefetch(vtep);
        }
    }

    /// A consistent reading of a slot. An index past the end reads as empty.
    #[inline(always)]
    pub fn read(&self, index: u32) -> VltReading {
        let Some(slot) = self.slots.get(index as usize) else {
            return VltReading { generation: 0, place: Place::Empty };
        };
        loop {
            let control = slot.control.load(Ordering::Acquire);
            if control >> 48 & 1 != 0 {
                std::hint::spin_loop();
                continue;
            }
            let (kind, len, group) = ((control >> 24) as u8, (control >> 16) as u8, control as u16);
            let place = match kind {
                KIND_REMOTE => {
                    let mut header = [0u8; TEMPLATE_BYTES];
                    let used = usize::from(len).div_ceil(8).min(WORDS);
                    for (bytes, word) in header.chunks_exact_mut(8).zip(&slot.words[..used]) {
                        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                    }
                    Place::Remote(Tunnel { group, len, vtep: self.vtep_of(index), header })
                }
                KIND_LOCAL => Place::Local { vnic: slot.words[0].load(Ordering::Relaxed) as u32 },
                _ => Place::Empty,
            };
            fence(Ordering::Acquire);
            if slot.control.load(Ordering::Relaxed) == control {
                return VltReading { generation: (control >> 32) as u16, place };
            }
        }
    }

    /// The quick reading of a slot that a flow of that generation points to.
    #[inline(always)]
    pub fn read_hot(&self, slot: u32, generation: u16) -> Hot<'_> {
        let Some(slot) = self.slots.get(slot as usize) else { return Hot::Other };
        let control = slot.control.load(Ordering::Acquire);
        // An odd sequence: it is being written.
        const WRITTEN: u64 = pack(1, 0, 0, 0, 0);
        const REMOTE: u32 = pack(0, 0, KIND_REMOTE, V4_LEN, 0) as u32;
        const LOCAL: u32 = pack(0, 0, KIND_LOCAL, 0, 0) as u32;
        if control & WRITTEN != 0 || (control >> 32) as u16 != generation {
            return Hot::Other;
        }
        match control as u32 & 0xffff_0000 {
            REMOTE => Hot::Tunnel4(Header4 { slot, control }),
            LOCAL => {
                let vnic = slot.words[0].load(Ordering::Relaxed) as u32;
                fence(Ordering::Acquire);
                if slot.control.load(Ordering::Relaxed) == control { Hot::Local { vnic } } else { Hot::Other }
            }
            _ => Hot::Other,
        }
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

/// The one writer of a [`Vlt`], held by control.
pub struct VltWriter {
    table: std::sync::Arc<Vlt>,
    /// Freed slots come back last, so that a stale flow meets a reused slot as late as possible.
    free: VecDeque<u32>,
}

impl VltWriter {
    /// Takes a free slot, or `None` when the table is full.
    pub fn allocate(&mut self, place: Place) -> Option<SlotRef> {
        let slot = self.free.pop_front()?;
        self.update(slot, place);
        Some(SlotRef { slot, generation: self.table.read(slot).generation })
    }

    /// Changes a slot in place. Flows that point to it follow on their next packet.
    pub fn update(&mut self, slot: u32, place: Place) {
        self.write(slot, place, 0);
    }

    /// Frees a slot; flows that still point to it are recomputed.
    pub fn free(&mut self, slot: u32) {
        self.write(slot, Place::Empty, 1);
        self.free.push_back(slot);
    }

    /// Says where the packets of each bucket of a next-hop group go; they follow on their next packet. Group 0 stays
    /// without next hops.
    pub fn set_group(&mut self, group: u16, buckets: &[Option<ResolvedHop>; BUCKETS]) {
        self.table.next_hops.set(group, buckets);
    }

    /// The table, as readers have it.
    pub fn table(&self) -> &std::sync::Arc<Vlt> {
        &self.table
    }

    /// Slots in use.
    pub fn used(&self) -> usize {
        self.table.slots.len() - self.free.len()
    }

    fn write(&mut self, index: u32, place: Place, generation_step: u16) {
        let Some(slot) = self.table.slots.get(index as usize) else { return };
        let old = slot.control.load(Ordering::Relaxed);
        let sequence = (old >> 48) as u16;
        let generation = ((old >> 32) as u16).wrapping_add(generation_step);
        // Odd sequence: readers wait. The release fence keeps the stores below behind it.
        slot.control
            .store(old & !(0xffff << 48) | u64::from(sequence.wrapping_add(1)) << 48, Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some(vtep) = self.table.vteps.get(index as usize) {
            vtep.store(place.vtep(), Ordering::Relaxed);
        }
        let (kind, len, group) = match place {
            Place::Empty => (KIND_EMPTY, 0, 0),
            Place::Local { vnic } => {
                slot.words[0].store(u64::from(vnic), Ordering::Relaxed);
                (KIND_LOCAL, 0, 0)
            }
            Place::Remote(tunnel) => {
                for (word, bytes) in slot.words.iter().zip(tunnel.header.as_chunks::<8>().0) {
                    word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                }
                (KIND_REMOTE, tunnel.len, tunnel.group)
            }
        };
        slot.control.store(pack(sequence.wrapping_add(2), generation, kind, len, group), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn remote(fill: u8) -> Place {
        let mut header = [0; TEMPLATE_BYTES];
        header[..70].fill(fill);
        Place::Remote(Tunnel { group: u16::from(fill), len: 70, vtep: u32::from(fill), header })
    }

    #[test]
    fn slots_are_read_as_written_and_generations_move_on_free_only() {
        let (table, mut writer) = Vlt::new(2);
        let a = writer.allocate(remote(3)).unwrap();
        let b = writer.allocate(Place::Local { vnic: 9 }).unwrap();
        assert!(writer.allocate(Place::Empty).is_none());
        assert_eq!(table.read(a.slot).place, remote(3));
        writer.update(a.slot, remote(5));
        assert_eq!(table.read(a.slot).generation, a.generation);
        assert_eq!(table.read(a.slot).place, remote(5));
        writer.free(b.slot);
        assert_ne!(table.read(b.slot).generation, b.generation);
        assert_eq!(table.read(b.slot).place, Place::Empty);
        assert_eq!(table.read(77).place, Place::Empty);
        assert_eq!(writer.used(), 1);
    }

    #[test]
    fn the_hot_reading_agrees_with_the_whole_one() {
        let (table, mut writer) = Vlt::new(4);
        let mut header = [0; TEMPLATE_BYTES];
        header[..50].copy_from_slice(&std::array::from_fn::<u8, 50, _>(|i| i as u8 + 1));
        let plain = Place::Remote(Tunnel { group: 3, len: 50, vtep: 3, header });
        let slots = [plain, remote(9), Place::Local { vnic: 7 }, Place::Empty]
            .map(|place| writer.allocate(place).unwrap());
        let hot = slots.map(|slot| table.read_hot(slot.slot, slot.generation));
        let Hot::Tunnel4(found) = hot[0] else { panic!("not a tunnel") };
        assert_eq!(found.group(), 3);
        let words = std::array::from_fn::<_, 7, _>(|n| found.word(n));
        assert!(found.is_still());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes[..50], header[..50]);
        assert!(matches!(hot[1..], [Hot::Other, Hot::Local { vnic: 7 }, Hot::Other]));
        let generation = slots[0].generation.wrapping_add(1);
        assert!(matches!(table.read_hot(slots[0].slot, generation), Hot::Other));
        assert!(matches!(table.read_hot(99, 0), Hot::Other));
        writer.update(slots[0].slot, plain);
        assert!(!found.is_still());
    }

    #[test]
    fn what_is_still_there_is_no_half_of_a_write() {
        let (table, mut writer) = Vlt::new(1);
        let plain = |fill: u8| {
            let mut header = [0; TEMPLATE_BYTES];
            header[..50].fill(fill);
            Place::Remote(Tunnel { group: u16::from(fill), len: 50, vtep: 1, header })
        };
        let slot = writer.allocate(plain(1)).unwrap();
        let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Hot::Tunnel4(header) = table.read_hot(slot.slot, slot.generation) else { continue };
                    let words = [header.word(0), header.word(3), header.word(5)];
                    if header.is_still() {
                        let fill = u64::from_ne_bytes([header.group() as u8; 8]);
                        assert_eq!(words, [fill; 3]);
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let mut round = 0u32;
            while round < 200_000 || seen.load(Ordering::Relaxed) < 1000 {
                round = round.wrapping_add(1);
                writer.update(slot.slot, plain(round as u8));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn readers_never_see_half_a_write() {
        let (table, mut writer) = Vlt::new(1);
        let slot = writer.allocate(remote(1)).unwrap().slot;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Place::Remote(tunnel) = table.read(slot).place else { panic!("not remote") };
                    let fill = tunnel.header[0];
                    assert_eq!((u16::from(fill), u32::from(fill)), (tunnel.group, tunnel.vtep));
                    assert!(tunnel.header[..70].iter().all(|&byte| byte == fill));
                }
            });
            for round in 0..200_000u32 {
                writer.update(slot, remote(round as u8));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
