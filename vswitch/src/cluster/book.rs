//! What the hosts of a cluster say, and what follows from it here: a state machine without clocks, sockets or threads of its own.
//!
//! Each host says which networks it takes part in, and which vNICs it has there. Of several that claim one address the one with the
//! latest generation has it: a number that etcd gives out, so that no two hosts' clocks are compared. A host whose lease ends goes with
//! all it said at one revision of etcd; it is believed for a grace after that. What a host takes back itself goes at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::{MacAddr, Vni};

use super::keys::Published;
use crate::config::Name;

/// What changed at one revision of etcd, of one network.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A host takes part, reached at these VTEPs; or does so no more.
    Member(Name, Option<Arc<[IpAddr]>>),
    /// A host has a vNIC, as published at a generation; or has it no more.
    Vnic(Name, Name, Option<Published>),
}

/// A station on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Station {
    pub vni: Vni,
    pub vip: IpAddr,
    pub mac: MacAddr,
    pub groups: Vec<Name>,
    /// Where its host is to be reached, the preferred ones first.
    pub vteps: Arc<[IpAddr]>,
}

/// What changed here because of what others said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct News {
    /// Stations that came, moved or changed.
    pub stations: Vec<Station>,
    /// Addresses that no other host has any more.
    pub gone: Vec<(Vni, IpAddr)>,
    /// Where the other hosts are that take part, of the networks in which that changed.
    pub members: BTreeMap<Vni, Vec<Arc<[IpAddr]>>>,
}

/// Two hosts or more that claim one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The host that has it, by the latest generation, and the others.
    pub winner: Name,
    pub others: Vec<Name>,
    /// They say one MAC address: it may be a machine on its way from one to the other.
    pub same_mac: bool,
    pub since: Instant,
}

/// A host in a network.
#[derive(Clone, Debug)]
struct Member {
    vteps: Arc<[IpAddr]>,
    /// When its lease ended.
    lost: Option<Instant>,
}

/// A vNIC of a host.
#[derive(Debug, PartialEq)]
struct Claim {
    host: Name,
    vnic: Name,
    said: Published,
}

#[derive(Debug)]
struct Held {
    claim: Arc<Claim>,
    /// It went with its host, and was not said again since.
    lost: bool,
}

/// A network.
#[derive(Debug, Default)]
struct Network {
    members: BTreeMap<Name, Member>,
    claims: HashMap<Name, HashMap<Name, Held>>,
    by_address: HashMap<IpAddr, Vec<Arc<Claim>>>,
}

/// All that was heard, of the networks that are followed.
#[derive(Debug)]
pub struct Book {
    own: Name,
    grace: Duration,
    networks: BTreeMap<Vni, Network>,
    changed: BTreeSet<(Vni, IpAddr)>,
    /// Networks in which other hosts take part otherwise than was told.
    regrouped: BTreeSet<Vni>,
    contests: BTreeMap<(Vni, IpAddr), Contest>,
}

impl Book {
    /// A book in which nothing stands, of the host `own`.
    pub fn new(own: Name, grace: Duration) -> Self {
        Self {
            own,
            grace,
            networks: BTreeMap::new(),
            changed: BTreeSet::new(),
            regrouped: BTreeSet::new(),
            contests: BTreeMap::new(),
        }
    }

    /// The networks that are followed.
    pub fn networks(&self) -> impl Iterator<Item = Vni> {
        self.networks.keys().copied()
    }

    /// Follows a network no more: nothing of it is left.
    pub fn leave(&mut self, vni: Vni) {
        let Some(network) = self.networks.remove(&vni) else { return };
        self.changed.extend(network.by_address.keys().map(|&vip| (vni, vip)));
        self.regrouped.insert(vni);
    }

