//! [`Watch`]: whether a queue may have something to read, for hundreds of idle ones on a thread at the price of one.
//!
//! A thread that looks at queues has an epoll instance (epoll(7)) of its own, and asks it once in a round: when a queue is looked at that
//! was looked at since the last question. Each queue that received something since then is marked; a look is a load. What
//! comes is so seen in the next round, or in the one after it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Answers of one question; what is left comes with the next.
const AT_ONCE: usize = 64;

/// Numbers that no two threads have, nor two queues.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// None until a queue is looked at, or where the kernel gives us none.
    static LOOKER: RefCell<Option<Looker>> = const { RefCell::new(None) };
}

/// What a thread looks with.
#[derive(Debug)]
struct Looker {
    number: u64,
    epoll: OwnedFd,
    /// Questions so far.
    round: u64,
    /// The marks of queues, by their numbers.
    marks: HashMap<u64, Arc<AtomicBool>>,
}

/// The mark of a queue.
#[derive(Debug)]
pub(super) struct Watch {
    mark: Arc<AtomicBool>,
    /// The thread that looks at it, and the round in which it did last.
    seen: Cell<(u64, u64)>,
}

impl Watch {
    /// Of a queue that may have something already.
    pub fn new() -> Self {
        Self { mark: Arc::new(AtomicBool::new(true)), seen: Cell::new((0, 0)) }
    }

    /// The queue was read to its end, or not.
    #[inline]
    pub fn set(&self, may_have_packets: bool) {
        self.mark.store(may_have_packets, Ordering::Relaxed);
    }

    /// Whether something may have come since it was read to its end.
    #[inline]
    pub fn look(&self, queue: BorrowedFd<'_>) -> bool {
        self.mark.load(Ordering::Relaxed) || self.ask(queue)
    }

    fn ask(&self, queue: BorrowedFd<'_>) -> bool {
        LOOKER.with_borrow_mut(|looker| {
            if looker.is_none() {
                *looker = Looker::new().ok();
            }
            // Without, every look is a read.
            let Some(looker) = looker else { return true };
            let (thread, round) = self.seen.get();
            if thread != looker.number {
                if looker.add(queue, &self.mark).is_err() {
                    return true;
                }
            } else if round == looker.round {
                looker.ask();
            }
            self.seen.set((looker.number, looker.round));
            self.mark.load(Ordering::Relaxed)
        })
    }
}

impl Looker {
    fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { number: NEXT.fetch_add(1, Ordering::Relaxed), epoll, round: 0, marks: HashMap::new() })
    }

    /// Has a queue marked from now on when something comes, and if something is there. It is forgotten with its descriptor.
    #[cold]
    fn add(&mut self, queue: BorrowedFd<'_>, mark: &Arc<AtomicBool>) -> io::Result<()> {
        self.marks.retain(|_, mark| Arc::strong_count(mark) > 1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Told when something comes, not for as long as it is there: queues that are read anyway are not told of again and again.
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: number };
        let mut control = |operation| {
            // SAFETY: two open descriptors, and an event.
            let ret = unsafe {
                libc::epoll_ctl(self.epoll.as_raw_fd(), operation, queue.as_raw_fd(), &raw mut event)
            };
            if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // A port that was stopped and started has the same descriptors again.
        control(libc::EPOLL_CTL_ADD).or_else(|_| control(libc::EPOLL_CTL_MOD))?;
        self.marks.insert(number, mark.clone());
        Ok(())
    }

    /// Marks the queues to which something came since the last question.
    fn ask(&mut self) {
        self.round += 1;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
        // SAFETY: an open epoll instance, and room for so many events; it does not wait.
        let count =
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), AT_ONCE as i32, 0) };
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            if let Some(mark) = self.marks.get(&{ event.u64 }) {
                mark.store(true, Ordering::Relaxed);
            }
        }
    }
}
