//! Changes of objects: each step looks at what the steps before it leave, and all of them are carried out as one change of the switch.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use prost_reflect::DynamicMessage;
use toml::Value;
use tonic::Code;
use vswitch_api::v1::{self, Kind};
use wire::Vni;

use super::bridge;
use super::current::View;
use super::kinds::{self, Item};
use super::places::{place, read, write};
use super::refusal::{Problem, Problems};
use crate::config::{Config, LocationConfig, VnicConfig, VnicPort};
use crate::switch::{Missing, Switch, SwitchError};

/// A change of one object, as it was asked for.
pub(super) enum Step {
    Create(Item),
    Update(Kind, DynamicMessage, Vec<String>),
    Delete(Kind, String),
}

impl Step {
    pub fn create(request: v1::CreateRequest) -> Result<Self, Problem> {
        let (kind, message) = kinds::parts(&request.object.unwrap_or_default())?;
        let word = kinds::word(kind);
        if kinds::is_section(kind) {
            let message = format!("there is one {word} only, which is there already; update it");
            return Err(Problem::new(Code::FailedPrecondition, "object", message));
        }
        kinds::item(kind, &message).map(Self::Create)
    }

    pub fn update(request: v1::UpdateRequest) -> Result<Self, Problem> {
        let (kind, message) = kinds::parts(&request.object.unwrap_or_default())?;
        Ok(Self::Update(kind, message, request.update_mask.unwrap_or_default().paths))
    }

    pub fn delete(request: v1::DeleteRequest) -> Result<Self, Problem> {
        let key = request.key.unwrap_or_default();
        let kind = kinds::kind_of(&key)?;
        if kinds::is_section(kind) {
            let word = kinds::word(kind);
            let message = format!("{word} is a section of the config and stays; update it");
            return Err(Problem::new(Code::FailedPrecondition, "key", message));
        }
        Ok(Self::Delete(kind, key.id))
    }
}

/// What some steps come to.
struct Plan {
    config: Config,
    /// Those that steps set, and took away.
    locations: BTreeMap<(u32, IpAddr), Option<LocationConfig>>,
    /// Steps changed the config, though others may have changed it back.
    differs: bool,
}

impl Plan {
    fn get(&self, view: &View, kind: Kind, id: &str) -> Result<Option<Item>, Problem> {
        if let Some(place) = place(kind) {
            let table = place.get(&self.config, id)?;
            return Ok(table.map(|table| Item { kind, id: id.to_owned(), table }));
        }
        let (vni, vip) = kinds::location_of(id)?;
        match self.locations.get(&(vni.get(), vip)) {
            Some(location) => location.as_ref().map(kinds::location_item).transpose(),
            None => view.get(kind, id),
        }
    }

    fn put(&mut self, item: &Item) -> Result<(), Problem> {
        match place(item.kind) {
            Some(place) => {
                place.set(&mut self.config, item.table.clone())?;
                self.differs = true;
            }
            None => {
                let location: LocationConfig = read(item.table.clone())?;
                self.locations.insert((location.vni.get(), location.vip), Some(location));
            }
        }
        Ok(())
    }

    /// Takes a step; the object that is there then, unless it went.
    fn step(&mut self, view: &View, step: Step) -> Result<Option<Item>, Problem> {
        Ok(match step {
            Step::Create(item) => Some(self.create(view, item)?),
            Step::Update(kind, message, paths) => Some(self.update(view, kind, &message, &paths)?),
            Step::Delete(kind, id) => {
                self.get(view, kind, &id)?.ok_or_else(|| kinds::unknown(kind, &id))?;
                self.delete(view, kind, &id)?;
                None
            }
        })
    }

    fn create(&mut self, view: &View, item: Item) -> Result<Item, Problem> {
        match self.get(view, item.kind, &item.id)? {
            Some(known) if item.is_said_by(&known) => Ok(known),
            Some(known) => {
                let (word, differs) = (kinds::word(item.kind), kinds::difference(&known, &item)?);
                let message = format!(
                    "there is a {word} {:?} already, and it differs: {differs}; update it, or delete it first",
                    item.id
                );
                Err(Problem::new(Code::AlreadyExists, &word, message))
            }
            None => {
                let item = self.take_over(item)?;
                self.put(&item)?;
                Ok(item)
            }
        }
    }

    /// A vNIC whose port is named like itself takes over the plain port of that name, device and peer included: a virtual machine that
    /// migrates here is behind it before its vNIC is.
    fn take_over(&mut self, mut item: Item) -> Result<Item, Problem> {
        let of_trunk = |port: &&str| {
            item.kind == Kind::Vnic && !self.config.trunks.iter().any(|trunk| trunk.name.as_str() == *port)
        };
        let Some(name) = item.table.get("port").and_then(Value::as_str).filter(of_trunk) else {
            return Ok(item);
        };
        let Some(at) = self.config.ports.iter().position(|port| port.name.as_str() == name) else {
            return Ok(item);
        };
        if name != item.id {
            let message = format!(
                "port {name:?} is a plain port, and a vNIC takes over the one that is named like itself; attach the port as \
                 {:?}, or say what kind of port it has",
                item.id
            );
            return Err(Problem::new(Code::FailedPrecondition, "vnic.port", message));
        }
        let plain = write(&self.config.ports.remove(at))?;
        for (from, to) in [("port", "port"), ("rx-queues", "queues")] {
            if let Some(value) = plain.get(from) {
                item.table.insert(to.into(), value.clone());
            }
        }
        Ok(item)
    }

