//! Control's side of RCFT: limits, idle timeouts, the connection manager's word, removal, what outlives a restart.
//!
//! ```text
//!   config  -> limits of each vNIC ----+
//!   workers -> refusals, CM messages --+-> Keeper (one of the shared ledger) -> rounds that workers attend
//!   topology-> what is forbidden now --+
//! ```
//! Everything that may be long (a table of a million queue pairs) is done in slices. Workers admit; here places are
//! only given back. Depends on no port and no DPDK, so that it tests without.

pub mod connections;
mod held;
mod purge;
pub mod refusals;
pub mod saved;
mod silent;
mod store;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pipelines::Now;
use pipelines::flow_key::Scope;
use pipelines::rcft::{Keeper, Ledger, LedgerLimits, LedgerView, QpKey, RcftShared, ticks};
use pipelines::snapshot::Snapshot;
use serde_json::json;
use wire::Qpn;
use wire::cm::CmMessage;

use super::concerned::Concerned;
use super::events::EventLog;
use super::kept::name_of;
use crate::config::{Config, RcftConfig, Refuse, VnicConfig};
use connections::Connections;
use held::Held;
use purge::Purge;
use saved::Saved;
use silent::Silent;
use store::Store;

/// Milliseconds between two turns of [`RcftControl::advance`] while something is on its way out.
pub const BUSY_EVERY_MS: u64 = 5;
/// Turns of [`RcftControl::tend`] in which the whole table is looked at.
const TURNS: u32 = 1000 / super::TEND_EVERY_MS as u32;
/// The fewest lines of a turn.
const MIN_SLICE: u32 = 64;
/// Ticks between two log lines about refusals of one vNIC, and between two looks at quotas.
const SECOND: u32 = ticks(1000);
/// The sweep has passed the whole table in this time, however busy the machine.
const PASSED: u32 = ticks(60_000);
/// The least that a vNIC without a quota may have.
const LEAST_OPEN: u32 = 1024;

/// Control's side of RCFT.
pub struct RcftControl {
    shared: Arc<RcftShared>,
    keeper: Keeper<Arc<Ledger>>,
    times: Times,
    /// As configured; without a quota `u32::MAX`.
    limits: HashMap<u32, LedgerLimits>,
    /// What the quotas add up to.
    promised: u64,
    /// vNICs without one.
    open: u32,
    /// What a vNIC without a quota may have.
    open_share: u32,
    connections: Connections,
    purge: Purge,
    silent: Silent,
    held: Held,
    /// vNICs of which it was said that their quota is reached.
    full: HashSet<u32>,
    /// When a refusal of a vNIC was logged last.
    logged: HashMap<u32, u32>,
    looked: u32,
    /// Where forgetting what went idle long ago goes on.
    hand: usize,
    store: Store,
}

/// Ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    idle: u32,
    restart_grace: u32,
    /// When saved queue pairs were admitted again.
    restored: Option<u32>,
}

/// True when `then` is no later than `now`, on a clock that wraps and of which workers may be a bit ahead.
fn age(now: u32, then: u32) -> u32 {
    match now.wrapping_sub(then) {
        ahead if ahead > u32::MAX / 2 => 0,
        age => age,
    }
}

/// True for a queue pair that is purged, was idle for too long, or came back with a restart and was not used since.
fn leaves(
    seen: &LedgerView,
    snapshot: &Snapshot,
    now: Now,
    shared: &RcftShared,
    purge: &mut Purge,
    times: &Times,
) -> bool {
    if purge.takes(seen, snapshot) {
        return true;
    }
    // The time of last use lags by up to a step of the ledger's coarse clock.
    let limit = times.idle.saturating_add(1 << shared.ledger.sync_shift());
    if age(now.tick, seen.seen) > limit {
        shared.went_idle(&seen.key, now.tick);
        return true;
    }
    let unused = |at: u32| seen.born == at && seen.seen == at && age(now.tick, at) > times.restart_grace;
    times.restored.is_some_and(unused)
}

/// The vNIC that an admitted key is of.
fn vnic_of(key: &[u64; 3]) -> Option<u32> {
    match QpKey::from_words(*key).scope() {
        Scope::Vnic(vnic) => Some(vnic),
        Scope::Vpc(_) => None,
    }
}

fn key_of(vnic: u32, peer: IpAddr, qpn: Qpn) -> QpKey {
    QpKey::new(Scope::Vnic(vnic), peer, qpn)
}

/// A vNIC's limits; one without a quota has what the others leave.
fn limits_of(given: &VnicConfig, rcft: &RcftConfig, quota: Option<u32>) -> LedgerLimits {
    LedgerLimits {
        quota: quota.unwrap_or(u32::MAX),
        new_rate: rcft.new_rate,
        reject: given.refuse(rcft) == Refuse::Reject,
    }
}

