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

/// Frames that the kernel had no slot for, since the last question.
pub(super) fn missed(socket: BorrowedFd<'_>) -> u64 {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: an open socket, and a place with its size.
    let ret = unsafe {
        let place = (&raw mut stats).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, place, &raw mut size)
    };
    if ret == 0 { u64::from(stats.tp_drops) } else { 0 }
}
