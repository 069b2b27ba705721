//! What kind of file a peer has sent, and how it is closed where that may take as long as the peer likes.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

use super::notify::CallFile;

/// Threads that close files at a time, each of which may hang for long.
const MOST_CLOSERS: usize = 256;

/// Whether a file holds memory: a memfd, a file in tmpfs or in huge pages, or device DAX. Any other lies on a disk or behind a server, and
/// whoever copies from it may have to wait for that.
pub(super) fn is_memory(file: BorrowedFd<'_>) -> bool {
    // SAFETY: an open descriptor. Files of memory have seals, if only the one that there will be no more of them (fcntl(2)).
    let has_seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) } >= 0;
    has_seals || is_device_memory(file)
}

fn is_device_memory(file: BorrowedFd<'_>) -> bool {
    let Some(status) = status(file).filter(|status| status.st_mode & libc::S_IFMT == libc::S_IFCHR) else {
        return false;
    };
    let (major, minor) = (libc::major(status.st_rdev), libc::minor(status.st_rdev));
    let subsystem = fs::read_link(format!("/sys/dev/char/{major}:{minor}/subsystem"));
    subsystem.is_ok_and(|path| path.ends_with("dax"))
}

/// Whether a file is a socket of this machine.
pub(super) fn is_local_socket(file: BorrowedFd<'_>) -> bool {
    let (mut family, mut size): (libc::c_int, libc::socklen_t) = (0, size_of::<libc::c_int>() as u32);
    // SAFETY: an open descriptor, a place for the answer and its size.
    let ret = unsafe {
        let place = (&raw mut family).cast();
        libc::getsockopt(file.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN, place, &raw mut size)
    };
    ret == 0 && family == libc::AF_UNIX
}

/// What the kernel says of a file.
pub(super) fn status(file: BorrowedFd<'_>) -> Option<libc::stat> {
    // SAFETY: integers, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a place of the right size.
    let ret = unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) };
    (ret == 0).then_some(status)
}

/// Closes files of a message that is refused. Of a socket that lingers, or a file of a server that does not answer, that may take for ever:
/// such are closed by a thread that nobody waits for.
pub(super) fn close(files: Vec<OwnedFd>) {
    static CLOSERS: AtomicUsize = AtomicUsize::new(0);
    let is_quick = |file: &OwnedFd| {
        let file = file.as_fd();
        CallFile::check(file).is_ok() || is_memory(file)
    };
    if files.iter().all(is_quick) {
        return;
    }
    if CLOSERS.fetch_add(1, Ordering::Relaxed) < MOST_CLOSERS {
        let body = move || {
            drop(files);
            CLOSERS.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = Builder::new().name("vhost-close".into()).spawn(body) {
            CLOSERS.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "no thread to close the files of a vhost-user peer");
        }
        return;
    }
    CLOSERS.fetch_sub(1, Ordering::Relaxed);
    tracing::warn!("files of vhost-user peers take too long to close");
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;

    fn memory() -> OwnedFd {
        // SAFETY: a C string; the result is checked.
        let file = unsafe { libc::memfd_create(c"files".as_ptr(), 0) };
        assert!(file >= 0);
        // SAFETY: a fresh descriptor.
        unsafe { std::os::fd::FromRawFd::from_raw_fd(file) }
    }

    #[test]
    fn hostile_vhost_files_are_told_by_their_kind() {
        let (near, _far) = UnixStream::pair().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(is_memory(memory().as_fd()));
        assert!(!is_memory(on_disk.as_fd()) && !is_memory(near.as_fd()));
        assert!(is_local_socket(near.as_fd()) && !is_local_socket(tcp.as_fd()));
        assert!(!is_local_socket(on_disk.as_fd()));
    }

    /// Its last descriptor is closed when all of it was sent, which nobody reads, or after some seconds.
    #[test]
    fn hostile_vhost_a_file_that_lingers_holds_nobody_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut socket, &[0; 65_536]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 3 };
        let size = size_of_val(&linger) as libc::socklen_t;
        // SAFETY: an open socket, and a whole option with its size.
        let ret = unsafe {
            let place = (&raw const linger).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, place, size)
        };
        assert_eq!(ret, 0);
        let begun = Instant::now();
        close(vec![socket.into(), memory()]);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}
