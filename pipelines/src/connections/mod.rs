//! The connection table of security groups: what a vNIC's rules have admitted, so that the other direction passes, too.
//!
//! One table that the workers share, without locks: a reply may reach another worker than its request. Places are given by
//! a [ledger](crate::ledger) as the RCFT's are, each vNIC with a bound of its own; beside its slots are the state of each
//! connection and a version, which changes whenever flows may no longer rest on the connection. Packets that hit the NFT
//! look at the version alone, two bytes of a dense array: [`Watch`].
//!
//! Only the slow path and control write here. TCP packets with SYN, FIN or RST always take the slow path, and so do all
//! packets of a connection that is not established yet.

mod key;
mod state;
mod watch;

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

pub use key::{ConnectionKey, HashedKey, Kind};
pub use state::{ConnectionState, Phase};
pub use watch::{Versions, Watch};

use crate::Now;
use crate::ledger::{
    Attendance, Chain, Keeper, Ledger, LedgerAnswer, LedgerLimits, LedgerParams, LedgerView,
};
use crate::mem::Slab;
use crate::rows::Rows;

/// The ledger of connections, whose keys are those of [`ConnectionKey::words`].
pub type ConnectionLedger = Ledger<6, 16>;
/// A connection's place, as control sees it.
pub type ConnectionView = LedgerView<6>;

/// By how many ticks, as a power of two, the time of last use may lag: 6.4 s.
pub const SEEN_SHIFT: u32 = 6;
/// Versions on a cache line.
const LINE: usize = 64 / size_of::<AtomicU16>();

/// How long connections live without a packet, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionTimes {
    /// TCP until the handshake is complete.
    pub tcp_opening: u32,
    /// TCP after the handshake.
    pub tcp_established: u32,
    /// TCP after a FIN or RST.
    pub tcp_closing: u32,
    /// UDP and other protocols of which one direction was seen only.
    pub one_way: u32,
    /// Those of which both were seen.
    pub both_ways: u32,
    /// ICMP echo and the like.
    pub icmp: u32,
    /// RoCEv2 of which the RCFT admits nothing; and queue pairs, until it is known which of them it has.
    pub rdma: u32,
}

/// The table.
pub struct Connections {
    ledger: Arc<ConnectionLedger>,
    /// [`Record`]s, as words.
    records: Slab<AtomicU64>,
    /// What flows rest on: first one that never changes, for those that rest on nothing; those of the connections, by slot;
    /// and for each vNIC, on a line of its own, how many connections it has made: what was refused may be a reply now.
    versions: Slab<AtomicU16>,
    /// Where those of the vNICs begin, and how many vNICs there are.
    made: (u32, u32),
    refused: AtomicU64,
    /// Of each vNIC, until when connections may be taken up in the middle, in ticks.
    pick_up_until: Rows<AtomicU32>,
}

/// What is known of a connection. In one word, so that of two workers that change it one has to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// How far it is.
    pub state: ConnectionState,
    /// The epoch of the rules that it was held against last.
    pub epoch: u32,
}

impl Record {
    const fn word(self) -> u64 {
        (self.epoch as u64) << 32 | self.state.0 as u64
    }

    const fn from_word(word: u64) -> Self {
        Self { state: ConnectionState(word as u32), epoch: (word >> 32) as u32 }
    }
}

/// A connection that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its slot.
    pub slot: u32,
    /// What its flows rest on; as of before the record was read, so that what changes later is seen.
    pub watch: Watch,
    /// What is known of it.
    pub record: Record,
}

/// What became of a connection that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It is there, and flows rest on this.
    In(Watch),
    /// It is on its way out and cannot be made at this moment; the packet may pass.
    Leaving,
    /// The vNIC has as many as it may, or the table is full.
    Refused,
}

impl Connections {
    /// An empty table of a host. `advise` is told the address ranges of its slabs before they are touched.
    pub fn new(params: &LedgerParams, advise: &dyn Fn(usize, usize)) -> Self {
        let ledger = Arc::new(ConnectionLedger::new(params, advise));
        let slots = ledger.slots();
        let made = (1 + slots).next_multiple_of(LINE);
        let vnics = params.vnics.max(1);
        Self {
            records: Slab::zeroed(slots, advise),
            versions: Slab::zeroed(made + vnics as usize * LINE, advise),
            // Slots have numbers of 24 bits, vNICs are fewer.
            made: (made as u32, vnics),
            refused: AtomicU64::new(0),
            pick_up_until: Rows::new(params.vnics as usize, || AtomicU32::new(0)),
            ledger,
        }
    }

