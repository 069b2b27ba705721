//! [`Ring`]: the receive ring of a packet socket, `TPACKET_V2` (packet(7), and `Documentation/networking/packet_mmap.rst` of Linux).
//!
//! The kernel copies each frame into the next slot and passes the slot to us by its status word; we read it and pass it back.
//! A poll that finds nothing reads one word of memory. What is longer than a slot is in the socket's own queue, in the same
//! order, and only its beginning is in the slot.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::option::set;
use super::vnet::{VNET_BYTES, VnetHeader};

/// Bytes of a slot: a frame of 1500 bytes, tags, and what the kernel puts in front of it.
pub(super) const SLOT: usize = 2048;
/// Slots come in blocks of whole pages.
const BLOCK: usize = 32 << 10;
const SLOTS_PER_BLOCK: usize = BLOCK / SLOT;

/// The shared memory of a socket's ring.
#[derive(Debug)]
pub(super) struct Ring {
    memory: NonNull<u8>,
    slots: usize,
    /// The slot that the kernel fills next.
    next: usize,
}

// SAFETY: the mapping belongs to this value alone; the kernel is at it by the protocol of the status word.
unsafe impl Send for Ring {}

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
        let memory = NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED);
        let memory = memory.ok_or_else(io::Error::last_os_error)?;
        Ok(Self { memory, slots: blocks * SLOTS_PER_BLOCK, next: 0 })
    }

    /// The slot's header.
    #[inline(always)]
    fn header(&self) -> *mut libc::tpacket2_hdr {
        self.memory.as_ptr().wrapping_add(self.next * SLOT).cast()
    }

    #[inline(always)]
    fn status(&self) -> &AtomicU32 {
        // SAFETY: `tp_status`, the first field of the header, lies aligned inside the mapping as long as `self` is there; both
        // sides change it atomically.
        unsafe { AtomicU32::from_ptr(self.header().cast()) }
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
        self.next = if self.next + 1 == self.slots { 0 } else { self.next + 1 };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which no reference is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.slots * SLOT) };
    }
}
