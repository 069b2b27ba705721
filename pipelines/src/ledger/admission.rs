//! The ledger: which queue pairs (or connections: what is said of the ones holds for the others) of which vNIC are
//! admitted, shared by all workers, without locks.
//!
//! ```text
//!   hash(key) -> head -> slot -> slot         row of the vNIC: [ sequence | slot in flight | count ]  quota
//!                       [key, next, state]
//! ```
//! A slot that a worker wants to admit is first filled and linked, unseen ([`SlotState::Claimed`]). One
//! compare-and-swap on the row of its vNIC then raises the count and names the slot; that is the moment of
//! admission. Whoever finds a slot named in a row makes it visible before doing anything else there, so no two
//! workers admit the same key twice, none waits for another, and the count is exact at every moment.
//!
//! Only control ([`super::keeper`]) takes slots out, in rounds that every worker [attends](Ledger::attend) between two
//! bursts: round one, the workers forget the queue pair; then its place is given back and it is unlinked; round
//! two, nobody can still be standing on the slot, and it may be used again. A queue pair that is being taken out
//! counts until the workers have forgotten it, so never more than the quota pass.
//!
//! Depends on nothing but `base`, so that loom can check it (`tests/rcft_loom`).

use super::base::{AtomicU32, AtomicU64, Cells, Ordering, hash, prefetch, zeroed};
use super::limits::LedgerLimits;
use super::slot::{
    BORN, Chain, KEY, LedgerSlot, NEXT, NONE, SEEN, STATE, SlotState, VERSION, has_key, is, read_key, with,
};
use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Slots that one round can hold.
const ROUND: usize = 1024;
/// Keys that a worker forgets at a time: a few microseconds.
const FORGET: usize = 32;
/// An acknowledgement of a worker that is no longer there.
pub(super) const GONE: u32 = u32::MAX;

/// What the ledger says to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerAnswer {
    /// Admitted now; in this slot.
    New(u32),
    /// Was admitted before; in this slot.
    Known(u32),
    /// On its way out; its packets may pass, but nobody keeps it in mind.
    Leaving,
    /// The vNIC's quota is used up.
    Quota,
    /// The vNIC opens queue pairs faster than it may.
    Rate,
    /// The table of the host is full.
    Full,
}

/// Shape of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerParams {
    /// Queue pairs of the host.
    pub entries: u32,
    /// Most vNICs; those past the end share the last one's row.
    pub vnics: u32,
    /// Workers; each attends under its number.
    pub workers: u32,
    /// Seed of the hash.
    pub seed: u64,
}

/// How far a vNIC may run ahead of its rate of new queue pairs, in nanoseconds.
const TOLERANCE_NS: u64 = 100_000_000;

/// Packed word of a vNIC: sequence (16 bits), slot in flight (24), count (24).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    const BITS: u32 = 24;
    const MASK: u64 = (1 << Self::BITS) - 1;

    pub(super) const fn count(self) -> u32 {
        (self.0 & Self::MASK) as u32
    }

    pub(super) const fn in_flight(self) -> u32 {
        (self.0 >> Self::BITS & Self::MASK) as u32
    }

    pub(super) const fn next(self, in_flight: u32, count: u32) -> Self {
        let sequence = (self.0 >> (2 * Self::BITS)).wrapping_add(1) & 0xffff;
        Self(sequence << (2 * Self::BITS) | (in_flight as u64) << Self::BITS | count as u64)
    }
}

/// Most slots that the words can name.
pub const MAX_SLOTS: u32 = Word::MASK as u32 - 1;

/// A vNIC. One cache line, written on admissions, releases and changes of limits only.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct LedgerRow {
    pub(super) word: AtomicU64,
    /// When the next new queue pair is due (generic cell rate algorithm, ITU-T I.371), nanoseconds.
    due: AtomicU64,
    /// Nanoseconds between new queue pairs; 0: no limit.
    pub(super) interval: AtomicU64,
    pub(super) quota: AtomicU32,
    /// Counts up whenever a refusal may no longer hold.
    pub(super) changes: AtomicU32,
    pub(super) reject: AtomicU32,
    /// Queue pairs that count but are on their way out.
    pub(super) leaving: AtomicU32,
    /// Queue pairs refused for the quota since control looked last or a place came free.
    pub(super) wanted: AtomicU32,
    /// Queue pairs that control has seen silent for so long that they give way to new ones.
    pub(super) silent: AtomicU32,
}

