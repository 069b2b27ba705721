//! What a worker tells control: bounded, without waiting; when nobody listens, events are lost, not packets.

use std::net::IpAddr;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;
use wire::cm::Message;
use wire::{MacAddr, Qpn};

use crate::drops::DropReason;

/// What a message that names the MAC of a neighbour is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// It replaces another MAC: ARP of any kind (RFC 826), a solicitation (RFC 4861 section 7.2.3), an advertisement
    /// with the override flag (7.2.5).
    pub overrides: bool,
    /// It shows that the neighbour is reachable: ARP of any kind, a solicited advertisement.
    pub confirms: bool,
}

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
        /// What that is worth.
        claim: Claim,
    },
    /// A vNIC was refused a queue pair. At most one a second for each vNIC and worker.
    QpRefused {
        /// The vNIC.
        vnic: u32,
        /// To whom it would have sent.
        peer: IpAddr,
        /// To which queue pair there.
        qpn: Qpn,
        /// Why not.
        reason: DropReason,
    },
    /// A connection that a vNIC asked for, or was asked for, was answered with a reject: its quota is used up. At most
    /// one a second for each vNIC and worker, those of [`QpRefused`](Self::QpRefused) included.
    ConnectionRejected {
        /// The vNIC.
        vnic: u32,
        /// The other end.
        peer: IpAddr,
        /// The vNIC asked.
        asked: bool,
        /// The queue pair of whoever asked.
        qpn: Qpn,
    },
    /// A message of the connection manager, as a vNIC of this host sent or got it. A claim, not a fact.
    Cm {
        /// The vNIC.
        vnic: u32,
        /// The other end.
        peer: IpAddr,
        /// The vNIC sent it.
        sends: bool,
        /// What it says.
        message: Message,
    },
}

/// The queues from workers to control.
#[derive(Clone)]
pub struct Events {
    queue: Arc<ArrayQueue<Event>>,
    /// Messages that vNICs of this host sent, and messages that they got, so that what can be caused at will does
    /// not crowd out the rest.
    messages: [Arc<ArrayQueue<Event>>; 2],
}

impl Events {
    /// Queues that hold up to `capacity` events each.
    pub fn new(capacity: usize) -> Self {
        let queue = || Arc::new(ArrayQueue::new(capacity));
        Self { queue: queue(), messages: [queue(), queue()] }
    }

    /// Tells control, or forgets the event when the queue is full.
    #[inline]
    pub fn push(&self, event: Event) {
        let _ = self.queue.push(event);
    }

    /// Tells control of a message that a vNIC of this host sent or got, or forgets it.
    #[inline]
    pub fn push_message(&self, event: Event, sent: bool) {
        let _ = self.messages[usize::from(!sent)].push(event);
    }

    /// The oldest event.
    pub fn pop(&self) -> Option<Event> {
        self.queue.pop().or_else(|| self.messages.iter().find_map(|queue| queue.pop()))
    }
}
