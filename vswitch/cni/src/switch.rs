//! The switch, asked by gRPC on its socket. Every call has a deadline.

use std::collections::HashSet;
use std::error::Error as _;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::objects_client::ObjectsClient;
use vswitch_api::v1::{self, Kind};

use crate::error::{Error, IO_FAILURE, REFUSED, Result, TRY_AGAIN};

/// The longest that a call may take: with many pods at a time each one waits for the others.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection is tried again while too many others are waiting to be taken.
const CONNECTING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// A connection to the switch.
#[derive(Debug)]
pub struct Switch {
    runtime: Runtime,
    client: ObjectsClient<Channel>,
}

/// A vNIC that the switch has.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownVnic {
    pub vnic: v1::Vnic,
    pub is_up: bool,
    /// Why it is not up.
    pub reason: String,
}

impl Switch {
    pub fn connect(socket: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(IO_FAILURE, format!("no runtime: {error}"), "look at the limits of this process")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let away = |error: &dyn std::fmt::Display| {
            let msg = format!("the switch does not answer on {}: {error}", socket.display());
            Error::new(
                TRY_AGAIN,
                msg,
                "see whether vswitch runs (systemctl status vswitch) and whether `socket` is that of its [api]",
            )
        };
        let uri = format!("unix:{}", socket.display());
        let endpoint = Endpoint::from_shared(uri).map_err(|error| away(&error))?.connect_timeout(DEADLINE);
        let end = Instant::now() + CONNECTING;
        loop {
            match runtime.block_on(endpoint.connect()) {
                Ok(channel) => return Ok(Self { client: ObjectsClient::new(channel), runtime }),
                Err(error) if is_busy(&error) && Instant::now() < end => std::thread::sleep(PAUSE),
                Err(error) => {
                    let cause = cause(&error);
                    return Err(cause.map_or_else(|| away(&error), |cause| away(cause)));
                }
            }
        }
    }

    fn ask<T, F: Future<Output = std::result::Result<Response<T>, Status>>>(
        &mut self,
        call: impl FnOnce(ObjectsClient<Channel>) -> F,
    ) -> std::result::Result<T, Status> {
        let answer = call(self.client.clone());
        let limited = async { tokio::time::timeout(DEADLINE, answer).await };
        let late = |_| Status::deadline_exceeded(format!("no answer within {} s", DEADLINE.as_secs()));
        self.runtime.block_on(limited).map_err(late)?.map(Response::into_inner)
    }

    fn get(&mut self, kind: Kind, id: String) -> Result<Option<v1::Entry>> {
        let key = Some(v1::Key { kind: kind.into(), id });
        let asked = v1::GetRequest { key };
        match self.ask(|mut client| async move { client.get(asked).await }) {
            Ok(entry) => Ok(Some(entry)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refusal(&status)),
        }
    }

    pub fn vnic(&mut self, name: &str) -> Result<Option<KnownVnic>> {
        Ok(self.get(Kind::Vnic, name.to_owned())?.and_then(known))
    }

    /// The VNI of a VPC, where there is such a VPC.
    pub fn vpc(&mut self, name: &str) -> Result<Option<u32>> {
        let spec = self.get(Kind::Vpc, name.to_owned())?.and_then(|entry| entry.object?.spec);
        Ok(spec.and_then(
            |spec| if let Spec::Vpc(vpc) = spec { Some(vpc.vni.unwrap_or_default()) } else { None },
        ))
    }

    /// The gateway of a subnet.
    pub fn gateway(&mut self, vpc: &str, prefix: IpNet) -> Result<Option<IpAddr>> {
        let spec = self.get(Kind::Subnet, format!("{vpc} {prefix}"))?.and_then(|entry| entry.object?.spec);
        let Some(Spec::Subnet(subnet)) = spec else {
            let remedy = "make it a [[subnet]] of the switch, or correct the network config";
            return Err(Error::config("subnet", format!("VPC {vpc} has no subnet {prefix}"), remedy));
        };
        let gateway = subnet.gateway.as_deref().map(str::parse).transpose();
        gateway.map_err(|_| {
            Error::new(REFUSED, format!("the gateway of {prefix} is no address"), "look at the switch")
        })
    }

    /// True when an address is a station's on another host.
    pub fn is_elsewhere(&mut self, vni: u32, ip: IpAddr) -> Result<bool> {
        Ok(self.get(Kind::Location, format!("{vni} {ip}"))?.is_some())
    }

    /// All vNICs.
    pub fn vnics(&mut self) -> Result<Vec<v1::Vnic>> {
        let (mut all, mut page_token) = (Vec::new(), String::new());
        loop {
            let asked = v1::ListRequest { kind: Kind::Vnic.into(), page_size: 0, page_token };
            let page = self.ask(|mut client| async move { client.list(asked).await });
            let page = page.map_err(|status| refusal(&status))?;
            all.extend(page.entries.into_iter().filter_map(known).map(|known| known.vnic));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    /// The addresses of the vNICs of a VPC, but for those of one.
    pub fn taken(&mut self, vpc: &str, but: &str) -> Result<HashSet<IpAddr>> {
        let others = self.vnics()?.into_iter().filter(|vnic| vnic.vpc == vpc && vnic.name != but);
        Ok(others.flat_map(|vnic| vnic.vips).filter_map(|vip| vip.parse().ok()).collect())
    }

    pub fn create(&mut self, vnic: v1::Vnic) -> std::result::Result<Option<KnownVnic>, Status> {
        let object = Some(v1::Object { spec: Some(Spec::Vnic(vnic)) });
        let asked = v1::CreateRequest { object, owner: v1::Owner::Cni.into(), wait: false };
        self.ask(|mut client| async move { client.create(asked).await }).map(known)
    }

    /// Takes a vNIC away; one that there is not is well away.
    pub fn delete(&mut self, name: &str) -> Result<()> {
        let key = Some(v1::Key { kind: Kind::Vnic.into(), id: name.to_owned() });
        let asked = v1::DeleteRequest { key, owner: v1::Owner::Cni.into(), ..v1::DeleteRequest::default() };
        match self.ask(|mut client| async move { client.delete(asked).await }) {
            Err(status) if status.code() != Code::NotFound => Err(refusal(&status)),
            _ => Ok(()),
        }
    }
}

fn known(entry: v1::Entry) -> Option<KnownVnic> {
    let status = entry.status.unwrap_or_default();
    match entry.object?.spec? {
        Spec::Vnic(vnic) => {
            Some(KnownVnic { vnic, is_up: status.state() == v1::State::Up, reason: status.reason })
        }
        _ => None,
    }
}

/// What a status of the switch means for the container runtime.
pub fn refusal(status: &Status) -> Error {
    let text = status.message();
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Aborted => {
            Error::new(
                TRY_AGAIN,
                format!("the switch did not answer: {text}"),
                "try again when it runs (systemctl status vswitch)",
            )
        }
        _ => Error::new(
            REFUSED,
            format!("the switch refused: {text}"),
            "correct what it names, in the network config or in the switch",
        ),
    }
}

/// The I/O error at the bottom of another one.
fn cause(error: &tonic::transport::Error) -> Option<&io::Error> {
    let mut at = error.source();
    while let Some(error) = at {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        at = error.source();
    }
    None
}

/// True when the socket has as many connections waiting as it takes.
fn is_busy(error: &tonic::transport::Error) -> bool {
    cause(error).is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}
