//! The daemon's end of the control socket.
//!
//! Listens, reads lines of bounded length, and hands each request to the owner of the switch over a channel;
//! the answer comes back over a oneshot. Each client is a task of its own that waits for nobody else's
//! answers: a slow, silent or dead one costs a few kilobytes and, when it takes no answers, its connection. When all
//! places are taken, the client that has asked nothing for longest makes room for the next one (`places`).
//! Runs on the control thread's runtime; knows no command.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::places::{ClientPlace, ClientPlaces};
use super::protocol::{Ask, MAX_REQUEST, Reply, Request};
use crate::api::{Accepted, Role};

/// Connections at a time.
pub(super) const MAX_CLIENTS: usize = 64;
/// How a client of the API begins (RFC 9113 section 3.4); no line of a console does.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";
/// A client that does not take its answer within this time, and a second for each of so many bytes, is cut off.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
const WRITE_RATE: usize = 1 << 20;
/// Turns of the runtime in which clients that have hung up are noticed: sockets are looked at, and their tasks run.
const TURNS: usize = 4;
/// How long to wait for another process that is starting on the same socket.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody answers there.
    #[error("another vswitch is running on {0}; choose another [api] socket or stop it")]
    Running(PathBuf),
    /// The path is taken by something that is no socket.
    #[error(
        "{path} is there already and is {what}, not a socket; choose another [api] socket or move it away"
    )]
    NotASocket { path: PathBuf, what: &'static str },
    /// The group of the second socket is none.
    #[error("there is no group {0:?} for `[api] group`; `getent group` lists those there are")]
    NoGroup(String),
    /// The operating system refused.
    #[error(
        "cannot {what} {path} for the [api] socket: {source}; choose another path or change its permissions"
    )]
    System {
        /// What was tried.
        what: &'static str,
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

/// A request on its way to the owner of the switch.
#[derive(Debug)]
pub struct Call {
    pub request: Request,
    /// Where the answer goes; nobody may be left to take it.
    pub reply: oneshot::Sender<Reply>,
}

/// The listening socket. It is removed when this is dropped.
#[derive(Debug)]
pub struct Server {
    /// What clients of this socket may do.
    role: Role,
    listener: StdListener,
    socket: SocketFile,
}

impl Server {
    /// Opens the socket at `path`, for this user only from its first moment.
    ///
    /// # Errors
    /// [`BindError`], when the path is in use or cannot be. A socket that a dead switch left is replaced.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        Self::bind_for(path, None)
    }

    /// Opens a socket at `path` for the members of a group, who may look and change nothing.
    ///
    /// # Errors
    /// [`BindError`], also when there is no such group.
    pub fn bind_for_readers(path: &Path, group: &str) -> Result<Self, BindError> {
        let found = nix::unistd::Group::from_name(group).map_err(|errno| BindError::System {
            what: "look up the group of",
            path: path.to_owned(),
            source: errno.into(),
        })?;
        let found = found.ok_or_else(|| BindError::NoGroup(group.to_owned()))?;
        Self::bind_for(path, Some(found.gid.as_raw()))
    }

    /// A socket of this user, or of the members of a group.
    fn bind_for(path: &Path, group: Option<u32>) -> Result<Self, BindError> {
        let system = |what, path: &Path| {
            let path = path.to_owned();
            move |source| BindError::System { what, path, source }
        };
        // The socket could be made under a longer path than any client can name.
        SocketAddr::from_pathname(path).map_err(system("use", path))?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if !folder.exists() {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o755).create(folder).map_err(system("create", folder))?;
        }
        // Two switches that start at once must not both find the same stale socket and remove each other's.
        let _lock = lock(folder).map_err(system("lock", folder))?;
        make_way(path)?;
        // Bound inside a folder nobody else can enter, narrowed, and only then put in its place: at no moment
        // can another user connect. Linking refuses what is there already, unlike renaming.
        let hidden = folder.join(format!(".v{}", std::process::id()));
        let _ = fs::remove_file(hidden.join("s"));
        let _ = fs::remove_dir(&hidden);
        DirBuilder::new().mode(0o700).create(&hidden).map_err(system("create", &hidden))?;
        let bound = hidden.join("s");
        let listener = StdListener::bind(&bound).map_err(system("bind", &bound)).and_then(|listener| {
            if group.is_some() {
                chown(&bound, None, group).map_err(system("give to its group", &bound))?;
            }
            let mode = if group.is_some() { 0o660 } else { 0o600 };
            fs::set_permissions(&bound, Permissions::from_mode(mode)).map_err(system("protect", &bound))?;
            fs::hard_link(&bound, path).map_err(system("create", path))?;
            listener.set_nonblocking(true).map_err(system("set up", path))?;
            Ok(listener)
        });
        let _ = fs::remove_file(&bound);
        let _ = fs::remove_dir(&hidden);
        let listener = listener?;
        let inode = fs::symlink_metadata(path).map_err(system("see", path))?.ino();
        let role = if group.is_some() { Role::Reader } else { Role::Owner };
        Ok(Self { role, listener, socket: SocketFile { path: path.to_owned(), inode } })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.socket.path
    }

    /// Serves consoles, and hands clients of the API over to `programs`, until the owner of the switch drops its end of `calls`, or
    /// this future is dropped.
    ///
    /// # Errors
    /// When the runtime cannot take the socket.
    pub async fn serve(self, calls: mpsc::Sender<Call>, programs: mpsc::Sender<Accepted>) -> io::Result<()> {
        let (listener, role) = (UnixListener::from_std(self.listener)?, self.role);
        let mut places = ClientPlaces::default();
        // Dropping the set ends all clients with the server.
        let mut clients = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = clients.join_next() => continue, // a panic in one of them, too, is its own end
                () = calls.closed() => return Ok(()),
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: others must go first.
                    warn!(%error, "cannot accept a console");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            for _ in 0..TURNS {
                if !places.is_full() {
                    break;
                }
                // Those that have hung up leave first.
                tokio::task::yield_now().await;
            }
            match places.take() {
                Some(place) => {
                    let (calls, programs) = (calls.clone(), programs.clone());
                    clients.spawn(async move {
                        let result = client(stream, role, calls, programs, place).await;
                        debug!(?result, "a console is gone");
                    });
                }
                None => refuse(stream),
            }
        }
    }
}

