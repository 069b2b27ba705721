//! The sockets of the API, Unix and TCP: opened, served, closed, and opened again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};

use crate::api;
use crate::api::tcp::{Keys, Tcp};
use crate::config::process::{ApiConfig, ApiTcpConfig};
use crate::control::server::Server;

/// How long a switch tries to listen by TCP, where another one may still do, until that is told; and how often.
const LISTEN: Duration = Duration::from_secs(10);
const LISTEN_SOON: Duration = Duration::from_millis(50);
/// How often from then on.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// The Unix sockets of the API, not served yet.
pub(super) struct Sockets {
    all: Server,
    readers: Option<Server>,
}

impl Sockets {
    /// With one for the members of a group, where there is one.
    pub fn bind(api: &ApiConfig, readers: Option<u32>) -> anyhow::Result<Self> {
        let all = Server::bind(&api.socket)?;
        let readers = readers.map(|group| Server::bind_for_readers(&api.read_socket(), group));
        Ok(Self { all, readers: readers.transpose()? })
    }

    pub fn serve(self, clients: &mpsc::Sender<api::Accepted>) -> Serving {
        let serve = |server: Server| tokio::spawn(server.serve(clients.clone()));
        Serving { all: Some(serve(self.all)), readers: self.readers.map(serve) }
    }
}

/// The sockets, served.
#[derive(Default)]
pub(super) struct Serving {
    all: Option<JoinHandle<std::io::Result<()>>>,
    readers: Option<JoinHandle<std::io::Result<()>>>,
}

impl Serving {
    /// When the control socket has ended by itself.
    pub async fn ended(&mut self) -> Result<std::io::Result<()>, JoinError> {
        match &mut self.all {
            Some(all) => {
                let ended = all.await;
                self.all = None;
                ended
            }
            None => std::future::pending().await,
        }
    }

    pub fn is_closed(&self) -> bool {
        self.all.is_none()
    }

    pub async fn close(&mut self) {
        for socket in [self.readers.take(), self.all.take()].into_iter().flatten() {
            socket.abort();
            let _ = socket.await;
        }
    }
}

/// The API over TCP, where it is to be had there.
pub(super) struct ByTcp {
    to: Option<(ApiTcpConfig, Arc<Keys>)>,
    /// To the API's thread.
    tcps: mpsc::Sender<Tcp>,
    /// Has it listen.
    listening: Option<JoinHandle<()>>,
}

impl ByTcp {
    /// Closed, so far.
    pub fn new(config: Option<ApiTcpConfig>, keys: Option<Arc<Keys>>, tcps: mpsc::Sender<Tcp>) -> Self {
        Self { to: config.zip(keys), tcps, listening: None }
    }

    /// Has the API listen, there already or as soon as it can: the switch that this one takes over from may have the address for a moment.
    pub fn open(&mut self, there: Option<(Tcp, oneshot::Sender<()>)>) {
        let Some((config, keys)) = self.to.clone() else { return };
        let tcps = self.tcps.clone();
        self.listening = Some(tokio::spawn(async move {
            let (tcp, keep) = match there {
                Some(there) => there,
                None => listen(&config, &keys).await,
            };
            // It listens for as long as this task is there.
            if tcps.send(tcp).await.is_ok() {
                std::future::pending::<()>().await;
            }
            drop(keep);
        }));
    }

    /// Another process is to listen there.
    pub async fn close(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            let _ = listening.await;
        }
    }
}

async fn listen(config: &ApiTcpConfig, keys: &Arc<Keys>) -> (Tcp, oneshot::Sender<()>) {
    let (began, mut is_told) = (Instant::now(), false);
    loop {
        match Tcp::listen(config, keys.clone()) {
            Ok(tcp) => return tcp,
            Err(error) if !is_told && began.elapsed() > LISTEN => {
                tracing::error!(%error, "the API is not to be had over TCP yet; it is tried every {LISTEN_AGAIN:?}");
                is_told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(if is_told { LISTEN_AGAIN } else { LISTEN_SOON }).await;
    }
}
