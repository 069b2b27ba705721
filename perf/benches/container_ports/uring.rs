//! The same by io_uring(7): one call for a batch of frames in, one for a batch out, by registered descriptors; or one receive that goes on
//! by itself (`IORING_RECV_MULTISHOT`) into buffers that it is provided with. Taps are read and written by registered memory; sockets
//! have operations of their own, which take none and cost no more.
//!
//! Rings have one user, who runs the kernel's own work himself (`IORING_SETUP_SINGLE_ISSUER`, `IORING_SETUP_DEFER_TASKRUN`). A kernel
//! thread that polls the ring (`IORING_SETUP_SQPOLL`) would take a core of its own, and is not tried.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fixed};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use crate::frames::{Arena, Message, ROOM};
use crate::testbed::{Sink, Source};

/// The place of a ring's only descriptor, and of its only piece of registered memory.
const DESCRIPTOR: Fixed = Fixed(0);
const MEMORY: u16 = 0;
/// The group of provided buffers.
const GROUP: u16 = 0;

/// Why there is no io_uring here, if there is none.
pub fn refusal() -> Option<io::Error> {
    ring(1).err()
}

fn ring(entries: usize) -> io::Result<IoUring> {
    let (entries, completions) = (entries as u32, 4 * entries as u32);
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_cqsize(completions).build(entries)
}

/// What a ring's descriptor is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum On {
    Socket,
    Tap,
}

/// A ring for batches of one descriptor.
pub struct Batches {
    ring: IoUring,
    on: On,
    batch: usize,
    _fd: OwnedFd,
}

impl Batches {
    pub fn new(on: On, fd: OwnedFd, arena: &mut Arena, batch: usize) -> io::Result<Self> {
        let ring = ring(batch)?;
        ring.submitter().register_files(&[fd.as_raw_fd()])?;
        if on == On::Tap {
            // SAFETY: the memory is there for longer than the ring.
            unsafe { ring.submitter().register_buffers(&[arena.whole()]) }?;
        }
        Ok(Self { ring, on, batch, _fd: fd })
    }