/// How far a worker is with the round under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attendance {
    /// The round that it finished last.
    round: u32,
    /// Keys of the next one that it has forgotten.
    forgotten: usize,
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Acknowledged(pub(super) AtomicU32);

/// The shared set.
pub struct Ledger<const K: usize, const N: usize> {
    seed: u64,
    heads: Cells<AtomicU32>,
    slots: Cells<LedgerSlot<N>>,
    /// Slots never used so far start here.
    pub(super) fresh: AtomicU32,
    /// Stack of slots given back: tag in the high half, slot number in the low.
    free: AtomicU64,
    rows: Box<[LedgerRow]>,
    /// Number of the round, and what it holds.
    pub(super) round: AtomicU32,
    pub(super) leaving: Box<[AtomicU32]>,
    pub(super) leaving_len: AtomicU32,
    pub(super) acknowledged: Box<[Acknowledged]>,
    /// A queue pair's time of last use is noted here when it differs in the bits above this many.
    pub(super) sync_shift: AtomicU32,
}

impl<const K: usize, const N: usize> Ledger<K, N> {
    const FITS: () = assert!(N == KEY + 2 * K && K > 2);

    /// An empty ledger. `advise` is told the address ranges of its tables before they are touched.
    pub fn new(config: &LedgerParams, advise: &dyn Fn(usize, usize)) -> Self {
        // Slots of the rounds under way are not free yet.
        let slack = (config.entries / 64).clamp(2, 2 * ROUND as u32);
        let slots = config.entries.saturating_add(slack).min(MAX_SLOTS);
        let () = Self::FITS;
        let cells: Cells<LedgerSlot<N>> = zeroed(slots as usize, advise);
        let heads: Cells<AtomicU32> = zeroed(config.entries.max(1) as usize, advise);
        let row = || LedgerRow {
            word: AtomicU64::new(0),
            due: AtomicU64::new(0),
            interval: AtomicU64::new(0),
            quota: AtomicU32::new(u32::MAX),
            changes: AtomicU32::new(0),
            reject: AtomicU32::new(0),
            leaving: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            silent: AtomicU32::new(0),
        };
        Self {
            seed: config.seed,
            heads,
            slots: cells,
            fresh: AtomicU32::new(0),
            free: AtomicU64::new(0),
            rows: (0..config.vnics.max(1)).map(|_| row()).collect(),
            round: AtomicU32::new(0),
            leaving: (0..ROUND.min(slots as usize)).map(|_| AtomicU32::new(0)).collect(),
            leaving_len: AtomicU32::new(0),
            acknowledged: (0..config.workers).map(|_| Acknowledged(AtomicU32::new(0))).collect(),
            sync_shift: AtomicU32::new(0),
        }
    }

    /// Bytes of the tables that grow with the number of queue pairs.
    pub fn bytes(&self) -> usize {
        range(&self.slots).1 + range(&self.heads).1
    }

    /// Slots, those of rounds under way among them; each slot's number is below that.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The seed of key hashes.
    #[inline(always)]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bits of the clock that a queue pair's time of last use leaves out here.
    #[inline(always)]
    pub fn sync_shift(&self) -> u32 {
        self.sync_shift.load(Relaxed)
    }

    #[inline(always)]
    pub(super) fn row(&self, vnic: u32) -> &LedgerRow {
        &self.rows[(vnic as usize).min(self.rows.len() - 1)]
    }

    /// The head of the chain of a key.
    pub(super) fn head(&self, key: &[u64; K]) -> &AtomicU32 {
        self.head_of(self.chain(key))
    }

    fn head_of(&self, chain: Chain) -> &AtomicU32 {
        &self.heads[chain.position()]
    }

