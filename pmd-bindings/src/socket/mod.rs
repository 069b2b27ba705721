//! Ports on kernel interfaces by packet sockets, without an ethdev: any number of them, with the kernel's offloads.
//!
//! A packet socket with `PACKET_VNET_HDR` tells of each frame whether its checksum is unfinished and into which segments it is to be
//! cut, and takes the same from us. Over a veth a TCP segment of 64 KB thus goes whole from one container to another, and
//! nobody computes a checksum. Received frames are in a ring that is shared with the kernel (`ring.rs`), longer ones are
//! read from the socket (`receive.rs`); frames are sent by the burst.
//!
//! The interface stays as it is, but for promiscuity while the port runs.

mod datagrams;
mod filter;
mod option;
mod receive;
mod ring;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use filter::Filter;
use option::{counted, get, set, set_at};
pub(crate) use receive::Receiver;
use ring::{Memory, Ring};

use crate::counters::Counters;
use crate::mempool::Mempool;
use crate::port::{PortId, PortStats};
use crate::vnet::{Outlet, Sender, VNET_BYTES};

/// Bytes that may wait in a socket's queue (super-frames on their way in) and on their way out.
const SOCKET_BYTES: libc::c_int = 8 << 20;
/// Frames longer than this come by the queue if they do not fit their slot; the kernel asks for a number above 0.
const COPY_THRESHOLD: libc::c_int = 1;

