//! What the switch has at a moment: taken on the control thread in no time, and looked at without it.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;
use pipelines::snapshot::Snapshot;
use vswitch_api::v1::{self, Kind};
use wire::Vni;

use super::kinds::{self, Item};
use super::places::place;
use super::refusal::Problem;
use crate::config::{Config, LocationConfig, Source};
use crate::switch::Switch;

/// The objects, which are shared with the switch.
#[derive(Clone)]
pub(super) struct View {
    /// Without its locations.
    pub config: Arc<Config>,
    /// By index of the VPC, and address.
    locations: OrdMap<(u32, IpAddr), LocationConfig>,
    snapshot: Arc<Snapshot>,
    pub revision: u64,
    pub file: Option<Arc<Source>>,
}

impl View {
    pub fn of(switch: &Switch) -> Self {
        Self {
            config: switch.shared_config(),
            locations: switch.topology().all_locations(),
            snapshot: switch.snapshot().clone(),
            revision: switch.changes().revision(),
            file: switch.config_file(),
        }
    }

    pub fn location(&self, vni: Vni, vip: IpAddr) -> Option<&LocationConfig> {
        let vpc = self.snapshot.vnis.get(u128::from(vni.get()))?;
        self.locations.get(&(vpc, vip))
    }

    pub fn locations(&self) -> impl Iterator<Item = &LocationConfig> {
        self.locations.values()
    }

    /// An object.
    pub fn get(&self, kind: Kind, id: &str) -> Result<Option<Item>, Problem> {
        Ok(self.some(kind, &[id])?.into_iter().next())
    }

    /// Those of some objects that there are.
    pub fn some(&self, kind: Kind, ids: &[impl AsRef<str>]) -> Result<Vec<Item>, Problem> {
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
    pub fn ids(&self, kind: Kind) -> Vec<String> {
        let mut ids = match place(kind) {
            Some(place) => place.ids(&self.config),
            None => self.locations().map(kinds::location_id).collect(),
        };
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Which objects of a kind the config file names.
pub(super) struct Owners {
    file: Option<Arc<Source>>,
    ids: HashSet<String>,
}

impl Owners {
    /// Of all objects of a kind.
    pub fn of(file: Option<Arc<Source>>, kind: Kind) -> Self {
        let ids = file.as_ref().map(|file| match place(kind) {
            Some(place) => place.ids(&file.config),
            None => file.config.locations.iter().map(kinds::location_id).collect(),
        });
        Self { ids: ids.into_iter().flatten().collect(), file }
    }

    /// Of one object.
    pub fn of_one(file: Option<Arc<Source>>, item: &Item) -> Result<Self, Problem> {
        let is_files = match (&file, place(item.kind)) {
            (None, _) => false,
            (Some(file), Some(place)) => place.get(&file.config, &item.id)?.is_some(),
            (Some(file), None) => {
                let (vni, vip) = kinds::location_of(&item.id)?;
                file.config.locations.iter().any(|location| location.vni == vni && location.vip == vip)
            }
        };
        Ok(Self { ids: is_files.then(|| item.id.clone()).into_iter().collect(), file })
    }

    fn owner(&self, item: &Item) -> Result<v1::Owner, Problem> {
        let is_files = match (&self.file, place(item.kind)) {
            // The defaults of a section are the file's, too.
            (Some(file), Some(place)) if kinds::is_section(item.kind) => {
                place.get(&file.config, "")?.as_ref() == Some(&item.table)
            }
            _ => self.ids.contains(&item.id),
        };
        Ok(if is_files { v1::Owner::File } else { v1::Owner::Api })
    }
}

/// What is the matter with ports, by their names; those that are up are not in it.
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
        let down = switch.ports().iter().filter_map(|(_, port)| {
            let why = match () {
                () if !port.running => "it is stopped; start it with `port start`",
                () if !port.has_link() => "its link is down; look at its other end",
                () => return None,
            };
            Some((port.name.clone(), (v1::State::Down, why.to_owned())))
        });
        // A port that is there is not waited for.
        Self(down.chain(absent).collect())
    }

    /// The state of a port.
    pub fn state(&self, port: &str) -> (v1::State, String) {
        self.0.get(port).cloned().unwrap_or((v1::State::Up, String::new()))
    }
}

/// An object as clients are told of it.
pub(super) fn entry(
    item: &Item,
    owners: &Owners,
    ports: &PortStates,
    revision: u64,
) -> Result<v1::Entry, Problem> {
    let (state, reason) = item.port().map(|port| ports.state(port)).unzip();
    let status = v1::Status {
        owner: owners.owner(item)?.into(),
        state: state.map(i32::from),
        reason: reason.unwrap_or_default(),
    };
    Ok(v1::Entry { key: Some(item.key()), object: Some(item.object()?), status: Some(status), revision })
}
