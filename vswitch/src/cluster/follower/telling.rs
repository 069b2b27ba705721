//! What control and the operator are told: where stations are, objects of the config, and what is wrong.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use wire::Vni;

use super::{Failure, Follower};
use crate::api::{self, Followed};
use crate::cluster::apply::{self, Taken};
use crate::cluster::book::Seen;
use crate::cluster::keys::shown;
use crate::controller::Controller;
use crate::state::owners::Owner;
use crate::switch::following::Refused;

/// Addresses that control takes in at once.
const BATCH: usize = 4096;
/// Two hosts that claim one address with one MAC address for so long are told: before, a machine may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(5);
/// After control refused everything.
const REFUSED: Duration = Duration::from_secs(1);
/// Between two looks whether there is room again for what was refused, where nothing else gives occasion to look.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Events of one kind at a time.
const MOST_EVENTS: usize = 16;
/// Objects that are carried out as one change. Of more, control does others' work in between.
const PIECE: usize = 512;
/// Objects that are tried each by itself before control does others' work.
const TRIES: usize = 32;

impl Follower {
    /// Before etcd says anything: who took part in networks when this switch ended is believed to do so still.
    pub(super) async fn remember(&mut self) {
        let news = self.members.news();
        if news.members.is_empty() {
            return;
        }
        let told = self
            .asker
            .ask("taking in which hosts took part", move |controller| {
                apply::take_in(&mut controller.switch, news)
            })
            .await;
        if let Ok(Err(why)) = told {
            tracing::warn!(why, "hosts behind which no address is known are not heard until etcd is there");
        }
    }

    /// What the switch has from etcd since before this process: what etcd says otherwise is so at once, and what it does not say stays for the
    /// grace, for its hosts may be about to say it again. Objects go at once, but those that etcd has lost.
    pub(super) async fn adopt(&mut self) -> Result<(), Failure> {
        let (locations, objects) = self
            .asker
            .ask("a look at what came from etcd", |controller| {
                (controller.switch.locations_by(Owner::Etcd), api::shared_by(&controller.switch, Owner::Etcd))
            })
            .await?;
        // Some may have left since: of those networks all is told anew.
        self.members.news().members.into_keys().for_each(|vni| self.book.regroup(vni));
        self.objects.adopt(objects);
        let mut orphans = Vec::new();
        for (vni, vip) in locations {
            match self.wanted.networks.contains(&vni) && self.book.station(vni, vip).is_none() {
                true => orphans.push((vni, vip)),
                false => self.book.ask(vni, vip),
            }
        }
        if !orphans.is_empty() {
            self.orphans = Some((Instant::now() + self.config.grace, orphans));
        }
        Ok(())
    }

