//! The scenario harness: builds small networks out of network namespaces, runs the release `vswitch` in one of them,
//! sends real traffic through it and asserts on what arrived and on the switch's own counters.
//!
//! Scenarios live in `tests/tests/`, one file each; this library is what they share. It runs programs and reads their
//! output, and nothing else: it links neither DPDK nor the switch, so that it can only see what a user sees.
//! It never touches anything outside the namespaces, sockets and files it made itself, all of which carry its process id.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the harness is test code: a step that fails must fail the test, where it stands"
)]

pub mod agent;
pub mod api;
pub mod bgp;
pub mod binary;
pub mod capture;
pub mod cni;
pub mod counters;
pub mod daemon;
pub mod dhcp;
pub mod etcd;
pub mod frr;
pub mod guest;
pub mod lab;
pub mod netns;
pub mod outage;
pub mod ovs;
pub mod pair;
pub mod process;
pub mod rates;
pub mod runtime;
pub mod scene;
pub mod script;
pub mod steady;
pub mod tls;
pub mod traffic;
pub mod vhost;
pub mod vteps;
pub mod workdir;

pub use agent::Agent;
pub use capture::Capture;
pub use counters::Counters;
pub use daemon::Daemon;
pub use lab::{Family, Lab, Remote, Tenant};
pub use netns::Netns;
pub use process::Process;
pub use scene::Scene;
pub use workdir::Workdir;

/// Says each step of a long scenario as it is done, with the seconds since this was called.
pub fn steps() -> impl Fn(&str) {
    let began = Instant::now();
    move |what| eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f32())
}

use std::time::{Duration, Instant};

/// Polls `ready` until it returns a value; fails the test with `what` when `limit` passes first.
///
/// Scenarios never sleep for a fixed time: they wait for the fact that they need.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
