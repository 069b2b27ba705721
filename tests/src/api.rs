//! A client of the switch's gRPC interface, as a program has it, with calls that wait for their answers.

use crate::{Netns, wait_for};
use std::path::Path;
use std::time::Duration;

use prost_types::FieldMask;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::objects_client::ObjectsClient;
use vswitch_api::v1::observe_client::ObserveClient;
use vswitch_api::v1::operation::Operation;
use vswitch_api::v1::port_spec;
use vswitch_api::v1::*;

/// An uplink and a VPC of a switch that programs drive.
pub const NETWORKS: &str = "
[[uplink]]
name = \"up\"
port = { kind = \"ring\" }
addresses = [\"172.16.0.1/24\"]
mtu = 1600

[[vpc]]
name = \"red\"
vni = 100

[[subnet]]
vpc = \"red\"
prefix = \"10.0.0.0/24\"
";
/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);

/// A connection to a switch.
#[derive(Debug)]
pub struct Api {
    pub runtime: Runtime,
    pub objects: ObjectsClient<Channel>,
    pub observe: ObserveClient<Channel>,
    /// For clients of other services.
    pub channel: Channel,
}

impl Api {
    /// Connects.
    #[track_caller]
    pub fn connect(socket: &Path) -> Api {
        Self::try_connect(socket).unwrap_or_else(|error| panic!("no API on {}: {error}", socket.display()))
    }

    /// Connects, unless nobody answers.
    ///
    /// # Errors
    /// What the transport says.
    pub fn try_connect(socket: &Path) -> Result<Api, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let endpoint = endpoint.map_err(|error| error.to_string())?.timeout(CALL);
        let channel = runtime.block_on(endpoint.connect()).map_err(|error| error.to_string())?;
        let (objects, observe) = (ObjectsClient::new(channel.clone()), ObserveClient::new(channel.clone()));
        Ok(Api { runtime, objects, observe, channel })
    }

    /// Makes an object.
    ///
    /// # Errors
    /// The refusal.
    pub fn create(&mut self, spec: Spec) -> Result<Entry, Status> {
        self.create_with(spec, false)
    }

    /// Creates an object, and waits for its port.
    ///
    /// # Errors
    /// The refusal.
    pub fn create_and_wait(&mut self, spec: Spec) -> Result<Entry, Status> {
        self.create_with(spec, true)
    }

    fn create_with(&mut self, spec: Spec, wait: bool) -> Result<Entry, Status> {
        let request = CreateRequest { object: Some(object(spec)), wait, ..CreateRequest::default() };
        Ok(self.runtime.block_on(self.objects.create(request))?.into_inner())
    }

    /// An object.
    ///
    /// # Errors
    /// The refusal.
    pub fn get(&mut self, kind: Kind, id: &str) -> Result<Entry, Status> {
        let request = GetRequest { key: Some(key(kind, id)) };
        Ok(self.runtime.block_on(self.objects.get(request))?.into_inner())
    }

    /// All objects of a kind, from pages of this size.
    #[track_caller]
    pub fn list(&mut self, kind: Kind, page_size: u32) -> Vec<Entry> {
        let (mut entries, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = ListRequest { kind: kind.into(), page_size, page_token };
            let page = match self.runtime.block_on(self.objects.list(request)) {
                Ok(page) => page.into_inner(),
                Err(status) => panic!("List was refused: {status}"),
            };
            assert!(page.entries.len() <= page_size as usize);
            entries.extend(page.entries);
            if page.next_page_token.is_empty() {
                return entries;
            }
            page_token = page.next_page_token;
        }
    }

    /// Changes fields of an object.
    ///
    /// # Errors
    /// The refusal.
    pub fn update(&mut self, spec: Spec, paths: &[&str]) -> Result<Entry, Status> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let request = UpdateRequest {
            object: Some(object(spec)),
            update_mask: Some(FieldMask { paths }),
            ..UpdateRequest::default()
        };
        Ok(self.runtime.block_on(self.objects.update(request))?.into_inner())
    }

    /// Takes an object away.
    ///
    /// # Errors
    /// The refusal.
    pub fn delete(&mut self, kind: Kind, id: &str) -> Result<u64, Status> {
        let request = DeleteRequest { key: Some(key(kind, id)), ..DeleteRequest::default() };
        Ok(self.runtime.block_on(self.objects.delete(request))?.into_inner().revision)
    }

    /// Carries several changes out as one.
    ///
    /// # Errors
    /// The refusal.
    pub fn apply(
        &mut self,
        operations: Vec<Operation>,
        expected_revision: Option<u64>,
    ) -> Result<u64, Status> {
        let operations =
            operations.into_iter().map(|one| vswitch_api::v1::Operation { operation: Some(one) });
        let request =
            ApplyRequest { operations: operations.collect(), expected_revision, ..ApplyRequest::default() };
        Ok(self.runtime.block_on(self.objects.apply(request))?.into_inner().revision)
    }

    /// Watches objects of these kinds.
    #[track_caller]
    pub fn watch(&mut self, kinds: &[Kind]) -> Streaming<WatchResponse> {
        let mut request =
            tonic::Request::new(WatchRequest { kinds: kinds.iter().map(|kind| (*kind).into()).collect() });
        // As long as the scenario lasts.
        request.set_timeout(Duration::from_secs(600));
        match self.runtime.block_on(self.objects.watch(request)) {
            Ok(stream) => stream.into_inner(),
            Err(status) => panic!("Watch was refused: {status}"),
        }
    }

    /// The next message of a stream, which comes soon.
    #[track_caller]
    pub fn next<T>(&self, stream: &mut Streaming<T>) -> T {
        let next = self.runtime.block_on(async { tokio::time::timeout(CALL, stream.next()).await });
        match next {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(status))) => panic!("the stream ended: {status}"),
            Ok(None) => panic!("the stream ended"),
            Err(_) => panic!("nothing came in {CALL:?}"),
        }
    }
}

