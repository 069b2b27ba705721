//! The client of etcd: connects, reads everything, watches what changes, and says what this host has.
//!
//! It begins anew, with another member, whenever something goes wrong, and knows all it knew: what is read then is a difference.
//! `hearing` takes in what etcd says, `telling` tells control and the operator what follows from it.

mod hearing;
mod renewing;
mod telling;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::WatchRequestSender;
use renewing::renew;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use toml::Value;
use wire::Vni;

use super::book::Book;
use super::generations::Generations;
use super::keys::Keys;
use super::members::Members;
use super::objects::Objects;
use super::past::Past;
use super::publish::Wanted;
use super::publishing::{Mine, Voice};
use super::refusals::Refusals;
use super::status::Shared;
use super::store::{Store, StoreError, watching};
use crate::config::{Config, EtcdConfig, Name};
use crate::control::asking::{Asker, Unanswered};
use crate::control::tries::Tries;
use crate::switch::changes::Changed;

/// Between two attempts to reach a member: the first, and the longest.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_LATER: Duration = Duration::from_secs(2);
/// Between two looks at what time brings: graces, and figures for whoever asks.
const TURN: Duration = Duration::from_millis(250);

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

/// What is kept over a restart, each in a file of its own.
pub struct Files {
    /// The generations of this host's vNICs.
    pub generations: PathBuf,
    /// Who takes part in networks, where there is a state to keep.
    pub members: Option<PathBuf>,
    /// How far etcd has been and what it has lost, where there is a state to keep.
    pub past: Option<PathBuf>,
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
    members: Members,
    past: Past,
    objects: Objects,
    lease: Option<i64>,
    wanted: Wanted,
    seen: Option<Arc<Config>>,
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
    /// What it refused of the rest.
    refusals: Refusals,
    /// When it was last looked whether that is possible by now.
    looked: Option<Instant>,
    hosts_changed: bool,
    /// Something has changed, here or in etcd, since what was refused was last tried.
    stirred: bool,
    /// When they may be tried again.
    tries: Tries,
}

impl Follower {
    /// A client that has not begun.
    pub fn new(config: EtcdConfig, own: Name, files: &Files, asker: Asker, shared: Shared) -> Self {
        let generations = Generations::read(&files.generations);
        let mut past = Past::read(files.past.as_deref());
        past.reaches(generations.highest());
        Self {
            keys: Keys::new(&config.prefix),
            book: Book::new(own.clone(), config.grace),
            instance: crate::state::files::unpredictable(),
            own,
            asker,
            shared,
            mine: Mine::default(),
            generations,
            members: Members::read(files.members.as_deref()),
            objects: Objects::after(past.losses()),
            past,
            lease: None,
            wanted: Wanted::default(),
            seen: None,
            watches: HashMap::new(),
            last_watch: 0,
            orphans: None,
            adopted: false,
            overtaken: false,
            contests_told: BTreeSet::new(),
            asked_again: None,
            refusals: Refusals::default(),
            looked: None,
            hosts_changed: true,
            stirred: false,
            tries: Tries::default(),
            config,
        }
    }

