//! Has the library's thread that waits for sockets look at them anew.
//!
//! It waits in poll(2) for up to a second (`fdset_event_dispatch` of lib/vhost/fd_man.c), which keeps hold of the sockets that it was
//! given: a socket that is closed meanwhile stays open for its peer, and one that begins to listen is not among them. DPDK from 24.07 on
//! uses epoll(7), which knows at once; of those, 24.11 ends the thread with the last socket, and closing that one takes up to a second.

use std::fs;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The library's name for the thread, in versions that poll.
const NAME: &str = "vhost-events";
/// Nothing happens when it comes where nobody is interrupted by it.
const SIGNAL: libc::c_int = libc::SIGURG;
/// Longer than the thread takes from looking what there is to waiting for it.
const MEANWHILE: Duration = Duration::from_micros(200);

/// The thread, or 0 while it is not known.
static THREAD: AtomicI32 = AtomicI32::new(0);

extern "C" fn ignore(_signal: libc::c_int) {}

/// Installs a handler that does nothing, once in a process: an ignored signal would interrupt nobody.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int) = ignore;
        action.sa_sigaction = handler as usize;
        // Whatever else the thread may wait for goes on by itself; poll(2) never does.
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: a whole action whose handler does nothing.
        if unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) } != 0 {
            tracing::warn!("SIGURG cannot be handled: vhost-user peers hear up to a second late of ports that come and go");
        }
    });
}

fn thread() -> Option<i32> {
    let known = THREAD.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let is_it = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim_end() == NAME)
    };
    let found = tasks.flatten().find(is_it)?.file_name().to_str()?.parse().ok()?;
    THREAD.store(found, Ordering::Relaxed);
    Some(found)
}

fn interrupt() {
    prepare();
    if let Some(thread) = thread() {
        // SAFETY: takes numbers. The thread is there until the process ends, and has a handler that does nothing.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, SIGNAL) };
    }
}

/// Sockets were closed. What waits for them lets go of them; whoever waits from now on finds that they are closed.
pub(super) fn closed() {
    interrupt();
}

/// A socket was added. The thread may have looked what there is, and not be waiting yet: then it hears nothing the first time.
pub(super) fn added() {
    interrupt();
    std::thread::sleep(MEANWHILE);
    interrupt();
}
