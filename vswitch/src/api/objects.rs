//! The service `Objects`: what the switch is configured with.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;
use pipelines::snapshot::Snapshot;
use prost_reflect::DynamicMessage;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use vswitch_api::v1::objects_server::Objects;
use vswitch_api::v1::{self, Kind, operation::Operation};
use wire::Vni;

use super::kinds::{self, Item};
use super::refusal::{Problem, problems, status};
use super::{Control, Role, bridge, watching};
use crate::config::{Config, LocationConfig, Source};
use crate::shell::Shell;
use crate::switch::{Missing, Switch};

/// Objects of a page.
const PAGE: usize = 1000;

pub(super) struct Service {
    control: Control,
}

/// What the switch has at a moment, to be looked at without control.
#[derive(Clone)]
pub(super) struct View {
    /// Without its locations.
    pub config: Arc<Config>,
    /// By index of the VPC, and address.
    locations: OrdMap<(u32, IpAddr), LocationConfig>,
    snapshot: Arc<Snapshot>,
    pub revision: u64,
    /// Why ports are not there, by name; `None` before the first attempt. Those that are there are not in it.
    pub absent: BTreeMap<String, Option<String>>,
    /// Ports that are there and have no link, or are not polled.
    pub down: BTreeMap<String, &'static str>,
    file: Option<Arc<Source>>,
}

impl View {
    pub fn of(switch: &Switch) -> Self {
        let absent = switch.ports().absent().map(|(name, port)| (name.to_owned(), port.reason.clone()));
        let down = switch.ports().iter().filter_map(|(_, port)| {
            let why = match () {
                () if !port.running => "it is stopped; start it with `port start`",
                () if !port.has_link() => "its link is down; look at its other end",
                () => return None,
            };
            Some((port.name.clone(), why))
        });
        Self {
            config: switch.shared_config(),
            locations: switch.topology().all_locations(),
            snapshot: switch.snapshot().clone(),
            revision: switch.changes().revision(),
            absent: absent.collect(),
            down: down.collect(),
            file: switch.config_file(),
        }
    }

    /// The same, said of a revision.
    #[must_use]
    pub fn at(self, revision: u64) -> Self {
        Self { revision, ..self }
    }

    fn location(&self, vni: Vni, vip: IpAddr) -> Option<&LocationConfig> {
        let vpc = self.snapshot.vnis.get(u128::from(vni.get()))?;
        self.locations.get(&(vpc, vip))
    }

    /// An object.
    pub fn get(&self, kind: Kind, id: &str) -> Result<Option<Item>, Problem> {
        let Some(place) = kinds::place(kind) else {
            let (vni, vip) = kinds::location_of(id)?;
            return self.location(vni, vip).map(kinds::location_item).transpose();
        };
        let table = place.get(&self.config, id)?;
        Ok(table.map(|table| Item { kind, id: id.to_owned(), table }))
    }

    /// The ids of all objects of a kind, in order.
    pub fn ids(&self, kind: Kind) -> Vec<String> {
        let mut ids = match kinds::place(kind) {
            Some(place) => place.ids(&self.config),
            None => self.locations.values().map(kinds::location_id).collect(),
        };
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn owner(&self, item: &Item) -> Result<v1::Owner, Problem> {
        let Some(file) = &self.file else { return Ok(v1::Owner::Api) };
        let is_files = match kinds::place(item.kind) {
            // The defaults of a section are the file's, too.
            Some(place) if kinds::is_section(item.kind) => {
                place.get(&file.config, "")?.as_ref() == Some(&item.table)
            }
            Some(place) => place.get(&file.config, &item.id)?.is_some(),
            None => {
                let (vni, vip) = kinds::location_of(&item.id)?;
                file.config.locations.iter().any(|location| location.vni == vni && location.vip == vip)
            }
        };
        Ok(if is_files { v1::Owner::File } else { v1::Owner::Api })
    }

    /// The port of an object with one, and what is the matter with it.
    pub fn state(&self, item: &Item) -> Option<(v1::State, String)> {
        let has_port = matches!(item.kind, Kind::Uplink | Kind::Trunk | Kind::Vnic | Kind::Port);
        let trunk = item.table.get("port").and_then(toml::Value::as_str);
        let name = trunk.unwrap_or(item.id.as_str());
        has_port.then(|| match (self.absent.get(name), self.down.get(name)) {
            (Some(None), _) => (v1::State::Pending, "its device is being opened".into()),
            (Some(Some(reason)), _) => (v1::State::Down, reason.clone()),
            (None, Some(why)) => (v1::State::Down, (*why).to_owned()),
            (None, None) => (v1::State::Up, String::new()),
        })
    }

    pub fn entry(&self, item: &Item) -> Result<v1::Entry, Problem> {
        let (state, reason) = self.state(item).unzip();
        let status = v1::Status {
            owner: self.owner(item)?.into(),
            state: state.map(i32::from),
            reason: reason.unwrap_or_default(),
        };
        let (key, object) = (Some(item.key()), Some(item.object()?));
        Ok(v1::Entry { key, object, status: Some(status), revision: self.revision })
    }
}

/// A change of one object, as it was asked for.
enum Step {
    Create(Item),
    Update(Kind, DynamicMessage, Vec<String>),
    Delete(Kind, String),
}

impl Step {
    fn create(request: v1::CreateRequest) -> Result<Self, Problem> {
        let (kind, message) = kinds::parts(&request.object.unwrap_or_default())?;
        let word = kinds::word(kind);
        if kinds::is_section(kind) {
            let message = format!("there is one {word} only, which is there already; update it");
            return Err(Problem::new(Code::FailedPrecondition, "object", message));
        }
        kinds::item(kind, &message).map(Self::Create)
    }

