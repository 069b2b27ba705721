//! DPDK's log, routed into `tracing` under the target `dpdk`.
//!
//! DPDK writes to a stdio stream; a stream with our own write function is put in place before the EAL starts,
//! so that nothing reaches stderr past `tracing`. Beside that, what a thread's own calls log at warning level
//! or above can be captured, for error messages. Never used on the packet path.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::Once;

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
