//! [`Readiness`]: which of hundreds of idle queues received something, at the price of one question.
//!
//! Queues that the kernel fills have a descriptor, and epoll(7) tells of many descriptors at once. A queue that is armed is told of
//! once, when it has something or as soon as something comes; then it is silent until it is armed again, so that one that is
//! polled anyway costs the kernel nothing.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{RxQueue, Source};

/// Answers of one system call.
const AT_ONCE: usize = 64;

/// An epoll instance. It belongs to the thread that polls the queues.
#[derive(Debug)]
pub struct Readiness {
    epoll: OwnedFd,
}

impl Readiness {
    /// An instance with no queues.
    ///
    /// # Errors
    /// What the kernel says: `EMFILE` or `ENFILE` without descriptors left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(Self { epoll: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Has `queue` told of once by `number`, as soon as it has something, which it may have now. `false`: the kernel does not fill
    /// this queue, so that it has to be polled, or cannot tell of it.
    pub fn arm(&self, queue: &RxQueue, number: u64) -> bool {
        if let Source::Socket(socket) = &queue.source {
            socket.take_error();
        }
        queue.descriptor().is_some_and(|queue| {
            let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
            // Armed before, most likely.
            self.control(libc::EPOLL_CTL_MOD, queue, events, number).is_ok()
                || self.control(libc::EPOLL_CTL_ADD, queue, events, number).is_ok()
        })
    }

    /// Never tells of `queue` again, unless it is armed.
    pub fn forget(&self, queue: &RxQueue) {
        if let Some(queue) = queue.descriptor() {
            // One that was never armed is not known.
            let _ = self.control(libc::EPOLL_CTL_DEL, queue, 0, 0);
        }
    }

    /// Says which armed queues have something. Does not wait, and does not end before all of them were said.
    pub fn take(&self, mut ready: impl FnMut(u64)) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
        loop {
            let epoll = self.epoll.as_raw_fd();
            // SAFETY: an open epoll instance, and room for so many events.
            let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), AT_ONCE as i32, 0) };
            let count = usize::try_from(count).unwrap_or(0);
            events.iter().take(count).for_each(|event| ready(event.u64));
            // Each is told of once, so that this comes to an end.
            if count < AT_ONCE {
                return;
            }
        }
    }

    fn control(
        &self,
        operation: libc::c_int,
        queue: BorrowedFd<'_>,
        events: u32,
        number: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: number };
        // SAFETY: two open descriptors, and an event.
        let ret =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, queue.as_raw_fd(), &raw mut event) };
        if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl RxQueue {
    /// The descriptor that is readable when the queue has something.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Ethdev | Source::Vhost(_) => None,
            Source::Socket(socket) => Some(socket.descriptor()),
            Source::Tap(tap) => Some(tap.descriptor()),
        }
    }
}
