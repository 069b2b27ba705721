//! Control's side of the ledger: what each vNIC may do, who leaves, who is there.
//!
//! The only one that takes slots out of chains, and that gives places back; see [`super::admission`] for the rounds.
//! Depends on `base`, `slot` and `admission` alone, so that loom can check them together (`tests/rcft_loom`).

use super::admission::{Acknowledged, GONE, Ledger, LedgerRow, Word};
use super::base::Ordering;
use super::limits::LedgerLimits;
use super::slot::{BORN, LedgerSlot, NEXT, NONE, SEEN, STATE, SlotState, is, read_key, with};
use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A queue pair as control sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerView<const K: usize> {
    /// Its slot in the ledger, 0 to `entries` - 1.
    pub slot: u32,
    /// The words of its key: peer's address, scope and QPN.
    pub key: [u64; K],
    /// When it was admitted, in ticks of the workers' clock.
    pub born: u32,
    /// When it was used last, as far as the workers have noted.
    pub seen: u32,
    /// It is being taken out.
    pub leaving: bool,
}

/// Control's side: limits, removal, display. There is one for each ledger.
pub struct Keeper<const K: usize, const N: usize, L> {
    ledger: L,
    /// Leaving, the workers not told yet.
    marked: std::collections::VecDeque<u32>,
    /// Leaving, the workers told in the round under way.
    told: Vec<u32>,
    /// Unlinked before the round under way.
    unlinked: Vec<u32>,
    /// Unlinked since.
    swept: Vec<u32>,
    /// Where the next sweep goes on.
    hand: u32,
}

impl<const K: usize, const N: usize, L: std::ops::Deref<Target = Ledger<K, N>>> Keeper<K, N, L> {
    /// The keeper of a ledger.
    pub fn new(ledger: L) -> Self {
        Self {
            ledger,
            marked: std::collections::VecDeque::new(),
            told: Vec::new(),
            unlinked: Vec::new(),
            swept: Vec::new(),
            hand: 0,
        }
    }

    /// The ledger that it keeps.
    pub fn ledger(&self) -> &Ledger<K, N> {
        &self.ledger
    }

    /// Sets what a vNIC may do. Nothing that is admitted is taken out.
    pub fn set_limits(&self, vnic: u32, limits: LedgerLimits) {
        let row = self.ledger.row(vnic);
        row.quota.store(limits.quota, Relaxed);
        let interval = if limits.new_rate == 0 { 0 } else { 1_000_000_000 / u64::from(limits.new_rate) };
        row.interval.store(interval, Relaxed);
        row.reject.store(u32::from(limits.reject), Relaxed);
        anew(row);
    }

    /// Workers note the time of last use in steps of `2^shift` ticks.
    pub fn set_sync_shift(&self, shift: u32) {
        self.ledger.sync_shift.store(shift.min(16), Relaxed);
    }

    /// Takes a queue pair out. It counts until the workers have forgotten it. `false` when it is not admitted.
    pub fn remove(&mut self, key: &[u64; K]) -> bool {
        match self.ledger.find(key) {
            Some((number, state)) if is(state, SlotState::Admitted) => self.mark(number),
            _ => false,
        }
    }

    /// As [`remove`](Self::remove), if `leave` holds for it as it is now.
    pub fn remove_if(&mut self, key: &[u64; K], leave: impl FnOnce(&LedgerView<K>) -> bool) -> bool {
        self.get(key).is_some_and(|seen| leave(&seen)) && self.remove(key)
    }

    /// How many queue pairs of a vNIC were refused for its quota since this was asked last, or since a place came
    /// free: whoever waits then asks again and counts again.
    pub fn take_wanted(&self, vnic: u32) -> u32 {
        let wanted = &self.ledger.row(vnic).wanted;
        // The line is the workers': written only when there is something to take.
        if wanted.load(Relaxed) == 0 { 0 } else { wanted.swap(0, Relaxed) }
    }

