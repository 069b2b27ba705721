//! What a worker tells control: bounded, without waiting; when nobody listens, events are lost, not packets.

mod messages;
mod shares;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use wire::cm::CmMessage;
use wire::{MacAddr, Qpn};

use crate::bfd::{self, BfdHeard};
use crate::drops::DropReason;
use crate::probe::Probes;
use crate::service::{MOST_OF_ONE, MOST_WAITING, ServiceRequest};
use messages::Messages;
use shares::{NoPlace, Shares};

/// An address, and the MAC that a message of ARP or neighbour discovery binds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The address; unspecified in duplicate address detection, where only the MAC says who asks.
    pub address: IpAddr,
    /// The MAC in the ARP field or the link-layer address option; of neighbour discovery without one, the frame's source.
    pub mac: MacAddr,
}

/// What a message that names the MAC of a neighbour is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// It replaces another MAC: ARP of any kind (RFC 826), a solicitation (RFC 4861 section 7.2.3), an advertisement
    /// with the override flag (7.2.5).
    pub overrides: bool,
    /// It shows that the neighbour is reached, for it answers: an ARP reply to one station, a solicited advertisement.
    pub confirms: bool,
}

/// A vNIC of this host has a floating address, or has it no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floating {
    /// Index of the vNIC in the snapshot of that time.
    pub vnic: u32,
    /// The address, and the MAC that it was announced with.
    pub binding: Binding,
    /// The vNIC has it; otherwise somebody on another host does.
    pub here: bool,
}

/// Something that control should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A station of the underlay has this MAC address (ARP, RFC 826; ND, RFC 4861).
    Neighbour {
        /// Uplink on which it was heard.
        uplink: u16,
        /// Its address and its MAC.
        binding: Binding,
        /// Whether this may replace a MAC that is known, and whether it shows that the neighbour can be reached.
        claim: Claim,
    },
    /// A vNIC was refused a queue pair. At most one a second for each vNIC and worker.
    QpRefused {
        /// Index of the vNIC in the snapshot of that time.
        vnic: u32,
        /// To whom it would have sent.
        peer: IpAddr,
        /// To which queue pair there.
        qpn: Qpn,
        /// The name under which its packets are dropped.
        reason: DropReason,
    },
    /// A connection that a vNIC asked for, or was asked for, was answered with a reject: its quota is used up. At most
    /// one a second for each vNIC and worker, those of [`QpRefused`](Self::QpRefused) included.
    ConnectionRejected {
        /// Index of the vNIC in the snapshot of that time.
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
        /// Index of the vNIC in the snapshot of that time.
        vnic: u32,
        /// The other end.
        peer: IpAddr,
        /// The vNIC sent it.
        sends: bool,
        /// The message as the guest wrote it.
        message: CmMessage,
    },
}

/// The queues from workers to control.
#[derive(Clone)]
pub struct Events {
    queue: Arc<ArrayQueue<Event>>,
    /// What a neighbour said found no place there.
    missed: Arc<AtomicBool>,
    /// Messages of the connection manager that vNICs of this host sent, and that they got.
    messages: Arc<[Messages; 2]>,
    /// Of each vNIC, the interface identifier of the link-local address that it asked for last; 0: none. A vNIC that asks
    /// often overwrites its own request only.
    wished: Arc<[AtomicU64]>,
    /// What was announced of floating addresses, and how much of it is of each vNIC.
    floating: Arc<Shares<Floating>>,
    /// What vNICs ask services of their VPCs, and how much of it is of each vNIC.
    asked: Arc<Shares<ServiceRequest>>,
    /// vNICs that look for a router, each once: who asks often waits in one place only.
    solicited: Arc<ArrayQueue<u32>>,
    soliciting: Arc<[AtomicBool]>,
    /// What BFD sessions heard, and how much of it is of each of them.
    heard: Arc<Shares<BfdHeard>>,
    /// What comes back of control's path probes.
    pub probes: Probes,
}

/// Announcements of floating addresses that may wait for control, and those of one vNIC among them.
const MOST_FLOATING: (usize, u8) = (4096, 16);

/// Connection manager messages per second and vNIC that control hears of: those that it sends, and those that it gets, which strangers
/// can send at will.
const MESSAGE_RATES: [u64; 2] = [20_000, 2_000];

