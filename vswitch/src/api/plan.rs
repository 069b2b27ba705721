//! Changes of objects: each step looks at what the steps before it leave, and all of them are carried out as one change of the switch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use prost_reflect::{DynamicMessage, ReflectMessage as _};
use toml::Value;
use tonic::Code;
use vswitch_api::v1::{self, Kind};
use wire::Vni;

use super::bridge;
use super::claims::{Claim, inside, inside_with_tables, of_file, whose};
use super::current::{View, owner};
use super::index::Index;
use super::kinds::{self, Item, location_id};
use super::places::{place, read};
use super::refusal::{Problem, Problems};
use crate::config::objects::ObjectId;
use crate::config::{Config, LocationConfig, Relocation, VnicConfig, VnicPort};
use crate::state::owners::Owner;
use crate::switch::{Missing, Switch, SwitchError};

/// A change of one object, as it was asked for.
#[derive(Clone)]
pub(super) struct Step {
    what: What,
    claim: Claim,
}

#[derive(Clone)]
enum What {
    Create(Item),
    Update(Kind, DynamicMessage, Vec<String>),
    Delete(Kind, String),
}

impl Step {
    pub fn create(request: v1::CreateRequest) -> Result<Self, Problem> {
        let (kind, message) = kinds::parts(&request.object.unwrap_or_default())?;
        let claim = Claim::of(request.owner, false)?;
        let word = kinds::word(kind);
        if kinds::is_section(kind) {
            let message = format!("there is one {word} only, which is there already; update it");
            return Err(Problem::new(Code::FailedPrecondition, "object", message));
        }
        Ok(Self { what: What::Create(kinds::item(kind, &message)?), claim })
    }

    /// An object as somebody who is no client has it, such as a cluster's store: made where it is not there, else brought to that. What
    /// an object has inside, and this one leaves out, is somebody else's.
    pub fn put(object: &v1::Object, owner: Owner, view: &View, index: &mut Index) -> Result<Self, Problem> {
        let (kind, message) = kinds::parts(object)?;
        let claim = Claim { owner, force: false };
        let item = kinds::item(kind, &message)?;
        if !kinds::is_section(kind) && !view.has(index, kind, &item.id)? {
            return Ok(Self { what: What::Create(item), claim });
        }
        let is_left_out = |field: &str| {
            let element = item.table.get(field).and_then(Value::as_array);
            matches!(field, "routes" | "rules") && element.is_none_or(Vec::is_empty)
        };
        let fields = message.descriptor().fields().map(|field| field.name().to_owned()).collect::<Vec<_>>();
        let paths = fields.into_iter().filter(|field| !is_left_out(field)).collect();
        Ok(Self { what: What::Update(kind, message, paths), claim })
    }

    /// As [`put`](Self::put), of one that goes.
    pub fn take_out(kind: Kind, id: &str, owner: Owner) -> Self {
        Self { what: What::Delete(kind, id.to_owned()), claim: Claim { owner, force: false } }
    }

    pub fn update(request: v1::UpdateRequest) -> Result<Self, Problem> {
        let (kind, message) = kinds::parts(&request.object.unwrap_or_default())?;
        let claim = Claim::of(request.owner, request.force)?;
        Ok(Self { what: What::Update(kind, message, request.update_mask.unwrap_or_default().paths), claim })
    }

    pub fn delete(request: v1::DeleteRequest) -> Result<Self, Problem> {
        let key = request.key.unwrap_or_default();
        let kind = kinds::kind_of(&key)?;
        if kinds::is_section(kind) {
            let word = kinds::word(kind);
            let message = format!("{word} is a section of the config and stays; update it");
            return Err(Problem::new(Code::FailedPrecondition, "key", message));
        }
        Ok(Self { what: What::Delete(kind, key.id), claim: Claim::of(request.owner, request.force)? })
    }
}

/// What some steps come to.
pub(super) struct Plan {
    pub config: Config,
    /// Where its objects are.
    index: Index,
    /// Those that steps set, and took away.
    locations: BTreeMap<(u32, IpAddr), Option<LocationConfig>>,
    /// Steps changed the config, though others may have changed it back.
    differs: bool,
    /// Whose objects are that steps made or took away.
    made: BTreeMap<ObjectId, Owner>,
}

