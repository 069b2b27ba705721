//! The service `Objects`: what the switch is configured with.

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use vswitch_api::v1::objects_server::Objects;
use vswitch_api::v1::{self, Kind, operation::Operation};

use super::connection::Caller;
use super::current::{PortStates, View, entry};
use super::plan::{self, Step};
use super::refusal::{Problem, Problems};
use super::service::change_of;
use super::{Control, kinds, watching};
use crate::controller::Controller;
use crate::switch::{Missing, Switch};

/// Objects of a page.
pub(super) const PAGE: usize = 1000;
/// Operations of a batch: control plans it as a whole, and does nothing else meanwhile.
pub(super) const OPERATIONS: usize = 4096;

pub(super) struct Service {
    control: Control,
}

impl Service {
    pub fn new(control: Control) -> Self {
        Self { control }
    }

    /// What there is, with the states of ports where objects of this kind have some.
    async fn current(&self, kind: Kind) -> Result<(View, PortStates), Problem> {
        let work = move |controller: &mut Controller| {
            (View::of(&controller.switch), states_of(&controller.switch, kind))
        };
        self.control.ask("reading the config", work).await
    }

    /// Carries out one step that leaves an object there.
    async fn one(&self, step: Step, missing: Missing) -> Result<Response<v1::Entry>, Status> {
        let work = move |controller: &mut Controller| {
            let items = plan::carry_out(&mut controller.switch, vec![step.clone()], None, missing)?;
            let kind = items.first().map_or(Kind::Unspecified, |item| item.kind);
            Ok((items, View::of(&controller.switch), states_of(&controller.switch, kind)))
        };
        let done = self.change(work, missing).await?;
        let (items, view, ports) = done.map_err(|problems: Problems| Status::from(problems))?;
        let item = items.first().ok_or_else(|| Problem::internal("a change without an object".into()))?;
        Ok(Response::new(entry(item, &view.owners, &ports, view.revision)?))
    }

    /// Carries out steps, and says the revision after them.
    async fn all(&self, steps: Vec<Step>, expected: Option<u64>, missing: Missing) -> Result<u64, Status> {
        let work = move |controller: &mut Controller| {
            plan::carry_out(&mut controller.switch, steps.clone(), expected, missing)?;
            Ok(controller.switch.changes().revision())
        };
        let done = self.change(work, missing).await?;
        done.map_err(|problems: Problems| problems.into())
    }

    async fn change<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Controller) -> T + Clone + Send + 'static,
        missing: Missing,
    ) -> Result<T, Problem> {
        match missing {
            Missing::Later => self.control.ask("a change by the API", work).await,
            _ => self.control.ask_and_wait("a change by the API", work).await,
        }
    }
}

/// The steps of a batch.
pub(super) fn steps(operations: Vec<v1::Operation>) -> Result<Vec<Step>, Problem> {
    let count = operations.len();
    if count > OPERATIONS {
        let message = format!(
            "there are {count} operations, and a batch has {OPERATIONS} at the most; split it, and send one part after the other"
        );
        return Err(Problem::new(Code::ResourceExhausted, "operations", message));
    }
    let step = |(at, operation): (usize, v1::Operation)| {
        let step = match operation.operation {
            Some(Operation::Create(create)) => Step::create(create),
            Some(Operation::Update(update)) => Step::update(update),
            Some(Operation::Delete(delete)) => Step::delete(delete),
            None => Err(Problem::invalid("", "there is no operation; set create, update or delete".into())),
        };
        step.map_err(|problem| problem.within(&format!("operations[{at}]")))
    };
    operations.into_iter().enumerate().map(step).collect()
}

/// What becomes of ports that cannot be opened at once.
fn patience(wait: bool) -> Missing {
    if wait { Missing::Refused } else { Missing::Later }
}

fn states_of(switch: &Switch, kind: Kind) -> PortStates {
    if kinds::has_port(kind) { PortStates::of(switch) } else { PortStates::default() }
}

#[tonic::async_trait]
impl Objects for Service {
    type WatchStream = ReceiverStream<Result<v1::WatchResponse, Status>>;

