//! What drivers of ethdevs want, or must not do, around a burst that is sent.

use std::ptr::NonNull;

use dpdk_sys as sys;
use wire::PacketBuf;

use super::{End, queue_data};
use crate::counters::Refused;
use crate::mbuf::Mbuf;

/// Drivers that block while they send, for as long as whoever has the other end of the interface likes.
pub(crate) const BLOCKING: [&str; 2] = ["net_af_packet", "net_af_xdp"];

/// While this is there, drivers block for nothing on this thread: what they cannot send at once they leave.
pub(super) struct Nonblocking(());

impl Nonblocking {
    pub(super) fn begin() -> Self {
        // SAFETY: sets a flag of this thread.
        unsafe { sys::dpdk_sys_nonblocking(true) };
        Self(())
    }
}

impl Drop for Nonblocking {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { sys::dpdk_sys_nonblocking(false) };
    }
}

/// Has the driver check and adapt packets that ask something of the device (`rte_eth_tx_prepare`: checksum fields, limits). Those that it
/// cannot send are freed and counted, and the others close up: each goes or not for its own sake, since whoever made it may choose
/// what it asks for. Returns how many are left.
///
/// # Safety
/// `slots` holds `count` packets, and the queue is one of a started port; those that are not left have no owner then.
#[inline(never)]
pub(super) unsafe fn prepare(
    end: &End,
    slots: *mut *mut sys::rte_mbuf,
    mut count: u16,
    refused: &mut Refused,
) -> u16 {
    // SAFETY: as in `TxQueue::burst`.
    let ops = unsafe { end.ops.as_ref() };
    let Some(prepare) = ops.tx_pkt_prepare else { return count };
    // SAFETY: a queue of a started port.
    let (queue, _) = unsafe { queue_data(&ops.txq, end.queue) };
    let mut ready = 0;
    while ready < count {
        let first = slots.wrapping_add(ready.into());
        // SAFETY: the driver's own function with its own queue and the packets from `first` on; it changes headers and keeps no packet.
        ready += unsafe { prepare(queue, first, count - ready) }.min(count - ready);
        if ready == count {
            break;
        }
        let first = slots.wrapping_add(ready.into());
        // SAFETY: a packet, which leaves the slots here.
        if let Some(packet) = NonNull::new(unsafe { first.read() }) {
            // SAFETY: nobody else has it.
            let packet = unsafe { Mbuf::from_raw(packet) };
            refused.add(1, packet.len() as u64);
        }
        count -= 1;
        // SAFETY: so many packets are behind it.
        unsafe { first.copy_from(first.wrapping_add(1), usize::from(count - ready)) };
    }
    count
}