    /// Takes in what changed at one revision, and follows the network from now on.
    pub fn hear(&mut self, vni: Vni, changes: Vec<Change>, now: Instant) {
        let lost: HashSet<Name> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Member(host, None) => Some(host.clone()),
                _ => None,
            })
            .collect();
        // Members last: a host that is back says first what it still has.
        let (members, vnics): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| matches!(change, Change::Member(..)));
        for change in vnics.into_iter().chain(members) {
            match change {
                Change::Vnic(host, vnic, None) if lost.contains(&host) => self.lose(vni, &host, &vnic),
                Change::Vnic(host, vnic, None) => self.drop_claim(vni, &host, &vnic),
                Change::Vnic(host, vnic, Some(said)) => self.put_claim(vni, host, vnic, said),
                Change::Member(host, None) => self.lose_member(vni, &host, now),
                Change::Member(host, Some(vteps)) => self.put_member(vni, host, vteps),
            }
        }
    }

    /// Takes in all there is of a network, in place of everything that was heard. What a host that still takes part does not say any more
    /// is gone; a host that takes part no more is lost, with what it said.
    pub fn hear_all(&mut self, vni: Vni, all: Vec<Change>, now: Instant) {
        let mut members = HashSet::new();
        let mut vnics = HashSet::new();
        for change in &all {
            match change {
                Change::Member(host, Some(_)) => drop(members.insert(host.clone())),
                Change::Vnic(host, vnic, Some(_)) => drop(vnics.insert((host.clone(), vnic.clone()))),
                Change::Member(_, None) | Change::Vnic(_, _, None) => {}
            }
        }
        let network = self.networks.entry(vni).or_default();
        let known = network.claims.iter().flat_map(|(host, held)| held.keys().map(move |vnic| (host, vnic)));
        let unsaid = known.filter(|(host, vnic)| !vnics.contains(&((*host).clone(), (*vnic).clone())));
        let unsaid: Vec<(Name, Name)> = unsaid.map(|(host, vnic)| (host.clone(), vnic.clone())).collect();
        let gone: Vec<Name> =
            network.members.keys().filter(|host| !members.contains(*host)).cloned().collect();
        for (host, vnic) in unsaid {
            match members.contains(&host) {
                true => self.drop_claim(vni, &host, &vnic),
                false => self.lose(vni, &host, &vnic),
            }
        }
        gone.iter().for_each(|host| self.lose_member(vni, host, now));
        self.hear(vni, all, now);
    }

    /// Withdraws hosts whose grace is over. When the next one's is.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut over = Vec::new();
        for (&vni, network) in &self.networks {
            for (host, member) in &network.members {
                let Some(lost) = member.lost else { continue };
                let end = lost + self.grace;
                match end <= now {
                    true => over.push((vni, host.clone())),
                    false => next = Some(next.map_or(end, |next| next.min(end))),
                }
            }
        }
        for (vni, host) in over {
            let Some(network) = self.networks.get_mut(&vni) else { continue };
            network.members.remove(&host);
            self.regrouped.insert(vni);
            let lost = network.claims.get(&host).into_iter().flatten().filter(|(_, held)| held.lost);
            let lost: Vec<Name> = lost.map(|(vnic, _)| vnic.clone()).collect();
            // Those that were said since have no host that takes part: they are nowhere, and wait for it.
            let stay = network.claims.get(&host).into_iter().flatten().filter(|(_, held)| !held.lost);
            let stay = stay.flat_map(|(_, held)| held.claim.said.vips.iter().map(|&vip| (vni, vip)));
            self.changed.extend(stay.collect::<Vec<_>>());
            lost.iter().for_each(|vnic| self.drop_claim(vni, &host, vnic));
        }
        next
    }

    /// What changed since this was last asked, of up to `most` addresses.
    pub fn take(&mut self, most: usize, now: Instant) -> News {
        let mut news = News::default();
        for vni in std::mem::take(&mut self.regrouped) {
            let members = self.networks.get(&vni).into_iter().flat_map(|network| &network.members);
            let others = members.filter(|(host, _)| **host != self.own);
            news.members.insert(vni, others.map(|(_, member)| member.vteps.clone()).collect());
        }
        while news.stations.len() + news.gone.len() < most {
            let Some((vni, vip)) = self.changed.pop_first() else { break };
            self.judge(vni, vip, now);
            match self.station(vni, vip) {
                Some(station) => news.stations.push(station),
                None => news.gone.push((vni, vip)),
            }
        }
        news
    }

    /// True when [`take`](Self::take) has something to tell.
    pub fn has_news(&self) -> bool {
        !self.changed.is_empty() || !self.regrouped.is_empty()
    }

    /// Everything is told again: what it was told to is not what it was.
    pub fn tell_again(&mut self) {
        for (&vni, network) in &self.networks {
            self.changed.extend(network.by_address.keys().map(|&vip| (vni, vip)));
            self.regrouped.insert(vni);
        }
    }

    /// An address is told again.
    pub fn ask(&mut self, vni: Vni, vip: IpAddr) {
        self.changed.insert((vni, vip));
    }

    /// Who takes part in a network is told again.
    pub fn regroup(&mut self, vni: Vni) {
        self.regrouped.insert(vni);
    }

    /// Where an address is, if another host has it.
    pub fn station(&self, vni: Vni, vip: IpAddr) -> Option<Station> {
        let network = self.networks.get(&vni)?;
        let winner = winner(network, vip)?;
        let member = network.members.get(&winner.host)?;
        (winner.host != self.own).then(|| Station {
            vni,
            vip,
            mac: winner.said.mac,
            groups: winner.said.groups.clone(),
            vteps: member.vteps.clone(),
        })
    }

    /// The addresses that several hosts claim.
    pub fn contests(&self) -> &BTreeMap<(Vni, IpAddr), Contest> {
        &self.contests
    }

    /// The generation that this host's vNIC has there.
    pub fn own_generation(&self, vni: Vni, vnic: &str) -> Option<u64> {
        let held = self.networks.get(&vni)?.claims.get(&self.own)?.get(vnic)?;
        Some(held.claim.said.generation)
    }

    /// This host's vNIC that claims an address.
    pub fn own_vnic_at(&self, vni: Vni, vip: IpAddr) -> Option<&Name> {
        let claims = self.networks.get(&vni)?.by_address.get(&vip)?;
        claims.iter().find(|claim| claim.host == self.own).map(|claim| &claim.vnic)
    }

    /// The other hosts that take part in some network: their networks, their vNICs there, and until when they are believed.
    pub fn hosts(&self) -> BTreeMap<Name, Seen> {
        let mut hosts: BTreeMap<Name, Seen> = BTreeMap::new();
        for (&vni, network) in &self.networks {
            for (host, member) in &network.members {
                let seen = hosts.entry(host.clone()).or_default();
                seen.vnis.push(vni);
                seen.vteps.get_or_insert_with(|| member.vteps.clone());
                seen.until = seen.until.max(member.lost.map(|lost| lost + self.grace));
                let claims = network.claims.get(host);
                seen.vnics += claims.map_or(0, HashMap::len);
                let addresses = claims.into_iter().flat_map(HashMap::values);
                seen.addresses += addresses.map(|held| held.claim.said.vips.len()).sum::<usize>();
            }
        }
        hosts
    }

    /// vNICs of other hosts, and addresses that are known.
    pub fn size(&self) -> (usize, usize) {
        let foreign = |network: &Network| {
            let claims = network.claims.iter().filter(|(host, _)| **host != self.own);
            claims.map(|(_, held)| held.len()).sum::<usize>()
        };
        let networks = self.networks.values();
        (networks.clone().map(foreign).sum(), networks.map(|network| network.by_address.len()).sum())
    }

    /// Sees whether several hosts claim an address.
    fn judge(&mut self, vni: Vni, vip: IpAddr, now: Instant) {
        let found = self.networks.get(&vni).and_then(|network| {
            let winner = winner(network, vip)?;
            let others = network.by_address.get(&vip)?.iter().filter(|claim| claim.host != winner.host);
            // One that is lost says nothing any more.
            let others: Vec<_> = others
                .filter(|claim| network.members.get(&claim.host).is_some_and(|member| member.lost.is_none()))
                .collect();
            (!others.is_empty()).then(|| Contest {
                winner: winner.host.clone(),
                same_mac: others.iter().all(|claim| claim.said.mac == winner.said.mac),
                others: others.iter().map(|claim| claim.host.clone()).collect(),
                since: now,
            })
        });
        match found {
            None => drop(self.contests.remove(&(vni, vip))),
            Some(found) => {
                let since = self.contests.get(&(vni, vip)).map_or(now, |known| known.since);
                self.contests.insert((vni, vip), Contest { since, ..found });
            }
        }
    }

    fn put_member(&mut self, vni: Vni, host: Name, vteps: Arc<[IpAddr]>) {
        let network = self.networks.entry(vni).or_default();
        let before = network.members.insert(host.clone(), Member { vteps: vteps.clone(), lost: None });
        let elsewhere = before.as_ref().is_none_or(|before| before.vteps != vteps || before.lost.is_some());
        let held = network.claims.get(&host).into_iter().flatten();
        let held: Vec<(Name, bool)> = held.map(|(vnic, held)| (vnic.clone(), held.lost)).collect();
        if elsewhere {
            self.regrouped.insert(vni);
            let claims = network.claims.get(&host).into_iter().flat_map(HashMap::values);
            let vips = claims.flat_map(|held| held.claim.said.vips.iter().map(|&vip| (vni, vip)));
            self.changed.extend(vips.collect::<Vec<_>>());
        }
        // It has said what it still has: the rest is gone.
        for (vnic, _) in held.into_iter().filter(|(_, lost)| *lost) {
            self.drop_claim(vni, &host, &vnic);
        }
    }

    fn lose_member(&mut self, vni: Vni, host: &Name, now: Instant) {
        let Some(network) = self.networks.get_mut(&vni) else { return };
        let claims = network.claims.get(host).into_iter().flat_map(HashMap::values);
        let vips: Vec<_> =
            claims.flat_map(|held| held.claim.said.vips.iter().map(|&vip| (vni, vip))).collect();
        let has_claims = network.claims.get(host).is_some_and(|held| !held.is_empty());
        self.changed.extend(vips);
        match has_claims {
            true => {
                if let Some(member) = network.members.get_mut(host) {
                    member.lost.get_or_insert(now);
                }
            }
            // It took everything back before: there is nothing to wait for.
            false if network.members.remove(host).is_some() => drop(self.regrouped.insert(vni)),
            false => {}
        }
    }

    fn put_claim(&mut self, vni: Vni, host: Name, vnic: Name, said: Published) {
        let network = self.networks.entry(vni).or_default();
        let claim = Arc::new(Claim { host: host.clone(), vnic: vnic.clone(), said });
        let held = network.claims.entry(host).or_default();
        if let Some(before) = held.get_mut(&vnic)
            && before.claim.said == claim.said
        {
            before.lost = false;
            return;
        }
        let before = held.insert(vnic, Held { claim: claim.clone(), lost: false });
        if let Some(before) = before {
            unlist(&mut network.by_address, &before.claim);
            self.changed.extend(before.claim.said.vips.iter().map(|&vip| (vni, vip)));
        }
        for &vip in &claim.said.vips {
            network.by_address.entry(vip).or_default().push(claim.clone());
            self.changed.insert((vni, vip));
        }
    }

    fn drop_claim(&mut self, vni: Vni, host: &Name, vnic: &Name) {
        let Some(network) = self.networks.get_mut(&vni) else { return };
        let Some(of_host) = network.claims.get_mut(host) else { return };
        let Some(held) = of_host.remove(vnic) else { return };
        if of_host.is_empty() {
            network.claims.remove(host);
        }
        unlist(&mut network.by_address, &held.claim);
        self.changed.extend(held.claim.said.vips.iter().map(|&vip| (vni, vip)));
    }

    /// A vNIC went with its host.
    fn lose(&mut self, vni: Vni, host: &Name, vnic: &Name) {
        let network = self.networks.get_mut(&vni);
        if let Some(held) =
            network.and_then(|network| network.claims.get_mut(host)).and_then(|held| held.get_mut(vnic))
        {
            held.lost = true;
        }
    }
}

/// A host as the networks know it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub vnis: Vec<Vni>,
    pub vteps: Option<Arc<[IpAddr]>>,
    pub vnics: usize,
    pub addresses: usize,
    /// Its lease has ended: until then it is believed.
    pub until: Option<Instant>,
}

/// Who has an address: the latest generation of those whose host takes part.
fn winner(network: &Network, vip: IpAddr) -> Option<&Arc<Claim>> {
    let claims =
        network.by_address.get(&vip)?.iter().filter(|claim| network.members.contains_key(&claim.host));
    claims.max_by_key(|claim| (claim.said.generation, &claim.host))
}

fn unlist(by_address: &mut HashMap<IpAddr, Vec<Arc<Claim>>>, gone: &Arc<Claim>) {
    for vip in &gone.said.vips {
        if let Some(claims) = by_address.get_mut(vip) {
            claims.retain(|claim| !Arc::ptr_eq(claim, gone));
            if claims.is_empty() {
                by_address.remove(vip);
            }
        }
    }
}

#[cfg(test)]
mod tests;
