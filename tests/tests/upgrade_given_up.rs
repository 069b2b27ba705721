//! Upgrades that are given up on the way: the switch that runs goes on, and whoever asked hears why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::{Daemon, Family, Lab, Netns, Process, Workdir};

const PATIENCE: Duration = Duration::from_secs(20);

/// Whoever ends the new process while it gets ready must not end the network with it.
#[test]
fn upgrade_that_is_interrupted_leaves_the_switch_that_runs() {
    let host = Netns::new("host");
    let mut daemon = Daemon::start(&host, "");
    for signal in ["INT", "TERM"] {
        let mut new = daemon.begin_upgrade(&host);
        new.wait_output("getting ready to take over", PATIENCE);
        new.signal(signal);
        assert!(!new.wait(PATIENCE).success());
        let said = new.output();
        assert!(said.contains("interrupted; the old switch runs on"), "{said}");
        assert!(daemon.process().exited().is_none());
        daemon.ctl("show workers");
    }
    daemon.upgrade(&host);
    daemon.ctl("shutdown");
    daemon.assert_clean_end();
}

/// A new process by these words in front of it, which is not handed over to; what it says.
#[track_caller]
fn refused(daemon: &mut Daemon, netns: &Netns, before: &[&str], dir: &Workdir) -> String {
    let (program, config) = (daemon.program().display().to_string(), daemon.config().display().to_string());
    let words = [before, &[&program, "upgrade", "--config", &config]].concat();
    let mut new: Process = netns.spawn("refused", &words, dir);
    assert!(!new.wait(PATIENCE).success());
    assert!(daemon.process().exited().is_none());
    daemon.ctl("show workers");
    new.output()
}

#[test]
fn upgrade_is_refused_to_a_process_that_could_not_open_the_ports() {
    let lab = Lab::new(Family::V4);
    let (elsewhere, dir) = (Netns::new("elsewhere"), Workdir::new("refused"));
    let mut daemon = Daemon::start(&lab.host, &lab.uplink(""));
    let said = refused(&mut daemon, &elsewhere, &["env"], &dir);
    assert!(said.contains("another network namespace") && said.contains("nsenter"), "{said}");
    let said = refused(&mut daemon, &lab.host, &["setpriv", "--bounding-set", "-net_raw", "--"], &dir);
    assert!(said.contains("lacks CAP_NET_RAW"), "{said}");
    daemon.upgrade(&lab.host);
    daemon.ctl("shutdown");
    daemon.assert_clean_end();
}

/// A port of the old switch that cannot be opened by the new process stays with the old one.
#[test]
fn upgrade_that_cannot_open_a_port_of_the_old_switch_gives_up() {
    let (host, dir) = (Netns::new("host"), Workdir::new("peers"));
    let socket = dir.path().join("vm.sock");
    let config = format!(
        "[[port]]\nname = \"vm\"\nport = {{ kind = \"vhost-user\", path = \"{}\" }}\n",
        socket.display()
    );
    let mut daemon = Daemon::start(&host, &config);
    // Where the old one was, is something else as soon as it has gone.
    let mut new = daemon.begin_upgrade(&host);
    let taken = std::thread::spawn(move || {
        let end = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < end && std::fs::create_dir(&socket).is_err() {}
        socket
    });
    assert!(!new.wait(PATIENCE).success());
    let said = new.output();
    assert!(said.contains("port vm: ") && said.contains("the old one goes on"), "{said}");
    std::fs::remove_dir(taken.join().unwrap()).unwrap();
    assert!(daemon.process().exited().is_none());
    tests::wait_for("the old one to have its port again", PATIENCE, || {
        daemon.try_ctl("show port info all").ok().filter(|_| dir.path().join("vm.sock").exists())
    });
    daemon.upgrade(&host);
    daemon.ctl("shutdown");
    daemon.assert_clean_end();
}
