//! What changes, as it changes: a client that does not read its stream holds up nobody but itself, and one that lags behind too far
//! is told to begin anew.

use std::collections::BTreeMap;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tonic::{Code, Status};
use vswitch_api::v1::{self, Kind, watch_response::Event};

use super::Control;
use super::kinds::{self, Item};
use super::objects::View;
use super::refusal::Problem;
use crate::switch::changes::Changed;

/// Messages of a stream that wait for its client.
const WAITING: usize = 64;

type Stream = mpsc::Sender<Result<v1::WatchResponse, Status>>;
/// States of objects with ports, by kind and id.
type States = BTreeMap<(i32, String), (v1::State, String)>;

/// The kinds that a client wants to watch.
pub(super) fn kinds(asked: &[i32]) -> Result<Vec<Kind>, Problem> {
    if asked.is_empty() {
        return Ok(kinds::KINDS.into_iter().filter(|kind| !kinds::is_inner(*kind)).collect());
    }
    let one = |kind: &i32| {
        let kind = kinds::kind_of(&v1::Key { kind: *kind, id: String::new() })?;
        if kinds::is_inner(kind) {
            let message =
                "routes change with their VPC, and rules with their security group: watch those".into();
            return Err(Problem::invalid("kinds", message));
        }
        Ok(kind)
    };
    asked.iter().map(one).collect()
}

/// What there is of these kinds, and then what changes.
pub(super) async fn objects(
    control: Control,
    kinds: Vec<Kind>,
) -> Result<mpsc::Receiver<Result<v1::WatchResponse, Status>>, Problem> {
    let place = control.watcher()?;
    // At one moment, so that nothing is missed between the two, and nothing told twice.
    let (view, changes, ports) = control
        .ask("watching objects", |shell| {
            let changes = shell.switch.changes();
            (View::of(&shell.switch), changes.watch(), changes.watch_ports())
        })
        .await?;
    let (stream, receiver) = mpsc::channel(WAITING);
    let watcher = Watcher { control, kinds, stream, states: States::new() };
    tokio::spawn(async move {
        let _place = place;
        let stream = watcher.stream.clone();
        if let Err(problem) = watcher.run(view, changes, ports).await {
            // Gone, or too slow to hear of it.
            let _ = stream.send(Err(problem.into())).await;
        }
    });
    Ok(receiver)
}

struct Watcher {
    control: Control,
    kinds: Vec<Kind>,
    stream: Stream,
    states: States,
}

impl Watcher {
    async fn run(
        mut self,
        view: View,
        mut changes: broadcast::Receiver<Changed>,
        mut ports: watch::Receiver<u64>,
    ) -> Result<(), Problem> {
        for kind in self.kinds.clone() {
            for id in view.ids(kind) {
                if let Some(item) = view.get(kind, &id)? {
                    self.set(&view, &item).await?;
                }
            }
        }
        self.send(Event::Complete(true), view.revision).await?;
        drop(view);
        loop {
            tokio::select! {
                changed = changes.recv() => match changed {
                    Ok(changed) => self.tell(&changed).await?,
                    Err(RecvError::Closed) => return Ok(()),
                    Err(RecvError::Lagged(missed)) => {
                        let message = format!("{missed} changes were not read in time; watch anew");
                        return Err(Problem::new(Code::DataLoss, "", message));
                    }
                },
                Ok(()) = ports.changed() => self.tell_states().await?,
                () = self.stream.closed() => return Ok(()),
            }
        }
    }

    /// What a change set and took away.
    async fn tell(&mut self, changed: &Changed) -> Result<(), Problem> {
        let view = self.view().await?.at(changed.revision);
        let kind_of = |section: &str| kinds::of_section(section).filter(|kind| self.kinds.contains(kind));
        let gone = changed.change.gone().filter_map(|(section, id)| Some((kind_of(section)?, id.to_owned())));
        for (kind, id) in gone.collect::<Vec<_>>() {
            self.states.remove(&(kind.into(), id.clone()));
            self.send(Event::Gone(v1::Key { kind: kind.into(), id }), changed.revision).await?;
        }
        let set = changed.change.set().filter_map(|(section, table)| Some((kind_of(section)?, table)));
        for (kind, table) in set.collect::<Vec<_>>() {
            let item = match kinds::place(kind) {
                Some(place) => {
                    let (id, table) = place.complete(table.clone())?;
                    Item { kind, id, table }
                }
                None => kinds::location_item(&kinds::read(table.clone())?)?,
            };
            self.set(&view, &item).await?;
        }
        Ok(())
    }

    /// Objects whose ports came or went.
    async fn tell_states(&mut self) -> Result<(), Problem> {
        let view = self.view().await?;
        for ((kind, id), told) in self.states.clone() {
            let kind = Kind::try_from(kind).unwrap_or_default();
            // What went meanwhile is told of as a change.
            let Some(item) = view.get(kind, &id)? else { continue };
            if view.state(&item).is_some_and(|state| state != told) {
                self.set(&view, &item).await?;
            }
        }
        Ok(())
    }

    async fn view(&self) -> Result<View, Problem> {
        self.control.ask("watching objects", |shell| View::of(&shell.switch)).await
    }

    async fn set(&mut self, view: &View, item: &Item) -> Result<(), Problem> {
        if let Some(state) = view.state(item) {
            self.states.insert((item.kind.into(), item.id.clone()), state);
        }
        self.send(Event::Set(view.entry(item)?), view.revision).await
    }

    async fn send(&self, event: Event, revision: u64) -> Result<(), Problem> {
        let response = v1::WatchResponse { event: Some(event), revision };
        let gone = |_| Problem::new(Code::Cancelled, "", "the client is gone".into());
        self.stream.send(Ok(response)).await.map_err(gone)
    }
}
