//! The client of etcd: connects, reads everything, watches what changes, and says what this host has.
//!
//! It begins anew, with another member, whenever something goes wrong, and knows all it knew: what is read then is a difference.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{EventType, KeyValue, WatchRequestSender, WatchResponse};
use futures_util::FutureExt as _;
use serde_json::json;
use tokio::sync::broadcast;
use wire::Vni;

use super::apply;
use super::book::{Book, Change};
use super::generations::Generations;
use super::keys::{self, Keys, Subject};
use super::objects::Objects;
use super::publish::Wanted;
use super::publishing::{Mine, Own, Voice};
use super::status::{Shared, Status};
use super::store::{Store, StoreError, watching};
use crate::api;
use crate::config::{Config, EtcdConfig, Name};
use crate::control::asking::{Asker, Unanswered};
use crate::state::owners::Owner;
use crate::switch::changes::Changed;

/// Between two attempts to reach a member: the first, and the longest.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_LATER: Duration = Duration::from_secs(2);
/// Between two looks at what time brings: graces, and figures for whoever asks.
const TURN: Duration = Duration::from_millis(250);
/// Addresses that control takes in at once.
const BATCH: usize = 4096;
/// Two hosts that claim one address with one MAC address for so long are told: before, a machine may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(5);
/// After control refused everything.
const REFUSED: Duration = Duration::from_secs(1);

/// What a watch is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Hosts,
    Objects,
    Network(Vni),
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Control(#[from] Unanswered),
}

impl From<etcd_client::Error> for Failure {
    fn from(error: etcd_client::Error) -> Self {
        Self::Store(error.into())
    }
}

/// The client.
pub struct Follower {
    config: EtcdConfig,
    keys: Keys,
    own: Name,
    instance: u64,
    asker: Asker,
    shared: Shared,
    book: Book,
    mine: Mine,
    generations: Generations,
    objects: Objects,
    lease: Option<i64>,
    wanted: Wanted,
    seen: Option<Arc<Config>>,
    changes: Option<broadcast::Receiver<Changed>>,
    watches: HashMap<i64, Target>,
    last_watch: i64,
    /// What the switch had from etcd when it started, and etcd does not say: until when it stays all the same.
    orphans: Option<(Instant, Vec<(Vni, IpAddr)>)>,
    adopted: bool,
    /// Another process has published as this host.
    overtaken: bool,
    contests_told: BTreeSet<(Vni, IpAddr)>,
    /// Control refused everything: when it is asked again.
    asked_again: Option<Instant>,
    hosts_changed: bool,
}

impl Follower {
    /// What is told of a client that has not begun.
    pub fn status(config: &EtcdConfig, own: &Name) -> Shared {
        Shared::new(Status {
            own: own.clone(),
            prefix: config.prefix.clone(),
            endpoints: config.endpoints.clone(),
            lease_time: config.lease,
            endpoint: None,
            since: Instant::now(),
            revision: 0,
            newest: 0,
            lag: Duration::ZERO,
            longest_lag: Duration::ZERO,
            lease: None,
            renewed: None,
            published: 0,
            networks: BTreeSet::new(),
            vnics: 0,
            addresses: 0,
            objects: 0,
            events: 0,
            connections: 0,
            resyncs: 0,
            last_error: None,
            hosts: std::collections::BTreeMap::new(),
            faults: std::collections::BTreeMap::new(),
        })
    }

    /// A client that has not begun.
    pub fn new(config: EtcdConfig, own: Name, generations: &Path, asker: Asker, shared: Shared) -> Self {
        Self {
            keys: Keys::new(&config.prefix),
            book: Book::new(own.clone(), config.grace),
            instance: crate::state::files::unpredictable(),
            own,
            asker,
            shared,
            mine: Mine::default(),
            generations: Generations::read(generations),
            objects: Objects::default(),
            lease: None,
            wanted: Wanted::default(),
            seen: None,
            changes: None,
            watches: HashMap::new(),
            last_watch: 0,
            orphans: None,
            adopted: false,
            overtaken: false,
            contests_told: BTreeSet::new(),
            asked_again: None,
            hosts_changed: true,
            config,
        }
    }

