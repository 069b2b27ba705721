//! Packets that wait for tokens: a queue for each class in use, in preallocated memory, and the order in which they
//! are looked at again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::tree::Leaf;

/// End of a list of packets.
const NONE: u32 = u32::MAX;

/// A class's queue on one worker.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    depth: Depth,
}

impl Queue {
    const EMPTY: Self = Self { head: NONE, tail: NONE, depth: Depth { packets: 0, bytes: 0, buffers: 0 } };
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Packets.
    pub packets: u32,
    /// Their bytes, as they are charged.
    pub bytes: u32,
    /// Packet buffers that hold them: a long packet is in several.
    pub buffers: u32,
}

/// What a packet takes of the room for those that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub bytes: u32,
    pub buffers: u32,
}

struct QueueCell<T> {
    item: Option<T>,
    size: Size,
    next: u32,
}

/// How much of a class may wait on one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Buffers, and so packets at most.
    pub buffers: u32,
    pub bytes: u32,
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The class has as many buffers or bytes waiting as it may.
    Class,
    /// It has as many as the worker has room left for.
    Worker,
}

/// The queues of one worker. `T` is a packet and what is known of it.
pub(super) struct Queues<T> {
    queues: Box<[Queue]>,
    cells: Box<[QueueCell<T>]>,
    free: u32,
    waiting: u32,
    /// Buffers of the packets that wait, no more than there are cells.
    buffers: u32,
    /// Classes with packets, by the time at which to look; of those of one time, in turn.
    due: BinaryHeap<Reverse<(u64, u64, u32)>>,
    turn: u64,
}

impl<T> Queues<T> {
    /// Queues for so many classes that hold packets of so many buffers in all.
    pub fn new(leaves: u32, buffers: u32) -> Self {
        let cells = (0..buffers).map(|n| QueueCell {
            item: None,
            size: Size { bytes: 0, buffers: 0 },
            next: if n + 1 < buffers { n + 1 } else { NONE },
        });
        Self {
            queues: vec![Queue::EMPTY; leaves as usize].into_boxed_slice(),
            cells: cells.collect(),
            free: if buffers > 0 { 0 } else { NONE },
            waiting: 0,
            buffers: 0,
            due: BinaryHeap::with_capacity(leaves.min(buffers) as usize + 1),
            turn: 0,
        }
    }

    /// Packets that wait, in all.
    #[inline(always)]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// True when a class has packets waiting.
    #[inline(always)]
    pub fn has(&self, leaf: Leaf) -> bool {
        self.waiting != 0 && self.queues[leaf.0 as usize].depth.packets != 0
    }

    /// What waits of a class.
    pub fn depth(&self, leaf: Leaf) -> Depth {
        self.queues[leaf.0 as usize].depth
    }

    /// Puts a packet behind the others of its class. `due_ns`: when to look, if it is the first; the first one is never too
    /// long, for a super-frame may be longer than all that `most` allows. No class gets more
    /// room than is left (a dynamic threshold; Choudhury and Hahne, 1998), so that however many are full, the next one
    /// finds some.
    ///
    /// # Errors
    /// The packet, when there is no room.
    pub fn push(
        &mut self,
        leaf: Leaf,
        item: T,
        size: Size,
        most: Room,
        due_ns: u64,
    ) -> Result<(), (Full, T)> {
        let queue = &mut self.queues[leaf.0 as usize];
        let depth = queue.depth;
        let (bytes, buffers) =
            (depth.bytes.saturating_add(size.bytes), depth.buffers.saturating_add(size.buffers));
        if depth.packets > 0 && (bytes > most.bytes || buffers > most.buffers) {
            return Err((Full::Class, item));
        }
        if buffers > self.cells.len() as u32 - self.buffers {
            return Err((Full::Worker, item));
        }
        let at = self.free;
        let Some(cell) = self.cells.get_mut(at as usize) else { return Err((Full::Worker, item)) };
        self.free = cell.next;
        *cell = QueueCell { item: Some(item), size, next: NONE };
        let tail = queue.tail;
        queue.tail = at;
        queue.depth = Depth { packets: depth.packets + 1, bytes, buffers };
        if depth.packets == 0 {
            queue.head = at;
            self.look_at(leaf, due_ns);
        } else if let Some(last) = self.cells.get_mut(tail as usize) {
            last.next = at;
        }
        self.waiting += 1;
        self.buffers += size.buffers;
        Ok(())
    }

    /// The class to look at, if it is time for one. It is to be given back by [`Self::again`] if packets remain.
    pub fn next_due(&mut self, now_ns: u64) -> Option<Leaf> {
        let Reverse((due, _, leaf)) = *self.due.peek()?;
        if due > now_ns {
            return None;
        }
        self.due.pop();
        Some(Leaf(leaf))
    }

