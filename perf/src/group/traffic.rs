//! What the members send each other: their queue pairs, and the rounds as streams of the generator.

use wire::roce::opcode;

use super::MEMBERS;
use crate::generator::frame::{FCS, Shape};
use crate::generator::mark;
use crate::generator::scenario::Protocol;
use crate::generator::scenario::check::{Connection, Content, FrameKind, StreamPlan};
use crate::generator::tuple::Tuple;
use crate::live::testbed::{self, Station};

/// The first queue pair of reliable connections.
const RC: usize = 0x100;
/// The first queue pair for datagrams.
const UD: usize = 0x90;
/// Places of the kinds of frames.
const WRITE: usize = 0;
const DATAGRAM: usize = 1;

pub const fn station(member: usize) -> Station {
    testbed::station(member as u8 + 1)
}

/// The switch of a member.
pub const fn home(member: usize, switches: usize) -> usize {
    member * switches / MEMBERS
}

/// The queue pair that `owner` has for its connection with `peer`.
const fn queue_pair(owner: usize, peer: usize) -> u32 {
    (RC + owner * MEMBERS + peer) as u32
}

/// Between each ordered pair of members a write, which is acknowledged, and a datagram: those of one switch, and those
/// across two. `row` bytes go in whole words of four.
pub fn streams(switches: usize, row: usize) -> Vec<StreamPlan> {
    let pairs = || (0..MEMBERS).flat_map(|from| (0..MEMBERS).map(move |to| (from, to)));
    let stream = |is_local: bool| {
        let of = pairs()
            .filter(|&(from, to)| from != to && (home(from, switches) == home(to, switches)) == is_local);
        let name = if is_local { "local" } else { "remote" };
        plan(name, of.flat_map(|(from, to)| connections(from, to, true)).collect(), row)
    };
    let locations = if switches > 1 { &[true, false][..] } else { &[true] };
    locations.iter().map(|&is_local| stream(is_local)).collect()
}

/// The same frames between two ports of this process that are each other's far end, without answers.
pub fn direct(row: usize) -> StreamPlan {
    let pairs = [(0, 1), (1, 0)];
    plan("direct", pairs.into_iter().flat_map(|(from, to)| connections(from, to, false)).collect(), row)
}

/// A write from one member to another, and a datagram.
fn connections(from: usize, to: usize, answered: bool) -> [Connection; 2] {
    let (src, dst) = (station(from), station(to));
    let connection =
        |kind, qp, answer| Connection { from, to, kind, tuple: Tuple::to_queue_pair(src, dst, qp), answer };
    let answer = answered.then(|| Tuple::to_queue_pair(dst, src, queue_pair(from, to)));
    [connection(WRITE, queue_pair(to, from), answer), connection(DATAGRAM, (UD + to) as u32, None)]
}

fn plan(name: &str, connections: Vec<Connection>, row: usize) -> StreamPlan {
    let kind = |protocol, opcode| {
        let shape = Shape::plain(protocol, 2);
        let size = (shape.headers_len(opcode) + row.next_multiple_of(4) + mark::ICRC + FCS) as u32;
        FrameKind { shape, size, opcode }
    };
    let kinds =
        vec![kind(Protocol::RoceRc, opcode::RC_WRITE_ONLY), kind(Protocol::RoceUd, opcode::UD_SEND_ONLY)];
    let sizes = kinds.iter().map(|kind| (kind.size, 1)).collect();
    let flows = connections.len() as u32;
    StreamPlan { flows, ..StreamPlan::new(name, 0, 0, sizes, Content::Connected { kinds, connections }) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_connection_has_queue_pairs_of_its_own() {
        let pairs = (0..MEMBERS).flat_map(|a| (0..MEMBERS).map(move |b| queue_pair(a, b)));
        assert_eq!(pairs.collect::<HashSet<_>>().len(), MEMBERS * MEMBERS);
        let [write, datagram] = connections(1, 2, true);
        assert_eq!((write.tuple.qp, datagram.tuple.qp), (queue_pair(2, 1), 0x92));
        // The answer goes back to the queue pair of who wrote.
        let answer = write.answer.unwrap();
        assert_eq!((answer.qp, answer.src_ip), (queue_pair(1, 2), write.tuple.dst_ip));
        assert!(datagram.answer.is_none());
    }

    #[test]
    fn everybody_writes_to_everybody_else() {
        for (switches, flows) in [(1, vec![112]), (2, vec![48, 64])] {
            for row in [16, 17, 64] {
                let streams = streams(switches, row);
                assert_eq!(streams.iter().map(|stream| stream.flows).collect::<Vec<_>>(), flows);
            }
        }
    }
}
