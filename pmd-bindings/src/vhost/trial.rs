//! Maps a peer's memory on trial, as librte_vhost will (`vhost_user_mmap_region` of lib/vhost/vhost_user.c).

use std::os::fd::{AsRawFd, BorrowedFd};

use super::files;

/// Whether the library will be able to map so many bytes of a file. The peer, which has the file too, may shrink it after that
/// (`guard.rs`); but it cannot forbid to write to it any more.
///
/// # Errors
/// Why not.
pub(super) fn map(file: BorrowedFd<'_>, length: u64) -> Result<(), &'static str> {
    let status = files::status(file).ok_or("a file of memory cannot be asked what it is")?;
    let file = file.as_raw_fd();
    let kind = status.st_mode & libc::S_IFMT;
    // Memory of a device (device DAX) has no size.
    if kind != libc::S_IFREG && kind != libc::S_IFCHR {
        return Err("a file of memory is none that holds memory");
    }
    if kind == libc::S_IFREG && u64::try_from(status.st_size).is_ok_and(|size| size < length) {
        return Err("a region of memory ends behind its file");
    }
    let length = usize::try_from(status.st_blksize)
        .ok()
        .filter(|block| block.is_power_of_two())
        .and_then(|block| usize::try_from(length).ok()?.checked_next_multiple_of(block));
    let length = length.ok_or("a region of memory ends nowhere")?;
    // No more seals: after F_SEAL_FUTURE_WRITE what could be mapped now could not be. A file without seals has no use for it.
    // SAFETY: an open descriptor, and a number.
    unsafe { libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SEAL) };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, which nobody touches.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file, 0) };
    if start == libc::MAP_FAILED {
        return Err("a file of memory cannot be mapped to be read and written");
    }
    // SAFETY: the mapping of above.
    unsafe { libc::munmap(start, length) };
    Ok(())
}
