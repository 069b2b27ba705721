//! Upgrades that are given up on the way: the switch that runs goes on, and whoever asked hears why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::{Daemon, Netns};

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
