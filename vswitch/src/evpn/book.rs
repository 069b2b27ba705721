//! What was heard, and what the switch is to have for it.
//!
//! A pure state machine: routes come and go by their keys, and the book says where each address, station and prefix is, and which
//! tunnel end points want what a network floods. Of several routes the one that wins is the sticky one, then the one with the higher
//! sequence number, then the one with the lower tunnel end point (RFC 7432 section 15), so the answer follows from what is known, not from the
//! order in which it came. A MAC address is where its best route is, whatever address that route has, and an IP address is where the MAC
//! address of its best route is: who has moved is there with all it has, before every route of the old place is withdrawn.
//!
//! While the speaker is away everything is kept. When it is back, [`begin`](Book::begin) makes all of it stale, what is heard again is
//! fresh, and [`sweep`](Book::sweep) forgets the rest: nothing that stayed the same is touched.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use wire::MacAddr;

use super::route::{Key, Route};
use crate::config::routes::MOST_GATEWAYS;

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub mac: MacAddr,
    pub vtep: IpAddr,
}

/// Where a prefix is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Behind these routers, which share the flows.
    Routers(Vec<Place>),
    /// Behind a station of the network.
    Station(MacAddr),
}

/// What may be otherwise than when it was last asked for, by VNI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    pub addresses: BTreeSet<(u32, IpAddr)>,
    pub stations: BTreeSet<(u32, MacAddr)>,
    pub prefixes: BTreeSet<(u32, IpNet)>,
    pub floods: BTreeSet<u32>,
}

impl Dirty {
    /// Nothing is.
    pub fn is_empty(&self) -> bool {
        let Self { addresses, stations, prefixes, floods } = self;
        addresses.is_empty() && stations.is_empty() && prefixes.is_empty() && floods.is_empty()
    }
}

type Index<K> = BTreeMap<K, BTreeSet<Key>>;

/// The book.
#[derive(Clone, Debug, Default)]
pub struct Book {
    routes: BTreeMap<Key, Route>,
    /// Those that were not heard again since the speaker is back.
    stale: BTreeSet<Key>,
    addresses: Index<(u32, IpAddr)>,
    stations: Index<(u32, MacAddr)>,
    /// Stations of all networks.
    macs: Index<MacAddr>,
    prefixes: Index<(u32, IpNet)>,
    floods: Index<u32>,
    /// Prefixes by the station that they are behind.
    gateways: Index<(u32, IpAddr)>,
    /// Stations of which nothing is taken in for now, with the last that was said of each of their routes meanwhile.
    held: BTreeMap<(u32, MacAddr), BTreeMap<Key, Option<Route>>>,
    dirty: Dirty,
}

impl Book {
    /// Takes in a route, in place of one with the same key.
    pub fn set(&mut self, route: Route) {
        self.stale.remove(&route.key);
        if let Some(said) = self.held_of(&route.key, Some(route.vni.get())) {
            said.insert(route.key, Some(route));
            return;
        }
        if self.routes.get(&route.key) == Some(&route) {
            return;
        }
        // Of the same station elsewhere before: one change, not two.
        let before = self.places_of(&route.key, Some(&route));
        if let Some(old) = self.routes.insert(route.key, route) {
            self.unindex(&old);
        }
        self.index(&route);
        self.settle(before);
    }

    /// Forgets a route.
    pub fn withdraw(&mut self, key: &Key) {
        self.stale.remove(key);
        if let Some(said) = self.held_of(key, None) {
            said.insert(*key, None);
            return;
        }
        let before = self.places_of(key, None);
        if let Some(old) = self.routes.remove(key) {
            self.unindex(&old);
            self.settle(before);
        }
    }

    /// The speaker is back: what it does not say again is stale.
    pub fn begin(&mut self) {
        let meanwhile = self.held.values().flatten().filter(|(_, route)| route.is_some());
        self.stale = self.routes.keys().chain(meanwhile.map(|(key, _)| key)).copied().collect();
    }

    /// Takes in nothing of a station from now on: it stays where it is.
    pub fn hold(&mut self, vni: u32, mac: MacAddr) {
        self.held.entry((vni, mac)).or_default();
    }