    fn update(request: v1::UpdateRequest) -> Result<Self, Problem> {
        let (kind, message) = kinds::parts(&request.object.unwrap_or_default())?;
        Ok(Self::Update(kind, message, request.update_mask.unwrap_or_default().paths))
    }

    fn delete(request: v1::DeleteRequest) -> Result<Self, Problem> {
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
    locations: BTreeMap<(u32, IpAddr), Option<LocationConfig>>,
    /// The objects that steps made or changed; those that went are not in it.
    items: Vec<Option<Item>>,
    differs: bool,
}

impl Plan {
    fn get(&self, view: &View, kind: Kind, id: &str) -> Result<Option<Item>, Problem> {
        if let Some(place) = kinds::place(kind) {
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
        match kinds::place(item.kind) {
            Some(place) => place.set(&mut self.config, item.table.clone())?,
            None => {
                let location: LocationConfig = kinds::read(item.table.clone())?;
                self.locations.insert((location.vni.get(), location.vip), Some(location));
            }
        }
        self.differs = true;
        Ok(())
    }

    fn step(&mut self, view: &View, step: Step) -> Result<(), Problem> {
        let item = match step {
            Step::Create(item) => {
                match self.get(view, item.kind, &item.id)? {
                    Some(known) if item.is_said_by(&known) => {}
                    Some(known) => {
                        let (word, differs) = (kinds::word(item.kind), kinds::difference(&known, &item)?);
                        let message = format!(
                            "there is a {word} {:?} already, and it differs: {differs}; update it, or delete it first",
                            item.id
                        );
                        return Err(Problem::new(Code::AlreadyExists, &word, message));
                    }
                    None => self.put(&item)?,
                }
                Some(item)
            }
            Step::Update(kind, message, paths) => Some(self.update(view, kind, &message, &paths)?),
            Step::Delete(kind, id) => {
                self.get(view, kind, &id)?.ok_or_else(|| kinds::unknown(kind, &id))?;
                self.delete(view, kind, &id)?;
                None
            }
        };
        self.items.push(item);
        Ok(())
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
        let mut item = kinds::item_with_secrets(kind, &fields, &known)?;
        if item.id != known.id {
            let message =
                format!("the key of {:?} cannot change; create another one and delete this", known.id);
            return Err(Problem::invalid(&word, message));
        }
        if item.table == known.table {
            item.table = known.table;
        } else {
            self.put(&item)?;
        }
        Ok(item)
    }

    fn delete(&mut self, view: &View, kind: Kind, id: &str) -> Result<(), Problem> {
        self.differs = true;
        let Some(place) = kinds::place(kind) else {
            let (vni, vip) = kinds::location_of(id)?;
            self.locations.insert((vni.get(), vip), None);
            return Ok(());
        };
        if kind == Kind::SecurityGroup {
            let names = |location: &&LocationConfig| location.groups.iter().any(|group| group.as_str() == id);
            let is_set =
                |location: &&LocationConfig| self.locations.contains_key(&(location.vni.get(), location.vip));
            let stays = view.locations.values().filter(|location| !is_set(location));
            if let Some(user) = stays.chain(self.locations.values().flatten()).find(names) {
                let message = format!("location {} {} is in it; take it out first", user.vni, user.vip);
                return Err(Problem::new(Code::FailedPrecondition, "key", message));
            }
        }
        place.remove(&mut self.config, id)
    }
}

/// Carries steps out, on the control thread: all of them, or none.
fn carry_out(
    shell: &mut Shell,
    steps: Vec<Step>,
    expected: Option<u64>,
) -> Result<(Plan, View), Vec<Problem>> {
    let switch = &mut shell.switch;
    let view = View::of(switch);
    if let Some(expected) = expected.filter(|expected| *expected != view.revision) {
        let message = format!(
            "the switch is at revision {}, not {expected}: look at what changed, and ask again",
            view.revision
        );
        return Err(vec![Problem::new(Code::Aborted, "expected_revision", message)]);
    }
    let config = (*view.config).clone();
    let mut plan = Plan { config, locations: BTreeMap::new(), items: Vec::new(), differs: false };
    let many = steps.len() > 1;
    for (at, step) in steps.into_iter().enumerate() {
        let path = if many { format!("operations[{at}]") } else { String::new() };
        plan.step(&view, step).map_err(|problem| vec![problem.within(&path)])?;
    }
    if !plan.differs {
        return Ok((plan, view));
    }
    let placed: Vec<LocationConfig> = plan.locations.values().flatten().cloned().collect();
    let gone: Vec<(Vni, IpAddr)> = plan
        .locations
        .iter()
        .filter(|(_, location)| location.is_none())
        .filter_map(|(&(vni, vip), _)| Some((Vni::new(vni).ok()?, vip)))
        .filter(|(vni, vip)| view.location(*vni, *vip).is_some())
        .collect();
    let same = plan.config == *view.config;
    let result = match (same, placed.as_slice()) {
        (true, []) => Ok(()),
        (true, [one]) => switch.set_location(one),
        _ => {
            let config = plan.config.clone();
            switch.edit_and_place(placed, Missing::Later, |running| {
                *running = config;
                Ok(())
            })
        }
    };
    let result = gone.into_iter().fold(result, |result, (vni, vip)| {
        // Those of a VPC went with it.
        let is_there = switch.topology().location(vni, vip).is_some();
        result.and_then(|()| if is_there { switch.remove_location(vni, vip) } else { Ok(()) })
    });
    result.map_err(problems)?;
    Ok((plan, View::of(switch)))
}

/// What is asked for, of a client that may change the switch.
fn change_of<T>(request: Request<T>) -> Result<T, Status> {
    match request.extensions().get::<Role>() {
        Some(Role::Owner) => Ok(request.into_inner()),
        _ => {
            let message = "clients of this socket look at the switch and change nothing; its owner's socket takes changes";
            Err(Problem::new(Code::PermissionDenied, "", message.into()).into())
        }
    }
}

impl Service {
    pub fn new(control: Control) -> Self {
        Self { control }
    }