/// Tells a client too many so, if it takes it at once.
fn refuse(stream: UnixStream) {
    let message = format!("there are {MAX_CLIENTS} consoles already, all at work; close one, or try again");
    let told = stream.into_std().and_then(|mut stream| stream.write(&Reply::error(0, message).to_line()));
    if let Err(error) = told {
        debug!(%error, "a console too many did not listen");
    }
}

/// The socket's file; removed when dropped, unless somebody has put another in its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode)
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "cannot remove the control socket");
        }
    }
}

/// An exclusive lock on a folder.
fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if start.elapsed() > LOCK_TIMEOUT => {
                return Err(io::Error::other("another process holds a lock on it"));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Removes the socket of a dead switch; leaves everything else alone and says what it is.
fn make_way(path: &Path) -> Result<(), BindError> {
    let system = |what| {
        let path = path.to_owned();
        move |source| BindError::System { what, path, source }
    };
    let kind = match fs::symlink_metadata(path) {
        Ok(file) => file.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at")(error)),
    };
    if !kind.is_socket() {
        let what = match () {
            () if kind.is_file() => "a file",
            () if kind.is_dir() => "a folder",
            () if kind.is_symlink() => "a symbolic link",
            () => "a device or pipe",
        };
        return Err(BindError::NotASocket { path: path.to_owned(), what });
    }
    match StdStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(system("remove the stale socket"))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(system("connect to")(error)),
        // It answers, or is too busy to: alive in both cases.
        _ => Err(BindError::Running(path.to_owned())),
    }
}

