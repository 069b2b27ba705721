//! [`RxQueue`] and [`TxQueue`]: bursts in, bursts out.
//!
//! A queue is moved to the one thread that polls it and comes back when its port stops; holding it keeps the
//! port open. The calls go straight over DPDK's public `rte_eth_fp_ops` table, as the C inlines do, to a packet socket, to a
//! tap, or to librte_vhost. What is not sent stays with the caller, in order; nothing is retried and nothing dropped here but unparsable chains.

pub(crate) mod ethdev;
mod readiness;

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

use dpdk_sys as sys;
pub use readiness::Readiness;

use self::ethdev::{Nonblocking, prepare};
use crate::burst::Burst;
use crate::counters::Refused;
use crate::error::{Errno, PortError};
use crate::mbuf::{BUF_LEN, DATA_LEN, DATA_OFF, HEAD_BYTES, Mbuf, NB_SEGS, PKT_LEN, REFCNT};
use crate::port::{PortId, Running};
use crate::vnet::Sender;
use crate::{socket, tap, vhost};

/// Most packets of one [`RxQueue::receive_into`].
const AT_ONCE: usize = 64;

/// One receive queue of a started port.
#[derive(Debug)]
pub struct RxQueue {
    end: End,
    source: Source,
    split_drops: u64,
    /// Whether packets are looked at for short heads and second owners; see `port::config`.
    looks: bool,
}

/// One transmit queue of a started port.
#[derive(Debug)]
pub struct TxQueue {
    end: End,
    target: Target,
}

/// Where packets come from.
#[derive(Debug)]
enum Source {
    /// The driver's function.
    Ethdev,
    Socket(Box<socket::Receiver>),
    Tap(Box<tap::Receiver>),
    Vhost(Box<vhost::Receiver>),
}

/// Where packets go.
#[derive(Debug)]
enum Target {
    /// The driver's function.
    Ethdev,
    /// The driver's function, which blocks unless it must not.
    BlockingEthdev,
    /// The driver's function, and one before it for packets that ask something of the device. What that refused.
    PreparedEthdev(Refused),
    Socket(Box<Sender<socket::Socket>>),
    Tap(Box<Sender<tap::Queue>>),
    Vhost(Box<vhost::Sender>),
}

/// What both kinds have.
#[derive(Debug)]
struct End {
    /// The driver's functions; of no use for a port that is no ethdev.
    ops: NonNull<sys::rte_eth_fp_ops>,
    port: PortId,
    queue: u16,
    running: Arc<Running>,
    /// Send, not Sync: one thread at a time.
    _one_thread: PhantomData<Cell<()>>,
}

// SAFETY: `ops` points into a static table. A queue may be polled from any thread, by one at a time: bursts take
// `&mut`, and the `Cell` marker keeps it from being shared.
unsafe impl Send for End {}

impl End {
    /// For the port module: `queue` is set up, and no other `End` of its kind exists for it.
    fn new(running: &Arc<Running>, queue: u16) -> Self {
        let port = running.id();
        let table = (&raw mut sys::rte_eth_fp_ops).cast::<sys::rte_eth_fp_ops>();
        let ops = table.wrapping_add(port.index());
        // A static is never at address 0.
        let ops = NonNull::new(ops).unwrap_or(NonNull::dangling());
        Self { ops, port, queue, running: running.clone(), _one_thread: PhantomData }
    }
}

/// The (queue data, first callback) of `queue`.
///
/// # Safety
/// `data` is that of a started port, and `queue` one of its queues.
#[inline(always)]
unsafe fn queue_data(
    data: &sys::rte_ethdev_qdata,
    queue: u16,
) -> (*mut std::ffi::c_void, *mut std::ffi::c_void) {
    // SAFETY: the table has an entry for each queue of a started port.
    let own = unsafe { data.data.wrapping_add(usize::from(queue)).read() };
    // SAFETY: as above; callbacks come and go on other threads, atomically.
    let callback = unsafe { AtomicPtr::from_ptr(data.clbk.wrapping_add(usize::from(queue))) };
    (own, callback.load(Ordering::Relaxed))
}

