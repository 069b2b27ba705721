//! The Unix sockets of the API: opened, served, closed, and opened again.

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

use crate::api;
use crate::config::process::ApiConfig;
use crate::control::server::Server;

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