    /// Does all of the operations, and tells the result of each by its number.
    ///
    /// # Safety
    /// Their memory is the arena's.
    unsafe fn run(
        &mut self,
        operations: impl Iterator<Item = squeue::Entry>,
        mut done: impl FnMut(usize, io::Result<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut count = 0;
        let mut queue = self.ring.submission();
        for operation in operations {
            let operation = operation.user_data(count as u64);
            // SAFETY: the caller's promise; the memory is there for longer than the ring.
            unsafe { queue.push(&operation) }.map_err(io::Error::other)?;
            count += 1;
        }
        drop(queue);
        self.ring.submit_and_wait(count)?;
        for completion in self.ring.completion() {
            done(completion.user_data() as usize, result(&completion))?;
        }
        Ok(())
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // The kernel takes a ring apart later on, and a tap would be there until then.
        if let Err(error) = self.ring.submitter().unregister_files() {
            eprintln!("cannot let go of a descriptor: {error}");
        }
    }
}

fn result(completion: &cqueue::Entry) -> io::Result<usize> {
    let result = completion.result();
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

impl Source for Batches {
    fn receive(&mut self, arena: &mut Arena, messages: &mut Vec<Message>) -> io::Result<()> {
        let on = self.on;
        // What finds nothing is over at once.
        let read = |slot| {
            let (place, room) = (arena.slot(slot), ROOM as u32);
            match on {
                On::Socket => opcode::Recv::new(DESCRIPTOR, place, room).flags(libc::MSG_DONTWAIT).build(),
                On::Tap => {
                    opcode::ReadFixed::new(DESCRIPTOR, place, room, MEMORY).rw_flags(libc::RWF_NOWAIT).build()
                }
            }
        };
        let done = |slot, len: io::Result<usize>| match len {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            len => len.map(|len| messages.push(Message { slot, len })),
        };
        // SAFETY: slots of the arena.
        unsafe { self.run((0..self.batch).map(read), done) }
    }
}

impl Sink for Batches {
    fn send(&mut self, arena: &mut Arena, messages: &[Message]) -> io::Result<()> {
        let on = self.on;
        let write = |message: &Message| {
            let (place, len) = (arena.slot(message.slot), message.len as u32);
            match on {
                On::Socket => opcode::Send::new(DESCRIPTOR, place, len).build(),
                On::Tap => opcode::WriteFixed::new(DESCRIPTOR, place, len, MEMORY).build(),
            }
        };
        let done = |number: usize, len: io::Result<usize>| match len? {
            len if messages.get(number).is_some_and(|message| message.len == len) => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        };
        // SAFETY: slots of the arena.
        unsafe { self.run(messages.iter().map(write), done) }
    }
}

/// Provided buffers at most: the entries of a page.
const PROVIDED: usize = 256;

/// What the kernel takes buffers from.
#[repr(C, align(4096))]
struct Provided([BufRingEntry; PROVIDED]);

/// One receive that goes on, a buffer a frame.
pub struct Multishot {
    ring: IoUring,
    provided: Box<Provided>,
    tail: u16,
    is_armed: bool,
    _fd: OwnedFd,
}

impl Multishot {
    /// So many buffers, a power of two, are the slots of the arena.
    pub fn new(fd: OwnedFd, arena: &mut Arena, buffers: usize) -> io::Result<Self> {
        let ring = ring(buffers)?;
        ring.submitter().register_files(&[fd.as_raw_fd()])?;
        // SAFETY: integers, for which zero is a value.
        let provided = unsafe { Box::<Provided>::new_zeroed().assume_init() };
        let place = std::ptr::from_ref(&*provided) as u64;
        // SAFETY: the entries are there for longer than the ring.
        unsafe { ring.submitter().register_buf_ring_with_flags(place, buffers as u16, GROUP, 0) }?;
        let mut multishot = Self { ring, provided, tail: 0, is_armed: false, _fd: fd };
        (0..buffers).for_each(|slot| multishot.provide(arena, slot, buffers));
        Ok(multishot)
    }

    fn provide(&mut self, arena: &mut Arena, slot: usize, buffers: usize) {
        let entry = &mut self.provided.0[usize::from(self.tail) % buffers];
        entry.set_addr(arena.slot(slot) as u64);
        entry.set_len(ROOM as u32);
        entry.set_bid(slot as u16);
        self.tail = self.tail.wrapping_add(1);
        let first = self.provided.0.as_ptr();
        // SAFETY: the first entry, in whose spare field the tail is.
        let tail = unsafe { BufRingEntry::tail(first) }.cast_mut();
        // SAFETY: aligned, and there as long as the entries, which only this thread and the kernel change.
        unsafe { AtomicU16::from_ptr(tail) }.store(self.tail, Ordering::Release);
    }
}

impl Source for Multishot {
    fn receive(&mut self, _: &mut Arena, messages: &mut Vec<Message>) -> io::Result<()> {
        if !self.is_armed {
            let receive = opcode::RecvMulti::new(DESCRIPTOR, GROUP).build();
            // SAFETY: it has no memory but the provided buffers, which are there for longer than the ring.
            unsafe { self.ring.submission().push(&receive) }.map_err(io::Error::other)?;
        }
        let submitted = u32::from(!self.is_armed);
        self.is_armed = true;
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: as many entries as are there, and no argument; it waits for nothing.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(submitted, 0, flags, None) }?;
        for completion in self.ring.completion() {
            self.is_armed &= cqueue::more(completion.flags());
            match (result(&completion), cqueue::buffer_select(completion.flags())) {
                (Ok(len), Some(slot)) => messages.push(Message { slot: slot.into(), len }),
                // Out of buffers: it goes on when there are some.
                (Err(error), _) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                (result, _) => return result.and(Err(io::ErrorKind::UnexpectedEof.into())),
            }
        }
        Ok(())
    }

    fn give_back(&mut self, arena: &mut Arena, messages: &[Message], buffers: usize) {
        messages.iter().for_each(|message| self.provide(arena, message.slot, buffers));
    }
}
