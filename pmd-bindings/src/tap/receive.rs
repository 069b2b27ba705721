//! [`Receiver`]: frames out of a tap.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use dpdk_sys as sys;
use wire::PacketBuf;

use super::Queue;
use crate::mbuf::Mbuf;
use crate::mempool::Mempool;
use crate::port::PortId;
use crate::vnet::buffers::{Buffers, MAX_SEGMENTS, Place};
use crate::vnet::{LONGEST, RECEIVED_AT_ONCE, VNET_TUNNEL_BYTES, VnetHeader};

/// Frames of one buffer in a row after which no more buffers than one are held for the next.
const SHORT: u32 = 256;
/// Reads in a row that found nothing after which none is held.
const EMPTY: u32 = 64;

/// What buffers have no room for; longer by one byte than a frame may be, for the kernel does not say what it cuts off.
type Rest = [u8; LONGEST + 1];

/// A frame as it was read.
struct Frame<'a> {
    len: usize,
    vnet: VnetHeader,
    /// What the buffers had no room for.
    rest: &'a [u8],
}

/// The receiving half of a queue.
///
/// How long a frame is shows when it was read. While long ones come, buffers for the longest are at hand; what comes after many short
/// ones is copied from the stack once. A short frame between long ones is copied out of the long buffer that waits for those.
#[derive(Debug)]
pub(crate) struct Receiver {
    queue: Arc<Queue>,
    port: PortId,
    buffers: Buffers,
    /// Bytes for which buffers are at hand for the next frame.
    wanted: usize,
    /// Frames in a row that one buffer had room for.
    short: u32,
    /// Reads in a row that found nothing.
    empty: u32,
    /// A frame may wait for a buffer, and that was counted.
    waits: bool,
    /// Bytes of the header in front of each frame.
    header_bytes: usize,
}

impl Receiver {
    /// `header_bytes` is what the tap was told of the header in front of a frame.
    pub fn new(queue: Arc<Queue>, port: PortId, pool: Mempool, header_bytes: usize) -> Self {
        let buffers = Buffers::new(pool);
        Self { queue, port, buffers, wanted: 1, short: 0, empty: 0, waits: false, header_bytes }
    }

    /// Readable when a frame waits.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.queue.fd.as_fd()
    }

    /// Takes up to `count` packets, fewer when they are long, the first ones of `slots`, and returns how many.
    ///
    /// # Safety
    /// `slots` has room for `count` pointers.
    pub unsafe fn receive(&mut self, slots: *mut *mut sys::rte_mbuf, count: usize) -> usize {
        let mut rest = MaybeUninit::<Rest>::uninit();
        let (mut received, mut bytes) = (0, 0);
        // Frames that come to nothing count, too: their sender does not hold up the others.
        let (mut looks, mut looked) = (0, 0);
        let is_drained = loop {
            if looks >= count || looked >= RECEIVED_AT_ONCE || !self.arm() {
                break false;
            }
            let frame = match self.read(&mut rest) {
                Ok(frame) => frame,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    // A super-frame of a kind that the header has no name for: the kernel has thrown it away.
                    Some(libc::EINVAL) => {
                        self.queue.counters.rx_errors.add(1);
                        looks += 1;
                        continue;
                    }
                    // Nothing is there; or there is no interface, to which control sees.
                    _ => break true,
                },
            };
            looks += 1;
            looked += frame.vnet.weight(frame.len);
            let Some(packet) = self.packet(frame) else { continue };
            bytes += packet.len() as u64;
            // SAFETY: `received` is below `count`.
            unsafe { slots.wrapping_add(received).write(packet.into_raw().as_ptr()) };
            received += 1;
        };
        if looks > 0 {
            self.empty = 0;
            self.queue.counters.rx_packets.add(received as u64);
            self.queue.counters.rx_bytes.add(bytes);
        } else if is_drained {
            self.empty += 1;
            if self.empty > EMPTY {
                self.wanted = 1;
                self.buffers.release();
            }
        }
        received
    }

    /// Has buffers at hand; `false` when there is none.
    #[inline]
    fn arm(&mut self) -> bool {
        let is_there = self.buffers.arm(self.wanted) > 0;
        // Whatever waits in the kernel is counted once.
        let waited = std::mem::replace(&mut self.waits, !is_there);
        if !is_there && !waited {
            self.queue.counters.rx_no_mbuf.add(1);
        }
        is_there
    }

    /// Reads the next frame into the buffers, and what they have no room for into `rest`.
    #[inline]
    fn read<'a>(&self, rest: &'a mut MaybeUninit<Rest>) -> io::Result<Frame<'a>> {
        let mut header = [0u8; VNET_TUNNEL_BYTES];
        let mut places = [const { Place::uninit() }; MAX_SEGMENTS + 2];
        places[0].write(libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: self.header_bytes });
        let (used, room) = self.buffers.write_places(&mut places[1..=MAX_SEGMENTS]);
        let last = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: size_of::<Rest>() };
        places[used + 1].write(last);
        let fd = self.queue.fd.as_raw_fd();
        // SAFETY: an open tap; each place is memory that is ours, with its size: the header, the tailrooms of fresh buffers, and `rest`.
        let got = unsafe { libc::readv(fd, places.as_ptr().cast(), used as libc::c_int + 2) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        let len = got.saturating_sub(self.header_bytes);
        let behind = len.saturating_sub(room);
        // SAFETY: the kernel wrote so many bytes there, after it had filled the buffers.
        let rest = unsafe { std::slice::from_raw_parts(rest.as_ptr().cast(), behind) };
        Ok(Frame { len, vnet: VnetHeader::read(header), rest })
    }

    /// Makes a packet of a frame; `None` for one that is lost, and counted.
    #[inline]
    fn packet(&mut self, frame: Frame<'_>) -> Option<Mbuf> {
        let Frame { len, vnet, rest } = frame;
        if !self.buffers.is_short(len) {
            (self.short, self.wanted) = (0, LONGEST);
        } else if self.short < SHORT {
            self.short += 1;
        } else {
            // Those beyond it are used up by what comes.
            self.wanted = 1;
        }
        // Longer than any IP packet: what the kernel of a container may be told to send (`gso_max_size`); its end is not there.
        if len == 0 || len > LONGEST {
            self.queue.counters.rx_errors.add(1);
            return None;
        }
        let Some(mut packet) = self.buffers.take(len, rest) else {
            self.queue.counters.rx_no_mbuf.add(1);
            return None;
        };
        packet.segment().set_port(self.port.get());
        let Some(vnet) = vnet.complete(&mut packet) else {
            self.queue.counters.rx_errors.add(1);
            return None;
        };
        vnet.tell(packet.segment());
        Some(packet)
    }
}
