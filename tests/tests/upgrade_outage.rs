//! An upgrade of the switch under traffic: for how long nothing comes through ports of each kind, what the new process has of the old
//! one's tables, and who goes on when either is killed, is late, or is no switch at all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tests::outage::Download;
use tests::outage::site::{Site, VETH, assert_short};
use tests::steady::Stream;
use tests::{Family, Scene, Workdir, wait_for};

/// What is aimed at is a tenth of a second; this bounds what a machine with other work to do may make of it.
const MOST: Duration = Duration::from_secs(2);
/// Between the end of a change and the last look.
const REST: Duration = Duration::from_millis(500);
/// What a switch that has to come back or to be started may take here.
const BACK: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(20);

/// A new process that has begun to take over.
fn begun(site: &mut Site) -> tests::Process {
    let words = "a new process takes over";
    let before = site.daemon.log().matches(words).count();
    let new = site.daemon.begin_upgrade(&site.lab.host);
    wait_for(words, PATIENCE, || (site.daemon.log().matches(words).count() > before).then_some(()));
    new
}

#[test]
fn upgrade_goes_on_when_the_old_switch_is_killed_or_says_why_not() {
    let mut site = Site::start();
    for after in [0, 20, 50, 100] {
        let mut new = begun(&mut site);
        std::thread::sleep(Duration::from_millis(after));
        let old = site.daemon.process();
        old.signal("KILL");
        old.wait(PATIENCE);
        let runs = wait_for("the new process to run or to end", PATIENCE, || {
            let runs = new.output().contains("the switch runs").then_some(true);
            runs.or_else(|| new.exited().map(|_| false))
        });
        eprintln!("the old switch was killed {after} ms after it began: the new one runs: {runs}");
        if runs {
            site.daemon.adopt(new);
        } else {
            assert!(new.output().contains("the other process is gone"), "{}", new.output());
            site.daemon.restart(&site.lab.host);
        }
        let probe = site.probe();
        assert_short("after it", probe, MOST);
    }
    // It finds what the one that was killed last has left, and the one before it ends in order.
    site.daemon.upgrade(&site.lab.host);
    site.daemon.settled();
    site.stop();
}

#[test]
fn upgrade_is_refused_for_a_tap_that_would_go_with_the_process() {
    let mut scene = Scene::start(Family::V4, "", "");
    let mut new = scene.daemon.begin_upgrade(&scene.lab.host);
    assert!(!new.wait(PATIENCE).success());
    let said = new.output();
    assert!(said.contains("port red is a tap") && said.contains("persist = true"), "{said}");
    scene.outbound(&["rc('red', 'far', 17)"]).assert_passed();
    scene.stop();
}

/// A queue pair that was let in has its place in the new process, though others ask first.
#[test]
fn upgrade_leaves_admitted_queue_pairs_their_places() {
    let folder = Workdir::new("state");
    let state = folder.path().join("state");
    let more = format!("[control]\nstate = \"{}\"\n[rcft]\nquota = 2\n", state.display());
    let mut scene = Scene::start_lasting(Family::V4, &more);
    assert_eq!(passed(&mut scene, &[17, 18, 19]), 2);
    // Nothing of it is read from the disk.
    scene.daemon.upgrade(&scene.lab.host);
    assert!(scene.daemon.log().contains("pairs=2"), "{}", scene.daemon.log());
    assert_eq!(passed(&mut scene, &[30, 31]), 0, "no places are free");
    assert_eq!(passed(&mut scene, &[18, 17]), 2);
    for signal in ["TERM", "KILL"] {
        let process = scene.daemon.process();
        process.signal(signal);
        process.wait(PATIENCE);
        scene.daemon.restart(&scene.lab.host);
        assert_eq!(passed(&mut scene, &[30, 31]), 0, "after SIG{signal}");
        assert_eq!(passed(&mut scene, &[18, 17]), 2, "after SIG{signal}");
    }
    scene.daemon.settled();
    scene.stop();
}

