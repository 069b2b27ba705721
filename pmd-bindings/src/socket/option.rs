//! Options of packet sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option of level `SOL_PACKET`.
pub(super) fn set<T: Copy>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    set_at(socket, libc::SOL_PACKET, option, value)
}

/// Sets an option of any level.
pub(super) fn set_at<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: an open socket, and a value with its size.
    let ret = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), size)
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An option of level `SOL_PACKET`.
pub(super) fn get<T: Copy + Default>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    get_at(socket, libc::SOL_PACKET, option)
}

/// An option of any level.
fn get_at<T: Copy + Default>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<T> {
    let mut value = T::default();
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: an open socket, and a place with its size.
    let ret = unsafe {
        let place = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, place, &raw mut size)
    };
    if ret == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Takes the error that waits in the socket, such as `ENETDOWN` of an interface that was down: with one, it counts as readable.
pub(super) fn clear_error(socket: BorrowedFd<'_>) {
    // What it was does not matter: control sees the interface itself.
    let _ = get_at::<libc::c_int>(socket, libc::SOL_SOCKET, libc::SO_ERROR);
}

/// What became of frames since the last question: how many were for the socket, and how many of them the kernel dropped.
pub(super) fn counted(socket: BorrowedFd<'_>) -> (u64, u64) {
    let [all, dropped] = get::<[u32; 2]>(socket, libc::PACKET_STATISTICS).unwrap_or_default();
    (all.into(), dropped.into())
}