    /// When there is something to look at.
    pub fn due_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, ..))| *due)
    }

    /// Looks at a class again at a time, if it still has packets.
    pub fn again(&mut self, leaf: Leaf, due_ns: u64) {
        if self.has(leaf) {
            self.look_at(leaf, due_ns);
        }
    }

    fn look_at(&mut self, leaf: Leaf, due_ns: u64) {
        self.turn += 1;
        self.due.push(Reverse((due_ns, self.turn, leaf.0)));
    }

    /// The first packet of a class, and its bytes.
    pub fn front(&self, leaf: Leaf) -> Option<(&T, u32)> {
        let cell = self.cells.get(self.queues[leaf.0 as usize].head as usize)?;
        Some((cell.item.as_ref()?, cell.size.bytes))
    }

    /// Takes the first packet of a class.
    pub fn pop(&mut self, leaf: Leaf) -> Option<T> {
        let queue = &mut self.queues[leaf.0 as usize];
        let at = queue.head;
        let cell = self.cells.get_mut(at as usize)?;
        queue.head = cell.next;
        let Size { bytes, buffers } = cell.size;
        queue.depth.packets -= 1;
        queue.depth.bytes -= bytes;
        queue.depth.buffers -= buffers;
        self.buffers -= buffers;
        if queue.depth.packets == 0 {
            *queue = Queue::EMPTY;
        }
        cell.next = self.free;
        self.free = at;
        self.waiting -= 1;
        cell.item.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    #[derive(Clone, Debug)]
    enum Op {
        Push(u32, u32, u32),
        Look(u64),
    }

    proptest! {
        /// Against a map of queues: order kept, bounds kept, nothing lost, each class looked at when due.
        #[test]
        fn shaper_queues_agree_with_their_twin(
            ops in prop::collection::vec(prop_oneof![
                3 => (0..5u32, prop_oneof![20 => 1..3000u32, 1 => 9000..20_000u32], prop_oneof![8 => Just(1u32), 1 => 2..20u32])
                    .prop_map(|(leaf, bytes, buffers)| Op::Push(leaf, bytes, buffers)),
                1 => (0..20u64).prop_map(Op::Look),
            ], 1..200),
        ) {
            let mut queues: Queues<u32> = Queues::new(5, 16);
            let mut twin: HashMap<u32, VecDeque<(u32, u32, u32)>> = HashMap::new();
            let (mut serial, mut now) = (0, 0);
            for op in ops {
                match op {
                    Op::Push(leaf, bytes, buffers) => {
                        let total: u32 = twin.values().flatten().map(|held| held.2).sum();
                        let queue = twin.entry(leaf).or_default();
                        let held: u32 = queue.iter().map(|held| held.1).sum();
                        let segments: u32 = queue.iter().map(|held| held.2).sum();
                        let size = Size { bytes, buffers };
                        let result = queues.push(Leaf(leaf), serial, size, Room { buffers: 6, bytes: 9000 }, now + 10);
                        match result {
                            Ok(()) => {
                                let fits = queue.is_empty() || held + bytes <= 9000;
                                let few = queue.is_empty() || segments + buffers <= 6;
                                prop_assert!(few && fits && total + segments + buffers <= 16);
                                queue.push_back((serial, bytes, buffers));
                            }
                            Err((Full::Class, _)) => {
                                prop_assert!(!queue.is_empty() && (segments + buffers > 6 || held + bytes > 9000));
                            }
                            Err((Full::Worker, _)) => prop_assert!(segments + buffers > 16 - total),
                        }
                        serial += 1;
                    }
                    Op::Look(pause) => {
                        now += pause;
                        while let Some(leaf) = queues.next_due(now) {
                            let queue = twin.get_mut(&leaf.0).unwrap();
                            let front = queue.pop_front().unwrap();
                            prop_assert_eq!(queues.front(leaf).map(|(item, bytes)| (*item, bytes)), Some((front.0, front.1)));
                            prop_assert_eq!(queues.pop(leaf), Some(front.0));
                            queues.again(leaf, now + 5);
                        }
                        prop_assert!(queues.due_ns().is_none_or(|due| due > now));
                    }
                }
                for leaf in 0..5 {
                    let expected = twin.get(&leaf).map_or_else(Depth::default, |queue| Depth {
                        packets: queue.len() as u32,
                        bytes: queue.iter().map(|held| held.1).sum(),
                        buffers: queue.iter().map(|held| held.2).sum(),
                    });
                    prop_assert_eq!(queues.depth(Leaf(leaf)), expected);
                    prop_assert_eq!(queues.has(Leaf(leaf)), expected.packets > 0);
                }
                let total: usize = twin.values().map(VecDeque::len).sum();
                prop_assert_eq!(queues.waiting() as usize, total);
            }
        }
    }
}
