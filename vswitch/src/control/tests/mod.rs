//! Tests of both ends of the socket, with real sockets.

mod terminal;

use std::fs;
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::client::{Client, ClientError};
use super::guard::Fault;
use super::protocol::{Ask, MAX_REQUEST, answer};
use super::server::{BindError, Call, Caller, Server};
use crate::console::repl::{self, Ending, ReplOptions, Session};
use crate::console::{Command, CommandError, Console, Output};

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

fn console() -> Console<u64> {
    Console::new([
        Command {
            syntax: "count",
            help: "Count up",
            run: |n, _| {
                *n += 1;
                Ok(Output::new(format!("{n}"), json!({ "count": n })))
            },
        },
        Command {
            syntax: "big <size:size>",
            help: "Say much",
            run: |_, args| {
                let size = args.get::<crate::config::ByteSize>("size")?.bytes() as usize;
                Ok(Output::message("x".repeat(size)))
            },
        },
        Command { syntax: "panic", help: "Go wrong", run: |_, _| panic!("a fault") },
        Command { syntax: "fail", help: "Fail", run: |_, _| Err(CommandError::new("as you asked")) },
    ])
    .unwrap()
}

/// A daemon in a thread: a server, and an owner that counts.
struct Daemon {
    thread: Option<JoinHandle<()>>,
    caller: Caller,
    stop: mpsc::Sender<()>,
}

impl Daemon {
    fn start(path: &Path) -> Self {
        let server = Server::bind(path).unwrap();
        let (calls, mut waiting) = mpsc::channel::<Call>(16);
        let (stop, mut stopped) = mpsc::channel(1);
        let caller = Caller::new(calls.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let owner = async move {
                    let (console, mut count) = (console(), 0);
                    while let Some(Call { request, reply }) = waiting.recv().await {
                        let suspect = |count: &mut u64, _: &Fault| *count += 1000;
                        let _ = reply.send(answer(&console, &mut count, &request, suspect));
                    }
                };
                tokio::select! {
                    served = server.serve(calls, mpsc::channel(1).0) => served.unwrap(),
                    () = owner => {}
                    _ = stopped.recv() => {}
                }
            });
        });
        Self { thread: Some(thread), caller, stop }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.stop.blocking_send(());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok());
        }
    }
}

fn raw(path: &Path) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    BufReader::new(stream)
}

fn exchange(stream: &mut BufReader<UnixStream>, line: &[u8]) -> Value {
    stream.get_mut().write_all(line).unwrap();
    let mut reply = String::new();
    stream.read_line(&mut reply).unwrap();
    serde_json::from_str(&reply).unwrap()
}

#[test]
fn commands_and_completions_go_over_the_socket() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    let mut client = Client::connect(&folder.socket()).unwrap();
    let reply = client.command("count", false).unwrap();
    assert_eq!((reply.ok, reply.text.as_str(), reply.json), (true, "1", Value::Null));
    let reply = client.command("co", true).unwrap();
    assert_eq!((reply.text.as_str(), reply.json), ("", json!({ "count": 2 })));
    let reply = client.command("cuont", false).unwrap();
    assert!(!reply.ok && reply.column == Some(1) && reply.error.unwrap().contains("did you mean count?"));
    assert_eq!(client.complete("c").unwrap().completion().candidates[0].text, "count");
    assert_eq!(client.command("big 3MB", false).unwrap().text.len(), 3_000_000);
}

#[test]
fn the_socket_is_for_its_user_alone_and_goes_with_the_server() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder.socket());
    let mode = fs::symlink_metadata(folder.socket()).unwrap();
    assert!(mode.file_type().is_socket());
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing but the socket");
    drop(daemon);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "not even the socket");
    assert!(matches!(Client::connect(&folder.socket()), Err(ClientError::NotRunning(_))));
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
    assert!(Client::connect(&folder.socket()).unwrap().command("count", false).unwrap().ok);
    drop(daemon);

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
    assert!(matches!(Client::connect(&folder.socket()), Err(ClientError::NotRunning(_))));
    let _daemon = Daemon::start(&folder.socket());
    assert!(Client::connect(&folder.socket()).unwrap().command("count", false).unwrap().ok);
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
fn a_replaced_socket_is_not_removed() {
    let folder = Folder::new();
    let server = Server::bind(&folder.socket()).unwrap();
    fs::remove_file(folder.socket()).unwrap();
    let _other = UnixListener::bind(folder.socket()).unwrap();
    drop(server);
    assert!(folder.socket().exists());
}

