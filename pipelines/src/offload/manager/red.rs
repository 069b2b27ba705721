//! Classes with a rate: what their meters are set to, and what they turned away.
//!
//! A meter of the device counts the bytes that it sees: frames without the bytes that a frame costs on the wire, and
//! with the tunnel's headers where those are still on. The tree's rates are of frames with those bytes and without the
//! tunnel. So the meter is set to the share times what it sees of a byte that is paid, by the mean frame of the class
//! as last seen. That lags by a sync, and is off by as much as the mean frame changes meanwhile.
//!
//! What a meter turns away was counted by the gate of its flow, and is counted by software as well: it is taken off the
//! debits of the class. Of which flows it was nobody can tell: each gives in proportion to what it did.
//!
//! A class whose meter turns packets away wants more than it may have. Then some packets of a flow would wait in software
//! and others overtake them in hardware, so all of its flows come back, and are looked at again later.

use std::collections::HashSet;

use super::Manager;
use super::flow::{OffloadFlow, Pin, Status, Why};
use super::policy::Debit;
use super::time::Work;
use crate::offload::hasher::Map;
use crate::qos::Leaf;
use rules::{BackEnd, Meter, Usage};

/// What is known of the classes.
#[derive(Default)]
pub(super) struct Classes {
    frames: Map<Leaf, Frames>,
    /// Turned away, and not taken off yet.
    red: Map<Leaf, Usage>,
    /// Of which something was turned away since the tree was told so.
    held_back: HashSet<Leaf>,
}

/// Packets of a class since the last time its meter was set.
#[derive(Clone, Copy, Default)]
struct Frames {
    packets: u64,
    /// As software counts them.
    bytes: u64,
    /// As the meter does.
    metered: u64,
    /// Of a million bytes that are paid, how many the meter sees.
    seen: Option<u64>,
}

/// Fractions here are in millionths.
const WHOLE: u64 = 1_000_000;
/// Packets by which a mean frame is told.
const ENOUGH: u64 = 32;

impl Classes {
    /// Packets of a class were counted by a gate; `bytes` as software counts them.
    pub fn seen(&mut self, leaf: Option<Leaf>, packets: u64, bytes: u64, tunnel_len: usize) {
        let Some(leaf) = leaf else { return };
        let frames = self.frames.entry(leaf).or_default();
        frames.packets += packets;
        frames.bytes += bytes;
        frames.metered += bytes + packets * tunnel_len as u64;
    }

    /// A meter as the device has to have it, so that the class gets what `meter` says.
    pub fn metered(&mut self, leaf: Leaf, meter: Meter, overhead: u32) -> Meter {
        let Some(frames) = self.frames.get_mut(&leaf) else { return meter };
        if frames.packets >= ENOUGH {
            let paid = frames.bytes + frames.packets * u64::from(overhead);
            let seen = u128::from(frames.metered) * u128::from(WHOLE) / u128::from(paid.max(1));
            let seen = u64::try_from(seen).unwrap_or(WHOLE);
            // Not for every little change: an update is work for the device.
            let old = frames.seen.filter(|old| old.abs_diff(seen) * 64 < seen);
            *frames = Frames { seen: old.or(Some(seen)), ..Frames::default() };
        }
        let Some(seen) = frames.seen else { return meter };
        let scaled =
            |n: u64| u64::try_from(u128::from(n) * u128::from(seen) / u128::from(WHOLE)).unwrap_or(n);
        Meter {
            cir: scaled(meter.cir),
            cbs: scaled(meter.cbs),
            eir: scaled(meter.eir),
            ebs: scaled(meter.ebs),
        }
    }

    /// Classes of which something was turned away since this was asked last.
    pub fn take_held_back(&mut self) -> HashSet<Leaf> {
        std::mem::take(&mut self.held_back)
    }

    /// Takes off these debits what their classes turned away.
    fn take_off(&mut self, debits: &mut [Debit]) {
        self.red.retain(|leaf, red| {
            let of_class = |debit: &&mut Debit| debit.leaf == Some(*leaf);
            let all: u64 = debits.iter_mut().filter(of_class).map(|debit| debit.packets).sum();
            let (mut take, mut from) = (red.packets.min(all), all);
            for debit in debits.iter_mut().filter(of_class) {
                // What is left to take, of what is left to take it from: nothing is lost to rounding.
                let share = u128::from(take) * u128::from(debit.packets) / u128::from(from.max(1));
                let packets = u64::try_from(share).unwrap_or(0);
                let bytes = u128::from(red.bytes) * u128::from(packets) / u128::from(red.packets.max(1));
                let bytes = u64::try_from(bytes).unwrap_or(0).min(debit.bytes);
                (take, from) = (take - packets, from - debit.packets);
                red.packets -= packets;
                red.bytes -= bytes;
                debit.packets -= packets;
                debit.bytes -= bytes;
            }
            red.packets > 0
        });
    }
}

impl Manager {
    /// Takes flows of classes that are over their rates out of hardware, but for those that are pinned there.
    pub(super) fn withdraw_over_rate<B: BackEnd>(&mut self, back_end: &mut B, now_ns: u64) {
        let over = self.read_red(back_end);
        if over.is_empty() {
            return;
        }
        let withdrawn = |flow: &OffloadFlow| {
            let leaf = flow.state.installed().and_then(|installed| installed.facts.leaf);
            flow.pin != Some(Pin::Hardware) && leaf.is_some_and(|leaf| over.contains(&leaf))
        };
        for number in self.installed(withdrawn) {
            self.counters.over_rate += 1;
            self.withdraw(back_end, number, Status::Software(Why::OverRate), now_ns + self.policy.retry_ns);
        }
    }

    /// Classes whose meters turned packets away since the last time.
    fn read_red<B: BackEnd>(&mut self, back_end: &mut B) -> Vec<Leaf> {
        let mut over = Vec::new();
        let time = &self.time;
        for (id, usage) in self.store.turned_away(back_end, || time.is_over(Work::Red)) {
            let red = self.classes.red.entry(Leaf(id - 1)).or_default();
            red.packets += usage.packets;
            red.bytes += usage.bytes;
            if usage.packets > 0 {
                self.classes.held_back.insert(Leaf(id - 1));
                over.push(Leaf(id - 1));
            }
        }
        over
    }

    /// Takes off debits, from the one at `from` on, what their classes turned away since the last time.
    pub(super) fn take_off_red<B: BackEnd>(&mut self, back_end: &mut B, from: usize) {
        self.read_red(back_end);
        let debits = self.debits.get_mut(from..).unwrap_or_default();
        self.classes.take_off(debits);
        self.debits.retain(|debit| debit.packets > 0);
    }
}
