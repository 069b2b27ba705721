//! Clients of every sort: in another language, many at once, ones that speak no gRPC, ones that never read; and a switch that is killed
//! while they change it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tests::api::{self, Api, NETWORKS};
use tests::{Daemon, Netns, Process, Workdir, binary, process};
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use vswitch_api::v1::configuration_client::ConfigurationClient;
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::*;

/// The example of the docs is what it says it is.
#[test]
fn api_the_python_example_does_what_it_says() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let stubs = Workdir::new("stubs");
    let (proto, out) = (binary::workspace().join("vswitch/proto"), stubs.path().display().to_string());
    let (proto, example) = (proto.display(), binary::workspace().join("vswitch/examples/client.py"));
    process::run(&[
        "bash",
        "-c",
        &format!(
            "protoc -I {proto} --python_out={out} --grpc_python_out={out} \
             --plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin {proto}/vswitch/v1/*.proto"
        ),
    ]);
    let (socket, example) = (daemon.socket().display().to_string(), example.display().to_string());
    let said = process::run(&["env", &format!("PYTHONPATH={out}"), "/usr/bin/python3", &example, &socket]);
    for word in ["both are up", "INVALID_ARGUMENT", "'vnic.mac'", "gone; 0 vNICs are left"] {
        assert!(said.contains(word), "'{word}' is missing: {said}");
    }
    daemon.end();
}

/// Two tenants whose packets must not notice: marked datagrams, of which none may be lost.
struct Tenants {
    sender: Process,
    _netns: [Netns; 2],
    _dir: Workdir,
}

/// Changes of locations under a stream that is never read.
const CHANGES: u32 = 20_000;
/// Pings so many times, a hundred times a second.
const PINGS: u32 = 600;

impl Tenants {
    fn start(host: &Netns, api: &mut Api) -> Self {
        let netns = [("vm1", 1), ("vm2", 2)].map(|(name, number)| {
            api.create(Spec::Vnic(api::tap_vnic(name, "red", number))).unwrap();
            api::plug(host, name, number)
        });
        netns[0].run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", "10.0.0.2"]);
        let dir = Workdir::new("pings");
        let line = format!("ping -q -i 0.01 -c {PINGS} -W 2 10.0.0.2");
        let sender = netns[0].spawn("ping", &line.split(' ').collect::<Vec<_>>(), &dir);
        Self { sender, _netns: netns, _dir: dir }
    }

    fn end(mut self) {
        let status = self.sender.wait(Duration::from_secs(60));
        let said = self.sender.output();
        assert!(status.success() && said.contains(&format!("{PINGS} received, 0% packet loss")), "{said}");
    }
}

/// What HTTP/2 begins with, and the frames that a client sends first (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn raw(socket: &Path, bytes: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // Who hangs up in the middle is not waited for.
    let _ = stream.write_all(bytes);
    stream
}

