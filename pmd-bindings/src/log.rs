//! DPDK's log, routed into `tracing` under the target `dpdk`.
//!
//! DPDK writes to a stdio stream; a stream with our own write function is put in place before the EAL starts,
//! so that nothing reaches stderr past `tracing`. Beside that, what a thread's own calls log at warning level
//! or above can be captured, for error messages. Never used on the packet path.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Instant;

use dpdk_sys as sys;

use crate::error::Words;

/// Lines kept of one failing operation.
const KEPT_LINES: usize = 8;
/// DPDK's `RTE_LOG_WARNING`.
const WARNING: c_int = sys::RTE_LOG_WARNING as c_int;

thread_local! {
    static CAPTURE: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// glibc's `cookie_io_functions_t`.
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    /// fopencookie(3); a GNU extension that the libc crate does not declare.
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut sys::FILE;
}

/// Puts the stream in place, once per process. Where that fails DPDK goes on logging to stderr.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let functions = CookieFunctions { read: None, write: Some(write), seek: None, close: None };
        // SAFETY: mode is a NUL-terminated constant, `functions` matches glibc's layout, and `write` keeps the
        // contract of a cookie write function for any cookie.
        let stream = unsafe { fopencookie(std::ptr::null_mut(), c"w".as_ptr(), functions) };
        if stream.is_null() {
            tracing::warn!("no memory for a log stream; DPDK logs to stderr");
            return;
        }
        // SAFETY: the stream is valid and never closed: it lives as long as the process.
        unsafe { sys::rte_openlog_stream(stream) };
    });
}

/// Runs `operation` and returns, beside its result, what DPDK logged on this thread meanwhile.
pub(crate) fn captured<R>(operation: impl FnOnce() -> R) -> (R, Words) {
    let outer = CAPTURE.with_borrow_mut(|capture| capture.replace(Vec::new()));
    let result = operation();
    let lines = CAPTURE.with_borrow_mut(|capture| std::mem::replace(capture, outer));
    (result, Words(lines.unwrap_or_default()))
}

/// Lines about what peers of vhost-user ports do, who could fill the log, and hold up the worker that writes it: so many a second.
const OF_PEERS: &str = "VHOST_";
const A_SECOND: u32 = 100;
static PEERS: Allowance = Allowance::new();

/// So many lines of each second.
struct Allowance {
    second: AtomicU64,
    used: AtomicU32,
}

/// Whether there is room for a line.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    /// There is; so many were left out since the last second with lines began.
    Yes(u32),
    No,
}

impl Allowance {
    const fn new() -> Self {
        Self { second: AtomicU64::new(0), used: AtomicU32::new(0) }
    }

    /// A line of this second. Of two threads that begin a second at once, both write.
    fn take(&self, second: u64) -> Room {
        if self.second.swap(second, Ordering::Relaxed) != second {
            let used = self.used.swap(1, Ordering::Relaxed);
            return Room::Yes(used.saturating_sub(A_SECOND));
        }
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        if used < A_SECOND { Room::Yes(0) } else { Room::No }
    }
}

/// Seconds since the first call.
fn now_seconds() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_secs()
}

unsafe extern "C" fn write(_cookie: *mut c_void, bytes: *const c_char, length: usize) -> isize {
    if !bytes.is_null() {
        // SAFETY: stdio hands over `length` readable bytes that stay put during the call.
        let text = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
        // A panic (of a tracing subscriber, say) must not unwind into C. It loses the line, nothing else.
        let _ = catch_unwind(|| emit(text));
    }
    length.cast_signed()
}

fn emit(text: &[u8]) {
    // SAFETY: reads a thread-local of the calling thread; there is nothing to uphold.
    let level = unsafe { sys::rte_log_cur_msg_loglevel() };
    for line in String::from_utf8_lossy(text).lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        if line.starts_with(OF_PEERS) {
            match PEERS.take(now_seconds()) {
                Room::Yes(0) => {}
                Room::Yes(left_out) => {
                    tracing::warn!(target: "dpdk", left_out, "lines about vhost-user peers were left out of the log");
                }
                Room::No => continue,
            }
        }
        if (0..=WARNING).contains(&level) {
            let _ = CAPTURE.try_with(|capture| {
                if let Ok(mut capture) = capture.try_borrow_mut()
                    && let Some(lines) = capture.as_mut()
                    && lines.len() < KEPT_LINES
                {
                    lines.push(line.trim().to_owned());
                }
            });
        }
        match level {
            ..=4 => tracing::error!(target: "dpdk", "{line}"),
            5 => tracing::warn!(target: "dpdk", "{line}"),
            6 | 7 => tracing::info!(target: "dpdk", "{line}"),
            _ => tracing::debug!(target: "dpdk", "{line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_peers_fill_no_log() {
        let allowance = Allowance::new();
        let written = |second| (0..1000).filter(|_| allowance.take(second) != Room::No).count();
        assert_eq!(written(7), 100);
        assert_eq!(allowance.take(8), Room::Yes(900), "what was left out is told");
        assert_eq!(written(8), 99);
        assert_eq!(written(9), 100);
    }
}