    async fn view(&self) -> Result<View, Problem> {
        self.control.ask("reading the config", |shell| View::of(&shell.switch)).await
    }

    async fn change(&self, steps: Vec<Step>, expected: Option<u64>) -> Result<(Plan, View), Status> {
        let done =
            self.control.ask("a change by the API", move |shell| carry_out(shell, steps, expected)).await?;
        done.map_err(|problems| status(&problems))
    }

    /// Carries out one step that leaves an object there.
    async fn one(&self, step: Step) -> Result<Response<v1::Entry>, Status> {
        let (plan, view) = self.change(vec![step], None).await?;
        let item = plan.items.into_iter().flatten().next();
        let item = item.ok_or_else(|| Problem::internal("a change without an object".into()))?;
        Ok(Response::new(view.entry(&item)?))
    }
}

#[tonic::async_trait]
impl Objects for Service {
    type WatchStream = ReceiverStream<Result<v1::WatchResponse, Status>>;

    async fn create(&self, request: Request<v1::CreateRequest>) -> Result<Response<v1::Entry>, Status> {
        self.one(Step::create(change_of(request)?)?).await
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::Entry>, Status> {
        let key = request.into_inner().key.unwrap_or_default();
        let kind = kinds::kind_of(&key)?;
        let view = self.view().await?;
        let item = view.get(kind, &key.id)?.ok_or_else(|| kinds::unknown(kind, &key.id))?;
        Ok(Response::new(view.entry(&item)?))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let request = request.into_inner();
        let kind = kinds::kind_of(&v1::Key { kind: request.kind, id: String::new() })?;
        let size = match request.page_size as usize {
            0 => PAGE,
            size => size.min(PAGE),
        };
        let view = self.view().await?;
        let mut ids = view.ids(kind);
        let from = ids.partition_point(|id| !request.page_token.is_empty() && *id <= request.page_token);
        let more = ids.len() > from + size;
        let ids: Vec<String> = ids.drain(from..).take(size).collect();
        let next_page_token = ids.last().filter(|_| more).cloned().unwrap_or_default();
        let items = ids.iter().filter_map(|id| view.get(kind, id).transpose());
        let entries = items.map(|item| view.entry(&item?)).collect::<Result<_, Problem>>()?;
        Ok(Response::new(v1::ListResponse { entries, next_page_token, revision: view.revision }))
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Result<Response<v1::Entry>, Status> {
        self.one(Step::update(change_of(request)?)?).await
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let (_, view) = self.change(vec![Step::delete(change_of(request)?)?], None).await?;
        Ok(Response::new(v1::DeleteResponse { revision: view.revision }))
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<v1::ApplyResponse>, Status> {
        let v1::ApplyRequest { operations, expected_revision } = change_of(request)?;
        let step = |(at, operation): (usize, v1::Operation)| {
            let step = match operation.operation {
                Some(Operation::Create(create)) => Step::create(create),
                Some(Operation::Update(update)) => Step::update(update),
                Some(Operation::Delete(delete)) => Step::delete(delete),
                None => {
                    Err(Problem::invalid("", "there is no operation; set create, update or delete".into()))
                }
            };
            step.map_err(|problem| problem.within(&format!("operations[{at}]")))
        };
        let steps = operations.into_iter().enumerate().map(step).collect::<Result<Vec<_>, _>>()?;
        let (_, view) = self.change(steps, expected_revision).await?;
        Ok(Response::new(v1::ApplyResponse { revision: view.revision }))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let kinds = watching::kinds(&request.into_inner().kinds)?;
        let stream = watching::objects(self.control.clone(), kinds).await?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
