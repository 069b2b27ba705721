//! The end of a vhost-user socket that the monitor of a virtual machine has, by hand: it says what no monitor would.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SEND_RARP: u32 = 19;
pub const POSTCOPY_ADVISE: u32 = 28;
pub const GET_INFLIGHT_FD: u32 = 31;

/// Virtio 1 and the features of the protocol.
pub const PLAIN: u64 = 1 << 32 | 1 << 30;
pub const PACKED: u64 = PLAIN | 1 << 34;
pub const MEMORY: u64 = 1 << 20;
pub const SLOTS: u32 = 64;

/// Descriptors, available ring, used ring of the two rings.
pub const PLACES: [[u64; 3]; 2] = [[0, 0x1000, 0x2000], [0x3000, 0x4000, 0x5000]];

#[derive(Debug)]
pub struct Monitor {
    pub socket: UnixStream,
    pub memory: File,
    files: Vec<File>,
}

/// A file in memory.
#[allow(unsafe_code, reason = "asks the kernel")]
pub fn memory(length: u64) -> File {
    // SAFETY: a C string; the result is checked.
    let file = unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(file >= 0);
    // SAFETY: a fresh descriptor.
    let file = unsafe { File::from_raw_fd(file) };
    file.set_len(length).unwrap();
    file
}

#[allow(unsafe_code, reason = "asks the kernel")]
fn eventfd() -> File {
    // SAFETY: makes a descriptor; the result is checked.
    let file = unsafe { libc::eventfd(0, 0) };
    assert!(file >= 0);
    // SAFETY: a fresh descriptor.
    unsafe { File::from_raw_fd(file) }
}

fn bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut payload = bytes(&[regions.len() as u32, 0]);
    payload.extend(regions.iter().flatten().flat_map(|word| word.to_ne_bytes()));
    payload
}

impl Monitor {
    pub fn connect(path: &Path) -> Self {
        Self::on(UnixStream::connect(path).unwrap())
    }

    pub fn on(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        Self { socket, memory: memory(MEMORY), files: Vec::new() }
    }

    /// Connects, and gets as far as a guest with one pair of queues.
    pub fn ready(path: &Path, features: u64) -> Self {
        Self::ready_with(path, features, PLACES)
    }

    pub fn ready_with(path: &Path, features: u64, places: [[u64; 3]; 2]) -> Self {
        let mut monitor = Self::connect(path);
        monitor.agree(features);
        monitor.share(&[[0, MEMORY, 0, 0]], &[monitor.memory.as_raw_fd()]).unwrap();
        for (ring, places) in (0..).zip(places) {
            monitor.numbers(SET_VRING_NUM, [ring, SLOTS]).unwrap();
            monitor.numbers(SET_VRING_BASE, [ring, if features == PACKED { 1 << 15 } else { 0 }]).unwrap();
            monitor.place(ring, places).unwrap();
            monitor.notify(ring).unwrap();
        }
        for ring in 0..2 {
            monitor.numbers(SET_VRING_ENABLE, [ring, 1]).unwrap();
        }
        monitor
    }

    pub fn agree(&self, features: u64) {
        self.ask(GET_FEATURES, &[]).unwrap();
        self.send(SET_OWNER, 1, &[], &[]).unwrap();
        self.send(SET_FEATURES, 1, &features.to_ne_bytes(), &[]).unwrap();
        self.ask(GET_PROTOCOL_FEATURES, &[]).unwrap();
        // Several queues, announcements, and replies to what asks for one.
        self.send(SET_PROTOCOL_FEATURES, 1, &0xd_u64.to_ne_bytes(), &[]).unwrap();
    }