impl RxQueue {
    pub(crate) fn new(running: &Arc<Running>, queue: u16) -> Self {
        Self {
            end: End::new(running, queue),
            source: Source::Ethdev,
            split_drops: 0,
            looks: running.looks_at_packets(),
        }
    }

    pub(crate) fn on_socket(running: &Arc<Running>, queue: u16, receiver: socket::Receiver) -> Self {
        Self { source: Source::Socket(Box::new(receiver)), ..Self::new(running, queue) }
    }

    pub(crate) fn on_tap(running: &Arc<Running>, queue: u16, receiver: tap::Receiver) -> Self {
        Self { source: Source::Tap(Box::new(receiver)), ..Self::new(running, queue) }
    }

    pub(crate) fn on_vhost(running: &Arc<Running>, queue: u16, receiver: vhost::Receiver) -> Self {
        Self { source: Source::Vhost(Box::new(receiver)), ..Self::new(running, queue) }
    }

    /// Receives into the burst's spare capacity and returns how many packets were added. Some drivers deliver
    /// nothing into less than four or eight free places.
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst) -> usize {
        let (old, spare) = (burst.len(), burst.spare());
        let slots = burst.spare_slots();
        // SAFETY: `slots` has room for `spare` pointers.
        let received = unsafe { self.burst(slots, spare) };
        // All are looked at, without a branch for each: the answer is yes nearly always.
        let usual = !self.looks
            || (0..received).fold(true, |usual, index| {
                // SAFETY: the driver wrote `received` valid packets.
                usual & unsafe { is_usual(slots.wrapping_add(index)) }
            });
        // SAFETY: they were written to the spare slots, and the driver gave them up.
        unsafe { burst.grow(received) };
        if usual {
            return received;
        }
        burst.filter_map_from(old, |packet| self.admit(packet));
        burst.len() - old
    }

    /// Receives into the leading `None`s of `slots`, up to 64, and returns how many of them hold a packet now.
    #[inline]
    pub fn receive_into(&mut self, slots: &mut [Option<Mbuf>]) -> usize {
        let room = slots.iter().take(AT_ONCE).take_while(|slot| slot.is_none()).count();
        // Not into the slots themselves: drivers leave what they like behind the packets that they return. The
        // vector receive of NICs does, and net_vhost leaves packets there that it has freed.
        let mut scratch = [const { MaybeUninit::<*mut sys::rte_mbuf>::uninit() }; AT_ONCE];
        let taken = scratch.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: `scratch` has room for `room` pointers.
        let received = unsafe { self.burst(taken, room) };
        let raw = slots.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: the driver wrote `received` valid packets and gave them up; an `Option<Mbuf>` is a pointer, so
        // many slots are `None`, and nothing else of `scratch` is looked at.
        unsafe { raw.copy_from_nonoverlapping(taken, received) };
        if !self.looks {
            return received;
        }
        let mut kept = 0;
        for index in 0..received {
            // SAFETY: the driver wrote a valid packet there, or the loop moved one there.
            if unsafe { is_usual(raw.wrapping_add(index)) } && kept == index {
                kept += 1;
                continue;
            }
            let packet = slots[index].take().and_then(|packet| self.admit(packet));
            if packet.is_some() {
                slots[kept] = packet;
                kept += 1;
            }
        }
        kept
    }

    /// False when a look at the queue, which costs less than receiving, shows that nothing is there; true for queues that cannot be
    /// looked at.
    #[inline]
    pub fn may_have_packets(&self) -> bool {
        match &self.source {
            Source::Ethdev | Source::Tap(_) => true,
            Source::Socket(socket) => socket.has_packets(),
            Source::Vhost(vhost) => vhost.has_packets(),
        }
    }

    /// One burst straight from the driver: the first so many pointers are packets, at most `count`; whatever is
    /// behind them is not to be looked at.
    ///
    /// # Safety
    /// `slots` has room for `count` pointers.
    #[inline(always)]
    unsafe fn burst(&mut self, slots: *mut *mut sys::rte_mbuf, count: usize) -> usize {
        match &mut self.source {
            Source::Ethdev => {}
            // SAFETY: the caller's promise.
            Source::Socket(socket) => return unsafe { socket.receive(slots, count) },
            // SAFETY: the caller's promise.
            Source::Tap(tap) => return unsafe { tap.receive(slots, count) },
            // SAFETY: the caller's promise.
            Source::Vhost(vhost) => return unsafe { vhost.receive(slots, count) },
        }
        let count = count.min(usize::from(u16::MAX)) as u16;
        // SAFETY: the table is static; its entry changes when the port starts or stops, and this queue keeps
        // the port from stopping.
        let ops = unsafe { self.end.ops.as_ref() };
        let Some(receive) = ops.rx_pkt_burst else { return 0 };
        // SAFETY: a queue of a started port.
        let (queue, callback) = unsafe { queue_data(&ops.rxq, self.end.queue) };
        // SAFETY: the driver's own function with its own queue, room for `count`, on the one thread that polls.
        let received = unsafe { receive(queue, slots, count) };
        if callback.is_null() {
            return usize::from(received.min(count));
        }
        let port = self.end.port.get();
        // SAFETY: as the C inline does it; the callbacks get the same packets and may reduce them.
        let received =
            unsafe { sys::rte_eth_call_rx_callbacks(port, self.end.queue, slots, received, count, callback) };
        usize::from(received.min(count))
    }

    /// A packet that is not of one segment with one owner: gathers its headers, or drops and counts it. One whose
    /// segments are not what its first one says is dropped, too: nobody behind here doubts a length.
    #[cold]
    fn admit(&mut self, packet: Mbuf) -> Option<Mbuf> {
        let admitted =
            Some(packet).filter(Mbuf::is_sound).and_then(|packet| match packet.segment().refcnt() {
                1 => Some(packet),
                _ => packet.unshared(),
            });
        let admitted = admitted.and_then(|mut packet| packet.pull_up(HEAD_BYTES).then_some(packet));
        self.split_drops += u64::from(admitted.is_none());
        admitted
    }

    /// The port.
    #[inline]
    pub fn port(&self) -> PortId {
        self.end.port
    }

    /// The queue's number.
    #[inline]
    pub fn queue(&self) -> u16 {
        self.end.queue
    }

    /// Packets that were dropped as `header-split`: their headers were spread over segments and could not be
    /// gathered, or their segments were not as many or as long as they said.
    #[inline]
    pub fn header_split_drops(&self) -> u64 {
        self.split_drops
    }

    pub(crate) fn running(&self) -> &Arc<Running> {
        &self.end.running
    }
}