    /// Takes in what was said of a station since it was held, and what is said from now on.
    pub fn release(&mut self, vni: u32, mac: MacAddr) {
        for (key, said) in self.held.remove(&(vni, mac)).unwrap_or_default() {
            let is_stale = self.stale.contains(&key);
            match said {
                Some(route) => self.set(route),
                None => self.withdraw(&key),
            }
            if is_stale {
                self.stale.insert(key);
            }
        }
    }

    /// What was said of the station of a route while it is held; nothing when it is not.
    fn held_of(&mut self, key: &Key, vni: Option<u32>) -> Option<&mut BTreeMap<Key, Option<Route>>> {
        if self.held.is_empty() {
            return None;
        }
        let mac = station_of(key)?;
        // A withdrawal does not say of which network it is: of the one in which the route was last heard.
        let meanwhile = self.held.iter().find(|((_, of), said)| *of == mac && said.contains_key(key));
        let meanwhile = meanwhile.map(|((vni, _), _)| *vni);
        let known = self.routes.get(key).map(|route| route.vni.get());
        let networks = [meanwhile, known, vni].into_iter().flatten();
        let held = networks.map(|vni| (vni, mac)).find(|station| self.held.contains_key(station))?;
        self.held.get_mut(&held)
    }

    /// Forgets what is stale; how many routes that were.
    pub fn sweep(&mut self) -> usize {
        let stale = std::mem::take(&mut self.stale);
        stale.iter().for_each(|key| self.withdraw(key));
        stale.len()
    }

    /// How many routes are stale.
    pub fn stale(&self) -> usize {
        self.stale.len()
    }

