//! Ports on kernel interfaces of our own making (`/dev/net/tun`), without an ethdev: any number of them, with the kernel's offloads.
//!
//! What the kernel sends by the interface is read here, and what is written here it receives there. With `IFF_VNET_HDR` it tells of
//! each frame whether its checksum is unfinished and into which segments it is to be cut, and takes the same from us: it computes no
//! checksum and cuts nothing on the way from one container to another. A frame is one system call; super-frames make few of them.
//!
//! The interface is the same one when it was renamed, or moved into a container's network namespace: the descriptors say what became
//! of it, and what takes its name is done in the namespace in which it is now.

mod receive;

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

pub(crate) use receive::Receiver;
use wire::MacAddr;

use crate::counters::Counters;
use crate::interface;
use crate::namespace::{OWN, identify, identity, in_namespace};
use crate::port::{PortStats, TapConfig, TapPlace};
use crate::process::Request;
use crate::vnet::{Outlet, VNET_BYTES, VNET_TUNNEL_BYTES};

/// What the kernel may leave to us: checksums and TCP segments, also of a connection with ECN. Not datagrams (`TUN_F_USO4`): those it
/// cuts itself.
const OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// TCP segments inside a tunnel of UDP, without an outer UDP checksum and with one (`TUN_F_UDP_TUNNEL_GSO` and `_GSO_CSUM`, Linux 6.17).
const TUNNEL_OFFLOADS: libc::c_uint = 0x80 | 0x100;

/// One queue of a tap: a descriptor, for a receiving and a sending half.
#[derive(Debug)]
pub(crate) struct Queue {
    fd: OwnedFd,
    counters: Counters,
}

/// A tap: it is there while this is, and after it if it persists.
#[derive(Debug)]
pub(crate) struct Tap {
    pub queues: Vec<Arc<Queue>>,
    /// Checksums and segmentation are left to us.
    pub offloads: bool,
}

/// A descriptor of a tap of this name, which may be one of several.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `EINVAL` for an interface of another kind or a tap of one queue.
pub(crate) fn attach(iface: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
    let mut request = Request::new(iface)?;
    // All of them fit 16 bits.
    request.raw.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE | flags) as libc::c_short;
    let mut options = OpenOptions::new();
    let device = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: an open tun device, and an interface request with its name and flags.
    unsafe { control(device.as_raw_fd(), libc::TUNSETIFF, (&raw mut request.raw) as libc::c_ulong) }?;
    Ok(device.into())
}

/// Removes a tap of several queues that nobody has open.
///
/// # Errors
/// As [`attach`].
pub(crate) fn remove(iface: &str) -> io::Result<()> {
    let queue = attach(iface, 0)?;
    // SAFETY: an open tap, and a number.
    unsafe { control(queue.as_raw_fd(), libc::TUNSETPERSIST, 0) }.map(drop)
}

