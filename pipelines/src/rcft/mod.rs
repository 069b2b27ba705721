//! RCFT, the RC flow table: which reliable-connection queue pairs of a vNIC are admitted, and what they do.
//!
//! ```text
//!   packet -> QpTable (worker's own: counters, last seen) -- unknown --> Refusals -> Ledger (shared: the quota)
//! ```
//! A hit stays on the worker: one index line, one entry line. The shared [`Ledger`] is asked for queue pairs that
//! the worker does not know, and hears of the time of last use now and then. What counts against a vNIC's quota is
//! the number of distinct (peer VIP, peer QPN) to which the vNIC itself sends; packets from the wire are counted
//! for display in a table of their own, of which a vNIC has a share in proportion to the queue pairs it uses, so
//! that a stranger who sprays queue pair numbers fills nothing.

mod qp;
mod refused;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use crate::ledger::{Attendance, LedgerAnswer, LedgerLimits, LedgerParams, MAX_SLOTS};
pub use qp::{QpEvents, QpKey, QpProbe, QpView, RocePacketFacts};
pub use refused::Grace;

use crate::direction::Direction;
use crate::drops::DropReason;
use crate::flow_key::Scope;
use crate::index::NONE;
use crate::rows::Rows;
use crate::snapshot::Snapshot;
use crate::{Now, TICK_MS};
use refused::Refusals;
use table::QpTable;

/// Entries from the wire that every vNIC may have beside twice its admitted ones.
const STRANGERS: u32 = 64;
/// Fewer packets than these, and an entry from the wire is half open.
const ESTABLISHED: u64 = 4;
/// Ticks between two reports of refusals of one vNIC.
const REPORT: u32 = 1000 / TICK_MS;
/// Lines that aging looks at per poll.
const SWEEP: u32 = 8;

/// The ledger of queue pairs, whose keys are those of [`QpKey::words`].
pub type Ledger = crate::ledger::Ledger<3, 10>;
/// Control's side of it.
pub type Keeper<L> = crate::ledger::Keeper<3, 10, L>;
/// A queue pair as control sees it.
pub type LedgerView = crate::ledger::LedgerView<3>;

/// Shape of the tables of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcftParams {
    /// Queue pairs of the host.
    pub entries: u32,
    /// Most vNICs, each with a count and limits of its own.
    pub vnics: u32,
    /// Workers, whose rounds the keeper waits for before a queue pair is gone.
    pub workers: u32,
    /// Seed of hashes.
    pub seed: u64,
}

impl RcftParams {
    /// Queue pairs of each direction that one worker can follow.
    fn share(&self) -> u32 {
        self.entries.div_ceil(self.workers.max(1))
    }
}

/// What the workers share.
pub struct RcftShared {
    config: RcftParams,
    /// Who is admitted.
    pub ledger: Arc<Ledger>,
    grace: Grace,
    times: SharedTimes,
}

/// Settings that change while workers run, in ticks.
#[derive(Default)]
struct SharedTimes {
    idle: AtomicU32,
    half_open: AtomicU32,
    grace: AtomicU32,
}

impl RcftShared {
    /// Tables without a queue pair; `advise` is told the address ranges (start, bytes) of their slabs.
    pub fn new(config: RcftParams, advise: &dyn Fn(usize, usize)) -> Arc<Self> {
        let RcftParams { entries, vnics, workers, seed } = config;
        Arc::new(Self {
            config,
            ledger: Arc::new(Ledger::new(&LedgerParams { entries, vnics, workers, seed }, advise)),
            grace: Grace::new((entries / 16).clamp(1024, 65_536) as usize),
            times: SharedTimes::default(),
        })
    }

    /// The sizes that the tables were made with.
    pub fn config(&self) -> &RcftParams {
        &self.config
    }

    /// Sets the idle timeout, the half-open timeout and the time of grace (all in ticks).
    pub fn set_times(&self, idle: u32, half_open: u32, grace: u32) {
        self.times.idle.store(idle, Relaxed);
        self.times.half_open.store(half_open, Relaxed);
        self.times.grace.store(grace.min(Grace::LONGEST), Relaxed);
    }

    /// By how many ticks, as a power of two, a time of last use in the ledger may lag: an eighth at most of the shortest
    /// silence that matters.
    pub fn sync_shift(shortest_ticks: u32) -> u32 {
        (shortest_ticks / 8).max(1).ilog2().min(7)
    }

