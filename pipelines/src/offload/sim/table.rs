//! A group's rules, found by what they match: rules that look at the same bits share a shape, and within a shape the
//! bits of a packet lead to its rules by hashing.

use std::collections::HashMap;

use super::layers::Slot;
use crate::flow_key::mix;
use crate::offload::items::ItemBytes;
use crate::offload::{Field, Item};

/// Which bits of which layers rules look at. Fields with an upper bound count as not looked at; whoever finds a
/// rule compares the whole of it.
type Look = Vec<(Slot, ItemBytes)>;

/// Number of a rule in the store of the e-switch.
pub type Number = u32;

/// Where a rule stands among those that match: priority first, then age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Priority, 0 first.
    pub priority: u32,
    /// Counts up with every rule made.
    pub serial: u64,
}

struct Shape {
    look: Look,
    /// The first priority that any of its rules has or had.
    first: u32,
    rules: HashMap<u64, Vec<(Rank, Number)>>,
}

/// The rules of one group.
#[derive(Default)]
pub struct Group {
    /// In order of their first priority.
    shapes: Vec<Shape>,
}

/// What a rule looks at, and the hash of what it wants to see there.
fn look_of(pattern: &[Item], slots: &[Slot]) -> (Look, u64) {
    let mut want = Wanted::default();
    let look = pattern.iter().zip(slots).map(|(item, &slot)| {
        let (mut mask, mut spec) = ([0; super::ITEM_BYTES], [0; super::ITEM_BYTES]);
        let exact = |field: &&Field| item.upper(**field).is_none();
        for field in item.kind().fields().iter().filter(exact) {
            let (value, bits) = item.field(*field);
            field.set(&mut mask, bits);
            field.set(&mut spec, value);
        }
        want.add(&spec, &mask);
        (slot, mask)
    });
    (look.collect(), want.0)
}

/// Hash of masked bytes.
#[derive(Default)]
struct Wanted(u64);

impl Wanted {
    fn add(&mut self, bytes: &ItemBytes, mask: &ItemBytes) {
        for (bytes, mask) in bytes.chunks(8).zip(mask.chunks(8)) {
            let word =
                bytes.iter().zip(mask).fold(0, |word, (byte, mask)| word << 8 | u64::from(byte & mask));
            self.0 = mix(self.0 ^ 0x9e37_79b9_7f4a_7c15, word ^ 0xa076_1d64_78bd_642f);
        }
    }
}

impl Group {
    /// Puts a rule in.
    pub fn insert(&mut self, pattern: &[Item], slots: &[Slot], rank: Rank, number: Number) {
        let (look, want) = look_of(pattern, slots);
        let at = self.shapes.iter().position(|shape| shape.look == look).unwrap_or_else(|| {
            self.shapes.push(Shape { look, first: u32::MAX, rules: HashMap::new() });
            self.shapes.len() - 1
        });
        let shape = &mut self.shapes[at];
        let same = shape.rules.entry(want).or_default();
        same.insert(same.partition_point(|(other, _)| *other < rank), (rank, number));
        if rank.priority < shape.first {
            shape.first = rank.priority;
            self.shapes.sort_by_key(|shape| shape.first);
        }
    }

    /// Takes a rule out.
    pub fn remove(&mut self, pattern: &[Item], slots: &[Slot], number: Number) {
        let (look, want) = look_of(pattern, slots);
        let Some(at) = self.shapes.iter().position(|shape| shape.look == look) else { return };
        let rules = &mut self.shapes[at].rules;
        if let Some(same) = rules.get_mut(&want) {
            same.retain(|(_, other)| *other != number);
            if same.is_empty() {
                rules.remove(&want);
            }
        }
        if rules.is_empty() {
            self.shapes.remove(at);
        }
    }

    /// The first rule that matches: `layer` gives the bytes of a layer, `matches` compares the whole of a rule.
    pub fn find(
        &self,
        layer: impl Fn(Slot) -> Option<ItemBytes>,
        matches: impl Fn(Number) -> bool,
    ) -> Option<Number> {
        let mut best: Option<(Rank, Number)> = None;
        for shape in &self.shapes {
            if best.is_some_and(|(rank, _)| rank.priority < shape.first) {
                break;
            }
            let mut want = Wanted::default();
            let all = shape
                .look
                .iter()
                .all(|(slot, mask)| layer(*slot).map(|bytes| want.add(&bytes, mask)).is_some());
            let Some(rules) = shape.rules.get(&want.0).filter(|_| all) else { continue };
            let found = rules.iter().find(|(_, number)| matches(*number));
            best = found.copied().into_iter().chain(best).min_by_key(|(rank, _)| *rank);
        }
        best.map(|(_, number)| number)
    }
}