/// ioctl(2); what it returns.
///
/// # Safety
/// `argument` is what the operation wants: a number, or a pointer to as much as it reads or writes.
unsafe fn control(fd: i32, operation: libc::Ioctl, argument: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: the caller's promise.
    let ret = unsafe { libc::ioctl(fd, operation, argument) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

impl Queue {
    fn open(iface: &str) -> io::Result<Self> {
        Ok(Self { fd: attach(iface, libc::IFF_VNET_HDR)?, counters: Counters::default() })
    }

    /// Says how long headers are, and what may be left to us.
    fn agree(&self, header_bytes: usize, offloads: libc::c_uint) -> io::Result<()> {
        // No more than `VNET_TUNNEL_BYTES`.
        let mut length = header_bytes as libc::c_int;
        // SAFETY: reads a number.
        unsafe { self.control(libc::TUNSETVNETHDRSZ, (&raw mut length) as libc::c_ulong) }?;
        // SAFETY: the argument is a number.
        unsafe { self.control(libc::TUNSETOFFLOAD, offloads.into()) }.map(drop)
    }

    /// # Safety
    /// As [`control`].
    unsafe fn control(&self, operation: libc::Ioctl, argument: libc::c_ulong) -> io::Result<i32> {
        // SAFETY: the caller's promise.
        unsafe { control(self.fd.as_raw_fd(), operation, argument) }
    }

    /// An interface request, as the kernel answers it.
    fn ask(&self, operation: libc::Ioctl) -> io::Result<libc::ifreq> {
        // SAFETY: characters and integers, for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: a request that may be written.
        unsafe { self.control(operation, (&raw mut request) as libc::c_ulong) }?;
        Ok(request)
    }
}

impl Outlet for Queue {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    unsafe fn put(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        for (sent, message) in messages.iter().enumerate() {
            let (pieces, count) = (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen as libc::c_int);
            // SAFETY: an open tap, and so many pieces, which may be read.
            if unsafe { libc::writev(self.fd.as_raw_fd(), pieces, count) } < 0 {
                let error = io::Error::last_os_error();
                return if sent > 0 { Ok(sent) } else { Err(error) };
            }
        }
        Ok(messages.len())
    }
}

impl Tap {
    /// Makes a tap, or takes one that nobody has open.
    ///
    /// # Errors
    /// The kernel's refusal: as [`attach`], or `E2BIG` for too many queues.
    pub fn open(config: &TapConfig) -> io::Result<Self> {
        let queues = (0..config.queues.max(1)).map(|_| Queue::open(&config.iface).map(Arc::new));
        let tap = Self { queues: queues.collect::<io::Result<_>>()?, offloads: config.offloads };
        if let Some(mac) = config.mac {
            tap.set_mac(mac)?;
        }
        Ok(tap)
    }

    /// Says to the kernel what it may leave to us, super-frames inside tunnels among it or not, before anything is read or written: whoever
    /// had a persistent tap before may have agreed on something else. How long headers are from now on.
    ///
    /// # Errors
    /// `EINVAL` of a kernel that knows nothing of tunnels, if they were asked for: then it is to be asked without.
    pub fn agree(&self, tunnels: bool) -> io::Result<usize> {
        let (bytes, tunnels) = if tunnels { (VNET_TUNNEL_BYTES, TUNNEL_OFFLOADS) } else { (VNET_BYTES, 0) };
        let offloads = if self.offloads { OFFLOADS | tunnels } else { 0 };
        // What one queue says goes for all: it is the interface's.
        self.first()?.agree(bytes, offloads)?;
        Ok(bytes)
    }

    /// Any one of its queues: in most ways they are the same.
    fn first(&self) -> io::Result<&Queue> {
        self.queues.first().map(|queue| &**queue).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Its name, in the network namespace in which it is now.
    ///
    /// # Errors
    /// `EBADFD` when it was deleted.
    fn name(&self) -> io::Result<String> {
        let request = self.first()?.ask(libc::TUNGETIFF)?;
        let bytes: Vec<u8> = request.ifr_name.iter().map(|c| c.cast_unsigned()).collect();
        Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Whether it was deleted.
    pub fn is_gone(&self) -> bool {
        self.poll() & libc::POLLERR != 0
    }

    /// Whether it is set up.
    pub fn is_up(&self) -> bool {
        // The kernel says of a tap that is not set up that it cannot be written.
        self.poll() & (libc::POLLOUT | libc::POLLERR) == libc::POLLOUT
    }

    /// What poll(2) says: it takes no lock of all interfaces, as an ioctl does.
    fn poll(&self) -> libc::c_short {
        let Ok(queue) = self.first() else { return libc::POLLERR };
        let mut poll = libc::pollfd { fd: queue.fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, which may be written; it does not wait.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        if ready == 1 { poll.revents } else { 0 }
    }

    /// The address of the kernel's end.
    pub fn mac(&self) -> io::Result<MacAddr> {
        self.first()?.ask(libc::SIOCGIFHWADDR as libc::Ioctl).map(|request| interface::address_in(&request))
    }

    /// Gives the kernel's end another address.
    ///
    /// # Errors
    /// `EBADFD` when it was deleted, `EADDRNOTAVAIL` for no station's address.
    pub fn set_mac(&self, mac: MacAddr) -> io::Result<()> {
        // SAFETY: characters and integers, for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: all members of the union are zero so far.
        let address = unsafe { &mut request.ifr_ifru.ifru_hwaddr };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(mac.0) {
            *to = from.cast_signed();
        }
        let queue = self.first()?;
        // SAFETY: a request with an address.
        unsafe { queue.control(libc::SIOCSIFHWADDR as libc::Ioctl, (&raw mut request) as libc::c_ulong) }?;
        Ok(())
    }

    /// Has it stay when nobody has it open.
    pub fn persist(&self) -> io::Result<()> {
        // SAFETY: the argument is a number.
        unsafe { self.first()?.control(libc::TUNSETPERSIST, 1) }.map(drop)
    }

    /// The network namespace in which it is now; `None` where the kernel does not say (Linux before 5.2).
    fn namespace(&self) -> io::Result<Option<File>> {
        // SAFETY: takes no argument.
        match unsafe { self.first()?.control(libc::TUNGETDEVNETNS, 0) } {
            // SAFETY: a fresh descriptor that nobody else owns.
            Ok(namespace) => Ok(Some(File::from(unsafe { OwnedFd::from_raw_fd(namespace) }))),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            // Not guessed: an interface of that name here may be another one.
            Err(error) => Err(error),
        }
    }

    /// What it is called now, and where it is.
    ///
    /// # Errors
    /// `EBADFD` when it was deleted.
    pub fn place(&self) -> io::Result<TapPlace> {
        let known = |namespace: File| namespace.metadata().map(|metadata| identity(&metadata));
        Ok(TapPlace { iface: self.name()?, namespace: self.namespace()?.map(known).transpose()? })
    }

    /// Does something with the interface, by its name, in the network namespace in which it is.
    ///
    /// # Errors
    /// What `with` says, `EBADFD` when it was deleted, `EPERM` for a namespace that we may not enter.
    pub fn at_home<T: Send>(&self, with: impl FnOnce(&str) -> io::Result<T> + Send) -> io::Result<T> {
        let name = self.name()?;
        let Some(namespace) = self.namespace()? else { return with(&name) };
        // Entering a namespace takes CAP_SYS_ADMIN, which its own process does not need.
        if identity(&namespace.metadata()?) == identify(Path::new(OWN))? {
            return with(&name);
        }
        in_namespace(&namespace, || with(&name))?
    }

    /// What its queues counted so far.
    pub fn stats(&self) -> PortStats {
        self.queues.iter().map(|queue| queue.counters.stats()).fold(PortStats::default(), PortStats::plus)
    }
}