/// Serves one client to its end.
async fn client(
    stream: UnixStream,
    role: Role,
    calls: mpsc::Sender<Call>,
    programs: mpsc::Sender<Accepted>,
    place: ClientPlace,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let given_away = || {
        let message = format!(
            "there are {MAX_CLIENTS} consoles, and this one has asked nothing for longest: another has its place; \
             connect anew"
        );
        Reply::error(0, message).to_line()
    };
    let begins_as_program = tokio::select! {
        bytes = stream.fill_buf() => bytes?.first() == HTTP2.first(),
        () = place.given_away() => return send(stream.get_mut(), &given_away()).await,
    };
    if begins_as_program {
        // It needs a place among the clients of the API, and this one no more.
        let read = stream.buffer().to_vec();
        let stream = stream.into_inner().into_std()?;
        return programs.send(Accepted::by_unix(stream, read, role)).await.map_err(io::Error::other);
    }
    if role != Role::Owner {
        let message =
            "this socket is for programs that look at the switch (gRPC); consoles have the other one";
        return send(stream.get_mut(), &Reply::error(0, message).to_line()).await;
    }
    let mut line = Vec::new();
    loop {
        let read_line = tokio::select! {
            read_line = next_line(&mut stream, &mut line) => read_line?,
            () = place.given_away() => return send(stream.get_mut(), &given_away()).await,
        };
        if matches!(read_line, Line::Whole) && line.trim_ascii().is_empty() {
            continue;
        }
        place.busy();
        let reply = match read_line {
            Line::End => return Ok(()),
            Line::TooLong => Reply::error(0, too_long()),
            Line::Whole => match Request::parse(&line) {
                Ok(request) => ask(&calls, request).await,
                Err(message) => Reply::error(0, message),
            },
        };
        send(stream.get_mut(), &reply.to_line()).await?;
        place.idle();
    }
}

fn too_long() -> String {
    format!("the request is longer than {MAX_REQUEST} bytes; split it, or use load <file>")
}

/// Asks the owner of the switch.
async fn ask(calls: &mpsc::Sender<Call>, request: Request) -> Reply {
    let id = request.id;
    let (reply, answer) = oneshot::channel();
    if calls.send(Call { request, reply }).await.is_err() {
        return Reply::error(id, "the switch is stopping");
    }
    match answer.await {
        Ok(reply) => Reply { id, ..reply },
        Err(_) => Reply::error(id, "the switch gave no answer; its log says why"),
    }
}

/// Writes all of `bytes`, unless they are taken too slowly.
async fn send(write: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    let limit = WRITE_TIMEOUT + Duration::from_secs((bytes.len() / WRITE_RATE) as u64);
    tokio::time::timeout(limit, write.write_all(bytes)).await?
}

enum Line {
    Whole,
    TooLong,
    End,
}

/// Reads up to the next newline into `line`, never keeping more than [`MAX_REQUEST`] bytes. What is between
/// the last newline and the end is no line: its writer was cut off in the middle.
async fn next_line(read: &mut BufReader<UnixStream>, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    let mut too_long = false;
    loop {
        let bytes = read.fill_buf().await?;
        if bytes.is_empty() {
            return Ok(Line::End);
        }
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let piece = &bytes[..newline.unwrap_or(bytes.len())];
        too_long |= line.len() + piece.len() > MAX_REQUEST;
        if !too_long {
            line.extend_from_slice(piece);
        }
        let used = piece.len() + usize::from(newline.is_some());
        read.consume(used);
        if newline.is_some() {
            return Ok(if too_long { Line::TooLong } else { Line::Whole });
        }
    }
}

/// A way to ask the owner of the switch from another thread of the same process, as a socket's client would.
#[derive(Clone, Debug)]
pub struct Caller {
    calls: mpsc::Sender<Call>,
}

impl Caller {
    /// Asks over the channel that [`Server::serve`] uses too.
    pub fn new(calls: mpsc::Sender<Call>) -> Self {
        Self { calls }
    }

    /// Asks and waits. Never call this on the runtime's own thread: it would wait for itself.
    pub fn call(&self, ask: Ask, json: bool) -> Reply {
        let (reply, answer) = oneshot::channel();
        let call = Call { request: Request { id: 0, ask, json }, reply };
        match self.calls.blocking_send(call) {
            Ok(()) => answer.blocking_recv().unwrap_or_else(|_| Reply::error(0, "the switch gave no answer")),
            Err(_) => Reply::error(0, "the switch is stopping"),
        }
    }
}