impl Plan {
    /// What steps make of what there is, and the objects that are there then, but for those that went.
    pub fn of(view: &View, steps: Vec<Step>) -> Result<(Self, Vec<Item>), Problem> {
        let mut plan = Self {
            config: (*view.config).clone(),
            index: Index::default(),
            locations: BTreeMap::new(),
            differs: false,
            made: BTreeMap::new(),
        };
        let (many, mut items) = (steps.len() > 1, Vec::new());
        for (at, step) in steps.into_iter().enumerate() {
            let path = if many { format!("operations[{at}]") } else { String::new() };
            items.extend(plan.step(view, step).map_err(|problem| problem.within(&path))?);
        }
        Ok((plan, items))
    }

    /// Who made an object.
    fn owner(&self, view: &View, kind: Kind, id: &str) -> Owner {
        let made = self.made.get(&(kinds::section(kind), id.to_owned())).copied();
        match (made, owner(&view.owners, kind, id)) {
            // What the API makes in the place of something of the file is the file's.
            (None | Some(Owner::Api), Owner::File) => Owner::File,
            (made, owner) => made.unwrap_or(owner),
        }
    }

    fn is(&mut self, kind: Kind, id: &str, owner: Owner) {
        self.made.insert((kinds::section(kind), id.to_owned()), owner);
    }

    /// Refuses a change of an object that whoever asks did not make.
    fn refuse_others(&self, view: &View, kind: Kind, id: &str, claim: Claim) -> Result<(), Problem> {
        claim.check(self.owner(view, kind, id), kind, id, view.owners.file.as_deref())
    }