    /// Who has a place.
    pub fn ledger(&self) -> &Arc<ConnectionLedger> {
        &self.ledger
    }

    /// Connections that got no place since the start.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Lets TCP connections of a vNIC that nobody has seen begin be taken up until a time: after a start, and when the vNIC
    /// comes under rules, there are some.
    pub fn pick_up_until(&self, vnic: u32, tick: u32) {
        self.pick_up_until.at(vnic).store(tick, Relaxed);
    }

    /// True while TCP connections of a vNIC may be taken up in the middle.
    pub fn picks_up(&self, vnic: u32, tick: u32) -> bool {
        let left = self.pick_up_until.at(vnic).load(Relaxed).wrapping_sub(tick);
        left != 0 && left <= u32::MAX / 2
    }

    /// True while a flow may go on resting on what it rests on.
    #[inline(always)]
    pub fn holds(&self, watch: Watch) -> bool {
        self.versions().holds(watch)
    }

    /// What [`holds`](Self::holds) looks at, for a loop that asks of many flows.
    #[inline(always)]
    pub fn versions(&self) -> Versions<'_> {
        Versions(&self.versions)
    }

    /// What a flow rests on that uses the connection in a slot.
    pub fn watch(&self, slot: u32) -> Watch {
        self.watch_of(slot + 1)
    }

    fn watch_of(&self, of: u32) -> Watch {
        let version = self.versions.get(of as usize).map_or(0, |version| version.load(Acquire));
        Watch { of, version }
    }

    /// Where the version of a vNIC is. Those past the end share the last one's.
    fn made_by(&self, vnic: u32) -> u32 {
        let (first, vnics) = self.made;
        first + vnic.min(vnics - 1) * LINE as u32
    }

    /// What a flow rests on that a vNIC's rules refused: it may become the reply to a connection of the vNIC. To be read
    /// before the table is looked up.
    pub fn refusal(&self, vnic: u32) -> Watch {
        self.watch_of(self.made_by(vnic))
    }

    /// The chain in which a connection is looked for.
    #[inline]
    pub fn chain(&self, key: &ConnectionKey) -> Chain {
        self.ledger.chain(key.words())
    }

    /// A key, hashed for this table.
    #[inline]
    pub fn hashed(&self, key: ConnectionKey) -> HashedKey {
        HashedKey { key, chain: self.chain(&key) }
    }

    /// A connection by its key.
    pub fn find(&self, key: &ConnectionKey) -> Option<Found> {
        self.find_hashed(&self.hashed(*key))
    }

    /// [`find`](Self::find) where the key was hashed before.
    #[inline(always)]
    pub fn find_hashed(&self, HashedKey { key, chain }: &HashedKey) -> Option<Found> {
        let slot = self.ledger.admitted_in(*chain, key.words())?;
        let watch = self.watch(slot);
        let record = self.record(slot);
        // One that another worker is about to enter is not there yet.
        (record.state != ConnectionState::NONE).then_some(Found { slot, watch, record })
    }

    /// Has memory loaded that looking up a connection begins with, from its chain.
    #[inline]
    pub fn prefetch(&self, chain: Chain) {
        self.ledger.prefetch(chain);
    }

    /// Has memory loaded that looking up a connection goes on with, once the beginning is there.
    #[inline]
    pub fn prefetch_first(&self, chain: Chain) {
        self.ledger.prefetch_first(chain);
    }

    /// Has memory loaded that so many new connections will take.
    #[inline]
    pub fn prefetch_free(&self, connections: usize) {
        self.ledger.prefetch_free(connections);
    }

    /// What is known of the connection in a slot.
    pub fn record(&self, slot: u32) -> Record {
        Record::from_word(self.records.get(slot as usize).map_or(0, |record| record.load(Acquire)))
    }

    /// Enters a connection that rules admit.
    pub fn make(&self, key: &ConnectionKey, record: Record, now: Now) -> Made {
        self.make_hashed(&self.hashed(*key), record, now)
    }

    /// [`make`](Self::make) where the key was hashed before.
    #[inline]
    pub fn make_hashed(&self, HashedKey { key, chain }: &HashedKey, record: Record, now: Now) -> Made {
        let vnic = key.vnic();
        let slot = match self.ledger.admit_to(*chain, vnic, key.words(), now.tick, now.ns, || false) {
            LedgerAnswer::New(slot) => slot,
            LedgerAnswer::Known(slot) => {
                self.ledger.seen(slot, now.tick);
                slot
            }
            LedgerAnswer::Leaving => return Made::Leaving,
            LedgerAnswer::Quota | LedgerAnswer::Rate | LedgerAnswer::Full => {
                self.refused.fetch_add(1, Relaxed);
                return Made::Refused;
            }
        };
        let watch = self.watch(slot);
        // Another worker that has just made it knows as much.
        self.change(slot, Record::from_word(0), record);
        self.opened(vnic);
        Made::In(watch)
    }

    /// Notes that a vNIC has opened a connection: what its rules refused may be a reply now.
    pub fn opened(&self, vnic: u32) {
        self.advance(self.made_by(vnic));
    }

    /// Replaces what is known of the connection in a slot; `false`, and nothing changed, when somebody else has done so since
    /// it was read. Flows that rest on the connection are decided again where that ends it.
    pub fn change(&self, slot: u32, before: Record, after: Record) -> bool {
        let Some(place) = self.records.get(slot as usize) else { return false };
        let changed = place.compare_exchange(before.word(), after.word(), AcqRel, Relaxed).is_ok();
        if changed && after.state.phase() == Phase::Reset && before.state.phase() != Phase::Reset {
            self.end(slot);
        }
        changed
    }

    /// No flow rests on the connection in a slot any more.
    fn end(&self, slot: u32) {
        self.advance(slot + 1);
    }

    fn advance(&self, of: u32) {
        if let Some(version) = self.versions.get(of as usize) {
            version.fetch_add(1, Release);
        }
    }

    /// Notes that somebody goes on with a connection that has ended, so that it is not forgotten meanwhile.
    pub fn remember(&self, slot: u32, tick: u32) {
        self.ledger.seen(slot, tick);
    }

    /// Notes that a connection was used.
    pub fn touch(&self, slot: u32, tick: u32) {
        if !self.record(slot).state.is_over() {
            self.ledger.seen(slot, tick);
        }
    }
}