#[test]
fn bad_requests_are_answered_and_the_connection_goes_on() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    let mut stream = raw(&folder.socket());
    let count = b"{\"id\": 9, \"command\": \"count\"}\n";
    for bad in [&b"nonsense\n"[..], b"{}\n", b"\xff\xfe\n", b"{\"command\": 1}\n"] {
        let reply = exchange(&mut stream, bad);
        assert_eq!(reply["ok"], false);
        assert!(reply["error"].as_str().unwrap().len() > 10);
    }
    assert_eq!(exchange(&mut stream, b"\n\n{\"id\": 9, \"command\": \"count\"}\n")["id"], 9);
    let mut megabyte = vec![b'x'; 1_000_000];
    megabyte.push(b'\n');
    let reply = exchange(&mut stream, &megabyte);
    assert!(reply["error"].as_str().unwrap().contains("65536 bytes"), "{reply}");
    assert_eq!(exchange(&mut stream, count)["text"], "2");
    // At the bound, and one over it.
    for (length, ok) in [(MAX_REQUEST, true), (MAX_REQUEST + 1, false)] {
        let mut line = br#"{"id": 1, "command": "count"}"#.to_vec();
        line.resize(length, b' ');
        line.push(b'\n');
        assert_eq!(exchange(&mut stream, &line)["ok"], ok, "{length}");
    }
}

#[test]
fn several_requests_in_one_write_are_answered_in_order() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    let mut stream = raw(&folder.socket());
    let lines: String = (1..=50).map(|id| format!("{{\"id\": {id}, \"command\": \"count\"}}\n")).collect();
    stream.get_mut().write_all(lines.as_bytes()).unwrap();
    for id in 1..=50u64 {
        let mut reply = String::new();
        stream.read_line(&mut reply).unwrap();
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!((reply["id"].as_u64(), reply["text"].as_str()), (Some(id), Some(id.to_string().as_str())));
    }
}

#[test]
fn slow_silent_and_dead_clients_hinder_nobody() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    let mut good = Client::connect(&folder.socket()).unwrap();
    let silent = raw(&folder.socket());
    let mut half = raw(&folder.socket());
    half.get_mut().write_all(b"{\"id\": 1, \"comm").unwrap();
    // Asks for more than the socket's buffer holds and reads none of it.
    let mut slow = raw(&folder.socket());
    slow.get_mut().write_all(b"{\"id\": 1, \"command\": \"big 8MiB\"}\n").unwrap();
    // Killed between request and answer, some of them in the middle of a line; more at a time than there are
    // places, so some are refused while they write.
    for n in 0..100 {
        let mut dead = raw(&folder.socket());
        let line = b"{\"id\": 1, \"command\": \"big 1MiB\"}\n";
        let _ = dead.get_mut().write_all(&line[..if n % 2 == 0 { line.len() } else { 10 }]);
    }
    let mut last = 0;
    for _ in 0..20 {
        let count: u64 = good.command("count", false).unwrap().text.parse().unwrap();
        assert!(count > last);
        last = count;
    }
    // The slow one gets its answer when it reads at last.
    let mut line = String::new();
    slow.read_line(&mut line).unwrap();
    assert!(line.len() > 8 << 20);
    drop((silent, half));
}

#[test]
fn two_clients_at_once_and_one_in_the_process() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder.socket());
    let total: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::connect(&folder.socket()).unwrap();
                    (0..200).filter(|_| client.command("count", false).unwrap().ok).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(total, 400);
    assert_eq!(daemon.caller.call(Ask::Command("count".into()), false).text, "401");
}

/// A handler that panics: an error for whoever asked, and the next request is answered as ever.
#[test]
fn repair_a_handler_that_panics_ends_nothing() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    let mut client = Client::connect(&folder.socket()).unwrap();
    assert_eq!(client.command("count", false).unwrap().text, "1");
    for _ in 0..3 {
        let reply = client.command("panic", false).unwrap();
        let error = reply.error.unwrap();
        assert!(
            !reply.ok && error.contains("a fault of the switch itself in \"panic\" (a fault)"),
            "{error}"
        );
    }
    assert_eq!(client.command("count", false).unwrap().text, "3002", "the owner was told each time");
}

/// Consoles that ask nothing lock nobody out: the one that was silent for longest makes room, and is told.
#[test]
fn repair_idle_clients_make_room() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    let mut silent: Vec<_> = (0..64).map(|_| raw(&folder.socket())).collect();
    // In the order of their places; half a request is none.
    silent[0].get_mut().write_all(b"{\"id\": 1, \"comm").unwrap();
    let count = b"{\"id\": 9, \"command\": \"count\"}\n";
    exchange(&mut silent[1], count);
    for n in 0..3 {
        let reply = Client::connect(&folder.socket()).unwrap().command("count", false).unwrap();
        assert!(reply.ok, "{n}: {reply:?}");
    }
    let mut told = String::new();
    silent[0].read_line(&mut told).unwrap();
    assert!(told.contains("asked nothing for longest") && told.contains("connect anew"), "{told}");
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "and the connection is closed");
    assert_eq!(exchange(&mut silent[1], count)["ok"], true, "the one that spoke later is there");
}

