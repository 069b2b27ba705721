//! The gRPC interface (`vswitch/proto`): how programs drive the switch.
//!
//! It lives on a thread of its own, with a runtime of its own: what clients send, how much of it, and how slowly they read, costs
//! that thread and nobody else. Control does what it is asked between its other tasks, as [`Job`]s: each one reads the state or
//! changes it, and hands back values that need no more of control to become messages.
//!
//! `bridge` turns messages into tables of the config and back, `kinds` knows the kinds of objects and `places` where a config has
//! them, `index` where in there, `current` is what there is at a moment, `plan` changes it, `claims` says who may, `objects` and `observe` are the services. `answers` bounds what
//! clients leave unread.

mod answers;
mod bridge;
mod claims;
mod cluster;
mod configuration;
mod connection;
mod current;
mod evpn;
mod firewall;
mod flow_rules;
mod flows;
mod followed;
mod forwarding;
mod index;
mod json;
mod kinds;
#[cfg(test)]
mod large;
mod named;
mod objects;
mod observe;
mod offloading;
#[cfg(test)]
mod owned;
mod places;
mod plan;
mod ports;
mod probing;
mod queue_pairs;
mod rdma;
mod refusal;
mod service;
mod shaping;
pub mod tcp;
mod tenants;
#[cfg(test)]
mod tests;
mod underlay;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use answers::Answers;
pub use configuration::reload;
pub use connection::{Accepted, Role};
use connection::{ByRole, Caller, Places};
use current::View;
pub use flow_rules::{ManualRules, message as flow_rule};
pub use followed::{Followed, follow, rank, read_object, shared_by, shared_object};
pub use json::{counts, json};
pub use kinds::object;
use refusal::Problem;
use tcp::Tcp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::Server;
use vswitch_api::v1::cluster_server::ClusterServer;
use vswitch_api::v1::configuration_server::ConfigurationServer;
use vswitch_api::v1::evpn_server::EvpnServer;
use vswitch_api::v1::firewall_server::FirewallServer;
use vswitch_api::v1::flow_rules_server::FlowRulesServer;
use vswitch_api::v1::flows_server::FlowsServer;
use vswitch_api::v1::forwarding_server::ForwardingServer;
use vswitch_api::v1::objects_server::ObjectsServer;
use vswitch_api::v1::observe_server::ObserveServer;
use vswitch_api::v1::offloading_server::OffloadingServer;
use vswitch_api::v1::ports_server::PortsServer;
use vswitch_api::v1::queue_pairs_server::QueuePairsServer;
use vswitch_api::v1::rdma_server::RdmaServer;
use vswitch_api::v1::shaping_server::ShapingServer;
use vswitch_api::v1::tenants_server::TenantsServer;
use vswitch_api::v1::underlay_server::UnderlayServer;

use crate::control::asking::Asker;
use crate::controller::Controller;
use crate::switch::ahead::Next;

/// Something that control does for a client.
pub type Job = Box<dyn FnOnce(&mut Controller) + Send>;

/// Requests of one connection that are under way at a time; others wait.
const REQUESTS: usize = 32;
/// Streams of all clients that watch and may do the same: each may hold what its client does not read, half a MiB of it.
const WATCHERS: usize = 64;
/// Streams of one connection: as many as it has requests under way, beside all that may watch.
const STREAMS: u32 = (REQUESTS + WATCHERS) as u32;
/// The longest message of a client.
const MESSAGE: usize = 4 << 20;
/// A client that does not answer pings is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks for ports that somebody waits for.
const PORTS_EVERY: Duration = Duration::from_millis(5);
/// How long an answer waits for ports that are being closed.
const CLOSING: Duration = Duration::from_secs(3);
/// Connections that wait to be taken.
const BACKLOG: usize = 64;

/// The way to control.
#[derive(Clone, Debug)]
struct Control {
    asker: Asker,
    /// Places of those that watch.
    watchers: ByRole<Arc<Semaphore>>,
    /// The turn to write something of the whole config.
    writing: Arc<Semaphore>,
}

impl Control {
    fn new(jobs: mpsc::Sender<Job>) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        let watchers = ByRole { owners: places(WATCHERS), readers: places(WATCHERS) };
        Self { asker: Asker::new(jobs), watchers, writing: places(1) }
    }

    /// A place to watch from, until it is dropped.
    fn watcher(&self, role: Role) -> Result<OwnedSemaphorePermit, Problem> {
        self.watchers.of(role).clone().try_acquire_owned().map_err(|_| {
            let message =
                format!("{WATCHERS} streams are watched already; end one, or watch several kinds with one");
            Problem::new(Code::ResourceExhausted, "", message)
        })
    }

    /// Has control do `work`, which `what` names, and waits for what it says.
    async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&mut Controller) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        Ok(self.asker.ask(what, work).await?)
    }

    /// Makes something of all that the switch has, on a thread beside this one and control: that takes long and much memory where there
    /// is much, so it is done for one client after the other.
    async fn write<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&View) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.writing.clone().acquire_owned().await;
        let turn = turn.map_err(|error| Problem::internal(error.to_string()))?;
        let view = self.ask(what, |controller| View::of(&controller.switch)).await?;
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&view)
        });
        written.await.map_err(|error| Problem::internal(format!("{what}: {error}")))
    }
}