impl Events {
    /// Queues that hold up to `capacity` events each, of a host with up to `vnics` vNICs.
    pub fn new(capacity: usize, vnics: usize) -> Self {
        let wished = (0..vnics).map(|_| AtomicU64::new(0)).collect();
        let solicited = Arc::new(ArrayQueue::new(vnics.max(1)));
        let soliciting = (0..vnics).map(|_| AtomicBool::new(false)).collect();
        let heard = bfd::MAX_SESSIONS * usize::from(bfd::MOST_WAITING);
        Self {
            queue: Arc::new(ArrayQueue::new(capacity)),
            missed: Arc::default(),
            messages: Arc::new(MESSAGE_RATES.map(|rate| Messages::new(capacity, vnics, rate))),
            wished,
            floating: Arc::new(Shares::new(MOST_FLOATING.0, vnics)),
            asked: Arc::new(Shares::new(capacity.min(MOST_WAITING), vnics)),
            solicited,
            soliciting,
            heard: Arc::new(Shares::new(heard, bfd::MAX_SESSIONS)),
            probes: Probes::default(),
        }
    }

    /// Tells control, or forgets the event when the queue is full; of what neighbours say it [is known](Self::take_missed) then.
    #[inline]
    pub fn push(&self, event: Event) {
        if let Err(Event::Neighbour { .. }) = self.queue.push(event) {
            self.missed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something that a neighbour of the underlay said was forgotten since the last question: any of them may have another MAC by
    /// now.
    pub fn take_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::Relaxed)
    }

    /// Tells control of a message that a vNIC of this host sent or got; `false`, and it is lost, when these are too many of the
    /// vNIC's.
    pub fn push_message(&self, message: Event, vnic: u32, sent: bool, now_ns: u64) -> bool {
        self.messages[usize::from(!sent)].push(vnic, message, now_ns)
    }

    /// Tells control that a vNIC would have a link-local address as its own, which [may be learned](may_be_learned).
    pub fn wish(&self, vnic: u32, address: Ipv6Addr) {
        if let Some(slot) = self.wished.get(vnic as usize) {
            slot.store(address.to_bits() as u64, Ordering::Relaxed);
        }
    }

    /// The link-local address that a vNIC asked for last, once.
    pub fn wished(&self, vnic: u32) -> Option<Ipv6Addr> {
        let slot = self.wished.get(vnic as usize)?;
        if slot.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let id = slot.swap(0, Ordering::Relaxed);
        (id != 0).then(|| Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(id)))
    }

    /// Tells control that a vNIC has a floating address, or that it has moved away from it; of each vNIC a few at a time.
    pub fn float(&self, vnic: u32, binding: Binding, here: bool) {
        let _ = self.floating.push(vnic, MOST_FLOATING.1, Floating { vnic, binding, here });
    }

    /// The oldest announcement of a floating address.
    pub fn floated(&self) -> Option<Floating> {
        self.floating.pop()
    }

    /// Has control answer a question; of each vNIC a few at a time, however many workers hear it, so that a storm of one costs others
    /// nothing.
    ///
    /// # Errors
    /// The name under which it is dropped when as many wait as may, of its vNIC or in all.
    pub fn ask(&self, request: ServiceRequest) -> Result<(), DropReason> {
        self.asked.push(request.vnic, MOST_OF_ONE, request).map_err(|why| match why {
            NoPlace::OfOwner => DropReason::SERVICE_LIMIT,
            NoPlace::InAll => DropReason::SERVICE_QUEUE_FULL,
        })
    }

    /// Tells control what a BFD session heard; of each session a few at a time, so that a storm of one costs others nothing.
    ///
    /// # Errors
    /// The name under which it is dropped when as many of its session wait as may.
    pub fn hear(&self, heard: BfdHeard) -> Result<(), DropReason> {
        let names_nobody = heard.control.your_discriminator.get() == 0;
        let most = if names_nobody { bfd::MOST_BEFORE_UNKNOWING } else { bfd::MOST_WAITING };
        self.heard.push(heard.slot.into(), most, heard).map_err(|_| DropReason::BFD_LIMIT)
    }

    /// The oldest of what BFD sessions heard.
    pub fn heard(&self) -> Option<BfdHeard> {
        self.heard.pop()
    }

    /// Tells control that a vNIC looks for a router.
    pub fn solicit(&self, vnic: u32) {
        if let Some(soliciting) = self.soliciting.get(vnic as usize)
            && !soliciting.swap(true, Ordering::Relaxed)
        {
            let _ = self.solicited.push(vnic);
        }
    }

    /// The vNIC that has waited for a router for longest.
    pub fn solicited(&self) -> Option<u32> {
        let vnic = self.solicited.pop()?;
        if let Some(soliciting) = self.soliciting.get(vnic as usize) {
            soliciting.store(false, Ordering::Relaxed);
        }
        Some(vnic)
    }

    /// The oldest question to a service.
    pub fn asked(&self) -> Option<ServiceRequest> {
        self.asked.pop()
    }

    /// The oldest event.
    pub fn pop(&self) -> Option<Event> {
        self.queue.pop().or_else(|| self.messages.iter().find_map(Messages::pop))
    }
}

