//! What etcd says: read as a whole, and then as it changes.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use etcd_client::{
    EventType, KeyValue, ResponseHeader, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use futures_util::FutureExt as _;
use wire::Vni;

use super::{Failure, Follower, Target};
use crate::cluster::book::Change;
use crate::cluster::keys::{self, Subject, shown};
use crate::cluster::publishing::Own;
use crate::cluster::store::{Entry, Store, StoreError, watching};
use crate::config::Name;

/// What is wrong with a key whose value no answer has room for.
const TOO_LONG: &str = "its value is longer than what this host reads at once";

impl Follower {
    /// Reads everything, as it was at one revision, which is returned.
    pub(super) async fn load(&mut self, store: &Store, lease: i64) -> Result<i64, Failure> {
        // What cannot be read is told again.
        self.shared.lock().faults.retain(|(kind, _), _| *kind != "unreadable");
        let at = self.load_hosts(store, lease).await?;
        self.generations.lose_after(at, !self.adopted);
        self.load_objects(store, at).await?;
        let followed: Vec<Vni> =
            self.book.networks().filter(|vni| !self.wanted.networks.contains(vni)).collect();
        followed.into_iter().for_each(|vni| self.book.leave(vni));
        for vni in self.wanted.networks.clone() {
            self.load_network(store, vni, at, lease).await?;
        }
        Ok(at)
    }

    async fn load_hosts(&mut self, store: &Store, lease: i64) -> Result<i64, Failure> {
        self.mine.forget_host();
        let (prefix, own) = (self.keys.hosts(), self.keys.host(&self.own));
        let mut said = HashSet::new();
        let hear = |entry: Entry| match entry {
            Entry::TooLong(key) => self.unreadable(&key, TOO_LONG),
            Entry::Pair(pair) => {
                said.extend(self.hear_host(&pair, false));
                if pair.key() == own.as_bytes() {
                    self.mine.has_host(pair.value().to_vec(), pair.mod_revision(), pair.lease() == lease);
                }
            }
        };
        let at = store.load(&prefix, 0, hear).await?;
        let mut status = self.shared.lock();
        let unsaid = status.hosts.iter_mut().filter(|(name, _)| !said.contains(*name));
        unsaid.for_each(|(_, host)| host.record = None);
        if self.overtaken && !said.contains(&self.own) {
            self.overtaken = false;
            status.mend("host-name", &self.own);
        }
        Ok(at)
    }

    async fn load_objects(&mut self, store: &Store, at: i64) -> Result<(), Failure> {
        let root = self.keys.objects();
        let mut said = BTreeSet::new();
        let hear = |entry: Entry| {
            let (key, value) = match &entry {
                Entry::Pair(pair) => (pair.key(), Some(pair.value())),
                Entry::TooLong(key) => (key.as_slice(), None),
            };
            let key = String::from_utf8_lossy(key);
            let key = key.strip_prefix(&root).unwrap_or(&key);
            match value {
                Some(value) => self.objects.hear(key, Some(value)),
                None => self.objects.unreadable(key, TOO_LONG),
            }
            said.insert(key.to_owned());
        };
        store.load(&root, at, hear).await?;
        self.has_only(&said, at);
        Ok(())
    }

    /// At a revision etcd has these keys of objects and no others. What others said goes; where etcd has lost some, that is not what anybody
    /// wants, and it is kept.
    pub(super) fn has_only(&mut self, said: &BTreeSet<String>, at: i64) {
        let Some(was) = self.past.is_at(at) else { return self.objects.keep_only(said) };
        tracing::warn!(
            at,
            was,
            "etcd has gone back to an earlier revision: it was restored or emptied; objects that it no longer has are kept"
        );
        self.objects.keep_missing(said, at, was);
        self.shared.lock().newest = at;
    }

    /// Reads a network as it was at a revision, or as it is now where that is 0. The revision.
    pub(super) async fn load_network(
        &mut self,
        store: &Store,
        vni: Vni,
        at: i64,
        lease: i64,
    ) -> Result<i64, Failure> {
        self.mine.forget_network(vni);
        let prefix = self.keys.network(vni);
        let mut changes: Vec<Change> = Vec::new();
        let hear = |entry: Entry| match entry {
            Entry::TooLong(key) => self.unreadable(&key, TOO_LONG),
            Entry::Pair(pair) => changes.extend(self.change_of(&pair, false, Some(lease))),
        };
        let at = store.load(&prefix, at, hear).await?;
        self.book.hear_all(vni, changes, Instant::now());
        self.hosts_changed = true;
        Ok(at)
    }