/// A change that makes an object.
pub fn creation(spec: Spec) -> Operation {
    Operation::Create(CreateRequest { object: Some(object(spec)), ..CreateRequest::default() })
}

/// A change that takes an object away.
pub fn deletion(kind: Kind, id: &str) -> Operation {
    Operation::Delete(DeleteRequest { key: Some(key(kind, id)), ..DeleteRequest::default() })
}

/// A spec as an object.
pub fn object(spec: Spec) -> Object {
    Object { spec: Some(spec) }
}

/// A key.
pub fn key(kind: Kind, id: &str) -> Key {
    Key { kind: kind.into(), id: id.to_owned() }
}

/// The problems that a refusal names: codes, fields, messages.
pub fn problems(status: &Status) -> Vec<(String, String, String)> {
    let refusal = vswitch_api::refusal(status.details()).unwrap_or_default();
    refusal.problems.into_iter().map(|problem| (problem.code, problem.field, problem.message)).collect()
}

/// A VPC.
pub fn vpc(name: &str, vni: u32) -> Spec {
    Spec::Vpc(Vpc { name: name.into(), vni: Some(vni), ..Default::default() })
}

/// A subnet of a VPC.
pub fn subnet(vpc: &str, prefix: &str) -> Spec {
    Spec::Subnet(Subnet { vpc: vpc.into(), prefix: prefix.into(), ..Default::default() })
}

/// A vNIC on a tap.
pub fn tap_vnic(name: &str, vpc: &str, number: u8) -> Vnic {
    let tap = port_spec::Tap { iface: name.into(), ..Default::default() };
    vnic(name, vpc, number, port_spec::Kind::Tap(tap))
}

/// A vNIC whose addresses are made of a number.
pub fn vnic(name: &str, vpc: &str, number: u8, port: port_spec::Kind) -> Vnic {
    Vnic {
        name: name.into(),
        vpc: vpc.into(),
        mac: format!("02:00:00:00:01:{number:02x}"),
        vips: vec![format!("10.0.0.{number}")],
        behind: Some(vswitch_api::v1::vnic::Behind::Port(PortSpec { kind: Some(port) })),
        ..Default::default()
    }
}

/// Waits for the tap of a vNIC, and moves it into a namespace of its own, as a container's interface.
#[track_caller]
pub fn plug(host: &Netns, name: &str, number: u8) -> Netns {
    let netns = Netns::new(name);
    wait_for("the tap", CALL, || host.interfaces().iter().any(|known| known == name).then_some(()));
    host.ip(&format!("link set {name} netns {}", netns.name()));
    netns.ip(&format!("link set {name} address 02:00:00:00:01:{number:02x} mtu 1450 up"));
    netns.ip(&format!("addr add 10.0.0.{number}/24 dev {name}"));
    netns
}

/// A location.
pub fn location(vni: u32, number: u8) -> Spec {
    Spec::Location(Location {
        vni: Some(vni),
        vip: format!("10.0.0.{number}"),
        mac: format!("02:00:00:00:02:{number:02x}"),
        vtep: "172.16.0.2".into(),
        groups: Vec::new(),
    })
}
