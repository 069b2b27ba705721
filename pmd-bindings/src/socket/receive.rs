//! [`Receiver`]: frames out of a socket's ring, and super-frames out of its queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use dpdk_sys as sys;
use wire::PacketBuf;

use super::Socket;
use super::datagrams::Datagrams;
use super::option::clear_error;
use super::ring::{Ring, Slot};
use crate::mbuf::Mbuf;
use crate::mempool::Mempool;
use crate::vnet::buffers::{Buffers, MAX_SEGMENTS, Place};
use crate::vnet::nested::Nested;
use crate::vnet::{LONGEST, RECEIVED_AT_ONCE, VNET_BYTES, VnetHeader};

/// The receiving half of a socket.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: Arc<Socket>,
    ring: Ring,
    buffers: Buffers,
    /// The frame in front waits for a buffer, and was counted.
    waits: bool,
    /// Datagrams of a frame that was cut, in order.
    cut: VecDeque<Mbuf>,
}

/// Bytes by which a frame of the queue is told to be that of the ring: Ethernet, IPv6 and the ports. What is behind them may be memory that
/// the sender still writes to (sendfile(2)), and then the kernel's two copies of one frame differ.
const HEADERS: usize = 14 + 40 + 4;

/// What became of the frame in front.
enum Taken {
    Packet(Mbuf),
    /// Datagrams, which are in `cut`.
    Cut,
    /// Nothing of use, and counted.
    Lost,
    /// What the queue has is not what the ring says: neither is of use.
    Mismatch,
    /// The pool is exhausted; the frame is still there.
    NoBuffer,
}

impl Receiver {
    pub(super) fn new(socket: Arc<Socket>, ring: Ring, pool: Mempool) -> Self {
        Self { socket, ring, buffers: Buffers::new(pool), waits: false, cut: VecDeque::new() }
    }

    /// Whether a frame is there.
    #[inline(always)]
    pub(crate) fn has_packets(&self) -> bool {
        self.ring.has_frame() || !self.cut.is_empty()
    }

    /// Readable when a frame is in the ring, and when the interface has gone down since the last [`take_error`](Self::take_error).
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }

    /// An interface that went down before is no reason to be readable.
    pub(crate) fn take_error(&self) {
        clear_error(self.socket.fd.as_fd());
    }

    /// Takes up to `count` packets, fewer when they are long, the first ones of `slots`, and returns how many.
    ///
    /// # Safety
    /// `slots` has room for `count` pointers.
    #[inline]
    pub(crate) unsafe fn receive(&mut self, slots: *mut *mut sys::rte_mbuf, count: usize) -> usize {
        let (mut received, mut bytes) = (0, 0);
        // Frames that come to nothing count, too: their sender does not hold up the others.
        let (mut looks, mut looked) = (0, 0);
        while received < count {
            let packet = match self.cut.pop_front() {
                Some(packet) => packet,
                None => {
                    let may_look = looks < count && looked < RECEIVED_AT_ONCE;
                    let Some(front) = self.ring.front().filter(|_| may_look) else { break };
                    looks += 1;
                    looked += front.vnet.weight(front.len);
                    let taken = take(&self.socket, &mut self.buffers, front, &mut self.cut);
                    let waited = std::mem::replace(&mut self.waits, matches!(taken, Taken::NoBuffer));
                    if self.waits {
                        self.socket.counters.rx_no_mbuf.add(u64::from(!waited));
                        break;
                    }
                    if let Taken::Mismatch = taken {
                        self.begin_anew();
                        break;
                    }
                    self.ring.pass_back();
                    let Taken::Packet(packet) = taken else { continue };
                    packet
                }
            };
            bytes += packet.len() as u64;
            // SAFETY: `received` is below `count`.
            unsafe { slots.wrapping_add(received).write(packet.into_raw().as_ptr()) };
            received += 1;
        }
        if received > 0 {
            self.socket.counters.rx_packets.add(received as u64);
            self.socket.counters.rx_bytes.add(bytes);
        }
        received
    }

    /// Throws away all that is in the ring and in the queue, so that the frames that come after it find their own again.
    #[cold]
    #[inline(never)]
    fn begin_anew(&mut self) {
        const ROUNDS: usize = 4;
        for _ in 0..ROUNDS {
            while self.ring.front().is_some() {
                self.socket.counters.rx_errors.add(1);
                self.ring.pass_back();
            }
            const AT_MOST: usize = 4096;
            for _ in 0..AT_MOST {
                if !discard(&self.socket) {
                    break;
                }
            }
            if !self.ring.has_frame() {
                break;
            }
        }
    }
}