#[test]
fn clients_too_many_at_work_are_told_so() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    // At work as long as they take nothing of a long answer.
    let mut others: Vec<_> = (0..64).map(|_| raw(&folder.socket())).collect();
    for other in &mut others {
        other.get_mut().write_all(b"{\"id\": 1, \"command\": \"big 512KiB\"}\n").unwrap();
        other.get_ref().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(!other.fill_buf().unwrap().is_empty(), "its answer has begun");
    }
    let mut many = raw(&folder.socket());
    let mut told = String::new();
    many.read_line(&mut told).unwrap();
    assert!(told.contains("64 consoles already, all at work"), "{told}");
    assert_eq!(many.read(&mut [0]).unwrap(), 0, "and the connection is closed");
    let mut line = String::new();
    others[0].read_line(&mut line).unwrap();
    assert!(line.len() > 512 << 10);
    assert_eq!(exchange(&mut others[0], b"{\"id\": 9, \"command\": \"count\"}\n")["ok"], true);
}

#[test]
fn a_switch_that_goes_is_noticed() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder.socket());
    let mut client = Client::connect(&folder.socket()).unwrap();
    assert!(client.command("count", false).unwrap().ok);
    let caller = daemon.caller.clone();
    drop(daemon);
    let error = client.command("count", false).unwrap_err();
    assert!(matches!(error, ClientError::Gone { .. }), "{error}");
    assert!(!caller.call(Ask::Command("count".into()), false).ok);
}

#[test]
fn a_command_too_long_never_leaves_the_client() {
    let folder = Folder::new();
    let _daemon = Daemon::start(&folder.socket());
    let mut client = Client::connect(&folder.socket()).unwrap();
    let error = client.command(&"x".repeat(1_000_000), false).unwrap_err();
    assert!(matches!(error, ClientError::TooLong(_)), "{error}");
    assert!(client.command("count", false).unwrap().ok);
}

fn piped(session: impl Session, options: &ReplOptions, input: &[u8]) -> (Ending, String, String) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let ending = repl::on_pipe(session, options, &mut Cursor::new(input), &mut output, &mut errors).unwrap();
    (ending, String::from_utf8(output).unwrap(), String::from_utf8(errors).unwrap())
}

#[test]
fn a_console_on_a_pipe() {
    let folder = Folder::new();
    let daemon = Daemon::start(&folder.socket());
    let client = || Client::connect(&folder.socket()).unwrap();
    let plain = ReplOptions::default();
    let strict = ReplOptions { strict: true, ..ReplOptions::default() };
    assert_eq!(piped(client(), &plain, b"count\n# no\n\ncount"), (Ending::Clean, "1\n2\n".into(), "".into()));
    assert_eq!(piped(client(), &plain, b""), (Ending::Clean, "".into(), "".into()));
    let (ending, output, errors) = piped(client(), &plain, b"fail\ncuont\ncount\nexit\ncount\n");
    assert_eq!((ending, output.as_str()), (Ending::Clean, "3\n"));
    assert!(errors.starts_with("as you asked\ncolumn 1: \"cuont\""), "{errors}");
    let (ending, output, _) = piped(client(), &strict, b"count\nfail\ncount\n");
    assert_eq!((ending, output.as_str()), (Ending::Failed, "4\n"));
    let json = ReplOptions { json: true, ..ReplOptions::default() };
    assert_eq!(piped(client(), &json, b"count\n").1, "{\"count\":5}\n");

    let mut long = vec![b'x'; 1_000_000];
    long.extend_from_slice(b"\n\xff\xfe\ncount\n");
    let (ending, output, errors) = piped(client(), &plain, &long);
    assert_eq!((ending, output.as_str()), (Ending::Clean, "6\n"));
    assert!(errors.contains("bytes long"), "{errors}");
    assert_eq!(piped(daemon.caller.clone(), &plain, &long).1, "7\n");

    let lost = client();
    drop(daemon);
    let (ending, _, errors) = piped(lost, &plain, b"count\ncount\n");
    assert_eq!(ending, Ending::Lost);
    assert!(errors.contains("has gone") && errors.lines().count() == 1, "{errors}");
}