    async fn create(&self, request: Request<v1::CreateRequest>) -> Result<Response<v1::Entry>, Status> {
        let request = change_of(request)?;
        let missing = patience(request.wait);
        self.one(Step::create(request)?, missing).await
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::Entry>, Status> {
        let key = request.into_inner().key.unwrap_or_default();
        let kind = kinds::kind_of(&key)?;
        let (view, ports) = self.current(kind).await?;
        let item = view.get(kind, &key.id)?.ok_or_else(|| kinds::unknown(kind, &key.id))?;
        Ok(Response::new(entry(&item, &view.owners, &ports, view.revision)?))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let request = request.into_inner();
        let kind = kinds::kind_of(&v1::Key { kind: request.kind, id: String::new() })?;
        let size = match request.page_size as usize {
            0 => PAGE,
            size => size.min(PAGE),
        };
        let (view, ports) = self.current(kind).await?;
        let mut ids = view.ids(kind);
        let from = ids.partition_point(|id| !request.page_token.is_empty() && *id <= request.page_token);
        let more = ids.len() > from + size;
        let ids: Vec<String> = ids.drain(from..).take(size).collect();
        let next_page_token = ids.last().filter(|_| more).cloned().unwrap_or_default();
        let items = view.some(kind, &ids)?;
        let entries = items.iter().map(|item| entry(item, &view.owners, &ports, view.revision));
        let entries = entries.collect::<Result<_, Problem>>()?;
        Ok(Response::new(v1::ListResponse { entries, next_page_token, revision: view.revision }))
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Result<Response<v1::Entry>, Status> {
        let request = change_of(request)?;
        let missing = patience(request.wait);
        self.one(Step::update(request)?, missing).await
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let request = change_of(request)?;
        let missing = patience(request.wait);
        let revision = self.all(vec![Step::delete(request)?], None, missing).await?;
        Ok(Response::new(v1::DeleteResponse { revision }))
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<v1::ApplyResponse>, Status> {
        let v1::ApplyRequest { operations, expected_revision, wait } = change_of(request)?;
        let steps = steps(operations)?;
        let revision = self.all(steps, expected_revision, patience(wait)).await?;
        Ok(Response::new(v1::ApplyResponse { revision }))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let role = Caller::role_of(&request);
        let kinds = watching::kinds(&request.into_inner().kinds)?;
        let stream = watching::objects(self.control.clone(), kinds, role).await?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[cfg(test)]
mod tests {
    use vswitch_api::v1::object::Spec;
    use vswitch_api::v1::port_spec;

    use super::super::owned::{assert_refused, controller};
    use super::*;
    use crate::state;

    #[test]
    fn a_change_that_could_not_be_saved_is_saved_when_it_is_asked_for_again() {
        let folder = std::env::temp_dir().join(format!("vswitch-asked-{}", std::process::id()));
        let file = folder.join("state");
        let mut controller = controller();
        controller.switch.set_state_file(Some(&file), None);
        let mut ask = || {
            let green = v1::Vpc { name: "green".into(), vni: Some(300), ..Default::default() };
            let object = Some(v1::Object { spec: Some(Spec::Vpc(green)) });
            let step = Step::create(v1::CreateRequest { object, ..Default::default() }).unwrap();
            plan::carry_out(&mut controller.switch, vec![step], None, Missing::Refused)
        };
        for _ in 0..2 {
            assert_refused(ask(), Code::DataLoss, "not saved");
        }
        std::fs::create_dir(&folder).unwrap();
        ask().unwrap();
        let (config, _) = state::restore(crate::config::Config::default(), None, &file).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(config.vpcs.iter().any(|vpc| vpc.name.as_str() == "green"));
        controller.switch.stop();
    }

    /// What a config may be, and this switch cannot do: other tests have what a config cannot be.
    #[test]
    fn what_the_switch_refuses_is_told_with_its_field() {
        let port = |kind, rx_queues| {
            let port = Some(v1::PortSpec { kind: Some(kind) });
            Spec::Port(v1::Port { name: "web-1.a".into(), port, rx_queues, ..Default::default() })
        };
        let raw = port_spec::Raw { vdev: "net_null7".into(), ..Default::default() };
        let nic = port_spec::Pci { address: "0000:01:00.0".into(), ..Default::default() };
        let guest = port_spec::VhostUser { path: "/nonexistent/v.sock".into(), ..Default::default() };
        let far = v1::Location {
            vni: Some(100),
            vip: "10.0.0.9".into(),
            mac: "02:00:00:00:00:09".into(),
            vtep: "192.0.2.1".into(),
            ..Default::default()
        };
        let here = v1::Location { vip: "10.0.0.1".into(), vtep: "172.16.0.2".into(), ..far.clone() };
        let mut controller = controller();
        for (spec, code, field) in [
            (port(port_spec::Kind::Raw(raw), Some(64)), Code::ResourceExhausted, "port[name=web-1.a].port"),
            (port(port_spec::Kind::Pci(nic), None), Code::FailedPrecondition, "port[name=web-1.a].port"),
            (
                port(port_spec::Kind::VhostUser(guest), None),
                Code::FailedPrecondition,
                "port[name=web-1.a].port.path",
            ),
            (Spec::Location(far), Code::FailedPrecondition, "location[vni=100,vip=10.0.0.9].vtep"),
            (Spec::Location(here), Code::FailedPrecondition, "location[vni=100,vip=10.0.0.1].vip"),
        ] {
            let object = Some(v1::Object { spec: Some(spec) });
            let step = Step::create(v1::CreateRequest { object, ..Default::default() }).unwrap();
            let refused = plan::carry_out(&mut controller.switch, vec![step], None, Missing::Refused);
            let Problems(problems) = refused.unwrap_err();
            let [problem] = &problems[..] else { panic!("{problems:?}") };
            assert_eq!((problem.code, problem.field.as_str()), (code, field), "{problem:?}");
        }
        let nft = v1::Nft { entries: Some(32_768), ..Default::default() };
        let object = Some(v1::Object { spec: Some(Spec::Nft(nft)) });
        let update_mask = Some(prost_types::FieldMask { paths: vec!["entries".into()] });
        let step = Step::update(v1::UpdateRequest { object, update_mask, ..Default::default() }).unwrap();
        let refused = plan::carry_out(&mut controller.switch, vec![step], None, Missing::Refused);
        let Problems(problems) = refused.unwrap_err();
        assert_eq!((problems[0].code, problems[0].field.as_str()), (Code::FailedPrecondition, "nft.entries"));
        controller.switch.stop();
    }
}
