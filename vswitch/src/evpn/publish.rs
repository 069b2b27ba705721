//! What this host announces: from its config and the book to routes, and the difference to what was announced.
//!
//! A vNIC is announced with each of its addresses (type 2), or with its MAC address alone where it has none; each network that a vNIC of
//! this host is in wants what is flooded (type 3); and a VPC's route to a vNIC of this host is a prefix (type 5), where the config wants
//! that. Routers elsewhere send to addresses and prefixes by this host's virtual router ([`router_mac`]), which knows who has them.
//!
//! Sequence numbers (RFC 7432 section 15): a MAC address that comes here while others announce it has moved, and is announced with the
//! next number after theirs. When somebody else says a higher one, it has moved on, and is announced no more, though the vNIC may
//! still be there: it is here again when the vNIC comes anew, or when nobody else says so any longer. So two hosts that both have it never
//! answer each other without end. One that goes and comes too often is a duplicate (section 15.1, `moves.rs`): nothing new is announced of
//! it and nothing taken in for a while.

mod moves;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use ipnet::IpNet;
use pipelines::vtep::router_mac;
use wire::{MacAddr, Vni};

use self::moves::Moves;
pub use self::moves::{Duplicate, Limit};
use super::book::Book;
use super::route::{Distinguisher, Key, Route};
use crate::config::{Config, RouteTargetConfig};

/// What this host has that others are to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Networks with their vNICs: MAC addresses, and addresses of each.
    pub stations: BTreeMap<(u32, MacAddr), BTreeSet<IpAddr>>,
    /// Prefixes behind a vNIC.
    pub prefixes: BTreeSet<(u32, IpNet)>,
}

impl Local {
    /// As a config has it; prefixes where they are wanted.
    pub fn of(config: &Config, prefixes: bool) -> Self {
        let mut local = Self::default();
        let vnis: BTreeMap<&str, u32> =
            config.vpcs.iter().map(|vpc| (vpc.name.as_str(), vpc.vni.get())).collect();
        for vnic in &config.vnics {
            let Some(&vni) = vnis.get(vnic.vpc.as_str()) else { continue };
            local.stations.entry((vni, vnic.mac)).or_default().extend(vnic.vips.iter().copied());
        }
        for vpc in config.vpcs.iter().filter(|_| prefixes) {
            for route in &vpc.routes {
                let RouteTargetConfig::Vnic { vnic: name } = &route.target else { continue };
                if config.vnics.iter().any(|vnic| vnic.name == *name) {
                    local.prefixes.insert((vpc.vni.get(), route.to));
                }
            }
        }
        local
    }
}

/// Who announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker {
    pub vtep: IpAddr,
    /// Of route distinguishers.
    pub router_id: Ipv4Addr,
}

/// Whose a MAC address is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    sequence: u32,
    /// It is here; else somebody else says a higher number.
    here: bool,
    moves: Moves,
}

/// Something to tell people about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A MAC address that others announced came here.
    Came { vni: u32, mac: MacAddr, from: IpAddr, sequence: u32 },
    /// A vNIC's MAC address is announced by somebody else, with a number that wins.
    Left { vni: u32, mac: MacAddr, to: IpAddr, sequence: u32 },
    /// It has come and gone so often that it is a duplicate.
    Held { vni: u32, mac: MacAddr, duplicate: Duplicate },
    /// It is none any more: the time is over, or its vNIC is gone.
    Released { vni: u32, mac: MacAddr },
}

/// What is announced.
#[derive(Debug, Default)]
pub struct Publisher {
    /// The number of each network in route distinguishers.
    numbers: BTreeMap<u32, u16>,
    claims: BTreeMap<(u32, MacAddr), Claim>,
    /// What gobgpd has of ours.
    announced: BTreeMap<Key, Route>,
    /// The sequence numbers that an earlier run of the switch announced.
    adopted: BTreeMap<(u32, MacAddr), u32>,
    limit: Limit,
    /// When the first duplicate is tried again.
    again: Option<Instant>,
}

/// A change of what is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Announce(Route),
    Withdraw(Route),
}

impl Publisher {
    /// Announces nothing yet; what is a duplicate.
    pub fn new(limit: Limit) -> Self {
        Self { limit, ..Self::default() }
    }