#[test]
fn api_garbage_and_clients_that_never_read_harm_nobody() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let tenants = Tenants::start(&host, &mut api);

    // A few bytes of a preface, a preface and nothing, frames that lie about their lengths, a frame of every type.
    let mut held: Vec<UnixStream> = Vec::new();
    for length in 1..PREFACE.len() {
        held.push(raw(daemon.socket(), &PREFACE[..length]));
    }
    let mut random = 7u32;
    for kind in 0..=255u8 {
        let garbage: Vec<u8> = (0..200)
            .map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 24) as u8
            })
            .collect();
        let mut bytes = PREFACE.to_vec();
        bytes.extend([0, kind, garbage[0], kind, garbage[1], 0, 0, 0, 1]);
        bytes.extend(&garbage);
        drop(raw(daemon.socket(), &bytes));
    }
    // More than there are places for: those that came first and asked nothing see their connection closed.
    held.extend((0..300).map(|_| raw(daemon.socket(), PREFACE)));
    let is_closed = |stream: &mut UnixStream| {
        let mut byte = [0; 64];
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        loop {
            match stream.read(&mut byte) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    };
    let closed = held.iter_mut().take(20).filter_map(|stream| is_closed(stream).then_some(())).count();
    assert_eq!(closed, 20, "there are too many of them");
    assert!(api.get(Kind::Vpc, "red").is_ok(), "who was there before is served");
    assert!(daemon.ctl("show vpc").contains("red"), "who asks something finds a place");
    drop(held);
    std::thread::sleep(Duration::from_millis(200));

    // A stream that is never read, beside more changes than wait for anybody, and than the buffers on the way hold.
    let mut silent = Api::connect(daemon.socket());
    let mut stream = silent.watch(&[Kind::Location]);
    let began = Instant::now();
    for round in 0..CHANGES {
        let number = (round % 200) as u8 + 10;
        match round / 200 % 2 {
            0 => drop(api.create(api::location(100, number)).unwrap()),
            _ => drop(api.delete(Kind::Location, &format!("100 10.0.0.{number}")).unwrap()),
        }
    }
    eprintln!("{CHANGES} changes of locations, each an answer: {:?}", began.elapsed());
    // It is told that it has missed something, if it reads ever.
    let mut read = 0u32;
    let refused = silent.runtime.block_on(async {
        loop {
            let next = tokio_stream::StreamExt::next(&mut stream);
            match tokio::time::timeout(Duration::from_secs(10), next).await {
                Ok(Some(Ok(_))) => read += 1,
                Ok(Some(Err(status))) => return status,
                other => panic!("{other:?} after {read} messages"),
            }
        }
    });
    eprintln!("the client that never read was told after {read} messages");
    // By the switch, or by its own library, which takes so many small messages unread for an attack.
    let told = refused.message().contains("watch anew") && refused.code() == Code::DataLoss;
    assert!((told || refused.message().contains("h2 protocol error")) && read < CHANGES, "{refused:?}");
    // So many may watch, and no more; who goes makes room.
    let streams: Vec<_> = (0..64).map(|_| silent.watch(&[Kind::Vpc])).collect();
    let request = WatchRequest { kinds: Vec::new() };
    let refused = silent.runtime.block_on(silent.objects.watch(request)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    drop(streams);
    drop(silent);
    let free = || {
        let mut another = Api::connect(daemon.socket());
        let request = WatchRequest { kinds: Vec::new() };
        another.runtime.block_on(another.objects.watch(request)).ok().map(drop)
    };
    tests::wait_for("a place to watch from", Duration::from_secs(10), free);
    tenants.end();
    api.delete(Kind::Vnic, "vm1").unwrap();
    api.delete(Kind::Vnic, "vm2").unwrap();
    daemon.end();
}

/// Answers that wait for their clients, and requests that one connection has.
const UNREAD: usize = 256;
const STREAMS: usize = 96;

/// A client that gives the answers of its requests no room at all.
async fn never_reads(socket: &Path) -> ConfigurationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    ConfigurationClient::new(endpoint.initial_stream_window_size(0).connect().await.unwrap())
}

#[test]
fn api_answers_that_nobody_reads_are_bounded_for_all_clients_together() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    // More than wait for anybody, on connections that have all their streams.
    let asked = (UNREAD / STREAMS + 2) * STREAMS;
    let mut calls = JoinSet::new();
    api.runtime.block_on(async {
        for _ in 0..asked / STREAMS {
            let client = never_reads(daemon.socket()).await;
            for _ in 0..STREAMS {
                let mut client = client.clone();
                calls.spawn(async move { client.get_config(GetConfigRequest {}).await });
            }
        }
        // Those too many are refused; the others have no end.
        for _ in UNREAD..asked {
            let ended = tokio::time::timeout(Duration::from_secs(60), calls.join_next()).await.unwrap();
            let refused = ended.unwrap().unwrap().unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        }
        let ended = tokio::time::timeout(Duration::from_secs(10), calls.join_next()).await;
        assert!(ended.is_err(), "{ended:?}");
        calls.shutdown().await;
    });
    // Who goes makes room.
    assert!(api.get(Kind::Vpc, "red").is_ok());
    daemon.end();
}

#[test]
fn api_two_hundred_clients_ask_at_once_and_all_are_answered() {
    const CLIENTS: usize = 200;
    const CALLS: usize = 50;
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let tenants = Tenants::start(&host, &mut api);
    let mut clients: Vec<Api> = (0..CLIENTS - 1).map(|_| Api::connect(daemon.socket())).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(move || {
                for _ in 0..CALLS {
                    let entry = client.get(Kind::Vpc, "red").unwrap();
                    assert!(matches!(entry.object.unwrap().spec, Some(Spec::Vpc(_))));
                }
            });
        }
    });
    let calls = (CLIENTS - 1) * CALLS;
    eprintln!("{calls} calls of {} clients: {:?}", CLIENTS - 1, began.elapsed());
    drop(clients);
    tenants.end();
    api.delete(Kind::Vnic, "vm1").unwrap();
    api.delete(Kind::Vnic, "vm2").unwrap();
    daemon.end();
}

