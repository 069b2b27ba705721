//! Next-hop groups: by which uplink, and to which station, the outer frames of a tunnel go.
//!
//! A slot of the [VLT](crate::vlt) has the outer IP header, which says where a packet goes in the end; its group says how it
//! gets there. Many slots share a group, so an uplink that fails, comes back, or a router with a new MAC address is a few
//! stores for each group, however many destinations lie behind it.
//!
//! A group has [`BUCKETS`] buckets, as the kernel's resilient next-hop groups have: packets of one flow take one bucket,
//! by their outer source port, and control says which next hop each bucket has. Each bucket is one word, so that readers,
//! which take no lock, never see half of a change. Control writes groups in place; an index is given to another group
//! only when every worker has passed the slots that had it.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::MacAddr;

/// Buckets of a group: flows are spread in eighths.
pub const BUCKETS: usize = 8;

/// A station on the link of an uplink: the next one on the way to a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedHop {
    /// Index of the uplink, below `u16::MAX`.
    pub uplink: u16,
    /// MAC address of the station.
    pub mac: MacAddr,
}

/// The word of a bucket without a next hop: its uplink is one that nobody has.
const UNRESOLVED: u64 = u64::MAX;
/// The six bytes of a MAC address that come first in a frame.
const MAC: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// A next hop as a bucket has it: six bytes of MAC address in the order of a frame, then the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopWord(u64);

impl HopWord {
    /// Index of the uplink; one that no uplink has where there is no next hop.
    #[inline(always)]
    pub const fn uplink(self) -> u16 {
        let [.., low, high] = self.0.to_ne_bytes();
        u16::from_ne_bytes([low, high])
    }

    /// MAC address of the next hop.
    #[inline(always)]
    pub const fn mac(self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = self.0.to_ne_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    /// The first bytes of a frame to this next hop.
    #[inline(always)]
    pub const fn link_header(self, source: LinkSource) -> LinkHeader {
        LinkHeader([self.0 & MAC | source.0[0], source.0[1]])
    }
}

/// The MAC address of an uplink, where it is in the first sixteen bytes of the frames from there; the others are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSource([u64; 2]);

impl LinkSource {
    /// Of a MAC address.
    pub const fn new(mac: MacAddr) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self([u64::from_ne_bytes([0, 0, 0, 0, 0, 0, a, b]), u64::from_ne_bytes([c, d, e, f, 0, 0, 0, 0])])
    }
}

/// The first sixteen bytes of an outer frame, the last four of them zero: MAC address of the next hop, MAC address of the
/// uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkHeader(pub(crate) [u64; 2]);

impl LinkHeader {
    /// Puts the addresses in front of a frame of at least twelve bytes.
    pub(crate) fn write(self, frame: &mut [u8]) {
        let [first, second] = self.0.map(u64::to_ne_bytes);
        frame[..8].copy_from_slice(&first);
        frame[8..12].copy_from_slice(&second[..4]);
    }
}

/// The buckets of a group, in a cache line of their own.
#[repr(C, align(64))]
struct Buckets([AtomicU64; BUCKETS]);

/// The groups. Written by [`VltWriter`](crate::vlt::VltWriter) alone.
pub struct NextHops {
    groups: Box<[Buckets]>,
}

impl NextHops {
    /// Groups without next hops, for so many slots: a change may give each a new group, while those of the two changes before
    /// are still held. As many as there are indices of 16 bits at most.
    pub(crate) fn new(slots: u32) -> Self {
        let groups = (3 * slots as usize + 1).min(1 << 16);
        Self {
            groups: (0..groups).map(|_| Buckets([const { AtomicU64::new(UNRESOLVED) }; BUCKETS])).collect(),
        }
    }

    /// The bucket of packets with an outer source port.
    #[inline(always)]
    pub const fn bucket(source_port: u16) -> usize {
        // The ports come of hashes: their low bits are as good as others.
        source_port as usize % BUCKETS
    }

    /// The word for packets with an outer source port; past the last group that of one without next hops.
    #[inline(always)]
    pub fn word(&self, group: u16, source_port: u16) -> HopWord {
        let group = self.groups.get(usize::from(group));
        HopWord(group.map_or(UNRESOLVED, |group| group.0[Self::bucket(source_port)].load(Ordering::Relaxed)))
    }

    /// The next hop of packets with an outer source port; `None` for a group without, and past the last.
    pub fn find(&self, group: u16, source_port: u16) -> Option<HopWord> {
        Some(self.word(group, source_port)).filter(|word| word.0 != UNRESOLVED)
    }

    /// The first source port (of 0..[`BUCKETS`]) whose packets go where those with this one go: flows with the same answer
    /// share their way.
    pub fn representative(&self, group: u16, source_port: u16) -> u16 {
        let own = self.find(group, source_port);
        (0..BUCKETS as u16).find(|&port| self.find(group, port) == own).unwrap_or_default()
    }

    /// Number of groups, with the one of index 0, which never has next hops.
    pub fn capacity(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn set(&self, group: u16, buckets: &[Option<ResolvedHop>; BUCKETS]) {
        let Some(group) = self.groups.get(usize::from(group)).filter(|_| group != 0) else { return };
        for (word, hop) in group.0.iter().zip(buckets) {
            let value = hop.map_or(UNRESOLVED, |hop| {
                let ([a, b, c, d, e, f], [low, high]) = (hop.mac.0, hop.uplink.to_ne_bytes());
                u64::from_ne_bytes([a, b, c, d, e, f, low, high])
            });
            word.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(uplink: u16, last: u8) -> ResolvedHop {
        ResolvedHop { uplink, mac: MacAddr([2, 3, 4, 5, 6, last]) }
    }

    #[test]
    fn failover_groups_tell_what_was_written() {
        let table = NextHops::new(1);
        assert_eq!(table.capacity(), 4);
        assert_eq!(table.find(1, 9), None);
        let two: [_; BUCKETS] = std::array::from_fn(|n| Some(hop(n as u16 % 2, n as u8 % 2)));
        table.set(1, &two);
        for port in [0xc000, 0xc001, 0xc002, 0xffff] {
            let found = table.find(1, port).unwrap();
            assert_eq!((found.uplink(), found.mac()), (port % 2, hop(0, port as u8 % 2).mac));
            assert_eq!(table.representative(1, port), port % 2);
        }
        table.set(0, &two);
        assert_eq!(table.find(0, 1), None, "slots without a way have this one");
        assert_eq!(table.find(4, 1), None);
        table.set(4, &two);
        table.set(1, &[None; BUCKETS]);
        assert_eq!((table.find(1, 9), table.representative(1, 9)), (None, 0));
    }

    #[test]
    fn failover_words_are_the_link_header() {
        let table = NextHops::new(1);
        table.set(1, &[Some(hop(7, 8)); BUCKETS]);
        let source = MacAddr([0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5]);
        let header = table.find(1, 0).unwrap().link_header(LinkSource::new(source));
        let bytes: Vec<u8> = header.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes[..6], hop(7, 8).mac.0);
        assert_eq!(bytes[6..12], source.0);
        assert_eq!(bytes[12..], [0; 4]);
        let mut frame = [9; 14];
        header.write(&mut frame);
        assert_eq!((&frame[..12], &frame[12..]), (&bytes[..12], &[9, 9][..]));
    }
}
