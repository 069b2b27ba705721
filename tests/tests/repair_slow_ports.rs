//! A port that takes long to open holds up whoever asked for it, and nobody else: control answers all others meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};

use prost_types::FieldMask;
use tests::api::{self, Api, NETWORKS, problems};
use tests::{Daemon, Netns, Workdir, process};
use tonic::{Code, Status};
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::*;

/// Ports that are attached at a time.
const TAPS: usize = 40;
/// What an answer may take beside a port that takes seconds, on a machine that does other things, too.
const BOUND: Duration = Duration::from_millis(1500);

/// A folder in which nobody gets on: to make a socket there takes until somebody lets the file system go on.
fn frozen() -> (Workdir, String) {
    let dir = Workdir::new("frozen");
    let (image, at) = (dir.path().join("image").display().to_string(), dir.path().join("fs"));
    std::fs::create_dir(&at).unwrap();
    let at = at.display().to_string();
    process::run(&["truncate", "-s", "16M", &image]);
    process::run(&["mkfs.ext4", "-q", &image]);
    process::run(&["mount", "-o", "loop", &image, &at]);
    process::run(&["fsfreeze", "--freeze", &at]);
    (dir, at)
}

struct Thawed(String);

impl Drop for Thawed {
    fn drop(&mut self) {
        drop(process::try_run(&["fsfreeze", "--unfreeze", &self.0]));
        drop(process::try_run(&["umount", "-l", &self.0]));
    }
}

/// Changes the port of a vNIC, and waits for it.
fn replace_and_wait(api: &mut Api, vnic: Vnic, limit: Duration) -> Option<Result<Entry, Status>> {
    let request = UpdateRequest {
        object: Some(api::object(Spec::Vnic(vnic))),
        update_mask: Some(FieldMask { paths: vec!["port".into()] }),
        wait: true,
        ..Default::default()
    };
    let call = api.objects.update(request);
    let answer = api.runtime.block_on(async { tokio::time::timeout(limit, call).await });
    Some(answer.ok()?.map(tonic::Response::into_inner))
}

/// A vNIC on a file of frames.
fn filed_vnic(name: &str, number: u8, folder: &str) -> Vnic {
    let file = Some(format!("{folder}/{name}.pcap"));
    let pcap = port_spec::Pcap { tx_pcap: file, ..Default::default() };
    api::vnic(name, "red", number, port_spec::Kind::Pcap(pcap))
}

fn state(api: &mut Api, name: &str) -> State {
    api.get(Kind::Vnic, name).unwrap().status.unwrap().state()
}