    /// All routes.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.values()
    }

    /// What may be otherwise than when this was last called.
    pub fn take_dirty(&mut self) -> Dirty {
        std::mem::take(&mut self.dirty)
    }

    /// All that there is, for who has to look at all of it again.
    pub fn everything(&self) -> Dirty {
        Dirty {
            addresses: self.addresses.keys().copied().collect(),
            stations: self.stations.keys().copied().collect(),
            prefixes: self.prefixes.keys().copied().collect(),
            floods: self.floods.keys().copied().collect(),
        }
    }

    /// The best route of a station.
    pub fn station(&self, vni: u32, mac: MacAddr) -> Option<&Route> {
        self.best(self.stations.get(&(vni, mac)))
    }

    /// A station without any IP address; where it is.
    pub fn bare_station(&self, vni: u32, mac: MacAddr) -> Option<IpAddr> {
        let keys = self.stations.get(&(vni, mac))?;
        let has_none = |key: &Key| matches!(key, Key::Station { ip: None, .. });
        keys.iter().all(has_none).then(|| self.best(Some(keys)).map(|route| route.vtep)).flatten()
    }

    /// Where an address is.
    pub fn address(&self, vni: u32, ip: IpAddr) -> Option<Place> {
        let mac = station_of(&self.best(self.addresses.get(&(vni, ip)))?.key)?;
        Some(Place { mac, vtep: self.station(vni, mac)?.vtep })
    }

    /// Where a prefix is.
    pub fn prefix(&self, vni: u32, to: IpNet) -> Option<Lead> {
        let keys = self.prefixes.get(&(vni, to))?;
        let routes = keys.iter().filter_map(|key| self.routes.get(key));
        let router = |route: &Route| route.router_mac.map(|mac| (route.vtep, mac));
        // Each router once, in an order that does not depend on who said so.
        let routers: BTreeSet<(IpAddr, MacAddr)> = routes.clone().filter_map(router).collect();
        if !routers.is_empty() {
            let places = routers.into_iter().map(|(vtep, mac)| Place { mac, vtep });
            return Some(Lead::Routers(places.take(MOST_GATEWAYS).collect()));
        }
        let gateways = routes.filter_map(|route| self.address(vni, route.gateway?));
        gateways.map(|place| place.mac).min().map(Lead::Station)
    }

    /// The tunnel end points that want what a network floods.
    pub fn floods(&self, vni: u32) -> BTreeSet<IpAddr> {
        let keys = self.floods.get(&vni).into_iter().flatten();
        keys.filter_map(|key| self.routes.get(key)).map(|route| route.vtep).collect()
    }

    /// The highest sequence number that anybody says of a MAC address, in whichever network.
    pub fn highest_sequence(&self, mac: MacAddr) -> Option<u32> {
        let keys = self.macs.get(&mac).into_iter().flatten();
        keys.filter_map(|key| self.routes.get(key)).map(|route| route.sequence).max()
    }

    fn best(&self, keys: Option<&BTreeSet<Key>>) -> Option<&Route> {
        keys?.iter().filter_map(|key| self.routes.get(key)).max_by_key(|route| rank(route))
    }

    /// Where the stations are that a route is about, as it is known and as it will be.
    fn places_of(&self, key: &Key, next: Option<&Route>) -> Vec<((u32, MacAddr), Option<IpAddr>)> {
        let Some(mac) = station_of(key) else { return Vec::new() };
        let known = self.routes.get(key).map(|route| route.vni.get());
        let vnis: BTreeSet<u32> = known.into_iter().chain(next.map(|route| route.vni.get())).collect();
        vnis.into_iter().map(|vni| ((vni, mac), self.station(vni, mac).map(|route| route.vtep))).collect()
    }

    /// Marks the addresses of stations that are elsewhere than before.
    fn settle(&mut self, before: Vec<((u32, MacAddr), Option<IpAddr>)>) {
        for ((vni, mac), vtep) in before {
            self.dirty.stations.insert((vni, mac));
            if self.station(vni, mac).map(|route| route.vtep) == vtep {
                continue;
            }
            let keys = self.stations.get(&(vni, mac)).cloned().unwrap_or_default();
            keys.iter().filter_map(address_of).for_each(|ip| self.touch_address(vni, ip));
        }
    }

    fn touch_address(&mut self, vni: u32, ip: IpAddr) {
        self.dirty.addresses.insert((vni, ip));
        for key in self.gateways.get(&(vni, ip)).into_iter().flatten() {
            if let Key::Prefix { to, .. } = key {
                self.dirty.prefixes.insert((vni, *to));
            }
        }
    }

    fn index(&mut self, route: &Route) {
        let (vni, key) = (route.vni.get(), route.key);
        match key {
            Key::Station { mac, ip, .. } => {
                self.stations.entry((vni, mac)).or_default().insert(key);
                self.macs.entry(mac).or_default().insert(key);
                if let Some(ip) = ip {
                    self.addresses.entry((vni, ip)).or_default().insert(key);
                    self.touch_address(vni, ip);
                }
            }
            Key::Flood { .. } => {
                self.floods.entry(vni).or_default().insert(key);
                self.dirty.floods.insert(vni);
            }
            Key::Prefix { to, .. } => {
                self.prefixes.entry((vni, to)).or_default().insert(key);
                if let Some(gateway) = route.gateway {
                    self.gateways.entry((vni, gateway)).or_default().insert(key);
                }
                self.dirty.prefixes.insert((vni, to));
            }
        }
    }

    fn unindex(&mut self, route: &Route) {
        let (vni, key) = (route.vni.get(), route.key);
        match key {
            Key::Station { mac, ip, .. } => {
                leave(&mut self.stations, (vni, mac), &key);
                leave(&mut self.macs, mac, &key);
                if let Some(ip) = ip {
                    leave(&mut self.addresses, (vni, ip), &key);
                    self.touch_address(vni, ip);
                }
            }
            Key::Flood { .. } => {
                leave(&mut self.floods, vni, &key);
                self.dirty.floods.insert(vni);
            }
            Key::Prefix { to, .. } => {
                leave(&mut self.prefixes, (vni, to), &key);
                if let Some(gateway) = route.gateway {
                    leave(&mut self.gateways, (vni, gateway), &key);
                }
                self.dirty.prefixes.insert((vni, to));
            }
        }
    }
}

/// The greatest wins.
pub fn rank(route: &Route) -> (bool, u32, Reverse<IpAddr>, Reverse<Key>) {
    (route.sticky, route.sequence, Reverse(route.vtep), Reverse(route.key))
}

fn station_of(key: &Key) -> Option<MacAddr> {
    match key {
        Key::Station { mac, .. } => Some(*mac),
        _ => None,
    }
}

fn address_of(key: &Key) -> Option<IpAddr> {
    match key {
        Key::Station { ip, .. } => *ip,
        _ => None,
    }
}

fn leave<K: Ord>(index: &mut Index<K>, of: K, key: &Key) {
    if let Some(keys) = index.get_mut(&of) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests;