    /// Says how many queue pairs of a vNIC would give way to new ones.
    pub fn set_silent(&self, vnic: u32, count: u32) {
        let silent = &self.ledger.row(vnic).silent;
        // The line is the workers': written only when it changes.
        if silent.load(Relaxed) != count {
            silent.store(count, Relaxed);
        }
    }

    fn mark(&mut self, number: u32) -> bool {
        let Some(slot) = self.ledger.linked(number) else { return false };
        let state = slot[STATE].load(Acquire);
        if !is(state, SlotState::Admitted) {
            return false;
        }
        // Workers never change the state of an admitted slot.
        slot[STATE].store(with(state, SlotState::Leaving), Release);
        self.ledger.row(vnic_of(&read_key::<K, N>(slot))).leaving.fetch_add(1, AcqRel);
        self.marked.push_back(number);
        true
    }

    /// Looks at up to `budget` slots in turn: takes out those for which `leave` holds, and clears up what workers
    /// have claimed in vain. The number of queue pairs that it marked; `true` when the turn was completed.
    pub fn sweep(&mut self, budget: u32, mut leave: impl FnMut(&LedgerView<K>) -> bool) -> (u32, bool) {
        let end = self.ledger.fresh.load(Acquire);
        let stop = self.hand.saturating_add(budget).min(end);
        let mut marked = 0;
        for number in self.hand + 1..=stop {
            let Some(slot) = self.ledger.linked(number) else { continue };
            let state = slot[STATE].load(Acquire);
            if is(state, SlotState::Void) {
                self.unlink(number);
            } else if is(state, SlotState::Admitted) && leave(&look(slot, number - 1, state)) {
                marked += u32::from(self.mark(number));
            }
        }
        self.hand = if stop == end { 0 } else { stop };
        (marked, stop == end)
    }

    /// As [`sweep`](Self::sweep), of all slots, wherever the turn under way is.
    pub fn sweep_all(&mut self, leave: impl FnMut(&LedgerView<K>) -> bool) -> u32 {
        self.hand = 0;
        self.sweep(u32::MAX, leave).0
    }

    /// Up to `limit` queue pairs, from slot `from` on, and where to go on (`None` at the end).
    pub fn scan(&self, from: u32, limit: usize) -> (Vec<LedgerView<K>>, Option<u32>) {
        let end = self.ledger.fresh.load(Acquire);
        let mut found = Vec::new();
        for number in from + 1..=end {
            if found.len() == limit {
                return (found, Some(number - 1));
            }
            let Some(slot) = self.ledger.linked(number) else { break };
            let state = slot[STATE].load(Acquire);
            if is(state, SlotState::Admitted) || is(state, SlotState::Leaving) {
                found.push(look(slot, number - 1, state));
            }
        }
        (found, None)
    }

    /// Shows `look_at` the admitted queue pairs in up to `budget` slots from slot `from` on; where to go on, `None` at the
    /// end.
    pub fn visit(&self, from: u32, budget: u32, mut look_at: impl FnMut(LedgerView<K>)) -> Option<u32> {
        let end = self.ledger.fresh.load(Acquire);
        let stop = from.saturating_add(budget).min(end);
        for number in from + 1..=stop {
            let Some(slot) = self.ledger.linked(number) else { break };
            let state = slot[STATE].load(Acquire);
            if is(state, SlotState::Admitted) {
                look_at(look(slot, number - 1, state));
            }
        }
        (stop < end).then_some(stop)
    }

    /// A queue pair by its key.
    pub fn get(&self, key: &[u64; K]) -> Option<LedgerView<K>> {
        let (number, state) = self.ledger.find(key)?;
        Some(look(self.ledger.linked(number)?, number - 1, state))
    }

    /// True while something is on its way out.
    pub fn is_busy(&self) -> bool {
        !(self.marked.is_empty() && self.told.is_empty() && self.unlinked.is_empty() && self.swept.is_empty())
    }