    /// When a MAC address is a duplicate.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// True when a duplicate is to be tried again.
    pub fn is_due(&self, now: Instant) -> bool {
        self.again.is_some_and(|again| again <= now)
    }

    /// The duplicates.
    pub fn duplicates(&self) -> impl Iterator<Item = (u32, MacAddr, Duplicate)> {
        self.claims.iter().filter_map(|(&(vni, mac), claim)| Some((vni, mac, claim.moves.held?)))
    }

    /// What gobgpd has of ours, as it says itself: what an earlier run announced, or what this one did.
    pub fn begin(&mut self, known: Vec<Route>) {
        for route in &known {
            let Key::Station { mac, .. } = route.key else { continue };
            let station = (route.vni.get(), mac);
            if self.claims.contains_key(&station) {
                continue;
            }
            let sequence = self.adopted.entry(station).or_default();
            *sequence = route.sequence.max(*sequence);
        }
        for route in &known {
            // Its number, so that a restart keeps what it announced.
            if let Distinguisher::Address(_, number) = route.key.rd()
                && !self.numbers.values().any(|taken| *taken == number)
            {
                self.numbers.entry(route.vni.get()).or_insert(number);
            }
        }
        self.announced = known.into_iter().map(|route| (route.key, route)).collect();
    }

    /// What is announced.
    pub fn announced(&self) -> impl Iterator<Item = &Route> {
        self.announced.values()
    }

    /// gobgpd took a step.
    pub fn took(&mut self, step: &Step) {
        match step {
            Step::Announce(route) => drop(self.announced.insert(route.key, *route)),
            Step::Withdraw(route) => drop(self.announced.remove(&route.key)),
        }
    }

    /// gobgpd refused a sequence number: somebody said a higher one that has not been heard yet.
    pub fn refused(&mut self, route: &Route) {
        if let Key::Station { mac, .. } = route.key
            && let Some(claim) = self.claims.get_mut(&(route.vni.get(), mac))
            && claim.sequence == route.sequence
        {
            claim.sequence = claim.sequence.saturating_add(1);
        }
    }

    /// The steps from what is announced to what is to be.
    pub fn steps(
        &mut self,
        local: &Local,
        book: &Book,
        speaker: Speaker,
        now: Instant,
        news: &mut Vec<News>,
    ) -> Vec<Step> {
        self.claim(local, book, speaker.vtep, now, news);
        let wanted = self.wanted(local, speaker);
        let gone = self.announced.values().filter(|route| !wanted.contains_key(&route.key));
        let mut steps: Vec<Step> = gone.copied().map(Step::Withdraw).collect();
        let differs = |route: &&Route| self.announced.get(&route.key) != Some(route);
        steps.extend(wanted.values().filter(differs).copied().map(Step::Announce));
        steps
    }

    fn claim(&mut self, local: &Local, book: &Book, vtep: IpAddr, now: Instant, news: &mut Vec<News>) {
        self.claims.retain(|&(vni, mac), claim| {
            let stays = local.stations.contains_key(&(vni, mac));
            if !stays && claim.moves.held.is_some() {
                news.push(News::Released { vni, mac });
            }
            stays
        });
        for &(vni, mac) in local.stations.keys() {
            let elsewhere = book.station(vni, mac);
            let next = book.highest_sequence(mac).map_or(0, |highest| highest.saturating_add(1));
            let Some(claim) = self.claims.get_mut(&(vni, mac)) else {
                let before = self.adopted.remove(&(vni, mac));
                // What was announced before this run others have heard, and may have said more since.
                let sequence = before.unwrap_or(next);
                let mut claim = Claim { sequence, here: true, moves: Moves::default() };
                if let (Some(route), None) = (elsewhere, before) {
                    news.push(News::Came { vni, mac, from: route.vtep, sequence });
                    // The first of them, which is not too many.
                    let _ = claim.moves.note(route.vtep, now, self.limit);
                }
                self.claims.insert((vni, mac), claim);
                continue;
            };
            match claim.moves.is_over(now) {
                // It stays as it is.
                Some(false) => continue,
                // What was said meanwhile is taken in before it is looked at again.
                Some(true) => {
                    claim.moves.held = None;
                    news.push(News::Released { vni, mac });
                    continue;
                }
                None => {}
            }
            let wins = elsewhere.filter(|route| {
                let by_number = route.sequence.cmp(&claim.sequence);
                route.sticky || by_number.is_gt() || (by_number.is_eq() && route.vtep < vtep)
            });
            match (claim.here, wins, elsewhere) {
                (true, Some(route), _) => {
                    if let Some(duplicate) = claim.moves.note(route.vtep, now, self.limit) {
                        news.push(News::Held { vni, mac, duplicate });
                        continue;
                    }
                    claim.here = false;
                    news.push(News::Left { vni, mac, to: route.vtep, sequence: route.sequence });
                    claim.sequence = route.sequence;
                }
                (false, None, None) => {
                    if let Some(duplicate) = claim.moves.note_back(now, self.limit) {
                        news.push(News::Held { vni, mac, duplicate });
                        continue;
                    }
                    (claim.sequence, claim.here) = (next.max(claim.sequence.saturating_add(1)), true);
                }
                (false, _, Some(route)) => claim.sequence = claim.sequence.max(route.sequence),
                _ => {}
            }
        }
        // What is not here now is not announced any more, and comes anew if it comes.
        self.adopted.clear();
        self.again = self.duplicates().map(|(_, _, duplicate)| duplicate.until).min();
    }