    /// Remembers a queue pair that is taken out for idleness.
    pub fn went_idle(&self, key: &[u64; 3], tick: u32) {
        self.grace.store(crate::ledger::hash(key, self.ledger.seed()), tick);
    }

    /// Forgets what went idle too long ago, a place at a time; which is next.
    pub fn forget_idle(&self, place: usize, tick: u32) -> usize {
        self.grace.forget(place, tick, self.times.grace.load(Relaxed))
    }

    /// Bytes of memory of this and of the tables of `config.workers` workers.
    pub fn total_bytes(&self) -> usize {
        self.ledger.bytes() + 2 * QpTable::bytes(self.config.share()) * self.config.workers as usize
    }
}

/// What a worker counts here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RcftStats {
    /// Entries toward the wire.
    pub out: u32,
    /// Entries from the wire.
    pub into: u32,
    /// Packets of queue pairs that are admitted but found no entry on this worker: they pass, uncounted.
    pub untracked: u64,
    /// Packets from the wire to queue pairs that found no entry.
    pub unknown: u64,
}

/// What became of a packet from a vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpOutcome {
    /// It may pass.
    Pass,
    /// It may pass, and opened a queue pair.
    Opened,
    /// Refused under this name, as packets of the same queue pair were a moment ago.
    Refused(DropReason),
    /// Refused, for the first time in a while.
    RefusedNew(DropReason),
}

/// The tables of one worker.
pub struct Rcft {
    shared: Arc<RcftShared>,
    worker: u32,
    attendance: Attendance,
    out: QpTable,
    into: QpTable,
    refusals: Refusals,
    /// Entries from the wire, by vNIC.
    guests: Rows<u32>,
    /// When a refusal was reported last, by vNIC.
    reported: Rows<u32>,
    untracked: u64,
    unknown: u64,
}

impl Rcft {
    /// The tables of worker `worker`.
    pub fn new(shared: Arc<RcftShared>, worker: u32, advise: &dyn Fn(usize, usize)) -> Self {
        let (share, seed) = (shared.config.share(), shared.config.seed);
        let vnics = shared.config.vnics as usize;
        Self {
            worker,
            attendance: Attendance::default(),
            out: QpTable::new(share, seed, advise),
            into: QpTable::new(share, seed, advise),
            refusals: Refusals::new(),
            guests: Rows::new(vnics, || 0),
            reported: Rows::new(vnics, || 0),
            untracked: 0,
            unknown: 0,
            shared,
        }
    }

    /// What the workers share.
    pub fn shared(&self) -> &RcftShared {
        &self.shared
    }

    /// What this worker's tables hold, and what they could not.
    pub fn stats(&self) -> RcftStats {
        RcftStats {
            out: self.out.len(),
            into: self.into.len(),
            untracked: self.untracked,
            unknown: self.unknown,
        }
    }

    fn table(&self, direction: Direction) -> &QpTable {
        match direction {
            Direction::Out => &self.out,
            Direction::In => &self.into,
        }
    }

    /// Loads the index line of a key; its hash.
    #[inline(always)]
    pub fn prefetch(&self, direction: Direction, key: &QpKey) -> u64 {
        let table = self.table(direction);
        let hash = table.hash(key);
        table.prefetch_bucket(hash);
        hash
    }

    /// Loads the entry line that the key with this hash has, if it has one; which that is, for a [`QpProbe`].
    #[inline(always)]
    pub fn prefetch_line(&self, direction: Direction, hash: u64) -> u32 {
        self.table(direction).prefetch_line(hash)
    }

    /// Both at once, for who looks for one queue pair alone.
    pub fn probe(&self, direction: Direction, key: QpKey) -> QpProbe {
        let hash = self.prefetch(direction, &key);
        QpProbe { key, hash, slot: self.prefetch_line(direction, hash) }
    }

    /// A packet of a reliable connection from a vNIC.
    #[inline(always)]
    pub fn sent(&mut self, vnic: u32, probe: &QpProbe, facts: &RocePacketFacts, now: Now) -> QpOutcome {
        self.sent_if(vnic, probe, facts, now, || true)
    }

