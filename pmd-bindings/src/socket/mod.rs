//! Ports on kernel interfaces by packet sockets, without an ethdev: any number of them, with the kernel's offloads.
//!
//! A packet socket with `PACKET_VNET_HDR` tells of each frame whether its checksum is unfinished and into which segments it is to be
//! cut, and takes the same from us. Over a veth a TCP segment of 64 KB thus goes whole from one container to another, and
//! nobody computes a checksum. Received frames are in a ring that is shared with the kernel (`ring.rs`), longer ones are
//! read from the socket (`receive.rs`); frames are sent by the burst (`send.rs`).
//!
//! The interface stays as it is, but for promiscuity while the port runs.

mod coalesce;
mod datagrams;
mod option;
mod receive;
mod ring;
mod send;
#[cfg(test)]
mod tests;
mod vnet;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use option::{missed, set, set_at};
pub(crate) use receive::Receiver;
use ring::Ring;
pub(crate) use send::Sender;

use crate::mempool::Mempool;
use crate::port::{PortId, PortStats};

/// Bytes that may wait in a socket's queue (super-frames on their way in) and on their way out.
const SOCKET_BYTES: libc::c_int = 8 << 20;
/// Frames longer than this come by the queue if they do not fit their slot; the kernel asks for a number above 0.
const COPY_THRESHOLD: libc::c_int = 1;

/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING` of linux/if_packet.h.
const FANOUT_IGNORE_OUTGOING: u32 = 0x4000;

/// A count that one thread adds to and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a socket counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    rx_packets: Count,
    rx_bytes: Count,
    rx_no_mbuf: Count,
    /// Frames of which a part was lost.
    rx_errors: Count,
    rx_missed: Count,
    tx_packets: Count,
    tx_bytes: Count,
    tx_errors: Count,
}

impl Counters {
    fn stats(&self) -> PortStats {
        PortStats {
            rx_packets: self.rx_packets.get(),
            tx_packets: self.tx_packets.get(),
            rx_bytes: self.rx_bytes.get(),
            tx_bytes: self.tx_bytes.get(),
            rx_missed: self.rx_missed.get(),
            rx_errors: self.rx_errors.get(),
            tx_errors: self.tx_errors.get(),
            rx_no_mbuf: self.rx_no_mbuf.get(),
        }
    }
}

/// A packet socket on an interface.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    port: PortId,
    counters: Counters,
}

/// One queue pair: a socket with its ring.
pub(crate) type Pair = (Receiver, Sender);

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
    pub pool: &'a Mempool,
}

/// Makes the sockets of a port. The kernel tells of flows by a hash, and a socket gets the same flows always; a single socket gets
/// all frames as they are, fragments included.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW, `ENODEV` when the interface is gone, `ENOMEM` without memory for a ring.
pub(crate) fn open(setup: Setup<'_>) -> io::Result<(Vec<Arc<Socket>>, Vec<Pair>)> {
    let (mut sockets, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..setup.queues {
        let (socket, ring) = Socket::open(setup)?;
        let socket = Arc::new(socket);
        pairs.push((Receiver::new(socket.clone(), ring, setup.pool.clone()), Sender::new(socket.clone())));
        sockets.push(socket);
    }
    Ok((sockets, pairs))
}

impl Socket {
    fn open(setup: Setup<'_>) -> io::Result<(Self, Ring)> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Without a protocol it hears nothing before it is bound.
        // SAFETY: makes a socket; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
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
        if setup.queues > 1 {
            // Groups are told by 16 bits, within a network namespace.
            let group = (setup.interface ^ std::process::id() << 8) & 0xffff | libc::PACKET_FANOUT_HASH << 16;
            // The group hears for its members, and is told by itself not to hear what the host sends; older kernels cannot be told.
            set(fd.as_fd(), libc::PACKET_FANOUT, &(group | FANOUT_IGNORE_OUTGOING << 16))
                .or_else(|_| set(fd.as_fd(), libc::PACKET_FANOUT, &group))?;
        }
        Ok((Self { fd, port: setup.port, counters: Counters::default() }, ring))
    }

    /// What it counted so far.
    pub(crate) fn stats(&self) -> PortStats {
        self.counters.rx_missed.add(missed(self.fd.as_fd()));
        self.counters.stats()
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
