//! What other hosts say where their stations are: taken in by the batch, as one change of the snapshot and one line of the journal.
//!
//! Whoever hears it (a client of etcd, of a BGP speaker) owns what it brings, and neither moves nor removes what others brought. What
//! cannot be is refused alone, with the reason; the rest of the batch is done. Of what is refused, locations are to be said again when there may
//! be room for them ([`Topology::vlt_room`](crate::topology::Topology::vlt_room)); VTEPs are known, and placed when there is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use serde_json::json;
use wire::{MacAddr, Vni};

use super::{Switch, SwitchError};
use crate::config::objects::{location_id, location_of};
use crate::config::{LocationConfig, Name};
use crate::state::change::Change;
use crate::state::owners::Owner;
use crate::topology::TopologyError;
use crate::topology::stations::Stations;

/// The part of the VLT that has to be free again, as a divisor, before another event says that it is full.
const MUCH_ROOM: usize = 16;

/// What has changed on other hosts, as far as one source of it knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// Locations that came, moved or changed.
    pub come: Vec<LocationConfig>,
    /// Addresses that are nowhere any more.
    pub gone: Vec<(Vni, IpAddr)>,
    /// The VTEPs of all hosts that take part in a network, whatever is behind them, of each network in which they changed.
    pub members: BTreeMap<Vni, BTreeSet<IpAddr>>,
}

impl Heard {
    /// True when nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.come.is_empty() && self.gone.is_empty() && self.members.is_empty()
    }
}

/// Something of a network that another host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
    /// Where an address is.
    Location(Vni, IpAddr),
    /// That the host at a VTEP takes part.
    Vtep(Vni, IpAddr),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Location(vni, vip) => write!(f, "{vip} in VNI {vni}"),
            Self::Vtep(vni, vtep) => write!(f, "VTEP {vtep} in VNI {vni}"),
        }
    }
}

/// Something that was not taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub what: Said,
    /// In a sentence, with what to do.
    pub why: String,
    /// It is the VLT that has no room for it.
    pub for_want_of_room: bool,
}

impl Refused {
    /// A VTEP for which a VLT of so many entries has no slot.
    fn vtep(vni: Vni, vtep: IpAddr, entries: usize) -> Self {
        let why = format!(
            "the host there takes part, and {}; until then it is neither flooded to nor heard there, but from the addresses that are known \
             behind it",
            TopologyError::VltFull { entries, path: String::new() }
        );
        Self { what: Said::Vtep(vni, vtep), why, for_want_of_room: true }
    }
}

