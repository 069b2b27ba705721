//! What a frame costs through a tap, each way, by one system call for each and by batches through io_uring(7).
//!
//! `unshare --net cargo run --release -p pmd --example tap_calls [pairs]`, as root. The ways alternate, since the speed of a shared
//! machine drifts by more than they differ; the ratio of each pair is what counts. Frames of 60 bytes: longer ones cost the copy
//! besides, either way.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

use pmd::rdtsc;

/// Frames of a batch, and batches of a measurement: the interface's queue holds as many frames.
const BATCH: usize = 32;
const BATCHES: usize = 14;
/// The header of virtio-net in front of each frame.
const HEADER: usize = 10;
const FRAME: usize = HEADER + 60;
const IFACE: &str = "calls0";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pairs: usize = std::env::args().nth(1).map_or(Ok(200), |text| text.parse())?;
    let mut tap = tap()?;
    let outside = Outside::new()?;
    let mut uring = Uring::new(&tap)?;
    let mut ratios = [Vec::new(), Vec::new()];
    let mut best = [[f64::MAX; 2]; 2];
    for _ in 0..pairs.max(1) {
        let sent = [by_calls(|| write_all(&mut tap))?, by_calls(|| uring.batches(Operation::Write))?];
        outside.fill()?;
        let read_by_calls = by_calls(|| read_all(&mut tap))?;
        outside.fill()?;
        let received = [read_by_calls, by_calls(|| uring.batches(Operation::Read))?];
        for (way, [calls, batches]) in [sent, received].into_iter().enumerate() {
            ratios[way].push(batches / calls);
            best[way] = [best[way][0].min(calls), best[way][1].min(batches)];
        }
    }
    for (way, name) in ["into the tap", "out of it"].into_iter().enumerate() {
        ratios[way].sort_by(f64::total_cmp);
        let at = |part: usize| ratios[way][(ratios[way].len() - 1) * part / 4];
        println!(
            "a frame {name}, cycles, best of {pairs}: a call for each {:.0}, batches of {BATCH} through io_uring {:.0}; \
             io_uring to calls: median {:.2} (quartiles {:.2} .. {:.2})",
            best[way][0],
            best[way][1],
            at(2),
            at(1),
            at(3)
        );
    }
    Ok(())
}

/// Cycles for each of the frames.
fn by_calls(mut work: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let start = rdtsc();
    work()?;
    Ok((rdtsc() - start) as f64 / (BATCH * BATCHES) as f64)
}

fn write_all(tap: &mut File) -> io::Result<()> {
    let frame = frame();
    (0..BATCH * BATCHES).try_for_each(|_| tap.write_all(&frame))
}

fn read_all(tap: &mut File) -> io::Result<()> {
    let mut room = [0; 2048];
    (0..BATCH * BATCHES).try_for_each(|_| tap.read(&mut room).map(|_| ()))
}

/// A frame of a protocol that nobody speaks: the kernel looks at it and drops it.
fn frame() -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[HEADER..HEADER + 14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}

fn checked(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn request() -> libc::ifreq {
    // SAFETY: integers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(IFACE.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

/// A tap as the switch opens it, which is up.
fn tap() -> io::Result<File> {
    let tap =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = request();
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: an open tun device, and a request with a name and flags.
    checked(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }.into())?;
    // SAFETY: makes a descriptor; the result is checked.
    let any = checked(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) }.into())?;
    // SAFETY: a fresh descriptor that nobody else owns.
    let any = unsafe { OwnedFd::from_raw_fd(any as i32) };
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: a socket, and a request with a name and flags.
    checked(unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) }.into())?;
    Ok(tap)
}

/// Whoever sends by the interface.
struct Outside(OwnedFd);

impl Outside {
    fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor; the result is checked.
        let socket = checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) }.into())?;
        // SAFETY: a fresh descriptor that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(socket as i32) };
        let mut request = request();
        // SAFETY: a socket, and a request with a name.
        checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request) }.into())?;
        // SAFETY: integers and bytes, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        // SAFETY: the kernel has just written it.
        address.sll_ifindex = unsafe { request.ifr_ifru.ifru_ifindex };
        let length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: a socket, and an address with its length.
        let ret = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        checked(ret.into())?;
        Ok(Self(socket))
    }

    /// As many frames as a measurement takes out.
    fn fill(&self) -> io::Result<()> {
        let frame = &frame()[HEADER..];
        for _ in 0..BATCH * BATCHES {
            // SAFETY: a socket and a frame with its length.
            checked(unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) } as i64)?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Operation {
    Read = 22,
    Write = 23,
}