    /// Has the switch take in what changed for it.
    pub(super) async fn tell(&mut self, arrived: Instant) -> Result<(), Failure> {
        if self.asked_again.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.asked_again = None;
        let mut told = false;
        let mut events = Vec::new();
        while self.book.has_news() {
            let news = self.book.take(BATCH, Instant::now());
            let subjects: Vec<(Vni, IpAddr)> = news
                .stations
                .iter()
                .map(|station| (station.vni, station.vip))
                .chain(news.gone.iter().copied())
                .collect();
            let members = news.members.clone();
            let networks: BTreeSet<Vni> = members.keys().copied().collect();
            let answer = self
                .asker
                .ask("taking in what other hosts say", move |controller| {
                    apply::take_in(&mut controller.switch, news)
                })
                .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(unanswered) => {
                    // Nobody knows how far it came: all of it is told again.
                    self.put_back(subjects, members.into_keys());
                    return Err(unanswered.into());
                }
            };
            told = true;
            let mut status = self.shared.lock();
            match answer {
                Ok(Taken { refused, unsaved }) => {
                    self.members.told(&members);
                    match unsaved {
                        Some(why) => drop(status.fault("not-saved", "locations".into(), why)),
                        None => status.mend("not-saved", "locations"),
                    }
                    for mended in self.refusals.take_in(&subjects, &networks, &refused) {
                        status.mend("refused", &mended.to_string());
                    }
                    status.mend("refused", "all");
                    for Refused { what, why, for_want_of_room } in refused {
                        let is_news = status.fault("refused", what.to_string(), why.clone());
                        // That there is no room the switch tells by itself, once of all.
                        if is_news && !for_want_of_room {
                            events.push((what, why));
                        }
                    }
                }
                Err(why) => {
                    status.fault("refused", "all".into(), why);
                    drop(status);
                    self.put_back(subjects, members.into_keys());
                    self.asked_again = Some(Instant::now() + REFUSED);
                    break;
                }
            }
        }
        if told {
            let mut status = self.shared.lock();
            status.lag = arrived.elapsed();
            status.longest_lag = status.longest_lag.max(status.lag);
        }
        for (what, why) in events.into_iter().take(MOST_EVENTS) {
            let text = format!("{what}, as another host says, is not taken in: {why}");
            tracing::warn!("{text}");
            self.note("etcd-refused", text, json!({ "what": what.to_string() })).await;
        }
        Ok(())
    }

    /// Control is told again of addresses and of networks.
    fn put_back(&mut self, subjects: Vec<(Vni, IpAddr)>, networks: impl Iterator<Item = Vni>) {
        subjects.into_iter().for_each(|(vni, vip)| self.book.ask(vni, vip));
        networks.for_each(|vni| self.book.regroup(vni));
    }

    /// Asks control again for what it refused and may take in by now: all of it where something has changed, and what there is room for in
    /// any case. How long that took.
    async fn ask_for_refused(&mut self, has_changed: bool, now: Instant) -> Result<Duration, Failure> {
        self.looked = Some(now);
        if self.refusals.is_empty() {
            return Ok(Duration::ZERO);
        }
        let look = |controller: &mut Controller| {
            let topology = controller.switch.topology();
            (topology.vlt_room(), topology.left_out().collect())
        };
        let (room, left_out) = self.asker.ask("a look at what there is room for", look).await?;
        for placed in self.refusals.left_out(left_out) {
            self.shared.lock().mend("refused", &placed.to_string());
        }
        let again = self.refusals.again(has_changed, room);
        if again.is_empty() {
            return Ok(Duration::ZERO);
        }
        again.into_iter().for_each(|(vni, vip)| self.book.ask(vni, vip));
        let begun = Instant::now();
        self.tell(begun).await?;
        Ok(begun.elapsed())
    }

    /// Has the switch have the objects that are said, and that it did not refuse before.
    pub(super) async fn objects_to_control(&mut self) -> Result<(), Failure> {
        self.carry_out_due().await?;
        if !self.objects.is_news() {
            return Ok(());
        }
        self.past.keep(self.objects.losses());
        let mut status = self.shared.lock();
        status.objects = self.objects.count();
        status.faults.retain(|(kind, _), _| *kind != "object");
        for (key, why) in self.objects.faults() {
            status.fault("object", shown(key.as_bytes()), why.clone());
        }
        match self.objects.kept() {
            Some(text) => drop(status.fault("etcd-gone-back", "objects".into(), text)),
            None => status.mend("etcd-gone-back", "objects"),
        }
        Ok(())
    }

    /// Has the switch do what is due: as one change where that can be and it is not too much, else each that can. How long control was at
    /// it.
    async fn carry_out_due(&mut self) -> Result<Duration, Failure> {
        let mut due = self.objects.due();
        due.sort_by_key(|(_, change)| api::rank(change));
        if due.is_empty() {
            return Ok(Duration::ZERO);
        }
        let carried_out = self.carry_out_all(&due).await;
        if let Err(failure) = &carried_out {
            // Nobody knows how far it came.
            due.iter().for_each(|(key, change)| self.objects.refused(key, change, failure.to_string()));
        }
        carried_out
    }

    async fn carry_out_all(&mut self, due: &[(String, Followed)]) -> Result<Duration, Failure> {
        let mut took = Duration::ZERO;
        let mut why: Vec<Option<String>> = vec![None; due.len()];
        let mut left: Vec<usize> = Vec::new();
        for (from, piece) in (0..).step_by(PIECE).zip(due.chunks(PIECE)) {
            let all = piece.iter().map(|(_, change)| change.clone()).collect();
            let (mut refused, more) = self.try_objects(vec![all]).await?;
            took += more;
            match refused.pop().flatten() {
                Some(error) if due.len() == 1 => why[0] = Some(error),
                Some(_) => left.extend(from..from + piece.len()),
                None => {}
            }
        }
        // Some may wait for others: as long as one more can be, the rest is tried again.
        let mut before = usize::MAX;
        while !left.is_empty() && left.len() < before {
            before = left.len();
            for some in std::mem::take(&mut left).chunks(TRIES) {
                let changes = some.iter().map(|&at| vec![due[at].1.clone()]).collect();
                let (refused, more) = self.try_objects(changes).await?;
                took += more;
                some.iter().zip(refused).for_each(|(&at, refused)| why[at] = refused);
                left.extend(some.iter().filter(|&&at| why[at].is_some()));
            }
        }
        for ((key, change), why) in due.iter().zip(why) {
            match why {
                Some(why) => self.objects.refused(key, change, why),
                None => self.objects.done(key),
            }
        }
        Ok(took)
    }

    /// Has the switch carry some changes out in one go, each of them as one. Why not, of each that cannot be, and how long control was at
    /// it.
    async fn try_objects(
        &self,
        changes: Vec<Vec<Followed>>,
    ) -> Result<(Vec<Option<String>>, Duration), Failure> {
        let work = move |controller: &mut Controller| {
            let begun = Instant::now();
            let one = |change: &Vec<Followed>| api::follow(&mut controller.switch, Owner::Etcd, change).err();
            (changes.iter().map(one).collect(), begun.elapsed())
        };
        Ok(self.asker.ask("taking in objects of the config", work).await?)
    }

    /// What time brings.
    pub(super) async fn turn(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        self.book.tick(now);
        self.members.save(now);
        self.past.save(now);
        if let Some((_, orphans)) = self.orphans.take_if(|(until, _)| *until <= now) {
            orphans.into_iter().for_each(|(vni, vip)| self.book.ask(vni, vip));
        }
        self.tell(now).await?;
        if self.stirred && self.tries.may(now) {
            self.stirred = false;
            self.objects.try_again();
            let took = self.carry_out_due().await? + self.ask_for_refused(true, now).await?;
            self.tries.took(Instant::now(), took);
            self.objects_to_control().await?;
        } else if self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY) {
            self.ask_for_refused(false, now).await?;
        }
        self.tell_contests(now).await;
        let mut status = self.shared.lock();
        if std::mem::take(&mut self.hosts_changed) {
            let mut seen = self.book.hosts();
            seen.remove(&self.own);
            status.hosts.retain(|name, host| host.record.is_some() || seen.contains_key(name));
            status.hosts.values_mut().for_each(|host| host.seen = Seen::default());
            for (name, seen) in seen {
                let host = status.hosts.entry(name).or_default();
                host.seen = seen;
            }
            status.networks.clone_from(&self.wanted.networks);
            (status.vnics, status.addresses) = self.book.size();
        }
        Ok(())
    }

    /// Tells that two hosts claim one address, where this one is among them.
    async fn tell_contests(&mut self, now: Instant) {
        let mut told = BTreeSet::new();
        let mut news = Vec::new();
        {
            let mut status = self.shared.lock();
            status.faults.retain(|(kind, _), _| *kind != "claimed-twice");
            for (&(vni, vip), contest) in self.book.contests() {
                let others = contest.others.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let mut text = format!(
                    "{vip} in VNI {vni} is claimed by host {}, which has it as the later one, and by {others}: remove the vNIC on one of them",
                    contest.winner
                );
                if contest.others.contains(&self.own)
                    && let Some(vnic) = self.book.own_vnic_at(vni, vip)
                {
                    text.push_str(&format!(
                        "; vNIC {vnic} of this host has lost it: with this address it talks to vNICs of this host alone, and all other hosts drop \
                         what it sends (`vnic del {vnic}`, or `vnic move {vnic} vtep ...` to where the machine went)"
                    ));
                }
                status.fault("claimed-twice", format!("{vip} in VNI {vni}"), text.clone());
                let concerns = contest.winner == self.own || contest.others.contains(&self.own);
                if concerns
                    && (!contest.same_mac || now.saturating_duration_since(contest.since) >= ON_ITS_WAY)
                {
                    told.insert((vni, vip));
                    if !self.contests_told.contains(&(vni, vip)) {
                        news.push((
                            text,
                            json!({ "vni": vni.get(), "vip": vip, "winner": contest.winner.as_str() }),
                        ));
                    }
                }
            }
        }
        let settled: Vec<(Vni, IpAddr)> = self.contests_told.difference(&told).copied().collect();
        self.contests_told = told;
        for (vni, vip) in settled.into_iter().take(MOST_EVENTS) {
            let text = format!("{vip} in VNI {vni} is claimed by one host alone again");
            tracing::info!("{text}");
            self.note("claimed-once", text, json!({ "vni": vni.get(), "vip": vip })).await;
        }
        for (text, facts) in news.into_iter().take(MOST_EVENTS) {
            tracing::warn!("{text}");
            self.note("claimed-twice", text, facts).await;
        }
    }

    /// Tells an event.
    pub(super) async fn note(&self, kind: &'static str, text: String, facts: serde_json::Value) {
        let _ = self
            .asker
            .ask("telling an event", move |controller| controller.switch.note(kind, text, facts))
            .await;
    }
}
