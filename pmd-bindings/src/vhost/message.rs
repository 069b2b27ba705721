//! [`Message`]: what librte_vhost has read from a peer and is about to do ("Front-end message types" of QEMU's
//! docs/interop/vhost-user.rst).

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use dpdk_sys as sys;

use super::files;

pub(super) const GET_FEATURES: u32 = 1;
pub(super) const SET_FEATURES: u32 = 2;
pub(super) const SET_OWNER: u32 = 3;
pub(super) const RESET_OWNER: u32 = 4;
pub(super) const SET_MEM_TABLE: u32 = 5;
pub(super) const SET_LOG_BASE: u32 = 6;
pub(super) const SET_LOG_FD: u32 = 7;
pub(super) const SET_VRING_NUM: u32 = 8;
pub(super) const SET_VRING_ADDR: u32 = 9;
pub(super) const SET_VRING_BASE: u32 = 10;
pub(super) const GET_VRING_BASE: u32 = 11;
pub(super) const SET_VRING_KICK: u32 = 12;
pub(super) const SET_VRING_CALL: u32 = 13;
pub(super) const SET_VRING_ERR: u32 = 14;
pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
pub(super) const GET_QUEUE_NUM: u32 = 17;
pub(super) const SET_VRING_ENABLE: u32 = 18;
pub(super) const SEND_RARP: u32 = 19;
pub(super) const NET_SET_MTU: u32 = 20;
pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
pub(super) const SET_STATUS: u32 = 39;
pub(super) const GET_STATUS: u32 = 40;

/// Bytes of the longest payload that the library knows: the parameters of a crypto session, of which there are more since 25.03.
const PAYLOAD: usize = if sys::RTE_VER_YEAR >= 25 { 1072 } else { 632 };
/// Files that come with a message at most (`VHOST_MEMORY_MAX_NREGIONS`).
const MOST_FILES: usize = 8;

/// `struct vhu_msg_context` of lib/vhost/vhost_user.h, which is the library's promise to whoever handles messages.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Context {
    number: u32,
    flags: u32,
    size: u32,
    payload: [u8; PAYLOAD],
    files: [RawFd; MOST_FILES],
    file_count: i32,
}

/// A copy of a message, and where it is.
pub(super) struct Message {
    context: Context,
    place: *mut Context,
}

impl Message {
    /// # Safety
    /// The library's message, which stays while this is there.
    pub unsafe fn at(place: *mut c_void) -> Self {
        let place = place.cast::<Context>();
        // SAFETY: the caller's promise; the library packs it.
        Self { context: unsafe { place.read_unaligned() }, place }
    }

    pub fn number(&self) -> u32 {
        self.context.number
    }

    /// Bytes that the peer said; what is behind them is of an earlier message.
    pub fn length(&self) -> usize {
        self.context.size as usize
    }

    /// The so many-th 32 bits of the payload.
    pub fn half(&self, at: usize) -> u32 {
        let bytes = self.context.payload.as_chunks().0.get(at);
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    /// The so many-th 64 bits of the payload.
    pub fn word(&self, at: usize) -> u64 {
        let bytes = self.context.payload.as_chunks().0.get(at);
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    /// The virtqueue that a message is for that says nothing else, or a number beside it; one for a file has flags behind it.
    pub fn ring(&self) -> u16 {
        (self.half(0) & 0xff) as u16
    }

    /// The files that came with it.
    pub fn files(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        let count = usize::try_from(self.context.file_count).unwrap_or(0).min(MOST_FILES);
        let files = self.context.files;
        // SAFETY: the library received them, and keeps them open until it has handled the message.
        (0..count).map(move |at| unsafe { BorrowedFd::borrow_raw(files[at]) })
    }

    /// Closes the files of a message that the library is not to handle: it forgets them then.
    pub fn close_files(&self) {
        let all = self.context.files.into_iter().filter(|file| *file >= 0);
        // SAFETY: the library received them for this message, and has no more to do with them.
        files::close(all.map(|file| unsafe { OwnedFd::from_raw_fd(file) }).collect());
        // SAFETY: the library's place, which stays while this is there.
        let files = unsafe { &raw mut (*self.place).files };
        // SAFETY: as above; -1 is none.
        unsafe { files.write_unaligned([-1; MOST_FILES]) };
    }
}

#[cfg(test)]
impl Message {
    /// One without files, whose payload is these numbers.
    pub fn of(number: u32, halves: &[u32]) -> Self {
        let mut payload = [0; PAYLOAD];
        for (place, half) in payload.as_chunks_mut().0.iter_mut().zip(halves) {
            *place = half.to_ne_bytes();
        }
        let size = 4 * halves.len() as u32;
        let context = Context { number, flags: 1, size, payload, files: [-1; MOST_FILES], file_count: 0 };
        Self { context, place: std::ptr::null_mut() }
    }
}
