//! Room for new queue pairs of a vNIC that is full: those that were silent for longest give way.
//!
//! Programs without a connection manager leave dead queue pairs behind, which nobody tells from living ones but by their
//! silence. Workers count whom they refuse for the quota; here the table is searched in slices for as many silent ones,
//! and only where that lets somebody in. One that was alive after all comes back through the grace list. A vNIC in which
//! nothing is silent for long enough is left alone until something can be.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;

use pipelines::Now;
use pipelines::rcft::{Keeper, Ledger, LedgerView};
use pipelines::snapshot::Snapshot;
use serde_json::json;

use super::purge::{PATIENCE, SLICE};
use super::{RcftControl, age, vnic_of};
use crate::switch::events::EventLog;

/// Queue pairs that one search finds, in all.
const FOUND: usize = 16_384;
/// The fewest that it finds of one vNIC.
const FEWEST: usize = 16;

/// Who gives way, and the search under way.
#[derive(Default)]
pub(super) struct Silent {
    /// Ticks of silence that are too long, and by how many a time of last use may lag.
    after: u32,
    lag: u32,
    search: Option<Search>,
    /// Until then nothing of a vNIC can be silent for long enough.
    not_before: HashMap<u32, u32>,
    /// Silent queue pairs that the sweep's turn under way has seen of each vNIC.
    seen: HashMap<u32, u32>,
}

struct Search {
    began: u32,
    from: u32,
    vnics: HashMap<u32, VnicSearch>,
}

/// What is searched of a vNIC.
struct VnicSearch {
    /// Queue pairs over the quota, which was lowered: so many must go before the first one gets in.
    over: usize,
    /// How many would have to go for all that wait.
    places: usize,
    /// The most silent ones so far, by the ticks of their silence; the least silent of them on top.
    found: BinaryHeap<Reverse<(u32, [u64; 3])>>,
}

impl Silent {
    /// Takes over the time of silence and the lag of times of last use, in ticks.
    pub fn configure(&mut self, after: u32, lag: u32) {
        // Times of last use that were noted before may lag as they did then.
        (self.after, self.lag) = (after, lag.max(self.lag));
        self.not_before.clear();
    }

    pub fn forget(&mut self, vnic: u32) {
        self.not_before.remove(&vnic);
    }

    pub fn is_under_way(&self) -> bool {
        self.search.is_some()
    }

    /// The silence from which a queue pair gives way: certainly longer than configured.
    fn limit(&self) -> u32 {
        self.after.saturating_add(self.lag)
    }

    /// The sweep passes a queue pair.
    pub fn pass(&mut self, seen: &LedgerView, tick: u32) {
        if age(tick, seen.seen) > self.limit()
            && let Some(vnic) = vnic_of(&seen.key)
        {
            *self.seen.entry(vnic).or_default() += 1;
        }
    }

    /// The sweep has passed them all: requests for connections of these vNICs need no reject.
    pub fn turned(&mut self, keeper: &Keeper<std::sync::Arc<Ledger>>, vnics: impl Iterator<Item = u32>) {
        for vnic in vnics {
            keeper.set_silent(vnic, self.seen.get(&vnic).copied().unwrap_or_default());
        }
        self.seen.clear();
    }

    /// Begins a search for those who wait, if anybody does and something may be silent for long enough.
    fn begin(&mut self, keeper: &Keeper<std::sync::Arc<Ledger>>, snapshot: &Snapshot, tick: u32) {
        let ledger = keeper.ledger();
        // A time that has come is forgotten: years later it would be one that is to come.
        self.not_before.retain(|_, at| age(*at, tick) > 0);
        let mut vnics = HashMap::new();
        for vnic in snapshot.vnics.iter().flatten().map(|vnic| vnic.index) {
            let waiting = keeper.take_wanted(vnic);
            if waiting == 0 || self.not_before.contains_key(&vnic) {
                continue;
            }
            let (staying, quota) = (ledger.staying(vnic), ledger.limits(vnic).quota);
            // Where places are about to come free, whoever waits asks again before anybody else has to go.
            if quota == 0 || staying < quota {
                continue;
            }
            let over = (staying - quota) as usize;
            let places = over + waiting.min(quota) as usize;
            vnics.insert(vnic, VnicSearch { over, places, found: BinaryHeap::new() });
        }
        if vnics.is_empty() {
            return;
        }
        let most = (FOUND / vnics.len()).max(FEWEST);
        vnics.values_mut().for_each(|wanted| wanted.places = wanted.places.min(wanted.over + most));
        self.search = Some(Search { began: tick, from: 0, vnics });
    }
}