    /// As [`sent`](Self::sent). `goes_on` is asked before a place is given: a packet that is about to be dropped
    /// gets none.
    #[inline(always)]
    pub fn sent_if(
        &mut self,
        vnic: u32,
        probe: &QpProbe,
        facts: &RocePacketFacts,
        now: Now,
        goes_on: impl FnOnce() -> bool,
    ) -> QpOutcome {
        let slot = self.out.found(probe);
        if slot == NONE {
            return self.sent_unknown(vnic, probe, facts, now, goes_on);
        }
        let (before, ledger) = self.out.count(slot, facts, now.tick);
        if before != now.tick {
            self.note(ledger, before, now.tick);
        }
        QpOutcome::Pass
    }

    /// Tells the ledger the time of last use, in coarse steps.
    #[inline(always)]
    fn note(&self, ledger: u32, before: u32, tick: u32) {
        if (before ^ tick) >> self.shared.ledger.sync_shift() != 0 {
            self.shared.ledger.seen(ledger, tick);
        }
    }

    #[cold]
    #[inline(never)]
    fn sent_unknown(
        &mut self,
        vnic: u32,
        &QpProbe { ref key, hash, .. }: &QpProbe,
        facts: &RocePacketFacts,
        now: Now,
        goes_on: impl FnOnce() -> bool,
    ) -> QpOutcome {
        let ledger = &self.shared.ledger;
        // Read before the ledger is asked: a change in between makes the memory of the refusal void.
        let changes = ledger.changes(vnic);
        // Only a used-up quota is remembered as final: rates pass by themselves, and a full table is not the
        // vNIC's own.
        if self.refusals.find(hash, changes, now.tick) == Some(DropReason::QP_QUOTA) {
            return QpOutcome::Refused(DropReason::QP_QUOTA);
        }
        if !goes_on() {
            return QpOutcome::Pass;
        }
        let grace = self.shared.times.grace.load(Relaxed);
        let returning = || self.shared.grace.holds(hash, now.tick, grace);
        let answer = ledger.admit(vnic, key.words(), now.tick, now.ns, returning);
        let reason = match answer {
            LedgerAnswer::New(slot) | LedgerAnswer::Known(slot) => {
                let own = self.out.insert(*key, hash, slot, now.tick);
                self.out.count(own, facts, now.tick);
                if own == NONE {
                    self.untracked += 1;
                }
                ledger.seen(slot, now.tick);
                return if matches!(answer, LedgerAnswer::New(_)) {
                    QpOutcome::Opened
                } else {
                    QpOutcome::Pass
                };
            }
            LedgerAnswer::Leaving => return QpOutcome::Pass,
            LedgerAnswer::Rate => DropReason::QP_RATE,
            LedgerAnswer::Quota => DropReason::QP_QUOTA,
            LedgerAnswer::Full => DropReason::QP_TABLE_FULL,
        };
        if reason == DropReason::QP_QUOTA {
            ledger.want(vnic);
        }
        let again = self.refusals.find(hash, changes, now.tick) == Some(reason);
        self.refusals.store(hash, changes, now.tick, reason);
        if again { QpOutcome::Refused(reason) } else { QpOutcome::RefusedNew(reason) }
    }

    /// A packet of a reliable connection out of the tunnel: counted, never refused. `vnic` finds the vNIC that it
    /// is for, when the queue pair is not known.
    #[inline(always)]
    pub fn received(
        &mut self,
        probe: &QpProbe,
        facts: &RocePacketFacts,
        now: Now,
        vnic: impl FnOnce() -> Option<u32>,
    ) {
        let slot = self.into.found(probe);
        if slot == NONE {
            if let Some(vnic) = vnic() {
                self.received_unknown(vnic, probe, facts, now);
            }
            return;
        }
        self.into.count(slot, facts, now.tick);
    }

    #[cold]
    #[inline(never)]
    fn received_unknown(&mut self, vnic: u32, probe: &QpProbe, facts: &RocePacketFacts, now: Now) {
        let QpProbe { key, hash, .. } = *probe;
        let bound = self.shared.ledger.count(vnic).saturating_mul(2).saturating_add(STRANGERS);
        let guests = self.guests.at_mut(vnic);
        let slot = if *guests < bound { self.into.insert(key, hash, vnic, now.tick) } else { NONE };
        if slot == NONE {
            self.unknown += 1;
            return;
        }
        *guests += 1;
        self.into.count(slot, facts, now.tick);
    }

