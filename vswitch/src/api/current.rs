//! What the switch has at a moment, as objects of the API.

use std::collections::{BTreeMap, HashSet};

use vswitch_api::v1::{self, Kind};

use super::index::Index;
use super::kinds::{self, Item};
use super::places::place;
use super::refusal::Problem;
use crate::state::owners::Owner;
use crate::state::ownership::Ownership;
use crate::switch::Switch;
pub(super) use crate::switch::view::View;

impl View {
    /// An object.
    pub(super) fn get(&self, kind: Kind, id: &str) -> Result<Option<Item>, Problem> {
        if place(kind).is_none() {
            let (vni, vip) = kinds::location_of(id)?;
            return self.location(vni, vip).map(kinds::location_item).transpose();
        }
        let table = Index::default().get(&self.config, kind, id)?;
        Ok(table.map(|table| Item { kind, id: id.to_owned(), table }))
    }

    /// True when an object is there; where it is comes from an index of the config.
    pub(super) fn has(&self, index: &mut Index, kind: Kind, id: &str) -> Result<bool, Problem> {
        if place(kind).is_some() {
            return Ok(index.has(&self.config, kind, id));
        }
        let (vni, vip) = kinds::location_of(id)?;
        Ok(self.location(vni, vip).is_some())
    }

    /// Those of some objects that there are.
    pub(super) fn some(&self, kind: Kind, ids: &[impl AsRef<str>]) -> Result<Vec<Item>, Problem> {
        let Some(place) = place(kind) else {
            let known = ids.iter().map(|id| {
                let (vni, vip) = kinds::location_of(id.as_ref())?;
                self.location(vni, vip).map(kinds::location_item).transpose()
            });
            return known.filter_map(Result::transpose).collect();
        };
        let wanted: HashSet<&str> = ids.iter().map(AsRef::as_ref).collect();
        let found = place.some(&self.config, &wanted)?;
        let mut items: Vec<Item> = found.into_iter().map(|(id, table)| Item { kind, id, table }).collect();
        items.sort_by(|a, b| a.id.cmp(&b.id));
        items.dedup_by(|b, a| a.id == b.id);
        Ok(items)
    }

    /// The ids of all objects of a kind, in order.
    pub(super) fn ids(&self, kind: Kind) -> Vec<String> {
        let mut ids = match place(kind) {
            Some(place) => place.ids(&self.config),
            None => self.locations().map(kinds::location_id).collect(),
        };
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Who made an object.
pub(super) fn owner(ownership: &Ownership, kind: Kind, id: &str) -> Owner {
    ownership.of(&kinds::section(kind), id)
}

/// An owner as clients are told of it.
pub(super) fn told(owner: Owner) -> v1::Owner {
    match owner {
        Owner::File => v1::Owner::File,
        Owner::Api => v1::Owner::Api,
        Owner::Etcd => v1::Owner::Etcd,
        Owner::Evpn => v1::Owner::Evpn,
        Owner::Cni => v1::Owner::Cni,
    }
}

/// The states of ports, by their names.
#[derive(Default)]
pub(super) struct PortStates(BTreeMap<String, (v1::State, String)>);

impl PortStates {
    pub fn of(switch: &Switch) -> Self {
        let absent = switch.ports().absent().map(|(name, port)| {
            let state = match &port.reason {
                None => (v1::State::Pending, "its device is being opened".to_owned()),
                Some(reason) => (v1::State::Down, reason.clone()),
            };
            (name.to_owned(), state)
        });
        let there = switch.ports().iter().map(|(_, port)| {
            let (state, why) = match () {
                () if port.is_stopped() => (v1::State::Down, "it is stopped; start it with `port start`"),
                () if !port.has_link() => (v1::State::Down, "its link is down; look at its other end"),
                () => (v1::State::Up, ""),
            };
            (port.name.clone(), (state, why.to_owned()))
        });
        // A port that is there is not waited for.
        Self(there.chain(absent).collect())
    }

    /// The state of a port.
    pub fn state(&self, port: &str) -> (v1::State, String) {
        let unknown = || (v1::State::Pending, "it is not attached yet".to_owned());
        self.0.get(port).cloned().unwrap_or_else(unknown)
    }
}

/// Who says what an object is like. Of a section it is the file where it says so, defaults included.
fn owner_of(item: &Item, ownership: &Ownership) -> Result<Owner, Problem> {
    let Some(file) = ownership.file.as_ref().filter(|_| kinds::is_section(item.kind)) else {
        return Ok(owner(ownership, item.kind, &item.id));
    };
    let is_files = Index::default().get(&file.config, item.kind, "")?.as_ref() == Some(&item.table);
    Ok(if is_files { Owner::File } else { Owner::Api })
}

/// An object as clients are told of it.
pub(super) fn entry(
    item: &Item,
    owners: &Ownership,
    ports: &PortStates,
    revision: u64,
) -> Result<v1::Entry, Problem> {
    let owner = owner_of(item, owners)?;
    let (state, reason) = item.port().map(|port| ports.state(port)).unzip();
    let status = v1::Status {
        owner: told(owner).into(),
        state: state.map(i32::from),
        reason: reason.unwrap_or_default(),
    };
    Ok(v1::Entry { key: Some(item.key()), object: Some(item.object()?), status: Some(status), revision })
}
