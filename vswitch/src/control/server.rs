//! The listening ends of the switch's sockets: who may connect, and that there is one switch on each.
//!
//! What comes in is handed over to the API. Runs on the control thread's runtime; reads nothing.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener as StdListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tracing::warn;

use super::lock::Lock;
use crate::api::{Accepted, Role};

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
    /// Another process opens a socket there, and does not end.
    #[error(
        "{holder} holds {path} and has not opened its [api] socket within 2 s; see what it does (`fuser -v {path}`) and stop it, or choose \
         another [api] socket"
    )]
    Locked {
        /// Who it is, in words.
        holder: String,
        path: PathBuf,
    },
    /// Others could hold the lock.
    #[error(
        "{0} is there already, and is not a file of this user alone; remove it, or choose another [api] socket"
    )]
    LockOfOthers(PathBuf),
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

    /// Opens a socket at `path` for the members of a group, by its [number](group_number), who may look and change nothing.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_for_readers(path: &Path, group: u32) -> Result<Self, BindError> {
        Self::bind_for(path, Some(group))
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
        let _lock = Lock::of(path)?;
        make_way(path)?;
        // Linking refuses what is there already, unlike renaming.
        let listener = bind_unseen(path, group, |bound, path| fs::hard_link(bound, path))?;
        let inode = fs::symlink_metadata(path).map_err(system("see", path))?.ino();
        let role = if group.is_some() { Role::Reader } else { Role::Owner };
        Ok(Self { role, listener, socket: SocketFile { path: path.to_owned(), inode } })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.socket.path
    }

    /// Hands all who connect over to the API, until that ends or this future is dropped.
    ///
    /// # Errors
    /// When the runtime cannot take the socket.
    pub async fn serve(self, clients: mpsc::Sender<Accepted>) -> io::Result<()> {
        let (listener, role) = (UnixListener::from_std(self.listener)?, self.role);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = clients.closed() => return Ok(()),
            };
            match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => {
                    if clients.send(Accepted::by_unix(stream, role)).await.is_err() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others must go first.
                    warn!(%error, "cannot accept a client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// The number of the group whose members are to have the socket at `path`.
///
/// # Errors
/// [`BindError`], also when there is no such group.
pub fn group_number(path: &Path, group: &str) -> Result<u32, BindError> {
    let found = nix::unistd::Group::from_name(group).map_err(|errno| BindError::System {
        what: "look up the group of",
        path: path.to_owned(),
        source: errno.into(),
    })?;
    found.map(|found| found.gid.as_raw()).ok_or_else(|| BindError::NoGroup(group.to_owned()))
}

/// Binds a socket for this user, or for the members of a group, and has `place` put it at its path: bound inside a folder nobody else
/// can enter, and narrowed there, so that at no moment anybody else can connect.
pub(crate) fn bind_unseen(
    path: &Path,
    group: Option<u32>,
    place: fn(&Path, &Path) -> io::Result<()>,
) -> Result<StdListener, BindError> {
    let system = |what, path: &Path| {
        let path = path.to_owned();
        move |source| BindError::System { what, path, source }
    };
    let hidden = path.with_file_name(format!(".v{}", std::process::id()));
    let _ = fs::remove_dir_all(&hidden);
    DirBuilder::new().mode(0o700).create(&hidden).map_err(system("create", &hidden))?;
    let bound = hidden.join("s");
    let listener = StdListener::bind(&bound).map_err(system("bind", &bound)).and_then(|listener| {
        if group.is_some() {
            chown(&bound, None, group).map_err(system("give to its group", &bound))?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        fs::set_permissions(&bound, Permissions::from_mode(mode)).map_err(system("protect", &bound))?;
        place(&bound, path).map_err(system("create", path))?;
        listener.set_nonblocking(true).map_err(system("set up", path))?;
        Ok(listener)
    });
    let _ = fs::remove_dir_all(&hidden);
    listener
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

/// Connects to a socket, or says why not at once: of a process that takes nobody in, its queue may be full.
fn try_connect(path: &Path) -> io::Result<()> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?)
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
    match try_connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(system("remove the stale socket"))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(system("connect to")(error)),
        // It answers, or is too busy to: alive in both cases.
        _ => Err(BindError::Running(path.to_owned())),
    }
}
