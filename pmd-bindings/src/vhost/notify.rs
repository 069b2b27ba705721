//! [`CallFile`]: by what a guest is notified, which is a file of the peer's that polling threads write to.
//!
//! It is to be an eventfd that does not block. One that blocks, with a count that is full, would hold up the thread for ever, and
//! so would many another file. That it is an eventfd stays so; that it does not block the peer can change, for it has the same
//! open file: then a thread that hangs is freed by reading the count away ([`CallFile::drain`]).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use dpdk_sys as sys;

/// A copy of the descriptor that the library writes to.
#[derive(Debug)]
pub(super) struct CallFile(OwnedFd);

impl CallFile {
    /// That of a virtqueue, from now on without blocking; `None` when the guest wants no notifications.
    ///
    /// # Errors
    /// It is no eventfd.
    pub fn of(vid: i32, ring: u16) -> Result<Option<Self>, ()> {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut vring: sys::rte_vhost_vring = unsafe { std::mem::zeroed() };
        // SAFETY: a peer whose message the calling thread handles, and a valid place.
        let ret = unsafe { sys::rte_vhost_get_vhost_vring(vid, ring, &raw mut vring) };
        if ret != 0 || vring.callfd < 0 {
            return Ok(None);
        }
        // SAFETY: the library's, which it keeps open while the calling thread handles the message.
        let file = unsafe { BorrowedFd::borrow_raw(vring.callfd) };
        Self::new(file).map(Some).map_err(|_| ())
    }

    /// Sees to it that a file does not block, before anybody writes to it.
    ///
    /// # Errors
    /// It is no eventfd.
    pub fn check(file: BorrowedFd<'_>) -> io::Result<()> {
        let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if name.as_os_str() != "anon_inode:[eventfd]" {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: an open descriptor; flags are integers.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        // SAFETY: as above.
        if flags < 0 || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        Self::check(file)?;
        // SAFETY: as above; the result is checked.
        let own = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if own < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(own) }))
    }

    /// Takes the count away if it is full, so that whoever waits to add to it goes on; `true` if it was. Never waits, and
    /// leaves the count of a guest that has not looked yet as it is: without it the guest would not look.
    pub fn drain(&self) -> bool {
        let file = self.0.as_fd().as_raw_fd();
        // One more than the largest count cannot be added to it (eventfd(2)).
        let told = fs::read_to_string(format!("/proc/self/fdinfo/{file}")).unwrap_or_default();
        let count = told.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
        let count = count.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        if count.is_none_or(|count| count < u64::MAX - 1) {
            return false;
        }
        let mut count = 0u64;
        let place = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: size_of::<u64>() };
        // SAFETY: an open descriptor, and one place of ours with its size.
        let got = unsafe { libc::preadv2(file, &raw const place, 1, -1, libc::RWF_NOWAIT) };
        got == 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eventfd(count: u32, flags: libc::c_int) -> OwnedFd {
        // SAFETY: makes a descriptor; the result is checked.
        let file = unsafe { libc::eventfd(count, flags) };
        assert!(file >= 0);
        // SAFETY: a fresh descriptor.
        unsafe { OwnedFd::from_raw_fd(file) }
    }

    fn add(file: &OwnedFd, count: u64) -> io::Result<()> {
        // SAFETY: an open descriptor and eight bytes.
        let ret = unsafe { libc::write(file.as_raw_fd(), (&raw const count).cast(), 8) };
        if ret == 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[test]
    fn hostile_a_full_count_holds_nobody_up() {
        let file = eventfd(0, 0);
        add(&file, u64::MAX - 1).unwrap();
        let call = CallFile::new(file.as_fd()).unwrap();
        assert_eq!(add(&file, 1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // The peer makes it block again.
        // SAFETY: an open descriptor.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) };
        let writer = std::thread::spawn(move || add(&file, 1));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!writer.is_finished(), "it waits");
        assert!(call.drain());
        writer.join().unwrap().unwrap();
        assert!(
            !call.drain() && !call.drain(),
            "what is not full, or empty, is no trap, and nobody waits for it"
        );
    }

    #[test]
    fn hostile_what_is_no_eventfd_is_refused() {
        let (reader, writer) = std::io::pipe().unwrap();
        let file = fs::File::open("/dev/null").unwrap();
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        for file in [reader.as_fd(), writer.as_fd(), file.as_fd(), near.as_fd()] {
            assert!(CallFile::new(file).is_err());
        }
    }
}