impl RcftControl {
    /// Control of the tables that workers share, `ways` being the connections of security groups; the file of admitted queue pairs
    /// is beside `state`.
    pub fn new(
        shared: Arc<RcftShared>,
        ways: Arc<pipelines::connections::Connections>,
        state: Option<&std::path::Path>,
    ) -> Self {
        let path = state.map(saved::path_beside);
        let pending = path.as_deref().and_then(|path| match saved::read(path) {
            Ok(saved) => Some(saved),
            Err(error) => {
                let file = path.display();
                tracing::warn!(
                    "the saved queue pairs in {file} are left out: the file {error}; they must find their places anew"
                );
                None
            }
        });
        Self {
            keeper: Keeper::new(shared.ledger.clone()),
            shared,
            times: Times::default(),
            limits: HashMap::new(),
            promised: 0,
            open: 0,
            open_share: u32::MAX,
            connections: Connections::default(),
            purge: Purge::default(),
            silent: Silent::default(),
            held: Held::new(ways),
            full: HashSet::new(),
            logged: HashMap::new(),
            looked: 0,
            hand: 0,
            store: Store { path, pending, ..Store::default() },
        }
    }

    /// What the workers share.
    pub fn shared(&self) -> &RcftShared {
        &self.shared
    }

    /// Queue pairs of a vNIC that count now.
    pub fn in_use(&self, vnic: u32) -> u32 {
        self.shared.ledger.count(vnic)
    }

    /// What a vNIC may do.
    pub fn limits(&self, vnic: u32) -> LedgerLimits {
        self.limits.get(&vnic).copied().unwrap_or(LedgerLimits::NONE)
    }

    /// The admitted queue pairs, for display.
    pub fn keeper(&self) -> &Keeper<Arc<Ledger>> {
        &self.keeper
    }