/// True for a packet of one segment with one owner, whose two lengths agree and end inside its buffer: nearly all of them.
/// Drivers of shared memory (net_virtio_user) take a length from their peer as it is.
///
/// # Safety
/// `slot` holds a valid mbuf.
#[inline(always)]
unsafe fn is_usual(slot: *mut *mut sys::rte_mbuf) -> bool {
    // SAFETY: the caller's promise.
    let packet = unsafe { slot.read() };
    // Two loads, not one of eight bytes: drivers that have just written the fields one by one would stall it.
    let owners = packet.wrapping_byte_add(REFCNT).cast::<u16>();
    // SAFETY: a field of a valid mbuf, with one owner (or, for a moment, another that only counts down).
    let owners = unsafe { AtomicU16::from_ptr(owners) };
    let segments = packet.wrapping_byte_add(NB_SEGS).cast::<u16>();
    // SAFETY: a field of a valid mbuf.
    let segments = unsafe { segments.read() };
    let length = packet.wrapping_byte_add(DATA_LEN).cast::<u16>();
    // SAFETY: as above.
    let length = unsafe { length.read() };
    let total = packet.wrapping_byte_add(PKT_LEN).cast::<u32>();
    // SAFETY: as above.
    let total = unsafe { total.read() };
    let offset = packet.wrapping_byte_add(DATA_OFF).cast::<u16>();
    // SAFETY: as above.
    let offset = unsafe { offset.read() };
    let room = packet.wrapping_byte_add(BUF_LEN).cast::<u16>();
    // SAFETY: as above.
    let room = unsafe { room.read() };
    let inside = u32::from(offset) + u32::from(length) <= u32::from(room);
    inside & (owners.load(Ordering::Relaxed) == 1) & (segments == 1) & (total == u32::from(length))
}

