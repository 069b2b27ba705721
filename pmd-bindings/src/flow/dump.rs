//! The rules that a driver says it holds, in its own words.

use dpdk_sys as sys;
use rules::{Cause, FlowError, Where};

use super::error;
use crate::error::Errno;
use crate::port::StartedPort;

impl StartedPort {
    /// What the driver says of the rules that it holds, of whoever made them. The format is the driver's.
    ///
    /// # Errors
    /// [`Cause::Unsupported`] for a driver that does not tell, or its words.
    pub fn flow_dump(&self) -> Result<String, FlowError> {
        let no_file = |errno: Errno| {
            let message = format!("no temporary file for what the driver says: {errno}");
            FlowError::new(Cause::Other(errno.code()), Where::Unspecified, message)
        };
        // SAFETY: no argument; the file is closed below.
        let file = unsafe { libc::tmpfile() };
        if file.is_null() {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            return Err(no_file(Errno::new(errno)));
        }
        let dumped = error::check(None, |error| {
            // SAFETY: a started port, all of its rules, an open file.
            unsafe { sys::rte_flow_dev_dump(self.id().get(), std::ptr::null_mut(), file.cast(), error) }
        });
        // SAFETY: an open file.
        unsafe { libc::rewind(file) };
        let mut bytes = Vec::new();
        let mut part = [0u8; 4096];
        loop {
            // SAFETY: an open file and a place for so many bytes.
            let read = unsafe { libc::fread(part.as_mut_ptr().cast(), 1, part.len(), file) };
            bytes.extend_from_slice(&part[..read]);
            if read == 0 {
                break;
            }
        }
        // SAFETY: an open file that nobody uses any more.
        unsafe { libc::fclose(file) };
        dumped.map(|_| String::from_utf8_lossy(&bytes).into_owned())
    }
}
