//! [`Gate`]: a thread that polls says when it uses a device, so that the library's thread can wait until nobody does.
//!
//! The poller raises its flag and then reads which device there is; the other side takes the device away and then reads the
//! flags. Each must see what the other wrote before. The poller pays nothing for that: the other side, which hardly ever
//! runs, has the kernel put a barrier into every thread of the process (membarrier(2)). Where the kernel does not do so,
//! pollers have a barrier of their own.

use std::hint;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// The kernel does not put barriers into other threads.
static ALONE: AtomicBool = AtomicBool::new(true);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes a command and flags, and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Asks the kernel for barriers, once in a process and before the first [`Gate`] is used.
pub(super) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| ALONE.store(!membarrier(REGISTER_PRIVATE_EXPEDITED), Ordering::SeqCst));
}

/// Whether one polling thread is inside: how often it entered and left, which is odd while it is. On a line of its own: it is
/// written at every poll.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Gate(AtomicU32);

impl Gate {
    /// Enters; what is read after it was not taken away before, or is seen to be.
    #[inline(always)]
    pub fn enter(&self) -> Inside<'_> {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if ALONE.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        Inside(self)
    }

    /// Which visit goes on, if one does: the same number later is the same visit.
    pub fn visit(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Acquire)).filter(|visit| visit % 2 == 1)
    }
}

/// The poller is inside until this goes.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.0.store(self.0.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Between two calls of what is to be done while a poller does not leave: it takes microseconds as a rule.
const IMPATIENT: Duration = Duration::from_millis(10);

/// Waits until each poller has left that was inside when this began: what was taken away before, nobody uses any more. One that
/// does not leave may hang in what the device makes it do, which `free` is to end.
pub(super) fn wait<'a>(gates: impl Iterator<Item = &'a Gate>, free: impl Fn()) {
    if ALONE.load(Ordering::Relaxed) || !membarrier(PRIVATE_EXPEDITED) {
        fence(Ordering::SeqCst);
    }
    let mut called = Instant::now();
    for gate in gates {
        let (visit, mut looks) = (gate.visit(), 0u32);
        // A visit that began later sees what was done before this.
        while visit.is_some() && gate.visit() == visit {
            looks += 1;
            // The poller may wait for this very core.
            if looks.is_multiple_of(64) {
                std::thread::yield_now();
                if called.elapsed() >= IMPATIENT {
                    free();
                    called = Instant::now();
                }
            } else {
                hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// What a poller reads inside is never gone while it is inside, however often it is taken away.
    #[test]
    fn vhost_what_is_in_use_is_waited_for() {
        for alone in [false, true] {
            prepare();
            ALONE.fetch_or(alone, Ordering::SeqCst);
            let (gate, device) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(1)));
            let alive: Arc<[AtomicBool; 1024]> = Arc::new([const { AtomicBool::new(true) }; 1024]);
            let over = Arc::new(AtomicBool::new(false));
            let poller = std::thread::spawn({
                let (gate, device, alive, over) = (gate.clone(), device.clone(), alive.clone(), over.clone());
                move || {
                    let mut polls = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        let _inside = gate.enter();
                        let now = device.load(Ordering::Acquire);
                        for _ in 0..8 {
                            assert!(
                                now == 0 || alive[now % 1024].load(Ordering::Relaxed),
                                "device {now} was freed"
                            );
                        }
                        polls += 1;
                    }
                    polls
                }
            });
            let end = Instant::now() + Duration::from_millis(300);
            let mut next = 1usize;
            while Instant::now() < end {
                device.store(0, Ordering::Relaxed);
                wait(std::iter::once(&*gate), || {});
                alive[next % 1024].store(false, Ordering::Relaxed);
                next += 1;
                alive[next % 1024].store(true, Ordering::Release);
                device.store(next, Ordering::Release);
            }
            over.store(true, Ordering::Relaxed);
            assert!(poller.join().unwrap() > 0 && next > 10);
        }
    }
    #[test]
    fn hostile_a_poller_that_hangs_is_freed() {
        let (gate, hangs) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(true)));
        let poller = std::thread::spawn({
            let (gate, hangs) = (gate.clone(), hangs.clone());
            move || {
                let _inside = gate.enter();
                while hangs.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        });
        while gate.visit().is_none() && !poller.is_finished() {
            std::thread::yield_now();
        }
        wait(std::iter::once(&*gate), || hangs.store(false, Ordering::Relaxed));
        poller.join().unwrap();
    }
}
