//! A group's rules, found by what they match: rules that look at the same bits share a shape, and within a shape the
//! bits of a packet lead to its rules by hashing.

use std::collections::hash_map::Entry;

use super::layers::{LayerSlot, MAX_ITEMS};
use crate::flow_key::mix;
use crate::offload::few::Few;
use crate::offload::hasher::Map;
use crate::offload::slots::Slots;
use rules::Item;
use rules::items::{ITEM_BYTES, ItemBytes};

/// Number of a rule in the e-switch, used again when the rule is gone.
pub type RuleNumber = u32;

/// Where a rule stands among those that match: priority first, then age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Priority within the group: the lowest number matches first.
    pub priority: u32,
    /// Counts up with every rule made.
    pub serial: u64,
}

/// Rules that look at the same bits of the same layers. Fields with an upper bound count as not looked at; whoever
/// finds a rule compares the whole of it.
struct Shape {
    look: Vec<(LayerSlot, ItemBytes)>,
    /// The first priority that any of its rules has or had.
    first: u32,
    rules: Map<u64, Few<(Rank, RuleNumber)>>,
}

/// Where a rule is in its group.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// Number of the shape, which keeps it as long as it has rules.
    shape: u32,
    /// Hash of what the rule wants to see.
    want: u64,
}

/// The rules of one group.
#[derive(Default)]
pub struct Group {
    shapes: Slots<Shape>,
    /// Numbers of shapes in order of their first priority.
    order: Vec<u32>,
}

/// Which bits an item looks at, and what it wants to see there.
fn look_of(item: &Item) -> (ItemBytes, ItemBytes) {
    let (mut mask, mut spec) = item.bytes();
    if item.last().is_some() {
        for field in item.kind().fields().iter().filter(|field| item.upper(**field).is_some()) {
            field.set(&mut mask, 0);
            field.set(&mut spec, 0);
        }
    }
    (mask, spec)
}

/// Hash of masked bytes.
#[derive(Default)]
struct MatchHash(u64);

impl MatchHash {
    fn add(&mut self, bytes: &ItemBytes, mask: &ItemBytes) {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        for (bytes, mask) in bytes.chunks(8).zip(mask.chunks(8)) {
            // What is not looked at is not hashed.
            let (word, mask) = (word(bytes), word(mask));
            if mask != 0 {
                self.0 = mix(self.0 ^ 0x9e37_79b9_7f4a_7c15, word & mask ^ 0xa076_1d64_78bd_642f);
            }
        }
    }
}

impl Group {
    /// Shapes that its rules have.
    pub fn shapes(&self) -> usize {
        self.order.len()
    }

    /// Puts a rule in.
    pub fn insert(&mut self, pattern: &[Item], slots: &[LayerSlot], rank: Rank, number: RuleNumber) -> Spot {
        let mut want = MatchHash::default();
        let mut looks = [(LayerSlot::default(), [0; ITEM_BYTES]); MAX_ITEMS];
        for ((item, slot), look) in pattern.iter().zip(slots).zip(&mut looks) {
            let (mask, spec) = look_of(item);
            want.add(&spec, &mask);
            *look = (*slot, mask);
        }
        let look = &looks[..slots.len().min(MAX_ITEMS)];
        let same = |number: &&u32| self.shapes.at(**number).is_some_and(|shape| shape.look == look);
        let shape = self.order.iter().find(same).copied().unwrap_or_else(|| {
            let shape = Shape { look: look.to_vec(), first: u32::MAX, rules: Map::default() };
            let number = self.shapes.add(shape);
            self.order.push(number);
            number
        });
        let spot = Spot { shape, want: want.0 };
        let Some(shape) = self.shapes.at_mut(spot.shape) else { return spot };
        match shape.rules.entry(spot.want) {
            Entry::Vacant(place) => drop(place.insert(Few::One((rank, number)))),
            Entry::Occupied(mut same) => same.get_mut().insert((rank, number), |(other, _)| *other > rank),
        }
        if rank.priority < shape.first {
            shape.first = rank.priority;
            let Self { shapes, order } = self;
            order.sort_by_key(|number| shapes.at(*number).map(|shape| shape.first));
        }
        spot
    }

    /// Takes a rule out.
    pub fn remove(&mut self, spot: Spot, number: RuleNumber) {
        let Some(shape) = self.shapes.at_mut(spot.shape) else { return };
        if let Entry::Occupied(mut same) = shape.rules.entry(spot.want)
            && same.get_mut().remove(|(_, other)| *other == number)
        {
            same.remove();
        }
        if shape.rules.is_empty() {
            self.shapes.remove(spot.shape);
            self.order.retain(|other| *other != spot.shape);
        }
    }

    /// The first rule that matches: `layer` gives the bytes of a layer, `matches` compares the whole of a rule.
    pub fn find(
        &self,
        layer: impl Fn(LayerSlot) -> Option<ItemBytes>,
        matches: impl Fn(RuleNumber) -> bool,
    ) -> Option<RuleNumber> {
        let mut best: Option<(Rank, RuleNumber)> = None;
        for shape in self.order.iter().filter_map(|number| self.shapes.at(*number)) {
            if best.is_some_and(|(rank, _)| rank.priority < shape.first) {
                break;
            }
            let mut want = MatchHash::default();
            let all = shape
                .look
                .iter()
                .all(|(slot, mask)| layer(*slot).map(|bytes| want.add(&bytes, mask)).is_some());
            let Some(rules) = shape.rules.get(&want.0).filter(|_| all) else { continue };
            let found = rules.as_slice().iter().find(|(_, number)| matches(*number));
            best = found.copied().into_iter().chain(best).min_by_key(|(rank, _)| *rank);
        }
        best.map(|(_, number)| number)
    }
}
