//! [`QueueEvent`]: which virtqueues the guest behind a vhost-user port uses.
//!
//! A guest enables as many pairs of queues as it likes, the first one always. A device that sends into others finds
//! them full for ever.

use dpdk_sys as sys;

use super::StartedPort;

/// A guest enabled a queue, or disabled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEvent {
    /// The queue's number.
    pub queue: u16,
    /// A receive queue of ours; else a transmit queue.
    pub rx: bool,
    /// It is in use now.
    pub enabled: bool,
}

impl StartedPort {
    /// True for a port whose peer chooses which queues it uses, and tells by [`queue_event`](Self::queue_event).
    pub fn has_queue_events(&self) -> bool {
        self.running().is_vhost()
    }

    /// The next change of a queue; `None` when there is no more, and for ports without such events. When the peer
    /// goes, all queues are out of use without an event.
    pub fn queue_event(&self) -> Option<QueueEvent> {
        if !self.has_queue_events() {
            return None;
        }
        let mut event = sys::rte_eth_vhost_queue_event { queue_id: 0, rx: false, enable: false };
        // SAFETY: a port of this driver that we hold, and a valid place.
        let ret = unsafe { sys::rte_eth_vhost_get_queue_event(self.id().get(), &raw mut event) };
        (ret == 0).then_some(QueueEvent { queue: event.queue_id, rx: event.rx, enabled: event.enable })
    }
}
