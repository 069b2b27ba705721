//! A restart of the switch under traffic: for how long nothing comes through ports of each kind, from the signal that ends the old
//! process to the first packet through the new one; what outlives it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::outage::Download;
use tests::outage::site::{Site, VETH, longest};
use tests::steady::Stream;

/// What is aimed at is a second; this machine may be twice as slow as it was when that was seen.
const MOST: Duration = Duration::from_secs(2);

/// Rounds in which the machine may have stood still.
const ROUNDS: usize = 3;

fn outage(signal: &str) {
    let mut site = Site::start();
    // A machine that stands still for a while is no fault of the switch: one round has to be as it should.
    let is_short = (0..ROUNDS).any(|round| {
        let probe = site.probe();
        let [ended, answered] = site.restart(signal);
        eprintln!("SIG{signal}: ended after {ended:?}, answered after {answered:?}");
        std::thread::sleep(MOST);
        longest(&format!("SIG{signal}, round {round}"), probe) < MOST
    });
    assert!(is_short, "each of {ROUNDS} outages was longer than {MOST:?}");
    site.daemon.settled();
    site.stop();
}

#[test]
fn restart_in_order_is_a_short_outage_on_every_kind_of_port() {
    outage("TERM");
}

#[test]
fn restart_after_a_kill_is_a_short_outage_on_every_kind_of_port() {
    outage("KILL");
}

/// A vNIC under rules that let nobody begin: what it asked for goes on to come, though it says nothing, and what asks it goes on.
fn connections(signal: &str) {
    let mut site = Site::start();
    let [near, far] = [&site.veth.netns, &site.far.netns];
    let downloads = Download::start(near, far, "10.0.0.200");
    let stream = Stream::start(far, near, VETH);
    site.restart(signal);
    let bytes = downloads.stop();
    assert!(bytes > 0 && stream.stop() > 0);
    site.daemon.settled();
    site.stop();
}

#[test]
fn restart_in_order_leaves_tcp_under_rules_alone() {
    connections("TERM");
}

#[test]
fn restart_after_a_kill_leaves_tcp_under_rules_alone() {
    connections("KILL");
}