/// How long the slowest of some answers of an idle client took while `busy` runs.
fn slowest_beside(socket: &std::path::Path, busy: std::thread::JoinHandle<()>) -> (Duration, usize) {
    let mut other = Api::connect(socket);
    let (mut slowest, mut answers) = (Duration::ZERO, 0);
    while !busy.is_finished() {
        let began = Instant::now();
        other.get(Kind::Vpc, "red").unwrap();
        other.runtime.block_on(other.observe.get_info(GetInfoRequest {})).unwrap();
        slowest = slowest.max(began.elapsed());
        answers += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    busy.join().unwrap();
    (slowest, answers)
}

#[test]
fn repair_control_answers_beside_ports_that_take_seconds() {
    let host = Netns::new("host");
    // Before the switch, whose namespace has the mounts of now.
    let (dir, at) = frozen();
    let thawed = Thawed(at.clone());
    let daemon = Daemon::start(&host, NETWORKS);
    // By the console, by a client that waits, and by one that does not: each takes its three seconds, or less.
    let program = daemon.program().display().to_string();
    let socket = daemon.socket().to_owned();
    let console = {
        let (socket, at) = (socket.display().to_string(), at.clone());
        std::thread::spawn(move || {
            let command = format!("port attach slow pcap tx-pcap={at}/out.pcap");
            let began = Instant::now();
            let output = process::try_run(&[&program, "ctl", "--socket", &socket, &command]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && said.contains("pending"), "{output:?}");
            assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        })
    };
    let (slowest, answers) = slowest_beside(&socket, console);
    eprintln!("beside the console: {answers} answers, the slowest after {slowest:?}");
    assert!(answers > 20 && slowest < BOUND, "{answers} answers, the slowest after {slowest:?}");
    // A client that waits, for one that is refused in the end because its device is not there.
    let waiting = {
        let socket = socket.clone();
        std::thread::spawn(move || {
            let mut api = Api::connect(&socket);
            let tap = port_spec::Tap { iface: "t1".into(), ..Default::default() };
            let port = PortSpec { kind: Some(port_spec::Kind::Tap(tap)) };
            let port = Port { name: "behind".into(), port: Some(port), ..Default::default() };
            // The one thread that opens ports is with the slow one.
            let entry = api.create_and_wait(Spec::Port(port)).unwrap();
            assert_eq!(entry.status.unwrap().state(), State::Pending);
        })
    };
    let (slowest, answers) = slowest_beside(&socket, waiting);
    eprintln!("beside a client that waits: {answers} answers, the slowest after {slowest:?}");
    assert!(answers > 20 && slowest < BOUND, "{answers} answers, the slowest after {slowest:?}");
    // It goes on, and both come.
    drop(thawed);
    let mut api = Api::connect(&socket);
    for name in ["slow", "behind"] {
        tests::wait_for("the port", Duration::from_secs(20), || {
            (api.get(Kind::Port, name).ok()?.status?.state() == State::Up).then_some(())
        });
    }
    drop(dir);
    for name in ["slow", "behind"] {
        daemon.ctl(&format!("port detach {name}"));
    }
    daemon.end();
}

/// A port whose place another one takes goes first. Whoever changes it waits, and nobody else: neither who looks nor who changes
/// something else, ports among it.
#[test]
fn repair_control_answers_while_a_port_makes_room_for_another() {
    let host = Netns::new("host");
    let (dir, at) = frozen();
    let thawed = Thawed(at.clone());
    let daemon = Daemon::start(&host, NETWORKS);
    let socket = daemon.socket().to_owned();
    let mut api = Api::connect(&socket);
    let has = |name: &str| host.interfaces().iter().any(|iface| iface == name);
    for (name, number) in [("one", 1), ("two", 2)] {
        api.create_and_wait(Spec::Vnic(api::tap_vnic(name, "red", number))).unwrap();
        assert!(has(name) && state(&mut api, name) == State::Up);
    }
    let busy = {
        let (socket, at) = (socket.clone(), at.clone());
        std::thread::spawn(move || {
            let mut api = Api::connect(&socket);
            let entry = replace_and_wait(&mut api, filed_vnic("one", 1, &at), Duration::from_secs(60));
            assert_eq!(entry.unwrap().unwrap().status.unwrap().state(), State::Pending);
        })
    };
    let (mut slowest, mut answers, mut made_room) = (Duration::ZERO, 0, false);
    while !busy.is_finished() {
        let began = Instant::now();
        api.create(api::vpc("blue", 200)).unwrap();
        api.delete(Kind::Vpc, "blue").unwrap();
        assert_eq!(state(&mut api, "two"), State::Up);
        slowest = slowest.max(began.elapsed());
        answers += 1;
        made_room |= daemon.ctl("port list").contains("it makes room");
        std::thread::sleep(Duration::from_millis(10));
    }
    busy.join().unwrap();
    eprintln!("{answers} times two changes and a look, the slowest after {slowest:?}");
    assert!(answers > 10 && slowest < BOUND, "{answers} answers, the slowest after {slowest:?}");
    assert!(made_room && !has("one") && has("two"));
    // Somebody who goes away while a port has made room for his: it comes back when nobody has asked for a while.
    let gone = replace_and_wait(&mut api, filed_vnic("two", 2, &at), Duration::from_millis(300));
    assert!(gone.is_none(), "{gone:?}");
    // Somebody who is gone before a port of the same vNIC comes, and somebody who takes that away: the last word counts.
    api.create_and_wait(Spec::Vnic(api::tap_vnic("three", "red", 3))).unwrap();
    let gone = replace_and_wait(&mut api, filed_vnic("three", 3, &at), Duration::from_millis(300));
    assert!(gone.is_none(), "{gone:?}");
    api.delete(Kind::Vnic, "three").unwrap();
    drop(thawed);
    for name in ["one", "two"] {
        tests::wait_for("the port", Duration::from_secs(20), || {
            (state(&mut api, name) == State::Up).then_some(())
        });
    }
    assert!(has("two") && !has("one") && !has("three"));
    // One that cannot be opened is refused, and the one that made room is there again when the answer comes.
    let before = daemon.ctl("show config");
    let packet = port_spec::AfPacket { iface: "nosuch0".into(), ..Default::default() };
    let bad = api::vnic("two", "red", 2, port_spec::Kind::AfPacket(packet));
    let refused = replace_and_wait(&mut api, bad, Duration::from_secs(60)).unwrap().unwrap_err();
    assert!(problems(&refused)[0].2.contains("nosuch0"), "{refused:?}");
    assert!(has("two") && state(&mut api, "two") == State::Up && daemon.ctl("show config") == before);
    // One that can comes in its place.
    let tap = port_spec::Tap { iface: "other".into(), ..Default::default() };
    let good = api::vnic("two", "red", 2, port_spec::Kind::Tap(tap));
    let entry = replace_and_wait(&mut api, good, Duration::from_secs(60)).unwrap().unwrap();
    assert!(entry.status.unwrap().state() == State::Up && has("other") && !has("two"));
    for name in ["one", "two"] {
        api.delete(Kind::Vnic, name).unwrap();
    }
    drop(dir);
    daemon.end();
}

#[test]
fn repair_control_tells_who_waits_what_became_of_the_port() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let mut api = Api::connect(daemon.socket());
    let before = (daemon.ctl("show config"), daemon.ctl("port list"));
    // One that cannot be opened is refused, and nothing of it stays.
    let packet = port_spec::AfPacket { iface: "nosuch0".into(), ..Default::default() };
    let bad = Spec::Vnic(api::vnic("bad", "red", 9, port_spec::Kind::AfPacket(packet)));
    let refused = api.create_and_wait(bad.clone()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert_eq!(problems(&refused)[0].1, "vnic[name=bad].port.iface");
    assert!(problems(&refused)[0].2.contains("nosuch0"), "{refused:?}");
    assert_eq!((daemon.ctl("show config"), daemon.ctl("port list")), before);
    // One that can is up when the answer comes.
    let entry = api.create_and_wait(Spec::Vnic(api::tap_vnic("one", "red", 1))).unwrap();
    assert_eq!(entry.status.unwrap().state(), State::Up);
    // Without waiting it is there, and says why it is not up.
    let entry = api.create(bad).unwrap();
    assert!(matches!(entry.status.unwrap().state(), State::Pending | State::Down));
    api.delete(Kind::Vnic, "bad").unwrap();
    // What is wrong with a change is said at once, and no port is opened for it.
    let refused = api.create_and_wait(Spec::Vnic(api::tap_vnic("two", "nowhere", 2))).unwrap_err();
    assert!(refused.message().contains("nowhere"), "{refused:?}");
    assert!(!host.interfaces().iter().any(|name| name == "two"));
    // Clients that go away while they wait leave nothing.
    for number in 0..20 {
        let mut api = Api::connect(daemon.socket());
        let name = format!("gone{number}");
        let vnic = Spec::Vnic(api::tap_vnic(&name, "red", 20 + number));
        let request = CreateRequest { object: Some(api::object(vnic)), wait: true, ..Default::default() };
        let limit = Duration::from_millis(u64::from(number) * 2);
        let call = api.objects.create(request);
        drop(api.runtime.block_on(async { tokio::time::timeout(limit, call).await }));
    }
    tests::wait_for("what clients left behind to go", Duration::from_secs(30), || {
        let there: Vec<String> =
            api.list(Kind::Vnic, 100).into_iter().map(|entry| entry.key.unwrap().id).collect();
        host.interfaces()
            .iter()
            .filter(|name| name.starts_with("gone"))
            .all(|name| there.contains(name))
            .then_some(())
    });
    for entry in api.list(Kind::Vnic, 100) {
        api.delete(Kind::Vnic, &entry.key.unwrap().id).unwrap();
    }
    tests::wait_for("the taps to go", Duration::from_secs(20), || {
        (!host.interfaces().iter().any(|name| name.starts_with("gone") || name == "one")).then_some(())
    });
    assert_eq!((daemon.ctl("show config"), daemon.ctl("port list")), before);
    daemon.end();
}

#[test]
fn repair_control_answers_beside_many_that_attach_and_detach() {
    let host = Netns::new("host");
    let daemon = Daemon::start(&host, NETWORKS);
    let socket = daemon.socket().to_owned();
    let program = daemon.program().display().to_string();
    let busy = {
        let socket = socket.clone();
        std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for part in 0..4 {
                    let (socket, program) = (socket.display().to_string(), program.clone());
                    scope.spawn(move || {
                        for n in (part..TAPS).step_by(4) {
                            for command in
                                [format!("port attach t{n} veth iface=v{n}"), format!("port detach t{n}")]
                            {
                                let output =
                                    process::try_run(&[&program, "ctl", "--socket", &socket, &command]);
                                let attached = command.contains("attach");
                                // There is no such interface: refused each time; and then there is no such port.
                                assert!(!output.status.success() || !attached, "{output:?}");
                            }
                            let tap = format!("port attach p{n} tap iface=p{n}");
                            for command in [tap, format!("port detach p{n}")] {
                                let output =
                                    process::try_run(&[&program, "ctl", "--socket", &socket, &command]);
                                assert!(output.status.success(), "{command}: {output:?}");
                            }
                        }
                    });
                }
            });
        })
    };
    let (slowest, answers) = slowest_beside(&socket, busy);
    eprintln!("{answers} answers, the slowest after {slowest:?}");
    assert!(answers > 20 && slowest < BOUND, "{answers} answers, the slowest after {slowest:?}");
    assert_eq!(host.interfaces(), ["lo"]);
    daemon.end();
}
