//! What is forwarded: frames with their virtio-net headers, and the memory that they lie in on their way.

use std::net::Ipv4Addr;

use wire::MacAddr;
use wire::build::Path;

/// Bytes of `struct virtio_net_hdr` (VIRTIO 1.2 section 5.1.6) in front of each frame.
pub const HEADER: usize = 10;
/// Room for a super-frame with its header, in whole pages.
pub const ROOM: usize = 36 << 10;
/// Ethernet, IPv4 without options, TCP without options.
const HEADERS: usize = 14 + 20 + 20;
/// Payload of a segment, as a connection over an MTU of 1500 with timestamps has it.
pub const SEGMENT: u16 = 1448;
/// Segments of a super-frame: 33 kB.
const SEGMENTS: usize = 23;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Of 64 bytes on a wire, where the last four are the check sequence.
    Datagrams,
    /// The same, of which a forwarder takes one at a time, as they come to a port with little to do.
    SingleDatagrams,
    /// TCP segments that go as one, whose checksum is unfinished.
    SuperFrames,
}

impl Traffic {
    pub fn name(self) -> &'static str {
        match self {
            Self::Datagrams => "UDP datagrams",
            Self::SingleDatagrams => "UDP datagrams one by one",
            Self::SuperFrames => "TCP super-frames",
        }
    }

    /// Frames that are sent at once to whoever forwards. Of super-frames so many as a port takes at once (128 KiB).
    pub fn burst(self) -> usize {
        if self == Self::SuperFrames { 4 } else { 32 }
    }

    /// Frames that are forwarded at once, at most.
    pub fn batch(self) -> usize {
        if self == Self::SingleDatagrams { 1 } else { self.burst() }
    }

    /// Frames that wait when a forwarder begins: whole batches, fewer than the 500 that a tap's queue holds.
    pub fn waiting(self) -> usize {
        if self == Self::SuperFrames { 64 } else { 448 }
    }

    /// A frame, to a station that nobody is.
    pub fn frame(self) -> Vec<u8> {
        let end = |number: u8| (MacAddr([2, 0, 0, 0, 0, number]), Ipv4Addr::new(198, 18, 0, number));
        let path = Path::v4(end(1), end(2));
        match self {
            Self::SuperFrames => path.tcp(1000, 2000, 0x10, &vec![0; SEGMENTS * usize::from(SEGMENT)]),
            _ => path.udp(1000, 2000, &[0; 18]),
        }
    }

    /// A frame with its header and a number at its end.
    pub fn message(self, number: usize) -> Vec<u8> {
        let mut header = [0; HEADER];
        if self == Self::SuperFrames {
            (header[0], header[1]) = (NEEDS_CSUM, GSO_TCPV4);
            let words = [HEADERS as u16, SEGMENT, 14 + 20, 16];
            for (place, word) in header[2..].chunks_exact_mut(2).zip(words) {
                place.copy_from_slice(&word.to_ne_bytes());
            }
        }
        let mut frame = self.frame();
        if let Some(end) = frame.last_chunk_mut() {
            *end = (number as u64).to_be_bytes();
        }
        [&header[..], &frame].concat()
    }
}

/// Whether two messages ask for the same. How many bytes of headers there are is a hint, which the kernel gives as it likes.
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let hint = 2..4;
    one.len() == other.len()
        && one[..hint.start] == other[..hint.start]
        && one[hint.end..] == other[hint.end..]
}

/// Memory of a batch on its way: a slot for each message.
pub struct Arena {
    memory: Vec<u8>,
}

/// A message in its slot.
#[derive(Clone, Copy)]
pub struct Message {
    pub slot: usize,
    pub len: usize,
}

impl Arena {
    pub fn new(slots: usize) -> Self {
        Self { memory: vec![0; slots * ROOM] }
    }

    /// All of it.
    pub fn whole(&mut self) -> libc::iovec {
        libc::iovec { iov_base: self.memory.as_mut_ptr().cast(), iov_len: self.memory.len() }
    }

    /// Where a slot begins, of [`ROOM`] bytes.
    pub fn slot(&mut self, slot: usize) -> *mut u8 {
        self.memory[slot * ROOM..][..ROOM].as_mut_ptr()
    }
}