/// Kills the switch in the middle of changes so many times: what was acknowledged is there afterwards, and nothing else.
fn kill_in_the_middle(times: usize) {
    let host = Netns::new("host");
    let state = Workdir::new("state");
    let path = state.path().join("state");
    let config = format!("[control]\nstate = \"{}\"\n{NETWORKS}", path.display());
    let mut daemon = Daemon::start(&host, &config);
    let mut there: Vec<u32> = Vec::new();
    let (mut next, mut random) = (0u32, 1u32);
    for round in 0..times {
        let socket = daemon.socket().to_owned();
        let killed = AtomicBool::new(false);
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let pause = Duration::from_micros(u64::from(random >> 12) % 60_000);
        let pid = daemon.process().pid().to_string();
        // What was asked for last has no answer: it may be there, or not.
        let open = std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                let mut api = Api::connect(&socket);
                loop {
                    let name = format!("v{next}");
                    let done = if next % 3 == 2 && !there.is_empty() {
                        let gone = there.remove(0);
                        match api.delete(Kind::Vpc, &format!("v{gone}")) {
                            Ok(_) => Ok(()),
                            Err(status) => Err((status, gone)),
                        }
                    } else {
                        let made = api.create(api::vpc(&name, 1000 + next)).map(|_| there.push(next));
                        made.map_err(|status| (status, next))
                    };
                    next += 1;
                    if let Err((status, open)) = done {
                        assert!(killed.load(Ordering::Acquire), "a change was refused: {status:?}");
                        return open;
                    }
                }
            });
            std::thread::sleep(pause);
            killed.store(true, Ordering::Release);
            process::run(&["kill", "-KILL", &pid]);
            changes.join().unwrap()
        });
        daemon.process().wait(Duration::from_secs(10));
        daemon.restart(&host);
        let mut api = Api::connect(daemon.socket());
        let found = api.list(Kind::Vpc, 1000);
        let found: Vec<u32> = found
            .iter()
            .filter_map(|entry| entry.key.as_ref().unwrap().id.strip_prefix('v').map(|n| n.parse().unwrap()))
            .collect();
        for n in &there {
            assert!(found.contains(n), "round {round}: VPC v{n} was acknowledged and is gone");
        }
        for n in &found {
            assert!(there.contains(n) || *n == open, "round {round}: VPC v{n} was deleted and is back");
        }
        there = found;
    }
    eprintln!("{times} kills, {next} changes, {} VPCs at the end", there.len());
    daemon.end();
}

#[test]
fn api_kill_loses_nothing_that_was_acknowledged() {
    kill_in_the_middle(10);
}

#[test]
#[ignore = "minutes: run by scripts/test --full"]
fn api_kill_two_hundred_times_loses_nothing_that_was_acknowledged() {
    kill_in_the_middle(200);
}

