//! The rings of a guest whose driver offers what none would, in either format (VIRTIO 1.2 sections 2.7 and 2.8).

use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::monitor::{Monitor, PLAIN, SET_VRING_BASE, SET_VRING_ENABLE, SET_VRING_NUM};

/// Flags of descriptors.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;
/// Of a packed ring: who has it.
pub const AVAILABLE: u16 = 1 << 7;
pub const USED: u16 = 1 << 15;

/// VIRTIO_NET_F_MRG_RXBUF, VIRTIO_F_INDIRECT_DESC, VIRTIO_F_RING_PACKED.
const FEATURES: u64 = PLAIN | 1 << 15 | 1 << 28;
const PACKED: u64 = 1 << 34;

/// Descriptors of a ring, the most that there may be.
pub const LARGE: u16 = 1024;
/// Bytes that are shared, as two regions of the same length.
pub const MEMORY: u64 = 8 << 20;
/// Where the second one begins.
pub const BORDER: u64 = MEMORY / 2;
/// Where there is room for tables and packets.
pub const FREE: u64 = 1 << 20;
/// Descriptors, available ring, used ring of the two rings. The descriptors of the first one end where the memory does.
const PLACES: [[u64; 3]; 2] = [[MEMORY - 16 * LARGE as u64, 0x1_0000, MEMORY - 0x8000], [0, 0x4000, 0x6000]];

#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    /// Of a packed ring the number of the buffer.
    pub next: u16,
}

/// A guest with one pair of queues.
#[derive(Debug)]
pub struct Guest {
    monitor: Monitor,
    pub packed: bool,
    pub sizes: [u16; 2],
}

impl Guest {
    /// Connects, and offers nothing yet.
    pub fn ready(path: &Path, packed: bool, sizes: [u16; 2]) -> Self {
        let mut monitor = Monitor::connect(path);
        monitor.memory.set_len(MEMORY).unwrap();
        monitor.agree(if packed { FEATURES | PACKED } else { FEATURES });
        let file = monitor.memory.as_raw_fd();
        monitor.share(&[[0, BORDER, 0, 0], [BORDER, BORDER, BORDER, BORDER]], &[file, file]).unwrap();
        for (ring, (size, mut places)) in (0..).zip(sizes.into_iter().zip(PLACES)) {
            if ring == 0 {
                places[0] = MEMORY - 16 * u64::from(size);
            }
            monitor.numbers(SET_VRING_NUM, [ring, size.into()]).unwrap();
            monitor.numbers(SET_VRING_BASE, [ring, if packed { 1 << 15 } else { 0 }]).unwrap();
            monitor.place(ring, places).unwrap();
            monitor.notify(ring).unwrap();
        }
        for ring in 0..2 {
            monitor.numbers(SET_VRING_ENABLE, [ring, 1]).unwrap();
        }
        Self { monitor, packed, sizes }
    }

    fn place(&self, ring: usize) -> [u64; 3] {
        let [descriptors, available, used] = PLACES[ring];
        [if ring == 0 { MEMORY - 16 * u64::from(self.sizes[0]) } else { descriptors }, available, used]
    }

    /// Writes a table of descriptors anywhere.
    pub fn table(&self, address: u64, descriptors: &[Descriptor]) {
        let bytes: Vec<u8> = descriptors.iter().flat_map(|one| self.bytes(*one)).collect();
        self.monitor.memory.write_all_at(&bytes, address).unwrap();
    }

    fn bytes(&self, of: Descriptor) -> [u8; 16] {
        let [first, second] = if self.packed { [of.next, of.flags] } else { [of.flags, of.next] };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&of.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&of.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&first.to_le_bytes());
        bytes[14..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Writes the descriptors of a ring from the first one on, as they are.
    pub fn describe(&self, ring: usize, descriptors: &[Descriptor]) {
        self.table(self.place(ring)[0], descriptors);
    }

    /// Fills a ring with chains that begin at these descriptors, and has so many available: of a packed ring, all descriptors are.
    pub fn offer(&self, ring: usize, descriptors: &[Descriptor], heads: &[u16], available: u16) {
        if self.packed {
            let all = descriptors.iter().map(|one| Descriptor { flags: one.flags | AVAILABLE, ..*one });
            return self.describe(ring, &all.collect::<Vec<_>>());
        }
        self.describe(ring, descriptors);
        let place = self.place(ring)[1];
        let heads: Vec<u8> = heads.iter().flat_map(|head| head.to_le_bytes()).collect();
        self.monitor.memory.write_all_at(&heads, place + 4).unwrap();
        self.monitor.memory.write_all_at(&available.to_le_bytes(), place + 2).unwrap();
    }

    /// Fills a ring with buffers of one descriptor each, all of which are available once.
    pub fn offer_each(&self, ring: usize, descriptors: &[Descriptor]) {
        let heads: Vec<u16> = (0..descriptors.len() as u16).collect();
        self.offer(ring, descriptors, &heads, descriptors.len() as u16);
    }

    /// Bytes that this process has mapped behind the memory, for nothing.
    pub fn room_behind(&self) -> u64 {
        let inode = self.monitor.memory.metadata().unwrap().ino().to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let number = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
        let lines: Vec<_> = maps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        let bounds = |line: &Vec<&str>| {
            line[0].split_once('-').map(|(start, end)| (number(start), number(end))).unwrap()
        };
        // The library maps what is in front of a region, too, and says of parts of it that they are to be in a core dump.
        let ends: Vec<u64> =
            lines.iter().filter(|line| line[4] == inode).map(|line| bounds(line).1).collect();
        let is_behind =
            |line: &&Vec<&str>| line[4] == "0" && line[1] == "rw-p" && ends.contains(&bounds(line).0);
        lines.iter().filter(is_behind).map(|line| bounds(line).1 - bounds(line).0).max().unwrap_or(0)
    }
}