#[inline]
fn take(socket: &Socket, buffers: &mut Buffers, front: Slot<'_>, cut: &mut VecDeque<Mbuf>) -> Taken {
    let pool = &buffers.pool;
    if let Some(size) = front.vnet.datagrams()
        && let Some(plan) = Datagrams::of(front, size.into(), pool.segment_room())
    {
        return read_datagrams(socket, pool, front, plan, cut);
    }
    if front.len > LONGEST {
        // What the kernel of a container may be told to send (`gso_max_size`), and no IP packet is.
        if front.queued {
            discard(socket);
        }
        return lost(socket);
    }
    let (packet, vnet) = if front.len <= front.bytes.len() {
        (pool.alloc_from(front.bytes), front.vnet)
    } else if front.queued {
        match read_queued(socket, buffers, front) {
            Queued::Packet(packet, vnet) => (Some(packet), vnet),
            Queued::Mismatch => return Taken::Mismatch,
            Queued::NoBuffer => (None, front.vnet),
        }
    } else {
        // The queue was full: half a frame is of no use to anybody.
        return lost(socket);
    };
    let Some(mut packet) = packet else { return Taken::NoBuffer };
    packet.segment().set_port(socket.port.get());
    if socket.cuts_tunnels
        && let Some(plan) = Nested::of(vnet, packet.head(), packet.len())
    {
        return cut_nested(socket, &packet, &plan, front.tag, cut);
    }
    let Some(vnet) = vnet.complete(&mut packet) else { return lost(socket) };
    vnet.tell(packet.segment());
    if let Some(tag) = front.tag
        && !put_tag(&mut packet, tag)
    {
        return lost(socket);
    }
    Taken::Packet(packet)
}

/// Makes packets of a super-frame in a tunnel.
#[inline(never)]
fn cut_nested(
    socket: &Socket,
    packet: &Mbuf,
    plan: &Nested,
    tag: Option<(u16, u16)>,
    cut: &mut VecDeque<Mbuf>,
) -> Taken {
    for piece in plan.cut(packet) {
        let Some(mut piece) = piece else {
            // It is not in the queue any more.
            socket.counters.rx_no_mbuf.add(1);
            break;
        };
        piece.segment().set_port(socket.port.get());
        if tag.is_none_or(|tag| put_tag(&mut piece, tag)) {
            cut.push_back(piece);
        } else {
            socket.counters.rx_errors.add(1);
        }
    }
    Taken::Cut
}

#[cold]
fn lost(socket: &Socket) -> Taken {
    socket.counters.rx_errors.add(1);
    Taken::Lost
}

/// Puts a tag back where the kernel took it out. What the kernel says of checksums counts from the frame's beginning and is kept as a
/// fact about the packet only, so nothing else moves.
fn put_tag(packet: &mut Mbuf, (tpid, tci): (u16, u16)) -> bool {
    let Some(head) = packet.prepend(4).filter(|head| head.len() >= 16) else { return false };
    head.copy_within(4..16, 0);
    head[12..14].copy_from_slice(&tpid.to_be_bytes());
    head[14..16].copy_from_slice(&tci.to_be_bytes());
    true
}

enum Queued {
    Packet(Mbuf, VnetHeader),
    Mismatch,
    NoBuffer,
}

/// The next frame of the socket's queue, of which the ring has the beginning.
#[inline(never)]
fn read_queued(socket: &Socket, buffers: &mut Buffers, front: Slot<'_>) -> Queued {
    if !buffers.may_hold(front.len) {
        return Queued::Mismatch;
    }
    if buffers.arm(front.len) < front.len {
        buffers.release();
        return Queued::NoBuffer;
    }
    let mut vnet = [0u8; VNET_BYTES];
    let mut places = [const { Place::uninit() }; MAX_SEGMENTS + 1];
    places[0].write(libc::iovec { iov_base: vnet.as_mut_ptr().cast(), iov_len: VNET_BYTES });
    let (used, _) = buffers.write_places(&mut places[1..]);
    // SAFETY: a structure of integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = places.as_mut_ptr().cast();
    message.msg_iovlen = used + 1;
    // SAFETY: each place is memory that is ours, with its size: the header and the tailrooms of fresh segments.
    let got = unsafe { next(socket, &mut message) };
    if got != Some(VNET_BYTES + front.len) || message.msg_flags & libc::MSG_TRUNC != 0 {
        buffers.release();
        return Queued::Mismatch;
    }
    let Some(packet) = buffers.take(front.len, &[]) else { return Queued::Mismatch };
    let known = HEADERS.min(front.bytes.len()).min(packet.head().len());
    if packet.head()[..known] != front.bytes[..known] {
        return Queued::Mismatch;
    }
    Queued::Packet(packet, VnetHeader::read(vnet))
}

