//! What changes, as it changes: a client that does not read its stream holds up nobody but itself, and one that lags behind too far,
//! or reads nothing for too long, is told to begin anew: objects and configs that have gone stay in memory for as long as it is behind.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{broadcast, mpsc, watch};
use tonic::{Code, Status};
use vswitch_api::v1::{self, Kind, watch_response::Event};

use super::current::{PortStates, View, entry};
use super::kinds::{self, Item};
use super::objects::PAGE;
use super::places::{place, read};
use super::refusal::Problem;
use super::{Control, Role};
use crate::controller::Controller;
use crate::state::ownership::Ownership;
use crate::switch::changes::Changed;

/// Messages of a stream that wait for its client.
const WAITING: usize = 64;
/// How long a client may read nothing while its stream is full.
const PATIENCE: Duration = Duration::from_secs(30);

type Stream = mpsc::Sender<Result<v1::WatchResponse, Status>>;
/// Of objects with ports, by kind and id: the name of the port, and the state that was told.
type Told = BTreeMap<(i32, String), (String, (v1::State, String))>;

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
    role: Role,
) -> Result<mpsc::Receiver<Result<v1::WatchResponse, Status>>, Problem> {
    let place = control.watcher(role)?;
    // At one moment, so that nothing is missed between the two, and nothing told twice.
    let (view, ports, changes, turns) = control
        .ask("watching objects", |controller| {
            let (switch, changes) = (&controller.switch, controller.switch.changes());
            (View::of(switch), PortStates::of(switch), changes.watch(), changes.watch_ports())
        })
        .await?;
    let (stream, receiver) = mpsc::channel(WAITING);
    let watcher = Watcher { control, kinds, stream, told: Told::new(), patience: PATIENCE };
    tokio::spawn(async move {
        let _place = place;
        let stream = watcher.stream.clone();
        if let Err(problem) = watcher.run(view, ports, changes, turns).await {
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
    told: Told,
    patience: Duration,
}

impl Watcher {
    async fn run(
        mut self,
        view: View,
        ports: PortStates,
        mut changes: broadcast::Receiver<Changed>,
        mut turns: watch::Receiver<u64>,
    ) -> Result<(), Problem> {
        for kind in self.kinds.clone() {
            for ids in view.ids(kind).chunks(PAGE) {
                for item in view.some(kind, ids)? {
                    self.set(&item, &view.owners, &ports, view.revision).await?;
                }
            }
        }
        self.send(Event::Complete(true), view.revision).await?;
        drop((view, ports));
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
                Ok(()) = turns.changed() => self.tell_states().await?,
                () = self.stream.closed() => return Ok(()),
            }
        }
    }

    /// What a change set, took away, and gave to others.
    async fn tell(&mut self, changed: &Changed) -> Result<(), Problem> {
        let kind_of = |section: &str| kinds::of_section(section).filter(|kind| self.kinds.contains(kind));
        let gone = changed.change.gone().filter_map(|(section, id)| Some((kind_of(section)?, id.to_owned())));
        let gone: Vec<_> = gone.collect();
        let set = changed.change.set().filter_map(|(section, _, table)| Some((kind_of(section)?, table)));
        let changed_hands = changed.changed_hands.iter();
        let changed_hands = changed_hands.filter_map(|(section, table)| Some((kind_of(section)?, table)));
        let set: Vec<_> = set.chain(changed_hands).collect();
        for (kind, id) in gone {
            self.told.remove(&(kind.into(), id.clone()));
            self.send(Event::Gone(v1::Key { kind: kind.into(), id }), changed.revision).await?;
        }
        let ports = match set.iter().any(|(kind, _)| kinds::has_port(*kind)) {
            true => self.ports().await?,
            false => PortStates::default(),
        };
        for (kind, table) in set {
            let item = match place(kind) {
                Some(place) => {
                    let (id, table) = place.complete(table.clone())?;
                    Item { kind, id, table }
                }
                None => kinds::location_item(&read(table.clone())?)?,
            };
            self.set(&item, &changed.ownership, &ports, changed.revision).await?;
        }
        Ok(())
    }

    /// Objects whose ports came or went.
    async fn tell_states(&mut self) -> Result<(), Problem> {
        let work =
            |controller: &mut Controller| (View::of(&controller.switch), PortStates::of(&controller.switch));
        let (view, ports) = self.control.ask("watching objects", work).await?;
        let differs = self.told.iter().filter(|(_, (port, told))| ports.state(port) != *told);
        for (kind, id) in differs.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let kind = Kind::try_from(kind).unwrap_or_default();
            // What went meanwhile is told of as a change.
            let Some(item) = view.get(kind, &id)? else { continue };
            self.set(&item, &view.owners, &ports, view.revision).await?;
        }
        Ok(())
    }

    async fn ports(&self) -> Result<PortStates, Problem> {
        self.control.ask("watching objects", |controller| PortStates::of(&controller.switch)).await
    }

    async fn set(
        &mut self,
        item: &Item,
        owners: &Ownership,
        ports: &PortStates,
        revision: u64,
    ) -> Result<(), Problem> {
        if let Some(port) = item.port() {
            self.told.insert((item.kind.into(), item.id.clone()), (port.to_owned(), ports.state(port)));
        }
        self.send(Event::Set(entry(item, owners, ports, revision)?), revision).await
    }

    async fn send(&self, event: Event, revision: u64) -> Result<(), Problem> {
        let response = v1::WatchResponse { event: Some(event), revision };
        self.stream.send_timeout(Ok(response), self.patience).await.map_err(|error| match error {
            SendTimeoutError::Closed(_) => Problem::new(Code::Cancelled, "", "the client is gone".into()),
            SendTimeoutError::Timeout(_) => {
                let message = format!("nothing was read for {:?}; watch anew", self.patience);
                Problem::new(Code::DataLoss, "", message)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::testing;

    const VPCS: &str = "[[vpc]]\nname = \"red\"\nvni = 100\n[[vpc]]\nname = \"blue\"\nvni = 200\n";

    #[tokio::test]
    async fn a_stream_that_nobody_reads_ends_and_keeps_nothing_in_memory() {
        let mut switch = testing::start(VPCS);
        let (jobs, _) = mpsc::channel(1);
        let (stream, mut messages) = mpsc::channel(1);
        let patience = Duration::from_millis(50);
        let kinds = vec![Kind::Vpc];
        let watcher = Watcher {
            control: Control::new(jobs),
            kinds,
            stream: stream.clone(),
            told: Told::new(),
            patience,
        };
        let changes = switch.changes();
        let (view, ports) = (View::of(&switch), PortStates::of(&switch));
        let ended = watcher.run(view, ports, changes.watch(), changes.watch_ports()).await;
        let problem = ended.unwrap_err();
        assert_eq!(problem.code, Code::DataLoss);
        assert_eq!(problem.message, "nothing was read for 50ms; watch anew");
        assert!(!switch.changes().is_watched());
        assert!(messages.try_recv().is_ok() && messages.try_recv().is_err(), "what waited is still there");
        switch.stop();
    }
}