    /// Follows until the switch ends.
    pub async fn run(mut self) {
        let endpoints = self.config.endpoints.clone();
        let mut pause = AGAIN;
        for endpoint in endpoints.iter().cycle() {
            let failure = match self.session(endpoint).await {
                Err(Failure::Control(Unanswered::Ending)) => return,
                Err(failure) => failure,
                Ok(never) => match never {},
            };
            let was_connected = self.shared.lock().endpoint.is_some();
            self.fail(endpoint, &failure, was_connected).await;
            // One that worked is tried again soon, and so is the next of several.
            pause = if was_connected { AGAIN } else { (pause * 2).min(AGAIN_LATER) };
            tokio::time::sleep(pause).await;
        }
    }

    async fn fail(&mut self, endpoint: &str, failure: &Failure, was_connected: bool) {
        if matches!(failure, Failure::Store(StoreError::LeaseEnded)) {
            self.lease = None;
        }
        {
            let mut status = self.shared.lock();
            let now = Instant::now();
            if was_connected {
                (status.endpoint, status.since) = (None, now);
            }
            status.last_error = Some((now, format!("{endpoint}: {failure}")));
            status.resyncs += u64::from(matches!(failure, Failure::Store(StoreError::Compacted)));
            status.lease = self.lease;
        }
        if was_connected {
            let text = format!("etcd at {endpoint} is lost: {failure}; what it said last holds");
            tracing::warn!("{text}");
            self.note("etcd-lost", text, json!({ "endpoint": endpoint })).await;
        } else {
            tracing::debug!(endpoint, %failure, "etcd is not to be had");
        }
    }

    /// Tells an event.
    async fn note(&self, kind: &'static str, text: String, facts: serde_json::Value) {
        let _ = self
            .asker
            .ask("telling an event", move |controller| controller.switch.note(kind, text, facts))
            .await;
    }

    /// Follows as long as a member answers.
    async fn session(&mut self, endpoint: &str) -> Result<Infallible, Failure> {
        let store = Store::connect(endpoint, &self.config).await?;
        let lease = match self.lease {
            Some(lease) => lease,
            None => {
                self.mine.unlease();
                store.grant(self.config.lease).await?
            }
        };
        let (mut keeper, mut kept) = store.keep(lease).await?;
        self.lease = Some(lease);
        let mut renewed = Instant::now();
        // From here on a change of the config is heard of.
        let (config, changes) = self
            .asker
            .ask("a look at the config", |controller| {
                (controller.switch.shared_config(), controller.switch.changes().watch())
            })
            .await?;
        self.changes = Some(changes);
        self.wanted = Wanted::of(&config, &self.config.vteps);
        self.seen = Some(config);
        let at = self.load(&store, lease).await?;
        let (mut requests, mut watched) = self.watch_all(&store, at + 1).await?;
        if !self.adopted {
            self.adopt().await?;
            self.adopted = true;
        }
        self.connected(endpoint, lease, at).await;
        self.objects_to_control().await?;
        self.look_again(&store, &mut requests, lease).await?;
        self.publish(&store, lease).await?;
        self.tell(Instant::now()).await?;
        let mut renewal = tokio::time::interval(self.config.lease / 3);
        let mut turn = tokio::time::interval(TURN);
        renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut changes = self.changes.take();
            let changed = async {
                match &mut changes {
                    Some(changes) => changes.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                answer = watched.message() => {
                    self.changes = changes;
                    let arrived = Instant::now();
                    self.take_in(answer?.ok_or(StoreError::Ended)?)?;
                    // What has come, too, is one change with it.
                    while let Some(answer) = watched.message().now_or_never() {
                        self.take_in(answer?.ok_or(StoreError::Ended)?)?;
                    }
                    self.objects_to_control().await?;
                    self.tell(arrived).await?;
                    self.publish(&store, lease).await?;
                }
                answer = kept.message() => {
                    self.changes = changes;
                    match answer? {
                        Some(answer) if answer.ttl() > 0 => {
                            renewed = Instant::now();
                            self.shared.lock().renewed = Some(renewed);
                        }
                        Some(_) => return Err(StoreError::LeaseEnded.into()),
                        None => return Err(StoreError::Ended.into()),
                    }
                }
                change = changed => {
                    self.changes = changes;
                    let concerns = match &change {
                        Ok(change) => concerns_config(change),
                        // Some were missed.
                        Err(broadcast::error::RecvError::Lagged(_)) => true,
                        Err(broadcast::error::RecvError::Closed) => return Err(Unanswered::Ending.into()),
                    };
                    if concerns {
                        self.look_again(&store, &mut requests, lease).await?;
                        self.publish(&store, lease).await?;
                        self.objects_to_control().await?;
                        self.tell(Instant::now()).await?;
                    }
                }
                _ = renewal.tick() => {
                    self.changes = changes;
                    if renewed.elapsed() > self.config.lease * 2 / 3 {
                        return Err(StoreError::Silent(renewed.elapsed()).into());
                    }
                    keeper.keep_alive().await?;
                }
                _ = turn.tick() => {
                    self.changes = changes;
                    self.turn().await?;
                }
            }
        }
    }

