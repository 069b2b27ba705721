//! The service `Observe`: what the switch does.

use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use prost_types::value::Kind;
use prost_types::{ListValue, Struct};
use serde_json::Value as Json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use vswitch_api::v1;
use vswitch_api::v1::observe_server::Observe;

use super::Control;
use super::connection::Caller;
use super::refusal::Problem;
use crate::controller::Controller;
use crate::switch::events::Happening;
use crate::view;

/// Events of a stream that wait for its client.
const WAITING: usize = 64;

pub(super) struct Service {
    control: Control,
}

impl Service {
    pub fn new(control: Control) -> Self {
        Self { control }
    }
}

fn info(controller: &mut Controller) -> v1::Info {
    let switch = &controller.switch;
    v1::Info {
        version: env!("CARGO_PKG_VERSION").into(),
        revision: switch.changes().revision(),
        forwarding: switch.is_forwarding(),
        workers: switch.pool().workers.len() as u32,
        uptime_ms: Instant::now().saturating_duration_since(switch.started()).as_millis() as u64,
        dpdk: pmd::Eal::dpdk_version(),
        memory: if switch.eal().uses_hugepages() { "huge pages" } else { "ordinary pages" }.into(),
    }
}

fn port_counters(controller: &mut Controller, names: &[String]) -> Result<Vec<v1::PortCounters>, Problem> {
    let switch = &controller.switch;
    let of = |index, name: &str| {
        let counters = view::port(switch, index);
        v1::PortCounters {
            name: name.to_owned(),
            rx_packets: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            tx_packets: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
        }
    };
    if names.is_empty() {
        return Ok(switch.ports().iter().map(|(index, port)| of(index, &port.name)).collect());
    }
    let one = |name: &String| {
        let index = switch.ports().index(name).ok_or_else(|| {
            let message = format!("port {name:?} is not attached; the state of its object says why");
            Problem::new(tonic::Code::NotFound, "names", message)
        })?;
        Ok(of(index, name))
    };
    names.iter().map(one).collect()
}

/// Packets that were dropped, by reason.
pub(super) fn by_reason(totals: &view::Totals) -> HashMap<String, u64> {
    let dropped = totals.drops.iter().filter(|(_, count)| **count > 0);
    dropped.map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
}

fn drops(controller: &mut Controller) -> v1::Drops {
    v1::Drops { by_reason: by_reason(&view::totals(&controller.switch)) }
}

fn names(controller: &mut Controller, of: &str) -> Vec<String> {
    let switch = &controller.switch;
    let snapshot = switch.snapshot();
    let (vpcs, groups) = (snapshot.vpcs.iter().flatten(), &switch.bare_config().security_groups);
    match of {
        "port" => switch.ports().iter().map(|(_, port)| port.name.clone()).collect(),
        "vnic" => snapshot.vnics.iter().flatten().map(|vnic| vnic.name.clone()).collect(),
        "vpc" => vpcs.map(|vpc| vpc.name.clone()).collect(),
        "vni" => vpcs.map(|vpc| vpc.vni.to_string()).collect(),
        "group" => groups.iter().map(|group| group.name.to_string()).collect(),
        "device" => pmd::rdma::names(),
        _ => Vec::new(),
    }
}

fn event(happening: &Happening) -> v1::Event {
    let since = happening.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    v1::Event {
        number: happening.number,
        time_ms: since.as_millis() as u64,
        kind: happening.kind.to_owned(),
        message: happening.text.clone(),
        facts: Some(facts(&happening.facts)),
    }
}

/// JSON as protobuf has it.
fn facts(facts: &serde_json::Map<String, Json>) -> Struct {
    Struct { fields: facts.iter().map(|(name, value)| (name.clone(), fact(value))).collect() }
}

fn fact(value: &Json) -> prost_types::Value {
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(truth) => Kind::BoolValue(*truth),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.iter().map(fact).collect() }),
        Json::Object(inner) => Kind::StructValue(facts(inner)),
    };
    prost_types::Value { kind: Some(kind) }
}

fn events(controller: &mut Controller, count: usize) -> v1::ListEventsResponse {
    let log = controller.switch.events();
    let skipped = log.iter().len().saturating_sub(count);
    v1::ListEventsResponse { events: log.iter().skip(skipped).map(event).collect(), count: log.count() }
}

