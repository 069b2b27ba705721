//! What etcd has of this host, and what has to be done for it to be what the config says.

use std::collections::BTreeMap;

use wire::Vni;

use super::generations::Generations;
use super::keys::{Keys, Published};
use super::publish::Wanted;
use super::store::{Store, StoreError};
use crate::config::Name;

/// A value that etcd has of this host.
#[derive(Clone, Debug, PartialEq)]
struct Had<T> {
    value: T,
    /// At which revision it was put.
    revision: i64,
    /// Under the lease that this host has now.
    leased: bool,
}

/// What etcd has of this host.
#[derive(Debug, Default)]
pub struct Mine {
    vnics: BTreeMap<(Vni, Name), Had<Published>>,
    members: BTreeMap<Vni, Had<Vec<u8>>>,
    host: Option<Had<Vec<u8>>>,
}

/// Who publishes: a process of a host, under its lease.
#[derive(Clone, Copy)]
pub struct Voice<'v> {
    pub store: &'v Store,
    pub keys: &'v Keys,
    pub own: &'v str,
    pub instance: u64,
    pub lease: i64,
}

/// A key of this host.
#[derive(Clone, Debug, PartialEq)]
pub enum Own {
    Host,
    Member(Vni),
    Vnic(Vni, Name),
}

impl Mine {
    /// How many vNICs are published.
    pub fn published(&self) -> usize {
        self.vnics.values().filter(|had| had.leased).count()
    }

    /// Nothing of what there is counts as this host's any more: it is published anew, under the lease that is granted next.
    pub fn unlease(&mut self) {
        self.vnics.values_mut().for_each(|had| had.leased = false);
        self.members.values_mut().for_each(|had| had.leased = false);
        self.host.iter_mut().for_each(|had| had.leased = false);
    }

    /// A vNIC of this host is there.
    pub fn has_vnic(&mut self, vni: Vni, vnic: Name, value: Published, revision: i64, leased: bool) {
        self.vnics.insert((vni, vnic), Had { value, revision, leased });
    }

    /// This host is said to take part in a network.
    pub fn has_member(&mut self, vni: Vni, value: Vec<u8>, revision: i64, leased: bool) {
        self.members.insert(vni, Had { value, revision, leased });
    }

    /// The record of this host is there.
    pub fn has_host(&mut self, value: Vec<u8>, revision: i64, leased: bool) {
        self.host = Some(Had { value, revision, leased });
    }

    /// All of a network is read anew.
    pub fn forget_network(&mut self, vni: Vni) {
        self.vnics.retain(|(of, _), _| *of != vni);
        self.members.remove(&vni);
    }

    /// The record of this host is read anew.
    pub fn forget_host(&mut self) {
        self.host = None;
    }

    /// A key went at a revision: where this host had put it before that, and did not take it back, it is published again.
    pub fn lost(&mut self, own: &Own, revision: i64) {
        let was_put = |put: i64| put < revision;
        match own {
            Own::Host => drop(self.host.take_if(|had| was_put(had.revision))),
            Own::Member(vni) => self.members.retain(|of, had| of != vni || !was_put(had.revision)),
            Own::Vnic(vni, vnic) => {
                let key = (*vni, vnic.clone());
                if self.vnics.get(&key).is_some_and(|had| was_put(had.revision)) {
                    self.vnics.remove(&key);
                }
            }
        }
    }

    /// The revision at which the record of this host was put.
    pub fn host_revision(&self) -> Option<i64> {
        self.host.as_ref().map(|had| had.revision)
    }

    /// Has etcd have what is wanted, under a lease: first the vNICs that came, then that the host takes part; first the vNICs that went,
    /// then that it does no more.
    ///
    /// # Errors
    /// [`StoreError`]; what was done until then is known.
    pub async fn publish(
        &mut self,
        voice: &Voice<'_>,
        wanted: &Wanted,
        generations: &mut Generations,
    ) -> Result<(), StoreError> {
        let Voice { store, keys, own, instance, lease } = *voice;
        let mut come: Vec<((Vni, Name), Published)> = Vec::new();
        for ((vni, name), said) in &wanted.vnics {
            let generation = generations.of(*vni, name, said);
            let said = Published { generation, ..said.clone() };
            let known = self.vnics.get(&(*vni, name.clone()));
            if generation == 0 || known.is_none_or(|had| !had.leased || had.value != said) {
                come.push(((*vni, name.clone()), said));
            }
        }
        let puts =
            come.iter().map(|((vni, name), said)| (keys.vnic(*vni, own, name), said.value())).collect();
        let revisions = store.change(puts, Vec::new(), lease).await?;
        for (((vni, name), said), revision) in come.into_iter().zip(revisions) {
            let said = said.put_at(revision);
            generations.set(vni, &name, &said, said.generation);
            self.has_vnic(vni, name, said, revision, true);
        }
        let own_networks = wanted.own_networks();
        let member = wanted.member();
        let is_new = |had: Option<&Had<Vec<u8>>>, value: &Vec<u8>| {
            had.is_none_or(|had| !had.leased || had.value != *value)
        };
        let joined: Vec<Vni> =
            own_networks.iter().copied().filter(|vni| is_new(self.members.get(vni), &member)).collect();
        let mut puts: Vec<(String, Vec<u8>)> =
            joined.iter().map(|vni| (keys.member(*vni, own), member.clone())).collect();
        let host = wanted.host(instance);
        let says_host = is_new(self.host.as_ref(), &host);
        if says_host {
            puts.push((keys.host(own), host.clone()));
        }
        let revisions = store.change(puts, Vec::new(), lease).await?;
        for (vni, revision) in joined.iter().zip(&revisions) {
            self.has_member(*vni, member.clone(), *revision, true);
        }
        if says_host {
            self.has_host(host, revisions.last().copied().unwrap_or_default(), true);
        }
        let gone: Vec<(Vni, Name)> =
            self.vnics.keys().filter(|key| !wanted.vnics.contains_key(*key)).cloned().collect();
        let deletes = gone.iter().map(|(vni, name)| keys.vnic(*vni, own, name)).collect();
        store.change(Vec::new(), deletes, lease).await?;
        for key in gone {
            self.vnics.remove(&key);
            generations.forget(key.0, &key.1);
        }
        let left: Vec<Vni> = self.members.keys().copied().filter(|vni| !own_networks.contains(vni)).collect();
        store.change(Vec::new(), left.iter().map(|vni| keys.member(*vni, own)).collect(), lease).await?;
        left.iter().for_each(|vni| drop(self.members.remove(vni)));
        generations.keep_only(&wanted.vnics);
        Ok(())
    }
}