    /// Reads everything, as it was at one revision, which is returned.
    async fn load(&mut self, store: &Store, lease: i64) -> Result<i64, Failure> {
        let (hosts, at) = store.load(&self.keys.hosts(), 0).await?;
        self.mine.forget_host();
        self.hear_hosts(&hosts, lease);
        let (objects, _) = store.load(&self.keys.objects(), at).await?;
        let root = self.keys.objects();
        let named = |pair: &'_ KeyValue| String::from_utf8_lossy(pair.key()).into_owned();
        let all: Vec<(String, &[u8])> = objects.iter().map(|pair| (named(pair), pair.value())).collect();
        self.objects
            .hear_all(all.iter().map(|(key, value)| (key.strip_prefix(&root).unwrap_or(key), *value)));
        let followed: Vec<Vni> =
            self.book.networks().filter(|vni| !self.wanted.networks.contains(vni)).collect();
        followed.into_iter().for_each(|vni| self.book.leave(vni));
        for vni in self.wanted.networks.clone() {
            self.load_network(store, vni, at, lease).await?;
        }
        Ok(at)
    }

    /// Reads a network as it was at a revision, or as it is now where that is 0. The revision.
    async fn load_network(&mut self, store: &Store, vni: Vni, at: i64, lease: i64) -> Result<i64, Failure> {
        let (pairs, at) = store.load(&self.keys.network(vni), at).await?;
        self.mine.forget_network(vni);
        let changes = pairs
            .iter()
            .filter_map(|pair| self.change_of(pair, false, Some(lease)))
            .map(|(_, change)| change);
        let changes: Vec<Change> = changes.collect();
        self.book.hear_all(vni, changes, Instant::now());
        self.hosts_changed = true;
        Ok(at)
    }

    async fn watch_all(
        &mut self,
        store: &Store,
        from: i64,
    ) -> Result<(WatchRequestSender, etcd_client::WatchResponseStream), Failure> {
        self.watches.clear();
        let id = self.new_watch(Target::Hosts);
        let (mut requests, watched) = store.watch(&self.keys.hosts(), id, from).await?;
        let id = self.new_watch(Target::Objects);
        requests.watch(self.keys.objects(), Some(watching(id, from))).await?;
        for vni in self.wanted.networks.clone() {
            let id = self.new_watch(Target::Network(vni));
            requests.watch(self.keys.network(vni), Some(watching(id, from))).await?;
        }
        Ok((requests, watched))
    }

    fn new_watch(&mut self, target: Target) -> i64 {
        self.last_watch += 1;
        self.watches.insert(self.last_watch, target);
        self.last_watch
    }