    /// What the connection manager's messages say.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Takes over times, and the limits of the vNICs that a change `concerned`; `quotas` are theirs by name, `gone` the
    /// indices of those that it took away. To be called before the workers have the snapshot, so that no packet of a new
    /// vNIC comes before its quota.
    pub fn configure(
        &mut self,
        config: &Config,
        quotas: &BTreeMap<String, u32>,
        gone: &[u32],
        concerned: &[Concerned<'_>],
    ) {
        let ms = |time: std::time::Duration| ticks(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let rcft = &config.rcft;
        self.times.idle = ms(rcft.idle_timeout).max(1);
        self.times.restart_grace = ms(rcft.restart_grace);
        self.shared.set_times(self.times.idle, ms(rcft.half_open_timeout), ms(rcft.grace));
        let silent_after = ms(rcft.silent_after);
        let shift = RcftShared::sync_shift(self.times.idle.min(silent_after));
        self.keeper.set_sync_shift(shift);
        // What hardware did is known after its counters came back, and the turn under way then may miss them once.
        self.silent.configure(silent_after, (1 << shift) + 2 * ms(config.offload.sync_every));
        gone.iter().for_each(|&index| self.count_out(index));
        let mut changed = Vec::new();
        for Concerned { vnic, config: given } in concerned {
            // Without a quota what the others leave is the limit.
            let quota = given.quota(rcft).and_then(|_| quotas.get(&vnic.name)).copied();
            let new = limits_of(given, rcft, quota);
            if self.limits.get(&vnic.index) == Some(&new) {
                continue;
            }
            self.count_out(vnic.index);
            match quota {
                Some(quota) => self.promised += u64::from(quota),
                None => self.open += 1,
            }
            self.limits.insert(vnic.index, new);
            changed.push((vnic.index, new));
        }
        self.share_anew();
        for (index, limits) in changed {
            self.keeper.set_limits(index, self.enforced(limits));
        }
    }

    /// What the quotas add up to, how many vNICs have none, and what each of those may have.
    #[cfg(test)]
    pub fn sums(&self) -> (u64, u32, u32) {
        (self.promised, self.open, self.open_share)
    }

    /// Takes a vNIC out of the sums.
    fn count_out(&mut self, index: u32) {
        match self.limits.remove(&index).map(|limits| limits.quota) {
            None => {}
            Some(u32::MAX) => self.open = self.open.saturating_sub(1),
            Some(quota) => self.promised = self.promised.saturating_sub(u64::from(quota)),
        }
    }

    /// Gives the vNICs without a quota what is left for them now, if that is something else.
    fn share_anew(&mut self) {
        let share = self.share_of_the_rest();
        if std::mem::replace(&mut self.open_share, share) == share {
            return;
        }
        for (&index, &limits) in self.limits.iter().filter(|(_, limits)| limits.quota == u32::MAX) {
            self.keeper.set_limits(index, self.enforced(limits));
        }
    }

    /// What each vNIC without a quota may have: an equal part of what the quotas of the others leave, so that one
    /// tenant cannot take the places that another was promised.
    fn share_of_the_rest(&self) -> u32 {
        let entries = self.shared.config().entries;
        let (promised, open) = (self.promised, self.open);
        if promised > u64::from(entries) {
            tracing::warn!(
                promised,
                entries,
                "the quotas of queue pairs add up to more than [rcft] entries: not all of them can be used at once"
            );
        }
        let left = u64::from(entries).saturating_sub(promised) / u64::from(open.max(1));
        u32::try_from(left).unwrap_or(u32::MAX).max(LEAST_OPEN.min(entries))
    }

    /// A vNIC's limits as the ledger gets them.
    fn enforced(&self, limits: LedgerLimits) -> LedgerLimits {
        match limits.quota {
            u32::MAX => LedgerLimits { quota: self.open_share, ..limits },
            _ => limits,
        }
    }

    /// Follows the topology: what a change forbids is taken out. To be called when every worker has the snapshot
    /// `after`; its first call admits again what was saved, before ports are polled.
    pub fn follow(&mut self, before: &Arc<Snapshot>, after: &Snapshot, now: Now, events: &mut EventLog) {
        for vnic in self.purge.begin(before, after, now.tick) {
            self.connections.forget(vnic);
            self.full.remove(&vnic);
            self.logged.remove(&vnic);
            self.silent.forget(vnic);
        }
        if let Some(saved) = self.store.pending.take() {
            self.restore(saved, after, now, events);
        }
        self.sweep(after, now, events);
        self.advance();
    }

    fn restore(&mut self, saved: Saved, snapshot: &Snapshot, now: Now, events: &mut EventLog) {
        let vnics = snapshot.vnics.iter().flatten().map(|vnic| vnic.index);
        let index: HashMap<String, u32> =
            vnics.filter_map(|vnic| Some((name_of(snapshot, vnic)?, vnic))).collect();
        let (mut admitted, mut left) = (0u64, 0u64);
        // Whatever packet comes now is later.
        let tick = now.tick.wrapping_sub(1);
        for (name, entries) in saved {
            let Some(&vnic) = index.get(name.as_str()) else {
                left += entries.len() as u64;
                continue;
            };
            // They had their places before: a quota that is lower now takes none of them away.
            let limits = self.limits(vnic);
            self.keeper.set_limits(vnic, LedgerLimits { quota: u32::MAX, new_rate: 0, ..limits });
            for (peer, qpn) in entries {
                let key = key_of(vnic, peer, qpn);
                match self.shared.ledger.admit(vnic, key.words(), tick, now.ns, || true) {
                    pipelines::rcft::LedgerAnswer::New(_) => admitted += 1,
                    pipelines::rcft::LedgerAnswer::Known(_) => {}
                    _ => left += 1,
                }
            }
            self.keeper.set_limits(vnic, self.enforced(limits));
        }
        self.times.restored = Some(tick);
        if admitted + left == 0 {
            return;
        }
        let seconds = self.times.restart_grace / SECOND;
        let text = format!(
            "{admitted} queue pairs have the places they had before the restart; those without a packet for {seconds} s lose them"
        );
        tracing::info!(admitted, left, "{text}");
        events.add("qps-restored", text, json!({ "admitted": admitted, "left-out": left }));
    }

    /// One turn, every [`super::TEND_EVERY_MS`]. `opened` is how many queue pairs the workers have admitted so far.
    pub fn tend(&mut self, snapshot: &Snapshot, now: Now, opened: u64, events: &mut EventLog) {
        self.sweep(snapshot, now, events);
        self.make_room(snapshot, now, events);
        self.advance();
        self.hand = self.shared.forget_idle(self.hand, now.tick);
        // The sweep has passed what came back with the restart: one that is admitted at that tick of a clock that
        // wrapped was not restored.
        let over = self.times.restart_grace.saturating_add(PASSED);
        self.times.restored = self.times.restored.filter(|at| age(now.tick, *at) <= over);
        if now.tick.wrapping_sub(self.looked) >= SECOND {
            self.looked = now.tick;
            for vnic in snapshot.vnics.iter().flatten() {
                self.look(vnic.index, snapshot, events);
            }
        }
        self.save_in_turns(snapshot, now.tick, opened);
    }

    /// Since which tick every connection of security groups was used whose vNIC has a queue pair with its peer; `None` while that
    /// is not known, and while queue pairs of before a restart may come back.
    pub fn held_since(&self, now: Now) -> Option<u32> {
        self.held.since().filter(|_| now.tick > self.times.restart_grace)
    }

    /// True while something is on its way out: then [`advance`](Self::advance) wants to be called more often.
    pub fn is_busy(&self) -> bool {
        self.keeper.is_busy() || self.purge.is_under_way() || self.silent.is_under_way()
    }

    /// Goes on with what is on its way out.
    pub fn advance(&mut self) {
        let dirty = &mut self.store.dirty;
        self.keeper.advance(|_| *dirty = true);
    }

    /// One turn of [`BUSY_EVERY_MS`].
    pub fn hurry(&mut self, snapshot: &Snapshot, now: Now, events: &mut EventLog) {
        if self.purge.is_under_way() {
            self.sweep(snapshot, now, events);
        }
        if self.silent.is_under_way() {
            self.make_room(snapshot, now, events);
        }
        self.advance();
    }

    /// Takes out what was idle for too long or is forbidden now: a slice of the table.
    fn sweep(&mut self, snapshot: &Snapshot, now: Now, events: &mut EventLog) {
        if self.purge.is_under_way() {
            return self.go_on_purging(purge::PATIENCE, snapshot, now, events);
        }
        let Self { keeper, shared, purge, times, silent, held, limits, .. } = self;
        let slice = (shared.config().entries / TURNS + 1).max(MIN_SLICE);
        let (_, turned) = keeper.sweep(slice, |seen| {
            let leaves = leaves(seen, snapshot, now, shared, purge, times);
            if !leaves {
                silent.pass(seen, now.tick);
                held.pass(seen, snapshot, now.tick);
            }
            leaves
        });
        if turned {
            held.turned(now.tick);
            silent.turned(keeper, limits.keys().copied());
        }
    }

    /// Takes out what must leave at once, for so long, and at least a slice; says at the end what it was.
    fn go_on_purging(&mut self, patience: Duration, snapshot: &Snapshot, now: Now, events: &mut EventLog) {
        let Self { keeper, shared, purge, times, held, .. } = self;
        let began = std::time::Instant::now();
        loop {
            let (_, turned) = keeper.sweep(purge::SLICE, |seen| {
                let leaves = leaves(seen, snapshot, now, shared, purge, times);
                if !leaves {
                    held.pass(seen, snapshot, now.tick);
                }
                leaves
            });
            purge.swept(turned);
            if turned {
                held.turned(now.tick);
            }
            // The end is told however late the last slice was: nobody comes back to a purge that is over.
            if !purge.is_under_way() {
                break;
            }
            if began.elapsed() > patience {
                return;
            }
        }
        for (vnic, name, cause, count) in purge.end() {
            let text = format!("{count} queue pairs of {name} were taken out: {cause}");
            tracing::info!(vnic = name.as_str(), count, "{text}");
            let facts = json!({ "vnic": name, "count": count, "cause": cause.name() });
            events.add("qps-purged", text, facts);
            self.full.remove(&vnic);
        }
    }

    /// The indices of gone vNICs that can be used again: nothing of theirs is left.
    pub fn released(&self, held: impl Iterator<Item = u32>) -> Vec<u32> {
        if self.purge.is_under_way() {
            return Vec::new();
        }
        held.filter(|&vnic| self.in_use(vnic) == 0).collect()
    }

    /// A message of the connection manager: a claim of a guest, which can free the guest's own queue pairs only. The
    /// vNIC's own queue pair, where the message ended a known connection of it.
    pub fn observe(&mut self, vnic: u32, peer: IpAddr, sends: bool, message: &CmMessage) -> Option<Qpn> {
        if let Some(qpn) = self.connections.observe(vnic, peer, sends, message) {
            self.keeper.remove(key_of(vnic, peer, qpn).words());
        }
        self.connections.ended()
    }

    /// Takes a queue pair out. `false` when it is not admitted.
    pub fn evict(&mut self, vnic: u32, peer: IpAddr, qpn: Qpn) -> bool {
        let removed = self.keeper.remove(key_of(vnic, peer, qpn).words());
        self.advance();
        removed
    }

    /// Takes all queue pairs of a vNIC out; how many there are now.
    pub fn evict_all(&mut self, vnic: u32, snapshot: &Snapshot, now: Now, events: &mut EventLog) -> u32 {
        let count = self.in_use(vnic);
        if count > 0 {
            let name = snapshot.vnic(vnic).map_or_else(String::new, |vnic| vnic.name.clone());
            self.purge.evict(vnic, name, now.tick);
            self.sweep(snapshot, now, events);
            self.advance();
        }
        count
    }
}