    fn update(
        &mut self,
        view: &View,
        kind: Kind,
        message: &DynamicMessage,
        paths: &[String],
    ) -> Result<Item, Problem> {
        let word = kinds::word(kind);
        // What is asked for may be of a few fields only: the key is among them, the rest comes from what there is.
        let id = match kinds::item(kind, message) {
            Ok(item) => item.id,
            Err(_) if !paths.is_empty() => kinds::id_alone(kind, message)?,
            Err(problem) => return Err(problem),
        };
        let known = self.get(view, kind, &id)?.ok_or_else(|| kinds::unknown(kind, &id))?;
        let mut fields = known.message()?;
        bridge::set_fields(&mut fields, message, paths).map_err(|problem| problem.within(&word))?;
        let item = kinds::item_with_secrets(kind, &fields, &known)?;
        if item.id != known.id {
            let message =
                format!("the key of {:?} cannot change; create another one and delete this", known.id);
            return Err(Problem::invalid(&word, message));
        }
        if item.table != known.table {
            self.put(&item)?;
        }
        Ok(item)
    }

    fn delete(&mut self, view: &View, kind: Kind, id: &str) -> Result<(), Problem> {
        let Some(place) = place(kind) else {
            let (vni, vip) = kinds::location_of(id)?;
            self.locations.insert((vni.get(), vip), None);
            return Ok(());
        };
        if kind == Kind::SecurityGroup {
            let names = |location: &&LocationConfig| location.groups.iter().any(|group| group.as_str() == id);
            let is_set =
                |location: &&LocationConfig| self.locations.contains_key(&(location.vni.get(), location.vip));
            let stays = view.locations().filter(|location| !is_set(location));
            if let Some(user) = stays.chain(self.locations.values().flatten()).find(names) {
                let message = format!("location {} {} is in it; take it out first", user.vni, user.vip);
                return Err(Problem::new(Code::FailedPrecondition, "key", message));
            }
        }
        let of_vpc = |vnic: &&Arc<VnicConfig>| kind == Kind::Vpc && vnic.vpc.as_str() == id;
        let of_trunk = |vnic: &&Arc<VnicConfig>| {
            kind == Kind::Trunk && matches!(&vnic.port, VnicPort::Trunk(trunk) if trunk.as_str() == id)
        };
        if let Some(user) = self.config.vnics.iter().find(|vnic| of_vpc(vnic) || of_trunk(vnic)) {
            let message =
                format!("{} {id:?} is in use by vNIC {}; remove that first", kinds::word(kind), user.name);
            return Err(Problem::new(Code::FailedPrecondition, "key", message));
        }
        self.differs = true;
        place.remove(&mut self.config, id)
    }
}

/// Carries steps out, on the control thread: all of them, or none. The objects that are there then, but for those that went.
pub(super) fn carry_out(
    switch: &mut Switch,
    steps: Vec<Step>,
    expected: Option<u64>,
    missing: Missing,
) -> Result<Vec<Item>, Problems> {
    let view = View::of(switch);
    if let Some(expected) = expected.filter(|expected| *expected != view.revision) {
        let message = format!(
            "the switch is at revision {}, not {expected}: look at what changed, and ask again",
            view.revision
        );
        return Err(Problem::new(Code::Aborted, "expected_revision", message).into());
    }
    let config = (*view.config).clone();
    let mut plan = Plan { config, locations: BTreeMap::new(), differs: false };
    let (many, mut items) = (steps.len() > 1, Vec::new());
    for (at, step) in steps.into_iter().enumerate() {
        let path = if many { format!("operations[{at}]") } else { String::new() };
        items.extend(plan.step(&view, step).map_err(|problem| problem.within(&path))?);
    }
    go_over(switch, &view, plan, missing)?;
    Ok(items)
}

/// Has the switch be as planned.
fn go_over(switch: &mut Switch, view: &View, plan: Plan, missing: Missing) -> Result<(), SwitchError> {
    let Plan { config, locations, differs } = plan;
    let mut gone = Vec::new();
    let mut placed = Vec::new();
    for ((vni, vip), location) in locations {
        match (location, Vni::new(vni)) {
            (Some(location), _) => placed.push(location),
            (None, Ok(vni)) if view.location(vni, vip).is_some() => gone.push((vni, vip)),
            (None, _) => {}
        }
    }
    let same = !differs || config == *view.config;
    let mut result = match (same, placed.as_slice()) {
        (true, []) => Ok(()),
        (true, [one]) => switch.set_location(one),
        _ => switch.edit_and_place(placed, missing, |running| {
            *running = config;
            Ok(())
        }),
    };
    if result.as_ref().is_err_and(|error| !matches!(error, SwitchError::NotSaved(_))) {
        return result;
    }
    for (vni, vip) in gone {
        // Those of a VPC went with it.
        if switch.topology().location(vni, vip).is_some() {
            result = result.and(switch.remove_location(vni, vip));
        }
    }
    result
}