    /// What the switch has from etcd since before this process: what etcd says otherwise is so at once, and what it does not say stays for the
    /// grace, for its hosts may be about to say it again.
    async fn adopt(&mut self) -> Result<(), Failure> {
        let (locations, objects) = self
            .asker
            .ask("a look at what came from etcd", |controller| {
                (controller.switch.locations_by(Owner::Etcd), api::shared_by(&controller.switch, Owner::Etcd))
            })
            .await?;
        objects.into_iter().for_each(|(kind, id)| self.objects.ask(kind, id));
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

    async fn connected(&mut self, endpoint: &str, lease: i64, at: i64) {
        let again = {
            let mut status = self.shared.lock();
            let now = Instant::now();
            (status.endpoint, status.since) = (Some(endpoint.to_owned()), now);
            (status.revision, status.newest) = (at, status.newest.max(at));
            (status.lease, status.renewed) = (Some(lease), Some(now));
            status.connections += 1;
            status.connections > 1
        };
        tracing::info!(endpoint, revision = at, "etcd is followed");
        if again {
            let text = format!("etcd is back, at {endpoint}");
            self.note("etcd-back", text, json!({ "endpoint": endpoint })).await;
        }
    }

    /// Takes in what a watch says.
    fn take_in(&mut self, answer: WatchResponse) -> Result<(), Failure> {
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        {
            let mut status = self.shared.lock();
            status.newest = status.newest.max(revision);
            status.revision = status.revision.max(revision);
            status.events += answer.events().len() as u64;
        }
        let Some(&target) = self.watches.get(&answer.watch_id()) else { return Ok(()) };
        if answer.canceled() {
            return Err(match answer.compact_revision() {
                0 => StoreError::Ended.into(),
                _ => StoreError::Compacted.into(),
            });
        }
        let pairs = answer.events().iter().filter_map(|event| Some((event.event_type(), event.kv()?)));
        match target {
            Target::Hosts => {
                for (kind, pair) in pairs {
                    self.hear_host(pair, kind == EventType::Delete);
                }
            }
            Target::Objects => {
                let root = self.keys.objects();
                for (kind, pair) in pairs {
                    let key = String::from_utf8_lossy(pair.key()).into_owned();
                    let value = (kind == EventType::Put).then(|| pair.value());
                    self.objects.hear(key.strip_prefix(&root).unwrap_or(&key), value);
                }
            }
            Target::Network(vni) => {
                let mut at_one: (i64, Vec<Change>) = (0, Vec::new());
                for (kind, pair) in pairs {
                    if pair.mod_revision() != at_one.0 {
                        self.book.hear(vni, std::mem::take(&mut at_one.1), Instant::now());
                        at_one.0 = pair.mod_revision();
                    }
                    at_one.1.extend(
                        self.change_of(pair, kind == EventType::Delete, None).map(|(_, change)| change),
                    );
                }
                self.book.hear(vni, at_one.1, Instant::now());
                self.hosts_changed = true;
            }
        }
        Ok(())
    }

    /// What a key of a network says, and remembers what is this host's; `lease` is its lease, where everything is read.
    fn change_of(&mut self, pair: &KeyValue, gone: bool, lease: Option<i64>) -> Option<(Vni, Change)> {
        let shown = String::from_utf8_lossy(pair.key()).into_owned();
        let read = self.keys.subject(pair.key()).and_then(|subject| {
            let value = pair.value();
            Ok(match subject {
                Subject::Member { vni, host } if gone => (vni, Change::Member(host, None)),
                Subject::Member { vni, host } => (vni, Change::Member(host, Some(keys::member(value)?))),
                Subject::Vnic { vni, host, vnic } if gone => (vni, Change::Vnic(host, vnic, None)),
                Subject::Vnic { vni, host, vnic } => {
                    let mut said = keys::vnic(value)?;
                    if said.generation == 0 {
                        said.generation = pair.mod_revision().unsigned_abs();
                    }
                    (vni, Change::Vnic(host, vnic, Some(said)))
                }
                Subject::Host(_) | Subject::Object(_) => return Err("it is of no network".into()),
            })
        });
        let (vni, change) = match read {
            Ok(read) => read,
            Err(error) => {
                let text = format!("{error}; it is as if the key were not there: remove it, or put it anew");
                self.shared.lock().fault("unreadable", shown.clone(), text);
                // A value that was good before holds no more.
                return match self.keys.subject(pair.key()) {
                    Ok(Subject::Vnic { vni, host, vnic }) => Some((vni, Change::Vnic(host, vnic, None))),
                    _ => None,
                };
            }
        };
        self.shared.lock().mend("unreadable", &shown);
        let leased = lease == Some(pair.lease());
        let revision = pair.mod_revision();
        match &change {
            Change::Member(host, None) if *host == self.own => {
                self.mine.lost(&Own::Member(vni), revision);
            }
            Change::Vnic(host, vnic, None) if *host == self.own => {
                self.mine.lost(&Own::Vnic(vni, vnic.clone()), revision);
            }
            Change::Member(host, Some(_)) if *host == self.own && lease.is_some() => {
                self.mine.has_member(vni, pair.value().to_vec(), revision, leased);
            }
            Change::Vnic(host, vnic, Some(said)) if *host == self.own && lease.is_some() => {
                // That of a process before this one: its generation goes on.
                if self.generations.of(vni, vnic, said) == 0 {
                    self.generations.set(vni, vnic, said, said.generation);
                }
                self.mine.has_vnic(vni, vnic.clone(), said.clone(), revision, leased);
            }
            _ => {}
        }
        Some((vni, change))
    }

    fn hear_hosts(&mut self, pairs: &[KeyValue], lease: i64) {
        self.shared.lock().hosts.values_mut().for_each(|host| host.record = None);
        self.hosts_changed = true;
        let own = self.keys.host(&self.own);
        if self.overtaken && pairs.iter().all(|pair| pair.key() != own.as_bytes()) {
            self.overtaken = false;
            self.shared.lock().mend("host-name", &self.own);
        }
        for pair in pairs {
            self.hear_host(pair, false);
            if pair.key() == own.as_bytes() {
                self.mine.has_host(pair.value().to_vec(), pair.mod_revision(), pair.lease() == lease);
            }
        }
    }

    fn hear_host(&mut self, pair: &KeyValue, gone: bool) {
        self.hosts_changed = true;
        let shown = String::from_utf8_lossy(pair.key()).into_owned();
        let name = match self.keys.subject(pair.key()) {
            Ok(Subject::Host(name)) => name,
            Ok(_) => return,
            Err(error) => {
                self.shared.lock().fault("unreadable", shown, format!("{error}; remove the key"));
                return;
            }
        };
        let record = if gone { Ok(None) } else { keys::host(pair.value()).map(Some) };
        let is_own = name == self.own;
        let mut status = self.shared.lock();
        let record = match record {
            Ok(record) => {
                status.mend("unreadable", &shown);
                record
            }
            Err(error) => {
                status.fault("unreadable", shown, format!("{error}; put it anew"));
                None
            }
        };
        if is_own {
            let other = record.as_ref().is_some_and(|record| record.instance != self.instance);
            let later = self.mine.host_revision().is_some_and(|put| put < pair.mod_revision());
            if other && later && !self.overtaken {
                self.overtaken = true;
                let text = "another process has published as this host since; this one publishes nothing until the key is gone: give each \
                    host a name of its own with `host` in [control] etcd";
                status.fault("host-name", name.to_string(), text.into());
            } else if gone {
                self.mine.lost(&Own::Host, pair.mod_revision());
                if std::mem::take(&mut self.overtaken) {
                    status.mend("host-name", &name);
                    self.mine.unlease();
                }
            }
        }
        status.hosts.entry(name).or_default().record = record;
    }

    /// Looks at the config again: publishes and follows what it says now.
    async fn look_again(
        &mut self,
        store: &Store,
        requests: &mut WatchRequestSender,
        lease: i64,
    ) -> Result<(), Failure> {
        let config =
            self.asker.ask("a look at the config", |controller| controller.switch.shared_config()).await?;
        let Some(before) = self.seen.replace(config.clone()) else { return Ok(()) };
        if Arc::ptr_eq(&before, &config) {
            return Ok(());
        }
        self.wanted = Wanted::of(&config, &self.config.vteps);
        let followed: BTreeSet<Vni> = self
            .watches
            .values()
            .filter_map(|target| match target {
                Target::Network(vni) => Some(*vni),
                Target::Hosts | Target::Objects => None,
            })
            .collect();
        for &vni in followed.difference(&self.wanted.networks) {
            let ids: Vec<i64> = self
                .watches
                .iter()
                .filter(|(_, target)| **target == Target::Network(vni))
                .map(|(id, _)| *id)
                .collect();
            for id in ids {
                self.watches.remove(&id);
                requests.cancel(id).await?;
            }
            self.book.leave(vni);
        }
        let come: Vec<Vni> = self.wanted.networks.difference(&followed).copied().collect();
        for vni in come {
            let at = self.load_network(store, vni, 0, lease).await?;
            let id = self.new_watch(Target::Network(vni));
            requests.watch(self.keys.network(vni), Some(watching(id, at + 1))).await?;
        }
        let networks = |config: &Config| {
            let vpcs = config.vpcs.iter().map(|vpc| (vpc.name.clone(), Some(vpc.vni), None));
            let groups = config.security_groups.iter();
            vpcs.chain(groups.map(|group| (group.name.clone(), None, Some(group.vpc.clone()))))
                .collect::<Vec<_>>()
        };
        if before.uplinks != config.uplinks || networks(&before) != networks(&config) {
            // What was refused may be possible now, and groups may be known.
            self.book.tell_again();
        } else {
            // Addresses of vNICs that went are another host's again.
            let vnis: HashMap<&Name, Vni> = before.vpcs.iter().map(|vpc| (&vpc.name, vpc.vni)).collect();
            let went =
                before.vnics.iter().filter(|vnic| !config.vnics.iter().any(|now| Arc::ptr_eq(now, vnic)));
            for vnic in went {
                if let Some(&vni) = vnis.get(&vnic.vpc) {
                    vnic.vips.iter().for_each(|&vip| self.book.ask(vni, vip));
                }
            }
        }
        Ok(())
    }

    /// Has etcd have what this host says.
    async fn publish(&mut self, store: &Store, lease: i64) -> Result<(), Failure> {
        if self.overtaken {
            if self.mine.published() > 0 {
                // What the other one did not put in its place is nobody's.
                self.mine.unlease();
                store.revoke(lease).await?;
            }
            return Ok(());
        }
        let (keys, own, instance) = (&self.keys, self.own.as_str(), self.instance);
        let voice = Voice { store, keys, own, instance, lease };
        let result = self.mine.publish(&voice, &self.wanted, &mut self.generations).await;
        self.generations.save();
        self.shared.lock().published = self.mine.published();
        Ok(result?)
    }

    /// Has the switch take in what changed for it.
    async fn tell(&mut self, arrived: Instant) -> Result<(), Failure> {
        if self.asked_again.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.asked_again = None;
        let mut told = false;
        while self.book.has_news() {
            let news = self.book.take(BATCH, Instant::now());
            let subjects: Vec<(Vni, IpAddr)> = news
                .stations
                .iter()
                .map(|station| (station.vni, station.vip))
                .chain(news.gone.iter().copied())
                .collect();
            let members: Vec<Vni> = news.members.keys().copied().collect();
            let answer = self
                .asker
                .ask("taking in what other hosts say", move |controller| {
                    apply::take_in(&mut controller.switch, news)
                })
                .await?;
            told = true;
            let mut status = self.shared.lock();
            match answer {
                Ok(refused) => {
                    if status.faults.keys().any(|(kind, _)| *kind == "refused") {
                        subjects
                            .iter()
                            .for_each(|(vni, vip)| status.mend("refused", &format!("{vip} in VNI {vni}")));
                    }
                    status.mend("refused", "all");
                    for refused in refused {
                        status.fault(
                            "refused",
                            format!("{} in VNI {}", refused.vip, refused.vni),
                            refused.why,
                        );
                    }
                }
                Err(why) => {
                    status.fault("refused", "all".into(), why);
                    drop(status);
                    subjects.into_iter().for_each(|(vni, vip)| self.book.ask(vni, vip));
                    members.into_iter().for_each(|vni| self.book.regroup(vni));
                    self.asked_again = Some(Instant::now() + REFUSED);
                    break;
                }
            }
        }
        let mut status = self.shared.lock();
        if told {
            status.lag = arrived.elapsed();
            status.longest_lag = status.longest_lag.max(status.lag);
        }
        Ok(())
    }

    /// Has the switch have the objects that are said.
    async fn objects_to_control(&mut self) -> Result<(), Failure> {
        if self.objects.is_due() {
            let due = self.objects.due();
            let changes: Vec<_> = due.iter().map(|(_, change)| change.clone()).collect();
            let refused = self
                .asker
                .ask("taking in objects of the config", move |controller| {
                    apply::carry_out(&mut controller.switch, &changes)
                })
                .await?;
            for ((key, change), why) in due.iter().zip(refused) {
                match why {
                    Some(why) => self.objects.refused(key, change, why),
                    None => self.objects.done(key),
                }
            }
        }
        let mut status = self.shared.lock();
        status.objects = self.objects.count();
        status.faults.retain(|(kind, _), _| *kind != "object");
        for (key, why) in self.objects.faults() {
            status.fault("object", key.clone(), why.clone());
        }
        Ok(())
    }

    /// What time brings.
    async fn turn(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        self.book.tick(now);
        if let Some((_, orphans)) = self.orphans.take_if(|(until, _)| *until <= now) {
            orphans.into_iter().for_each(|(vni, vip)| self.book.ask(vni, vip));
        }
        self.tell(now).await?;
        self.tell_contests(now).await;
        let mut status = self.shared.lock();
        if std::mem::take(&mut self.hosts_changed) {
            let mut seen = self.book.hosts();
            seen.remove(&self.own);
            status.hosts.retain(|name, host| host.record.is_some() || seen.contains_key(name));
            status.hosts.values_mut().for_each(|host| host.seen = super::book::Seen::default());
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
                let text = format!(
                    "{vip} in VNI {vni} is claimed by host {}, which has it as the later one, and by {others}: remove the vNIC on one of them",
                    contest.winner
                );
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
        self.contests_told = told;
        for (text, facts) in news.into_iter().take(16) {
            tracing::warn!("{text}");
            self.note("claimed-twice", text, facts).await;
        }
    }
}

/// True for a change that may concern what is published or followed: of something else than locations.
fn concerns_config(change: &Changed) -> bool {
    let set = change.change.set().any(|(section, ..)| section != "location");
    set || change.change.gone().any(|(section, _)| section != "location")
}