/// Members of a group look at the switch and change nothing.
#[test]
fn api_readers_have_a_socket_of_their_own() {
    let host = Netns::new("host");
    // The harness writes `[api]` itself; its group goes behind the socket.
    let daemon = Daemon::start(&host, NETWORKS);
    drop(Api::connect(daemon.socket()));
    let program = binary::release("vswitch").display().to_string();
    let text = std::fs::read_to_string(daemon.config()).unwrap();
    daemon.end();

    let dir = Workdir::new("readers");
    let socket = dir.path().join("s.sock");
    let config = |group: &str| {
        let of_api = |line: &str| match line.strip_prefix("socket = ") {
            Some(_) => format!("socket = \"{}\"\ngroup = \"{group}\"", socket.display()),
            None => line.to_owned(),
        };
        text.lines().map(of_api).collect::<Vec<_>>().join("\n")
    };
    let path = dir.write("none.toml", &config("nobody-is-in-it")).display().to_string();
    let output = process::try_run(&[&program, "run", "--config", &path]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("there is no group \"nobody-is-in-it\""), "{said}");

    let path = dir.write("group.toml", &config("nogroup")).display().to_string();
    let mut running = host.spawn("vswitch", &[&program, "run", "--config", &path], &dir);
    running.wait_output("the switch runs", Duration::from_secs(30));
    let reading = dir.path().join("s-read.sock");
    let mode = |path: &Path| {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o777
    };
    assert_eq!((mode(&socket), mode(&reading)), (0o600, 0o660));
    // As somebody who is in the group, and nobody else.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let opens = |path: &Path| {
        let address = format!("UNIX-CONNECT:{}", path.display());
        let line =
            ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "socat", "-u", "/dev/null"];
        process::try_run(&[&line[..], &[address.as_str()]].concat()).status.success()
    };
    assert!(opens(&reading) && !opens(&socket));

    let mut reader = Api::connect(&reading);
    assert_eq!(reader.list(Kind::Vpc, 10).len(), 1);
    let mut watch = reader.watch(&[Kind::Vpc]);
    reader.next(&mut watch);
    let refused = [
        reader.create(api::vpc("blue", 200)).unwrap_err(),
        reader.update(api::vpc("red", 200), &["vni"]).unwrap_err(),
        reader.delete(Kind::Vpc, "red").unwrap_err(),
        reader.apply(vec![api::creation(api::vpc("blue", 200))], None).unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(status.message().contains("its owner's socket takes changes"), "{status:?}");
    }
    // So many of them may watch, and the owner whatever they do.
    let streams: Vec<_> = (0..63).map(|_| reader.watch(&[Kind::Vpc])).collect();
    let request = WatchRequest { kinds: Vec::new() };
    let refused = reader.runtime.block_on(reader.objects.watch(request)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let mut owner = Api::connect(&socket);
    let mut watched = owner.watch(&[Kind::Vpc]);
    owner.next(&mut watched);
    drop((streams, watched));
    // A console is a client like any other.
    let path = reading.display().to_string();
    let typed = |line: &str| process::try_run(&[&program, "ctl", "--socket", &path, line]);
    assert!(String::from_utf8_lossy(&typed("show vpc").stdout).contains("red"));
    for line in ["vpc del red", "save /tmp/secrets", "stop", "shutdown"] {
        let refused = typed(line);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains("its owner's socket takes changes"),
            "{line}: {said}"
        );
    }
    assert!(Api::connect(&socket).create(api::vpc("blue", 200)).is_ok());
    assert_eq!(reader.list(Kind::Vpc, 10).len(), 2);
    running.signal("TERM");
    assert!(running.wait(Duration::from_secs(15)).success(), "{}", running.output());
    assert!(!socket.exists() && !reading.exists());
}

/// A folder that the system keeps for a service is where its state is; and what a reload would change is told before.
#[test]
fn api_a_service_keeps_its_state_and_tells_what_a_reload_would_change() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let text = std::fs::read_to_string(daemon.config()).unwrap();
    daemon.ctl("vpc add green vni 300");
    let other = text.replace("vni = 100", "vni = 101").replace("mtu = 1600", "mtu = 1700");
    let other = format!("{other}\n[[vpc]]\nname = \"blue\"\nvni = 200\n[vxlan]\nttl = 9\n");
    let file = daemon.dir().write("other.toml", &other).display().to_string();
    let told = daemon.ctl(&format!("config diff {file}"));
    assert_eq!(told, "+ uplink up\n+ vpc red\n+ vpc blue\n+ [vxlan]\n", "what was made at run time stays");
    assert_eq!(daemon.ctl(&format!("config diff {}", daemon.config().display())), "nothing\n");
    let collides = text.replace(
        "name = \"red\"\nvni = 100",
        "name = \"red\"\nvni = 100\n[[vpc]]\nname = \"green\"\nvni = 301",
    );
    let file = daemon.dir().write("collides.toml", &collides).display().to_string();
    let refused = daemon.try_ctl(&format!("config diff {file}")).unwrap_err();
    assert!(refused.contains("vpc green was added at run time"), "{refused}");
    assert!(daemon.json("show vpc").to_string().contains("green"));
    let program = daemon.program().display().to_string();
    let path = daemon.config().display().to_string();
    daemon.ctl("shutdown");
    let mut daemon = daemon;
    daemon.assert_clean_end();

    let state = Workdir::new("service");
    let run = || {
        let folder = format!("STATE_DIRECTORY={}", state.path().display());
        let mut running =
            host.spawn("vswitch", &["env", &folder, &program, "run", "--config", &path], &state);
        running.wait_output("the switch runs", Duration::from_secs(30));
        running
    };
    let mut running = run();
    Api::connect(daemon.socket()).create(api::vpc("kept", 777)).unwrap();
    running.signal("KILL");
    running.wait(Duration::from_secs(10));
    let mut running = run();
    assert!(Api::connect(daemon.socket()).get(Kind::Vpc, "kept").is_ok());
    running.signal("TERM");
    assert!(running.wait(Duration::from_secs(15)).success());
    assert!(state.path().join("state.rcft").exists(), "admitted queue pairs outlive the service, too");
}