/// A submission queue entry, as far as reads and writes use it (`struct io_uring_sqe` of linux/io_uring.h).
#[repr(C)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    rest: [u32; 9],
}

const _: () = assert!(size_of::<Submission>() == 64);

/// Where the kernel says that the parts of the submission ring are (`struct io_sqring_offsets`, then `struct io_cqring_offsets`).
#[repr(C)]
struct Parameters {
    entries: [u32; 2],
    other: [u32; 8],
    submission: [u32; 10],
    completion: [u32; 10],
}

const _: () = assert!(size_of::<Parameters>() == 120);

/// Rings shared with the kernel, for batches of reads or writes of the tap.
struct Uring {
    ring: OwnedFd,
    tap: i32,
    shared: *mut u8,
    submissions: *mut Submission,
    parameters: Parameters,
    rooms: Vec<[u8; 2048]>,
}

impl Uring {
    fn new(tap: &File) -> io::Result<Self> {
        // SAFETY: integers, for which zero is a value.
        let mut parameters: Parameters = unsafe { std::mem::zeroed() };
        // SAFETY: a number and a valid place; the result is checked.
        let ring = checked(unsafe { libc::syscall(libc::SYS_io_uring_setup, BATCH, &raw mut parameters) })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
        let map = |length: usize, offset: i64| {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping of the ring's memory, at a place of the kernel's choice.
            let at = unsafe {
                libc::mmap(std::ptr::null_mut(), length, protection, flags, ring.as_raw_fd(), offset)
            };
            if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at) }
        };
        // Completions follow the submissions' indices in one mapping (IORING_FEAT_SINGLE_MMAP).
        let length = parameters.completion[5] as usize + parameters.entries[1] as usize * 16;
        let shared = map(length, 0)?.cast();
        let submissions = map(BATCH * size_of::<Submission>(), 0x1000_0000)?.cast();
        let mut rooms = vec![[0; 2048]; BATCH];
        rooms.iter_mut().for_each(|room| room[..FRAME].copy_from_slice(&frame()));
        Ok(Self { ring, tap: tap.as_raw_fd(), shared, submissions, parameters, rooms })
    }

    /// A number in the memory that is shared.
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: inside the mapping, which is there as long as this; the kernel uses it atomically, too.
        unsafe { AtomicU32::from_ptr(self.shared.wrapping_add(offset as usize).cast()) }
    }

    fn batches(&mut self, operation: Operation) -> io::Result<()> {
        let [head_at, tail_at, ..] = self.parameters.completion;
        let (submit_tail, indices) = (self.parameters.submission[1], self.parameters.submission[6]);
        for _ in 0..BATCHES {
            let tail = self.word(submit_tail).load(Ordering::Relaxed);
            for number in 0..BATCH {
                let room = &mut self.rooms[number];
                let length = match operation {
                    Operation::Read => room.len(),
                    Operation::Write => FRAME,
                };
                let entry = Submission {
                    opcode: operation as u8,
                    flags: 0,
                    priority: 0,
                    fd: self.tap,
                    offset: 0,
                    address: room.as_mut_ptr() as u64,
                    length: length as u32,
                    rest: [0; 9],
                };
                // SAFETY: one of so many entries, none of which the kernel reads before the tail says so.
                unsafe { self.submissions.wrapping_add(number).write(entry) };
                let place = (tail.wrapping_add(number as u32)) as usize % BATCH;
                self.word(indices + 4 * place as u32).store(number as u32, Ordering::Relaxed);
            }
            self.word(submit_tail).store(tail.wrapping_add(BATCH as u32), Ordering::Release);
            let (ring, batch, wait) = (self.ring.as_raw_fd(), BATCH as u32, 1u32);
            let none = std::ptr::null::<u8>();
            // SAFETY: the ring, whose entries point to memory that stays; the call returns when all of them are done.
            checked(unsafe {
                libc::syscall(libc::SYS_io_uring_enter, ring, batch, batch, wait, none, 0usize)
            })?;
            let (head, tail) =
                (self.word(head_at).load(Ordering::Relaxed), self.word(tail_at).load(Ordering::Acquire));
            for number in head..tail {
                let place = number % self.parameters.entries[1];
                let result = self.word(self.parameters.completion[5] + 16 * place + 8);
                let result = result.load(Ordering::Relaxed).cast_signed();
                if result <= 0 {
                    return Err(io::Error::from_raw_os_error(-result));
                }
            }
            self.word(head_at).store(tail, Ordering::Release);
        }
        Ok(())
    }
}