    /// The chain of a key.
    #[inline]
    pub fn chain(&self, key: &[u64; K]) -> Chain {
        let bits = hash(key, self.seed) & 0xffff_ffff;
        Chain::at(((bits * self.heads.len() as u64) >> 32) as u32)
    }

    /// Has the head of a chain loaded.
    #[inline]
    pub fn prefetch(&self, chain: Chain) {
        self.heads.get(chain.position()).into_iter().for_each(prefetch);
    }

    /// Has the first slot of a chain loaded, once its head is there.
    #[inline]
    pub fn prefetch_first(&self, chain: Chain) {
        let first = self.heads.get(chain.position()).map_or(NONE, |head| head.load(Relaxed));
        self.linked(first).into_iter().for_each(prefetch);
    }

    /// Has the slots loaded that the next so many keys get.
    pub fn prefetch_free(&self, keys: usize) {
        match self.linked(self.free.load(Relaxed) as u32) {
            // Where the others are is written in this one.
            Some(slot) => prefetch(slot),
            None => {
                let fresh = self.fresh.load(Relaxed) as usize;
                self.slots.iter().skip(fresh).take(keys).for_each(prefetch);
            }
        }
    }

    /// The slot behind a number in a link, or `None` at the end.
    pub(super) fn linked(&self, number: u32) -> Option<&LedgerSlot<N>> {
        self.slots.get((number as usize).wrapping_sub(1))
    }

    /// Queue pairs of a vNIC that count now.
    pub fn count(&self, vnic: u32) -> u32 {
        Word(self.row(vnic).word.load(Acquire)).count()
    }

    /// Queue pairs of a vNIC that count now and stay.
    pub fn staying(&self, vnic: u32) -> u32 {
        self.count(vnic).saturating_sub(self.row(vnic).leaving.load(Acquire))
    }

    /// What a vNIC may do.
    pub fn limits(&self, vnic: u32) -> LedgerLimits {
        let row = self.row(vnic);
        let new_rate = match row.interval.load(Relaxed) {
            0 => 0,
            interval => (1_000_000_000 / interval) as u32,
        };
        LedgerLimits { quota: row.quota.load(Relaxed), new_rate, reject: row.reject.load(Relaxed) != 0 }
    }

    /// A number that changes whenever a refusal of this vNIC may no longer hold.
    #[inline]
    pub fn changes(&self, vnic: u32) -> u32 {
        self.row(vnic).changes.load(Acquire)
    }

    /// Notes that a queue pair of a vNIC was refused for its quota: control makes room where it can. Once for each
    /// refusal that is remembered, not for each packet.
    pub fn want(&self, vnic: u32) {
        self.row(vnic).wanted.fetch_add(1, Relaxed);
    }

    /// True while a new queue pair of a full vNIC would get a place, because others give way to it: control has seen more of
    /// them silent for long enough than there are over the quota, which may have been lowered.
    pub fn makes_room(&self, vnic: u32) -> bool {
        let row = self.row(vnic);
        let (quota, silent) = (row.quota.load(Relaxed), row.silent.load(Relaxed));
        quota != 0 && silent > self.staying(vnic).saturating_sub(quota)
    }

    /// Admits a queue pair of a vNIC if it is not admitted already. `returning` says whether it went idle lately:
    /// then the rate of new ones does not hold it up.
    pub fn admit(
        &self,
        vnic: u32,
        key: &[u64; K],
        tick: u32,
        now_ns: u64,
        returning: impl FnOnce() -> bool,
    ) -> LedgerAnswer {
        self.admit_to(self.chain(key), vnic, key, tick, now_ns, returning)
    }

