//! The old process's side: a socket on which a new one asks, and the steps by which it lets go.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::tables::Chunk;
use super::wire::{Link, Message};
use super::{HandoverError, VERSION, socket_beside};
use crate::control::server::{BindError, bind_unseen};

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the new process may take from its first word to the one that begins the upgrade: it starts DPDK meanwhile.
const PREPARATION: Duration = Duration::from_secs(120);
/// How long it may take with the tables.
const TABLES: Duration = Duration::from_secs(10);
/// How long it may take to open ports and sockets.
const WORK: Duration = Duration::from_secs(30);

/// The socket on which a new process asks.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    is_kept: bool,
    serving: JoinHandle<()>,
}

/// A new process that is ready, and has asked for the tables.
#[derive(Debug)]
pub struct Successor {
    link: Link,
}

impl Door {
    /// Opens it beside a control socket, for this user alone; in place of what another process of this user has left there.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn open(control: &Path, successors: mpsc::Sender<Successor>) -> Result<Self, BindError> {
        let path = socket_beside(control);
        let listener = bind_unseen(&path, None, |bound, path| fs::rename(bound, path))?;
        let listener = UnixListener::from_std(listener).map_err(|source| BindError::System {
            what: "serve",
            path: path.clone(),
            source,
        })?;
        let serving = tokio::spawn(serve(listener, successors));
        Ok(Self { path, is_kept: false, serving })
    }

    /// The path is another process's now.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// One new process at a time: the next one is heard when the one before has gone.
async fn serve(listener: UnixListener, successors: mpsc::Sender<Successor>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let same = stream.peer_cred().is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw());
        if !same {
            tracing::warn!("another user asked for an upgrade");
            continue;
        }
        // On a thread that nobody waits for: a new process that says nothing must not hold up the end of this one.
        let (tell, told) = oneshot::channel();
        let thread =
            std::thread::Builder::new().name("upgrade".into()).spawn(move || drop(tell.send(hear(stream))));
        let heard = match thread {
            Ok(_) => told
                .await
                .unwrap_or_else(|_| Err(io::Error::other("the thread that hears it ended early").into())),
            Err(error) => Err(error.into()),
        };
        match heard {
            Ok(successor) => {
                if successors.send(successor).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!(%error, "an upgrade came to nothing; the switch runs on"),
        }
    }
}

/// Until it asks for the tables.
fn hear(stream: UnixStream) -> Result<Successor, HandoverError> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let mut link = Link::new(stream);
    match link.receive(PATIENCE)? {
        Message::Hello { version: VERSION } => {}
        Message::Hello { version } => {
            let why = format!(
                "it speaks version {VERSION} of the hand-over, the new one {version}: restart instead"
            );
            link.send(&Message::Refused { why: why.clone() }, PATIENCE)?;
            return Err(HandoverError::Refused(why));
        }
        _ => return Err(HandoverError::Message("a message out of turn".into())),
    }
    link.send(&Message::Ready { version: VERSION, pid: std::process::id() }, PATIENCE)?;
    match link.receive(PREPARATION)? {
        Message::Freeze => Ok(Successor { link }),
        _ => Err(HandoverError::Message("a message out of turn".into())),
    }
}

impl Successor {
    /// Says why not.
    pub fn refuse(mut self, why: String) {
        let _ = self.link.send(&Message::Refused { why }, PATIENCE);
    }

    /// Gives it the tables; returns when it has them and wants the rest, with the interfaces on which it has ports, too.
    ///
    /// # Errors
    /// [`HandoverError`]: nothing has changed.
    pub fn give(&mut self, tables: Vec<Chunk>) -> Result<Vec<String>, HandoverError> {
        for chunk in tables {
            self.link.send(&Message::Tables(chunk), PATIENCE)?;
        }
        self.link.send(&Message::Complete, PATIENCE)?;
        match self.link.receive(TABLES)? {
            Message::Take { beside } => Ok(beside),
            _ => Err(HandoverError::Message("a message out of turn".into())),
        }
    }

    /// Says that nothing is forwarded any more.
    ///
    /// # Errors
    /// [`HandoverError`]: it is gone.
    pub fn stopped(&mut self) -> Result<(), HandoverError> {
        self.link.send(&Message::Stopped, PATIENCE)
    }

    /// Says that everything is free; returns when the new process forwards.
    ///
    /// # Errors
    /// [`HandoverError`]: it is gone, and this one has to come back.
    pub fn released(&mut self) -> Result<(), HandoverError> {
        self.link.send(&Message::Released, PATIENCE)?;
        match self.link.receive(WORK)? {
            Message::Done => Ok(()),
            _ => Err(HandoverError::Message("a message out of turn".into())),
        }
    }
}