    pub(super) async fn watch_all(
        &mut self,
        store: &Store,
        from: i64,
    ) -> Result<(WatchRequestSender, WatchResponseStream), Failure> {
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

    pub(super) fn new_watch(&mut self, target: Target) -> i64 {
        self.last_watch += 1;
        self.watches.insert(self.last_watch, target);
        self.last_watch
    }

    /// Takes in what watches have said and nobody has read yet; true when there was something.
    pub(super) fn take_in_waiting(&mut self, watched: &mut WatchResponseStream) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(answer) = watched.message().now_or_never() {
            self.take_in(answer?.ok_or(StoreError::Ended)?)?;
            any = true;
        }
        Ok(any)
    }

    /// Takes in what a watch says.
    pub(super) fn take_in(&mut self, answer: WatchResponse) -> Result<(), Failure> {
        let revision = answer.header().map_or(0, ResponseHeader::revision);
        {
            let mut status = self.shared.lock();
            status.newest = status.newest.max(revision);
            status.revision = status.revision.max(revision);
            status.events += answer.events().len() as u64;
        }
        self.past.reaches(revision);
        self.stirred = true;
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
                    at_one.1.extend(self.change_of(pair, kind == EventType::Delete, None));
                }
                self.book.hear(vni, at_one.1, Instant::now());
                self.hosts_changed = true;
            }
        }
        Ok(())
    }

    /// What a key of a network says, and remembers what is this host's; `lease` is its lease, where everything is read.
    fn change_of(&mut self, pair: &KeyValue, gone: bool, lease: Option<i64>) -> Option<Change> {
        let read = self.keys.subject(pair.key()).and_then(|subject| {
            let value = pair.value();
            Ok(match subject {
                Subject::Member { vni, host } if gone => (vni, Change::Member(host, None)),
                Subject::Member { vni, host } => (vni, Change::Member(host, Some(keys::member(value)?))),
                Subject::Vnic { vni, host, vnic } if gone => (vni, Change::Vnic(host, vnic, None)),
                Subject::Vnic { vni, host, vnic } => {
                    (vni, Change::Vnic(host, vnic, Some(keys::vnic(value)?.put_at(pair.mod_revision()))))
                }
                Subject::Host(_) | Subject::Object(_) => return Err("it is of no network".into()),
            })
        });
        let (vni, change) = match read {
            Ok(read) => read,
            Err(_) if gone => {
                self.shared.lock().mend("unreadable", &shown(pair.key()));
                return None;
            }
            Err(error) => {
                self.unreadable(pair.key(), &error);
                // A value that was good before holds no more.
                return match self.keys.subject(pair.key()) {
                    Ok(Subject::Vnic { host, vnic, .. }) => Some(Change::Vnic(host, vnic, None)),
                    _ => None,
                };
            }
        };
        self.shared.lock().mend("unreadable", &shown(pair.key()));
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
        Some(change)
    }

    /// A key is as if it were not there.
    fn unreadable(&self, key: &[u8], error: &str) {
        let text = format!("{error}; it is as if the key were not there: remove it, or put it anew");
        self.shared.lock().fault("unreadable", shown(key), text);
    }

    /// Takes in what a host says of itself, or that it is gone. Which host that is.
    fn hear_host(&mut self, pair: &KeyValue, gone: bool) -> Option<Name> {
        self.hosts_changed = true;
        let shown = shown(pair.key());
        let name = match self.keys.subject(pair.key()) {
            Ok(Subject::Host(name)) => name,
            Ok(_) => return None,
            Err(error) => {
                let mut status = self.shared.lock();
                match gone {
                    true => status.mend("unreadable", &shown),
                    false => drop(status.fault("unreadable", shown, format!("{error}; remove the key"))),
                }
                return None;
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
        status.hosts.entry(name.clone()).or_default().record = record;
        Some(name)
    }
}