    /// [`admit`](Self::admit) where the key's chain is known.
    pub fn admit_to(
        &self,
        chain: Chain,
        vnic: u32,
        key: &[u64; K],
        tick: u32,
        now_ns: u64,
        returning: impl FnOnce() -> bool,
    ) -> LedgerAnswer {
        let row = self.row(vnic);
        let head = self.head_of(chain);
        let mut returning = Some(returning);
        let mut mine = NONE;
        loop {
            let word = Word(row.word.load(Acquire));
            if word.in_flight() != NONE {
                self.settle(row, word);
                continue;
            }
            let refused = match self.find_from(head, key) {
                Some((number, state)) => {
                    self.give_up(mine);
                    return if is(state, SlotState::Leaving) {
                        LedgerAnswer::Leaving
                    } else {
                        LedgerAnswer::Known(number - 1)
                    };
                }
                None if word.count() >= row.quota.load(Relaxed) => LedgerAnswer::Quota,
                None => {
                    // The rate is asked once, however often the row changes meanwhile.
                    if let Some(returning) = returning.take()
                        && !row.due_now(now_ns)
                        && !returning()
                    {
                        return LedgerAnswer::Rate;
                    }
                    if mine == NONE {
                        mine = self.claim(head, key, tick);
                    }
                    let granted = word.next(mine, word.count() + 1);
                    match mine {
                        NONE => LedgerAnswer::Full,
                        _ if row.word.compare_exchange(word.0, granted.0, AcqRel, Relaxed).is_err() => {
                            continue;
                        }
                        _ => {
                            self.settle(row, granted);
                            return LedgerAnswer::New(mine - 1);
                        }
                    }
                }
            };
            // Refused only if nothing changed while we looked.
            if row.word.load(Acquire) == word.0 {
                self.give_up(mine);
                return refused;
            }
        }
    }

    /// Makes the slot in flight visible; does nothing when somebody else has done it.
    pub(super) fn settle(&self, row: &LedgerRow, word: Word) {
        let Some(slot) = self.linked(word.in_flight()) else { return };
        let state = slot[STATE].load(Acquire);
        // While the row still says so, the state that was read belongs to this admission.
        if row.word.load(Acquire) != word.0 {
            return;
        }
        if is(state, SlotState::Claimed) {
            let _ = slot[STATE].compare_exchange(state, with(state, SlotState::Admitted), AcqRel, Relaxed);
        }
        let settled = word.next(NONE, word.count());
        let _ = row.word.compare_exchange(word.0, settled.0, AcqRel, Relaxed);
    }

    /// The number of the slot that holds a key, admitted or leaving, and its state.
    pub(super) fn find(&self, key: &[u64; K]) -> Option<(u32, u32)> {
        self.find_from(self.head(key), key)
    }

    /// [`find`](Self::find) where the head of the key's chain is known.
    fn find_from(&self, head: &AtomicU32, key: &[u64; K]) -> Option<(u32, u32)> {
        let mut number = head.load(Acquire);
        while let Some(slot) = self.linked(number) {
            let state = slot[STATE].load(Acquire);
            if (is(state, SlotState::Admitted) || is(state, SlotState::Leaving)) && has_key(slot, key) {
                return Some((number, state));
            }
            number = slot[NEXT].load(Acquire);
        }
        None
    }

    /// The slot in which a key of a chain is admitted and stays.
    #[inline(always)]
    pub fn admitted_in(&self, chain: Chain, key: &[u64; K]) -> Option<u32> {
        let (number, state) = self.find_from(self.head_of(chain), key)?;
        is(state, SlotState::Admitted).then(|| number - 1)
    }

    /// The slot in which a key is admitted, be it on its way out.
    pub fn lookup(&self, key: &[u64; K]) -> Option<u32> {
        self.find(key).map(|(number, _)| number - 1)
    }

    /// Takes a free slot, fills and links it, unseen, at the head of the key's chain.
    fn claim(&self, head: &AtomicU32, key: &[u64; K], tick: u32) -> u32 {
        let number = self.take_free();
        let Some(slot) = self.linked(number) else { return NONE };
        for (i, word) in key.iter().enumerate() {
            slot[KEY + 2 * i].store((word >> 32) as u32, Relaxed);
            slot[KEY + 2 * i + 1].store(*word as u32, Relaxed);
        }
        slot[SEEN].store(tick, Relaxed);
        slot[BORN].store(tick, Relaxed);
        let state = slot[STATE].load(Relaxed).wrapping_add(VERSION);
        slot[STATE].store(with(state, SlotState::Claimed), Release);
        let mut first = head.load(Relaxed);
        loop {
            slot[NEXT].store(first, Relaxed);
            match head.compare_exchange(first, number, AcqRel, Relaxed) {
                Ok(_) => return number,
                Err(now) => first = now,
            }
        }
    }

