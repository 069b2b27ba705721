//! What must leave at once: queue pairs of vNICs that are gone, of ways that are forbidden now, and evicted ones.
//!
//! The table is swept twice, in slices; the sweep itself is `RcftControl`'s. A way counts as forbidden when the vNIC could
//! reach the peer before the change and cannot any more. A peer whose address the configuration does not know may
//! still have been reached by its MAC address, so all of those lose their places when a MAC address goes: whoever is
//! allowed finds a new one with the next packet.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pipelines::decide::reaches;
use pipelines::rcft::{LedgerView, QpKey};
use pipelines::snapshot::{Destination, Snapshot, Vnic};

use super::{age, vnic_of};
use crate::switch::kept::has_left;

/// Lines between two looks at the clock.
pub(super) const SLICE: u32 = 4096;
/// How long control does nothing else.
pub(super) const PATIENCE: Duration = Duration::from_millis(2);
/// The turn under way may be past an entry already; the second one is not.
const TURNS: u32 = 2;
/// Changes under way that are told apart.
const CHANGES: usize = 16;
/// Locations that are compared one by one.
const COMPARED: usize = 4096;
/// Answers about reachability that are remembered.
const ANSWERS: usize = 65_536;

/// Why queue pairs are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PurgeCause {
    /// Their vNIC is gone, or is in another network.
    Gone,
    /// The vNIC cannot reach the peer any more.
    Forbidden,
    /// Somebody wanted it so.
    Evicted,
}

impl PurgeCause {
    pub fn name(self) -> &'static str {
        match self {
            Self::Gone => "vnic-gone",
            Self::Forbidden => "forbidden",
            Self::Evicted => "evicted",
        }
    }
}

impl fmt::Display for PurgeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the vNIC left its network",
            Self::Forbidden => "the configuration does not let it reach their peers any more",
            Self::Evicted => "evicted",
        })
    }
}

/// The purge under way.
#[derive(Default)]
pub(super) struct Purge {
    /// vNICs all of whose queue pairs admitted until then leave.
    out: HashMap<u32, (u32, PurgeCause)>,
    /// How it was before each of the changes that are not dealt with yet: what was admitted between two of them, the later one may
    /// forbid.
    before: Vec<Arc<Snapshot>>,
    /// VPCs in which a MAC address is gone, or that had more changes than are told apart.
    poorer: HashSet<u32>,
    answers: HashMap<(u32, IpAddr), bool>,
    names: HashMap<u32, String>,
    counts: BTreeMap<(u32, PurgeCause), u32>,
    turns: u32,
}

impl Purge {
    /// Begins with what a change forbids, or adds it to what is under way. The vNICs that are gone or in another
    /// network.
    pub fn begin(&mut self, before: &Arc<Snapshot>, after: &Snapshot, tick: u32) -> Vec<u32> {
        let at = |index: u32| after.vnic(index);
        let left = |vnic: &&Arc<Vnic>| {
            at(vnic.index).is_none_or(|now| now.name != vnic.name) || has_left(vnic.index, before, after)
        };
        let gone: Vec<u32> = before.vnics.iter().flatten().filter(left).map(|vnic| vnic.index).collect();
        for &vnic in &gone {
            self.out.insert(vnic, (tick, PurgeCause::Gone));
        }
        // Decisions change with a cell or with a location, and with nothing else.
        let same = before.cells == after.cells && before.locations.ptr_eq(&after.locations);
        if same && gone.is_empty() {
            return gone;
        }
        self.poorer.extend(poorer(before, after));
        if self.before.len() < CHANGES {
            self.before.push(before.clone());
        } else {
            self.poorer.extend(before.vpcs.iter().flatten().map(|vpc| vpc.index));
        }
        self.answers.clear();
        self.turns = TURNS;
        gone
    }

    /// Evicts all queue pairs of a vNIC that were admitted until now.
    pub fn evict(&mut self, vnic: u32, name: String, tick: u32) {
        self.out.insert(vnic, (tick, PurgeCause::Evicted));
        self.names.entry(vnic).or_insert(name);
        self.turns = TURNS;
    }

    pub fn is_under_way(&self) -> bool {
        self.turns > 0
    }

    /// True when a queue pair leaves.
    pub fn takes(&mut self, seen: &LedgerView, after: &Snapshot) -> bool {
        if self.turns == 0 {
            return false;
        }
        let Some(vnic) = vnic_of(&seen.key) else { return false };
        let cause = match self.out.get(&vnic).copied() {
            // One that is admitted anew meanwhile stays.
            Some((tick, cause)) if age(seen.born, tick) == 0 || after.vnic(vnic).is_none() => cause,
            _ if self.is_forbidden(vnic, QpKey::from_words(seen.key).address(), after) => {
                PurgeCause::Forbidden
            }
            _ => return false,
        };
        *self.counts.entry((vnic, cause)).or_default() += 1;
        if !self.names.contains_key(&vnic) {
            // As it was called when what is purged was admitted.
            let known = self.before.iter().find_map(|before| before.vnic(vnic)).or(after.vnic(vnic));
            let name = known.map(|vnic| vnic.name.clone()).unwrap_or_default();
            self.names.insert(vnic, name);
        }
        true
    }

    fn is_forbidden(&mut self, vnic: u32, peer: IpAddr, after: &Snapshot) -> bool {
        if self.before.is_empty() {
            return false;
        }
        if self.answers.len() >= ANSWERS {
            self.answers.clear();
        }
        let ask = || {
            let vpc = after.vnic(vnic).map(|vnic| vnic.vpc);
            let lost = vpc.is_some_and(|vpc| self.poorer.contains(&vpc));
            let reached = || self.before.iter().any(|before| reaches(before, vnic, peer));
            !reaches(after, vnic, peer) && (lost || reached())
        };
        *self.answers.entry((vnic, peer)).or_insert_with(ask)
    }

    /// A slice was swept; `turned` says that it was the last one of a turn.
    pub fn swept(&mut self, turned: bool) {
        self.turns = self.turns.saturating_sub(u32::from(turned));
    }

    /// After the last turn: what was taken out, and why.
    pub fn end(&mut self) -> Vec<(u32, String, PurgeCause, u32)> {
        let Self { counts, names, .. } = std::mem::take(self);
        let name = |vnic: u32| names.get(&vnic).cloned().unwrap_or_default();
        counts.into_iter().map(|((vnic, cause), count)| (vnic, name(vnic), cause, count)).collect()
    }
}

/// The VPCs that have lost a MAC address, or may have, where it would take long to say.
fn poorer(before: &Snapshot, after: &Snapshot) -> Vec<u32> {
    if before.locations.ptr_eq(&after.locations) {
        return Vec::new();
    }
    if before.locations.len() > COMPARED {
        return before.vpcs.iter().flatten().map(|vpc| vpc.index).collect();
    }
    let gone = |key: &(u32, Destination)| match key {
        (vpc, Destination::Mac(_)) if !after.locations.contains_key(key) => Some(*vpc),
        _ => None,
    };
    before.locations.keys().filter_map(gone).collect()
}
