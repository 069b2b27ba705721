//! The calls that the switch makes, without packet buffers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::frames::{Arena, HEADER, Message, ROOM};
use crate::socket;
use crate::testbed::{Sink, Source};

/// Bytes of a slot of the ring, of a block of slots, and slots in all: more than are ever waiting.
const SLOT: usize = 2048;
const BLOCK: usize = 32 << 10;
const SLOTS: usize = 1024;

/// A packet socket with a receive ring (`TPACKET_V2` of packet(7)). What is longer than a slot is in the socket's queue.
pub struct Ring {
    fd: OwnedFd,
    memory: *mut u8,
    next: usize,
    batch: usize,
}

impl Ring {
    pub fn open(interface: &str, batch: usize) -> io::Result<Self> {
        let fd = socket::packet()?;
        let option = |option, value: &libc::c_int| socket::set(&fd, libc::SOL_PACKET, option, value);
        option(libc::PACKET_COPY_THRESH, &1)?;
        option(libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (SLOTS * SLOT / BLOCK) as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: SLOTS as u32,
        };
        socket::set(&fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping of the socket's ring; the result is checked.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), SLOTS * SLOT, protection, flags, fd.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        socket::bind(&fd, interface, true)?;
        Ok(Self { fd, memory: memory.cast(), next: 0, batch })
    }

    fn header(&self) -> *mut libc::tpacket2_hdr {
        self.memory.wrapping_add(self.next * SLOT).cast()
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: `tp_status`, the first field, lies aligned in the mapping; both sides change it atomically.
        unsafe { AtomicU32::from_ptr(self.header().cast()) }
    }
}

impl Source for Ring {
    fn receive(&mut self, arena: &mut Arena, messages: &mut Vec<Message>) -> io::Result<()> {
        while messages.len() < self.batch {
            let status = self.status().load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            // SAFETY: the kernel has written the header before the status, and leaves it alone until it is passed back.
            let header = unsafe { self.header().read() };
            let slot = messages.len();
            let place = arena.slot(slot);
            let len = if status & libc::TP_STATUS_COPY != 0 {
                // SAFETY: a slot has so much room.
                unsafe { socket::read(&self.fd, place, ROOM) }?.ok_or(io::ErrorKind::WouldBlock)?
            } else {
                let start = usize::from(header.tp_mac).clamp(HEADER, SLOT) - HEADER;
                let len = (header.tp_snaplen as usize + HEADER).min(SLOT - start);
                let from = self.header().cast::<u8>().wrapping_add(start);
                // SAFETY: inside the slot of the ring, and no longer than one of the arena.
                unsafe { place.copy_from_nonoverlapping(from, len) };
                len
            };
            messages.push(Message { slot, len });
            self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % SLOTS;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`, to which no reference is left.
        unsafe { libc::munmap(self.memory.cast(), SLOTS * SLOT) };
    }
}

/// Sends by a packet socket, a batch a call.
pub struct Batches(pub OwnedFd);

impl Batches {
    pub fn open(interface: &str) -> io::Result<Self> {
        let fd = socket::packet()?;
        socket::bind(&fd, interface, false)?;
        Ok(Self(fd))
    }
}

impl Sink for Batches {
    fn send(&mut self, arena: &mut Arena, messages: &[Message]) -> io::Result<()> {
        let piece = |message: &Message| libc::iovec {
            iov_base: arena.slot(message.slot).cast(),
            iov_len: message.len,
        };
        let mut pieces: Vec<libc::iovec> = messages.iter().map(piece).collect();
        // SAFETY: each is the beginning of a slot.
        unsafe { socket::send_all(&self.0, &mut pieces) }
    }
}

/// Reads and writes a tap, a frame a call.
pub struct Tap {
    pub fd: OwnedFd,
    pub batch: usize,
}

impl Source for Tap {
    fn receive(&mut self, arena: &mut Arena, messages: &mut Vec<Message>) -> io::Result<()> {
        while messages.len() < self.batch {
            let slot = messages.len();
            // SAFETY: a slot has so much room.
            let Some(len) = (unsafe { socket::read(&self.fd, arena.slot(slot), ROOM) })? else { break };
            messages.push(Message { slot, len });
        }
        Ok(())
    }
}

impl Sink for Tap {
    fn send(&mut self, arena: &mut Arena, messages: &[Message]) -> io::Result<()> {
        for message in messages {
            let place = arena.slot(message.slot).cast_const();
            // SAFETY: an open tap, and the beginning of a slot.
            let sent = unsafe { libc::write(self.fd.as_raw_fd(), place.cast(), message.len) };
            socket::checked(sent as libc::c_long)?;
        }
        Ok(())
    }
}
