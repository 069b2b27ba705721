//! What arrived of each flow: every number once, in order; the rest is loss, reordering or repetition.
//!
//! Reordering is counted as RFC 4737 section 3 has it: a frame whose number is below the next one awaited.

use super::mark::Mark;
use super::parse::bth;
use super::sender::first_psn;

/// Frames back to which a repetition can be told from a late arrival.
const WINDOW: u32 = 64;

/// What was received of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Received {
    /// Frames, repetitions included.
    pub frames: u64,
    /// Bytes of them in memory.
    pub bytes: u64,
    pub duplicates: u64,
    /// Frames that came after a later one of their flow.
    pub reordered: u64,
    /// The most places a frame was late (RFC 4737 section 4.2).
    pub reorder_extent: u32,
    /// Jumps of the numbers within a flow: each begins a gap.
    pub gaps: u64,
    /// Jumps of the packet sequence number of a queue pair.
    pub psn_gaps: u64,
    pub psn_back: u64,
}

impl Received {
    /// Frames that arrived, each counted once.
    pub fn distinct(&self) -> u64 {
        self.frames - self.duplicates
    }

    /// Times a flow did not go on where it was. Signatures and sequence numbers of queue pairs show the same faults of RoCEv2
    /// packets, so that those who find more count.
    pub fn out_of_sequence(&self) -> u64 {
        (self.gaps + self.reordered + self.duplicates).max(self.psn_gaps + self.psn_back)
    }
}

/// Whether a frame is new to its ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    First,
    Repeated,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    next: u32,
    psn: u32,
    /// Bit n: number `next - 1 - n` has arrived.
    seen: u64,
}

#[derive(Debug, Default)]
pub struct Ledger {
    first_flow: u32,
    flows: Vec<Flow>,
    pub received: Received,
}

impl Ledger {
    /// A run begins: the flows have the next numbers that their sender has.
    pub fn new(first_flow: u32, numbers: &[u32]) -> Self {
        let flow = |(index, &next): (u32, &u32)| {
            let psn = first_psn(first_flow + index).wrapping_add(next) & 0xff_ffff;
            // What was sent before this run is not of it.
            Flow { next, psn, seen: u64::MAX }
        };
        Self { first_flow, flows: (0..).zip(numbers).map(flow).collect(), received: Received::default() }
    }

    /// Takes in a frame with its signature. `None` when it is of none of these flows.
    #[inline]
    pub fn take(&mut self, mark: &Mark, frame: &[u8]) -> Option<Arrival> {
        let flow = self.flows.get_mut(mark.flow.wrapping_sub(self.first_flow) as usize)?;
        let mut arrival = Arrival::First;
        let received = &mut self.received;
        received.frames += 1;
        received.bytes += frame.len() as u64;
        let ahead = mark.number.wrapping_sub(flow.next);
        if ahead < 1 << 31 {
            received.gaps += u64::from(ahead > 0);
            let moved = ahead + 1;
            flow.seen = if moved < WINDOW { flow.seen << moved | 1 } else { 1 };
            flow.next = mark.number.wrapping_add(1);
        } else {
            let late = flow.next.wrapping_sub(mark.number);
            let bit = 1u64.checked_shl(late - 1).unwrap_or(0);
            if flow.seen & bit != 0 {
                received.duplicates += 1;
                arrival = Arrival::Repeated;
            } else {
                flow.seen |= bit;
                received.reordered += 1;
                received.reorder_extent = received.reorder_extent.max(late - 1);
            }
        }
        if mark.roce {
            flow.take_psn(frame, received);
        }
        Some(arrival)
    }
}

