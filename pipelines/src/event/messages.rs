//! What control hears of the connection manager: messages that vNICs sent, and those that they got, each kind with a queue of
//! its own, so that what can be caused at will does not crowd out the rest.
//!
//! Nor do the messages of one vNIC crowd out those of others: each has a rate over all workers, and where many wait, a share
//! of what is left (the dynamic threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).

use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam::queue::ArrayQueue;

use super::Event;
use crate::rows::Rows;

/// How far the messages of a vNIC may run ahead of their rate, in time.
const TOLERANCE_NS: u64 = 50_000_000;

/// Messages of one kind that wait for control.
pub(super) struct Messages {
    queue: ArrayQueue<Event>,
    /// Nanoseconds between two of a vNIC.
    interval_ns: u64,
    vnics: Rows<VnicMessages>,
}

/// Those of a vNIC. Several workers may be here at once.
#[derive(Default)]
#[repr(align(64))]
struct VnicMessages {
    /// When the next one is due (generic cell rate algorithm, ITU-T I.371), nanoseconds.
    due: AtomicU64,
    waiting: AtomicU32,
}

impl Messages {
    /// A queue of that many, of which each vNIC may have so many a second.
    pub fn new(capacity: usize, vnics: usize, per_second: u64) -> Self {
        Self {
            queue: ArrayQueue::new(capacity),
            interval_ns: 1_000_000_000 / per_second,
            vnics: Rows::new(vnics, VnicMessages::default),
        }
    }

    /// Takes in a message of a vNIC; `false`, and it is lost, when the vNIC has sent too many.
    pub fn push(&self, vnic: u32, message: Event, now_ns: u64) -> bool {
        let row = self.vnics.at(vnic);
        let free = self.queue.capacity().saturating_sub(self.queue.len());
        // Others may come in between: that is a few more than the share.
        if row.waiting.load(Relaxed) as usize >= free || !row.is_due(self.interval_ns, now_ns) {
            return false;
        }
        row.waiting.fetch_add(1, Relaxed);
        let took = self.queue.push(message).is_ok();
        if !took {
            row.waiting.fetch_sub(1, Relaxed);
        }
        took
    }

    /// The oldest message.
    pub fn pop(&self) -> Option<Event> {
        let message = self.queue.pop()?;
        if let Event::Cm { vnic, .. } = message {
            self.vnics.at(vnic).waiting.fetch_sub(1, Relaxed);
        }
        Some(message)
    }
}

impl VnicMessages {
    /// True when a message keeps to the rate; then it is counted against it.
    fn is_due(&self, interval_ns: u64, now_ns: u64) -> bool {
        let mut due = self.due.load(Relaxed);
        loop {
            let start = due.max(now_ns);
            if start - now_ns > TOLERANCE_NS {
                return false;
            }
            match self.due.compare_exchange(due, start + interval_ns, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => due = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use wire::cm::CmMessage;

    use super::*;
    use crate::event::Events;

    fn dreq(vnic: u32) -> Event {
        let message = CmMessage::Drep { local_comm_id: 1, remote_comm_id: 2 };
        Event::Cm { vnic, peer: Ipv4Addr::new(10, 0, 0, 2).into(), sends: true, message }
    }

    /// That many messages of a vNIC, as fast as its rate allows; how many of them were taken in.
    fn flood(events: &Events, vnic: u32, count: u64) -> usize {
        (0..count).filter(|n| events.push_message(dreq(vnic), vnic, true, n * 50_000)).count()
    }

    fn waiting(events: &Events) -> [usize; 2] {
        let vnics: Vec<u32> = std::iter::from_fn(|| events.pop())
            .map(|event| match event {
                Event::Cm { vnic, .. } => vnic,
                other => panic!("{other:?}"),
            })
            .collect();
        [0, 1].map(|vnic| vnics.iter().filter(|&&of| of == vnic).count())
    }

    #[test]
    fn guard_messages_of_one_vnic_leave_room_for_those_of_others() {
        let events = Events::new(4096, 16);
        let taken = flood(&events, 0, 5000);
        assert!(events.push_message(dreq(1), 1, true, 0));
        assert_eq!((taken, waiting(&events)), (2048, [2048, 1]));
        // What was heard makes room. Ten that flood at once leave some, too.
        (2..12).for_each(|vnic| assert!(flood(&events, vnic, 5000) > 0, "{vnic}"));
        assert_eq!(flood(&events, 1, 2), 2);
        assert_eq!(waiting(&events), [0, 2]);
    }

    #[test]
    fn guard_messages_of_a_vnic_have_a_rate_over_all_workers() {
        let events = Events::new(65_536, 2);
        let workers: Vec<Events> = (0..4).map(|_| events.clone()).collect();
        let at_once = |events: &Events| {
            (0..5000).filter(|_| events.push_message(dreq(0), 0, true, 1_000_000_000)).count()
        };
        let taken: usize = workers.iter().map(at_once).sum();
        // 50 ms of 20,000 a second.
        assert_eq!(taken, 1001);
        assert!(events.push_message(dreq(1), 1, true, 1_000_000_000));
        assert!(events.push_message(dreq(0), 0, false, 1_000_000_000), "what it gets is counted apart");
    }
}
