//! The members: their addresses and queue pairs, the sequence numbers on both sides, and what is checked of a frame.

use wire::Qpn;

use super::MEMBERS;
use super::verbs::{Kind, Seen};
use crate::live::testbed::{self, Station};

/// Sequence numbers are so many bits.
const PSN: u32 = 0xff_ffff;
/// The first queue pair of reliable connections.
const RC: u32 = 0x100;
/// The queue pair for datagrams.
const UD: u32 = 0x90;

pub const fn station(member: usize) -> Station {
    testbed::station(member as u8 + 1)
}

/// The queue pair that `owner` has for its connection with `peer`.
pub const fn queue_pair(owner: usize, peer: usize) -> Qpn {
    Qpn::truncated(RC + (owner * MEMBERS + peer) as u32)
}

/// Where a packet of a kind from one member to another goes.
pub const fn destination(kind: Kind, from: usize, to: usize) -> Qpn {
    match kind {
        Kind::Write | Kind::Ack => queue_pair(to, from),
        Kind::Datagram => Qpn::truncated(UD + to as u32),
    }
}

/// What is wrong with a frame that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Stray,
    /// Its sequence number is not the next one.
    Gap,
}

/// Sequence numbers of every ordered pair of members, as sent and as awaited.
#[derive(Debug, Clone, Default)]
pub struct Sequences {
    /// Next write, acknowledgement awaited by its sender, and datagram: as sent.
    sent: [[[u32; MEMBERS]; MEMBERS]; 2],
    /// The same as awaited: writes, datagrams, acknowledgements.
    awaited: [[[u32; MEMBERS]; MEMBERS]; 3],
}

const fn kind_index(kind: Kind) -> usize {
    match kind {
        Kind::Write => 0,
        Kind::Datagram => 1,
        Kind::Ack => 2,
    }
}

impl Sequences {
    /// The sequence number of the next packet of a kind (not of acknowledgements, which repeat the write's).
    pub fn next(&mut self, kind: Kind, from: usize, to: usize) -> u32 {
        let next = &mut self.sent[kind_index(kind) & 1][from][to];
        let psn = *next;
        *next = (psn + 1) & PSN;
        psn
    }

    /// Checks a packet that `to` received; who sent it, by the sender's number (acknowledgements have none, their
    /// queue pair tells).
    pub fn check(&mut self, seen: &Seen, to: usize) -> Result<usize, Fault> {
        let from = match seen.kind {
            Kind::Ack => (seen.qpn.wrapping_sub(RC) as usize) % MEMBERS,
            Kind::Write | Kind::Datagram => seen.mark.serial as usize,
        };
        if from >= MEMBERS || from == to || destination(seen.kind, from, to).get() != seen.qpn {
            return Err(Fault::Stray);
        }
        let awaited = &mut self.awaited[kind_index(seen.kind)][from][to];
        let right = *awaited == seen.psn;
        *awaited = (seen.psn + 1) & PSN;
        if right { Ok(from) } else { Err(Fault::Gap) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::verbs::Mark;
    use super::*;

    #[test]
    fn every_connection_has_queue_pairs_of_its_own() {
        let pairs = (0..MEMBERS).flat_map(|a| (0..MEMBERS).map(move |b| queue_pair(a, b).get()));
        assert_eq!(pairs.collect::<HashSet<_>>().len(), MEMBERS * MEMBERS);
        assert_eq!(destination(Kind::Write, 1, 2), queue_pair(2, 1));
    }

    #[test]
    fn gaps_repetitions_and_strays_are_found() {
        let mut sequences = Sequences::default();
        let seen = |sequences: &mut Sequences, kind, from: usize, to| Seen {
            kind,
            qpn: destination(kind, from, to).get(),
            psn: sequences.next(kind, from, to),
            mark: Mark { stamp: 0, serial: from as u64 },
        };
        for kind in [Kind::Write, Kind::Datagram] {
            let first = seen(&mut sequences, kind, 1, 2);
            assert_eq!(sequences.check(&first, 2), Ok(1));
            assert_eq!(sequences.check(&first, 2), Err(Fault::Gap), "again");
            assert_eq!(sequences.check(&first, 3), Err(Fault::Stray));
            let (_lost, after) = (seen(&mut sequences, kind, 1, 2), seen(&mut sequences, kind, 1, 2));
            assert_eq!(sequences.check(&after, 2), Err(Fault::Gap));
        }
        let ack =
            Seen { kind: Kind::Ack, qpn: destination(Kind::Ack, 3, 4).get(), psn: 0, mark: Mark::default() };
        assert_eq!(sequences.check(&ack, 4), Ok(3));
        assert_eq!(sequences.check(&Seen { psn: 2, ..ack }, 4), Err(Fault::Gap));
        assert_eq!(sequences.check(&Seen { qpn: 5, ..ack }, 4), Err(Fault::Stray));
    }
}