    /// Sends a message, whole.
    #[allow(unsafe_code, reason = "std sends no descriptors")]
    pub fn send(&self, number: u32, flags: u32, payload: &[u8], files: &[RawFd]) -> io::Result<()> {
        let mut message = bytes(&[number, flags, payload.len() as u32]);
        message.extend(payload);
        let mut part = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
        let mut control = [0u64; 16];
        // SAFETY: integers and pointers, for which zero is a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !files.is_empty() {
            let length = size_of_val(files);
            header.msg_control = control.as_mut_ptr().cast();
            // SAFETY: arithmetic.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(length as u32) } as usize;
            // SAFETY: the place above has room for a header and so many descriptors.
            #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one header, filled in")]
            unsafe {
                let head = libc::CMSG_FIRSTHDR(&raw const header);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(length as u32) as usize;
                libc::CMSG_DATA(head).cast::<RawFd>().copy_from(files.as_ptr(), files.len());
            }
        }
        // SAFETY: an open socket, and a whole header of what is there.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn reply(&self) -> io::Result<u64> {
        let mut reply = [0; 20];
        (&self.socket).read_exact(&mut reply)?;
        Ok(u64::from_ne_bytes(reply[12..].try_into().unwrap()))
    }

    pub fn ask(&self, number: u32, payload: &[u8]) -> io::Result<u64> {
        self.send(number, 1, payload, &[])?;
        self.reply()
    }

    /// Sends a message and waits until it was handled.
    pub fn tell(&self, number: u32, payload: &[u8], files: &[RawFd]) -> io::Result<()> {
        self.send(number, 1 | 8, payload, files)?;
        match self.reply()? {
            0 => Ok(()),
            _ => Err(io::Error::other("refused")),
        }
    }

    pub fn numbers(&self, number: u32, numbers: [u32; 2]) -> io::Result<()> {
        self.tell(number, &bytes(&numbers), &[])
    }

    /// Regions by their address, size, address in the monitor, and offset in the file.
    pub fn share(&self, regions: &[[u64; 4]], files: &[RawFd]) -> io::Result<()> {
        self.tell(SET_MEM_TABLE, &table(regions), files)
    }

    /// As [`share`](Self::share), without waiting for it.
    pub fn share_unheard(&self, regions: &[[u64; 4]], files: &[RawFd]) -> io::Result<()> {
        self.send(SET_MEM_TABLE, 1, &table(regions), files)
    }

    pub fn place(&self, ring: u32, [descriptors, available, used]: [u64; 3]) -> io::Result<()> {
        let mut payload = bytes(&[ring, 0]);
        payload.extend([descriptors, used, available, 0].iter().flat_map(|word| word.to_ne_bytes()));
        self.tell(SET_VRING_ADDR, &payload, &[])
    }

    /// Says by what this ring's ends notify each other.
    pub fn notify(&mut self, ring: u32) -> io::Result<()> {
        for number in [SET_VRING_CALL, SET_VRING_KICK] {
            let file = eventfd();
            self.tell(number, &u64::from(ring).to_ne_bytes(), &[file.as_raw_fd()])?;
            self.files.push(file);
        }
        Ok(())
    }

    /// Sends a frame by the split ring at [`PLACES`], the so many-th since the start.
    pub fn offer(&self, place: [u64; 3], number: u16, size: u16, frame: &[u8]) {
        let slot = u64::from(number) % u64::from(SLOTS);
        let address = 0x1_0000 + slot * 2048;
        let packet = [&[0; 12][..], frame].concat();
        self.memory.write_all_at(&packet, address).unwrap();
        let mut descriptor = address.to_ne_bytes().to_vec();
        descriptor.extend(bytes(&[packet.len() as u32, 0]));
        self.memory.write_all_at(&descriptor, place[0] + 16 * slot).unwrap();
        let entry = place[1] + 4 + 2 * u64::from(number % size);
        self.memory.write_all_at(&(slot as u16).to_ne_bytes(), entry).unwrap();
        self.memory.write_all_at(&number.wrapping_add(1).to_ne_bytes(), place[1] + 2).unwrap();
    }

    /// Gives the switch a buffer for a frame by the split ring at [`PLACES`], the so many-th since the start.
    pub fn give(&self, place: [u64; 3], number: u16) {
        const WRITE: u32 = 2;
        let slot = u64::from(number) % u64::from(SLOTS);
        let mut descriptor = (0x4_0000 + slot * 2048).to_ne_bytes().to_vec();
        descriptor.extend(bytes(&[2048, WRITE]));
        self.memory.write_all_at(&descriptor, place[0] + 16 * slot).unwrap();
        self.memory.write_all_at(&(slot as u16).to_ne_bytes(), place[1] + 4 + 2 * slot).unwrap();
        self.memory.write_all_at(&number.wrapping_add(1).to_ne_bytes(), place[1] + 2).unwrap();
    }

    /// How many frames of a ring the switch has used.
    pub fn used(&self, place: [u64; 3]) -> u16 {
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, place[2] + 2).unwrap();
        u16::from_ne_bytes(index)
    }
}