impl Control {
    /// As [`ask`](Self::ask), for a change whose answer is to tell what became of its ports: these are waited for here, and control
    /// does what others ask meanwhile. Until they are there, `work` is done more than once.
    async fn ask_and_wait<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl Fn(&mut Controller) -> T + Clone + Send + 'static,
    ) -> Result<T, Problem> {
        let mut attempt = None;
        loop {
            let work = work.clone();
            let tried = self.ask(what, move |controller| {
                let number = attempt.unwrap_or_else(|| controller.switch.new_attempt());
                controller.switch.begin_try(number);
                let result = work(controller);
                (number, result, controller.switch.end_try())
            });
            let (number, result, next) = tried.await?;
            attempt = Some(number);
            match next {
                Next::Answer => return Ok(result),
                Next::AnswerWhenClosed => {
                    let end = tokio::time::Instant::now() + CLOSING;
                    while self.ask(what, |controller| controller.switch.has_ports_under_way()).await?
                        && tokio::time::Instant::now() < end
                    {
                        tokio::time::sleep(PORTS_EVERY).await;
                    }
                    return Ok(result);
                }
                Next::TryAgain => {
                    while !self.ask(what, move |controller| controller.switch.is_ripe(number)).await? {
                        tokio::time::sleep(PORTS_EVERY).await;
                    }
                }
            }
        }
    }
}

/// Starts the thread of the interface. Jobs go to `jobs`; connections come from what this returns, until it is dropped, and by the TCP
/// listeners that go into the other.
///
/// # Errors
/// When the system has no thread, or no runtime for it.
pub fn start(jobs: mpsc::Sender<Job>) -> std::io::Result<(mpsc::Sender<Accepted>, mpsc::Sender<Tcp>)> {
    let (listening, tcps) = mpsc::channel::<Tcp>(1);
    let (accepted, connections) = mpsc::channel::<Accepted>(BACKLOG);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("api".into()).spawn(move || {
        let control = Control::new(jobs);
        if let Err(error) = runtime.block_on(serve(control, connections, tcps)) {
            tracing::error!(%error, "the API has ended; restart the switch when it suits");
        }
    })?;
    Ok((accepted, listening))
}

async fn serve(
    control: Control,
    connections: mpsc::Receiver<Accepted>,
    mut tcps: mpsc::Receiver<Tcp>,
) -> Result<(), Box<dyn std::error::Error>> {
    let places = Places::new();
    let (by_tcp, others) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        while let Some(tcp) = tcps.recv().await {
            if let Err(error) = tcp.serve(by_tcp.clone()).await {
                tracing::error!(%error, "the API is not to be had over TCP any more; restart the switch when it suits");
            }
        }
    });
    let others = ReceiverStream::new(others);
    let incoming = ReceiverStream::new(connections).merge(others).filter_map(move |accepted| {
        // A client too many sees its connection closed.
        accepted.into_connection(&places).map(Ok::<_, std::io::Error>)
    });
    let (health, health_service) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(vswitch_api::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let mut routes = Routes::new(health_service).add_service(reflection);
    macro_rules! serve {
        ($($room:ident: $server:ident,)*) => {$(
            health.set_serving::<$server<$room::Service>>().await;
            let service = $room::Service::new(control.clone());
            routes = routes.add_service($server::new(service).max_decoding_message_size(MESSAGE));
        )*};
    }
    serve! {
        objects: ObjectsServer,
        observe: ObserveServer,
        configuration: ConfigurationServer,
        flows: FlowsServer,
        forwarding: ForwardingServer,
        ports: PortsServer,
        tenants: TenantsServer,
        underlay: UnderlayServer,
        firewall: FirewallServer,
        queue_pairs: QueuePairsServer,
        shaping: ShapingServer,
        flow_rules: FlowRulesServer,
        offloading: OffloadingServer,
        rdma: RdmaServer,
        cluster: ClusterServer,
        evpn: EvpnServer,
    }
    let asks = |request: tonic::Request<()>| {
        request.extensions().get::<Caller>().into_iter().for_each(Caller::ask);
        Ok(request)
    };
    Server::builder()
        .layer(InterceptorLayer::new(asks))
        .layer(Answers::new())
        .concurrency_limit_per_connection(REQUESTS)
        .max_concurrent_streams(STREAMS)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .add_routes(routes)
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}
