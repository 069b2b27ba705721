//! Tests of the listening sockets, with real sockets.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use tokio::sync::mpsc;

use super::server::{BindError, Server};
use crate::api::{Accepted, Role};

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("vswitch-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A daemon in a thread: a server, and an API that counts who comes and sends all away.
struct Daemon {
    thread: Option<JoinHandle<u32>>,
    stop: Option<mpsc::Sender<()>>,
}

impl Daemon {
    fn start(path: &Path) -> Self {
        let server = Server::bind(path).unwrap();
        let (stop, mut stopped) = mpsc::channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let (clients, mut coming) = mpsc::channel::<Accepted>(1);
                let serving = tokio::spawn(server.serve(clients));
                let mut came = 0;
                loop {
                    tokio::select! {
                        Some(accepted) = coming.recv() => {
                            assert_eq!(accepted.role(), Role::Owner);
                            came += 1;
                        }
                        _ = stopped.recv() => break,
                    }
                }
                drop(coming);
                serving.await.unwrap().unwrap();
                came
            })
        });
        Self { thread: Some(thread), stop: Some(stop) }
    }

    /// How many came.
    fn end(mut self) -> u32 {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Connects, and waits until it is sent away.
fn come(path: &Path) {
    let mut stream = UnixStream::connect(path).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn the_socket_is_for_its_user_alone_and_goes_with_the_server() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder.socket());
    let mode = fs::symlink_metadata(folder.socket()).unwrap();
    assert!(mode.file_type().is_socket());
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing but the socket");
    daemon.end();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "not even the socket");
}

#[test]
fn a_missing_folder_is_made_and_a_long_path_refused() {
    let folder = Folder::new();
    let deep = folder.0.join("a/b/s.sock");
    drop(Server::bind(&deep).unwrap());
    assert!(deep.parent().unwrap().is_dir());
    let long = folder.0.join("x".repeat(120));
    assert!(matches!(Server::bind(&long), Err(BindError::System { .. })));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn a_path_in_use_is_refused_and_left_alone() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder.socket());
    let error = Server::bind(&folder.socket()).unwrap_err();
    assert!(error.to_string().contains("another vswitch is running on"), "{error}");
    assert!(error.to_string().contains("choose another [api] socket or stop it"), "{error}");
    come(&folder.socket());
    daemon.end();

    fs::write(folder.socket(), "precious").unwrap();
    let error = Server::bind(&folder.socket()).unwrap_err();
    assert!(error.to_string().contains("is a file, not a socket"), "{error}");
    assert_eq!(fs::read_to_string(folder.socket()).unwrap(), "precious");
    fs::remove_file(folder.socket()).unwrap();

    fs::create_dir(folder.socket()).unwrap();
    assert!(matches!(Server::bind(&folder.socket()), Err(BindError::NotASocket { what: "a folder", .. })));
    fs::remove_dir(folder.socket()).unwrap();

    std::os::unix::fs::symlink("/nowhere", folder.socket()).unwrap();
    let error = Server::bind(&folder.socket()).unwrap_err();
    assert!(matches!(error, BindError::NotASocket { what: "a symbolic link", .. }), "{error}");
}

#[test]
fn a_stale_socket_is_replaced() {
    let folder = Folder::new();
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(folder.socket().exists());
    let daemon = Daemon::start(&folder.socket());
    come(&folder.socket());
    daemon.end();
}

#[test]
fn of_many_that_start_at_once_one_gets_the_socket() {
    // Each round is a race that goes wrong now and then only; so there are many.
    for _ in 0..100 {
        let folder = Folder::new();
        drop(UnixListener::bind(folder.socket()).unwrap());
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Server::bind(&folder.socket()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            assert!(matches!(error, BindError::Running(_)), "{error}");
        }
    }
}

#[test]
fn nobody_else_keeps_a_socket_from_being_opened() {
    let folder = Folder::new();
    // What anybody may lock who may look into the folder.
    let held = fs::File::open(&folder.0).unwrap();
    held.lock().unwrap();
    drop(Server::bind(&folder.socket()).unwrap());

    // A lock that a dead process left holds nobody up, and one that others could hold is not used.
    let lock = folder.0.join("s.sock.lock");
    let private = |mode| fs::Permissions::from_mode(mode);
    fs::write(&lock, "4000000").unwrap();
    fs::set_permissions(&lock, private(0o644)).unwrap();
    let error = Server::bind(&folder.socket()).unwrap_err();
    assert!(matches!(error, BindError::LockOfOthers(_)), "{error}");
    fs::set_permissions(&lock, private(0o600)).unwrap();
    drop(Server::bind(&folder.socket()).unwrap());
    assert!(!lock.exists());
    std::os::unix::fs::symlink(folder.0.join("elsewhere"), &lock).unwrap();
    assert!(matches!(Server::bind(&folder.socket()), Err(BindError::System { what: "open", .. })));
    assert!(!folder.0.join("elsewhere").exists());
}

#[test]
fn who_holds_the_lock_of_a_socket_is_told() {
    let folder = Folder::new();
    let mut held = fs::OpenOptions::new();
    let held = held.write(true).create_new(true).mode(0o600).open(folder.0.join("s.sock.lock")).unwrap();
    held.lock().unwrap();
    (&held).write_all(b"77").unwrap();
    let error = Server::bind(&folder.socket()).unwrap_err().to_string();
    assert!(error.starts_with("process 77 holds ") && error.contains("s.sock.lock"), "{error}");
    drop(held);
    drop(Server::bind(&folder.socket()).unwrap());
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_replaced_socket_is_not_removed() {
    let folder = Folder::new();
    let server = Server::bind(&folder.socket()).unwrap();
    fs::remove_file(folder.socket()).unwrap();
    let _other = UnixListener::bind(folder.socket()).unwrap();
    drop(server);
    assert!(folder.socket().exists());
}

#[test]
fn all_who_come_are_handed_over() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder.socket());
    for _ in 0..20 {
        come(&folder.socket());
    }
    assert_eq!(daemon.end(), 20);
}

#[test]
fn a_switch_that_takes_nobody_in_is_alive_and_holds_up_nobody() {
    let folder = Folder::new();
    let address = UnixAddr::new(&folder.socket()).unwrap();
    let open =
        || socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    let silent = open();
    socket::bind(silent.as_raw_fd(), &address).unwrap();
    socket::listen(&silent, Backlog::new(1).unwrap()).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        let client = open();
        if let Err(error) = socket::connect(client.as_raw_fd(), &address) {
            break error;
        }
        waiting.push(client);
        assert!(waiting.len() < 10, "its queue has no end");
    };
    assert_eq!(full, Errno::EAGAIN);
    let begun = Instant::now();
    assert!(matches!(Server::bind(&folder.socket()), Err(BindError::Running(_))));
    assert!(begun.elapsed() < Duration::from_secs(5));
}
