//! [`Own`]: a transmit queue that this worker owns, what waits in front of it, and how much that may be.

use std::sync::Arc;

use pmd::mempool::LONG_FRAME;
use pmd::{Burst, Mbuf, TxQueue};
use wire::PacketBuf;

use super::refusal::TxRefusal;
use super::ring::{self, Ring};
use super::state::PortState;

/// Packets that wait in the buffers of a port's queues before more are dropped as `tx-full`, all queues together;
/// each of many queues has room for [`MIN_BUFFER`].
pub(super) const BUFFERS: usize = 128;
/// Packets that the buffer of each queue has room for at least.
pub(super) const MIN_BUFFER: usize = 32;
/// Bytes of a usual buffer, about.
const USUAL: usize = 2048;
/// A longer packet may lie in one long buffer, and waits as what it would be in usual ones.
const SHORT: usize = LONG_FRAME;

/// Buffers as which a packet waits: as many as it has; one in a long buffer as many usual ones as it would need.
#[inline]
pub(super) fn buffers_of(packet: &Mbuf) -> usize {
    let (len, buffers) = (packet.len(), packet.segment_count());
    if len > SHORT { buffers.max(len / USUAL) } else { buffers }
}

/// Packets in the buffer of one of so many queues, and the buffers that they may have: as many again, for packets in
/// several.
fn own_sizes(queues: usize) -> (usize, usize) {
    let packets = (BUFFERS / queues.max(1)).max(MIN_BUFFER);
    (packets, 2 * packets)
}

/// Buffers that may wait for a port of so many transmit queues on so many workers.
pub fn most_buffers(queues: usize, workers: usize) -> usize {
    let queues = queues.clamp(1, workers.max(1));
    let handing = workers.saturating_sub(queues);
    queues * own_sizes(queues).1 + handing * ring::sizes(handing).1
}

/// A transmit queue for the worker that is to own it.
pub struct OwnQueue {
    pub queue: TxQueue,
    /// The rings in which other workers have packets for it.
    pub rings: Vec<Ring>,
    pub port: Arc<PortState>,
    /// Transmit queues of the port that workers own.
    pub queues: usize,
}

/// An own queue, and what waits in front of it.
pub(super) struct Own {
    pub queue: TxQueue,
    pub buffer: Burst,
    /// So many of those at its head are control's.
    pub ahead: usize,
    pub held: Held,
    /// Buffers of the pool that the packets in `buffer` may have.
    pub room: usize,
    /// The longest frame, as it was when the buffer was last flushed; no more than what certainly lies in usual buffers.
    pub max_frame: usize,
    pub refusal: TxRefusal,
    pub rings: Vec<Ring>,
    pub port: Arc<PortState>,
}

/// What packets amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub bytes: u64,
    /// Buffers of the pool: see [`buffers_of`].
    pub buffers: usize,
}

impl Held {
    pub fn of(burst: &Burst) -> Self {
        burst.iter().fold(Self::default(), |sum, packet| Self {
            bytes: sum.bytes + packet.len() as u64,
            buffers: sum.buffers + buffers_of(packet),
        })
    }

    #[inline(always)]
    pub fn add(&mut self, bytes: usize, buffers: usize) {
        self.bytes += bytes as u64;
        self.buffers += buffers;
    }
}

impl Own {
    /// A queue in front of which nothing waits.
    pub fn new(OwnQueue { queue, rings, port, queues }: OwnQueue) -> Self {
        let (packets, room) = own_sizes(queues);
        let mut own = Self {
            queue,
            buffer: Burst::with_capacity(packets),
            ahead: 0,
            held: Held::default(),
            room,
            max_frame: 0,
            refusal: TxRefusal::default(),
            rings,
            port,
        };
        own.learn_max_frame();
        own
    }

    /// Looks what the longest frame is by now.
    #[inline]
    pub fn learn_max_frame(&mut self) {
        self.max_frame = (self.port.max_frame() as usize).min(SHORT);
    }

    /// True for a frame that the driver would leave at the head of its queue. What the device is asked to cut is compared with the MTU
    /// before, in pieces.
    pub fn is_too_long(&self, packet: &Mbuf) -> bool {
        packet.len() > self.port.max_frame() as usize && !packet.is_cut_by_device()
    }

    /// True when so many buffers more may wait, with `left` of the worker's room.
    #[inline(always)]
    pub fn has_room(&self, buffers: usize, left: usize) -> bool {
        self.buffer.is_empty() || self.held.buffers + buffers <= self.room.min(left)
    }
}