/// The next message of the socket's queue; its length. A notice of the kernel that the link went down meanwhile comes in its
/// place, once, and is passed over.
///
/// # Safety
/// `message` names places that may be written.
unsafe fn next(socket: &Socket, message: &mut libc::msghdr) -> Option<usize> {
    const NOTICES: usize = 4;
    let fd = socket.fd.as_fd().as_raw_fd();
    for _ in 0..NOTICES {
        // SAFETY: an open socket; the rest is the caller's promise.
        let got = unsafe { libc::recvmsg(fd, std::ptr::from_mut(message), libc::MSG_DONTWAIT) };
        if let Ok(got) = usize::try_from(got) {
            return Some(got);
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::ENETDOWN) {
            return None;
        }
    }
    None
}

/// Makes a packet of each datagram of a frame, whose payload goes to where it belongs at once.
#[inline(never)]
fn read_datagrams(
    socket: &Socket,
    pool: &Mempool,
    front: Slot<'_>,
    plan: Datagrams<'_>,
    cut: &mut VecDeque<Mbuf>,
) -> Taken {
    let before = plan.headers.len();
    for number in 0..plan.count() {
        let Some(packet) = pool.alloc() else {
            cut.clear();
            return Taken::NoBuffer;
        };
        // At most the room of a buffer, which is at most 65,535.
        let length = before + plan.payload(number);
        packet.segment().set_data_len(length as u16);
        packet.segment().set_pkt_len(length as u32);
        cut.push_back(packet);
    }
    let is_whole = if front.queued {
        // SAFETY: `plan` has found that the buffers have room.
        unsafe { scatter(socket, plan, cut) }
    } else {
        let mut rest = &front.bytes[before..];
        for packet in cut.iter_mut() {
            let place = &mut packet.head_mut()[before..];
            let (here, behind) = rest.split_at(place.len());
            place.copy_from_slice(here);
            rest = behind;
        }
        true
    };
    if !is_whole {
        cut.clear();
        return Taken::Mismatch;
    }
    for (number, packet) in cut.iter_mut().enumerate() {
        plan.write(number, packet.head_mut());
        packet.segment().set_port(socket.port.get());
        if plan.is_partial() {
            VnetHeader::partial().tell(packet.segment());
        }
    }
    Taken::Cut
}

/// Reads the next frame of the queue into packets: each gets what it has room for behind its headers. `false` when it is another
/// frame than that of which the ring has the beginning.
///
/// # Safety
/// The data of each packet lies inside its buffer, longer than the headers; there are no more of them than `Datagrams::MOST`.
unsafe fn scatter(socket: &Socket, plan: Datagrams<'_>, packets: &VecDeque<Mbuf>) -> bool {
    let before = plan.headers.len();
    let mut headers = [0u8; VNET_BYTES + Datagrams::HEADERS];
    let mut places = [const { Place::uninit() }; Datagrams::MOST + 1];
    places[0].write(libc::iovec { iov_base: headers.as_mut_ptr().cast(), iov_len: VNET_BYTES + before });
    for (place, packet) in places[1..].iter_mut().zip(packets) {
        let segment = packet.segment();
        let (base, length) = (segment.data().wrapping_add(before), usize::from(segment.data_len()) - before);
        place.write(libc::iovec { iov_base: base.cast(), iov_len: length });
    }
    // SAFETY: a structure of integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = places.as_mut_ptr().cast();
    message.msg_iovlen = packets.len() + 1;
    // SAFETY: each place is memory that is ours, with its size: `headers`, and the data of fresh packets.
    let got = unsafe { next(socket, &mut message) };
    if got != Some(VNET_BYTES + plan.len) || message.msg_flags & libc::MSG_TRUNC != 0 {
        return false;
    }
    headers[VNET_BYTES..VNET_BYTES + before] == *plan.headers
}

/// Throws away the next frame of the queue; `false` when there is none.
#[cold]
fn discard(socket: &Socket) -> bool {
    let mut beginning = [0u8; 64];
    let mut place = libc::iovec { iov_base: beginning.as_mut_ptr().cast(), iov_len: beginning.len() };
    // SAFETY: a structure of integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut place;
    message.msg_iovlen = 1;
    // SAFETY: one place, which is ours, with its size.
    unsafe { next(socket, &mut message) }.is_some()
}
