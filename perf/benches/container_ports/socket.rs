//! Descriptors: packet sockets with virtio-net headers, and taps, as the switch opens them.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Bytes that may wait in a socket.
const SOCKET_BYTES: libc::c_int = 8 << 20;

/// The result of a system call.
pub fn checked(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A packet socket that is bound nowhere yet, and hears nothing.
pub fn packet() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: makes a descriptor; the result is checked.
    let fd = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }.into())?;
    // SAFETY: a fresh descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let on: libc::c_int = 1;
    set(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
    set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &SOCKET_BYTES)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SOCKET_BYTES)?;
    Ok(fd)
}

/// Sets an option.
pub fn set<T: Copy>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (value, size) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: an open socket, and a value with its size.
    let ret = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, size) };
    checked(ret.into()).map(drop)
}

/// Binds a packet socket to an interface, of which it hears everything from now on if it is to hear at all.
pub fn bind(fd: &OwnedFd, interface: &str, hears: bool) -> io::Result<()> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = if hears { (libc::ETH_P_ALL as u16).to_be() } else { 0 };
    address.sll_ifindex = pmd::interface::index(interface)?.cast_signed();
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: an open socket, and an address with its size.
    let ret = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
    checked(ret.into()).map(drop)
}

/// A tap, which is there as long as its descriptor.
pub fn tap(interface: &str) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    let tap = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: integers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: an open tun device, and a request with a name and flags.
    checked(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }.into())?;
    let offloads = libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6);
    // SAFETY: a tap, and a number.
    checked(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) }.into())?;
    Ok(tap.into())
}

/// Receives or reads a message into a place of so many bytes; `None` when nothing waits.
///
/// # Safety
/// The place may be written.
pub unsafe fn read(fd: &OwnedFd, place: *mut u8, room: usize) -> io::Result<Option<usize>> {
    // SAFETY: an open descriptor; the rest is the caller's promise.
    let got = unsafe { libc::read(fd.as_raw_fd(), place.cast(), room) };
    match checked(got as libc::c_long) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        got => got.map(Some),
    }
}

/// Sends messages by a socket, all of them.
///
/// # Safety
/// Each piece may be read.
pub unsafe fn send_all(fd: &OwnedFd, pieces: &mut [libc::iovec]) -> io::Result<()> {
    let message = |piece: &mut libc::iovec| {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (std::ptr::from_mut(piece), 1);
        message
    };
    let mut messages: Vec<libc::mmsghdr> = pieces.iter_mut().map(message).collect();
    let mut sent = 0;
    while let Some(rest) = messages.get_mut(sent..).filter(|rest| !rest.is_empty()) {
        // SAFETY: an open socket, and so many messages; the rest is the caller's promise.
        let taken = unsafe { libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0) };
        match checked(taken.into()) {
            // Until whoever has the earlier ones has let go of them.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            taken => sent += taken?,
        }
    }
    Ok(())
}