    fn get(&mut self, view: &View, kind: Kind, id: &str) -> Result<Option<Item>, Problem> {
        if place(kind).is_some() {
            let table = self.index.get(&self.config, kind, id)?;
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
            Some(_) => {
                self.index.set(&mut self.config, item.kind, &item.id, item.table.clone())?;
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
        let Step { what, claim } = step;
        Ok(match what {
            What::Create(item) => Some(self.create(view, item, claim)?),
            What::Update(kind, message, paths) => Some(self.update(view, kind, &message, &paths, claim)?),
            What::Delete(kind, id) => {
                let known = self.get(view, kind, &id)?.ok_or_else(|| kinds::unknown(kind, &id))?;
                self.refuse_others(view, kind, &id, claim)?;
                self.refuse_others_inside(view, &known, None, claim)?;
                self.refuse_locations_of_others(view, &known, claim)?;
                self.delete(view, kind, &id)?;
                self.is(kind, &id, Owner::Api);
                None
            }
        })
    }

    fn create(&mut self, view: &View, item: Item, claim: Claim) -> Result<Item, Problem> {
        let Some(known) = self.get(view, item.kind, &item.id)? else {
            let item = self.take_over(view, item, claim)?;
            self.put(&item)?;
            self.is(item.kind, &item.id, claim.owner);
            for (kind, id) in inside(&item) {
                self.is(kind, &id, claim.owner);
            }
            return Ok(item);
        };
        let owner = self.owner(view, item.kind, &item.id);
        let item = with_taken_over(item, &known);
        let is_said = item.is_said_by(&known);
        if is_said && owner == claim.owner {
            return Ok(known);
        }
        let word = kinds::word(item.kind);
        let whose = whose(owner, item.kind, &item.id, view.owners.file.as_deref());
        let message = match is_said {
            true => format!("there is the same {word} {:?} already, and {whose}; leave it to that", item.id),
            false => {
                let differs = kinds::difference(&known, &item)?;
                format!(
                    "there is a {word} {:?} already, and {whose}; it differs: {differs}; update it, or delete it first",
                    item.id
                )
            }
        };
        Err(Problem::new(Code::AlreadyExists, &word, message))
    }

    /// Refuses a change that would alter what others have in an object: routes of a VPC, rules of a group.
    fn refuse_others_inside(
        &self,
        view: &View,
        before: &Item,
        after: Option<&Item>,
        claim: Claim,
    ) -> Result<(), Problem> {
        let stay = after.into_iter().flat_map(inside_with_tables);
        let stay: HashMap<_, _> = stay.map(|(kind, id, table)| ((kind, id), table)).collect();
        let altered = inside_with_tables(before)
            .filter(|(kind, id, table)| stay.get(&(*kind, id.clone())) != Some(table));
        for (kind, id, _) in altered {
            self.refuse_others(view, kind, &id, claim)?;
        }
        Ok(())
    }

    /// Refuses to take a VPC away with locations that others made in it.
    fn refuse_locations_of_others(&self, view: &View, vpc: &Item, claim: Claim) -> Result<(), Problem> {
        let vni = vpc.table.get("vni").and_then(toml::Value::as_integer);
        let Some(vni) = vni.filter(|_| vpc.kind == Kind::Vpc) else { return Ok(()) };
        let inside = view.locations().filter(|location| i64::from(location.vni.get()) == vni);
        let stays = |location: &&LocationConfig| {
            !matches!(self.locations.get(&(location.vni.get(), location.vip)), Some(None))
        };
        inside
            .filter(stays)
            .try_for_each(|location| self.refuse_others(view, Kind::Location, &location_id(location), claim))
    }

    /// Refuses to give a VPC another VNI while there are locations in its network that nobody would say again: they would be nowhere.
    fn refuse_to_leave_locations(
        &self,
        view: &View,
        before: &Item,
        after: &Item,
        claim: Claim,
    ) -> Result<(), Problem> {
        let vni = |item: &Item| item.table.get("vni").and_then(Value::as_integer);
        let Some(from) = vni(before).filter(|from| before.kind == Kind::Vpc && vni(after) != Some(*from))
        else {
            return Ok(());
        };
        let stays = |location: &&LocationConfig| {
            let id = location_id(location);
            let is_told_again = matches!(self.owner(view, Kind::Location, &id), Owner::Etcd | Owner::Evpn);
            let goes = matches!(self.locations.get(&(location.vni.get(), location.vip)), Some(None));
            i64::from(location.vni.get()) == from && !is_told_again && !goes
        };
        match view.locations().find(stays).filter(|_| !claim.force) {
            None => Ok(()),
            Some(LocationConfig { vip, .. }) => {
                let message = format!(
                    "location {from} {vip} is in this VPC's network, and with another VNI it would be nowhere; remove it with `vlt del {from} {vip}` \
                     first, and set it anew in the other network"
                );
                Err(Problem::new(Code::FailedPrecondition, "vpc.vni", message))
            }
        }
    }

    /// A vNIC whose port is named like itself takes over the plain port of that name, device and peer included: a virtual machine that
    /// migrates here is behind it before its vNIC is.
    fn take_over(&mut self, view: &View, mut item: Item, claim: Claim) -> Result<Item, Problem> {
        let of_trunk = |port: &&str| {
            item.kind == Kind::Vnic && !self.config.trunks.iter().any(|trunk| trunk.name.as_str() == *port)
        };
        let Some(name) = item.table.get("port").and_then(Value::as_str).filter(of_trunk) else {
            return Ok(item);
        };
        let Some(plain) = self.index.get(&self.config, Kind::Port, name)? else {
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
        self.refuse_others(view, Kind::Port, name, claim)?;
        self.index.remove(&mut self.config, Kind::Port, name)?;
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
        claim: Claim,
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
        if item.table == known.table {
            return Ok(item);
        }
        match &view.owners.file {
            Some(file) if kinds::is_section(kind) && !claim.force => {
                let section = kinds::section(kind);
                if let Some(key) = file.first_named_difference(&section, &known.table, &item.table) {
                    return Err(of_file(&word, &format!("[{section}] {key}"), file.origin()));
                }
            }
            _ if kinds::is_section(kind) => {}
            _ => {
                self.refuse_others(view, kind, &id, claim)?;
                self.refuse_others_inside(view, &known, Some(&item), claim)?;
                self.refuse_to_leave_locations(view, &known, &item, claim)?;
                let old: BTreeSet<_> = inside(&known).collect();
                for (kind, id) in inside(&item).filter(|inner| !old.contains(inner)) {
                    self.is(kind, &id, claim.owner);
                }
            }
        }
        self.put(&item)?;
        Ok(item)
    }

    /// Nobody can be in a group that goes. Locations that other hosts brought are in the groups that this one has, and so they leave it;
    /// those that were made here are taken out by who made them.
    fn empty_group(&mut self, view: &View, group: &str) -> Result<(), Problem> {
        let names = |location: &&LocationConfig| location.groups.iter().any(|known| known.as_str() == group);
        let is_set =
            |location: &&LocationConfig| self.locations.contains_key(&(location.vni.get(), location.vip));
        let members: Vec<LocationConfig> = view
            .locations()
            .filter(|location| !is_set(location))
            .chain(self.locations.values().flatten())
            .filter(names)
            .cloned()
            .collect();
        for mut location in members {
            let id = location_id(&location);
            let owner = self.owner(view, Kind::Location, &id);
            if !matches!(owner, Owner::Etcd | Owner::Evpn) {
                let LocationConfig { vni, vip, .. } = location;
                let message = format!(
                    "location {vni} {vip}, which was made by {}, is in it; remove that with `vlt del {vni} {vip}`, or set it anew without the group",
                    owner.who()
                );
                return Err(Problem::new(Code::FailedPrecondition, "key", message));
            }
            location.groups.retain(|known| known.as_str() != group);
            self.is(Kind::Location, &id, owner);
            self.locations.insert((location.vni.get(), location.vip), Some(location));
        }
        Ok(())
    }

    fn delete(&mut self, view: &View, kind: Kind, id: &str) -> Result<(), Problem> {
        if place(kind).is_none() {
            let (vni, vip) = kinds::location_of(id)?;
            self.locations.insert((vni.get(), vip), None);
            return Ok(());
        }
        if kind == Kind::SecurityGroup {
            self.empty_group(view, id)?;
        }
        let of_vpc = |vnic: &&Arc<VnicConfig>| kind == Kind::Vpc && vnic.vpc.as_str() == id;
        let of_trunk = |vnic: &&Arc<VnicConfig>| {
            kind == Kind::Trunk && matches!(&vnic.port, VnicPort::Trunk(trunk) if trunk.as_str() == id)
        };
        let has_vnics = matches!(kind, Kind::Vpc | Kind::Trunk);
        let mut vnics = self.config.vnics.iter().filter(|_| has_vnics);
        if let Some(user) = vnics.find(|vnic| of_vpc(vnic) || of_trunk(vnic)) {
            let message =
                format!("{} {id:?} is in use by vNIC {}; remove that first", kinds::word(kind), user.name);
            return Err(Problem::new(Code::FailedPrecondition, "key", message));
        }
        self.differs = true;
        self.index.remove(&mut self.config, kind, id)
    }
}

/// A vNIC that is asked for again, with the port that the first request [took over](Plan::take_over) in place of that port's name.
fn with_taken_over(mut item: Item, known: &Item) -> Item {
    let names_itself =
        item.kind == Kind::Vnic && item.table.get("port").and_then(Value::as_str) == Some(item.id.as_str());
    if names_itself && known.table.get("port").is_some_and(Value::is_table) {
        for key in ["port", "queues"] {
            if let Some(value) = known.table.get(key) {
                item.table.insert(key.into(), value.clone());
            }
        }
    }
    item
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
    let takes_away = steps.iter().any(|step| matches!(step.what, What::Delete(..)));
    let (plan, items) = match Plan::of(&view, steps) {
        Ok(planned) => planned,
        Err(problems) => {
            if takes_away {
                // Somebody asks again for what went, and was told that it was not saved: it is not done while that lasts.
                switch.save_what_is_not()?;
            }
            return Err(problems.into());
        }
    };
    go_over(switch, &view, plan, missing)?;
    Ok(items)
}

/// Has the switch be as planned.
fn go_over(switch: &mut Switch, view: &View, plan: Plan, missing: Missing) -> Result<(), SwitchError> {
    let Plan { config, locations, differs, made, .. } = plan;
    let mut relocation = Relocation::NONE;
    for ((vni, vip), location) in locations {
        match (location, Vni::new(vni)) {
            (Some(location), _) => relocation.come.push(location),
            (None, Ok(vni)) if view.location(vni, vip).is_some() => relocation.gone.push((vni, vip)),
            (None, _) => {}
        }
    }
    // The same object may be somebody else's now.
    let at_run_time = &view.owners.at_run_time;
    let is_other = |((section, id), owner): (&ObjectId, &Owner)| {
        section != "location" && at_run_time.at_run_time(section, id) != *owner
    };
    let same = !differs || config == *view.config && !made.iter().any(is_other);
    match (same, relocation.come.as_slice(), relocation.gone.as_slice()) {
        (true, [], []) => switch.save_what_is_not(),
        (true, [one], []) => {
            let made = made.get(&("location".to_owned(), location_id(one))).copied();
            match made {
                Some(owner) => switch.set_location_of(one, owner),
                None => switch.set_location(one),
            }
        }
        (true, [], [(vni, vip)]) => switch.remove_location(*vni, *vip),
        _ => {
            switch.edit_and_place(relocation, missing, made.into_iter().collect(), |running: &mut Config| {
                *running = config;
                Ok(())
            })
        }
    }
}