/// True for a link-local address that a station may have besides the one that follows from its MAC: of fe80::/64 (RFC 4291
/// section 2.5.6), not one that follows from another MAC, and none of the reserved anycast identifiers (RFC 2526, RFC 4291
/// section 2.6.1).
pub fn may_be_learned(address: Ipv6Addr) -> bool {
    let id = address.to_bits() as u64;
    address.to_bits() >> 64 == 0xfe80 << 48
        && id != 0
        && id >> 7 != 0xfdff_ffff_ffff_ff80 >> 7
        && MacAddr::of_link_local(address).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_key::FlowAddresses;

    #[test]
    fn repair_a_wish_is_of_one_vnic_and_the_last_one_counts() {
        let events = Events::new(1, 2);
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        (1..=1000u64).for_each(|id| events.wish(0, Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(id))));
        events.wish(1, address("fe80::b"));
        events.wish(2, address("fe80::c"));
        assert_eq!(events.wished(0), Some(address("fe80::3e8")));
        assert_eq!(
            (events.wished(0), events.wished(1), events.wished(2)),
            (None, Some(address("fe80::b")), None)
        );
    }

    #[test]
    fn guard_announcements_of_one_vnic_leave_room_for_those_of_others() {
        let events = Events::new(1, 2);
        let binding = |n: u8| Binding { address: [10, 0, 0, n].into(), mac: MacAddr([2, 0, 0, 0, 0, n]) };
        (0..200).for_each(|n| events.float(0, binding(n), true));
        events.float(1, binding(7), false);
        events.float(2, binding(8), true);
        let all: Vec<Floating> = std::iter::from_fn(|| events.floated()).collect();
        assert_eq!(all.len(), usize::from(MOST_FLOATING.1) + 1);
        assert_eq!(all.last(), Some(&Floating { vnic: 1, binding: binding(7), here: false }));
        // What was heard makes room.
        events.float(0, binding(1), true);
        assert_eq!(events.floated().map(|floating| floating.binding), Some(binding(1)));
    }

    #[test]
    fn services_questions_of_one_vnic_leave_room_for_those_of_others() {
        let ask = |events: &Events, vnic: u32| {
            let addresses = FlowAddresses { source: [0; 4].into(), destination: [0; 4].into() };
            events.ask(ServiceRequest::new(vnic, MacAddr([2, 0, 0, 0, 0, 1]), addresses))
        };
        let events = Events::new(MOST_WAITING, 3);
        let heard = (0..1000).filter(|_| ask(&events, 0).is_ok()).count();
        assert_eq!((heard, ask(&events, 0)), (usize::from(MOST_OF_ONE), Err(DropReason::SERVICE_LIMIT)));
        assert_eq!((ask(&events, 1), ask(&events, 3)), (Ok(()), Err(DropReason::SERVICE_LIMIT)));
        // What was answered makes room.
        assert_eq!(events.asked().map(|request| request.vnic), Some(0));
        assert_eq!((ask(&events, 0), ask(&events, 0)), (Ok(()), Err(DropReason::SERVICE_LIMIT)));
        let rest: Vec<u32> = std::iter::from_fn(|| events.asked()).map(|request| request.vnic).collect();
        assert_eq!((rest.len(), rest.iter().filter(|&&vnic| vnic == 1).count()), (9, 1));
        // What found no place takes none.
        let full = Events::new(1, 3);
        assert_eq!(ask(&full, 1), Ok(()));
        assert!((0..100).all(|_| ask(&full, 0) == Err(DropReason::SERVICE_QUEUE_FULL)));
        assert!(full.asked().is_some() && ask(&full, 0) == Ok(()));
    }

    #[test]
    fn repair_what_may_be_learned_is_link_local_and_nobodys_by_its_mac() {
        let may = |text: &str| may_be_learned(text.parse().unwrap());
        assert!(may("fe80::1") && may("fe80::8d3c:1234:5678:9abc") && may("fe80::fdff:ffff:ffff:ff7f"));
        for other in ["fe80::", "fe80:1::1", "febf::1", "fd00::1", "::1", "ff02::1", "fe80::200:5eff:fe00:1"]
        {
            assert!(!may(other), "{other}");
        }
        assert!(!may("fe80::fdff:ffff:ffff:ff80") && !may("fe80::fdff:ffff:ffff:ffff"));
    }
}