/// A worker's part: it attends to what control takes out.
pub struct WorkerConnections {
    /// The table.
    pub shared: Arc<Connections>,
    worker: u32,
    attendance: Attendance,
}

impl WorkerConnections {
    /// That of the only worker, with a table of so many connections.
    pub fn of_one(entries: u32, vnics: u32) -> Self {
        let params = LedgerParams { entries, vnics, workers: 1, seed: 0 };
        Self::new(Arc::new(Connections::new(&params, &|_, _| {})), 0)
    }

    /// That of a worker, by its number.
    pub fn new(shared: Arc<Connections>, worker: u32) -> Self {
        Self { shared, worker, attendance: Attendance::default() }
    }

    /// Work between bursts.
    #[inline(always)]
    pub fn tend(&mut self) {
        self.shared.ledger.attend(self.worker, &mut self.attendance, |_, _| {});
    }
}

impl Drop for WorkerConnections {
    fn drop(&mut self) {
        self.shared.ledger.retire(self.worker);
    }
}

/// Control's side: bounds of each vNIC, and who leaves.
pub struct ConnectionKeeper {
    connections: Arc<Connections>,
    keeper: Keeper<6, 16, Arc<ConnectionLedger>>,
    times: ConnectionTimes,
    /// What the RCFT has queue pairs for was used since then.
    held_since: Option<u32>,
}

impl ConnectionKeeper {
    /// The keeper of a table; there is one.
    pub fn new(connections: Arc<Connections>, times: ConnectionTimes) -> Self {
        let keeper = Keeper::new(connections.ledger.clone());
        keeper.set_sync_shift(0);
        Self { connections, keeper, times, held_since: None }
    }