    /// Leaves a slot that was claimed in vain for control to unlink.
    fn give_up(&self, number: u32) {
        if let Some(slot) = self.linked(number) {
            let state = slot[STATE].load(Relaxed);
            slot[STATE].store(with(state, SlotState::Void), Release);
        }
    }

    fn take_free(&self) -> u32 {
        let mut top = self.free.load(Acquire);
        while let Some(slot) = self.linked(top as u32) {
            let next = slot[NEXT].load(Relaxed);
            let popped = (top >> 32).wrapping_add(1) << 32 | u64::from(next);
            match self.free.compare_exchange(top, popped, AcqRel, Acquire) {
                Ok(_) => return top as u32,
                Err(now) => top = now,
            }
        }
        let mut fresh = self.fresh.load(Relaxed);
        while (fresh as usize) < self.slots.len() {
            match self.fresh.compare_exchange(fresh, fresh + 1, AcqRel, Relaxed) {
                Ok(_) => return fresh + 1,
                Err(now) => fresh = now,
            }
        }
        NONE
    }

    pub(super) fn put_free(&self, number: u32) {
        let Some(slot) = self.linked(number) else { return };
        let mut top = self.free.load(Relaxed);
        loop {
            slot[NEXT].store(top as u32, Relaxed);
            let pushed = (top >> 32).wrapping_add(1) << 32 | u64::from(number);
            match self.free.compare_exchange(top, pushed, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Notes that a queue pair was used.
    #[inline]
    pub fn seen(&self, slot: u32, tick: u32) {
        if let Some(slot) = self.slots.get(slot as usize) {
            slot[SEEN].store(tick, Relaxed);
        }
    }

    /// To be called by each worker between bursts: calls `forget` with a few keys (and their slots) of a new round,
    /// and acknowledges it after the last.
    #[inline(always)]
    pub fn attend(&self, worker: u32, at: &mut Attendance, forget: impl FnMut(u32, [u64; K])) {
        // One line that changes only with rounds.
        let round = self.round.load(Acquire);
        if round != at.round {
            self.obey(worker, round, at, forget);
        }
    }

    #[cold]
    fn obey(&self, worker: u32, round: u32, at: &mut Attendance, mut forget: impl FnMut(u32, [u64; K])) {
        let len = self.leaving_len.load(Relaxed) as usize;
        let to = len.min(at.forgotten + FORGET);
        for number in self.leaving[at.forgotten..to].iter().map(|number| number.load(Relaxed)) {
            if let Some(slot) = self.linked(number) {
                forget(number - 1, read_key(slot));
            }
        }
        at.forgotten = to;
        if to < len {
            return;
        }
        *at = Attendance { round, forgotten: 0 };
        if let Some(acknowledged) = self.acknowledged.get(worker as usize) {
            acknowledged.0.store(round, Release);
        }
    }

    /// To be called when a worker ends: no round waits for it any more.
    pub fn retire(&self, worker: u32) {
        if let Some(acknowledged) = self.acknowledged.get(worker as usize) {
            acknowledged.0.store(GONE, Release);
        }
    }
}

impl LedgerRow {
    /// True when a new queue pair keeps to the rate; then it is counted against it.
    fn due_now(&self, now_ns: u64) -> bool {
        let interval = self.interval.load(Relaxed);
        if interval == 0 {
            return true;
        }
        let mut due = self.due.load(Relaxed);
        loop {
            let start = due.max(now_ns);
            if start - now_ns > TOLERANCE_NS {
                return false;
            }
            match self.due.compare_exchange(due, start + interval, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => due = now,
            }
        }
    }
}

fn range<T>(cells: &Cells<T>) -> (usize, usize) {
    (cells.as_ptr() as usize, cells.len() * size_of::<T>())
}
