//! [`Ring`]: the receive ring of a packet socket, `TPACKET_V2` (packet(7), and `Documentation/networking/packet_mmap.rst` of Linux).
//!
//! The kernel copies each frame into the next slot and passes the slot to us by its status word; we read it and pass it back.
//! A poll that finds nothing reads one word of memory. What is longer than a slot is in the socket's own queue, in the same
//! order, and only its beginning is in the slot.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::option::set;
use crate::vnet::{VNET_BYTES, VnetHeader};

/// Bytes of a slot: a frame of 1500 bytes, tags, and what the kernel puts in front of it.
pub(super) const SLOT: usize = 2048;
/// Slots come in blocks of whole pages.
const BLOCK: usize = 32 << 10;
const SLOTS_PER_BLOCK: usize = BLOCK / SLOT;

/// The shared memory of a socket's ring.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    slots: usize,
}

// SAFETY: the mapping belongs to this value alone, and what is done to it by a shared reference is done to status words, atomically.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// What reads a ring.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Arc<Memory>,
    /// The slot that the kernel fills next.
    next: usize,
}

/// A frame in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'a> {
    /// Its bytes, as far as they are here.
    pub bytes: &'a [u8],
    /// How long the frame is; longer than `bytes` when the rest is elsewhere, or lost.
    pub len: usize,
    /// The whole frame is the next one in the socket's queue.
    pub queued: bool,
    /// What the kernel says of checksum and segments.
    pub vnet: VnetHeader,
    /// The VLAN tag (TPID and TCI, in the byte order of the host) that the kernel took out of the frame.
    pub tag: Option<(u16, u16)>,
}

impl Ring {
    /// Makes the ring of a socket with at least `slots` slots. The socket has `PACKET_VNET_HDR` already.
    ///
    /// # Errors
    /// What the kernel says: `ENOMEM` without memory for it.
    pub fn new(socket: BorrowedFd<'_>, slots: usize) -> io::Result<Self> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set(socket, libc::PACKET_VERSION, &version)?;
        let blocks = slots.div_ceil(SLOTS_PER_BLOCK).clamp(1, 1024);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: (blocks * SLOTS_PER_BLOCK) as u32,
        };
        set(socket, libc::PACKET_RX_RING, &request)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of the socket's ring, wherever the kernel likes; the result is checked.
        let memory = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            libc::mmap(std::ptr::null_mut(), blocks * BLOCK, protection, flags, socket.as_raw_fd(), 0)
        };
        let start = NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED);
        let start = start.ok_or_else(io::Error::last_os_error)?;
        let memory = Arc::new(Memory { start, slots: blocks * SLOTS_PER_BLOCK });
        Ok(Self { memory, next: 0 })
    }

    /// The memory, for whoever looks on.
    pub fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    /// The slot's header.
    #[inline(always)]
    fn header(&self) -> *mut libc::tpacket2_hdr {
        self.memory.header(self.next)
    }

    #[inline(always)]
    fn status(&self) -> &AtomicU32 {
        self.memory.status(self.next)
    }

    /// Whether the kernel has passed a frame.
    #[inline(always)]
    pub fn has_frame(&self) -> bool {
        self.status().load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
    }

    /// The next frame, if the kernel has passed one. It is the same one until [`pass_back`](Self::pass_back).
    #[inline]
    pub fn front(&self) -> Option<Slot<'_>> {
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the kernel has written the header before the status, and leaves it alone until we pass it back.
        let header = unsafe { self.header().read() };
        // Everything in the slot is the kernel's word; none of it is trusted to lie inside the slot.
        let start = usize::from(header.tp_mac).clamp(VNET_BYTES, SLOT);
        let here = (header.tp_snaplen as usize).min(SLOT - start);
        let slot = self.header().cast::<u8>().cast_const();
        // SAFETY: `start` is at least as large as the header and at most the slot; the kernel wrote these bytes.
        let vnet = unsafe { slot.wrapping_add(start - VNET_BYTES).cast::<[u8; VNET_BYTES]>().read() };
        // SAFETY: inside the slot, which the kernel leaves alone until we pass it back, for which `self` is borrowed exclusively.
        let bytes = unsafe { std::slice::from_raw_parts(slot.wrapping_add(start), here) };
        let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { header.tp_vlan_tpid } else { 0x8100 };
        Some(Slot {
            bytes,
            len: header.tp_len as usize,
            queued: status & libc::TP_STATUS_COPY != 0,
            vnet: VnetHeader::read(vnet),
            tag: (status & libc::TP_STATUS_VLAN_VALID != 0).then_some((tpid, header.tp_vlan_tci)),
        })
    }

    /// Passes the slot of the front frame back to the kernel.
    #[inline]
    pub fn pass_back(&mut self) {
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.memory.slots { 0 } else { self.next + 1 };
    }
}

impl Memory {
    #[inline(always)]
    fn header(&self, slot: usize) -> *mut libc::tpacket2_hdr {
        self.start.as_ptr().wrapping_add(slot * SLOT).cast()
    }

    /// The status word of a slot.
    #[inline(always)]
    fn status(&self, slot: usize) -> &AtomicU32 {
        debug_assert!(slot < self.slots);
        // SAFETY: `tp_status`, the first field of the header, lies aligned inside the mapping as long as `self` is there; both
        // sides change it atomically.
        unsafe { AtomicU32::from_ptr(self.header(slot).cast()) }
    }

    /// Whether the kernel has passed no frame that was not passed back.
    pub fn is_empty(&self) -> bool {
        (0..self.slots).all(|slot| self.status(slot).load(Ordering::Relaxed) & libc::TP_STATUS_USER == 0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `Ring::new`, to which no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.slots * SLOT) };
    }
}
