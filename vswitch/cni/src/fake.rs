//! A switch for tests: vNICs that are down, on a socket of its own.

use std::io;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::net::{UnixListener, UnixStream};
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::objects_server::{Objects, ObjectsServer};
use vswitch_api::v1::{self, Entry, State};

type Answer<T> = Result<Response<T>, Status>;

/// It answers as long as the test goes on; its socket goes with this.
#[derive(Debug)]
pub struct Fake(PathBuf);

impl Fake {
    pub fn start(name: &str, vnics: Vec<v1::Vnic>) -> Self {
        let path = std::env::temp_dir().join(format!("cni-switch-{name}-{}", std::process::id()));
        let listener = net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = Incoming(UnixListener::from_std(listener).unwrap());
                let server = ObjectsServer::new(Vnics(vnics));
                Server::builder().add_service(server).serve_with_incoming(incoming).await.unwrap();
            });
        });
        Self(path)
    }

    pub fn socket(&self) -> &Path {
        &self.0
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Incoming(UnixListener);

impl Stream for Incoming {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}

struct Vnics(Vec<v1::Vnic>);

fn entry(vnic: &v1::Vnic) -> Entry {
    let object = Some(v1::Object { spec: Some(Spec::Vnic(vnic.clone())) });
    let status = v1::Status { state: Some(State::Down.into()), ..v1::Status::default() };
    Entry { object, status: Some(status), ..Entry::default() }
}

fn nobody_asks<T>() -> Answer<T> {
    Err(Status::unimplemented("no test asks for it"))
}

#[tonic::async_trait]
impl Objects for Vnics {
    type WatchStream = BoxStream<v1::WatchResponse>;

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<Entry> {
        let name = request.into_inner().key.unwrap_or_default().id;
        let known = self.0.iter().find(|vnic| vnic.name == name);
        known.map(|vnic| Response::new(entry(vnic))).ok_or_else(|| Status::not_found(name))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Answer<v1::ListResponse> {
        nobody_asks()
    }

    async fn create(&self, _: Request<v1::CreateRequest>) -> Answer<Entry> {
        nobody_asks()
    }

    async fn update(&self, _: Request<v1::UpdateRequest>) -> Answer<Entry> {
        nobody_asks()
    }

    async fn delete(&self, _: Request<v1::DeleteRequest>) -> Answer<v1::DeleteResponse> {
        nobody_asks()
    }

    async fn apply(&self, _: Request<v1::ApplyRequest>) -> Answer<v1::ApplyResponse> {
        nobody_asks()
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        nobody_asks()
    }
}