    fn wanted(&mut self, local: &Local, speaker: Speaker) -> BTreeMap<Key, Route> {
        let networks: BTreeSet<u32> = local
            .stations
            .keys()
            .map(|(vni, _)| *vni)
            .chain(local.prefixes.iter().map(|(vni, _)| *vni))
            .collect();
        self.number(&networks);
        // All routes carry the same one: some routers (FRR 8.4.4) keep one for each VTEP, that of the last route.
        let router_mac = Some(router_mac(speaker.vtep));
        let mut wanted = BTreeMap::new();
        let mut put = |route: Route| {
            wanted.insert(route.key, route);
        };
        for &network in &networks {
            let (Ok(vni), Some(rd)) = (Vni::new(network), self.distinguisher(network, speaker)) else {
                continue;
            };
            let new = |key| Route::new(key, vni, speaker.vtep);
            let stations = local.stations.range((network, MacAddr::ZERO)..=(network, MacAddr::BROADCAST));
            let mut any = false;
            for (&(_, mac), addresses) in stations {
                any = true;
                let Some(claim) = self.claims.get(&(network, mac)) else { continue };
                if claim.moves.held.is_some() {
                    // What gobgpd has of it is left there, and nothing is added.
                    let is_of_it = |route: &&Route| {
                        let Key::Station { mac: of, .. } = route.key else { return false };
                        of == mac && route.vni == vni
                    };
                    self.announced.values().filter(is_of_it).copied().for_each(&mut put);
                    continue;
                }
                if !claim.here {
                    continue;
                }
                let station =
                    |ip| Route { sequence: claim.sequence, ..new(Key::Station { rd, tag: 0, mac, ip }) };
                if addresses.is_empty() {
                    put(station(None));
                }
                addresses.iter().for_each(|ip| put(Route { router_mac, ..station(Some(*ip)) }));
            }
            if any {
                put(new(Key::Flood { rd, tag: 0, originator: speaker.vtep }));
            }
            for &(of, to) in &local.prefixes {
                if of == network {
                    put(Route { router_mac, ..new(Key::Prefix { rd, tag: 0, to }) });
                }
            }
        }
        wanted
    }

    /// Gives each network a number: the lower 16 bits of its VNI where nobody else has that, the next free one otherwise.
    fn number(&mut self, networks: &BTreeSet<u32>) {
        self.numbers.retain(|vni, _| networks.contains(vni));
        let mut taken: BTreeSet<u16> = self.numbers.values().copied().collect();
        for &vni in networks {
            if self.numbers.contains_key(&vni) {
                continue;
            }
            let low = (vni & 0xffff) as u16;
            let free =
                (0..=u16::MAX).map(|offset| low.wrapping_add(offset)).find(|number| !taken.contains(number));
            if let Some(number) = free {
                taken.insert(number);
                self.numbers.insert(vni, number);
            }
        }
    }

    fn distinguisher(&self, vni: u32, speaker: Speaker) -> Option<Distinguisher> {
        self.numbers.get(&vni).map(|number| Distinguisher::Address(speaker.router_id, *number))
    }
}

#[cfg(test)]
mod tests;
