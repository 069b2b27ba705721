//! [`Sender`]: bursts of packets to the kernel, by a socket or a tap.
//!
//! Frames that follow each other in one flow go as one ([`Run`]). The kernel copies a packet from its segments, so that its buffers are
//! free again at once. Each has a header in front that asks for what the packet asks for ([`VnetHeader`]); the kernel, or whoever
//! receives, completes the checksum or cuts.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use dpdk_sys as sys;

use super::coalesce::{HEADERS, Run};
use super::{VnetHeader, tunnel};
use crate::counters::{Counters, Refused};
use crate::flags;
use crate::mbuf::{Segment, free_counted};

/// Messages of one call.
const AT_ONCE: usize = 32;
/// Pieces of memory of one call. A packet of 64 KiB has 33 segments of the usual size; the kernel takes 1,024 a packet.
const PIECES: usize = 1024;

/// Bytes after which a burst ends: who receives does so on our core before the call returns, and other ports wait meanwhile.
const BYTES: u64 = 256 << 10;

/// What takes frames for the kernel.
pub(crate) trait Outlet: Debug {
    /// What is counted of what it takes.
    fn counters(&self) -> &Counters;

    /// Passes messages on, each a frame with its header in front, in order and without waiting; how many it took, or why not the first.
    ///
    /// # Safety
    /// The messages point to pieces of memory that may be read.
    unsafe fn put(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize>;
}

/// The sending half of a socket or tap.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    outlet: Arc<T>,
    scratch: Box<Scratch>,
    /// Since they were last asked for.
    refused: Refused,
    /// So many packets go one by one: as a run the kernel did not take them.
    alone: usize,
    /// Bytes of the header in front of each frame.
    header_bytes: usize,
}

/// What a call points to; nothing in it is used after the call.
struct Scratch {
    headers: [VnetHeader; AT_ONCE],
    /// The frame headers of runs.
    frames: [[u8; HEADERS]; AT_ONCE],
    /// Packets of each message.
    packets: [usize; AT_ONCE],
    pieces: [libc::iovec; PIECES],
    messages: [libc::mmsghdr; AT_ONCE],
}

// SAFETY: its pointers are written before each call and not looked at after it.
unsafe impl Send for Scratch {}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}

impl<T: Outlet> Sender<T> {
    /// Most segments of memory of one packet.
    pub(crate) const MAX_SEGMENTS: u16 = PIECES as u16 - 1;

    /// `header_bytes` is what the kernel takes for the header in front of a frame.
    pub(crate) fn new(outlet: Arc<T>, header_bytes: usize) -> Self {
        // SAFETY: integers and pointers, for which zero is a value.
        let scratch = unsafe { Box::<Scratch>::new_zeroed().assume_init() };
        Self { outlet, scratch, refused: Refused::default(), alone: 0, header_bytes }
    }

    /// What was refused of the packets that are gone, since the last question.
    pub(crate) fn take_refused(&mut self) -> Refused {
        std::mem::take(&mut self.refused)
    }