/// The VTEPs that take part in networks, by who says so.
pub(super) type Members = BTreeMap<(Vni, &'static str), BTreeSet<IpAddr>>;

impl Switch {
    /// As [`hear`](Self::hear); what was refused.
    ///
    /// # Errors
    /// As [`hear`](Self::hear).
    pub fn follow(&mut self, owner: Owner, heard: Heard) -> Result<Vec<Refused>, SwitchError> {
        let mut refused = Vec::new();
        self.hear(owner, heard, &mut refused).map(|()| refused)
    }

    /// Takes in what other hosts say, as `owner`. Groups of a location that this switch does not know in the network are left out of it.
    /// What is refused is added to `refused`, also where the rest is in force and there is an error.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`] or [`SwitchError::Worker`]: then the
    /// locations are in force, and it is known whose they are. What a worker did not take is given to it again by the next call.
    pub fn hear(
        &mut self,
        owner: Owner,
        heard: Heard,
        refused: &mut Vec<Refused>,
    ) -> Result<(), SwitchError> {
        let Heard { come, gone, members } = heard;
        let (come, others) = self.own_and_new(owner, come);
        refused.extend(others);
        let ended = gone.into_iter().filter_map(|(vni, vip)| self.topology.location(vni, vip));
        let whose = self.ownership();
        let ended = ended.filter(|known| whose.of("location", &location_id(known)) == owner);
        let ended: Vec<LocationConfig> = ended.cloned().collect();
        let gone: Vec<(Vni, IpAddr)> = ended.iter().map(|location| (location.vni, location.vip)).collect();
        let faults = match come.is_empty() && gone.is_empty() {
            true => BTreeMap::new(),
            false => self.topology.follow_locations(&self.config, &come, &gone, &self.neighbours)?,
        };
        let mut all = BTreeMap::new();
        for (vni, vteps) in members {
            self.members.insert((vni, owner.word()), vteps);
            let said = self.members.range((vni, "")..).take_while(|((of, _), _)| *of == vni);
            all.insert(vni, said.flat_map(|(_, vteps)| vteps.iter().copied()).collect());
        }
        self.members.retain(|_, vteps| !vteps.is_empty());
        let other_lists = self.topology.follow_vteps(&self.config, &all, &self.neighbours);
        let (_, entries) = self.topology.vlt_usage();
        let left_out = self.topology.left_out().filter(|(vni, _)| all.contains_key(vni));
        refused.extend(left_out.map(|(vni, vtep)| Refused::vtep(vni, vtep, entries)));
        let mut taken = Vec::new();
        for (at, location) in come.into_iter().enumerate() {
            match faults.get(&at) {
                None => taken.push(location),
                Some(fault) => refused.push(Refused {
                    what: Said::Location(location.vni, location.vip),
                    why: fault.to_string(),
                    for_want_of_room: matches!(fault, TopologyError::VltFull { .. }),
                }),
            }
        }
        self.tell_full(refused);
        let changed = !taken.is_empty() || !gone.is_empty();
        let is_new = changed || *other_lists.as_ref().unwrap_or(&false);
        let handed_out = match is_new || self.topology.is_unsettled() {
            true => {
                self.topology.commit();
                self.hand_out()
            }
            false => Ok(()),
        };
        // What came is in force, also where a worker does not answer: whose it is has to be known then, too.
        let mut saved = Ok(());
        if changed {
            let id = |location: &LocationConfig| ("location".to_owned(), location_id(location));
            taken.iter().for_each(|location| self.owners.set(id(location), owner));
            ended.iter().for_each(|location| self.owners.set(id(location), Owner::Api));
            saved = self.save_later(|| Ok(Change::default().and_without(ended).and_with(&taken)?));
        }
        handed_out.and(saved)?;
        other_lists?;
        Ok(())
    }

    /// Tells that the VLT is full, once until there has been room.
    fn tell_full(&mut self, refused: &[Refused]) {
        let Some(first) = refused.iter().find(|refused| refused.for_want_of_room) else { return };
        if std::mem::replace(&mut self.is_full_told, true) {
            return;
        }
        let Refused { what, why, .. } = first;
        let text = format!(
            "what other hosts say is not taken in any more before there is room, first of all {what}: {why}"
        );
        tracing::warn!("{text}");
        let (_, entries) = self.topology.vlt_usage();
        self.events.add("vlt-full", text, json!({ "what": what.to_string(), "entries": entries }));
    }

    /// Gives slots to VTEPs that were left out, where there are some again. True when there are.
    pub(super) fn place_left_out(&mut self) -> bool {
        let (_, entries) = self.topology.vlt_usage();
        self.is_full_told &= self.topology.vlt_room() <= entries / MUCH_ROOM;
        let placed = self.topology.place_left_out(&self.config, &self.neighbours);
        placed.unwrap_or_else(|error| {
            tracing::error!(%error, "VTEPs for which there is room again are not heard");
            false
        })
    }

    /// Of some locations those that are news and that nobody else brought, and what is refused of the others.
    fn own_and_new(&self, owner: Owner, come: Vec<LocationConfig>) -> (Vec<LocationConfig>, Vec<Refused>) {
        let vpcs: HashMap<Vni, &Name> = self.config.vpcs.iter().map(|vpc| (vpc.vni, &vpc.name)).collect();
        let groups: HashSet<(&Name, &Name)> =
            self.config.security_groups.iter().map(|group| (&group.vpc, &group.name)).collect();
        let ownership = self.ownership();
        let mut refused = Vec::new();
        let mut news = Vec::new();
        for mut location in come {
            let vpc = vpcs.get(&location.vni).copied();
            location.groups.retain(|group| vpc.is_some_and(|vpc| groups.contains(&(vpc, group))));
            if let Some(known) = self.topology.location(location.vni, location.vip) {
                let whose = ownership.of("location", &location_id(known));
                if whose != owner {
                    let why = format!(
                        "{} in VNI {} is a location that was made by {} (owner {whose}); remove it there with `vlt del`, or leave it",
                        location.vip,
                        location.vni,
                        whose.who()
                    );
                    let what = Said::Location(location.vni, location.vip);
                    refused.push(Refused { what, why, for_want_of_room: false });
                    continue;
                }
                if *known == location {
                    continue;
                }
            }
            news.push(location);
        }
        (news, refused)
    }

    /// Takes in where stations are that are known by their MAC addresses alone: EVPN knows such. They are not saved, and whoever says so
    /// says it again after a start. What was refused, with the reasons.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::Worker`]: then the stations are known, and one worker
    /// may not have been told.
    pub fn follow_stations(
        &mut self,
        stations: &Stations,
    ) -> Result<BTreeMap<(Vni, MacAddr), TopologyError>, SwitchError> {
        let refused = self.topology.follow_stations(&self.config, stations, &self.neighbours)?;
        self.topology.commit();
        self.hand_out()?;
        Ok(refused)
    }

    /// The addresses of the locations of an owner that is neither the file nor the API.
    pub fn locations_by(&self, owner: Owner) -> Vec<(Vni, IpAddr)> {
        let noted = self.owners.iter().filter(|((section, _), of)| *of == owner && section == "location");
        noted.filter_map(|((_, id), _)| location_of(id)).collect()
    }
}

#[cfg(test)]
mod tests;
