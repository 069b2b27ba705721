//! Small things about processes and network interfaces that need system calls: who we are, dying with the
//! parent, and what a kernel interface is set to (ethtool).
//!
//! Nothing here concerns DPDK; it lives here because only this crate may use `unsafe`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// The effective user id.
pub fn effective_uid() -> u32 {
    // SAFETY: asks the kernel; it cannot fail.
    unsafe { libc::geteuid() }
}

/// Ends the process at once, whatever its other threads are doing: nothing is flushed, no destructor and no exit
/// handler runs. For a state in which those could not be trusted.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process; it cannot fail.
    unsafe { libc::_exit(status) }
}

/// Gives the kernel back what was freed and the C library keeps for later. It takes milliseconds: for work that needs
/// much memory once, such as reading a large config again.
pub fn trim_heap() {
    // SAFETY: releases free memory only; other threads may allocate meanwhile. The answer is whether there was any.
    unsafe { libc::malloc_trim(0) };
}

/// True for the superuser.
pub fn is_root() -> bool {
    effective_uid() == 0
}

/// Has the kernel send `signal` to this process when the thread that started it ends.
///
/// # Errors
/// `EINVAL` for a number that is no signal.
pub fn die_with_parent(signal: i32) -> io::Result<()> {
    let signal = libc::c_ulong::from(signal.cast_unsigned());
    // SAFETY: sets an attribute of the calling process.
    let ret = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel kill the child that `command` starts when the starting *thread* ends. A child whose parent is
/// gone before this takes hold does not run.
pub fn kill_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let hook = move || {
        die_with_parent(libc::SIGKILL)?;
        // SAFETY: asks the kernel; it cannot fail.
        let now = unsafe { libc::getppid() };
        if now.cast_unsigned() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec the hook makes two system calls and allocates nothing.
    unsafe { command.pre_exec(hook) }
}

/// The driver of a kernel interface (`veth`, `tun`, `mlx5_core`).
///
/// # Errors
/// `ENODEV` for no such interface, `EOPNOTSUPP` for one without ethtool.
pub fn interface_driver(interface: &str) -> io::Result<String> {
    /// `struct ethtool_drvinfo`.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    const _: () = assert!(size_of::<DriverInfo>() == 196);
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    let mut request = Request::new(interface)?;
    request.raw.ifr_ifru.ifru_data = (&raw mut info).cast();
    request.run(SIOCETHTOOL)?;
    let name = CStr::from_bytes_until_nul(&info.driver).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// True when a kernel interface leaves TCP and UDP checksums of what it sends to the device below it. On a veth
/// nobody is below: packets read from its other end have unfinished checksums.
///
/// # Errors
/// `ENODEV` for no such interface, `EOPNOTSUPP` for one without ethtool.
pub fn tx_checksum_offload(interface: &str) -> io::Result<bool> {
    ethtool_value(interface, ETHTOOL_GTXCSUM, 0).map(|value| value != 0)
}

/// Switches that offload, as `ethtool -K <interface> tx on|off` does.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `ENODEV` for no such interface, `EOPNOTSUPP` where it cannot be switched.
pub fn set_tx_checksum_offload(interface: &str, on: bool) -> io::Result<()> {
    ethtool_value(interface, ETHTOOL_STXCSUM, on.into()).map(|_| ())
}

/// Lets this process have as many descriptors as it may (`RLIMIT_NOFILE`, getrlimit(2)), and says how many those are: a vhost-user
/// port with its peer has about ten.
///
/// # Errors
/// What the kernel says.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: whole limits.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_max)
}

/// The MTU of a kernel interface.
///
/// # Errors
/// `ENODEV` for no such interface.
pub fn interface_mtu(interface: &str) -> io::Result<u32> {
    let mut request = Request::new(interface)?;
    request.run(libc::SIOCGIFMTU)?;
    // SAFETY: the kernel filled this member of the union.
    let mtu = unsafe { request.raw.ifr_ifru.ifru_mtu };
    Ok(mtu.cast_unsigned())
}

/// Sets the MTU of a kernel interface.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `ENODEV` for no such interface, `EINVAL` for one that does not take it.
pub fn set_interface_mtu(interface: &str, mtu: u32) -> io::Result<()> {
    let mut request = Request::new(interface)?;
    request.raw.ifr_ifru.ifru_mtu = i32::try_from(mtu).map_err(io::Error::other)?;
    request.run(libc::SIOCSIFMTU)
}

pub(crate) fn ethtool_value(interface: &str, command: u32, value: u32) -> io::Result<u32> {
    let mut pair = [command, value];
    let mut request = Request::new(interface)?;
    request.raw.ifr_ifru.ifru_data = (&raw mut pair).cast();
    request.run(SIOCETHTOOL)?;
    Ok(pair[1])
}

/// An interface request and the socket to make it on.
pub(crate) struct Request {
    socket: OwnedFd,
    pub(crate) raw: libc::ifreq,
}

impl Request {
    pub(crate) fn new(interface: &str) -> io::Result<Self> {
        // SAFETY: characters and integers, for which zero is a value.
        let mut raw: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = raw.ifr_name.len() - 1;
        if interface.is_empty() || interface.len() > room || interface.contains('\0') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface name has 1 to 15 bytes"));
        }
        for (to, from) in raw.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from.cast_signed();
        }
        // SAFETY: makes a socket; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { socket, raw })
    }

    pub(crate) fn run(&mut self, operation: libc::c_ulong) -> io::Result<()> {
        // SAFETY: an interface request as the operation wants it, filled by the caller; what it points to
        // outlives the call.
        let ret = unsafe { libc::ioctl(self.socket.as_raw_fd(), operation, &raw mut self.raw) };
        if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_an_mtu_and_a_missing_interface_has_none() {
        assert!(interface_mtu("lo").unwrap() >= 1500);
        assert_eq!(interface_mtu("no-such-if").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert!(interface_mtu("a-name-that-is-too-long").is_err() && interface_mtu("").is_err());
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let starter = || {
            let mut command = Command::new("sleep");
            kill_with_parent(command.arg("60")).spawn().unwrap()
        };
        let mut child = std::thread::spawn(starter).join().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }
}