/// Sends the events after `after`, and then what happens, until the client goes. One that has heard of more than there were so far heard
/// of them from a switch before this one: it is told all that is kept.
async fn tell_events(
    control: Control,
    mut after: u64,
    stream: mpsc::Sender<Result<v1::Event, Status>>,
) -> Result<(), Problem> {
    let mut newest = control.ask("watching events", |controller| controller.switch.events().watch()).await?;
    if after > *newest.borrow() {
        after = 0;
    }
    newest.mark_changed();
    loop {
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { return Ok(()) },
            () = stream.closed() => return Ok(()),
        }
        let later = move |controller: &mut Controller| -> Vec<v1::Event> {
            controller.switch.events().iter().filter(|event| event.number > after).map(event).collect()
        };
        for event in control.ask("watching events", later).await? {
            after = event.number;
            if stream.send(Ok(event)).await.is_err() {
                return Ok(());
            }
        }
    }
}

#[tonic::async_trait]
impl Observe for Service {
    type WatchEventsStream = ReceiverStream<Result<v1::Event, Status>>;

    async fn get_info(&self, _: Request<v1::GetInfoRequest>) -> Result<Response<v1::Info>, Status> {
        Ok(Response::new(self.control.ask("reading what the switch is", info).await?))
    }

    async fn list_port_counters(
        &self,
        request: Request<v1::ListPortCountersRequest>,
    ) -> Result<Response<v1::ListPortCountersResponse>, Status> {
        let names = request.into_inner().names;
        let ports = self
            .control
            .ask("reading counters", move |controller| port_counters(controller, &names))
            .await??;
        Ok(Response::new(v1::ListPortCountersResponse { ports }))
    }

    async fn get_drops(&self, _: Request<v1::GetDropsRequest>) -> Result<Response<v1::Drops>, Status> {
        Ok(Response::new(self.control.ask("reading drops", drops).await?))
    }

    async fn list_events(
        &self,
        request: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsResponse>, Status> {
        let count = request.into_inner().count as usize;
        Ok(Response::new(
            self.control.ask("reading events", move |controller| events(controller, count)).await?,
        ))
    }

    async fn list_names(
        &self,
        request: Request<v1::ListNamesRequest>,
    ) -> Result<Response<v1::ListNamesResponse>, Status> {
        let of = request.into_inner().of;
        let names = self.control.ask("listing names", move |controller| names(controller, &of)).await?;
        Ok(Response::new(v1::ListNamesResponse { names }))
    }

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let (stream, receiver) = mpsc::channel(WAITING);
        let place = self.control.watcher(Caller::role_of(&request))?;
        let (control, after) = (self.control.clone(), request.into_inner().after);
        tokio::spawn(async move {
            let _place = place;
            if let Err(problem) = tell_events(control, after, stream.clone()).await {
                let _ = stream.send(Err(problem.into())).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::switch::testing;

    #[tokio::test]
    async fn whoever_watches_on_after_a_restart_is_told_all_that_is_kept() {
        let mut controller = Controller::new(testing::start(""), None);
        for number in 0..3 {
            controller.switch.note("fault", format!("fault {number}"), json!({}));
        }
        let count = controller.switch.events().count();
        for (after, told) in [(0, count), (count - 1, 1), (count + 500, count)] {
            let (jobs, mut asked) = mpsc::channel(1);
            let (stream, mut events) = mpsc::channel(WAITING);
            let watching = tell_events(Control::new(jobs), after, stream);
            let serving = async {
                for _ in 0..2 {
                    asked.recv().await.unwrap()(&mut controller);
                }
                let mut numbers = Vec::new();
                for _ in 0..told {
                    numbers.push(events.recv().await.unwrap().unwrap().number);
                }
                assert!(events.try_recv().is_err());
                numbers
            };
            let numbers = tokio::select! {
                numbers = serving => numbers,
                ended = watching => panic!("{ended:?}"),
            };
            assert_eq!(numbers, (count - told + 1..=count).collect::<Vec<_>>(), "after {after}");
        }
        controller.switch.stop();
    }
}
