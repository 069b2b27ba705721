//! Room in librte_vhost's shadow used rings, in which it notes a guest's buffers until it tells the guest that it has used them: as many as a guest can have it
//! use at a time (`csrc/shadow.c` of dpdk-sys says how), and not only as many as the ring has descriptors.

use dpdk_sys as sys;

use super::message::{self, Message};

/// Packets that a call of the library's sends at most, so that what a guest can have it do for one burst is bounded.
pub(super) const SENT: u16 = 16;
/// Packets that one receives at most (`MAX_PKT_BURST` of lib/vhost/virtio_net.c).
const RECEIVED: u16 = 32;

/// What the calling thread is about to have the library do makes such room, of a port with so many queues.
pub(super) fn begin(message: &Message, queues: usize) {
    let (places, wanted) = match message.number() {
        message::SET_VRING_NUM => (message.half(1), needed(message.ring(), message.half(1), queues)),
        _ => (0, 0),
    };
    // SAFETY: changes what belongs to the calling thread.
    unsafe { sys::dpdk_sys_vhost_shadow(places, wanted) };
}

/// Entries that the shadow of a ring of so many descriptors takes at most.
fn needed(ring: u16, size: u32, queues: usize) -> u32 {
    let is_sent_to = ring.is_multiple_of(2) && usize::from(ring) < 2 * queues;
    // A packet that is sent is spread over all of its buffers but one; one that is received takes one.
    let most = if is_sent_to { u32::from(SENT) * size } else { 0 };
    most.max(RECEIVED.into()).max(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_vhost_there_is_room_for_all_that_a_guest_has_used_at_a_time() {
        assert_eq!([0, 1, 2].map(|ring| needed(ring, 256, 1)), [16 * 256, 256, 256]);
        assert_eq!([0, 1, 2].map(|ring| needed(ring, 1, 2)), [32; 3]);
    }
}