    /// Goes on with what is leaving, as far as the workers have attended; calls `released` with each key whose
    /// place was given back. To be called every few milliseconds while [busy](Self::is_busy).
    pub fn advance(&mut self, released: impl FnMut([u64; K])) {
        self.advance_and(released, |_| {});
    }

    /// As [`advance`](Self::advance); calls `freed` with each slot on which nobody stands any more, before it may be used
    /// again.
    pub fn advance_and(&mut self, mut released: impl FnMut([u64; K]), mut freed: impl FnMut(u32)) {
        let round = self.ledger.round.load(Relaxed);
        let attended = |ack: &Acknowledged| matches!(ack.0.load(Acquire), n if n == round || n == GONE);
        if !self.is_busy() || !self.ledger.acknowledged.iter().all(attended) {
            return;
        }
        for number in std::mem::take(&mut self.unlinked) {
            freed(number - 1);
            self.ledger.put_free(number);
        }
        for number in std::mem::take(&mut self.told) {
            if let Some(slot) = self.ledger.linked(number) {
                let key = read_key(slot);
                self.unlink(number);
                self.release(&key);
                released(key);
            }
        }
        self.unlinked = std::mem::take(&mut self.swept);
        let batch = self.marked.len().min(self.ledger.leaving.len());
        self.told = self.marked.drain(..batch).collect();
        for (cell, number) in self.ledger.leaving.iter().zip(&self.told) {
            cell.store(*number, Relaxed);
        }
        self.ledger.leaving_len.store(self.told.len() as u32, Relaxed);
        if self.is_busy() {
            let next = round.wrapping_add(1);
            self.ledger.round.store(if next == GONE { 0 } else { next }, Release);
        }
    }

    /// Gives back a place.
    fn release(&self, key: &[u64; K]) {
        let row = self.ledger.row(vnic_of(key));
        loop {
            let word = Word(row.word.load(Acquire));
            if word.in_flight() != NONE {
                self.ledger.settle(row, word);
                continue;
            }
            let released = word.next(NONE, word.count().saturating_sub(1));
            if row.word.compare_exchange(word.0, released.0, AcqRel, Relaxed).is_ok() {
                break;
            }
        }
        row.leaving.fetch_sub(1, AcqRel);
        anew(row);
    }

    /// Takes a slot out of its chain. Workers only ever put slots in front, so that all others stay in place.
    fn unlink(&mut self, number: u32) {
        let Some(slot) = self.ledger.linked(number) else { return };
        let state = slot[STATE].load(Relaxed);
        slot[STATE].store(with(state, SlotState::Free), Release);
        self.swept.push(number);
        let head = self.ledger.head(&read_key(slot));
        let next = slot[NEXT].load(Acquire);
        loop {
            let Err(first) = head.compare_exchange(number, next, AcqRel, Acquire) else { return };
            let mut before = first;
            while let Some(slot) = self.ledger.linked(before) {
                let after = slot[NEXT].load(Acquire);
                if after == number {
                    slot[NEXT].store(next, Release);
                    return;
                }
                before = after;
            }
            if before == NONE && head.load(Acquire) != number {
                return;
            }
        }
    }
}

/// Refusals do not hold any more: whoever was refused is refused anew, and counted anew, or gets in.
fn anew(row: &LedgerRow) {
    row.wanted.store(0, Relaxed);
    row.changes.fetch_add(1, AcqRel);
}

fn look<const K: usize, const N: usize>(slot: &LedgerSlot<N>, position: u32, state: u32) -> LedgerView<K> {
    LedgerView {
        slot: position,
        key: read_key(slot),
        born: slot[BORN].load(Relaxed),
        seen: slot[SEEN].load(Relaxed),
        leaving: is(state, SlotState::Leaving),
    }
}

/// The vNIC in a key.
pub const fn vnic_of<const K: usize>(key: &[u64; K]) -> u32 {
    (key[K - 1] >> 32) as u32
}