    /// The table.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// How long connections live from now on.
    pub fn set_times(&mut self, times: ConnectionTimes) {
        self.times = times;
    }

    /// Says since which tick all connections of queue pairs were [touched](Connections::touch) of which the RCFT has one; `None`
    /// while that is not known. Those that were not lead nowhere, however short their silence.
    pub fn set_held_since(&mut self, tick: Option<u32>) {
        self.held_since = tick;
    }

    /// Most connections of a vNIC, and how many new ones it may make a second (0: as many as it likes).
    pub fn set_limits(&self, vnic: u32, most: u32, new_rate: u32) {
        self.keeper.set_limits(vnic, LedgerLimits { quota: most, new_rate, reject: false });
    }

    /// Takes out what was idle for too long, and all connections of vNICs for which `gone` holds, among so many slots; `true`
    /// when the turn through the table was completed.
    pub fn sweep(&mut self, budget: u32, tick: u32, gone: impl Fn(u32) -> bool) -> bool {
        let Self { connections, keeper, times, held_since } = self;
        let (_, turned) = keeper.sweep(budget, |seen| {
            let key = ConnectionKey::from_words(seen.key);
            let state = connections.record(seen.slot).state;
            let ended = match held_since.filter(|_| key.kind() == Kind::QueuePairs && !state.is_over()) {
                Some(since) => idle(since, seen.seen) > 0,
                None => {
                    let lives = state.lives(key.kind(), times);
                    let is_in_the_way = !state.is_settled() && is_crowded(connections, key.vnic());
                    let limit = if is_in_the_way { lives / 4 } else { lives };
                    idle(tick, seen.seen) > limit.saturating_add(1 << SEEN_SHIFT)
                }
            };
            let leaves = gone(key.vnic()) || ended;
            if leaves {
                connections.end(seen.slot);
            }
            leaves
        });
        turned
    }

    /// Takes out all connections of vNICs for which `gone` holds, at once, wherever the turn of [`sweep`](Self::sweep) under way is.
    pub fn take_out(&mut self, gone: impl Fn(u32) -> bool) {
        let Self { connections, keeper, .. } = self;
        keeper.sweep_all(|seen| {
            let leaves = gone(ConnectionKey::from_words(seen.key).vnic());
            if leaves {
                connections.end(seen.slot);
            }
            leaves
        });
    }

    /// Goes on with what is on its way out, as far as the workers have attended.
    pub fn advance(&mut self) {
        let Self { connections, keeper, .. } = self;
        keeper.advance_and(
            |_| {},
            |slot| {
                if let Some(record) = connections.records.get(slot as usize) {
                    record.store(0, Relaxed);
                }
                connections.end(slot);
            },
        );
    }

    /// True while something is on its way out.
    pub fn is_busy(&self) -> bool {
        self.keeper.is_busy()
    }

    /// Shows `look_at` slot, key and state of each connection in up to `budget` slots from slot `from` on; `true` when there are more
    /// behind them.
    pub fn visit(
        &self,
        from: u32,
        budget: u32,
        mut look_at: impl FnMut(u32, ConnectionKey, ConnectionState),
    ) -> bool {
        let show = |seen: ConnectionView| {
            look_at(seen.slot, ConnectionKey::from_words(seen.key), self.connections.record(seen.slot).state);
        };
        self.keeper.visit(from, budget, show).is_some()
    }

    /// Up to `limit` connections, from slot `from` on, and where to go on (`None` at the end).
    pub fn scan(&self, from: u32, limit: usize) -> (Vec<ConnectionView>, Option<u32>) {
        self.keeper.scan(from, limit)
    }
}

/// Ticks from the last use of a connection to another time; 0 for one that was used since.
pub const fn idle(tick: u32, seen: u32) -> u32 {
    match tick.wrapping_sub(seen) {
        ahead if ahead > u32::MAX / 2 => 0,
        idle => idle,
    }
}

/// True for a vNIC that has used three quarters of what it may: then those that are not established make room sooner.
fn is_crowded(connections: &Connections, vnic: u32) -> bool {
    let ledger = &connections.ledger;
    u64::from(ledger.count(vnic)) * 4 > u64::from(ledger.limits(vnic).quota) * 3
}

#[cfg(test)]
mod tests;