impl TxQueue {
    pub(crate) fn new(running: &Arc<Running>, queue: u16) -> Self {
        let target = match (running.has_requests(), running.is_blocking()) {
            (true, _) => Target::PreparedEthdev(Refused::default()),
            (false, true) => Target::BlockingEthdev,
            (false, false) => Target::Ethdev,
        };
        Self { end: End::new(running, queue), target }
    }

    pub(crate) fn on_socket(running: &Arc<Running>, queue: u16, sender: Sender<socket::Socket>) -> Self {
        Self { target: Target::Socket(Box::new(sender)), ..Self::new(running, queue) }
    }

    pub(crate) fn on_tap(running: &Arc<Running>, queue: u16, sender: Sender<tap::Queue>) -> Self {
        Self { target: Target::Tap(Box::new(sender)), ..Self::new(running, queue) }
    }

    pub(crate) fn on_vhost(running: &Arc<Running>, queue: u16, sender: vhost::Sender) -> Self {
        Self { target: Target::Vhost(Box::new(sender)), ..Self::new(running, queue) }
    }

    /// Sends from the front of the burst and returns how many packets went. The others stay, in order.
    #[inline]
    pub fn send(&mut self, burst: &mut Burst) -> usize {
        let offered = burst.len().min(usize::from(u16::MAX));
        if offered == 0 {
            return 0;
        }
        let slots = burst.slots();
        // SAFETY: `slots` holds `offered` packets.
        let (sent, left) = unsafe { self.burst(slots, offered) };
        // SAFETY: the driver owns what was sent, the callbacks what they took away.
        unsafe { burst.forget_sent(sent, left, offered) };
        sent + offered - left
    }

    /// Sends the leading packets of `slots` and returns how many went; their slots are `None` then, the others
    /// stay where they are.
    #[inline]
    pub fn send_from(&mut self, slots: &mut [Option<Mbuf>]) -> usize {
        let offered = slots.iter().take_while(|slot| slot.is_some()).count().min(usize::from(u16::MAX));
        if offered == 0 {
            return 0;
        }
        let raw = slots.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: an `Option<Mbuf>` is a pointer, and `offered` of them are packets.
        let (sent, left) = unsafe { self.burst(raw, offered) };
        for index in (0..sent).chain(left..offered) {
            // SAFETY: inside `slots`; the packet has another owner now, and a null pointer is `None`.
            unsafe { raw.wrapping_add(index).write(std::ptr::null_mut()) };
        }
        // What callbacks took away was taken from the end: what is left follows what was sent.
        sent + offered - left
    }