    /// Follows until the switch ends.
    pub async fn run(mut self) {
        self.remember().await;
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
        let kept = store.keep(lease).await?;
        self.lease = Some(lease);
        // It ends with this session.
        let mut renewing = JoinSet::new();
        renewing.spawn(renew(kept, self.config.lease, self.shared.clone()));
        // From here on a change of the config is heard of.
        let (config, mut changes) = self
            .asker
            .ask("a look at the config", |controller| {
                (controller.switch.shared_config(), controller.switch.changes().watch())
            })
            .await?;
        self.wanted = Wanted::of(&config, &self.config.vteps);
        let is_another = self.seen.as_ref().is_some_and(|seen| !Arc::ptr_eq(seen, &config));
        self.seen = Some(config);
        let at = self.load(&store, lease).await?;
        if is_another {
            // What it was told fits another config, also where that came and went again.
            self.book.tell_again();
        }
        let (mut requests, mut watched) = self.watch_all(&store, at + 1).await?;
        if !self.adopted {
            self.adopt().await?;
            self.adopted = true;
        }
        self.stirred = true;
        self.connected(endpoint, lease, at).await;
        self.objects_to_control().await?;
        self.look_again(&store, &mut requests, lease).await?;
        self.publish(&store, lease).await?;
        self.tell(Instant::now()).await?;
        let mut turn = tokio::time::interval(TURN);
        turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                answer = watched.message() => {
                    let arrived = Instant::now();
                    self.take_in(answer?.ok_or(StoreError::Ended)?)?;
                    // What has come, too, is one change with it.
                    self.take_in_waiting(&mut watched)?;
                    self.objects_to_control().await?;
                    self.tell(arrived).await?;
                    self.publish(&store, lease).await?;
                }
                Some(ended) = renewing.join_next() => {
                    // It does not panic and nobody aborts it.
                    return Err(ended.unwrap_or(StoreError::Ended).into());
                }
                change = changes.recv() => {
                    let mut passing = BTreeSet::new();
                    let concerns = match &change {
                        Ok(change) => {
                            passing = self.take_up(change);
                            concerns_config(change)
                        }
                        // Some were missed.
                        Err(broadcast::error::RecvError::Lagged(_)) => {
                            self.book.tell_again();
                            true
                        }
                        Err(broadcast::error::RecvError::Closed) => return Err(Unanswered::Ending.into()),
                    };
                    self.stirred = true;
                    if concerns {
                        self.look_again(&store, &mut requests, lease).await?;
                        self.ask_for_passing(passing);
                        self.publish(&store, lease).await?;
                        self.objects_to_control().await?;
                        self.tell(Instant::now()).await?;
                    }
                }
                _ = turn.tick() => {
                    // What came while control was busy counts before anything is given up for want of it.
                    let arrived = Instant::now();
                    if self.take_in_waiting(&mut watched)? {
                        self.objects_to_control().await?;
                        self.tell(arrived).await?;
                        self.publish(&store, lease).await?;
                    }
                    self.turn().await?;
                }
            }
        }
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

    /// Takes up what a change says, for another one may have taken it back before the config is looked at: what the switch was told is not
    /// there any more all the same. The addresses of vNICs that came or changed.
    fn take_up(&mut self, Changed { change, .. }: &Changed) -> BTreeSet<(Vni, IpAddr)> {
        let seen = self.seen.as_deref();
        let vni_of = |name: &str| seen?.vpcs.iter().find(|vpc| vpc.name.as_str() == name).map(|vpc| vpc.vni);
        let (mut leads_elsewhere, mut passing) = (false, BTreeSet::new());
        for (section, id, object) in change.set() {
            leads_elsewhere |= match section {
                "uplink" => true,
                "vpc" => {
                    let before = id.as_deref().and_then(vni_of).map(|vni| i64::from(vni.get()));
                    before.is_some() && before != object.get("vni").and_then(Value::as_integer)
                }
                _ => false,
            };
            if section == "vnic" {
                let vni = object.get("vpc").and_then(Value::as_str).and_then(vni_of);
                let vips = object.get("vips").and_then(Value::as_array).into_iter().flatten();
                let vips = vips.filter_map(|vip| vip.as_str()?.parse().ok());
                passing.extend(vni.into_iter().flat_map(|vni| vips.clone().map(move |vip| (vni, vip))));
            }
        }
        leads_elsewhere |=
            change.gone().any(|(section, _)| matches!(section, "uplink" | "vpc" | "security-group"));
        if leads_elsewhere {
            self.book.tell_again();
        }
        passing
    }

    /// Addresses that a vNIC of this host had, and that none has now, are another host's again.
    fn ask_for_passing(&mut self, mut passing: BTreeSet<(Vni, IpAddr)>) {
        if passing.is_empty() {
            return;
        }
        if let Some(config) = &self.seen {
            let vnis: HashMap<&Name, Vni> = config.vpcs.iter().map(|vpc| (&vpc.name, vpc.vni)).collect();
            for vnic in &config.vnics {
                let Some(&vni) = vnis.get(&vnic.vpc) else { continue };
                for &vip in &vnic.vips {
                    passing.remove(&(vni, vip));
                }
            }
        }
        passing.into_iter().for_each(|(vni, vip)| self.book.ask(vni, vip));
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
}

/// True for a change that may concern what is published or followed: of something else than locations.
fn concerns_config(change: &Changed) -> bool {
    let set = change.change.set().any(|(section, ..)| section != "location");
    set || change.change.gone().any(|(section, _)| section != "location")
}

#[cfg(test)]
mod tests;
