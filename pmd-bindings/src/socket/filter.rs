//! [`Filter`]: which frames a packet socket takes.
//!
//! `tpacket_rcv` of Linux reserves a slot of the ring and then writes the virtio-net header. For a super-frame of a kind that the
//! header has no name for it gives up, and the slot stays reserved: from then on the kernel drops every frame, for as long as the
//! ring is there. Such super-frames are dropped before they get there, and counted. A classic filter cannot tell them, for it
//! sees no `gso_size`; hence eBPF. Where the kernel does not let us have that, the socket takes everything, and
//! [`Socket::fault`](super::Socket::fault) tells of the ring that stands still.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::option::set_at;

// Commands of bpf(2), and what they need: linux/bpf.h.
const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const MAP_TYPE_ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE`.
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
/// `BPF_PSEUDO_MAP_VALUE`: the address of a value, not of its map.
const MAP_VALUE: u8 = 2;
/// Offset of `gso_size` in `struct __sk_buff`.
const GSO_SIZE: i16 = 176;
/// `GSO_BY_FRAGS` of the kernel: a message of SCTP in several packets, which are cut where they were.
const BY_FRAGS: i32 = 0xffff;

/// An instruction of eBPF (RFC 9669).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// Source register in the upper four bits, destination in the lower.
    registers: u8,
    offset: i16,
    value: i32,
}

const fn instruction(code: u8, registers: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers, offset, value }
}

const EXIT: Instruction = instruction(0x95, 0, 0, 0);
/// Instructions that drop and count a frame.
const DROP: usize = 6;
const PASS: [Instruction; 2] = [instruction(0xb4, 0, 0, -1), EXIT];

/// The program. `names_udp` tells that the kernel has a name for super-frames of UDP datagrams; else all that are not TCP are dropped.
fn program(map: &OwnedFd, names_udp: bool) -> Vec<Instruction> {
    // Only where there is no name for datagrams: the protocol of the packet, from the frame.
    const TCP: i32 = 6;
    let tcp_alone = [
        // r0 = EtherType; IPv4, or IPv6, or to be dropped.
        instruction(0x28, 0, 0, 12),
        instruction(0x15, 0, 3, 0x0800),
        instruction(0x55, 0, 4, 0x86dd),
        // r0 = next header, or protocol.
        instruction(0x30, 0, 0, 14 + 6),
        instruction(0x05, 0, 1, 0),
        instruction(0x30, 0, 0, 14 + 9),
        instruction(0x15, 0, DROP as i16, TCP),
    ];
    let is_tcp = if names_udp { vec![instruction(0x05, 0, DROP as i16, 0)] } else { tcp_alone.to_vec() };
    let start = [
        // r6 = r1, for loads from the frame; r2 = gso_size; 0 is a frame that is not to be cut.
        instruction(0xbf, 0x16, 0, 0),
        instruction(0x61, 0x12, GSO_SIZE, 0),
        instruction(0x15, 0x02, (1 + is_tcp.len() + DROP) as i16, 0),
        instruction(0x15, 0x02, is_tcp.len() as i16, BY_FRAGS),
    ];
    let drop: [Instruction; DROP] = [
        // r1 = address of the count; add 1 to it, atomically.
        instruction(0x18, MAP_VALUE << 4 | 1, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0),
        instruction(0xb7, 0x02, 0, 1),
        instruction(0xdb, 0x21, 0, 0),
        instruction(0xb7, 0, 0, 0),
        EXIT,
    ];
    [&start[..], &is_tcp, &drop, &PASS].concat()
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is what the command takes and may write to, as far as it goes; addresses in it are of memory that the command may use.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<libc::c_long> {
    let size = size_of::<T>();
    let own = std::ptr::from_mut(attributes).cast::<u8>();
    // With zeros behind them: valgrind looks at more than the kernel is told to read.
    let mut whole = [0u64; 20];
    const { assert!(size_of::<T>() <= size_of::<[u64; 20]>()) };
    let place = whole.as_mut_ptr().cast::<u8>();
    // SAFETY: both have so many bytes.
    unsafe { place.copy_from_nonoverlapping(own, size) };
    // SAFETY: the caller's promise.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, place, size) };
    // SAFETY: as before the call; the kernel has written what is a value of this kind.
    unsafe { own.copy_from_nonoverlapping(place, size) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// As [`bpf`], of a command that makes a descriptor.
///
/// # Safety
/// As there.
unsafe fn bpf_descriptor<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// What drops the super-frames that would stop the ring. It keeps no descriptor once a socket has it: there are many ports.
#[derive(Debug)]
pub(super) struct Filter {
    program: Option<OwnedFd>,
    count: Count,
}

impl Filter {
    /// For the kernel that runs.
    ///
    /// # Errors
    /// `EPERM` without CAP_BPF; `EINVAL` before Linux 5.7.
    pub fn new() -> io::Result<Self> {
        Self::for_kernel(names_udp(&std::fs::read_to_string("/proc/sys/kernel/osrelease")?))
    }

    fn for_kernel(names_udp: bool) -> io::Result<Self> {
        const KEY_BYTES: u32 = size_of::<u32>() as u32;
        const VALUE_BYTES: u32 = size_of::<u64>() as u32;
        // Type, bytes of a key, bytes of a value, entries, flags.
        let mut map = [MAP_TYPE_ARRAY, KEY_BYTES, VALUE_BYTES, 1, MAP_MMAPABLE];
        // SAFETY: what the command takes, and no addresses.
        let map = unsafe { bpf_descriptor(MAP_CREATE, &mut map) }?;
        let code = program(&map, names_udp);
        let mut attributes = Load {
            kind: PROG_TYPE_SOCKET_FILTER,
            length: code.len() as u32,
            code: code.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
        };
        // SAFETY: what the command takes; so many instructions, and a text that ends with 0.
        let program = unsafe { bpf_descriptor(PROG_LOAD, &mut attributes) }?;
        Ok(Self { program: Some(program), count: Count::of(&map)? })
    }

    /// Has a socket use it, instead of the filter that it has; the first socket alone.
    pub fn attach(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Some(program) = self.program.take() else { return Ok(()) };
        set_at(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program.as_raw_fd())
    }

    /// Frames that it dropped.
    pub fn dropped(&self) -> u64 {
        self.count.get()
    }
}

/// The value of a map of one: how many frames the program dropped.
#[derive(Debug)]
struct Count(NonNull<u64>);

// SAFETY: the mapping belongs to this value alone; the kernel adds to it, and we read it, atomically.
unsafe impl Send for Count {}
// SAFETY: as above.
unsafe impl Sync for Count {}

impl Count {
    fn of(map: &OwnedFd) -> io::Result<Self> {
        // SAFETY: a fresh mapping of the map's value, wherever the kernel likes; the result is checked.
        let place = unsafe {
            let (size, fd) = (size_of::<u64>(), map.as_raw_fd());
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        let place = NonNull::new(place.cast()).filter(|_| place != libc::MAP_FAILED);
        place.map(Self).ok_or_else(io::Error::last_os_error)
    }

    fn get(&self) -> u64 {
        // SAFETY: aligned to a page, inside the mapping, which is there as long as `self` is; both sides are at it atomically.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr()) }.load(Ordering::Relaxed)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        // SAFETY: the mapping of `of`, to which no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<u64>()) };
    }
}

/// Of [`PROG_LOAD`].
#[repr(C)]
struct Load {
    kind: u32,
    length: u32,
    code: u64,
    license: u64,
}

/// Whether the kernel of this release has `VIRTIO_NET_HDR_GSO_UDP_L4`: since 6.2.
fn names_udp(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}

/// Has a socket take nothing.
pub(super) fn close(socket: BorrowedFd<'_>) -> io::Result<()> {
    // A classic program: return 0, the bytes to be kept.
    let mut code = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    set_at(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Has a socket take everything.
pub(super) fn detach(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_at(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROG_TEST_RUN: libc::c_long = 10;

    #[derive(Default)]
    #[repr(C)]
    struct TestRun {
        program: i32,
        result: u32,
        in_bytes: u32,
        out_bytes: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        context_in_bytes: u32,
        context_out_bytes: u32,
        context_in: u64,
        context_out: u64,
    }

    /// What the filter says to a frame that is to be cut so.
    fn run(filter: &Filter, gso_size: u32, ethertype: u16, protocol: u8) -> u32 {
        // The kernel takes a frame header off before it runs a socket filter so, other than on a packet socket.
        let mut frame = [0u8; 14 + 100];
        let packet = &mut frame[14..];
        packet[12..14].copy_from_slice(&ethertype.to_be_bytes());
        packet[if ethertype == 0x0800 { 23 } else { 20 }] = protocol;
        let mut context = [0u32; 48];
        context[GSO_SIZE as usize / 4] = gso_size;
        let mut attributes = TestRun {
            program: filter.program.as_ref().unwrap().as_raw_fd(),
            in_bytes: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            context_in_bytes: size_of_val(&context) as u32,
            context_in: context.as_ptr() as u64,
            ..TestRun::default()
        };
        // SAFETY: what the command takes; a frame and a context of these sizes.
        unsafe { bpf(PROG_TEST_RUN, &mut attributes) }.unwrap();
        attributes.result
    }

    #[test]
    fn the_filter_of_a_socket_drops_and_counts_what_would_stop_the_ring() {
        const IPV4: u16 = 0x0800;
        const IPV6: u16 = 0x86dd;
        let filter = Filter::for_kernel(true).unwrap();
        for ethertype in [IPV4, IPV6, 0x8100, 0x88b5] {
            for protocol in [6, 17, 132] {
                assert_eq!(run(&filter, 0, ethertype, protocol), u32::MAX, "is not to be cut");
                assert_eq!(run(&filter, 1448, ethertype, protocol), u32::MAX);
                assert_eq!(run(&filter, BY_FRAGS as u32, ethertype, protocol), 0);
            }
        }
        assert_eq!(filter.dropped(), 12);
        let filter = Filter::for_kernel(false).unwrap();
        let told = |gso_size| {
            [(IPV4, 6), (IPV6, 6), (IPV4, 17), (IPV6, 17), (IPV4, 132), (IPV6, 44), (0x8847, 6)]
                .map(|(ethertype, protocol)| run(&filter, gso_size, ethertype, protocol) != 0)
        };
        assert_eq!(told(0), [true; 7]);
        assert_eq!(told(1400), [true, true, false, false, false, false, false]);
        assert_eq!(told(BY_FRAGS as u32), [false; 7]);
        assert_eq!(filter.dropped(), 5 + 7);
    }

    #[test]
    fn the_filter_of_a_socket_knows_which_kernels_name_datagrams() {
        for (release, names) in [
            ("6.18.44-x", true),
            ("6.2.0", true),
            ("6.1.0-18-amd64", false),
            ("5.15", false),
            ("7.0-rc1", true),
            ("", false),
        ] {
            assert_eq!(names_udp(release), names, "{release}");
        }
    }
}