impl Flow {
    /// Looks at the sequence number in the packet itself, as a receiving adapter does.
    #[inline]
    fn take_psn(&mut self, frame: &[u8], received: &mut Received) {
        let Some(psn) = bth(frame).map(|bth| bth.psn().get()) else { return };
        let ahead = psn.wrapping_sub(self.psn) & 0xff_ffff;
        if ahead < 1 << 23 {
            received.psn_gaps += u64::from(ahead > 0);
            self.psn = (psn + 1) & 0xff_ffff;
        } else {
            received.psn_back += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Serial, Shape, Template};
    use super::super::scenario::Protocol;
    use super::super::tuple::Tuple;
    use super::*;
    use wire::roce::opcode;

    fn ledger_after(first: u32, numbers: &[u32]) -> Received {
        let mut ledger = Ledger::new(10, &[0, first]);
        for &number in numbers {
            let mark = Mark { roce: false, run: 1, flow: 11, number, stamp: 0 };
            let duplicates = ledger.received.duplicates;
            let repeated = ledger.take(&mark, &[0; 60]) == Some(Arrival::Repeated);
            assert_eq!(repeated, ledger.received.duplicates > duplicates);
        }
        assert_eq!(ledger.received.frames, numbers.len() as u64);
        ledger.received
    }

    #[test]
    fn in_order_is_nothing_to_tell() {
        let received = ledger_after(u32::MAX - 1, &[u32::MAX - 1, u32::MAX, 0, 1]);
        assert_eq!(received, Received { frames: 4, bytes: 240, ..Received::default() });
    }

    #[test]
    fn gaps_late_frames_and_repetitions_are_told_apart() {
        let received = ledger_after(5, &[5, 8, 6, 8, 5, 7, 9]);
        let found = (received.gaps, received.reordered, received.duplicates, received.reorder_extent);
        assert_eq!(found, (1, 2, 2, 2));
    }

    #[test]
    fn far_behind_the_window_a_frame_counts_as_late() {
        let numbers: Vec<u32> = (1..200).chain([0]).collect();
        let received = ledger_after(0, &numbers);
        assert_eq!((received.gaps, received.reordered, received.duplicates), (1, 1, 0));
        assert_eq!(received.reorder_extent, 199);
    }

    #[test]
    fn what_was_sent_before_the_run_is_a_repetition() {
        assert_eq!(ledger_after(5, &[4]).duplicates, 1);
    }

    #[test]
    fn foreign_flows_are_not_taken() {
        let mut ledger = Ledger::new(10, &[0, 0]);
        for flow in [9, 12, 0xff_ffff] {
            assert_eq!(ledger.take(&Mark { roce: false, run: 1, flow, number: 0, stamp: 0 }, &[]), None);
        }
        assert_eq!(ledger.received, Received::default());
    }

    /// What is found in packets of a queue pair, by how far their numbers and their sequence numbers are from the first.
    fn queue_pair(packets: &[(u32, u32)]) -> Received {
        let template =
            Template::new(&Shape::plain(Protocol::RoceRc, 0), 94, opcode::RC_WRITE_ONLY, 1).unwrap();
        let tuple = Tuple { dst_port: 4791, ..Tuple::default() };
        let mut ledger = Ledger::new(0, &[0xff_fffe]);
        for &(number, psn) in packets {
            let mut frame = vec![0; template.len()];
            let number = 0xff_fffe + number;
            let psn = first_psn(0).wrapping_add(0xff_fffe + psn) & 0xff_ffff;
            let mark = Mark { roce: true, run: 1, flow: 0, number, stamp: 0 };
            template.write(&mut frame, &tuple, Serial { number, psn }, &mark);
            assert!(ledger.take(&mark, &frame).is_some());
        }
        ledger.received
    }

    #[test]
    fn sequence_numbers_of_queue_pairs_are_read_from_the_packets() {
        // The switch rewrites one sequence number, which the signature does not show.
        let received = queue_pair(&[(0, 0), (1, 1), (2, 3), (3, 3), (4, 4)]);
        assert_eq!((received.gaps, received.psn_gaps, received.psn_back), (0, 1, 1));
        assert_eq!(received.out_of_sequence(), 2);
    }

    #[test]
    fn what_signature_and_sequence_number_both_show_counts_once() {
        for (packets, faults) in [
            (&[0, 1, 2][..], 0),
            // One is lost; one comes again; one comes after the next.
            (&[0, 2, 3], 1),
            (&[0, 1, 1, 2], 1),
            (&[0, 2, 1, 3], 2),
        ] {
            let packets: Vec<(u32, u32)> = packets.iter().map(|&number| (number, number)).collect();
            assert_eq!(queue_pair(&packets).out_of_sequence(), faults, "{packets:?}");
        }
    }
}
