//! Has the library's connections to peers never block.
//!
//! One thread of the library reads what all peers say (`read_vhost_message` of lib/vhost/vhost_user.c): first the head of a
//! message, then the rest, for which it would wait as long as the peer likes; and it writes replies, for which it would wait as
//! long as the peer reads none. While it waits no other peer is served, and no port opens or closes. With descriptors that do not
//! block, a message that does not come whole ends its connection, and a reply that nobody reads is lost. Monitors write a message by
//! one call, so that it comes whole.

use std::fs;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::RawFd;

use super::Socket;

/// Finds the connections of a socket among the process's descriptors, for the library tells nobody which they are, and has them
/// not block.
///
/// # Errors
/// There are none, or what the kernel says.
pub(super) fn never_block(socket: &Socket) -> io::Result<()> {
    let mut found = Err(io::ErrorKind::NotFound.into());
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(file) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let is_it =
            if socket.is_server { is_accepted(file, socket.path.to_bytes()) } else { is_connected(file) };
        if is_it {
            set_nonblocking(file)?;
            found = Ok(());
        }
    }
    found
}

fn set_nonblocking(file: RawFd) -> io::Result<()> {
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(file, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A connection to the socket of this path: it has its address, but does not listen.
fn is_accepted(file: RawFd, path: &[u8]) -> bool {
    let name = name_of(file, libc::getsockname);
    name.is_some_and(|name| name == path) && option(file, libc::SO_ACCEPTCONN) == Some(0)
}

/// A connection that the library made. What it is called at the other end, the peer chose; but nobody else in this process makes
/// such sockets, which a program that it starts would have too, and standard output may be one.
fn is_connected(file: RawFd) -> bool {
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFD) };
    flags >= 0
        && flags & libc::FD_CLOEXEC == 0
        && option(file, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && name_of(file, libc::getsockname).is_some_and(|name| name.is_empty())
        && name_of(file, libc::getpeername).is_some()
        && !(0..=2).any(|standard| is_same(file, standard))
}

/// An option of a socket that is a number.
fn option(file: RawFd, option: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let place = (&raw mut value).cast();
    // SAFETY: a place, and its size.
    let ret = unsafe { libc::getsockopt(file, libc::SOL_SOCKET, option, place, &raw mut length) };
    (ret == 0).then_some(value)
}

type Asks = unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

/// The path of one end of a Unix socket, empty when it has none; `None` for any other socket or file.
fn name_of(file: RawFd, asks: Asks) -> Option<Vec<u8>> {
    const PATH: usize = offset_of!(libc::sockaddr_un, sun_path);
    // SAFETY: numbers, for which zero is a value.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: a place, and its size.
    let ret = unsafe { asks(file, (&raw mut name).cast(), &raw mut length) };
    if ret != 0 || i32::from(name.sun_family) != libc::AF_UNIX {
        return None;
    }
    let length = (length as usize).saturating_sub(PATH).min(name.sun_path.len());
    let path = name.sun_path[..length].iter().map(|byte| byte.cast_unsigned());
    Some(path.take_while(|byte| *byte != 0).collect())
}

/// Whether two descriptors are of one socket.
fn is_same(one: RawFd, other: RawFd) -> bool {
    let inode = |file: RawFd| fs::read_link(format!("/proc/self/fd/{file}")).ok();
    inode(one).is_some_and(|one| inode(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn blocks(file: &impl AsRawFd) -> bool {
        // SAFETY: an open descriptor.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) & libc::O_NONBLOCK == 0 }
    }

    #[test]
    fn hostile_vhost_the_connections_of_a_socket_are_found_and_no_others() {
        let path = std::env::temp_dir().join(format!("pmd-block-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let far = UnixStream::connect(&path).unwrap();
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut socket = Socket { path, is_server: true, offloads: true };
        assert!(never_block(&socket).is_err(), "nobody was accepted yet");
        let near = listener.accept().unwrap().0;
        never_block(&socket).unwrap();
        assert!(!blocks(&near) && blocks(&far) && blocks(&listener));
        assert_eq!((&near).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // As the library makes them, a program that is started would have it.
        socket.is_server = false;
        // SAFETY: an open descriptor.
        unsafe { libc::fcntl(far.as_raw_fd(), libc::F_SETFD, 0) };
        let pair = UnixStream::pair().unwrap();
        never_block(&socket).unwrap();
        assert!(!blocks(&far) && blocks(&listener) && blocks(&pair.0));
        fs::remove_file(std::ffi::OsStr::new(socket.path.to_str().unwrap())).unwrap();
    }
}