    /// One burst straight to the driver: (packets sent, packets that callbacks left).
    ///
    /// # Safety
    /// `slots` holds `count` packets, of which those returned as sent or taken away have another owner then.
    #[inline(always)]
    unsafe fn burst(&mut self, slots: *mut *mut sys::rte_mbuf, count: usize) -> (usize, usize) {
        let mut left = count as u16;
        let mut _nonblocking = None;
        match &mut self.target {
            Target::Ethdev => {}
            Target::BlockingEthdev => _nonblocking = Some(Nonblocking::begin()),
            // SAFETY: the caller's promise.
            Target::PreparedEthdev(refused) => left = unsafe { prepare(&self.end, slots, left, refused) },
            // SAFETY: the caller's promise; what is gone belongs to nobody any more.
            Target::Socket(socket) => return (unsafe { socket.send(slots, count) }, count),
            // SAFETY: as above.
            Target::Tap(tap) => return (unsafe { tap.send(slots, count) }, count),
            // SAFETY: as above.
            Target::Vhost(vhost) => return (unsafe { vhost.send(slots, count) }, count),
        }
        // SAFETY: the table is static; its entry changes when the port starts or stops, and this queue keeps
        // the port from stopping.
        let ops = unsafe { self.end.ops.as_ref() };
        let Some(send) = ops.tx_pkt_burst else { return (0, count) };
        // SAFETY: a queue of a started port.
        let (queue, callback) = unsafe { queue_data(&ops.txq, self.end.queue) };
        if !callback.is_null() {
            let port = self.end.port.get();
            // SAFETY: as the C inline does it; the callbacks free what they take away and close the gaps.
            let kept = unsafe { sys::rte_eth_call_tx_callbacks(port, self.end.queue, slots, left, callback) };
            left = kept.min(left);
        }
        // SAFETY: the driver's own function with its own queue and `left` packets, on the one thread that
        // sends.
        let sent = unsafe { send(queue, slots, left) };
        (usize::from(sent.min(left)), usize::from(left))
    }

    /// Packets, and bytes of them, that were taken as sent since the last question and went nowhere: the kernel refused them, each for
    /// its own sake, a guest does not take such packets any more, or a driver cannot do what they ask for. Else drivers do not tell.
    #[inline]
    pub fn take_refused(&mut self) -> (u64, u64) {
        let refused = match &mut self.target {
            Target::Ethdev | Target::BlockingEthdev => return (0, 0),
            Target::PreparedEthdev(refused) => std::mem::take(refused),
            Target::Socket(socket) => socket.take_refused(),
            Target::Tap(tap) => tap.take_refused(),
            Target::Vhost(vhost) => vhost.take_refused(),
        };
        (refused.packets, refused.bytes)
    }

    /// True when packets are taken as sent, and lost, while the port has no link.
    #[inline]
    pub fn sends_without_link(&self) -> bool {
        matches!(self.target, Target::Socket(_))
    }

    /// True for a queue of a bond: the driver wants to be called at least every 100 ms.
    pub fn wants_calls(&self) -> bool {
        self.end.running.is_bond()
    }

    /// Sends nothing, so that the driver does what it does beside sending.
    pub fn tend(&mut self) {
        let mut nothing = std::ptr::null_mut();
        // SAFETY: no packet of none is looked at.
        let _ = unsafe { self.burst(&raw mut nothing, 0) };
    }

    /// Asks the driver to free packets that were sent. Returns how many it freed.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] for a driver without the function; [`PortError::Operation`] else.
    pub fn cleanup(&mut self) -> Result<usize, PortError> {
        // SAFETY: a queue of a started port, on the one thread that uses it; 0 means all.
        let ret = unsafe { sys::rte_eth_tx_done_cleanup(self.end.port.get(), self.end.queue, 0) };
        match Errno::check(ret) {
            Ok(freed) => Ok(usize::try_from(freed).unwrap_or(0)),
            Err(errno) => Err(self.end.running.error("free sent packets", errno)),
        }
    }

    /// The port.
    #[inline]
    pub fn port(&self) -> PortId {
        self.end.port
    }

    /// The queue's number.
    #[inline]
    pub fn queue(&self) -> u16 {
        self.end.queue
    }

    pub(crate) fn running(&self) -> &Arc<Running> {
        &self.end.running
    }
}

#[cfg(test)]
mod tests;
