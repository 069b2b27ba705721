//! Packets that a queue does not take: for want of room, of a reader, or for their own sake.
//!
//! | what | becomes of it |
//! |---|---|
//! | the queue is full | packets wait in the buffer; more are dropped as `tx-full`, as are the last ones beyond the worker's room, and those in whose place one of control's waits |
//! | no link, no peer | all that waits is dropped at once as `link-down` |
//! | nothing was taken for [`STALL_NS`] | all that waits is dropped as `tx-stalled`, and from then on what comes is tried once |
//! | the driver takes those behind the first packet, and not that | the first is dropped as `tx-refused`, if it has many buffers only after [`STALL_NS`] |
//! | the kernel refuses a packet and takes others, or a driver cannot do what a packet asks of it | it counts as `tx-refused`, not as sent |
//!
//! The last but one is for limits that nobody told: some drivers leave a packet that they cannot send at the head of the
//! burst for ever (net_tap does so with long frames, librte_vhost with frames for which a guest's buffers are too small). A packet
//! of many buffers may only wait for room: a guest with few free ones takes short packets, and no super-frame.

use pipelines::drops::DropReason;
use pipelines::snapshot::PortIndex;

use super::own::buffers_of;
use super::{TxPath, TxPaths};

/// A queue that takes nothing for so long is stalled.
pub const STALL_NS: u64 = 50_000_000;
/// After so long it is asked whether it is the first packet that it does not like. Long enough for a guest whose processor does something
/// else for a while: room that comes just then is the others', and they overtake the first.
pub(super) const DOUBT_NS: u64 = 5_000_000;

/// Since when a queue does not take the first packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TxRefusal {
    /// The time of the first refusal in a row.
    since: Option<u64>,
    /// It took others meanwhile.
    is_passed: bool,
    stalled: bool,
}

impl TxRefusal {
    /// The queue took packets.
    #[inline(always)]
    pub(super) fn over(&mut self) {
        *self = Self::default();
    }
}

impl TxPaths {
    /// A queue took `sent` packets, and others not.
    #[cold]
    #[inline(never)]
    pub(super) fn refused(&mut self, port: PortIndex, sent: usize) {
        let now = self.now_ns;
        let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) else { return };
        if sent > 0 {
            own.refusal.over();
            return self.cut_to_room(port);
        }
        if !own.port.link() {
            own.refusal.over();
            self.give_up(port, DropReason::LINK_DOWN);
            return;
        }
        let for_ns = now.saturating_sub(*own.refusal.since.get_or_insert(now));
        if own.refusal.stalled || for_ns > STALL_NS && !own.refusal.is_passed {
            own.refusal.stalled = true;
            self.give_up(port, DropReason::TX_STALLED);
            return;
        }
        if for_ns > DOUBT_NS && own.buffer.len() > 1 {
            self.pass_by_first(port);
        }
        if for_ns > STALL_NS {
            self.give_up_first(port);
        }
        self.cut_to_room(port);
    }

    /// Drops the last packets of a buffer whose queue is full, as far as all that waits is more than the worker's room.
    fn cut_to_room(&mut self, port: PortIndex) {
        if self.room_left() > 0 {
            return;
        }
        self.count_handed();
        let mut lost = 0;
        while self.waiting + self.handed > super::WORKER_ROOM
            && let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port))
            && let Some(last) = own.buffer.pop()
        {
            drop(last);
            lost += 1;
            self.recount(port);
        }
        if lost > 0 {
            self.queued = self.queued.wrapping_sub(lost);
            self.count_drops(port, DropReason::TX_FULL, lost);
        }
    }

    /// Offers the packets behind the first one, and gives up the first when it is the only one that is not taken and is in one
    /// buffer, as they may be.
    pub(super) fn pass_by_first(&mut self, port: PortIndex) {
        let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) else { return };
        own.buffer.as_mut_slice().rotate_left(1);
        let behind = own.queue.send(&mut own.buffer);
        // The queue may have room again by now, and have taken all of them.
        if !own.buffer.is_empty() {
            own.buffer.as_mut_slice().rotate_right(1);
        }
        if behind == 0 {
            return;
        }
        own.refusal.is_passed = true;
        let own_turn = if own.buffer.is_empty() { 0 } else { own.queue.send(&mut own.buffer) };
        if own_turn > 0 {
            own.refusal.over();
        }
        self.sent(port, behind + own_turn);
        let Some(TxPath::Own(own)) = self.paths.get(usize::from(port)) else { return };
        if own_turn == 0 && own.buffer.iter().next().is_some_and(|first| buffers_of(first) == 1) {
            self.give_up_first(port);
        }
    }

    /// Drops the first packet of a buffer, if it is still the one that the queue does not take.
    fn give_up_first(&mut self, port: PortIndex) {
        let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)) else { return };
        if own.refusal.since.is_none() || own.buffer.is_empty() {
            return;
        }
        own.refusal.over();
        own.buffer.as_mut_slice().rotate_left(1);
        drop(own.buffer.pop());
        self.recount(port);
        self.queued = self.queued.wrapping_sub(1);
        self.count_drops(port, DropReason::TX_REFUSED, 1);
    }

    /// Drops all that waits in a buffer. Returns how many packets that were.
    pub(super) fn give_up(&mut self, port: PortIndex, reason: DropReason) -> u64 {
        let Some(TxPath::Own(own) | TxPath::Diverted(own, _)) = self.paths.get_mut(usize::from(port)) else {
            return 0;
        };
        let lost = own.buffer.len() as u64;
        own.buffer.clear();
        self.recount(port);
        self.queued = self.queued.wrapping_sub(lost);
        self.count_drops(port, reason, lost);
        lost
    }

    /// Moves what waits for a diverted queue into the ring to the other owner.
    #[cold]
    pub(super) fn pass_on(&mut self, port: PortIndex) {
        let left = self.room_left();
        let Some(TxPath::Diverted(own, ring)) = self.paths.get_mut(usize::from(port)) else { return };
        // What moves has its room already.
        let (mut lost, mut left) = (0, left + own.held.buffers);
        for packet in own.buffer.drain() {
            let buffers = buffers_of(&packet);
            match ring.push(packet, buffers, left) {
                Ok(()) => {
                    self.handed += buffers;
                    left = left.saturating_sub(buffers);
                }
                Err(packet) => {
                    drop(packet);
                    lost += 1;
                }
            }
        }
        own.refusal.over();
        self.recount(port);
        if lost > 0 {
            self.queued = self.queued.wrapping_sub(lost);
            self.count_drops(port, DropReason::TX_HANDOFF_FULL, lost);
        }
    }
}
