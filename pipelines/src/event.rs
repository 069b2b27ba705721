//! What a worker tells control: bounded, without waiting; when nobody listens, events are lost, not packets.

use std::net::IpAddr;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use wire::MacAddr;

/// Something that control should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A station of the underlay has this MAC address (ARP, RFC 826; ND, RFC 4861).
    Neighbour {
        /// Uplink on which it was heard.
        uplink: u16,
        /// Its address.
        address: IpAddr,
        /// Its MAC.
        mac: MacAddr,
    },
}

/// The queue from workers to control.
#[derive(Clone)]
pub struct Events {
    queue: Arc<ArrayQueue<Event>>,
}

impl Events {
    /// A queue that holds up to `capacity` events.
    pub fn new(capacity: usize) -> Self {
        Self { queue: Arc::new(ArrayQueue::new(capacity)) }
    }

    /// Tells control, or forgets the event when the queue is full.
    #[inline]
    pub fn push(&self, event: Event) {
        let _ = self.queue.push(event);
    }

    /// The oldest event.
    pub fn pop(&self) -> Option<Event> {
        self.queue.pop()
    }
}