/// A number that no other group has (`PACKET_FANOUT_FLAG_UNIQUEID` of linux/if_packet.h, in the upper half of the option).
const FANOUT_UNIQUE: u32 = 0x2000 << 16;
/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`, so too.
const FANOUT_IGNORE_OUTGOING: u32 = 0x4000 << 16;

/// A packet socket on an interface.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    port: PortId,
    counters: Counters,
    /// None where the kernel does not let us have it.
    filter: Option<Filter>,
    ring: Arc<Memory>,
    watch: Mutex<Watch>,
    cuts_tunnels: bool,
}

/// What the kernel says of a socket, and what that looked like.
#[derive(Debug, Default)]
struct Watch {
    /// Frames for the ring.
    delivered: u64,
    /// Frames that the kernel did not put there.
    missed: u64,
    /// Both, when last looked for a fault.
    looked: (u64, u64),
    /// Looks in a row after which the ring seemed to stand still.
    still: u32,
}

/// Why a socket is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not bound any more: its interface was deleted, or moved to another network namespace.
    Unbound,
    /// The kernel drops all frames although its ring is empty; see `filter.rs`.
    Still,
}

/// One queue pair: a socket with its ring.
pub(crate) type Pair = (Receiver, Sender<Socket>);

/// How the sockets of a port are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    pub port: PortId,
    /// Index of the interface.
    pub interface: u32,
    /// Sockets; several of them share the flows.
    pub queues: u16,
    /// Frames that wait in the ring of each at most.
    pub slots: u16,
    pub promiscuous: bool,
    /// Super-frames in tunnels are cut as they come; else they go on whole, to who takes off the tunnel.
    pub cuts_tunnels: bool,
    pub pool: &'a Mempool,
}

/// Makes the sockets of a port. The kernel tells of flows by a hash, and a socket gets the same flows always; a single socket gets
/// all frames as they are, fragments included.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW, `ENODEV` when the interface is gone, `ENOMEM` without memory for a ring.
pub(crate) fn open(setup: Setup<'_>) -> io::Result<(Vec<Arc<Socket>>, Vec<Pair>)> {
    let (mut opened, mut group) = (Vec::new(), None);
    for _ in 0..setup.queues {
        let (socket, ring) = Socket::open(setup)?;
        if setup.queues > 1 {
            group = Some(socket.join(group)?);
        }
        opened.push((socket, ring));
    }
    // Not before all are there: a socket that is in no group yet hears the flows of all.
    for (socket, _) in &mut opened {
        match &mut socket.filter {
            Some(filter) => filter.attach(socket.fd.as_fd()),
            None => filter::detach(socket.fd.as_fd()),
        }?;
    }
    let (mut sockets, mut pairs) = (Vec::new(), Vec::new());
    for (socket, ring) in opened {
        let socket = Arc::new(socket);
        pairs.push((
            Receiver::new(socket.clone(), ring, setup.pool.clone()),
            Sender::new(socket.clone(), VNET_BYTES),
        ));
        sockets.push(socket);
    }
    Ok((sockets, pairs))
}

impl Socket {
    /// One that is bound, and takes nothing yet.
    fn open(setup: Setup<'_>) -> io::Result<(Self, Ring)> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Without a protocol it hears nothing before it is bound, and then nothing before its filter is opened.
        // SAFETY: makes a socket; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        filter::close(fd.as_fd())?;
        let on: libc::c_int = 1;
        set(fd.as_fd(), libc::PACKET_VNET_HDR, &on)?;
        set(fd.as_fd(), libc::PACKET_COPY_THRESH, &COPY_THRESHOLD)?;
        // What we send is not for us, nor what the host itself sends by this interface.
        set(fd.as_fd(), libc::PACKET_IGNORE_OUTGOING, &on)?;
        // Beyond the system's limit where that is allowed (CAP_NET_ADMIN), else up to it.
        for (forced, usual) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            set_at(fd.as_fd(), libc::SOL_SOCKET, forced, &SOCKET_BYTES)
                .or_else(|_| set_at(fd.as_fd(), libc::SOL_SOCKET, usual, &SOCKET_BYTES))?;
        }
        let ring = Ring::new(fd.as_fd(), setup.slots.into())?;
        if setup.promiscuous {
            let member = libc::packet_mreq {
                mr_ifindex: setup.interface.cast_signed(),
                mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            set(fd.as_fd(), libc::PACKET_ADD_MEMBERSHIP, &member)?;
        }
        bind(&fd, setup.interface)?;
        let filter = Filter::new();
        if let Err(error) = &filter {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(%error, "packet sockets run without their filter, which takes CAP_BPF and Linux 5.7");
            });
        }
        let socket = Self {
            port: setup.port,
            counters: Counters::default(),
            filter: filter.ok(),
            ring: ring.memory(),
            watch: Mutex::default(),
            cuts_tunnels: setup.cuts_tunnels,
            fd,
        };
        Ok((socket, ring))
    }

    /// Joins the sockets of the port that share the flows, or is the first of them; returns what the next one joins.
    fn join(&self, group: Option<u32>) -> io::Result<u32> {
        let join = |group: u32| set(self.fd.as_fd(), libc::PACKET_FANOUT, &group);
        if let Some(group) = group {
            return join(group).map(|()| group);
        }
        let new = FANOUT_UNIQUE | libc::PACKET_FANOUT_HASH << 16;
        // The group hears for its members, and is told by itself not to hear what the host sends; older kernels cannot be told.
        join(new | FANOUT_IGNORE_OUTGOING).or_else(|_| join(new))?;
        get(self.fd.as_fd(), libc::PACKET_FANOUT)
    }

    /// What the kernel counted is added to what it said before.
    fn watch(&self) -> MutexGuard<'_, Watch> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, missed) = counted(self.fd.as_fd());
        watch.delivered += all.saturating_sub(missed);
        watch.missed += missed;
        watch
    }

    /// What it counted so far.
    pub(crate) fn stats(&self) -> PortStats {
        let counted = self.counters.stats();
        let filtered = self.filter.as_ref().map_or(0, Filter::dropped);
        PortStats { rx_missed: self.watch().missed, rx_errors: counted.rx_errors + filtered, ..counted }
    }

    /// Whether it is still bound to the interface, of which there may be another one with the same index by now.
    pub(crate) fn is_bound(&self) -> bool {
        // SAFETY: a structure of integers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let place = (&raw mut address).cast();
        // SAFETY: an open socket, and a place with its size.
        let ret = unsafe { libc::getsockname(self.fd.as_raw_fd(), place, &raw mut size) };
        // The kernel says -1 of an interface that is gone.
        ret != 0 || address.sll_ifindex > 0
    }

    /// Whether it is of no use any more, as far as that shows since the last look. Looks are some time apart.
    pub(crate) fn fault(&self) -> Option<Fault> {
        if !self.is_bound() {
            return Some(Fault::Unbound);
        }
        let mut watch = self.watch();
        let now = (watch.delivered, watch.missed);
        let (delivered, missed) = std::mem::replace(&mut watch.looked, now);
        let is_still = now.0 == delivered && now.1 > missed && self.ring.is_empty();
        watch.still = if is_still { watch.still + 1 } else { 0 };
        // Once may be a ring that was full for long and was emptied just now.
        (watch.still > 1).then_some(Fault::Still)
    }
}

impl Outlet for Socket {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    unsafe fn put(&self, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let (fd, count) = (self.fd.as_raw_fd(), messages.len() as u32);
        // SAFETY: an open socket, and so many messages; the rest is the caller's promise.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

fn bind(fd: &OwnedFd, interface: u32) -> io::Result<()> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface.cast_signed();
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: an open socket, and an address with its size.
    let ret = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