    /// Sends from the front of `count` packets and returns how many are gone: sent, or refused by the kernel for what
    /// they are and counted as `tx_errors`. The kernel's lack of room leaves the rest where it is, and so does a burst of many bytes.
    ///
    /// # Safety
    /// `slots` holds `count` packets; those that are gone have been freed.
    pub(crate) unsafe fn send(&mut self, slots: *mut *mut sys::rte_mbuf, count: usize) -> usize {
        let (mut gone, mut worked) = (0, 0);
        while gone < count && worked < BYTES {
            // SAFETY: packets of the caller, so many.
            let offered = unsafe { self.prepare(slots.wrapping_add(gone), count - gone, BYTES - worked) };
            if offered == 0 {
                break;
            }
            // SAFETY: their pieces are in packets that we hold, and headers in `scratch`.
            let taken = unsafe { self.outlet.put(&mut self.scratch.messages[..offered]) };
            let refused = match taken {
                Ok(sent) => {
                    let sent = self.scratch.packets[..sent.min(AT_ONCE)].iter().sum();
                    // SAFETY: the caller's packets; the kernel has copied them.
                    let bytes = unsafe { free_counted(slots.wrapping_add(gone), sent) };
                    self.outlet.counters().tx_packets.add(sent as u64);
                    self.outlet.counters().tx_bytes.add(bytes);
                    gone += sent;
                    worked += bytes;
                    self.alone = self.alone.saturating_sub(sent);
                    // Why it was not more the next call says.
                    continue;
                }
                Err(refused) => refused,
            };
            match refused.raw_os_error() {
                Some(libc::EINTR) => {}
                // No room: later.
                Some(libc::EAGAIN | libc::ENOMEM) => break,
                // No link or no interface, as sockets say it, and as taps do: control sees to it.
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EIO | libc::EBADFD) => break,
                // Too long, or not what its header says; or lost on the way out (ENOBUFS).
                _ => {
                    let run = self.scratch.packets[0];
                    if run > 1 && refused.raw_os_error() != Some(libc::ENOBUFS) {
                        self.alone = run;
                        continue;
                    }
                    // SAFETY: the first of the packets that are left.
                    let bytes = unsafe { free_counted(slots.wrapping_add(gone), run) };
                    self.outlet.counters().tx_errors.add(run as u64);
                    self.refused.add(run as u64, bytes);
                    worked += bytes;
                    gone += run;
                    self.alone = self.alone.saturating_sub(run);
                }
            }
        }
        gone
    }

    /// Writes the messages for as many of the packets as one call takes, one at least, until they have so many bytes; how many
    /// messages that are.
    ///
    /// # Safety
    /// `slots` holds `count` packets, one at least.
    unsafe fn prepare(&mut self, slots: *const *mut sys::rte_mbuf, count: usize, bytes: u64) -> usize {
        let Scratch { headers, frames, packets, pieces, messages } = &mut *self.scratch;
        // SAFETY: the caller's promise.
        let packet = |at: usize| unsafe { Segment::at(slots.wrapping_add(at)) };
        let (mut taken, mut used, mut left) = (0, 0, bytes);
        for index in 0..AT_ONCE {
            if index > 0 && left == 0 {
                return index;
            }
            let Some(head) = (taken < count).then(|| packet(taken)).flatten() else { return index };
            if head.flags() & flags::TX_TUNNEL_VXLAN != 0 {
                // Where that is not possible the kernel refuses it, or whoever receives it.
                tunnel::complete(head);
            }
            let run = (taken >= self.alone).then(|| Run::of((taken..count).map_while(packet))).flatten();
            let vnet = run.and_then(|run| run.write(head, &mut frames[index]));
            let run = run.filter(|_| vnet.is_some());
            let wanted = run.map_or(usize::from(head.nb_segs()), |run| run.frames + 1);
            if index > 0 && used + 1 + wanted > PIECES {
                return index;
            }
            headers[index] = vnet.unwrap_or_else(|| VnetHeader::of(head));
            let first = used;
            let mut add = |base: *mut u8, length: usize| {
                if let Some(piece) = pieces.get_mut(used) {
                    *piece = libc::iovec { iov_base: base.cast(), iov_len: length };
                    used += 1;
                }
            };
            add((&raw mut headers[index]).cast(), self.header_bytes);
            if let Some(run) = run {
                let skipped = run.headers();
                add(frames[index].as_mut_ptr(), skipped);
                for frame in (taken..taken + run.frames).map_while(packet) {
                    add(frame.data().wrapping_add(skipped), usize::from(frame.data_len()) - skipped);
                }
            } else {
                let segments = std::iter::successors(Some(head), |segment| segment.next());
                segments.for_each(|segment| add(segment.data(), segment.data_len().into()));
            }
            packets[index] = run.map_or(1, |run| run.frames);
            let length = |head: Segment| u64::from(head.pkt_len());
            let bytes: u64 = (taken..taken + packets[index]).map_while(packet).map(length).sum();
            left = left.saturating_sub(bytes);
            taken += packets[index];
            let message = &mut messages[index].msg_hdr;
            message.msg_iov = &raw mut pieces[first];
            message.msg_iovlen = used - first;
        }
        AT_ONCE
    }
}
