//! Processes of the switch's own user at the socket for an upgrade that do not do what they came for: they say half a word, or hello and
//! then nothing, lie, or leave in the middle. They hold up nobody for long, whoever comes meanwhile hears why, and a real upgrade goes
//! through. What was stopped stays so, whoever goes on; and nothing is handed over to a process that would not have what was acknowledged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::outage::site::{Site, assert_short};
use tests::tls::Authority;
use tests::{Daemon, Family, Lab, Netns, Process, Scene, Workdir, runtime, wait_for};

/// What an outage may take on a machine with other work to do.
const MOST: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);
/// Beyond the processes that are listened to at a time.
const CROWD: usize = 40;

fn door(daemon: &Daemon) -> PathBuf {
    let mut path = daemon.socket().as_os_str().to_owned();
    path.push(".upgrade");
    path.into()
}

fn connect(door: &Path) -> UnixStream {
    let stream = UnixStream::connect(door).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn say(stream: &mut UnixStream, message: &Value) -> std::io::Result<()> {
    let body = message.to_string();
    stream.write_all(&[&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat())
}

fn hear(stream: &mut UnixStream) -> Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// Fails the test unless the switch hangs up; what it said before.
fn assert_hung_up(stream: &mut UnixStream) -> String {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    String::from_utf8_lossy(&rest).into_owned()
}

/// A process that has said hello and was let in.
fn guest(door: &Path) -> UnixStream {
    let begun = Instant::now();
    loop {
        let mut stream = connect(door);
        say(&mut stream, &json!({ "hello": { "version": 1 } })).unwrap();
        let answer = hear(&mut stream);
        if answer["ready"]["version"] == 1 {
            return stream;
        }
        // The one before it is given up when its time is over.
        assert!(begun.elapsed() < PATIENCE, "{answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn half(door: &Path) -> UnixStream {
    let mut stream = connect(door);
    stream.write_all(b"\0\0\0\x19{\"hel").unwrap();
    stream
}

#[test]
fn upgrade_is_not_held_up_by_processes_that_hang_or_lie() {
    let mut site = Site::start();
    let probe = site.probe();
    let door = door(&site.daemon);
    // Half a word, from several at once: it goes through beside them.
    let halves: Vec<UnixStream> = (0..10).map(|_| half(&door)).collect();
    site.daemon.upgrade(&site.lab.host);
    drop(halves);
    // From more than are listened to: those beyond hear so at once, and the others are sent away.
    let mut halves: Vec<UnixStream> = (0..CROWD).map(|_| half(&door)).collect();
    let said: Vec<String> = halves.iter_mut().map(assert_hung_up).collect();
    assert!(said.iter().any(|said| said.contains("have connected")), "{said:?}");
    assert!(said.iter().any(String::is_empty), "{said:?}");
    // Hello, and nothing but that it lives: the next one hears who it is, at once.
    let mut holder = guest(&door);
    let mut lives = holder.try_clone().unwrap();
    let living = std::thread::spawn(move || {
        while say(&mut lives, &json!("alive")).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut second = site.daemon.begin_upgrade(&site.lab.host);
    assert!(!second.wait(PATIENCE).success());
    let answer = second.output();
    let who = format!("process {} asked", std::process::id());
    assert!(answer.contains(&who) && answer.contains("about to take over"), "{answer}");
    site.daemon.ctl("show workers");
    holder.shutdown(std::net::Shutdown::Both).unwrap();
    living.join().unwrap();
    // Hello, and silence; garbage; a word of which half comes, or that nobody expects.
    assert_hung_up(&mut guest(&door));
    for words in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x04nope", b"\0\0\0\x06\"done\"", b"\0\0\0\x20{\"al"] {
        holder = guest(&door);
        holder.write_all(words).unwrap();
        assert_hung_up(&mut holder);
    }
    // It leaves in the middle, at each step.
    drop(guest(&door));
    holder = guest(&door);
    holder.write_all(b"\0\0\0\x08\"fre").unwrap();
    drop(holder);
    holder = guest(&door);
    say(&mut holder, &json!("freeze")).unwrap();
    drop(holder);
    // It has the tables, and says nothing; or takes none.
    for reads in [true, false] {
        holder = guest(&door);
        say(&mut holder, &json!("freeze")).unwrap();
        while reads && hear(&mut holder) != "complete" {}
        assert_hung_up(&mut holder);
        site.daemon.ctl("show workers");
    }
    // Nothing of that was an upgrade, and this one is.
    let before = site.daemon.process().pid();
    site.daemon.upgrade(&site.lab.host);
    assert_ne!(site.daemon.process().pid(), before);
    std::thread::sleep(Duration::from_millis(500));
    assert_short("beside processes that hang or lie", probe, MOST);
    site.daemon.settled();
    site.stop();
}

/// A process for which the switch lets everything go, and that ends then.
fn leave_with_everything(door: &Path) {
    let mut stream = guest(door);
    say(&mut stream, &json!("freeze")).unwrap();
    while hear(&mut stream) != "complete" {}
    say(&mut stream, &json!({ "take": { "beside": [] } })).unwrap();
    assert_eq!([hear(&mut stream), hear(&mut stream)], ["stopped", "released"]);
}

/// The API over TCP goes with the switch: to the new process, and back to the old one where that is none.
#[test]
fn upgrade_hands_the_api_over_tcp_on_and_takes_it_back() {
    const ADDRESS: &str = "127.0.0.1/7447";
    let host = Netns::new("host");
    host.ip("link set lo up");
    let authority = Authority::new(&["ca"]);
    authority.sign("switch", "ca", "DNS:switch.test", "-days 2");
    let at = |name: &str| authority.path(name).display().to_string();
    let tcp = format!(
        "tcp = {{ listen = \"127.0.0.1:7447\", certificate = \"{}\", key = \"{}\", client-ca = \"{}\", admins = [\"operator.test\"] }}\n",
        at("switch.pem"),
        at("switch.key"),
        at("ca.pem")
    );
    let mut daemon = Daemon::start_with_api(&host, "", &tcp);
    let connects = || {
        host.run(&["bash", "-c", &format!("(exec 3<>/dev/tcp/{ADDRESS}) 2>/dev/null && echo yes || echo no")])
    };
    let listens = || (connects().trim() == "yes").then_some(());
    listens().unwrap();
    let mut stream = guest(&door(&daemon));
    say(&mut stream, &json!("freeze")).unwrap();
    while hear(&mut stream) != "complete" {}
    say(&mut stream, &json!({ "take": { "beside": [] } })).unwrap();
    assert_eq!([hear(&mut stream), hear(&mut stream)], ["stopped", "released"]);
    wait_for("the old one to listen no more", Duration::from_secs(2), || listens().is_none().then_some(()));
    drop(stream);
    wait_for("the switch to be back", PATIENCE, || daemon.try_ctl("show workers").ok());
    wait_for("the old one to listen again", PATIENCE, listens);
    daemon.upgrade(&host);
    wait_for("the new one to listen", PATIENCE, listens);
    daemon.ctl("shutdown");
    daemon.assert_clean_end();
}

#[test]
fn upgrade_leaves_what_is_stopped_and_begins_nothing() {
    let mut scene = Scene::start_lasting(Family::V4, "[forward]\nauto-start = false\n");
    let door = door(&scene.daemon);
    let states = |scene: &Scene| {
        let forwards = scene.daemon.json("show fwd stats all")["state"].clone();
        [forwards, runtime::port_row(&scene.daemon, "red")["state"].clone()]
    };
    for (commands, expected) in [
        (&[][..], ["stopped", "started"]),
        (&["start"], ["forwarding", "started"]),
        (&["port stop red"], ["forwarding", "stopped"]),
        (&["stop"], ["stopped", "stopped"]),
        (&["start", "port start red"], ["forwarding", "started"]),
    ] {
        commands.iter().for_each(|command| drop(scene.daemon.ctl(command)));
        assert_eq!(states(&scene), expected);
        leave_with_everything(&door);
        wait_for("the switch to be back", PATIENCE, || scene.daemon.try_ctl("show workers").ok());
        assert_eq!(states(&scene), expected, "it came back");
        scene.daemon.upgrade(&scene.lab.host);
        assert_eq!(states(&scene), expected, "a new process took over");
    }
    scene.outbound(&["rc('red', 'far', 17)"]).assert_passed();
    scene.daemon.settled();
    scene.stop();
}

/// `vswitch` with these words, in an environment with these variables.
fn vswitch(host: &Netns, daemon: &Daemon, variables: &[&str], command: &str, dir: &Workdir) -> Process {
    let (program, config) = (daemon.program().display().to_string(), daemon.config().display().to_string());
    let words = [&["env"], variables, &[&program, command, "--config", &config]].concat();
    host.spawn(command, &words, dir)
}

/// What a new process says that is not handed over to.
#[track_caller]
fn refused(mut new: Process) -> String {
    assert!(!new.wait(PATIENCE).success());
    new.output()
}

#[test]
fn upgrade_is_refused_where_something_acknowledged_would_be_lost() {
    let host = Netns::new("host");
    let (state, other) = (Workdir::new("service"), Workdir::new("other"));
    let mut daemon = Daemon::start(&host, "");
    // Without a state file, and with an object that only the old process knows.
    daemon.ctl("vpc add red vni 100");
    let said = refused(daemon.begin_upgrade(&host));
    assert!(said.contains("vpc red") && said.contains("no state file"), "{said}");
    daemon.ctl("vpc del red");
    daemon.upgrade(&host);
    daemon.ctl("shutdown");
    daemon.assert_clean_end();
    // A service with a folder for its state; a shell does not know it, or another one.
    let [own, other] = [&state, &other].map(|folder| format!("STATE_DIRECTORY={}", folder.path().display()));
    let mut running = vswitch(&host, &daemon, &[&own], "run", &state);
    running.wait_output("the switch runs", PATIENCE);
    daemon.ctl("vpc add red vni 100");
    for variables in [&["-u", "STATE_DIRECTORY"][..], &[&other]] {
        let said = refused(vswitch(&host, &daemon, variables, "upgrade", &state));
        let file = state.path().join("state").display().to_string();
        assert!(said.contains(&file) && said.contains("STATE_DIRECTORY"), "{said}");
        assert!(running.exited().is_none() && daemon.ctl("show vpc").contains("red"));
    }
    let mut new = vswitch(&host, &daemon, &[&own], "upgrade", &state);
    new.wait_output("the switch runs", PATIENCE);
    assert!(running.wait(PATIENCE).success());
    assert!(daemon.ctl("show vpc").contains("red"));
    new.signal("TERM");
    assert!(new.wait(PATIENCE).success());
    // The main process of a unit of systemd, which would stop with it.
    let (program, config) = (daemon.program().display().to_string(), daemon.config().display().to_string());
    let script = format!("SYSTEMD_EXEC_PID=$$ {own} exec {program} run --config {config}");
    let mut running = host.spawn("unit", &["sh", "-c", &script], &state);
    running.wait_output("the switch runs", PATIENCE);
    let said = refused(vswitch(&host, &daemon, &[&own], "upgrade", &state));
    assert!(said.contains("systemctl restart"), "{said}");
    assert!(running.exited().is_none() && daemon.ctl("show vpc").contains("red"));
    running.signal("TERM");
    assert!(running.wait(PATIENCE).success());
}

/// The next message but signs of life, which is of a kind.
#[track_caller]
fn awaited(stream: &mut UnixStream, kind: &str) -> Value {
    loop {
        let message = hear(stream);
        if message != "alive" {
            assert!(message == kind || message.get(kind).is_some(), "{message} instead of {kind}");
            return message;
        }
    }
}

/// An old process, of which a test says what it does.
struct Old {
    door: PathBuf,
    listener: UnixListener,
}

impl Old {
    fn at(socket: &Path) -> Self {
        let mut door = socket.as_os_str().to_owned();
        door.push(".upgrade");
        let door = PathBuf::from(door);
        Self { listener: UnixListener::bind(&door).unwrap(), door }
    }

    /// Lets everything go to the next process that asks.
    fn let_go(&self) -> UnixStream {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = awaited(&mut stream, "hello");
        assert_eq!(hello["hello"]["waits_for_end"], true, "{hello}");
        let ready =
            json!({ "version": 1, "pid": std::process::id(), "hears_alive": true, "tells_end": true });
        say(&mut stream, &json!({ "ready": ready })).unwrap();
        awaited(&mut stream, "freeze");
        say(&mut stream, &json!("complete")).unwrap();
        awaited(&mut stream, "take");
        say(&mut stream, &json!("stopped")).unwrap();
        say(&mut stream, &json!("released")).unwrap();
        stream
    }
}

/// Of the two processes of an upgrade exactly one goes on, whatever the last word became.
#[test]
fn upgrade_of_one_that_is_late_leaves_one_switch() {
    let lab = Lab::new(Family::V4);
    let host = &lab.host;
    let mut daemon = Daemon::start(host, &lab.uplink(""));
    daemon.ctl("shutdown");
    daemon.assert_clean_end();
    let mtu = || {
        let shown = host.ip("-o link show dev up0");
        shown.split_whitespace().skip_while(|word| *word != "mtu").nth(1).unwrap().to_owned()
    };
    // The old one has hung up and is back, before the new one was done or just then.
    for is_heard in [false, true] {
        let old = Old::at(daemon.socket());
        host.ip("link set up0 mtu 1500");
        let new = daemon.begin_upgrade(host);
        let mut link = old.let_go();
        if is_heard {
            awaited(&mut link, "done");
        }
        drop(link);
        let said = refused(new);
        let process = format!("process {}) has come back", std::process::id());
        assert!(said.contains(&process) && said.contains("this one ends"), "{said}");
        assert!(old.door.exists() && !daemon.socket().exists(), "the old one's is left to it");
        assert_eq!(mtu(), "1600", "the old one needs what the new one has raised");
        std::fs::remove_file(&old.door).unwrap();
    }
    // It ended as it should, or by itself.
    for is_told in [false, true] {
        let old = Old::at(daemon.socket());
        let mut new = daemon.begin_upgrade(host);
        let mut link = old.let_go();
        awaited(&mut link, "done");
        if is_told {
            say(&mut link, &json!("ended")).unwrap();
        }
        drop((old.listener, link));
        new.wait_output("the switch runs", PATIENCE);
        new.signal("TERM");
        assert!(new.wait(PATIENCE).success(), "{}", new.output());
        assert!(!old.door.exists() && !daemon.socket().exists());
    }
}

/// A new process that hangs with the control socket and the state file in its hands: the old one has both again when it has gone.
#[test]
fn upgrade_by_one_that_hangs_takes_socket_and_state_for_no_longer_than_it_lives() {
    let host = Netns::new("host");
    let dir = Workdir::new("state");
    let state = dir.path().join("state");
    let control = format!("[control]\nstate = \"{}\"\n", state.display());
    let mut daemon = Daemon::start(&host, &control);
    daemon.ctl("vpc add red vni 100");
    let hello = json!({ "hello": { "version": 1, "state": { "file": state } } });
    let mut stream = connect(&door(&daemon));
    say(&mut stream, &hello).unwrap();
    assert_eq!(hear(&mut stream)["ready"]["version"], 1);
    say(&mut stream, &json!("freeze")).unwrap();
    while hear(&mut stream) != "complete" {}
    say(&mut stream, &json!({ "take": { "beside": [] } })).unwrap();
    assert_eq!([hear(&mut stream), hear(&mut stream)], ["stopped", "released"]);
    let listener = UnixListener::bind(daemon.socket()).unwrap();
    let lock = std::fs::File::open(dir.path().join("state.lock")).unwrap();
    lock.lock().unwrap();
    wait_for("the old one to be back, without what the new one has", PATIENCE, || {
        let log = daemon.log();
        let words = ["this one comes back", "cannot be opened again yet", "still has the state file"];
        words.iter().all(|word| log.contains(word)).then_some(())
    });
    // Of the one that ends, as the kernel does it.
    drop((listener, lock, stream));
    wait_for("the old one to answer again", PATIENCE, || daemon.try_ctl("show workers").ok());
    wait_for("the old one to have its state again", PATIENCE, || {
        daemon.log().contains("the state file is this switch's again").then_some(())
    });
    let lock = std::fs::File::open(dir.path().join("state.lock")).unwrap();
    assert!(lock.try_lock().is_err(), "it has the lock");
    daemon.ctl("vpc add blue vni 200");
    assert!(daemon.ctl("show vpc").contains("red"));
    daemon.upgrade(&host);
    let shown = daemon.ctl("show vpc");
    assert!(shown.contains("red") && shown.contains("blue"), "{shown}");
    daemon.ctl("shutdown");
    daemon.assert_clean_end();
}