/// How many of a packet to each of these queue pairs came out.
fn passed(scene: &mut Scene, numbers: &[u32]) -> usize {
    let frames: Vec<String> = numbers.iter().map(|n| format!("rc('red', 'far', {n})")).collect();
    scene.outbound(&frames).seen.len()
}

#[test]
fn upgrade_is_a_short_outage_on_every_kind_of_port() {
    let mut site = Site::start();
    for round in 0..2 {
        let probe = site.probe();
        let before = site.daemon.process().pid();
        site.daemon.upgrade(&site.lab.host);
        assert_ne!(site.daemon.process().pid(), before);
        std::thread::sleep(REST);
        assert_short(&format!("upgrade {round}"), probe, MOST);
    }
    site.daemon.settled();
    site.stop();
}

#[test]
fn upgrade_leaves_tcp_under_rules_alone() {
    let mut site = Site::start();
    let [near, far] = [&site.veth.netns, &site.far.netns];
    let download = Download::start(near, far, "10.0.0.200");
    let stream = Stream::start(far, near, VETH);
    let known =
        |site: &Site| site.daemon.json("show connections ve")["connections"].as_array().map_or(0, Vec::len);
    assert!(known(&site) >= 2);
    site.daemon.upgrade(&site.lab.host);
    let log = site.daemon.log();
    assert!(log.contains("the tables of the old switch are taken over"), "{log}");
    assert!(download.stop() > 0 && stream.stop() > 0);
    assert!(known(&site) >= 1);
    site.daemon.settled();
    site.stop();
}

#[test]
fn upgrade_that_is_killed_or_garbage_leaves_the_switch_as_it_was() {
    let mut site = Site::start();
    let mut path = site.daemon.socket().as_os_str().to_owned();
    path.push(".upgrade");
    let door = std::path::PathBuf::from(path);
    assert_eq!(std::fs::metadata(&door).unwrap().permissions().mode() & 0o777, 0o600);
    let probe = site.probe();
    // What is no new process: garbage, a word that is cut off, silence.
    for words in [&b"\xff\xff\xff\xff garbage"[..], b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\x20{\"hello\"", b""] {
        let mut stream = UnixStream::connect(&door).unwrap();
        let _ = stream.write_all(words);
        drop(stream);
    }
    // Killed while it starts: nobody notices.
    for after in [0, 50, 100, 200, 300] {
        let mut new = site.daemon.begin_upgrade(&site.lab.host);
        std::thread::sleep(Duration::from_millis(after));
        new.signal("KILL");
        new.wait(PATIENCE);
        assert!(site.daemon.process().exited().is_none(), "after {after} ms: {}", site.daemon.log());
        site.daemon.ctl("show workers");
    }
    std::thread::sleep(REST);
    assert_short("upgrades killed at their start", probe, MOST);
    // Killed after the old one has begun to let go: it comes back, unless the new one had it all.
    for after in [0, 30, 60, 90, 120, 150, 200] {
        let probe = site.probe();
        let mut new = begun(&mut site);
        std::thread::sleep(Duration::from_millis(after));
        new.signal("KILL");
        new.wait(PATIENCE);
        let old = site.daemon.process();
        let ended = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            old.exited().is_some()
        });
        if ended {
            eprintln!("killed {after} ms after the old one began to let go: it had taken over");
            site.daemon.restart(&site.lab.host);
        }
        wait_for("the switch to answer", PATIENCE, || site.daemon.try_ctl("show workers").ok());
        std::thread::sleep(REST);
        assert_short(&format!("killed {after} ms after the old one began to let go"), probe, BACK);
    }
    let probe = site.probe();
    site.daemon.upgrade(&site.lab.host);
    std::thread::sleep(REST);
    assert_short("the upgrade after them", probe, MOST);
    site.daemon.settled();
    site.stop();
}
