//! A worker with nothing to do: `idle = "sleep"` leaves its core to others, `idle = "poll"` keeps it, and both forward.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};
use tests::runtime::thread_ticks;
use tests::steady::Flows;
use tests::{Daemon, Family, Lab, lab, traffic};

/// How long an idle worker is watched. Not a wait for anything: it is the length of the measurement.
const WATCH: Duration = Duration::from_secs(2);

/// Share of a core that the worker takes when idle, in percent of the time that passed, and how often it slept.
fn idle_share(idle: &str) -> (f64, i64) {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let one = lab.tenant("one", "red", "02:00:00:00:0a:01", &["10.0.0.1/24"]);
    let two = lab.tenant("two", "red", "02:00:00:00:0a:02", &["10.0.0.2/24"]);
    let config = [
        lab.uplink(""),
        lab::vpc("red", 100, &["10.0.0.0/24"], ""),
        one.vnic(),
        two.vnic(),
        format!("[workers]\ncores = [1]\nidle = \"{idle}\"\n"),
    ]
    .concat();
    let mut daemon = Daemon::start(&lab.host, &config);
    one.plug(&lab.host);
    two.plug(&lab.host);
    traffic::ping(&one.netns, "10.0.0.2", 56, 3);
    daemon.settled();
    let pid = daemon.process().pid();
    let sleeps = |daemon: &Daemon| daemon.json("show workers")["workers"][0]["sleeps"].as_i64().unwrap();
    let (slept, ticks, began) = (sleeps(&daemon), thread_ticks(pid, "worker-"), Instant::now());
    std::thread::sleep(WATCH);
    let used = (thread_ticks(pid, "worker-") - ticks) as f64 / 100.0;
    let share = 100.0 * used / began.elapsed().as_secs_f64();
    let slept = sleeps(&daemon) - slept;
    // Asleep or not, it forwards, and what it counts says the same.
    Flows::exchange(&one.netns, &two.netns, "10.0.0.2", 10, 50);
    traffic::transfer(&one.netns, &two.netns, "10.0.0.2", 60_000);
    daemon.stop();
    (share, slept)
}

#[test]
fn runtime_idle_workers_sleep_when_told() {
    let (asleep, slept) = idle_share("sleep");
    let (polling, polled) = idle_share("poll");
    println!(
        "an idle worker takes {asleep:.1} % of a core with idle = \"sleep\" ({slept} sleeps), {polling:.1} % with idle = \"poll\""
    );
    assert_eq!(polled, 0, "a polling worker never sleeps");
    assert!(slept > 100, "a sleeping worker slept {slept} times");
    // The one sleeps 200 us between polls of a few; the other takes whatever the machine leaves it.
    assert!(asleep < polling / 2.0, "{asleep:.1} % asleep, {polling:.1} % polling");
}