impl Search {
    /// Looks at a slice of the table; true at its end.
    fn go_on(&mut self, keeper: &Keeper<std::sync::Arc<Ledger>>) -> bool {
        let Self { began, from, vnics } = self;
        let next = keeper.visit(*from, SLICE, |seen| {
            let Some(wanted) = vnic_of(&seen.key).and_then(|vnic| vnics.get_mut(&vnic)) else { return };
            wanted.found.push(Reverse((age(*began, seen.seen), seen.key)));
            // One more than can go: it says when there may be something to do again.
            if wanted.found.len() > wanted.places + 1 {
                wanted.found.pop();
            }
        });
        *from = next.unwrap_or(0);
        next.is_none()
    }
}

impl RcftControl {
    /// Has silent queue pairs give way to new ones that wait. One turn.
    pub(super) fn make_room(&mut self, snapshot: &Snapshot, now: Now, events: &mut EventLog) {
        if self.silent.search.is_none() {
            self.silent.begin(&self.keeper, snapshot, now.tick);
        }
        let Some(mut search) = self.silent.search.take() else { return };
        let began = Instant::now();
        while !search.go_on(&self.keeper) {
            if began.elapsed() > PATIENCE {
                self.silent.search = Some(search);
                return;
            }
        }
        for (vnic, wanted) in search.vnics {
            self.give_way(vnic, wanted, search.began, now, snapshot, events);
        }
    }

    fn give_way(
        &mut self,
        vnic: u32,
        wanted: VnicSearch,
        began: u32,
        now: Now,
        snapshot: &Snapshot,
        events: &mut EventLog,
    ) {
        let limit = self.silent.limit();
        let VnicSearch { over, places, found } = wanted;
        // Longest silence first.
        let found: Vec<(u32, [u64; 3])> =
            found.into_sorted_vec().into_iter().map(|Reverse(one)| one).collect();
        let silent = found.iter().take_while(|(silence, _)| *silence > limit).count();
        // Where the first of those who wait would still find no place, nobody loses one.
        let leaving = if silent > over { silent.min(places) } else { 0 };
        let next = if leaving == 0 { over } else { leaving };
        let tick = found.get(next).map_or(now.tick, |(silence, _)| {
            began.wrapping_sub(*silence).wrapping_add(limit).wrapping_add(1)
        });
        self.silent.not_before.insert(vnic, tick);
        self.keeper.set_silent(vnic, (silent - leaving) as u32);
        let (mut count, mut longest) = (0, 0);
        for (silence, key) in found.iter().take(leaving) {
            // It may have spoken since.
            if self.keeper.remove_if(key, |seen| age(now.tick, seen.seen) > limit) {
                self.shared.went_idle(key, now.tick);
                (count, longest) = (count + 1, longest.max(*silence));
            }
        }
        let Some(name) = snapshot.vnic(vnic).map(|vnic| vnic.name.as_str()).filter(|_| count > 0) else {
            return;
        };
        let seconds = longest / super::SECOND;
        let text = format!(
            "{count} queue pairs of {name}, silent for up to {seconds} s, gave their places to new ones"
        );
        tracing::info!(vnic = name, count, seconds, "{text}");
        events.add("qps-gave-way", text, json!({ "vnic": name, "count": count, "silent-seconds": seconds }));
    }
}