    /// A congestion notification to a queue pair: counted where that is known.
    pub fn notified(&mut self, direction: Direction, probe: &QpProbe) {
        let table = match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.into,
        };
        let slot = table.found(probe);
        if let Some(events) = table.events_mut(slot) {
            events.cnp = events.cnp.saturating_add(1);
        }
    }

    /// Counts packets of a queue pair that did not pass here. Which packet sequence numbers they had nobody knows.
    pub fn account(&mut self, direction: Direction, key: &QpKey, packets: u64, bytes: u64, tick: u32) {
        let table = match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.into,
        };
        let slot = table.find(key, table.hash(key));
        if let Some(line) = table.line_mut(slot) {
            let ledger = line.ledger;
            line.account(packets, bytes, tick);
            if direction == Direction::Out {
                self.shared.ledger.seen(ledger, tick);
            }
        }
    }

    /// True when control should hear of a refusal of this vNIC now.
    pub fn may_report(&mut self, vnic: u32, tick: u32) -> bool {
        let reported = self.reported.at_mut(vnic);
        let due = *reported == 0 || tick.wrapping_sub(*reported) >= REPORT;
        if due {
            *reported = tick.max(1);
        }
        due
    }

    /// Work between bursts: forgets what control takes out, and ages a few entries from the wire.
    #[inline(always)]
    pub fn tend(&mut self, now: Now) {
        let Self { shared, out, attendance, worker, .. } = self;
        shared.ledger.attend(*worker, attendance, |_, words| out.remove(&QpKey::from_words(words)));
        if self.into.len() != 0 {
            self.age(now.tick);
        }
    }

    fn age(&mut self, tick: u32) {
        let idle = self.shared.times.idle.load(Relaxed);
        let half_open = self.shared.times.half_open.load(Relaxed);
        let goes = |packets: u64, seen: u32| {
            let limit = if packets < ESTABLISHED { half_open.min(idle) } else { idle };
            tick.wrapping_sub(seen) > limit
        };
        let guests = &mut self.guests;
        self.into.sweep(SWEEP, goes, |vnic| leave(guests.at_mut(vnic)));
    }

    /// Takes out entries from the wire, `budget` lines from line `from` on, whose address is no longer that of the
    /// vNIC they were counted for. Where to go on, `None` at the end.
    pub fn tidy(&mut self, snapshot: &Snapshot, from: u32, budget: u32) -> Option<u32> {
        let keep = |key: &QpKey, vnic| match key.scope() {
            Scope::Vpc(vpc) => snapshot.local_vnic(vpc, key.address()) == Some(vnic),
            Scope::Vnic(_) => true,
        };
        let guests = &mut self.guests;
        self.into.retain(from, budget, keep, |vnic| leave(guests.at_mut(vnic)))
    }

    /// Forgets a queue pair from the wire, if it is known here.
    pub fn forget(&mut self, key: &QpKey) {
        let slot = self.into.find(key, self.into.hash(key));
        if let Some(line) = self.into.line_mut(slot) {
            let vnic = line.ledger;
            self.into.remove(key);
            leave(self.guests.at_mut(vnic));
        }
    }

    /// Entries from the wire, by vNIC.
    pub fn guests(&self) -> &[u32] {
        self.guests.all()
    }

    /// One direction of a queue pair.
    pub fn view(&self, direction: Direction, key: &QpKey) -> Option<QpView> {
        let table = self.table(direction);
        table.view(table.find(key, table.hash(key)))
    }

    /// Up to `limit` queue pairs of one direction, from `from` on, and where to go on.
    pub fn scan(&self, direction: Direction, from: u32, limit: usize) -> (Vec<QpView>, Option<u32>) {
        self.table(direction).scan(from, limit)
    }
}

/// One entry less.
fn leave(guests: &mut u32) {
    *guests = guests.saturating_sub(1);
}

impl Drop for Rcft {
    /// No round waits for a worker that is gone.
    fn drop(&mut self) {
        self.shared.ledger.retire(self.worker);
    }
}

/// Ticks of a time in milliseconds, rounded up.
pub const fn ticks(ms: u64) -> u32 {
    let ticks = ms.div_ceil(TICK_MS as u64);
    if ticks > u32::MAX as u64 / 2 { u32::MAX / 2 } else { ticks as u32 }
}

#[cfg(test)]
mod tests;
