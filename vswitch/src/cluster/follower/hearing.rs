//! What etcd says: read as a whole, and then as it changes.

use std::time::Instant;

use etcd_client::{
    EventType, KeyValue, ResponseHeader, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use wire::Vni;

use super::{Failure, Follower, Target};
use crate::cluster::book::Change;
use crate::cluster::keys::{self, Subject};
use crate::cluster::publishing::Own;
use crate::cluster::store::{Store, StoreError, watching};

impl Follower {
    /// Reads everything, as it was at one revision, which is returned.
    pub(super) async fn load(&mut self, store: &Store, lease: i64) -> Result<i64, Failure> {
        let (hosts, at) = store.load(&self.keys.hosts(), 0).await?;
        self.generations.lose_after(at, !self.adopted);
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
    pub(super) async fn load_network(
        &mut self,
        store: &Store,
        vni: Vni,
        at: i64,
        lease: i64,
    ) -> Result<i64, Failure> {
        let (pairs, at) = store.load(&self.keys.network(vni), at).await?;
        self.mine.forget_network(vni);
        let changes = pairs.iter().filter_map(|pair| self.change_of(pair, false, Some(lease)));
        let changes: Vec<Change> = changes.collect();
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

    /// Takes in what a watch says.
    pub(super) fn take_in(&mut self, answer: WatchResponse) -> Result<(), Failure> {
        let revision = answer.header().map_or(0, ResponseHeader::revision);
        {
            let mut status = self.shared.lock();
            status.newest = status.newest.max(revision);
            status.revision = status.revision.max(revision);
            status.events += answer.events().len() as u64;
        }
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
        let shown = String::from_utf8_lossy(pair.key()).into_owned();
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
            Err(error) => {
                let text = format!("{error}; it is as if the key were not there: remove it, or put it anew");
                self.shared.lock().fault("unreadable", shown.clone(), text);
                // A value that was good before holds no more.
                return match self.keys.subject(pair.key()) {
                    Ok(Subject::Vnic { host, vnic, .. }) => Some(Change::Vnic(host, vnic, None)),
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
        Some(change)
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
}
