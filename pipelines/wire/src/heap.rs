//! [`HeapBuf`]: a packet on the heap, for tests, fuzzing and control-plane code.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::packet::{ChecksumState, PacketBuf, RxFacts, TxRequest};

/// Free bytes in front of a fresh [`HeapBuf`], as in a DPDK mbuf (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM: usize = 128;

/// A packet in one or more heap segments.
#[derive(Clone, Debug)]
pub struct HeapBuf {
    bytes: Vec<u8>,
    start: usize,
    tail: Vec<Vec<u8>>,
    shared: bool,
    facts: RxFacts,
    request: TxRequest,
    /// How many packets [`PacketBuf::gather`] may still make of this one and its clones.
    memory: Option<Arc<AtomicUsize>>,
}

impl HeapBuf {
    /// A one-segment packet with [`HEADROOM`] bytes in front.
    pub fn new(frame: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(HEADROOM + frame.len());
        bytes.resize(HEADROOM, 0);
        bytes.extend_from_slice(frame);
        Self {
            bytes,
            start: HEADROOM,
            tail: Vec::new(),
            shared: false,
            facts: RxFacts::default(),
            request: TxRequest::default(),
            memory: None,
        }
    }

    /// A packet whose first segment is `head` and whose further segments are `tail`.
    pub fn segmented(head: &[u8], tail: &[&[u8]]) -> Self {
        let mut buf = Self::new(head);
        buf.tail = tail.iter().map(|segment| segment.to_vec()).collect();
        buf
    }

    /// The same packet with other receive facts.
    pub fn with_facts(mut self, facts: RxFacts) -> Self {
        self.facts = facts;
        self
    }

    /// Marks the buffer as shared with another owner: it can be read, trimmed and cloned, not written.
    pub fn set_shared(&mut self, shared: bool) {
        self.shared = shared;
    }

    /// The same packet, out of which [`PacketBuf::gather`] makes no more than so many others: memory that ends.
    pub fn with_memory(mut self, packets: usize) -> Self {
        self.memory = Some(Arc::new(AtomicUsize::new(packets)));
        self
    }

    /// All bytes of the packet in one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.segments().flatten().copied().collect()
    }

    /// What was asked of the transmitting device.
    pub fn tx_request(&self) -> TxRequest {
        self.request
    }
}

impl PacketBuf for HeapBuf {
    fn head(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn head_mut(&mut self) -> &mut [u8] {
        if self.shared { &mut [] } else { &mut self.bytes[self.start..] }
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.start + self.tail.iter().map(Vec::len).sum::<usize>()
    }

    fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if self.shared || n > self.start {
            return None;
        }
        self.start -= n;
        Some(&mut self.bytes[self.start..])
    }

    fn trim_front(&mut self, n: usize) -> bool {
        let fits = n <= self.bytes.len() - self.start;
        if fits {
            self.start += n;
        }
        fits
    }

    fn trim_back(&mut self, n: usize) -> bool {
        let Some(mut left) = self.len().checked_sub(n) else { return false };
        let first = left.min(self.bytes.len() - self.start);
        self.bytes.truncate(self.start + first);
        left -= first;
        for segment in &mut self.tail {
            segment.truncate(left);
            left -= segment.len();
        }
        self.tail.retain(|segment| !segment.is_empty());
        true
    }

    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if self.shared {
            return None;
        }
        let last = self.tail.last_mut().unwrap_or(&mut self.bytes);
        let old = last.len();
        last.resize(old + n, 0);
        Some(&mut last[old..])
    }

    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head()).chain(self.tail.iter().map(Vec::as_slice))
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn rx_facts(&self) -> RxFacts {
        self.facts
    }

    fn request_tx(&mut self, request: TxRequest) {
        self.request = request;
        self.facts.gso_size = 0;
        self.facts.l4_checksum = ChecksumState::Unknown;
    }

    fn try_clone(&self) -> Option<Self> {
        let mut copy = self.clone();
        copy.shared = false;
        Some(copy)
    }

    fn gather<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        if self
            .memory
            .as_ref()
            .is_some_and(|left| left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_err())
        {
            return None;
        }
        let mut packet = Self::new(&[]);
        parts.into_iter().for_each(|part| packet.bytes.extend_from_slice(part));
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_shrinks_at_both_ends() {
        let mut buf = HeapBuf::segmented(b"head", &[b"body", b"tail"]);
        assert_eq!(buf.len(), 12);
        assert!(buf.trim_back(3) && !buf.trim_back(10));
        assert!(buf.trim_front(2) && !buf.trim_front(3));
        buf.prepend(2).unwrap()[..2].copy_from_slice(b"HE");
        buf.append(1).unwrap().copy_from_slice(b"!");
        assert_eq!(buf.to_vec(), b"HEadbodyt!");
        assert!(buf.prepend(HEADROOM + 1).is_none());
    }

    #[test]
    fn repair_the_end_is_taken_off_over_segments() {
        let bytes = b"headbodytail";
        for n in 0..=bytes.len() {
            let mut buf = HeapBuf::segmented(b"head", &[b"body", b"tail"]);
            assert!(buf.trim_back(n));
            assert_eq!((buf.to_vec().as_slice(), buf.len()), (&bytes[..bytes.len() - n], bytes.len() - n));
            assert!(buf.segments().skip(1).all(|segment| !segment.is_empty()));
        }
        let mut buf = HeapBuf::segmented(b"head", &[b"body"]);
        assert!(!buf.trim_back(9));
        assert_eq!(buf.to_vec(), b"headbody");
    }

    #[test]
    fn shared_buffers_are_read_only() {
        let mut buf = HeapBuf::new(b"abc");
        buf.set_shared(true);
        assert!(buf.head_mut().is_empty() && buf.prepend(1).is_none() && buf.append(1).is_none());
        let mut copy = buf.try_clone().unwrap();
        assert_eq!(copy.head_mut(), b"abc");
    }

    #[test]
    fn gathered_packets_are_fresh_and_as_many_as_memory_allows() {
        let facts = RxFacts { gso_size: 3, l4_checksum: ChecksumState::Partial, ..RxFacts::default() };
        let mut buf = HeapBuf::segmented(b"head", &[b"body"]).with_facts(facts).with_memory(1);
        buf.set_shared(true);
        let mut fresh = buf.gather([&b"he"[..], b"", b"dy"]).unwrap();
        assert_eq!((fresh.to_vec().as_slice(), fresh.rx_facts()), (&b"hedy"[..], RxFacts::default()));
        assert!(!fresh.is_shared() && fresh.prepend(HEADROOM).is_some());
        assert!(buf.gather([&b"x"[..]]).is_none() && buf.is_unfinished());
        buf.request_tx(TxRequest::default());
        assert!(!buf.is_unfinished());
    }
}
